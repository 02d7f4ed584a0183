//! The observed times of wakes and of requests that leave the queue, and the Retry-After that follows.

use std::collections::VecDeque;

/// Observations that count.
const KEPT: usize = 16;
/// The answer without an observation.
const UNKNOWN_MS: u64 = 30_000;
/// The longest answer in seconds.
const MAX_RETRY_AFTER_S: u64 = 300;

/// The observed wakes and starts of a service, in milliseconds.
#[derive(Debug, Default)]
pub struct WakeTimes {
    waking_since_ms: Option<u64>,
    wakes_ms: VecDeque<u64>,
    starts_ms: VecDeque<u64>,
}

impl WakeTimes {
    /// A wake begins; during a wake this changes nothing.
    pub fn begin_wake(&mut self, now_ms: u64) {
        self.waking_since_ms.get_or_insert(now_ms);
    }

    /// The first replica is ready.
    pub fn end_wake(&mut self, now_ms: u64) {
        if let Some(since) = self.waking_since_ms.take() {
            keep(&mut self.wakes_ms, now_ms.saturating_sub(since));
        }
    }

    /// A wake ended without a replica; its time says nothing about others.
    pub fn fail_wake(&mut self) {
        self.waking_since_ms = None;
    }

    /// A request left the queue for a replica.
    pub fn count_start(&mut self, now_ms: u64) {
        keep(&mut self.starts_ms, now_ms);
    }

    /// The seconds after which a request that is refused now, behind `waiting` others, has a chance.
    pub fn retry_after_s(&self, waiting: usize, now_ms: u64) -> u64 {
        let wait_ms = match self.waking_since_ms {
            Some(since) => self.rest_of_wake_ms(now_ms.saturating_sub(since)),
            None => self.rest_of_queue_ms(waiting, now_ms),
        };
        wait_ms.div_ceil(1_000).clamp(1, MAX_RETRY_AFTER_S)
    }

    /// The rest of a wake that has lasted for `passed_ms`: the median of the observed wakes that were longer.
    fn rest_of_wake_ms(&self, passed_ms: u64) -> u64 {
        let mut longer: Vec<u64> = self.wakes_ms.iter().copied().filter(|wake| *wake > passed_ms).collect();
        longer.sort_unstable();
        match longer.get(longer.len() / 2) {
            Some(median) => median - passed_ms,
            // It lasts longer than any before, so only those say anything.
            None => self.wakes_ms.iter().copied().max().unwrap_or(UNKNOWN_MS),
        }
    }

    /// The time in which `waiting` requests leave at the observed rate. The time since the last start counts,
    /// so the answer grows while nothing moves.
    fn rest_of_queue_ms(&self, waiting: usize, now_ms: u64) -> u64 {
        let Some(first) = self.starts_ms.front() else { return UNKNOWN_MS };
        let each = now_ms.saturating_sub(*first) / self.starts_ms.len().max(1) as u64;
        each.saturating_mul((waiting as u64).saturating_add(1))
    }
}

fn keep(list: &mut VecDeque<u64>, value: u64) {
    if list.len() >= KEPT {
        list.pop_front();
    }
    list.push_back(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_is_expected_to_last_as_long_as_earlier_ones() {
        let mut times = WakeTimes::default();
        times.begin_wake(0);
        assert_eq!(times.retry_after_s(0, 5_000), 30, "nothing is known yet");
        times.end_wake(4_000);
        for (begin, end) in [(10_000, 16_000), (20_000, 32_000)] {
            times.begin_wake(begin);
            times.begin_wake(begin + 1);
            times.end_wake(end);
        }
        times.begin_wake(100_000);
        let expected = [(100_000, 6), (101_500, 5), (104_000, 8), (106_000, 6), (111_999, 1), (112_000, 12)];
        for (now, seconds) in expected {
            assert_eq!(times.retry_after_s(0, now), seconds, "{now}");
        }
        times.fail_wake();
        assert_eq!(times.wakes_ms, [4_000, 6_000, 12_000]);
    }

    #[test]
    fn a_full_service_answers_by_its_rate() {
        let mut times = WakeTimes::default();
        assert_eq!(times.retry_after_s(5, 0), 30);
        for start in 0..40 {
            times.count_start(start * 500);
        }
        assert_eq!(times.starts_ms.len(), KEPT);
        assert_eq!(times.retry_after_s(0, 20_000), 1);
        assert_eq!(times.retry_after_s(9, 20_000), 5, "ten times half a second");
        assert_eq!(times.retry_after_s(9, 28_000), 10, "nothing moved for eight seconds");
        assert_eq!(times.retry_after_s(usize::MAX - 1, u64::MAX), 300);
    }
}

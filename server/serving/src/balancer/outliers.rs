//! The evidence about one replica, and its ejection for growing times.

/// Failures in a row that make an outlier.
const FAILURES_IN_A_ROW: u32 = 5;
/// Milliseconds of a window; the present and the last one count.
const WINDOW_MS: u64 = 10_000;
/// Answers in the windows below which a share says nothing.
const MIN_ANSWERS: u64 = 20;
/// The share of failures that makes an outlier, in percent.
const FAILED_PERCENT: u64 = 50;
/// The first ejection; each further one is twice as long.
const FIRST_EJECTION_MS: u64 = 10_000;
const MAX_EJECTION_MS: u64 = 300_000;
/// After this time without an ejection the next one is a first one again.
const FORGET_MS: u64 = 300_000;

#[derive(Debug, Clone, Copy, Default)]
struct Window {
    answers: u64,
    failed: u64,
}

#[derive(Debug, Default)]
pub struct Outlier {
    in_a_row: u32,
    /// The number of the present window.
    window: u64,
    present: Window,
    last: Window,
    ejections: u32,
    ejected_until_ms: u64,
}

impl Outlier {
    pub const fn is_ejected(&self, now_ms: u64) -> bool {
        now_ms < self.ejected_until_ms
    }

    pub const fn ejected_until_ms(&self) -> u64 {
        self.ejected_until_ms
    }

    /// Counts an answer. Returns true if the replica is an outlier. The answers of an ejected one are to
    /// requests from before its ejection, and do not count.
    pub fn record(&mut self, failed: bool, now_ms: u64) -> bool {
        if self.is_ejected(now_ms) {
            return false;
        }
        let window = (now_ms / WINDOW_MS).max(self.window);
        if window != self.window {
            self.last = if window == self.window + 1 { self.present } else { Window::default() };
            self.present = Window::default();
            self.window = window;
        }
        self.present.answers += 1;
        self.present.failed += u64::from(failed);
        self.in_a_row = if failed { self.in_a_row.saturating_add(1) } else { 0 };
        let answers = self.present.answers + self.last.answers;
        let share_is_bad = answers >= MIN_ANSWERS
            && (self.present.failed + self.last.failed) * 100 >= answers * FAILED_PERCENT;
        failed && (self.in_a_row >= FAILURES_IN_A_ROW || share_is_bad)
    }

    /// Ejects the replica. Its evidence begins anew after its return.
    pub fn eject(&mut self, now_ms: u64) {
        let forgotten = now_ms >= self.ejected_until_ms.saturating_add(FORGET_MS);
        let earlier = if forgotten { 0 } else { self.ejections };
        let doubled = FIRST_EJECTION_MS << earlier.min(5);
        self.ejected_until_ms = now_ms.saturating_add(doubled.min(MAX_EJECTION_MS));
        self.ejections = earlier.saturating_add(1);
        self.in_a_row = 0;
        self.present = Window::default();
        self.last = Window::default();
    }

    /// Ends an ejection before its time.
    pub fn return_now(&mut self, now_ms: u64) {
        self.ejected_until_ms = self.ejected_until_ms.min(now_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The times of ejections of a replica that fails each millisecond from `from_ms` on.
    fn ejections(outlier: &mut Outlier, from_ms: u64, count: usize) -> Vec<u64> {
        let mut now = from_ms;
        let mut lengths = Vec::new();
        while lengths.len() < count {
            if outlier.record(true, now) {
                outlier.eject(now);
                lengths.push(outlier.ejected_until_ms() - now);
                now = outlier.ejected_until_ms();
            }
            now += 1;
        }
        lengths
    }

    #[test]
    fn ejections_grow_and_are_forgotten() {
        let mut outlier = Outlier::default();
        let lengths = ejections(&mut outlier, 0, 7);
        assert_eq!(lengths, [10_000, 20_000, 40_000, 80_000, 160_000, 300_000, 300_000]);
        let later = outlier.ejected_until_ms() + FORGET_MS;
        assert_eq!(ejections(&mut outlier, later, 1), [10_000]);
    }

    #[test]
    fn a_success_ends_a_row_and_no_failure_is_no_outlier() {
        let mut outlier = Outlier::default();
        for _ in 0..4 {
            assert!(!outlier.record(true, 0));
        }
        assert!(!outlier.record(false, 0));
        for _ in 0..4 {
            assert!(!outlier.record(true, 0));
        }
        assert!(outlier.record(true, 0), "the fifth in a row");
    }

    #[test]
    fn half_of_enough_answers_is_an_outlier() {
        let mut outlier = Outlier::default();
        let verdicts: Vec<bool> = (0..20).map(|n| outlier.record(n % 2 == 1, n * 1_000)).collect();
        assert_eq!(verdicts.iter().position(|bad| *bad), Some(19), "both windows count");
        let mut outlier = Outlier::default();
        let verdicts: Vec<bool> = (0..20).map(|n| outlier.record(n % 2 == 1, n * 2_000)).collect();
        assert!(!verdicts.contains(&true), "older windows do not count");
    }
}

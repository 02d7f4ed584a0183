//! Retries: another replica for a request that no replica has begun, within a budget.

use std::collections::VecDeque;

/// Milliseconds of the window in which requests and retries are counted.
const WINDOW_MS: u64 = 10_000;
/// Milliseconds of a part of the window.
const PART_MS: u64 = 1_000;
/// Retries for each hundred requests in the window.
const PERCENT: u64 = 20;
/// Retries in a window with few requests, so that the loss of a replica costs no request.
const FEW: u64 = 3;
/// Replicas that one request is sent to.
pub const MAX_TRIES: u32 = 3;

/// The progress of a request at its last replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// No connection to the node, or no TLS session.
    NotConnected,
    /// The worker has not said that it reached the port of the attempt.
    NotDelivered,
    /// The replica says by its protocol that it did not begin, as by `REFUSED_STREAM`.
    NotBegun,
    /// A byte of the request was sent: the replica may have begun.
    Sent,
    /// A byte of the answer came.
    Answered,
}

impl Progress {
    /// True if no replica can have begun the request.
    pub const fn is_before_begin(self) -> bool {
        matches!(self, Self::NotConnected | Self::NotDelivered | Self::NotBegun)
    }
}

/// A failed try of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Try {
    pub progress: Progress,
    /// The whole request is at hand still.
    pub is_repeatable: bool,
    /// The replicas that got the request so far, at least 1.
    pub tries: u32,
}

/// The decision about a failed try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    Retry,
    /// A replica may have begun it, or the request is no longer at hand.
    NotSafe,
    TooManyTries,
    /// Too many requests fail at the moment.
    NoBudget,
}

#[derive(Debug, Clone, Copy, Default)]
struct Part {
    number: u64,
    requests: u64,
    retries: u64,
}

/// The budget of a service. In each window retries are at most a fifth of the requests, or three where these
/// are few, and never more than the requests.
#[derive(Debug, Default)]
pub struct RetryBudget {
    parts: VecDeque<Part>,
}

impl RetryBudget {
    /// Counts a request at its first try.
    pub fn count_request(&mut self, now_ms: u64) {
        if let Some(part) = self.part(now_ms) {
            part.requests = part.requests.saturating_add(1);
        }
    }

    /// Decides about a failed try, and counts a retry.
    pub fn decide(&mut self, failed: Try, now_ms: u64) -> Decision {
        if !failed.progress.is_before_begin() || !failed.is_repeatable {
            return Decision::NotSafe;
        }
        if failed.tries >= MAX_TRIES {
            return Decision::TooManyTries;
        }
        self.part(now_ms);
        let requests: u64 = self.parts.iter().map(|part| part.requests).sum();
        let retries: u64 = self.parts.iter().map(|part| part.retries).sum();
        let allowed = (requests.saturating_mul(PERCENT) / 100).max(FEW).min(requests);
        match self.part(now_ms) {
            Some(part) if retries < allowed => {
                part.retries += 1;
                Decision::Retry
            }
            _ => Decision::NoBudget,
        }
    }

    /// The present part of the window. Parts before the window are dropped.
    fn part(&mut self, now_ms: u64) -> Option<&mut Part> {
        let newest = self.parts.back().map_or(0, |part| part.number);
        let number = (now_ms / PART_MS).max(newest);
        while self.parts.front().is_some_and(|part| part.number + WINDOW_MS / PART_MS <= number) {
            self.parts.pop_front();
        }
        if self.parts.back().is_none_or(|part| part.number != number) {
            self.parts.push_back(Part { number, ..Part::default() });
        }
        self.parts.back_mut()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SAFE: Try = Try { progress: Progress::NotConnected, is_repeatable: true, tries: 1 };

    #[test]
    fn only_a_request_that_no_replica_has_begun_is_sent_again() {
        let all = [
            (Progress::NotConnected, true),
            (Progress::NotDelivered, true),
            (Progress::NotBegun, true),
            (Progress::Sent, false),
            (Progress::Answered, false),
        ];
        for (progress, is_safe) in all {
            for is_repeatable in [false, true] {
                for tries in 1..=MAX_TRIES + 1 {
                    let mut budget = RetryBudget::default();
                    budget.count_request(0);
                    let expected = match (is_safe && is_repeatable, tries < MAX_TRIES) {
                        (false, _) => Decision::NotSafe,
                        (true, false) => Decision::TooManyTries,
                        (true, true) => Decision::Retry,
                    };
                    let failed = Try { progress, is_repeatable, tries };
                    assert_eq!(budget.decide(failed, 0), expected, "{failed:?}");
                }
            }
        }
    }

    #[test]
    fn few_requests_have_a_few_retries() {
        let mut budget = RetryBudget::default();
        assert_eq!(budget.decide(SAFE, 0), Decision::NoBudget, "no request, no retry");
        for _ in 0..5 {
            budget.count_request(0);
        }
        let decisions: Vec<Decision> = (0..4).map(|_| budget.decide(SAFE, 9_999)).collect();
        assert_eq!(decisions, [Decision::Retry, Decision::Retry, Decision::Retry, Decision::NoBudget]);
        assert_eq!(budget.decide(SAFE, 10_000), Decision::NoBudget, "the requests have left the window");
        assert!(budget.parts.len() <= 10);
    }

    proptest! {
        #[test]
        fn retries_never_go_over_their_share(events in prop::collection::vec((0..3_000_u64, any::<bool>()), 1..200)) {
            let mut budget = RetryBudget::default();
            let (mut now, mut history) = (0_u64, Vec::new());
            for (passed, is_request) in events {
                now += passed;
                let in_window = |(at, _): &&(u64, bool)| at / 1_000 + 10 > now / 1_000;
                let requests = history.iter().filter(in_window).filter(|(_, request)| *request).count();
                let retries = history.iter().filter(in_window).filter(|(_, request)| !request).count();
                if is_request {
                    budget.count_request(now);
                    history.push((now, true));
                } else {
                    let allowed = (requests / 5).max(3).min(requests);
                    let decision = budget.decide(SAFE, now);
                    prop_assert_eq!(decision == Decision::Retry, retries < allowed);
                    if decision == Decision::Retry {
                        history.push((now, false));
                    }
                }
            }
        }
    }
}

//! The decisions about the readiness of a replica.

use std::time::Duration;

/// The time to the next probe of a replica that is not ready, after its first failure in a row. It doubles with each
/// further one: a short start is noticed at once.
const FIRST_MS: u64 = 10;
/// The longest such time: a long start costs four probes a second.
const LONGEST_MS: u64 = 250;
/// The time between two probes of a ready replica.
const LATER: Duration = Duration::from_secs(5);
/// The failures in a row after which a replica is not ready.
const MOST_FAILURES: u32 = 2;

/// The readiness of one replica.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Readiness {
    ready: bool,
    /// The failures in a row.
    failures: u32,
}

impl Readiness {
    pub(crate) const fn is_ready(self) -> bool {
        self.ready
    }

    /// Notes the result of a probe. Returns the time to the next one.
    pub(crate) const fn note(&mut self, answered: bool) -> Duration {
        self.failures = if answered { 0 } else { self.failures.saturating_add(1) };
        self.ready = answered || (self.ready && self.failures < MOST_FAILURES);
        if self.ready { LATER } else { self.until_next() }
    }

    /// The time to the next probe of a replica that is not ready.
    const fn until_next(self) -> Duration {
        let (mut pause, mut failures) = (FIRST_MS, self.failures);
        while failures > 1 && pause < LONGEST_MS {
            (pause, failures) = (pause * 2, failures - 1);
        }
        Duration::from_millis(if pause < LONGEST_MS { pause } else { LONGEST_MS })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_is_ready_while_one_of_the_last_two_probes_succeeded() {
        for length in 0..=12u32 {
            for bits in 0..1u32 << length {
                let results: Vec<bool> = (0..length).map(|at| bits >> at & 1 == 1).collect();
                let mut readiness = Readiness::default();
                let pause = results.iter().map(|answered| readiness.note(*answered)).last();
                let expected = results.iter().rev().take(2).any(|answered| *answered);
                assert_eq!(readiness.is_ready(), expected, "{results:?}");
                let failures = results.iter().rev().take_while(|answered| !**answered).count();
                let pauses = [10, 20, 40, 80, 160, 250];
                let soon = pauses[failures.saturating_sub(1).min(5)];
                let expected_pause = Duration::from_millis(if expected { 5_000 } else { soon });
                assert!(pause.is_none_or(|pause| pause == expected_pause), "{results:?}: {pause:?}");
            }
        }
    }
}

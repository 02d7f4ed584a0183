//! The sums of observations of an attempt's process and devices. Pure: observations and their times come in as
//! values. The portal judges the sums.

use serde::{Deserialize, Serialize};

/// The longest time that an observation covers.
const MOST_GAP_MS: i64 = 5_000;
/// The most losses that are kept with their times; further ones count only in the sum.
const MOST_LOSSES: usize = 64;

/// The file of the tally in the attempt's directory.
pub(super) const TALLY: &str = "evidence.json";

/// One observation of all devices of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceObservation {
    /// Every device answered. `busy`: a compute process was on one of them; absent if NVML cannot list processes.
    Answered { busy: Option<bool> },
    /// A device did not answer.
    Lost,
    /// NVML did not work.
    Unknown,
}

/// Sums in milliseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvidenceTally {
    /// The age of the process at its last observation; 0 without one.
    pub process_ms: i64,
    pub device_ms: i64,
    pub lost_ms: i64,
    pub busy_ms: Option<i64>,
    /// The times without a device, by the clock of the observations: disjoint and in order.
    #[serde(default)]
    pub lost: Vec<(i64, i64)>,
    /// Not saved: the time before a restart of the daemon was not observed.
    #[serde(skip)]
    last: Option<(i64, DeviceObservation)>,
}

impl EvidenceTally {
    /// Adds an observation, which holds until the next one. `now_ms` is of a clock that never goes back.
    pub fn add(&mut self, now_ms: i64, observation: DeviceObservation) {
        if let Some((then_ms, found)) = self.last {
            let passed = now_ms.saturating_sub(then_ms);
            if passed <= 0 {
                return;
            }
            if passed <= MOST_GAP_MS {
                self.count((then_ms, now_ms), found);
            }
        }
        self.last = Some((now_ms, observation));
    }

    fn count(&mut self, (then_ms, now_ms): (i64, i64), found: DeviceObservation) {
        let passed = now_ms - then_ms;
        match found {
            DeviceObservation::Answered { busy } => {
                self.device_ms += passed;
                if let Some(busy) = busy {
                    *self.busy_ms.get_or_insert(0) += if busy { passed } else { 0 };
                }
            }
            DeviceObservation::Lost => {
                self.lost_ms += passed;
                let goes_on = self.lost.last_mut().filter(|(_, until)| *until == then_ms);
                if let Some((_, until)) = goes_on {
                    *until = now_ms;
                } else if self.lost.len() < MOST_LOSSES {
                    self.lost.push((then_ms, now_ms));
                }
            }
            DeviceObservation::Unknown => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const IDLE: DeviceObservation = DeviceObservation::Answered { busy: Some(false) };
    const BUSY: DeviceObservation = DeviceObservation::Answered { busy: Some(true) };

    fn tally(observations: &[(i64, DeviceObservation)]) -> (i64, i64, Option<i64>) {
        let mut tally = EvidenceTally::default();
        observations.iter().for_each(|(at, observation)| tally.add(*at, *observation));
        (tally.device_ms, tally.lost_ms, tally.busy_ms)
    }

    #[test]
    fn each_observation_holds_until_the_next() {
        let mute = DeviceObservation::Answered { busy: None };
        for (looks, sums) in [
            (&[(7_000, BUSY)][..], (0, 0, None)),
            (&[], (0, 0, None)),
            (&[(0, BUSY), (1_000, IDLE), (3_000, IDLE)], (3_000, 0, Some(1_000))),
            (
                &[(0, IDLE), (1_000, DeviceObservation::Lost), (2_500, IDLE), (3_000, IDLE)],
                (1_500, 1_500, Some(0)),
            ),
            (&[(0, mute), (1_000, mute)], (1_000, 0, None)),
            (&[(0, DeviceObservation::Unknown), (1_000, IDLE)], (0, 0, None)),
        ] {
            assert_eq!(tally(looks), sums, "{looks:?}");
        }
    }

    #[test]
    fn what_was_not_observed_counts_nowhere() {
        assert_eq!(
            tally(&[(0, DeviceObservation::Lost), (5_000, DeviceObservation::Lost)]),
            (0, 5_000, None)
        );
        assert_eq!(
            tally(&[(0, DeviceObservation::Lost), (5_001, DeviceObservation::Lost)]),
            (0, 0, None),
            "a gap"
        );
        assert_eq!(
            tally(&[(0, IDLE), (1_000, IDLE), (500, IDLE), (2_000, IDLE)]).0,
            2_000,
            "one that is late"
        );
        let mut before = EvidenceTally::default();
        before.add(1_000, DeviceObservation::Lost);
        before.add(2_000, DeviceObservation::Lost);
        let kept = serde_json::to_string(&before).unwrap();
        let mut after: EvidenceTally = serde_json::from_str(&kept).unwrap();
        after.add(3_000, DeviceObservation::Lost);
        assert_eq!(after.lost_ms, 1_000, "the time without a daemon");
        after.add(4_000, IDLE);
        assert_eq!(after.lost_ms, 2_000);
    }

    #[test]
    fn it_is_kept_when_something_was_lost() {
        let mut tally = EvidenceTally::default();
        for (at, observation) in [
            (0, DeviceObservation::Lost),
            (1_000, DeviceObservation::Lost),
            (2_000, IDLE),
            (3_000, DeviceObservation::Lost),
            (4_000, DeviceObservation::Unknown),
            (20_000, DeviceObservation::Lost),
            (21_000, IDLE),
        ] {
            tally.add(at, observation);
        }
        assert_eq!(tally.lost, [(0, 2_000), (3_000, 4_000), (20_000, 21_000)]);
        let mut flaps = EvidenceTally::default();
        for n in 0..200 {
            flaps.add(n * 1_000, if n % 2 == 0 { DeviceObservation::Lost } else { IDLE });
        }
        assert_eq!((flaps.lost.len(), flaps.lost_ms), (MOST_LOSSES, 100_000), "the sum is of all");
    }

    fn any_observation() -> impl Strategy<Value = DeviceObservation> {
        prop_oneof![
            prop::option::of(any::<bool>()).prop_map(|busy| DeviceObservation::Answered { busy }),
            Just(DeviceObservation::Lost),
            Just(DeviceObservation::Unknown),
        ]
    }

    proptest! {
        #[test]
        fn no_time_is_counted_twice(observations in prop::collection::vec((0i64..8_000, any_observation()), 0..40)) {
            let (mut tally, mut now) = (EvidenceTally::default(), 0);
            for (step, observation) in observations {
                now += step;
                let before = tally.clone();
                tally.add(now, observation);
                prop_assert!(tally.device_ms >= before.device_ms && tally.lost_ms >= before.lost_ms);
                prop_assert!(tally.device_ms + tally.lost_ms <= now);
                prop_assert!(tally.busy_ms.unwrap_or(0) <= tally.device_ms);
                let located: i64 = tally.lost.iter().map(|(from, until)| until - from).sum();
                prop_assert_eq!(located, tally.lost_ms, "so few looks are all kept");
                prop_assert!(tally.lost.windows(2).all(|w| w[0].1 <= w[1].0));
            }
        }
    }
}

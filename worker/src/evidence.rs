//! What NVML said of an attempt's devices over time, summed up.
//!
//! Pure: looks and their times come in as values. What the sums are worth is the portal's to say.

use serde::{Deserialize, Serialize};

/// Looks that are further apart say nothing about the time between them.
const MOST_GAP_MS: i64 = 5_000;
/// Of so many losses it is kept when they were; of what is lost beyond them, how long in all.
const MOST_LOSSES: usize = 64;

/// What one look at all devices of an attempt found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Every device answered. `busy`: a compute process was on one of them; absent when NVML cannot say.
    Answered { busy: Option<bool> },
    /// One of them was asked and did not answer.
    Lost,
    /// NVML could not be asked.
    Unknown,
}

/// Cumulative milliseconds, kept beside the attempt.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// How old the process was when it was last seen; 0 when it never was.
    pub process_ms: i64,
    pub device_ms: i64,
    pub lost_ms: i64,
    pub busy_ms: Option<i64>,
    /// When a device was lost, by the clock of the looks: apart, and in order.
    #[serde(default)]
    pub lost: Vec<(i64, i64)>,
    /// Not kept: what passed before a daemon started again was not observed.
    #[serde(skip)]
    last: Option<(i64, Look)>,
}

impl Tally {
    /// Takes in a look; `now_ms` is of a clock that never goes back. What a look found holds until the
    /// next one.
    pub fn handle_reading(&mut self, now_ms: i64, look: Look) {
        if let Some((then_ms, found)) = self.last {
            let passed = now_ms.saturating_sub(then_ms);
            if passed <= 0 {
                return;
            }
            if passed <= MOST_GAP_MS {
                self.count((then_ms, now_ms), found);
            }
        }
        self.last = Some((now_ms, look));
    }

    fn count(&mut self, (then_ms, now_ms): (i64, i64), found: Look) {
        let passed = now_ms - then_ms;
        match found {
            Look::Answered { busy } => {
                self.device_ms += passed;
                if let Some(busy) = busy {
                    *self.busy_ms.get_or_insert(0) += if busy { passed } else { 0 };
                }
            }
            Look::Lost => {
                self.lost_ms += passed;
                let goes_on = self.lost.last_mut().filter(|(_, until)| *until == then_ms);
                if let Some((_, until)) = goes_on {
                    *until = now_ms;
                } else if self.lost.len() < MOST_LOSSES {
                    self.lost.push((then_ms, now_ms));
                }
            }
            Look::Unknown => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const IDLE: Look = Look::Answered { busy: Some(false) };
    const BUSY: Look = Look::Answered { busy: Some(true) };

    fn tally(looks: &[(i64, Look)]) -> (i64, i64, Option<i64>) {
        let mut tally = Tally::default();
        looks.iter().for_each(|(at, look)| tally.handle_reading(*at, *look));
        (tally.device_ms, tally.lost_ms, tally.busy_ms)
    }

    #[test]
    fn each_look_holds_until_the_next() {
        let mute = Look::Answered { busy: None };
        for (looks, sums) in [
            (&[(7_000, BUSY)][..], (0, 0, None)),
            (&[], (0, 0, None)),
            (&[(0, BUSY), (1_000, IDLE), (3_000, IDLE)], (3_000, 0, Some(1_000))),
            (&[(0, IDLE), (1_000, Look::Lost), (2_500, IDLE), (3_000, IDLE)], (1_500, 1_500, Some(0))),
            (&[(0, mute), (1_000, mute)], (1_000, 0, None)),
            (&[(0, Look::Unknown), (1_000, IDLE)], (0, 0, None)),
        ] {
            assert_eq!(tally(looks), sums, "{looks:?}");
        }
    }

    #[test]
    fn what_was_not_observed_counts_nowhere() {
        assert_eq!(tally(&[(0, Look::Lost), (5_000, Look::Lost)]), (0, 5_000, None));
        assert_eq!(tally(&[(0, Look::Lost), (5_001, Look::Lost)]), (0, 0, None), "a gap");
        assert_eq!(
            tally(&[(0, IDLE), (1_000, IDLE), (500, IDLE), (2_000, IDLE)]).0,
            2_000,
            "one that is late"
        );
        let mut before = Tally::default();
        before.handle_reading(1_000, Look::Lost);
        before.handle_reading(2_000, Look::Lost);
        let kept = serde_json::to_string(&before).unwrap();
        let mut after: Tally = serde_json::from_str(&kept).unwrap();
        after.handle_reading(3_000, Look::Lost);
        assert_eq!(after.lost_ms, 1_000, "the time without a daemon");
        after.handle_reading(4_000, IDLE);
        assert_eq!(after.lost_ms, 2_000);
    }

    #[test]
    fn it_is_kept_when_something_was_lost() {
        let mut tally = Tally::default();
        for (at, look) in [
            (0, Look::Lost),
            (1_000, Look::Lost),
            (2_000, IDLE),
            (3_000, Look::Lost),
            (4_000, Look::Unknown),
            (20_000, Look::Lost),
            (21_000, IDLE),
        ] {
            tally.handle_reading(at, look);
        }
        assert_eq!(tally.lost, [(0, 2_000), (3_000, 4_000), (20_000, 21_000)]);
        let mut flaps = Tally::default();
        for n in 0..200 {
            flaps.handle_reading(n * 1_000, if n % 2 == 0 { Look::Lost } else { IDLE });
        }
        assert_eq!((flaps.lost.len(), flaps.lost_ms), (MOST_LOSSES, 100_000), "the sum is of all");
    }

    fn any_look() -> impl Strategy<Value = Look> {
        prop_oneof![
            prop::option::of(any::<bool>()).prop_map(|busy| Look::Answered { busy }),
            Just(Look::Lost),
            Just(Look::Unknown),
        ]
    }

    proptest! {
        #[test]
        fn no_time_is_counted_twice(looks in prop::collection::vec((0i64..8_000, any_look()), 0..40)) {
            let (mut tally, mut now) = (Tally::default(), 0);
            for (step, look) in looks {
                now += step;
                let before = tally.clone();
                tally.handle_reading(now, look);
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

//! What of a charge is not borne out by what was seen of its processes and devices.
//!
//! Evidence can only take from a charge: it never adds to one, and its absence takes nothing.

use berth_types::evidence::Evidence;

use crate::rating::charge_micros;

/// What the meter may say beyond the life of the process: two clocks are read one after the other.
pub const TOLERANCE_MS: i64 = 1_000;

/// Parts of the metered time, which do not overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Uncovered {
    /// A device did not answer.
    pub lost_ms: i64,
    /// The process had gone.
    pub beyond_ms: i64,
}

impl Uncovered {
    pub const fn total_ms(self) -> i64 {
        self.lost_ms.saturating_add(self.beyond_ms)
    }
}

/// What of an attempt's metered time its ranks do not bear out; `None` for a rank whose worker told
/// nothing. Never more than was metered.
///
/// The meter is one for all ranks and runs for as long as the last of them. So it goes beyond the
/// process only when it goes beyond the longest, and only when all are known. Ranks work together, so
/// what one of them lost is lost to all; of times that may be the same the longest counts once.
pub fn uncovered(metered_ms: i64, ranks: &[Option<Evidence>]) -> Uncovered {
    let metered_ms = metered_ms.max(0);
    let told = || ranks.iter().flatten();
    let lost_ms = told().map(|e| e.lost_ms).max().unwrap_or(0).clamp(0, metered_ms);
    let all_told = ranks.iter().all(Option::is_some);
    let longest = told().map(|e| e.process_ms.max(0)).max().filter(|_| all_told);
    let beyond_ms = longest.map_or(0, |ms| metered_ms.saturating_sub(ms.saturating_add(TOLERANCE_MS)));
    Uncovered { lost_ms, beyond_ms: beyond_ms.clamp(0, metered_ms - lost_ms) }
}

/// What is given back for time that is not borne out, of what the attempt was charged.
pub fn credit_micros(nano_per_second: i64, uncovered_ms: i64, charged_micros: i64) -> i64 {
    let worth = charge_micros(nano_per_second, uncovered_ms).unwrap_or(i64::MAX);
    worth.min(charged_micros).max(0)
}

/// Older and newer evidence of one rank as one: sums never go back, in whatever order they arrive.
pub fn newest(before: Option<Evidence>, now: Evidence) -> Evidence {
    let Some(before) = before else { return now };
    Evidence {
        rank: now.rank,
        process_ms: now.process_ms.max(before.process_ms),
        device_ms: now.device_ms.max(before.device_ms),
        lost_ms: now.lost_ms.max(before.lost_ms),
        busy_ms: now.busy_ms.max(before.busy_ms),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seen(process_ms: i64, lost_ms: i64) -> Option<Evidence> {
        Some(Evidence { rank: 0, process_ms, device_ms: process_ms - lost_ms, lost_ms, busy_ms: None })
    }

    #[test]
    fn what_is_seen_is_paid_and_nothing_else() {
        for (metered_ms, ranks, lost_ms, beyond_ms) in [
            (10_000, &[seen(10_000, 0)][..], 0, 0),
            (10_000, &[seen(9_000, 0)], 0, 0),
            (10_000, &[seen(8_999, 0)], 0, 1),
            (10_000, &[seen(10_000, 4_000)], 4_000, 0),
            (10_000, &[seen(5_000, 4_000)], 4_000, 4_000),
            (10_000, &[seen(0, 12_000)], 10_000, 0),
            // A gang: the longest process bears the meter, the longest loss counts once.
            (10_000, &[seen(2_000, 0), seen(10_000, 0)], 0, 0),
            (10_000, &[seen(10_000, 3_000), seen(10_000, 2_000)], 3_000, 0),
            (10_000, &[seen(2_000, 0), seen(6_000, 0)], 0, 3_000),
            // What is not known takes nothing.
            (10_000, &[], 0, 0),
            (10_000, &[None], 0, 0),
            (10_000, &[seen(2_000, 0), None], 0, 0),
            (10_000, &[seen(2_000, 500), None], 500, 0),
            (0, &[seen(0, 0)], 0, 0),
        ] {
            assert_eq!(uncovered(metered_ms, ranks), Uncovered { lost_ms, beyond_ms }, "{ranks:?}");
        }
    }

    #[test]
    fn sums_never_go_back() {
        let (old, new) = (seen(5_000, 100), Evidence { busy_ms: Some(7), ..seen(4_000, 200).unwrap() });
        let both = newest(old, new);
        assert_eq!((both.process_ms, both.device_ms, both.lost_ms), (5_000, 4_900, 200));
        assert_eq!(both.busy_ms, Some(7));
        assert_eq!(newest(None, new), new);
        assert_eq!(newest(Some(both), both), both);
    }

    fn any_evidence() -> impl Strategy<Value = Option<Evidence>> {
        prop::option::of((any::<i64>(), any::<i64>()).prop_map(|(process_ms, lost_ms)| Evidence {
            rank: 0,
            process_ms,
            device_ms: 0,
            lost_ms,
            busy_ms: None,
        }))
    }

    proptest! {
        #[test]
        fn never_more_than_was_metered(metered_ms in any::<i64>(), ranks in prop::collection::vec(any_evidence(), 0..5)) {
            let found = uncovered(metered_ms, &ranks);
            prop_assert!(found.lost_ms >= 0 && found.beyond_ms >= 0);
            prop_assert!(found.total_ms() <= metered_ms.max(0));
            if ranks.iter().all(Option::is_none) {
                prop_assert_eq!(found, Uncovered::default());
            }
        }

        #[test]
        fn never_more_than_the_attempt_was_charged(rate in 0i64..10_000_000_000, before in 0i64..10_000_000,
                                                   metered in 0i64..10_000_000, lost in 0i64..20_000_000) {
            let charged = charge_micros(rate, before + metered).unwrap() - charge_micros(rate, before).unwrap();
            let found = uncovered(metered, &[seen(metered, lost)]).total_ms();
            let credit = credit_micros(rate, found, charged);
            prop_assert!((0..=charged).contains(&credit));
            prop_assert_eq!(Some(credit), charge_micros(rate, found), "the cap is never what decides");
        }

        #[test]
        fn no_input_panics(rate: i64, ms: i64, charged: i64) {
            prop_assert!(credit_micros(rate, ms, charged) >= 0);
        }
    }
}

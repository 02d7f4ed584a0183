//! The part of a charge without evidence of processes or devices.
//!
//! Evidence can only take from a charge: it never adds to one, and its absence takes nothing.

use berth_types::evidence::Evidence;

use berth_core::rating::charge_micros;

/// The excess of the meter over the life of the process: two clocks are read one after the other.
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

/// The time in which at least one of these intervals lasts, each from and until; they may overlap and come in any order.
pub fn together_ms(mut times: Vec<(i64, i64)>) -> i64 {
    times.sort_unstable();
    let (mut sum, mut reached) = (0i64, i64::MIN);
    for (from, until) in times {
        let from = from.max(reached);
        if until > from {
            sum = sum.saturating_add(until.saturating_sub(from));
            reached = until;
        }
    }
    sum
}

/// The metered time of an attempt without evidence of its ranks; `None` for a rank whose worker told
/// nothing. `lost_together_ms`: how long, as far as it is known when that was, at least one of them had
/// lost a device. Never more than was metered.
///
/// The meter is one for all ranks and runs for as long as the last of them. So it goes beyond the
/// process only when it goes beyond the longest, and only when all are known. Ranks work together, so
/// what one of them lost is lost to all; of times that may be the same the longest counts once.
pub fn uncovered(metered_ms: i64, ranks: &[Option<Evidence>], lost_together_ms: i64) -> Uncovered {
    let metered_ms = metered_ms.max(0);
    let told = || ranks.iter().flatten();
    let longest_lost = told().map(|e| e.lost_ms).max().unwrap_or(0);
    let all_lost = told().map(|e| e.lost_ms.max(0)).fold(0, i64::saturating_add);
    let lost_ms = longest_lost.max(lost_together_ms.min(all_lost)).clamp(0, metered_ms);
    let all_told = ranks.iter().all(Option::is_some);
    let longest = told().map(|e| e.process_ms.max(0)).max().filter(|_| all_told);
    let beyond_ms = longest.map_or(0, |ms| metered_ms.saturating_sub(ms.saturating_add(TOLERANCE_MS)));
    Uncovered { lost_ms, beyond_ms: beyond_ms.clamp(0, metered_ms - lost_ms) }
}

/// The credit for time without evidence, out of the charge of the attempt.
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
            // Missing evidence gives no credit.
            (10_000, &[], 0, 0),
            (10_000, &[None], 0, 0),
            (10_000, &[seen(2_000, 0), None], 0, 0),
            (10_000, &[seen(2_000, 500), None], 500, 0),
            (0, &[seen(0, 0)], 0, 0),
        ] {
            assert_eq!(uncovered(metered_ms, ranks, 0), Uncovered { lost_ms, beyond_ms }, "{ranks:?}");
        }
    }

    #[test]
    fn what_ranks_lost_at_different_times_is_lost_to_all() {
        let gang = [seen(10_000, 3_000), seen(10_000, 2_000)];
        for (together, lost_ms) in [(5_000, 5_000), (3_500, 3_500), (2_000, 3_000), (20_000, 5_000)] {
            assert_eq!(uncovered(10_000, &gang, together), Uncovered { lost_ms, beyond_ms: 0 });
        }
        assert_eq!(uncovered(4_000, &gang, 5_000).lost_ms, 4_000, "never more than was metered");
        for (times, sum) in [
            (vec![], 0),
            (vec![(0, 3_000), (6_000, 8_000)], 5_000),
            (vec![(6_000, 8_000), (0, 3_000), (1_000, 2_000)], 5_000),
            (vec![(0, 3_000), (2_000, 4_000), (4_000, 5_000)], 5_000),
            (vec![(3_000, 0), (1, 1)], 0),
        ] {
            assert_eq!(together_ms(times.clone()), sum, "{times:?}");
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
            let found = uncovered(metered_ms, &ranks, 0);
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
            let found = uncovered(metered, &[seen(metered, lost)], 0).total_ms();
            let credit = credit_micros(rate, found, charged);
            prop_assert!((0..=charged).contains(&credit));
            prop_assert_eq!(Some(credit), charge_micros(rate, found), "the cap is never what decides");
        }

        #[test]
        fn no_input_panics(rate: i64, ms: i64, charged: i64, together: i64, one: (i64, i64), other: (i64, i64)) {
            prop_assert!(credit_micros(rate, ms, charged) >= 0);
            prop_assert!(together_ms(vec![one, other, one]) >= 0);
            prop_assert!(uncovered(ms, &[], together).total_ms() <= ms.max(0));
        }

        #[test]
        fn together_is_at_least_the_longest_and_at_most_all(
            times in prop::collection::vec((0i64..1_000, 0i64..1_000), 0..6)
        ) {
            let lengths = || times.iter().map(|(from, until)| (until - from).max(0));
            let found = together_ms(times.clone());
            prop_assert!(found >= lengths().max().unwrap_or(0) && found <= lengths().sum::<i64>());
        }
    }
}

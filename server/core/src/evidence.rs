//! The part of a charge without evidence of processes or devices.
//!
//! Evidence can only lower a charge, and missing evidence lowers nothing.

use berth_types::evidence::Evidence;

use crate::rating::charge_micros;

/// The tolerated excess of the meter over the life of the process: the worker reads two clocks one after the
/// other.
pub const TOLERANCE_MS: i64 = 1_000;

/// The metered time without evidence, in parts that do not overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Uncovered {
    /// A device did not answer.
    pub lost_ms: i64,
    /// The process had ended.
    pub beyond_ms: i64,
}

impl Uncovered {
    pub const fn total_ms(self) -> i64 {
        self.lost_ms.saturating_add(self.beyond_ms)
    }
}

/// The length of the union of intervals, each from and until. They may overlap and come in any order.
pub fn union_ms(mut intervals: Vec<(i64, i64)>) -> i64 {
    intervals.sort_unstable();
    let (mut sum, mut reached) = (0i64, i64::MIN);
    for (from, until) in intervals {
        let from = from.max(reached);
        if until > from {
            sum = sum.saturating_add(until.saturating_sub(from));
            reached = until;
        }
    }
    sum
}

/// The metered time of an attempt without evidence of its ranks, at most the metered time itself. A rank
/// without evidence is `None`. `lost_union_ms` is the time in which at least one rank had lost a device, as
/// far as the times of the losses are known.
///
/// All ranks share one meter, which runs as long as the last rank. So metered time lies beyond the process
/// only if it exceeds the longest process of all ranks, and only if all ranks have evidence. Ranks work
/// together, so a loss of one rank is a loss of all. Losses of unknown times may coincide: only the longest
/// of them counts.
pub fn uncovered(metered_ms: i64, ranks: &[Option<Evidence>], lost_union_ms: i64) -> Uncovered {
    let metered_ms = metered_ms.max(0);
    let known = || ranks.iter().flatten();
    let longest_lost = known().map(|e| e.lost_ms).max().unwrap_or(0);
    let all_lost = known().map(|e| e.lost_ms.max(0)).fold(0, i64::saturating_add);
    let lost_ms = longest_lost.max(lost_union_ms.min(all_lost)).clamp(0, metered_ms);
    let all_known = ranks.iter().all(Option::is_some);
    let longest = known().map(|e| e.process_ms.max(0)).max().filter(|_| all_known);
    let beyond_ms = longest.map_or(0, |ms| metered_ms.saturating_sub(ms.saturating_add(TOLERANCE_MS)));
    Uncovered { lost_ms, beyond_ms: beyond_ms.clamp(0, metered_ms - lost_ms) }
}

/// The credit for time without evidence, at most the charge of the attempt.
pub fn credit_micros(nano_per_second: i64, uncovered_ms: i64, charged_micros: i64) -> i64 {
    let worth = charge_micros(nano_per_second, uncovered_ms).unwrap_or(i64::MAX);
    worth.min(charged_micros).max(0)
}

/// Merges two reports of evidence of one rank. Reports may arrive in any order, so each sum keeps its
/// maximum.
pub fn merge(stored: Option<Evidence>, reported: Evidence) -> Evidence {
    let Some(stored) = stored else { return reported };
    Evidence {
        rank: reported.rank,
        process_ms: reported.process_ms.max(stored.process_ms),
        device_ms: reported.device_ms.max(stored.device_ms),
        lost_ms: reported.lost_ms.max(stored.lost_ms),
        busy_ms: reported.busy_ms.max(stored.busy_ms),
        memory_clearing: reported.memory_clearing.or(stored.memory_clearing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_types::evidence::MemoryClearing;
    use proptest::prelude::*;

    fn evidence(process_ms: i64, lost_ms: i64) -> Option<Evidence> {
        Some(Evidence {
            rank: 0,
            process_ms,
            device_ms: process_ms - lost_ms,
            lost_ms,
            busy_ms: None,
            memory_clearing: None,
        })
    }

    #[test]
    fn only_evidence_lowers_a_charge() {
        for (metered_ms, ranks, lost_ms, beyond_ms) in [
            (10_000, &[evidence(10_000, 0)][..], 0, 0),
            (10_000, &[evidence(9_000, 0)], 0, 0),
            (10_000, &[evidence(8_999, 0)], 0, 1),
            (10_000, &[evidence(10_000, 4_000)], 4_000, 0),
            (10_000, &[evidence(5_000, 4_000)], 4_000, 4_000),
            (10_000, &[evidence(0, 12_000)], 10_000, 0),
            // Several ranks: the longest process covers the meter, and the longest loss counts once.
            (10_000, &[evidence(2_000, 0), evidence(10_000, 0)], 0, 0),
            (10_000, &[evidence(10_000, 3_000), evidence(10_000, 2_000)], 3_000, 0),
            (10_000, &[evidence(2_000, 0), evidence(6_000, 0)], 0, 3_000),
            // Missing evidence gives no credit.
            (10_000, &[], 0, 0),
            (10_000, &[None], 0, 0),
            (10_000, &[evidence(2_000, 0), None], 0, 0),
            (10_000, &[evidence(2_000, 500), None], 500, 0),
            (0, &[evidence(0, 0)], 0, 0),
        ] {
            assert_eq!(uncovered(metered_ms, ranks, 0), Uncovered { lost_ms, beyond_ms }, "{ranks:?}");
        }
    }

    #[test]
    fn losses_of_ranks_at_different_times_add_up() {
        let ranks = [evidence(10_000, 3_000), evidence(10_000, 2_000)];
        for (union, lost_ms) in [(5_000, 5_000), (3_500, 3_500), (2_000, 3_000), (20_000, 5_000)] {
            assert_eq!(uncovered(10_000, &ranks, union), Uncovered { lost_ms, beyond_ms: 0 });
        }
        assert_eq!(uncovered(4_000, &ranks, 5_000).lost_ms, 4_000, "never more than was metered");
        for (times, sum) in [
            (vec![], 0),
            (vec![(0, 3_000), (6_000, 8_000)], 5_000),
            (vec![(6_000, 8_000), (0, 3_000), (1_000, 2_000)], 5_000),
            (vec![(0, 3_000), (2_000, 4_000), (4_000, 5_000)], 5_000),
            (vec![(3_000, 0), (1, 1)], 0),
        ] {
            assert_eq!(union_ms(times.clone()), sum, "{times:?}");
        }
    }

    #[test]
    fn sums_never_go_back() {
        let (old, new) =
            (evidence(5_000, 100), Evidence { busy_ms: Some(7), ..evidence(4_000, 200).unwrap() });
        let both = merge(old, new);
        assert_eq!((both.process_ms, both.device_ms, both.lost_ms), (5_000, 4_900, 200));
        assert_eq!(both.busy_ms, Some(7));
        assert_eq!(merge(None, new), new);
        assert_eq!(merge(Some(both), both), both);
        let clearing = MemoryClearing { cleared_bytes: 5, total_bytes: 6, samples: 7, took_ms: 8 };
        let cleared = Evidence { memory_clearing: Some(clearing), ..new };
        assert_eq!(merge(Some(cleared), new).memory_clearing, Some(clearing));
    }

    fn any_evidence() -> impl Strategy<Value = Option<Evidence>> {
        prop::option::of((any::<i64>(), any::<i64>()).prop_map(|(process_ms, lost_ms)| Evidence {
            rank: 0,
            process_ms,
            device_ms: 0,
            lost_ms,
            busy_ms: None,
            memory_clearing: None,
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
            let found = uncovered(metered, &[evidence(metered, lost)], 0).total_ms();
            let credit = credit_micros(rate, found, charged);
            prop_assert!((0..=charged).contains(&credit));
            prop_assert_eq!(Some(credit), charge_micros(rate, found), "the cap is never what decides");
        }

        #[test]
        fn no_input_panics(rate: i64, ms: i64, charged: i64, union: i64, one: (i64, i64), other: (i64, i64)) {
            prop_assert!(credit_micros(rate, ms, charged) >= 0);
            prop_assert!(union_ms(vec![one, other, one]) >= 0);
            prop_assert!(uncovered(ms, &[], union).total_ms() <= ms.max(0));
        }

        #[test]
        fn a_union_is_at_least_its_longest_part_and_at_most_their_sum(
            times in prop::collection::vec((0i64..1_000, 0i64..1_000), 0..6)
        ) {
            let lengths = || times.iter().map(|(from, until)| (until - from).max(0));
            let found = union_ms(times.clone());
            prop_assert!(found >= lengths().max().unwrap_or(0) && found <= lengths().sum::<i64>());
        }
    }
}

//! Power: the limits of boards, and the power that remains in racks. Must not place anything.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Watts that count for a board of an unknown model without a reported limit.
const UNKNOWN_WATTS: i64 = 500;

/// The greatest power in watts of a model, by the data sheet of its maker. If the model has several forms,
/// that of the largest. `None` for an unknown model.
pub fn tdp_watts(model: &str) -> Option<i64> {
    // A longer name comes before its prefixes.
    const KNOWN: [(&str, i64); 12] = [
        ("A30", 165),
        ("A100-40GB", 400),
        ("A100-80GB", 400),
        ("H20", 500),
        ("H100-NVL", 400),
        ("H100", 700),
        ("H200", 700),
        ("GH200", 1_000),
        ("B200", 1_000),
        ("GB200", 1_200),
        ("B300", 1_400),
        ("RTX-PRO-6000", 600),
    ];
    let is =
        |name: &str| model.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
    KNOWN.iter().find(|(name, _)| is(name)).map(|(_, watts)| *watts)
}

/// The watts that count for a board in use: the limit of its driver if that is reported, or the greatest
/// power of its model.
pub fn counted_watts(model: &str, limit_watts: Option<i64>) -> i64 {
    limit_watts.filter(|w| *w > 0).or_else(|| tdp_watts(model)).unwrap_or(UNKNOWN_WATTS)
}

/// The remaining watts of each rack with a budget. A rack without a budget has no limit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RemainingPower(BTreeMap<Arc<str>, i64>);

impl RemainingPower {
    /// The power of idle racks.
    pub fn from_budgets(budgets: &BTreeMap<Arc<str>, i64>) -> Self {
        Self(budgets.clone())
    }

    /// The remaining watts of a rack. Negative if the budget is below the present use.
    pub fn get(&self, rack: &str) -> Option<i64> {
        self.0.get(rack).copied()
    }

    pub fn draw(&mut self, rack: Option<&Arc<str>>, watts: i64) {
        if let Some(left) = rack.and_then(|r| self.0.get_mut(r)) {
            *left = left.saturating_sub(watts);
        }
    }

    /// True if a rack has so many more watts. Always true for zero watts, also in a rack above its budget.
    pub fn feeds(&self, rack: Option<&Arc<str>>, watts: i64) -> bool {
        watts <= 0 || rack.and_then(|r| self.0.get(r)).is_none_or(|left| watts <= *left)
    }
}

/// The power of the boards of a rack.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Load {
    pub boards: u32,
    /// The sum of the latest readings.
    pub drawn_watts: f64,
    /// Boards without a reading.
    pub unread: u32,
    /// Watts that count for the boards in use.
    pub counted_watts: i64,
    /// Watts that would count if all boards were in use.
    pub most_watts: i64,
    /// Boards of unknown models without a reported limit.
    pub unknown: u32,
}

impl Load {
    /// Adds a board. `limit_watts` is the limit of its driver, if that is reported.
    pub fn add(&mut self, model: &str, limit_watts: Option<i64>, held: bool, drawn_watts: Option<f64>) {
        self.boards += 1;
        match drawn_watts.filter(|w| w.is_finite() && *w >= 0.0) {
            Some(watts) => self.drawn_watts += watts,
            None => self.unread += 1,
        }
        let watts = counted_watts(model, limit_watts);
        self.most_watts += watts;
        if held {
            self.counted_watts += watts;
        }
        self.unknown += u32::from(limit_watts.is_none_or(|w| w <= 0) && tdp_watts(model).is_none());
    }
}

/// Watts as text for people: `1.2 kW`, `20 kW`.
pub fn watts_text(watts: i64) -> String {
    match watts {
        ..1_000 => format!("{watts} W"),
        _ if watts % 1_000 < 100 => format!("{} kW", watts / 1_000),
        // Rounded down, so that the text never promises more than there is.
        _ => format!("{}.{} kW", watts / 1_000, watts % 1_000 / 100),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_rack_is_the_sum_of_its_boards() {
        let mut load = Load::default();
        load.add("H100-80GB", None, true, Some(312.5));
        load.add("H100-NVL-94GB", None, false, None);
        load.add("abacus", None, true, Some(f64::NAN));
        assert_eq!((load.boards, load.unread, load.unknown), (3, 2, 1));
        assert_eq!((load.drawn_watts, load.counted_watts, load.most_watts), (312.5, 1_200, 1_600));
        load.add("abacus", Some(90), true, None);
        assert_eq!((load.counted_watts, load.unknown), (1_290, 1), "its driver knows");
    }

    #[test]
    fn every_model_that_can_be_sliced_is_known() {
        for board in berth_mig::boards() {
            assert!(tdp_watts(&board.model).is_some(), "{}", board.model);
        }
        for (model, watts) in
            [("H100-NVL-94GB", 400), ("H100-80GB", 700), ("H100", 700), ("GH200-96GB", 1_000)]
        {
            assert_eq!(tdp_watts(model), Some(watts), "{model}");
        }
        assert_eq!((tdp_watts("H1000"), tdp_watts("")), (None, None));
        assert_eq!(counted_watts("H100-80GB", Some(350)), 350);
        assert_eq!((counted_watts("H100-80GB", Some(0)), counted_watts("abacus", None)), (700, 500));
    }

    #[test]
    fn a_rack_feeds_what_is_left() {
        let rack: Arc<str> = "r12".into();
        let mut left = RemainingPower::from_budgets(&[(rack.clone(), 2_000)].into());
        assert!(left.feeds(Some(&rack), 2_000) && !left.feeds(Some(&rack), 2_001));
        left.draw(Some(&rack), 2_100);
        assert_eq!(left.get("r12"), Some(-100));
        assert!(left.feeds(Some(&rack), 0), "it goes on where it draws already");
        assert!(left.feeds(None, 9_000) && left.feeds(Some(&"r1".into()), 9_000), "no budget, no limit");
    }

    #[test]
    fn watts_read_well() {
        let texts = [
            (0, "0 W"),
            (999, "999 W"),
            (1_000, "1 kW"),
            (1_249, "1.2 kW"),
            (1_299, "1.2 kW"),
            (2_099, "2 kW"),
            (20_000, "20 kW"),
        ];
        for (watts, text) in texts {
            assert_eq!(watts_text(watts), text);
        }
        assert_eq!(watts_text(-1_500), "-1500 W");
    }

    proptest! {
        #[test]
        fn what_is_fed_one_by_one_never_exceeds_a_budget(
            asks in prop::collection::vec((0usize..3, 0i64..3_000), 0..40), budget in 0i64..20_000,
        ) {
            let racks: [Arc<str>; 3] = ["a".into(), "b".into(), "c".into()];
            let budgets = racks.iter().take(2).map(|r| (r.clone(), budget)).collect();
            let mut left = RemainingPower::from_budgets(&budgets);
            let mut drawn = [0; 3];
            for (rack, watts) in asks {
                let at = Some(&racks[rack]);
                if left.feeds(at, watts) {
                    left.draw(at, watts);
                    drawn[rack] += watts;
                }
            }
            prop_assert!(drawn.iter().take(2).all(|d| *d <= budget), "{drawn:?}");
        }
    }
}

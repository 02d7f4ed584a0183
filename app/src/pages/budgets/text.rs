//! Texts and bar lengths of budgets.
//!
//! Pure. The portal decides about notices, refusals and stops.

use berth_types::budgets::{AtLimit, Budget};

/// Returns the label of an action at the limit.
pub const fn at_limit_label(at_limit: AtLimit) -> &'static str {
    match at_limit {
        AtLimit::Notify => "Notify",
        AtLimit::Refuse => "Refuse",
        AtLimit::Stop => "Refuse and stop",
    }
}

/// Returns the description of an action at the limit.
pub const fn at_limit_text(at_limit: AtLimit) -> &'static str {
    match at_limit {
        AtLimit::Notify => "Sends notices only.",
        AtLimit::Refuse => "Refuses submissions with a maximum cost above the rest of the budget.",
        AtLimit::Stop => {
            "Refuses submissions with a maximum cost above the rest of the budget, and stops running jobs when the budget is spent."
        }
    }
}

/// Returns the limit less spent and reserved money, at least 0; in micro-units of the currency.
pub const fn remaining(budget: &Budget) -> i64 {
    let rest =
        budget.limit_micros.saturating_sub(budget.spent_micros).saturating_sub(budget.committed_micros);
    if rest > 0 { rest } else { 0 }
}

/// Returns an amount in thousandths of a limit; more than 1000 beyond the limit.
fn per_mille(micros: i64, limit: i64) -> i64 {
    let milli = i128::from(micros.max(0)) * 1_000 / i128::from(limit.max(1));
    i64::try_from(milli).unwrap_or(i64::MAX)
}

/// Returns the spent and the reserved part of a budget in thousandths of its bar, together at most 1000.
pub fn bar_parts(budget: &Budget) -> (i64, i64) {
    let spent = per_mille(budget.spent_micros, budget.limit_micros).min(1_000);
    let held = per_mille(budget.committed_micros, budget.limit_micros).min(1_000 - spent);
    (spent, held)
}

/// Returns the text of the bar: `62 % spent, 20 % reserved`.
pub fn gauge_text(budget: &Budget) -> String {
    let percent = |micros: i64| per_mille(micros, budget.limit_micros) / 10;
    format!("{} % spent, {} % reserved", percent(budget.spent_micros), percent(budget.committed_micros))
}

/// Returns the highest passed threshold of this month.
pub fn threshold_text(budget: &Budget) -> Option<String> {
    match budget.passed_percent {
        0 => None,
        100 => Some("limit reached".to_owned()),
        percent => Some(format!("{percent} % reached")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(limit: i64, spent: i64, committed: i64) -> Budget {
        serde_json::from_value(serde_json::json!({
            "id": "bud_00000000000000000000000001", "name": "n", "limit_micros": limit, "at_limit": "notify",
            "currency": "USD", "spent_micros": spent, "committed_micros": committed, "passed_percent": 75,
            "created_at": "2026-11-20T09:00:00Z", "created_by": "a",
        }))
        .unwrap()
    }

    #[test]
    fn a_bar_is_full_at_most() {
        assert_eq!(bar_parts(&budget(1_000, 500, 200)), (500, 200));
        assert_eq!(bar_parts(&budget(1_000, 900, 200)), (900, 100));
        assert_eq!(bar_parts(&budget(1_000, 1_500, 200)), (1_000, 0));
        assert_eq!(bar_parts(&budget(1_000, -5, 0)), (0, 0));
        assert_eq!(gauge_text(&budget(1_000, 1_500, 200)), "150 % spent, 20 % reserved");
    }

    #[test]
    fn the_rest_is_at_least_zero() {
        assert_eq!(remaining(&budget(1_000, 500, 200)), 300);
        assert_eq!(remaining(&budget(1_000, 900, 200)), 0);
    }

    #[test]
    fn the_highest_threshold_is_shown() {
        let mut one = budget(1, 1, 0);
        assert_eq!(threshold_text(&one).as_deref(), Some("75 % reached"));
        one.passed_percent = 100;
        assert_eq!(threshold_text(&one).as_deref(), Some("limit reached"));
        one.passed_percent = 0;
        assert_eq!(threshold_text(&one), None);
    }
}

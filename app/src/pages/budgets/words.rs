//! What a budget does and how far it is spent, in words and in parts of a bar.
//!
//! Pure. Must not judge: what is refused, told or stopped is the portal's doing.

use berth_types::budgets::{AtLimit, Budget};

/// What happens at the limit, as a choice.
pub const fn at_limit_title(at_limit: AtLimit) -> &'static str {
    match at_limit {
        AtLimit::Notify => "Tell",
        AtLimit::Refuse => "Refuse",
        AtLimit::Stop => "Refuse and stop",
    }
}

/// What happens at the limit, in a sentence.
pub const fn at_limit_words(at_limit: AtLimit) -> &'static str {
    match at_limit {
        AtLimit::Notify => "You are told; nothing stops.",
        AtLimit::Refuse => "What could go beyond it, at its longest, is refused when it is submitted.",
        AtLimit::Stop => {
            "What could go beyond it, at its longest, is refused when it is submitted, and what runs under it is stopped when it is spent."
        }
    }
}

/// What is left of it after what is spent and set aside.
pub const fn left(budget: &Budget) -> i64 {
    let left =
        budget.limit_micros.saturating_sub(budget.spent_micros).saturating_sub(budget.committed_micros);
    if left > 0 { left } else { 0 }
}

/// Thousandths of a limit, more than all of them where it is exceeded.
fn milli_of(micros: i64, limit: i64) -> i64 {
    let milli = i128::from(micros.max(0)) * 1_000 / i128::from(limit.max(1));
    i64::try_from(milli).unwrap_or(i64::MAX)
}

/// A budget as thousandths of a bar: what is spent, and what is set aside behind it. Together they are
/// the whole bar at most.
pub fn parts(budget: &Budget) -> (i64, i64) {
    let spent = milli_of(budget.spent_micros, budget.limit_micros).min(1_000);
    let held = milli_of(budget.committed_micros, budget.limit_micros).min(1_000 - spent);
    (spent, held)
}

/// The bar in words: `62 % spent, 20 % more set aside`.
pub fn bar_words(budget: &Budget) -> String {
    let percent = |micros: i64| milli_of(micros, budget.limit_micros) / 10;
    format!("{} % spent, {} % more set aside", percent(budget.spent_micros), percent(budget.committed_micros))
}

/// The highest threshold that was passed this month, where one was.
pub fn passed_words(budget: &Budget) -> Option<String> {
    match budget.passed_percent {
        0 => None,
        100 => Some("spent".to_owned()),
        percent => Some(format!("{percent} % passed")),
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
    fn a_bar_is_never_fuller_than_full() {
        assert_eq!(parts(&budget(1_000, 500, 200)), (500, 200));
        assert_eq!(parts(&budget(1_000, 900, 200)), (900, 100));
        assert_eq!(parts(&budget(1_000, 1_500, 200)), (1_000, 0));
        assert_eq!(parts(&budget(1_000, -5, 0)), (0, 0));
        assert_eq!(bar_words(&budget(1_000, 1_500, 200)), "150 % spent, 20 % more set aside");
    }

    #[test]
    fn what_is_left_is_never_below_nothing() {
        assert_eq!(left(&budget(1_000, 500, 200)), 300);
        assert_eq!(left(&budget(1_000, 900, 200)), 0);
    }

    #[test]
    fn thresholds_are_told() {
        let mut one = budget(1, 1, 0);
        assert_eq!(passed_words(&one).as_deref(), Some("75 % passed"));
        one.passed_percent = 100;
        assert_eq!(passed_words(&one).as_deref(), Some("spent"));
        one.passed_percent = 0;
        assert_eq!(passed_words(&one), None);
    }
}

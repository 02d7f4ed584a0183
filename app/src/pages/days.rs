//! Days and months in ISO form and as text, all in UTC like charges and invoices.
//!
//! Pure: without a clock.

use berth_types::time::Timestamp;

pub use berth_types::days::{date_text, day_start, day_text, iso_day, month_text, short_day};

const DAY_MICROS: i64 = 86_400_000_000;

/// Returns the day of a Unix time in milliseconds.
pub fn day_at(ms: i64) -> String {
    iso_day(Timestamp::from_micros(ms.saturating_mul(1_000)))
}

/// Adds days to a day; negative numbers lead to earlier days.
pub fn plus(day: &str, days: i64) -> Option<String> {
    Some(iso_day(day_start(day)?.plus_seconds(days.saturating_mul(86_400))))
}

/// Counts the days of a range with both ends; `None` for an empty range.
pub fn day_count(from: &str, until: &str) -> Option<i64> {
    let between = day_start(until)?.micros().saturating_sub(day_start(from)?.micros());
    let days = between.div_euclid(DAY_MICROS).saturating_add(1);
    (days > 0).then_some(days)
}

/// Lists the days of a range with both ends.
pub fn days_between(from: &str, until: &str) -> Vec<String> {
    (0..day_count(from, until).unwrap_or(0)).filter_map(|days| plus(from, days)).collect()
}

/// Returns the month of a day: `2026-11`.
pub fn iso_month(day: &str) -> String {
    day.chars().take(7).collect()
}

/// Returns the first day of a day's month.
pub fn first_of_month(day: &str) -> String {
    format!("{}-01", iso_month(day))
}

/// Returns the month before a day's month: `2026-10`.
pub fn month_before(day: &str) -> Option<String> {
    Some(iso_month(&plus(&first_of_month(day), -1)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_counted_over_months_and_years() {
        assert_eq!(plus("2026-12-31", 1).as_deref(), Some("2027-01-01"));
        assert_eq!(plus("2028-03-01", -1).as_deref(), Some("2028-02-29"));
        assert_eq!(day_count("2026-11-15", "2026-11-21"), Some(7));
        assert_eq!(day_count("2026-11-21", "2026-11-21"), Some(1));
        assert_eq!((day_count("2026-11-22", "2026-11-21"), day_count("soon", "2026-11-21")), (None, None));
        assert_eq!(days_between("2026-02-27", "2026-03-01"), ["2026-02-27", "2026-02-28", "2026-03-01"]);
        assert_eq!(day_at(1_795_214_589_123), "2026-11-20");
    }

    #[test]
    fn months_follow_from_days() {
        assert_eq!(first_of_month("2026-11-21"), "2026-11-01");
        assert_eq!(month_before("2027-01-15").as_deref(), Some("2026-12"));
        assert_eq!(month_before("soon"), None);
    }
}

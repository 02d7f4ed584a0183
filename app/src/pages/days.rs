//! Days and months in ISO form and as text, all in UTC like charges and invoices.
//!
//! Pure: without a clock.

use berth_types::time::Timestamp;

const DAY_MICROS: i64 = 86_400_000_000;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Finds the start of a day such as `2026-11-21`; `None` for other text.
pub fn day_start(day: &str) -> Option<Timestamp> {
    (day.len() == 10).then(|| format!("{day}T00:00:00Z").parse().ok())?
}

/// Returns the day of an instant: `2026-11-21`.
pub fn iso_day(at: Timestamp) -> String {
    at.to_string().chars().take(10).collect()
}

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

fn month_name(text: &str) -> Option<&'static str> {
    let number: usize = text.get(5..7)?.parse().ok()?;
    MONTHS.get(number.checked_sub(1)?).copied()
}

/// Splits a day into year, name of the month and day of the month.
fn parts(day: &str) -> Option<(&str, &'static str, u32)> {
    day_start(day)?;
    Some((day.get(..4)?, month_name(day)?, day.get(8..10)?.parse().ok()?))
}

/// Returns `November 2026` for `2026-11`, and other text unchanged.
pub fn month_text(month: &str) -> String {
    match (month.get(..4), month_name(month)) {
        (Some(year), Some(name)) => format!("{name} {year}"),
        _ => month.to_owned(),
    }
}

/// Returns `21 November 2026` for `2026-11-21`, and other text unchanged.
pub fn day_text(day: &str) -> String {
    parts(day).map_or_else(|| day.to_owned(), |(year, month, number)| format!("{number} {month} {year}"))
}

/// Returns `21 Nov` for `2026-11-21`, and other text unchanged.
pub fn short_day(day: &str) -> String {
    let short = |(_, month, number): (&str, &'static str, u32)| {
        format!("{number} {}", month.get(..3).unwrap_or(month))
    };
    parts(day).map_or_else(|| day.to_owned(), short)
}

/// Returns the day of an instant as text: `21 November 2026`.
pub fn date_text(at: Timestamp) -> String {
    day_text(&iso_day(at))
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

    #[test]
    fn days_become_text_and_other_text_stays() {
        assert_eq!(day_text("2026-11-01"), "1 November 2026");
        assert_eq!(short_day("2026-11-21"), "21 Nov");
        assert_eq!(month_text("2026-10"), "October 2026");
        assert_eq!((day_text("2026-02-30"), month_text("2026-13")), ("2026-02-30".into(), "2026-13".into()));
        assert_eq!(date_text(Timestamp::from_micros(0)), "1 January 1970");
    }
}

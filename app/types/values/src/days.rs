//! Days and months as text, in UTC like charges and invoices.
//!
//! Pure: without a clock.

use crate::time::Timestamp;

/// The names of the months.
pub const MONTHS: [&str; 12] = [
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
    fn days_become_text_and_other_text_stays() {
        assert_eq!(day_text("2026-11-01"), "1 November 2026");
        assert_eq!(short_day("2026-11-21"), "21 Nov");
        assert_eq!(month_text("2026-10"), "October 2026");
        assert_eq!((day_text("2026-02-30"), month_text("2026-13")), ("2026-02-30".into(), "2026-13".into()));
        assert_eq!(date_text(Timestamp::from_micros(0)), "1 January 1970");
    }
}

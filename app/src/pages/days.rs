//! Days and months as the portal writes them, and as people read them.
//!
//! Pure; all of them are of UTC, like what is charged and billed. Must not read a clock.

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

/// When a day such as `2026-11-21` begins; `None` for what is no day.
pub fn begin_of(day: &str) -> Option<Timestamp> {
    (day.len() == 10).then(|| format!("{day}T00:00:00Z").parse().ok())?
}

/// The day that an instant is in: `2026-11-21`.
pub fn day_of(at: Timestamp) -> String {
    at.to_string().chars().take(10).collect()
}

/// The day that so many milliseconds after the start of 1970 are in.
pub fn day_at(ms: i64) -> String {
    day_of(Timestamp::from_micros(ms.saturating_mul(1_000)))
}

/// The day so many days later; earlier when they are below zero.
pub fn plus(day: &str, days: i64) -> Option<String> {
    Some(day_of(begin_of(day)?.plus_seconds(days.saturating_mul(86_400))))
}

/// How many days there are from one to another, both counted; `None` where there are none.
pub fn length(from: &str, until: &str) -> Option<i64> {
    let between = begin_of(until)?.micros().saturating_sub(begin_of(from)?.micros());
    let days = between.div_euclid(DAY_MICROS).saturating_add(1);
    (days > 0).then_some(days)
}

/// Every day from one to another, both counted.
pub fn stretch(from: &str, until: &str) -> Vec<String> {
    (0..length(from, until).unwrap_or(0)).filter_map(|days| plus(from, days)).collect()
}

/// The month of a day: `2026-11`.
pub fn month_of(day: &str) -> String {
    day.chars().take(7).collect()
}

/// The first day of the month that a day is in.
pub fn first_of_month(day: &str) -> String {
    format!("{}-01", month_of(day))
}

/// The month before the one that a day is in: `2026-10`.
pub fn month_before(day: &str) -> Option<String> {
    Some(month_of(&plus(&first_of_month(day), -1)?))
}

/// The instant at which clocks in UTC show what a date-and-time field has: `2026-11-22T09:00`.
pub fn moment(field: &str) -> Option<Timestamp> {
    let field = field.trim();
    // Browsers leave the seconds out where they are none.
    let seconds = if field.len() == 16 { ":00" } else { "" };
    format!("{field}{seconds}Z").parse().ok()
}

fn month_name(text: &str) -> Option<&'static str> {
    let number: usize = text.get(5..7)?.parse().ok()?;
    MONTHS.get(number.checked_sub(1)?).copied()
}

/// Year, name of the month and day of the month, as they are read.
fn parts(day: &str) -> Option<(&str, &'static str, u32)> {
    begin_of(day)?;
    Some((day.get(..4)?, month_name(day)?, day.get(8..10)?.parse().ok()?))
}

/// `November 2026` for `2026-11`; what is no month stays as it is.
pub fn month_text(month: &str) -> String {
    match (month.get(..4), month_name(month)) {
        (Some(year), Some(name)) => format!("{name} {year}"),
        _ => month.to_owned(),
    }
}

/// `21 November 2026` for `2026-11-21`; what is no day stays as it is.
pub fn day_text(day: &str) -> String {
    parts(day).map_or_else(|| day.to_owned(), |(year, month, number)| format!("{number} {month} {year}"))
}

/// `21 Nov` for `2026-11-21`; what is no day stays as it is.
pub fn short_day(day: &str) -> String {
    let short = |(_, month, number): (&str, &'static str, u32)| {
        format!("{number} {}", month.get(..3).unwrap_or(month))
    };
    parts(day).map_or_else(|| day.to_owned(), short)
}

/// The day of an instant, to read: `21 November 2026`.
pub fn date_text(at: Timestamp) -> String {
    day_text(&day_of(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_counted_over_months_and_years() {
        assert_eq!(plus("2026-12-31", 1).as_deref(), Some("2027-01-01"));
        assert_eq!(plus("2028-03-01", -1).as_deref(), Some("2028-02-29"));
        assert_eq!(length("2026-11-15", "2026-11-21"), Some(7));
        assert_eq!(length("2026-11-21", "2026-11-21"), Some(1));
        assert_eq!((length("2026-11-22", "2026-11-21"), length("soon", "2026-11-21")), (None, None));
        assert_eq!(stretch("2026-02-27", "2026-03-01"), ["2026-02-27", "2026-02-28", "2026-03-01"]);
        assert_eq!(day_at(1_795_214_589_123), "2026-11-20");
    }

    #[test]
    fn months_follow_from_days() {
        assert_eq!(first_of_month("2026-11-21"), "2026-11-01");
        assert_eq!(month_before("2027-01-15").as_deref(), Some("2026-12"));
        assert_eq!(month_before("soon"), None);
    }

    #[test]
    fn days_read_well_and_what_is_none_stays() {
        assert_eq!(day_text("2026-11-01"), "1 November 2026");
        assert_eq!(short_day("2026-11-21"), "21 Nov");
        assert_eq!(month_text("2026-10"), "October 2026");
        assert_eq!((day_text("2026-02-30"), month_text("2026-13")), ("2026-02-30".into(), "2026-13".into()));
        assert_eq!(date_text(Timestamp::from_micros(0)), "1 January 1970");
    }

    #[test]
    fn a_field_of_time_is_meant_in_utc() {
        let at = moment("2026-11-22T09:30").unwrap();
        assert_eq!(at.to_string(), "2026-11-22T09:30:00Z");
        assert_eq!(moment("2026-11-22T09:30:00"), Some(at));
        assert_eq!(moment(""), None);
    }
}

//! Days and months of the calendar in UTC.

use berth_types::time::Timestamp;

/// Number of days since 1970-01-01.
pub const fn day_of(at: Timestamp) -> i64 {
    at.micros().div_euclid(86_400_000_000)
}

/// The begin of the hour of a time.
pub const fn hour_of(at: Timestamp) -> Timestamp {
    Timestamp::from_micros(at.micros().div_euclid(3_600_000_000) * 3_600_000_000)
}

/// The first day of the month of a time, as a number of days since 1970-01-01.
pub fn month_start_day(at: Timestamp) -> i64 {
    format!("{}-01T00:00:00Z", month_of(at)).parse().map_or_else(|_| day_of(at), day_of)
}

/// The month as `YYYY-MM`, for example `2026-11`.
pub fn month_of(at: Timestamp) -> String {
    at.to_string().chars().take(7).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_month_begins_on_its_first_day() {
        for (at, first) in [
            ("2026-11-26T02:00:00Z", "2026-11-01T00:00:00Z"),
            ("2026-03-01T00:00:00Z", "2026-03-01T23:59:59Z"),
            ("2028-02-29T23:59:59Z", "2028-02-01T00:00:00Z"),
        ] {
            assert_eq!(month_start_day(at.parse().unwrap()), day_of(first.parse().unwrap()), "{at}");
        }
    }
}

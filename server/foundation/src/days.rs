//! Days and months of the calendar in UTC.

use berth_types::time::Timestamp;

/// Number of days since 1970-01-01.
pub const fn day_of(at: Timestamp) -> i64 {
    at.micros().div_euclid(86_400_000_000)
}

/// The month as `YYYY-MM`, for example `2026-11`.
pub fn month_of(at: Timestamp) -> String {
    at.to_string().chars().take(7).collect()
}

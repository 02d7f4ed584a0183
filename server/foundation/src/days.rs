//! Days and months of the calendar, UTC.

use berth_types::time::Timestamp;

/// Days since 1970.
pub const fn day_of(at: Timestamp) -> i64 {
    at.micros().div_euclid(86_400_000_000)
}

/// `2026-11`.
pub fn month_of(at: Timestamp) -> String {
    at.to_string().chars().take(7).collect()
}

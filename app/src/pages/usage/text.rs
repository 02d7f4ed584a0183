//! Texts of device-hours, modes and groups, also for invoices.
//!
//! Pure.

use berth_types::usage::GroupBy;

use super::super::text::grouped;

const HOUR_MS: i64 = 3_600_000;

/// Returns device-hours as text: `1,284.50`, with four decimals below one hour. Rounded down like the meter.
pub fn device_hours(device_ms: i64) -> String {
    let ms = device_ms.max(0);
    if ms == 0 {
        return "0".to_owned();
    }
    let (hours, rest) = (ms / HOUR_MS, ms % HOUR_MS);
    if hours == 0 {
        return format!("0.{:04}", rest * 10_000 / HOUR_MS);
    }
    format!("{}.{:02}", grouped(hours), rest * 100 / HOUR_MS)
}

/// Returns the mode of an order as text.
pub fn mode_text(mode: &str) -> &str {
    match mode {
        "on_demand" => "on demand",
        other => other,
    }
}

/// Returns the column head of a group.
pub const fn group_head(group: GroupBy) -> &'static str {
    match group {
        GroupBy::Day => "Day",
        GroupBy::Offering => "Offering",
        GroupBy::Mode => "Mode",
        GroupBy::Member => "Member",
        GroupBy::Label => "Label value",
    }
}

/// Returns the label of a group in the select.
pub const fn group_choice(group: GroupBy) -> &'static str {
    match group {
        GroupBy::Day => "day",
        GroupBy::Offering => "offering",
        GroupBy::Mode => "mode",
        GroupBy::Member => "member",
        GroupBy::Label => "label",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_use_is_not_zero() {
        assert_eq!(device_hours(0), "0");
        assert_eq!(device_hours(900), "0.0002");
        assert_eq!(device_hours(1_800_000), "0.5000");
        assert_eq!(device_hours(3_600_000), "1.00");
        assert_eq!(device_hours(4_624_200_000), "1,284.50");
        assert_eq!(device_hours(-5), "0");
    }

    #[test]
    fn a_mode_becomes_text() {
        assert_eq!((mode_text("on_demand"), mode_text("reserved")), ("on demand", "reserved"));
    }
}

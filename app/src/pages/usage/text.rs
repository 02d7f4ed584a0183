//! Texts of device-hours, modes and groups.
//!
//! Pure.

use berth_types::usage::GroupBy;

pub use berth_types::documents::{device_hours, mode_text};

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

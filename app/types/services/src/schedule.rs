//! Types of the times of a week at which a service keeps more replicas.

use serde::{Deserialize, Serialize};

/// A day of the week.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Weekday {
    #[default]
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

impl Weekday {
    pub const ALL: [Self; 7] = [
        Self::Monday,
        Self::Tuesday,
        Self::Wednesday,
        Self::Thursday,
        Self::Friday,
        Self::Saturday,
        Self::Sunday,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Monday => "monday",
            Self::Tuesday => "tuesday",
            Self::Wednesday => "wednesday",
            Self::Thursday => "thursday",
            Self::Friday => "friday",
            Self::Saturday => "saturday",
            Self::Sunday => "sunday",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|day| day.name() == name)
    }

    /// The day after this one.
    pub fn following(self) -> Self {
        Self::ALL.into_iter().cycle().skip_while(|day| *day != self).nth(1).unwrap_or(self)
    }
}

/// A minute of each week in the time zone of the schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct WeekTime {
    /// The day of the week.
    pub day: Weekday,
    /// The minute of the day, 0 to 1439.
    #[cfg_attr(feature = "schema", schemars(range(max = 1_439)))]
    pub minute: u16,
}

/// A window of each week with a floor for the number of replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ScheduleWindow {
    /// The first minute of the window.
    pub begin: WeekTime,
    /// The first minute after the window. An end before the begin is in the next week.
    pub end: WeekTime,
    /// The least number of replicas within the window, 1 to `max_replicas`.
    #[serde(deserialize_with = "crate::numbers::read_u32")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 100)))]
    pub floor: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floor_outside_of_its_type_is_read_and_beyond_its_range() {
        let time = serde_json::json!({"day": "monday", "minute": 1});
        for (number, floor) in [(7_i64, 7), (-1, u32::MAX), (1 << 40, u32::MAX)] {
            let window = serde_json::json!({"begin": time, "end": time, "floor": number});
            assert_eq!(serde_json::from_value::<ScheduleWindow>(window).unwrap().floor, floor);
        }
    }
}

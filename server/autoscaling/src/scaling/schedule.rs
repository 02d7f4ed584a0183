//! Floors at times of the week.

use berth_types::time::Timestamp;

/// The minutes of a week.
pub const MINUTES_A_WEEK: u16 = 7 * 24 * 60;
const MINUTE_MICROS: i64 = 60_000_000;

/// A window of each week with a floor. A window whose end is before its begin goes over the end of the week.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeeklyWindow {
    /// The first minute, from Monday 00:00 local time.
    pub from_min: u16,
    /// The first minute after the window.
    pub until_min: u16,
    /// The least number of replicas within the window.
    pub floor: u32,
}

impl WeeklyWindow {
    pub(super) const fn is_valid(&self) -> bool {
        self.from_min < MINUTES_A_WEEK && self.until_min < MINUTES_A_WEEK && self.from_min != self.until_min
    }

    const fn has(&self, minute: u16) -> bool {
        if self.from_min < self.until_min {
            self.from_min <= minute && minute < self.until_min
        } else {
            self.from_min <= minute || minute < self.until_min
        }
    }
}

/// The minute of the week of an instant, from Monday 00:00, at an offset from UTC in minutes.
pub fn minute_of_week(at: Timestamp, utc_offset_min: i32) -> u16 {
    // 1970-01-01 was a Thursday, three days after a Monday.
    let minute = at.micros().div_euclid(MINUTE_MICROS) + i64::from(utc_offset_min) + 3 * 24 * 60;
    u16::try_from(minute.rem_euclid(i64::from(MINUTES_A_WEEK))).unwrap_or(0)
}

/// The highest floor of all windows that hold now; 0 without one.
pub fn scheduled_floor(windows: &[WeeklyWindow], now: Timestamp, utc_offset_min: i32) -> u32 {
    let minute = minute_of_week(now, utc_offset_min);
    windows.iter().filter(|window| window.has(minute)).map(|window| window.floor).max().unwrap_or(0)
}

/// The first instant after `now` at which a window begins or ends; `None` without a window. The offset from UTC must not
/// change before it.
pub fn next_change(windows: &[WeeklyWindow], now: Timestamp, utc_offset_min: i32) -> Option<Timestamp> {
    let minute = i64::from(minute_of_week(now, utc_offset_min));
    let week = i64::from(MINUTES_A_WEEK);
    let left = |bound: u16| (i64::from(bound) - minute - 1).rem_euclid(week) + 1;
    let least = windows.iter().flat_map(|window| [window.from_min, window.until_min]).map(left).min()?;
    let begun = now.micros().div_euclid(MINUTE_MICROS);
    Some(Timestamp::from_micros((begun + least).saturating_mul(MINUTE_MICROS)))
}

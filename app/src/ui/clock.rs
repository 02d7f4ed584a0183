//! Wall times of a zone and their instants.
//!
//! Pure: without the browser. A zone is a function from a Unix time in seconds to the UTC offset in seconds.

use berth_types::days::MONTHS;
use berth_types::time::Timestamp;

/// The seconds of a day without a clock change.
pub const DAY_S: i64 = 86_400;

const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// The UTC offset in seconds at a Unix time in seconds.
pub type UtcOffset<'a> = &'a dyn Fn(i64) -> i64;

fn short(name: &'static str) -> &'static str {
    name.get(..3).unwrap_or(name)
}

/// Returns year, month and day of a day, counted from 1970-01-01.
pub fn civil(day: i64) -> (i64, i64, i64) {
    // The calendar repeats every 400 years. Years start in March, so a leap day is the last day.
    let shifted = day.saturating_add(719_468);
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let day_of_month = day_of_year - (153 * from_march + 2) / 5 + 1;
    (year_of_era + era * 400 + i64::from(month <= 2), month, day_of_month)
}

/// Returns the day of a year, month and day, counted from 1970-01-01.
fn day_number(year: i64, month: i64, day_of_month: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let from_march = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * from_march + 2) / 5 + day_of_month - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// The error of the input of a date and a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WallError {
    /// The text is no date with a time.
    Unreadable,
    /// The clocks of the zone skip the time.
    Skipped,
}

impl WallError {
    /// Returns the text below a field.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Unreadable => "Enter a date and a time.",
            Self::Skipped => {
                "The clocks go forward on this day and skip this time. Enter an earlier or a later time."
            }
        }
    }
}

/// A wall time: local seconds since the start of 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wall(i64);

impl Wall {
    /// Returns the start of a day, counted from 1970-01-01.
    pub const fn midnight(day: i64) -> Self {
        Self(day.saturating_mul(DAY_S))
    }

    /// Returns the wall time of an instant.
    pub fn at(at: Timestamp, offset: UtcOffset) -> Self {
        let utc = at.millis().div_euclid(1_000);
        Self(utc.saturating_add(offset(utc)))
    }

    /// Returns the day, counted from 1970-01-01.
    pub const fn day(self) -> i64 {
        self.0.div_euclid(DAY_S)
    }

    /// Returns the minutes since midnight.
    pub const fn minute_of_day(self) -> i64 {
        self.0.rem_euclid(DAY_S) / 60
    }

    /// Returns the wall time later by `seconds` on a clock without changes.
    #[must_use]
    pub const fn plus(self, seconds: i64) -> Self {
        Self(self.0.saturating_add(seconds))
    }

    /// Returns the Unix times of this wall time by the offsets a day earlier and a day later.
    fn by_offsets_around(self, offset: UtcOffset) -> [i64; 2] {
        [-DAY_S, DAY_S].map(|near| self.0.saturating_sub(offset(self.0.saturating_add(near))))
    }

    /// Lists the instants of this wall time, the earlier first: none of a skipped time, two of a repeated time.
    pub fn instants(self, offset: UtcOffset) -> Vec<Timestamp> {
        let shows = |utc: &i64| utc.saturating_add(offset(*utc)) == self.0;
        let mut all: Vec<i64> = self.by_offsets_around(offset).into_iter().filter(shows).collect();
        all.dedup();
        all.into_iter().map(timestamp).collect()
    }

    /// Returns the instant of this wall time. A repeated time has its first instant; a skipped time moves by the
    /// length of the gap.
    pub fn instant(self, offset: UtcOffset) -> Timestamp {
        let [before, _] = self.by_offsets_around(offset);
        self.instants(offset).first().copied().unwrap_or_else(|| timestamp(before))
    }

    /// Returns the value of a date-and-time field: `2026-11-22T09:00`.
    pub fn field(self) -> String {
        let (year, month, day) = civil(self.day());
        format!("{year:04}-{month:02}-{day:02}T{}", self.clock())
    }

    /// Parses the value of a date-and-time field, without its seconds.
    pub fn parse_field(text: &str) -> Option<Self> {
        let (date, time) = text.trim().split_once('T')?;
        let mut date = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
        let (year, month, day_of_month) = (date.next()??, date.next()??, date.next()??);
        let mut time = time.splitn(3, ':').map(|part| part.parse::<i64>().ok());
        let (hour, minute) = (time.next()??, time.next()??);
        let in_range = (1970..=9999).contains(&year)
            && (1..=12).contains(&month)
            && (1..=31).contains(&day_of_month)
            && (0..24).contains(&hour)
            && (0..60).contains(&minute);
        if !in_range {
            return None;
        }
        let day = day_number(year, month, day_of_month);
        // Invalid days, such as 31 April, lead to another date.
        (civil(day) == (year, month, day_of_month))
            .then(|| Self::midnight(day).plus(hour * 3_600 + minute * 60))
    }

    /// Returns the time: `09:00`.
    pub fn clock(self) -> String {
        let minute = self.minute_of_day();
        format!("{:02}:{:02}", minute / 60, minute % 60)
    }

    /// Returns the time with seconds: `09:00:05`.
    pub fn clock_s(self) -> String {
        format!("{}:{:02}", self.clock(), self.0.rem_euclid(60))
    }

    /// Returns date and time: `2026-11-22 09:00`.
    pub fn stamp(self) -> String {
        self.field().replace('T', " ")
    }

    /// Returns the names of the weekday and the month.
    pub fn names(self) -> (&'static str, &'static str) {
        let (_, month, _) = civil(self.day());
        // 1970-01-01 was a Thursday.
        let weekday = usize::try_from(self.day().saturating_add(4).rem_euclid(7)).unwrap_or(0);
        let month = usize::try_from(month - 1).unwrap_or(0);
        (WEEKDAYS.get(weekday).copied().unwrap_or(""), MONTHS.get(month).copied().unwrap_or(""))
    }

    /// Returns a short date: `Sun 22 Nov`.
    pub fn date(self) -> String {
        let ((weekday, month), (_, _, day)) = (self.names(), civil(self.day()));
        format!("{} {day} {}", short(weekday), short(month))
    }

    /// Returns weekday and day: `Sun 22`.
    pub fn short_date(self) -> String {
        let ((weekday, _), (_, _, day)) = (self.names(), civil(self.day()));
        format!("{} {day}", short(weekday))
    }

    /// Returns a long date with its weekday: `Sunday 22 November 2026`.
    pub fn long_date(self) -> String {
        let ((weekday, month), (year, _, day)) = (self.names(), civil(self.day()));
        format!("{weekday} {day} {month} {year}")
    }

    /// Returns a long date: `22 November 2026`.
    pub fn plain_date(self) -> String {
        let ((_, month), (year, _, day)) = (self.names(), civil(self.day()));
        format!("{day} {month} {year}")
    }

    /// Returns a short date with its time: `Sun 22 Nov 09:00`.
    pub fn moment(self) -> String {
        format!("{} {}", self.date(), self.clock())
    }
}

fn timestamp(utc: i64) -> Timestamp {
    Timestamp::from_micros(utc.saturating_mul(1_000_000))
}

/// Returns a window: `Sun 22 Nov 09:00 to 11:00`, with the second date if it differs.
pub fn window_text(from: Wall, until: Wall) -> String {
    let end = if from.day() == until.day() { until.clock() } else { until.moment() };
    format!("{} to {end}", from.moment())
}

#[cfg(test)]
mod tests;

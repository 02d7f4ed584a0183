//! Wall times of a zone and their instants, and a day or a week as the columns of the calendar.
//!
//! Pure: without the browser. A zone is a function from a Unix time in seconds to the UTC offset in seconds.

use berth_types::time::Timestamp;

const DAY_S: i64 = 86_400;
const HALF_HOUR_S: i64 = 1_800;
const THREE_HOURS_S: i64 = 10_800;

const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
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

/// The UTC offset in seconds at a Unix time in seconds.
pub type UtcOffset<'a> = &'a dyn Fn(i64) -> i64;

fn short(name: &'static str) -> &'static str {
    name.get(..3).unwrap_or(name)
}

/// Returns year, month and day of a day, counted from 1970-01-01.
fn civil(day: i64) -> (i64, i64, i64) {
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

    const fn plus(self, seconds: i64) -> Self {
        Self(self.0.saturating_add(seconds))
    }

    /// Returns the instant of this wall time. A repeated time has its first instant; a skipped time moves by the
    /// length of the gap.
    pub fn instant(self, offset: UtcOffset) -> Timestamp {
        let before = self.0.saturating_sub(offset(self.0.saturating_sub(DAY_S)));
        let after = self.0.saturating_sub(offset(self.0.saturating_add(DAY_S)));
        let shows = |utc: &i64| utc.saturating_add(offset(*utc)) == self.0;
        timestamp([before, after].into_iter().find(shows).unwrap_or(before))
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

    /// Returns date and time: `2026-11-22 09:00`.
    pub fn stamp(self) -> String {
        self.field().replace('T', " ")
    }

    fn names(self) -> (&'static str, &'static str) {
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
    fn short_date(self) -> String {
        let ((weekday, _), (_, _, day)) = (self.names(), civil(self.day()));
        format!("{} {day}", short(weekday))
    }

    /// Returns a long date with its weekday: `Sunday 22 November 2026`.
    pub fn long_date(self) -> String {
        let ((weekday, month), (year, _, day)) = (self.names(), civil(self.day()));
        format!("{weekday} {day} {month} {year}")
    }

    /// Returns a long date: `22 November 2026`.
    fn plain_date(self) -> String {
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

/// The range of the calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// One day in half hours.
    Day,
    /// Monday to Sunday in columns of three hours.
    Week,
}

impl View {
    /// Returns the number of days.
    pub const fn days(self) -> i64 {
        match self {
            Self::Day => 1,
            Self::Week => 7,
        }
    }

    /// Returns the first day of the view with this day.
    pub const fn first(self, day: i64) -> i64 {
        match self {
            Self::Day => day,
            Self::Week => day.saturating_sub(day.saturating_add(3).rem_euclid(7)),
        }
    }
}

/// A head over columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// The first column.
    pub start: usize,
    /// The number of columns.
    pub size: usize,
    /// The text.
    pub text: String,
}

/// A day or a week in columns.
///
/// A day with a clock change has more or fewer half hours. A week always has eight columns per day; at a clock
/// change, one of them is longer or shorter, so each day starts with a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    view: View,
    first_day: i64,
    /// The starts of the columns and the end of the last one, with their wall times.
    edges: Vec<(Timestamp, Wall)>,
    /// The length of each day, in seconds.
    lengths: Vec<i64>,
}

impl Frame {
    /// Returns the frame with `day` in it.
    pub fn new(view: View, day: i64, offset: UtcOffset) -> Self {
        let first_day = view.first(day);
        let last = first_day.saturating_add(view.days());
        let midnight = |day: i64| Wall::midnight(day).instant(offset);
        let lengths = (first_day..last)
            .map(|day| midnight(day.saturating_add(1)).millis_since(midnight(day)) / 1_000)
            .collect();
        let mut begins: Vec<Timestamp> = match view {
            View::Day => {
                let (from, until) = (midnight(first_day), midnight(last));
                let halves = until.millis_since(from) / 1_000 / HALF_HOUR_S;
                (0..halves).map(|half| from.plus_seconds(half * HALF_HOUR_S)).collect()
            }
            View::Week => (first_day..last)
                .flat_map(|day| (0..8).map(move |part| Wall::midnight(day).plus(part * THREE_HOURS_S)))
                .map(|wall| wall.instant(offset))
                .collect(),
        };
        begins.push(midnight(last));
        let edges = begins.into_iter().map(|at| (at, Wall::at(at, offset))).collect();
        Self { view, first_day, edges, lengths }
    }

    /// Returns the number of columns.
    pub fn columns(&self) -> usize {
        self.edges.len().saturating_sub(1)
    }

    /// Returns the start.
    pub fn from(&self) -> Timestamp {
        self.edges.first().map_or(Timestamp::default(), |(at, _)| *at)
    }

    /// Returns the end.
    pub fn until(&self) -> Timestamp {
        self.edges.last().map_or(Timestamp::default(), |(at, _)| *at)
    }

    /// Returns start and end of a column.
    pub fn column(&self, column: usize) -> Option<(Timestamp, Timestamp)> {
        let (from, _) = self.edges.get(column)?;
        let (until, _) = self.edges.get(column.checked_add(1)?)?;
        Some((*from, *until))
    }

    /// Returns the start of a column as text: `Sun 22 Nov 09:00`.
    pub fn moment(&self, column: usize) -> String {
        self.edges.get(column).map(|(_, wall)| wall.moment()).unwrap_or_default()
    }

    /// Returns the number of past columns.
    pub fn passed(&self, now: Timestamp) -> usize {
        self.edges.iter().skip(1).filter(|(end, _)| *end <= now).count()
    }

    /// Returns the column of an instant.
    pub fn column_at(&self, at: Timestamp) -> Option<usize> {
        (self.from() <= at && at < self.until()).then(|| self.passed(at))
    }

    /// Returns the first column and the number of columns of a window.
    pub fn touched(&self, from: Timestamp, until: Timestamp) -> Option<(usize, usize)> {
        if until <= from || until <= self.from() || from >= self.until() {
            return None;
        }
        let start = self.passed(from.max(self.from()));
        let end = self.edges.iter().take(self.columns()).filter(|(begin, _)| *begin < until).count();
        Some((start, end.saturating_sub(start).max(1)))
    }

    /// Returns the title: `Sunday 22 November 2026`, `16 to 22 November 2026`.
    pub fn title(&self) -> String {
        let first = Wall::midnight(self.first_day);
        match self.view {
            View::Day => first.long_date(),
            View::Week => {
                let last = Wall::midnight(self.first_day.saturating_add(6));
                let ((year, month, day), (last_year, last_month, _)) =
                    (civil(first.day()), civil(last.day()));
                let begin = match (year == last_year, month == last_month) {
                    (true, true) => day.to_string(),
                    (true, false) => format!("{day} {}", first.names().1),
                    (false, _) => first.plain_date(),
                };
                format!("{begin} to {}", last.plain_date())
            }
        }
    }

    /// Returns the heads of the columns: every third hour of a day, or each day of a week. A day with a clock
    /// change has an asterisk.
    pub fn marks(&self) -> Vec<Mark> {
        let starts: Vec<(usize, Wall)> = match self.view {
            View::Day => {
                let edges = self.edges.iter().take(self.columns()).map(|(_, wall)| *wall).enumerate();
                edges.filter(|(_, wall)| wall.minute_of_day() % 180 == 0).collect()
            }
            View::Week => {
                let days = (0..self.view.days()).map(|n| Wall::midnight(self.first_day.saturating_add(n)));
                days.enumerate().map(|(n, wall)| (n * 8, wall)).collect()
            }
        };
        let ends = starts.iter().skip(1).map(|(start, _)| *start).chain([self.columns()]);
        starts
            .iter()
            .zip(ends)
            .enumerate()
            .map(|(n, ((start, wall), end))| {
                let text = match self.view {
                    View::Day => wall.clock(),
                    View::Week => {
                        let changes = self.lengths.get(n).is_some_and(|length| *length != DAY_S);
                        format!("{}{}", wall.short_date(), if changes { "*" } else { "" })
                    }
                };
                Mark { start: *start, size: end.saturating_sub(*start).max(1), text }
            })
            .collect()
    }

    /// Returns the clock change in the frame: `Clock change: this day has 23 hours.`
    pub fn clock_change(&self) -> Option<String> {
        let (n, length) = self.lengths.iter().enumerate().find(|(_, length)| **length != DAY_S)?;
        let hours = hours_text(*length);
        Some(match self.view {
            View::Day => format!("Clock change: this day has {hours}."),
            View::Week => {
                let n = i64::try_from(n).unwrap_or(0);
                let day = Wall::midnight(self.first_day.saturating_add(n)).date();
                format!("* Clock change on {day}: this day has {hours}.")
            }
        })
    }
}

/// Returns hours with at most one decimal: `23 hours`, `24.5 hours`.
fn hours_text(length_s: i64) -> String {
    match length_s % 3_600 {
        0 => format!("{} hours", length_s / 3_600),
        rest => format!("{}.{} hours", length_s / 3_600, rest / 360),
    }
}

#[cfg(test)]
mod tests;

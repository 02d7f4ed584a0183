//! Days and clocks on the wall: what a person reads and types, and the instants that it means; a day
//! or a week of them as the columns of the calendar.
//!
//! Pure; must not know the browser: a zone comes in as the seconds by which its clocks are ahead of UTC
//! at an instant, which is given in seconds since 1970.

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

/// Seconds by which clocks are ahead of UTC at an instant.
pub type Ahead<'a> = &'a dyn Fn(i64) -> i64;

fn short(name: &'static str) -> &'static str {
    name.get(..3).unwrap_or(name)
}

/// Year, month and day of a day that is counted from 1970-01-01.
fn civil(day: i64) -> (i64, i64, i64) {
    // The calendar repeats every 400 years; a year is counted from March, so that its odd day is its last.
    let shifted = day.saturating_add(719_468);
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let of_month = of_year - (153 * from_march + 2) / 5 + 1;
    (year_of_era + era * 400 + i64::from(month <= 2), month, of_month)
}

/// The day, counted from 1970-01-01, of a year, month and day.
fn day_of(year: i64, month: i64, of_month: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let from_march = if month > 2 { month - 3 } else { month + 9 };
    let of_year = (153 * from_march + 2) / 5 + of_month - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year - 719_468
}

/// What clocks on the wall show: seconds since they showed the start of 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wall(i64);

impl Wall {
    /// Midnight at the start of a day that is counted from 1970-01-01.
    pub const fn midnight(day: i64) -> Self {
        Self(day.saturating_mul(DAY_S))
    }

    /// What clocks show at an instant.
    pub fn at(at: Timestamp, ahead: Ahead) -> Self {
        let utc = at.millis().div_euclid(1_000);
        Self(utc.saturating_add(ahead(utc)))
    }

    /// The day, counted from 1970-01-01.
    pub const fn day(self) -> i64 {
        self.0.div_euclid(DAY_S)
    }

    /// Minutes since midnight.
    pub const fn minute_of_day(self) -> i64 {
        self.0.rem_euclid(DAY_S) / 60
    }

    const fn plus(self, seconds: i64) -> Self {
        Self(self.0.saturating_add(seconds))
    }

    /// The instant at which clocks show this: the first of two where they are set back, and as much
    /// later as clocks jump where they never show it.
    pub fn instant(self, ahead: Ahead) -> Timestamp {
        let before = self.0.saturating_sub(ahead(self.0.saturating_sub(DAY_S)));
        let after = self.0.saturating_sub(ahead(self.0.saturating_add(DAY_S)));
        let shows = |utc: &i64| utc.saturating_add(ahead(*utc)) == self.0;
        seconds([before, after].into_iter().find(shows).unwrap_or(before))
    }

    /// The text of a date-and-time field: `2026-11-22T09:00`.
    pub fn field(self) -> String {
        let (year, month, day) = civil(self.day());
        format!("{year:04}-{month:02}-{day:02}T{}", self.clock())
    }

    /// Reads the text of a date-and-time field; seconds are left out.
    pub fn parse_field(text: &str) -> Option<Self> {
        let (date, time) = text.trim().split_once('T')?;
        let mut date = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
        let (year, month, of_month) = (date.next()??, date.next()??, date.next()??);
        let mut time = time.splitn(3, ':').map(|part| part.parse::<i64>().ok());
        let (hour, minute) = (time.next()??, time.next()??);
        let sane = (1970..=9999).contains(&year)
            && (1..=12).contains(&month)
            && (1..=31).contains(&of_month)
            && (0..24).contains(&hour)
            && (0..60).contains(&minute);
        if !sane {
            return None;
        }
        let day = day_of(year, month, of_month);
        // The 31st of a short month is a day of the next one.
        (civil(day) == (year, month, of_month)).then(|| Self::midnight(day).plus(hour * 3_600 + minute * 60))
    }

    /// `09:00`.
    pub fn clock(self) -> String {
        let minute = self.minute_of_day();
        format!("{:02}:{:02}", minute / 60, minute % 60)
    }

    /// `2026-11-22 09:00`.
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

    /// `Sun 22 Nov`.
    pub fn date(self) -> String {
        let ((weekday, month), (_, _, of_month)) = (self.names(), civil(self.day()));
        format!("{} {of_month} {}", short(weekday), short(month))
    }

    /// `Sun 22`.
    fn short_date(self) -> String {
        let ((weekday, _), (_, _, of_month)) = (self.names(), civil(self.day()));
        format!("{} {of_month}", short(weekday))
    }

    /// `Sunday 22 November 2026`.
    pub fn long_date(self) -> String {
        let ((weekday, month), (year, _, of_month)) = (self.names(), civil(self.day()));
        format!("{weekday} {of_month} {month} {year}")
    }

    /// `22 November 2026`.
    fn plain_date(self) -> String {
        let ((_, month), (year, _, of_month)) = (self.names(), civil(self.day()));
        format!("{of_month} {month} {year}")
    }

    /// `Sun 22 Nov 09:00`.
    pub fn moment(self) -> String {
        format!("{} {}", self.date(), self.clock())
    }
}

fn seconds(utc: i64) -> Timestamp {
    Timestamp::from_micros(utc.saturating_mul(1_000_000))
}

/// `Sun 22 Nov 09:00 to 11:00`, or with the second day where it is another one.
pub fn window_text(from: Wall, until: Wall) -> String {
    let end = if from.day() == until.day() { until.clock() } else { until.moment() };
    format!("{} to {end}", from.moment())
}

/// How much of time is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// One day in half hours.
    Day,
    /// Monday to Sunday, three hours a column.
    Week,
}

impl View {
    /// Days in it.
    pub const fn days(self) -> i64 {
        match self {
            Self::Day => 1,
            Self::Week => 7,
        }
    }

    /// The first day of the view that has this day in it.
    pub const fn first(self, day: i64) -> i64 {
        match self {
            Self::Day => day,
            Self::Week => day.saturating_sub(day.saturating_add(3).rem_euclid(7)),
        }
    }
}

/// Words over some columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// The first of its columns.
    pub start: usize,
    /// How many they are.
    pub size: usize,
    /// The words.
    pub text: String,
}

/// A day or a week cut into columns.
///
/// A day on which clocks change has as many half hours as it has, and a week always has eight columns
/// a day, one of which is then longer or shorter: so every day begins at a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    view: View,
    first_day: i64,
    /// Where columns begin, and where the last one ends, with what clocks show then.
    edges: Vec<(Timestamp, Wall)>,
    /// The length of each day, in seconds.
    lengths: Vec<i64>,
}

impl Frame {
    /// The view that has `day` in it.
    pub fn new(view: View, day: i64, ahead: Ahead) -> Self {
        let first_day = view.first(day);
        let last = first_day.saturating_add(view.days());
        let midnight = |day: i64| Wall::midnight(day).instant(ahead);
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
                .map(|wall| wall.instant(ahead))
                .collect(),
        };
        begins.push(midnight(last));
        let edges = begins.into_iter().map(|at| (at, Wall::at(at, ahead))).collect();
        Self { view, first_day, edges, lengths }
    }

    /// How many columns it has.
    pub fn columns(&self) -> usize {
        self.edges.len().saturating_sub(1)
    }

    /// Where it begins.
    pub fn from(&self) -> Timestamp {
        self.edges.first().map_or(Timestamp::default(), |(at, _)| *at)
    }

    /// Where it is over.
    pub fn until(&self) -> Timestamp {
        self.edges.last().map_or(Timestamp::default(), |(at, _)| *at)
    }

    /// From when to when a column is.
    pub fn column(&self, column: usize) -> Option<(Timestamp, Timestamp)> {
        let (from, _) = self.edges.get(column)?;
        let (until, _) = self.edges.get(column.checked_add(1)?)?;
        Some((*from, *until))
    }

    /// When a column begins, in words: `Sun 22 Nov 09:00`.
    pub fn moment(&self, column: usize) -> String {
        self.edges.get(column).map(|(_, wall)| wall.moment()).unwrap_or_default()
    }

    /// How many columns are over.
    pub fn passed(&self, now: Timestamp) -> usize {
        self.edges.iter().skip(1).filter(|(end, _)| *end <= now).count()
    }

    /// The column that is now.
    pub fn column_of(&self, at: Timestamp) -> Option<usize> {
        (self.from() <= at && at < self.until()).then(|| self.passed(at))
    }

    /// The columns that a stretch of time touches: the first, and how many.
    pub fn touched(&self, from: Timestamp, until: Timestamp) -> Option<(usize, usize)> {
        if until <= from || until <= self.from() || from >= self.until() {
            return None;
        }
        let start = self.passed(from.max(self.from()));
        let end = self.edges.iter().take(self.columns()).filter(|(begin, _)| *begin < until).count();
        Some((start, end.saturating_sub(start).max(1)))
    }

    /// The view in words: `Sunday 22 November 2026`, `16 to 22 November 2026`.
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

    /// The words over the columns: every third hour of a day, every day of a week. A day on which
    /// clocks change has a star.
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

    /// On which day clocks change, if they do: `Clocks change this day: it has 23 hours.`
    pub fn change(&self) -> Option<String> {
        let (n, length) = self.lengths.iter().enumerate().find(|(_, length)| **length != DAY_S)?;
        let hours = hours_text(*length);
        Some(match self.view {
            View::Day => format!("Clocks change this day: it has {hours}."),
            View::Week => {
                let n = i64::try_from(n).unwrap_or(0);
                let day = Wall::midnight(self.first_day.saturating_add(n)).date();
                format!("* Clocks change on {day}: that day has {hours}.")
            }
        })
    }
}

/// `23 hours`, `24.5 hours`.
fn hours_text(length_s: i64) -> String {
    match length_s % 3_600 {
        0 => format!("{} hours", length_s / 3_600),
        rest => format!("{}.{} hours", length_s / 3_600, rest / 360),
    }
}

#[cfg(test)]
mod tests;

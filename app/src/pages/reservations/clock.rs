//! A day or a week of a zone as the columns of the calendar.
//!
//! Pure: without the browser.

use berth_types::time::Timestamp;

use crate::ui::clock::{DAY_S, UtcOffset, Wall, civil};

const HALF_HOUR_S: i64 = 1_800;
const THREE_HOURS_S: i64 = 10_800;

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

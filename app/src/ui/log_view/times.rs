//! Times of the lines of a log: their lookup by offset, their text, and the search for a time.
//!
//! Pure: without a browser.

use std::collections::VecDeque;

use berth_types::events::LogTimes;
use berth_types::time::Timestamp;

use crate::ui::Zone;
use crate::ui::clock::{DAY_S, Wall, WallError};

/// The maximum number of times before the next line. A line can stay incomplete for hours.
const MAX_ENTRIES: usize = 10_000;

/// The times of the bytes from the present line on.
#[derive(Debug, Default)]
pub struct TimeIndex {
    /// Offsets with their times, ascending.
    entries: VecDeque<(u64, Timestamp)>,
}

impl TimeIndex {
    /// Adds the times of the next chunk.
    pub fn add(&mut self, times: &LogTimes) {
        for (from, at_ms) in times.from.iter().zip(&times.at_ms) {
            if self.entries.back().is_some_and(|(last, _)| last >= from) {
                continue;
            }
            if self.entries.len() >= MAX_ENTRIES {
                self.entries.remove(1);
            }
            self.entries.push_back((*from, Timestamp::from_micros(at_ms.saturating_mul(1_000))));
        }
    }

    /// Finds the time of the byte at an offset. Each call has the offset of the last call or a later one.
    pub fn find(&mut self, offset: u64) -> Option<Timestamp> {
        while self.entries.get(1).is_some_and(|(from, _)| *from <= offset) {
            self.entries.pop_front();
        }
        self.entries.front().filter(|(from, _)| *from <= offset).map(|(_, at)| *at)
    }
}

/// Returns the time of a line in a zone: `14:20:05.1`.
pub fn log_time(at: Timestamp, zone: Zone) -> String {
    format!("{}.{}", zone.wall(at).clock_s(), at.millis().rem_euclid(1_000) / 100)
}

/// Parses a typed time: `14:20`, `14:20:05` or the same after a date in a zone, or RFC 3339. A time without a date
/// is of the first day of the log, or of the next day if only that is between `first` and `last`. A repeated time has
/// its first instant between both, or else its first one.
///
/// # Errors
/// A text that is no time, and a time that the zone skips.
pub fn typed_time(text: &str, zone: Zone, first: Timestamp, last: Timestamp) -> Result<Timestamp, WallError> {
    let text = text.trim();
    if let Ok(at) = text.parse() {
        return Ok(at);
    }
    let first_day = zone.wall(first).field();
    let (date, clock, days) = match text.split_once([' ', 'T']) {
        Some((date, clock)) => (date, clock, 1),
        None => (first_day.get(..10).unwrap_or_default(), text, 2),
    };
    let (wall, millis) = on_day(date, clock).ok_or(WallError::Unreadable)?;
    let instants = |day: i64| wall.plus(day * DAY_S).instants(&|utc| zone.offset(utc));
    let all: Vec<Timestamp> = (0..days).flat_map(instants).map(|at| at.plus_millis(millis)).collect();
    let logged = all.iter().find(|at| (first..=last).contains(*at));
    logged.copied().or_else(|| instants(0).first().map(|at| at.plus_millis(millis))).ok_or(WallError::Skipped)
}

/// The wall time of a date such as `2026-11-20` and a clock such as `14:20` or `14:20:05`, and its milliseconds.
fn on_day(date: &str, clock: &str) -> Option<(Wall, i64)> {
    let clock = clock.trim();
    let hour = if clock.find(':') == Some(1) { "0" } else { "" };
    let seconds = if clock.matches(':').count() == 1 { ":00" } else { "" };
    let read: Timestamp = format!("{date}T{hour}{clock}{seconds}Z").parse().ok()?;
    Some((Zone::Utc.wall(read), read.millis().rem_euclid(1_000)))
}

/// The result of a search for a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nearest {
    /// The number of the nearest line, and its time.
    Line(u64, Timestamp),
    /// All lines are earlier; the time of the last one.
    Earlier(Timestamp),
    /// No line has a time.
    Untimed,
}

/// Finds the line that is nearest to a time, among lines with ascending times.
pub fn nearest(lines: impl Iterator<Item = (u64, Timestamp)>, wanted: Timestamp) -> Nearest {
    let mut before: Option<(u64, Timestamp)> = None;
    for (number, at) in lines {
        if at >= wanted {
            let after_ms = at.millis_since(wanted);
            return match before {
                Some((earlier, earlier_at)) if wanted.millis_since(earlier_at) < after_ms => {
                    Nearest::Line(earlier, earlier_at)
                }
                _ => Nearest::Line(number, at),
            };
        }
        before = Some((number, at));
    }
    before.map_or(Nearest::Untimed, |(_, at)| Nearest::Earlier(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    /// Berlin in 2026: summer time from 29 March to 25 October, each at 01:00 UTC.
    fn berlin() -> Zone {
        Zone::parse("3600.1774746000.7200.1792890000.3600").unwrap()
    }

    fn second(s: i64) -> Timestamp {
        Timestamp::from_micros(s * 1_000_000)
    }

    #[test]
    fn a_byte_has_the_time_of_the_last_offset_before_it() {
        let mut index = TimeIndex::default();
        assert_eq!(index.find(0), None);
        index.add(&LogTimes { from: vec![3, 5], at_ms: vec![1_000, 2_000] });
        // The next chunk repeats the time of its first byte.
        index.add(&LogTimes { from: vec![7, 9], at_ms: vec![2_000, 3_000] });
        index.add(&LogTimes { from: vec![9], at_ms: vec![3_000] });
        for (offset, time) in [
            (2, None),
            (3, Some(1)),
            (4, Some(1)),
            (5, Some(2)),
            (8, Some(2)),
            (8, Some(2)),
            (9, Some(3)),
            (99, Some(3)),
        ] {
            assert_eq!(index.find(offset), time.map(second), "{offset}");
        }
        for from in 100..200_000 {
            index.add(&LogTimes { from: vec![from], at_ms: vec![from as i64] });
        }
        assert_eq!(index.entries.len(), MAX_ENTRIES);
        assert_eq!(index.find(199_999), Some(Timestamp::from_micros(199_999_000)));
    }

    #[test]
    fn a_typed_time_may_lack_its_date_and_seconds() {
        let (first, last) = (at("2026-11-20T14:20:05.3Z"), at("2026-11-21T02:00:00Z"));
        for (text, time) in [
            ("14:30", Some("2026-11-20T14:30:00Z")),
            (" 14:30:07 ", Some("2026-11-20T14:30:07Z")),
            ("14:30:07.5", Some("2026-11-20T14:30:07.5Z")),
            ("1:30", Some("2026-11-21T01:30:00Z")),
            ("01:30:00", Some("2026-11-21T01:30:00Z")),
            // Before the first line, and not in the next night either.
            ("14:20:05", Some("2026-11-20T14:20:05Z")),
            ("02:00:01", Some("2026-11-20T02:00:01Z")),
            ("2026-11-20 23:59", Some("2026-11-20T23:59:00Z")),
            ("2026-11-20T23:59:58", Some("2026-11-20T23:59:58Z")),
            ("2026-11-20T23:59:58+01:00", Some("2026-11-20T22:59:58Z")),
            ("", None),
            ("later", None),
            ("25:00", None),
            ("14", None),
            ("14:20:05:00", None),
            ("2026-11-31 14:20", None),
        ] {
            let expected = time.map(at).ok_or(WallError::Unreadable);
            assert_eq!(typed_time(text, Zone::Utc, first, last), expected, "{text}");
        }
    }

    #[test]
    fn a_typed_time_is_in_the_zone_and_a_repeated_one_in_the_log() {
        let (skipped, day) = (Err(WallError::Skipped), |text: &str| Ok(at(&format!("2026-{text}Z"))));
        for (first, last, text, result) in [
            // The log begins on 21 November in Berlin, and on the day before in UTC.
            ("11-20T23:10:00", "11-21T23:40:00", "00:20:07.5", day("11-20T23:20:07.5")),
            ("11-20T23:10:00", "11-21T23:40:00", "0:05", day("11-21T23:05:00")),
            // Spring: the first day of the log has no such time.
            ("03-29T00:00:00", "03-30T08:00:00", "02:30", day("03-30T00:30:00")),
            ("03-29T00:00:00", "03-29T08:00:00", "02:30", skipped),
            ("03-28T22:00:00", "03-30T08:00:00", "2026-03-29 02:30", skipped),
            ("10-25T00:10:00", "10-25T08:00:00", "02:30", day("10-25T00:30:00")),
            ("10-25T00:40:00", "10-25T08:00:00", "2026-10-25 02:30", day("10-25T01:30:00")),
        ] {
            let [first, last] = [first, last].map(|text| at(&format!("2026-{text}Z")));
            assert_eq!(typed_time(text, berlin(), first, last), result, "{text} from {first}");
        }
    }

    #[test]
    fn the_nearest_line_is_found() {
        let lines = [(1, 10), (2, 10), (4, 20), (5, 30)];
        for (wanted, found) in [
            (0, Nearest::Line(1, second(10))),
            (10, Nearest::Line(1, second(10))),
            (14, Nearest::Line(2, second(10))),
            (15, Nearest::Line(4, second(20))),
            (20, Nearest::Line(4, second(20))),
            (30, Nearest::Line(5, second(30))),
            (31, Nearest::Earlier(second(30))),
        ] {
            let lines = lines.iter().map(|(number, s)| (*number, second(*s)));
            assert_eq!(nearest(lines, second(wanted)), found, "{wanted}");
        }
        assert_eq!(nearest(std::iter::empty(), second(1)), Nearest::Untimed);
    }

    #[test]
    fn a_time_has_tenths_of_a_second() {
        assert_eq!(log_time(at("2026-11-20T14:20:05.199Z"), Zone::Utc), "14:20:05.1");
        assert_eq!(log_time(at("2026-07-20T23:00:00Z"), berlin()), "01:00:00.0");
    }
}

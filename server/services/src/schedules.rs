//! The schedule of a service in its time zone.
//!
//! The table of time zones is that of the build. At a change of the clock the windows follow the local time: a window within
//! the skipped hour does not hold, and one within the repeated hour holds twice.

use std::sync::LazyLock;

use berth_autoscaling::scaling::{MAX_WINDOWS, WeeklyWindow, next_change};
use berth_service_types::scaling::Scaling;
use berth_service_types::schedule::{ScheduleWindow, WeekTime};
use berth_types::problems::FieldError;
use berth_types::time::Timestamp;
use jiff::tz::{TimeZone, TimeZoneDatabase};

/// The minutes of a day.
const MINUTES_A_DAY: u16 = 24 * 60;
/// Characters of the name of a time zone.
const MAX_ZONE_CHARS: usize = 64;

static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// The time zone with exactly this name.
fn zone(name: &str) -> Option<TimeZone> {
    if name.len() > MAX_ZONE_CHARS {
        return None;
    }
    ZONES.get(name).ok().filter(|zone| zone.iana_name() == Some(name))
}

/// An instant for the table of time zones. One beyond its range counts as 1970.
fn instant(at: Timestamp) -> jiff::Timestamp {
    jiff::Timestamp::from_microsecond(at.micros()).unwrap_or(jiff::Timestamp::UNIX_EPOCH)
}

fn offset_min(zone: &TimeZone, now: Timestamp) -> i32 {
    zone.to_offset(instant(now)).seconds().div_euclid(60)
}

const fn minute(time: WeekTime) -> u16 {
    time.day as u16 * MINUTES_A_DAY + time.minute
}

/// The windows of a schedule by the minute of the week.
pub fn windows(scaling: &Scaling) -> Vec<WeeklyWindow> {
    let window = |window: &ScheduleWindow| WeeklyWindow {
        from_min: minute(window.begin),
        until_min: minute(window.end),
        floor: window.floor,
    };
    scaling.schedule.iter().map(window).collect()
}

/// The offset of the schedule's time zone from UTC in minutes; 0 without a schedule.
pub fn utc_offset_min(scaling: &Scaling, now: Timestamp) -> i32 {
    if scaling.schedule.is_empty() {
        return 0;
    }
    zone(&scaling.time_zone).map_or(0, |zone| offset_min(&zone, now))
}

/// The next instant at which a window begins or ends, or the clock of the time zone changes.
pub fn next_step(scaling: &Scaling, now: Timestamp) -> Option<Timestamp> {
    if scaling.schedule.is_empty() {
        return None;
    }
    let zone = zone(&scaling.time_zone).unwrap_or(TimeZone::UTC);
    let window = next_change(&windows(scaling), now, offset_min(&zone, now));
    let clock = zone.following(instant(now)).next();
    let clock = clock.map(|change| Timestamp::from_micros(change.timestamp().as_microsecond()));
    window.into_iter().chain(clock).min()
}

/// Adds the faults of a schedule.
pub fn check(scaling: &Scaling, errors: &mut Vec<FieldError>) {
    let mut refuse = |field: &str, detail: &str| {
        errors.push(FieldError::new(format!("/scaling/{field}"), detail));
    };
    if zone(&scaling.time_zone).is_none() {
        refuse("time_zone", "Enter a time zone by its IANA name, such as Europe/Oslo or UTC.");
    }
    if scaling.schedule.len() > MAX_WINDOWS {
        refuse("schedule", "A schedule has at most 100 windows.");
        return;
    }
    for (index, window) in scaling.schedule.iter().enumerate() {
        for (name, time) in [("begin", window.begin), ("end", window.end)] {
            if time.minute >= MINUTES_A_DAY {
                refuse(&format!("schedule/{index}/{name}/minute"), "Enter a minute of the day, 0 to 1439.");
            }
        }
        if window.begin == window.end {
            let detail =
                "A window begins and ends at different times. For the whole week raise min_replicas.";
            refuse(&format!("schedule/{index}/end"), detail);
        }
        if !(1..=scaling.max_replicas).contains(&window.floor) {
            refuse(&format!("schedule/{index}/floor"), "Enter 1 to max_replicas.");
        }
    }
}

#[cfg(test)]
mod tests {
    use berth_autoscaling::scaling::scheduled_floor;
    use berth_service_types::schedule::Weekday;

    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn window(begin: (Weekday, u16), end: (Weekday, u16), floor: u32) -> ScheduleWindow {
        let time = |(day, minute)| WeekTime { day, minute };
        ScheduleWindow { begin: time(begin), end: time(end), floor }
    }

    fn scaling(time_zone: &str, schedule: Vec<ScheduleWindow>) -> Scaling {
        Scaling { max_replicas: 9, schedule, time_zone: time_zone.to_owned(), ..Scaling::default() }
    }

    fn floor(scaling: &Scaling, now: Timestamp) -> u32 {
        scheduled_floor(&windows(scaling), now, utc_offset_min(scaling, now))
    }

    #[test]
    fn a_window_follows_the_local_time_over_both_changes_of_the_clock() {
        // Sunday 01:30 to 02:30 in Oslo. In spring 02:00 becomes 03:00, and in autumn 03:00 becomes 02:00.
        let sunday = window((Weekday::Sunday, 90), (Weekday::Sunday, 150), 3);
        let scaling = scaling("Europe/Oslo", vec![sunday]);
        for (text, expected) in [
            ("2026-03-22T00:29:59Z", 0),
            ("2026-03-22T00:30:00Z", 3),
            ("2026-03-22T01:30:00Z", 0),
            // The change of spring ends the window half an hour early.
            ("2026-03-29T00:30:00Z", 3),
            ("2026-03-29T00:59:59Z", 3),
            ("2026-03-29T01:00:00Z", 0),
            // In summer the same local time is an hour earlier in UTC.
            ("2026-04-04T23:29:59Z", 0),
            ("2026-04-04T23:30:00Z", 3),
            ("2026-04-05T00:30:00Z", 0),
            // In autumn the time from 02:00 to 02:30 comes twice.
            ("2026-10-24T23:30:00Z", 3),
            ("2026-10-25T00:29:59Z", 3),
            ("2026-10-25T00:30:00Z", 0),
            ("2026-10-25T01:00:00Z", 3),
            ("2026-10-25T01:30:00Z", 0),
        ] {
            assert_eq!(floor(&scaling, at(text)), expected, "{text}");
        }
    }

    #[test]
    fn a_step_is_at_each_change_of_the_floor_and_nowhere_missing() {
        // Each minute of two weeks around each change of the clock, against the floors of the minutes.
        let schedule = vec![
            window((Weekday::Sunday, 90), (Weekday::Sunday, 150), 3),
            window((Weekday::Friday, 1_200), (Weekday::Monday, 30), 2),
        ];
        for (zone, begin) in [
            ("Europe/Oslo", "2026-03-22T12:00:00Z"),
            ("Europe/Oslo", "2026-10-18T12:00:00Z"),
            ("America/St_Johns", "2026-03-01T12:00:00Z"),
            ("Asia/Kathmandu", "2026-03-01T12:00:00Z"),
            ("UTC", "2026-03-01T12:00:00Z"),
        ] {
            let scaling = scaling(zone, schedule.clone());
            let mut now = at(begin);
            let mut next = next_step(&scaling, now).unwrap();
            let mut held = floor(&scaling, now);
            for _ in 0..2 * 7 * 24 * 60 {
                assert!(next > now, "{zone} {now}");
                now = now.plus_seconds(60);
                let here = floor(&scaling, now);
                assert!(now >= next || here == held, "{zone} {now}: a change without a step");
                if now >= next {
                    assert_eq!(now, next, "{zone}: a step is at a whole minute");
                    next = next_step(&scaling, now).unwrap();
                }
                held = here;
            }
        }
        assert_eq!(next_step(&Scaling::default(), at("2026-03-01T12:00:00Z")), None);
    }

    #[test]
    fn each_fault_of_a_schedule_is_named() {
        let faults = |time_zone: &str, schedule: Vec<ScheduleWindow>| {
            let mut errors = Vec::new();
            check(&scaling(time_zone, schedule), &mut errors);
            errors.into_iter().map(|error| error.pointer).collect::<Vec<_>>()
        };
        let good = window((Weekday::Monday, 0), (Weekday::Sunday, 1_439), 9);
        assert_eq!(faults("Europe/Oslo", vec![good; MAX_WINDOWS]), Vec::<String>::new());
        assert_eq!(faults("UTC", vec![good; MAX_WINDOWS + 1]), ["/scaling/schedule"]);
        let long = "a".repeat(65);
        for zone in ["", "europe/oslo", "Oslo", "+01:00", "Etc/Unknown", &long] {
            assert_eq!(faults(zone, Vec::new()), ["/scaling/time_zone"], "{zone}");
        }
        let tuesday = (Weekday::Tuesday, 5);
        for (bad, pointer) in [
            (window((Weekday::Monday, 1_440), tuesday, 1), "begin/minute"),
            (window(tuesday, (Weekday::Monday, 1_440), 1), "end/minute"),
            (window(tuesday, tuesday, 1), "end"),
            (window((Weekday::Monday, 5), tuesday, 0), "floor"),
            (window((Weekday::Monday, 5), tuesday, 10), "floor"),
        ] {
            assert_eq!(faults("UTC", vec![good, bad]), [format!("/scaling/schedule/1/{pointer}")]);
        }
    }
}

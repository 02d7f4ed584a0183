use super::*;
use crate::ui::clock::window_text;

fn utc(_: i64) -> i64 {
    0
}

/// Berlin in 2026: summer time from 29 March to 25 October, each at 01:00 UTC.
fn berlin(at: i64) -> i64 {
    if (1_774_746_000..1_792_890_000).contains(&at) { 7_200 } else { 3_600 }
}

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn wall(text: &str) -> Wall {
    Wall::parse_field(text).unwrap()
}

#[test]
fn a_day_with_a_clock_change_has_other_half_hours() {
    let day = |text: &str| Frame::new(View::Day, wall(text).day(), &berlin);
    let plain = day("2026-11-22T12:00");
    assert_eq!((plain.columns(), plain.clock_change()), (48, None));
    assert_eq!((plain.from(), plain.until()), (time("2026-11-21T23:00:00Z"), time("2026-11-22T23:00:00Z")));
    assert_eq!(plain.title(), "Sunday 22 November 2026");
    let spring = day("2026-03-29T12:00");
    assert_eq!(spring.columns(), 46);
    assert_eq!(spring.clock_change().as_deref(), Some("Clock change: this day has 23 hours."));
    let marks: Vec<(usize, String)> = spring.marks().into_iter().map(|m| (m.start, m.text)).collect();
    assert_eq!(marks.first(), Some(&(0, "00:00".to_owned())));
    assert_eq!(marks.get(1), Some(&(4, "03:00".to_owned())), "an hour is missing");
    assert_eq!(day("2026-10-25T12:00").columns(), 50);
    // Consecutive days leave no gap.
    assert_eq!(spring.until(), day("2026-03-30T12:00").from());
}

#[test]
fn a_week_starts_on_monday_and_each_day_with_a_column() {
    let week = Frame::new(View::Week, wall("2026-03-25T00:00").day(), &berlin);
    assert_eq!(week.columns(), 56);
    assert_eq!(week.title(), "23 to 29 March 2026");
    assert_eq!(week.clock_change().as_deref(), Some("* Clock change on Sun 29 Mar: this day has 23 hours."));
    let last = week.marks().pop().unwrap();
    assert_eq!((last.start, last.size, last.text.as_str()), (48, 8, "Sun 29*"));
    assert_eq!(week.column(48).unwrap().0, time("2026-03-28T23:00:00Z"));
    // Two hours instead of three.
    assert_eq!(week.column(48).unwrap().1, time("2026-03-29T01:00:00Z"));
    assert_eq!(week.column(56), None);
    let over_the_year = Frame::new(View::Week, wall("2027-01-01T00:00").day(), &utc);
    assert_eq!(over_the_year.title(), "28 December 2026 to 3 January 2027");
    assert_eq!(View::Week.first(wall("2026-11-22T00:00").day()), wall("2026-11-16T00:00").day());
    assert_eq!(View::Week.first(wall("2026-11-16T00:00").day()), wall("2026-11-16T00:00").day());
}

#[test]
fn windows_have_columns() {
    let frame = Frame::new(View::Day, wall("2026-11-22T00:00").day(), &utc);
    let touched = |from: &str, until: &str| frame.touched(time(from), time(until));
    assert_eq!(touched("2026-11-22T09:00:00Z", "2026-11-22T11:00:00Z"), Some((18, 4)));
    assert_eq!(touched("2026-11-22T09:10:00Z", "2026-11-22T09:20:00Z"), Some((18, 1)));
    assert_eq!(touched("2026-11-22T09:10:00Z", "2026-11-22T09:31:00Z"), Some((18, 2)));
    assert_eq!(touched("2026-11-20T00:00:00Z", "2026-11-25T00:00:00Z"), Some((0, 48)));
    assert_eq!(touched("2026-11-22T23:59:00Z", "2026-11-25T00:00:00Z"), Some((47, 1)));
    assert_eq!(touched("2026-11-20T00:00:00Z", "2026-11-22T00:00:00Z"), None);
    assert_eq!(touched("2026-11-23T00:00:00Z", "2026-11-24T00:00:00Z"), None);
    assert_eq!(touched("2026-11-22T11:00:00Z", "2026-11-22T11:00:00Z"), None);
    assert_eq!(frame.passed(time("2026-11-22T00:29:00Z")), 0);
    assert_eq!(frame.passed(time("2026-11-22T00:30:00Z")), 1);
    assert_eq!(frame.column_at(time("2026-11-22T00:30:00Z")), Some(1));
    assert_eq!(frame.column_at(time("2026-11-23T00:00:00Z")), None);
    assert_eq!(frame.moment(18), "Sun 22 Nov 09:00");
}

#[test]
fn leap_days_are_valid() {
    let days: Vec<String> = ["2028-02-28T09:00", "2028-02-29T09:00", "2028-03-01T09:00"]
        .into_iter()
        .map(|text| Frame::new(View::Day, wall(text).day(), &utc).title())
        .collect();
    assert_eq!(days, ["Monday 28 February 2028", "Tuesday 29 February 2028", "Wednesday 1 March 2028"]);
    for (last, next) in [
        ("2028-02-29T00:00", "2028-03-01T00:00"),
        ("2027-02-28T00:00", "2027-03-01T00:00"),
        ("2100-02-28T00:00", "2100-03-01T00:00"),
        ("2000-02-29T00:00", "2000-03-01T00:00"),
    ] {
        assert_eq!(wall(last).day() + 1, wall(next).day(), "{last}");
    }
    for invalid in ["2027-02-29T09:00", "2100-02-29T09:00", "2028-02-30T09:00"] {
        assert_eq!(Wall::parse_field(invalid), None, "{invalid}");
    }
    let week = Frame::new(View::Week, wall("2028-03-02T00:00").day(), &utc);
    assert_eq!((week.title().as_str(), week.columns()), ("28 February to 5 March 2028", 56));
    assert_eq!(week.clock_change(), None);
    let marks: Vec<String> = week.marks().into_iter().take(3).map(|m| m.text).collect();
    assert_eq!(marks, ["Mon 28", "Tue 29", "Wed 1"]);
    // A window over the whole leap day.
    let over = window_text(wall("2028-02-28T18:00"), wall("2028-03-01T06:00"));
    assert_eq!(over, "Mon 28 Feb 18:00 to Wed 1 Mar 06:00");
    let leap = Frame::new(View::Day, wall("2028-02-29T00:00").day(), &utc);
    let touched = leap.touched(time("2028-02-28T18:00:00Z"), time("2028-03-01T06:00:00Z"));
    assert_eq!((leap.columns(), touched), (48, Some((0, 48))));
    assert_eq!(leap.until(), time("2028-03-01T00:00:00Z"));
}

#[test]
fn windows_over_a_clock_change_have_their_real_length() {
    let length = |from: &str, until: &str| {
        wall(until).instant(&berlin).millis_since(wall(from).instant(&berlin)) / 3_600_000
    };
    assert_eq!(length("2026-03-28T12:00", "2026-03-29T12:00"), 23);
    assert_eq!(length("2026-10-24T12:00", "2026-10-25T12:00"), 25);
    assert_eq!(length("2026-03-29T01:00", "2026-03-29T03:00"), 1, "an hour is skipped");
    assert_eq!(length("2026-10-25T01:00", "2026-10-25T04:00"), 4, "an hour is repeated");
    let day = |text: &str| Frame::new(View::Day, wall(text).day(), &berlin);
    // 01:00 to 04:00 in wall time: four half hours in spring, eight in autumn.
    let touched = |date: &str| {
        let at = |clock: &str| wall(&format!("{date}T{clock}")).instant(&berlin);
        day(&format!("{date}T00:00")).touched(at("01:00"), at("04:00"))
    };
    assert_eq!(touched("2026-03-29"), Some((2, 4)));
    assert_eq!(touched("2026-11-22"), Some((2, 6)));
    assert_eq!(touched("2026-10-25"), Some((2, 8)));
}

#[test]
fn a_day_of_25_hours_repeats_an_hour() {
    let autumn = Frame::new(View::Day, wall("2026-10-25T12:00").day(), &berlin);
    assert_eq!(autumn.clock_change().as_deref(), Some("Clock change: this day has 25 hours."));
    assert_eq!((autumn.from(), autumn.until()), (time("2026-10-24T22:00:00Z"), time("2026-10-25T23:00:00Z")));
    let twice: Vec<usize> = (0..autumn.columns()).filter(|c| autumn.moment(*c).ends_with(" 02:30")).collect();
    assert_eq!(twice, [5, 7]);
    let column = |utc: &str| autumn.column_at(time(utc));
    assert_eq!((column("2026-10-25T00:30:00Z"), column("2026-10-25T01:30:00Z")), (Some(5), Some(7)));
    // Each column has half an hour.
    for column in 0..autumn.columns() {
        let (from, until) = autumn.column(column).unwrap();
        assert_eq!(until.millis_since(from), 1_800_000, "{column}");
    }
    let marks: Vec<(usize, String)> = autumn.marks().into_iter().map(|m| (m.start, m.text)).collect();
    assert_eq!(marks.get(1), Some(&(8, "03:00".to_owned())), "an hour is repeated");
    let week = Frame::new(View::Week, wall("2026-10-25T00:00").day(), &berlin);
    assert_eq!(week.columns(), 56);
    assert_eq!(week.clock_change().as_deref(), Some("* Clock change on Sun 25 Oct: this day has 25 hours."));
    let (from, until) = week.column(48).unwrap();
    assert_eq!(until.millis_since(from), 4 * 3_600_000, "midnight to three o'clock");
}

use super::*;

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
fn fields_survive_parsing() {
    for text in ["2026-11-22T09:00", "2024-02-29T23:59", "1970-01-01T00:00", "2000-03-01T12:30"] {
        assert_eq!(wall(text).field(), text);
        assert_eq!(wall(text).instant(&utc), time(&format!("{text}:00Z")), "{text}");
    }
    assert_eq!(wall("2026-11-22T09:00:30.5").field(), "2026-11-22T09:00");
    let invalid =
        ["", "2026-11-22", "2026-02-29T09:00", "2026-13-01T09:00", "2026-11-22T24:00", "26-11-22T09:60"];
    for text in invalid {
        assert_eq!(Wall::parse_field(text), None, "{text}");
    }
    assert_eq!(civil(-1), (1969, 12, 31));
}

#[test]
fn times_have_texts() {
    let at = Wall::at(time("2026-11-22T08:05:59Z"), &berlin);
    assert_eq!(at.stamp(), "2026-11-22 09:05");
    assert_eq!(at.clock_s(), "09:05:59");
    assert_eq!(at.moment(), "Sun 22 Nov 09:05");
    assert_eq!(at.long_date(), "Sunday 22 November 2026");
    let until = |text: &str| window_text(at, wall(text));
    assert_eq!(until("2026-11-22T11:00"), "Sun 22 Nov 09:05 to 11:00");
    assert_eq!(until("2026-11-23T11:00"), "Sun 22 Nov 09:05 to Mon 23 Nov 11:00");
}

#[test]
fn clock_changes_are_respected() {
    let instant = |text: &str| wall(text).instant(&berlin).to_string();
    assert_eq!(instant("2026-03-29T01:59"), "2026-03-29T00:59:00Z");
    // A skipped time moves by the length of the gap.
    assert_eq!(instant("2026-03-29T02:30"), "2026-03-29T01:30:00Z");
    assert_eq!(instant("2026-03-29T03:00"), "2026-03-29T01:00:00Z");
    // A repeated time has its first instant.
    assert_eq!(instant("2026-10-25T02:30"), "2026-10-25T00:30:00Z");
    assert_eq!(instant("2026-10-25T03:00"), "2026-10-25T02:00:00Z");
    let all = |text: &str| {
        let instants = wall(text).instants(&berlin);
        instants.into_iter().map(|at| at.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(all("2026-11-22T09:00"), ["2026-11-22T08:00:00Z"]);
    assert!(all("2026-03-29T02:30").is_empty(), "a skipped time");
    assert_eq!(all("2026-10-25T02:30"), ["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"], "a repeated time");
}

use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// Berlin in 2026: summer time from 29 March to 25 October, each at 01:00 UTC.
const BERLIN: &str = "3600.1774746000.7200.1792890000.3600";

fn berlin() -> Zone {
    Zone::parse(BERLIN).unwrap()
}

fn seconds(text: &str) -> i64 {
    at(text).millis() / 1_000
}

#[test]
fn offsets_have_texts() {
    assert_eq!(offset_text(0), "UTC");
    assert_eq!(offset_text(3_600), "UTC+1");
    assert_eq!(offset_text(-12_600), "UTC−3:30");
    assert_eq!(offset_text(20_700), "UTC+5:45");
}

#[test]
fn times_have_the_offset_of_their_own_season() {
    let zone = berlin();
    assert_eq!(zone.minute(at("2026-11-22T08:05:59Z")), "2026-11-22 09:05 UTC+1");
    assert_eq!(zone.minute(at("2026-07-22T23:05:00Z")), "2026-07-23 01:05 UTC+2");
    assert_eq!(zone.clock_s(at("2026-11-22T08:05:59Z")), "09:05:59 UTC+1");
    // Both instants of a repeated time differ by their offset.
    assert_eq!(zone.minute(at("2026-10-25T00:30:00Z")), "2026-10-25 02:30 UTC+2");
    assert_eq!(zone.minute(at("2026-10-25T01:30:00Z")), "2026-10-25 02:30 UTC+1");
    let island = Zone::parse("-12600").unwrap();
    assert_eq!(island.minute(at("2026-11-22T02:05:00Z")), "2026-11-21 22:35 UTC−3:30");
    assert_eq!(Zone::Utc.minute(at("2026-11-22T08:05:59Z")), "2026-11-22 08:05 UTC");
}

#[test]
fn an_instant_in_utc_has_the_text_of_its_type() {
    for text in ["1970-01-01T00:00:00Z", "2028-02-29T23:59:59.9Z", "1969-12-31T23:59:00Z"] {
        assert_eq!(Zone::Utc.minute(at(text)), at(text).minute());
    }
}

#[test]
fn the_times_of_a_sentence_have_the_zone() {
    let cases = [
        ("", ""),
        ("No time.", "No time."),
        ("2026-11-22 08:05 UTC", "2026-11-22 09:05 UTC+1"),
        ("It ends at 2026-07-22 23:05 UTC.", "It ends at 2026-07-23 01:05 UTC+2."),
        (
            "From 2026-11-22 08:05 UTC to 2026-11-22 09:05 UTC, é.",
            "From 2026-11-22 09:05 UTC+1 to 2026-11-22 10:05 UTC+1, é.",
        ),
        // Times with another offset, impossible times and the bare word stay.
        ("At 2026-11-22 08:05 UTC+1.", "At 2026-11-22 08:05 UTC+1."),
        ("At 2026-13-22 08:05 UTC.", "At 2026-13-22 08:05 UTC."),
        ("$5 of $10 spent in 2026-11 (UTC).", "$5 of $10 spent in 2026-11 (UTC)."),
        ("The clock is UTC UTC", "The clock is UTC UTC"),
        ("éééééééé8:05 UTC", "éééééééé8:05 UTC"),
    ];
    for (text, expected) in cases {
        assert_eq!(zoned(text, berlin()), expected, "{text}");
        assert_eq!(zoned(text, Zone::Utc), text);
    }
}

#[test]
fn fields_survive_parsing() {
    let time = Zone::Utc.instant("2026-11-22T09:00").unwrap();
    assert_eq!(time.to_string(), "2026-11-22T09:00:00Z");
    assert_eq!(Zone::Utc.field(time), "2026-11-22T09:00");
    assert_eq!(Zone::Utc.instant("soon"), Err(WallError::Unreadable));
    assert_eq!(Zone::Utc.window(time, time.plus_seconds(3_600)), "Sun 22 Nov 09:00 to 10:00");
    assert_eq!(berlin().instant("2026-11-22T09:00"), Ok(at("2026-11-22T08:00:00Z")));
    assert_eq!(berlin().field(at("2026-11-22T08:00:00Z")), "2026-11-22T09:00");
}

#[test]
fn a_skipped_time_is_refused_and_a_repeated_one_has_a_remark() {
    let zone = berlin();
    assert_eq!(zone.instant("2026-03-29T02:30"), Err(WallError::Skipped));
    assert_eq!(zone.instant("2026-03-29T03:00"), Ok(at("2026-03-29T01:00:00Z")));
    assert_eq!(zone.instant("2026-10-25T02:30"), Ok(at("2026-10-25T00:30:00Z")));
    assert!(zone.remark("2026-10-25T02:30").unwrap().contains("UTC+2"));
    assert_eq!((zone.remark("2026-10-25T03:00"), zone.remark("soon")), (None, None));
}

#[test]
fn offsets_of_a_cookie_survive_their_text() {
    for text in ["0", "-12600", BERLIN] {
        assert_eq!(Offsets::parse(text).map(Offsets::text).as_deref(), Some(text));
    }
    assert_eq!(Zone::parse("utc"), Some(Zone::Utc));
    assert_eq!((Zone::Utc.text().as_str(), berlin().text().as_str()), ("utc", BERLIN));
    let long = format!("0{}", ".1.0".repeat(40));
    let invalid = [
        "",
        "local",
        "\"><script>",
        "64801",
        "-64801",
        "0.5",
        "0.5.0.5.0",
        "0.5.0.4.0",
        "0.253402300800.0",
        "0.1.0.2.0.3.0.4.0.5.0.6.0.7.0",
        long.as_str(),
    ];
    for text in invalid {
        assert_eq!(Zone::parse(text), None, "{text}");
    }
    assert_eq!(Zone::Known(Offsets::default()).minute(at("2026-11-22T08:05:00Z")), "2026-11-22 08:05 UTC");
}

#[test]
fn offsets_around_the_present_have_each_change() {
    let exact =
        |utc: i64| -> i64 { if (1_774_746_000..1_792_890_000).contains(&utc) { 7_200 } else { 3_600 } };
    let offsets = Offsets::around(seconds("2026-06-01T00:00:00Z"), &exact);
    assert_eq!(offsets.text(), BERLIN);
    for text in
        ["2026-03-29T00:59:59Z", "2026-03-29T01:00:00Z", "2026-10-25T00:59:59Z", "2026-10-25T01:00:00Z"]
    {
        assert_eq!(offsets.at(seconds(text)), exact(seconds(text)), "{text}");
    }
    // A zone with too many changes keeps the first ones.
    let restless = |utc: i64| utc.div_euclid(30 * 86_400).rem_euclid(2) * 3_600;
    let some = Offsets::around(seconds("2026-06-01T00:00:00Z"), &restless);
    assert_eq!(Offsets::parse(&some.text()), Some(some));
}

#[test]
fn a_zone_has_a_name() {
    assert_eq!(Zone::Utc.title(0), "UTC");
    assert_eq!(berlin().title(0), "local time");
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(512))]

    #[test]
    fn a_cookie_is_a_zone_with_the_same_text_or_nothing(
        text in proptest::prop_oneof![
            "-?[0-9]{1,5}([.][0-9]{1,10}[.]-?[0-9]{1,5}){0,7}",
            "[utc0-9.+-]{0,170}",
            "(?s).{0,40}",
        ],
    ) {
        if let Some(zone) = Zone::parse(&text) {
            let written = zone.text();
            proptest::prop_assert!(written.len() <= text.len(), "{}", written);
            proptest::prop_assert_eq!(Zone::parse(&written), Some(zone));
            zone.minute(at("2026-11-22T08:05:59Z"));
        }
    }
}

use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn quote() -> Quote {
    serde_json::from_value(serde_json::json!({
        "id": "quote_00000000000000000000000001", "offering": "h100-80gb", "nodes": 1, "gpus_per_node": 2,
        "topology": "any", "total_micros": 11_960_000, "nano_per_second": 1_661_111, "per_hour_micros": 5_980_000,
        "windows": [{"starts_at": "2026-11-24T09:00:00Z", "ends_at": "2026-11-24T11:00:00Z"}],
        "currency": "USD", "price_version": 3, "available_micros": 250_000_000, "affordable": true,
        "expires_at": "2026-11-22T09:15:00Z", "feasible": true, "conflicts": [], "alternatives": [],
        "policy": ReservationPolicy::default(), "needs_approval": false,
    }))
    .unwrap()
}

fn reservation(state: ReservationState) -> Reservation {
    serde_json::from_value(serde_json::json!({
        "id": "res_00000000000000000000000001", "org": "org_00000000000000000000000001", "kind": "reservation",
        "name": "night", "state": state, "nodes": 2, "gpus_per_node": 1, "topology": "any",
        "starts_at": "2026-11-22T09:00:00Z", "ends_at": "2026-11-22T11:00:00Z", "degraded_milli": 0,
        "devices": [], "nano_per_second": 1, "price_version": 1, "currency": "USD", "total_micros": 12_000_000,
        "held_micros": 10_000_000, "posted_micros": 2_000_000, "credited_micros": 0,
        "elapsed_device_ms": 7_200_000, "used_device_ms": 5_400_000, "cancel_fee_micros": 4_000_000,
        "created_at": "2026-11-20T09:00:00Z", "created_by": "Ada", "generation": 1,
        "policy": ReservationPolicy::default(),
    }))
    .unwrap()
}

#[test]
fn terms_say_until_when_and_how_much() {
    let policy = ReservationPolicy::default();
    let starts = at("2026-11-24T09:00:00Z");
    let first = |policy: &ReservationPolicy, now: &str| cancelling(policy, starts, at(now), Zone::Utc);
    assert_eq!(
        first(&policy, "2026-11-22T09:00:00Z"),
        "Cancel it free of charge until Mon 23 Nov 09:00. Cancelled later, it costs 50 % of its price."
    );
    assert_eq!(
        first(&policy, "2026-11-23T10:00:00Z"),
        "It begins in less than 1 d, so cancelling it costs 50 % of its price."
    );
    let kind = ReservationPolicy { late_cancel_percent: 0, early_release_percent: 0, ..policy };
    assert_eq!(first(&kind, "2026-11-23T10:00:00Z"), "Cancelled before it begins, it costs nothing.");
    let strict = ReservationPolicy { no_show_after_s: Some(1_800), early_release_percent: 100, ..policy };
    let all = terms(&strict, starts, at("2026-11-22T09:00:00Z"), Zone::Utc);
    assert_eq!(all.len(), 3);
    assert!(all.iter().any(|t| t.contains("in full")) && all.iter().any(|t| t.contains("within 30 min")));
}

#[test]
fn a_quote_says_what_is_true_of_it() {
    let quote = quote();
    assert_eq!(remarks(&quote, Zone::Utc).len(), 1);
    assert_eq!((no_room(&quote), shortage(&quote)), (None, None));
    assert_eq!(windows_text(&quote.windows), "2 h");
    let later = Window { starts_at: at("2026-11-25T09:00:00Z"), ends_at: at("2026-11-25T11:00:00Z") };
    let windows = quote.windows.iter().copied().chain([later]).collect();
    let several = Quote { windows, needs_approval: true, affordable: false, available_micros: 0, ..quote };
    assert_eq!(windows_text(&several.windows), "2 × 2 h");
    let all = remarks(&several, Zone::Utc);
    assert_eq!(all.len(), 3);
    assert!(all.iter().any(|text| text.contains("the last begins Wed 25 Nov 09:00")), "{all:?}");
    assert!(shortage(&several).unwrap().contains("$11.96"));
    let taken = Quote { feasible: false, alternatives: vec![later], ..several.clone() };
    assert!(no_room(&taken).unwrap().ends_with("same length:"));
    let refused = Quote { feasible: false, refusals: vec!["At most 2 boards".to_owned()], ..several };
    assert_eq!(no_room(&refused).as_deref(), Some("At most 2 boards."));
    let both = Quote { refusals: refused.refusals, ..taken };
    assert!(no_room(&both).unwrap().starts_with("At most 2 boards. The nearest"));
}

#[test]
fn conflicts_name_only_what_is_known() {
    let conflict = |kind: SpanKind, name: &str, own: bool, until: Option<&str>| Conflict {
        kind,
        starts_at: at("2026-11-24T09:00:00Z"),
        ends_at: until.map(at),
        reservation: own.then(|| "res_00000000000000000000000001".parse().unwrap()),
        name: name.to_owned(),
    };
    let until = Some("2026-11-24T11:00:00Z");
    let text = |conflict: Conflict| conflict_text(&conflict, Zone::Utc);
    assert_eq!(
        text(conflict(SpanKind::Reservation, "night", true, until)),
        "Your own reservation night: Tue 24 Nov 09:00 to 11:00."
    );
    assert_eq!(
        text(conflict(SpanKind::Reservation, "", false, until)),
        "A reservation of another organization: Tue 24 Nov 09:00 to 11:00."
    );
    assert_eq!(text(conflict(SpanKind::Job, "", false, None)), "Jobs that run, and nobody knows until when.");
}

#[test]
fn taking_it_back_says_what_it_costs() {
    let late = consequence(&reservation(ReservationState::Scheduled));
    assert!(late.contains("$4.00 now, 50 %") && late.contains("$6.00 comes back"), "{late}");
    let active = consequence(&reservation(ReservationState::Active));
    assert!(active.contains("another $4.00") && active.contains("$6.00 comes back"), "{active}");
    let free = Reservation { cancel_fee_micros: 0, ..reservation(ReservationState::Scheduled) };
    assert!(consequence(&free).starts_with("It costs nothing now. The $10.00"));
}

#[test]
fn a_running_one_tells_the_time() {
    let active = reservation(ReservationState::Active);
    // An hour of each of two devices has passed.
    assert_eq!(seen_at(&active), Some(at("2026-11-22T10:00:00Z")));
    assert_eq!(used_text(&active), "75 % used");
    assert_eq!(seen_at(&reservation(ReservationState::Ended)), None);
    assert_eq!(seen_at(&Reservation { nodes: 0, ..active }), None);
}

#[test]
fn every_part_has_a_cell() {
    assert_eq!(shares(&[1, 1], 20), [10, 10]);
    assert_eq!(shares(&[1, 999], 20), [1, 19]);
    assert_eq!(shares(&[0, 5, 0], 20), [0, 20, 0]);
    assert_eq!(shares(&[1, 1, 1], 20), [6, 6, 8]);
    assert_eq!(shares(&[0, -3], 20), [0, 0]);
    assert_eq!(shares(&[i64::MAX, i64::MAX, 1], 20).iter().sum::<u32>(), 20);
}

#[test]
fn parts_lie_beside_each_other() {
    let tiles = part_tiles(
        &[("paid", 5, 1, "plain"), ("set aside", 0, 1, "stripes"), ("lent", 5, 2, "dots")],
        10,
        48,
    );
    let places: Vec<_> = tiles.iter().map(|tile| (tile.label.as_str(), tile.start, tile.size)).collect();
    assert_eq!(places, [("paid", 0, 12), ("lent", 12, 12)]);
    assert!(part_tiles(&[("used", 0, 3, "plain")], 0, 48).is_empty());
}

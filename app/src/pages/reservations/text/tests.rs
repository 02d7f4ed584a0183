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
fn terms_have_times_and_fees() {
    let policy = ReservationPolicy::default();
    let starts = at("2026-11-24T09:00:00Z");
    let first = |policy: &ReservationPolicy, now: &str| cancellation_text(policy, starts, at(now), Zone::Utc);
    assert_eq!(
        first(&policy, "2026-11-22T09:00:00Z"),
        "Free cancellation until Mon 23 Nov 09:00. A later cancellation costs 50 % of the price."
    );
    assert_eq!(
        first(&policy, "2026-11-23T10:00:00Z"),
        "Less than 1 d before the start, a cancellation costs 50 % of the price."
    );
    let lenient = ReservationPolicy { late_cancel_percent: 0, early_release_percent: 0, ..policy };
    assert_eq!(first(&lenient, "2026-11-23T10:00:00Z"), "Free cancellation before the start.");
    let strict = ReservationPolicy { no_show_after_s: Some(1_800), early_release_percent: 100, ..policy };
    let all = terms_text(&strict, starts, at("2026-11-22T09:00:00Z"), Zone::Utc);
    assert_eq!(all.len(), 3);
    assert!(all.iter().any(|t| t.contains("in full")) && all.iter().any(|t| t.contains("within 30 min")));
}

#[test]
fn a_quote_has_remarks() {
    let quote = quote();
    assert_eq!(remarks(&quote, Zone::Utc).len(), 1);
    assert_eq!((unavailable_text(&quote), shortage_text(&quote)), (None, None));
    assert_eq!(windows_text(&quote.windows), "2 h");
    let later = Window { starts_at: at("2026-11-25T09:00:00Z"), ends_at: at("2026-11-25T11:00:00Z") };
    let windows = quote.windows.iter().copied().chain([later]).collect();
    let several = Quote { windows, needs_approval: true, affordable: false, available_micros: 0, ..quote };
    assert_eq!(windows_text(&several.windows), "2 × 2 h");
    let all = remarks(&several, Zone::Utc);
    assert_eq!(all.len(), 3);
    assert!(all.iter().any(|text| text.contains("the last one starts Wed 25 Nov 09:00")), "{all:?}");
    assert!(shortage_text(&several).unwrap().contains("$11.96"));
    let taken = Quote { feasible: false, alternatives: vec![later], ..several.clone() };
    assert!(unavailable_text(&taken).unwrap().ends_with("same duration:"));
    let refused = Quote { feasible: false, refusals: vec!["At most 2 boards".to_owned()], ..several };
    assert_eq!(unavailable_text(&refused).as_deref(), Some("At most 2 boards."));
    let both = Quote { refusals: refused.refusals, ..taken };
    assert!(unavailable_text(&both).unwrap().starts_with("At most 2 boards. Nearest"));
}

#[test]
fn conflicts_have_only_known_facts() {
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
        "Your reservation night: Tue 24 Nov 09:00 to 11:00."
    );
    assert_eq!(
        text(conflict(SpanKind::Reservation, "", false, until)),
        "Reservation of another organization: Tue 24 Nov 09:00 to 11:00."
    );
    assert_eq!(text(conflict(SpanKind::Job, "", false, None)), "Running jobs, end unknown.");
}

#[test]
fn an_early_end_has_its_cost() {
    let late = consequence(&reservation(ReservationState::Scheduled));
    assert!(late.contains("$4.00 now, 50 %") && late.contains("$6.00 is released"), "{late}");
    let active = consequence(&reservation(ReservationState::Active));
    assert!(active.contains("Another $4.00") && active.contains("$6.00 is released"), "{active}");
    let free = Reservation { cancel_fee_micros: 0, ..reservation(ReservationState::Scheduled) };
    assert!(consequence(&free).starts_with("The cancellation is free now. The reserved $10.00"));
}

#[test]
fn an_active_reservation_has_the_portal_time() {
    let active = reservation(ReservationState::Active);
    // One hour of each of two devices has elapsed.
    assert_eq!(portal_time(&active), Some(at("2026-11-22T10:00:00Z")));
    assert_eq!(used_text(&active), "75 % of elapsed time used");
    assert_eq!(portal_time(&reservation(ReservationState::Ended)), None);
    assert_eq!(portal_time(&Reservation { nodes: 0, ..active }), None);
}

#[test]
fn each_positive_amount_has_a_cell() {
    assert_eq!(cell_counts(&[1, 1], 20), [10, 10]);
    assert_eq!(cell_counts(&[1, 999], 20), [1, 19]);
    assert_eq!(cell_counts(&[0, 5, 0], 20), [0, 20, 0]);
    assert_eq!(cell_counts(&[1, 1, 1], 20), [6, 6, 8]);
    assert_eq!(cell_counts(&[0, -3], 20), [0, 0]);
    assert_eq!(cell_counts(&[i64::MAX, i64::MAX, 1], 20).iter().sum::<u32>(), 20);
}

#[test]
fn tiles_do_not_overlap() {
    let tiles = part_tiles(
        &[("charged", 5, 1, "plain"), ("reserved", 0, 1, "stripes"), ("idle", 5, 2, "dots")],
        10,
        48,
    );
    let places: Vec<_> = tiles.iter().map(|tile| (tile.label.as_str(), tile.start, tile.size)).collect();
    assert_eq!(places, [("charged", 0, 12), ("idle", 12, 12)]);
    assert!(part_tiles(&[("used", 0, 3, "plain")], 0, 48).is_empty());
}

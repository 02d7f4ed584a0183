//! Tests of reservations: windows, moved bookings and jobs inside.

use berth_engine::{
    Blocker, Claim, ClaimBill, ClaimRank, Decision, Engine, Fact, JobFacts, Refusal, ReservationBlocker,
    Window,
};
use berth_placement::calendar::{Booking, BookingKind, NodeSlots};
use berth_placement::cluster::{BookingId, GpuFacts, Models, NodeFacts, Owner, Part, Slot};
use berth_placement::request::{DeviceRequest, Nearness, Request};
use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::jobs::Priority;
use berth_types::time::Timestamp;
use uuid::Uuid;

mod small;

use small::*;

fn window(from: i64, until: i64) -> Window {
    Window { from: at(from), until: at(until) }
}

fn book(e: &mut Engine, n: u128, request: &Request, when: Window, now: i64) -> Result<(), Refusal> {
    let (ask, places, moved) = e.quote(request, org(n), when, at(now))?;
    let id = BookingId(Uuid::from_u128(n));
    let Window { from, until } = when;
    e.book(
        Booking { id, kind: BookingKind::Reservation, org: org(n), ask: Some(ask), from, until, places },
        moved,
    );
    Ok(())
}

#[test]
fn reservations_keep_their_time_and_refusals_name_alternatives() {
    let mut e = engine(2, 2);
    book(&mut e, 1, &boards(2, 1), window(1_000, 2_000), 0).unwrap();
    book(&mut e, 2, &boards(2, 1), window(1_500, 3_000), 0).unwrap();
    let refused = book(&mut e, 3, &boards(2, 1), window(1_800, 2_800), 0).unwrap_err();
    let Refusal::Taken { conflicts, alternatives, .. } = refused else { panic!("{refused}") };
    assert_eq!(conflicts.len(), 2);
    assert_eq!(
        alternatives,
        [window(2_000, 3_000), window(3_000, 4_000), window(500, 1_500), window(0, 1_000)]
    );
    for when in alternatives {
        e.quote(&boards(2, 1), org(3), when, at(0)).unwrap();
    }
    // Jobs run before a window only if they end before it.
    submit(&mut e, JobFacts { max_duration_s: 1_001, ..waits(10, boards(2, 1)) });
    submit(&mut e, JobFacts { max_duration_s: 1_400, ..waits(11, boards(2, 1)) });
    assert_eq!(starts(&e.pass(at(0))).len(), 1, "one node is free until 1,500");
    submit(&mut e, JobFacts { max_duration_s: 1_000, ..waits(12, boards(2, 1)) });
    assert_eq!(starts(&e.pass(at(0))), [job_id(12)]);
    let why = e.why(job_id(11), at(0)).unwrap();
    assert!(why.earliest >= Some(at(2_000)), "{why:?}");
    for invalid in [
        window(-5, 100),
        window(100, 100),
        window(100, 50),
        window(0, 400 * 86_400),
        window(1 << 40, (1 << 40) + 1),
    ] {
        assert_eq!(e.quote(&boards(1, 1), org(1), invalid, at(0)).unwrap_err(), Refusal::Window);
    }
    assert_eq!(e.quote(&boards(3, 1), org(1), window(5_000, 6_000), at(0)).unwrap_err(), Refusal::Never);
}

#[test]
fn later_bookings_move_if_that_frees_places() {
    let mut e = engine(2, 2);
    // One booked board on each node: two boards on one node are free only after a move.
    for (n, node) in [(1, 1), (2, 2)] {
        let (ask, ..) = e.quote(&boards(1, 1), org(n), window(1_000, 2_000), at(0)).unwrap();
        let places = vec![NodeSlots {
            node: e.cluster().find_node(node_id(node)).unwrap(),
            slots: vec![Slot { gpu: format!("GPU-{node}-0").into(), part: Part::Whole }],
        }];
        let id = BookingId(Uuid::from_u128(n));
        let booking = Booking {
            id,
            kind: BookingKind::Reservation,
            org: org(n),
            ask: Some(ask),
            from: at(1_000),
            until: at(2_000),
            places,
        };
        e.book(booking, Vec::new());
    }
    let (_, places, moved) = e.quote(&boards(2, 1), org(3), window(1_200, 1_300), at(0)).unwrap();
    assert_eq!((places.len(), moved.len()), (1, 1));
    // Bookings that have begun stay.
    assert!(matches!(
        e.quote(&boards(2, 1), org(3), window(1_200, 1_300), at(1_000)),
        Err(Refusal::Taken { .. })
    ));
}

#[test]
fn a_reservation_is_for_its_own_jobs() {
    let mut e = engine(1, 2);
    book(&mut e, 1, &boards(2, 1), window(100, 5_000), 0).unwrap();
    let inside = |n, o| JobFacts {
        inside: Some(BookingId(Uuid::from_u128(1))),
        org: org(o),
        max_duration_s: 1_000,
        ..waits(n, boards(1, 1))
    };
    submit(&mut e, inside(1, 1));
    submit(&mut e, inside(2, 2));
    assert_eq!(e.pass(at(50)), [], "it has not begun");
    assert_eq!(starts(&e.pass(at(100))), [job_id(1)]);
    submit(&mut e, inside(3, 1));
    submit(&mut e, inside(4, 1));
    assert_eq!(starts(&e.pass(at(200))), [job_id(3)], "two boards, two jobs");
    assert_eq!(
        e.why(job_id(2), at(200)).unwrap().blockers,
        [Blocker::Booking(BookingId(Uuid::from_u128(1)), ReservationBlocker::Foreign)]
    );
    free(&mut e, 1, at(300));
    assert_eq!(starts(&e.pass(at(4_500))), [], "it would outlast its reservation");
}

#[test]
fn a_later_attempt_uses_the_rest_of_its_reservation() {
    for (attempt, now, starts_now) in
        [(0, 1_000, true), (0, 1_001, false), (1, 1_001, true), (1, 1_940, true), (1, 1_941, false)]
    {
        let mut e = engine(1, 1);
        book(&mut e, 1, &boards(1, 1), window(0, 2_000), 0).unwrap();
        let inside = Some(BookingId(Uuid::from_u128(1)));
        submit(&mut e, JobFacts { inside, attempt, max_duration_s: 1_000, ..waits(1, boards(1, 1)) });
        let case = format!("attempt {attempt} at {now}");
        assert_eq!(starts(&e.pass(at(now))).len(), usize::from(starts_now), "{case}");
        if !starts_now {
            let why = e.why(job_id(1), at(now)).unwrap();
            assert!(
                matches!(why.blockers[0], Blocker::Booking(_, ReservationBlocker::TooShort { .. })),
                "{case}: {why:?}"
            );
        }
        // The end of the reservation stops the run, so the board is free from then on.
        let next = window(2_000, 3_000);
        assert!(e.quote(&boards(1, 1), org(2), next, at(now)).is_ok(), "{case}");
    }
}

#[test]
fn a_later_attempt_waits_for_a_place_in_the_rest_of_its_reservation() {
    let mut e = engine(1, 1);
    book(&mut e, 1, &boards(1, 1), window(0, 2_000), 0).unwrap();
    let inside = Some(BookingId(Uuid::from_u128(1)));
    submit(&mut e, JobFacts { inside, max_duration_s: 500, ..waits(1, boards(1, 1)) });
    assert_eq!(starts(&e.pass(at(0))), [job_id(1)]);
    submit(&mut e, JobFacts { inside, attempt: 1, max_duration_s: 1_900, ..waits(2, boards(1, 1)) });
    assert_eq!(e.pass(at(10)), []);
    assert_eq!(e.why(job_id(2), at(10)).unwrap().earliest, Some(at(500)), "after the other run");
    free(&mut e, 1, at(400));
    assert_eq!(starts(&e.pass(at(400))), [job_id(2)]);
}

#[test]
fn runs_inside_a_reservation_refuse_no_longer_one() {
    for since in [0, 100] {
        let mut e = engine(2, 1);
        book(&mut e, 1, &boards(1, 2), window(0, 2_000), 0).unwrap();
        let id = BookingId(Uuid::from_u128(1));
        submit(&mut e, JobFacts { inside: Some(id), max_duration_s: 1_999, ..waits(1, boards(1, 2)) });
        assert_eq!(starts(&e.pass(at(0))), [job_id(1)]);
        // A slow start: the limit of the job ends after the reservation.
        let slot = |n: u128| vec![Slot { gpu: format!("GPU-{n}-0").into(), part: Part::Whole }];
        let rank = |n| ClaimRank { node: node_id(n), slots: slot(n), cpu_milli: 0, memory_mib: 0 };
        let claim = Claim {
            owner: Owner { job: job_id(1), attempt: 1 },
            org: org(1),
            ranks: vec![rank(1), rank(2)],
            milli: 2_000,
            since: at(since),
            ends_by: Some(at(since + 1_999)),
            priority: Priority::Normal,
            stops: false,
            stopped_for: None,
            requeues: false,
            models: vec!["H100-80GB".into()],
            preemptible: None,
            gives_back_ms: None,
            replica: false,
            saved_at: None,
            inside: Some(id),
            bill: ClaimBill { offering: None, devices_milli: 2_000, nano_per_second: 0 },
        };
        e.apply(Fact::Claim { version: 2, claim }, at(since));
        let booking = e.calendar().get(id).unwrap().clone();
        let rest = Booking { from: at(2_000), until: at(3_000), ..booking };
        assert!(e.has_room(&rest, at(1_000)), "a start after {since} s");
        // A node that is away now may be back by then.
        let away = NodeFacts { open: false, away: true, ..node(2, "H100-80GB", 1) };
        e.apply(Fact::Node { version: 2, facts: away }, at(1_000));
        assert!(e.has_room(&rest, at(1_000)), "a node is away");
        book(&mut e, 2, &boards(1, 1), window(2_500, 2_600), 1_000).unwrap();
        assert!(!e.has_room(&rest, at(1_000)), "another reservation");
    }
}

#[test]
fn a_job_inside_starts_after_the_end_of_a_held_start_beside_it() {
    let mut e = engine(1, 8);
    let id = BookingId(Uuid::from_u128(1));
    book(&mut e, 1, &boards(4, 1), window(0, 32_400), 0).unwrap();
    let with = |n, o, memory_mib, max_duration_s, inside| JobFacts {
        org: org(o),
        inside,
        max_duration_s,
        ..waits(n, Request { memory_mib, ..boards(4, 1) })
    };
    submit(&mut e, with(1, 2, 200_000, 25_000, None));
    assert_eq!(starts(&e.pass(at(0))), [job_id(1)], "the boards beside the reservation");
    submit(&mut e, with(2, 3, 350_000, 36_000, None));
    assert_eq!(e.pass(at(10)), [], "it has a held start at the end of the first job");
    submit(&mut e, with(3, 1, 200_000, 28_000, Some(id)));
    assert_eq!(e.pass(at(20)), [], "no memory is left from the held start on");
    e.apply(Fact::Left { version: 9, job: job_id(2) }, at(50));
    assert_eq!(starts(&e.pass(at(60))), [job_id(3)], "the held start is gone");
}

#[test]
fn a_plan_in_a_reservation_has_its_begin_and_its_boards() {
    let mut e = engine(1, 2);
    book(&mut e, 1, &boards(2, 1), window(100, 5_000), 0).unwrap();
    let id = BookingId(Uuid::from_u128(1));
    let plan = |e: &mut Engine, now| {
        e.dry_run(&boards(1, 1), org(1), Priority::Normal, 1_000, Some(id), at(now)).unwrap()
    };
    let (why, places) = plan(&mut e, 50);
    let begins = ReservationBlocker::NotBegun { begins: at(100) };
    assert_eq!((why.blockers, places), (vec![Blocker::Booking(id, begins)], Vec::new()));
    let (why, places) = plan(&mut e, 100);
    assert_eq!((why.fits, why.blockers, places.len()), (true, Vec::new(), 1));
    let outside = e.dry_run(&boards(1, 1), org(1), Priority::Normal, 1_000, None, at(100)).unwrap();
    assert_eq!((outside.0.fits, outside.1), (false, Vec::new()), "the boards are promised");
}

#[test]
fn a_booking_changes_the_versions_of_its_nodes_models_only() {
    let mut e = engine(1, 2);
    for facts in [node(2, "A100-80GB", 2), NodeFacts { open: false, ..node(3, "L40S", 2) }] {
        e.apply(Fact::Node { version: 1, facts }, at(0));
    }
    let versions = |e: &Engine| {
        let version = |name| e.calendar().version(Models::only(e.cluster().find_model(name).unwrap()));
        (version("H100-80GB"), version("A100-80GB"), version("L40S"))
    };
    book(&mut e, 1, &boards(1, 1), window(1_000, 2_000), 0).unwrap();
    assert_eq!(versions(&e), (1, 0, 0));
    // A closed node can be booked too, for example for maintenance.
    let slots = vec![Slot { gpu: "GPU-3-0".into(), part: Part::Whole }];
    let places = vec![NodeSlots { node: e.cluster().find_node(node_id(3)).unwrap(), slots }];
    let (id, from, until) = (BookingId(Uuid::from_u128(2)), at(1_000), at(2_000));
    e.apply(
        Fact::Booked {
            version: 1,
            booking: Booking {
                id,
                kind: BookingKind::Maintenance,
                org: org(1),
                ask: None,
                from,
                until,
                places,
            },
        },
        at(0),
    );
    assert_eq!(versions(&e), (1, 0, 1));
    e.apply(Fact::Unbooked { version: 2, id }, at(0));
    assert_eq!(versions(&e), (1, 0, 2));
}

#[test]
fn a_request_that_no_node_could_ever_hold_is_known_at_once() {
    assert_eq!(engine(0, 0).why_impossible(&boards(3, 1), org(1)), Ok(None), "a cloud that is being set up");
    let mut e = engine(2, 2);
    for (request, possible) in [
        (boards(2, 2), true),
        (boards(3, 1), false),
        (boards(2, 3), false),
        (Request { models: vec!["A30-24GB".into()], ..boards(1, 1) }, false),
        (Request { cpu_milli: 1_000_000, ..boards(1, 1) }, false),
        (slice("1g.10gb"), true),
    ] {
        let mut facts = node(1, "H100-80GB", 2);
        for (version, open, healthy) in [(2, false, true), (3, true, false), (4, true, true)] {
            facts.open = open;
            facts.gpus.iter_mut().for_each(|g| g.healthy = healthy);
            e.apply(Fact::Node { version, facts: facts.clone() }, at(0));
            let reason = e.why_impossible(&request, org(1)).unwrap();
            assert_eq!(reason.is_none(), possible, "{request:?} {open} {healthy}: {reason:?}");
        }
    }
    // An A30 has slices only in MIG mode, and shares and whole boards only without it.
    let mut a30 = node(9, "A30-24GB", 1);
    let on_a30 = |device| Request { device, models: vec!["A30-24GB".into()], ..boards(1, 1) };
    let (share, slice) = (on_a30(DeviceRequest::Share(500)), on_a30(DeviceRequest::Slice("1g.6gb".into())));
    let whole = on_a30(DeviceRequest::Board);
    let asked = [(1, true, &share, &slice), (2, true, &whole, &slice), (3, false, &slice, &whole)];
    for (version, mig, impossible, possible) in asked {
        a30.gpus[0].mig_enabled = mig;
        e.apply(Fact::Node { version, facts: a30.clone() }, at(0));
        assert_eq!(e.why_impossible(possible, org(1)).unwrap(), None);
        assert_eq!(
            e.why_impossible(impossible, org(1)).unwrap().unwrap().blockers,
            [Blocker::Mode { boards: 1, most_nodes: None }]
        );
        // A request for more nodes than have such boards has the same reason.
        let wider = Request { nodes: 2, ..impossible.clone() };
        if wider.device != DeviceRequest::Share(500) {
            let why = e.why_impossible(&wider, org(1)).unwrap().unwrap();
            assert_eq!(why.blockers, [Blocker::Mode { boards: 1, most_nodes: Some(1) }]);
        }
    }
}

#[test]
fn a_reservation_that_is_cancelled_lets_others_run_around_a_held_start() {
    let mut e = engine(1, 3);
    book(&mut e, 9, &boards(1, 1), window(0, 1_000), 0).unwrap();
    submit(&mut e, waits(1, boards(3, 1)));
    for (n, max_duration_s) in [(2, 100), (3, 100), (4, 50)] {
        submit(&mut e, JobFacts { max_duration_s, ..waits(n, boards(1, 1)) });
    }
    assert_eq!(starts(&e.pass(at(0))), [job_id(2), job_id(3)]);
    e.apply(Fact::Unbooked { version: 1, id: BookingId(Uuid::from_u128(9)) }, at(1));
    assert_eq!(starts(&e.pass(at(1))), [job_id(4)]);
}

#[test]
fn a_node_that_is_not_connected_is_booked_for_later_and_named_for_now() {
    let mut e = engine(1, 2);
    let put = |e: &mut Engine, version, (open, away)| {
        let facts = NodeFacts { open, away, ..node(1, "H100-80GB", 2) };
        e.apply(Fact::Node { version, facts }, at(0));
    };
    let away = |refused: Result<_, Refusal>| match refused {
        Ok(_) => None,
        Err(Refusal::Taken { away, .. }) => Some(away),
        Err(other) => panic!("{other}"),
    };
    let ask = |e: &mut Engine, from| e.quote(&boards(2, 1), org(1), window(from, 1_000), at(0));
    put(&mut e, 2, (false, true));
    assert_eq!([0, 59, 60, 61].map(|from| away(ask(&mut e, from))), [Some(1), Some(1), Some(1), None]);
    // A second booking of the same boards is refused.
    book(&mut e, 1, &boards(2, 1), window(100, 1_000), 0).unwrap();
    assert_eq!(away(ask(&mut e, 61)), Some(0));
    // No job starts there or gets a held start.
    submit(&mut e, JobFacts { max_duration_s: 10, ..waits(1, boards(1, 1)) });
    assert_eq!((starts(&e.pass(at(0))), e.held_starts().count()), (vec![], 0));
    // A cordoned node gets no new bookings.
    put(&mut e, 3, (false, false));
    assert_eq!(away(e.quote(&boards(2, 1), org(1), window(2_000, 3_000), at(0))), Some(0));
    put(&mut e, 4, (true, false));
    assert_eq!(starts(&e.pass(at(1))), [job_id(1)]);
}

//! Tests of the windows that a refused quote offers.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests fail loudly, like tests"
)]

use berth_engine::{Decision, Engine, Fact, JobFacts, OrgFacts, Refusal, Window};
use berth_placement::calendar::{Booking, BookingKind, NodeSlots};
use berth_placement::cluster::{BookingId, GpuFacts, NodeFacts, NodeIx, Owner, Part, Slot};
use berth_placement::quotas::EngineLimits;
use berth_placement::request::{DeviceRequest, Nearness, Request};
use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::jobs::Priority;
use berth_types::time::Timestamp;
use uuid::Uuid;

#[expect(dead_code, reason = "these tests use a part of it")]
mod small;

use small::*;

fn window(from: i64, until: i64) -> Window {
    Window { from: at(from), until: at(until) }
}

/// A booking of the first board of a node. Nodes count from one, in the order of their facts.
fn booking(n: u128, from: i64, until: i64) -> Booking {
    Booking {
        id: BookingId(Uuid::from_u128(u128::try_from(from).unwrap() * 10 + n)),
        kind: BookingKind::Reservation,
        org: org(n),
        ask: None,
        from: at(from),
        until: at(until),
        places: vec![NodeSlots {
            node: NodeIx(u32::try_from(n).unwrap() - 1),
            slots: vec![Slot { gpu: format!("GPU-{n}-0").into(), part: Part::Whole }],
        }],
    }
}

/// The windows for boards of one node in place of the refused one from 1,500 until 1,600.
fn offered(e: &mut Engine, count: u32) -> Vec<Window> {
    let refused = e.quote(&boards(count, 1), org(1), window(1_500, 1_600), at(0)).unwrap_err();
    let Refusal::Taken { alternatives, .. } = refused else { panic!("{refused}") };
    for when in &alternatives {
        let (_, places, _) = e.quote(&boards(count, 1), org(1), *when, at(0)).unwrap();
        assert_eq!(e.name_places(&places)[0].0, node_id(1));
    }
    alternatives
}

#[test]
fn bookings_of_nodes_that_are_not_for_the_organization_hide_no_window() {
    for (first, second, own_nodes_only) in [(None, Some(2), false), (Some(1), None, true)] {
        let mut e = Engine::default();
        for (n, dedicated_to) in [(1, first), (2, second)] {
            let facts = NodeFacts { dedicated_to: dedicated_to.map(org), ..node(n, "H100-80GB", 1) };
            e.apply(Fact::Node { version: 1, facts }, at(0));
        }
        let limits = EngineLimits::default();
        let facts = OrgFacts {
            org: org(1),
            weight: 1.0,
            used: None,
            guaranteed_milli: 0,
            own_nodes_only,
            egress_policy: false,
            limits,
        };
        e.apply(Fact::Org(facts), at(0));
        let others = (0..60).map(|k| booking(2, 1_500 + 8 * k, 1_504 + 8 * k));
        e.book(booking(1, 1_000, 2_000), others.collect());
        let expected = [window(2_000, 2_100), window(900, 1_000), window(0, 100)];
        assert_eq!(offered(&mut e, 1), expected, "{first:?} {second:?}");
    }
}

#[test]
fn runs_on_boards_of_other_models_hide_no_window() {
    let mut e = engine(1, 1);
    e.book(booking(1, 1_000, 2_000), Vec::new());
    for n in 2..=5 {
        e.apply(Fact::Node { version: 1, facts: node(n, "H200-141GB", 16) }, at(0));
    }
    for n in 1..=60 {
        let request = Request { models: vec!["H200-141GB".into()], ..boards(1, 1) };
        let max_duration_s = 1_500 + 8 * i64::try_from(n).unwrap();
        submit(&mut e, JobFacts { max_duration_s, ..waits(n, request) });
        assert_eq!(starts(&e.pass(at(0))), [job_id(n)]);
    }
    assert_eq!(offered(&mut e, 1), [window(2_000, 2_100), window(900, 1_000), window(0, 100)]);
}

#[test]
fn the_windows_are_on_nodes_that_are_expected_back_too() {
    let mut e = engine(1, 1);
    e.book(booking(1, 1_000, 2_000), Vec::new());
    let facts = NodeFacts { open: false, away: true, ..node(1, "H100-80GB", 1) };
    e.apply(Fact::Node { version: 2, facts }, at(0));
    // The node is not connected yet at 0.
    assert_eq!(offered(&mut e, 1), [window(2_000, 2_100), window(900, 1_000)]);
}

#[test]
fn bookings_of_nodes_that_are_too_small_hide_no_window() {
    let mut e = engine(1, 2);
    for n in 2..=3 {
        e.apply(Fact::Node { version: 1, facts: node(n, "H100-80GB", 1) }, at(0));
        e.book(booking(n, 0, 100_000), Vec::new());
    }
    let mut both = booking(1, 1_000, 2_000);
    both.places[0].slots.push(Slot { gpu: "GPU-1-1".into(), part: Part::Whole });
    e.book(both, Vec::new());
    assert_eq!(offered(&mut e, 2), [window(2_000, 2_100), window(900, 1_000), window(0, 100)]);
}

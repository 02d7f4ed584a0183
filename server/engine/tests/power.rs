//! Tests of racks whose power budget does not cover all their boards.

use std::collections::BTreeSet;

use berth_engine::{
    Blocker, Decision, Engine, Fact, JobFacts, Refusal, RequestSummary, Window, explanation,
    power_shortage_text,
};
use berth_placement::calendar::{Booking, BookingKind};
use berth_placement::cluster::{BookingId, GpuFacts, NodeFacts, Owner};
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

/// Nodes in one rack with a budget of `watts`.
fn engine_with_budget(nodes: u128, gpus: usize, watts: i64) -> Engine {
    let mut engine = engine(nodes, gpus);
    engine.put_racks([("rack-1".into(), watts)].into());
    engine
}

/// The text of the first reason of a waiting job, if it is a lack of power.
fn power_detail(engine: &mut Engine, n: u128, count: u32, now: i64) -> Option<String> {
    let why = engine.why(job_id(n), at(now))?;
    let summary = RequestSummary { model: "H100-80GB".to_owned(), device: DeviceRequest::Board, count };
    let text = explanation(&why, &summary, at(now));
    let first = text.blockers.into_iter().next().filter(|blocker| blocker.code == "rack.power");
    first.map(|blocker| blocker.detail)
}

#[test]
fn a_rack_stays_within_its_budget_and_lacking_power_is_the_blocker() {
    // Eight boards of 700 W behind a budget for four of them.
    let mut engine = engine_with_budget(2, 4, 2_800);
    submit(&mut engine, waits(1, boards(3, 1)));
    submit(&mut engine, waits(2, boards(4, 1)));
    submit(&mut engine, JobFacts { max_duration_s: 3_601, ..waits(3, boards(1, 1)) });
    assert_eq!(starts(&engine.pass(at(0))), [job_id(1)], "the small one leaves the next in line its power");
    assert_eq!(
        power_detail(&mut engine, 2, 4, 1).as_deref(),
        Some("Power in rack rack-1: 2.8 kW needed, 700 W of 2.8 kW available.")
    );
    let earliest = engine.why(job_id(2), at(1)).unwrap().earliest;
    assert_eq!(earliest, Some(at(3_600)), "the power is free when the first has reached its limit");
    let mut other = engine.clone();
    submit(&mut other, waits(4, boards(1, 1)));
    assert_eq!(starts(&other.pass(at(0))), [job_id(4)], "it ends before the next in line begins");
    // The end of a run on one node lets a job start on the other node.
    let owner = engine.owners().next().unwrap();
    engine.apply(Fact::Freed { version: 9, owner }, at(2));
    assert_eq!(starts(&engine.pass(at(2))), [job_id(2)]);
}

#[test]
fn a_run_on_a_lost_node_draws_no_power() {
    let mut engine = engine_with_budget(2, 1, 700);
    submit(&mut engine, waits(1, boards(1, 1)));
    submit(&mut engine, waits(2, boards(1, 1)));
    let started = engine.pass(at(0));
    assert_eq!(starts(&started), [job_id(1)]);
    let Decision::Start { ranks, .. } = &started[0] else { panic!("a start") };
    let used = if ranks[0].0 == node_id(1) { 1 } else { 2 };
    let silent = |lost| NodeFacts { open: false, away: true, lost, ..node(used, "H100-80GB", 1) };
    engine.apply(Fact::Node { version: 2, facts: silent(false) }, at(1));
    assert!(starts(&engine.pass(at(1))).is_empty(), "the first may still run");
    engine.apply(Fact::Node { version: 3, facts: silent(true) }, at(2));
    assert_eq!(starts(&engine.pass(at(2))), [job_id(2)]);
}

#[test]
fn promised_power_of_a_rack_is_the_blocker() {
    // Two boards are in use, three are held from their end on, and one more would exceed the budget then.
    let mut engine = engine_with_budget(1, 4, 2_150);
    submit(&mut engine, JobFacts { max_duration_s: 12, ..waits(1, boards(2, 1)) });
    submit(&mut engine, JobFacts { max_duration_s: 5, ..waits(2, boards(3, 1)) });
    submit(&mut engine, JobFacts { max_duration_s: 40, ..waits(3, boards(1, 1)) });
    assert_eq!(starts(&engine.pass(at(0))), [job_id(1)]);
    let why = engine.why(job_id(3), at(0)).unwrap();
    assert_eq!(why.blockers.first(), Some(&Blocker::Promised { begins: at(12) }));
    // While three boards draw power, the power is the blocker.
    let mut full = engine_with_budget(1, 4, 2_150);
    submit(&mut full, waits(1, boards(3, 1)));
    submit(&mut full, waits(2, boards(1, 1)));
    assert_eq!(starts(&full.pass(at(0))), [job_id(1)]);
    assert_eq!(
        power_detail(&mut full, 2, 1, 0).as_deref(),
        Some("Power in rack rack-1: 700 W needed, 50 W of 2.1 kW available.")
    );
}

#[test]
fn a_board_counts_for_the_limit_of_its_driver() {
    let mut engine = engine_with_budget(2, 1, 700);
    submit(&mut engine, waits(1, boards(1, 1)));
    submit(&mut engine, waits(2, boards(1, 1)));
    let started = engine.pass(at(0));
    assert_eq!(starts(&started), [job_id(1)]);
    let Decision::Start { ranks, .. } = &started[0] else { panic!("a start") };
    let (used, free) = if ranks[0].0 == node_id(1) { (1, 2) } else { (2, 1) };
    let limit = |engine: &mut Engine, n: u128, now: i64| {
        let mut facts = node(n, "H100-80GB", 1);
        facts.gpus[0].limit_watts = Some(350);
        engine.apply(Fact::Node { version: 2, facts }, at(now));
    };
    limit(&mut engine, free, 1);
    assert!(starts(&engine.pass(at(1))).is_empty(), "the other one draws everything");
    limit(&mut engine, used, 2);
    assert_eq!(starts(&engine.pass(at(2))), [job_id(2)]);
}

#[test]
fn a_slice_beside_others_draws_no_more() {
    let mut engine = engine_with_budget(1, 2, 700);
    for n in 1..=3 {
        submit(&mut engine, waits(n, slice("1g.10gb")));
    }
    submit(&mut engine, waits(4, slice("7g.80gb")));
    assert_eq!(starts(&engine.pass(at(0))).len(), 3, "all on one board");
    let ranks = engine.cluster().nodes().iter().flat_map(|node| &node.ranks);
    let gpus: BTreeSet<_> = ranks.flat_map(|r| &r.slots).map(|s| s.gpu.clone()).collect();
    assert_eq!(gpus.len(), 1);
}

#[test]
fn a_job_takes_another_rack_and_a_budget_can_be_raised() {
    let mut engine = engine_with_budget(1, 4, 1_400);
    let far = NodeFacts { rack: Some("rack-2".into()), ..node(2, "H100-80GB", 4) };
    engine.apply(Fact::Node { version: 1, facts: far }, at(0));
    submit(&mut engine, waits(1, boards(4, 1)));
    submit(&mut engine, waits(2, boards(4, 1)));
    let started = engine.pass(at(0));
    assert_eq!(starts(&started), [job_id(1)]);
    let Decision::Start { ranks, .. } = &started[0] else { panic!("a start") };
    assert_eq!(ranks[0].0, node_id(2), "where power is");
    let detail = power_detail(&mut engine, 2, 4, 1);
    assert_eq!(detail.as_deref(), Some("Power in rack rack-1: 2.8 kW needed, 1.4 kW of 1.4 kW available."));
    assert!(starts(&engine.pass(at(5))).is_empty());
    engine.put_racks([("rack-1".into(), 2_800)].into());
    assert_eq!(starts(&engine.pass(at(10))), [job_id(2)]);
}

#[test]
fn a_gang_gets_power_as_a_whole_and_one_without_power_delays_no_other_job() {
    let mut engine = engine_with_budget(2, 4, 4_200);
    submit(&mut engine, waits(1, boards(4, 2)));
    assert!(starts(&engine.pass(at(0))).is_empty());
    assert_eq!(
        power_detail(&mut engine, 1, 4, 1).as_deref(),
        Some("Power in rack rack-1: 5.6 kW needed, 4.2 kW of 4.2 kW available.")
    );
    submit(&mut engine, waits(2, boards(3, 2)));
    assert_eq!(starts(&engine.pass(at(1))), [job_id(2)]);
}

#[test]
fn reserved_boards_have_power_and_no_more_is_promised() {
    let mut engine = engine_with_budget(2, 4, 3_500);
    let when = window(100, 200);
    let (ask, places, moved) = engine.quote(&boards(4, 1), org(2), when, at(0)).unwrap();
    let id = BookingId(Uuid::from_u128(77));
    let (kind, Window { from, until }) = (BookingKind::Reservation, when);
    let new = Booking { id, kind, org: org(2), ask: Some(ask), from, until, places };
    engine.book(new, moved);
    let Err(Refusal::Taken { power: Some(shortage), alternatives, running, .. }) =
        engine.quote(&boards(2, 1), org(3), when, at(0))
    else {
        panic!("beyond what the rack feeds")
    };
    assert_eq!(
        power_shortage_text(&shortage),
        "Power in rack rack-1: 1.4 kW needed, 700 W of 3.5 kW available."
    );
    assert_eq!(running, 0);
    assert!(alternatives.contains(&window(200, 300)), "{alternatives:?}");
    let full = engine.quote(&boards(4, 2), org(3), when, at(0)).unwrap_err();
    assert!(matches!(full, Refusal::Taken { power: None, .. }), "boards are what lacks: {full:?}");
    assert!(engine.quote(&boards(1, 1), org(3), when, at(0)).is_ok());
    assert!(engine.quote(&boards(2, 1), org(3), window(200, 300), at(0)).is_ok(), "afterwards there is more");
    submit(&mut engine, JobFacts { max_duration_s: 150, ..waits(1, boards(2, 1)) });
    assert!(starts(&engine.pass(at(0))).is_empty(), "it would still draw then");
    submit(&mut engine, JobFacts { max_duration_s: 90, ..waits(2, boards(2, 1)) });
    assert_eq!(starts(&engine.pass(at(1))), [job_id(2)]);
}

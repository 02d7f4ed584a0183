//! Tests of the devices that jobs get: near each other, on one island, and in the right MIG mode.

use berth_engine::{Blocker, Decision, Engine, Fact, JobFacts, SuggestedChange};
use berth_placement::cluster::{GpuFacts, NodeFacts, Owner, Part};
use berth_placement::request::{DeviceRequest, Nearness, Request};
use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::jobs::Priority;
use berth_types::time::Timestamp;
use uuid::Uuid;

#[expect(dead_code, reason = "these tests use a part of it")]
mod small;

use small::*;

#[test]
fn a_gang_gets_all_its_nodes_or_none_and_near_each_other() {
    let mut e = engine(4, 4);
    // leaf-0: node 1; leaf-1: nodes 2 and 3; leaf-2: node 4.
    submit(&mut e, waits(1, Request { topology: Nearness::SameSwitch, ..boards(4, 2) }));
    let Decision::Start { ranks, attempt: 1, .. } = &e.pass(at(10))[0] else { panic!("it starts") };
    let nodes: Vec<NodeId> = ranks.iter().map(|(n, _)| *n).collect();
    assert_eq!(nodes, [node_id(2), node_id(3)]);
    assert!(ranks.iter().all(|(_, slots)| slots.len() == 4));
    submit(&mut e, waits(2, Request { topology: Nearness::SameSwitch, ..boards(4, 2) }));
    assert_eq!(e.pass(at(11)), [], "two nodes are free, but not on one switch");
    let why = e.why(job_id(2), at(11)).unwrap();
    assert!(why.changes.contains(&vec![SuggestedChange::Anywhere]), "{why:?}");
    submit(&mut e, waits(3, boards(4, 3)));
    assert_eq!(starts(&e.pass(at(12))), [], "three are not free");
    submit(&mut e, waits(4, boards(4, 9)));
    assert_eq!(e.why(job_id(4), at(12)).unwrap().blockers[0], Blocker::None { count: 4, nodes: 4 });
}

#[test]
fn nvlink_keeps_devices_on_one_island() {
    let mut e = engine(1, 8);
    submit(&mut e, waits(1, boards(2, 1)));
    e.pass(at(10));
    submit(&mut e, waits(2, Request { nvlink: true, ..boards(4, 1) }));
    let Decision::Start { ranks, .. } = &e.pass(at(10))[0] else { panic!("it starts") };
    let gpus: Vec<&str> = ranks[0].1.iter().map(|s| &*s.gpu).collect();
    assert_eq!(gpus, ["GPU-1-4", "GPU-1-5", "GPU-1-6", "GPU-1-7"]);
    submit(&mut e, waits(3, Request { nvlink: true, ..boards(4, 1) }));
    assert_eq!(e.pass(at(11)), []);
}

#[test]
fn a_board_that_keeps_its_mig_mode_until_a_reset_is_no_whole_board() {
    let mut e = Engine::default();
    let mut facts = node(1, "A30-24GB", 1);
    e.apply(Fact::Node { version: 1, facts: facts.clone() }, at(0));
    submit(&mut e, waits(1, Request { models: vec!["A30-24GB".into()], ..boards(1, 1) }));
    assert_eq!(e.pass(at(1)), []);
    facts.gpus[0].mig_enabled = false;
    e.apply(Fact::Node { version: 2, facts }, at(2));
    let Decision::Start { ranks, .. } = &e.pass(at(2))[0] else { panic!("it starts") };
    assert_eq!(ranks[0].1[0].part, Part::Whole);
}

//! Nodes whose workers are expected back: held starts count on them for a while.

use super::*;

/// The state of a node's worker.
#[derive(Clone, Copy)]
enum Worker {
    Connected,
    Awaited,
    Lost,
}

fn put(e: &mut Engine, version: i64, n: u128, worker: Worker) {
    let (open, awaited) = match worker {
        Worker::Connected => (true, false),
        Worker::Awaited => (false, true),
        Worker::Lost => (false, false),
    };
    let facts = NodeFacts { open, away: !open, awaited, ..node(n, "H100-80GB", 1) };
    e.apply(Fact::Node { version, facts }, at(0));
}

fn low(n: u128) -> JobFacts {
    JobFacts { priority: Priority::Low, preemptible: true, grace_s: 14, ..waits(n, boards(1, 1)) }
}

fn high(n: u128, request: Request) -> JobFacts {
    JobFacts { priority: Priority::High, max_duration_s: 20, ..waits(n, request) }
}

/// Two runs on two nodes stop for a gang. The second run has ended, and job 4 waits beside its board.
fn half_stopped() -> Engine {
    let mut e = engine(2, 1);
    submit(&mut e, low(1));
    submit(&mut e, low(2));
    assert_eq!(e.pass(at(0)).len(), 2);
    submit(&mut e, high(3, boards(1, 2)));
    assert_eq!(e.pass(at(100)).len(), 2, "both runs are stopped");
    submit(&mut e, JobFacts { org: org(2), max_duration_s: 200, ..waits(4, boards(1, 1)) });
    assert_eq!(e.pass(at(101)), []);
    e
}

/// The node of a job's run, as 1 or 2.
fn node_of_run(e: &Engine, n: u128) -> u128 {
    let owner = Owner { job: job_id(n), attempt: 1 };
    e.claims.get(owner).unwrap().ranks[0].node.uuid().as_u128()
}

#[test]
fn preempted_devices_stay_reserved_while_another_node_of_the_gang_is_awaited() {
    let mut e = half_stopped();
    let n = node_of_run(&e, 1);
    put(&mut e, 2, n, Worker::Awaited);
    free(&mut e, 2, at(103));
    assert_eq!(e.pass(at(103)), [], "the free board is reserved for the gang");
    assert!(e.holds.is_firm(job_id(3)));
    assert_eq!(e.pass(at(110)), []);
    put(&mut e, 3, n, Worker::Connected);
    assert_eq!(e.pass(at(112)), []);
    free(&mut e, 1, at(113));
    assert_eq!(starts(&e.pass(at(113))), [job_id(3)]);
}

#[test]
fn a_new_engine_reserves_preempted_devices_beside_an_awaited_node() {
    let old = half_stopped();
    let n = node_of_run(&old, 1);
    let mut e = Engine::default();
    put(&mut e, 1, n, Worker::Awaited);
    put(&mut e, 1, 3 - n, Worker::Connected);
    let stopping = old.claims.get(Owner { job: job_id(1), attempt: 1 }).unwrap().clone();
    e.apply(Fact::Claim { version: 1, claim: stopping }, at(103));
    submit(&mut e, high(3, boards(1, 2)));
    submit(&mut e, JobFacts { org: org(2), max_duration_s: 200, ..waits(4, boards(1, 1)) });
    assert_eq!(e.pass(at(103)), [], "the connected node has a free board for the gang only");
    put(&mut e, 2, n, Worker::Connected);
    free(&mut e, 1, at(105));
    assert_eq!(starts(&e.pass(at(105))), [job_id(3)]);
}

#[test]
fn a_lost_node_ends_the_reservation_of_devices_for_a_gang() {
    let mut e = half_stopped();
    let n = node_of_run(&e, 1);
    put(&mut e, 2, n, Worker::Awaited);
    free(&mut e, 2, at(103));
    assert_eq!(e.pass(at(103)), []);
    put(&mut e, 3, n, Worker::Lost);
    assert_eq!(starts(&e.pass(at(133))), [job_id(4)], "a board does not stay empty for a lost node");
}

#[test]
fn a_held_start_outlasts_a_short_absence_of_a_worker() {
    let mut e = engine(2, 1);
    submit(&mut e, JobFacts { max_duration_s: 100, ..waits(1, boards(1, 1)) });
    e.pass(at(0));
    submit(&mut e, waits(2, boards(1, 2)));
    submit(&mut e, JobFacts { max_duration_s: 500, ..waits(3, boards(1, 1)) });
    assert_eq!(e.pass(at(1)), []);
    let n = node_of_run(&e, 1);
    put(&mut e, 2, n, Worker::Awaited);
    assert_eq!(e.pass(at(2)), []);
    assert_eq!(e.why(job_id(2), at(2)).unwrap().earliest, Some(at(100)));
    put(&mut e, 3, n, Worker::Connected);
    assert_eq!(e.pass(at(3)), []);
    free(&mut e, 1, at(90));
    assert_eq!(starts(&e.pass(at(90))), [job_id(2)]);
}

#[test]
fn no_job_starts_on_an_awaited_node() {
    let mut e = engine(1, 1);
    put(&mut e, 2, 1, Worker::Awaited);
    submit(&mut e, waits(1, boards(1, 1)));
    assert_eq!(e.pass(at(0)), []);
    let why = e.why(job_id(1), at(0)).unwrap();
    assert!(!why.fits && why.blockers.contains(&Blocker::Away { nodes: 1 }), "{why:?}");
    assert!(why.earliest.is_none_or(|earliest| earliest > at(0)), "{why:?}");
    put(&mut e, 3, 1, Worker::Connected);
    assert_eq!(starts(&e.pass(at(1))), [job_id(1)]);
}

#[test]
fn a_start_that_a_known_drain_may_delay_is_not_foreseen() {
    let mut e = engine(2, 1);
    let run = |n, max_duration_s| JobFacts { max_duration_s, ..waits(n, boards(1, 1)) };
    submit(&mut e, run(1, 100));
    assert_eq!(starts(&e.pass(at(0))), [job_id(1)]);
    let first = node_of_run(&e, 1);
    submit(&mut e, run(2, 22));
    assert_eq!(starts(&e.pass(at(0))), [job_id(2)]);
    submit(&mut e, run(3, 50));
    e.pass(at(1));
    assert_eq!(e.why(job_id(3), at(1)).unwrap().earliest, Some(at(22)));
    let drained = |drains_by| NodeFacts { open: false, drains_by, ..node(first, "H100-80GB", 1) };
    e.apply(Fact::Node { version: 2, facts: drained(Some(at(10))) }, at(2));
    e.pass(at(2));
    assert_eq!(e.why(job_id(3), at(2)).unwrap().earliest, None, "job 1 returns before that and goes first");
    // A deadline after all ends stops nothing.
    e.apply(Fact::Node { version: 3, facts: drained(Some(at(100))) }, at(3));
    e.pass(at(3));
    assert_eq!(e.why(job_id(3), at(3)).unwrap().earliest, Some(at(22)));
}

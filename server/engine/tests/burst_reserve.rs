//! Tests of the reserve for bursts: boards of nodes for inference that jobs do not borrow.

use berth_engine::{
    Blocker, Decision, Engine, Fact, JobFacts, RequestSummary, Snapshot, Trial, explanation,
    put_burst_reserve,
};
use berth_placement::cluster::{GpuFacts, NodeFacts, Owner};
use berth_placement::pools::Work;
use berth_placement::request::{DeviceRequest, Nearness, Request};
use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::jobs::Priority;
use berth_types::node_pools::NodePool;
use berth_types::time::Timestamp;
use uuid::Uuid;

#[expect(dead_code, reason = "these tests use a part of it")]
mod small;

use small::*;

const MODEL: &str = "H100-80GB";

fn put(e: &mut Engine, n: u128, pool: NodePool, model: &str, gpus: usize) {
    let mut facts = NodeFacts { pool, ..node(n, model, gpus) };
    facts.gpus.iter_mut().for_each(|gpu| gpu.mig_enabled = false);
    e.apply(Fact::Node { version: 1, facts }, at(0));
}

/// An engine with a reserve, and one node for inference with so many boards.
fn reserving(reserve: u32, gpus: usize) -> Engine {
    let mut e = Engine::default();
    put_burst_reserve(&mut e, reserve);
    put(&mut e, 1, NodePool::Inference, MODEL, gpus);
    e
}

fn job(n: u128, work: Work) -> JobFacts {
    let preemptible = work == Work::Preemptible;
    JobFacts { preemptible, ..waits(n, Request { work, ..boards(1, 1) }) }
}

/// Submits a job that borrows.
fn borrow(e: &mut Engine, n: u128) {
    submit(e, job(n, Work::Preemptible));
}

/// The runs that stop for the reserve.
fn reclaimed(decisions: &[Decision]) -> Vec<JobId> {
    let victim = |d: &Decision| match d {
        Decision::Preempt { victim, for_job: None } => Some(victim.job),
        _ => None,
    };
    decisions.iter().filter_map(victim).collect()
}

#[test]
fn a_job_borrows_only_boards_beyond_the_reserve() {
    for (reserve, started) in [(0, 4), (1, 3), (3, 1), (4, 0), (9, 0)] {
        let mut e = reserving(reserve, 4);
        (1..=5).for_each(|n| borrow(&mut e, n));
        assert_eq!(starts(&e.pass(at(10))).len(), started, "{reserve}");
        assert!(e.pass(at(20)).is_empty(), "{reserve}");
    }
}

#[test]
fn the_reserve_is_of_nodes_for_inference_alone() {
    for (pool, started) in [(NodePool::Both, 3), (NodePool::Training, 3), (NodePool::Inference, 2)] {
        let mut e = reserving(2, 2);
        put(&mut e, 2, pool, MODEL, if pool == NodePool::Inference { 2 } else { 3 });
        (1..=4).for_each(|n| borrow(&mut e, n));
        assert_eq!(starts(&e.pass(at(10))).len(), started, "{pool:?}");
    }
}

#[test]
fn each_model_has_its_own_reserve() {
    // The only board of the second model is its reserve.
    for (reserve, started) in [(0, vec![job_id(1), job_id(2)]), (1, vec![job_id(1)])] {
        let mut e = reserving(reserve, 2);
        put(&mut e, 2, NodePool::Inference, "A100-40GB", 1);
        borrow(&mut e, 1);
        let models = vec!["A100-40GB".into()];
        let other = Request { work: Work::Preemptible, models, ..boards(1, 1) };
        submit(&mut e, JobFacts { preemptible: true, ..waits(2, other) });
        assert_eq!(starts(&e.pass(at(10))), started, "{reserve}");
    }
}

#[test]
fn dedicated_nodes_have_a_reserve_of_their_own() {
    let mut e = reserving(1, 1);
    let facts = NodeFacts { pool: NodePool::Inference, dedicated_to: Some(org(2)), ..node(2, MODEL, 3) };
    e.apply(Fact::Node { version: 1, facts }, at(0));
    // The boards of the other organization are no reserve for all.
    borrow(&mut e, 1);
    assert!(e.pass(at(10)).is_empty());
    submit(&mut e, JobFacts { org: org(2), ..job(2, Work::Preemptible) });
    assert_eq!(starts(&e.pass(at(20))), [job_id(2)]);
}

#[test]
fn replicas_use_the_reserve_and_borrowing_jobs_give_it_back_ahead_of_need() {
    let mut e = reserving(2, 4);
    (1..=3).for_each(|n| borrow(&mut e, n));
    assert_eq!(starts(&e.pass(at(10))), [job_id(1), job_id(2)]);
    submit(&mut e, job(4, Work::Replica));
    let decisions = e.pass(at(100));
    assert_eq!((starts(&decisions), reclaimed(&decisions)), (vec![job_id(4)], vec![job_id(1)]));
    assert!(e.pass(at(101)).is_empty(), "the board of the stopped job is on its way back");
    free(&mut e, 1, at(120));
    submit(&mut e, JobFacts { generation: 5, attempt: 1, ..job(1, Work::Preemptible) });
    assert!(e.pass(at(121)).is_empty(), "the stopped job does not start in the reserve");
    free(&mut e, 4, at(200));
    assert_eq!(starts(&e.pass(at(201))), [job_id(1)], "a board beyond the reserve is free again");
}

#[test]
fn a_replica_that_waits_counts_as_missing_in_the_reserve() {
    let mut e = reserving(0, 3);
    (1..=3).for_each(|n| borrow(&mut e, n));
    assert_eq!(starts(&e.pass(at(10))).len(), 3);
    put_burst_reserve(&mut e, 1);
    submit(&mut e, job(4, Work::Replica));
    let decisions = e.pass(at(100));
    let stopped = decisions.iter().filter(|d| matches!(d, Decision::Preempt { .. })).count();
    // One job stops for the replica, and one for the reserve behind it.
    assert_eq!((stopped, reclaimed(&decisions).len()), (2, 1), "{decisions:?}");
    assert!(e.pass(at(101)).is_empty());
}

#[test]
fn only_as_many_borrowing_jobs_stop_as_the_reserve_needs() {
    for (reserve, stopped) in [(1, 1), (2, 2), (3, 3), (4, 3)] {
        let mut e = reserving(0, 4);
        submit(&mut e, JobFacts { preemptible: true, ..job(9, Work::Replica) });
        (1..=3).for_each(|n| borrow(&mut e, n));
        assert_eq!(starts(&e.pass(at(10))).len(), 4);
        // A larger reserve applies at once. A replica never stops for it.
        put_burst_reserve(&mut e, reserve);
        let victims = reclaimed(&e.pass(at(100)));
        assert_eq!(victims.len(), stopped, "{reserve}");
        assert!(!victims.contains(&job_id(9)));
        assert!(e.pass(at(101)).is_empty(), "{reserve}");
    }
}

#[test]
fn a_node_that_is_expected_back_keeps_its_boards_in_the_reserve() {
    for (awaited, stopped) in [(true, 0), (false, 2)] {
        let mut e = reserving(0, 2);
        (1..=2).for_each(|n| borrow(&mut e, n));
        assert_eq!(starts(&e.pass(at(10))).len(), 2);
        put(&mut e, 2, NodePool::Inference, MODEL, 2);
        put_burst_reserve(&mut e, 2);
        assert!(e.pass(at(20)).is_empty(), "the second node has the reserve");
        let mut facts = NodeFacts { pool: NodePool::Inference, open: false, awaited, ..node(2, MODEL, 2) };
        facts.gpus.iter_mut().for_each(|gpu| gpu.mig_enabled = false);
        e.apply(Fact::Node { version: 2, facts }, at(30));
        assert_eq!(reclaimed(&e.pass(at(31))).len(), stopped, "{awaited}");
    }
}

#[test]
fn the_jobs_that_give_their_devices_back_soonest_stop_for_the_reserve() {
    let mut e = reserving(1, 3);
    submit(&mut e, JobFacts { gives_back_ms: Some(40_000), ..job(1, Work::Preemptible) });
    submit(&mut e, JobFacts { gives_back_ms: Some(2_000), ..job(2, Work::Preemptible) });
    assert_eq!(starts(&e.pass(at(10))).len(), 2);
    submit(&mut e, job(3, Work::Replica));
    assert_eq!(reclaimed(&e.pass(at(600))), [job_id(2)]);
}

#[test]
fn a_run_near_its_limit_gives_its_board_back_by_itself() {
    let mut e = reserving(1, 3);
    submit(&mut e, JobFacts { max_duration_s: 600, ..job(1, Work::Preemptible) });
    borrow(&mut e, 2);
    assert_eq!(starts(&e.pass(at(10))).len(), 2);
    submit(&mut e, job(3, Work::Replica));
    // The first job ends at 610.
    assert_eq!(reclaimed(&e.pass(at(580))), []);
}

#[test]
fn a_job_on_several_nodes_borrows_no_more_than_the_reserve_leaves() {
    let mut e = Engine::default();
    put_burst_reserve(&mut e, 2);
    (1..=3).for_each(|n| put(&mut e, n, NodePool::Inference, MODEL, 1));
    let gang =
        |n| JobFacts { preemptible: true, ..waits(n, Request { work: Work::Preemptible, ..boards(1, 2) }) };
    submit(&mut e, gang(1));
    assert!(e.pass(at(10)).is_empty(), "it would leave one board");
    put(&mut e, 4, NodePool::Training, MODEL, 1);
    let decisions = e.pass(at(20));
    let [Decision::Start { ranks, .. }] = &decisions[..] else { panic!("{decisions:?}") };
    assert!(ranks.iter().any(|(on, _)| *on == node_id(4)), "{ranks:?}");
}

#[test]
fn the_held_start_of_a_borrowing_job_leaves_the_reserve() {
    let mut e = reserving(1, 2);
    borrow(&mut e, 1);
    borrow(&mut e, 2);
    assert_eq!(starts(&e.pass(at(10))), [job_id(1)]);
    let held: Vec<(JobId, Timestamp)> = e.held_starts().map(|(job, b)| (job, b.from)).collect();
    assert_eq!(held, [(job_id(2), at(3_610))], "the board that is free now is the reserve");
    assert_eq!(e.why(job_id(2), at(10)).unwrap().earliest, Some(at(3_610)));
    // A smaller reserve applies at once.
    put_burst_reserve(&mut e, 0);
    assert_eq!(starts(&e.pass(at(20))), [job_id(2)]);
}

#[test]
fn a_wait_for_the_reserve_is_explained_and_dry_runs_agree() {
    let mut e = reserving(1, 2);
    borrow(&mut e, 1);
    borrow(&mut e, 2);
    assert_eq!(starts(&e.pass(at(10))), [job_id(1)]);
    let why = e.why(job_id(2), at(20)).unwrap();
    assert_eq!((why.fits, &why.blockers[..]), (false, &[Blocker::BurstReserve { boards: 1 }][..]));
    let summary = RequestSummary { model: MODEL.to_owned(), device: DeviceRequest::Board, count: 1 };
    let told = explanation(&why, &summary, at(20));
    assert_eq!(told.blockers[0].code, "capacity.reserve");
    let detail = "The free boards on nodes for inference are a reserve for services: 1 board of each model stays \
                  free of other jobs.";
    assert_eq!(told.blockers[0].detail, detail);
    let request = |work| Request { work, ..boards(1, 1) };
    for (work, fits) in [(Work::Preemptible, false), (Work::Replica, true)] {
        let (why, places) = e.dry_run(&request(work), org(1), Priority::Normal, 600, None, at(20)).unwrap();
        assert_eq!((why.fits, places.len()), (fits, usize::from(fits)), "{work:?}: {why:?}");
        let is_told = why.blockers.contains(&Blocker::BurstReserve { boards: 1 });
        assert_eq!(is_told, !fits, "{work:?}: {why:?}");
        let trial = Trial { request: request(work), priority: Priority::Normal, seconds: 600, inside: None };
        let starting = Snapshot::new(&e).unwrap().list_starting(&[trial], org(1), at(20), 1);
        assert_eq!(starting.len(), usize::from(fits), "{work:?}");
    }
}

#[test]
fn a_job_on_training_nodes_holds_a_start_behind_many_ends_on_nodes_for_inference() {
    let mut e = Engine::default();
    put_burst_reserve(&mut e, 1);
    put(&mut e, 1, NodePool::Training, MODEL, 8);
    (2..=31).for_each(|n| put(&mut e, n, NodePool::Inference, MODEL, 4));
    submit(&mut e, JobFacts { max_duration_s: 7_200, ..waits(1, boards(8, 1)) });
    for n in 0..120 {
        submit(&mut e, JobFacts { max_duration_s: 600 + n as i64, ..job(2 + n, Work::Replica) });
    }
    assert_eq!(starts(&e.pass(at(10))).len(), 121);
    let wide = Request { work: Work::Preemptible, ..boards(8, 1) };
    submit(&mut e, JobFacts { preemptible: true, ..waits(500, wide) });
    assert!(e.pass(at(20)).is_empty());
    let held: Vec<(JobId, Timestamp)> = e.held_starts().map(|(job, b)| (job, b.from)).collect();
    assert_eq!(held, [(job_id(500), at(7_210))]);
}

/// The held start of a job.
fn held(e: &Engine, job: JobId) -> Option<Timestamp> {
    e.held_starts().find(|(of, _)| *of == job).map(|(_, booking)| booking.from)
}

#[test]
fn a_wide_job_holds_a_start_at_the_end_that_completes_the_reserve() {
    // Its own node is free, so no node becomes ready later.
    for (reserve, end) in [(1, 610), (40, 649), (63, 672), (72, 681)] {
        let mut e = reserving(reserve, 8);
        (2..=19).for_each(|n| put(&mut e, n, NodePool::Inference, MODEL, 4));
        for n in 0..72 {
            submit(&mut e, JobFacts { max_duration_s: 600 + n as i64, ..job(2 + n, Work::Replica) });
        }
        assert_eq!(starts(&e.pass(at(10))).len(), 72);
        let wide = Request { work: Work::Preemptible, ..boards(8, 1) };
        submit(&mut e, JobFacts { preemptible: true, ..waits(500, wide) });
        assert!(e.pass(at(20)).is_empty());
        assert_eq!(held(&e, job_id(500)), Some(at(end)), "a reserve of {reserve}");
    }
}

#[test]
fn a_held_start_does_not_move_later_with_each_further_run() {
    let mut e = Engine::default();
    put_burst_reserve(&mut e, 70);
    let add = |e: &mut Engine, n: u128| {
        put(e, n, NodePool::Inference, MODEL, 1);
        submit(e, JobFacts { max_duration_s: 600 + n as i64, ..job(n, Work::Replica) });
    };
    (1..=120).for_each(|n| add(&mut e, n));
    assert_eq!(starts(&e.pass(at(10))).len(), 120);
    borrow(&mut e, 500);
    // A pass searches few nodes.
    assert!((0..8).all(|_| e.pass(at(10)).is_empty()));
    // The 71st end is the first one that suffices. Only each second of the late ends is tried, from the last one.
    assert_eq!(held(&e, job_id(500)), Some(at(10 + 671)));
    for n in 121..=124 {
        add(&mut e, n);
        assert_eq!(starts(&e.pass(at(10))), [job_id(n)]);
        assert_eq!(held(&e, job_id(500)), Some(at(10 + 671)), "after run {n}");
    }
}

#[test]
fn the_cheapest_of_very_many_boards_come_back() {
    let mut e = Engine::default();
    (1..=40).for_each(|n| put(&mut e, n, NodePool::Inference, MODEL, 8));
    for (first, now) in [(1, 10), (161, 500)] {
        (first..first + 160).for_each(|n| borrow(&mut e, n));
        assert_eq!(starts(&e.pass(at(now))).len(), 160);
    }
    put_burst_reserve(&mut e, 100);
    let stopped = reclaimed(&e.pass(at(600)));
    assert_eq!(stopped.len(), 100);
    assert!((1..=160).all(|n| !stopped.contains(&job_id(n))), "the younger runs cost less");
}

#[test]
fn a_replica_counts_all_free_boards_of_other_pools() {
    let mut e = reserving(1, 2);
    put(&mut e, 2, NodePool::Training, MODEL, 5);
    (1..=2).for_each(|n| submit(&mut e, job(n, Work::Replica)));
    assert_eq!(starts(&e.pass(at(10))).len(), 2);
    submit(&mut e, job(3, Work::Replica));
    assert!(e.pass(at(20)).is_empty());
    let why = e.why(job_id(3), at(20)).unwrap();
    assert!(why.blockers.contains(&Blocker::Pool { boards: 5, replica: true }), "{why:?}");
}

#[test]
fn a_run_on_nodes_of_two_groups_completes_both_reserves() {
    let mut e = Engine::default();
    put(&mut e, 1, NodePool::Inference, MODEL, 2);
    let facts = NodeFacts { pool: NodePool::Inference, dedicated_to: Some(org(2)), ..node(2, MODEL, 1) };
    e.apply(Fact::Node { version: 1, facts }, at(0));
    let wide = Request { work: Work::Preemptible, ..boards(1, 2) };
    submit(&mut e, JobFacts { org: org(2), preemptible: true, ..waits(1, wide) });
    assert_eq!(starts(&e.pass(at(10))), [job_id(1)]);
    // A younger run on the shared node alone costs less.
    borrow(&mut e, 2);
    assert_eq!(starts(&e.pass(at(500))), [job_id(2)]);
    put_burst_reserve(&mut e, 1);
    assert_eq!(reclaimed(&e.pass(at(600))), [job_id(1)]);
}

#[test]
fn in_a_large_cluster_a_job_that_leaves_the_reserve_preempts_outside_of_it() {
    // The younger job costs less, and runs on the node for inference.
    for (others, stopped) in [(254, 2), (255, 1)] {
        let mut e = reserving(1, 2);
        put(&mut e, 2, NodePool::Both, MODEL, 1);
        (3..3 + others).for_each(|n| put(&mut e, n, NodePool::Training, "A100-40GB", 1));
        for (n, now) in [(1, 10), (2, 500)] {
            submit(&mut e, JobFacts { priority: Priority::Low, ..job(n, Work::Preemptible) });
            assert_eq!(starts(&e.pass(at(now))), [job_id(n)]);
        }
        borrow(&mut e, 3);
        // A search visits few nodes in each pass.
        let decisions: Vec<Decision> = (0..16).flat_map(|n| e.pass(at(600 + n))).collect();
        let victim = |d: &Decision| match d {
            Decision::Preempt { victim, for_job } if *for_job == Some(job_id(3)) => Some(victim.job),
            _ => None,
        };
        let victims: Vec<JobId> = decisions.iter().filter_map(victim).collect();
        assert_eq!(victims, [job_id(stopped)], "{others}: {decisions:?}");
    }
}

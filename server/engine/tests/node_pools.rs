//! Tests of pools of nodes: for training, for inference and for both.

use berth_engine::{
    Blocker, Decision, Engine, Fact, JobFacts, RequestSummary, Snapshot, Trial, Window, explanation,
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

fn put(e: &mut Engine, n: u128, pool: NodePool, gpus: usize) {
    let facts = NodeFacts { pool, ..node(n, "H100-80GB", gpus) };
    e.apply(Fact::Node { version: 1, facts }, at(0));
}

/// An engine with a node of each of these pools, with `gpus` boards each.
fn pooled(pools: &[NodePool], gpus: usize) -> Engine {
    let mut e = Engine::default();
    for (n, pool) in (1..).zip(pools) {
        put(&mut e, n, *pool, gpus);
    }
    e
}

fn job(n: u128, work: Work) -> JobFacts {
    let preemptible = work == Work::Preemptible;
    JobFacts { preemptible, ..waits(n, Request { work, ..boards(1, 1) }) }
}

fn preemptions(decisions: &[Decision]) -> Vec<(JobId, JobId)> {
    let preemption = |d: &Decision| match d {
        Decision::Preempt { victim, for_job: Some(for_job) } => Some((victim.job, *for_job)),
        _ => None,
    };
    decisions.iter().filter_map(preemption).collect()
}

#[test]
fn each_job_starts_on_the_pools_that_take_it_alone() {
    for (work, expected) in [
        (Work::Training, [true, true, false]),
        (Work::Preemptible, [true, true, true]),
        (Work::Replica, [true, false, true]),
    ] {
        let started = [NodePool::Both, NodePool::Training, NodePool::Inference].map(|pool| {
            let mut e = pooled(&[pool], 1);
            submit(&mut e, job(1, work));
            !starts(&e.pass(at(10))).is_empty()
        });
        assert_eq!(started, expected, "{work:?}");
    }
}

#[test]
fn work_goes_to_its_own_nodes_first() {
    let pools = [NodePool::Both, NodePool::Training, NodePool::Inference];
    for (work, own) in [(Work::Training, vec![2]), (Work::Preemptible, vec![1, 2]), (Work::Replica, vec![3])]
    {
        let mut e = pooled(&pools, 1);
        submit(&mut e, job(1, work));
        let decisions = e.pass(at(10));
        let [Decision::Start { ranks, .. }] = &decisions[..] else { panic!("{work:?}: {decisions:?}") };
        assert!(own.iter().any(|n| node_id(*n) == ranks[0].0), "{work:?}: {ranks:?}");
    }
}

#[test]
fn a_replica_preempts_a_borrowing_job_whatever_its_class() {
    for (pool, preempts) in [(NodePool::Inference, true), (NodePool::Both, false)] {
        // The second node makes pools count in both cases.
        let mut e = pooled(&[pool], 1);
        put(&mut e, 2, NodePool::Training, 0);
        submit(&mut e, JobFacts { priority: Priority::High, ..job(1, Work::Preemptible) });
        assert_eq!(starts(&e.pass(at(10))), [job_id(1)]);
        submit(&mut e, JobFacts { priority: Priority::Low, ..job(2, Work::Replica) });
        let expected = if preempts { vec![(job_id(1), job_id(2))] } else { vec![] };
        assert_eq!(preemptions(&e.pass(at(100))), expected, "{pool:?}");
    }
}

#[test]
fn a_borrowing_job_stays_while_a_replica_fits_elsewhere() {
    let mut e = pooled(&[NodePool::Inference], 1);
    submit(&mut e, job(1, Work::Preemptible));
    assert_eq!(starts(&e.pass(at(10))), [job_id(1)]);
    put(&mut e, 2, NodePool::Both, 1);
    submit(&mut e, job(2, Work::Replica));
    let decisions = e.pass(at(100));
    assert_eq!((starts(&decisions), preemptions(&decisions)), (vec![job_id(2)], vec![]));
}

#[test]
fn the_devices_of_a_borrowing_job_go_to_the_replica() {
    let mut e = pooled(&[NodePool::Inference], 1);
    let high = JobFacts { priority: Priority::High, ..job(1, Work::Preemptible) };
    submit(&mut e, high.clone());
    e.pass(at(10));
    submit(&mut e, JobFacts { preemptible: true, ..job(2, Work::Replica) });
    assert_eq!(preemptions(&e.pass(at(100))), [(job_id(1), job_id(2))]);
    free(&mut e, 1, at(120));
    // The preempted job waits again, and its class is higher.
    submit(&mut e, JobFacts { generation: 5, attempt: 1, ..high });
    let decisions = e.pass(at(121));
    assert_eq!((starts(&decisions), preemptions(&decisions)), (vec![job_id(2)], vec![]));
    assert!(e.pass(at(200)).is_empty(), "the job of a higher class preempts no replica there");
}

#[test]
fn no_other_job_preempts_a_replica_on_a_node_for_inference() {
    for (pool, preempts) in [(NodePool::Inference, false), (NodePool::Both, true)] {
        let mut e = pooled(&[pool], 1);
        put(&mut e, 2, NodePool::Training, 0);
        let replica = JobFacts { priority: Priority::Low, preemptible: true, ..job(1, Work::Replica) };
        submit(&mut e, replica);
        assert_eq!(starts(&e.pass(at(10))), [job_id(1)]);
        submit(&mut e, JobFacts { priority: Priority::High, ..job(2, Work::Preemptible) });
        let expected = if preempts { vec![(job_id(1), job_id(2))] } else { vec![] };
        assert_eq!(preemptions(&e.pass(at(100))), expected, "{pool:?}");
    }
}

#[test]
fn replicas_come_first_in_their_class() {
    for pools in [[NodePool::Both], [NodePool::Inference]] {
        let mut e = pooled(&pools, 1);
        submit(&mut e, job(1, Work::Preemptible));
        submit(&mut e, job(2, Work::Replica));
        assert_eq!(starts(&e.pass(at(10))), [job_id(2)], "{pools:?}");
        let mut e = pooled(&pools, 1);
        submit(&mut e, JobFacts { priority: Priority::High, ..job(1, Work::Preemptible) });
        submit(&mut e, job(2, Work::Replica));
        assert_eq!(starts(&e.pass(at(10))), [job_id(1)], "{pools:?}: a higher class comes first");
    }
    // After 36 hours age alone counts.
    let mut e = pooled(&[NodePool::Both], 1);
    submit(&mut e, job(1, Work::Training));
    submit(&mut e, job(2, Work::Replica));
    assert_eq!(starts(&e.pass(at(37 * 3_600))), [job_id(1)]);
}

#[test]
fn the_jobs_that_give_their_devices_back_soonest_make_room() {
    // The second job has lost less work, and the first one gives its board back sooner.
    for (first_ms, second_ms, expected) in [
        (Some(2_000), Some(40_000), 1),
        (Some(2_000), None, 1),
        (None, Some(2_000), 2),
        // Equal times, and times above the grace: the least lost work decides.
        (Some(2_000), Some(2_000), 2),
        (Some(90_000), Some(80_000), 2),
        (None, None, 2),
    ] {
        let mut e = pooled(&[NodePool::Inference], 2);
        submit(&mut e, JobFacts { gives_back_ms: first_ms, ..job(1, Work::Preemptible) });
        e.pass(at(10));
        submit(&mut e, JobFacts { gives_back_ms: second_ms, ..job(2, Work::Preemptible) });
        e.pass(at(500));
        submit(&mut e, job(3, Work::Replica));
        let stopped = preemptions(&e.pass(at(600)));
        assert_eq!(stopped, [(job_id(expected), job_id(3))], "{first_ms:?}, {second_ms:?}");
    }
}

#[test]
fn a_wait_for_nodes_of_another_pool_is_explained() {
    let mut e = pooled(&[NodePool::Training, NodePool::Inference], 2);
    submit(&mut e, waits(1, boards(2, 1)));
    e.pass(at(10));
    submit(&mut e, job(2, Work::Training));
    e.pass(at(20));
    let why = e.why(job_id(2), at(20)).unwrap();
    assert_eq!(why.blockers, [Blocker::Busy { nodes: 1 }, Blocker::Pool { boards: 2, replica: false }]);
    let summary = RequestSummary { model: "H100-80GB".to_owned(), device: DeviceRequest::Board, count: 1 };
    let told = explanation(&why, &summary, at(20));
    assert_eq!(told.blockers[1].code, "capacity.pool");
    let detail = "2 boards are free on nodes for inference; the job may use them when it is preemptible.";
    assert_eq!(told.blockers[1].detail, detail);
    assert!(told.blockers[1].change.starts_with("Make the job preemptible"), "{}", told.blockers[1].change);
    // The change that the text names starts at once.
    let trial = |work| Trial {
        request: Request { work, ..boards(1, 1) },
        priority: Priority::Normal,
        seconds: 600,
        inside: None,
    };
    let snapshot = Snapshot::new(&e).unwrap();
    let trials = [trial(Work::Training), trial(Work::Preemptible)];
    assert_eq!(snapshot.list_starting(&trials, org(1), at(20), 3), [1]);
    // No node of its own pool could ever hold it.
    submit(&mut e, JobFacts { priority: Priority::High, ..job(3, Work::Replica) });
    put(&mut e, 2, NodePool::Training, 2);
    assert!(starts(&e.pass(at(30))).iter().all(|started| *started != job_id(3)));
    let why = e.why(job_id(3), at(30)).unwrap();
    assert_eq!(why.blockers[0], Blocker::Pool { boards: 0, replica: true });
    let told = explanation(&why, &summary, at(30));
    let detail = "Only nodes for training can hold a whole H100-80GB; they take no replicas of services.";
    assert_eq!(told.blockers[0].detail, detail);
    // An operator can change the pool at once, so a submission is not refused.
    assert_eq!(e.why_impossible(&Request { work: Work::Replica, ..boards(1, 1) }, org(1)), Ok(None));
}

#[test]
fn waiting_jobs_follow_a_change_of_pools_and_runs_stay() {
    let mut e = pooled(&[NodePool::Inference], 1);
    submit(&mut e, job(1, Work::Training));
    assert!(e.pass(at(10)).is_empty());
    put(&mut e, 1, NodePool::Both, 1);
    assert_eq!(starts(&e.pass(at(20))), [job_id(1)]);
    // The run is not preemptible: it stays on a node that takes no such job any more.
    put(&mut e, 1, NodePool::Inference, 1);
    submit(&mut e, job(2, Work::Replica));
    assert!(e.pass(at(30)).is_empty());
    // A run that becomes a borrower is preempted.
    let mut e = pooled(&[NodePool::Both], 1);
    submit(&mut e, JobFacts { priority: Priority::High, ..job(1, Work::Preemptible) });
    e.pass(at(10));
    submit(&mut e, job(2, Work::Replica));
    assert!(e.pass(at(100)).is_empty());
    put(&mut e, 1, NodePool::Inference, 1);
    assert_eq!(preemptions(&e.pass(at(110))), [(job_id(1), job_id(2))]);
}

#[test]
fn a_held_start_leaves_a_node_of_another_pool() {
    let mut e = pooled(&[NodePool::Both, NodePool::Training], 1);
    submit(&mut e, JobFacts { max_duration_s: 1_000, ..job(1, Work::Training) });
    submit(&mut e, JobFacts { max_duration_s: 2_000, ..job(2, Work::Training) });
    assert_eq!(starts(&e.pass(at(10))).len(), 2);
    submit(&mut e, job(3, Work::Training));
    e.pass(at(20));
    let held = |e: &Engine| e.held_starts().map(|(job, b)| (job, b.from)).collect::<Vec<_>>();
    let first = held(&e);
    assert_eq!(first, [(job_id(3), at(1_010))]);
    // The first of the two runs is on the node that changes: both orders of nodes lead to the other one.
    let on =
        |e: &Engine, n: usize| e.cluster().nodes()[n].ranks.iter().any(|rank| rank.owner.job == job_id(1));
    let n = if on(&e, 0) { 1 } else { 2 };
    put(&mut e, n, NodePool::Inference, 1);
    e.pass(at(30));
    assert_eq!(held(&e), [(job_id(3), at(2_010))]);
}

#[test]
fn a_reservation_counts_as_training() {
    for (pool, fits) in [(NodePool::Both, true), (NodePool::Training, true), (NodePool::Inference, false)] {
        let mut e = pooled(&[pool], 1);
        let window = Window { from: at(1_000), until: at(2_000) };
        assert_eq!(e.quote(&boards(1, 1), org(1), window, at(0)).is_ok(), fits, "{pool:?}");
    }
}

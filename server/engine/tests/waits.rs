//! Tests of the details of a wait in clusters of two boards: what is in the way, and trials that start at once.

use berth_engine::{Blocker, Decision, Engine, Fact, JobFacts, Obstacle, Obstacles, Snapshot, Trial};
use berth_placement::cluster::{GpuFacts, NodeFacts};
use berth_placement::networks::{NetworkNeed, NodeNetworks};
use berth_placement::request::{DeviceRequest, Nearness, Request};
use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::jobs::Priority;
use berth_types::time::Timestamp;
use uuid::Uuid;

const HOUR: i64 = 3_600;
const H100: &str = "H100-80GB";
const H200: &str = "H200-141GB";

/// Board models with profiles; no profile stands for the whole board.
const REQUESTS: [(&str, Option<&str>); 5] =
    [(H100, None), (H100, Some("3g.40gb")), (H100, Some("1g.10gb")), (H200, None), (H200, Some("3g.71gb"))];

fn job_id(n: u128) -> JobId {
    JobId::from_uuid(Uuid::from_u128(n))
}

fn org(n: u128) -> OrgId {
    OrgId::from_uuid(Uuid::from_u128(n))
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros(1_800_000_000_000_000).plus_seconds(seconds)
}

fn node(n: u128, model: &str) -> NodeFacts {
    let gpu = GpuFacts {
        uuid: format!("GPU-{n}").into(),
        model: model.into(),
        mig_enabled: true,
        healthy: true,
        island: 0,
        limit_watts: None,
        foreign: Vec::new(),
    };
    NodeFacts {
        id: NodeId::from_uuid(Uuid::from_u128(n)),
        open: true,
        away: false,
        awaited: false,
        lost: false,
        drains_by: None,
        images: true,
        rdma_boards: 0,
        networks: NodeNetworks::ALL,
        storage: Vec::new(),
        cpu_milli: 64_000,
        memory_mib: 512_000,
        switch: None,
        rack: None,
        dedicated_to: None,
        pool: berth_types::node_pools::NodePool::Both,
        gpus: vec![gpu],
    }
}

fn request((model, profile): (&str, Option<&str>)) -> Request {
    Request {
        device: profile.map_or(DeviceRequest::Board, |profile| DeviceRequest::Slice(profile.into())),
        count: 1,
        nodes: 1,
        models: vec![model.into()],
        cpu_milli: 0,
        memory_mib: 0,
        topology: Nearness::Any,
        nvlink: false,
        images: false,
        rdma: false,
        network: NetworkNeed::Any,
        storage: Vec::new(),
        work: berth_placement::pools::Work::Training,
        offering: None,
        nano_per_second: 0,
    }
}

fn facts(n: u128, owner: u128, request: Request, seconds: i64) -> JobFacts {
    JobFacts {
        id: job_id(n),
        generation: 1,
        attempt: 0,
        org: org(owner),
        request,
        priority: Priority::Normal,
        max_duration_s: seconds,
        preemptible: false,
        grace_s: 10,
        gives_back_ms: None,
        queued_at: at(0),
        depends_on: Vec::new(),
        inside: None,
        volume: None,
    }
}

/// A cluster with one H100 and one H200.
fn two_boards() -> Engine {
    let mut engine = Engine::default();
    for (n, model) in [(1, H100), (2, H200)] {
        engine.apply(Fact::Node { version: 1, facts: node(n, model) }, at(0));
    }
    engine
}

fn submit(engine: &mut Engine, facts: JobFacts) {
    engine.apply(Fact::Waits { version: 1, facts }, at(0));
}

/// Submits a job and returns true if the next pass starts it.
fn starts(engine: &mut Engine, facts: JobFacts) -> bool {
    let id = facts.id;
    submit(engine, facts);
    engine.pass(at(10)).iter().any(|one| matches!(one, Decision::Start { job, .. } if *job == id))
}

fn trials() -> Vec<Trial> {
    let trial = |asked: (&str, Option<&str>), seconds: i64| Trial {
        request: request(asked),
        priority: Priority::Normal,
        seconds,
        inside: None,
    };
    REQUESTS.into_iter().flat_map(|asked| [60, 2 * HOUR].map(|seconds| trial(asked, seconds))).collect()
}

#[test]
fn each_trial_that_starts_at_once_does_so_after_its_submission() {
    let (mut tried, mut found) = (0, 0);
    for first in REQUESTS {
        for second in REQUESTS {
            for asked in REQUESTS {
                let mut engine = two_boards();
                starts(&mut engine, facts(1, 1, request(first), HOUR));
                starts(&mut engine, facts(2, 2, request(second), HOUR));
                if starts(&mut engine, facts(3, 1, request(asked), HOUR)) {
                    continue;
                }
                for trial in trials() {
                    tried += 1;
                    let snapshot = Snapshot::new(&engine).unwrap();
                    if snapshot.list_starting(std::slice::from_ref(&trial), org(1), at(10), 1).is_empty() {
                        continue;
                    }
                    found += 1;
                    let mut after = engine.clone();
                    let submitted = facts(4, 1, trial.request.clone(), trial.seconds);
                    assert!(starts(&mut after, submitted), "{first:?} {second:?} {asked:?}: {trial:?}");
                }
            }
        }
    }
    assert!(found > 50 && found < tried, "{found} of {tried}");
}

#[test]
fn a_free_slice_and_a_run_before_the_held_start_are_found() {
    let mut engine = two_boards();
    assert!(starts(&mut engine, facts(1, 1, request((H200, Some("3g.71gb"))), HOUR)));
    assert!(!starts(&mut engine, facts(2, 1, request((H200, None)), HOUR)));
    let trial =
        |asked, seconds| Trial { seconds, request: request(asked), priority: Priority::Normal, inside: None };
    let trials = [
        trial((H200, None), 60),
        trial((H200, Some("3g.71gb")), 60),
        trial((H200, Some("3g.71gb")), 2 * HOUR),
        trial((H100, None), HOUR),
    ];
    let list = |most| Snapshot::new(&engine).unwrap().list_starting(&trials, org(1), at(10), most);
    // The long slice would delay the held start of the whole board.
    assert_eq!(list(9), [1, 3]);
    assert_eq!(list(1), [1]);
}

#[test]
fn only_own_jobs_are_named() {
    for first in [1, 2] {
        for second in [1, 2] {
            for third in [1, 2] {
                let mut engine = two_boards();
                let slice = || request((H100, Some("1g.10gb")));
                assert!(starts(&mut engine, facts(1, first, slice(), HOUR)));
                assert!(starts(&mut engine, facts(2, second, slice(), 2 * HOUR)));
                // It waits ahead of the last job.
                assert!(!starts(&mut engine, facts(3, third, request((H100, None)), HOUR)));
                let last = facts(4, 1, request((H100, None)), HOUR);
                assert!(!starts(&mut engine, last.clone()));
                let blockers = engine.why(job_id(4), at(10)).unwrap().blockers;
                assert!(matches!(blockers[0], Blocker::Busy { .. }), "{blockers:?}");
                let found = Obstacles::list(&mut engine, last, &blockers, at(10));
                assert_eq!(found.len(), blockers.len());
                let owners = [(1, first), (2, second)];
                let own: Vec<JobId> =
                    owners.iter().filter(|(_, owner)| *owner == 1).map(|(n, _)| job_id(*n)).collect();
                let named: Vec<JobId> = found[0].named.iter().map(named_job).collect();
                assert_eq!((named, found[0].others as usize), (own.clone(), 2 - own.len()));
                let ahead = blockers.iter().position(|b| matches!(b, Blocker::Ahead { .. }));
                let named: Option<Vec<JobId>> =
                    ahead.map(|at| found[at].named.iter().map(named_job).collect());
                // A job of another organization may have a later turn.
                let expected = if third == 1 { vec![job_id(3)] } else { Vec::new() };
                assert_eq!(named.unwrap_or_default(), expected);
            }
        }
    }
}

/// The job of an obstacle; a nil id for a booking.
fn named_job(obstacle: &Obstacle) -> JobId {
    match obstacle {
        Obstacle::Job { job, .. } => *job,
        Obstacle::Reservation { .. } | Obstacle::Maintenance { .. } => job_id(0),
    }
}

#[test]
fn the_run_whose_end_frees_a_place_comes_first() {
    let mut engine = two_boards();
    let slice = |profile| request((H100, Some(profile)));
    assert!(starts(&mut engine, facts(1, 1, slice("3g.40gb"), 2 * HOUR)));
    // Both are on the other half of the board.
    assert!(starts(&mut engine, facts(2, 1, slice("1g.10gb"), HOUR)));
    assert!(starts(&mut engine, facts(3, 1, slice("1g.10gb"), 3 * HOUR)));
    let wide = facts(4, 1, slice("3g.40gb"), HOUR);
    assert!(!starts(&mut engine, wide.clone()));
    let blockers = engine.why(job_id(4), at(10)).unwrap().blockers;
    let found = Obstacles::list(&mut engine, wide, &blockers, at(10));
    let job = |n, hours: i64, frees_place| {
        let ends_by = Some(at(10 + hours * HOUR));
        Obstacle::Job { job: job_id(n), ends_by, frees_place }
    };
    assert_eq!(found[0].named, [job(1, 2, true), job(2, 1, false), job(3, 3, false)]);
    assert_eq!((found[0].more, found[0].others), (0, 0));
}

#[test]
fn at_most_five_jobs_are_named() {
    let mut engine = two_boards();
    for n in 1..=7 {
        assert!(starts(&mut engine, facts(n, 1, request((H100, Some("1g.10gb"))), HOUR)));
    }
    let whole = facts(8, 1, request((H100, None)), HOUR);
    assert!(!starts(&mut engine, whole.clone()));
    let blockers = engine.why(job_id(8), at(10)).unwrap().blockers;
    let found = Obstacles::list(&mut engine, whole, &blockers, at(10));
    assert_eq!((found[0].named.len(), found[0].more, found[0].others), (5, 2, 0));
}

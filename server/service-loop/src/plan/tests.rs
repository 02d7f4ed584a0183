//! Tests of the plan: all small worlds against an independent count, and whole lives of services.

mod failures;

use berth_service_types::revisions::RevisionState;
use berth_store::services::replicas::LoopRevision;
use berth_types::ids::ServiceId;
use uuid::Uuid;

use super::super::rollout;
use super::super::world::Terms;
use super::*;

const MAX_S: i64 = 86_400;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros(1_795_000_000_000_000).plus_seconds(seconds)
}

fn revision_id(number: u128) -> RevisionId {
    RevisionId::from_uuid(Uuid::from_u128(number))
}

fn job_id(n: usize) -> JobId {
    JobId::from_uuid(Uuid::from_u128(n as u128 + 1))
}

fn row(number: i64, state: RevisionState, weight_percent: i64, goal_percent: i64) -> LoopRevision {
    LoopRevision {
        id: revision_id(number as u128),
        service_id: ServiceId::from_uuid(Uuid::from_u128(1)),
        number,
        state,
        detail: String::new(),
        weight_percent,
        goal_percent,
        held: false,
        returns: false,
        before_number: None,
    }
}

fn world(rows: &[LoopRevision], steps: &[u8], replicas: Vec<Replica>) -> World {
    let terms = || Terms { ready_within_s: 600, canary_percent: steps.to_vec(), max_duration_s: MAX_S };
    let revision =
        |row: &LoopRevision| Revision { id: row.id, number: rollout::number(row).unwrap(), terms: terms() };
    World {
        halted: false,
        rollout: rollout::load(rows, steps),
        revisions: rows.iter().map(revision).collect(),
        replicas,
    }
}

fn live(replicas: Vec<Replica>) -> World {
    world(&[row(1, RevisionState::Live, 100, 0)], &[], replicas)
}

/// The kinds of replicas in the enumerated worlds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Absent,
    Waiting,
    Starting,
    Ready,
    /// Ready, and near the end of its life.
    Old,
    /// Never ready, beyond its time.
    Late,
    /// Draining, and ready before.
    Draining,
    /// Draining, and never ready.
    DrainingUnused,
    /// Draining, ready before, and in the queue again.
    DrainingAgain,
    /// Its program failed, which the loop sees now.
    Fails,
    /// A person cancelled it, which the loop sees now.
    Cancelled,
    /// It failed a long time ago.
    FailedLongAgo,
}

const KINDS: [Kind; 12] = [
    Kind::Absent,
    Kind::Waiting,
    Kind::Starting,
    Kind::Ready,
    Kind::Old,
    Kind::Late,
    Kind::Draining,
    Kind::DrainingUnused,
    Kind::DrainingAgain,
    Kind::Fails,
    Kind::Cancelled,
    Kind::FailedLongAgo,
];

fn replica(n: usize, kind: Kind) -> Replica {
    let running = |since: i64| ReplicaJob::Running { since: at(since), until: at(since + MAX_S) };
    let base = Replica {
        id: job_id(n),
        revision: revision_id(1),
        created_at: at(-1_000 + i64::try_from(n).unwrap()),
        job: running(-100),
        ready: false,
        first_ready_at: None,
        unready_since: None,
        draining_since: None,
        ended_at: None,
        failed: false,
        is_of_node: false,
        fault: String::new(),
    };
    let was_ready = Some(at(-90));
    match kind {
        Kind::Absent => Replica { job: ReplicaJob::Absent, ..base },
        Kind::Waiting => Replica { job: ReplicaJob::Waiting, ..base },
        Kind::Starting => base,
        Kind::Ready => Replica { ready: true, first_ready_at: was_ready, ..base },
        Kind::Old => Replica { ready: true, first_ready_at: was_ready, job: running(-MAX_S + 500), ..base },
        Kind::Late => Replica { job: running(-700), ..base },
        Kind::Draining => {
            Replica { ready: true, first_ready_at: was_ready, draining_since: Some(at(-20)), ..base }
        }
        Kind::DrainingUnused => Replica { draining_since: Some(at(-20)), ..base },
        Kind::DrainingAgain => Replica {
            job: ReplicaJob::Waiting,
            first_ready_at: was_ready,
            draining_since: Some(at(-20)),
            ..base
        },
        Kind::Fails => Replica { job: ReplicaJob::Ended { own_fault: true }, ..base },
        Kind::Cancelled => Replica { job: ReplicaJob::Ended { own_fault: false }, ..base },
        Kind::FailedLongAgo => Replica {
            job: ReplicaJob::Ended { own_fault: true },
            ended_at: Some(at(-900)),
            failed: true,
            ..base
        },
    }
}

fn inputs(wanted: u32) -> Inputs {
    Inputs { now: at(0), wanted, gateways: Some(Vec::new()), ..Inputs::default() }
}

/// All lists of at most `most` kinds.
fn lists(most: usize) -> Vec<Vec<Kind>> {
    let mut all = vec![Vec::new()];
    let mut last = all.clone();
    for _ in 0..most {
        last = last
            .iter()
            .flat_map(|list: &Vec<Kind>| KINDS.map(|kind| [list.as_slice(), &[kind]].concat()))
            .collect();
        all.extend(last.clone());
    }
    all
}

/// The expected plan for one live revision, counted by hand: counts of new, drained and ended ones.
fn expected(kinds: &[Kind], wanted: usize) -> [usize; 5] {
    let count = |of: &[Kind]| kinds.iter().filter(|kind| of.contains(kind)).count();
    let trying = count(&[Kind::Absent, Kind::Waiting, Kind::Starting]);
    let ready = count(&[Kind::Ready]);
    let fresh = trying + ready;
    let drained_fresh = fresh.saturating_sub(wanted);
    let kept_ready = ready - drained_fresh.saturating_sub(trying);
    let drained_old = count(&[Kind::Old]).saturating_sub(wanted - kept_ready.min(wanted));
    let missing = wanted.saturating_sub(fresh);
    // A failure of this moment makes a pause; an older one lets one replica try.
    let created = if count(&[Kind::Fails, Kind::Late]) > 0 {
        0
    } else if count(&[Kind::FailedLongAgo]) > 0 {
        if trying > 0 { 0 } else { missing.min(1) }
    } else {
        missing
    };
    let ended = count(&[Kind::Fails, Kind::Cancelled]);
    [created, drained_fresh + drained_old, ended, count(&[Kind::Fails]), count(&[Kind::Late])]
}

#[test]
fn all_small_worlds_of_one_revision_agree_with_the_count() {
    let mut worlds = 0;
    for kinds in lists(3) {
        for wanted in 0..=3_usize {
            let replicas: Vec<Replica> =
                kinds.iter().enumerate().map(|(n, kind)| replica(n, *kind)).collect();
            let world = live(replicas);
            let done = plan(&world, &inputs(u32::try_from(wanted).unwrap()));
            let failed = done.ended.iter().filter(|(_, failed)| *failed).count();
            let counts = [done.created.len(), done.drained.len(), done.ended.len(), failed, done.late.len()];
            assert_eq!(counts, expected(&kinds, wanted), "{kinds:?}, {wanted} wanted: {done:?}");
            check_choice(&kinds, &done);
            worlds += 1;
        }
    }
    assert_eq!(worlds, 4 * (1 + 12 + 144 + 1_728));
}

/// The replicas that a plan chooses, whatever their number.
fn check_choice(kinds: &[Kind], done: &Plan) {
    let is = |id: &JobId, of: &[Kind]| {
        kinds.iter().enumerate().any(|(n, kind)| job_id(n) == *id && of.contains(kind))
    };
    for id in &done.drained {
        assert!(is(id, &[Kind::Absent, Kind::Waiting, Kind::Starting, Kind::Ready, Kind::Old]), "{kinds:?}");
        let unready_left = kinds.iter().enumerate().any(|(n, kind)| {
            [Kind::Absent, Kind::Waiting, Kind::Starting].contains(kind) && !done.drained.contains(&job_id(n))
        });
        assert!(!is(id, &[Kind::Ready]) || !unready_left, "a ready one goes last: {kinds:?}");
    }
    for (n, kind) in kinds.iter().enumerate() {
        let (id, drained) = (job_id(n), done.drained.contains(&job_id(n)));
        let submitted = done.submitted.iter().any(|(job, _)| *job == id);
        assert_eq!(submitted, *kind == Kind::Absent && !drained, "{kinds:?}");
        let cancelled = match kind {
            // No gateway reports, so no request is lost.
            Kind::Late | Kind::Draining | Kind::DrainingUnused | Kind::DrainingAgain => true,
            Kind::Waiting | Kind::Starting => drained,
            _ => false,
        };
        assert_eq!(done.cancelled.contains(&id), cancelled, "{kind:?} of {kinds:?}");
    }
}

#[test]
fn a_stopped_service_drains_and_ends_everything() {
    for kinds in lists(3) {
        let replicas: Vec<Replica> = kinds.iter().enumerate().map(|(n, kind)| replica(n, *kind)).collect();
        let world = World { halted: true, ..live(replicas) };
        let done = plan(&world, &inputs(3));
        let going = [Kind::Absent, Kind::Waiting, Kind::Starting, Kind::Ready, Kind::Old];
        let goes = kinds.iter().filter(|kind| going.contains(kind)).count();
        assert_eq!((done.created.len(), done.drained.len()), (0, goes), "{kinds:?}");
        assert_eq!((done.submitted.len(), done.state), (0, ServiceState::Asleep), "{kinds:?}");
    }
}

#[test]
fn the_state_follows_from_the_ready_replicas() {
    for kinds in lists(3) {
        for wanted in 0..=3_u32 {
            let replicas: Vec<Replica> =
                kinds.iter().enumerate().map(|(n, kind)| replica(n, *kind)).collect();
            let done = plan(&live(replicas), &inputs(wanted));
            let count = |of: &[Kind]| kinds.iter().filter(|kind| of.contains(kind)).count();
            let ready = u32::try_from(count(&[Kind::Ready, Kind::Old])).unwrap();
            let failed = count(&[Kind::Fails, Kind::Late, Kind::FailedLongAgo]);
            let state = match (wanted, ready) {
                (0, 0) => ServiceState::Asleep,
                _ if ready >= wanted => ServiceState::Ready,
                (_, 0) if failed >= 3 => ServiceState::Failed,
                (_, 0) => ServiceState::Waking,
                _ => ServiceState::Degraded,
            };
            assert_eq!(done.state, state, "{kinds:?}, {wanted} wanted: {}", done.detail);
        }
    }
}

#[test]
fn a_canary_follows_its_judgement_and_only_at_its_percentage() {
    let rows = [row(1, RevisionState::Live, 90, 0), row(2, RevisionState::Canary, 10, 10)];
    let replicas = || {
        let second = Replica { revision: revision_id(2), ..replica(1, Kind::Ready) };
        vec![replica(0, Kind::Ready), second]
    };
    let fault = Some("3 of 50 requests failed".to_owned());
    for (percent, fault) in [(10, None), (10, fault.clone()), (20, None), (20, fault)] {
        let judged = Some(Judged { revision: 2, percent, fault: fault.clone() });
        let done = plan(&world(&rows, &[10, 50], replicas()), &Inputs { judged, ..inputs(1) });
        let weights = done.rollout.weights();
        let expected = match (percent, fault) {
            // Its one ready replica is enough for the next step too.
            (10, None) => vec![(1, 50), (2, 50)],
            (10, Some(_)) => vec![(1, 100)],
            _ => vec![(1, 90), (2, 10)],
        };
        assert_eq!(weights, expected, "{percent}");
    }
}

#[test]
fn a_promotion_drains_the_revision_before_and_retires_it_without_replicas() {
    let rows = [row(1, RevisionState::Live, 100, 0), row(2, RevisionState::Staging, 0, 100)];
    let second = Replica { revision: revision_id(2), ..replica(1, Kind::Ready) };
    let done = plan(&world(&rows, &[], vec![replica(0, Kind::Ready), second.clone()]), &inputs(1));
    assert_eq!((done.rollout.live(), &done.drained), (Some(2), &vec![job_id(0)]));
    let rows = [row(1, RevisionState::Draining, 0, 0), row(2, RevisionState::Live, 100, 0)];
    let draining = replica(0, Kind::Draining);
    let done = plan(&world(&rows, &[], vec![draining.clone(), second.clone()]), &inputs(1));
    assert!(done.rollout.revisions().any(|(n, r)| n == 1 && format!("{:?}", r.state) == "Draining"));
    let ended = Replica { job: ReplicaJob::Ended { own_fault: true }, ..draining };
    let done = plan(&world(&rows, &[], vec![ended, second]), &inputs(1));
    assert_eq!(done.ended, [((job_id(0), revision_id(1)), false)]);
    assert!(done.rollout.revisions().any(|(n, r)| n == 1 && format!("{:?}", r.state) == "Retired"));
}

#[test]
fn a_drained_replica_ends_after_its_requests_at_its_deadline_or_without_gateways() {
    let since = at(-20);
    let millis = u64::try_from(since.millis()).unwrap();
    let gateway = |seen_s: i64, snapshot: u64, requests: u64, drained: bool| GatewayView {
        at: at(seen_s),
        snapshot,
        requests,
        drained: drained.then(|| job_id(0)).into_iter().collect(),
    };
    let cases = [
        (None, false),
        (Some(vec![]), true),
        (Some(vec![gateway(0, millis + 1, 5, false)]), false),
        (Some(vec![gateway(0, millis + 1, 5, true)]), true),
        (Some(vec![gateway(0, millis + 1, 0, false)]), true),
        // An older snapshot may still send it requests.
        (Some(vec![gateway(0, millis - 1, 0, false)]), false),
        // The snapshot may be as old as the drain.
        (Some(vec![gateway(-16, millis + 1, 0, false)]), false),
        (Some(vec![gateway(0, millis + 1, 0, true), gateway(0, 0, 1, false)]), false),
    ];
    for (gateways, ends) in cases {
        let kinds = [Kind::Draining, Kind::Ready, Kind::DrainingAgain];
        let world = live(kinds.into_iter().enumerate().map(|(n, kind)| replica(n, kind)).collect());
        let done = plan(&world, &Inputs { gateways: gateways.clone(), ..inputs(1) });
        assert_eq!(done.cancelled.contains(&job_id(0)), ends, "{gateways:?}");
        // It would start anew, for no request.
        assert!(done.cancelled.contains(&job_id(2)), "{gateways:?}");
        let now = since.plus_seconds(DRAIN_S);
        let done = plan(&world, &Inputs { now, gateways: gateways.clone(), ..inputs(1) });
        assert!(done.cancelled.contains(&job_id(0)), "{gateways:?}");
    }
}

#[test]
fn an_old_replica_stays_until_its_replacement_is_ready() {
    let old = replica(0, Kind::Old);
    let done = plan(&live(vec![old.clone()]), &inputs(1));
    assert_eq!((done.created.len(), done.drained.len(), done.state), (1, 0, ServiceState::Ready));
    let done = plan(&live(vec![old.clone(), replica(1, Kind::Starting)]), &inputs(1));
    assert_eq!((done.created.len(), done.drained.len()), (0, 0));
    let done = plan(&live(vec![old, replica(1, Kind::Ready)]), &inputs(1));
    assert_eq!((done.created.len(), done.drained), (0, vec![job_id(0)]));
}

#[test]
fn a_short_life_is_replaced_at_its_half() {
    let mut world = live(vec![replica(0, Kind::Ready)]);
    world.revisions[0].terms.max_duration_s = 200;
    for (left_s, created) in [(101, 0), (100, 1)] {
        world.replicas[0].job = ReplicaJob::Running { since: at(-100), until: at(left_s) };
        let done = plan(&world, &inputs(1));
        assert_eq!(done.created.len(), created, "{left_s}");
    }
}

#[test]
fn the_next_look_is_at_the_end_of_a_delay() {
    let inputs = Inputs { delay_ends: Some(at(3)), ..inputs(1) };
    assert_eq!(plan(&live(vec![replica(0, Kind::Ready)]), &inputs).next, Some(at(3)));
}

#[test]
fn a_refused_submission_waits_and_names_the_reason() {
    let refusal = Refusal { until: at(8), detail: "Not enough credit.".to_owned() };
    let refused = || -> BTreeMap<RevisionId, Refusal> { [(revision_id(1), refusal.clone())].into() };
    let world = live(vec![replica(0, Kind::Absent)]);
    let done = plan(&world, &Inputs { refused: refused(), ..inputs(1) });
    assert_eq!((done.submitted.len(), done.next, done.state), (0, Some(at(8)), ServiceState::Failed));
    assert!(done.detail.contains("Not enough credit."), "{}", done.detail);
    let done = plan(&world, &Inputs { now: at(8), refused: refused(), ..inputs(1) });
    assert_eq!(done.submitted, [(job_id(0), revision_id(1))]);
}

#[test]
fn at_most_ten_replicas_begin_in_one_run() {
    let done = plan(&live(Vec::new()), &inputs(25));
    assert_eq!((done.created.len(), done.next), (MOST_NEW, Some(at(0))));
}

/// Applies a plan to a world, as the store does, and lets each job go one step on.
fn next_world(world: &World, done: &Plan, now: Timestamp, made: &mut usize) -> World {
    let mut next = World { rollout: done.rollout.clone(), ..world.clone() };
    for replica in &mut next.replicas {
        if let Some((_, failed)) = done.ended.iter().find(|((id, _), _)| *id == replica.id) {
            (replica.ended_at, replica.failed) = (Some(now), *failed);
            replica.ready = false;
        }
        if done.drained.contains(&replica.id) || done.late.contains(&replica.id) {
            replica.draining_since = Some(now);
            replica.failed |= done.late.contains(&replica.id);
        }
        let begins = ReplicaJob::Running { since: now, until: now.plus_seconds(MAX_S) };
        replica.job = match replica.job {
            _ if done.cancelled.contains(&replica.id) => ReplicaJob::Ended { own_fault: false },
            ReplicaJob::Absent if done.submitted.iter().any(|(id, _)| *id == replica.id) => {
                ReplicaJob::Waiting
            }
            ReplicaJob::Waiting => begins,
            other => other,
        };
        if matches!(replica.job, ReplicaJob::Running { .. }) && replica.ended_at.is_none() {
            replica.ready = true;
            replica.first_ready_at = replica.first_ready_at.or(Some(now));
            replica.unready_since = None;
        }
    }
    for revision in &done.created {
        *made += 1;
        let new = replica(100 + *made, Kind::Absent);
        next.replicas.push(Replica { revision: *revision, created_at: now, ..new });
    }
    next
}

#[test]
fn every_small_world_comes_to_the_wanted_number_and_never_below_its_ready_ones() {
    for kinds in lists(3) {
        for wanted in 0..=3_u32 {
            let replicas: Vec<Replica> =
                kinds.iter().enumerate().map(|(n, kind)| replica(n, *kind)).collect();
            let (mut world, mut made) = (live(replicas), 0);
            let served = |world: &World| {
                world.replicas.iter().filter(|r| r.ready && r.draining_since.is_none()).count()
            };
            let least = served(&world).min(wanted as usize);
            for step in 0..40 {
                let now = at(step * 10);
                let done = plan(&world, &Inputs { now, ..inputs(wanted) });
                world = next_world(&world, &done, now, &mut made);
                assert!(served(&world) >= least, "{kinds:?}, {wanted} wanted, step {step}");
            }
            let open = world.replicas.iter().filter(|r| r.ended_at.is_none()).count();
            assert_eq!((open, served(&world)), (wanted as usize, wanted as usize), "{kinds:?}");
        }
    }
}

//! Tests of the order of jobs: priority, turns of organizations, backfill, preemption, dependencies and volumes.

use berth_engine::{Blocker, Decision, Engine, Fact, HeldVolume, JobFacts, OrgFacts, waits_for_own_org};
use berth_placement::cluster::{BookingId, GpuFacts, NodeFacts, Owner};
use berth_placement::quotas::EngineLimits;
use berth_placement::request::{DeviceRequest, Nearness, Request};
use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::jobs::{Condition, DependsOn, Priority};
use berth_types::time::Timestamp;
use uuid::Uuid;

#[expect(dead_code, reason = "these tests use a part of it")]
mod small;

use small::*;

#[test]
fn the_first_waiting_job_is_never_delayed_by_backfill() {
    let mut e = engine(1, 4);
    let job = |n, count, seconds| JobFacts { max_duration_s: seconds, ..waits(n, boards(count, 1)) };
    submit(&mut e, job(1, 3, 1_000));
    e.pass(at(0));
    submit(&mut e, job(2, 4, 1_000));
    submit(&mut e, job(3, 1, 2_000));
    submit(&mut e, job(4, 1, 900));
    // The free board goes to the job that ends in time, not to the older one.
    assert_eq!(starts(&e.pass(at(0))), [job_id(4)]);
    let why = e.why(job_id(3), at(0)).unwrap();
    assert!(why.blockers.iter().any(|b| matches!(b, Blocker::Ahead { jobs: 1 })), "{why:?}");
    assert_eq!(e.why(job_id(2), at(0)).unwrap().earliest, Some(at(1_000)));
    free(&mut e, 4, at(900));
    assert_eq!(e.pass(at(900)), []);
    free(&mut e, 1, at(950));
    assert_eq!(starts(&e.pass(at(950))), [job_id(2)], "and earlier if boards are free earlier");
}

#[test]
fn organizations_take_turns_and_priority_goes_first() {
    let mut e = engine(1, 4);
    for n in 1..=6 {
        submit(&mut e, waits(n, boards(1, 1)));
    }
    submit(&mut e, JobFacts { org: org(2), ..waits(7, boards(1, 1)) });
    submit(&mut e, JobFacts { org: org(2), ..waits(8, boards(1, 1)) });
    submit(&mut e, JobFacts { priority: Priority::High, ..waits(9, boards(1, 1)) });
    assert_eq!(starts(&e.pass(at(10))), [job_id(9), job_id(7), job_id(1), job_id(8)]);
}

#[test]
fn no_job_waits_for_ever_behind_a_stream_of_higher_classes() {
    let mut e = engine(1, 2);
    submit(&mut e, JobFacts { priority: Priority::Low, org: org(9), ..waits(1, boards(2, 1)) });
    let mut number = 2;
    let mut now = 0;
    let mut running: Vec<(i64, u128)> = Vec::new();
    let began = loop {
        // A stream of small, short jobs of high priority: six jobs always wait.
        while e.waiting() < 6 {
            let facts = JobFacts {
                priority: Priority::High,
                max_duration_s: 600,
                queued_at: at(now),
                ..waits(number, boards(1, 1))
            };
            submit(&mut e, facts);
            number += 1;
        }
        let started = starts(&e.pass(at(now)));
        if started.contains(&job_id(1)) {
            break now;
        }
        running.extend(started.iter().map(|id| (now + 600, id.uuid().as_u128())));
        now += 300;
        running.retain(|(end, n)| {
            if *end <= now {
                free(&mut e, *n, at(now));
            }
            *end > now
        });
        assert!(now < 10 * 86_400, "it never came");
    };
    assert!(began <= 3 * 43_200 + 3_600, "{began}");
}

#[test]
fn the_cheapest_victims_stop_and_only_if_that_helps() {
    let mut e = engine(2, 2);
    let low = |n| JobFacts {
        priority: Priority::Low,
        preemptible: true,
        max_duration_s: 86_400,
        ..waits(n, boards(1, 1))
    };
    submit(&mut e, low(1));
    submit(&mut e, low(2));
    assert_eq!(e.pass(at(0)).len(), 2);
    submit(&mut e, low(3));
    submit(&mut e, low(4));
    assert_eq!(e.pass(at(1_000)).len(), 2);
    // No node has four boards: no run is stopped.
    submit(&mut e, JobFacts { priority: Priority::High, ..waits(5, boards(4, 1)) });
    assert_eq!(e.pass(at(2_000)), []);
    e.apply(Fact::Left { version: 2, job: job_id(5) }, at(2_000));
    // The two younger runs would lose less work.
    submit(&mut e, JobFacts { priority: Priority::High, ..waits(6, boards(2, 1)) });
    let decided = e.pass(at(2_000));
    let victims: Vec<JobId> = decided
        .iter()
        .map(|d| match d {
            Decision::Preempt { victim, for_job } if *for_job == Some(job_id(6)) => victim.job,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(victims, [job_id(3), job_id(4)]);
    assert_eq!(e.pass(at(2_010)), [], "no run is stopped twice");
    free(&mut e, 3, at(2_020));
    free(&mut e, 4, at(2_030));
    assert_eq!(starts(&e.pass(at(2_030))), [job_id(6)]);
    // A run that is not preemptible or of the same class keeps running.
    submit(&mut e, JobFacts { priority: Priority::Low, ..waits(7, boards(2, 1)) });
    assert_eq!(e.pass(at(2_040)), []);
}

#[test]
fn jobs_wait_for_their_dependencies_and_are_orphaned_by_a_failure() {
    let mut e = engine(1, 4);
    let after = |n, on, condition| JobFacts {
        depends_on: vec![DependsOn { job: job_id(on), condition }],
        ..waits(n, boards(1, 1))
    };
    submit(&mut e, after(2, 1, Condition::Succeeded));
    submit(&mut e, after(3, 1, Condition::Finished));
    submit(&mut e, after(4, 2, Condition::Succeeded));
    submit(&mut e, after(5, 5, Condition::Finished));
    assert_eq!(e.pass(at(0)), []);
    assert_eq!(e.why(job_id(2), at(0)).unwrap().blockers, [Blocker::Dependency(vec![job_id(1)])]);
    e.apply(Fact::Ended { job: job_id(1), succeeded: false }, at(1));
    let decided = e.pass(at(1));
    assert_eq!(decided[0], Decision::Orphan { job: job_id(2), generation: 1, on: job_id(1) });
    assert_eq!(starts(&decided), [job_id(3)]);
    // An orphaned job counts as a failure for its dependents.
    e.apply(Fact::Ended { job: job_id(2), succeeded: false }, at(2));
    assert_eq!(e.pass(at(2)), [Decision::Orphan { job: job_id(4), generation: 1, on: job_id(2) }]);
    assert_eq!(e.pass(at(3)), [], "a job that depends on itself waits, and delays no other job");
}

#[test]
fn one_job_writes_to_a_volume_at_a_time() {
    let mut e = engine(1, 2);
    let held = HeldVolume { name: "data".to_owned(), job: job_id(9), saving: false };
    let facts = JobFacts { volume: Some(held.clone()), ..waits(1, boards(1, 1)) };
    submit(&mut e, facts.clone());
    assert_eq!(e.pass(at(0)), [], "a board is free, but the volume is not");
    let why = e.why(job_id(1), at(0)).unwrap();
    assert_eq!((why.fits, why.blockers), (false, vec![Blocker::Volume(held)]));
    e.apply(Fact::Waits { version: 2, facts: JobFacts { volume: None, ..facts } }, at(1));
    assert_eq!(starts(&e.pass(at(1))), [job_id(1)]);
}

#[test]
fn an_impossible_job_leaves_the_queue_until_a_node_can_hold_it() {
    let mut e = engine(1, 2);
    submit(&mut e, waits(1, boards(4, 1)));
    submit(&mut e, waits(2, boards(2, 1)));
    submit(&mut e, waits(3, boards(2, 1)));
    assert_eq!(starts(&e.pass(at(0))), [job_id(2)]);
    // The first job with a possible start has the held start.
    assert_eq!(e.held_starts().map(|(job, _)| job).collect::<Vec<_>>(), [job_id(3)]);
    let why = e.why(job_id(3), at(0)).unwrap();
    assert!(why.blockers.contains(&Blocker::Ahead { jobs: 1 }), "{why:?}");
    e.apply(Fact::Node { version: 1, facts: node(9, "H100-80GB", 4) }, at(1));
    assert_eq!(starts(&e.pass(at(1))), [job_id(1)], "it is the first again");
    e.apply(Fact::Left { version: 2, job: job_id(3) }, at(1));
    assert_eq!(e.waiting(), 0);
}

#[test]
fn in_a_large_cluster_more_than_the_first_job_preempts() {
    let mut e = engine(300, 1);
    for n in 1..=300 {
        submit(&mut e, JobFacts { priority: Priority::Low, preemptible: true, ..waits(n, boards(1, 1)) });
    }
    assert_eq!(starts(&e.pass(at(0))).len(), 300);
    for n in 301..=310 {
        submit(&mut e, JobFacts { priority: Priority::High, ..waits(n, boards(1, 1)) });
    }
    let mut preempted = 0;
    for second in 1..100 {
        let decisions = e.pass(at(second));
        preempted += decisions.iter().filter(|d| matches!(d, Decision::Preempt { .. })).count();
        if !e.is_unfinished() && decisions.is_empty() {
            break;
        }
    }
    assert_eq!(preempted, 10, "one run for each job, and none twice");
}

#[test]
fn a_start_that_was_due_a_moment_ago_comes_with_the_next_pass() {
    let mut e = engine(1, 1);
    submit(&mut e, waits(1, boards(1, 1)));
    for moment in 0..3 {
        let now = at(10).plus_seconds(moment);
        let why = e.why(job_id(1), now).unwrap();
        assert_eq!((why.fits, why.earliest, why.blockers), (true, Some(now), Vec::new()));
    }
}

#[test]
fn a_wait_for_a_limit_or_a_volume_is_a_wait_for_the_organization_and_one_for_boards_is_not() {
    let mut e = engine(1, 2);
    let limit = |e: &mut Engine, boards_milli| {
        let limits = EngineLimits { boards_milli, ..EngineLimits::default() };
        let facts = OrgFacts {
            org: org(1),
            weight: 1.0,
            used: None,
            guaranteed_milli: 0,
            own_nodes_only: false,
            egress_policy: false,
            limits,
        };
        e.apply(Fact::Org(facts), at(0));
    };
    let org_job = |n, o, request| JobFacts { org: org(o), ..waits(n, request) };
    limit(&mut e, Some(1_000));
    let held = HeldVolume { name: "model".to_owned(), job: job_id(9), saving: false };
    let book = BookingId(Uuid::from_u128(9));
    for (n, facts, expected) in [
        (1, org_job(1, 1, boards(1, 1)), false),
        (2, org_job(2, 1, boards(2, 1)), true),
        (3, org_job(3, 2, boards(2, 1)), false),
        (4, JobFacts { volume: Some(held), ..org_job(4, 2, boards(1, 1)) }, true),
        (5, JobFacts { inside: Some(book), ..org_job(5, 1, boards(2, 1)) }, false),
    ] {
        submit(&mut e, facts);
        assert_eq!(waits_for_own_org(&mut e, job_id(n), at(0)), expected, "{n}");
    }
    assert!(!waits_for_own_org(&mut e, job_id(8), at(0)), "an unknown job");
    // The first job runs, so the next small one of its organization waits for the limit.
    assert_eq!(starts(&e.pass(at(10))), [job_id(1)]);
    assert!(!waits_for_own_org(&mut e, job_id(1), at(10)), "it runs");
    submit(&mut e, org_job(6, 1, boards(1, 1)));
    assert!(waits_for_own_org(&mut e, job_id(6), at(10)));
    limit(&mut e, None);
    assert!(!waits_for_own_org(&mut e, job_id(6), at(10)));
}

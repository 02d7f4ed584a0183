//! Tests of the limits of organizations.

use berth_engine::{Blocker, Decision, Engine, Fact, JobFacts, OrgFacts, SuggestedChange};
use berth_placement::cluster::{GpuFacts, NodeFacts, Owner};
use berth_placement::quotas::{EngineLimits, LimitKind};
use berth_placement::request::{DeviceRequest, Nearness, Request};
use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::jobs::Priority;
use berth_types::time::Timestamp;
use uuid::Uuid;

mod small;

use small::*;

fn org_facts(n: u128, limits: EngineLimits) -> OrgFacts {
    OrgFacts {
        org: org(n),
        weight: 1.0,
        used: None,
        guaranteed_milli: 0,
        own_nodes_only: false,
        egress_policy: false,
        limits,
    }
}

fn limit(engine: &mut Engine, n: u128, limits: EngineLimits) {
    engine.apply(Fact::Org(org_facts(n, limits)), at(0));
}

fn most_boards(milli: i64) -> EngineLimits {
    EngineLimits { boards_milli: Some(milli), ..EngineLimits::default() }
}

fn org_job(n: u128, o: u128, request: Request) -> JobFacts {
    JobFacts { org: org(o), ..waits(n, request) }
}

#[test]
fn a_job_at_a_limit_waits_and_delays_no_other_job() {
    let mut e = engine(1, 4);
    limit(&mut e, 1, most_boards(2_000));
    for n in 1..=3 {
        submit(&mut e, org_job(n, 1, boards(1, 1)));
    }
    // A job of a higher class that exceeds the limit gets no held start.
    submit(&mut e, JobFacts { priority: Priority::High, ..org_job(4, 1, boards(3, 1)) });
    submit(&mut e, org_job(5, 2, boards(2, 1)));
    assert_eq!(starts(&e.pass(at(10))), [job_id(1), job_id(5), job_id(2)]);
    assert!(e.calendar().iter().next().is_none(), "a job at a limit has no held start");
    let why = e.why(job_id(3), at(10)).unwrap();
    assert!(
        matches!(why.blockers[0], Blocker::Quota(exceeded) if (exceeded.used, exceeded.limit) == (2_000, 2_000))
    );
    assert!(matches!(e.why(job_id(4), at(10)).unwrap().blockers[0], Blocker::Quota(q) if q.is_permanent()));

    // The end of a run of the organization lets its next job start.
    free(&mut e, 1, at(20));
    assert_eq!(starts(&e.pass(at(20))), [job_id(3)]);
    limit(&mut e, 1, EngineLimits::default());
    free(&mut e, 5, at(30));
    free(&mut e, 2, at(30));
    assert_eq!(starts(&e.pass(at(30))), [job_id(4)], "without a limit it starts like any other job");
}

#[test]
fn a_raised_limit_is_enough_to_start() {
    let mut e = engine(1, 2);
    limit(&mut e, 1, EngineLimits { running_jobs: Some(1), ..EngineLimits::default() });
    submit(&mut e, org_job(1, 1, boards(1, 1)));
    submit(&mut e, org_job(2, 1, boards(1, 1)));
    assert_eq!(starts(&e.pass(at(1))), [job_id(1)]);
    assert_eq!(starts(&e.pass(at(2))), []);
    limit(&mut e, 1, EngineLimits { running_jobs: Some(2), ..EngineLimits::default() });
    assert_eq!(starts(&e.pass(at(3))), [job_id(2)]);
}

#[test]
fn offerings_and_spending_have_limits_of_their_own() {
    let mut e = engine(1, 4);
    let ordered = |name: &str, nano: i64, request: Request| Request {
        offering: Some(name.into()),
        nano_per_second: nano,
        ..request
    };
    let limits = EngineLimits {
        devices_milli: [("whole".into(), 1_000)].into(),
        nano_per_second: Some(50),
        ..EngineLimits::default()
    };
    limit(&mut e, 1, limits);
    submit(&mut e, org_job(1, 1, ordered("whole", 20, boards(1, 1))));
    submit(&mut e, org_job(2, 1, ordered("whole", 20, boards(1, 1))));
    submit(&mut e, org_job(3, 1, ordered("slice", 30, slice("1g.10gb"))));
    submit(&mut e, org_job(4, 1, ordered("slice", 1, slice("1g.10gb"))));
    assert_eq!(starts(&e.pass(at(10))), [job_id(1), job_id(3)]);
    let kinds = |e: &mut Engine, n| {
        let blockers = e.why(job_id(n), at(10)).unwrap().blockers;
        blockers
            .into_iter()
            .filter_map(|b| if let Blocker::Quota(q) = b { Some(q.kind) } else { None })
            .collect::<Vec<_>>()
    };
    assert_eq!(kinds(&mut e, 2), [LimitKind::Spend, LimitKind::Devices]);
    assert_eq!(kinds(&mut e, 4), [LimitKind::Spend]);
    // If only a limit blocks a request, the smallest change is within the limit.
    let two = ordered("other", 100, boards(2, 1));
    let (why, places) = e.dry_run(&two, org(2), Priority::Normal, 60, None, at(10)).unwrap();
    assert!(why.fits && places.len() == 1);
    limit(&mut e, 2, most_boards(1_000));
    let (why, places) = e.dry_run(&two, org(2), Priority::Normal, 60, None, at(10)).unwrap();
    assert!(!why.fits && places.is_empty());
    assert_eq!(why.changes, [vec![SuggestedChange::Count(1)]]);
    let one = ordered("other", 50, boards(1, 1));
    assert!(e.dry_run(&one, org(2), Priority::Normal, 60, None, at(10)).unwrap().0.fits);
}

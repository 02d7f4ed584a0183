//! Tests of the limits of organizations.

use super::*;
use berth_placement::quotas::EngineLimits;

pub(super) fn org_facts(n: u128, limits: EngineLimits) -> OrgFacts {
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
fn the_first_turns_are_those_of_all_admitted_jobs_sorted() {
    let mut e = engine(1, 1);
    limit(&mut e, 1, most_boards(1_000));
    // Organization 1 has used up its limit; the limit of organization 2 admits small jobs.
    submit(&mut e, org_job(1, 1, boards(1, 1)));
    assert_eq!(starts(&e.pass(at(1))), [job_id(1)]);
    limit(&mut e, 2, most_boards(2_000));
    for n in 2..60 {
        let priority = [Priority::Low, Priority::Normal, Priority::High][n as usize % 3];
        let request = boards(1 + u32::try_from(n % 4).unwrap(), 1);
        submit(&mut e, JobFacts { priority, ..org_job(n, 1 + n % 5, request) });
    }
    let now = at(13 * 3_600);
    let may_start = |n: &u128| !matches!((n % 5, n % 4), (0, _) | (1, 2..));
    let mut all: Vec<_> = (2..60).filter(may_start).filter_map(|n| order::turn(&e, job_id(n), now)).collect();
    all.sort_unstable();
    let pool = e.queue.pools()[0];
    for limit in [0, 1, 7, all.len(), 100] {
        let first = &all[..limit.min(all.len())];
        assert_eq!(e.queue.first_turns(pool, order::turns(&e, now), limit), first, "the first {limit}");
    }
}

//! Tests of the engine in small clusters.

mod awaited;
mod calendar;
mod history;
mod power;
mod quotas;
#[path = "../tests/small/mod.rs"]
mod small;
mod why;

use std::sync::Arc;

use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::jobs::{Condition, DependsOn, Priority};
use berth_types::time::Timestamp;
use calendar::{book, window};
use small::*;
use uuid::Uuid;

use super::*;
use berth_placement::cluster::{GpuFacts, NodeFacts, Part};
use berth_placement::request::{DeviceRequest, InvalidRequest, Nearness, Request};

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
fn a_board_that_needs_a_reset_is_lent_whole_as_its_largest_instance() {
    let mut e = Engine::default();
    e.apply(Fact::Node { version: 1, facts: node(1, "A30-24GB", 1) }, at(0));
    submit(&mut e, waits(1, Request { models: vec!["A30-24GB".into()], ..boards(1, 1) }));
    let Decision::Start { ranks, .. } = &e.pass(at(1))[0] else { panic!("it starts") };
    let full = berth_mig::board_by_name("A30").unwrap().full_profile().unwrap();
    let whole = berth_mig::Instance { profile_id: full.id, start: 0 };
    assert_eq!(ranks[0].1[0].part, Part::Slice(whole));
}

#[test]
fn shares_of_a_board_stay_inside_one_organization() {
    let mut e = engine(1, 1);
    let share = |n, o, milli| JobFacts {
        org: org(o),
        ..waits(n, Request { device: DeviceRequest::Share(milli), ..boards(1, 1) })
    };
    submit(&mut e, share(1, 1, 600));
    submit(&mut e, share(2, 2, 300));
    submit(&mut e, share(3, 1, 400));
    let mut started = starts(&e.pass(at(10)));
    started.sort_unstable();
    assert_eq!(started, [job_id(1), job_id(3)]);
    free(&mut e, 1, at(20));
    free(&mut e, 3, at(20));
    assert_eq!(starts(&e.pass(at(20))), [job_id(2)]);
}

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
            Decision::Preempt { victim, for_job } if *for_job == job_id(6) => victim.job,
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
fn invalid_requests_are_refused_by_name() {
    let mut e = engine(1, 2);
    let share = |milli, count| Request { device: DeviceRequest::Share(milli), ..boards(count, 1) };
    for (request, why) in [
        (boards(0, 1), InvalidRequest::Count),
        (boards(1_000_000_000, 1), InvalidRequest::Count),
        (boards(1, 0), InvalidRequest::Nodes),
        (boards(1, 1_000_000_000), InvalidRequest::Nodes),
        (share(0, 1), InvalidRequest::Share),
        (share(1_000, 1), InvalidRequest::Share),
        (share(500, 2), InvalidRequest::Share),
        (Request { cpu_milli: -1, ..boards(1, 1) }, InvalidRequest::Negative),
        (slice("1g.6gb"), InvalidRequest::Profile),
        (Request { models: vec!["NO-SUCH".into()], ..slice("1g.10gb") }, InvalidRequest::Profile),
    ] {
        assert_eq!(Ask::from_request(&request, org(1), &mut e.cluster), Err(why), "{request:?}");
        submit(&mut e, waits(1, request));
        assert_eq!(e.pass(at(0)), []);
        assert_eq!(e.why(job_id(1), at(0)).unwrap().blockers, [Blocker::InvalidRequest(why)]);
        e.apply(Fact::Left { version: 1, job: job_id(1) }, at(0));
    }
    submit(&mut e, waits(1, Request { models: vec!["NO-SUCH".into()], ..boards(1, 1) }));
    assert_eq!(e.pass(at(0)), []);
    assert_eq!(e.why(job_id(1), at(0)).unwrap().blockers, [Blocker::None { count: 0, nodes: 1 }]);
}

#[test]
fn the_change_that_is_named_lets_it_start() {
    let mut e = engine(2, 4);
    book(&mut e, 1, &boards(4, 1), window(500, 9_000), 0).unwrap();
    submit(&mut e, JobFacts { max_duration_s: 20_000, ..waits(1, boards(2, 1)) });
    e.pass(at(0));
    let cases = [
        boards(4, 1),
        boards(3, 2),
        Request { nvlink: true, ..boards(4, 2) },
        Request { topology: Nearness::SameSwitch, ..boards(2, 2) },
    ];
    for (n, request) in cases.into_iter().enumerate() {
        let id = 10 + n as u128;
        submit(&mut e, waits(id, request.clone()));
        assert_eq!(starts(&e.pass(at(1))), [], "{request:?}");
        let why = e.why(job_id(id), at(1)).unwrap();
        assert!(!why.blockers.is_empty() && !why.changes.is_empty(), "{request:?}: {why:?}");
        for changes in why.changes {
            let mut facts = waits(id, request.clone());
            facts.generation += 1;
            for change in &changes {
                match change {
                    SuggestedChange::Seconds(s) => facts.max_duration_s = *s,
                    SuggestedChange::Count(count) => facts.request.count = *count,
                    SuggestedChange::Nodes(nodes) => facts.request.nodes = *nodes,
                    SuggestedChange::Anywhere => facts.request.topology = Nearness::Any,
                    SuggestedChange::WithoutNvlink => facts.request.nvlink = false,
                }
            }
            let mut other = e.clone();
            submit(&mut other, facts);
            assert_eq!(starts(&other.pass(at(1))), [job_id(id)], "{request:?} with {changes:?}");
        }
        e.apply(Fact::Left { version: 5, job: job_id(id) }, at(1));
    }
}

#[test]
fn processors_and_memory_count_and_are_named() {
    let mut e = engine(1, 2);
    let request_job = |n, cpu_milli, memory_mib| waits(n, Request { cpu_milli, memory_mib, ..boards(1, 1) });
    submit(&mut e, request_job(1, 40_000, 1_000));
    assert_eq!(starts(&e.pass(at(0))), [job_id(1)]);
    submit(&mut e, request_job(2, 40_000, 1_000));
    assert_eq!(e.pass(at(0)), []);
    let why = e.why(job_id(2), at(0)).unwrap();
    assert_eq!(why.blockers, [Blocker::Host { nodes: 1, temporary: true }]);
    assert_eq!(why.earliest, Some(at(3_600)));
    submit(&mut e, request_job(3, 24_000, 511_000));
    assert_eq!(starts(&e.pass(at(1))), [job_id(3)], "the rest is enough");
    submit(&mut e, request_job(4, 100_000, 0));
    assert_eq!(e.pass(at(2)), []);
    assert_eq!(e.why(job_id(4), at(2)).unwrap().blockers[0], Blocker::Host { nodes: 1, temporary: false });
}

#[test]
fn a_job_in_an_image_waits_for_a_node_that_runs_images() {
    let mut e = Engine::default();
    let with = |n, images| NodeFacts { images, ..node(n, "H100-80GB", 1) };
    for n in 1..=2 {
        e.apply(Fact::Node { version: 1, facts: with(n, false) }, at(0));
    }
    let request_job = |n, nodes| waits(n, Request { images: true, ..boards(1, nodes) });
    submit(&mut e, request_job(1, 1));
    submit(&mut e, waits(2, boards(1, 1)));
    assert_eq!(starts(&e.pass(at(0))), [job_id(2)], "a job without an image starts");
    let why = e.why(job_id(1), at(0)).unwrap();
    assert_eq!(why.blockers[0], Blocker::Images { nodes: 2 });
    e.apply(Fact::Node { version: 2, facts: with(2, true) }, at(1));
    e.apply(Fact::Node { version: 2, facts: with(3, true) }, at(1));
    assert_eq!(starts(&e.pass(at(1))), [job_id(1)]);
    submit(&mut e, request_job(3, 3));
    assert_eq!(e.pass(at(2)), []);
    assert_eq!(e.why(job_id(3), at(2)).unwrap().blockers, [Blocker::Images { nodes: 1 }]);
}

#[test]
fn a_closed_node_and_an_unhealthy_board_are_blockers() {
    let mut e = engine(2, 1);
    let mut away = node(1, "H100-80GB", 1);
    away.open = false;
    e.apply(Fact::Node { version: 2, facts: away }, at(0));
    let mut unhealthy = node(2, "H100-80GB", 1);
    unhealthy.gpus[0].healthy = false;
    e.apply(Fact::Node { version: 2, facts: unhealthy }, at(0));
    submit(&mut e, waits(1, slice("1g.10gb")));
    assert_eq!(e.pass(at(0)), []);
    let why = e.why(job_id(1), at(0)).unwrap();
    assert_eq!(why.blockers, [Blocker::Away { nodes: 1 }, Blocker::Quarantined { boards: 1 }]);
    let old = node(1, "H100-80GB", 1);
    e.apply(Fact::Node { version: 1, facts: old.clone() }, at(0));
    assert_eq!(e.pass(at(0)), [], "an older fact changes nothing");
    e.apply(Fact::Node { version: 3, facts: old }, at(0));
    assert_eq!(starts(&e.pass(at(0))), [job_id(1)]);
    let uuid: Arc<str> = "GPU-1-0".into();
    let view = e.cluster().node(e.cluster().find_node(node_id(1)).unwrap()).unwrap();
    assert_eq!(view.gpu_index(&uuid), Some(0));
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

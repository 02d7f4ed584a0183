//! Tests of the engine in small clusters.

mod awaited;
mod history;
mod quotas;
#[path = "../tests/small/mod.rs"]
mod small;

use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::jobs::{Condition, DependsOn, Priority};
use berth_types::time::Timestamp;
use small::*;
use uuid::Uuid;

use super::*;
use berth_placement::calendar::{Booking, BookingKind};
use berth_placement::cluster::{GpuFacts, NodeFacts, Part};
use berth_placement::request::{DeviceRequest, InvalidRequest, Nearness, Request};

fn window(from: i64, until: i64) -> Window {
    Window { from: at(from), until: at(until) }
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
    let when = window(500, 9_000);
    let (ask, places, moved) = e.quote(&boards(4, 1), org(1), when, at(0)).unwrap();
    let (id, kind) = (BookingId(Uuid::from_u128(1)), BookingKind::Reservation);
    let Window { from, until } = when;
    e.book(Booking { id, kind, org: org(1), ask: Some(ask), from, until, places }, moved);
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

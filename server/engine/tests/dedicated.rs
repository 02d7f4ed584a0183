//! Tests of dedicated nodes and of organizations that use no others.

use berth_engine::{
    Blocker, Decision, Engine, Fact, JobFacts, OrgFacts, Refusal, RequestSummary, Window, explanation,
    waits_for_own_org,
};
use berth_placement::calendar::{Booking, BookingKind};
use berth_placement::cluster::{BookingId, GpuFacts, NodeFacts, Owner};
use berth_placement::quotas::EngineLimits;
use berth_placement::request::{DeviceRequest, Nearness, Request};
use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::jobs::Priority;
use berth_types::time::Timestamp;
use uuid::Uuid;

#[expect(dead_code, reason = "these tests use a part of it")]
mod small;

use small::*;

/// A world of two organizations and two nodes with a board each: the organization of each node, and the setting "own
/// nodes only" of each organization.
#[derive(Debug, Clone, Copy)]
struct Pools {
    nodes: [Option<u128>; 2],
    own_only: [bool; 2],
}

impl Pools {
    /// All 36 worlds.
    fn list() -> Vec<Self> {
        let dedications = [None, Some(1), Some(2)];
        let nodes = dedications.into_iter().flat_map(|a| dedications.map(|b| [a, b]));
        let settings = [[false, false], [false, true], [true, false], [true, true]];
        nodes.flat_map(|nodes| settings.map(|own_only| Self { nodes, own_only })).collect()
    }

    /// The rule by hand. Nodes and organizations count from one.
    fn takes(&self, n: u128, o: u128) -> bool {
        let ([first, second], [one, two]) = (self.nodes, self.own_only);
        match if n == 1 { first } else { second } {
            Some(other) => other == o,
            None => !(if o == 1 { one } else { two }),
        }
    }

    fn usable(&self, o: u128) -> Vec<u128> {
        (1..=2).filter(|n| self.takes(*n, o)).collect()
    }

    fn engine(&self) -> Engine {
        let mut e = Engine::default();
        for (n, dedicated_to) in (1..).zip(self.nodes) {
            dedicate(&mut e, n, dedicated_to);
        }
        for (o, own_only) in (1..).zip(self.own_only) {
            restrict(&mut e, o, own_only);
        }
        e
    }
}

fn dedicate(e: &mut Engine, n: u128, o: Option<u128>) {
    let facts = NodeFacts { dedicated_to: o.map(org), ..node(n, "H100-80GB", 1) };
    e.apply(Fact::Node { version: 1, facts }, at(0));
}

fn restrict(e: &mut Engine, o: u128, own_nodes_only: bool) {
    let limits = EngineLimits::default();
    let facts = OrgFacts {
        org: org(o),
        weight: 1.0,
        used: None,
        guaranteed_milli: 0,
        own_nodes_only,
        egress_policy: false,
        limits,
    };
    e.apply(Fact::Org(facts), at(0));
}

fn window(from: i64, until: i64) -> Window {
    Window { from: at(from), until: at(until) }
}

fn job_for(n: u128, o: u128, request: Request) -> JobFacts {
    JobFacts { org: org(o), ..waits(n, request) }
}

/// The started jobs with their nodes.
fn places(decisions: &[Decision]) -> Vec<(JobId, Vec<NodeId>)> {
    let start = |d: &Decision| match d {
        Decision::Start { job, ranks, .. } => Some((*job, ranks.iter().map(|(node, _)| *node).collect())),
        _ => None,
    };
    decisions.iter().filter_map(start).collect()
}

#[test]
fn each_place_follows_the_rule_of_dedicated_nodes() {
    for world in Pools::list() {
        let mut e = world.engine();
        // Two jobs of each organization, in both orders of submission.
        for first in [1, 2] {
            let mut e = e.clone();
            let orgs = [first, 3 - first, first, 3 - first];
            for (n, o) in (1..).zip(orgs) {
                submit(&mut e, job_for(n, o, boards(1, 1)));
            }
            let started = places(&e.pass(at(10)));
            let mut free = vec![1, 2];
            for (n, o) in (1..).zip(orgs) {
                let Some((_, nodes)) = started.iter().find(|(job, _)| *job == job_id(n)) else { continue };
                let at_node = (1..=2).find(|at| [node_id(*at)] == nodes[..]).unwrap();
                assert!(world.takes(at_node, o), "{world:?}: a job of {o} on node {at_node}");
                free.retain(|n| *n != at_node);
            }
            for (n, o) in (1..).zip(orgs) {
                if started.iter().all(|(job, _)| *job != job_id(n)) {
                    assert!(free.iter().all(|at| !world.takes(*at, o)), "{world:?}: job {n} of {o} waits");
                    assert!(!e.why(job_id(n), at(10)).unwrap().blockers.is_empty());
                }
            }
        }
        for o in [1, 2] {
            let usable = world.usable(o);
            let ids: Vec<NodeId> = usable.iter().map(|n| node_id(*n)).collect();
            let window = window(1_000, 2_000);
            let quote = e.quote(&boards(1, 1), org(o), window, at(0));
            assert_eq!(quote.is_ok(), !usable.is_empty(), "{world:?}: a quote for {o}");
            if let Ok((_, places, _)) = quote {
                assert!(e.name_places(&places).iter().all(|(node, _)| ids.contains(node)), "{world:?}");
            }
            let both = e.quote(&boards(1, 2), org(o), window, at(0));
            assert_eq!(both.is_ok(), usable.len() == 2, "{world:?}: both nodes for {o}");
            let (why, places) = e.dry_run(&boards(1, 1), org(o), Priority::Normal, 60, None, at(0)).unwrap();
            assert_eq!(why.fits, !usable.is_empty(), "{world:?}: a trial for {o}");
            assert!(places.iter().all(|(node, _)| ids.contains(node)), "{world:?}");
            let never = e.why_impossible(&boards(1, 1), org(o)).unwrap();
            // An operator can dedicate a node at once.
            let anywhere = Pools { own_only: [false; 2], ..world };
            assert_eq!(never.is_some(), anywhere.usable(o).is_empty(), "{world:?}: a submission of {o}");
        }
    }
}

#[test]
fn no_run_stops_for_a_job_that_its_node_does_not_take() {
    for world in Pools::list() {
        let mut e = world.engine();
        for n in 1..=2 {
            let low = JobFacts { priority: Priority::Low, preemptible: true, ..job_for(n, 1, boards(1, 1)) };
            submit(&mut e, low);
        }
        let running = places(&e.pass(at(0)));
        // Runs are preemptible from the next pass on.
        e.pass(at(1));
        submit(&mut e, JobFacts { priority: Priority::High, ..job_for(9, 2, boards(1, 1)) });
        let decisions = e.pass(at(20));
        let victims: Vec<JobId> = decisions
            .iter()
            .filter_map(|d| if let Decision::Preempt { victim, .. } = d { Some(victim.job) } else { None })
            .collect();
        for victim in &victims {
            let (_, nodes) = running.iter().find(|(job, _)| job == victim).unwrap();
            assert!(world.usable(2).iter().any(|n| nodes.contains(&node_id(*n))), "{world:?}");
        }
        let starts = !starts(&decisions).is_empty() || !victims.is_empty();
        assert_eq!(starts, !world.usable(2).is_empty(), "{world:?}");
    }
}

#[test]
fn waiting_jobs_follow_a_change_of_dedicated_nodes() {
    let mut e = Engine::default();
    dedicate(&mut e, 1, Some(1));
    submit(&mut e, job_for(1, 2, boards(1, 1)));
    assert_eq!(starts(&e.pass(at(1))), []);
    dedicate(&mut e, 1, Some(2));
    assert_eq!(starts(&e.pass(at(2))), [job_id(1)]);
    // A run stays on its node, and the next job of its organization is kept off.
    dedicate(&mut e, 1, Some(1));
    submit(&mut e, job_for(2, 2, boards(1, 1)));
    free(&mut e, 1, at(3));
    assert_eq!(starts(&e.pass(at(4))), []);
    dedicate(&mut e, 1, None);
    restrict(&mut e, 2, true);
    assert_eq!(starts(&e.pass(at(5))), []);
    restrict(&mut e, 2, false);
    assert_eq!(starts(&e.pass(at(6))), [job_id(2)]);
}

#[test]
fn a_held_start_leaves_a_node_that_does_not_take_its_job_any_more() {
    let mut e = engine(2, 1);
    for n in 1..=2 {
        submit(
            &mut e,
            JobFacts { max_duration_s: 100 * i64::try_from(n).unwrap(), ..job_for(n, 1, boards(1, 1)) },
        );
    }
    e.pass(at(0));
    submit(&mut e, job_for(3, 2, boards(1, 1)));
    e.pass(at(1));
    let held = |e: &Engine| e.held_starts().map(|(job, b)| (job, b.from)).collect::<Vec<_>>();
    assert_eq!(held(&e), [(job_id(3), at(100))]);
    let free_first = e.held_starts().next().unwrap().1.places[0].node;
    let first = e.cluster().node(free_first).unwrap().facts.id;
    let n = (1..=2).find(|n| node_id(*n) == first).unwrap();
    dedicate(&mut e, n, Some(1));
    e.pass(at(2));
    assert_eq!(held(&e), [(job_id(3), at(200))]);
}

#[test]
fn jobs_take_the_dedicated_nodes_of_their_organization_first() {
    for dedicated in 1..=2 {
        let mut e = engine(2, 1);
        dedicate(&mut e, dedicated, Some(1));
        submit(&mut e, job_for(1, 1, boards(1, 1)));
        assert_eq!(places(&e.pass(at(0))), [(job_id(1), vec![node_id(dedicated)])]);
        submit(&mut e, job_for(2, 1, boards(1, 1)));
        assert_eq!(places(&e.pass(at(1))), [(job_id(2), vec![node_id(3 - dedicated)])]);
    }
}

#[test]
fn a_booking_moves_only_to_nodes_that_take_its_organization() {
    let mut e = engine(2, 1);
    let when = window(1_000, 2_000);
    let (ask, places, moved) = e.quote(&boards(1, 1), org(1), when, at(0)).unwrap();
    let (id, kind) = (BookingId(Uuid::from_u128(1)), BookingKind::Reservation);
    let Window { from, until } = when;
    e.book(Booking { id, kind, org: org(1), ask: Some(ask), from, until, places }, moved);
    // The other node is for organization 2, so the booking cannot move there for organization 3.
    let booked = e.calendar().iter().next().unwrap().places[0].node;
    let other = (1..=2).find(|n| node_id(*n) != e.cluster().node(booked).unwrap().facts.id).unwrap();
    dedicate(&mut e, other, Some(2));
    let refused = e.quote(&boards(1, 1), org(3), window(1_500, 1_600), at(0)).unwrap_err();
    assert!(matches!(refused, Refusal::Taken { .. }), "{refused}");
    assert!(e.quote(&boards(1, 1), org(2), window(1_500, 1_600), at(0)).is_ok());
}

#[test]
fn a_wait_for_own_nodes_is_explained() {
    let mut e = engine(2, 1);
    restrict(&mut e, 1, true);
    submit(&mut e, job_for(1, 1, boards(1, 1)));
    e.pass(at(0));
    let summary = RequestSummary { model: "H100-80GB".to_owned(), device: DeviceRequest::Board, count: 1 };
    let why = e.why(job_id(1), at(0)).unwrap();
    assert_eq!(why.blockers, [Blocker::OwnNodes { busy: 0 }]);
    let text = explanation(&why, &summary, at(0));
    assert_eq!(text.blockers[0].code, "capacity.own_nodes");
    assert!(
        text.blockers[0].detail.starts_with("No node of your organization's own can hold a whole H100-80GB")
    );
    dedicate(&mut e, 2, Some(1));
    assert_eq!(places(&e.pass(at(1))), [(job_id(1), vec![node_id(2)])]);
    submit(&mut e, job_for(2, 1, boards(1, 1)));
    e.pass(at(2));
    let why = e.why(job_id(2), at(2)).unwrap();
    assert_eq!(why.blockers, [Blocker::OwnNodes { busy: 1 }]);
    let detail = &explanation(&why, &summary, at(2)).blockers[0].detail;
    assert!(
        detail
            .starts_with("No node of your organization's own has a whole H100-80GB free: 1 suitable node is")
    );
    assert_eq!(why.earliest, Some(at(3_601)));
}

#[test]
fn a_wait_for_own_jobs_on_own_nodes_is_a_wait_for_the_organization_and_one_for_a_closed_node_is_not() {
    for open in [true, false] {
        let mut e = Pools { nodes: [Some(1), Some(1)], own_only: [true, false] }.engine();
        let facts = NodeFacts { open, dedicated_to: Some(org(1)), ..node(2, "H100-80GB", 1) };
        e.apply(Fact::Node { version: 2, facts }, at(0));
        for n in 1..=3 {
            submit(&mut e, job_for(n, 1, boards(1, 1)));
        }
        assert_eq!(starts(&e.pass(at(10))).len(), if open { 2 } else { 1 });
        assert_eq!(waits_for_own_org(&mut e, job_id(3), at(10)), open);
        restrict(&mut e, 1, false);
        assert!(!waits_for_own_org(&mut e, job_id(3), at(10)), "it may use all nodes");
    }
}

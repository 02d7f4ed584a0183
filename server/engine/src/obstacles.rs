//! The jobs and bookings behind the blockers of a waiting job.
//!
//! Those of other organizations are counted only: their ids do not leave the engine.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_types::ids::{JobId, OrgId};
use berth_types::time::Timestamp;

use super::facts::JobFacts;
use super::held::hold_id;
use super::reasons::{Blocker, ReservationBlocker};
use super::{Engine, WaitingJob, hold, order, place, run_end};
use berth_placement::calendar::{Booking, BookingKind, Exclusions};
use berth_placement::cluster::{BookingId, Node, NodeIx, Owner, Rank};
use berth_placement::quotas::{Exceeded, LimitKind};
use berth_placement::request::Ask;

/// The largest number of named jobs and bookings behind one blocker.
const MAX_NAMED: usize = 5;
/// The largest number of runs whose single end is tried.
const MAX_TRIED: usize = 8;

/// A job or a reservation of the organization, or a maintenance window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obstacle {
    Job {
        job: JobId,
        /// The latest end of its run, if it runs and its end is known.
        ends_by: Option<Timestamp>,
        /// True if the end of this run alone frees a place.
        frees_place: bool,
    },
    Reservation {
        id: BookingId,
        from: Timestamp,
        until: Timestamp,
    },
    Maintenance {
        from: Timestamp,
        until: Timestamp,
    },
}

/// The jobs and bookings behind one blocker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Obstacles {
    /// At most five.
    pub named: Vec<Obstacle>,
    /// The number of further ones that could be named.
    pub more: u32,
    /// The number of jobs and reservations of other organizations.
    pub others: u32,
}

/// A job that waits, or a submission that would wait. An invalid request has no ask.
struct Waiter {
    facts: JobFacts,
    ask: Option<Ask>,
}

impl Obstacles {
    /// Lists what is behind each blocker of a waiting job or of a trial, in the order of the blockers.
    pub fn list(engine: &mut Engine, facts: JobFacts, blockers: &[Blocker], now: Timestamp) -> Vec<Self> {
        let ask = Ask::from_request(&facts.request, facts.org, &mut engine.cluster).ok();
        let waiter = Waiter { facts, ask };
        blockers.iter().map(|blocker| behind(engine, &waiter, blocker, now)).collect()
    }

    fn new(mut named: Vec<Obstacle>, others: usize) -> Self {
        let more = count(named.len().saturating_sub(MAX_NAMED));
        named.truncate(MAX_NAMED);
        Self { named, more, others: count(others) }
    }
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// The objects behind a blocker.
fn behind(engine: &Engine, waiter: &Waiter, blocker: &Blocker, now: Timestamp) -> Obstacles {
    match blocker {
        Blocker::Dependency(jobs) => jobs_named(engine, jobs),
        Blocker::Volume(held) => jobs_named(engine, &[held.job]),
        Blocker::Booking(_, ReservationBlocker::Foreign) => Obstacles::default(),
        Blocker::Booking(id, _) => bookings(waiter, engine.calendar.get(*id).into_iter().collect()),
        Blocker::Busy { .. } | Blocker::OwnNodes { busy: 1.. } => busy(engine, waiter, now),
        Blocker::Host { temporary: true, .. } => {
            let able = |node: NodeIx, host: &Node| is_suitable(engine, waiter, node, host);
            runs(engine, waiter, now, able, |_, _| true)
        }
        Blocker::Power(short) => {
            let in_rack = |_: NodeIx, host: &Node| host.facts.rack.as_ref() == Some(&short.rack);
            runs(engine, waiter, now, in_rack, |_, _| true)
        }
        Blocker::Promised { .. } => promised(engine, waiter, now),
        Blocker::Ahead { jobs } => ahead(engine, waiter, *jobs, now),
        Blocker::Quota(exceeded) => limited(engine, waiter, exceeded),
        Blocker::InvalidRequest(_)
        | Blocker::None { .. }
        | Blocker::Mode { .. }
        | Blocker::Host { temporary: false, .. }
        | Blocker::Images { .. }
        | Blocker::Rdma { .. }
        | Blocker::Network { .. }
        | Blocker::Storage { .. }
        | Blocker::OwnNodes { busy: 0 }
        | Blocker::Pool { .. }
        | Blocker::BurstReserve { .. }
        | Blocker::Away { .. }
        | Blocker::SetAside { .. }
        | Blocker::Quarantined { .. } => Obstacles::default(),
    }
}

/// True for an open node that could hold a rank of the request while empty.
fn is_suitable(engine: &Engine, waiter: &Waiter, node: NodeIx, host: &Node) -> bool {
    host.facts.open && waiter.ask.is_some_and(|ask| place::is_able(engine, node, &ask))
}

/// The runs on suitable boards, or inside the reservation of the job.
fn busy(engine: &Engine, waiter: &Waiter, now: Timestamp) -> Obstacles {
    if let Some(id) = waiter.facts.inside {
        return runs(engine, waiter, now, |_, _| true, |_, rank: &Rank| rank.inside == Some(id));
    }
    let able = |node: NodeIx, host: &Node| is_suitable(engine, waiter, node, host);
    runs(engine, waiter, now, able, |host: &Node, rank: &Rank| {
        let boards = rank.slots.iter().filter_map(|slot| host.gpu_index(&slot.gpu));
        boards
            .map(|index| host.model_ix(index))
            .any(|model| waiter.ask.is_some_and(|a| a.shape.models.has(model)))
    })
}

/// The runs with a rank that counts on a node that suits.
fn runs(
    engine: &Engine,
    waiter: &Waiter,
    now: Timestamp,
    suits: impl Fn(NodeIx, &Node) -> bool,
    counts: impl Fn(&Node, &Rank) -> bool,
) -> Obstacles {
    let mut found: BTreeMap<Owner, (OrgId, Option<Timestamp>)> = BTreeMap::new();
    for node in place::all_nodes(engine) {
        let used = engine.cluster.node(node).filter(|host| !host.ranks.is_empty());
        let Some(host) = used.filter(|host| suits(node, host)) else { continue };
        let ranks = host.ranks.iter().filter(|rank| counts(host, rank));
        found.extend(ranks.map(|rank| (rank.owner, (rank.org, rank.ends_by))));
    }
    let all = found.len();
    found.retain(|_, (org, _)| *org == waiter.facts.org);
    let others = all - found.len();
    let bookings = hold::excluded_bookings(engine, waiter.facts.id, true, now);
    let own = found.into_iter().map(|(owner, (_, ends_by))| (owner, ends_by)).collect();
    named_runs(own, others, |owner| frees_place(engine, waiter, owner, &bookings, now))
}

/// Own runs by their end, those first whose end alone frees a place.
fn named_runs(
    mut own: Vec<(Owner, Option<Timestamp>)>,
    others: usize,
    frees_place: impl Fn(Owner) -> bool,
) -> Obstacles {
    own.sort_unstable_by_key(|(owner, ends_by)| (ends_by.is_none(), *ends_by, *owner));
    let named = own.into_iter().enumerate().map(|(index, (owner, ends_by))| {
        let frees_place = index < MAX_TRIED && frees_place(owner);
        Obstacle::Job { job: owner.job, ends_by, frees_place }
    });
    let mut named: Vec<Obstacle> = named.collect();
    // The order by end stays among equals.
    named.sort_by_key(|one| !matches!(one, Obstacle::Job { frees_place: true, .. }));
    Obstacles::new(named, others)
}

/// True if the end of a run alone frees a place. For jobs on several nodes and inside reservations that is not
/// tried.
fn frees_place(
    engine: &Engine,
    waiter: &Waiter,
    owner: Owner,
    bookings: &[BookingId],
    now: Timestamp,
) -> bool {
    let (Some(ask), Some(claim)) = (waiter.ask, engine.claims.get(owner)) else { return false };
    if waiter.facts.inside.is_some() || ask.nodes != 1 {
        return false;
    }
    let nodes: Vec<NodeIx> = claim.ranks.iter().filter_map(|r| engine.cluster.find_node(r.node)).collect();
    let excluded = Exclusions { bookings, owners: &[owner], ..Exclusions::default() };
    let span = (now, run_end(now, waiter.facts.max_duration_s));
    place::find_places_at(engine, &ask, &nodes, span, now, excluded).is_some()
}

/// Jobs of the organization by their ids, each with the end of its run.
fn jobs_named(engine: &Engine, jobs: &[JobId]) -> Obstacles {
    let first = jobs.get(..MAX_NAMED.min(jobs.len())).unwrap_or_default();
    let mut ends: BTreeMap<JobId, Timestamp> = BTreeMap::new();
    for claim in engine.claims.iter().filter(|claim| first.contains(&claim.owner.job)) {
        if let Some(end) = claim.ends_by {
            ends.insert(claim.owner.job, end);
        }
    }
    let job = |job: &JobId| Obstacle::Job { job: *job, ends_by: ends.get(job).copied(), frees_place: false };
    Obstacles::new(jobs.iter().map(job).collect(), 0)
}

/// The bookings as obstacles, the first begin first.
fn bookings(waiter: &Waiter, mut met: Vec<&Booking>) -> Obstacles {
    met.sort_unstable_by_key(|b| (b.from, b.id));
    let all = met.len();
    let named = |b: &&Booking| match b.kind {
        BookingKind::Maintenance => Some(Obstacle::Maintenance { from: b.from, until: b.until }),
        _ if b.org != waiter.facts.org => None,
        BookingKind::Reservation => Some(Obstacle::Reservation { id: b.id, from: b.from, until: b.until }),
        BookingKind::Hold => {
            let job = JobId::from_uuid(b.id.0);
            Some(Obstacle::Job { job, ends_by: None, frees_place: false })
        }
    };
    let named: Vec<Obstacle> = met.iter().filter_map(named).collect();
    let others = all - named.len();
    Obstacles::new(named, others)
}

/// The bookings on suitable boards during a run from now on, or the held starts inside the reservation.
fn promised(engine: &Engine, waiter: &Waiter, now: Timestamp) -> Obstacles {
    if let Some(id) = waiter.facts.inside {
        let held = engine.holds.inside(id).iter().map(|held| held.job).filter(|job| *job != waiter.facts.id);
        return jobs_named(engine, &held.collect::<Vec<_>>());
    }
    let Some(ask) = waiter.ask else { return Obstacles::default() };
    let until = run_end(now, waiter.facts.max_duration_s);
    let excluded = hold::excluded_bookings(engine, waiter.facts.id, true, now);
    let met = engine.calendar.iter().filter(|b| {
        let own = b.id == hold_id(waiter.facts.id) || excluded.contains(&b.id);
        let meets =
            |node| place::has_board_of(engine, node, ask.shape.models) && place::takes(engine, node, &ask);
        !own && b.from < until && b.until > now && b.places.iter().any(|place| meets(place.node))
    });
    bookings(waiter, met.collect())
}

/// The waiting jobs with earlier turns.
fn ahead(engine: &Engine, waiter: &Waiter, jobs: u32, now: Timestamp) -> Obstacles {
    let own_turn = order::turn(engine, waiter.facts.id, now);
    let own_models = waiter.ask.map_or(0, |ask| ask.shape.models.0);
    let is_ahead = |job: JobId, other: &WaitingJob| {
        let models = other.ask.map_or(0, |ask| ask.shape.models.0);
        let competes = other.facts.inside == waiter.facts.inside && models & own_models != 0;
        competes
            && job != waiter.facts.id
            && match (own_turn, order::turn(engine, job, now)) {
                (Some(own), Some(turn)) => turn < own,
                // A submission comes after the jobs of its organization in its class.
                (None, Some(_)) => other.facts.priority.rank() >= waiter.facts.priority.rank(),
                (_, None) => false,
            }
    };
    let own = engine.jobs.iter().filter(|(_, other)| other.facts.org == waiter.facts.org);
    let own = own.filter(|(job, other)| is_ahead(**job, other));
    let mut own: Vec<(Timestamp, JobId)> = own.map(|(job, other)| (other.facts.queued_at, *job)).collect();
    own.sort_unstable();
    let others = (jobs as usize).saturating_sub(own.len());
    let own: Vec<JobId> = own.into_iter().map(|(_, job)| job).collect();
    Obstacles { others: count(others), ..jobs_named(engine, &own) }
}

/// The runs of the organization that count against a limit, by their end.
fn limited(engine: &Engine, waiter: &Waiter, exceeded: &Exceeded) -> Obstacles {
    let counts = engine.claims.iter().filter(|claim| claim.org == waiter.facts.org && claim.inside.is_none());
    let same = |offering: &Option<Arc<str>>| {
        exceeded.kind != LimitKind::Devices || *offering == waiter.facts.request.offering
    };
    let own = counts.filter(|claim| same(&claim.bill.offering)).map(|claim| (claim.owner, claim.ends_by));
    named_runs(own.collect(), 0, |_| false)
}

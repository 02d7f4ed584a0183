//! The reasons of a waiting job: all its blockers, the changes with which it would start, and its earliest
//! start.

use std::sync::Arc;

use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::jobs::{DependsOn, Priority};
use berth_types::time::Timestamp;

use super::facts::JobFacts;
use super::held::hold_id;
use super::inside::InsideRun;
use super::reasons::{Blocker, ReservationBlocker, SuggestedChange, WaitReasons};
use super::trials::Trial;
use super::{
    Engine, Span, WaitingJob, apply, find_node_id, forecast, hold, impossible, inside, node_pools, order,
    place, ready, reclaim, run_end, shortage,
};
use berth_placement::calendar::{Booking, Exclusions, NodeSlots};
use berth_placement::cluster::{BookingId, NodeIx, Rank, Slot, missing_storage};
use berth_placement::fair_share::OrgIx;
use berth_placement::networks::NetworkNeed;
use berth_placement::request::{Ask, InvalidRequest, Nearness, Request};

/// The largest count of jobs ahead, and of changes to try.
const MAX_COUNTED: usize = 1_000;

impl Engine {
    /// The reasons of a waiting job; `None` if the job does not wait.
    pub fn why(&mut self, job: JobId, now: Timestamp) -> Option<WaitReasons> {
        let waiting = self.jobs.get(&job)?.clone();
        let facts = &waiting.facts;
        let mut blockers = Vec::new();
        let open = |d: &&DependsOn| !self.dependencies.is_met(d);
        let on: Vec<JobId> = facts.depends_on.iter().filter(open).map(|d| d.job).collect();
        if !on.is_empty() {
            // Its place is searched after the end of the dependencies.
            blockers.push(Blocker::Dependency(on));
            return Some(WaitReasons { blockers, changes: Vec::new(), earliest: None, fits: false });
        }
        if let Some(held) = facts.volume.clone() {
            // Its place is searched once the volume is free.
            blockers.push(Blocker::Volume(held));
            return Some(WaitReasons { blockers, changes: Vec::new(), earliest: None, fits: false });
        }
        let ask = match Ask::from_request(&facts.request, facts.org, &mut self.cluster) {
            Ok(ask) => ask,
            Err(invalid) => {
                blockers.push(Blocker::InvalidRequest(invalid));
                return Some(WaitReasons { blockers, changes: Vec::new(), earliest: None, fits: false });
            }
        };
        let seconds = facts.max_duration_s;
        let mut why = match facts.inside {
            Some(id) => why_inside(self, job, &ask, id, facts, now),
            None => why_open(self, job, &ask, facts, now),
        };
        blockers.append(&mut why.blockers);
        why.blockers = blockers;
        set_start(self, &mut why, job, seconds, now);
        Some(why)
    }

    /// The reasons and places of a request as if it were submitted now, in a booking if it names one.
    ///
    /// # Errors
    /// No cluster could ever meet the request.
    pub fn dry_run(
        &mut self,
        request: &Request,
        org: OrgId,
        priority: Priority,
        seconds: i64,
        booking: Option<BookingId>,
        now: Timestamp,
    ) -> Result<(WaitReasons, Vec<(NodeId, Vec<Slot>)>), InvalidRequest> {
        let ask = Ask::from_request(request, org, &mut self.cluster)?;
        let trial = Trial { request: request.clone(), priority, seconds, inside: booking };
        let facts = trial.facts(org, now);
        let simulated = if forecast::is_small(self) { why_if_submitted(self, &facts, now) } else { None };
        let why = match (simulated, booking) {
            (Some(why), _) => why,
            (None, Some(id)) => why_inside(self, facts.id, &ask, id, &facts, now),
            (None, None) => why_ask(self, &ask, org, seconds, &[], now),
        };
        let places = match booking {
            _ if !why.fits => None,
            Some(id) => {
                let span = (now, run_end(now, seconds));
                inside::find_places_now(self, &ask, id, (facts.id, span), now, false)
            }
            None => place::find_places(self, &ask, now, run_end(now, seconds), Exclusions::default()),
        };
        let places = places.unwrap_or_default();
        let named = places.into_iter().filter_map(|p| Some((find_node_id(&self.cluster, p.node)?, p.slots)));
        Ok((why, named.collect()))
    }
}

/// True if the organization of a waiting job itself keeps it waiting: by a limit, by the writer of a volume, or by its own
/// jobs on the dedicated nodes that it uses alone.
pub fn waits_for_own_org(engine: &mut Engine, job: JobId, now: Timestamp) -> bool {
    let Some(WaitingJob { facts, ask, .. }) = engine.jobs.get(&job) else { return false };
    if facts.volume.is_some() {
        return true;
    }
    let (Some(ask), org, is_reserved) = (*ask, facts.org, facts.inside.is_some()) else { return false };
    let (need, org) = (ask.need(&engine.cluster), engine.shares.index(org));
    // A reservation counts against the limits, and its jobs do not.
    if !is_reserved && !engine.quotas.admits(org, &need) {
        return true;
    }
    if !ask.shape.tenancy.own_only {
        return false;
    }
    let blockers = engine.why(job, now).map(|why| why.blockers).unwrap_or_default();
    let is_own =
        |blocker: &Blocker| matches!(blocker, Blocker::OwnNodes { busy: 1.. } | Blocker::Ahead { .. });
    matches!(blockers.first(), Some(Blocker::OwnNodes { .. })) && blockers.iter().all(is_own)
}

/// The reasons of a job without a reservation.
fn why_open(engine: &mut Engine, job: JobId, ask: &Ask, facts: &JobFacts, now: Timestamp) -> WaitReasons {
    let excluded = hold::excluded_bookings(engine, job, true, now);
    let mut why = why_ask(engine, ask, facts.org, facts.max_duration_s, &excluded, now);
    let ahead = order::turn(engine, job, now).map_or(0, |turn| {
        let models = ask.shape.models;
        // Jobs outside the queue count if the limits of their organizations admit them.
        let held = engine.holds.iter().map(|(job, _)| job).filter(|other| engine.holds.is_aside(*other));
        let aside = held.chain(engine.impossible.iter().copied()).filter(|other| {
            let request = engine.jobs.get(other).and_then(|w| Some((w.lane?.group, w.ask?)));
            request.is_some_and(|(group, ask)| {
                ask.shape.models.0 & models.0 != 0 && order::turns(engine, now).admits(group, &ask)
            }) && order::turn(engine, *other, now).is_some_and(|t| t < turn)
        });
        let aside = aside.take(MAX_COUNTED).count();
        engine.queue.count_ahead(models, turn, order::turns(engine, now), MAX_COUNTED) + aside
    });
    if ahead > 0 {
        why.blockers.push(Blocker::Ahead { jobs: u32::try_from(ahead).unwrap_or(u32::MAX) });
    }
    why
}

/// The reasons of a job in a reservation.
fn why_inside(
    engine: &Engine,
    job: JobId,
    ask: &Ask,
    id: BookingId,
    facts: &JobFacts,
    now: Timestamp,
) -> WaitReasons {
    let mut why = WaitReasons { blockers: Vec::new(), changes: Vec::new(), earliest: None, fits: false };
    let run = InsideRun::new(facts);
    let closed = match engine.calendar.get(id) {
        None => Some(ReservationBlocker::Over),
        Some(b) if b.org != facts.org => Some(ReservationBlocker::Foreign),
        Some(b) if run.span(b.from.max(now), b).is_none() => {
            let left_s = (b.until.micros() - b.from.max(now).micros()) / 1_000_000;
            Some(ReservationBlocker::TooShort { left_s })
        }
        Some(b) if b.from > now => Some(ReservationBlocker::NotBegun { begins: b.from }),
        Some(_) => None,
    };
    if let Some(closed) = closed {
        if let ReservationBlocker::TooShort { left_s } = closed
            && left_s > 0
            && inside::find_places_now(engine, ask, id, (job, (now, run_end(now, left_s))), now, false)
                .is_some()
        {
            why.changes.push(vec![SuggestedChange::Seconds(left_s)]);
        }
        why.blockers.push(Blocker::Booking(id, closed));
        return why;
    }
    let span = engine.calendar.get(id).and_then(|booking| run.span(now, booking));
    let span = span.unwrap_or((now, run_end(now, facts.max_duration_s)));
    let place = |ask: &Ask, alone| inside::find_places_now(engine, ask, id, (job, span), now, alone);
    why.fits = place(ask, false).is_some();
    if !why.fits {
        let nodes = ask.nodes;
        let (mut plain, mut without_rdma) = (*ask, *ask);
        plain.shape.images = false;
        without_rdma.shape.rdma = false;
        let mut open = *ask;
        open.shape.network = NetworkNeed::Any;
        let mut unmounted = plain;
        unmounted.shape.storage = 0;
        let promised = engine.holds.inside_begins(id, job);
        why.blockers.push(match promised {
            _ if ask.shape.images && place(&plain, false).is_some() => Blocker::Images { nodes },
            _ if ask.shape.rdma && place(&without_rdma, false).is_some() => Blocker::Rdma { nodes },
            _ if open != *ask && place(&open, false).is_some() => Blocker::Network { nodes },
            _ if ask.shape.storage != 0 && place(&unmounted, false).is_some() => {
                let class =
                    missing_storage(&engine.cluster, ask.shape.storage, &[]).cloned().unwrap_or_default();
                Blocker::Storage { nodes, class }
            }
            Some(begins) if place(ask, true).is_some() => Blocker::Promised { begins },
            _ => why_not_inside(engine, ask, id, span, now),
        });
    }
    let turn = order::turn(engine, job, now);
    let mut before = engine.queue.inside(id, order::turns(engine, now));
    // A job that does not fit into the rest of the reservation delays no other job.
    let fits = |job| engine.calendar.get(id).is_some_and(|b| inside::find_job(engine, job, b, now).is_some());
    before.retain(|t| Some(*t) < turn && fits(t.job));
    let before = before.len();
    if before > 0 {
        why.blockers.push(Blocker::Ahead { jobs: u32::try_from(before).unwrap_or(u32::MAX) });
    }
    why
}

/// The reason for which the boards of a reservation have no place for a job, apart from other waiting
/// jobs.
fn why_not_inside(engine: &Engine, ask: &Ask, id: BookingId, span: Span, now: Timestamp) -> Blocker {
    let places = engine.calendar.get(id).map(|b| b.places.as_slice()).unwrap_or_default();
    let mut nodes: Vec<NodeIx> = places.iter().map(|p| p.node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let host = |node: &NodeIx| engine.cluster.node(*node);
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let away = nodes.iter().filter(|n| host(n).is_some_and(|n| !n.facts.open)).count();
    let is_aside = |n: &&NodeIx| host(n).is_some_and(|n| ask.shape.gang && n.facts.networks.aside);
    let aside = nodes.iter().filter(is_aside).count();
    let booked = |uuid: &Arc<str>| places.iter().flat_map(|p| &p.slots).any(|s| s.gpu == *uuid);
    let gpus = nodes.iter().filter_map(host).flat_map(|n| &n.facts.gpus);
    let quarantined = gpus.filter(|g| !g.healthy && booked(&g.uuid)).count();
    if away > 0 {
        Blocker::Away { nodes: count(away) }
    } else if aside > 0 {
        Blocker::SetAside { nodes: count(aside) }
    } else if quarantined > 0 {
        Blocker::Quarantined { boards: count(quarantined) }
    } else if !inside::could_hold(engine, ask, id, span, now) {
        Blocker::Booking(id, ReservationBlocker::TooSmall)
    } else {
        Blocker::Busy { nodes: ask.nodes }
    }
}

/// Sets the expected start of a job and `fits`, and completes the blockers of a job that does not start
/// now.
fn set_start(engine: &mut Engine, why: &mut WaitReasons, job: JobId, seconds: i64, now: Timestamp) {
    let held = engine.held_starts().find(|(other, _)| *other == job).map(|(_, b)| b.from);
    let first = !why.blockers.iter().any(|b| matches!(b, Blocker::Ahead { .. }));
    (why.fits, why.earliest) = match forecast::start(engine, job, now) {
        // A start of an earlier forecast may be due now.
        Some(at) => (at.is_some_and(|at| at <= now), at.map(|at| at.max(now))),
        None if why.fits && first => (true, Some(now)),
        None => (false, held),
    };
    if let Some(Blocker::Booking(id, ReservationBlocker::NotBegun { .. })) = why.blockers.first()
        && let Some(begins) = engine.calendar.get(*id).map(|b| b.from)
    {
        why.earliest = why.earliest.map(|at| at.max(begins));
    }
    if why.fits {
        why.blockers.clear();
        why.changes.clear();
    } else if why.blockers.is_empty() {
        // A job with an earlier turn takes the free place, or its power or the rest of a limit.
        let until = run_end(now, seconds);
        let begins = promised_beside(engine, job).filter(|b| b.from > now && b.from < until).map(|b| b.from);
        why.blockers.push(match begins.min() {
            Some(begins) => Blocker::Promised { begins },
            None => Blocker::Ahead { jobs: 1 },
        });
    }
}

/// The bookings that may be an obstacle to a job, apart from its own.
fn promised_beside(engine: &Engine, job: JobId) -> impl Iterator<Item = &Booking> {
    let models = engine.jobs.get(&job).and_then(|w| w.ask).map_or(u64::MAX, |ask| ask.shape.models.0);
    let any = !engine.racks.is_empty();
    let ask = engine.jobs.get(&job).and_then(|waiting| waiting.ask);
    let meets = move |b: &&Booking| {
        let takes = |p: &NodeSlots| ask.is_none_or(|ask| place::takes(engine, p.node, &ask));
        any || b.ask.is_none_or(|ask| ask.shape.models.0 & models != 0) && b.places.iter().any(takes)
    };
    engine.calendar.iter().filter(move |b| b.id != hold_id(job)).filter(meets)
}

/// The reasons of a job in a copy of the engine that has it.
fn why_if_submitted(engine: &Engine, facts: &JobFacts, now: Timestamp) -> Option<WaitReasons> {
    let mut copy = engine.clone();
    apply::put_job(&mut copy, facts.clone());
    copy.why(facts.id, now)
}

/// The reasons for which a request cannot start now, apart from other waiting jobs.
fn why_ask(
    engine: &mut Engine,
    ask: &Ask,
    org: OrgId,
    seconds: i64,
    excluded: &[BookingId],
    now: Timestamp,
) -> WaitReasons {
    let org = engine.shares.index(org);
    let need = ask.need(&engine.cluster);
    let limits: Vec<Blocker> = engine.quotas.exceeded(org, &need).map(Blocker::Quota).collect();
    if limits.is_empty() {
        return why_place(engine, ask, org, seconds, excluded, now);
    }
    let place = why_place(engine, ask, org, seconds, excluded, now);
    let blockers = limits.into_iter().chain(place.blockers).collect();
    let changes = if place.fits { changes(engine, ask, org, seconds, excluded, now) } else { place.changes };
    // The end of other runs of its organization may come before their limits, so no start is known.
    WaitReasons { blockers, changes, earliest: None, fits: false }
}

/// The same without limits of organizations.
fn why_place(
    engine: &mut Engine,
    ask: &Ask,
    org: OrgIx,
    seconds: i64,
    excluded: &[BookingId],
    now: Timestamp,
) -> WaitReasons {
    let until = run_end(now, seconds);
    let exclusions = Exclusions { bookings: excluded, owners: &[], ..Exclusions::default() };
    if place::find_places(engine, ask, now, until, exclusions).is_some() {
        return WaitReasons { blockers: Vec::new(), changes: Vec::new(), earliest: Some(now), fits: true };
    }
    let shared = shortage::blocker(engine, ask, (now, until), exclusions)
        .or_else(|| reclaim::blocker(engine, ask, (now, until), exclusions));
    if let Some(blocker) = shared {
        let changes = changes(engine, ask, org, seconds, excluded, now);
        let blockers = vec![blocker];
        return WaitReasons { blockers, changes, earliest: None, fits: false };
    }
    let able = place::able_nodes(engine, ask);
    let mut bare = *ask;
    (bare.shape.cpu_milli, bare.shape.memory_mib) = (0, 0);
    if let Some(blocker) = impossible::why_ask_impossible(engine, ask, &able) {
        let changes = match blocker {
            Blocker::None { .. } | Blocker::OwnNodes { .. } | Blocker::Pool { .. } => {
                changes(engine, ask, org, seconds, excluded, now)
            }
            _ => Vec::new(),
        };
        return WaitReasons { blockers: vec![blocker], changes, earliest: None, fits: false };
    }
    let (mut busy, mut away, mut aside, mut quarantined, mut short_of_cpu) = (0, 0, 0, 0, 0);
    let mut begins: Option<Timestamp> = None;
    let pooled = node_pools::free_elsewhere(engine, ask, (now, until), exclusions);
    for node in &able {
        let Some(host) = engine.cluster.node(*node) else { continue };
        if !host.facts.open {
            away += 1;
            continue;
        }
        if ask.shape.gang && host.facts.networks.aside {
            aside += 1;
            continue;
        }
        let fits = |view| engine.finder.offer(&engine.cluster, &view, &ask.shape).is_some();
        if fits(*host.view()) {
            begins = begins.max(first_conflict(engine, *node, ask, (now, until), exclusions));
            continue;
        }
        let boards = |view| engine.finder.offer(&engine.cluster, &view, &bare.shape).is_some();
        if boards(*host.view()) {
            short_of_cpu += 1;
        } else if fits(engine.cluster.view_of(host, |_: &Rank| false)) {
            busy += 1;
        }
        let unhealthy = host.facts.gpus.iter().filter(|g| !g.healthy);
        let suits = |g: &&berth_placement::cluster::GpuFacts| {
            engine.cluster.find_model(&g.model).is_some_and(|m| ask.shape.models.has(m))
        };
        quarantined += u32::try_from(unhealthy.filter(suits).count()).unwrap_or(0);
    }
    let found = [
        (busy > 0).then(|| in_use(ask, busy)),
        (short_of_cpu > 0).then_some(Blocker::Host { nodes: short_of_cpu, temporary: true }),
        begins.map(|begins| Blocker::Promised { begins }),
        (away > 0).then_some(Blocker::Away { nodes: away }),
        (aside > 0).then_some(Blocker::SetAside { nodes: aside }),
        (quarantined > 0).then_some(Blocker::Quarantined { boards: quarantined }),
        (pooled > 0).then(|| node_pools::blocker(ask, pooled)),
    ];
    let mut blockers: Vec<Blocker> = found.into_iter().flatten().collect();
    if blockers.iter().all(|blocker| matches!(blocker, Blocker::Pool { .. })) {
        // Enough nodes have a free place, but not close enough to each other.
        blockers.insert(0, in_use(ask, u32::try_from(able.len()).unwrap_or(u32::MAX)));
    }
    let changes = changes(engine, ask, org, seconds, excluded, now);
    let earliest = ready::earliest(engine, ask, seconds, now, excluded).map(|(at, _)| at);
    WaitReasons { blockers, changes, earliest, fits: false }
}

/// The blocker of suitable nodes without a free place.
const fn in_use(ask: &Ask, nodes: u32) -> Blocker {
    if ask.shape.tenancy.own_only { Blocker::OwnNodes { busy: nodes } } else { Blocker::Busy { nodes } }
}

/// The begin of the first booking on a node that conflicts with a run from now on.
fn first_conflict(
    engine: &Engine,
    node: NodeIx,
    ask: &Ask,
    span: Span,
    excluded: Exclusions<'_>,
) -> Option<Timestamp> {
    let (now, until) = span;
    let others = engine.calendar.on(node, now, until).filter(|b| !excluded.bookings.contains(&b.id));
    let mut begins: Vec<Timestamp> = others.map(|b| b.from.max(now)).collect();
    begins.sort_unstable();
    begins.dedup();
    begins.into_iter().find(|begin| {
        let view = engine.calendar.view(&engine.cluster, node, (now, begin.plus_seconds(1)), now, excluded);
        view.is_none_or(|view| engine.finder.offer(&engine.cluster, &view, &ask.shape).is_none())
    })
}

/// All sets of changes with which a request would start now. A shorter run is combined with another
/// change only if no single change suffices.
fn changes(
    engine: &mut Engine,
    ask: &Ask,
    org: OrgIx,
    seconds: i64,
    excluded: &[BookingId],
    now: Timestamp,
) -> Vec<Vec<SuggestedChange>> {
    let mut others: Vec<(Ask, Vec<SuggestedChange>)> = vec![(*ask, Vec::new())];
    if ask.shape.nvlink {
        let mut other = *ask;
        other.shape.nvlink = false;
        others.push((other, vec![SuggestedChange::WithoutNvlink]));
    }
    if ask.topology != Nearness::Any {
        others.push((Ask { topology: Nearness::Any, ..*ask }, vec![SuggestedChange::Anywhere]));
    }
    for count in (1..ask.shape.count).rev() {
        let mut other = *ask;
        other.shape.count = count;
        other.shape.nvlink &= count > 1;
        others.push((other, vec![SuggestedChange::Count(count)]));
    }
    for nodes in (1..ask.nodes).rev().take(MAX_COUNTED) {
        others.push((Ask { nodes, ..*ask }, vec![SuggestedChange::Nodes(nodes)]));
    }
    // The longest runs that end before the begin of a booking.
    let promised = engine.calendar.iter().filter(|b| !excluded.contains(&b.id));
    let exclusions = Exclusions { bookings: excluded, owners: &[], ..Exclusions::default() };
    let mut shorter: Vec<i64> = promised.map(|b| (b.from.micros() - now.micros()) / 1_000_000).collect();
    shorter.retain(|s| *s > 0 && *s < seconds);
    shorter.sort_unstable_by(|a, b| b.cmp(a));
    shorter.dedup();
    shorter.truncate(MAX_COUNTED);
    // Fewer devices cost less, but only the rate of the whole request is known.
    let per_device = ask.bill.nano_per_second / i64::from(ask.shape.count * ask.nodes).max(1);
    for (other, _) in &mut others {
        let devices = i64::from(other.shape.count) * i64::from(other.nodes);
        other.bill.nano_per_second = per_device.saturating_mul(devices);
    }
    others.retain(|(other, _)| engine.quotas.admits(org, &other.need(&engine.cluster)));
    let mut out: Vec<Vec<SuggestedChange>> = Vec::new();
    let kind = |change: &SuggestedChange| std::mem::discriminant(change);
    for (other, change) in &others {
        // One change of a kind suffices: the first is the smallest.
        let known = out.iter().flatten().any(|c| change.first().is_some_and(|d| kind(c) == kind(d)));
        let until = run_end(now, seconds);
        if !change.is_empty() && !known && place::find_places(engine, other, now, until, exclusions).is_some()
        {
            out.push(change.clone());
        }
    }
    for (other, change) in others {
        if !change.is_empty() && !out.is_empty() {
            break;
        }
        let fits = shorter.iter().find(|s| {
            let until = run_end(now, **s);
            place::find_places(engine, &other, now, until, exclusions).is_some()
        });
        out.extend(fits.map(|s| change.into_iter().chain([SuggestedChange::Seconds(*s)]).collect()));
    }
    out
}

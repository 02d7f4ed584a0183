//! Jobs inside a reservation, with the same rules of turns, held starts and preemption as outside.
//!
//! This module must not check limits of organizations or power: both were counted for the reservation.

use std::collections::HashMap;

use berth_types::ids::JobId;
use berth_types::time::Timestamp;

use super::held::{Basis, HeldStartInside, hold_id, is_late_by_victim, is_overdue};
use super::node_pools::PreemptionRight;
use super::place::{self, Candidate, Limits};
use super::preempt::{self, cheapest_victims};
use super::{Decision, Engine, JobFacts, Span, decide, order, run_end};
use berth_placement::calendar::{Booking, BookingKind, LATE_S, NodeSlots, expected_end};
use berth_placement::cluster::{BookingId, Models, NodeIx, Owner};
use berth_placement::request::Ask;

/// The largest number of rounds for a booking in a pass.
const ROUNDS: usize = 8;

/// The state at the last check of a booking. The booking is skipped until the state differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InsideCheck {
    changes: u64,
    queue: u64,
    booking: Booking,
    /// The bookings beside it: held starts of jobs outside count against the processors and memory of its nodes.
    beside: u64,
    /// The time from which on more runs may end within a grace.
    until: Timestamp,
}

/// The state of one booking in a pass.
struct InsidePass {
    booking: Booking,
    held: Vec<HeldStartInside>,
    /// For each ask the seconds from which on runs do not fit.
    fits_below: HashMap<Ask, i64>,
    /// For each ask and class the seconds from which on runs find no victims.
    victims_below: HashMap<(Ask, i64), i64>,
    /// True if the first job that does not fit has a held start.
    first: bool,
}

impl InsidePass {
    fn new(booking: Booking, held: Vec<HeldStartInside>) -> Self {
        let (fits_below, victims_below) = (HashMap::new(), HashMap::new());
        Self { booking, held, fits_below, victims_below, first: false }
    }
}

/// The least seconds before the end of a booking for a run that this end cuts.
const LEAST_REST_S: i64 = 60;

/// A waiting job of a booking.
#[derive(Clone, Copy)]
pub(super) struct InsideJob {
    job: JobId,
    ask: Ask,
    class: i64,
    run: InsideRun,
}

/// The run of a job inside a booking.
#[derive(Clone, Copy)]
pub(super) struct InsideRun {
    seconds: i64,
    /// True for a later attempt: the end of the booking cuts it. The first one fitted, and the time between the two is no
    /// fault of the job.
    cut: bool,
}

impl InsideRun {
    pub(super) const fn new(facts: &JobFacts) -> Self {
        Self { seconds: facts.max_duration_s, cut: facts.attempt > 0 }
    }

    /// The time of a run from `from` on inside a booking; None if it does not fit.
    pub(super) fn span(self, from: Timestamp, booking: &Booking) -> Option<Span> {
        let until = run_end(from, self.seconds);
        if until <= booking.until {
            return Some((from, until));
        }
        (self.cut && run_end(from, LEAST_REST_S) <= booking.until).then_some((from, booking.until))
    }
}

/// Tries the jobs inside all bookings that have begun.
pub(super) fn run_all(engine: &mut Engine, now: Timestamp, out: &mut Vec<Decision>) {
    let booking_ids = engine.queue.bookings();
    engine.caches.inside_checks.retain(|id, _| booking_ids.contains(id));
    for id in booking_ids {
        let Some(booking) = engine.calendar.get(id).filter(|b| b.from <= now).cloned() else { continue };
        if is_settled_inside(engine, &booking, now) {
            continue;
        }
        // A job that starts elsewhere drops its held start, so jobs that were tried before may start.
        for _ in 0..ROUNDS {
            if !run_inside(engine, booking.clone(), now, out) {
                break;
            }
        }
        let (changes, queue) = (engine.cluster.changes(), engine.queue.inside_version(id));
        let (beside, until) =
            (version_beside(engine, &booking), preempt::next_within_grace(engine, Some(id), now));
        engine.caches.inside_checks.insert(id, InsideCheck { changes, queue, booking, beside, until });
    }
}

/// A number that grows with every change of bookings on nodes with boards of the models of a booking.
fn version_beside(engine: &Engine, booking: &Booking) -> u64 {
    engine.calendar.version(booking.ask.map_or(Models::ANY, |ask| ask.shape.models))
}

fn is_settled_inside(engine: &Engine, booking: &Booking, now: Timestamp) -> bool {
    let Some(check) = engine.caches.inside_checks.get(&booking.id) else { return false };
    let here = |node: &NodeIx| booking.places.iter().any(|p| p.node == *node);
    let unchanged = engine.cluster.changed_since(check.changes).is_some_and(|nodes| !nodes.iter().any(here));
    unchanged
        && now < check.until
        && check.queue == engine.queue.inside_version(booking.id)
        && check.booking == *booking
        && check.beside == version_beside(engine, booking)
        && engine.holds.inside(booking.id).iter().all(|h| h.booking.from > now)
}

/// Restores the firm held start of a job inside a booking, if it begins at `last_end` of its victims at
/// the latest.
pub(super) fn restore_firm_hold(
    engine: &mut Engine,
    id: BookingId,
    job: JobId,
    last_end: Timestamp,
    now: Timestamp,
) {
    let Some(booking) = engine.calendar.get(id).filter(|b| b.from <= now).cloned() else { return };
    let Some(inside) = find_job(engine, job, &booking, now) else { return };
    let mut pass = InsidePass::new(booking, engine.holds.take_inside(id));
    let found = earliest_inside(engine, &pass, inside, now, Basis::Stopped);
    if let Some(found) = found.filter(|held| held.booking.from <= last_end) {
        pass.held.retain(|h| h.job != job);
        pass.held.push(found);
    }
    engine.holds.put_inside(id, pass.held);
}

/// Tries the jobs inside a booking in the order of their turns. Returns true if a held start was dropped.
fn run_inside(engine: &mut Engine, booking: Booking, now: Timestamp, out: &mut Vec<Decision>) -> bool {
    let mut again = false;
    let id = booking.id;
    let mut held = engine.holds.take_inside(id);
    held.retain(|h| h.basis == Basis::Stopped);
    let mut pass = InsidePass::new(booking, held);
    // A job with a late victim gets the first free place.
    let mut turns = engine.queue.inside(id, order::turns(engine, now));
    let is_late = |job: JobId| pass.held.iter().any(|h| h.job == job && is_overdue(h.basis, h.due, now));
    turns.sort_by_key(|turn| !is_late(turn.job));
    for turn in turns {
        let Some(job) = find_job(engine, turn.job, &pass.booking, now) else {
            let before = pass.held.len();
            pass.held.retain(|h| h.job != turn.job);
            again |= pass.held.len() < before;
            continue;
        };
        let before = pass.held.len();
        if start_inside(engine, &mut pass, job, now, out) {
            pass.held.retain(|h| h.job != job.job);
            again |= pass.held.len() < before;
            continue;
        }
        again |= renew_late_hold(engine, &mut pass, job, now);
        // Other late starts are dropped.
        pass.held.retain(|h| h.job != job.job || h.booking.from > now);
        again |= pass.held.len() < before;
        if !pass.held.iter().any(|h| h.job == job.job) {
            hold_inside(engine, &mut pass, job, now, out);
        }
    }
    let waits = |h: &HeldStartInside| engine.jobs.contains_key(&h.job);
    pass.held.retain(waits);
    engine.holds.put_inside(id, pass.held);
    again
}

/// Renews the firm held start of a job while one of its victims is late. Returns true if it does; the
/// held starts behind it are then searched anew.
fn renew_late_hold(engine: &Engine, pass: &mut InsidePass, job: InsideJob, now: Timestamp) -> bool {
    let is_due = |h: &&HeldStartInside| h.job == job.job && h.booking.from <= now;
    let Some((basis, due)) = pass.held.iter().find(is_due).map(|h| (h.basis, h.due)) else {
        return false;
    };
    let found = earliest_inside(engine, pass, job, now, basis);
    let Some(found) = found.filter(|f| is_late_by_victim(basis, due, f.booking.from, now)) else {
        return false;
    };
    pass.held.retain(|h| h.job != job.job && h.basis == Basis::Stopped);
    pass.held.push(HeldStartInside { due, ..found });
    true
}

/// A job of a booking, if a run from now on fits into it.
pub(super) fn find_job(engine: &Engine, job: JobId, booking: &Booking, now: Timestamp) -> Option<InsideJob> {
    let waiting = engine.jobs.get(&job)?;
    let (lane, ask, run) = (waiting.lane?, waiting.ask?, InsideRun::new(&waiting.facts));
    let fits = waiting.facts.org == booking.org && run.span(now, booking).is_some();
    fits.then_some(InsideJob { job, ask, class: lane.group.class, run })
}

/// Starts a job if it fits beside the held starts of others. Returns true if it does.
fn start_inside(
    engine: &mut Engine,
    pass: &mut InsidePass,
    job: InsideJob,
    now: Timestamp,
    out: &mut Vec<Decision>,
) -> bool {
    let own = pass.held.iter().any(|h| h.job == job.job);
    let below = pass.fits_below.get(&job.ask).copied().unwrap_or(i64::MAX);
    let Some(span) = job.run.span(now, &pass.booking) else { return false };
    let seconds = (span.1.micros() - now.micros()) / 1_000_000;
    if !own && seconds >= below {
        return false;
    }
    let held = obstacles(&pass.held, job.job, now);
    match find_places_inside(engine, &job.ask, pass.booking.id, span, now, &held, &[]) {
        Some(places) => {
            decide::start(engine, job.job, &places, now, out);
            true
        }
        None => {
            if !own {
                pass.fits_below.insert(job.ask, seconds);
            }
            false
        }
    }
}

/// Holds a start for the first job that does not fit, or preempts for a job.
fn hold_inside(
    engine: &mut Engine,
    pass: &mut InsidePass,
    job: InsideJob,
    now: Timestamp,
    out: &mut Vec<Decision>,
) {
    let id = pass.booking.id;
    let mut starts = None;
    if !pass.first
        && let Some(held) = earliest_inside(engine, pass, job, now, Basis::First)
    {
        starts = Some(held.booking.from);
        pass.held.push(held);
        pass.first = true;
    }
    let below = pass.victims_below.get(&(job.ask, job.class)).copied().unwrap_or(i64::MAX);
    let right = PreemptionRight::new(&job.ask, job.class);
    let lowest = engine.preemptible.lowest(Some(id), right.replica);
    let outranks = lowest.is_some_and(|lowest| lowest < job.class);
    let (from, _) = preempt::span_after_grace(engine, Some(id), right, job.run.seconds, now);
    let Some(span) = job.run.span(from, &pass.booking).filter(|_| outranks) else { return };
    let seconds = (span.1.micros() - from.micros()) / 1_000_000;
    if seconds >= below {
        return;
    }
    let eligible = preempt::eligible(engine, right, Some(id), now);
    let held = other_holds(&pass.held, job.job);
    let fits =
        |owners: &[Owner]| find_places_inside(engine, &job.ask, id, span, now, &held, owners).is_some();
    let Some(victims) = cheapest_victims(eligible, &fits) else {
        pass.victims_below.insert((job.ask, job.class), seconds);
        return;
    };
    drop(held);
    let soon = run_end(now, engine.claims.wait_threshold_s(&victims));
    if starts.is_none() {
        let held = earliest_inside(engine, pass, job, now, Basis::Soon);
        starts = held.as_ref().map(|h| h.booking.from);
        pass.held.extend(held);
    }
    if !victims.is_empty() && starts.is_none_or(|at| at > soon) {
        decide::preempt(engine, victims, Some(job.job), now, out);
        // The next job that does not fit becomes the first.
        pass.first &= !pass.held.iter().any(|h| h.job == job.job && h.basis == Basis::First);
        pass.held.retain(|h| h.job != job.job);
        let held = earliest_inside(engine, pass, job, now, Basis::Stopped);
        pass.held.extend(held);
    }
}

/// The first held start of a job inside its booking with a sure place and an end within the booking.
fn earliest_inside(
    engine: &Engine,
    pass: &InsidePass,
    job: InsideJob,
    now: Timestamp,
    basis: Basis,
) -> Option<HeldStartInside> {
    let booking = &pass.booking;
    let nodes = booking.places.iter().filter_map(|p| engine.cluster.node(p.node));
    let ends = nodes.flat_map(|n| &n.ranks).filter_map(|r| expected_end(r, now));
    let held = obstacles(&pass.held, job.job, now);
    let mut times: Vec<Timestamp> = ends.chain(held.iter().map(|b| b.until)).collect();
    let nearby = booking.places.iter().flat_map(|p| engine.calendar.on(p.node, now, booking.until));
    times.extend(nearby.filter(|b| b.id != booking.id).map(|b| b.until));
    times.push(now.plus_seconds(LATE_S));
    times.retain(|at| *at > now && job.run.span(*at, booking).is_some());
    times.sort_unstable();
    times.dedup();
    times.into_iter().find_map(|from| {
        let (_, until) = job.run.span(from, booking)?;
        let places = find_places_inside(engine, &job.ask, booking.id, (from, until), now, &held, &[])?;
        let (id, kind, org, ask) = (hold_id(job.job), BookingKind::Hold, booking.org, Some(job.ask));
        let booking = Booking { id, kind, org, ask, from, until, places };
        Some(HeldStartInside { job: job.job, booking, basis, due: from })
    })
}

/// The places at which an ask can start inside a booking and stay, beside other held starts (`held`).
fn find_places_inside(
    engine: &Engine,
    ask: &Ask,
    id: BookingId,
    span: Span,
    now: Timestamp,
    held: &[&Booking],
    owners: &[Owner],
) -> Option<Vec<NodeSlots>> {
    let booking = engine.calendar.get(id)?;
    let offers = booking.places.iter().filter_map(|place| {
        let view = engine.calendar.view_inside(&engine.cluster, place.node, id, span, now, (held, owners))?;
        let offer = engine.finder.offer(&engine.cluster, &view, &ask.shape)?;
        Some((offer.cost, place.node, offer))
    });
    let mut offers: Vec<Candidate> = offers.collect();
    offers.sort_by_key(|(_, node, _)| *node);
    offers.dedup_by_key(|(_, node, _)| *node);
    let chosen = place::gather(engine, ask, offers, Limits::default())?;
    Some(place::node_slots(engine, ask, &chosen))
}

/// Returns true if the boards of a booking could hold an ask while empty.
pub(super) fn could_hold(engine: &Engine, ask: &Ask, id: BookingId, span: Span, now: Timestamp) -> bool {
    let owners: Vec<Owner> = engine.claims.owners().collect();
    find_places_inside(engine, ask, id, span, now, &[], &owners).is_some()
}

/// The places at which an ask can start now inside a booking. If `alone`, other held starts are no
/// obstacle.
pub(super) fn find_places_now(
    engine: &Engine,
    ask: &Ask,
    id: BookingId,
    (job, span): (JobId, Span),
    now: Timestamp,
    alone: bool,
) -> Option<Vec<NodeSlots>> {
    let held = if alone { Vec::new() } else { other_holds(engine.holds.inside(id), job) };
    find_places_inside(engine, ask, id, span, now, &held, &[])
}

/// The held starts of other jobs.
fn other_holds(held: &[HeldStartInside], job: JobId) -> Vec<&Booking> {
    held.iter().filter(|h| h.job != job).map(|h| &h.booking).collect()
}

/// The held starts that are an obstacle to a job: all others, or only the firm ones if its own victim is
/// late.
fn obstacles(held: &[HeldStartInside], job: JobId, now: Timestamp) -> Vec<&Booking> {
    let is_late = held.iter().any(|h| h.job == job && is_overdue(h.basis, h.due, now));
    let counts = |h: &&HeldStartInside| h.job != job && (!is_late || h.basis == Basis::Stopped);
    held.iter().filter(counts).map(|h| &h.booking).collect()
}

//! Jobs inside a reservation, with the same rules of turns, held starts and preemption as outside.
//!
//! This module must not check limits of organizations or power: both were counted for the reservation.

use std::collections::HashMap;

use berth_types::ids::JobId;
use berth_types::time::Timestamp;

use super::hold::{hold_id, is_late_by_victim, is_overdue};
use super::preempt::cheapest_victims;
use super::{Basis, Decision, Engine};
use berth_placement::calendar::{Booking, BookingKind, LATE_S, NodeSlots, expected_end};
use berth_placement::cluster::{BookingId, NodeIx, Owner};
use berth_placement::request::Ask;

use super::Span;
use super::place::Candidate;

/// The largest number of rounds for a booking in a pass.
const ROUNDS: usize = 8;

/// A held start inside a booking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HeldStartInside {
    pub(super) job: JobId,
    booking: Booking,
    pub(super) basis: Basis,
    /// The begin of the held start when its basis was found.
    due: Timestamp,
}

/// The state at the last check of a booking. The booking is skipped until the state differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InsideCheck {
    changes: u64,
    queue: u64,
    booking: Booking,
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

/// A waiting job of a booking.
#[derive(Clone, Copy)]
pub(super) struct InsideJob {
    job: JobId,
    ask: Ask,
    class: i64,
    seconds: i64,
}

impl Engine {
    pub(super) fn held_inside(&self) -> impl Iterator<Item = (JobId, &Booking)> {
        self.inside_holds.values().flatten().map(|held| (held.job, &held.booking))
    }

    /// The first begin of a held start inside a booking for another job.
    pub(super) fn inside_begins(&self, id: BookingId, job: JobId) -> Option<Timestamp> {
        let held = self.inside_holds.get(&id).into_iter().flatten().filter(|h| h.job != job);
        held.map(|h| h.booking.from).min()
    }

    pub(super) fn drop_hold_inside(&mut self, job: JobId) {
        self.inside_holds.retain(|_, held| {
            held.retain(|h| h.job != job);
            !held.is_empty()
        });
    }

    pub(super) fn run_inside_all(&mut self, now: Timestamp, out: &mut Vec<Decision>) {
        let booking_ids = self.queue.bookings();
        self.caches.inside_checks.retain(|id, _| booking_ids.contains(id));
        for id in booking_ids {
            let Some(booking) = self.calendar.get(id).filter(|b| b.from <= now).cloned() else { continue };
            if self.is_settled_inside(&booking, now) {
                continue;
            }
            // A job that starts elsewhere drops its held start, so jobs that were tried before may start.
            for _ in 0..ROUNDS {
                if !self.run_inside(booking.clone(), now, out) {
                    break;
                }
            }
            let (changes, queue) = (self.cluster.changes(), self.queue.inside_version(id));
            let until = self.next_within_grace(Some(id), now);
            self.caches.inside_checks.insert(id, InsideCheck { changes, queue, booking, until });
        }
    }

    fn is_settled_inside(&self, booking: &Booking, now: Timestamp) -> bool {
        let Some(check) = self.caches.inside_checks.get(&booking.id) else { return false };
        let here = |node: &NodeIx| booking.places.iter().any(|p| p.node == *node);
        let unchanged =
            self.cluster.changed_since(check.changes).is_some_and(|nodes| !nodes.iter().any(here));
        let held = self.inside_holds.get(&booking.id).into_iter().flatten();
        unchanged
            && now < check.until
            && check.queue == self.queue.inside_version(booking.id)
            && check.booking == *booking
            && held.into_iter().all(|h| h.booking.from > now)
    }

    /// Restores the firm held start of a job inside a booking, if it begins at `last_end` of its victims at
    /// the latest.
    pub(super) fn restore_firm_hold_inside(
        &mut self,
        id: BookingId,
        job: JobId,
        last_end: Timestamp,
        now: Timestamp,
    ) {
        let Some(booking) = self.calendar.get(id).filter(|b| b.from <= now).cloned() else { return };
        let Some(inside) = self.inside_job(job, &booking, now) else { return };
        let mut pass = InsidePass::new(booking, self.inside_holds.remove(&id).unwrap_or_default());
        let found = self.earliest_inside(&pass, inside, now, Basis::Stopped);
        if let Some(found) = found.filter(|held| held.booking.from <= last_end) {
            pass.held.retain(|h| h.job != job);
            pass.held.push(found);
        }
        if !pass.held.is_empty() {
            self.inside_holds.insert(id, pass.held);
        }
    }

    /// Tries the jobs inside a booking in the order of their turns. Returns true if a held start was dropped.
    fn run_inside(&mut self, booking: Booking, now: Timestamp, out: &mut Vec<Decision>) -> bool {
        let mut again = false;
        let id = booking.id;
        let mut held = self.inside_holds.remove(&id).unwrap_or_default();
        held.retain(|h| h.basis == Basis::Stopped);
        let mut pass = InsidePass::new(booking, held);
        // A job with a late victim gets the first free place.
        let mut turns = self.queue.inside(id, self.turns(now));
        let is_late = |job: JobId| pass.held.iter().any(|h| h.job == job && is_overdue(h.basis, h.due, now));
        turns.sort_by_key(|turn| !is_late(turn.job));
        for turn in turns {
            let Some(job) = self.inside_job(turn.job, &pass.booking, now) else {
                let before = pass.held.len();
                pass.held.retain(|h| h.job != turn.job);
                again |= pass.held.len() < before;
                continue;
            };
            let before = pass.held.len();
            if self.start_inside(&mut pass, job, now, out) {
                pass.held.retain(|h| h.job != job.job);
                again |= pass.held.len() < before;
                continue;
            }
            again |= self.renew_late_hold(&mut pass, job, now);
            // Other late starts are dropped.
            pass.held.retain(|h| h.job != job.job || h.booking.from > now);
            again |= pass.held.len() < before;
            if !pass.held.iter().any(|h| h.job == job.job) {
                self.hold_inside(&mut pass, job, now, out);
            }
        }
        let waits = |h: &HeldStartInside| self.jobs.contains_key(&h.job);
        pass.held.retain(waits);
        if !pass.held.is_empty() {
            self.inside_holds.insert(id, pass.held);
        }
        again
    }

    /// Renews the firm held start of a job while one of its victims is late. Returns true if it does; the
    /// held starts behind it are then searched anew.
    fn renew_late_hold(&self, pass: &mut InsidePass, job: InsideJob, now: Timestamp) -> bool {
        let is_due = |h: &&HeldStartInside| h.job == job.job && h.booking.from <= now;
        let Some((basis, due)) = pass.held.iter().find(is_due).map(|h| (h.basis, h.due)) else {
            return false;
        };
        let found = self.earliest_inside(pass, job, now, basis);
        let Some(found) = found.filter(|f| is_late_by_victim(basis, due, f.booking.from, now)) else {
            return false;
        };
        pass.held.retain(|h| h.job != job.job && h.basis == Basis::Stopped);
        pass.held.push(HeldStartInside { due, ..found });
        true
    }

    /// A job of a booking, if its longest run ends before the end of the booking.
    pub(super) fn inside_job(&self, job: JobId, booking: &Booking, now: Timestamp) -> Option<InsideJob> {
        let waiting = self.jobs.get(&job)?;
        let (lane, ask, seconds) = (waiting.lane?, waiting.ask?, waiting.facts.max_duration_s);
        let ends = self.run_end(now, seconds) <= booking.until && waiting.facts.org == booking.org;
        ends.then_some(InsideJob { job, ask, class: lane.group.class, seconds })
    }

    /// Starts a job if it fits beside the held starts of others. Returns true if it does.
    fn start_inside(
        &mut self,
        pass: &mut InsidePass,
        job: InsideJob,
        now: Timestamp,
        out: &mut Vec<Decision>,
    ) -> bool {
        let own = pass.held.iter().any(|h| h.job == job.job);
        let below = pass.fits_below.get(&job.ask).copied().unwrap_or(i64::MAX);
        if !own && job.seconds >= below {
            return false;
        }
        let span = (now, self.run_end(now, job.seconds));
        let held = obstacles(&pass.held, job.job, now);
        match self.find_places_inside(&job.ask, pass.booking.id, span, now, &held, &[]) {
            Some(places) => {
                self.start(job.job, &places, now, out);
                true
            }
            None => {
                if !own {
                    pass.fits_below.insert(job.ask, job.seconds);
                }
                false
            }
        }
    }

    /// Holds a start for the first job that does not fit, or preempts for a job.
    fn hold_inside(
        &mut self,
        pass: &mut InsidePass,
        job: InsideJob,
        now: Timestamp,
        out: &mut Vec<Decision>,
    ) {
        let id = pass.booking.id;
        let mut starts = None;
        if !pass.first
            && let Some(held) = self.earliest_inside(pass, job, now, Basis::First)
        {
            starts = Some(held.booking.from);
            pass.held.push(held);
            pass.first = true;
        }
        let below = pass.victims_below.get(&(job.ask, job.class)).copied().unwrap_or(i64::MAX);
        let outranks = self.lowest_preemptible(Some(id)).is_some_and(|lowest| lowest < job.class);
        if !outranks || job.seconds >= below {
            return;
        }
        let span = self.span_after_grace(Some(id), job.class, job.seconds, now);
        if span.1 > pass.booking.until {
            return;
        }
        let eligible = self.eligible(job.class, Some(id), now);
        let held = other_holds(&pass.held, job.job);
        let fits =
            |owners: &[Owner]| self.find_places_inside(&job.ask, id, span, now, &held, owners).is_some();
        let Some(victims) = cheapest_victims(eligible, &fits) else {
            pass.victims_below.insert((job.ask, job.class), job.seconds);
            return;
        };
        drop(held);
        let soon = self.run_end(now, self.wait_threshold_s(&victims));
        if starts.is_none() {
            let held = self.earliest_inside(pass, job, now, Basis::Soon);
            starts = held.as_ref().map(|h| h.booking.from);
            pass.held.extend(held);
        }
        if !victims.is_empty() && starts.is_none_or(|at| at > soon) {
            self.preempt(victims, job.job, now, out);
            // The next job that does not fit becomes the first.
            pass.first &= !pass.held.iter().any(|h| h.job == job.job && h.basis == Basis::First);
            pass.held.retain(|h| h.job != job.job);
            let held = self.earliest_inside(pass, job, now, Basis::Stopped);
            pass.held.extend(held);
        }
    }

    /// The first held start of a job inside its booking with a sure place and an end within the booking.
    fn earliest_inside(
        &self,
        pass: &InsidePass,
        job: InsideJob,
        now: Timestamp,
        basis: Basis,
    ) -> Option<HeldStartInside> {
        let booking = &pass.booking;
        let nodes = booking.places.iter().filter_map(|p| self.cluster.node(p.node));
        let ends = nodes.flat_map(|n| &n.ranks).filter_map(|r| expected_end(r, now));
        let held = obstacles(&pass.held, job.job, now);
        let mut times: Vec<Timestamp> = ends.chain(held.iter().map(|b| b.until)).collect();
        let nearby = booking.places.iter().flat_map(|p| self.calendar.on(p.node, now, booking.until));
        times.extend(nearby.filter(|b| b.id != booking.id).map(|b| b.until));
        times.push(now.plus_seconds(LATE_S));
        times.retain(|at| *at > now && self.run_end(*at, job.seconds) <= booking.until);
        times.sort_unstable();
        times.dedup();
        times.into_iter().find_map(|from| {
            let until = self.run_end(from, job.seconds);
            let places = self.find_places_inside(&job.ask, booking.id, (from, until), now, &held, &[])?;
            let (id, kind, org, ask) = (hold_id(job.job), BookingKind::Hold, booking.org, Some(job.ask));
            let booking = Booking { id, kind, org, ask, from, until, places };
            Some(HeldStartInside { job: job.job, booking, basis, due: from })
        })
    }

    /// The places at which an ask can start inside a booking and stay, beside other held starts (`held`).
    fn find_places_inside(
        &self,
        ask: &Ask,
        id: BookingId,
        span: Span,
        now: Timestamp,
        held: &[&Booking],
        owners: &[Owner],
    ) -> Option<Vec<NodeSlots>> {
        let booking = self.calendar.get(id)?;
        let offers = booking.places.iter().filter_map(|place| {
            let view = self.calendar.view_inside(&self.cluster, place.node, id, span, now, (held, owners))?;
            let offer = self.finder.offer(&self.cluster, &view, &ask.shape)?;
            Some((offer.cost, place.node, offer))
        });
        let mut offers: Vec<Candidate> = offers.collect();
        offers.sort_by_key(|(_, node, _)| *node);
        offers.dedup_by_key(|(_, node, _)| *node);
        let chosen = self.gather(ask, offers, None)?;
        Some(self.node_slots(ask, &chosen))
    }

    /// Returns true if the boards of a booking could hold an ask while empty.
    pub(super) fn could_hold_inside(&self, ask: &Ask, id: BookingId, seconds: i64, now: Timestamp) -> bool {
        let owners: Vec<Owner> = self.claims.keys().copied().collect();
        self.find_places_inside(ask, id, (now, self.run_end(now, seconds)), now, &[], &owners).is_some()
    }

    /// The places at which an ask can start now inside a booking. If `alone`, other held starts are no
    /// obstacle.
    pub(super) fn find_places_inside_now(
        &self,
        ask: &Ask,
        id: BookingId,
        (job, seconds): (JobId, i64),
        now: Timestamp,
        alone: bool,
    ) -> Option<Vec<NodeSlots>> {
        let all = self.inside_holds.get(&id).map(Vec::as_slice).unwrap_or_default();
        let held = if alone { Vec::new() } else { other_holds(all, job) };
        self.find_places_inside(ask, id, (now, self.run_end(now, seconds)), now, &held, &[])
    }
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

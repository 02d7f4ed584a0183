//! Jobs of a reservation: a small cluster of their own, with the same turns, held starts and preemption.
//!
//! Must not look at limits of organizations or at power: both were counted for the reservation.

use std::collections::HashMap;

use berth_types::ids::JobId;
use berth_types::time::Timestamp;

use super::hold::{hold_id, is_overdue, is_room_late};
use super::preempt::fewest;
use super::{Basis, Decision, Engine};
use crate::calendar::{Booking, Kind, LATE_S, Place, expected_end};
use crate::cluster::{BookingId, NodeIx, Owner};
use crate::request::Ask;

use super::place::{Candidate, Span};

/// As often a booking is looked at in a pass.
const ROUNDS: usize = 8;

/// A start that is held inside a booking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HeldInside {
    pub(super) job: JobId,
    booking: Booking,
    pub(super) basis: Basis,
    /// The begin of the booking when its basis was found.
    due: Timestamp,
}

/// What of a booking was looked at last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Looked {
    changes: u64,
    queue: u64,
    booking: Booking,
    /// From then on more may have ended by the time that others need to make room.
    until: Timestamp,
}

/// A booking in a pass, and what was found to be in vain.
struct InsidePass {
    booking: Booking,
    held: Vec<HeldInside>,
    /// For each ask: runs of so many seconds and longer do not fit.
    fits_below: HashMap<Ask, i64>,
    /// For each ask and class: nobody can make room for runs of so many seconds and longer.
    room_below: HashMap<(Ask, i64), i64>,
    /// A start is held for the first that does not fit.
    first: bool,
}

impl InsidePass {
    fn new(booking: Booking, held: Vec<HeldInside>) -> Self {
        let (fits_below, room_below) = (HashMap::new(), HashMap::new());
        Self { booking, held, fits_below, room_below, first: false }
    }
}

/// A job that waits inside.
#[derive(Clone, Copy)]
pub(super) struct Inside {
    job: JobId,
    ask: Ask,
    class: i64,
    seconds: i64,
}

impl Engine {
    pub(super) fn held_inside(&self) -> impl Iterator<Item = (JobId, &Booking)> {
        self.inside.values().flatten().map(|held| (held.job, &held.booking))
    }

    /// When the first start begins that is held inside a booking for somebody else.
    pub(super) fn inside_begins(&self, id: BookingId, job: JobId) -> Option<Timestamp> {
        let held = self.inside.get(&id).into_iter().flatten().filter(|h| h.job != job);
        held.map(|h| h.booking.from).min()
    }

    pub(super) fn drop_hold_inside(&mut self, job: JobId) {
        self.inside.retain(|_, held| {
            held.retain(|h| h.job != job);
            !held.is_empty()
        });
    }

    pub(super) fn look_inside_all(&mut self, now: Timestamp, out: &mut Vec<Decision>) {
        let waited_for = self.queue.bookings();
        self.memory.looked_inside.retain(|id, _| waited_for.contains(id));
        for id in waited_for {
            let Some(booking) = self.calendar.get(id).filter(|b| b.from <= now).cloned() else { continue };
            if self.is_settled_inside(&booking, now) {
                continue;
            }
            // Who starts elsewhere gives back a promise, which may be of use to those who were looked at before.
            for _ in 0..ROUNDS {
                if !self.look_inside(booking.clone(), now, out) {
                    break;
                }
            }
            let (changes, queue) = (self.cluster.changes(), self.queue.inside_version(id));
            let until = self.next_within_grace(Some(id), now);
            self.memory.looked_inside.insert(id, Looked { changes, queue, booking, until });
        }
    }

    fn is_settled_inside(&self, booking: &Booking, now: Timestamp) -> bool {
        let Some(looked) = self.memory.looked_inside.get(&booking.id) else { return false };
        let here = |node: &NodeIx| booking.places.iter().any(|p| p.node == *node);
        let unchanged =
            self.cluster.changed_since(looked.changes).is_some_and(|nodes| !nodes.iter().any(here));
        let held = self.inside.get(&booking.id).into_iter().flatten();
        unchanged
            && now < looked.until
            && looked.queue == self.queue.inside_version(booking.id)
            && looked.booking == *booking
            && held.into_iter().all(|h| h.booking.from > now)
    }

    /// Holds the room inside a booking again that runs make for a job until they are `gone`.
    pub(super) fn restore_room_inside(&mut self, id: BookingId, job: JobId, gone: Timestamp, now: Timestamp) {
        let Some(booking) = self.calendar.get(id).filter(|b| b.from <= now).cloned() else { return };
        let Some(inside) = self.inside_job(job, &booking, now) else { return };
        let mut pass = InsidePass::new(booking, self.inside.remove(&id).unwrap_or_default());
        let found = self.earliest_inside(&pass, inside, now, Basis::Stopped);
        if let Some(found) = found.filter(|held| held.booking.from <= gone) {
            pass.held.retain(|h| h.job != job);
            pass.held.push(found);
        }
        if !pass.held.is_empty() {
            self.inside.insert(id, pass.held);
        }
    }

    /// Looks at those who wait inside a booking, in turn. Whether a promise was given back meanwhile.
    fn look_inside(&mut self, booking: Booking, now: Timestamp, out: &mut Vec<Decision>) -> bool {
        let mut again = false;
        let id = booking.id;
        let mut held = self.inside.remove(&id).unwrap_or_default();
        held.retain(|h| h.basis == Basis::Stopped);
        let mut pass = InsidePass::new(booking, held);
        // A job whose room is late gets the first place that comes.
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
            if self.try_inside(&mut pass, job, now, out) {
                pass.held.retain(|h| h.job != job.job);
                again |= pass.held.len() < before;
                continue;
            }
            again |= self.renew_late_room(&mut pass, job, now);
            // Anything else that is late is not waited for any longer.
            pass.held.retain(|h| h.job != job.job || h.booking.from > now);
            again |= pass.held.len() < before;
            if !pass.held.iter().any(|h| h.job == job.job) {
                self.hold_inside(&mut pass, job, now, out);
            }
        }
        let waits = |h: &HeldInside| self.jobs.contains_key(&h.job);
        pass.held.retain(waits);
        if !pass.held.is_empty() {
            self.inside.insert(id, pass.held);
        }
        again
    }

    /// Holds room again for a job for which others were stopped, while one of them is late. Whether it does: starts
    /// that were held behind it are held anew then.
    fn renew_late_room(&self, pass: &mut InsidePass, job: Inside, now: Timestamp) -> bool {
        let mine = |h: &&HeldInside| h.job == job.job && h.booking.from <= now;
        let Some((basis, due)) = pass.held.iter().find(mine).map(|h| (h.basis, h.due)) else { return false };
        let found = self.earliest_inside(pass, job, now, basis);
        let Some(found) = found.filter(|f| is_room_late(basis, due, f.booking.from, now)) else {
            return false;
        };
        pass.held.retain(|h| h.job != job.job && h.basis == Basis::Stopped);
        pass.held.push(HeldInside { due, ..found });
        true
    }

    /// A job of a booking, if its longest run ends with the booking at the latest.
    pub(super) fn inside_job(&self, job: JobId, booking: &Booking, now: Timestamp) -> Option<Inside> {
        let waiting = self.jobs.get(&job)?;
        let (lane, ask, seconds) = (waiting.lane?, waiting.ask?, waiting.facts.max_duration_s);
        let ends = self.ends(now, seconds) <= booking.until && waiting.facts.org == booking.org;
        ends.then_some(Inside { job, ask, class: lane.group.class, seconds })
    }

    /// Starts a job if it fits beside what is held for others.
    fn try_inside(
        &mut self,
        pass: &mut InsidePass,
        job: Inside,
        now: Timestamp,
        out: &mut Vec<Decision>,
    ) -> bool {
        let own = pass.held.iter().any(|h| h.job == job.job);
        let below = pass.fits_below.get(&job.ask).copied().unwrap_or(i64::MAX);
        if !own && job.seconds >= below {
            return false;
        }
        let span = (now, self.ends(now, job.seconds));
        let held = obstacles(&pass.held, job.job, now);
        match self.place_inside(&job.ask, pass.booking.id, span, now, &held, &[]) {
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

    /// Holds a start for the first that does not fit, and for whom others make room.
    fn hold_inside(&mut self, pass: &mut InsidePass, job: Inside, now: Timestamp, out: &mut Vec<Decision>) {
        let id = pass.booking.id;
        let mut starts = None;
        if !pass.first
            && let Some(held) = self.earliest_inside(pass, job, now, Basis::First)
        {
            starts = Some(held.booking.from);
            pass.held.push(held);
            pass.first = true;
        }
        let below = pass.room_below.get(&(job.ask, job.class)).copied().unwrap_or(i64::MAX);
        let outranks = self.lowest_preemptible(Some(id)).is_some_and(|lowest| lowest < job.class);
        if !outranks || job.seconds >= below {
            return;
        }
        let span = self.span_after_grace(Some(id), job.class, job.seconds, now);
        if span.1 > pass.booking.until {
            return;
        }
        let eligible = self.eligible(job.class, Some(id), now);
        let held = others(&pass.held, job.job);
        let fits = |owners: &[Owner]| self.place_inside(&job.ask, id, span, now, &held, owners).is_some();
        let Some(victims) = fewest(eligible, &fits) else {
            pass.room_below.insert((job.ask, job.class), job.seconds);
            return;
        };
        drop(held);
        let soon = self.ends(now, self.patience_s(&victims));
        if starts.is_none() {
            let held = self.earliest_inside(pass, job, now, Basis::Soon);
            starts = held.as_ref().map(|h| h.booking.from);
            pass.held.extend(held);
        }
        if !victims.is_empty() && starts.is_none_or(|at| at > soon) {
            self.stop(victims, job.job, now, out);
            // The next that does not fit is the first then.
            pass.first &= !pass.held.iter().any(|h| h.job == job.job && h.basis == Basis::First);
            pass.held.retain(|h| h.job != job.job);
            let held = self.earliest_inside(pass, job, now, Basis::Stopped);
            pass.held.extend(held);
        }
    }

    /// The first time at which a job is sure to find its places inside its booking, and to end in it.
    fn earliest_inside(
        &self,
        pass: &InsidePass,
        job: Inside,
        now: Timestamp,
        basis: Basis,
    ) -> Option<HeldInside> {
        let booking = &pass.booking;
        let nodes = booking.places.iter().filter_map(|p| self.cluster.node(p.node));
        let ends = nodes.flat_map(|n| &n.ranks).filter_map(|r| expected_end(r, now));
        let held = obstacles(&pass.held, job.job, now);
        let mut times: Vec<Timestamp> = ends.chain(held.iter().map(|b| b.until)).collect();
        let nearby = booking.places.iter().flat_map(|p| self.calendar.on(p.node, now, booking.until));
        times.extend(nearby.filter(|b| b.id != booking.id).map(|b| b.until));
        times.push(now.plus_seconds(LATE_S));
        times.retain(|at| *at > now && self.ends(*at, job.seconds) <= booking.until);
        times.sort_unstable();
        times.dedup();
        times.into_iter().find_map(|from| {
            let until = self.ends(from, job.seconds);
            let places = self.place_inside(&job.ask, booking.id, (from, until), now, &held, &[])?;
            let (id, kind, org, ask) = (hold_id(job.job), Kind::Hold, booking.org, Some(job.ask));
            let booking = Booking { id, kind, org, ask, from, until, places };
            Some(HeldInside { job: job.job, booking, basis, due: from })
        })
    }

    /// Where an ask can start inside a booking at a time and stay, beside what is held there for others.
    fn place_inside(
        &self,
        ask: &Ask,
        id: BookingId,
        span: Span,
        now: Timestamp,
        held: &[&Booking],
        owners: &[Owner],
    ) -> Option<Vec<Place>> {
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
        Some(self.places(ask, &chosen))
    }

    /// Whether the boards of a booking would have a place for an ask if nothing ran on them.
    pub(super) fn could_hold_inside(&self, ask: &Ask, id: BookingId, seconds: i64, now: Timestamp) -> bool {
        let owners: Vec<Owner> = self.claims.keys().copied().collect();
        self.place_inside(ask, id, (now, self.ends(now, seconds)), now, &[], &owners).is_some()
    }

    /// Where an ask can start now inside a booking; what is held there for others is no obstacle where
    /// `alone`.
    pub(super) fn place_inside_now(
        &self,
        ask: &Ask,
        id: BookingId,
        (job, seconds): (JobId, i64),
        now: Timestamp,
        alone: bool,
    ) -> Option<Vec<Place>> {
        let all = self.inside.get(&id).map(Vec::as_slice).unwrap_or_default();
        let held = if alone { Vec::new() } else { others(all, job) };
        self.place_inside(ask, id, (now, self.ends(now, seconds)), now, &held, &[])
    }
}

fn others(held: &[HeldInside], job: JobId) -> Vec<&Booking> {
    held.iter().filter(|h| h.job != job).map(|h| &h.booking).collect()
}

/// The held starts that are an obstacle to a job: all others, and only those for which others were stopped where its
/// own room is late.
fn obstacles(held: &[HeldInside], job: JobId, now: Timestamp) -> Vec<&Booking> {
    let is_late = held.iter().any(|h| h.job == job && is_overdue(h.basis, h.due, now));
    let counts = |h: &&HeldInside| h.job != job && (!is_late || h.basis == Basis::Stopped);
    held.iter().filter(counts).map(|h| &h.booking).collect()
}

//! Held starts: the latest time and the places at which a job that does not fit now can start.
//!
//! A run ends at its limit at the latest. So the first time at which enough runs must have ended can be
//! promised. The held start is a booking like any other, so no later placement conflicts with it. Runs that
//! end before it may use its boards meanwhile (backfill).

use berth_types::ids::JobId;
use berth_types::time::Timestamp;

use super::held::{Basis, HeldStart, hold_id, is_overdue};
use super::ready::{self, ReadyTimes};
use super::{Engine, node_pools, order, place, power, run_end};
use berth_placement::calendar::{Booking, BookingKind, Exclusions, Expected, LATE_S, NodeSlots};
use berth_placement::cluster::{BookingId, Models};
use berth_placement::request::Ask;

/// An estimate of a job's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StartEstimate {
    At(Timestamp),
    /// The search continues in the next pass.
    Unfinished,
    /// An obstacle has no known end.
    Unknown,
}

/// True if two lists name the same bookings apart from the booking of a job itself.
fn same_others(one: &[BookingId], other: &[BookingId], job: JobId) -> bool {
    let others =
        |list: &'_ [BookingId]| list.iter().filter(|id| **id != hold_id(job)).copied().collect::<Vec<_>>();
    others(one) == others(other)
}

impl Engine {
    /// The held starts, including those inside reservations.
    pub fn held_starts(&self) -> impl Iterator<Item = (JobId, &Booking)> {
        let open = self.holds.iter().filter_map(|(job, _)| Some((job, self.calendar.get(hold_id(job))?)));
        open.chain(self.holds.all_inside())
    }

    /// The basis of a job's held start.
    pub fn basis(&self, job: JobId) -> Option<Basis> {
        self.holds.basis(job)
    }
}

/// Holds a start for a job, or keeps its held start. A job other than the first leaves its line and waits
/// for the start.
pub(super) fn hold_start(
    engine: &mut Engine,
    pool: u64,
    job: JobId,
    basis: Basis,
    now: Timestamp,
) -> StartEstimate {
    let excluded = excluded_bookings(engine, job, false, now);
    let held = engine
        .holds
        .get(job)
        .filter(|h| h.at > now && h.basis == basis && same_others(&h.excluded, &excluded, job));
    if let Some(at) = held.filter(|held| is_current(engine, job, held)).map(|held| held.at) {
        renew_hold(engine, job, pool);
        return StartEstimate::At(at);
    }
    let Some(waiting) = engine.jobs.get(&job) else { return StartEstimate::Unknown };
    let Some(ask) = waiting.ask else { return StartEstimate::Unknown };
    let (org, seconds) = (waiting.facts.org, waiting.facts.max_duration_s);
    // The best start so far can be promised; the next pass may find an earlier one.
    ready::sync(engine, &ask, ready::SCANNED);
    let id = hold_id(job);
    let free = Exclusions { bookings: &excluded, owners: &[], expected: Expected::Awaited };
    let stays = |b: &Booking| place::is_free_for(engine, b, &ask, now, free);
    let found = ready::earliest_known(engine, &ask, seconds, now, &excluded);
    // Not all times are tried beside a reserve, so the present start stays if it is earlier and its places are free.
    let present = engine.calendar.get(id).filter(|_| engine.burst_reserve.binds(&ask));
    let present = present
        .filter(|b| b.from > now && b.ask == Some(ask) && found.as_ref().is_none_or(|(at, _)| b.from < *at))
        .map(|b| Booking { until: run_end(b.from, seconds), ..b.clone() });
    let present = present.filter(stays).map(|b| (b.from, b.places));
    let Some((at, places)) = present.or(found) else {
        drop_hold(engine, job);
        let all = engine.caches.ready.get(&ask).is_some_and(ReadyTimes::is_complete);
        return if all { StartEstimate::Unknown } else { StartEstimate::Unfinished };
    };
    let until = run_end(at, seconds);
    let (kind, from) = (BookingKind::Hold, at);
    // An equal start keeps its places, so no other job has to be tried again.
    let is_same = |b: &&Booking| (b.from, b.until, b.ask) == (from, until, Some(ask));
    if !engine.calendar.get(id).filter(is_same).is_some_and(stays) {
        engine.calendar.put(&engine.cluster, Booking { id, kind, org, ask: Some(ask), from, until, places });
    }
    if basis != Basis::First && !engine.holds.is_aside(job) {
        order::set_aside(engine, job);
    }
    let before = engine.holds.get(job).filter(|held| held.basis == basis);
    let due = before.map_or(at, |held| held.due);
    engine.holds.insert(job, HeldStart { pool, at, basis, due, excluded, changes: 0, bookings: 0 });
    renew_hold(engine, job, pool);
    StartEstimate::At(at)
}

/// Records that a held start is right for the present state.
fn renew_hold(engine: &mut Engine, job: JobId, pool: u64) {
    let (changes, bookings) = (engine.cluster.changes(), engine.calendar.version(Models(pool)));
    engine.holds.renew(job, changes, bookings);
}

/// Bookings that are no obstacle to a job: its own, and held starts of jobs with later turns. A firm held
/// start gives way only to a job of a higher class that starts `at_once`, that of a replica only to a replica.
pub(super) fn excluded_bookings(
    engine: &Engine,
    job: JobId,
    at_once: bool,
    now: Timestamp,
) -> Vec<BookingId> {
    let mut out: Vec<BookingId> = engine.holds.get(job).map(|_| hold_id(job)).into_iter().collect();
    let Some(own_turn) = order::turn(engine, job, now) else { return out };
    let pool = engine.jobs.get(&job).and_then(|w| w.ask).map_or(u64::MAX, |ask| ask.shape.models.0);
    // Held starts behind a late victim are delayed as long as the victim is late.
    let is_late = engine.holds.get(job).is_some_and(|h| is_overdue(h.basis, h.due, now));
    for (other, held) in engine.holds.iter().filter(|(_, held)| meets(engine, held, pool)) {
        let gives_way =
            held.basis != Basis::Stopped || at_once && node_pools::may_go_before(engine, job, other);
        let is_later = order::turn(engine, other, now).is_some_and(|turn| turn > own_turn);
        if other != job && (gives_way && is_later || is_late && held.basis != Basis::Stopped) {
            out.push(hold_id(other));
        }
    }
    out
}

/// The places for a start at once. The job leaves firm held starts of others alone if it has a place beside them; the
/// bookings `excluded` are no obstacle otherwise.
pub(super) fn find_places_at_once(
    engine: &mut Engine,
    (job, ask, seconds): (JobId, &Ask, i64),
    excluded: &[BookingId],
    now: Timestamp,
) -> Option<Vec<NodeSlots>> {
    let until = run_end(now, seconds);
    let with = |bookings| Exclusions { bookings, owners: &[], ..Exclusions::default() };
    let gentle = excluded_bookings(engine, job, false, now);
    if gentle.len() < excluded.len()
        && let Some(places) = place::find_places(engine, ask, now, until, with(&gentle))
    {
        return Some(places);
    }
    place::find_places(engine, ask, now, until, with(excluded))
}

/// True if the obstacles to a job's held start differ from those at its search.
pub(super) fn meets_others(engine: &Engine, job: JobId, now: Timestamp) -> bool {
    let excluded = excluded_bookings(engine, job, false, now);
    engine.holds.get(job).is_none_or(|held| !same_others(&held.excluded, &excluded, job))
}

/// True if a held start may be an obstacle in a pool. If racks have budgets, every held start may.
pub(super) fn meets(engine: &Engine, held: &HeldStart, pool: u64) -> bool {
    held.pool & pool != 0 || !engine.racks.is_empty()
}

/// Returns true if no later change could delay a held start or make it earlier.
fn is_current(engine: &Engine, job: JobId, held: &HeldStart) -> bool {
    if !engine.racks.is_empty() || engine.calendar.version(Models(held.pool)) != held.bookings {
        return false;
    }
    let Some(changed) = engine.cluster.changed_since(held.changes).filter(|c| c.len() < 64) else {
        return false;
    };
    let Some(booking) = engine.calendar.get(hold_id(job)) else { return false };
    let Some(ask) = booking.ask.filter(|ask| !engine.burst_reserve.binds(ask)) else { return false };
    if engine.caches.ready.get(&ask).is_none_or(|r| !r.is_complete()) {
        return false;
    }
    changed.iter().all(|node| {
        !booking.places.iter().any(|p| p.node == *node)
            && ready::ready_at(engine, *node, &ask) >= held.at.micros()
    })
}

/// Drops the held start of a job outside of reservations. A job aside returns to its line.
pub(super) fn drop_hold(engine: &mut Engine, job: JobId) {
    let Some(held) = engine.holds.remove(job) else { return };
    engine.calendar.remove(hold_id(job));
    if held.basis != Basis::First {
        order::put_back(engine, job);
    }
}

/// Drops the held starts that racks cannot feed any more; the pass searches for other starts. Power goes
/// to firm held starts first and then by turn; no held start relies on the power of a later one.
pub(super) fn drop_unpowered_holds(engine: &mut Engine, now: Timestamp) {
    if engine.racks.is_empty() {
        return;
    }
    let mut order: Vec<JobId> = engine.holds.iter().map(|(job, _)| job).collect();
    order.sort_by_key(|job| (!engine.holds.is_firm(*job), order::turn(engine, *job, now)));
    let mut ignored: Vec<BookingId> = order.iter().map(|job| hold_id(*job)).collect();
    let mut unpowered = Vec::new();
    for job in order {
        let Some(booking) = engine.calendar.get(hold_id(job)) else { continue };
        // A late stopped run draws power until its end, which may come at any moment.
        let is_late = engine.holds.get(job).is_some_and(|h| is_overdue(h.basis, h.due, now));
        let late_s = if is_late { LATE_S } else { 0 };
        let from = booking.from.max(now.plus_seconds(late_s));
        let excluded = Exclusions { bookings: &ignored, ..Exclusions::default() };
        let power = power::for_run(engine, (from, booking.until), now, excluded);
        if power.is_none_or(|power| power.feeds_all(&engine.cluster, &booking.places)) {
            ignored.retain(|id| *id != booking.id);
        } else {
            unpowered.push(job);
        }
    }
    unpowered.into_iter().for_each(|job| drop_hold(engine, job));
}

//! Held starts: the latest time and the places at which a job that does not fit now can start.
//!
//! A run ends at its limit at the latest. So the first time at which enough runs must have ended can be
//! promised. The held start is a booking like any other, so no later placement conflicts with it. Runs that
//! end before it may use its boards meanwhile (backfill).

use std::collections::BTreeSet;

use berth_types::ids::JobId;
use berth_types::time::Timestamp;

use super::{Basis, Engine, HeldStart};
use crate::queue::Turn;
use berth_placement::calendar::{
    Booking, BookingKind, Exclusions, Expected, HANGS_S, LATE_S, NodeSlots, expected_end,
};
use berth_placement::cluster::{BookingId, Models, NodeIx};
use berth_placement::request::Ask;

/// The largest number of asks with kept ready times.
const MAX_ASKS: usize = 256;
/// The number of nodes that a pass searches for one ask.
const SCANNED: usize = 32;
/// The number of nodes that are tried first for the earliest start.
const TRIED_FIRST: usize = 128;
/// The largest number of asks in `Caches::possible`.
const MAX_POSSIBLE: usize = 4_096;
const NEVER: i64 = i64::MAX;

/// The earliest time at which each node could take an ask without bookings, in microseconds; at or before
/// now: at once.
#[derive(Debug, Clone, Default)]
pub(super) struct ReadyTimes {
    changes: u64,
    /// The first node that is not searched yet.
    next: usize,
    nodes: Vec<i64>,
    /// The nodes that could take the ask at some time, the earliest first.
    order: BTreeSet<(i64, NodeIx)>,
}

impl ReadyTimes {
    fn new(count: usize) -> Self {
        Self { nodes: vec![NEVER; count], ..Self::default() }
    }

    fn put(&mut self, node: NodeIx, at: i64) {
        let Some(slot) = self.nodes.get_mut(node.0 as usize) else { return };
        let before = std::mem::replace(slot, at);
        if before == at {
            return;
        }
        self.order.remove(&(before, node));
        if at != NEVER {
            self.order.insert((at, node));
        }
    }
}

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

/// True if a firm held start is due and a stopped run may have outlasted its grace by at most [`HANGS_S`].
/// The devices stay reserved for the job during that time.
pub(super) fn is_overdue(basis: Basis, due: Timestamp, now: Timestamp) -> bool {
    basis == Basis::Stopped && due <= now && now <= due.plus_seconds(HANGS_S)
}

/// True if only a late stopped run delays a held start.
pub(super) fn is_late_by_victim(basis: Basis, due: Timestamp, at: Timestamp, now: Timestamp) -> bool {
    basis == Basis::Stopped && at <= now.plus_seconds(LATE_S) && now <= due.plus_seconds(HANGS_S)
}

/// The last expected end of the stopped runs on boards of a pool, inside a booking or (`None`) outside all of
/// them. Two jobs may get the boards in another order than before, so the victims of all jobs count.
fn last_victim_end(
    engine: &Engine,
    pool: u64,
    inside: Option<BookingId>,
    now: Timestamp,
) -> Option<Timestamp> {
    let is_relevant = |claim: &super::Claim| {
        let mut nodes = claim.ranks.iter().filter_map(|rank| engine.cluster.find_node(rank.node));
        let any_node = !engine.racks.is_empty();
        claim.inside == inside && (any_node || nodes.any(|node| engine.is_of(node, Models(pool))))
    };
    let runs =
        engine.preemptions.iter().flat_map(|(_, victims)| victims).filter_map(|run| engine.claims.get(run));
    let ends = runs.filter(|claim| is_relevant(claim)).filter_map(|claim| claim.ends_by);
    let end = ends.filter(|end| now <= end.plus_seconds(HANGS_S)).max()?;
    Some(end.max(now.plus_seconds(LATE_S)))
}

/// The id of the booking of a job's held start.
pub(super) fn hold_id(job: JobId) -> BookingId {
    BookingId(job.uuid())
}

impl Engine {
    /// The held starts, including those inside reservations.
    pub fn held_starts(&self) -> impl Iterator<Item = (JobId, &Booking)> {
        let open = self.holds.keys().filter_map(|job| Some((*job, self.calendar.get(hold_id(*job))?)));
        open.chain(self.held_inside())
    }

    /// True if runs are stopped for a job: their devices are reserved for it alone.
    pub fn is_firm(&self, job: JobId) -> bool {
        self.basis(job) == Some(Basis::Stopped)
    }

    /// True if a job has left its line and waits for its held start.
    pub fn is_aside(&self, job: JobId) -> bool {
        self.basis(job).is_some_and(|basis| basis != Basis::First)
    }

    fn basis(&self, job: JobId) -> Option<Basis> {
        let inside = || self.inside_holds.values().flatten().find(|h| h.job == job).map(|h| h.basis);
        self.holds.get(&job).map(|h| h.basis).or_else(inside)
    }

    /// Holds a start for a job, or keeps its held start. A job other than the first leaves its line and waits
    /// for the start.
    pub(super) fn hold(&mut self, pool: u64, job: JobId, basis: Basis, now: Timestamp) -> StartEstimate {
        let excluded = self.excluded_bookings(job, false, now);
        let held = self
            .holds
            .get(&job)
            .filter(|h| h.at > now && h.basis == basis && same_others(&h.excluded, &excluded, job));
        if let Some(at) = held.filter(|held| self.is_current(job, held)).map(|held| held.at) {
            self.renew_hold(job, pool);
            return StartEstimate::At(at);
        }
        let Some(waiting) = self.jobs.get(&job) else { return StartEstimate::Unknown };
        let Some(ask) = waiting.ask else { return StartEstimate::Unknown };
        let (org, seconds) = (waiting.facts.org, waiting.facts.max_duration_s);
        // The best start so far can be promised; the next pass may find an earlier one.
        self.sync_ready(&ask, SCANNED);
        let Some((at, places)) = self.earliest_known(&ask, seconds, now, &excluded) else {
            self.drop_hold(job);
            let all = self.caches.ready.get(&ask).is_some_and(|r| r.next >= r.nodes.len());
            return if all { StartEstimate::Unknown } else { StartEstimate::Unfinished };
        };
        let until = self.run_end(at, seconds);
        let (id, kind, from) = (hold_id(job), BookingKind::Hold, at);
        // An equal start keeps its places, so no other job has to be tried again.
        let is_same = |b: &&Booking| (b.from, b.until, b.ask) == (from, until, Some(ask));
        let free = Exclusions { bookings: &excluded, owners: &[], expected: Expected::Awaited };
        let stays = |b: &Booking| self.is_free_for(b, &ask, now, free);
        if !self.calendar.get(id).filter(is_same).is_some_and(stays) {
            self.calendar.put(&self.cluster, Booking { id, kind, org, ask: Some(ask), from, until, places });
        }
        if basis != Basis::First && !self.is_aside(job) {
            self.set_aside(job);
        }
        let before = self.holds.get(&job).filter(|held| held.basis == basis);
        let due = before.map_or(at, |held| held.due);
        self.holds.insert(job, HeldStart { pool, at, basis, due, excluded, changes: 0, bookings: 0 });
        self.renew_hold(job, pool);
        StartEstimate::At(at)
    }

    /// Restores the firm holds of jobs with stopped runs. A new engine has none, and a closed node or a
    /// reached limit of the organization drops them.
    pub(super) fn restore_firm_holds(&mut self, now: Timestamp) {
        let unheld = self.preemptions.iter().filter(|(job, _)| !self.is_firm(*job));
        let mut turns: Vec<Turn> = unheld.filter_map(|(job, _)| self.turn(job, now)).collect();
        turns.sort_unstable();
        for Turn { job, .. } in turns {
            let Some(waiting) = self.jobs.get(&job) else { continue };
            let (Some(lane), Some(ask)) = (waiting.lane, waiting.ask) else { continue };
            let (pool, seconds) = (ask.shape.models.0, waiting.facts.max_duration_s);
            let Some(last_end) = last_victim_end(self, pool, lane.inside, now) else { continue };
            if let Some(id) = lane.inside {
                self.restore_firm_hold_inside(id, job, last_end, now);
            } else if self.turns(now).admits(lane.group, &ask) {
                // A later start would not use the devices of the victims.
                self.sync_ready(&ask, SCANNED);
                let excluded = self.excluded_bookings(job, false, now);
                let found = self.earliest_known(&ask, seconds, now, &excluded);
                if found.is_some_and(|(at, _)| at <= last_end) {
                    self.hold(pool, job, Basis::Stopped, now);
                }
            }
        }
    }

    fn renew_hold(&mut self, job: JobId, pool: u64) {
        let (changes, bookings) = (self.cluster.changes(), self.calendar.version(Models(pool)));
        if let Some(held) = self.holds.get_mut(&job) {
            (held.changes, held.bookings) = (changes, bookings);
        }
    }

    /// Bookings that are no obstacle to a job: its own, and held starts of jobs with later turns. A firm held
    /// start gives way only to a job of a higher class that starts `at_once`.
    pub(super) fn excluded_bookings(&self, job: JobId, at_once: bool, now: Timestamp) -> Vec<BookingId> {
        let mut out: Vec<BookingId> =
            self.holds.contains_key(&job).then(|| hold_id(job)).into_iter().collect();
        let Some((own_turn, class)) = self.turn(job, now).zip(self.class(job)) else { return out };
        let pool = self.jobs.get(&job).and_then(|w| w.ask).map_or(u64::MAX, |ask| ask.shape.models.0);
        // Held starts behind a late victim are delayed as long as the victim is late.
        let is_late = self.holds.get(&job).is_some_and(|h| is_overdue(h.basis, h.due, now));
        for (other, held) in self.holds.iter().filter(|(_, held)| self.meets(held, pool)) {
            let gives_way = held.basis != Basis::Stopped
                || at_once && self.class(*other).is_some_and(|other_class| other_class < class);
            let is_later = self.turn(*other, now).is_some_and(|turn| turn > own_turn);
            if *other != job && (gives_way && is_later || is_late && held.basis != Basis::Stopped) {
                out.push(hold_id(*other));
            }
        }
        out
    }

    /// True if the obstacles to a job's held start differ from those at its search.
    pub(super) fn meets_others(&self, job: JobId, now: Timestamp) -> bool {
        let excluded = self.excluded_bookings(job, false, now);
        self.holds.get(&job).is_none_or(|held| !same_others(&held.excluded, &excluded, job))
    }

    /// True if a held start may be an obstacle in a pool. If racks have budgets, every held start may.
    pub(super) fn meets(&self, held: &HeldStart, pool: u64) -> bool {
        held.pool & pool != 0 || !self.racks.is_empty()
    }

    /// The submitted class of a job.
    pub(super) fn class(&self, job: JobId) -> Option<i64> {
        Some(self.jobs.get(&job)?.facts.priority.rank())
    }

    /// The turn of a waiting job.
    pub(super) fn turn(&self, job: JobId, now: Timestamp) -> Option<Turn> {
        let waiting = self.jobs.get(&job)?;
        Some(self.turns(now).turn(waiting.lane?.group, waiting.facts.queued_at, job))
    }

    /// The first job of a pool with a held start.
    pub(super) fn first_held(&self, pool: u64) -> Option<JobId> {
        self.holds.iter().find(|(_, h)| h.pool == pool && h.basis == Basis::First).map(|(job, _)| *job)
    }

    /// The jobs aside of a pool.
    pub(super) fn aside(&self, pool: u64) -> Vec<JobId> {
        let aside = self.holds.iter().filter(|(_, h)| h.pool == pool && h.basis != Basis::First);
        aside.map(|(job, _)| *job).collect()
    }

    /// Returns true if no later change could delay a held start or make it earlier.
    fn is_current(&self, job: JobId, held: &HeldStart) -> bool {
        if !self.racks.is_empty() || self.calendar.version(Models(held.pool)) != held.bookings {
            return false;
        }
        let Some(changed) = self.cluster.changed_since(held.changes).filter(|c| c.len() < 64) else {
            return false;
        };
        let Some(booking) = self.calendar.get(hold_id(job)) else { return false };
        let Some(ask) = booking.ask else { return false };
        if self.caches.ready.get(&ask).is_none_or(|r| r.next < r.nodes.len()) {
            return false;
        }
        changed.iter().all(|node| {
            !booking.places.iter().any(|p| p.node == *node) && self.ready_at(*node, &ask) >= held.at.micros()
        })
    }

    pub(super) fn drop_hold(&mut self, job: JobId) {
        let Some(held) = self.holds.remove(&job) else { return };
        self.calendar.remove(hold_id(job));
        if held.basis != Basis::First {
            self.put_back(job);
        }
    }

    /// Takes a job with a held start of its own or without a possible node out of the queue.
    pub(super) fn set_aside(&mut self, job: JobId) {
        let Some(waiting) = self.jobs.get(&job) else { return };
        if let Some(lane) = waiting.lane {
            self.queue.remove(lane, waiting.facts.queued_at, job);
        }
    }

    fn put_back(&mut self, job: JobId) {
        let Some(waiting) = self.jobs.get(&job) else { return };
        if let Some(lane) = waiting.lane {
            self.queue.insert(lane, waiting.facts.queued_at, job);
        }
    }

    /// The first time at which an ask is sure to find places, with these places. `None` if no known end leads
    /// to them.
    pub(super) fn earliest(
        &mut self,
        ask: &Ask,
        seconds: i64,
        now: Timestamp,
        excluded: &[BookingId],
    ) -> Option<(Timestamp, Vec<NodeSlots>)> {
        self.sync_ready(ask, usize::MAX);
        self.earliest_known(ask, seconds, now, excluded)
    }

    fn earliest_known(
        &self,
        ask: &Ask,
        seconds: i64,
        now: Timestamp,
        excluded: &[BookingId],
    ) -> Option<(Timestamp, Vec<NodeSlots>)> {
        let ready = self.caches.ready.get(ask)?;
        // Only the first nodes can hold the answer, unless bookings conflict with it.
        let mut nodes = ready.order.iter().copied();
        let first: Vec<(i64, NodeIx)> = nodes.by_ref().take(ask.nodes as usize + TRIED_FIRST).collect();
        if let Some((next, _)) = nodes.next() {
            let found = self.earliest_on(ask, &first, seconds, now, excluded);
            if let Some(found) = found.filter(|(at, _)| at.micros() <= next) {
                return Some(found);
            }
        }
        let all: Vec<(i64, NodeIx)> = ready.order.iter().copied().collect();
        self.earliest_on(ask, &all, seconds, now, excluded)
    }

    /// The same on some nodes, in the order of their ready times.
    fn earliest_on(
        &self,
        ask: &Ask,
        nodes: &[(i64, NodeIx)],
        seconds: i64,
        now: Timestamp,
        excluded: &[BookingId],
    ) -> Option<(Timestamp, Vec<NodeSlots>)> {
        // All times at which capacity becomes free, in order.
        let ends = self.calendar.iter().filter(|b| !excluded.contains(&b.id)).map(|b| b.until);
        let mut times: Vec<Timestamp> =
            nodes.iter().map(|(at, _)| Timestamp::from_micros(*at)).chain(ends).collect();
        // On a booked node the first free place may not stay free; a late run ends after its limit.
        let booked = nodes.iter().filter(|(at, node)| !self.calendar.is_free(*node) || *at <= now.micros());
        let ranks = booked.filter_map(|(_, node)| self.cluster.node(*node)).flat_map(|n| &n.ranks);
        times.extend(ranks.filter_map(|rank| expected_end(rank, now)));
        if !self.racks.is_empty() {
            times.extend(self.power_ends(now));
        }
        times.push(now.plus_seconds(LATE_S));
        times.retain(|at| *at > now);
        times.sort_unstable();
        times.dedup();
        let excluded = Exclusions { bookings: excluded, owners: &[], expected: Expected::Awaited };
        times.into_iter().find_map(|at| {
            let able: Vec<NodeIx> =
                nodes.iter().take_while(|(ready, _)| *ready <= at.micros()).map(|(_, n)| *n).collect();
            if able.len() < ask.nodes as usize {
                return None;
            }
            let chosen = self.find_places_at(ask, &able, (at, self.run_end(at, seconds)), now, excluded)?;
            Some((at, self.node_slots(ask, &chosen)))
        })
    }

    /// Returns impossible jobs to the queue if the nodes can hold them after a change of equipment.
    pub(super) fn put_possible_back(&mut self) {
        let equipped = self.cluster.equipment_version();
        if std::mem::replace(&mut self.caches.equipped, equipped) == equipped {
            return;
        }
        for job in std::mem::take(&mut self.impossible) {
            let Some(ask) = self.jobs.get(&job).and_then(|w| w.ask) else { continue };
            if self.is_possible(&ask) {
                self.put_back(job);
            } else {
                self.impossible.insert(job);
            }
        }
    }

    /// True if enough nodes could hold an ask while empty.
    pub(super) fn is_possible(&mut self, ask: &Ask) -> bool {
        let ask = ask.for_anybody();
        let equipped = self.cluster.equipment_version();
        if let Some((_, known)) = self.caches.possible.get(&ask).filter(|(as_of, _)| *as_of == equipped) {
            return *known;
        }
        let able = self.all_nodes().filter(|node| self.is_able(*node, &ask));
        let possible = able.take(ask.nodes as usize).count() == ask.nodes as usize;
        if self.caches.possible.len() >= MAX_POSSIBLE {
            self.caches.possible.clear();
        }
        self.caches.possible.insert(ask, (equipped, possible));
        possible
    }

    /// Returns true if a search for the start of one of these jobs continues in the next pass.
    pub(super) fn is_searching(&self, jobs: &[JobId]) -> bool {
        let asks = jobs.iter().filter_map(|job| self.jobs.get(job)?.ask);
        asks.into_iter().any(|ask| self.caches.ready.get(&ask).is_some_and(|r| r.next < r.nodes.len()))
    }

    /// Updates the ready times of changed nodes and of `budget` further nodes.
    fn sync_ready(&mut self, ask: &Ask, budget: usize) {
        if !self.caches.ready.contains_key(ask) && self.caches.ready.len() >= MAX_ASKS {
            self.caches.ready.clear();
        }
        let mut ready = self.caches.ready.remove(ask).unwrap_or_default();
        let count = self.cluster.nodes().len();
        let changed = self.cluster.changed_since(ready.changes);
        let known = changed.filter(|c| ready.nodes.len() == count && c.len() < count.max(64));
        let Some(changed) = known else {
            ready = ReadyTimes::new(count);
            return self.scan_ready(ask, ready, &[], budget);
        };
        let changed = changed.to_vec();
        self.scan_ready(ask, ready, &changed, budget);
    }

    fn scan_ready(&mut self, ask: &Ask, mut ready: ReadyTimes, changed: &[NodeIx], budget: usize) {
        let end = ready.next.saturating_add(budget).min(ready.nodes.len());
        let next = ready.next;
        let fresh = (next..end).filter_map(|n| u32::try_from(n).ok()).map(NodeIx);
        for node in changed.iter().copied().filter(|n| (n.0 as usize) < next).chain(fresh) {
            let at = self.ready_at(node, ask);
            ready.put(node, at);
        }
        (ready.next, ready.changes) = (end, self.cluster.changes());
        self.caches.ready.insert(*ask, ready);
    }

    /// The ready time of a node for an ask, in microseconds.
    fn ready_at(&self, node: NodeIx, ask: &Ask) -> i64 {
        let Some(host) = self.cluster.node(node) else { return NEVER };
        // A node that is expected back counts as connected, for starts that are later than now.
        let back = host.facts.awaited.then(|| host.opened());
        let host = back.as_ref().unwrap_or(host);
        if !host.view().gpus().iter().any(|g| ask.shape.models.has(g.model)) {
            return NEVER;
        }
        let fits = |view| self.finder.offer(&self.cluster, &view, &ask.shape).is_some();
        let present = back.as_ref().map_or(*host.view(), |back| self.cluster.view_of(back, |_| true));
        if fits(present) {
            return 0;
        }
        let mut ends: Vec<Timestamp> = host.ranks.iter().filter_map(|r| r.ends_by).collect();
        ends.sort_unstable();
        ends.dedup();
        // Ended runs stay ended, so a binary search finds the first free time.
        let is_free =
            |end: &Timestamp| fits(self.cluster.view_of(host, |rank| rank.ends_by.is_none_or(|e| e > *end)));
        let first = ends.partition_point(|end| !is_free(end));
        ends.get(first).map_or(NEVER, |t| t.micros())
    }
}

//! The start that is held for a job which does not fit: when and where it can start at the latest.
//!
//! What runs ends at its limit at the latest, so the first time at which enough of it must have ended
//! is a time that can be promised. The promise is a booking like any other, so nothing that is placed
//! later can be in its way; what ends before it may run on it meanwhile (backfill).

use std::collections::BTreeSet;

use berth_types::ids::JobId;
use berth_types::time::Timestamp;

use super::{Basis, Engine, Held};
use crate::calendar::{Booking, But, HANGS_S, Kind, LATE_S, Place, expected_end};
use crate::cluster::{BookingId, Models, NodeIx};
use crate::queue::Turn;
use crate::request::Ask;

/// Asks whose ready times are kept.
const ASKS: usize = 256;
/// As many nodes are looked at for an ask in one pass.
const SCANNED: usize = 32;
/// Nodes that are looked at first for the earliest start.
const FIRST: usize = 128;
/// Asks of which is kept whether the nodes could hold them.
const POSSIBLE: usize = 4_096;
const NEVER: i64 = i64::MAX;

/// When each node could take an ask at the earliest, bookings aside. Microseconds; at or before now: at once.
#[derive(Debug, Clone, Default)]
pub(super) struct Ready {
    changes: u64,
    /// From this node on nothing is known yet.
    next: usize,
    nodes: Vec<i64>,
    /// Those that could take it at some time, the earliest first.
    order: BTreeSet<(i64, NodeIx)>,
}

impl Ready {
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

/// What is known of a job's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Foreseen {
    At(Timestamp),
    /// Not all nodes were looked at yet.
    NotYet,
    /// What is in the way has no known end.
    Never,
}

/// True if two lists name the same bookings besides the one of a job itself.
fn same_others(one: &[BookingId], other: &[BookingId], job: JobId) -> bool {
    let others =
        |list: &'_ [BookingId]| list.iter().filter(|id| **id != hold_id(job)).copied().collect::<Vec<_>>();
    others(one) == others(other)
}

/// True if the room of a job is due, and a run that was stopped for it may outlast its grace, but not for so long
/// that it may hang: the room stays the job's own for as long.
pub(super) fn is_overdue(basis: Basis, due: Timestamp, now: Timestamp) -> bool {
    basis == Basis::Stopped && due <= now && now <= due.plus_seconds(HANGS_S)
}

/// True if a held start is late only because a stopped run is.
pub(super) fn is_room_late(basis: Basis, due: Timestamp, at: Timestamp, now: Timestamp) -> bool {
    basis == Basis::Stopped && at <= now.plus_seconds(LATE_S) && now <= due.plus_seconds(HANGS_S)
}

/// The last end of the stopped runs on boards of a pool, in the open or inside a booking. Two jobs may get the room in
/// another order than before, so the runs of all jobs count.
fn rooms_end(engine: &Engine, pool: u64, inside: Option<BookingId>, now: Timestamp) -> Option<Timestamp> {
    let near = |claim: &super::Claim| {
        let mut nodes = claim.ranks.iter().filter_map(|rank| engine.cluster.find_node(rank.node));
        let fed = !engine.racks.is_empty();
        claim.inside == inside && (fed || nodes.any(|node| engine.is_of(node, Models(pool))))
    };
    let runs = engine.rooms.iter().flat_map(|(_, by)| by).filter_map(|run| engine.claims.get(run));
    let ends = runs.filter(|claim| near(claim)).filter_map(|claim| claim.ends_by);
    let end = ends.filter(|end| now <= end.plus_seconds(HANGS_S)).max()?;
    Some(end.max(now.plus_seconds(LATE_S)))
}

/// The booking of a start that is held for a job.
pub(super) fn hold_id(job: JobId) -> BookingId {
    BookingId(job.uuid())
}

impl Engine {
    /// The starts that are held, inside reservations too.
    pub fn held_starts(&self) -> impl Iterator<Item = (JobId, &Booking)> {
        let open = self.holds.keys().filter_map(|job| Some((*job, self.calendar.get(hold_id(*job))?)));
        open.chain(self.held_inside())
    }

    /// True if others are stopped for a job: their room is for it alone.
    pub fn is_firm(&self, job: JobId) -> bool {
        self.basis(job) == Some(Basis::Stopped)
    }

    /// True if a job waits for a held start outside its line.
    pub fn is_aside(&self, job: JobId) -> bool {
        self.basis(job).is_some_and(|basis| basis != Basis::First)
    }

    fn basis(&self, job: JobId) -> Option<Basis> {
        let inside = || self.inside.values().flatten().find(|h| h.job == job).map(|h| h.basis);
        self.holds.get(&job).map(|h| h.basis).or_else(inside)
    }

    /// Holds a start for a job, or keeps the one that is held. A job that is not the first leaves the queue and
    /// waits for its start.
    pub(super) fn hold(&mut self, pool: u64, job: JobId, basis: Basis, now: Timestamp) -> Foreseen {
        let but = self.no_obstacles(job, false, now);
        let held =
            self.holds.get(&job).filter(|h| h.at > now && h.basis == basis && same_others(&h.but, &but, job));
        if let Some(at) = held.filter(|held| self.is_current(job, held)).map(|held| held.at) {
            self.renew_hold(job, pool);
            return Foreseen::At(at);
        }
        let Some(waiting) = self.jobs.get(&job) else { return Foreseen::Never };
        let Some(ask) = waiting.ask else { return Foreseen::Never };
        let (org, seconds) = (waiting.facts.org, waiting.facts.max_duration_s);
        // What is found so far can be promised; the next pass may find something sooner.
        self.sync_ready(&ask, SCANNED);
        let Some((at, places)) = self.earliest_known(&ask, seconds, now, &but) else {
            self.drop_hold(job);
            let all = self.memory.ready.get(&ask).is_some_and(|r| r.next >= r.nodes.len());
            return if all { Foreseen::Never } else { Foreseen::NotYet };
        };
        let until = self.ends(at, seconds);
        let (id, kind, from) = (hold_id(job), Kind::Hold, at);
        // The same start stays where it is: that is no news to others.
        let same = |b: &&Booking| (b.from, b.until, b.ask) == (from, until, Some(ask));
        let free = But { bookings: &but, owners: &[], away: false };
        let stays = |b: &Booking| self.is_free_throughout(b, &ask, now, free);
        if !self.calendar.get(id).filter(same).is_some_and(stays) {
            self.calendar.put(&self.cluster, Booking { id, kind, org, ask: Some(ask), from, until, places });
        }
        if basis != Basis::First && !self.is_aside(job) {
            self.set_aside(job);
        }
        let before = self.holds.get(&job).filter(|held| held.basis == basis);
        let due = before.map_or(at, |held| held.due);
        self.holds.insert(job, Held { pool, at, basis, due, but, changes: 0, bookings: 0 });
        self.renew_hold(job, pool);
        Foreseen::At(at)
    }

    /// Restores the firm holds of jobs for which runs are stopped. An engine that is built anew has none, and such a
    /// hold is lost for as long as a node is closed or a limit of the organization is reached.
    pub(super) fn restore_rooms(&mut self, now: Timestamp) {
        let lost = self.rooms.iter().filter(|(job, _)| !self.is_firm(*job));
        let mut turns: Vec<Turn> = lost.filter_map(|(job, _)| self.turn(job, now)).collect();
        turns.sort_unstable();
        for Turn { job, .. } in turns {
            let Some(waiting) = self.jobs.get(&job) else { continue };
            let (Some(lane), Some(ask)) = (waiting.lane, waiting.ask) else { continue };
            let (pool, seconds) = (ask.shape.models.0, waiting.facts.max_duration_s);
            let Some(gone) = rooms_end(self, pool, lane.inside, now) else { continue };
            if let Some(id) = lane.inside {
                self.restore_room_inside(id, job, gone, now);
            } else if self.turns(now).admits(lane.group, &ask) {
                // A later start is not the room that was made.
                self.sync_ready(&ask, SCANNED);
                let but = self.no_obstacles(job, false, now);
                let found = self.earliest_known(&ask, seconds, now, &but);
                if found.is_some_and(|(at, _)| at <= gone) {
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

    /// Bookings that are no obstacle to a job: its own, and the starts that are held for jobs whose turn is
    /// after its own. Room that others made gives way only to a higher class that starts `at_once`.
    pub(super) fn no_obstacles(&self, job: JobId, at_once: bool, now: Timestamp) -> Vec<BookingId> {
        let mut out: Vec<BookingId> =
            self.holds.contains_key(&job).then(|| hold_id(job)).into_iter().collect();
        let Some((mine, class)) = self.turn(job, now).zip(self.class(job)) else { return out };
        let pool = self.jobs.get(&job).and_then(|w| w.ask).map_or(u64::MAX, |ask| ask.shape.models.0);
        // Starts that were held behind its room begin as much later as the stopped run is late.
        let is_late = self.holds.get(&job).is_some_and(|h| is_overdue(h.basis, h.due, now));
        for (other, held) in self.holds.iter().filter(|(_, held)| self.meets(held, pool)) {
            let gives_way = held.basis != Basis::Stopped
                || at_once && self.class(*other).is_some_and(|theirs| theirs < class);
            let is_later = self.turn(*other, now).is_some_and(|turn| turn > mine);
            if *other != job && (gives_way && is_later || is_late && held.basis != Basis::Stopped) {
                out.push(hold_id(*other));
            }
        }
        out
    }

    /// True if other held starts are an obstacle to a job's held start than when it was found.
    pub(super) fn meets_others(&self, job: JobId, now: Timestamp) -> bool {
        let but = self.no_obstacles(job, false, now);
        self.holds.get(&job).is_none_or(|held| !same_others(&held.but, &but, job))
    }

    /// True if a held start may be in the way of a pool. Where racks have budgets, all pools meet.
    pub(super) fn meets(&self, held: &Held, pool: u64) -> bool {
        held.pool & pool != 0 || !self.racks.is_empty()
    }

    /// The class of a job as it was submitted.
    pub(super) fn class(&self, job: JobId) -> Option<i64> {
        Some(self.jobs.get(&job)?.facts.priority.rank())
    }

    /// The turn of a job that waits in the queue.
    pub(super) fn turn(&self, job: JobId, now: Timestamp) -> Option<Turn> {
        let waiting = self.jobs.get(&job)?;
        Some(self.turns(now).of(waiting.lane?.group, waiting.facts.queued_at, job))
    }

    /// The start that is held for the first of a pool.
    pub(super) fn first_held(&self, pool: u64) -> Option<JobId> {
        self.holds.iter().find(|(_, h)| h.pool == pool && h.basis == Basis::First).map(|(job, _)| *job)
    }

    /// The jobs of a pool that wait for a held start outside its line.
    pub(super) fn aside(&self, pool: u64) -> Vec<JobId> {
        let aside = self.holds.iter().filter(|(_, h)| h.pool == pool && h.basis != Basis::First);
        aside.map(|(job, _)| *job).collect()
    }

    /// Whether nothing that changed since could make the held start worse or sooner.
    fn is_current(&self, job: JobId, held: &Held) -> bool {
        if !self.racks.is_empty() || self.calendar.version(Models(held.pool)) != held.bookings {
            return false;
        }
        let Some(changed) = self.cluster.changed_since(held.changes).filter(|c| c.len() < 64) else {
            return false;
        };
        let Some(booking) = self.calendar.get(hold_id(job)) else { return false };
        let Some(ask) = booking.ask else { return false };
        if self.memory.ready.get(&ask).is_none_or(|r| r.next < r.nodes.len()) {
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

    /// Takes a job out of the queue, for which room was made elsewhere, or which no node could hold.
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

    /// The first time at which an ask is sure to find its places, and which. `None` when nothing that
    /// is known leads there.
    pub(super) fn earliest(
        &mut self,
        ask: &Ask,
        seconds: i64,
        now: Timestamp,
        but: &[BookingId],
    ) -> Option<(Timestamp, Vec<Place>)> {
        self.sync_ready(ask, usize::MAX);
        self.earliest_known(ask, seconds, now, but)
    }

    fn earliest_known(
        &self,
        ask: &Ask,
        seconds: i64,
        now: Timestamp,
        but: &[BookingId],
    ) -> Option<(Timestamp, Vec<Place>)> {
        let ready = self.memory.ready.get(ask)?;
        // Only the first can be the answer, unless bookings are in their way.
        let mut nodes = ready.order.iter().copied();
        let first: Vec<(i64, NodeIx)> = nodes.by_ref().take(ask.nodes as usize + FIRST).collect();
        if let Some((next, _)) = nodes.next() {
            let found = self.earliest_on(ask, &first, seconds, now, but);
            if let Some(found) = found.filter(|(at, _)| at.micros() <= next) {
                return Some(found);
            }
        }
        let all: Vec<(i64, NodeIx)> = ready.order.iter().copied().collect();
        self.earliest_on(ask, &all, seconds, now, but)
    }

    /// The same on these nodes, in the order of their times.
    fn earliest_on(
        &self,
        ask: &Ask,
        nodes: &[(i64, NodeIx)],
        seconds: i64,
        now: Timestamp,
        but: &[BookingId],
    ) -> Option<(Timestamp, Vec<Place>)> {
        // Each time at which something changes for the better, in order.
        let ends = self.calendar.iter().filter(|b| !but.contains(&b.id)).map(|b| b.until);
        let mut times: Vec<Timestamp> =
            nodes.iter().map(|(at, _)| Timestamp::from_micros(*at)).chain(ends).collect();
        // Where something is booked, the first free place may not be free for long; what is late ends after its time.
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
        let but = But { bookings: but, owners: &[], away: false };
        times.into_iter().find_map(|at| {
            let able: Vec<NodeIx> =
                nodes.iter().take_while(|(ready, _)| *ready <= at.micros()).map(|(_, n)| *n).collect();
            if able.len() < ask.nodes as usize {
                return None;
            }
            let chosen = self.place_at(ask, &able, (at, self.ends(at, seconds)), now, but)?;
            Some((at, self.places(ask, &chosen)))
        })
    }

    /// Puts jobs back into the queue that the nodes can hold since some were equipped anew.
    pub(super) fn put_possible_back(&mut self) {
        let equipped = self.cluster.equipped();
        if std::mem::replace(&mut self.memory.equipped, equipped) == equipped {
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

    /// True if enough nodes could hold an ask with nothing else running on them.
    pub(super) fn is_possible(&mut self, ask: &Ask) -> bool {
        let ask = ask.for_anybody();
        let equipped = self.cluster.equipped();
        if let Some((_, known)) = self.memory.possible.get(&ask).filter(|(as_of, _)| *as_of == equipped) {
            return *known;
        }
        let able = self.all_nodes().filter(|node| self.is_able(*node, &ask));
        let possible = able.take(ask.nodes as usize).count() == ask.nodes as usize;
        if self.memory.possible.len() >= POSSIBLE {
            self.memory.possible.clear();
        }
        self.memory.possible.insert(ask, (equipped, possible));
        possible
    }

    /// Whether a search for the start of one of these jobs goes on in the next pass.
    pub(super) fn is_searching(&self, jobs: &[JobId]) -> bool {
        let asks = jobs.iter().filter_map(|job| self.jobs.get(job)?.ask);
        asks.into_iter().any(|ask| self.memory.ready.get(&ask).is_some_and(|r| r.next < r.nodes.len()))
    }

    /// Looks at the nodes that changed, and at so many of those that were never looked at.
    fn sync_ready(&mut self, ask: &Ask, budget: usize) {
        if !self.memory.ready.contains_key(ask) && self.memory.ready.len() >= ASKS {
            self.memory.ready.clear();
        }
        let mut ready = self.memory.ready.remove(ask).unwrap_or_default();
        let count = self.cluster.nodes().len();
        let changed = self.cluster.changed_since(ready.changes);
        let known = changed.filter(|c| ready.nodes.len() == count && c.len() < count.max(64));
        let Some(changed) = known else {
            ready = Ready::new(count);
            return self.look(ask, ready, &[], budget);
        };
        let changed = changed.to_vec();
        self.look(ask, ready, &changed, budget);
    }

    fn look(&mut self, ask: &Ask, mut ready: Ready, changed: &[NodeIx], budget: usize) {
        let end = ready.next.saturating_add(budget).min(ready.nodes.len());
        let next = ready.next;
        let fresh = (next..end).filter_map(|n| u32::try_from(n).ok()).map(NodeIx);
        for node in changed.iter().copied().filter(|n| (n.0 as usize) < next).chain(fresh) {
            let at = self.ready_at(node, ask);
            ready.put(node, at);
        }
        (ready.next, ready.changes) = (end, self.cluster.changes());
        self.memory.ready.insert(*ask, ready);
    }

    fn ready_at(&self, node: NodeIx, ask: &Ask) -> i64 {
        let Some(of) = self.cluster.node(node) else { return NEVER };
        if !of.view().gpus().iter().any(|g| ask.shape.models.has(g.model)) {
            return NEVER;
        }
        let fits = |view| self.finder.offer(&self.cluster, &view, &ask.shape).is_some();
        if fits(*of.view()) {
            return 0;
        }
        let mut ends: Vec<Timestamp> = of.ranks.iter().filter_map(|r| r.ends_by).collect();
        ends.sort_unstable();
        ends.dedup();
        // What has ended by a time stays ended, so the first good time is found by halving.
        let good = |end: &Timestamp| {
            let view = self.cluster.view_with(node, |rank| rank.ends_by.is_none_or(|e| e > *end));
            view.is_some_and(fits)
        };
        let first = ends.partition_point(|end| !good(end));
        ends.get(first).map_or(NEVER, |t| t.micros())
    }
}

//! The start that is held for a job which does not fit: when and where it can start at the latest.
//!
//! What runs ends at its limit at the latest, so the first time at which enough of it must have ended
//! is a time that can be promised. The promise is a booking like any other, so nothing that is placed
//! later can be in its way; what ends before it may run on it meanwhile (backfill).

use berth_types::ids::JobId;
use berth_types::time::Timestamp;

use super::{Engine, Held};
use crate::calendar::{Booking, But, Kind, Place};
use crate::cluster::{BookingId, NodeIx};
use crate::request::Ask;

/// What is late is expected within so many seconds.
pub(super) const LATE_S: i64 = 30;
/// Asks whose ready times are kept.
const ASKS: usize = 256;
/// As many nodes are looked at for an ask in one pass.
const SCANNED: usize = 32;
/// Nodes that are looked at first for the earliest start.
const FIRST: usize = 128;
const NEVER: i64 = i64::MAX;

/// When each node could take an ask at the earliest, bookings aside. Microseconds; at or before now: at once.
#[derive(Debug, Clone, Default)]
pub(super) struct Ready {
    changes: u64,
    /// From this node on nothing is known yet.
    next: usize,
    nodes: Vec<i64>,
}

impl Engine {
    /// The hold of a pool's first job, made or kept. The time of its start, when there is one.
    pub(super) fn hold(&mut self, pool: u64, job: JobId, now: Timestamp) -> Option<Timestamp> {
        let changes = self.cluster.changes();
        if let Some(held) = self.holds.get(&pool).copied() {
            if held.job == job && held.at > now && self.still_first(&held) {
                if let Some(held) = self.holds.get_mut(&pool) {
                    held.changes = changes;
                }
                return Some(held.at);
            }
            self.drop_hold(pool);
        }
        let waiting = self.jobs.get(&job)?;
        let (ask, org) = (waiting.ask?, waiting.facts.org);
        let seconds = waiting.facts.max_duration_s;
        // What is found so far can be promised; the next pass may find something sooner.
        self.sync_ready(&ask, SCANNED);
        let (at, places) = self.earliest_known(&ask, seconds, now)?;
        let until = self.ends(at, seconds);
        let id = BookingId(job.uuid());
        let booking = Booking { id, kind: Kind::Hold, org, ask: Some(ask), from: at, until, places };
        self.calendar.put(&self.cluster, booking);
        self.holds.insert(pool, Held { job, booking: id, at, changes });
        Some(at)
    }

    /// Whether nothing that changed since could make the held start worse or sooner.
    fn still_first(&self, held: &Held) -> bool {
        let Some(changed) = self.cluster.changed_since(held.changes).filter(|c| c.len() < 64) else {
            return false;
        };
        let Some(booking) = self.calendar.get(held.booking) else { return false };
        let Some(ask) = booking.ask else { return false };
        if self.memory.ready.get(&ask).is_none_or(|r| r.next < r.nodes.len()) {
            return false;
        }
        changed.iter().all(|node| {
            !booking.places.iter().any(|p| p.node == *node) && self.ready_at(*node, &ask) >= held.at.micros()
        })
    }

    pub(super) fn drop_hold(&mut self, pool: u64) {
        if let Some(held) = self.holds.remove(&pool) {
            self.calendar.remove(held.booking);
        }
    }

    pub(super) fn drop_hold_of(&mut self, job: JobId) {
        if let Some(pool) = self.holds.iter().find(|(_, h)| h.job == job).map(|(p, _)| *p) {
            self.drop_hold(pool);
        }
    }

    /// The first time at which an ask is sure to find its places, and which. `None` when nothing that
    /// is known leads there.
    pub(super) fn earliest(
        &mut self,
        ask: &Ask,
        seconds: i64,
        now: Timestamp,
    ) -> Option<(Timestamp, Vec<Place>)> {
        self.sync_ready(ask, usize::MAX);
        self.earliest_known(ask, seconds, now)
    }

    fn earliest_known(&self, ask: &Ask, seconds: i64, now: Timestamp) -> Option<(Timestamp, Vec<Place>)> {
        let ready = self.memory.ready.get(ask)?;
        let mut nodes: Vec<(i64, NodeIx)> = Vec::new();
        for (index, at) in ready.nodes.iter().enumerate().filter(|(_, at)| **at != NEVER) {
            nodes.push((*at, NodeIx(u32::try_from(index).ok()?)));
        }
        // Only the first can be the answer, unless bookings are in their way.
        let enough = ask.nodes as usize + FIRST;
        if nodes.len() > enough {
            let mut first = nodes.clone();
            first.select_nth_unstable(enough);
            first.truncate(enough);
            if let Some(found) = self.earliest_of(ask, first, seconds, now) {
                return Some(found);
            }
        }
        self.earliest_of(ask, nodes, seconds, now)
    }

    fn earliest_of(
        &self,
        ask: &Ask,
        mut nodes: Vec<(i64, NodeIx)>,
        seconds: i64,
        now: Timestamp,
    ) -> Option<(Timestamp, Vec<Place>)> {
        nodes.sort_unstable();
        // Each time at which something changes for the better, in order.
        let late = now.plus_seconds(LATE_S);
        let ends = self.calendar.iter().filter(|b| b.until > now).map(|b| b.until);
        let mut times: Vec<Timestamp> =
            nodes.iter().map(|(at, _)| Timestamp::from_micros(*at).max(late)).collect();
        times.extend(ends);
        times.sort_unstable();
        times.dedup();
        let wanted = ask.nodes as usize;
        for at in times {
            let able: Vec<NodeIx> =
                nodes.iter().take_while(|(ready, _)| *ready <= at.micros()).map(|(_, n)| *n).collect();
            if able.len() < wanted {
                continue;
            }
            let until = self.ends(at, seconds);
            let offers = able.iter().filter_map(|node| {
                let view = self.calendar.view(&self.cluster, *node, (at, until), now, But::default())?;
                let offer = self.finder.offer(&self.cluster, &view, &ask.shape)?;
                Some((offer.cost, *node, offer))
            });
            let offers = offers.filter(|offer| !self.fed_ever(vec![offer.clone()], ask).is_empty());
            // For one node any place will do; the best of the first few is good enough.
            let some = if wanted == 1 { offers.take(8).collect() } else { offers.collect() };
            if let Some(chosen) = self.gather(ask, self.fed_ever(some, ask)) {
                return Some((at, self.places(ask, &chosen)));
            }
        }
        None
    }

    /// Whether some held start may still become sooner, by looking on.
    pub(super) fn holds_unfinished(&self) -> bool {
        let asks = self.holds.values().filter_map(|h| self.calendar.get(h.booking)?.ask);
        asks.into_iter().any(|ask| self.memory.ready.get(&ask).is_some_and(|r| r.next < r.nodes.len()))
    }

    /// Whether the search for a pool's first job goes on in the next pass.
    pub(super) fn is_unfinished(&self, pool: u64) -> bool {
        let Some(held) = self.holds.get(&pool) else { return true };
        let ask = self.calendar.get(held.booking).and_then(|b| b.ask);
        ask.is_none_or(|ask| self.memory.ready.get(&ask).is_none_or(|r| r.next < r.nodes.len()))
            || self.memory.victims.get(&held.job).is_some_and(|s| s.is_unfinished(&self.cluster))
    }

    /// Looks at the nodes that changed, and at so many of those that were never looked at.
    fn sync_ready(&mut self, ask: &Ask, budget: usize) {
        if !self.memory.ready.contains_key(ask) && self.memory.ready.len() >= ASKS {
            self.memory.ready.clear();
        }
        let mut ready = self.memory.ready.remove(ask).unwrap_or_default();
        let count = self.cluster.nodes().len();
        let changed = self.cluster.changed_since(ready.changes);
        let known = changed.filter(|c| ready.nodes.len() == count && c.len() < count);
        let Some(changed) = known else {
            ready = Ready { changes: 0, next: 0, nodes: vec![NEVER; count] };
            return self.look(ask, ready, &[], budget);
        };
        let changed = changed.to_vec();
        self.look(ask, ready, &changed, budget);
    }

    fn look(&mut self, ask: &Ask, mut ready: Ready, changed: &[NodeIx], budget: usize) {
        let end = ready.next.saturating_add(budget).min(ready.nodes.len());
        let fresh = (ready.next..end).filter_map(|n| u32::try_from(n).ok()).map(NodeIx);
        for node in changed.iter().copied().filter(|n| (n.0 as usize) < ready.next).chain(fresh) {
            let at = self.ready_at(node, ask);
            if let Some(slot) = ready.nodes.get_mut(node.0 as usize) {
                *slot = at;
            }
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

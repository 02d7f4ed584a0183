//! The start that is held for a job which does not fit: when and where it can start at the latest.
//!
//! What runs ends at its limit at the latest, so the first time at which enough of it must have ended
//! is a time that can be promised. The promise is a booking like any other, so nothing that is placed
//! later can be in its way; what ends before it may run on it meanwhile (backfill).

use berth_types::ids::JobId;
use berth_types::time::Timestamp;

use super::{Engine, Held};
use crate::calendar::{Booking, Kind, Place};
use crate::cluster::{BookingId, NodeIx};
use crate::request::Ask;

/// What is late is expected within so many seconds.
pub(super) const LATE_S: i64 = 30;
/// Asks whose ready times are kept.
const ASKS: usize = 64;
const NEVER: i64 = i64::MAX;

/// When each node could take an ask at the earliest, bookings aside. Microseconds; at or before now: at once.
#[derive(Debug, Clone, Default)]
pub(super) struct Ready {
    changes: u64,
    nodes: Vec<i64>,
}

impl Engine {
    /// The hold of a pool's first job, made or kept. The time of its start, when there is one.
    pub(super) fn hold(&mut self, pool: u64, job: JobId, now: Timestamp) -> Option<Timestamp> {
        let changes = self.cluster.changes();
        if let Some(held) = self.holds.get(&pool).copied() {
            if held.job == job && held.changes == changes && held.at > now {
                return Some(held.at);
            }
            self.drop_hold(pool);
        }
        let waiting = self.jobs.get(&job)?;
        let (ask, org) = (waiting.lane?.ask, waiting.facts.org);
        let seconds = waiting.facts.max_duration_s;
        let (at, places) = self.earliest(&ask, seconds, now)?;
        let until = self.ends(at, seconds);
        let id = BookingId(job.uuid());
        self.calendar.put(Booking { id, kind: Kind::Hold, org, ask: Some(ask), from: at, until, places });
        self.holds.insert(pool, Held { job, booking: id, at, changes });
        Some(at)
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
        self.sync_ready(ask);
        let ready = self.memory.ready.get(ask)?;
        let mut nodes: Vec<(i64, NodeIx)> = Vec::new();
        for (index, at) in ready.nodes.iter().enumerate().filter(|(_, at)| **at != NEVER) {
            nodes.push((*at, NodeIx(u32::try_from(index).ok()?)));
        }
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
                let view = self.calendar.view(&self.cluster, *node, (at, until), now, None)?;
                let offer = self.finder.offer(&self.cluster, &view, &ask.shape)?;
                Some((offer.cost, *node, offer))
            });
            // For one node any place will do; the best of the first few is good enough.
            let some = if wanted == 1 { offers.take(8).collect() } else { offers.collect() };
            if let Some(chosen) = self.gather(ask, some) {
                return Some((at, self.places(ask, &chosen)));
            }
        }
        None
    }

    fn sync_ready(&mut self, ask: &Ask) {
        if !self.memory.ready.contains_key(ask) && self.memory.ready.len() >= ASKS {
            self.memory.ready.clear();
        }
        let mut ready = self.memory.ready.remove(ask).unwrap_or_default();
        let count = self.cluster.nodes().len();
        let changed = self.cluster.changed_since(ready.changes);
        match changed.filter(|c| ready.nodes.len() == count && c.len() < count) {
            Some(changed) => {
                for node in changed {
                    let at = self.ready_at(*node, ask);
                    if let Some(slot) = ready.nodes.get_mut(node.0 as usize) {
                        *slot = at;
                    }
                }
            }
            None => {
                let all = 0..u32::try_from(count).unwrap_or(0);
                ready.nodes = all.map(|n| self.ready_at(NodeIx(n), ask)).collect();
            }
        }
        ready.changes = self.cluster.changes();
        self.memory.ready.insert(*ask, ready);
    }

    fn ready_at(&self, node: NodeIx, ask: &Ask) -> i64 {
        let Some(of) = self.cluster.node(node) else { return NEVER };
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

//! The ready times of nodes: the earliest time at which each could take an ask, and the earliest start that
//! follows.

use std::collections::BTreeSet;

use berth_types::ids::JobId;
use berth_types::time::Timestamp;

use super::{Engine, burst_reserve, place, run_end};
use berth_placement::calendar::{Exclusions, Expected, LATE_S, NodeSlots, expected_end};
use berth_placement::cluster::{BookingId, NodeIx};
use berth_placement::request::Ask;

/// The number of nodes that a pass searches for one ask.
pub(super) const SCANNED: usize = 32;
/// The largest number of asks with kept ready times.
const MAX_ASKS: usize = 256;
/// The first times, and the later ones, that are tried for a job that leaves the reserve for bursts. Each of them counts
/// the boards of all nodes for inference.
const TRIED_WITH_RESERVE: usize = 64;
const TRIED_LATER: usize = 32;
/// The number of nodes that are tried first for the earliest start.
const TRIED_FIRST: usize = 128;
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

    /// True if all nodes are searched.
    pub(super) fn is_complete(&self) -> bool {
        self.next >= self.nodes.len()
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

/// The first time at which an ask is sure to find places, with these places. `None` if no known end leads
/// to them.
pub(super) fn earliest(
    engine: &mut Engine,
    ask: &Ask,
    seconds: i64,
    now: Timestamp,
    excluded: &[BookingId],
) -> Option<(Timestamp, Vec<NodeSlots>)> {
    sync(engine, ask, usize::MAX);
    earliest_known(engine, ask, seconds, now, excluded)
}

/// The same for the nodes that are searched so far.
pub(super) fn earliest_known(
    engine: &Engine,
    ask: &Ask,
    seconds: i64,
    now: Timestamp,
    excluded: &[BookingId],
) -> Option<(Timestamp, Vec<NodeSlots>)> {
    let ready = engine.caches.ready.get(ask)?;
    // Only the first nodes can hold the answer, unless bookings conflict with it.
    let mut nodes = ready.order.iter().copied();
    let first: Vec<(i64, NodeIx)> = nodes.by_ref().take(ask.nodes as usize + TRIED_FIRST).collect();
    if let Some((next, _)) = nodes.next() {
        let found = earliest_on(engine, ask, &first, seconds, now, excluded);
        if let Some(found) = found.filter(|(at, _)| at.micros() <= next) {
            return Some(found);
        }
    }
    let all: Vec<(i64, NodeIx)> = ready.order.iter().copied().collect();
    earliest_on(engine, ask, &all, seconds, now, excluded)
}

/// Few of the times: the first ones, and some of the later ones at which a node is ready or the last run ends. A late held
/// start is better than none.
fn few(mut times: Vec<Timestamp>, nodes: &[(i64, NodeIx)]) -> Vec<Timestamp> {
    if times.len() <= TRIED_WITH_RESERVE {
        return times;
    }
    let later: BTreeSet<Timestamp> = times.split_off(TRIED_WITH_RESERVE).into_iter().collect();
    let ready = nodes.iter().map(|(at, _)| *at).filter(|at| *at < NEVER).map(Timestamp::from_micros);
    let mut candidates: BTreeSet<Timestamp> = ready.filter(|at| later.contains(at)).collect();
    // After the last end the reserve is as complete as it becomes.
    candidates.extend(later.last().copied());
    let step = candidates.len().div_ceil(TRIED_LATER).max(1);
    let mut tried: Vec<Timestamp> = candidates.into_iter().rev().step_by(step).collect();
    tried.reverse();
    times.extend(tried);
    times
}

/// The same on some nodes, in the order of their ready times.
fn earliest_on(
    engine: &Engine,
    ask: &Ask,
    nodes: &[(i64, NodeIx)],
    seconds: i64,
    now: Timestamp,
    excluded: &[BookingId],
) -> Option<(Timestamp, Vec<NodeSlots>)> {
    // All times at which capacity becomes free, in order.
    let ends = engine.calendar.iter().filter(|b| !excluded.contains(&b.id)).map(|b| b.until);
    let mut times: Vec<Timestamp> =
        nodes.iter().map(|(at, _)| Timestamp::from_micros(*at)).chain(ends).collect();
    // On a booked node the first free place may not stay free; a late run ends after its limit.
    let booked = nodes.iter().filter(|(at, node)| !engine.calendar.is_free(*node) || *at <= now.micros());
    let ranks = booked.filter_map(|(_, node)| engine.cluster.node(*node)).flat_map(|n| &n.ranks);
    times.extend(ranks.filter_map(|rank| expected_end(rank, now)));
    if !engine.racks.is_empty() {
        times.extend(engine.racks.run_ends(&engine.cluster, now));
    }
    if engine.burst_reserve.binds(ask) {
        times.extend(burst_reserve::run_ends(engine, ask.shape.models, now));
    }
    times.push(now.plus_seconds(LATE_S));
    times.retain(|at| *at > now);
    times.sort_unstable();
    times.dedup();
    if engine.burst_reserve.binds(ask) {
        times = few(times, nodes);
    }
    let excluded = Exclusions { bookings: excluded, owners: &[], expected: Expected::Awaited };
    times.into_iter().find_map(|at| {
        let able: Vec<NodeIx> =
            nodes.iter().take_while(|(ready, _)| *ready <= at.micros()).map(|(_, n)| *n).collect();
        if able.len() < ask.nodes as usize {
            return None;
        }
        let chosen = place::find_places_at(engine, ask, &able, (at, run_end(at, seconds)), now, excluded)?;
        Some((at, place::node_slots(engine, ask, &chosen)))
    })
}

/// Returns true if a search for the start of one of these jobs continues in the next pass.
pub(super) fn is_searching(engine: &Engine, jobs: &[JobId]) -> bool {
    let asks = jobs.iter().filter_map(|job| engine.jobs.get(job)?.ask);
    asks.into_iter().any(|ask| engine.caches.ready.get(&ask).is_some_and(|r| !r.is_complete()))
}

/// Updates the ready times of changed nodes and of `budget` further nodes.
pub(super) fn sync(engine: &mut Engine, ask: &Ask, budget: usize) {
    if !engine.caches.ready.contains_key(ask) && engine.caches.ready.len() >= MAX_ASKS {
        engine.caches.ready.clear();
    }
    let mut ready = engine.caches.ready.remove(ask).unwrap_or_default();
    let count = engine.cluster.nodes().len();
    let changed = engine.cluster.changed_since(ready.changes);
    let known = changed.filter(|c| ready.nodes.len() == count && c.len() < count.max(64));
    let Some(changed) = known else {
        ready = ReadyTimes::new(count);
        return scan(engine, ask, ready, &[], budget);
    };
    let changed = changed.to_vec();
    scan(engine, ask, ready, &changed, budget);
}

fn scan(engine: &mut Engine, ask: &Ask, mut ready: ReadyTimes, changed: &[NodeIx], budget: usize) {
    let end = ready.next.saturating_add(budget).min(ready.nodes.len());
    let next = ready.next;
    let fresh = (next..end).filter_map(|n| u32::try_from(n).ok()).map(NodeIx);
    for node in changed.iter().copied().filter(|n| (n.0 as usize) < next).chain(fresh) {
        let at = ready_at(engine, node, ask);
        ready.put(node, at);
    }
    (ready.next, ready.changes) = (end, engine.cluster.changes());
    engine.caches.ready.insert(*ask, ready);
}

/// The ready time of a node for an ask, in microseconds.
pub(super) fn ready_at(engine: &Engine, node: NodeIx, ask: &Ask) -> i64 {
    let Some(host) = engine.cluster.node(node) else { return NEVER };
    // A node that is expected back counts as connected, for starts that are later than now.
    let back = host.facts.awaited.then(|| host.opened());
    let host = back.as_ref().unwrap_or(host);
    if !host.view().gpus().iter().any(|g| ask.shape.models.has(g.model)) {
        return NEVER;
    }
    let fits = |view| engine.finder.offer(&engine.cluster, &view, &ask.shape).is_some();
    let present = back.as_ref().map_or(*host.view(), |back| engine.cluster.view_of(back, |_| true));
    if fits(present) {
        return 0;
    }
    let mut ends: Vec<Timestamp> = host.ranks.iter().filter_map(|r| r.ends_by).collect();
    ends.sort_unstable();
    ends.dedup();
    // Ended runs stay ended, so a binary search finds the first free time.
    let is_free =
        |end: &Timestamp| fits(engine.cluster.view_of(host, |rank| rank.ends_by.is_none_or(|e| e > *end)));
    let first = ends.partition_point(|end| !is_free(end));
    ends.get(first).map_or(NEVER, |t| t.micros())
}

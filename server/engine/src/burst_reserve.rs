//! The reserve for bursts of inference: boards of nodes for inference that jobs do not borrow.
//!
//! A preemptible job borrows a node for inference only if enough boards of its model stay free, at its start and at each
//! begin of a booking within its longest run. Replicas use the reserve. A free board in the held start of a replica
//! counts as used, because the reserve would lack it at once.

use std::collections::{BTreeMap, BTreeSet};

use berth_types::node_pools::NodePool;
use berth_types::time::Timestamp;

use super::held::hold_id;
use super::power::{Boards, add_slots};
use super::{Engine, Span, order};
use berth_placement::calendar::{Exclusions, Expected, NodeSlots, expected_end};
use berth_placement::cluster::{Cluster, MAX_GPUS, ModelIx, Models, Node, NodeIx, WHOLE_MILLI};
use berth_placement::pools::Work;
use berth_placement::request::Ask;

pub(super) const NO_BOARDS: Boards = [false; MAX_GPUS];

/// The boards of one reserve: their model, and the organization to which their nodes are dedicated (0 for none).
pub(super) type ReserveGroup = (ModelIx, u16);

/// The number of boards of each group that stay free of jobs that borrow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct BurstReserve(u32);

/// The boards at a moment.
#[derive(Debug, Clone, Default)]
struct Moment {
    /// The number of free boards beyond the reserve; negative while boards are missing.
    left: BTreeMap<ReserveGroup, i64>,
    free: BTreeMap<NodeIx, Boards>,
}

/// The boards that jobs may borrow during a span.
#[derive(Debug, Clone)]
pub(super) struct Lendable {
    moments: Vec<Moment>,
}

impl BurstReserve {
    pub(super) const fn boards(self) -> u32 {
        self.0
    }

    pub(super) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// True if the reserve limits the places of an ask.
    pub(super) fn binds(self, ask: &Ask) -> bool {
        !self.is_empty() && ask.shape.work == Work::Preemptible
    }
}

/// Sets the number of boards of each model that jobs leave free on nodes for inference; 0 is no reserve.
pub fn put_burst_reserve(engine: &mut Engine, boards: u32) {
    if engine.burst_reserve.0 == boards {
        return;
    }
    engine.burst_reserve = BurstReserve(boards);
    // Waiting jobs may start now on any node.
    for index in 0..engine.cluster.nodes().len() {
        if let Ok(index) = u32::try_from(index) {
            engine.cluster.mark_changed(NodeIx(index));
        }
    }
}

impl Moment {
    /// The number of free boards that these boards of a node take from each group.
    fn taken(&self, cluster: &Cluster, node: NodeIx, boards: &Boards) -> BTreeMap<ReserveGroup, i64> {
        let mut taken = BTreeMap::new();
        let Some(host) = cluster.node(node) else { return taken };
        let free = self.free.get(&node).unwrap_or(&NO_BOARDS);
        for (index, (chosen, is_free)) in boards.iter().zip(free).enumerate() {
            if *chosen {
                *taken.entry(group(host, index)).or_default() += i64::from(*is_free);
            }
        }
        taken
    }

    /// True if the reserve is complete without these boards of a node.
    fn admits(&self, cluster: &Cluster, node: NodeIx, boards: &Boards) -> bool {
        let mut taken = self.taken(cluster, node, boards).into_iter();
        taken.all(|(group, taken)| self.left.get(&group).is_some_and(|left| *left >= taken))
    }
}

impl Lendable {
    /// True if the reserve may have boards of a node.
    pub(super) fn counts(cluster: &Cluster, node: NodeIx) -> bool {
        cluster.node(node).is_some_and(is_for_inference)
    }

    /// True if a job may borrow these boards of a node.
    pub(super) fn admits(&self, cluster: &Cluster, node: NodeIx, boards: &Boards) -> bool {
        !Self::counts(cluster, node) || self.moments.iter().all(|moment| moment.admits(cluster, node, boards))
    }

    /// True if a job may borrow all of these places together.
    pub(super) fn admits_all(mut self, cluster: &Cluster, places: &[NodeSlots]) -> bool {
        places.iter().all(|place| {
            let mut boards = NO_BOARDS;
            add_slots(cluster, place.node, &place.slots, &mut boards);
            let admitted = self.admits(cluster, place.node, &boards);
            self.lend(cluster, place.node, &boards);
            admitted
        })
    }

    /// The most free boards that these boards of a node take at any moment.
    pub(super) fn taken(&self, cluster: &Cluster, node: NodeIx, boards: &Boards) -> i64 {
        if !Self::counts(cluster, node) {
            return 0;
        }
        let each = |moment: &Moment| moment.taken(cluster, node, boards).into_values().sum::<i64>();
        self.moments.iter().map(each).max().unwrap_or(0)
    }

    /// Counts these boards of a node as borrowed.
    pub(super) fn lend(&mut self, cluster: &Cluster, node: NodeIx, boards: &Boards) {
        if !Self::counts(cluster, node) {
            return;
        }
        for moment in &mut self.moments {
            for (group, taken) in moment.taken(cluster, node, boards) {
                *moment.left.entry(group).or_default() -= taken;
            }
            if let Some(free) = moment.free.get_mut(&node) {
                free.iter_mut().zip(boards).for_each(|(free, chosen)| *free &= !*chosen);
            }
        }
    }

    /// The number of boards that jobs may borrow at the begin of the span.
    pub(super) fn count(&self) -> u32 {
        let left = self.moments.iter().take(1).flat_map(|moment| moment.left.values());
        u32::try_from(left.map(|left| (*left).max(0)).sum::<i64>()).unwrap_or(u32::MAX)
    }
}

fn is_for_inference(host: &Node) -> bool {
    host.facts.pool == NodePool::Inference
}

/// The group of a board of a node.
pub(super) fn group(host: &Node, index: usize) -> ReserveGroup {
    (host.model_ix(index), host.view().dedicated_to)
}

/// The nodes for inference with boards of these models.
pub(super) fn nodes_with(engine: &Engine, models: Models) -> Vec<NodeIx> {
    let has_board = |host: &Node| (0..host.facts.gpus.len()).any(|index| models.has(host.model_ix(index)));
    let nodes = engine.cluster.nodes().iter().enumerate();
    let meant = nodes.filter(|(_, host)| is_for_inference(host) && has_board(host));
    meant.filter_map(|(index, _)| u32::try_from(index).ok()).map(NodeIx).collect()
}

/// The first time after a time.
pub(super) const fn after(at: Timestamp) -> Timestamp {
    Timestamp::from_micros(at.micros().saturating_add(1))
}

/// The boards of the held starts of replicas.
pub(super) fn held_by_replicas(engine: &Engine) -> BTreeMap<NodeIx, Boards> {
    let mut held: BTreeMap<NodeIx, Boards> = BTreeMap::new();
    let replicas = engine.holds.iter().map(|(job, _)| job).filter(|job| order::is_replica(engine, *job));
    for booking in replicas.filter_map(|job| engine.calendar.get(hold_id(job))) {
        for place in &booking.places {
            let boards = held.entry(place.node).or_insert(NO_BOARDS);
            add_slots(&engine.cluster, place.node, &place.slots, boards);
        }
    }
    held
}

/// The boards of some nodes for inference at a moment.
fn moment_at(
    engine: &Engine,
    nodes: &[NodeIx],
    held: &BTreeMap<NodeIx, Boards>,
    at: Timestamp,
    now: Timestamp,
    excluded: Exclusions<'_>,
) -> Moment {
    let mut moment = Moment::default();
    let missing = -i64::from(engine.burst_reserve.0);
    for node in nodes {
        let Some(host) = engine.cluster.node(*node) else { continue };
        let is_open = host.facts.open || excluded.expected == Expected::Nobody;
        let is_known = at <= now && is_open && excluded.owners.is_empty() && engine.calendar.is_free(*node);
        let view = match is_known {
            true => Some(*host.view()),
            false => engine.calendar.view(&engine.cluster, *node, (at, after(at)), now, excluded),
        };
        let Some(view) = view else { continue };
        let mut free = NO_BOARDS;
        let held = held.get(node).unwrap_or(&NO_BOARDS);
        for (index, (gpu, is_held)) in view.gpus().iter().zip(held).enumerate() {
            let is_free = gpu.free_milli == WHOLE_MILLI && !gpu.sliced && !*is_held;
            if let Some(board) = free.get_mut(index) {
                *board = is_free;
            }
            *moment.left.entry(group(host, index)).or_insert(missing) += i64::from(is_free);
        }
        moment.free.insert(*node, free);
    }
    moment
}

/// The boards that a run may borrow. `None`: no reserve limits its places.
pub(super) fn for_run(
    engine: &Engine,
    ask: &Ask,
    (from, until): Span,
    now: Timestamp,
    excluded: Exclusions<'_>,
) -> Option<Lendable> {
    if !engine.burst_reserve.binds(ask) {
        return None;
    }
    let nodes = nodes_with(engine, ask.shape.models);
    let mut times = BTreeSet::from([from]);
    for node in &nodes {
        let booked = engine.calendar.on(*node, from, until).filter(|b| !excluded.bookings.contains(&b.id));
        times.extend(booked.map(|b| b.from).filter(|at| *at > from));
    }
    let held = held_by_replicas(engine);
    let moments = times.into_iter().map(|at| moment_at(engine, &nodes, &held, at, now, excluded)).collect();
    Some(Lendable { moments })
}

/// The expected ends of runs on nodes for inference with boards of these models.
pub(super) fn run_ends(engine: &Engine, models: Models, now: Timestamp) -> Vec<Timestamp> {
    let nodes = nodes_with(engine, models);
    let ranks = nodes.iter().filter_map(|node| engine.cluster.node(*node)).flat_map(|host| &host.ranks);
    ranks.filter_map(|rank| expected_end(rank, now)).collect()
}

/// The groups with too few free boards at present.
pub(super) fn incomplete_groups(engine: &Engine, now: Timestamp) -> Vec<ReserveGroup> {
    if engine.burst_reserve.is_empty() {
        return Vec::new();
    }
    let (nodes, held) = (nodes_with(engine, Models::ANY), held_by_replicas(engine));
    // A node that is expected back brings its boards back.
    let excluded = Exclusions { expected: Expected::Awaited, ..Exclusions::default() };
    let present = moment_at(engine, &nodes, &held, now, now, excluded);
    present.left.into_iter().filter(|(_, left)| *left < 0).map(|(group, _)| group).collect()
}

//! The power of racks: a board counts with its power limit while it is held or booked.
//!
//! The engine sums the power at every moment at which a booking begins. So ended runs are no obstacle to
//! later ones. Jobs in a reservation draw the power that was counted for the reservation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_types::time::Timestamp;

use super::reasons::PowerShortage;
use super::{Engine, Span};
use berth_placement::calendar::{BookingKind, Calendar, Exclusions, NodeSlots, expected_end};
use berth_placement::cluster::{Cluster, MAX_GPUS, Models, Node, NodeIx, Rank, Slot};
use berth_placement::power::{RemainingPower, counted_watts};
use berth_placement::scoring::ScoredPlace;

/// A set of boards of one node.
pub(super) type Boards = [bool; MAX_GPUS];

/// The power budgets of racks in watts; other racks have no limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Racks(BTreeMap<Arc<str>, i64>);

/// A moment at which boards begin to draw power: the power left in racks, and the drawing boards.
#[derive(Debug, Clone)]
struct Moment {
    /// The racks in which boards begin to draw; the other racks are covered by earlier moments.
    racks: BTreeSet<Arc<str>>,
    left: RemainingPower,
    drawing: BTreeMap<NodeIx, Boards>,
}

/// The power left in racks during a span.
#[derive(Debug, Clone)]
pub(super) struct Power {
    moments: Vec<Moment>,
}

/// The power draws that count besides bookings.
#[derive(Debug, Clone, Copy)]
struct Counted<'a> {
    /// True if present runs count.
    runs: bool,
    excluded: Exclusions<'a>,
}

impl Racks {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The nodes of racks with a budget.
    fn nodes(&self, cluster: &Cluster) -> impl Iterator<Item = NodeIx> {
        let nodes = cluster.nodes().iter().enumerate();
        let budgeted = nodes.filter(|(_, n)| n.facts.rack.as_ref().is_some_and(|r| self.0.contains_key(r)));
        budgeted.filter_map(|(index, _)| u32::try_from(index).ok()).map(NodeIx)
    }

    /// Some nodes together with the nodes that share the budget of a rack with them, in ascending order.
    pub(super) fn with_neighbours(&self, cluster: &Cluster, nodes: &[NodeIx]) -> Vec<NodeIx> {
        let racks: BTreeSet<&Arc<str>> = nodes.iter().filter_map(|n| rack(cluster, *n)).collect();
        let is_near = |n: &NodeIx| rack(cluster, *n).is_some_and(|rack| racks.contains(rack));
        let all = nodes.iter().copied().chain(self.nodes(cluster).filter(is_near));
        all.collect::<BTreeSet<NodeIx>>().into_iter().collect()
    }

    /// Marks all nodes of a node's rack as changed after a change of its power.
    pub(super) fn mark_changed(&self, cluster: &mut Cluster, node: NodeIx) {
        if self.0.is_empty() {
            return;
        }
        let rack = rack(cluster, node).cloned();
        let Some(rack) = rack.filter(|r| self.0.contains_key(r)) else { return };
        for index in 0..cluster.nodes().len() {
            let Some(index) = u32::try_from(index).ok().map(NodeIx) else { continue };
            if cluster.node(index).is_some_and(|n| n.facts.rack.as_ref() == Some(&rack)) {
                cluster.mark_changed(index);
            }
        }
    }

    /// The next begin of a booking on racks with a budget. From then on other jobs on its boards add no
    /// power.
    pub(super) fn next_begin(&self, cluster: &Cluster, calendar: &Calendar, now: Timestamp) -> Timestamp {
        let never = Timestamp::from_micros(i64::MAX);
        let booked = self.nodes(cluster).flat_map(|node| calendar.on(node, now, never));
        booked.map(|b| b.from).filter(|from| *from > now).min().unwrap_or(never)
    }

    /// The expected ends of runs on racks with a budget.
    pub(super) fn run_ends(&self, cluster: &Cluster, now: Timestamp) -> Vec<Timestamp> {
        let ranks = self.nodes(cluster).filter_map(|n| cluster.node(n)).flat_map(Node::runs);
        ranks.filter_map(|r| expected_end(r, now)).collect()
    }

    /// The power left during a span. `None`: no rack has a budget.
    fn power(
        &self,
        cluster: &Cluster,
        calendar: &Calendar,
        (from, until): Span,
        now: Timestamp,
        counted: Counted<'_>,
    ) -> Option<Power> {
        if self.0.is_empty() {
            return None;
        }
        let mut times: BTreeMap<Timestamp, BTreeSet<Arc<str>>> = BTreeMap::new();
        times.insert(from, self.0.keys().cloned().collect());
        for node in self.nodes(cluster) {
            for at in calendar.on(node, from, until).map(|b| b.from).filter(|at| *at > from) {
                times.entry(at).or_default().extend(rack(cluster, node).cloned());
            }
        }
        let moment = |(at, racks): (Timestamp, BTreeSet<Arc<str>>)| {
            let mut moment =
                Moment { racks, left: RemainingPower::from_budgets(&self.0), drawing: BTreeMap::new() };
            for node in self.nodes(cluster) {
                let boards = drawing_boards(cluster, calendar, node, at, now, counted);
                moment.left.draw(rack(cluster, node), watts(cluster, node, &boards));
                moment.drawing.insert(node, boards);
            }
            moment
        };
        Some(Power { moments: times.into_iter().map(moment).collect() })
    }
}

impl Power {
    /// The most watts that these boards of a node add at any moment.
    pub(super) fn added(&self, cluster: &Cluster, node: NodeIx, boards: &Boards) -> i64 {
        self.moments.iter().map(|m| m.added(cluster, node, boards)).max().unwrap_or(0)
    }

    /// Returns true if the rack of a node can feed these boards besides the drawing ones.
    pub(super) fn feeds(&self, cluster: &Cluster, node: NodeIx, boards: &Boards) -> bool {
        let rack = rack(cluster, node);
        self.moments.iter().all(|m| !m.begins_in(rack) || m.left.feeds(rack, m.added(cluster, node, boards)))
    }

    /// Returns true if racks can feed all of these places together.
    pub(super) fn feeds_all(mut self, cluster: &Cluster, places: &[NodeSlots]) -> bool {
        places.iter().all(|place| {
            let mut boards = [false; MAX_GPUS];
            add_slots(cluster, place.node, &place.slots, &mut boards);
            let fed = self.feeds(cluster, place.node, &boards);
            self.draw(cluster, place.node, &boards);
            fed
        })
    }

    /// Counts these boards of a node as drawing.
    pub(super) fn draw(&mut self, cluster: &Cluster, node: NodeIx, boards: &Boards) {
        for moment in &mut self.moments {
            let watts = moment.added(cluster, node, boards);
            moment.left.draw(rack(cluster, node), watts);
            let drawing = moment.drawing.entry(node).or_insert([false; MAX_GPUS]);
            drawing.iter_mut().zip(boards).for_each(|(drawing, new)| *drawing |= new);
        }
    }

    /// The largest lack of power in the racks of some places.
    pub(super) fn largest_shortage(
        &self,
        cluster: &Cluster,
        racks: &Racks,
        places: &[NodeSlots],
    ) -> Option<PowerShortage> {
        let lacks = self.moments.iter().flat_map(|moment| {
            let mut needs: BTreeMap<Arc<str>, i64> = BTreeMap::new();
            for place in places {
                let Some(rack) = rack(cluster, place.node).filter(|r| moment.begins_in(Some(r))) else {
                    continue;
                };
                let mut boards = [false; MAX_GPUS];
                add_slots(cluster, place.node, &place.slots, &mut boards);
                *needs.entry(rack.clone()).or_default() += moment.added(cluster, place.node, &boards);
            }
            needs.into_iter().filter_map(|(rack, need)| {
                let (left, budget) = (moment.left.get(&rack)?, *racks.0.get(&rack)?);
                // Drawing boards add nothing, even after a budget was lowered.
                (need > left.max(0)).then_some(PowerShortage { rack, left, budget, need })
            })
        });
        lacks.max_by_key(|short| short.need - short.left)
    }
}

impl Moment {
    /// True if boards begin to draw in a rack.
    fn begins_in(&self, rack: Option<&Arc<str>>) -> bool {
        rack.is_some_and(|rack| self.racks.contains(rack))
    }

    /// The watts that these boards of a node add to the drawing ones.
    fn added(&self, cluster: &Cluster, node: NodeIx, boards: &Boards) -> i64 {
        let mut new = *boards;
        if let Some(drawing) = self.drawing.get(&node) {
            new.iter_mut().zip(drawing).for_each(|(new, draws)| *new &= !draws);
        }
        watts(cluster, node, &new)
    }
}

impl Engine {
    /// Sets the power budgets of racks in watts; other racks have no limit.
    pub fn put_racks(&mut self, budgets: BTreeMap<Arc<str>, i64>) {
        if self.racks.0 == budgets {
            return;
        }
        self.racks = Racks(budgets);
        // Waiting jobs may start now on any node.
        for index in 0..self.cluster.nodes().len() {
            if let Ok(index) = u32::try_from(index) {
                self.cluster.mark_changed(NodeIx(index));
            }
        }
    }
}

/// The power left for a run. `None`: no rack has a budget.
pub(super) fn for_run(
    engine: &Engine,
    span: Span,
    now: Timestamp,
    excluded: Exclusions<'_>,
) -> Option<Power> {
    engine.racks.power(&engine.cluster, &engine.calendar, span, now, Counted { runs: true, excluded })
}

/// The power left for a reservation besides the bookings of a calendar.
pub(super) fn beside(engine: &Engine, calendar: &Calendar, span: Span, now: Timestamp) -> Option<Power> {
    let counted = Counted { runs: false, excluded: Exclusions::default() };
    engine.racks.power(&engine.cluster, calendar, span, now, counted)
}

/// A number that grows with each change of bookings that affects a pool. If racks have budgets, every
/// booking does.
pub(super) fn bookings_version(engine: &Engine, pool: u64) -> u64 {
    if engine.racks.is_empty() {
        engine.calendar.version(Models(pool))
    } else {
        engine.calendar.total_version()
    }
}

/// The boards of a node that an offer takes.
pub(super) fn offer_boards(offer: &ScoredPlace) -> Boards {
    let mut boards = [false; MAX_GPUS];
    for pick in offer.picks.iter() {
        if let Some(board) = boards.get_mut(usize::from(pick.gpu)) {
            *board = true;
        }
    }
    boards
}

fn rack(cluster: &Cluster, node: NodeIx) -> Option<&Arc<str>> {
    cluster.node(node)?.facts.rack.as_ref()
}

/// The watts of these boards of a node.
fn watts(cluster: &Cluster, node: NodeIx, boards: &Boards) -> i64 {
    let gpus = cluster.node(node).into_iter().flat_map(|n| &n.facts.gpus);
    let counted = gpus.zip(boards).filter(|(_, counts)| **counts);
    counted.map(|(gpu, _)| counted_watts(&gpu.model, gpu.limit_watts)).sum()
}

/// Adds the boards of some slots to a set.
pub(super) fn add_slots<'a>(
    cluster: &Cluster,
    node: NodeIx,
    slots: impl IntoIterator<Item = &'a Slot>,
    boards: &mut Boards,
) {
    let Some(host) = cluster.node(node) else { return };
    for slot in slots {
        if let Some(board) = host.gpu_index(&slot.gpu).and_then(|i| boards.get_mut(i)) {
            *board = true;
        }
    }
}

/// The boards of a node that draw at a moment or are booked then.
fn drawing_boards(
    cluster: &Cluster,
    calendar: &Calendar,
    node: NodeIx,
    at: Timestamp,
    now: Timestamp,
    counted: Counted<'_>,
) -> Boards {
    let mut boards = [false; MAX_GPUS];
    let Counted { runs, excluded } = counted;
    let is_present = |r: &&Rank| {
        (at <= now || expected_end(r, now).is_none_or(|end| end > at)) && !excluded.owners.contains(&r.owner)
    };
    if runs {
        let ranks = cluster.node(node).into_iter().flat_map(Node::runs);
        add_slots(cluster, node, ranks.filter(is_present).flat_map(|r| &r.slots), &mut boards);
    }
    let moment = Timestamp::from_micros(at.micros().saturating_add(1));
    for booking in calendar.on(node, at, moment).filter(|b| !excluded.bookings.contains(&b.id)) {
        if booking.kind != BookingKind::Maintenance {
            let places = booking.places.iter().filter(|p| p.node == node);
            add_slots(cluster, node, places.flat_map(|p| &p.slots), &mut boards);
        }
    }
    boards
}

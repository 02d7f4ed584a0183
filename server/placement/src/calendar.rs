//! The calendar: reservations, maintenance windows and held starts, each a span on concrete boards and
//! slices.
//!
//! The calendar keeps bookings and computes the free part of a node during a span. It must not decide what to
//! book.

use std::collections::BTreeMap;

use berth_types::ids::OrgId;
use berth_types::time::Timestamp;

use crate::cluster::{
    BookingId, Cluster, GpuView, ModelIx, Models, NO_GPU, Node, NodeFacts, NodeIx, Owner, Part, Rank, Slot,
    View, WHOLE_MILLI,
};
use crate::request::Ask;
use crate::timeline::Timeline;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BookingKind {
    Reservation,
    /// An operator's window: no job runs on its boards.
    Maintenance,
    /// A held start of a job.
    Hold,
}

/// The slots of a booking on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSlots {
    pub node: NodeIx,
    pub slots: Vec<Slot>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Booking {
    pub id: BookingId,
    pub kind: BookingKind,
    pub org: OrgId,
    /// The booked request; `None` where the operator named the boards.
    pub ask: Option<Ask>,
    /// The span is half open: at `until` the booking is over.
    pub from: Timestamp,
    pub until: Timestamp,
    pub places: Vec<NodeSlots>,
}

impl Booking {
    fn needs(&self) -> (i64, i64) {
        self.ask.map_or((0, 0), |a| (a.shape.cpu_milli, a.shape.memory_mib))
    }
}

/// Seconds within which a run past its limit is expected to end. A held start that waits for that end stays
/// due.
pub const LATE_S: i64 = 1;
/// Seconds after its limit from which a run may hang. It is then expected to last as long again as it is
/// late.
pub const HANGS_S: i64 = 30;

/// The bookings and runs that a view of a node ignores.
#[derive(Debug, Clone, Copy, Default)]
pub struct Exclusions<'a> {
    /// Bookings that are no obstacle to the request.
    pub bookings: &'a [BookingId],
    /// Attempts that would have ended.
    pub owners: &'a [Owner],
    /// The nodes with a disconnected worker that count as connected.
    pub expected: Expected,
}

/// The nodes with a disconnected worker that a search expects back by the begin of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Expected {
    #[default]
    Nobody,
    /// Nodes that disconnected a short time ago.
    Awaited,
    All,
}

impl Expected {
    fn includes(self, facts: &NodeFacts) -> bool {
        match self {
            Self::Nobody => false,
            Self::Awaited => facts.awaited,
            Self::All => facts.away,
        }
    }
}

/// The latest expected end of a rank; `None` if its end is unknown.
pub fn expected_end(rank: &Rank, now: Timestamp) -> Option<Timestamp> {
    rank.ends_by.map(|end| match end {
        _ if end > now => end,
        _ if now <= end.plus_seconds(HANGS_S) => now.plus_seconds(LATE_S),
        _ => Timestamp::from_micros(now.micros().saturating_mul(2).saturating_sub(end.micros())),
    })
}

/// Processors and memory that a booking withholds from other jobs at a time: the booked amount, or the use of
/// the runs inside the booking if that is more.
fn reserved_cpu_memory(booking: &Booking, ranks: &[&Rank]) -> (i64, i64) {
    let inside = || ranks.iter().filter(|r| r.inside == Some(booking.id));
    let (cpu, memory) = booking.needs();
    let used = (inside().map(|r| r.cpu_milli).sum::<i64>(), inside().map(|r| r.memory_mib).sum::<i64>());
    (cpu.max(used.0), memory.max(used.1))
}

#[derive(Debug, Clone, Default)]
pub struct Calendar {
    bookings: BTreeMap<BookingId, Booking>,
    /// The bookings of each node by their begin, each with its end.
    by_node: BTreeMap<NodeIx, BTreeMap<(Timestamp, BookingId), Timestamp>>,
    /// Booked thousandths of boards on each node and of each group.
    nodes: BTreeMap<NodeIx, Timeline>,
    groups: BTreeMap<BoardGroup, Timeline>,
    loads: BTreeMap<BookingId, BookingLoad>,
    /// For each model the number of changes on nodes with its boards.
    versions: BTreeMap<ModelIx, u64>,
}

/// The boards of a model on the nodes that are dedicated to an organization, or (`None`) to none.
type BoardGroup = (ModelIx, Option<OrgId>);

/// Thousandths of boards of a group on a node.
type BoardLoad = (NodeIx, BoardGroup, i64);

/// The load of a booking in the timelines.
#[derive(Debug, Clone, Default)]
struct BookingLoad {
    boards: Vec<BoardLoad>,
    /// All models of its nodes: a booking takes processors and memory from every board of a node.
    models: Models,
}

/// The load of a booking on each node by group, in thousandths of boards.
fn booking_load(cluster: &Cluster, booking: &Booking) -> BookingLoad {
    let whole = i64::from(WHOLE_MILLI);
    let mut out = BookingLoad::default();
    for place in &booking.places {
        let Some(node) = cluster.node(place.node) else { continue };
        for index in 0..node.facts.gpus.len() {
            out.models.0 |= Models::only(node.model_ix(index)).0;
        }
        for slot in &place.slots {
            let Some(index) = node.gpu_index(&slot.gpu) else { continue };
            let group = (node.model_ix(index), node.facts.dedicated_to);
            let board = node.model(index, cluster.models()).and_then(crate::cluster::Model::mig);
            let milli = match (slot.part, board) {
                (Part::Share(milli), _) => i64::from(milli),
                (Part::Slice(i), Some(board)) => board
                    .profile(i.profile_id)
                    .map_or(whole, |p| i64::from(p.size) * whole / i64::from(board.memory_slices.max(1))),
                _ => whole,
            };
            out.boards.push((place.node, group, milli));
        }
    }
    out
}

impl Calendar {
    pub fn get(&self, id: BookingId) -> Option<&Booking> {
        self.bookings.get(&id)
    }

    /// A number that grows with every change on nodes with boards of these models.
    pub fn version(&self, models: Models) -> u64 {
        self.versions.iter().filter(|(model, _)| models.has(**model)).map(|(_, version)| version).sum()
    }

    /// A number that grows with every change on any node.
    pub fn total_version(&self) -> u64 {
        self.version(Models::ANY)
    }

    fn mark_changed(&mut self, models: Models) {
        for model in (0..64).filter(|model| models.has(*model)) {
            *self.versions.entry(model).or_default() += 1;
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Booking> {
        self.bookings.values()
    }

    /// Inserts a booking, or replaces the booking with its id.
    pub fn put(&mut self, cluster: &Cluster, booking: Booking) {
        if self.bookings.get(&booking.id) == Some(&booking) {
            return;
        }
        self.remove(booking.id);
        let load = booking_load(cluster, &booking);
        self.mark_changed(load.models);
        self.count(&load.boards, (booking.from, booking.until), 1);
        self.loads.insert(booking.id, load);
        for place in &booking.places {
            let node_bookings = self.by_node.entry(place.node).or_default();
            node_bookings.insert((booking.from, booking.id), booking.until);
        }
        self.bookings.insert(booking.id, booking);
    }

    fn count(&mut self, loads: &[BoardLoad], (from, until): (Timestamp, Timestamp), sign: i64) {
        for (node, group, milli) in loads {
            self.nodes.entry(*node).or_default().add(from, until, sign * milli);
            self.groups.entry(*group).or_default().add(from, until, sign * milli);
        }
    }

    /// Counts the bookings of a node again after a change of its boards or of its organization.
    pub fn recount_node(&mut self, cluster: &Cluster, node: NodeIx) {
        let ids: Vec<BookingId> =
            self.by_node.get(&node).into_iter().flatten().map(|((_, id), _)| *id).collect();
        for id in ids {
            let Some(booking) = self.bookings.get(&id) else { continue };
            let (new, window) = (booking_load(cluster, booking), (booking.from, booking.until));
            let old = self.loads.insert(id, new.clone()).unwrap_or_default();
            self.mark_changed(Models(old.models.0 | new.models.0));
            self.count(&old.boards, window, -1);
            self.count(&new.boards, window, 1);
        }
    }

    /// The booked thousandths over time of a model's boards on the nodes that are dedicated to an organization, or
    /// (`None`) to none.
    pub fn group_timeline(&self, model: ModelIx, dedicated_to: Option<OrgId>) -> Option<&Timeline> {
        self.groups.get(&(model, dedicated_to))
    }

    /// Returns false if a node of `all` thousandths has less than `need` thousandths free at some time of a
    /// span. True is no promise: the free part may be spread over several boards.
    pub fn may_fit(&self, node: NodeIx, from: Timestamp, until: Timestamp, need: i64, all: i64) -> bool {
        need <= all && self.nodes.get(&node).is_none_or(|line| line.stays(from, until, all - need))
    }

    /// Runs a function on the calendar without some bookings. Its changes to these bookings and to `own` are
    /// undone afterwards, and the versions stay the same.
    pub fn with_removed<T>(
        &mut self,
        cluster: &Cluster,
        removed: &[Booking],
        own: BookingId,
        run: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let versions = self.versions.clone();
        for booking in removed {
            self.remove(booking.id);
        }
        let answer = run(self);
        self.remove(own);
        for booking in removed {
            self.put(cluster, booking.clone());
        }
        self.versions = versions;
        answer
    }

    pub fn remove(&mut self, id: BookingId) -> Option<Booking> {
        let old = self.bookings.remove(&id)?;
        let load = self.loads.remove(&id).unwrap_or_default();
        self.mark_changed(load.models);
        self.count(&load.boards, (old.from, old.until), -1);
        for place in &old.places {
            if let Some(node_bookings) = self.by_node.get_mut(&place.node) {
                node_bookings.remove(&(old.from, id));
                if node_bookings.is_empty() {
                    self.by_node.remove(&place.node);
                }
            }
        }
        Some(old)
    }

    /// Removes the bookings that are over.
    pub fn forget_until(&mut self, now: Timestamp) {
        let over: Vec<BookingId> = self.bookings.values().filter(|b| b.until <= now).map(|b| b.id).collect();
        for id in over {
            self.remove(id);
        }
    }

    /// The bookings of a node that overlap a span, in the order of their begin.
    pub fn on(&self, node: NodeIx, from: Timestamp, until: Timestamp) -> impl Iterator<Item = &Booking> {
        let node_bookings = self.by_node.get(&node).into_iter().flatten();
        node_bookings
            .take_while(move |((begin, _), _)| *begin < until)
            .filter(move |(_, end)| from < **end)
            .filter_map(|((_, id), _)| self.bookings.get(id))
    }

    /// Returns true if a node has no booking at all.
    pub fn is_free(&self, node: NodeIx) -> bool {
        !self.by_node.contains_key(&node)
    }

    /// The nodes with at least one booking.
    pub fn booked_nodes(&self) -> impl Iterator<Item = NodeIx> {
        self.by_node.keys().copied()
    }

    /// The view of a node for a use from `from` until `until`. Runs that are expected to last to `from` and
    /// bookings that overlap the span are taken, except for the exclusions.
    pub fn view(
        &self,
        cluster: &Cluster,
        node: NodeIx,
        (from, until): (Timestamp, Timestamp),
        now: Timestamp,
        excluded: Exclusions<'_>,
    ) -> Option<View> {
        let mut host = cluster.node(node)?;
        let back = excluded.expected.includes(&host.facts).then(|| host.opened());
        if let Some(back) = &back {
            host = back;
        }
        let present = |rank: &Rank, at: Timestamp| {
            (at <= now || expected_end(rank, now).is_none_or(|end| end > at))
                && !excluded.owners.contains(&rank.owner)
        };
        let booked: Vec<&Booking> =
            self.on(node, from, until).filter(|b| !excluded.bookings.contains(&b.id)).collect();
        let mut view = cluster.view_of(host, |rank| present(rank, from));
        if !host.facts.open {
            return Some(view);
        }
        // Only runs and bookings of the same moment compete for processors and memory.
        let points = std::iter::once(from).chain(booked.iter().map(|b| b.from).filter(|at| *at > from));
        let free = points.map(|at| free_at(host, &booked, at, |rank| present(rank, at)));
        let (cpu, memory) = free.fold((i64::MAX, i64::MAX), |a, b| (a.0.min(b.0), a.1.min(b.1)));
        (view.cpu_milli, view.memory_mib) = (cpu, memory);
        for booking in booked {
            let sharer = cluster.org_index(booking.org);
            for slot in booking.places.iter().filter(|p| p.node == node).flat_map(|p| &p.slots) {
                view.occupy_booked(host, cluster.models(), slot, sharer);
            }
        }
        Some(view)
    }

    /// The view of a node for a job inside a booking from `from` until `until`: the booked part without the
    /// parts in use and without other jobs' held starts inside the booking (`held`). `owners` count as ended.
    pub fn view_inside(
        &self,
        cluster: &Cluster,
        node: NodeIx,
        id: BookingId,
        (from, until): (Timestamp, Timestamp),
        now: Timestamp,
        (held, owners): (&[&Booking], &[Owner]),
    ) -> Option<View> {
        let booking = self.bookings.get(&id)?;
        let mut host = cluster.node(node)?;
        // A run that begins later may use a node that is expected back.
        let expected = if from > now { Expected::Awaited } else { Expected::Nobody };
        let back = expected.includes(&host.facts).then(|| host.opened());
        if let Some(back) = &back {
            host = back;
        }
        // Runs that are late may still be on the boards of the booking.
        let excluded = Exclusions { bookings: &[id], owners, expected };
        let mut view = self.view(cluster, node, (from, until), now, excluded)?;
        if !host.facts.open {
            return Some(view);
        }
        let here = |b: &&&Booking| b.places.iter().any(|p| p.node == node);
        let held: Vec<&Booking> =
            held.iter().filter(|b| b.from < until && from < b.until).filter(here).copied().collect();
        let booked: Vec<&Booking> = self.on(node, from, until).filter(|b| b.id != id).collect();
        let begins = booked.iter().chain(&held).map(|b| b.from).filter(|at| *at > from);
        let free = std::iter::once(from).chain(begins).map(|at| {
            let present = |rank: &Rank| {
                (at <= now || expected_end(rank, now).is_none_or(|end| end > at))
                    && !owners.contains(&rank.owner)
            };
            let free = free_at(host, &booked, at, present);
            free_inside(host, booking, &held, at, free, present)
        });
        (view.cpu_milli, view.memory_mib) =
            free.fold((i64::MAX, i64::MAX), |a, b| (a.0.min(b.0), a.1.min(b.1)));
        let slots: Vec<&Slot> =
            booking.places.iter().filter(|p| p.node == node).flat_map(|p| &p.slots).collect();
        view.map_gpus(|index, gpu| booked_part(host, cluster, index, gpu, &slots));
        let sharer = cluster.org_index(booking.org);
        for slot in held.iter().flat_map(|b| &b.places).filter(|p| p.node == node).flat_map(|p| &p.slots) {
            view.occupy_booked(host, cluster.models(), slot, sharer);
        }
        Some(view)
    }
}

/// Processors and memory of a node that are neither used nor booked at a time.
fn free_at(host: &Node, booked: &[&Booking], at: Timestamp, present: impl Fn(&Rank) -> bool) -> (i64, i64) {
    let active = || booked.iter().filter(|b| b.from <= at && at < b.until);
    let ranks: Vec<&Rank> = host.ranks.iter().filter(|r| present(r)).collect();
    let own = |r: &&&Rank| !r.inside.is_some_and(|id| active().any(|b| b.id == id));
    let (mut cpu, mut memory) = (host.facts.cpu_milli, host.facts.memory_mib);
    for rank in ranks.iter().filter(own) {
        (cpu, memory) = (cpu - rank.cpu_milli, memory - rank.memory_mib);
    }
    for (c, m) in active().map(|b| reserved_cpu_memory(b, &ranks)) {
        (cpu, memory) = (cpu - c, memory - m);
    }
    (cpu, memory)
}

/// The same inside a booking; `free` are the free processors and memory of the node.
fn free_inside(
    host: &Node,
    booking: &Booking,
    held: &[&Booking],
    at: Timestamp,
    free: (i64, i64),
    present: impl Fn(&Rank) -> bool,
) -> (i64, i64) {
    let inside = || host.ranks.iter().filter(|r| r.inside == Some(booking.id) && present(r));
    let holds = || held.iter().filter(|b| b.from <= at && at < b.until).map(|b| b.needs());
    let (cpu, memory) = booking.needs();
    // A reservation of devices alone uses the free processors and memory of its node.
    let cpu = if cpu > 0 { cpu - inside().map(|r| r.cpu_milli).sum::<i64>() } else { free.0 };
    let memory = if memory > 0 { memory - inside().map(|r| r.memory_mib).sum::<i64>() } else { free.1 };
    (cpu - holds().map(|n| n.0).sum::<i64>(), memory - holds().map(|n| n.1).sum::<i64>())
}

/// The part of a board within the slots of a booking.
fn booked_part(host: &Node, cluster: &Cluster, index: usize, gpu: &GpuView, slots: &[&Slot]) -> GpuView {
    let uuid = host.facts.gpus.get(index).map(|g| &g.uuid);
    let own_slots = || slots.iter().filter(|s| Some(&s.gpu) == uuid);
    let board = host.model(index, cluster.models()).and_then(crate::cluster::Model::mig);
    let full = board.filter(|b| !b.live_toggle).and_then(|b| b.full_profile()).map(|p| p.id);
    // A booking of the largest instance covers the whole board, and an operator may have changed the mode.
    let is_whole = |s: &&&Slot| match s.part {
        Part::Whole => true,
        Part::Slice(instance) => Some(instance.profile_id) == full,
        Part::Share(_) => false,
    };
    if own_slots().any(|s| is_whole(&s)) {
        return *gpu;
    }
    let free = own_slots().fold(0, |bits, s| match (s.part, board) {
        (Part::Slice(i), Some(b)) => {
            bits | b.profile(i.profile_id).map_or(0, |p| berth_mig::cover(p, i.start))
        }
        _ => bits,
    });
    if free == 0 || (!gpu.sliced && gpu.free_milli < WHOLE_MILLI) {
        return NO_GPU;
    }
    GpuView { free_milli: 0, sliced: true, mask: gpu.mask | !free, ..*gpu }
}

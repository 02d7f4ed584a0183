//! What is promised for times to come: reservations, maintenance, and the start that is held for the
//! job at the head of the queue. All of them are spans on concrete boards and slices.
//!
//! Must not decide what to book: it keeps bookings, and says what of a node is free for a while.

use std::collections::BTreeMap;

use berth_types::ids::OrgId;
use berth_types::time::Timestamp;

use crate::cluster::{
    BookingId, Cluster, GpuView, ModelIx, Models, NO_GPU, Node, NodeIx, Owner, Part, Rank, Slot, View,
    WHOLE_MILLI,
};
use crate::request::Ask;
use crate::timeline::Timeline;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Reservation,
    /// Held by the operator: nothing may run on it.
    Maintenance,
    /// A start that is held for a job.
    Hold,
}

/// What a booking takes on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub node: NodeIx,
    pub slots: Vec<Slot>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Booking {
    pub id: BookingId,
    pub kind: Kind,
    pub org: OrgId,
    /// What was asked for; `None` for named boards.
    pub ask: Option<Ask>,
    /// Half open: at `until` it is over.
    pub from: Timestamp,
    pub until: Timestamp,
    pub places: Vec<Place>,
}

impl Booking {
    fn needs(&self) -> (i64, i64) {
        self.ask.map_or((0, 0), |a| (a.shape.cpu_milli, a.shape.memory_mib))
    }
}

/// A run past its limit is expected to end at any moment within so many seconds: a start held for its end stays due.
pub const LATE_S: i64 = 1;
/// After so many seconds it may hang, and is expected to last as long again as it is late.
pub const HANGS_S: i64 = 30;

/// What is thought away.
#[derive(Debug, Clone, Copy, Default)]
pub struct But<'a> {
    /// Bookings that are no obstacle to whoever asks.
    pub bookings: &'a [BookingId],
    /// Those who would leave.
    pub owners: &'a [Owner],
    /// Nodes that are expected back are back.
    pub away: bool,
}

/// When a rank is expected to have ended at the latest; `None` when nobody knows.
pub fn expected_end(rank: &Rank, now: Timestamp) -> Option<Timestamp> {
    rank.ends_by.map(|end| match end {
        _ if end > now => end,
        _ if now <= end.plus_seconds(HANGS_S) => now.plus_seconds(LATE_S),
        _ => Timestamp::from_micros(now.micros().saturating_mul(2).saturating_sub(end.micros())),
    })
}

/// Processors and memory that a booking keeps from others at a time: what was booked, or what runs in it
/// where that is more.
fn kept(booking: &Booking, ranks: &[&Rank]) -> (i64, i64) {
    let inside = || ranks.iter().filter(|r| r.inside == Some(booking.id));
    let (cpu, memory) = booking.needs();
    let used = (inside().map(|r| r.cpu_milli).sum::<i64>(), inside().map(|r| r.memory_mib).sum::<i64>());
    (cpu.max(used.0), memory.max(used.1))
}

#[derive(Debug, Clone, Default)]
pub struct Calendar {
    bookings: BTreeMap<BookingId, Booking>,
    /// By begin, each with its end.
    by_node: BTreeMap<NodeIx, BTreeMap<(Timestamp, BookingId), Timestamp>>,
    /// Thousandths of boards that are booked: on each node, and of each model.
    nodes: BTreeMap<NodeIx, Timeline>,
    models: BTreeMap<ModelIx, Timeline>,
    taken: BTreeMap<BookingId, Taken>,
    /// How often something changed on nodes with boards of each model.
    versions: BTreeMap<ModelIx, u64>,
}

/// Thousandths of boards of a model on a node.
type Load = (NodeIx, ModelIx, i64);

/// What a booking was counted for.
#[derive(Debug, Clone, Default)]
struct Taken {
    loads: Vec<Load>,
    /// All that its nodes have: processors and memory are taken from every board of a node.
    models: Models,
}

/// What a booking takes on each node, by model: thousandths of boards.
fn taken(cluster: &Cluster, booking: &Booking) -> Taken {
    let whole = i64::from(WHOLE_MILLI);
    let mut out = Taken::default();
    for place in &booking.places {
        let Some(node) = cluster.node(place.node) else { continue };
        for index in 0..node.facts.gpus.len() {
            out.models.0 |= Models::only(node.model_ix(index)).0;
        }
        for slot in &place.slots {
            let Some(index) = node.gpu_index(&slot.gpu) else { continue };
            let model = node.model_ix(index);
            let board = node.model(index, cluster.models()).and_then(crate::cluster::Model::mig);
            let milli = match (slot.part, board) {
                (Part::Share(milli), _) => i64::from(milli),
                (Part::Slice(i), Some(board)) => board
                    .profile(i.profile_id)
                    .map_or(whole, |p| i64::from(p.size) * whole / i64::from(board.memory_slices.max(1))),
                _ => whole,
            };
            out.loads.push((place.node, model, milli));
        }
    }
    out
}

impl Calendar {
    pub fn get(&self, id: BookingId) -> Option<&Booking> {
        self.bookings.get(&id)
    }

    /// Grows with every change on nodes that have boards of these models.
    pub fn version(&self, models: Models) -> u64 {
        self.versions.iter().filter(|(model, _)| models.has(**model)).map(|(_, version)| version).sum()
    }

    /// Grows with every change on any node.
    pub fn total_version(&self) -> u64 {
        self.version(Models::ANY)
    }

    fn touch(&mut self, models: Models) {
        for model in (0..64).filter(|model| models.has(*model)) {
            *self.versions.entry(model).or_default() += 1;
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Booking> {
        self.bookings.values()
    }

    /// States a booking, in place of what was known of it.
    pub fn put(&mut self, cluster: &Cluster, booking: Booking) {
        if self.bookings.get(&booking.id) == Some(&booking) {
            return;
        }
        self.remove(booking.id);
        let taken = taken(cluster, &booking);
        self.touch(taken.models);
        self.count(&taken.loads, (booking.from, booking.until), 1);
        self.taken.insert(booking.id, taken);
        for place in &booking.places {
            let of_node = self.by_node.entry(place.node).or_default();
            of_node.insert((booking.from, booking.id), booking.until);
        }
        self.bookings.insert(booking.id, booking);
    }

    fn count(&mut self, loads: &[Load], (from, until): (Timestamp, Timestamp), sign: i64) {
        for (node, model, milli) in loads {
            self.nodes.entry(*node).or_default().add(from, until, sign * milli);
            self.models.entry(*model).or_default().add(from, until, sign * milli);
        }
    }

    /// The boards of a node are others now.
    pub fn renew(&mut self, cluster: &Cluster, node: NodeIx) {
        let on_it: Vec<BookingId> =
            self.by_node.get(&node).into_iter().flatten().map(|((_, id), _)| *id).collect();
        for id in on_it {
            let Some(booking) = self.bookings.get(&id) else { continue };
            let (new, window) = (taken(cluster, booking), (booking.from, booking.until));
            let old = self.taken.insert(id, new.clone()).unwrap_or_default();
            self.touch(Models(old.models.0 | new.models.0));
            self.count(&old.loads, window, -1);
            self.count(&new.loads, window, 1);
        }
    }

    /// What is booked of boards of a model, over time.
    pub fn of_model(&self, model: ModelIx) -> Option<&Timeline> {
        self.models.get(&model)
    }

    /// Whether so much of a node is left all the time, of what it has in all. What is left may not be
    /// together on one board; what is not left is surely not.
    pub fn may_fit(&self, node: NodeIx, from: Timestamp, until: Timestamp, need: i64, all: i64) -> bool {
        need <= all && self.nodes.get(&node).is_none_or(|line| line.stays(from, until, all - need))
    }

    /// Thinks bookings away and back. What `then` does with these and with `own` is undone, and the
    /// versions stay.
    pub fn without<T>(
        &mut self,
        cluster: &Cluster,
        gone: &[Booking],
        own: BookingId,
        then: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let versions = self.versions.clone();
        for booking in gone {
            self.remove(booking.id);
        }
        let answer = then(self);
        self.remove(own);
        for booking in gone {
            self.put(cluster, booking.clone());
        }
        self.versions = versions;
        answer
    }

    pub fn remove(&mut self, id: BookingId) -> Option<Booking> {
        let old = self.bookings.remove(&id)?;
        let taken = self.taken.remove(&id).unwrap_or_default();
        self.touch(taken.models);
        self.count(&taken.loads, (old.from, old.until), -1);
        for place in &old.places {
            if let Some(of_node) = self.by_node.get_mut(&place.node) {
                of_node.remove(&(old.from, id));
                if of_node.is_empty() {
                    self.by_node.remove(&place.node);
                }
            }
        }
        Some(old)
    }

    /// Forgets what is over.
    pub fn forget_until(&mut self, now: Timestamp) {
        let over: Vec<BookingId> = self.bookings.values().filter(|b| b.until <= now).map(|b| b.id).collect();
        for id in over {
            self.remove(id);
        }
    }

    /// The bookings of a node that overlap a time, in the order of their begin.
    pub fn on(&self, node: NodeIx, from: Timestamp, until: Timestamp) -> impl Iterator<Item = &Booking> {
        let of_node = self.by_node.get(&node).into_iter().flatten();
        of_node
            .take_while(move |((begin, _), _)| *begin < until)
            .filter(move |(_, end)| from < **end)
            .filter_map(|((_, id), _)| self.bookings.get(id))
    }

    /// Whether nothing at all is booked on a node.
    pub fn is_free(&self, node: NodeIx) -> bool {
        !self.by_node.contains_key(&node)
    }

    /// The nodes on which anything is booked.
    pub fn booked_nodes(&self) -> impl Iterator<Item = NodeIx> {
        self.by_node.keys().copied()
    }

    /// How a node stands for somebody who wants it from `from` until `until`: what runs by then and what
    /// is booked meanwhile is taken, with some exceptions.
    pub fn view(
        &self,
        cluster: &Cluster,
        node: NodeIx,
        (from, until): (Timestamp, Timestamp),
        now: Timestamp,
        but: But<'_>,
    ) -> Option<View> {
        let mut of = cluster.node(node)?;
        let back = (but.away && of.facts.away).then(|| of.opened());
        if let Some(back) = &back {
            of = back;
        }
        let there = |rank: &Rank, at: Timestamp| {
            (at <= now || expected_end(rank, now).is_none_or(|end| end > at))
                && !but.owners.contains(&rank.owner)
        };
        let booked: Vec<&Booking> =
            self.on(node, from, until).filter(|b| !but.bookings.contains(&b.id)).collect();
        let mut view = cluster.view_of(of, |rank| there(rank, from));
        if !of.facts.open {
            return Some(view);
        }
        // Processors and memory are needed by those who are there at the same time only.
        let points = std::iter::once(from).chain(booked.iter().map(|b| b.from).filter(|at| *at > from));
        let left = points.map(|at| left_at(of, &booked, at, |rank| there(rank, at)));
        let (cpu, memory) = left.fold((i64::MAX, i64::MAX), |a, b| (a.0.min(b.0), a.1.min(b.1)));
        (view.cpu_milli, view.memory_mib) = (cpu, memory);
        for booking in booked {
            let sharer = cluster.find_org(booking.org);
            for slot in booking.places.iter().filter(|p| p.node == node).flat_map(|p| &p.slots) {
                view.cover(of, cluster.models(), slot, sharer);
            }
        }
        Some(view)
    }

    /// How a node stands for a job inside a booking from `from` until `until`: only what is booked, is not in
    /// use and is not held inside for others (`held`), as if some owners had left.
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
        let of = cluster.node(node)?;
        // Others may still be there that have not left in time.
        let but = But { bookings: &[id], owners, away: false };
        let mut view = self.view(cluster, node, (from, until), now, but)?;
        if !of.facts.open {
            return Some(view);
        }
        let here = |b: &&&Booking| b.places.iter().any(|p| p.node == node);
        let held: Vec<&Booking> =
            held.iter().filter(|b| b.from < until && from < b.until).filter(here).copied().collect();
        let booked: Vec<&Booking> = self.on(node, from, until).filter(|b| b.id != id).collect();
        let begins = booked.iter().chain(&held).map(|b| b.from).filter(|at| *at > from);
        let left = std::iter::once(from).chain(begins).map(|at| {
            let there = |rank: &Rank| {
                (at <= now || expected_end(rank, now).is_none_or(|end| end > at))
                    && !owners.contains(&rank.owner)
            };
            let host = left_at(of, &booked, at, there);
            left_inside(of, booking, &held, at, host, there)
        });
        (view.cpu_milli, view.memory_mib) =
            left.fold((i64::MAX, i64::MAX), |a, b| (a.0.min(b.0), a.1.min(b.1)));
        let slots: Vec<&Slot> =
            booking.places.iter().filter(|p| p.node == node).flat_map(|p| &p.slots).collect();
        view.only(|index, gpu| booked_part(of, cluster, index, gpu, &slots));
        let sharer = cluster.find_org(booking.org);
        for slot in held.iter().flat_map(|b| &b.places).filter(|p| p.node == node).flat_map(|p| &p.slots) {
            view.cover(of, cluster.models(), slot, sharer);
        }
        Some(view)
    }
}

/// Processors and memory of a node that nothing uses at a time and no booking keeps.
fn left_at(of: &Node, booked: &[&Booking], at: Timestamp, there: impl Fn(&Rank) -> bool) -> (i64, i64) {
    let active = || booked.iter().filter(|b| b.from <= at && at < b.until);
    let ranks: Vec<&Rank> = of.ranks.iter().filter(|r| there(r)).collect();
    let own = |r: &&&Rank| !r.inside.is_some_and(|id| active().any(|b| b.id == id));
    let (mut cpu, mut memory) = (of.facts.cpu_milli, of.facts.memory_mib);
    for rank in ranks.iter().filter(own) {
        (cpu, memory) = (cpu - rank.cpu_milli, memory - rank.memory_mib);
    }
    for (c, m) in active().map(|b| kept(b, &ranks)) {
        (cpu, memory) = (cpu - c, memory - m);
    }
    (cpu, memory)
}

/// The same inside a booking, where `host` is what is left of the node.
fn left_inside(
    of: &Node,
    booking: &Booking,
    held: &[&Booking],
    at: Timestamp,
    host: (i64, i64),
    there: impl Fn(&Rank) -> bool,
) -> (i64, i64) {
    let inside = || of.ranks.iter().filter(|r| r.inside == Some(booking.id) && there(r));
    let holds = || held.iter().filter(|b| b.from <= at && at < b.until).map(|b| b.needs());
    let (cpu, memory) = booking.needs();
    // Who reserved devices alone has what the host has left beside them.
    let cpu = if cpu > 0 { cpu - inside().map(|r| r.cpu_milli).sum::<i64>() } else { host.0 };
    let memory = if memory > 0 { memory - inside().map(|r| r.memory_mib).sum::<i64>() } else { host.1 };
    (cpu - holds().map(|n| n.0).sum::<i64>(), memory - holds().map(|n| n.1).sum::<i64>())
}

/// What of a board the slots of a booking allow.
fn booked_part(of: &Node, cluster: &Cluster, index: usize, gpu: &GpuView, slots: &[&Slot]) -> GpuView {
    let uuid = of.facts.gpus.get(index).map(|g| &g.uuid);
    let mine = || slots.iter().filter(|s| Some(&s.gpu) == uuid);
    let board = of.model(index, cluster.models()).and_then(crate::cluster::Model::mig);
    let full = board.filter(|b| !b.live_toggle).and_then(|b| b.full_profile()).map(|p| p.id);
    // A board that keeps its MIG mode is booked as its largest instance, and may have left that mode since.
    let is_whole = |s: &&&Slot| match s.part {
        Part::Whole => true,
        Part::Slice(instance) => Some(instance.profile_id) == full,
        Part::Share(_) => false,
    };
    if mine().any(|s| is_whole(&s)) {
        return *gpu;
    }
    let free = mine().fold(0, |bits, s| match (s.part, board) {
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

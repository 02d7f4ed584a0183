//! The power of racks: a board counts with its power limit while it is held or booked.
//!
//! The engine sums the power at every moment at which a booking begins. So ended runs are no obstacle to
//! later ones. Jobs in a reservation draw the power that was counted for the reservation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_types::ids::JobId;
use berth_types::time::Timestamp;

use super::Engine;
use super::Span;
use super::hold::{hold_id, is_overdue};
use super::reasons::{Blocker, PowerShortage};
use super::reserve::Window;
use berth_placement::calendar::{BookingKind, Calendar, Exclusions, LATE_S, NodeSlots, expected_end};
use berth_placement::cluster::{BookingId, MAX_GPUS, NodeIx, Rank, Slot};
use berth_placement::power::{RemainingPower, counted_watts};
use berth_placement::request::Ask;
use berth_placement::scoring::Offer;

/// A set of boards of one node.
pub(super) type Boards = [bool; MAX_GPUS];

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

/// The boards of a node that an offer takes.
pub(super) fn offer_boards(offer: &Offer) -> Boards {
    let mut boards = [false; MAX_GPUS];
    for pick in offer.picks.iter() {
        if let Some(board) = boards.get_mut(usize::from(pick.gpu)) {
            *board = true;
        }
    }
    boards
}

impl Power {
    /// The most watts that these boards of a node add at any moment.
    pub(super) fn added(&self, engine: &Engine, node: NodeIx, boards: &Boards) -> i64 {
        self.moments.iter().map(|m| m.added(engine, node, boards)).max().unwrap_or(0)
    }

    /// Returns true if the rack of a node can feed these boards besides the drawing ones.
    pub(super) fn feeds(&self, engine: &Engine, node: NodeIx, boards: &Boards) -> bool {
        let rack = engine.rack(node);
        self.moments.iter().all(|m| !m.begins_in(rack) || m.left.feeds(rack, m.added(engine, node, boards)))
    }

    /// Counts these boards of a node as drawing.
    pub(super) fn draw(&mut self, engine: &Engine, node: NodeIx, boards: &Boards) {
        for moment in &mut self.moments {
            let watts = moment.added(engine, node, boards);
            moment.left.draw(engine.rack(node), watts);
            let drawing = moment.drawing.entry(node).or_insert([false; MAX_GPUS]);
            drawing.iter_mut().zip(boards).for_each(|(drawing, new)| *drawing |= new);
        }
    }
}

impl Moment {
    /// True if boards begin to draw in a rack.
    fn begins_in(&self, rack: Option<&Arc<str>>) -> bool {
        rack.is_some_and(|rack| self.racks.contains(rack))
    }

    /// The watts that these boards of a node add to the drawing ones.
    fn added(&self, engine: &Engine, node: NodeIx, boards: &Boards) -> i64 {
        let mut new = *boards;
        if let Some(drawing) = self.drawing.get(&node) {
            new.iter_mut().zip(drawing).for_each(|(new, draws)| *new &= !draws);
        }
        engine.watts(node, &new)
    }
}

impl Engine {
    /// Sets the power budgets of racks in watts; other racks have no limit.
    pub fn put_racks(&mut self, budgets: BTreeMap<Arc<str>, i64>) {
        if self.racks == budgets {
            return;
        }
        self.racks = budgets;
        // Waiting jobs may start now on any node.
        for index in 0..self.cluster.nodes().len() {
            if let Ok(index) = u32::try_from(index) {
                self.cluster.mark_changed(NodeIx(index));
            }
        }
    }

    /// Drops the held starts that racks cannot feed any more; the pass searches for other starts. Power goes
    /// to firm held starts first and then by turn; no held start relies on the power of a later one.
    pub(super) fn drop_unpowered_holds(&mut self, now: Timestamp) {
        if self.racks.is_empty() {
            return;
        }
        let mut order: Vec<JobId> = self.holds.keys().copied().collect();
        order.sort_by_key(|job| (!self.is_firm(*job), self.turn(*job, now)));
        let mut ignored: Vec<BookingId> = order.iter().map(|job| hold_id(*job)).collect();
        let mut unpowered = Vec::new();
        for job in order {
            let Some(booking) = self.calendar.get(hold_id(job)) else { continue };
            // A late stopped run draws power until its end, which may come at any moment.
            let is_late = self.holds.get(&job).is_some_and(|h| is_overdue(h.basis, h.due, now));
            let late_s = if is_late { LATE_S } else { 0 };
            let from = booking.from.max(now.plus_seconds(late_s));
            let excluded = Exclusions { bookings: &ignored, ..Exclusions::default() };
            let power = self.power_for_run((from, booking.until), now, excluded);
            if power.is_none_or(|power| self.feeds_all(power, &booking.places)) {
                ignored.retain(|id| *id != booking.id);
            } else {
                unpowered.push(job);
            }
        }
        unpowered.into_iter().for_each(|job| self.drop_hold(job));
    }

    /// Marks all nodes of a node's rack as changed after a change of its power.
    pub(super) fn mark_rack_changed(&mut self, node: NodeIx) {
        if self.racks.is_empty() {
            return;
        }
        let rack = self.cluster.node(node).and_then(|n| n.facts.rack.clone());
        let Some(rack) = rack.filter(|r| self.racks.contains_key(r)) else { return };
        for index in 0..self.cluster.nodes().len() {
            let Some(index) = u32::try_from(index).ok().map(NodeIx) else { continue };
            if self.cluster.node(index).is_some_and(|n| n.facts.rack.as_ref() == Some(&rack)) {
                self.cluster.mark_changed(index);
            }
        }
    }

    fn rack(&self, node: NodeIx) -> Option<&Arc<str>> {
        self.cluster.node(node)?.facts.rack.as_ref()
    }

    /// The watts of these boards of a node.
    fn watts(&self, node: NodeIx, boards: &Boards) -> i64 {
        let gpus = self.cluster.node(node).into_iter().flat_map(|n| &n.facts.gpus);
        let counted = gpus.zip(boards).filter(|(_, counts)| **counts);
        counted.map(|(gpu, _)| counted_watts(&gpu.model, gpu.limit_watts)).sum()
    }

    /// Adds the boards of some slots to a set.
    fn mark<'a>(&self, node: NodeIx, slots: impl IntoIterator<Item = &'a Slot>, boards: &mut Boards) {
        let Some(host) = self.cluster.node(node) else { return };
        for slot in slots {
            if let Some(board) = host.gpu_index(&slot.gpu).and_then(|i| boards.get_mut(i)) {
                *board = true;
            }
        }
    }

    /// The nodes of racks with a budget.
    fn budgeted(&self) -> impl Iterator<Item = NodeIx> {
        let nodes = self.cluster.nodes().iter().enumerate();
        let budgeted =
            nodes.filter(|(_, n)| n.facts.rack.as_ref().is_some_and(|r| self.racks.contains_key(r)));
        budgeted.filter_map(|(index, _)| u32::try_from(index).ok()).map(NodeIx)
    }

    /// The next begin of a booking on racks with a budget. From then on other jobs on its boards add no
    /// power.
    pub(super) fn next_power_begin(&self, now: Timestamp) -> Timestamp {
        let never = Timestamp::from_micros(i64::MAX);
        let booked = self.budgeted().flat_map(|node| self.calendar.on(node, now, never));
        booked.map(|b| b.from).filter(|from| *from > now).min().unwrap_or(never)
    }

    /// The expected ends of runs on racks with a budget.
    pub(super) fn power_ends(&self, now: Timestamp) -> Vec<Timestamp> {
        let ranks = self.budgeted().filter_map(|n| self.cluster.node(n)).flat_map(|n| &n.ranks);
        ranks.filter_map(|r| expected_end(r, now)).collect()
    }

    /// The boards of a node that draw at a moment or are booked then.
    fn drawing_boards(
        &self,
        calendar: &Calendar,
        node: NodeIx,
        at: Timestamp,
        now: Timestamp,
        counted: Counted<'_>,
    ) -> Boards {
        let mut boards = [false; MAX_GPUS];
        let Counted { runs, excluded } = counted;
        let is_present = |r: &&Rank| {
            (at <= now || expected_end(r, now).is_none_or(|end| end > at))
                && !excluded.owners.contains(&r.owner)
        };
        if runs {
            let ranks = self.cluster.node(node).into_iter().flat_map(|n| &n.ranks);
            self.mark(node, ranks.filter(is_present).flat_map(|r| &r.slots), &mut boards);
        }
        let moment = Timestamp::from_micros(at.micros().saturating_add(1));
        for booking in calendar.on(node, at, moment).filter(|b| !excluded.bookings.contains(&b.id)) {
            if booking.kind != BookingKind::Maintenance {
                let places = booking.places.iter().filter(|p| p.node == node);
                self.mark(node, places.flat_map(|p| &p.slots), &mut boards);
            }
        }
        boards
    }

    /// The power left during a span. `None`: no rack has a budget.
    fn power(
        &self,
        calendar: &Calendar,
        (from, until): Span,
        now: Timestamp,
        counted: Counted<'_>,
    ) -> Option<Power> {
        if self.racks.is_empty() {
            return None;
        }
        let mut times: BTreeMap<Timestamp, BTreeSet<Arc<str>>> = BTreeMap::new();
        times.insert(from, self.racks.keys().cloned().collect());
        for node in self.budgeted() {
            for at in calendar.on(node, from, until).map(|b| b.from).filter(|at| *at > from) {
                times.entry(at).or_default().extend(self.rack(node).cloned());
            }
        }
        let moment = |(at, racks): (Timestamp, BTreeSet<Arc<str>>)| {
            let mut moment =
                Moment { racks, left: RemainingPower::from_budgets(&self.racks), drawing: BTreeMap::new() };
            for node in self.budgeted() {
                let boards = self.drawing_boards(calendar, node, at, now, counted);
                moment.left.draw(self.rack(node), self.watts(node, &boards));
                moment.drawing.insert(node, boards);
            }
            moment
        };
        Some(Power { moments: times.into_iter().map(moment).collect() })
    }

    /// The power left for a run. `None`: no rack has a budget.
    pub(super) fn power_for_run(
        &self,
        span: Span,
        now: Timestamp,
        excluded: Exclusions<'_>,
    ) -> Option<Power> {
        self.power(&self.calendar, span, now, Counted { runs: true, excluded })
    }

    /// The power left for a reservation besides the bookings of a calendar.
    pub(super) fn power_beside(&self, calendar: &Calendar, span: Span, now: Timestamp) -> Option<Power> {
        self.power(calendar, span, now, Counted { runs: false, excluded: Exclusions::default() })
    }

    /// Returns true if racks can feed all of these places together.
    pub(super) fn feeds_all(&self, mut power: Power, places: &[NodeSlots]) -> bool {
        places.iter().all(|place| {
            let mut boards = [false; MAX_GPUS];
            self.mark(place.node, &place.slots, &mut boards);
            let fed = power.feeds(self, place.node, &boards);
            power.draw(self, place.node, &boards);
            fed
        })
    }

    /// The largest lack of power for an ask that would find its places without power budgets.
    pub(super) fn power_shortage(
        &mut self,
        ask: &Ask,
        (now, until): Span,
        excluded: Exclusions<'_>,
    ) -> Option<PowerShortage> {
        let power = self.power_for_run((now, until), now, excluded)?;
        let budgets = std::mem::take(&mut self.racks);
        let places = self.find_places(ask, now, until, excluded);
        self.racks = budgets;
        self.largest_shortage(&power, &places?)
    }

    /// The blocker of a run that lacks power: now, or from the begin of a booking on.
    pub(super) fn why_power(
        &mut self,
        ask: &Ask,
        (now, until): Span,
        excluded: Exclusions<'_>,
    ) -> Option<Blocker> {
        let short = self.power_shortage(ask, (now, until), excluded)?;
        let moment = now.plus_seconds(1);
        if self.find_places(ask, now, moment, excluded).is_none() {
            return Some(Blocker::Power(self.power_shortage(ask, (now, moment), excluded).unwrap_or(short)));
        }
        let others = self.calendar.iter().filter(|b| !excluded.bookings.contains(&b.id));
        let mut begins: Vec<Timestamp> =
            others.map(|b| b.from).filter(|from| *from > now && *from < until).collect();
        begins.sort_unstable();
        begins.dedup();
        let first = begins
            .into_iter()
            .find(|begin| self.find_places(ask, now, begin.plus_seconds(1), excluded).is_none());
        Some(first.map_or(Blocker::Power(short), |begins| Blocker::Promised { begins }))
    }

    /// The largest lack of power for a booking that would find its places without power budgets.
    pub(super) fn power_shortage_for_booking(
        &mut self,
        ask: &Ask,
        window: Window,
        now: Timestamp,
    ) -> Option<PowerShortage> {
        let span = (window.from, window.until);
        let power = self.power_beside(&self.calendar, span, now)?;
        let budgets = std::mem::take(&mut self.racks);
        let places = self.find_window_places(ask, window, now);
        self.racks = budgets;
        self.largest_shortage(&power, &places?)
    }

    /// The largest lack of power in the racks of some places.
    fn largest_shortage(&self, power: &Power, places: &[NodeSlots]) -> Option<PowerShortage> {
        let lacks = power.moments.iter().flat_map(|moment| {
            let mut needs: BTreeMap<Arc<str>, i64> = BTreeMap::new();
            for place in places {
                let Some(rack) = self.rack(place.node).filter(|r| moment.begins_in(Some(r))) else {
                    continue;
                };
                let mut boards = [false; MAX_GPUS];
                self.mark(place.node, &place.slots, &mut boards);
                *needs.entry(rack.clone()).or_default() += moment.added(self, place.node, &boards);
            }
            needs.into_iter().filter_map(|(rack, need)| {
                let (left, budget) = (moment.left.get(&rack)?, *self.racks.get(&rack)?);
                // Drawing boards add nothing, even after a budget was lowered.
                (need > left.max(0)).then_some(PowerShortage { rack, left, budget, need })
            })
        });
        lacks.max_by_key(|short| short.need - short.left)
    }
}

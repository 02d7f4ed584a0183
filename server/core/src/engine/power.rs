//! What racks can feed: a board counts for its limit as long as anything holds it, or it is promised.
//!
//! What draws is added up for every moment at which more begins to draw, so that what has ended by then
//! is in nobody's way. Jobs in a reservation draw what was counted for that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_types::ids::JobId;
use berth_types::time::Timestamp;

use super::Engine;
use super::hold::{hold_id, is_overdue};
use super::place::Span;
use super::reserve::Window;
use super::why::{Blocker, Short};
use crate::calendar::{But, Calendar, Kind, LATE_S, Place, expected_end};
use crate::cluster::{BookingId, MAX_GPUS, NodeIx, Rank, Slot};
use crate::power::{Left, counted_watts};
use crate::request::Ask;
use crate::scoring::Offer;

/// Boards of one node.
pub(super) type Boards = [bool; MAX_GPUS];

/// One moment at which more begins to draw: what is left of racks, and what draws.
#[derive(Debug, Clone)]
struct Moment {
    /// The racks in which more begins to draw; others were looked at before.
    racks: BTreeSet<Arc<str>>,
    left: Left,
    drawing: BTreeMap<NodeIx, Boards>,
}

/// What racks have left during a time.
#[derive(Debug, Clone)]
pub(super) struct Power {
    moments: Vec<Moment>,
}

/// What counts besides what is promised.
#[derive(Debug, Clone, Copy)]
struct Counted<'a> {
    /// What runs.
    runs: bool,
    but: But<'a>,
}

/// The boards of a node that an offer takes.
pub(super) fn boards_of(offer: &Offer) -> Boards {
    let mut boards = [false; MAX_GPUS];
    for pick in offer.picks.iter() {
        if let Some(board) = boards.get_mut(usize::from(pick.gpu)) {
            *board = true;
        }
    }
    boards
}

impl Power {
    /// Watts that these boards of a node add to what draws, where that is most.
    pub(super) fn added(&self, engine: &Engine, node: NodeIx, boards: &Boards) -> i64 {
        self.moments.iter().map(|m| m.added(engine, node, boards)).max().unwrap_or(0)
    }

    /// Whether the rack of a node feeds these boards of it too.
    pub(super) fn feeds(&self, engine: &Engine, node: NodeIx, boards: &Boards) -> bool {
        let rack = engine.rack(node);
        self.moments.iter().all(|m| !m.begins_in(rack) || m.left.feeds(rack, m.added(engine, node, boards)))
    }

    /// Counts these boards of a node as drawing.
    pub(super) fn draw(&mut self, engine: &Engine, node: NodeIx, boards: &Boards) {
        for moment in &mut self.moments {
            let watts = moment.added(engine, node, boards);
            moment.left.draw(engine.rack(node), watts);
            let there = moment.drawing.entry(node).or_insert([false; MAX_GPUS]);
            there.iter_mut().zip(boards).for_each(|(there, new)| *there |= new);
        }
    }
}

impl Moment {
    /// True if more begins to draw in a rack.
    fn begins_in(&self, rack: Option<&Arc<str>>) -> bool {
        rack.is_some_and(|rack| self.racks.contains(rack))
    }

    fn added(&self, engine: &Engine, node: NodeIx, boards: &Boards) -> i64 {
        let mut new = *boards;
        if let Some(there) = self.drawing.get(&node) {
            new.iter_mut().zip(there).for_each(|(new, draws)| *new &= !draws);
        }
        engine.watts(node, &new)
    }
}

impl Engine {
    /// States what racks can feed, in watts; those that are not named feed whatever stands in them.
    pub fn put_racks(&mut self, budgets: BTreeMap<Arc<str>, i64>) {
        if self.racks == budgets {
            return;
        }
        self.racks = budgets;
        // Whoever was kept back may start now, wherever that is.
        for index in 0..self.cluster.nodes().len() {
            if let Ok(index) = u32::try_from(index) {
                self.cluster.stir(NodeIx(index));
            }
        }
    }

    /// Drops the held starts that racks cannot feed any more; the pass looks for others. Those whose room
    /// others were stopped for come first, then the earlier turn; none counts on the power of a later one.
    pub(super) fn drop_unfed_holds(&mut self, now: Timestamp) {
        if self.racks.is_empty() {
            return;
        }
        let mut order: Vec<JobId> = self.holds.keys().copied().collect();
        order.sort_by_key(|job| (!self.is_firm(*job), self.turn(*job, now)));
        let mut unknown: Vec<BookingId> = order.iter().map(|job| hold_id(*job)).collect();
        let mut unfed = Vec::new();
        for job in order {
            let Some(booking) = self.calendar.get(hold_id(job)) else { continue };
            // A stopped run that is late draws power until it ends, which may be at any moment.
            let is_late = self.holds.get(&job).is_some_and(|h| is_overdue(h.basis, h.due, now));
            let late_s = if is_late { LATE_S } else { 0 };
            let from = booking.from.max(now.plus_seconds(late_s));
            let but = But { bookings: &unknown, ..But::default() };
            let power = self.power_for_run((from, booking.until), now, but);
            if power.is_none_or(|power| self.feeds_all(power, &booking.places)) {
                unknown.retain(|id| *id != booking.id);
            } else {
                unfed.push(job);
            }
        }
        unfed.into_iter().for_each(|job| self.drop_hold(job));
    }

    /// Something on a node came or went: all of its rack is to be looked at again.
    pub(super) fn stir_rack(&mut self, node: NodeIx) {
        if self.racks.is_empty() {
            return;
        }
        let rack = self.cluster.node(node).and_then(|n| n.facts.rack.clone());
        let Some(rack) = rack.filter(|r| self.racks.contains_key(r)) else { return };
        for index in 0..self.cluster.nodes().len() {
            let Some(index) = u32::try_from(index).ok().map(NodeIx) else { continue };
            if self.cluster.node(index).is_some_and(|n| n.facts.rack.as_ref() == Some(&rack)) {
                self.cluster.stir(index);
            }
        }
    }

    fn rack(&self, node: NodeIx) -> Option<&Arc<str>> {
        self.cluster.node(node)?.facts.rack.as_ref()
    }

    /// Watts for which these boards of a node count.
    fn watts(&self, node: NodeIx, boards: &Boards) -> i64 {
        let gpus = self.cluster.node(node).into_iter().flat_map(|n| &n.facts.gpus);
        let counted = gpus.zip(boards).filter(|(_, counts)| **counts);
        counted.map(|(gpu, _)| counted_watts(&gpu.model, gpu.limit_watts)).sum()
    }

    fn mark<'a>(&self, node: NodeIx, slots: impl IntoIterator<Item = &'a Slot>, boards: &mut Boards) {
        let Some(of) = self.cluster.node(node) else { return };
        for slot in slots {
            if let Some(board) = of.gpu_index(&slot.gpu).and_then(|i| boards.get_mut(i)) {
                *board = true;
            }
        }
    }

    /// The nodes of racks that have a budget.
    fn budgeted(&self) -> impl Iterator<Item = NodeIx> {
        let nodes = self.cluster.nodes().iter().enumerate();
        let budgeted =
            nodes.filter(|(_, n)| n.facts.rack.as_ref().is_some_and(|r| self.racks.contains_key(r)));
        budgeted.filter_map(|(index, _)| u32::try_from(index).ok()).map(NodeIx)
    }

    /// When boards of racks with a budget next begin to draw power by a booking: others on the same boards
    /// draw no more then.
    pub(super) fn next_power_begin(&self, now: Timestamp) -> Timestamp {
        let never = Timestamp::from_micros(i64::MAX);
        let booked = self.budgeted().flat_map(|node| self.calendar.on(node, now, never));
        booked.map(|b| b.from).filter(|from| *from > now).min().unwrap_or(never)
    }

    /// When something on the nodes of racks with a budget is expected to end.
    pub(super) fn power_ends(&self, now: Timestamp) -> Vec<Timestamp> {
        let ranks = self.budgeted().filter_map(|n| self.cluster.node(n)).flat_map(|n| &n.ranks);
        ranks.filter_map(|r| expected_end(r, now)).collect()
    }

    /// The boards of a node that draw at a moment, or are promised to somebody who draws then.
    fn drawing(
        &self,
        calendar: &Calendar,
        node: NodeIx,
        at: Timestamp,
        now: Timestamp,
        counted: Counted<'_>,
    ) -> Boards {
        let mut boards = [false; MAX_GPUS];
        let Counted { runs, but } = counted;
        let there = |r: &&Rank| {
            (at <= now || expected_end(r, now).is_none_or(|end| end > at)) && !but.owners.contains(&r.owner)
        };
        if runs {
            let ranks = self.cluster.node(node).into_iter().flat_map(|n| &n.ranks);
            self.mark(node, ranks.filter(there).flat_map(|r| &r.slots), &mut boards);
        }
        let moment = Timestamp::from_micros(at.micros().saturating_add(1));
        for booking in calendar.on(node, at, moment).filter(|b| !but.bookings.contains(&b.id)) {
            if booking.kind != Kind::Maintenance {
                let places = booking.places.iter().filter(|p| p.node == node);
                self.mark(node, places.flat_map(|p| &p.slots), &mut boards);
            }
        }
        boards
    }

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
            let mut moment = Moment { racks, left: Left::of(&self.racks), drawing: BTreeMap::new() };
            for node in self.budgeted() {
                let boards = self.drawing(calendar, node, at, now, counted);
                moment.left.draw(self.rack(node), self.watts(node, &boards));
                moment.drawing.insert(node, boards);
            }
            moment
        };
        Some(Power { moments: times.into_iter().map(moment).collect() })
    }

    /// What racks have left for a run. `None`: no rack has a budget.
    pub(super) fn power_for_run(&self, span: Span, now: Timestamp, but: But<'_>) -> Option<Power> {
        self.power(&self.calendar, span, now, Counted { runs: true, but })
    }

    /// What racks have left for a reservation, beside what else is reserved in a calendar.
    pub(super) fn power_beside(&self, calendar: &Calendar, span: Span, now: Timestamp) -> Option<Power> {
        self.power(calendar, span, now, Counted { runs: false, but: But::default() })
    }

    /// Whether racks feed all of these places together.
    pub(super) fn feeds_all(&self, mut power: Power, places: &[Place]) -> bool {
        places.iter().all(|place| {
            let mut boards = [false; MAX_GPUS];
            self.mark(place.node, &place.slots, &mut boards);
            let fed = power.feeds(self, place.node, &boards);
            power.draw(self, place.node, &boards);
            fed
        })
    }

    /// The rack that lacks most for an ask which would find its places if racks could feed anything.
    pub(super) fn short_of_power(&mut self, ask: &Ask, (now, until): Span, but: But<'_>) -> Option<Short> {
        let power = self.power_for_run((now, until), now, but)?;
        let budgets = std::mem::take(&mut self.racks);
        let places = self.place(ask, now, until, but);
        self.racks = budgets;
        self.shortest(&power, &places?)
    }

    /// The lack of power for a run in its racks: now, or from the begin of a booking on.
    pub(super) fn why_power(&mut self, ask: &Ask, (now, until): Span, but: But<'_>) -> Option<Blocker> {
        let short = self.short_of_power(ask, (now, until), but)?;
        let moment = now.plus_seconds(1);
        if self.place(ask, now, moment, but).is_none() {
            return Some(Blocker::Power(self.short_of_power(ask, (now, moment), but).unwrap_or(short)));
        }
        let others = self.calendar.iter().filter(|b| !but.bookings.contains(&b.id));
        let mut begins: Vec<Timestamp> =
            others.map(|b| b.from).filter(|from| *from > now && *from < until).collect();
        begins.sort_unstable();
        begins.dedup();
        let first =
            begins.into_iter().find(|begin| self.place(ask, now, begin.plus_seconds(1), but).is_none());
        Some(first.map_or(Blocker::Power(short), |begins| Blocker::Promised { begins }))
    }

    /// The same for a booking.
    pub(super) fn short_of_power_then(&mut self, ask: &Ask, window: Window, now: Timestamp) -> Option<Short> {
        let span = (window.from, window.until);
        let power = self.power_beside(&self.calendar, span, now)?;
        let budgets = std::mem::take(&mut self.racks);
        let places = self.places_for(ask, window, now);
        self.racks = budgets;
        self.shortest(&power, &places?)
    }

    /// Of the racks of some places the one that lacks most for them.
    fn shortest(&self, power: &Power, places: &[Place]) -> Option<Short> {
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
                // Boards that draw already add nothing, also where a budget was lowered.
                (need > left.max(0)).then_some(Short { rack, left, budget, need })
            })
        });
        lacks.max_by_key(|short| short.need - short.left)
    }
}

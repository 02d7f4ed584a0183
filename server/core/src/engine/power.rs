//! What racks can feed: a board counts for its limit as long as anything holds it, or it is reserved.
//!
//! Of a start that is held only the first in line of the same pool counts, for those behind it: what they
//! may draw must be left for it. Jobs in a reservation draw what was counted for that.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_types::time::Timestamp;

use super::Engine;
use super::place::Candidate;
use super::reserve::Window;
use super::why::Short;
use crate::calendar::{Calendar, Kind, Place};
use crate::cluster::{BookingId, MAX_GPUS, NodeIx, Slot};
use crate::power::{Left, counted_watts};
use crate::request::Ask;

/// Boards of one node.
type Boards = [bool; MAX_GPUS];

/// What else draws during a time.
struct During<'a> {
    calendar: &'a Calendar,
    from: Timestamp,
    until: Timestamp,
    /// The booking of whoever asks.
    own: Option<BookingId>,
    /// What runs now counts, with the first in line of the same pool.
    runs: bool,
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

    /// The boards of a node that draw, or are promised to somebody who draws, during this time.
    fn drawing(&self, node: NodeIx, ask: &Ask, during: &During<'_>) -> Boards {
        let mut boards = [false; MAX_GPUS];
        if during.runs {
            let ranks = self.cluster.node(node).into_iter().flat_map(|n| &n.ranks);
            self.mark(node, ranks.flat_map(|r| &r.slots), &mut boards);
        }
        let others = during.calendar.on(node, during.from, during.until);
        for booking in others.filter(|b| Some(b.id) != during.own) {
            let same_pool = || booking.ask.is_some_and(|a| a.shape.models == ask.shape.models);
            let counts = match booking.kind {
                Kind::Reservation => true,
                Kind::Maintenance => false,
                Kind::Hold => during.runs && same_pool(),
            };
            if counts {
                let places = booking.places.iter().filter(|p| p.node == node);
                self.mark(node, places.flat_map(|p| &p.slots), &mut boards);
            }
        }
        boards
    }

    /// Of these boards of a node, those that draw nothing yet; their watts.
    fn added(&self, node: NodeIx, mut boards: Boards, ask: &Ask, during: Option<&During<'_>>) -> i64 {
        if let Some(during) = during {
            let there = self.drawing(node, ask, during);
            boards.iter_mut().zip(there).for_each(|(board, draws)| *board &= !draws);
        }
        self.watts(node, &boards)
    }

    /// What is left of racks for an ask during a time. `None`: no rack has a budget.
    fn power_left(&self, ask: &Ask, during: &During<'_>) -> Option<Left> {
        if self.racks.is_empty() {
            return None;
        }
        let mut left = Left::of(&self.racks);
        for (index, node) in self.cluster.nodes().iter().enumerate() {
            let rack = node.facts.rack.as_ref().filter(|r| self.racks.contains_key(*r));
            let (Some(rack), Ok(index)) = (rack, u32::try_from(index)) else { continue };
            let boards = self.drawing(NodeIx(index), ask, during);
            left.draw(Some(rack), self.watts(NodeIx(index), &boards));
        }
        Some(left)
    }

    /// What is left of racks for a run from now on; `own` is its booking.
    pub(super) fn power_now(
        &self,
        ask: &Ask,
        (now, until): (Timestamp, Timestamp),
        own: Option<BookingId>,
    ) -> Option<Left> {
        self.power_left(ask, &self.beginning_now((now, until), own))
    }

    fn beginning_now(&self, (from, until): (Timestamp, Timestamp), own: Option<BookingId>) -> During<'_> {
        During { calendar: &self.calendar, from, until, own, runs: true }
    }

    /// Those candidates for a run from now on that can be fed, all of them at once, by what is left of
    /// racks. It is taken in the order of what they cost.
    pub(super) fn fed(
        &self,
        left: Left,
        found: Vec<Candidate>,
        ask: &Ask,
        window: (Timestamp, Timestamp),
        own: Option<BookingId>,
    ) -> Vec<Candidate> {
        self.fed_during(left, found, ask, Some(&self.beginning_now(window, own)))
    }

    /// Those that can be fed beside what else is reserved in a calendar.
    pub(super) fn fed_beside(
        &self,
        calendar: &Calendar,
        found: Vec<Candidate>,
        ask: &Ask,
        (from, until): (Timestamp, Timestamp),
    ) -> Vec<Candidate> {
        let during = During { calendar, from, until, own: None, runs: false };
        match self.power_left(ask, &during) {
            Some(left) => self.fed_during(left, found, ask, Some(&during)),
            None => found,
        }
    }

    /// Those that can be fed where nothing else draws: who is not fed then never will be.
    pub(super) fn fed_ever(&self, found: Vec<Candidate>, ask: &Ask) -> Vec<Candidate> {
        if self.racks.is_empty() {
            return found;
        }
        self.fed_during(Left::of(&self.racks), found, ask, None)
    }

    fn fed_during(
        &self,
        mut left: Left,
        mut found: Vec<Candidate>,
        ask: &Ask,
        during: Option<&During<'_>>,
    ) -> Vec<Candidate> {
        found.sort_by_key(|(cost, node, _)| (*cost, *node));
        // Where one node is all that is asked for, each may take what is left.
        let together = ask.nodes > 1;
        found.retain(|(_, node, offer)| {
            let mut boards = [false; MAX_GPUS];
            for pick in offer.picks.iter() {
                if let Some(board) = boards.get_mut(usize::from(pick.gpu)) {
                    *board = true;
                }
            }
            let rack = self.cluster.node(*node).and_then(|n| n.facts.rack.as_ref());
            let watts = self.added(*node, boards, ask, during);
            let feeds = left.feeds(rack, watts);
            if feeds && together {
                left.draw(rack, watts);
            }
            feeds
        });
        found
    }

    /// The rack that lacks most for an ask which would find its places if racks could feed anything.
    pub(super) fn short_of_power(
        &mut self,
        ask: &Ask,
        (now, until): (Timestamp, Timestamp),
        own: Option<BookingId>,
    ) -> Option<Short> {
        let left = self.power_now(ask, (now, until), own)?;
        let budgets = std::mem::take(&mut self.racks);
        let places = self.place(ask, now, until, own);
        self.racks = budgets;
        self.shortest(&left, &places?, ask, &self.beginning_now((now, until), own))
    }

    /// The same for a booking.
    pub(super) fn short_of_power_then(&mut self, ask: &Ask, window: Window, now: Timestamp) -> Option<Short> {
        if self.racks.is_empty() {
            return None;
        }
        let budgets = std::mem::take(&mut self.racks);
        let places = self.places_for(ask, window, now);
        self.racks = budgets;
        let Window { from, until } = window;
        let during = During { calendar: &self.calendar, from, until, own: None, runs: false };
        self.shortest(&self.power_left(ask, &during)?, &places?, ask, &during)
    }

    /// Of the racks of some places the one that lacks most for them.
    fn shortest(&self, left: &Left, places: &[Place], ask: &Ask, during: &During<'_>) -> Option<Short> {
        let mut needs: BTreeMap<Arc<str>, i64> = BTreeMap::new();
        for place in places {
            let Some(rack) = self.cluster.node(place.node).and_then(|n| n.facts.rack.clone()) else {
                continue;
            };
            let mut boards = [false; MAX_GPUS];
            self.mark(place.node, &place.slots, &mut boards);
            *needs.entry(rack).or_default() += self.added(place.node, boards, ask, Some(during));
        }
        let lacks = needs.into_iter().filter_map(|(rack, need)| {
            let (left, budget) = (left.get(&rack)?, *self.racks.get(&rack)?);
            (need > left).then_some(Short { rack, left, budget, need })
        });
        lacks.max_by_key(|short| short.need - short.left)
    }
}

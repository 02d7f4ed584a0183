//! Finds places: one node, or all nodes of a gang at once or none.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_types::time::Timestamp;

use super::Engine;
use super::power::{Boards, Power, boards_of};
use crate::calendar::{But, Calendar, Place};
use crate::cluster::{MAX_GPUS, NodeIx, View};
use crate::finder::slots;
use crate::request::{Ask, Topology};
use crate::scoring::Offer;

/// A node that could take a rank, and what that costs.
pub(super) type Candidate = (u64, NodeIx, Offer);

/// From when until when; half open.
pub(super) type Span = (Timestamp, Timestamp);

impl Engine {
    /// A node as it stands for a run from now until `until`.
    fn view_until(&self, node: NodeIx, now: Timestamp, until: Timestamp, but: But<'_>) -> Option<View> {
        if but.owners.is_empty() && self.calendar.is_free(node) {
            return self.cluster.node(node).map(|n| *n.view());
        }
        self.calendar.view(&self.cluster, node, (now, until), now, but)
    }

    /// Where an ask can start now and stay until `until`, some bookings being no obstacle to it.
    pub(super) fn place(
        &mut self,
        ask: &Ask,
        now: Timestamp,
        until: Timestamp,
        but: But<'_>,
    ) -> Option<Vec<Place>> {
        self.finder.sync(&self.cluster, &ask.shape);
        let power = self.power_for_run((now, until), now, but);
        let offer = |node: NodeIx| {
            let view = self.view_until(node, now, until, but)?;
            self.offer_fed(node, &view, ask, power.as_ref())
        };
        let mut found: Vec<Candidate> = Vec::new();
        if ask.nodes == 1 {
            // Without bookings and budgets the finder knows already.
            let known = |node: NodeIx| self.calendar.is_free(node) && power.is_none();
            let near = |node: NodeIx| self.domain(node, ask.topology).is_some();
            let fits = |node: NodeIx| near(node) && (known(node) || offer(node).is_some());
            let node = self.finder.best(&self.cluster, &ask.shape, &fits)?;
            found.push((0, node, offer(node)?));
        } else {
            for (cost, node) in self.finder.all(&self.cluster, &ask.shape) {
                found.extend(offer(node).map(|offer| (cost, node, offer)));
            }
        }
        let view = |node| self.view_until(node, now, until, but);
        let chosen = self.gather_frugal(ask, found, power.as_ref(), view)?;
        Some(self.places(ask, &chosen))
    }

    /// Gathers candidates; where racks cannot feed the cheapest offers together, the most frugal ones.
    fn gather_frugal(
        &self,
        ask: &Ask,
        mut found: Vec<Candidate>,
        power: Option<&Power>,
        view: impl Fn(NodeIx) -> Option<View>,
    ) -> Option<Vec<Candidate>> {
        let chosen = self.gather(ask, found.clone(), power);
        let Some(power) = power.filter(|_| chosen.is_none() && ask.nodes > 1) else { return chosen };
        for (_, node, offer) in &mut found {
            if let Some(frugal) = view(*node).and_then(|view| self.most_frugal(*node, &view, ask, power)) {
                *offer = frugal;
            }
        }
        self.gather(ask, found, Some(power))
    }

    /// Where an ask could start at some time and stay, if some bookings and attempts were gone: every node
    /// is looked at.
    pub(super) fn place_at(
        &self,
        ask: &Ask,
        nodes: &[NodeIx],
        span: Span,
        now: Timestamp,
        but: But<'_>,
    ) -> Option<Vec<Candidate>> {
        let power = self.power_for_run(span, now, but);
        let offers = nodes.iter().filter_map(|node| {
            let view = self.calendar.view(&self.cluster, *node, span, now, but)?;
            let offer = self.offer_fed(*node, &view, ask, power.as_ref())?;
            self.domain(*node, ask.topology)?;
            Some((offer.cost, *node, offer))
        });
        // For one node any place will do; the best of the first few is good enough.
        let found = if ask.nodes == 1 { offers.take(8).collect() } else { offers.collect() };
        let view = |node| self.calendar.view(&self.cluster, node, span, now, but);
        self.gather_frugal(ask, found, power.as_ref(), view)
    }

    /// The cheapest offer of a node that its rack can feed; where it cannot, the one that draws least more.
    pub(super) fn offer_fed(
        &self,
        node: NodeIx,
        view: &View,
        ask: &Ask,
        power: Option<&Power>,
    ) -> Option<Offer> {
        let offer = self.finder.offer(&self.cluster, view, &ask.shape)?;
        match power.filter(|p| !p.feeds(self, node, &boards_of(&offer))) {
            Some(power) => self.most_frugal(node, view, ask, power),
            None => Some(offer),
        }
    }

    /// The offer of a node that draws least more, if its rack feeds it.
    fn most_frugal(&self, node: NodeIx, view: &View, ask: &Ask, power: &Power) -> Option<Offer> {
        let mut order: Vec<(i64, usize)> = (0..view.gpus().len().min(MAX_GPUS))
            .map(|index| {
                let only: Boards = std::array::from_fn(|i| i == index);
                (power.added(self, node, &only), index)
            })
            .collect();
        order.sort_unstable();
        let islands = if ask.shape.nvlink { view.islands() } else { vec![None] };
        islands.into_iter().find_map(|island| self.frugal(node, view, ask, power, &order, island))
    }

    /// An offer on the boards that draw least more, if the rack feeds it.
    fn frugal(
        &self,
        node: NodeIx,
        view: &View,
        ask: &Ask,
        power: &Power,
        order: &[(i64, usize)],
        island: Option<u8>,
    ) -> Option<Offer> {
        let mut open: Boards = [false; MAX_GPUS];
        for (_, index) in order {
            if let Some(board) = open.get_mut(*index) {
                *board = true;
            }
            let mut some = *view;
            some.only(|i, gpu| {
                let is_open = open.get(i).copied().unwrap_or(false) && island.is_none_or(|n| n == gpu.island);
                if is_open { *gpu } else { crate::cluster::NO_GPU }
            });
            if let Some(offer) = self.finder.offer(&self.cluster, &some, &ask.shape) {
                return Some(offer).filter(|o| power.feeds(self, node, &boards_of(o)));
            }
        }
        None
    }

    /// As many of the candidates as the ask has nodes, near each other as it wants, and fed together; all or
    /// none.
    pub(super) fn gather(
        &self,
        ask: &Ask,
        found: Vec<Candidate>,
        power: Option<&Power>,
    ) -> Option<Vec<Candidate>> {
        let wanted = ask.nodes as usize;
        let mut domains: BTreeMap<Option<Arc<str>>, Vec<Candidate>> = BTreeMap::new();
        for candidate in found {
            if let Some(domain) = self.domain(candidate.1, ask.topology) {
                domains.entry(domain).or_default().push(candidate);
            }
        }
        // The domain that has just enough: others stay whole for those who need more.
        let mut domains: Vec<Vec<Candidate>> = domains.into_values().filter(|d| d.len() >= wanted).collect();
        domains.sort_by_key(Vec::len);
        domains.into_iter().find_map(|domain| self.gather_fed(domain, wanted, power))
    }

    /// The cheapest candidates that can be fed together; where that leaves too few, those that draw least.
    fn gather_fed(
        &self,
        mut found: Vec<Candidate>,
        wanted: usize,
        power: Option<&Power>,
    ) -> Option<Vec<Candidate>> {
        found.sort_by_key(|(cost, node, _)| (*cost, *node));
        let Some(power) = power else {
            found.truncate(wanted);
            return Some(found);
        };
        let fed = |order: &[Candidate]| {
            let mut power = power.clone();
            let mut chosen: Vec<Candidate> = Vec::new();
            for candidate in order {
                let boards = boards_of(&candidate.2);
                if chosen.len() < wanted && power.feeds(self, candidate.1, &boards) {
                    power.draw(self, candidate.1, &boards);
                    chosen.push(candidate.clone());
                }
            }
            (chosen.len() == wanted).then_some(chosen)
        };
        fed(&found).or_else(|| {
            found.sort_by_key(|(cost, node, offer)| {
                (power.added(self, *node, &boards_of(offer)), *cost, *node)
            });
            fed(&found)
        })
    }

    /// The part of the network that a node is in. The outer `None`: it says nothing of it, so no
    /// closeness can be promised.
    pub(super) fn domain(&self, node: NodeIx, topology: Topology) -> Option<Option<Arc<str>>> {
        let facts = &self.cluster.node(node)?.facts;
        match topology {
            Topology::Any => Some(None),
            Topology::SameSwitch => facts.switch.clone().map(Some),
            Topology::SameRack => facts.rack.clone().map(Some),
        }
    }

    pub(super) fn places(&self, ask: &Ask, chosen: &[Candidate]) -> Vec<Place> {
        let named = |(_, node, offer): &Candidate| Place {
            node: *node,
            slots: slots(&self.cluster, *node, &ask.shape, offer),
        };
        chosen.iter().map(named).collect()
    }

    /// The places of a calendar for a booking.
    pub(super) fn places_in(
        &self,
        calendar: &Calendar,
        ask: &Ask,
        (from, until): Span,
        now: Timestamp,
    ) -> Option<Vec<Place>> {
        let each = i64::from(ask.shape.milli(self.cluster.models()));
        let power = self.power_beside(calendar, (from, until), now);
        let all = (0..self.cluster.nodes().len()).filter_map(|n| u32::try_from(n).ok()).map(NodeIx);
        let offers = all.filter_map(|node| {
            if !calendar.may_fit(node, from, until, each, self.milli_of(&[node])) {
                return None;
            }
            // A start that is held is in the way like any other booking.
            let but = But { away: Self::expects_back(from, now), ..But::default() };
            let view = calendar.view(&self.cluster, node, (from, until), now, but)?;
            let offer = self.offer_fed(node, &view, ask, power.as_ref())?;
            Some((offer.cost, node, offer))
        });
        let chosen = self.gather(ask, offers.collect(), power.as_ref())?;
        Some(self.places(ask, &chosen))
    }
}

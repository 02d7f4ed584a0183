//! The search for places: one node, or all nodes of a gang or none.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_types::time::Timestamp;

use super::power::{Boards, Power, offer_boards};
use super::{Engine, Span};
use berth_placement::calendar::{Calendar, Exclusions, Expected, NodeSlots};
use berth_placement::cluster::{MAX_GPUS, NodeIx, View};
use berth_placement::finder::slots;
use berth_placement::request::{Ask, Topology};
use berth_placement::scoring::Offer;

/// A node that could take a rank, with the cost and the offer.
pub(super) type Candidate = (u64, NodeIx, Offer);

impl Engine {
    /// The view of a node for a run from now until `until`.
    fn view_until(
        &self,
        node: NodeIx,
        now: Timestamp,
        until: Timestamp,
        excluded: Exclusions<'_>,
    ) -> Option<View> {
        if excluded.owners.is_empty() && self.calendar.is_free(node) {
            return self.cluster.node(node).map(|n| *n.view());
        }
        self.calendar.view(&self.cluster, node, (now, until), now, excluded)
    }

    /// The places at which an ask can start now and stay until `until`.
    pub(super) fn find_places(
        &mut self,
        ask: &Ask,
        now: Timestamp,
        until: Timestamp,
        excluded: Exclusions<'_>,
    ) -> Option<Vec<NodeSlots>> {
        self.finder.sync(&self.cluster, &ask.shape);
        let power = self.power_for_run((now, until), now, excluded);
        let offer = |node: NodeIx| {
            let view = self.view_until(node, now, until, excluded)?;
            self.powered_offer(node, &view, ask, power.as_ref())
        };
        let mut candidates: Vec<Candidate> = Vec::new();
        if ask.nodes == 1 {
            // Without bookings and budgets the answer of the finder suffices.
            let known = |node: NodeIx| self.calendar.is_free(node) && power.is_none();
            let near = |node: NodeIx| self.domain(node, ask.topology).is_some();
            let fits = |node: NodeIx| near(node) && (known(node) || offer(node).is_some());
            let node = self.finder.best(&self.cluster, &ask.shape, &fits)?;
            candidates.push((0, node, offer(node)?));
        } else {
            for (cost, node) in self.finder.all(&self.cluster, &ask.shape) {
                candidates.extend(offer(node).map(|offer| (cost, node, offer)));
            }
        }
        let view = |node| self.view_until(node, now, until, excluded);
        let chosen = self.gather_low_power(ask, candidates, power.as_ref(), view)?;
        Some(self.node_slots(ask, &chosen))
    }

    /// Gathers candidates; if racks cannot feed the cheapest offers together, those with the least power.
    fn gather_low_power(
        &self,
        ask: &Ask,
        mut candidates: Vec<Candidate>,
        power: Option<&Power>,
        view: impl Fn(NodeIx) -> Option<View>,
    ) -> Option<Vec<Candidate>> {
        let chosen = self.gather(ask, candidates.clone(), power);
        let Some(power) = power.filter(|_| chosen.is_none() && ask.nodes > 1) else { return chosen };
        for (_, node, offer) in &mut candidates {
            if let Some(low_power) =
                view(*node).and_then(|view| self.lowest_power_offer(*node, &view, ask, power))
            {
                *offer = low_power;
            }
        }
        self.gather(ask, candidates, Some(power))
    }

    /// The nodes on which an ask could start at some time and stay, by a search of all given nodes.
    pub(super) fn find_places_at(
        &self,
        ask: &Ask,
        nodes: &[NodeIx],
        span: Span,
        now: Timestamp,
        excluded: Exclusions<'_>,
    ) -> Option<Vec<Candidate>> {
        let power = self.power_for_run(span, now, excluded);
        let offers = nodes.iter().filter_map(|node| {
            let view = self.calendar.view(&self.cluster, *node, span, now, excluded)?;
            let offer = self.powered_offer(*node, &view, ask, power.as_ref())?;
            self.domain(*node, ask.topology)?;
            Some((offer.cost, *node, offer))
        });
        // For one node the best of the first few places is good enough.
        let candidates = if ask.nodes == 1 { offers.take(8).collect() } else { offers.collect() };
        let view = |node| self.calendar.view(&self.cluster, node, span, now, excluded);
        self.gather_low_power(ask, candidates, power.as_ref(), view)
    }

    /// The cheapest offer of a node; if its rack cannot feed that offer, the offer with the least added
    /// power.
    pub(super) fn powered_offer(
        &self,
        node: NodeIx,
        view: &View,
        ask: &Ask,
        power: Option<&Power>,
    ) -> Option<Offer> {
        let offer = self.finder.offer(&self.cluster, view, &ask.shape)?;
        match power.filter(|p| !p.feeds(self, node, &offer_boards(&offer))) {
            Some(power) => self.lowest_power_offer(node, view, ask, power),
            None => Some(offer),
        }
    }

    /// The offer of a node with the least added power, if its rack can feed it.
    fn lowest_power_offer(&self, node: NodeIx, view: &View, ask: &Ask, power: &Power) -> Option<Offer> {
        let mut order: Vec<(i64, usize)> = (0..view.gpus().len().min(MAX_GPUS))
            .map(|index| {
                let only: Boards = std::array::from_fn(|i| i == index);
                (power.added(self, node, &only), index)
            })
            .collect();
        order.sort_unstable();
        let islands = if ask.shape.nvlink { view.islands() } else { vec![None] };
        islands.into_iter().find_map(|island| self.low_power_offer_on(node, view, ask, power, &order, island))
    }

    /// An offer on the boards with the least added power in `order`, if the rack can feed it.
    fn low_power_offer_on(
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
            let mut open_view = *view;
            open_view.map_gpus(|i, gpu| {
                let is_open = open.get(i).copied().unwrap_or(false) && island.is_none_or(|n| n == gpu.island);
                if is_open { *gpu } else { berth_placement::cluster::NO_GPU }
            });
            if let Some(offer) = self.finder.offer(&self.cluster, &open_view, &ask.shape) {
                return Some(offer).filter(|o| power.feeds(self, node, &offer_boards(o)));
            }
        }
        None
    }

    /// One candidate for each node of an ask, within the required topology and the power of racks; all or
    /// none.
    pub(super) fn gather(
        &self,
        ask: &Ask,
        candidates: Vec<Candidate>,
        power: Option<&Power>,
    ) -> Option<Vec<Candidate>> {
        let count = ask.nodes as usize;
        let mut domains: BTreeMap<Option<Arc<str>>, Vec<Candidate>> = BTreeMap::new();
        for candidate in candidates {
            if let Some(domain) = self.domain(candidate.1, ask.topology) {
                domains.entry(domain).or_default().push(candidate);
            }
        }
        // The smallest domain that suffices: larger ones stay free for larger jobs.
        let mut domains: Vec<Vec<Candidate>> = domains.into_values().filter(|d| d.len() >= count).collect();
        domains.sort_by_key(Vec::len);
        domains.into_iter().find_map(|domain| self.gather_powered(domain, count, power))
    }

    /// The cheapest candidates that racks can feed together; if too few remain, those with the least added
    /// power.
    fn gather_powered(
        &self,
        mut candidates: Vec<Candidate>,
        count: usize,
        power: Option<&Power>,
    ) -> Option<Vec<Candidate>> {
        candidates.sort_by_key(|(cost, node, _)| (*cost, *node));
        let Some(power) = power else {
            candidates.truncate(count);
            return Some(candidates);
        };
        let fed = |order: &[Candidate]| {
            let mut power = power.clone();
            let mut chosen: Vec<Candidate> = Vec::new();
            for candidate in order {
                let boards = offer_boards(&candidate.2);
                if chosen.len() < count && power.feeds(self, candidate.1, &boards) {
                    power.draw(self, candidate.1, &boards);
                    chosen.push(candidate.clone());
                }
            }
            (chosen.len() == count).then_some(chosen)
        };
        fed(&candidates).or_else(|| {
            candidates.sort_by_key(|(cost, node, offer)| {
                (power.added(self, *node, &offer_boards(offer)), *cost, *node)
            });
            fed(&candidates)
        })
    }

    /// The network domain of a node for a topology. The outer `None`: the node has no label for it, so it
    /// cannot be used.
    pub(super) fn domain(&self, node: NodeIx, topology: Topology) -> Option<Option<Arc<str>>> {
        let facts = &self.cluster.node(node)?.facts;
        match topology {
            Topology::Any => Some(None),
            Topology::SameSwitch => facts.switch.clone().map(Some),
            Topology::SameRack => facts.rack.clone().map(Some),
        }
    }

    /// The slots of chosen candidates.
    pub(super) fn node_slots(&self, ask: &Ask, chosen: &[Candidate]) -> Vec<NodeSlots> {
        let named = |(_, node, offer): &Candidate| NodeSlots {
            node: *node,
            slots: slots(&self.cluster, *node, &ask.shape, offer),
        };
        chosen.iter().map(named).collect()
    }

    /// The places for a booking in a calendar.
    pub(super) fn find_places_in(
        &self,
        calendar: &Calendar,
        ask: &Ask,
        (from, until): Span,
        now: Timestamp,
    ) -> Option<Vec<NodeSlots>> {
        let each = i64::from(ask.shape.milli(self.cluster.models()));
        let power = self.power_beside(calendar, (from, until), now);
        let all = (0..self.cluster.nodes().len()).filter_map(|n| u32::try_from(n).ok()).map(NodeIx);
        let offers = all.filter_map(|node| {
            if !calendar.may_fit(node, from, until, each, self.nodes_milli(&[node])) {
                return None;
            }
            // A held start is an obstacle like any other booking.
            let expected = if Self::expects_back(from, now) { Expected::All } else { Expected::Nobody };
            let excluded = Exclusions { expected, ..Exclusions::default() };
            let view = calendar.view(&self.cluster, node, (from, until), now, excluded)?;
            let offer = self.powered_offer(node, &view, ask, power.as_ref())?;
            Some((offer.cost, node, offer))
        });
        let chosen = self.gather(ask, offers.collect(), power.as_ref())?;
        Some(self.node_slots(ask, &chosen))
    }
}

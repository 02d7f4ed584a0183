//! Finds places: one node, or all nodes of a gang at once or none.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_types::time::Timestamp;

use super::Engine;
use crate::calendar::{But, Place};
use crate::cluster::{BookingId, NodeIx, View};
use crate::finder::slots;
use crate::request::{Ask, Topology};
use crate::scoring::Offer;

/// A node that could take a rank, and what that costs.
pub(super) type Candidate = (u64, NodeIx, Offer);

impl Engine {
    /// A node as it stands for a run from now until `until`.
    pub(super) fn view_until(
        &self,
        node: NodeIx,
        now: Timestamp,
        until: Timestamp,
        except: Option<BookingId>,
    ) -> Option<View> {
        if self.calendar.is_free(node) {
            return self.cluster.node(node).map(|n| *n.view());
        }
        let but = But { booking: except, ..But::default() };
        self.calendar.view(&self.cluster, node, (now, until), now, but)
    }

    /// Where an ask can start now and stay until `until`. `except` is the booking that is its own.
    pub(super) fn place(
        &mut self,
        ask: &Ask,
        now: Timestamp,
        until: Timestamp,
        except: Option<BookingId>,
    ) -> Option<Vec<Place>> {
        self.finder.sync(&self.cluster, &ask.shape);
        let left = self.power_now(ask, (now, until), except);
        let fits = |node: NodeIx| {
            // Without bookings and budgets the finder knows already.
            if self.calendar.is_free(node) && left.is_none() {
                return true;
            }
            let view = self.view_until(node, now, until, except);
            let offer = view.and_then(|v| self.finder.offer(&self.cluster, &v, &ask.shape));
            let fed = |offer: Offer| match left.clone() {
                Some(left) => !self.fed(left, vec![(0, node, offer)], ask, (now, until), except).is_empty(),
                None => true,
            };
            offer.is_some_and(fed)
        };
        let mut found: Vec<Candidate> = Vec::new();
        if ask.nodes == 1 {
            let node = self.finder.best(&self.cluster, &ask.shape, &fits)?;
            let view = self.view_until(node, now, until, except)?;
            found.push((0, node, self.finder.offer(&self.cluster, &view, &ask.shape)?));
        } else {
            for (cost, node) in self.finder.all(&self.cluster, &ask.shape) {
                let view = self.view_until(node, now, until, except);
                let offer = view.and_then(|v| self.finder.offer(&self.cluster, &v, &ask.shape));
                found.extend(offer.map(|offer| (cost, node, offer)));
            }
        }
        if let Some(left) = left.clone().filter(|_| ask.nodes > 1) {
            found = self.fed(left, found, ask, (now, until), except);
        }
        let chosen = self.gather(ask, found)?;
        Some(self.places(ask, &chosen))
    }

    /// As many of the candidates as the ask has nodes, near each other as it wants; all or none.
    pub(super) fn gather(&self, ask: &Ask, found: Vec<Candidate>) -> Option<Vec<Candidate>> {
        let wanted = ask.nodes as usize;
        let mut domains: BTreeMap<Option<Arc<str>>, Vec<Candidate>> = BTreeMap::new();
        for candidate in found {
            let domain = match self.domain(candidate.1, ask.topology) {
                Some(domain) => domain,
                None => continue,
            };
            domains.entry(domain).or_default().push(candidate);
        }
        // The domain that has just enough: others stay whole for those who need more.
        let best = domains.into_values().filter(|d| d.len() >= wanted).min_by_key(Vec::len);
        let mut chosen = best?;
        chosen.sort_by_key(|(cost, node, _)| (*cost, *node));
        chosen.truncate(wanted);
        Some(chosen)
    }

    /// The part of the network that a node is in. The outer `None`: it says nothing of it, so no
    /// closeness can be promised.
    fn domain(&self, node: NodeIx, topology: Topology) -> Option<Option<Arc<str>>> {
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

    /// Where an ask can start inside a booking.
    pub(super) fn place_inside(&self, ask: &Ask, id: BookingId) -> Option<Vec<Place>> {
        let booking = self.calendar.get(id)?;
        let offers = booking.places.iter().filter_map(|place| {
            let view = self.calendar.view_inside(&self.cluster, place.node, id)?;
            let offer = self.finder.offer(&self.cluster, &view, &ask.shape)?;
            Some((offer.cost, place.node, offer))
        });
        let chosen = self.gather(ask, offers.collect())?;
        Some(self.places(ask, &chosen))
    }
}

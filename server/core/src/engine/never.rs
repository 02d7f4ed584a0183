//! Requests that no node of the cloud could ever take.

use berth_types::ids::OrgId;

use super::Engine;
use super::why::{Blocker, Why};
use crate::cluster::NodeIx;
use crate::request::{Absurd, Ask, Request};
use crate::shape::Device;

impl Engine {
    /// Why no node of the cloud could ever take a request, open or not, healthy or not, whatever runs there.
    /// `None`: some could, or there is no board at all yet.
    ///
    /// # Errors
    /// No cluster at all could.
    pub fn never(&mut self, request: &Request, org: OrgId) -> Result<Option<Why>, Absurd> {
        let ask = Ask::of(request, org, &mut self.cluster)?;
        // A cloud without boards is being set up.
        if self.cluster.nodes().iter().all(|n| n.facts.gpus.is_empty()) {
            return Ok(None);
        }
        // An operator installs podman in a moment, and no boards.
        let blocker = self.why_never(&ask, &self.able(&ask)).filter(|b| !matches!(b, Blocker::Images { .. }));
        let why = |b| Why { blockers: vec![b], changes: Vec::new(), earliest: None, fits: false };
        Ok(blocker.map(why))
    }

    /// The same for an ask; `able` are the nodes that could hold one rank of it.
    pub(super) fn why_never(&self, ask: &Ask, able: &[NodeIx]) -> Option<Blocker> {
        if let Some(blocker) = self.why_unable(ask, able) {
            return Some(blocker);
        }
        if able.len() < ask.nodes as usize
            && let Some(boards) = self.in_other_mode(ask)
        {
            return Some(Blocker::Mode { boards });
        }
        let most = self.most(ask, able);
        let less = most.0 < ask.shape.count || most.1 < ask.nodes;
        less.then_some(Blocker::None { count: most.0, nodes: most.1 })
    }

    /// A demand besides boards that no node could meet, where it keeps all of them out.
    fn why_unable(&self, ask: &Ask, able: &[NodeIx]) -> Option<Blocker> {
        let count = |other: &Ask| u32::try_from(self.able(other).len()).unwrap_or(u32::MAX);
        let mut plain = *ask;
        plain.shape.images = false;
        // Too few for a job on several nodes is as good as none.
        if ask.shape.images && able.len() < ask.nodes as usize {
            let nodes = count(&plain);
            if nodes >= ask.nodes {
                return Some(Blocker::Images {
                    nodes: nodes.saturating_sub(u32::try_from(able.len()).unwrap_or(0)),
                });
            }
        }
        let mut bare = *ask;
        (bare.shape.cpu_milli, bare.shape.memory_mib) = (0, 0);
        let nodes = if able.is_empty() && bare != *ask { count(&bare) } else { 0 };
        (nodes > 0).then_some(Blocker::Host { nodes, ever: false })
    }

    /// How many boards would do if they were in the other MIG mode, where that would be enough.
    fn in_other_mode(&self, ask: &Ask) -> Option<u32> {
        if ask.shape.device == Device::Board {
            return None;
        }
        let mut boards = 0;
        let mut nodes = 0;
        for index in self.all_nodes() {
            let Some(view) = self.cluster.view_empty_in_other_mode(index) else { continue };
            if self.finder.offer(&self.cluster, &view, &ask.shape).is_some() {
                nodes += 1;
                boards += view.gpus().iter().filter(|g| ask.shape.fits_gpu(g, self.cluster.models())).count();
            }
        }
        (nodes >= ask.nodes && boards > 0).then(|| u32::try_from(boards).unwrap_or(u32::MAX))
    }

    /// The most devices a node, and nodes with as many as asked, that an empty cluster would give.
    fn most(&self, ask: &Ask, able: &[NodeIx]) -> (u32, u32) {
        let offers = able.iter().filter_map(|node| {
            let view = self.cluster.view_empty(*node)?;
            Some((0, *node, self.finder.offer(&self.cluster, &view, &ask.shape)?))
        });
        let offers: Vec<_> = offers.collect();
        if !offers.is_empty() {
            let fits = |nodes: u32| self.gather(&Ask { nodes, ..*ask }, offers.clone(), None).is_some();
            let nodes = (1..=ask.nodes).rev().find(|n| fits(*n)).unwrap_or(0);
            return (ask.shape.count, nodes);
        }
        let less = (1..ask.shape.count).rev().find(|count| {
            let mut smaller = *ask;
            smaller.shape.count = *count;
            !self.able(&smaller).is_empty()
        });
        (less.unwrap_or(0), ask.nodes)
    }
}

//! The search for the best node for a shape, by cached costs.
//!
//! The finder caches the cost of a shape on every node and recomputes it only for changed nodes. The time of
//! an answer depends on the number of changes, not of nodes. The finder must not change the cluster.

use std::collections::HashMap;

use berth_mig::Instance;

use crate::cluster::{ANYBODY, Cluster, NodeIx, Part, Slot, View};
use crate::demand::DemandModel;
use crate::pools::prefers;
use crate::scoring::{Policy, ScoredPlace, ScoringInput};
use crate::shape::{Device, Shape};

/// Nodes in a block; the least cost of each block is cached.
const BLOCK: usize = 64;
/// The largest number of shapes with cached costs; the shape unused for longest is dropped.
const MAX_SHAPES: usize = 2_048;
/// An organization with shares on at most this many nodes has no cached costs of its own.
const FEW_SHARED_NODES: usize = 64;
const NO_FIT: u64 = u64::MAX;

#[derive(Debug, Clone, Default)]
struct Costs {
    /// The change of the cluster up to which the costs are right.
    changes: u64,
    demand: u32,
    last_use: u64,
    nodes: Vec<u64>,
    blocks: Vec<u64>,
    dirty: Vec<u32>,
    /// The first node with a cost by an older demand, which is good enough for a while.
    stale: usize,
}

/// Costs by an older demand that one call recomputes.
const REFRESHED: usize = 128;

impl Costs {
    fn recompute_block(&mut self, block: usize) {
        let nodes = self.nodes.get(block * BLOCK..).unwrap_or(&[]);
        let least = nodes.iter().take(BLOCK).copied().min().unwrap_or(NO_FIT);
        if let Some(slot) = self.blocks.get_mut(block) {
            *slot = least;
        }
    }

    fn best(&self, allowed: &dyn Fn(NodeIx) -> bool) -> Option<NodeIx> {
        let mut found = (NO_FIT, 0);
        for (block, least) in self.blocks.iter().enumerate() {
            if *least >= found.0 {
                continue;
            }
            let nodes = self.nodes.get(block * BLOCK..).unwrap_or(&[]).iter().take(BLOCK);
            for (index, cost) in nodes.enumerate() {
                let node = u32::try_from(block * BLOCK + index).unwrap_or(u32::MAX);
                if *cost < found.0 && allowed(NodeIx(node)) {
                    found = (*cost, node);
                }
            }
        }
        (found.0 != NO_FIT).then_some(NodeIx(found.1))
    }
}

/// The finder of one policy, with its caches.
#[derive(Debug, Clone)]
pub struct Finder<P> {
    policy: P,
    pub demand: DemandModel,
    costs: HashMap<Shape, Costs>,
    uses: u64,
}

impl<P: Policy> Finder<P> {
    pub fn new(policy: P) -> Self {
        Self { policy, demand: DemandModel::default(), costs: HashMap::new(), uses: 0 }
    }

    pub fn policy(&self) -> &P {
        &self.policy
    }

    /// Counts a request, and rebuilds the demand model after enough requests.
    pub fn observe(&mut self, shape: &Shape, cluster: &Cluster) {
        self.demand.observe(shape);
        self.demand.refresh(cluster, self.policy.horizon());
    }

    /// The best allowed node, as of the last [`Finder::sync`] of this shape.
    pub fn best(&self, cluster: &Cluster, shape: &Shape, allowed: &dyn Fn(NodeIx) -> bool) -> Option<NodeIx> {
        let costs = self.costs.get(&cache_key(cluster, shape))?;
        let best = costs.best(allowed);
        let own = self.own_shared(cluster, shape).filter(|(_, node)| allowed(*node)).min();
        match (best.and_then(|n| Some((*costs.nodes.get(n.0 as usize)?, n))), own) {
            (Some(a), Some(b)) => Some(a.min(b).1),
            (a, b) => a.or(b).map(|(_, node)| node),
        }
    }

    /// The shape under which the costs of a shape are cached.
    pub fn cache_key(&self, cluster: &Cluster, shape: &Shape) -> Shape {
        cache_key(cluster, shape)
    }

    /// Returns true if a share fits on some board with shares of its organization.
    pub fn fits_beside_own(&self, cluster: &Cluster, shape: &Shape) -> bool {
        self.own_shared(cluster, shape).next().is_some()
    }

    /// The nodes on which a share fits beside shares of its organization, with their costs. The cached costs
    /// omit these nodes because they hold for all organizations.
    fn own_shared<'a>(
        &'a self,
        cluster: &'a Cluster,
        shape: &'a Shape,
    ) -> impl Iterator<Item = (u64, NodeIx)> + 'a {
        let sharer = if let Device::Share { sharer, .. } = shape.device { sharer } else { 0 };
        let cx = ScoringInput { models: cluster.models(), demand: &self.demand };
        let cost = move |node: NodeIx| {
            let view = cluster.node(node)?.view();
            let fits = shape.may_fit(view, cx.models);
            let cost = fits.then(|| self.policy.cost(view, shape, &cx)).flatten()?;
            Some((with_own_first(view, shape, cost), node))
        };
        let searched =
            if cluster.shared_node_count(sharer) <= FEW_SHARED_NODES { FEW_SHARED_NODES } else { 0 };
        cluster.shared_by(sharer).take(searched).filter_map(cost)
    }

    /// Every node on which the shape fits, with its cost, as of the last [`Finder::sync`] of this shape.
    pub fn all(&self, cluster: &Cluster, shape: &Shape) -> Vec<(u64, NodeIx)> {
        let Some(costs) = self.costs.get(&cache_key(cluster, shape)) else { return Vec::new() };
        let fits = costs.nodes.iter().enumerate().filter(|(_, cost)| **cost != NO_FIT);
        let mut all: Vec<(u64, NodeIx)> =
            fits.filter_map(|(index, cost)| Some((*cost, NodeIx(u32::try_from(index).ok()?)))).collect();
        all.extend(self.own_shared(cluster, shape));
        all.sort_unstable_by_key(|(cost, node)| (*node, *cost));
        all.dedup_by_key(|(_, node)| *node);
        all
    }

    /// The offer of the policy on a view of a node.
    pub fn offer(&self, cluster: &Cluster, view: &View, shape: &Shape) -> Option<ScoredPlace> {
        let cx = ScoringInput { models: cluster.models(), demand: &self.demand };
        let place = shape.may_fit(view, cluster.models()).then(|| self.policy.offer(view, shape, &cx));
        let place = place.flatten()?;
        Some(ScoredPlace { cost: with_own_first(view, shape, place.cost), ..place })
    }

    /// Updates the cached costs of a shape.
    pub fn sync(&mut self, cluster: &Cluster, shape: &Shape) {
        let shape = &cache_key(cluster, shape);
        self.uses += 1;
        if !self.costs.contains_key(shape)
            && self.costs.len() >= MAX_SHAPES
            && let Some(oldest) = self.costs.iter().min_by_key(|(_, c)| c.last_use).map(|(s, _)| *s)
        {
            self.costs.remove(&oldest);
        }
        let Self { policy, demand, costs, uses } = self;
        let cx = ScoringInput { models: cluster.models(), demand };
        let costs = costs.entry(*shape).or_default();
        costs.last_use = *uses;
        let cost_on = |view: &View| {
            let fits = shape.may_fit(view, cx.models);
            let cost = fits.then(|| policy.cost(view, shape, &cx)).flatten();
            cost.map_or(NO_FIT, |cost| with_own_first(view, shape, cost))
        };
        let count = cluster.nodes().len();
        let changed = cluster
            .changed_since(costs.changes)
            .filter(|changed| costs.nodes.len() == count && changed.len() < count);
        match changed {
            None => {
                costs.nodes = cluster.nodes().iter().map(|n| cost_on(n.view())).collect();
                costs.blocks = vec![NO_FIT; count.div_ceil(BLOCK)];
                (0..costs.blocks.len()).for_each(|b| costs.recompute_block(b));
                (costs.demand, costs.stale) = (demand.version(), count);
            }
            Some(changed) => {
                let mut dirty = std::mem::take(&mut costs.dirty);
                if costs.demand != demand.version() {
                    (costs.demand, costs.stale) = (demand.version(), 0);
                }
                let refreshed = costs.stale..(costs.stale + REFRESHED).min(count);
                costs.stale = refreshed.end;
                for at in refreshed {
                    let view = cluster.nodes().get(at).map(crate::cluster::Node::view);
                    let cost = view.map_or(NO_FIT, cost_on);
                    if let Some(slot) = costs.nodes.get_mut(at).filter(|slot| **slot != cost) {
                        *slot = cost;
                        dirty.push(u32::try_from(at / BLOCK).unwrap_or(0));
                    }
                }
                dirty.dedup();
                for node in changed {
                    let at = node.0 as usize;
                    let cost = cluster.node(*node).map_or(NO_FIT, |n| cost_on(n.view()));
                    let Some(slot) = costs.nodes.get_mut(at) else { continue };
                    if *slot != cost {
                        let before = std::mem::replace(slot, cost);
                        let block = at / BLOCK;
                        match costs.blocks.get_mut(block) {
                            Some(least) if cost <= *least => *least = cost,
                            Some(least) if before == *least => dirty.push(u32::try_from(block).unwrap_or(0)),
                            _ => {}
                        }
                    }
                }
                dirty.drain(..).for_each(|b| costs.recompute_block(b as usize));
                costs.dirty = dirty;
            }
        }
        costs.changes = cluster.changes();
    }
}

/// The cost with the dedicated nodes of its organization before all other nodes, and then the nodes for its work before
/// those that it shares with other work.
const fn with_own_first(view: &View, shape: &Shape, cost: u64) -> u64 {
    let cost = if prefers(shape.work, view.pool) { cost } else { cost | 1 << 63 };
    match (shape.tenancy.org, view.dedicated_to) {
        (0, _) => cost,
        (_, 0) => cost >> 1 | 1 << 63,
        _ => cost >> 1,
    }
}

/// The shape under which costs are cached: one shape for all organizations with few shared boards.
fn cache_key(cluster: &Cluster, shape: &Shape) -> Shape {
    match shape.device {
        Device::Share { milli, sharer }
            if sharer != ANYBODY && cluster.shared_node_count(sharer) <= FEW_SHARED_NODES =>
        {
            Shape { device: Device::Share { milli, sharer: 0 }, ..*shape }
        }
        _ => *shape,
    }
}

/// The slots of an offer.
pub fn slots(cluster: &Cluster, node: NodeIx, shape: &Shape, offer: &ScoredPlace) -> Vec<Slot> {
    let Some(node) = cluster.node(node) else { return Vec::new() };
    let named = |pick: &crate::scoring::Pick| {
        let gpu = node.facts.gpus.get(usize::from(pick.gpu))?;
        let board = node.model(usize::from(pick.gpu), cluster.models()).and_then(|m| m.mig());
        let part = match shape.device {
            Device::Share { milli, .. } => Part::Share(milli),
            Device::Slice { profile } => Part::Slice(Instance {
                profile_id: board?.profiles.get(usize::from(profile))?.id,
                start: u32::from(pick.start),
            }),
            Device::Board => Part::Whole,
        };
        Some(Slot { gpu: gpu.uuid.clone(), part })
    };
    offer.picks.iter().filter_map(named).collect()
}

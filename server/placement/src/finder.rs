//! The search for the best node for a shape, by cached costs.
//!
//! The finder caches the cost of a shape on every node and recomputes it only for changed nodes. The time of
//! an answer depends on the number of changes, not of nodes. All costs of a shape come from the same tables of
//! the demand model: after a change of the tables the finder computes the new costs beside the old ones, some
//! nodes at each call, and uses them once they are complete. The finder must not change the cluster.

use std::collections::HashMap;
use std::sync::Arc;

use berth_mig::Instance;

use crate::cluster::{ANYBODY, Cluster, NodeIx, Part, Slot, View};
use crate::demand::{DemandModel, DemandTables};
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

/// The costs of a shape on the first nodes of the cluster, all by the same tables.
#[derive(Debug, Clone, Default)]
struct NodeCosts {
    demand: Arc<DemandTables>,
    nodes: Vec<u64>,
}

#[derive(Debug, Clone, Default)]
struct Costs {
    /// The change of the cluster up to which the costs are right.
    changes: u64,
    last_use: u64,
    current: NodeCosts,
    blocks: Vec<u64>,
    dirty: Vec<u32>,
    /// The costs by newer tables, until they are known for all nodes.
    next: Option<NodeCosts>,
}

/// Costs by newer tables that one call computes.
const REFRESHED: usize = 512;

impl Costs {
    fn recompute_block(&mut self, block: usize) {
        let nodes = self.current.nodes.get(block * BLOCK..).unwrap_or(&[]);
        let least = nodes.iter().take(BLOCK).copied().min().unwrap_or(NO_FIT);
        if let Some(slot) = self.blocks.get_mut(block) {
            *slot = least;
        }
    }

    fn recompute_all_blocks(&mut self) {
        self.blocks = vec![NO_FIT; self.current.nodes.len().div_ceil(BLOCK)];
        (0..self.blocks.len()).for_each(|b| self.recompute_block(b));
    }

    /// Updates the cost on a changed node.
    fn update(&mut self, at: usize, cost: u64) {
        let Some(slot) = self.current.nodes.get_mut(at).filter(|slot| **slot != cost) else { return };
        let before = std::mem::replace(slot, cost);
        let block = at / BLOCK;
        match self.blocks.get_mut(block) {
            Some(least) if cost <= *least => *least = cost,
            Some(least) if before == *least => self.dirty.push(u32::try_from(block).unwrap_or(0)),
            _ => {}
        }
    }

    /// Computes more of the costs by newer tables, and uses them once they are complete. A computation that has begun
    /// is finished first, so tables that change often do not keep old costs in use.
    fn refresh(
        &mut self,
        newest: &Arc<DemandTables>,
        count: usize,
        cost_at: impl Fn(usize, &DemandTables) -> u64,
    ) {
        if self.next.is_none() && self.current.demand.version() == newest.version() {
            return;
        }
        let mut next = self
            .next
            .take()
            .unwrap_or_else(|| NodeCosts { demand: Arc::clone(newest), nodes: Vec::with_capacity(count) });
        let known = next.nodes.len();
        next.nodes.extend((known..count.min(known + REFRESHED)).map(|at| cost_at(at, &next.demand)));
        if next.nodes.len() < count {
            self.next = Some(next);
            return;
        }
        self.current = next;
        self.dirty.clear();
        self.recompute_all_blocks();
    }

    fn best(&self, allowed: &dyn Fn(NodeIx) -> bool) -> Option<NodeIx> {
        let mut found = (NO_FIT, 0);
        for (block, least) in self.blocks.iter().enumerate() {
            if *least >= found.0 {
                continue;
            }
            let nodes = self.current.nodes.get(block * BLOCK..).unwrap_or(&[]).iter().take(BLOCK);
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
        let demand = &costs.current.demand;
        let own = self.own_shared(cluster, shape, demand).filter(|(_, node)| allowed(*node)).min();
        match (best.and_then(|n| Some((*costs.current.nodes.get(n.0 as usize)?, n))), own) {
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
        self.own_shared(cluster, shape, self.demand.tables()).next().is_some()
    }

    /// The nodes on which a share fits beside shares of its organization, with their costs. The cached costs
    /// omit these nodes because they hold for all organizations.
    fn own_shared<'a>(
        &'a self,
        cluster: &'a Cluster,
        shape: &'a Shape,
        demand: &'a DemandTables,
    ) -> impl Iterator<Item = (u64, NodeIx)> + 'a {
        let sharer = if let Device::Share { sharer, .. } = shape.device { sharer } else { 0 };
        let cx = ScoringInput { models: cluster.models(), demand };
        let cost = move |node: NodeIx| {
            let cost = cost_on(&self.policy, cluster.node(node)?.view(), shape, &cx);
            (cost != NO_FIT).then_some((cost, node))
        };
        let searched =
            if cluster.shared_node_count(sharer) <= FEW_SHARED_NODES { FEW_SHARED_NODES } else { 0 };
        cluster.shared_by(sharer).take(searched).filter_map(cost)
    }

    /// Every node on which the shape fits, with its cost, as of the last [`Finder::sync`] of this shape.
    pub fn all(&self, cluster: &Cluster, shape: &Shape) -> Vec<(u64, NodeIx)> {
        let Some(costs) = self.costs.get(&cache_key(cluster, shape)) else { return Vec::new() };
        let fits = costs.current.nodes.iter().enumerate().filter(|(_, cost)| **cost != NO_FIT);
        let mut all: Vec<(u64, NodeIx)> =
            fits.filter_map(|(index, cost)| Some((*cost, NodeIx(u32::try_from(index).ok()?)))).collect();
        all.extend(self.own_shared(cluster, shape, &costs.current.demand));
        all.sort_unstable_by_key(|(cost, node)| (*node, *cost));
        all.dedup_by_key(|(_, node)| *node);
        all
    }

    /// The offer of the policy on a view of a node.
    pub fn offer(&self, cluster: &Cluster, view: &View, shape: &Shape) -> Option<ScoredPlace> {
        let cx = ScoringInput { models: cluster.models(), demand: self.demand.tables() };
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
        let costs = costs.entry(*shape).or_default();
        costs.last_use = *uses;
        let cost_at = |at: usize, demand: &DemandTables| {
            let cx = ScoringInput { models: cluster.models(), demand };
            cluster.nodes().get(at).map_or(NO_FIT, |n| cost_on(policy, n.view(), shape, &cx))
        };
        let count = cluster.nodes().len();
        let changed = cluster
            .changed_since(costs.changes)
            .filter(|changed| costs.current.nodes.len() == count && changed.len() < count);
        let newest = demand.tables();
        match changed {
            None => {
                let nodes = (0..count).map(|at| cost_at(at, newest)).collect();
                costs.current = NodeCosts { demand: Arc::clone(newest), nodes };
                costs.next = None;
                costs.recompute_all_blocks();
            }
            Some(changed) => {
                for node in changed {
                    let at = node.0 as usize;
                    let cost = cost_at(at, &costs.current.demand);
                    costs.update(at, cost);
                    if let Some(next) = &mut costs.next
                        && let Some(slot) = next.nodes.get_mut(at)
                    {
                        *slot = cost_at(at, &next.demand);
                    }
                }
                costs.refresh(newest, count, cost_at);
                let mut dirty = std::mem::take(&mut costs.dirty);
                dirty.drain(..).for_each(|b| costs.recompute_block(b as usize));
                costs.dirty = dirty;
            }
        }
        costs.changes = cluster.changes();
    }
}

/// The cost of a shape on a node.
fn cost_on<P: Policy>(policy: &P, view: &View, shape: &Shape, cx: &ScoringInput<'_>) -> u64 {
    let fits = shape.may_fit(view, cx.models);
    let cost = fits.then(|| policy.cost(view, shape, cx)).flatten();
    cost.map_or(NO_FIT, |cost| with_own_first(view, shape, cost))
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

#[cfg(test)]
mod tests;

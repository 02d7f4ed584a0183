//! Finds the best node for a shape without looking at every node again.
//!
//! For each shape the cost on every node is kept, and only nodes that changed since are asked again,
//! so an answer costs what changed. Must not change the cluster.

use std::collections::HashMap;

use berth_mig::Instance;

use crate::cluster::{Cluster, NodeIx, Part, Slot, View};
use crate::demand::DemandModel;
use crate::scoring::{Context, Offer, Policy};
use crate::shape::{ANYBODY, Device, Shape};

/// Nodes that are compared at once.
const BLOCK: usize = 64;
/// Shapes whose costs are kept; the one asked for longest ago goes first.
const SHAPES: usize = 2_048;
/// An organization that shares boards on no more nodes has no costs of its own.
const FEW: usize = 64;
const NOT_HERE: u64 = u64::MAX;

#[derive(Debug, Clone, Default)]
struct Costs {
    /// Up to this change of the cluster they are right.
    changes: u64,
    demand: u32,
    asked: u64,
    nodes: Vec<u64>,
    blocks: Vec<u64>,
    dirty: Vec<u32>,
    /// From this node on costs are of an older demand, which is good enough for a while.
    stale: usize,
}

/// As many costs of an older demand are brought up to date at once.
const RENEWED: usize = 128;

impl Costs {
    fn block(&mut self, block: usize) {
        let nodes = self.nodes.get(block * BLOCK..).unwrap_or(&[]);
        let least = nodes.iter().take(BLOCK).copied().min().unwrap_or(NOT_HERE);
        if let Some(slot) = self.blocks.get_mut(block) {
            *slot = least;
        }
    }

    fn best(&self, allowed: &dyn Fn(NodeIx) -> bool) -> Option<NodeIx> {
        let mut found = (NOT_HERE, 0);
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
        (found.0 != NOT_HERE).then_some(NodeIx(found.1))
    }
}

/// The caches of one policy.
#[derive(Debug, Clone)]
pub struct Finder<P> {
    policy: P,
    pub demand: DemandModel,
    costs: HashMap<Shape, Costs>,
    asked: u64,
}

impl<P: Policy> Finder<P> {
    pub fn new(policy: P) -> Self {
        Self { policy, demand: DemandModel::default(), costs: HashMap::new(), asked: 0 }
    }

    pub fn policy(&self) -> &P {
        &self.policy
    }

    /// Takes note of a request, and now and then of what all of them mean.
    pub fn observe(&mut self, shape: &Shape, cluster: &Cluster) {
        self.demand.observe(shape);
        self.demand.refresh(cluster, self.policy.horizon());
    }

    /// The best node that is allowed, as of the last [`Finder::sync`] of this shape.
    pub fn best(&self, cluster: &Cluster, shape: &Shape, allowed: &dyn Fn(NodeIx) -> bool) -> Option<NodeIx> {
        let costs = self.costs.get(&kept(cluster, shape))?;
        let best = costs.best(allowed);
        let own = self.own(cluster, shape).filter(|(_, node)| allowed(*node)).min();
        match (best.and_then(|n| Some((*costs.nodes.get(n.0 as usize)?, n))), own) {
            (Some(a), Some(b)) => Some(a.min(b).1),
            (a, b) => a.or(b).map(|(_, node)| node),
        }
    }

    /// The shape that this one's costs are kept under.
    pub fn kept(&self, cluster: &Cluster, shape: &Shape) -> Shape {
        kept(cluster, shape)
    }

    /// Whether a share fits on some board that its organization shares already.
    pub fn fits_own(&self, cluster: &Cluster, shape: &Shape) -> bool {
        self.own(cluster, shape).next().is_some()
    }

    /// Where a share fits beside others of its organization. The kept costs do not know these, since
    /// they are kept for all organizations at once.
    fn own<'a>(&'a self, cluster: &'a Cluster, shape: &'a Shape) -> impl Iterator<Item = (u64, NodeIx)> + 'a {
        let sharer = if let Device::Share { sharer, .. } = shape.device { sharer } else { 0 };
        let cx = Context { models: cluster.models(), demand: &self.demand };
        let cost = move |node: NodeIx| {
            let view = cluster.node(node)?.view();
            let fits = shape.may_fit(view, cx.models);
            Some((fits.then(|| self.policy.cost(view, shape, &cx)).flatten()?, node))
        };
        let most = if cluster.shares(sharer) <= FEW { FEW } else { 0 };
        cluster.shared_by(sharer).take(most).filter_map(cost)
    }

    /// Every node on which the shape fits, with its cost, as of the last [`Finder::sync`] of this shape.
    pub fn all(&self, cluster: &Cluster, shape: &Shape) -> Vec<(u64, NodeIx)> {
        let Some(costs) = self.costs.get(&kept(cluster, shape)) else { return Vec::new() };
        let fits = costs.nodes.iter().enumerate().filter(|(_, cost)| **cost != NOT_HERE);
        let mut all: Vec<(u64, NodeIx)> =
            fits.filter_map(|(index, cost)| Some((*cost, NodeIx(u32::try_from(index).ok()?)))).collect();
        all.extend(self.own(cluster, shape));
        all.sort_unstable_by_key(|(cost, node)| (*node, *cost));
        all.dedup_by_key(|(_, node)| *node);
        all
    }

    /// What the policy offers on a view of a node.
    pub fn offer(&self, cluster: &Cluster, view: &View, shape: &Shape) -> Option<Offer> {
        let cx = Context { models: cluster.models(), demand: &self.demand };
        if shape.may_fit(view, cluster.models()) { self.policy.offer(view, shape, &cx) } else { None }
    }

    /// Brings what is known of a shape up to date.
    pub fn sync(&mut self, cluster: &Cluster, shape: &Shape) {
        let shape = &kept(cluster, shape);
        self.asked += 1;
        if !self.costs.contains_key(shape)
            && self.costs.len() >= SHAPES
            && let Some(oldest) = self.costs.iter().min_by_key(|(_, c)| c.asked).map(|(s, _)| *s)
        {
            self.costs.remove(&oldest);
        }
        let Self { policy, demand, costs, asked } = self;
        let cx = Context { models: cluster.models(), demand };
        let costs = costs.entry(*shape).or_default();
        costs.asked = *asked;
        let ask = |view: &View| {
            let fits = shape.may_fit(view, cx.models);
            fits.then(|| policy.cost(view, shape, &cx)).flatten().unwrap_or(NOT_HERE)
        };
        let count = cluster.nodes().len();
        let changed = cluster
            .changed_since(costs.changes)
            .filter(|changed| costs.nodes.len() == count && changed.len() < count);
        match changed {
            None => {
                costs.nodes = cluster.nodes().iter().map(|n| ask(n.view())).collect();
                costs.blocks = vec![NOT_HERE; count.div_ceil(BLOCK)];
                (0..costs.blocks.len()).for_each(|b| costs.block(b));
                (costs.demand, costs.stale) = (demand.version(), count);
            }
            Some(changed) => {
                let mut dirty = std::mem::take(&mut costs.dirty);
                if costs.demand != demand.version() {
                    (costs.demand, costs.stale) = (demand.version(), 0);
                }
                let renewed = costs.stale..(costs.stale + RENEWED).min(count);
                costs.stale = renewed.end;
                for at in renewed {
                    let view = cluster.nodes().get(at).map(crate::cluster::Node::view);
                    let cost = view.map_or(NOT_HERE, ask);
                    if let Some(slot) = costs.nodes.get_mut(at).filter(|slot| **slot != cost) {
                        *slot = cost;
                        dirty.push(u32::try_from(at / BLOCK).unwrap_or(0));
                    }
                }
                dirty.dedup();
                for node in changed {
                    let at = node.0 as usize;
                    let cost = cluster.node(*node).map_or(NOT_HERE, |n| ask(n.view()));
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
                dirty.drain(..).for_each(|b| costs.block(b as usize));
                costs.dirty = dirty;
            }
        }
        costs.changes = cluster.changes();
    }
}

/// The shape that costs are kept for: the same for all organizations that share few boards.
fn kept(cluster: &Cluster, shape: &Shape) -> Shape {
    match shape.device {
        Device::Share { milli, sharer } if sharer != ANYBODY && cluster.shares(sharer) <= FEW => {
            Shape { device: Device::Share { milli, sharer: 0 }, ..*shape }
        }
        _ => *shape,
    }
}

/// The devices of an offer by name.
pub fn slots(cluster: &Cluster, node: NodeIx, shape: &Shape, offer: &Offer) -> Vec<Slot> {
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
            Device::Board => match board.filter(|b| gpu.mig_enabled && !b.live_toggle) {
                // A board whose mode only a reset changes is lent whole as its largest instance.
                Some(board) => {
                    let full = board.full_profile()?;
                    Part::Slice(Instance { profile_id: full.id, start: *full.starts.first()? })
                }
                None => Part::Whole,
            },
        };
        Some(Slot { gpu: gpu.uuid.clone(), part })
    };
    offer.picks.iter().filter_map(named).collect()
}

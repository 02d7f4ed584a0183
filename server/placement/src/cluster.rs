//! The cluster: nodes, their boards, and the ranks that use them.
//!
//! Facts have names (node ids, board UUIDs) and may come in any order and any number of times. Each fact is a
//! complete state, so a repeated fact changes nothing. The scorers read the dense [`View`] of a node, which
//! is derived again at each change of the node. Must not decide anything.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use berth_mig::{Board, Instance, boards};
use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::node_pools::NodePool;
use berth_types::time::Timestamp;
use uuid::Uuid;

use crate::networks::NodeNetworks;

mod dedicated;
mod policies;
mod pools;
mod storage;
mod view;

use dedicated::DedicatedNodes;
pub use dedicated::{group_milli, may_use, set_own_only, tenancy};
pub use policies::{network_need, set_egress_policy};
use pools::PooledNodes;
pub use pools::{has_pools, present_work};
use storage::StorageList;
pub use storage::{missing_storage, storage_bits};
pub use view::{GpuView, View};
pub use view::{NO_GPU, occupy};

/// Number of usable boards of one node; further boards are ignored.
pub const MAX_GPUS: usize = 16;
/// A whole board in thousandths.
pub const WHOLE_MILLI: u16 = 1_000;

/// The index of a node in the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeIx(pub u32);

/// The index of a board model in the cluster's list.
pub type ModelIx = u8;

/// The sharer of a share for any organization: it fits where the share of some organization would fit.
pub const ANYBODY: u16 = u16::MAX;

/// A set of board models, as bits of [`ModelIx`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Models(pub u64);

impl Models {
    pub const ANY: Self = Self(u64::MAX);

    pub fn only(model: ModelIx) -> Self {
        Self(1u64.checked_shl(u32::from(model)).unwrap_or(0))
    }

    pub fn has(self, model: ModelIx) -> bool {
        self.0 & Self::only(model).0 != 0
    }

    /// The model of a set with exactly one.
    pub fn single(self) -> Option<ModelIx> {
        if self.0.count_ones() == 1 { ModelIx::try_from(self.0.trailing_zeros()).ok() } else { None }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuFacts {
    pub uuid: Arc<str>,
    pub model: Arc<str>,
    pub mig_enabled: bool,
    /// True if the worker reports the board and it is not in quarantine.
    pub healthy: bool,
    /// The NVLink island: boards with equal numbers are connected.
    pub island: u8,
    /// Power limit of the driver in watts, if reported.
    pub limit_watts: Option<i64>,
    /// MIG instances on the board that this portal did not create.
    pub foreign: Vec<Instance>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    pub id: NodeId,
    /// True if the node accepts new work: its worker is connected and it is not cordoned.
    pub open: bool,
    /// True if the worker is not connected and the node is not cordoned. The worker is expected to return.
    pub away: bool,
    /// True if the worker disconnected a moment ago and is expected back. Held starts count on the node.
    pub awaited: bool,
    /// True if the node is lost: the attempts that hold its devices have ended.
    pub lost: bool,
    /// The time at which a drain stops the runs on the node.
    pub drains_by: Option<Timestamp>,
    /// True if the node can run images.
    pub images: bool,
    /// The number of the node's boards if it has an active RDMA port; 0 without one.
    pub rdma_boards: u32,
    /// The networks that the node gives to jobs.
    pub networks: NodeNetworks,
    /// The storage classes that the worker of the node announces.
    pub storage: Vec<Arc<str>>,
    pub cpu_milli: i64,
    pub memory_mib: i64,
    pub switch: Option<Arc<str>>,
    pub rack: Option<Arc<str>>,
    /// The only organization whose work the node takes.
    pub dedicated_to: Option<OrgId>,
    /// The work that the node is for.
    pub pool: NodePool,
    pub gpus: Vec<GpuFacts>,
}

/// The part of a board that is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    Whole,
    Slice(Instance),
    /// Thousandths of a board that one organization shares among its jobs.
    Share(u16),
}

/// A device: a board or a part of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot {
    pub gpu: Arc<str>,
    pub part: Part,
}

/// The id of a booking in the calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BookingId(pub Uuid);

/// The attempt of a job that uses devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    pub job: JobId,
    pub attempt: u32,
}

/// The devices and resources of an attempt on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rank {
    pub owner: Owner,
    pub org: OrgId,
    pub cpu_milli: i64,
    pub memory_mib: i64,
    pub slots: Vec<Slot>,
    /// The latest end of the attempt; `None` if unknown.
    pub ends_by: Option<Timestamp>,
    /// The reservation of the job, if it has one.
    pub inside: Option<BookingId>,
}

/// A board model of a node or of a request.
#[derive(Debug, Clone)]
pub struct Model {
    pub name: Arc<str>,
    /// The index in `berth_mig::boards`; `None` for a model without MIG.
    pub board: Option<usize>,
}

impl Model {
    pub fn mig(&self) -> Option<&'static Board> {
        boards().get(self.board?)
    }
}

#[derive(Debug, Clone)]
pub struct Node {
    pub facts: NodeFacts,
    pub ranks: Vec<Rank>,
    models: Vec<ModelIx>,
    /// Its storage classes that some request has named, as bits.
    storage: u64,
    view: View,
}

impl Node {
    /// The runs on the node. Those of a lost node have ended, although they hold their devices until its return.
    pub fn runs(&self) -> &[Rank] {
        if self.facts.lost { &[] } else { &self.ranks }
    }

    /// A copy of the node with a connected worker.
    pub fn opened(&self) -> Self {
        let facts = NodeFacts { open: true, ..self.facts.clone() };
        Self { facts, ..self.clone() }
    }

    pub fn view(&self) -> &View {
        &self.view
    }

    pub fn gpu_index(&self, uuid: &Arc<str>) -> Option<usize> {
        let mut gpus = self.facts.gpus.iter().take(MAX_GPUS);
        gpus.position(|g| Arc::ptr_eq(&g.uuid, uuid) || g.uuid == *uuid)
    }

    /// The index of a board's model in the cluster's list; `ModelIx::MAX` for an unknown model.
    pub fn model_ix(&self, gpu: usize) -> ModelIx {
        self.models.get(gpu).copied().unwrap_or(ModelIx::MAX)
    }

    /// The model of a board. `gpu` is the index of the board on this node.
    pub fn model<'a>(&self, gpu: usize, models: &'a [Model]) -> Option<&'a Model> {
        models.get(usize::from(*self.models.get(gpu)?))
    }

    /// Subtracts a rank from the view. Returns false, and leaves the view unchanged, if a device of the rank
    /// is not free.
    fn add(&mut self, rank: &Rank, models: &[Model], sharer: u16) -> bool {
        let mut view = self.view;
        view.cpu_milli -= rank.cpu_milli;
        view.memory_mib -= rank.memory_mib;
        for slot in &rank.slots {
            let Some(index) = self.gpu_index(&slot.gpu) else { continue };
            let board = self.model(index, models).and_then(|m| m.board);
            let Some(gpu) = view.gpu_mut(index) else { continue };
            if !occupy(gpu, board, slot.part, sharer) {
                return false;
            }
        }
        self.view = view;
        true
    }
}

#[derive(Debug, Clone, Default)]
pub struct Cluster {
    nodes: Vec<Node>,
    by_id: HashMap<NodeId, NodeIx>,
    models: Vec<Model>,
    orgs: HashMap<OrgId, u16>,
    offerings: HashMap<Arc<str>, u16>,
    storage: StorageList,
    dedicated: DedicatedNodes,
    pooled: PooledNodes,
    /// The organizations whose egress policy differs from the default one.
    egress_policies: BTreeSet<OrgId>,
    /// For each organization, the nodes on which it shares boards.
    shared: HashMap<u16, BTreeSet<NodeIx>>,
    /// The nodes of the changes since the change number `log_start`, in order.
    log: Vec<NodeIx>,
    log_start: u64,
    /// Number of changes of nodes' facts.
    equipment_version: u64,
}

/// The view of a node as if it were open, not set aside, healthy and empty, after a change of its boards.
fn emptied(cluster: &Cluster, index: NodeIx, change: impl Fn(&mut GpuFacts)) -> Option<View> {
    let mut node = cluster.node(index)?.clone();
    node.facts.open = true;
    node.facts.networks.aside = false;
    for gpu in &mut node.facts.gpus {
        gpu.healthy = true;
        gpu.foreign.clear();
        change(gpu);
    }
    Some(view::derive(&node, &cluster.models, &cluster.orgs, |_| false))
}

impl Cluster {
    /// A number that grows at each change of a node's facts.
    pub fn equipment_version(&self) -> u64 {
        self.equipment_version
    }

    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub fn node(&self, index: NodeIx) -> Option<&Node> {
        self.nodes.get(index.0 as usize)
    }

    pub fn find_node(&self, id: NodeId) -> Option<NodeIx> {
        self.by_id.get(&id).copied()
    }

    pub fn models(&self) -> &[Model] {
        &self.models
    }

    /// The number of the next change.
    pub fn changes(&self) -> u64 {
        self.log_start + self.log.len() as u64
    }

    /// The nodes that changed since a change number; `None` if the log does not reach back to it.
    pub fn changed_since(&self, number: u64) -> Option<&[NodeIx]> {
        self.log.get(usize::try_from(number.checked_sub(self.log_start)?).ok()?..)
    }

    /// The index of a model, which is added if it is new. `None` if the set of models is full.
    pub fn model(&mut self, name: &str) -> Option<ModelIx> {
        if let Some(known) = self.find_model(name) {
            return Some(known);
        }
        let index = u8::try_from(self.models.len()).ok().filter(|i| *i < 64)?;
        let board = boards().iter().position(|b| b.model == name);
        self.models.push(Model { name: name.into(), board });
        Some(index)
    }

    pub fn find_model(&self, name: &str) -> Option<ModelIx> {
        self.models.iter().position(|m| &*m.name == name).and_then(|i| u8::try_from(i).ok())
    }

    /// The index of an organization, counted from one. A new organization is added.
    pub fn org(&mut self, org: OrgId) -> u16 {
        let next = u16::try_from(self.orgs.len() + 1).unwrap_or(u16::MAX);
        *self.orgs.entry(org).or_insert(next)
    }

    /// The index of an offering, counted from one; 0 without a name. A new offering is added.
    pub fn offering(&mut self, name: Option<&Arc<str>>) -> u16 {
        let Some(name) = name else { return 0 };
        if let Some(known) = self.offerings.get(name) {
            return *known;
        }
        let next = u16::try_from(self.offerings.len() + 1).unwrap_or(u16::MAX);
        self.offerings.insert(name.clone(), next);
        next
    }

    /// The name of an offering with this index.
    pub fn offering_name(&self, index: u16) -> Option<&Arc<str>> {
        self.offerings.iter().find(|(_, i)| **i == index).map(|(name, _)| name)
    }

    /// The nodes on which an organization shares boards.
    pub fn shared_by(&self, sharer: u16) -> impl Iterator<Item = NodeIx> {
        self.shared.get(&sharer).into_iter().flatten().copied()
    }

    /// The number of nodes on which an organization shares boards.
    pub fn shared_node_count(&self, sharer: u16) -> usize {
        self.shared.get(&sharer).map_or(0, BTreeSet::len)
    }

    /// Marks a device as occupied in a view of its node. Returns false if the device is not free there.
    pub fn occupy_slot(&self, view: &mut View, node: NodeIx, slot: &Slot, org: OrgId) -> bool {
        let Some(node) = self.node(node) else { return false };
        let Some(index) = node.gpu_index(&slot.gpu) else { return false };
        let board = node.model(index, &self.models).and_then(|m| m.board);
        let sharer = self.org_index(org);
        view.gpu_mut(index).is_some_and(|gpu| occupy(gpu, board, slot.part, sharer))
    }

    /// The index of an organization, counted from one; 0 for an unknown organization.
    pub fn org_index(&self, org: OrgId) -> u16 {
        self.orgs.get(&org).copied().unwrap_or(0)
    }

    /// Sets the facts of a node. A board in use that is no longer reported stays, as unhealthy.
    pub fn put_node(&mut self, mut facts: NodeFacts) -> NodeIx {
        let index = self.by_id.get(&facts.id).copied();
        let (mut dedicated_before, mut pool_before) = (None, NodePool::Both);
        if let Some(node) = index.and_then(|i| self.nodes.get(i.0 as usize)) {
            for gpu in &node.facts.gpus {
                let held = node.ranks.iter().any(|r| r.slots.iter().any(|s| s.gpu == gpu.uuid));
                if held && !facts.gpus.iter().any(|g| g.uuid == gpu.uuid) {
                    facts.gpus.push(GpuFacts { healthy: false, ..gpu.clone() });
                }
            }
            if node.facts == facts {
                return index.unwrap_or(NodeIx(0));
            }
            (dedicated_before, pool_before) = (node.facts.dedicated_to, node.facts.pool);
        }
        if let Some(org) = facts.dedicated_to {
            self.org(org);
        }
        self.dedicated.replace(dedicated_before, facts.dedicated_to);
        self.pooled.replace(pool_before, facts.pool);
        let models: Vec<ModelIx> =
            facts.gpus.iter().map(|g| self.model(&g.model).unwrap_or(ModelIx::MAX)).collect();
        let storage = self.storage.bits(&facts.storage);
        let index = index.unwrap_or_else(|| {
            let index = NodeIx(u32::try_from(self.nodes.len()).unwrap_or(u32::MAX));
            self.by_id.insert(facts.id, index);
            let view = View::EMPTY;
            let (ranks, models) = (Vec::new(), Vec::new());
            self.nodes.push(Node { facts: facts.clone(), ranks, models, storage: 0, view });
            index
        });
        if let Some(node) = self.nodes.get_mut(index.0 as usize) {
            node.facts = facts;
            node.models = models;
            node.storage = storage;
        }
        self.equipment_version += 1;
        self.refresh_view(index);
        index
    }

    /// Sets the devices of an attempt on a node. A board that the node has not reported is added, as
    /// unhealthy.
    pub fn hold(&mut self, index: NodeIx, rank: Rank) {
        let org = self.org(rank.org);
        let Some(node) = self.nodes.get_mut(index.0 as usize) else { return };
        let mut addable = true;
        if let Some(known) = node.ranks.iter_mut().find(|r| r.owner == rank.owner) {
            if *known == rank {
                return;
            }
            *known = rank.clone();
            addable = false;
        }
        for slot in &rank.slots {
            if !node.facts.gpus.iter().any(|g| g.uuid == slot.gpu) {
                node.models.push(ModelIx::MAX);
                node.facts.gpus.push(GpuFacts {
                    uuid: slot.gpu.clone(),
                    model: "".into(),
                    mig_enabled: false,
                    healthy: false,
                    island: 0,
                    limit_watts: None,
                    foreign: Vec::new(),
                });
                addable = false;
            }
        }
        // A rank that is new and fits is subtracted from the present view. All other changes derive the view
        // again.
        let shares = rank.slots.iter().any(|s| matches!(s.part, Part::Share(_)));
        let fits = addable && node.facts.open && node.add(&rank, &self.models, org);
        if !node.ranks.iter().any(|r| r.owner == rank.owner) {
            node.ranks.push(rank);
        }
        if !fits {
            return self.refresh_view(index);
        }
        if shares {
            self.shared.entry(org).or_default().insert(index);
        }
        self.log(index);
    }

    /// Removes an attempt from a node.
    pub fn release(&mut self, index: NodeIx, owner: Owner) {
        let Some(node) = self.nodes.get_mut(index.0 as usize) else { return };
        let Some(at) = node.ranks.iter().position(|r| r.owner == owner) else { return };
        node.ranks.swap_remove(at);
        self.refresh_view(index);
    }

    fn refresh_view(&mut self, index: NodeIx) {
        let Some(node) = self.nodes.get(index.0 as usize) else { return };
        let view = view::derive(node, &self.models, &self.orgs, |_| true);
        if let Some(node) = self.nodes.get_mut(index.0 as usize) {
            let before = std::mem::replace(&mut node.view, view);
            for old in before.gpus().iter().map(|g| g.sharer).filter(|s| *s > 0) {
                if !view.gpus().iter().any(|g| g.sharer == old) {
                    self.shared.entry(old).or_default().remove(&index);
                }
            }
            for new in view.gpus().iter().map(|g| g.sharer).filter(|s| *s > 0) {
                self.shared.entry(new).or_default().insert(index);
            }
        }
        self.log(index);
    }

    /// Records a change of a node that its facts and ranks do not show.
    pub fn mark_changed(&mut self, index: NodeIx) {
        self.log(index);
    }

    fn log(&mut self, index: NodeIx) {
        self.log.push(index);
        if self.log.len() > 1_024 + 4 * self.nodes.len() {
            let half = self.log.len() / 2;
            self.log.drain(..half);
            self.log_start += half as u64;
        }
    }

    pub fn view_of(&self, node: &Node, counts: impl Fn(&Rank) -> bool) -> View {
        view::derive(node, &self.models, &self.orgs, counts)
    }

    /// The view of a node as if it were open, healthy and empty.
    pub fn view_empty(&self, index: NodeIx) -> Option<View> {
        emptied(self, index, |_| {})
    }

    /// The same with the other MIG mode on each board that changes it by a reset only.
    pub fn view_empty_in_other_mode(&self, index: NodeIx) -> Option<View> {
        emptied(self, index, |gpu| {
            let board = boards().iter().find(|b| b.model == *gpu.model);
            gpu.mig_enabled ^= board.is_some_and(|b| !b.live_toggle);
        })
    }
}

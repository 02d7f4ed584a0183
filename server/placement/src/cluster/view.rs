//! The dense view of a node, derived from its facts and ranks.

use std::collections::HashMap;

use berth_mig::{boards, cover, masks};
use berth_types::ids::OrgId;
use berth_types::node_pools::NodePool;

use crate::networks::{GangKind, NodeNetworks};
use crate::tenancy::NOBODY;

use super::{ANYBODY, MAX_GPUS, Model, ModelIx, Node, Part, Rank, Slot, WHOLE_MILLI};

/// The state of one board, for a scorer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuView {
    pub model: ModelIx,
    /// Free thousandths for the whole board or a share; 0 if the board is sliced or unusable.
    pub free_milli: u16,
    /// Occupied memory slices as bits; all bits if no instance is possible now.
    pub mask: u8,
    /// Occupied media groups as bits.
    pub groups: u8,
    /// True if the board has instances.
    pub sliced: bool,
    /// True if the board can be used without an instance: it is not in MIG mode, or changes the mode without
    /// a reset.
    pub shareable: bool,
    pub island: u8,
    /// The index of the organization that shares the board, counted from one; 0 for none.
    pub sharer: u16,
}

/// A board on which nothing can be placed.
pub const NO_GPU: GpuView = GpuView {
    model: 0,
    free_milli: 0,
    mask: u8::MAX,
    groups: 0,
    sliced: false,
    shareable: false,
    island: 0,
    sharer: 0,
};

/// The state of a node, for a scorer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    pub cpu_milli: i64,
    pub memory_mib: i64,
    pub images: bool,
    /// The number of the node's boards if it has an active RDMA port; 0 without one.
    pub rdma_boards: u32,
    pub networks: NodeNetworks,
    /// The storage classes of the node, as bits of their indices in the cluster's list.
    pub storage: u64,
    /// The index of the organization to which the node is dedicated, counted from one; 0 for none.
    pub dedicated_to: u16,
    /// The work that the node is for.
    pub pool: NodePool,
    count: u8,
    gpus: [GpuView; MAX_GPUS],
}

impl View {
    /// A view without boards.
    pub(super) const EMPTY: Self = Self {
        cpu_milli: 0,
        memory_mib: 0,
        images: false,
        rdma_boards: 0,
        networks: NodeNetworks { policy: false, host: false, gang: GangKind::Host, aside: false },
        storage: 0,
        dedicated_to: 0,
        pool: NodePool::Both,
        count: 0,
        gpus: [NO_GPU; MAX_GPUS],
    };

    pub fn gpus(&self) -> &[GpuView] {
        self.gpus.get(..usize::from(self.count)).unwrap_or(&[])
    }

    pub fn gpu_mut(&mut self, index: usize) -> Option<&mut GpuView> {
        self.gpus.get_mut(index).filter(|_| index < usize::from(self.count))
    }

    /// Occupies a device that is booked for a part of the time. Others may use the
    /// device now; then the board counts as used by both.
    pub fn occupy_booked(&mut self, node: &Node, models: &[Model], slot: &Slot, sharer: u16) {
        let Some(index) = node.gpu_index(&slot.gpu) else { return };
        let board = node.model(index, models).and_then(|m| m.board);
        let Some(gpu) = self.gpus.get_mut(index) else { return };
        let before = *gpu;
        occupy(gpu, board, slot.part, sharer);
        if !matches!(slot.part, Part::Slice(_)) || (!before.sliced && before.free_milli < WHOLE_MILLI) {
            gpu.mask = u8::MAX;
        }
        if matches!(slot.part, Part::Share(_))
            && (before.sliced || before.sharer != 0 && before.sharer != sharer)
        {
            gpu.free_milli = 0;
        }
    }

    /// Replaces the view of each board by the result of `change` for its index and its view.
    pub fn map_gpus(&mut self, change: impl Fn(usize, &GpuView) -> GpuView) {
        let count = usize::from(self.count);
        for (index, gpu) in self.gpus.iter_mut().take(count).enumerate() {
            *gpu = change(index, gpu);
        }
    }

    /// The NVLink islands of the node, without repetition.
    pub fn islands(&self) -> Vec<Option<u8>> {
        let mut islands: Vec<Option<u8>> = self.gpus().iter().map(|g| Some(g.island)).collect();
        islands.sort_unstable();
        islands.dedup();
        islands
    }

    pub fn free_milli(&self) -> u32 {
        self.gpus().iter().map(|g| u32::from(g.free_milli)).sum()
    }

    /// The view of a node on which nothing fits.
    fn closed(mut self) -> Self {
        self.cpu_milli = -1;
        self.gpus = [NO_GPU; MAX_GPUS];
        self
    }
}

/// Marks a part of a board as occupied in its view. Returns false if the part was not free.
pub fn occupy(gpu: &mut GpuView, board: Option<usize>, part: Part, sharer: u16) -> bool {
    match part {
        Part::Whole => {
            let free = gpu.free_milli == WHOLE_MILLI && !gpu.sliced;
            (gpu.free_milli, gpu.mask) = (0, u8::MAX);
            free
        }
        Part::Share(milli) => {
            let free = !gpu.sliced
                && gpu.free_milli >= milli
                && (gpu.sharer == 0 || gpu.sharer == sharer || sharer == ANYBODY);
            gpu.free_milli = gpu.free_milli.saturating_sub(milli);
            (gpu.mask, gpu.sharer) = (u8::MAX, sharer);
            free
        }
        Part::Slice(instance) => {
            let known = board.and_then(|b| {
                let place = boards().get(b)?.profiles.iter().position(|p| p.id == instance.profile_id)?;
                Some((cover(boards().get(b)?.profiles.get(place)?, instance.start), masks(b)?.group(place)))
            });
            let Some((cover, group)) = known else { return false };
            let free = (gpu.sliced || gpu.free_milli == WHOLE_MILLI)
                && gpu.mask & cover == 0
                && gpu.groups & group == 0;
            gpu.free_milli = 0;
            gpu.sliced = true;
            gpu.mask |= cover;
            gpu.groups |= group;
            free
        }
    }
}

/// Derives the view of a node from its facts and from the ranks with `counts`.
pub(super) fn derive(
    node: &Node,
    models: &[Model],
    orgs: &HashMap<OrgId, u16>,
    counts: impl Fn(&Rank) -> bool,
) -> View {
    let facts = &node.facts;
    let mut view = View {
        cpu_milli: facts.cpu_milli,
        memory_mib: facts.memory_mib,
        images: facts.images,
        rdma_boards: facts.rdma_boards,
        networks: facts.networks,
        storage: node.storage,
        dedicated_to: facts.dedicated_to.map_or(0, |org| orgs.get(&org).copied().unwrap_or(NOBODY)),
        pool: facts.pool,
        count: u8::try_from(facts.gpus.len().min(MAX_GPUS)).unwrap_or(0),
        gpus: [NO_GPU; MAX_GPUS],
    };
    let mut unusable = 0u32;
    let board_of =
        |index: usize| node.models.get(index).and_then(|m| models.get(usize::from(*m))).and_then(|m| m.board);
    for (index, gpu) in facts.gpus.iter().take(MAX_GPUS).enumerate() {
        let board = board_of(index);
        let live_toggle = board.and_then(|b| boards().get(b)).is_some_and(|b| b.live_toggle);
        let Some(slot) = view.gpus.get_mut(index) else { continue };
        *slot = GpuView {
            model: node.models.get(index).copied().unwrap_or(ModelIx::MAX),
            free_milli: WHOLE_MILLI,
            mask: if board.is_some() && (gpu.mig_enabled || live_toggle) { 0 } else { u8::MAX },
            shareable: !gpu.mig_enabled || live_toggle,
            island: gpu.island,
            ..NO_GPU
        };
        for instance in &gpu.foreign {
            // The instance stays, so the board is free neither as a whole nor for shares.
            occupy(slot, board, Part::Slice(*instance), 0);
            slot.free_milli = 0;
        }
        unusable |= u32::from(!gpu.healthy) << index;
    }
    for rank in node.ranks.iter().filter(|r| counts(r)) {
        view.cpu_milli -= rank.cpu_milli;
        view.memory_mib -= rank.memory_mib;
        for slot in &rank.slots {
            let Some(index) = node.gpu_index(&slot.gpu) else { continue };
            let sharer = orgs.get(&rank.org).copied().unwrap_or(0);
            let Some(gpu) = view.gpus.get_mut(index) else { continue };
            if !occupy(gpu, board_of(index), slot.part, sharer) {
                // Two attempts on one device, or an unknown layout: the board gets no further work.
                unusable |= 1 << index;
            }
        }
    }
    for (index, gpu) in view.gpus.iter_mut().enumerate() {
        if unusable >> index & 1 != 0 {
            *gpu = GpuView { model: gpu.model, island: gpu.island, ..NO_GPU };
        }
    }
    if facts.open { view } else { view.closed() }
}

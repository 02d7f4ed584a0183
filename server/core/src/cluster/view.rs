//! How nodes stand in dense form, derived from their facts and from what holds them.

use std::collections::HashMap;

use berth_mig::{boards, cover, masks};
use berth_types::ids::OrgId;

use super::{MAX_GPUS, Model, ModelIx, Node, Part, Rank, Slot, WHOLE_MILLI};

/// How one board stands, for a scorer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuView {
    pub model: ModelIx,
    /// Thousandths that a whole board or a share may take; 0 when sliced or unusable.
    pub free_milli: u16,
    /// Slices that are occupied; all of them when instances are not possible now.
    pub mask: u8,
    /// Media groups that are taken.
    pub groups: u8,
    /// Instances live on it.
    pub sliced: bool,
    /// Not in a MIG mode that only a reset changes, so it can be lent without an instance.
    pub shareable: bool,
    pub island: u8,
    /// The organization that shares it, by its place in the cluster's list plus one; 0 for none.
    pub sharer: u16,
}

/// A board on which nothing can be placed.
pub(crate) const NO_GPU: GpuView = GpuView {
    model: 0,
    free_milli: 0,
    mask: u8::MAX,
    groups: 0,
    sliced: false,
    shareable: false,
    island: 0,
    sharer: 0,
};

/// How a node stands, for a scorer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    pub cpu_milli: i64,
    pub memory_mib: i64,
    pub images: bool,
    count: u8,
    gpus: [GpuView; MAX_GPUS],
}

impl View {
    /// No boards at all.
    pub(super) const EMPTY: Self =
        Self { cpu_milli: 0, memory_mib: 0, images: false, count: 0, gpus: [NO_GPU; MAX_GPUS] };

    pub fn gpus(&self) -> &[GpuView] {
        self.gpus.get(..usize::from(self.count)).unwrap_or(&[])
    }

    pub fn gpu_mut(&mut self, index: usize) -> Option<&mut GpuView> {
        self.gpus.get_mut(index).filter(|_| index < usize::from(self.count))
    }

    /// Takes what is booked for some of the time, whether or not something is there now.
    pub(crate) fn cover(&mut self, node: &Node, models: &[Model], slot: &Slot, sharer: u16) {
        let Some(index) = node.gpu_index(&slot.gpu) else { return };
        let board = node.model(index, models).and_then(|m| m.board);
        let Some(gpu) = self.gpus.get_mut(index) else { return };
        let there = *gpu;
        occupy(gpu, board, slot.part, sharer);
        if !matches!(slot.part, Part::Slice(_)) || (!there.sliced && there.free_milli < WHOLE_MILLI) {
            gpu.mask = u8::MAX;
        }
        if matches!(slot.part, Part::Share(_))
            && (there.sliced || there.sharer != 0 && there.sharer != sharer)
        {
            gpu.free_milli = 0;
        }
    }

    /// Nothing of the node can be used but what `keep` says.
    pub(crate) fn only(&mut self, keep: impl Fn(usize, &GpuView) -> GpuView) {
        let count = usize::from(self.count);
        for (index, gpu) in self.gpus.iter_mut().take(count).enumerate() {
            *gpu = keep(index, gpu);
        }
    }

    /// The groups of boards that reach each other by NVLink.
    pub(crate) fn islands(&self) -> Vec<Option<u8>> {
        let mut islands: Vec<Option<u8>> = self.gpus().iter().map(|g| Some(g.island)).collect();
        islands.sort_unstable();
        islands.dedup();
        islands
    }

    pub fn free_milli(&self) -> u32 {
        self.gpus().iter().map(|g| u32::from(g.free_milli)).sum()
    }

    /// Nothing fits on it.
    fn closed(mut self) -> Self {
        self.cpu_milli = -1;
        self.gpus = [NO_GPU; MAX_GPUS];
        self
    }
}

/// Takes a part of a board away from its view. `false` when something is there already.
pub(crate) fn occupy(gpu: &mut GpuView, board: Option<usize>, part: Part, sharer: u16) -> bool {
    match part {
        Part::Whole => {
            let free = gpu.free_milli == WHOLE_MILLI && !gpu.sliced;
            (gpu.free_milli, gpu.mask) = (0, u8::MAX);
            free
        }
        Part::Share(milli) => {
            let free = !gpu.sliced
                && gpu.free_milli >= milli
                && (gpu.sharer == 0 || gpu.sharer == sharer || sharer == crate::shape::ANYBODY);
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
        count: u8::try_from(facts.gpus.len().min(MAX_GPUS)).unwrap_or(0),
        gpus: [NO_GPU; MAX_GPUS],
    };
    let mut spoilt = 0u32;
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
            // Whatever it is, it is left alone.
            occupy(slot, board, Part::Slice(*instance), 0);
            slot.free_milli = 0;
        }
        spoilt |= u32::from(!gpu.healthy) << index;
    }
    for rank in node.ranks.iter().filter(|r| counts(r)) {
        view.cpu_milli -= rank.cpu_milli;
        view.memory_mib -= rank.memory_mib;
        for slot in &rank.slots {
            let Some(index) = node.gpu_index(&slot.gpu) else { continue };
            let sharer = orgs.get(&rank.org).copied().unwrap_or(0);
            let Some(gpu) = view.gpus.get_mut(index) else { continue };
            if !occupy(gpu, board_of(index), slot.part, sharer) {
                // Two owners on one place, or a layout that nobody here made: nothing is added to it.
                spoilt |= 1 << index;
            }
        }
    }
    for (index, gpu) in view.gpus.iter_mut().enumerate() {
        if spoilt >> index & 1 != 0 {
            *gpu = GpuView { model: gpu.model, island: gpu.island, ..NO_GPU };
        }
    }
    if facts.open { view } else { view.closed() }
}

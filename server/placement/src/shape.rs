//! The shape of a request on one node, the form that scorers compare and caches use as key.

use berth_mig::masks;

use crate::cluster::{ANYBODY, GpuView, Model, Models, View, WHOLE_MILLI};
use crate::networks::{NetworkNeed, NodeNetworks};
use crate::pools::{Work, takes};
use crate::tenancy::Tenancy;

/// One kind of device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Device {
    /// A whole board.
    Board,
    /// Thousandths of a board, shared within one organization (`sharer`: its index in the cluster's list).
    Share { milli: u16, sharer: u16 },
    /// A MIG instance (`profile`: its index in the list of the board model).
    Slice { profile: u8 },
}

/// The demand on one node: `count` devices, processors and memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shape {
    pub device: Device,
    pub count: u32,
    pub models: Models,
    pub cpu_milli: i64,
    pub memory_mib: i64,
    /// All devices of a node must reach each other by NVLink.
    pub nvlink: bool,
    /// The node must run images.
    pub images: bool,
    /// The node must have an active RDMA port, and the devices are all of its boards.
    pub rdma: bool,
    /// The network that the node must give.
    pub network: NetworkNeed,
    /// True for a rank of a job on several nodes, which takes no node that is set aside.
    pub gang: bool,
    /// The storage classes that the node must have, as bits of their indices in the cluster's list.
    pub storage: u64,
    /// The nodes that its organization may use.
    pub tenancy: Tenancy,
    /// The kind of its job, for pools of nodes.
    pub work: Work,
}

impl Shape {
    /// The same shape for any organization.
    #[must_use]
    pub fn for_anybody(&self) -> Self {
        match self.device {
            Device::Share { milli, .. } => Self { device: Device::Share { milli, sharer: ANYBODY }, ..*self },
            _ => *self,
        }
    }

    /// The sum of its devices in thousandths of a board.
    pub fn milli(&self, models: &[Model]) -> u32 {
        let each = match self.device {
            Device::Board => u32::from(WHOLE_MILLI),
            Device::Share { milli, .. } => u32::from(milli),
            Device::Slice { profile } => {
                let board = models
                    .iter()
                    .enumerate()
                    .find(|(i, m)| m.board.is_some() && u8::try_from(*i).is_ok_and(|i| self.models.has(i)))
                    .and_then(|(_, m)| m.mig());
                let size = board.and_then(|b| {
                    Some(b.profiles.get(usize::from(profile))?.size * 1_000 / b.memory_slices.max(1))
                });
                size.unwrap_or(0)
            }
        };
        each.saturating_mul(self.count)
    }

    /// Returns true if one device of this kind fits on a board in its present state.
    pub fn fits_gpu(&self, gpu: &GpuView, models: &[Model]) -> bool {
        if !self.models.has(gpu.model) {
            return false;
        }
        match self.device {
            // In MIG mode a board has fewer multiprocessors and no NVLink, also with one instance of all slices.
            Device::Board => gpu.shareable && gpu.free_milli == WHOLE_MILLI,
            Device::Share { milli, sharer } => {
                gpu.shareable
                    && gpu.free_milli >= milli
                    && (gpu.sharer == 0 || gpu.sharer == sharer || sharer == ANYBODY)
            }
            Device::Slice { profile } => starts(gpu, usize::from(profile), models) != 0,
        }
    }

    /// Returns true if a node with `rdma_boards` boards suits the demand for RDMA. A node without an active RDMA port
    /// has 0.
    pub const fn suits_rdma(&self, rdma_boards: u32) -> bool {
        !self.rdma || rdma_boards == self.count
    }

    /// Returns true if the networks of a node suit.
    pub const fn suits_networks(&self, networks: NodeNetworks) -> bool {
        networks.meets(self.network) && !(self.gang && networks.aside)
    }

    /// Returns false if the organization of the node, its pool, its networks, processors, memory or the lack of any suitable board rule the shape out.
    pub fn may_fit(&self, view: &View, models: &[Model]) -> bool {
        self.tenancy.admits(view.dedicated_to)
            && takes(view.pool, self.work)
            && (view.images || !self.images)
            && self.suits_networks(view.networks)
            && self.suits_rdma(view.rdma_boards)
            && (self.storage & !view.storage) == 0
            && view.cpu_milli >= self.cpu_milli
            && view.memory_mib >= self.memory_mib
            && (self.count == 0 || view.gpus().iter().any(|g| self.fits_gpu(g, models)))
    }
}

/// The possible starts of an instance of a profile on a board in its present state, as bits.
pub fn starts(gpu: &GpuView, profile: usize, models: &[Model]) -> u8 {
    if !gpu.sliced && gpu.free_milli < WHOLE_MILLI {
        return 0;
    }
    let tables = models.get(usize::from(gpu.model)).and_then(|m| masks(m.board?));
    tables.filter(|t| t.group(profile) & gpu.groups == 0).map_or(0, |t| t.starts(profile, gpu.mask))
}

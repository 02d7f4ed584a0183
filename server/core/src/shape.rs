//! What is asked for on each node, in the form that scorers compare and caches are kept by.

use berth_mig::masks;

use crate::cluster::{GpuView, Model, Models, View, WHOLE_MILLI};

/// One kind of device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Device {
    /// A whole board.
    Board,
    /// Thousandths of a board, shared inside one organization (its place in the cluster's list).
    Share { milli: u16, sharer: u16 },
    /// A MIG instance: the profile's place in its board's list.
    Slice { profile: u8 },
}

/// Stands for any organization: such a share fits where it would fit for somebody.
pub const ANYBODY: u16 = u16::MAX;

/// What one node must give: `count` devices, processors and memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shape {
    pub device: Device,
    pub count: u32,
    pub models: Models,
    pub cpu_milli: i64,
    pub memory_mib: i64,
    /// All devices of a node reach each other by NVLink.
    pub nvlink: bool,
    /// The node runs images.
    pub images: bool,
}

impl Shape {
    /// The same for whichever organization.
    #[must_use]
    pub fn for_anybody(&self) -> Self {
        match self.device {
            Device::Share { milli, .. } => Self { device: Device::Share { milli, sharer: ANYBODY }, ..*self },
            _ => *self,
        }
    }

    /// Thousandths of a board in all.
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

    /// Whether one device of this kind fits on the board as it stands.
    pub fn fits_gpu(&self, gpu: &GpuView, models: &[Model]) -> bool {
        if !self.models.has(gpu.model) {
            return false;
        }
        match self.device {
            Device::Board => gpu.free_milli == WHOLE_MILLI,
            Device::Share { milli, sharer } => {
                gpu.shareable
                    && gpu.free_milli >= milli
                    && (gpu.sharer == 0 || gpu.sharer == sharer || sharer == ANYBODY)
            }
            Device::Slice { profile } => starts(gpu, usize::from(profile), models) != 0,
        }
    }

    /// Whether processors, memory and a first look at the boards allow it.
    pub fn may_fit(&self, view: &View, models: &[Model]) -> bool {
        (view.images || !self.images)
            && view.cpu_milli >= self.cpu_milli
            && view.memory_mib >= self.memory_mib
            && (self.count == 0 || view.gpus().iter().any(|g| self.fits_gpu(g, models)))
    }
}

/// Where an instance of the profile may start on the board as it stands, as bits.
pub fn starts(gpu: &GpuView, profile: usize, models: &[Model]) -> u8 {
    if !gpu.sliced && gpu.free_milli < WHOLE_MILLI {
        return 0;
    }
    let tables = models.get(usize::from(gpu.model)).and_then(|m| masks(m.board?));
    tables.filter(|t| t.group(profile) & gpu.groups == 0).map_or(0, |t| t.starts(profile, gpu.mask))
}

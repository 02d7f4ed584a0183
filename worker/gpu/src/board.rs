//! Boards and slices as values.

use serde::{Deserialize, Serialize};

use super::error::{GpuError, silence_reason};

/// One board.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoardInfo {
    pub index: u32,
    pub uuid: String,
    pub name: String,
    pub memory_mib: u64,
    pub mig_enabled: bool,
    /// Boards with the same number from 1 on reach each other by NVLink; 0: no other board.
    pub nvlink_island: u32,
    /// The PCI address in NVML's form, such as `00000000:1B:00.0`; absent without an answer.
    pub pci_bus_id: Option<String>,
    pub slices: Vec<Slice>,
    /// The reason if the board does not answer. The other fields are from its last answer then.
    pub silent: Option<String>,
}

/// A GPU instance with a compute instance that fills it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    pub gi: u32,
    pub profile_id: u32,
    /// Memory slices `start .. start + size`.
    pub start: u32,
    pub size: u32,
    /// Absent without a compute instance.
    pub mig_uuid: Option<String>,
    pub memory_mib: u64,
}

/// A MIG profile as the driver of a board offers it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigProfile {
    /// The number of the profile in calls for instances.
    pub id: u32,
    /// For example `1g.10gb`.
    pub name: String,
    /// The number of memory slices.
    pub size: u32,
    /// The memory slices at which an instance may start.
    pub starts: Vec<u32>,
    pub memory_mib: u64,
}

impl BoardInfo {
    /// The board as it was, with the reason for its silence.
    pub(super) fn silenced(&self, error: &GpuError) -> Self {
        Self { silent: Some(silence_reason(error)), ..self.clone() }
    }
}

/// The numbers by which the driver names a device's nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceNumbers {
    /// The minor number of the board.
    pub minor: u32,
    /// `None`: the whole board.
    pub gpu_instance: Option<u32>,
}

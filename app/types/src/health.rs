//! Types of board health, for operators.

use serde::{Deserialize, Serialize};

use crate::ids::NodeId;
use crate::time::Timestamp;

/// The reason for a board out of service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Quarantine {
    /// One of `gpu.xid`, `gpu.ecc`, `gpu.memory`, `gpu.recovery`, `gpu.mode`, `gpu.reset` or
    /// `device.unavailable`.
    pub code: String,
    /// A sentence about the fault.
    pub reason: String,
    /// The start of the quarantine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
}

/// The registration of a board with the fabric of its host's NVSwitch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FabricState {
    /// The fabric manager has not begun it.
    NotStarted,
    /// The fabric manager has begun it.
    InProgress,
    /// It has ended, with the result `status`.
    Completed,
}

/// The NVLink fabric of a board on a host with NVSwitch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GpuFabric {
    /// The state of the registration.
    pub state: FabricState,
    /// The code of NVML for a completed registration; 0 without an error.
    pub status: u32,
    /// The number of the clique; boards with the same clique and cluster reach each other.
    pub clique: u32,
    /// The UUID of the cluster; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_uuid: Option<String>,
    /// The bits of NVML (`nvmlGpuFabricInfo`) for the health of the fabric; absent from older drivers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_mask: Option<u32>,
}

impl GpuFabric {
    /// True after a registration without an error.
    pub fn is_ready(&self) -> bool {
        self.state == FabricState::Completed && self.status == 0
    }
}

/// Facts that a worker reads from a board. A value without a report from the driver is absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct GpuFacts {
    /// The serial number of the board.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// The version of the board's firmware (VBIOS).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vbios: Option<String>,
    /// The PCI address of the board.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci_bus_id: Option<String>,
    /// Major and minor version, such as `9.0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute_capability: Option<String>,
    /// The power limit of the board in watts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_limit_watts: Option<u32>,
    /// True if ECC is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecc: Option<bool>,
    /// ECC after the next reset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecc_pending: Option<bool>,
    /// True in MIG mode; absent on a board without MIG.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig: Option<bool>,
    /// MIG mode after the next reset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig_pending: Option<bool>,
    /// The number of active NVLinks.
    pub nvlinks: u32,
    /// The UUIDs of all boards that the driver resets only together, with this board, at most 64; absent for a board
    /// that is reset alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 64)))]
    pub reset_group: Vec<String>,
    /// The fabric of NVSwitch; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fabric: Option<GpuFabric>,
    /// The number of corrected ECC errors since the driver was loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecc_corrected: Option<u64>,
    /// The number of uncorrected ECC errors since the driver was loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecc_uncorrected: Option<u64>,
    /// The number of memory rows replaced because of corrected errors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows_corrected: Option<u32>,
    /// The number of memory rows replaced because of uncorrected errors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows_uncorrected: Option<u32>,
    /// True if the replacement of a memory row waits for a reset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replacement_pending: Option<bool>,
    /// True if the replacement of a memory row failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replacement_failed: Option<bool>,
    /// The recovery action that the driver requests: 0 none, 1 a reset of the board, 2 a reboot, 3 and 4 a
    /// drain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovery: Option<u32>,
    /// The differences between the MIG profiles of the driver and the table of the portal, at most 16 sentences; from
    /// the last report in MIG mode.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 16)))]
    pub mig_differences: Vec<String>,
}

impl GpuFacts {
    /// True if CUDA does not start on the whole board, because its fabric is not ready. Slices need no fabric.
    pub fn awaits_fabric(&self) -> bool {
        self.mig != Some(true) && self.fabric.as_ref().is_some_and(|fabric| !fabric.is_ready())
    }
}

/// The kind of a board task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum GpuTaskKind {
    /// A check of the board by its worker.
    Check,
    /// A change to MIG mode.
    MigOn,
    /// A change to the mode without MIG.
    MigOff,
    /// A reset of the board.
    Reset,
}

impl GpuTaskKind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::MigOn => "mig_on",
            Self::MigOff => "mig_off",
            Self::Reset => "reset",
        }
    }
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Check, Self::MigOn, Self::MigOff, Self::Reset].into_iter().find(|kind| kind.name() == name)
    }
}

/// The latest task that an operator gave to a board.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GpuTask {
    /// The kind of the task.
    pub kind: GpuTaskKind,
    /// True after success, false after a failure; absent until the worker has finished the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub good: Option<bool>,
    /// The result as a sentence of the worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub words: Option<String>,
}

/// The latest reading of a whole board. A value without a report from the driver is absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct GpuReading {
    /// The clock of the multiprocessors in megahertz.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_clock_mhz: Option<f64>,
    /// The clock of the memory in megahertz.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_clock_mhz: Option<f64>,
    /// The bits of NVML (`nvmlClocksEventReason*`) for the reasons of reduced clocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throttle_reasons: Option<u64>,
    /// Received PCIe traffic in kilobytes a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_received_kb_s: Option<f64>,
    /// Sent PCIe traffic in kilobytes a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_sent_kb_s: Option<f64>,
    /// Received traffic of all NVLinks in kibibytes a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvlink_received_kib_s: Option<f64>,
    /// Sent traffic of all NVLinks in kibibytes a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvlink_sent_kib_s: Option<f64>,
}

/// One board with its health, for operators.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GpuHealth {
    /// The UUID of the board.
    pub uuid: String,
    /// The node of the board.
    pub node: NodeId,
    /// The number of the board on its node, from 0.
    pub index: u32,
    /// The model name of the driver.
    pub model: String,
    /// The memory of the board in MiB.
    pub memory_mib: i64,
    /// True if the latest session of the worker reported the board.
    pub present: bool,
    /// True in MIG mode.
    pub mig_enabled: bool,
    /// The quarantine; the board takes no work until a check succeeds or an operator releases it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantine: Option<Quarantine>,
    /// The reason for a board without an answer or without its NVLink fabric; the board takes no work until that
    /// changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent: Option<String>,
    /// True for a board beyond those of its node's approval; the board takes no work until an operator approves
    /// it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub awaits_approval: bool,
    /// The facts of the latest report.
    pub facts: GpuFacts,
    /// The latest reading.
    pub reading: GpuReading,
    /// The power of the latest reading in watts; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_watts: Option<f64>,
    /// The temperature of the latest reading in degrees Celsius; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature_celsius: Option<f64>,
    /// The busy part of the board's time in percent, by the latest reading; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilization_percent: Option<f64>,
    /// The number of devices on the board that attempts hold: the whole board, slices and shares, without those whose
    /// proof of cleanness failed. A change of the mode and a reset wait until it is 0.
    #[serde(default)]
    pub held: u32,
    /// The UUIDs of all boards of the node that a reset of this board resets, with this board, at most 64; absent for a
    /// board that is reset alone. A requested reset waits until `held` of all of them is 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 64)))]
    pub reset_group: Vec<String>,
    /// The latest task; absent before the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<GpuTask>,
}

/// The body of a change of the MIG mode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PatchGpuMode {
    /// True for MIG mode.
    pub mig: bool,
}

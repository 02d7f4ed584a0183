//! How boards are, for the operator of their node.

use serde::{Deserialize, Serialize};

use crate::ids::NodeId;
use crate::time::Timestamp;

/// Why a board is out of service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Quarantine {
    /// `gpu.xid`, `gpu.ecc`, `gpu.memory`, `gpu.recovery`, `gpu.mode` or `device.unavailable`.
    pub code: String,
    pub reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
}

/// What a worker reads of a board. What the driver does not report is absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct GpuFacts {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vbios: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci_bus_id: Option<String>,
    /// `9.0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute_capability: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_limit_watts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecc: Option<bool>,
    /// What it will be after a reset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecc_pending: Option<bool>,
    /// Absent where the board cannot do MIG.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig: Option<bool>,
    /// What it will be after a reset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig_pending: Option<bool>,
    /// NVLinks that are up.
    pub nvlinks: u32,
    /// Since the driver was loaded, as are the next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecc_corrected: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecc_uncorrected: Option<u64>,
    /// Rows of memory that were replaced for corrected errors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows_corrected: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows_uncorrected: Option<u32>,
    /// Worn memory waits for a reset to be replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replacement_pending: Option<bool>,
    /// Worn memory could not be replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replacement_failed: Option<bool>,
    /// What the driver asks for: 0 nothing, 1 a reset of the board, 2 a reboot, 3 and 4 a drain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovery: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum GpuTaskKind {
    /// The worker proves the board fit for work.
    Check,
    MigOn,
    MigOff,
}

impl GpuTaskKind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::MigOn => "mig_on",
            Self::MigOff => "mig_off",
        }
    }
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Check, Self::MigOn, Self::MigOff].into_iter().find(|kind| kind.name() == name)
    }
}

/// The newest thing that an operator wanted done with a board.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GpuTask {
    pub kind: GpuTaskKind,
    /// Absent until its worker has done it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub good: Option<bool>,
    /// How it went, in the worker's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub words: Option<String>,
}

/// The latest reading of a whole board. What the driver does not report is absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct GpuReading {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_clock_mhz: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_clock_mhz: Option<f64>,
    /// NVML's bits (`nvmlClocksEventReason*`) for what holds its clocks back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throttle_reasons: Option<u64>,
    /// Kilobytes a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_received_kb_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_sent_kb_s: Option<f64>,
    /// Kibibytes a second over all its links.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvlink_received_kib_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvlink_sent_kib_s: Option<f64>,
}

/// One board as its node's operator sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GpuHealth {
    pub uuid: String,
    pub node: NodeId,
    pub index: u32,
    pub model: String,
    pub memory_mib: i64,
    /// Its worker told of it when it connected last.
    pub present: bool,
    pub mig_enabled: bool,
    /// Why nothing is placed on it until a check or its release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantine: Option<Quarantine>,
    /// Why it does not answer at present; nothing is placed on it until it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent: Option<String>,
    pub facts: GpuFacts,
    pub reading: GpuReading,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<GpuTask>,
}

/// A wish for another MIG mode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PatchGpuMode {
    pub mig: bool,
}

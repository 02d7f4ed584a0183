//! The reports of workers about boards and the tasks of boards, as domain values.
//!
//! The session of a worker parses its messages into these types. The parse bounds all values and texts.

use berth_types::health::{GpuFacts, GpuTaskKind};

/// The quarantine code of a board during a change of its MIG mode.
pub(crate) const MODE_CHANGE: &str = "gpu.mode";
/// The quarantine code of a board during its reset.
pub(crate) const BOARD_RESET: &str = "gpu.reset";
/// The quarantine code of a board without a recorded code.
pub(crate) const UNKNOWN_FAULT: &str = "device.unavailable";

/// The health of a board.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoardReport {
    pub gpu_uuid: String,
    /// The reason for the silence of the board; absent: the board answers.
    pub silent: Option<String>,
    /// The latest fault.
    pub fault: Option<ReportedFault>,
    /// The result of the latest task.
    pub done: Option<GpuTaskResult>,
    /// Absent for a silent board.
    pub facts: Option<GpuFacts>,
    /// The MIG profiles that the driver offers; empty without MIG mode.
    pub mig_profiles: Vec<DriverProfile>,
}

/// A MIG profile as the driver of a board offers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverProfile {
    pub id: u32,
    /// For example `1g.10gb`.
    pub name: String,
    /// The number of memory slices.
    pub size: u32,
    /// The memory slices at which an instance may start.
    pub starts: Vec<u32>,
    pub memory_mib: u64,
}

/// A fault of a board.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportedFault {
    /// The serial grows with each fault of the board.
    pub serial: i64,
    pub code: String,
    pub detail: String,
}

/// The result of a task of a board.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuTaskResult {
    pub number: i64,
    pub good: bool,
    /// The reason of a bad result, or a note.
    pub message: String,
}

/// A task of a board for its worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuTaskOrder {
    pub gpu_uuid: String,
    /// The number grows with each task of the board.
    pub number: i64,
    pub kind: GpuTaskKind,
    /// The UUIDs of all boards of a reset of several boards, with this board; empty for this board alone.
    pub group: Vec<String>,
}

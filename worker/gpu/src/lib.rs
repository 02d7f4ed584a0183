//! The GPUs of this host through NVML: boards, NVLink, MIG instances, processes, readings, health.
//!
//! Real and simulated boards take one path; only the loaded library differs. This room knows no attempt and no
//! portal. Every call blocks, but no longer than its deadline: a hanging call makes its board unresponsive and delays
//! no other (`executor`). The daemon has NVML in a helper process, which it ends after a call that hangs
//! (`nvml_helper`).

mod board;
pub mod board_health;
pub mod board_tasks;
mod calls;
mod condition;
mod driver_use;
mod error;
mod event_set;
mod events;
mod executor;
mod fabric;
mod frames;
mod gpus;
mod holders;
mod inventory;
pub mod kernel_log;
mod library;
mod mig;
mod mig_mode;
mod nvlink;
mod nvml_access;
pub mod nvml_command;
mod nvml_connection;
mod nvml_helper;
mod nvml_session;
mod persistence;
mod readings;
mod requests;
mod reset;
mod reset_program;
pub mod simulation;
mod snapshot;
mod startup;
pub mod xids;

pub use board::{BoardInfo, DeviceNumbers, MigProfile, Slice};
pub use calls::Deadlines;
pub use condition::{BoardCondition, BoardDescription, ErrorCounts, is_memory_free};
pub use driver_use::{DriverUse, hold_driver};
pub use error::GpuError;
pub use event_set::BoardEventKind;
pub use events::{BoardEvent, event_gaps, watch};
pub use fabric::{Fabric, FabricState};
pub use gpus::{Gpus, open_in_helper};
pub use persistence::find_persistence;
pub use readings::{Presence, Reading};
pub use reset_program::ResetProgram;
pub use snapshot::{BoardSnapshot, SliceSnapshot};

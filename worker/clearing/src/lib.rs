//! The clearing of the memory of GPUs before an attempt of another organization, with a proof.
//!
//! The daemon decides ([`MemoryClearing`]) and starts a helper process ([`run`]), which loads the driver's CUDA library
//! and overwrites the memory of one device. So a driver that hangs or crashes takes no daemon with it. This crate knows
//! no attempt, no board and no portal.

mod clearing;
mod command;
mod device;
mod driver;
mod helper;
mod last_users;
mod messages;
mod overwrite;

pub use clearing::{ClearFailure, ClearMode, ClearingArgs, MemoryClearing};
pub use command::{ClearMemoryArgs, run};
pub use device::Device;
pub use helper::{ClearingHelper, HelperError};
pub use messages::{Cleared, Progress};

//! The devices of attempts: their records, the owners of the processes on shared boards, and the proof that a device
//! is clean.

mod cleanliness;
mod device;
mod process_owners;
mod sharers;

pub use cleanliness::{check_memory_free, remaining_processes};
pub use device::AttemptDevice;
pub use sharers::{BoardSharers, OwnedProcess};

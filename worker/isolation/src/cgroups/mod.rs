//! The kernel's limits and counts for each attempt: memory, processors, processes, device nodes.
//!
//! Each attempt has a directory of its own in each hierarchy that limits or counts something for it. A controller of
//! version 2 is preferred to version 1. Version 2 has a BPF filter in place of the controller `devices`. Without a
//! writable hierarchy nothing is limited, and the isolation report says that. Blocking.

mod attempt_cgroups;
mod device_filter;
mod device_rules;
mod directory;
mod hierarchies;
mod memory_watch;
mod pool;
mod tree;

pub use attempt_cgroups::{AttemptCgroups, MemoryUse};
pub use directory::{Allowance, CgroupDir, Controller};
pub use hierarchies::Cgroups;
pub use memory_watch::MemoryWatch;

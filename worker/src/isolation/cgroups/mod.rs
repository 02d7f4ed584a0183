//! The kernel's limits and counts for each attempt: memory, processors, processes, device nodes.
//!
//! Each attempt has a directory of its own in each hierarchy that limits or counts something for it. A controller of
//! version 2 is preferred to version 1. Without a writable hierarchy nothing is limited, and the isolation report
//! says that. Blocking.

mod attempt_cgroups;
mod directory;
mod hierarchies;
mod memory_watch;
mod pool;
mod tree;

pub use attempt_cgroups::{AttemptCgroups, MemoryUse};
pub use directory::{Allowance, CgroupDir, Controller};
pub use hierarchies::Cgroups;
pub use memory_watch::MemoryWatch;

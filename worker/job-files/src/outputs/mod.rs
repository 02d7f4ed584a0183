//! Files of an attempt that outlive it: checkpoints, artifacts and changed volumes, handed over to the portal.
//!
//! A checkpoint is a moment without changes in its directory. Each hand-over can be interrupted and resumed: a packed
//! file stays until the portal has it.

mod artifact_search;
mod artifacts;
mod checkpoint;
mod hand_over;
mod patterns;
mod plan;
mod task;
mod volumes;

pub use hand_over::hand_over;
pub use plan::{OutputPlan, WrittenVolume};
pub use task::OutputTask;

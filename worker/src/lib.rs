//! The Berth worker: holds one session with the portal and makes its host match the desired state.
//!
//! `reconcile` decides and drives; the other rooms carry out steps and observe. Placement, prices and the queue
//! belong to the portal.

pub mod attempt;
pub mod devices;
pub mod reconcile;
pub mod telemetry;

#[cfg(test)]
#[path = "../tests/left_out/mod.rs"]
mod left_out;

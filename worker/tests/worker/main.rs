//! The worker's tests as one program, which share helpers and are linked once.
//!
//! Shims, forkers, sandboxes, cgroups and containers are real. Boards are simulated.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests fail loudly, like tests"
)]

// Helpers.
mod boards;
#[path = "../left_out/mod.rs"]
mod left_out;
mod load;
mod stage;

// Tests.
mod archives;
mod clearing;
mod conformance;
mod dialer;
mod forker;
mod gpu;
mod harsh;
mod health;
mod host_mounts;
mod images;
mod incomplete_sandbox;
mod isolation;
mod lease;
mod limits;
mod mig_mode;
mod network;
mod nvml_helper;
mod replicas;
mod reset;
mod volumes;

//! The Berth worker: holds one session with the portal and makes its host match what the portal wants.
//!
//! `agent` decides and is pure; everything else does what it says, or looks how things are. The
//! worker never places, prices or queues: that is the portal's.

pub mod agent;
pub mod attempts;
pub mod attending;
pub mod capacity;
pub mod cgroups;
pub mod confinement;
pub mod daemon;
pub mod device_nodes;
pub mod disk;
pub mod enter;
pub mod evidence;
pub mod files;
pub mod forker;
pub mod gpu;
pub mod hello;
pub mod host;
pub mod identity;
pub mod images;
pub mod keeping;
pub mod kernel_log;
pub mod lease;
pub mod life;
pub mod link;
pub mod logs;
pub mod mask;
pub mod metrics;
pub mod preparing;
pub mod processes;
pub mod pty;
pub mod questions;
pub mod reaping;
pub mod removing;
pub mod report;
pub mod samples;
pub mod sandbox;
pub mod scrollback;
pub mod seccomp;
pub mod secrets;
pub mod sharing;
pub mod shells;
pub mod shim;
pub mod shutdown;
pub mod simulate;
pub mod spawning;
pub mod telemetry;
pub mod tls;
pub mod tunnels;
pub mod volumes;
pub mod ward;
pub mod watch;

#[cfg(test)]
#[path = "../tests/left_out/mod.rs"]
mod left_out;

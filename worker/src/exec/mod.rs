//! Access to running attempts: terminals and connections to ports, through tunnels from the portal
//! (docs/interactive.md).
//!
//! `nsenter` is the process inside the attempt. The portal decides about access; this room counts tunnels and ends
//! them with their attempt.

pub mod attempt_processes;
pub mod entries;
mod entry_process;
pub mod nsenter;
mod port_relay;
mod terminal_session;
mod tunnel;
mod tunnels;

pub use tunnels::Tunnels;

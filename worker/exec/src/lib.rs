//! Access to running attempts: terminals and connections to ports, through tunnels from the portal
//! (docs/interactive.md), and connections of gateways to replicas.
//!
//! `nsenter` is the process inside the attempt, `dialer` that of a replica. The portal decides about access; this crate
//! counts tunnels and ends them with their attempt.

mod attempt_dialer;
pub mod attempt_processes;
mod dial_messages;
pub mod dialer;
pub mod entries;
mod entry_process;
pub mod nsenter;
mod port_relay;
mod terminal_session;
mod tunnel;
mod tunnels;

pub use attempt_dialer::AttemptDialer;
pub use tunnels::Tunnels;

//! The daemon: it holds one session with the portal and makes this host match the desired state.
//!
//! `decisions` is pure and decides the next steps. `daemon` is the loop: events of the session, of files and of the
//! clock come in, and blocking steps run elsewhere and come back as results. `attempt_table` owns the attempts.

mod attempt_table;
mod boards;
mod daemon;
mod decisions;
mod file_watch;
mod handshake;
mod hello;
mod host_shutdown;
mod log_follower;
mod outputs;
mod preparation;
mod reports;
mod shim_wait;
mod step_result;
#[cfg(test)]
mod tests;

pub use daemon::run;
pub use hello::{NodeDescription, parse_label};

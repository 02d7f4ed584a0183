//! The forker: `berth-worker forker`, a small process that forks shims for the daemon.
//!
//! A new program is loaded and linked anew, which costs more than all work of a short job's shim; a fork of a warm
//! process does not. The daemon has threads and cannot fork itself. Both exchange packets over a pair of sockets; the
//! forker has its end as standard input. The forker has one thread, knows no job, reads no secret, and ends with its
//! daemon. Shims do not depend on it.

mod client;
mod protocol;
mod server;

pub use client::{ForkedShim, Forker};
pub use server::run;

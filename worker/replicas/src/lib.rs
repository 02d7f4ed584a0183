//! The replicas of services on this host, as gateways reach them: a TLS listener with the certificate of the node, the
//! token of each replica, connections with their limits, and the readiness.
//!
//! The crate gets a function that opens connections to a replica, so it enters no attempt. The portal decides which
//! attempts are replicas, and the gateway which request goes where.

mod admission;
mod args;
mod dial;
mod handshake;
mod listener;
mod pending;
mod port;
mod probe;
mod prompt;
mod readiness;
mod relay;
mod settings;

pub use admission::Replicas;
pub use args::{InferenceListen, ReplicaArgs};
pub use dial::{Dial, Dialing};
pub use handshake::{ALPN, HandshakeAnswer};
pub use listener::ReplicaListener;
pub use settings::ReplicaSettings;

#[cfg(test)]
mod tests;

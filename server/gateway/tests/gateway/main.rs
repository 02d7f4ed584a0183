//! The gateway over real connections: callers, a portal, and workers with TLS before replicas.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail loudly, like tests")]

mod credit;
mod grpc;
mod grpc_server;
mod paths;
mod portal;
mod replica;
mod stage;
mod stops;
mod streams;
mod waits;

//! The decisions of the data plane of services, as state machines without IO.
//!
//! A gateway gets a [`snapshot`] of services, replicas and keys from the portal. [`routes`] finds the service
//! of a request, [`rates`] admits it, [`balancer`] chooses its replica, [`queue`] holds it while no replica has
//! room, [`retries`] permits another replica, [`usage`] reads the tokens of its answer,
//! and [`grpc`] has the words of gRPC.
//!
//! This crate has no clocks, randomness, IO or threads on purpose. Times are milliseconds of a monotonic clock
//! of the caller, and only the expiry of keys is a time of the wall clock. A time before an earlier one counts
//! as that earlier one. Each collection that grows by requests has a limit.

pub mod balancer;
mod bounded;
pub mod grpc;
pub mod queue;
pub mod rates;
pub mod refusals;
pub mod reports;
pub mod retries;
pub mod routes;
pub mod snapshot;
pub mod usage;

//! Wire types of services.
//!
//! A service has one address and many replicas. A replica is a job that the portal submits for a revision of the
//! service. Gateways pass the requests of callers to the replicas.

#[cfg(feature = "columns")]
mod columns;
pub mod gateways;
pub mod hosts;
pub mod keys;
mod numbers;
pub mod promises;
pub mod revisions;
pub mod scaling;
pub mod schedule;
pub mod services;

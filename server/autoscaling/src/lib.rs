//! The decisions of the control plane of services, as pure functions and state machines.
//!
//! This crate has no clocks, randomness, IO or threads on purpose. `now` is a parameter and a decision is
//! returned as data. The portal uses it in its loop of services; the gateways use the borrower of credit.

pub mod credit;
pub mod promise;
pub mod rollout;
pub mod scaling;

use serde::{Deserialize, Serialize};

/// The id of a gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GatewayId(pub u64);

/// The id of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ReplicaId(pub u64);

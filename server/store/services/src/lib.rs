//! The statements about services: services, revisions, replicas, inference keys, gateways and their use.

#[macro_use]
extern crate berth_database;

pub mod addresses;
pub mod credit;
pub mod gateway_faults;
pub mod gateways;
pub mod hosts;
pub mod keys;
pub mod promise_evidence;
pub mod promises;
pub mod replicas;
pub mod retention;
pub mod revisions;
pub mod services;
pub mod snapshots;
pub mod uses;
pub mod uses_intake;

use berth_database::types::JsonColumn;
use berth_database::{StoreError, Tx, types};

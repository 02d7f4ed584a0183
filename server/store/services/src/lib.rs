//! The statements about services: services, revisions, replicas, inference keys, gateways and their use.

#[macro_use]
extern crate berth_database;

pub mod replicas;

use berth_database::{StoreError, Tx, types};

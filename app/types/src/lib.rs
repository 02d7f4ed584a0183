//! Wire types of Berth for the REST API, the pages and the layers of the portal.
//!
//! This crate does no IO, reads no clock and depends on no framework, because the browser uses it too.

pub mod accounts;
pub mod board_samples;
pub mod capacity;
pub mod change_requests;
pub mod cluster;
#[cfg(feature = "columns")]
mod columns;
pub mod diagnosis;
pub mod egress;
pub mod events;
pub mod evidence;
pub mod factors;
pub mod files;
pub mod health;
pub mod jobs;
pub mod members;
pub mod metrics;
pub mod nodes;
pub mod operations;
pub mod operators;
pub mod overview;
pub mod passkeys;
pub mod people;
pub mod portal;
pub mod ports;
pub mod quotas;
pub mod reservations;
pub mod scim;
pub mod scopes;
pub mod secrets;
pub mod service_accounts;
pub mod sso;
pub mod storage;
pub mod storage_classes;
pub mod templates;
pub mod terminals;
pub mod volumes;
pub mod webhooks;

pub use berth_billing_types::{budgets, documents, invoices, ledger, offerings, payments, usage};
#[cfg(feature = "schema")]
use berth_values::patterns;
pub use berth_values::{Page, Sort, days, gangs, ids, lists, money, node_pools, paths, problems, rdma, time};

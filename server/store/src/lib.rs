//! The database of the portal and all of its SQL.
//!
//! A statement has one text for both engines, except statements with a list (`list_in`). A function takes a
//! [`Tx`], does one thing and returns wire types, rows or plain values. The callers group the changes of one
//! [`Db::write`].

#[macro_use]
mod macros;
mod connect;
mod tx;
mod writer;

pub mod accounts;
pub mod approvals;
pub mod attempts;
pub mod audit;
pub mod audit_marks;
pub mod budgets;
pub mod certificates;
pub mod dedicated;
pub mod factors;
pub mod files;
pub mod health;
pub mod invoices;
pub mod job_events;
pub mod jobs;
pub mod leases;
pub mod ledger;
pub mod members;
pub mod metrics_tokens;
pub mod nodes;
pub mod offerings;
pub mod operations;
pub mod orgs;
pub mod payments;
pub mod people;
pub mod quotas;
pub mod reservations;
pub mod secrets;
pub mod service_accounts;
pub mod sso;
pub mod stops;
pub mod storage;
pub mod terminals;
pub mod types;
pub mod underuse;
pub mod usage;
pub mod volumes;
pub mod webhooks;

pub use connect::{Db, ReadConn};
pub use tx::{RefusableWork, StoreError, Tx, Work, WriteError};

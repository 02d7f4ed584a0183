//! The only room that knows SQL. Rows never leave it; what comes out are wire types and plain values.
//!
//! One text of SQL serves both engines, but where it is given a list (`list_of`). A function here takes a
//! [`Tx`] and does one thing; a part of the portal decides which changes belong to one [`Db::write`].

#[macro_use]
mod macros;
mod connect;
mod tx;
mod writer;

pub mod accounts;
pub mod attempts;
pub mod budgets;
pub mod certificates;
pub mod files;
pub mod health;
pub mod invoices;
pub mod jobs;
pub mod leases;
pub mod ledger;
pub mod members;
pub mod metrics_tokens;
pub mod nodes;
pub mod offerings;
pub mod operations;
pub mod payments;
pub mod quotas;
pub mod reservations;
pub mod secrets;
pub mod stops;
pub mod terminals;
pub mod underuse;
pub mod usage;
pub mod volumes;
pub mod webhooks;

pub use connect::{Db, ReadConn};
pub use tx::{StoreError, Tx, Work};

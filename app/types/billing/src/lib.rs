//! Wire types of money: prices, the ledger, budgets, usage, invoices with their texts, and payments.
//!
//! `berth-types` names all of them, so other crates use only that one.

pub mod budgets;
#[cfg(feature = "columns")]
mod columns;
pub mod documents;
pub mod invoices;
pub mod ledger;
pub mod offerings;
pub mod payments;
pub mod usage;

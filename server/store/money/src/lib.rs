//! The statements about money: the ledger, budgets, usage, invoices and payments.

#[macro_use]
extern crate berth_database;

pub mod budgets;
pub mod invoices;
pub mod ledger;
pub mod payments;
pub mod usage;

use berth_database::{StoreError, Tx, types};

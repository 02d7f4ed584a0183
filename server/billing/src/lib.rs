//! Billing: the ledger, expiring credit, budgets, invoices, card payments, usage and reconciliation.

pub mod budgets;
mod credit_expiry;
mod invoices;
mod ledger;
mod payments;
mod pdf;
mod reconciliation;
mod usage;

pub use berth_stripe::Stripe;
pub use budgets::Budgets;
pub use credit_expiry::CreditExpiry;
pub use invoices::Invoices;
pub use ledger::{Ledger, parse_currency};
pub use payments::Payments;
pub use reconciliation::Reconciliations;
pub use usage::UsageReports;

/// The routes of each part, without their state.
pub mod routes {
    pub use crate::budgets::routes::routes as budgets;
    pub use crate::invoices::routes::routes as invoices;
    pub use crate::ledger::routes::routes as ledger;
    pub use crate::payments::routes::routes as payments;
    pub use crate::reconciliation::routes::routes as reconciliations;
    pub use crate::usage::routes::routes as usage;
}

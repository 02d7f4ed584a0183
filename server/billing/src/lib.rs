//! Billing: the ledger, expiring credit, budgets, invoices, card payments, usage and reconciliation.

pub mod budgets;
mod credit_expiry;
mod invoices;
mod ledger;
mod payments;
mod reconciliation;
mod usage;

pub use berth_stripe::Stripe;
pub use budgets::Budgets;
pub use credit_expiry::CreditExpiry;
pub use invoices::Invoices;
pub use ledger::Ledger;
pub use payments::Payments;
pub use reconciliation::Reconciliations;
pub use usage::UsageReports;

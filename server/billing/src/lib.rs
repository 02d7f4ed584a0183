//! Money: the ledger, credit that expires, budgets, invoices, payments, usage, and the proof that the ledger adds up.

pub mod budgets;
mod credit_expiry;
mod invoices;
mod ledger;
mod payments;
mod reconciliation;
mod stripe;
mod usage;

pub use budgets::Budgets;
pub use credit_expiry::CreditExpiry;
pub use invoices::Invoices;
pub use ledger::Ledger;
pub use payments::Payments;
pub use reconciliation::Reconciliations;
pub use stripe::Stripe;
pub use usage::UsageReports;

//! Invoices, and what the operator's invoices say.

use std::future::Future;

use berth_types::Page;
use berth_types::ids::{InvoiceId, OrgId};
use berth_types::invoices::{BillingSettings, Invoice};
use serde::{Deserialize, Serialize};

use super::{Answer, get, send};

/// A month that is to be billed.
#[derive(Serialize)]
struct Month {
    month: String,
}

/// What came of billing a month.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Billed {
    /// How many invoices were made.
    pub made: usize,
}

fn after(cursor: Option<String>) -> String {
    cursor.map_or_else(String::new, |c| format!("&cursor={c}"))
}

/// The invoices of an organization, newest first.
pub fn list(
    org: OrgId,
    cursor: Option<String>,
) -> impl Future<Output = Answer<Page<Invoice>>> + Send + 'static {
    get(format!("/orgs/{org}/invoices?limit=50{}", after(cursor)))
}

/// One invoice.
pub fn one(org: OrgId, id: InvoiceId) -> impl Future<Output = Answer<Invoice>> + Send + 'static {
    get(format!("/orgs/{org}/invoices/{id}"))
}

/// The invoices of everybody, newest first, for operators.
pub fn all(cursor: Option<String>) -> impl Future<Output = Answer<Page<Invoice>>> + Send + 'static {
    get(format!("/operator/invoices?limit=50{}", after(cursor)))
}

/// Bills a month that is over, such as `2026-10`.
pub fn bill(month: String) -> impl Future<Output = Answer<Billed>> + Send + 'static {
    let body = Month { month };
    async move { send("POST", "/operator/invoices", &body, None).await }
}

/// Records that an open invoice was paid; the same key does it once.
pub fn pay(id: InvoiceId, key: Option<String>) -> impl Future<Output = Answer<Invoice>> + Send + 'static {
    send("POST", format!("/operator/invoices/{id}/paid"), &(), key)
}

/// Takes an open invoice back by a credit note; the same key does it once.
pub fn take_back(
    id: InvoiceId,
    key: Option<String>,
) -> impl Future<Output = Answer<Invoice>> + Send + 'static {
    send("POST", format!("/operator/invoices/{id}/void"), &(), key)
}

/// What invoices say from now on.
pub fn settings() -> impl Future<Output = Answer<BillingSettings>> + Send + 'static {
    get("/operator/billing-settings")
}

/// Sets what invoices say from now on.
pub fn set_settings(
    input: &BillingSettings,
) -> impl Future<Output = Answer<BillingSettings>> + Send + 'static {
    send("PUT", "/operator/billing-settings", input, None)
}

//! Invoices and billing settings.

use std::future::Future;

use berth_types::Page;
use berth_types::change_requests::Outcome;
use berth_types::ids::{InvoiceId, OrgId};
use berth_types::invoices::{BillingDetails, BillingSettings, Invoice, MonthStatement};
use serde::{Deserialize, Serialize};

use super::escape::escaped;
use super::{Answer, get, send};

/// The month of a billing run.
#[derive(Serialize)]
struct Month {
    month: String,
}

/// The result of a billing run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Billed {
    /// The number of issued invoices.
    pub made: usize,
}

fn after(cursor: Option<String>) -> String {
    cursor.map_or_else(String::new, |c| format!("&cursor={c}"))
}

/// Lists the invoices of an organization, newest first.
pub fn list(
    org: OrgId,
    cursor: Option<String>,
) -> impl Future<Output = Answer<Page<Invoice>>> + Send + 'static {
    get(format!("/orgs/{org}/invoices?limit=50{}", after(cursor)))
}

/// Gets an invoice.
pub fn one(org: OrgId, id: InvoiceId) -> impl Future<Output = Answer<Invoice>> + Send + 'static {
    get(format!("/orgs/{org}/invoices/{id}"))
}

/// Gets the statement of a month such as `2026-10`, or (`None`) of the present month.
pub fn statement(
    org: OrgId,
    month: Option<String>,
) -> impl Future<Output = Answer<MonthStatement>> + Send + 'static {
    let query = month.map_or_else(String::new, |month| format!("?month={}", escaped(&month)));
    get(format!("/orgs/{org}/statement{query}"))
}

/// Returns the address of the statement of a month as CSV.
pub fn statement_csv_path(org: OrgId, month: &str) -> String {
    format!("/api/v1/orgs/{org}/statement?month={}&format=csv", escaped(month))
}

/// Returns the address of the statement of a month as PDF.
pub fn statement_pdf_path(org: OrgId, month: &str) -> String {
    format!("/api/v1/orgs/{org}/statement/pdf?month={}", escaped(month))
}

/// Returns the address of an invoice as PDF.
pub fn pdf_path(org: OrgId, id: InvoiceId) -> String {
    format!("/api/v1/orgs/{org}/invoices/{id}/pdf")
}

/// Returns the address of an invoice as CSV.
pub fn csv_path(org: OrgId, id: InvoiceId) -> String {
    format!("/api/v1/orgs/{org}/invoices/{id}?format=csv")
}

/// Gets the details of an organization on new invoices.
pub fn details(org: OrgId) -> impl Future<Output = Answer<BillingDetails>> + Send + 'static {
    get(format!("/orgs/{org}/billing-details"))
}

/// Sets the details of an organization on new invoices.
pub fn set_details(
    org: OrgId,
    input: &BillingDetails,
) -> impl Future<Output = Answer<BillingDetails>> + Send + 'static {
    send("PUT", format!("/orgs/{org}/billing-details"), input, None)
}

/// Lists the invoices of all organizations, newest first, for operators.
pub fn all(cursor: Option<String>) -> impl Future<Output = Answer<Page<Invoice>>> + Send + 'static {
    get(format!("/operator/invoices?limit=50{}", after(cursor)))
}

/// Issues the invoices of a past month, such as `2026-10`.
pub fn bill(month: String) -> impl Future<Output = Answer<Billed>> + Send + 'static {
    let body = Month { month };
    async move { send("POST", "/operator/invoices", &body, None).await }
}

/// Marks an open invoice as paid. Repeated requests with the same key do it once.
pub fn pay(
    id: InvoiceId,
    key: Option<String>,
) -> impl Future<Output = Answer<Outcome<Invoice>>> + Send + 'static {
    send("POST", format!("/operator/invoices/{id}/paid"), &(), key)
}

/// Voids an open invoice by a credit note. Repeated requests with the same key do it once.
pub fn void(
    id: InvoiceId,
    key: Option<String>,
) -> impl Future<Output = Answer<Outcome<Invoice>>> + Send + 'static {
    send("POST", format!("/operator/invoices/{id}/void"), &(), key)
}

/// Gets the billing settings of future invoices.
pub fn settings() -> impl Future<Output = Answer<BillingSettings>> + Send + 'static {
    get("/operator/billing-settings")
}

/// Sets the billing settings of future invoices.
pub fn set_settings(
    input: &BillingSettings,
) -> impl Future<Output = Answer<BillingSettings>> + Send + 'static {
    send("PUT", "/operator/billing-settings", input, None)
}

//! Paying by card.

use std::future::Future;

use berth_types::Page;
use berth_types::ids::{InvoiceId, OrgId};
use berth_types::payments::{AutoRecharge, NewTopUp, PayHere, Payment, PaymentSettings};
use serde::Deserialize;

use super::{Answer, get, send};

/// An address of Stripe's to go to.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct There {
    /// With its scheme.
    pub url: String,
}

/// How an organization can pay, and whether at all.
pub fn settings(org: OrgId) -> impl Future<Output = Answer<PaymentSettings>> + Send + 'static {
    get(format!("/orgs/{org}/payment-settings"))
}

/// The newest payments of an organization, whatever became of them.
pub fn list(org: OrgId) -> impl Future<Output = Answer<Page<Payment>>> + Send + 'static {
    get(format!("/orgs/{org}/top-ups?limit=50"))
}

/// Begins a payment for the balance; nothing is charged until somebody pays at the answer's address. The same
/// key begins one.
pub fn top_up(
    org: OrgId,
    input: &NewTopUp,
    key: Option<String>,
) -> impl Future<Output = Answer<PayHere>> + Send + 'static {
    send("POST", format!("/orgs/{org}/top-ups"), input, key)
}

/// Begins the payment of an open invoice; the same key begins one.
pub fn pay_invoice(
    org: OrgId,
    id: InvoiceId,
    key: Option<String>,
) -> impl Future<Output = Answer<PayHere>> + Send + 'static {
    send("POST", format!("/orgs/{org}/invoices/{id}/pay"), &(), key)
}

/// Sets when the saved card is charged by itself.
pub fn set_recharge(
    org: OrgId,
    input: &AutoRecharge,
) -> impl Future<Output = Answer<PaymentSettings>> + Send + 'static {
    send("PUT", format!("/orgs/{org}/auto-recharge"), input, None)
}

/// Opens Stripe's own page with receipts and cards.
pub fn portal(org: OrgId) -> impl Future<Output = Answer<There>> + Send + 'static {
    send("POST", format!("/orgs/{org}/billing-portal"), &(), None)
}

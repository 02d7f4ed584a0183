//! Card payments.

use std::future::Future;

use berth_types::Page;
use berth_types::ids::{InvoiceId, OrgId};
use berth_types::payments::{AutoRecharge, NewTopUp, PayHere, Payment, PaymentSettings};
use serde::Deserialize;

use super::{Answer, get, send};

/// The address of a page of Stripe.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct StripePage {
    /// The absolute URL.
    pub url: String,
}

/// Gets the payment settings of an organization.
pub fn settings(org: OrgId) -> impl Future<Output = Answer<PaymentSettings>> + Send + 'static {
    get(format!("/orgs/{org}/payment-settings"))
}

/// Lists a page of the payments of an organization, newest first, in any state.
pub fn list(
    org: OrgId,
    cursor: Option<String>,
) -> impl Future<Output = Answer<Page<Payment>>> + Send + 'static {
    let cursor = cursor.map_or_else(String::new, |c| format!("&cursor={c}"));
    get(format!("/orgs/{org}/top-ups?limit=50{cursor}"))
}

/// Starts a payment for the balance. The charge follows on the page of the answer. Repeated requests with the
/// same key start one payment.
pub fn top_up(
    org: OrgId,
    input: &NewTopUp,
    key: Option<String>,
) -> impl Future<Output = Answer<PayHere>> + Send + 'static {
    send("POST", format!("/orgs/{org}/top-ups"), input, key)
}

/// Starts the payment of an open invoice. Repeated requests with the same key start one payment.
pub fn pay_invoice(
    org: OrgId,
    id: InvoiceId,
    key: Option<String>,
) -> impl Future<Output = Answer<PayHere>> + Send + 'static {
    send("POST", format!("/orgs/{org}/invoices/{id}/pay"), &(), key)
}

/// Sets the rule of the automatic recharge.
pub fn set_recharge(
    org: OrgId,
    input: &AutoRecharge,
) -> impl Future<Output = Answer<PaymentSettings>> + Send + 'static {
    send("PUT", format!("/orgs/{org}/auto-recharge"), input, None)
}

/// Gets the page of Stripe with cards and receipts.
pub fn portal(org: OrgId) -> impl Future<Output = Answer<StripePage>> + Send + 'static {
    send("POST", format!("/orgs/{org}/billing-portal"), &(), None)
}

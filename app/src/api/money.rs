//! Offerings, prices, balance, ledger, and whether the books are right.

use std::future::Future;

use berth_types::Page;
use berth_types::ids::OrgId;
use berth_types::ledger::{Balance, CreditLimit, NewCredit, NewDebit, Reconciliation, Transfer};
use berth_types::offerings::{NewPrice, Offering, PricePreview, PriceVersion};

use super::escape::escaped;
use super::{Answer, get, list_all, send};

/// What can be ordered, with prices and what is free.
pub fn offerings() -> impl Future<Output = Answer<Page<Offering>>> + Send + 'static {
    list_all("/offerings".to_owned())
}

/// What an organization has, holds and spends.
pub fn balance(org: OrgId) -> impl Future<Output = Answer<Balance>> + Send + 'static {
    get(format!("/orgs/{org}/balance"))
}

/// The ledger, newest first.
pub fn transfers(
    org: OrgId,
    cursor: Option<String>,
) -> impl Future<Output = Answer<Page<Transfer>>> + Send + 'static {
    let cursor = cursor.map_or_else(String::new, |c| format!("&cursor={c}"));
    get(format!("/orgs/{org}/transfers?limit=50{cursor}"))
}

/// Sets a price as a new version.
pub fn set_price(input: &NewPrice) -> impl Future<Output = Answer<Offering>> + Send + 'static {
    send("POST", "/operator/prices", input, None)
}

/// Gives an organization credit; the same key never gives it twice.
pub fn grant(
    org: OrgId,
    input: &NewCredit,
    key: Option<String>,
) -> impl Future<Output = Answer<Balance>> + Send + 'static {
    send("POST", format!("/operator/orgs/{org}/credits"), input, key)
}

/// Every version of an offering's price, newest first, for operators.
pub fn price_versions(slug: &str) -> impl Future<Output = Answer<Page<PriceVersion>>> + Send + 'static {
    list_all(format!("/operator/prices?offering={}", escaped(slug)))
}

/// What a price would have cost over the last thirty days; sets nothing.
pub fn preview_price(input: &NewPrice) -> impl Future<Output = Answer<PricePreview>> + Send + 'static {
    send("POST", "/operator/prices?preview=true", input, None)
}

/// Takes money back from an organization; the same key never takes it twice.
pub fn take_back(
    org: OrgId,
    input: &NewDebit,
    key: Option<String>,
) -> impl Future<Output = Answer<Balance>> + Send + 'static {
    send("POST", format!("/operator/orgs/{org}/debits"), input, key)
}

/// Sets how far below nothing an organization may go.
pub fn set_credit_limit(
    org: OrgId,
    input: &CreditLimit,
) -> impl Future<Output = Answer<Balance>> + Send + 'static {
    send("PUT", format!("/operator/orgs/{org}/credit-limit"), input, None)
}

/// Whether the books were right when they were last looked at, for operators.
pub fn books() -> impl Future<Output = Answer<Reconciliation>> + Send + 'static {
    get("/operator/reconciliation")
}

/// Looks anew whether the books are right.
pub fn look_at_books() -> impl Future<Output = Answer<Reconciliation>> + Send + 'static {
    send("POST", "/operator/reconciliation", &(), None)
}

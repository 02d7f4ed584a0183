//! Offerings, prices, balance, ledger and reconciliation.

use std::future::Future;

use berth_types::Page;
use berth_types::change_requests::Outcome;
use berth_types::ids::OrgId;
use berth_types::ledger::{Balance, CreditLimit, NewCredit, NewDebit, Reconciliation, Transfer};
use berth_types::offerings::{NewPrice, Offering, PricePreview, PriceVersion};

use super::escape::escaped;
use super::{Answer, get, list_all, send};

/// Lists the offerings with prices and with the free devices of the nodes of all organizations.
pub fn offerings() -> impl Future<Output = Answer<Page<Offering>>> + Send + 'static {
    list_all("/offerings".to_owned())
}

/// Lists the offerings with prices and with the free devices of the nodes that an organization may use.
pub fn org_offerings(org: OrgId) -> impl Future<Output = Answer<Page<Offering>>> + Send + 'static {
    list_all(format!("/orgs/{org}/offerings"))
}

/// Gets the balance of an organization.
pub fn balance(org: OrgId) -> impl Future<Output = Answer<Balance>> + Send + 'static {
    get(format!("/orgs/{org}/balance"))
}

/// Lists the transfers of an organization, newest first.
pub fn transfers(
    org: OrgId,
    cursor: Option<String>,
) -> impl Future<Output = Answer<Page<Transfer>>> + Send + 'static {
    let cursor = cursor.map_or_else(String::new, |c| format!("&cursor={c}"));
    get(format!("/orgs/{org}/transfers?limit=50{cursor}"))
}

/// Sets a price as a new version of the offering.
pub fn set_price(input: &NewPrice) -> impl Future<Output = Answer<Outcome<Offering>>> + Send + 'static {
    send("POST", "/operator/prices", input, None)
}

/// Withdraws a price that has not begun.
pub fn withdraw_price(
    price: &PriceVersion,
) -> impl Future<Output = Answer<Outcome<Offering>>> + Send + 'static {
    let path = format!("/operator/prices/{}/{}", escaped(&price.offering), price.version);
    send("DELETE", path, &(), None)
}

/// Grants credit to an organization. Repeated requests with the same key grant it once.
pub fn grant(
    org: OrgId,
    input: &NewCredit,
    key: Option<String>,
) -> impl Future<Output = Answer<Outcome<Balance>>> + Send + 'static {
    send("POST", format!("/operator/orgs/{org}/credits"), input, key)
}

/// Lists a page of the price versions of an offering, newest first, for operators.
pub fn price_versions(
    slug: &str,
    cursor: Option<String>,
) -> impl Future<Output = Answer<Page<PriceVersion>>> + Send + 'static {
    let cursor = cursor.map_or_else(String::new, |c| format!("&cursor={c}"));
    get(format!("/operator/prices?limit=50&offering={}{cursor}", escaped(slug)))
}

/// Lists the prices of all offerings that have not begun, by offering and begin, for operators.
pub fn planned_prices() -> impl Future<Output = Answer<Page<PriceVersion>>> + Send + 'static {
    list_all("/operator/prices/planned".to_owned())
}

/// Gets the effect of a price on the last 30 days without setting it.
pub fn preview_price(input: &NewPrice) -> impl Future<Output = Answer<PricePreview>> + Send + 'static {
    send("POST", "/operator/prices?preview=true", input, None)
}

/// Debits an organization. Repeated requests with the same key debit it once.
pub fn debit(
    org: OrgId,
    input: &NewDebit,
    key: Option<String>,
) -> impl Future<Output = Answer<Outcome<Balance>>> + Send + 'static {
    send("POST", format!("/operator/orgs/{org}/debits"), input, key)
}

/// Sets the credit limit of an organization.
pub fn set_credit_limit(
    org: OrgId,
    input: &CreditLimit,
) -> impl Future<Output = Answer<Outcome<Balance>>> + Send + 'static {
    send("PUT", format!("/operator/orgs/{org}/credit-limit"), input, None)
}

/// Gets the result of the latest reconciliation, for operators.
pub fn reconciliation() -> impl Future<Output = Answer<Reconciliation>> + Send + 'static {
    get("/operator/reconciliation")
}

/// Runs a reconciliation.
pub fn run_reconciliation() -> impl Future<Output = Answer<Reconciliation>> + Send + 'static {
    send("POST", "/operator/reconciliation", &(), None)
}

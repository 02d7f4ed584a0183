//! Offerings, prices, balance and ledger.

use std::future::Future;

use berth_types::Page;
use berth_types::ids::OrgId;
use berth_types::ledger::{Balance, NewCredit, Transfer};
use berth_types::offerings::{NewPrice, Offering};

use super::{Answer, get, send};

/// What can be ordered, with prices and what is free.
pub fn offerings() -> impl Future<Output = Answer<Page<Offering>>> + Send + 'static {
    get("/offerings")
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

/// Gives an organization credit.
pub fn grant(org: OrgId, input: &NewCredit) -> impl Future<Output = Answer<Balance>> + Send + 'static {
    send("POST", format!("/operator/orgs/{org}/credits"), input, None)
}

//! Limits, requests for more, and the record of what was done on purpose.

use std::cmp::Reverse;
use std::future::Future;

use berth_types::Page;
use berth_types::ids::{OrgId, QuotaRequestId};
use berth_types::quotas::{
    AuditEvent, DecideQuotaRequest, Limits, NewQuotaRequest, Quota, QuotaRequest, QuotaRequestState,
};

use super::{Answer, list_all, send};

/// What an organization may use, and uses.
pub fn get(org: OrgId) -> impl Future<Output = Answer<Quota>> + Send + 'static {
    super::get(format!("/orgs/{org}/quota"))
}

/// What an organization asked for, what waits first.
pub fn requests(org: OrgId) -> impl Future<Output = Answer<Page<QuotaRequest>>> + Send + 'static {
    waiting_first(format!("/orgs/{org}/quota-requests"))
}

/// All requests of a list that wait, then the newest of the others.
fn waiting_first(path: String) -> impl Future<Output = Answer<Page<QuotaRequest>>> + Send + 'static {
    let waiting = list_all::<QuotaRequest>(format!("{path}?state=pending"));
    let newest = super::get::<Page<QuotaRequest>>(format!("{path}?limit=200"));
    async move {
        let (mut all, newest) = (waiting.await?, newest.await?);
        // A request that was answered between the two reads is in both; the later read is right.
        all.items.retain(|request| newest.items.iter().all(|later| later.id != request.id));
        all.items.extend(newest.items);
        all.items.sort_by_key(|request| (request.state != QuotaRequestState::Pending, Reverse(request.id)));
        Ok(all)
    }
}

/// Asks the operator for other limits; the same key asks once.
pub fn ask(
    org: OrgId,
    input: &NewQuotaRequest,
    key: Option<String>,
) -> impl Future<Output = Answer<QuotaRequest>> + Send + 'static {
    send("POST", format!("/orgs/{org}/quota-requests"), input, key)
}

/// The limits of every organization without its own, for operators.
pub fn defaults() -> impl Future<Output = Answer<Limits>> + Send + 'static {
    super::get("/operator/quota")
}

/// Sets the limits of every organization without its own.
pub fn set_defaults(input: &Limits) -> impl Future<Output = Answer<Limits>> + Send + 'static {
    send("PUT", "/operator/quota", input, None)
}

/// What any organization may use, and uses, for operators.
pub fn of_any(org: OrgId) -> impl Future<Output = Answer<Quota>> + Send + 'static {
    super::get(format!("/operator/orgs/{org}/quota"))
}

/// Gives an organization limits of its own.
pub fn set(org: OrgId, input: &Limits) -> impl Future<Output = Answer<Quota>> + Send + 'static {
    send("PUT", format!("/operator/orgs/{org}/quota"), input, None)
}

/// Gives an organization the limits of every other one again.
pub fn clear(org: OrgId) -> impl Future<Output = Answer<Quota>> + Send + 'static {
    send("DELETE", format!("/operator/orgs/{org}/quota"), &(), None)
}

/// What all organizations asked for, what waits first, for operators.
pub fn all_requests() -> impl Future<Output = Answer<Page<QuotaRequest>>> + Send + 'static {
    waiting_first("/operator/quota-requests".to_owned())
}

/// Grants or declines a request.
pub fn decide(
    id: QuotaRequestId,
    input: &DecideQuotaRequest,
) -> impl Future<Output = Answer<QuotaRequest>> + Send + 'static {
    send("POST", format!("/operator/quota-requests/{id}"), input, None)
}

/// What was done in an organization lately, newest first, for its owners.
pub fn changes(org: OrgId) -> impl Future<Output = Answer<Page<AuditEvent>>> + Send + 'static {
    super::get(format!("/orgs/{org}/audit-events?limit=10"))
}

/// What was done anywhere, newest first, for operators.
pub fn audit(cursor: Option<String>) -> impl Future<Output = Answer<Page<AuditEvent>>> + Send + 'static {
    let cursor = cursor.map_or_else(String::new, |c| format!("&cursor={c}"));
    super::get(format!("/operator/audit-events?limit=50{cursor}"))
}

//! Limits, requests for other limits, and audit events.

use std::cmp::Reverse;
use std::future::Future;

use berth_types::Page;
use berth_types::change_requests::Outcome;
use berth_types::ids::{OrgId, QuotaRequestId};
use berth_types::quotas::{
    AuditEvent, DecideQuotaRequest, Limits, NewQuotaRequest, Quota, QuotaRequest, QuotaRequestState,
};
use futures::try_join;

use super::escape::escaped;
use super::{Answer, list_all, send};

/// Gets the limits and the use of an organization.
pub fn get(org: OrgId) -> impl Future<Output = Answer<Quota>> + Send + 'static {
    super::get(format!("/orgs/{org}/quota"))
}

/// Lists the limit requests of an organization, pending ones first.
pub fn requests(org: OrgId) -> impl Future<Output = Answer<Page<QuotaRequest>>> + Send + 'static {
    pending_first(format!("/orgs/{org}/quota-requests"))
}

/// Lists all pending requests, then the newest of the others.
fn pending_first(path: String) -> impl Future<Output = Answer<Page<QuotaRequest>>> + Send + 'static {
    let pending = list_all::<QuotaRequest>(format!("{path}?state=pending"));
    let newest = super::get::<Page<QuotaRequest>>(format!("{path}?limit=200"));
    async move {
        let (mut all, newest) = try_join!(pending, newest)?;
        // A request in both lists may have been decided between the two reads: only the newest have its decision.
        all.items.retain(|request| newest.items.iter().all(|later| later.id != request.id));
        all.items.extend(newest.items);
        all.items.sort_by_key(|request| (request.state != QuotaRequestState::Pending, Reverse(request.id)));
        Ok(all)
    }
}

/// Creates a limit request. Repeated requests with the same key create one.
pub fn create_request(
    org: OrgId,
    input: &NewQuotaRequest,
    key: Option<String>,
) -> impl Future<Output = Answer<QuotaRequest>> + Send + 'static {
    send("POST", format!("/orgs/{org}/quota-requests"), input, key)
}

/// Gets the default limits, for operators.
pub fn defaults() -> impl Future<Output = Answer<Limits>> + Send + 'static {
    super::get("/operator/quota")
}

/// Sets the default limits.
pub fn set_defaults(input: &Limits) -> impl Future<Output = Answer<Limits>> + Send + 'static {
    send("PUT", "/operator/quota", input, None)
}

/// Gets the limits and the use of any organization, for operators.
pub fn get_any(org: OrgId) -> impl Future<Output = Answer<Quota>> + Send + 'static {
    super::get(format!("/operator/orgs/{org}/quota"))
}

/// Sets the limits of an organization.
pub fn set(org: OrgId, input: &Limits) -> impl Future<Output = Answer<Quota>> + Send + 'static {
    send("PUT", format!("/operator/orgs/{org}/quota"), input, None)
}

/// Returns an organization to the default limits.
pub fn clear(org: OrgId) -> impl Future<Output = Answer<Quota>> + Send + 'static {
    send("DELETE", format!("/operator/orgs/{org}/quota"), &(), None)
}

/// Lists the limit requests of all organizations, pending ones first, for operators.
pub fn all_requests() -> impl Future<Output = Answer<Page<QuotaRequest>>> + Send + 'static {
    pending_first("/operator/quota-requests".to_owned())
}

/// Grants or declines a limit request.
pub fn decide(
    id: QuotaRequestId,
    input: &DecideQuotaRequest,
) -> impl Future<Output = Answer<Outcome<QuotaRequest>>> + Send + 'static {
    send("POST", format!("/operator/quota-requests/{id}"), input, None)
}

/// Lists the latest 10 audit events of an organization, newest first, for its owners.
pub fn changes(org: OrgId) -> impl Future<Output = Answer<Page<AuditEvent>>> + Send + 'static {
    super::get(format!("/orgs/{org}/audit-events?limit=10"))
}

/// Returns the address of a file with all audit events of an organization, in the format `csv` or `ndjson`.
pub fn audit_file(org: OrgId, format: &str) -> String {
    format!("/api/v1/orgs/{org}/audit-events?format={format}")
}

/// Lists the audit events of all organizations by a filter query, newest first, for operators.
pub fn audit(
    query: &str,
    cursor: Option<String>,
) -> impl Future<Output = Answer<Page<AuditEvent>>> + Send + 'static + use<> {
    let cursor = cursor.map_or_else(String::new, |c| format!("&cursor={c}"));
    let joint = if query.is_empty() { "" } else { "&" };
    super::get(format!("/operator/audit-events?limit=50{joint}{query}{cursor}"))
}

/// Lists the latest 20 audit events about one object, newest first, for operators.
pub fn audit_about(subject: String) -> impl Future<Output = Answer<Page<AuditEvent>>> + Send + 'static {
    super::get(format!("/operator/audit-events?limit=20&subject={}", escaped(&subject)))
}

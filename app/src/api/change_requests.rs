//! Change requests of operators, and the rule for a second operator.

use std::future::Future;

use berth_types::Page;
use berth_types::change_requests::{ChangePolicy, ChangeRequest, Outcome, RejectChange};
use berth_types::ids::ChangeRequestId;

use super::{Answer, get, list_all, send};

/// Lists a page of the change requests, newest first.
pub fn list(cursor: Option<String>) -> impl Future<Output = Answer<Page<ChangeRequest>>> + Send + 'static {
    let cursor = cursor.map_or_else(String::new, |c| format!("&cursor={c}"));
    get(format!("/operator/change-requests?limit=50{cursor}"))
}

/// Lists all change requests that wait for a second operator.
pub fn pending() -> impl Future<Output = Answer<Page<ChangeRequest>>> + Send + 'static {
    list_all("/operator/change-requests?pending=true".to_owned())
}

/// Approves a change request of another operator. A repetition has the same answer.
pub fn approve(id: ChangeRequestId) -> impl Future<Output = Answer<ChangeRequest>> + Send + 'static {
    send("POST", format!("/operator/change-requests/{id}/approve"), &(), None)
}

/// Rejects a change request of another operator.
pub fn reject(
    id: ChangeRequestId,
    input: &RejectChange,
) -> impl Future<Output = Answer<ChangeRequest>> + Send + 'static {
    send("POST", format!("/operator/change-requests/{id}/reject"), input, None)
}

/// Withdraws an own change request.
pub fn withdraw(id: ChangeRequestId) -> impl Future<Output = Answer<ChangeRequest>> + Send + 'static {
    send("POST", format!("/operator/change-requests/{id}/withdraw"), &(), None)
}

/// Gets the rule for a second operator.
pub fn policy() -> impl Future<Output = Answer<ChangePolicy>> + Send + 'static {
    get("/operator/change-policy")
}

/// Sets the rule for a second operator. Its end waits for another operator.
pub fn set_policy(
    input: &ChangePolicy,
) -> impl Future<Output = Answer<Outcome<ChangePolicy>>> + Send + 'static {
    send("PUT", "/operator/change-policy", input, None)
}

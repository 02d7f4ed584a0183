//! Inference keys of an organization.

use std::future::Future;

use berth_service_types::keys::{InferenceKey, NewInferenceKey};
use berth_types::Page;
use berth_types::ids::{InferenceKeyId, OrgId};

use super::{Answer, list_all, send};

/// Lists the inference keys of an organization, without secrets.
pub fn list(org: OrgId) -> impl Future<Output = Answer<Page<InferenceKey>>> + Send + 'static {
    list_all(format!("/orgs/{org}/inference-keys"))
}

/// Creates a key; only this answer has its secret. Repeated requests with the same idempotency key create one key.
pub fn create(
    org: OrgId,
    input: &NewInferenceKey,
    key: Option<String>,
) -> impl Future<Output = Answer<InferenceKey>> + Send + 'static {
    send("POST", format!("/orgs/{org}/inference-keys"), input, key)
}

/// Revokes a key.
pub fn revoke(org: OrgId, key: InferenceKeyId) -> impl Future<Output = Answer<()>> + Send + 'static {
    send("DELETE", format!("/orgs/{org}/inference-keys/{key}"), &(), None)
}

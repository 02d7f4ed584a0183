//! Secrets of an organization. Answers never contain values.

use std::future::Future;

use berth_types::Page;
use berth_types::ids::OrgId;
use berth_types::secrets::{PutSecret, Secret};

use super::escape::escaped;
use super::{Answer, list_all, send};

/// Lists the secrets of an organization by name.
pub fn list(org: OrgId) -> impl Future<Output = Answer<Page<Secret>>> + Send + 'static {
    list_all(format!("/orgs/{org}/secrets"))
}

/// Creates a secret, or replaces its value.
pub fn put(
    org: OrgId,
    name: &str,
    input: &PutSecret,
) -> impl Future<Output = Answer<Secret>> + Send + 'static {
    send("PUT", format!("/orgs/{org}/secrets/{}", escaped(name)), input, None)
}

/// Deletes a secret. Running jobs keep the value.
pub fn delete(org: OrgId, name: &str) -> impl Future<Output = Answer<()>> + Send + 'static {
    send("DELETE", format!("/orgs/{org}/secrets/{}", escaped(name)), &(), None)
}

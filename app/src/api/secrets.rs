//! What an organization keeps from everybody but its jobs. No answer has a value.

use std::future::Future;

use berth_types::Page;
use berth_types::ids::OrgId;
use berth_types::secrets::{PutSecret, Secret};

use super::escape::escaped;
use super::{Answer, list_all, send};

/// The secrets of an organization by name.
pub fn list(org: OrgId) -> impl Future<Output = Answer<Page<Secret>>> + Send + 'static {
    list_all(format!("/orgs/{org}/secrets"))
}

/// Makes a secret, or gives it a new value.
pub fn put(
    org: OrgId,
    name: &str,
    input: &PutSecret,
) -> impl Future<Output = Answer<Secret>> + Send + 'static {
    send("PUT", format!("/orgs/{org}/secrets/{}", escaped(name)), input, None)
}

/// Takes a secret away from jobs that have not started.
pub fn delete(org: OrgId, name: &str) -> impl Future<Output = Answer<()>> + Send + 'static {
    send("DELETE", format!("/orgs/{org}/secrets/{}", escaped(name)), &(), None)
}

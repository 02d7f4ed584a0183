//! Stored bytes of an organization, and the retention of its ended jobs.

use std::future::Future;

use berth_types::ids::OrgId;
use berth_types::storage::{OrgStorage, Retention, SetRetention};

use super::{Answer, get, send};

/// Gets the stored bytes of an organization and their limit.
pub fn usage(org: OrgId) -> impl Future<Output = Answer<OrgStorage>> + Send + 'static {
    get(format!("/orgs/{org}/storage"))
}

/// Gets the retention of an organization.
pub fn retention(org: OrgId) -> impl Future<Output = Answer<Retention>> + Send + 'static {
    get(format!("/orgs/{org}/retention"))
}

/// Sets the retention of an organization.
pub fn set_retention(
    org: OrgId,
    input: &SetRetention,
) -> impl Future<Output = Answer<Retention>> + Send + 'static {
    send("PUT", format!("/orgs/{org}/retention"), input, None)
}

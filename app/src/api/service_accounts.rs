//! Service accounts of an organization.

use std::future::Future;

use berth_types::Page;
use berth_types::ids::{OrgId, UserId};
use berth_types::service_accounts::{NewServiceAccount, PatchServiceAccount, ServiceAccount};

use super::{Answer, list_all, send};

/// Lists the service accounts of an organization, newest first.
pub fn list(org: OrgId) -> impl Future<Output = Answer<Page<ServiceAccount>>> + Send + 'static {
    list_all(format!("/orgs/{org}/service-accounts"))
}

/// Creates a service account. Repeated requests with the same key create one account.
pub fn create(
    org: OrgId,
    input: &NewServiceAccount,
    key: Option<String>,
) -> impl Future<Output = Answer<ServiceAccount>> + Send + 'static {
    send("POST", format!("/orgs/{org}/service-accounts"), input, key)
}

/// Disables or enables a service account.
pub fn set_disabled(
    org: OrgId,
    account: UserId,
    disabled: bool,
) -> impl Future<Output = Answer<ServiceAccount>> + Send + 'static {
    let body = PatchServiceAccount { disabled };
    async move { send("PATCH", format!("/orgs/{org}/service-accounts/{account}"), &body, None).await }
}

/// Deletes a service account with its tokens.
pub fn delete(org: OrgId, account: UserId) -> impl Future<Output = Answer<()>> + Send + 'static {
    send("DELETE", format!("/orgs/{org}/service-accounts/{account}"), &(), None)
}

//! Storage classes: file systems of the nodes for volumes.

use std::future::Future;

use berth_types::Page;
use berth_types::ids::OrgId;
use berth_types::storage_classes::{OrgStorageClass, StorageClass};

use super::escape::escaped;
use super::{Answer, list_all, send};

fn base(name: &str) -> String {
    format!("/operator/storage-classes/{}", escaped(name))
}

/// Lists the storage classes by name, for operators.
pub fn list() -> impl Future<Output = Answer<Page<StorageClass>>> + Send + 'static {
    list_all("/operator/storage-classes".to_owned())
}

/// Lists the storage classes of an organization by name.
pub fn list_of_org(
    org: OrgId,
) -> impl Future<Output = Answer<Page<OrgStorageClass>>> + Send + 'static + use<> {
    list_all(format!("/orgs/{org}/storage-classes"))
}

/// Declares a storage class.
pub fn declare(name: &str) -> impl Future<Output = Answer<StorageClass>> + Send + 'static + use<> {
    send("PUT", base(name), &(), None)
}

/// Deletes a storage class without volumes.
pub fn delete(name: &str) -> impl Future<Output = Answer<()>> + Send + 'static + use<> {
    send("DELETE", base(name), &(), None)
}

/// Grants a storage class to an organization.
pub fn grant(name: &str, org: OrgId) -> impl Future<Output = Answer<StorageClass>> + Send + 'static + use<> {
    send("PUT", format!("{}/orgs/{org}", base(name)), &(), None)
}

/// Takes a storage class from an organization.
pub fn revoke(name: &str, org: OrgId) -> impl Future<Output = Answer<StorageClass>> + Send + 'static + use<> {
    send("DELETE", format!("{}/orgs/{org}", base(name)), &(), None)
}

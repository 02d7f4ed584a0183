//! Types of storage classes: file systems of the nodes for volumes.

use serde::{Deserialize, Serialize};

use crate::ids::OrgId;
use crate::time::Timestamp;

/// A storage class: a name that nodes announce for a file system of theirs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StorageClass {
    /// The name of the class, as in `--host-mount` of the workers.
    pub name: String,
    /// The number of approved nodes that announced the class at their last connection.
    pub nodes: u32,
    /// The organizations that may create volumes of the class, by name, at most 500.
    pub orgs: Vec<StorageClassOrg>,
    /// The name of the operator who declared the class.
    pub created_by: String,
    /// The time of the declaration.
    pub created_at: Timestamp,
}

/// An organization with a storage class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StorageClassOrg {
    /// The id of the organization.
    pub org: OrgId,
    /// The name of the organization.
    pub name: String,
}

/// A storage class that an organization may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OrgStorageClass {
    /// The name of the class, for `class` of a new volume.
    pub name: String,
}

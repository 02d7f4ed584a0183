//! Types of service accounts.

use serde::{Deserialize, Serialize};

use crate::accounts::Role;
use crate::ids::UserId;
use crate::time::Timestamp;

/// The most service accounts of an organization.
pub const MAX_SERVICE_ACCOUNTS: i64 = 100;

/// An account of an organization for programs, without a person. It has tokens, and neither a sign-in nor mail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ServiceAccount {
    /// The id of the account as a user.
    pub id: UserId,
    /// The name, which its jobs show.
    pub name: String,
    /// The role in the organization.
    pub role: Role,
    /// The name of its creator.
    pub created_by: String,
    /// The time of the creation.
    pub created_at: Timestamp,
    /// The time since which its tokens are refused; absent for an enabled account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disabled_at: Option<Timestamp>,
    /// The number of its tokens.
    pub tokens: i64,
}

/// The body of a new service account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewServiceAccount {
    /// 1 to 100 printable characters on one line, not only white space.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 100), regex(pattern = crate::patterns::NAME))
    )]
    pub name: String,
    /// The role in the organization, other than `owner`.
    pub role: Role,
}

/// The body of a change of a service account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PatchServiceAccount {
    /// True to refuse its tokens.
    pub disabled: bool,
}

//! Who is in an organization, and who is invited into it.

use serde::{Deserialize, Serialize};

use crate::accounts::{Org, Role};
use crate::ids::{InvitationId, UserId};
use crate::time::Timestamp;

/// Somebody in an organization.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Member {
    pub user: UserId,
    pub name: String,
    pub email: String,
    pub role: Role,
    pub joined_at: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ChangeMember {
    pub role: Role,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewInvitation {
    pub email: String,
    pub role: Role,
}

/// An invitation that nobody has accepted yet. Its secret is only in its link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Invitation {
    pub id: InvitationId,
    pub email: String,
    pub role: Role,
    pub created_at: Timestamp,
    /// The name of who invited.
    pub created_by: String,
    /// From then on its link does nothing, until it is sent again.
    pub expires_at: Timestamp,
    /// When its mail was handed on; absent when that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mailed_at: Option<Timestamp>,
}

/// An invitation that was just made, or made anew.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SentInvitation {
    pub invitation: Invitation,
    /// The link to pass on, this one time, and only where the portal has no mail server: elsewhere the
    /// link goes to the address alone, so that using it shows whose the address is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
}

/// Asks what an invitation is about.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LookAtInvitation {
    /// What follows the `#` of its link.
    pub token: String,
}

/// What whoever holds the link of an invitation may know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InvitationInfo {
    /// The name of the organization.
    pub organization: String,
    pub email: String,
    pub role: Role,
    pub expires_at: Timestamp,
}

/// Accepts an invitation: as whoever is signed in, or with a name and a password as somebody new.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AcceptInvitation {
    /// What follows the `#` of its link.
    pub token: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
}

/// What an accepted invitation came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Joined {
    pub organization: Org,
    pub role: Role,
}

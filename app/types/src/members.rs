//! Types of members and invitations of an organization.

use serde::{Deserialize, Serialize};

use crate::accounts::{Org, Role};
use crate::ids::{InvitationId, UserId};
use crate::time::Timestamp;

/// A user with a role in an organization.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Member {
    /// The id of the user.
    pub user: UserId,
    /// The user's name.
    pub name: String,
    /// The user's e-mail address.
    pub email: String,
    /// The role in the organization.
    pub role: Role,
    /// The start of the membership.
    pub joined_at: Timestamp,
}

/// The body of a change of a member's role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ChangeMember {
    /// The new role.
    pub role: Role,
}

/// The body of a new invitation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewInvitation {
    /// One address without a display name, at most 254 bytes with the white space around it.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 3, max = 254), regex(pattern = crate::patterns::PADDED_EMAIL))
    )]
    pub email: String,
    /// The role of the new member.
    pub role: Role,
}

/// An open invitation, without the secret of its link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Invitation {
    /// The id of the invitation.
    pub id: InvitationId,
    /// The invited e-mail address.
    pub email: String,
    /// The role of the new member.
    pub role: Role,
    /// The time of the creation.
    pub created_at: Timestamp,
    /// The name of the inviting user.
    pub created_by: String,
    /// The expiry of the link. A new mail sets a new expiry.
    pub expires_at: Timestamp,
    /// The time of the mail's hand-over to the mail server; absent after a failure, and on a portal without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mailed_at: Option<Timestamp>,
}

/// A new or renewed invitation.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SentInvitation {
    /// The record of the invitation.
    pub invitation: Invitation,
    /// The link, shown once, and only by a portal without a mail server. With a mail server only the mail has
    /// the link, so that its use proves ownership of the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
}

/// The body of a request for the facts of an invitation.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LookAtInvitation {
    /// The part of the link after `#`, at most 100 characters with the white space around it.
    #[cfg_attr(feature = "schema", schemars(length(max = 100)))]
    pub token: String,
}

/// The facts of an invitation for a holder of its link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InvitationInfo {
    /// The name of the organization.
    pub organization: String,
    /// The invited e-mail address.
    pub email: String,
    /// The role of the new member.
    pub role: Role,
    /// The expiry of the link.
    pub expires_at: Timestamp,
}

/// The body of the acceptance of an invitation: by the signed-in user, or by a new user with name and
/// password.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AcceptInvitation {
    /// The part of the link after `#`, at most 100 characters with the white space around it.
    #[cfg_attr(feature = "schema", schemars(length(max = 100)))]
    pub token: String,
    /// The name of a new user: 1 to 100 printable characters on one line, not only white space.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 100), regex(pattern = crate::patterns::NAME))
    )]
    pub name: Option<String>,
    /// The password of a new user: 15 to 1024 characters; a password that is easy to guess is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 15, max = 1024)))]
    pub password: Option<String>,
}

/// The result of an accepted invitation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Joined {
    /// The organization of the invitation.
    pub organization: Org,
    /// The role of the new member.
    pub role: Role,
}

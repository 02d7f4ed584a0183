//! People, organizations, sessions and API tokens.

use serde::{Deserialize, Serialize};

use crate::ids::{OrgId, TokenId, UserId};
use crate::time::Timestamp;

/// What a member may do in an organization.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Everything, members and money included.
    Owner,
    /// Sees and moves money; runs nothing.
    Billing,
    /// Runs jobs; sees what they cost.
    Member,
    /// Looks, changes nothing, sees no money.
    Viewer,
}

impl Role {
    pub const ALL: [Self; 4] = [Self::Owner, Self::Billing, Self::Member, Self::Viewer];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Owner => "owner",
            Self::Billing => "billing",
            Self::Member => "member",
            Self::Viewer => "viewer",
        }
    }

    /// What it allows, as people read it.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Owner => "May do everything, members and money included.",
            Self::Billing => "Sees and moves money; runs nothing.",
            Self::Member => "Runs jobs and sees what they cost.",
            Self::Viewer => "Looks, changes nothing, sees no money.",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct User {
    pub id: UserId,
    pub email: String,
    pub name: String,
    pub operator: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Org {
    pub id: OrgId,
    pub name: String,
    pub created_at: Timestamp,
}

/// An organization and what the caller may do in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Membership {
    pub org: Org,
    pub role: Role,
}

/// Who is calling.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Me {
    pub user: User,
    pub memberships: Vec<Membership>,
    /// ISO 4217 code of the portal's one currency.
    pub currency: String,
}

/// What anyone may know of the portal before signing in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PortalInfo {
    /// No operator exists yet: the setup page is open to whoever holds the setup token.
    pub needs_setup: bool,
    pub sign_up_open: bool,
    pub version: String,
    /// Ports of jobs can be opened in the browser.
    #[serde(default)]
    pub ports: bool,
}

#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Setup {
    pub token: String,
    pub email: String,
    pub password: String,
    pub name: String,
}

#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SignUp {
    pub email: String,
    pub password: String,
    pub name: String,
    pub organization: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SignedUp {
    pub user: User,
    pub organization: Org,
}

#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SignIn {
    pub email: String,
    pub password: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    pub name: String,
    pub role: Role,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewOperatorToken {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

/// A token's record. The secret is shown once, in [`CreatedToken`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Token {
    pub id: TokenId,
    pub name: String,
    pub role: Role,
    /// The last four characters, to tell tokens apart.
    pub hint: String,
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used_at: Option<Timestamp>,
}

#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CreatedToken {
    /// `berth_` + 30 base62 characters + a 6-character checksum. It cannot be shown again.
    pub secret: String,
    pub token: Token,
}

/// What an operator sees of a tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OrgSummary {
    pub org: Org,
    pub members: i64,
    pub running: i64,
    pub queued: i64,
    pub posted_micros: i64,
    pub held_micros: i64,
    /// How far below nothing the account may go.
    #[serde(default)]
    pub credit_limit_micros: i64,
    pub currency: String,
}

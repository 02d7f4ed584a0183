//! Types of users, organizations, sign-in and API tokens.

use serde::{Deserialize, Serialize};

use crate::ids::{OrgId, TokenId, UserId};
use crate::operators::OperatorRole;
use crate::scopes::ApiScope;
use crate::time::Timestamp;

/// The rights of a member in an organization.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// All rights, with members and money.
    Owner,
    /// Rights to see and move money, without jobs.
    Billing,
    /// Rights to run jobs and to see their cost.
    Member,
    /// Rights to read everything except balance, budgets, usage and bills.
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

    /// Returns the description of the rights.
    pub const fn description(self) -> &'static str {
        match self {
            Self::Owner => "All rights, including members and billing.",
            Self::Billing => "Manages billing; cannot launch jobs.",
            Self::Member => "Launches jobs and sees their cost.",
            Self::Viewer => "Read-only; sees the cost of jobs, but no balance or bill.",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }
}

/// A user of the portal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct User {
    /// The id of the user.
    pub id: UserId,
    /// The e-mail address for the sign-in.
    pub email: String,
    /// The user's name.
    pub name: String,
    /// True if the user is an operator.
    pub operator: bool,
}

/// An organization.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Org {
    /// The id of the organization.
    pub id: OrgId,
    /// The organization's name.
    pub name: String,
    /// The unique name in the addresses of pages (`/orgs/{slug}`): 1 to 40 lower-case letters, digits and hyphens.
    /// It is made from the name at the creation and never changes. The API uses the id.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 40), regex(pattern = crate::patterns::ORG_SLUG))
    )]
    pub slug: String,
    /// The time of the creation.
    pub created_at: Timestamp,
}

/// An organization of the caller and the caller's role in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Membership {
    /// The organization.
    pub org: Org,
    /// The caller's role in the organization.
    pub role: Role,
}

/// The caller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Me {
    /// The user of the session or of the token.
    pub user: User,
    /// The role of an operator; absent for all other callers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator_role: Option<OperatorRole>,
    /// The organizations of the user, with the roles.
    pub memberships: Vec<Membership>,
    /// The ISO 4217 code of the portal's only currency.
    pub currency: String,
    /// The time of the verification of the e-mail address; absent before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email_verified_at: Option<Timestamp>,
    /// True if the user has a second factor; false for a token.
    #[serde(default)]
    pub second_factor: bool,
    /// True if the user needs a second factor and has none: all other requests are refused until its enrolment.
    #[serde(default)]
    pub second_factor_required: bool,
}

/// Facts about the portal that are public without sign-in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PortalInfo {
    /// True if no operator exists yet, so that the set-up route accepts the set-up token.
    pub needs_setup: bool,
    /// True if a visitor can sign up without an invitation.
    pub sign_up_open: bool,
    /// True if an organization or the operators have single sign-on.
    #[serde(default)]
    pub sso: bool,
    /// True if the address of the portal permits passkeys.
    #[serde(default)]
    pub passkeys: bool,
    /// The portal's version.
    pub version: String,
    /// True if ports of jobs can be opened in the browser.
    #[serde(default)]
    pub ports: bool,
}

/// The body of the set-up: the first operator.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Setup {
    /// The set-up token that the portal prints at its start, at most 100 characters with the white space around
    /// it.
    #[cfg_attr(feature = "schema", schemars(length(max = 100)))]
    pub token: String,
    /// One address, at most 254 bytes, without a display name.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 3, max = 254), regex(pattern = crate::patterns::EMAIL))
    )]
    pub email: String,
    /// 15 to 1024 characters; a password that is easy to guess is refused.
    #[cfg_attr(feature = "schema", schemars(length(min = 15, max = 1024)))]
    pub password: String,
    /// The name of the user: 1 to 100 printable characters on one line, not only white space.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 100), regex(pattern = crate::patterns::NAME))
    )]
    pub name: String,
}

/// The body of a sign-up: a new user with a new organization.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SignUp {
    /// One address, at most 254 bytes, without a display name.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 3, max = 254), regex(pattern = crate::patterns::EMAIL))
    )]
    pub email: String,
    /// 15 to 1024 characters; a password that is easy to guess is refused.
    #[cfg_attr(feature = "schema", schemars(length(min = 15, max = 1024)))]
    pub password: String,
    /// The name of the user: 1 to 100 printable characters on one line, not only white space.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 100), regex(pattern = crate::patterns::NAME))
    )]
    pub name: String,
    /// The name of the new organization: 1 to 100 printable characters on one line, not only white space.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 100), regex(pattern = crate::patterns::NAME))
    )]
    pub organization: String,
}

/// The user and the organization of a sign-up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SignedUp {
    /// The new user.
    pub user: User,
    /// The new organization, with the user as its owner.
    pub organization: Org,
}

/// The body of a sign-in.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SignIn {
    /// The address of the account without regard to case, at most 254 bytes with the white space around it.
    #[cfg_attr(feature = "schema", schemars(length(max = 254)))]
    pub email: String,
    /// The password of the account, at most 1024 characters.
    #[cfg_attr(feature = "schema", schemars(length(max = 1024)))]
    pub password: String,
}

/// The API tokens of one organization, and those of all operators together.
pub const MAX_TOKENS: i64 = 1_000;

/// The scopes of a token without a choice.
fn everything() -> Vec<ApiScope> {
    vec![ApiScope::Admin]
}

/// The body of a new API token of an organization.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    /// 1 to 100 printable characters on one line, not only white space.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 100), regex(pattern = crate::patterns::NAME))
    )]
    pub name: String,
    /// The role of requests with the token.
    pub role: Role,
    /// The scopes of requests with the token, at least one; `admin` when absent. Each is within the scopes of the token
    /// that creates it.
    #[serde(default = "everything")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = ApiScope::ALL.len())))]
    pub scopes: Vec<ApiScope>,
    /// The networks from which requests are accepted, at most 16, such as `192.0.2.0/24` or `2001:db8::/32`;
    /// requests from everywhere when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 16), inner(length(min = 2, max = 43))))]
    pub networks: Vec<String>,
    /// The expiry, later than now and within the longest lifetime of tokens; no expiry when absent. The operator can
    /// require an expiry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// The service account of the token, with the role of the token or a higher one; the caller's own token when
    /// absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account: Option<UserId>,
}

/// The body of a new API token of the operators.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewOperatorToken {
    /// 1 to 100 printable characters on one line, not only white space.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 100), regex(pattern = crate::patterns::NAME))
    )]
    pub name: String,
    /// The scopes of requests with the token, at least one; `admin` when absent. Each is within the scopes of the token
    /// that creates it.
    #[serde(default = "everything")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = ApiScope::ALL.len())))]
    pub scopes: Vec<ApiScope>,
    /// The networks from which requests are accepted, at most 16, such as `192.0.2.0/24` or `2001:db8::/32`;
    /// requests from everywhere when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 16), inner(length(min = 2, max = 43))))]
    pub networks: Vec<String>,
    /// The expiry, later than now and within the longest lifetime of tokens; no expiry when absent. The operator can
    /// require an expiry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

/// The body of a new token for the metrics.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewMetricsToken {
    /// 1 to 100 printable characters on one line, not only white space.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 100), regex(pattern = crate::patterns::NAME))
    )]
    pub name: String,
    /// The expiry, later than now; no expiry when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

/// The record of an API token, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Token {
    /// The id of the token.
    pub id: TokenId,
    /// The token's name.
    pub name: String,
    /// The role of requests with the token.
    pub role: Role,
    /// The scopes of requests with the token; empty for a token for the metrics.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<ApiScope>,
    /// The networks from which requests are accepted; from everywhere when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<String>,
    /// The name of the service account of the token; absent for the token of a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account: Option<String>,
    /// The last four characters of the secret, to distinguish tokens.
    pub hint: String,
    /// The time of the creation.
    pub created_at: Timestamp,
    /// The expiry; no expiry when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// The latest use; absent before the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used_at: Option<Timestamp>,
}

/// A new API token with its secret.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CreatedToken {
    /// `berth_`, 30 base-62 characters and a checksum of 6 characters. No later answer contains it.
    pub secret: String,
    /// The record of the token.
    pub token: Token,
}

/// An organization in the list of an operator, with counts and sums.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OrgSummary {
    /// The organization.
    pub org: Org,
    /// The number of members.
    pub members: i64,
    /// The number of running jobs.
    pub running: i64,
    /// The number of waiting jobs.
    pub queued: i64,
    /// Credits less charges and debits, in micro-units of the currency.
    pub posted_micros: i64,
    /// Holds for waiting and running jobs and for reservations, in micro-units of the currency.
    pub held_micros: i64,
    /// The permitted debt of the account, in micro-units of the currency.
    #[serde(default)]
    pub credit_limit_micros: i64,
    /// The charges since the first day of the month (UTC), in micro-units of the currency.
    #[serde(default)]
    pub spent_micros: i64,
    /// The ISO 4217 code of the currency.
    pub currency: String,
}

/// A filter of organizations. An absent field matches every organization.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct OrgFilter {
    /// The organization.
    pub org: Option<OrgId>,
    /// The slug of the organization, 1 to 100 bytes.
    pub slug: Option<String>,
    /// A part of the name or of the slug without regard to the case of A to Z, 1 to 100 printable characters.
    pub name: Option<String>,
    /// True for organizations that had credit and have no available money only.
    pub without_credit: bool,
}

/// The key of the order of organizations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OrgOrder {
    /// The time of the creation.
    #[default]
    Created,
    /// The name without regard to the case of A to Z.
    Name,
    /// Credits less charges and debits.
    Balance,
    /// The charges since the first day of the month (UTC).
    Spent,
}

impl OrgOrder {
    pub const ALL: [Self; 4] = [Self::Created, Self::Name, Self::Balance, Self::Spent];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Name => "name",
            Self::Balance => "balance",
            Self::Spent => "spent",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|order| order.name() == name)
    }
}

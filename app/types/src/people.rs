//! Types of people's accounts: passwords, links in mail, sessions of browsers, disabled accounts.

use serde::{Deserialize, Serialize};

use crate::accounts::User;
use crate::ids::SessionId;
use crate::time::Timestamp;

/// The name of a deleted account.
pub const DELETED_NAME: &str = "Deleted person";

/// The most characters of the reason for which an account is disabled.
pub const MAX_REASON_CHARS: usize = 300;

/// The body of a change of the caller's account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PatchMe {
    /// The name of the user: 1 to 100 printable characters on one line, not only white space.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 100), regex(pattern = crate::patterns::NAME))
    )]
    pub name: String,
}

/// The body of a change of the caller's password.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ChangePassword {
    /// The present password, at most 1024 characters.
    #[cfg_attr(feature = "schema", schemars(length(max = 1024)))]
    pub current: String,
    /// 15 to 1024 characters; a password that is easy to guess is refused.
    #[cfg_attr(feature = "schema", schemars(length(min = 15, max = 1024)))]
    pub new: String,
}

/// The number of sessions that a request has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EndedSessions {
    /// The number of ended sessions.
    pub ended_sessions: u64,
}

/// The body of a request for a link to set a new password.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewPasswordReset {
    /// The address of the account, at most 254 bytes with the white space around it.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 3, max = 254), regex(pattern = crate::patterns::PADDED_EMAIL))
    )]
    pub email: String,
}

/// The body of a new password by a link.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CompletePasswordReset {
    /// The part of the link after `#`, at most 100 characters with the white space around it.
    #[cfg_attr(feature = "schema", schemars(length(max = 100)))]
    pub token: String,
    /// 15 to 1024 characters; a password that is easy to guess is refused.
    #[cfg_attr(feature = "schema", schemars(length(min = 15, max = 1024)))]
    pub password: String,
}

/// The body of the verification of an e-mail address.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CompleteVerification {
    /// The part of the link after `#`, at most 100 characters with the white space around it.
    #[cfg_attr(feature = "schema", schemars(length(max = 100)))]
    pub token: String,
}

/// A verified e-mail address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct VerifiedEmail {
    /// The address.
    pub email: String,
}

/// A session of a browser. Its cookie is in no answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BrowserSession {
    /// The id of the session.
    pub id: SessionId,
    /// The time of the sign-in.
    pub created_at: Timestamp,
    /// The time of the last request, with a precision of one minute.
    pub last_seen_at: Timestamp,
    /// The latest end of the session. Without requests it ends earlier.
    pub expires_at: Timestamp,
    /// The network of the sign-in: an IPv4 address, or the first address of an IPv6 network of 64 bits. Absent if it
    /// is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// The first 200 bytes of the header `User-Agent` of the sign-in; empty without the header.
    pub browser: String,
    /// True for the session of this request.
    pub current: bool,
}

/// The body of the deletion of the caller's account.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DeleteAccount {
    /// The present password, at most 1024 characters.
    #[cfg_attr(feature = "schema", schemars(length(max = 1024)))]
    pub password: String,
}

/// The body of a disabled account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DisableUser {
    /// The reason, which the person reads at the sign-in: 1 to 300 printable characters on one line, not only white
    /// space.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 300), regex(pattern = crate::patterns::NAME))
    )]
    pub reason: String,
}

/// A person in the list of an operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Person {
    /// The user. A deleted account has an empty address.
    pub user: User,
    /// The time of the creation.
    pub created_at: Timestamp,
    /// The time of the verification of the e-mail address; absent before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email_verified_at: Option<Timestamp>,
    /// True if the account has a second factor.
    #[serde(default)]
    pub second_factor: bool,
    /// The time of the last request of a session that has not ended; absent without a session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen_at: Option<Timestamp>,
    /// The number of memberships in organizations.
    pub organizations: i64,
    /// The time at which an operator disabled the account; absent for an enabled account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disabled_at: Option<Timestamp>,
    /// The operator's reason; absent for an enabled account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disabled_reason: Option<String>,
    /// The time at which the person deleted the account; absent for all other accounts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted_at: Option<Timestamp>,
}

//! Types of passkeys (WebAuthn).

use serde::{Deserialize, Serialize};

use crate::ids::PasskeyId;
use crate::time::Timestamp;

/// The most passkeys of an account.
pub const MAX_PASSKEYS: i64 = 20;
/// Characters of the answer of a browser.
pub const MAX_ANSWER_CHARS: usize = 16_384;

/// A passkey of a user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Passkey {
    /// The id of the passkey. It is no secret.
    pub id: PasskeyId,
    /// The name that its user chose.
    pub name: String,
    /// The time of the registration.
    pub created_at: Timestamp,
    /// The time of the last sign-in or proof by it; absent before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used_at: Option<Timestamp>,
}

/// The passkeys of the caller, at most 20.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Passkeys {
    /// False if the address of the portal is an IP address or has no https: browsers have no passkeys there.
    pub available: bool,
    /// The passkeys, oldest first.
    pub passkeys: Vec<Passkey>,
}

/// The options of a ceremony for the browser.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PasskeyOptions {
    /// The options as a JSON text: `PublicKeyCredentialCreationOptionsJSON` for a new passkey,
    /// `PublicKeyCredentialRequestOptionsJSON` for a sign-in or a proof (WebAuthn Level 3). They permit one answer.
    pub options: String,
    /// The end of the ceremony, five minutes after its start.
    pub expires_at: Timestamp,
}

/// The body of a new passkey.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewPasskey {
    /// 1 to 100 printable characters on one line, not only white space.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 100), regex(pattern = crate::patterns::NAME))
    )]
    pub name: String,
    /// The answer of the browser (`RegistrationResponseJSON`) as a JSON text of at most 16,384 characters.
    #[cfg_attr(feature = "schema", schemars(length(max = 16_384)))]
    pub credential: String,
}

/// A new passkey.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AddedPasskey {
    /// The passkey.
    pub passkey: Passkey,
    /// Ten recovery codes if the account had no second factor before; otherwise empty. No later answer contains them.
    pub recovery_codes: Vec<String>,
}

/// The body of a change of a passkey.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RenamePasskey {
    /// 1 to 100 printable characters on one line, not only white space.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 100), regex(pattern = crate::patterns::NAME))
    )]
    pub name: String,
}

/// The body of a sign-in by a passkey.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PasskeySignIn {
    /// The answer of the browser (`AuthenticationResponseJSON`) as a JSON text of at most 16,384 characters.
    #[cfg_attr(feature = "schema", schemars(length(max = 16_384)))]
    pub credential: String,
    /// The challenge of a first step with a password or a single sign-on, at most 100 characters. The passkey then
    /// is the second factor of that sign-in. Absent: the passkey alone signs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 100)))]
    pub challenge: Option<String>,
}

/// The body of a proof of identity by a passkey.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PasskeyProof {
    /// The answer of the browser (`AuthenticationResponseJSON`) as a JSON text of at most 16,384 characters.
    #[cfg_attr(feature = "schema", schemars(length(max = 16_384)))]
    pub credential: String,
}

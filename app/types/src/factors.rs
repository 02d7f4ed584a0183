//! Types of second factors, of the second step of a sign-in, and of proofs of identity.

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// A kind of second factor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FactorKind {
    /// A passkey (WebAuthn) with a verified user.
    Passkey,
    /// A code of an authenticator app: six digits, a new code every 30 seconds (RFC 6238).
    Totp,
    /// A recovery code.
    Recovery,
}

/// The first answer to a sign-in with the right password into an account with a second factor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SignInChallenge {
    /// The kinds of factors that complete the sign-in.
    pub second_factor: Vec<FactorKind>,
    /// An opaque value for the second step. It permits five tries.
    pub challenge: String,
    /// The end of the challenge, five minutes after its start.
    pub expires_at: Timestamp,
}

/// The body of the second step of a sign-in.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SecondFactorSignIn {
    /// The challenge of the first step, at most 100 characters.
    #[cfg_attr(feature = "schema", schemars(length(max = 100)))]
    pub challenge: String,
    /// A code of the authenticator app or a recovery code, at most 40 characters. Spaces, hyphens and case have no
    /// effect.
    #[cfg_attr(feature = "schema", schemars(length(max = 40)))]
    pub code: String,
}

/// The second factors of the caller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SecondFactors {
    /// The authenticator app; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub totp: Option<TotpFactor>,
    /// The number of passkeys.
    pub passkeys: i64,
    /// The number of unused recovery codes.
    pub recovery_codes: i64,
}

/// An authenticator app of a user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TotpFactor {
    /// The time of the first right code.
    pub confirmed_at: Timestamp,
}

/// The secret of a new authenticator app. The factor has no effect before its confirmation by a code.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TotpEnrolment {
    /// The secret in base 32: 160 bits. No later answer contains it.
    pub secret: String,
    /// The `otpauth` URL with the secret.
    pub url: String,
    /// The URL as a QR code in SVG.
    pub svg: String,
}

/// The body of the confirmation of a new authenticator app.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ConfirmTotp {
    /// The present code of the app: six digits, at most 40 characters with spaces.
    #[cfg_attr(feature = "schema", schemars(length(max = 40)))]
    pub code: String,
}

/// New recovery codes. No later answer contains them.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RecoveryCodes {
    /// Ten codes of seven groups each, with 140 bits. Each code works once.
    pub codes: Vec<String>,
}

/// The body of a proof of identity: either the password or a code.
#[derive(Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewProof {
    /// The password of the account, at most 1024 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 1024)))]
    pub password: Option<String>,
    /// A code of the authenticator app or a recovery code, at most 40 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 40)))]
    pub code: Option<String>,
}

/// The rule of an organization for the sign-in of its members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SignInPolicy {
    /// True if each member needs a second factor.
    pub require_second_factor: bool,
}

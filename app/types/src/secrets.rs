//! Types of secrets: sealed values of an organization for its jobs.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// The body of a new value. Its debug text has no value.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PutSecret {
    /// Text of at least 8 bytes without the white space around it, and at most 32 KiB (bytes); without NUL.
    #[cfg_attr(feature = "schema", schemars(length(min = 2, max = 32_768)))]
    pub value: String,
}

impl fmt::Debug for PutSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PutSecret").finish_non_exhaustive()
    }
}

/// A secret without its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Secret {
    /// The name of the secret.
    pub name: String,
    /// The number of the value, one more with each new value.
    pub version: i64,
    /// The time of the first value.
    pub created_at: Timestamp,
    /// The name of the user who set the first value.
    pub created_by: String,
    /// The time of the present value.
    pub updated_at: Timestamp,
    /// The name of the user who set the present value.
    pub updated_by: String,
    /// The latest transfer of the value to the worker of a job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used_at: Option<Timestamp>,
}

/// A secret for a job. Exactly one of `env` and `file` is required.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SecretUse {
    /// The name of a secret of the organization: 1 to 64 letters, digits and `.`, `_`, `-`, with a letter or
    /// digit first.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 64), regex(pattern = crate::patterns::SECRET_NAME))
    )]
    pub name: String,
    /// The name of the environment variable for the value: 1 to 256 letters, digits and `_`, without a digit
    /// first; no variable of Berth, of the loader or of `env`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 256), regex(pattern = crate::patterns::VARIABLE))
    )]
    pub env: Option<String>,
    /// The name of the file in `/run/secrets` for the value: 1 to 64 letters, digits and `.`, `_`, `-`, with
    /// a letter or digit first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 64), regex(pattern = crate::patterns::SECRET_NAME))
    )]
    pub file: Option<String>,
}

/// The credentials for the registry of a job's image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RegistryUse {
    /// The name of a secret of the organization with the value `username:password`: 1 to 64 letters, digits
    /// and `.`, `_`, `-`, with a letter or digit first.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 64), regex(pattern = crate::patterns::SECRET_NAME))
    )]
    pub secret: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_not_written_down() {
        let put = PutSecret { value: "hf_0123456789".to_owned() };
        assert_eq!(format!("{put:?}"), "PutSecret { .. }");
    }
}

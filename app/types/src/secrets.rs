//! Types of secrets: sealed values of an organization for its jobs.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// The body of a new value. Its debug text has no value.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PutSecret {
    /// Text of 8 bytes to 32 KiB.
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
    pub name: String,
    /// The number of the value, one more with each new value.
    pub version: i64,
    pub created_at: Timestamp,
    pub created_by: String,
    pub updated_at: Timestamp,
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
    /// The name of a secret of the organization.
    pub name: String,
    /// The name of the environment variable for the value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
    /// The name of the file in `/run/secrets` for the value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

/// The credentials for the registry of a job's image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RegistryUse {
    /// The name of a secret of the organization with the value `username:password`.
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

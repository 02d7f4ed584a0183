//! What an organization keeps from everybody but its jobs.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// A new value. It is not shown in anything that is written down.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PutSecret {
    /// 8 bytes to 32 KiB of text.
    pub value: String,
}

impl fmt::Debug for PutSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PutSecret").finish_non_exhaustive()
    }
}

/// A secret as it is listed: its value is never told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Secret {
    pub name: String,
    /// Rises by one with every new value.
    pub version: i64,
    pub created_at: Timestamp,
    pub created_by: String,
    pub updated_at: Timestamp,
    pub updated_by: String,
    /// When it was last given to a job's worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used_at: Option<Timestamp>,
}

/// A secret that a job asks for, as a variable or as a file: one of the two.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SecretUse {
    /// Of a secret of its organization.
    pub name: String,
    /// The variable that holds the value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
    /// The file in `/run/secrets` that holds the value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

/// The secret with which the image of a job is had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RegistryUse {
    /// Of its organization; it holds `username:password`.
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

//! Ports of running jobs in the browser: what is asked for, and what lets somebody in.

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewPortTicket {
    /// Of a job on several nodes.
    #[serde(default)]
    pub rank: u32,
    /// Why, when an operator who is no member asks; the organization reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Lets one person into one port, once.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PortTicket {
    /// Where it is handed in: by POST as the form field `ticket`, or by a browser after a `#`.
    pub url: String,
    /// Where the port is seen afterwards.
    pub address: String,
    pub ticket: String,
    pub expires_at: Timestamp,
}

//! Types of tickets for ports of running jobs.

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// The body of a new port ticket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewPortTicket {
    /// The rank of the port, for a job on several nodes.
    #[serde(default)]
    pub rank: u32,
    /// The reason of an operator without membership, at most 500 characters; the organization reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A single-use right of one person to one port.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PortTicket {
    /// The address for the ticket: a POST with the form field `ticket`, or a browser link with the ticket
    /// after `#`.
    pub url: String,
    /// The address of the port after the use of the ticket.
    pub address: String,
    pub ticket: String,
    pub expires_at: Timestamp,
}

//! Types of tickets for ports of running jobs.

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// The body of a new port ticket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewPortTicket {
    /// The number of the rank with the port, from 0, for a job on several nodes.
    #[serde(default)]
    pub rank: u32,
    /// The reason of an operator without membership: 1 to 500 printable characters without the white space
    /// around them; the organization reads it. Ignored for members.
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

//! Types of tickets for ports of running jobs.

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// The body of a new port ticket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewPortTicket {
    /// The number of the rank with the port, 0 to 63, for a job on several nodes.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(range(max = 63)))]
    pub rank: u32,
    /// The reason of an operator without membership: 1 to 500 printable characters, not only white space; the
    /// organization reads it. Unused for members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 500)))]
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
    /// The secret of the ticket.
    pub ticket: String,
    /// The expiry of the ticket.
    pub expires_at: Timestamp,
}

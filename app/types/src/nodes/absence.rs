//! Times in which a node or some of its boards take no work or less of it.

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// The state of a silent node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SilenceState {
    /// Attempts on the node may still run; no job of theirs starts elsewhere.
    Suspect,
    /// Attempts on the node have ended by their leases or by an operator's declaration.
    Lost,
}

/// The facts about a silent node: a node without a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Silence {
    /// The state of the silent node.
    pub state: SilenceState,
    /// The number of ranks on the node with an unknown end.
    pub attempts: u32,
    /// The time of the loss, past or expected; absent for an old worker without leases, which only an
    /// operator can declare lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_at: Option<Timestamp>,
    /// The reason of the loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// A node that takes no rank of a job on several nodes, because a link to another node was slow or absent. Jobs on one
/// node use it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SetAside {
    /// The end, unless an operator releases the node earlier.
    pub until: Timestamp,
    /// The bad link with its figures, as a sentence.
    pub reason: String,
}

/// The present maintenance of boards of a node: no jobs are placed there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NodeMaintenance {
    /// The end.
    pub until: Timestamp,
    /// The reason.
    pub reason: String,
    /// The number of boards.
    pub boards: u32,
}

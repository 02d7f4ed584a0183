//! Types of the checks of a node's host, for operators.

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// The most findings of a diagnosis.
pub const MAX_FINDINGS: usize = 64;
/// The most characters of a text of a finding.
pub const MAX_FINDING_CHARS: usize = 300;

/// The state of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FindingState {
    /// Nothing needs a change.
    Ok,
    /// Some jobs do not run, or run slowly.
    Warning,
    /// Jobs do not run, or not safely.
    Problem,
    /// The check has no answer.
    Unknown,
}

/// The result of one check of a host, as its worker reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Finding {
    /// The stable name of the check, such as `driver.module`: at most 64 characters. docs/workers.md lists all.
    pub code: String,
    /// The state of the finding.
    pub state: FindingState,
    /// A sentence about the host: at most 300 characters.
    pub found: String,
    /// The next command, or the file to change: at most 300 characters. Absent if nothing needs a change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// The latest checks of a node's host by its worker. The portal keeps them in memory: they are absent from its start
/// until the next session of the worker.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NodeDiagnosis {
    /// The time of the report, by the clock of the portal; absent without a report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported_at: Option<Timestamp>,
    /// The findings in the order of the checks: at most 64; empty without a report.
    pub findings: Vec<Finding>,
}

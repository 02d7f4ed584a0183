//! The end and the evidence of a rank, in the row of its attempt.

use berth_types::evidence::Evidence;
use berth_types::jobs::Failure;
use serde::{Deserialize, Serialize};

/// The end of a rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankEnd {
    /// The exit code of the process; 255 without one.
    pub code: i32,
    /// The rank was stopped at its time limit.
    pub timed_out: bool,
    pub failure: Option<Failure>,
    /// The rank counts as lost, and its worker has reported about it since.
    #[serde(default)]
    pub late: bool,
}

impl RankEnd {
    /// True for an exit with code 0, without a failure.
    pub fn is_success(&self) -> bool {
        self.failure.is_none() && !self.timed_out && self.code == 0
    }

    /// True if the rank ended with a failure of this code.
    pub fn has_failure(&self, code: &str) -> bool {
        self.failure.as_ref().is_some_and(|failure| failure.code == code)
    }

    /// True if the rank ended because its node counts as lost.
    pub fn is_lost(&self) -> bool {
        self.has_failure("node.lost")
    }
}

/// The evidence of one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredEvidence {
    #[serde(flatten)]
    pub evidence: Evidence,
    /// The begin of the process by the portal's clock, in milliseconds since 1970. A report gives it too late
    /// by its time on the network, so the earliest value counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began_ms: Option<i64>,
    /// The losses of devices, from and until, by the age of the process in milliseconds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<(i64, i64)>,
}

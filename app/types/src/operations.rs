//! What operators do with nodes and jobs of everyone: drains, racks, bulk stops, what is stuck, what differs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{JobId, NodeId, OrgId};
use crate::jobs::{Failure, JobState};
use crate::time::Timestamp;

/// How a node is to be emptied. It takes nothing new from now on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewDrain {
    /// What still runs then is told to stop; without it everything may run to its own end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_at: Option<Timestamp>,
    /// The most seconds that a job gets between its signal and its end, 1 to 3600; what it asked for when
    /// absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_s: Option<u32>,
    /// Shown to those whose jobs are there.
    pub reason: String,
}

/// A node that is being emptied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Drain {
    pub node: NodeId,
    pub node_name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_s: Option<u32>,
    pub reason: String,
    pub started_by: String,
    /// The host itself began it because it is shut down; it is over when its worker is back.
    #[serde(default)]
    pub by_host: bool,
    pub started_at: Timestamp,
    /// When nothing was left on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emptied_at: Option<Timestamp>,
    /// Attempts that are not over there: running, stopping, or being cleaned up.
    pub attempts: u32,
    /// Of those, attempts whose jobs are stopping.
    pub stopping: u32,
    /// When the last of them has ended at the latest, with what it gets to stop; absent when nobody knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_by: Option<Timestamp>,
}

/// Which jobs are meant. What is absent does not matter; without anything these are all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct JobFilter {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub org: Option<OrgId>,
    /// Its latest attempt has devices of this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<JobState>,
    /// The slug of its offering.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offering: Option<String>,
    /// `key=value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// A job as operators see it among those of everyone, without what its owner runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OperatedJob {
    pub id: JobId,
    pub org: OrgId,
    pub org_name: String,
    pub name: String,
    pub state: JobState,
    pub attempt: u32,
    pub offering: String,
    /// Devices on each node.
    pub count: u32,
    pub nodes: u32,
    /// The first node of its latest attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    pub created_by: String,
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    pub metered_ms: i64,
    pub cost_micros: i64,
    pub currency: String,
}

/// An order to stop jobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct StopJobs {
    #[serde(default)]
    pub filter: JobFilter,
    /// Shown to those whose jobs are stopped; a preview needs none.
    #[serde(default)]
    pub reason: String,
    /// As many as were shown; where more are meant by now, nothing is stopped. Not needed for a preview.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<u64>,
}

/// How many jobs of an organization are meant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobsOfOrg {
    pub org: OrgId,
    pub org_name: String,
    pub jobs: u64,
}

/// What an order to stop jobs means, or came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StoppedJobs {
    /// Jobs that are to be stopped, of all organizations and of each.
    pub matched: u64,
    pub orgs: Vec<JobsOfOrg>,
    /// Those that were told to stop now; 0 in a preview.
    pub stopped: u64,
    /// Those that are left for another order, since one order stops so many at most.
    pub left: u64,
}

/// A loop of the portal: a task that it does again and again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PortalLoop {
    pub name: String,
    /// From the end of a run to the next.
    pub period_ms: i64,
    /// Since the portal started.
    pub runs: u64,
    pub failures: u64,
    /// The begin of the last run that has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run_at: Option<Timestamp>,
    pub last_took_ms: i64,
    /// The last failure since the portal started; later successes leave it here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<LoopError>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LoopError {
    pub at: Timestamp,
    pub detail: String,
}

/// Why something does not go on by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum StuckCause {
    /// The worker of one of its nodes does not answer.
    NodeSilent,
    /// It has a place for long and no process.
    NeverStarts,
    /// It was told to stop, and its time for that is long over.
    NeverStops,
    /// Nobody knows how its process ended, and its devices are not proved clean.
    UnknownOutcome,
    /// Devices could not be proved clean and are held.
    SliceUnclean,
    /// It is over, but its worker never said the rest.
    AttemptWithoutNode,
    /// It is over and clean, but the end of its log has not come.
    LogMissing,
}

impl StuckCause {
    /// One sentence.
    pub const fn text(self) -> &'static str {
        match self {
            Self::NodeSilent => "The worker of its node does not answer.",
            Self::NeverStarts => "It has a place for longer than a start takes, and no process runs.",
            Self::NeverStops => "It was told to stop, and its time for that is over.",
            Self::UnknownOutcome => {
                "Nobody knows how its process ended, and its devices are not proved clean."
            }
            Self::SliceUnclean => "Devices of it could not be proved clean and are held.",
            Self::AttemptWithoutNode => {
                "It is over for the portal, and the worker that has the rest of it does not answer."
            }
            Self::LogMissing => "It is over and its devices are clean, but the end of its log has not come.",
        }
    }
}

/// What helps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum StuckHelp {
    /// Look at the node: its host, its network, its daemon.
    SeeNode,
    /// Stop the job; it is charged for proved use only.
    StopJob,
    /// Empty the node, then reset the board or restart the host.
    DrainNode,
}

impl StuckHelp {
    /// One sentence.
    pub const fn text(self) -> &'static str {
        match self {
            Self::SeeNode => {
                "See to the node: is its host up, does it reach the portal, does its daemon run? It goes on from there by itself."
            }
            Self::StopJob => "Stop the job; only proved use is charged. Then look at the worker's log.",
            Self::DrainNode => "Drain the node, then end what is left on its host, or restart the host.",
        }
    }
}

/// A job, or what is left of an attempt, that does not go on by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Stuck {
    pub job: JobId,
    pub job_name: String,
    pub org: OrgId,
    pub org_name: String,
    pub state: JobState,
    pub attempt: u32,
    pub node: NodeId,
    pub node_name: String,
    pub cause: StuckCause,
    pub help: StuckHelp,
    pub since: Timestamp,
}

/// A fact in which a host differs from most others with the same boards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OddFact {
    pub fact: String,
    pub model: String,
    /// What most have.
    pub usual: String,
}

/// A host as its worker reported it, with what is odd about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InventoryHost {
    pub node: NodeId,
    pub name: String,
    /// Boards by model.
    pub boards: BTreeMap<String, u32>,
    /// `driver`, `worker`, `vbios`, and what else is reported.
    pub facts: BTreeMap<String, String>,
    pub odd: Vec<OddFact>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen_at: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PutRack {
    /// Watts that its boards may draw together.
    pub budget_watts: i64,
}

/// A rack, by the label `rack` of its nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Rack {
    pub name: String,
    /// Absent: its boards are not limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_watts: Option<i64>,
    pub nodes: u32,
    pub boards: u32,
    /// By the latest readings; `unread` boards have none.
    pub drawn_watts: f64,
    pub unread: u32,
    /// Watts for which boards count that something holds; this is what is kept below the budget.
    pub counted_watts: i64,
    /// Watts if all of its boards were held.
    pub most_watts: i64,
    /// Boards of unknown models, for which a typical figure counts.
    pub unknown: u32,
}

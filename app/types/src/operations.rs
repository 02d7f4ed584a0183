//! Types of the operators' work: drains, racks, bulk stops, stuck jobs, the inventory and the portal's loops.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{JobId, NodeId, OrgId};
use crate::jobs::{Failure, JobState};
use crate::time::Timestamp;

/// The body of a drain. A drained node takes no new work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewDrain {
    /// The time of the stop for jobs that still run, within 366 days and at most 60 seconds ago; without it
    /// every job runs to its own end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_at: Option<Timestamp>,
    /// The longest grace of a stopped job in seconds, 1 to 3600; the job's own grace when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 3_600)))]
    pub grace_s: Option<u32>,
    /// A text for the organizations with jobs on the node: 1 to 200 printable characters on one line, not only
    /// white space.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 200), regex(pattern = crate::patterns::NAME))
    )]
    pub reason: String,
}

/// A drain of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Drain {
    /// The drained node.
    pub node: NodeId,
    /// The name of the node.
    pub node_name: String,
    /// The time of the stop for jobs that still run; absent without a stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_at: Option<Timestamp>,
    /// The longest grace of a stopped job in seconds; the job's own grace when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_s: Option<u32>,
    /// The text for the organizations with jobs on the node.
    pub reason: String,
    /// The name of the operator, or the node's host.
    pub started_by: String,
    /// True for a drain by the shutdown of the host. It ends with the next session of the worker.
    #[serde(default)]
    pub by_host: bool,
    /// The start of the drain.
    pub started_at: Timestamp,
    /// The time at which the node was empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emptied_at: Option<Timestamp>,
    /// The number of attempts on the node that run, stop or wait for their clean-up.
    pub attempts: u32,
    /// The number of these attempts with stopping jobs.
    pub stopping: u32,
    /// The latest end of these attempts, with their grace; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_by: Option<Timestamp>,
}

/// A filter of jobs. An absent field matches every job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct JobFilter {
    /// The organization of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub org: Option<OrgId>,
    /// A node of the job's latest attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// The state of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<JobState>,
    /// The slug of an offering, at most 100 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 100)))]
    pub offering: Option<String>,
    /// A label as `key=value`, with a key of at least one character: at most 127 bytes without control
    /// characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 2, max = 127), regex(pattern = crate::patterns::LABEL)))]
    pub label: Option<String>,
}

/// A job of any organization for operators, without its command, script and files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OperatedJob {
    /// The id of the job.
    pub id: JobId,
    /// The organization of the job.
    pub org: OrgId,
    /// The name of the organization.
    pub org_name: String,
    /// The job's name.
    pub name: String,
    /// The state of the job.
    pub state: JobState,
    /// The number of the latest attempt; 0 before the first one.
    pub attempt: u32,
    /// The slug of the offering.
    pub offering: String,
    /// Devices on each node.
    pub count: u32,
    /// The number of nodes.
    pub nodes: u32,
    /// The name of the first node of the latest attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// The labels of the job: key → value.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The name of the submitting user.
    pub created_by: String,
    /// The time of the submission.
    pub created_at: Timestamp,
    /// The start of the latest attempt; absent before it. An ended job has the start of its last attempt that ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// The end of the job; absent before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// The exit code of the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The reason of a bad end; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// Metered milliseconds of all attempts.
    pub metered_ms: i64,
    /// The charge so far in micro-units of the currency.
    pub cost_micros: i64,
    /// The ISO 4217 code of the currency.
    pub currency: String,
}

/// The body of a bulk stop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct StopJobs {
    /// The filter of the jobs; all jobs when absent.
    #[serde(default)]
    pub filter: JobFilter,
    /// A text for the organizations of the stopped jobs: 1 to 200 printable characters on one line, not only
    /// white space; not required for a preview.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(length(max = 200)))]
    pub reason: String,
    /// The number of jobs in the preview. A greater number of matching jobs refuses the stop. Not required
    /// for a preview.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<u64>,
}

/// The number of matching jobs of one organization.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobsOfOrg {
    /// The organization.
    pub org: OrgId,
    /// The name of the organization.
    pub org_name: String,
    /// The number of matching jobs.
    pub jobs: u64,
}

/// The preview or the result of a bulk stop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StoppedJobs {
    /// The number of matching jobs of all organizations.
    pub matched: u64,
    /// The number of matching jobs by organization.
    pub orgs: Vec<JobsOfOrg>,
    /// The number of jobs stopped by this request; 0 in a preview.
    pub stopped: u64,
    /// The number of matching jobs beyond the limit of one request.
    pub left: u64,
}

/// A repeated task of the portal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PortalLoop {
    /// The name of the loop.
    pub name: String,
    /// Milliseconds from the end of a run to the next run.
    pub period_ms: i64,
    /// The number of runs since the start of the portal.
    pub runs: u64,
    /// The number of failed runs since the start of the portal.
    pub failures: u64,
    /// The start of the last finished run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run_at: Option<Timestamp>,
    /// The length of the last finished run in milliseconds.
    pub last_took_ms: i64,
    /// True if the last finished run failed.
    pub last_failed: bool,
    /// The last failure since the start of the portal, also after later successes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<LoopError>,
}

/// A failed run of a loop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LoopError {
    /// The time of the failure.
    pub at: Timestamp,
    /// The text of the error.
    pub detail: String,
}

/// The kind of a destination of the audit log. A portal has at most one of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AuditDestinationKind {
    /// NDJSON files and checkpoints in a bucket.
    Bucket,
    /// Messages to a syslog server.
    Syslog,
    /// Signed requests.
    Webhook,
}

impl AuditDestinationKind {
    pub const ALL: [Self; 3] = [Self::Bucket, Self::Syslog, Self::Webhook];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Bucket => "bucket",
            Self::Syslog => "syslog",
            Self::Webhook => "webhook",
        }
    }
}

/// A destination of the audit log outside of the portal, with its delivered part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AuditDestination {
    /// The kind of the destination.
    pub name: AuditDestinationKind,
    /// The address without credentials, path and query.
    pub address: String,
    /// The number of the last delivered audit event; 0 before the first.
    pub seq: i64,
    /// The number of recorded audit events after it.
    pub events_behind: i64,
    /// The time of the last delivery; absent before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivered_at: Option<Timestamp>,
    /// True if the last delivery failed.
    pub failing: bool,
    /// The last failure since the start of the portal, also after later deliveries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<LoopError>,
}

/// The cause of a stuck job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum StuckCause {
    /// A worker of the job does not answer.
    NodeSilent,
    /// The job has had devices for a long time, without a process.
    NeverStarts,
    /// The job has not ended long after the end of its grace.
    NeverStops,
    /// The end of the process is unknown and the devices are not proved clean.
    UnknownOutcome,
    /// The devices could not be proved clean and stay held.
    SliceUnclean,
    /// The job has ended, but its worker has not reported the end of the attempt.
    AttemptWithoutNode,
    /// The attempt has ended and is clean, but the end of its log is missing.
    LogMissing,
}

impl StuckCause {
    /// The cause as a sentence.
    pub const fn text(self) -> &'static str {
        match self {
            Self::NodeSilent => "The worker on the node of the job does not answer.",
            Self::NeverStarts => "The job has devices for longer than a start takes, and no process runs.",
            Self::NeverStops => "The job has not ended after its stop signal and its grace period.",
            Self::UnknownOutcome => {
                "The end of the process is unknown, and the devices are not proved clean."
            }
            Self::SliceUnclean => "The devices of the job could not be proved clean and stay out of service.",
            Self::AttemptWithoutNode => {
                "The job has ended, but a worker with its log or files does not answer."
            }
            Self::LogMissing => {
                "The job has ended and its devices are clean, but the end of its log is missing."
            }
        }
    }
}

/// The remedy for a stuck job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum StuckHelp {
    /// A check of the node: its host, its network, its daemon.
    SeeNode,
    /// A stop of the job, with a charge for proved use only.
    StopJob,
    /// A drain of the node, then the end of the remaining processes or a restart of the host.
    DrainNode,
    /// A reset of the board; it needs no drain of the node.
    ResetBoard,
}

impl StuckHelp {
    /// The remedy as a sentence.
    pub const fn text(self) -> &'static str {
        match self {
            Self::SeeNode => {
                "Check the node: its host, its network and the service berth-worker. The job continues after the worker reconnects."
            }
            Self::StopJob => {
                "Stop the job; only its proved run time is charged. Then read the log of the worker."
            }
            Self::DrainNode => {
                "Drain the node. Then end the remaining processes on its host, or restart the host."
            }
            Self::ResetBoard => {
                "Reset the board on the page of its node. If the reset fails, drain the node and restart its host."
            }
        }
    }
}

/// A stuck job, or the stuck rest of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Stuck {
    /// The id of the job.
    pub job: JobId,
    /// The name of the job.
    pub job_name: String,
    /// The organization of the job.
    pub org: OrgId,
    /// The name of the organization.
    pub org_name: String,
    /// The state of the job.
    pub state: JobState,
    /// The number of the attempt.
    pub attempt: u32,
    /// True if the job has ended or has left this attempt.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub over: bool,
    /// The node of the rank.
    pub node: NodeId,
    /// The name of the node.
    pub node_name: String,
    /// The cause.
    pub cause: StuckCause,
    /// The remedy.
    pub help: StuckHelp,
    /// The start of the time without progress.
    pub since: Timestamp,
}

/// A fact of a host that differs from most hosts with the same board model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OddFact {
    /// The name of the fact, such as `driver`.
    pub fact: String,
    /// The compared board model.
    pub model: String,
    /// The value of most hosts.
    pub usual: String,
}

/// A host with its reported facts and the unusual ones among them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InventoryHost {
    /// The node of the host.
    pub node: NodeId,
    /// The name of the node.
    pub name: String,
    /// The number of boards by model.
    pub boards: BTreeMap<String, u32>,
    /// The reported facts, such as `driver`, `worker` and `vbios`.
    pub facts: BTreeMap<String, String>,
    /// The facts that differ from most hosts.
    pub odd: Vec<OddFact>,
    /// The latest message of the worker; absent before the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen_at: Option<Timestamp>,
}

/// The body of a power budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PutRack {
    /// The power limit of all boards of the rack in watts, 1 to 10000000.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 10_000_000)))]
    pub budget_watts: i64,
}

/// A rack: the nodes with one value of the label `rack`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Rack {
    /// The value of the label `rack`.
    pub name: String,
    /// The power limit in watts; no limit when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_watts: Option<i64>,
    /// The number of nodes. Lost nodes with a revoked certificate and their boards are not counted.
    pub nodes: u32,
    /// The number of boards.
    pub boards: u32,
    /// The power of the latest readings in watts, without the `unread` boards.
    pub drawn_watts: f64,
    /// The number of boards without a reading.
    pub unread: u32,
    /// The counted power of all held boards in watts. The portal keeps it within the budget.
    pub counted_watts: i64,
    /// The counted power of all boards in watts.
    pub most_watts: i64,
    /// The number of boards of unknown models, which count with a typical power.
    pub unknown: u32,
}

//! Types of jobs: the submission, the job with its results, the plan and the explanation.

mod ends;
mod filter;
mod submission;
mod waits;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::evidence::Evidence;
pub use crate::files::{Checkpoint, CheckpointSignal};
use crate::ids::{JobId, NodeId, OrgId, ReservationId};
use crate::time::Timestamp;
use crate::volumes::JobVolume;

pub use ends::{Retry, RetryOn, StopWhenIdle};
pub use filter::{OrgJobFilter, StopOrgJobs};
pub use submission::{ExtendJob, NewJob};
pub use waits::{BlockingKind, BlockingObject, SubmissionChange, SuggestedChange};

/// A step between the submission of a job and its end. A job waits in `queued`, has devices from `assigned`
/// on, and runs in `running`. The last four states are ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    Queued,
    Assigned,
    Starting,
    Running,
    Stopping,
    Succeeded,
    Failed,
    Cancelled,
    TimedOut,
}

impl JobState {
    pub const ALL: [Self; 9] = [
        Self::Queued,
        Self::Assigned,
        Self::Starting,
        Self::Running,
        Self::Stopping,
        Self::Succeeded,
        Self::Failed,
        Self::Cancelled,
        Self::TimedOut,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Assigned => "assigned",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::TimedOut => "timed_out",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Returns true if the state is an end.
    pub const fn ended(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled | Self::TimedOut)
    }
}

/// The class of a job in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    Low,
    #[default]
    Normal,
    High,
}

impl Priority {
    /// The rank in the queue; a higher rank goes first.
    pub const fn rank(self) -> i64 {
        match self {
            Self::Low => 0,
            Self::Normal => 1,
            Self::High => 2,
        }
    }
}

/// The required nearness of a job's devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Topology {
    /// No required nearness.
    #[default]
    Any,
    /// All devices on one node; a job for one node always has this topology.
    SameNode,
    /// All nodes with the same value of the label `switch`.
    SameSwitch,
    /// All nodes with the same value of the label `rack`.
    SameRack,
    /// NVLink between the devices of each node.
    Nvlink,
}

impl Topology {
    pub const ALL: [Self; 5] = [Self::Any, Self::SameNode, Self::SameSwitch, Self::SameRack, Self::Nvlink];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::SameNode => "same_node",
            Self::SameSwitch => "same_switch",
            Self::SameRack => "same_rack",
            Self::Nvlink => "nvlink",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|topology| topology.name() == name)
    }

    pub const fn is_any(&self) -> bool {
        matches!(self, Self::Any)
    }
}

/// The network access of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// All that the egress policy of the organization opens: by default the internet. `isolation.network` of the node
    /// decides between a network of the job's own and that of the node; for a job on several nodes
    /// `isolation.gang_network` does.
    #[default]
    Outbound,
    /// A loopback interface of the job only.
    None,
    /// The internet without the named networks of the organization's policy.
    Internet,
    /// The network of the node, with all that it reaches. The organization needs the grant `host_network`.
    Host,
}

impl Network {
    pub const ALL: [Self; 4] = [Self::Outbound, Self::Internet, Self::None, Self::Host];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Outbound => "outbound",
            Self::None => "none",
            Self::Internet => "internet",
            Self::Host => "host",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|network| network.name() == name)
    }

    pub const fn is_outbound(&self) -> bool {
        matches!(self, Self::Outbound)
    }
}

/// A period with idle devices of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Underuse {
    /// The start of the period.
    pub since: Timestamp,
    /// The end of the period.
    pub until: Timestamp,
    /// The mean utilization in percent, rounded down.
    pub percent: u32,
    /// The cost of the period in micro-units of the currency.
    pub cost_micros: i64,
}

/// The required end of a dependency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// An end in `succeeded`.
    #[default]
    Succeeded,
    /// Any end.
    Finished,
}

/// A dependency: another job's end before the start of this job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DependsOn {
    /// A job of the same organization.
    pub job: JobId,
    /// The required end; `succeeded` when absent.
    #[serde(default)]
    pub condition: Condition,
}

fn one() -> u32 {
    1
}

/// The memory slices `start` to `start + size - 1` of a board.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Placement {
    /// The number of the first memory slice, from 0.
    pub start: u32,
    /// The number of memory slices.
    pub size: u32,
}

/// A device of a job: a board, a slice or a share for one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Device {
    /// The node of the device.
    pub node: NodeId,
    /// The name of the node.
    pub node_name: String,
    /// The UUID of the board.
    pub gpu_uuid: String,
    /// The number of the board on its node, from 0.
    pub gpu_index: u32,
    /// The number of memory slices of the whole board.
    pub cells: u32,
    /// The UUID of the MIG instance; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig_uuid: Option<String>,
    /// The memory slices of a slice; absent for a whole board or a share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// The share of the board in thousandths; absent for a whole board or a slice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_milli: Option<u32>,
}

/// The reason of a bad end: a stable code and a sentence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Failure {
    /// A stable code, such as `node.lost` or `job.idle`.
    pub code: String,
    /// A sentence about the failure.
    pub detail: String,
}

/// An action that the present state of a job allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Action {
    Cancel,
    Extend,
}

/// A job with its submission, state and results.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Job {
    /// The id of the job.
    pub id: JobId,
    /// The organization of the job.
    pub org: OrgId,
    /// The job's name.
    pub name: String,
    /// The state of the job.
    pub state: JobState,
    /// Sentences about the state: the blockers of a waiting job, the progress of its preparation, or a silent
    /// worker.
    pub reasons: Vec<String>,
    /// The number of the latest attempt; 0 before the first one.
    pub attempt: u32,
    /// The slug of the offering.
    pub offering: String,
    /// True for an offering of simulated boards.
    pub simulated: bool,
    /// Devices on each node.
    pub count: u32,
    /// The number of nodes.
    #[serde(default = "one")]
    pub nodes: u32,
    /// The class of the job in the queue.
    pub priority: Priority,
    /// True if a job of a higher class may stop this job.
    #[serde(default)]
    pub preemptible: bool,
    /// The dependencies of the start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<DependsOn>,
    /// The number of processors on each node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    /// The memory on each node in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// The share of one board in thousandths; the whole board when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_milli: Option<u32>,
    /// The required nearness of the devices.
    #[serde(default, skip_serializing_if = "Topology::is_any")]
    pub topology: Topology,
    /// The network access.
    #[serde(default, skip_serializing_if = "Network::is_outbound")]
    pub network: Network,
    /// True for access to the RDMA devices of the nodes. With RoCE the job has the network of its nodes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rdma: bool,
    /// The numbers of the TCP ports that the browser can open.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<u32>,
    /// True if requests to a port have the whole path of the browser.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ports_keep_path: bool,
    /// The rules for retries; absent without them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// The number of retries so far, without attempts after a preemption.
    #[serde(default)]
    pub retries: u32,
    /// The checkpoint rules; absent without them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
    /// The rule for a stop of idle devices; absent without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_when_idle: Option<StopWhenIdle>,
    /// The latest hour with idle devices of the running job; absent when that is long ago.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub underused: Option<Underuse>,
    /// The reservation of the job; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<ReservationId>,
    /// The program and its arguments; absent for a script.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// The text of the script; absent in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<String>,
    /// The container image; absent for the node's own system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The digests of the present attempt's image, by rank, after the pull; absent in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub image_digests: Vec<String>,
    /// Paths of the submitted files.
    #[serde(default)]
    pub files: Vec<String>,
    /// The volumes of the job with their versions; absent in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<JobVolume>,
    /// The labels of the job: key → value.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The time limit in seconds.
    pub max_duration_s: u64,
    /// The devices of the present attempt, by rank.
    pub devices: Vec<Device>,
    /// The time of the submission.
    pub created_at: Timestamp,
    /// The name of the submitting user.
    pub created_by: String,
    /// The start of the latest attempt; absent before it. An ended job has the start of its last attempt that ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// The end of the job; absent before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// The time at which retention removed the submission, the logs and the files; absent before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed_at: Option<Timestamp>,
    /// The exit code of the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The reason of a bad end; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// The rank whose end failed a job on several nodes; absent for other ends and in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_rank: Option<u32>,
    /// Metered milliseconds of all attempts.
    pub metered_ms: i64,
    /// The charge so far in micro-units of the currency.
    pub cost_micros: i64,
    /// Credits for charges without evidence, in micro-units of the currency; 0 in lists.
    #[serde(default)]
    pub credited_micros: i64,
    /// The evidence of the present attempt, by rank, without ranks of workers that record none; absent in
    /// lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<Evidence>,
    /// The hold for the rest of the worst-case price, in micro-units of the currency.
    pub held_micros: i64,
    /// The rate of all devices in nano-units of the currency a second, with the surcharge.
    pub nano_per_second: i64,
    /// The surcharge in the rate in basis points, from the promise that the service of a replica had at the submission; 0
    /// and absent for other jobs.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub surcharge_basis_points: u32,
    /// The ISO 4217 code of the currency.
    pub currency: String,
    /// The number of the price version.
    pub price_version: i64,
    /// The number of the latest change; the event with this number describes it.
    pub generation: i64,
    /// The actions that the present state allows.
    pub actions: Vec<Action>,
}

/// The price and place of a job before its submission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobPlan {
    /// The slug of the offering.
    pub offering: String,
    /// The number of the price version.
    pub price_version: i64,
    /// The rate of all devices in micro-units of the currency an hour.
    pub per_hour_micros: i64,
    /// The worst-case price: the rate of all devices over `max_duration_s`, in micro-units of the currency.
    pub worst_case_micros: i64,
    /// The available money in micro-units of the currency.
    pub available_micros: i64,
    /// True if the available money covers the worst-case price.
    pub affordable: bool,
    /// The ISO 4217 code of the currency.
    pub currency: String,
    /// The devices of an immediate start; empty for a job that would wait.
    pub placement: Vec<Device>,
    /// The begin of the job's reservation; absent without one and after its begin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation_starts_at: Option<Timestamp>,
    /// The reasons for a wait; empty for a job that would start at once.
    pub blockers: Vec<Blocker>,
    /// Changes with which the job would start now, at most 3; empty for a job that would start at once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suggested_changes: Vec<SuggestedChange>,
}

/// A reason for a job's wait, with a change that removes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Blocker {
    /// A stable code, such as `capacity.busy`, `queue.ahead` or `node.unavailable`.
    pub code: String,
    /// A sentence about the reason.
    pub detail: String,
    /// A sentence about the change that removes the reason.
    pub change: String,
    /// Jobs and reservations of the organization and maintenance windows behind the reason, at most 5.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<BlockingObject>,
    /// The number of further jobs, reservations and windows like `objects`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_objects: u32,
    /// The number of jobs and reservations of other organizations behind the reason. They have no name and no
    /// id here.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub others: u32,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The list of a waiting job's blockers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Explanation {
    /// The reasons for the wait.
    pub blockers: Vec<Blocker>,
    /// A sentence about the smallest change for a start; empty without a blocker.
    pub smallest_change: String,
    /// The expected start; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub earliest_start: Option<Timestamp>,
    /// The basis of `earliest_start`.
    pub basis: String,
    /// Changes of the submission with which it would start now, at most 3. Only for members who can run jobs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suggested_changes: Vec<SuggestedChange>,
}

//! Jobs: what a tenant asks for, and what became of it.

mod ends;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::evidence::Evidence;
pub use crate::files::{Checkpoint, CheckpointSignal};
use crate::ids::{JobId, NodeId, OrgId, ReservationId};
use crate::secrets::{RegistryUse, SecretUse};
use crate::time::Timestamp;
use crate::volumes::{JobVolume, VolumeUse};

pub use ends::{Retry, RetryOn, StopWhenIdle};

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

    /// Nothing more will happen to a job in this state.
    pub const fn ended(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled | Self::TimedOut)
    }
}

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
    /// The order in the queue: higher first.
    pub const fn rank(self) -> i64 {
        match self {
            Self::Low => 0,
            Self::Normal => 1,
            Self::High => 2,
        }
    }
}

/// The body of a submission. Give `command` or `script`, not both.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewJob {
    pub name: String,
    /// The slug of an offering, such as `h100-80gb.1g.10gb`.
    pub offering: String,
    /// Devices on each node.
    #[serde(default = "one")]
    pub count: u32,
    /// Nodes; each runs one rank of the job.
    #[serde(default = "one")]
    pub nodes: u32,
    /// A program and its arguments; no shell is involved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// The text of a script. It runs by its `#!` line, or by `/bin/sh`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<String>,
    /// The image that it runs in, such as `docker.io/library/alpine:3.20`; its node's own system when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// What the image's registry asks for, when not everybody may have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry: Option<RegistryUse>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Secrets of its organization that it is given when it starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretUse>,
    /// Written into the job's own directory before it starts: relative path → text.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, String>,
    /// Seconds after which the job is stopped; the most that it can cost follows from it.
    #[serde(default = "default_duration")]
    pub max_duration_s: u64,
    #[serde(default)]
    pub priority: Priority,
    /// It may be stopped to make room for more important jobs, and is tried again afterwards.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub preemptible: bool,
    /// Processors that must be free on its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    /// Memory that must be free on its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// Thousandths of one board that it shares with other jobs of its organization; the whole board when
    /// absent. For offerings of whole boards, one device on one node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_milli: Option<u32>,
    #[serde(default, skip_serializing_if = "Topology::is_any")]
    pub topology: Topology,
    /// What it reaches besides its own processes.
    #[serde(default, skip_serializing_if = "Network::is_outbound")]
    pub network: Network,
    /// TCP ports on which it listens and which can be opened in the browser while it runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<u32>,
    /// What listens there is asked for the whole path under which the browser sees it, and not for the part
    /// behind the port.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ports_keep_path: bool,
    /// What a try that ended badly is followed by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// How it is told that it must make room, and what it saves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
    /// Files of the job's directory that are kept when an attempt ends, such as `out/**`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<String>,
    /// Volumes of its organization that are there when it starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeUse>,
    /// It ends by itself when its devices stand idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_when_idle: Option<StopWhenIdle>,
    /// Seconds that it goes on on a node that is cut off, before it is ended there and counts as lost; the
    /// portal's own choice when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_s: Option<u32>,
    /// It runs inside this reservation, at no further charge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<ReservationId>,
    /// Jobs of the same organization that must end first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<DependsOn>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// How near each other the devices of a job must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Topology {
    #[default]
    Any,
    /// All on one node, which is what a job of one node gets anyway.
    SameNode,
    /// On nodes with the same `switch` label.
    SameSwitch,
    /// On nodes with the same `rack` label.
    SameRack,
    /// The devices of each node reach each other by NVLink.
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

    pub const fn is_any(&self) -> bool {
        matches!(self, Self::Any)
    }
}

/// What a job reaches of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// Whatever its node reaches.
    #[default]
    Outbound,
    /// Nothing but a loopback of its own.
    None,
}

impl Network {
    pub const fn is_outbound(&self) -> bool {
        matches!(self, Self::Outbound)
    }
}

/// A stretch of time in which a job's devices stood idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Underuse {
    pub since: Timestamp,
    pub until: Timestamp,
    /// Mean utilisation, rounded down.
    pub percent: u32,
    /// What that time cost.
    pub cost_micros: i64,
}

/// How the job that one waits for must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    #[default]
    Succeeded,
    /// In whatever way.
    Finished,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DependsOn {
    pub job: JobId,
    #[serde(default)]
    pub condition: Condition,
}

fn one() -> u32 {
    1
}

fn default_duration() -> u64 {
    3_600
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ExtendJob {
    /// The new limit, counted from the start of the run. Longer than the present one.
    pub max_duration_s: u64,
}

/// Memory slices `start .. start + size` of a board.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Placement {
    pub start: u32,
    pub size: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Device {
    pub node: NodeId,
    pub node_name: String,
    pub gpu_uuid: String,
    pub gpu_index: u32,
    /// Memory slices of the whole board.
    pub cells: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig_uuid: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// Thousandths of the board, when it is shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_milli: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Failure {
    pub code: String,
    pub detail: String,
}

/// Something that can be done to a job now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Action {
    Cancel,
    Extend,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Job {
    pub id: JobId,
    pub org: OrgId,
    pub name: String,
    pub state: JobState,
    /// One sentence each: why it waits, or that its worker is silent.
    pub reasons: Vec<String>,
    /// 0 until it was first placed.
    pub attempt: u32,
    pub offering: String,
    pub simulated: bool,
    /// Devices on each node.
    pub count: u32,
    #[serde(default = "one")]
    pub nodes: u32,
    pub priority: Priority,
    #[serde(default)]
    pub preemptible: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<DependsOn>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_milli: Option<u32>,
    #[serde(default, skip_serializing_if = "Topology::is_any")]
    pub topology: Topology,
    #[serde(default, skip_serializing_if = "Network::is_outbound")]
    pub network: Network,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<u32>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ports_keep_path: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// Tries after bad ends so far; those after preemption are not counted.
    #[serde(default)]
    pub retries: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_when_idle: Option<StopWhenIdle>,
    /// The last hour in which its devices stood idle, while it runs and that is not long ago.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub underused: Option<Underuse>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<ReservationId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Only with one job, not in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// What its registry calls exactly the image of the present attempt, by rank, once it is there. Only with
    /// one job, not in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub image_digests: Vec<String>,
    /// Paths of the files given with the job.
    #[serde(default)]
    pub files: Vec<String>,
    /// What became of them, only with one job, not in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<JobVolume>,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    pub max_duration_s: u64,
    pub devices: Vec<Device>,
    pub created_at: Timestamp,
    pub created_by: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// Milliseconds of use that the worker has proved, over all attempts.
    pub metered_ms: i64,
    pub cost_micros: i64,
    /// Given back of that by itself, where evidence did not bear it out. Only with one job, not in lists.
    #[serde(default)]
    pub credited_micros: i64,
    /// Of the present attempt, by rank; a worker that cannot tell is left out. Only with one job, not in
    /// lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<Evidence>,
    /// Set aside for what it can still cost.
    pub held_micros: i64,
    pub nano_per_second: i64,
    pub currency: String,
    pub price_version: i64,
    /// Rises with every change; an event with this number brought the job here.
    pub generation: i64,
    pub actions: Vec<Action>,
}

/// What a submission would do, without doing it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobPlan {
    pub offering: String,
    pub price_version: i64,
    pub per_hour_micros: i64,
    /// The most it can cost: the rate over `max_duration_s`, every device counted.
    pub worst_case_micros: i64,
    pub available_micros: i64,
    pub affordable: bool,
    pub currency: String,
    /// Where it would run if it were submitted now; empty when it would wait.
    pub placement: Vec<Device>,
    /// Why it would wait; empty when it would start at once.
    pub blockers: Vec<Blocker>,
}

/// One thing that keeps a job waiting, and what would lift it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Blocker {
    /// `capacity.busy`, `capacity.none`, `queue.ahead`, `health.quarantined`, `node.unavailable`.
    pub code: String,
    pub detail: String,
    pub change: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Explanation {
    pub blockers: Vec<Blocker>,
    /// The least that would let it start; empty when nothing is in its way.
    pub smallest_change: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub earliest_start: Option<Timestamp>,
    /// What `earliest_start` rests on.
    pub basis: String,
}

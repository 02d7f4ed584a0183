//! Types of nodes, boards and join tokens.

mod absence;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{JobId, JoinTokenId, NodeId, OrgId};
use crate::jobs::Placement;
use crate::node_pools::NodePool;
use crate::rdma::RdmaPort;
use crate::time::Timestamp;
pub use absence::{NodeMaintenance, SetAside, Silence, SilenceState};

/// The state of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// Known, before the first session of its worker.
    Joining,
    /// Connected at least once, without the approval of an operator: the node gets no work.
    AwaitingApproval,
    /// Connected and open to new work.
    Ready,
    /// In a drain: the node takes no new work, and its jobs end by themselves or at a deadline.
    Draining,
    /// Running jobs continue; the node takes no new work.
    Cordoned,
    /// Without a session of its worker.
    Unreachable,
}

impl NodeState {
    pub const ALL: [Self; 6] = [
        Self::Joining,
        Self::AwaitingApproval,
        Self::Ready,
        Self::Draining,
        Self::Cordoned,
        Self::Unreachable,
    ];
    pub const fn name(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::AwaitingApproval => "awaiting_approval",
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Cordoned => "cordoned",
            Self::Unreachable => "unreachable",
        }
    }
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Returns the word for people, the same on every page.
    pub const fn word(self) -> &'static str {
        match self {
            Self::AwaitingApproval => "awaiting approval",
            Self::Unreachable => "not connected",
            other => other.name(),
        }
    }
}

/// A filter of nodes. An absent field matches every node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct NodeFilter {
    /// The state of the node.
    pub state: Option<NodeState>,
    /// A part of the model name of one of its boards, in any case: at most 100 bytes.
    pub model: Option<String>,
    /// A part of the node's name, in any case: at most 100 bytes.
    pub name: Option<String>,
}

/// An occupied range of memory slices, with the facts that the caller may see.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Tile {
    /// The memory slices.
    pub placement: Placement,
    /// The MIG profile, such as `1g.10gb`; absent for a whole board.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// The share of the board in thousandths; absent for a whole board or a slice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_milli: Option<u32>,
    /// The reason for devices that no job can use before proof that they are clean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantined: Option<String>,
    /// The owner, if the caller may see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<TileOwner>,
}

/// The job of a tile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TileOwner {
    /// The id of the job.
    pub job: JobId,
    /// The name of the job.
    pub job_name: String,
    /// The name of the organization.
    pub org_name: String,
    /// The colour of the organization, 1 to 8.
    pub hue: u32,
    /// The pattern of the organization: `plain`, `stripes` or `dots`.
    pub pattern: String,
}

/// One board of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Gpu {
    /// The UUID of the board.
    pub uuid: String,
    /// The number of the board on its node, from 0.
    pub index: u32,
    /// The model name of the driver.
    pub model: String,
    /// The memory of the board in MiB.
    pub memory_mib: i64,
    /// The number of memory slices; 1 for a board without MIG.
    pub cells: u32,
    /// The numbers of free memory slices, from 0, that no MIG profile can use at present.
    pub blocked_cells: Vec<u32>,
    /// True in MIG mode.
    pub mig_enabled: bool,
    /// The NVLink island: boards of a node with the same number have NVLink between them. Absent without
    /// NVLink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvlink_island: Option<u32>,
    /// The reason for a board out of service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantined: Option<String>,
    /// The occupied ranges of memory slices.
    pub tiles: Vec<Tile>,
    /// The power of the latest reading in watts; absent without one. An organization sees the readings of boards
    /// with its own jobs only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_watts: Option<f64>,
    /// The temperature of the latest reading in degrees Celsius; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature_celsius: Option<f64>,
    /// The busy part of the board's time in percent, by the latest reading; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilization_percent: Option<f64>,
}

/// The organization of a dedicated node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NodeOrg {
    /// The id of the organization.
    pub org: OrgId,
    /// The name of the organization.
    pub name: String,
}

/// A node with its boards.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Node {
    /// The id of the node.
    pub id: NodeId,
    /// The node's name.
    pub name: String,
    /// The state of the node.
    pub state: NodeState,
    /// True for a node with simulated boards.
    pub simulated: bool,
    /// True if jobs on the node run without a sandbox.
    pub unisolated: bool,
    /// The version of the GPU driver.
    pub driver_version: String,
    /// The version of the worker. Only operators see this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_version: Option<String>,
    /// The labels that operators gave or adopted; `switch` and `rack` count for placement.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The labels of the worker's settings. They count only if an operator adopted them. Only operators see
    /// this field.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub reported_labels: BTreeMap<String, String>,
    /// True if each report of the worker replaces `labels`. Only operators see this field.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub adopts_labels: bool,
    /// The address for connections from other nodes, as the worker reports it. Only operators see this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The only organization whose jobs, reservations and data go to the node; absent for a node of all
    /// organizations. No other organization sees the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedicated_to: Option<NodeOrg>,
    /// The work that the node is for; absent for `both`.
    #[serde(default, skip_serializing_if = "NodePool::is_both")]
    pub pool: NodePool,
    /// The missing approval; absent for an approved node. Only operators see this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub awaiting_approval: Option<AwaitingApproval>,
    /// The means of isolation with the worker's text for each: `sandbox`, `seccomp`, `users`, `memory`,
    /// `cpu`, `pids`, `devices`, `network`, `gang_network` (between the ranks of a job on several nodes), `disk`,
    /// `gpu_memory` (the clearing between jobs).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub isolation: BTreeMap<String, String>,
    /// The latest message of the worker; absent before the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen_at: Option<Timestamp>,
    /// The evidence of a clone: a second daemon with the node's certificate. Only operators see this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspect: Option<String>,
    /// A sentence about reported boards that stay with another node. Only operators see this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
    /// The expiry of the node's certificate; absent without a valid certificate. Only operators see this
    /// field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certified_until: Option<Timestamp>,
    /// The facts about a node without a session. Only operators see this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silence: Option<Silence>,
    /// The time for which the node takes no rank of a job on several nodes; absent for a node that is not set aside.
    /// Only operators see this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_aside: Option<SetAside>,
    /// The present maintenance of boards of the node; absent without one. Only operators see this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maintenance: Option<NodeMaintenance>,
    /// The ports of the node's RDMA devices. Only operators see this field.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rdma_ports: Vec<RdmaPort>,
    /// The host mounts that the worker announced at its last connection. Only operators see this field.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host_mounts: Vec<HostMount>,
    /// The boards of the node.
    pub gpus: Vec<Gpu>,
}

/// A directory of a node's host, such as a shared file system, for volumes of a storage class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HostMount {
    /// The name of the storage class.
    pub name: String,
    /// The type of the file system, such as `lustre`; empty if unknown.
    pub file_system: String,
    /// The size of the file system in bytes.
    pub total_bytes: u64,
    /// The free bytes at the last connection of the worker.
    pub free_bytes: u64,
}

/// The boards that an operator expects on a new node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ExpectedBoards {
    /// The model of all boards, as in `gpu_model` of offerings or as the driver names it: 1 to 100 bytes.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 100)))]
    pub model: String,
    /// The number of boards, 1 to 64.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 64)))]
    pub boards: u32,
}

/// The missing approval of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AwaitingApproval {
    /// The reason as a sentence: a join token without approval, or a difference from its expected boards.
    pub reason: String,
    /// The expected boards of the join token; absent without an expectation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<ExpectedBoards>,
}

/// Adds the limits of a node's labels to a schema.
#[cfg(feature = "schema")]
fn limit_labels(schema: &mut schemars::Schema) {
    let text = serde_json::json!({
        "type": "string",
        "minLength": 1,
        "maxLength": 63,
        "pattern": crate::patterns::PRINTABLE,
    });
    schema.insert("maxProperties".to_owned(), 64.into());
    schema.insert("propertyNames".to_owned(), text.clone());
    schema.insert("additionalProperties".to_owned(), text);
}

/// The body of a change of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PatchNode {
    /// True to keep new work off the node; absent for no change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cordoned: Option<bool>,
    /// The labels of the node in place of the present ones: at most 64, each key and value with 1 to 63
    /// bytes of printable characters, and no `rack` of blanks only. Labels of the worker's settings do not count
    /// afterwards. Absent for no change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(transform = limit_labels))]
    pub labels: Option<BTreeMap<String, String>>,
    /// The labels before the change, as you saw them: the change is refused if the node has others now. Absent for no
    /// comparison.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(transform = limit_labels))]
    pub seen_labels: Option<BTreeMap<String, String>>,
    /// True to adopt the labels of the worker's settings, now and with each report; false to keep the present
    /// labels. Absent for no change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adopt_labels: Option<bool>,
    /// The work that the node is for; runs that do not suit go on. Absent for no change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<NodePool>,
}

/// A board of a node as an operator saw it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SeenBoard {
    /// The UUID of the board: 1 to 256 characters.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 256)))]
    pub uuid: String,
    /// The model of the board, as in `gpus` of the node: 1 to 100 characters.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 100)))]
    pub model: String,
}

/// The body of a dedication of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Dedication {
    /// The only organization whose jobs, reservations and data go to the node from now on; absent for all
    /// organizations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub org: Option<OrgId>,
}

/// The setting "own nodes only" of an organization.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PutOrgNodes {
    /// True if its jobs, reservations and data go only to nodes that are dedicated to it.
    pub own_nodes_only: bool,
}

/// The nodes that are dedicated to an organization, for operators.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OrgNodes {
    /// True if its jobs, reservations and data go only to nodes that are dedicated to it.
    pub own_nodes_only: bool,
    /// The number of its dedicated nodes.
    pub node_count: u32,
    /// The first of its dedicated nodes by name, at most 200.
    pub nodes: Vec<OrgNode>,
}

/// A node that is dedicated to an organization.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OrgNode {
    /// The id of the node.
    pub id: NodeId,
    /// The name of the node.
    pub name: String,
}

/// The body of an approval of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ApproveNode {
    /// The boards that the operator saw, at most 64, in any order. The approval is refused if the node reports other
    /// boards. Absent to approve any boards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 64)))]
    pub boards: Option<Vec<SeenBoard>>,
}

/// The body of a new join token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewJoinToken {
    /// The validity in seconds, 60 to 604800 (a week); 3600 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 60, max = 604_800)))]
    pub valid_s: Option<u64>,
    /// True to approve the node at its first report; false when absent. This field and the next ones have no
    /// effect on a node that is approved already.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub approve: bool,
    /// The only boards for which `approve` applies; absent for any boards. A node with other boards waits for an
    /// operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<ExpectedBoards>,
    /// The labels of the node: at most 64, each key and value with 1 to 63 bytes of printable
    /// characters, and no `rack` of blanks only.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "schema", schemars(transform = limit_labels))]
    pub labels: BTreeMap<String, String>,
    /// True to adopt the labels of the worker's settings with each report; not together with `labels`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub adopt_labels: bool,
}

/// The approval and the labels that a join token gives to its node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct JoinTerms {
    /// True to approve the node at its first report.
    #[serde(default)]
    pub approve: bool,
    /// The only boards for which `approve` applies.
    #[serde(default)]
    pub expected: Option<ExpectedBoards>,
    /// The labels of the node.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// True to adopt the labels of the worker's settings with each report.
    #[serde(default)]
    pub adopt_labels: bool,
}

/// A single-use secret for a new node.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JoinToken {
    /// The id of the join token.
    pub id: JoinTokenId,
    /// The secret. No later answer contains it.
    pub secret: String,
    /// The expiry of the token.
    pub expires_at: Timestamp,
    /// The install command for the host.
    pub command: String,
}

//! Hosts, boards and what is on them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{JobId, JoinTokenId, NodeId};
use crate::jobs::Placement;
use crate::time::Timestamp;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    Joining,
    Ready,
    /// Runs what it runs, takes nothing new.
    Cordoned,
    Unreachable,
}

impl NodeState {
    pub const ALL: [Self; 4] = [Self::Joining, Self::Ready, Self::Cordoned, Self::Unreachable];
    pub const fn name(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::Ready => "ready",
            Self::Cordoned => "cordoned",
            Self::Unreachable => "unreachable",
        }
    }
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

/// One occupied run of slices, as the viewer may see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Tile {
    pub placement: Placement,
    /// `1g.10gb`; absent for a whole board.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Thousandths of the board, when it is shared inside an organization.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_milli: Option<u32>,
    /// Cannot be used until it is proved clean; the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantined: Option<String>,
    /// Present where the viewer may know whose it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<TileOwner>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TileOwner {
    pub job: JobId,
    pub job_name: String,
    pub org_name: String,
    /// 1 to 8: the tenant's colour.
    pub hue: u32,
    /// `plain`, `stripes` or `dots`: the tenant's pattern.
    pub pattern: String,
}

/// One board on the map.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Gpu {
    pub uuid: String,
    pub index: u32,
    pub model: String,
    pub memory_mib: i64,
    /// Memory slices; 1 for a board without MIG.
    pub cells: u32,
    /// Slices that no profile can use as the board stands, free as they are.
    pub blocked_cells: Vec<u32>,
    pub mig_enabled: bool,
    /// Boards of a node with the same number reach each other by NVLink; absent: no other board.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvlink_island: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantined: Option<String>,
    pub tiles: Vec<Tile>,
    /// Latest reading; absent when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_watts: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature_celsius: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilization_percent: Option<f64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Node {
    pub id: NodeId,
    pub name: String,
    pub state: NodeState,
    pub simulated: bool,
    /// Jobs on it run without a sandbox.
    pub unisolated: bool,
    pub driver_version: String,
    pub worker_version: String,
    /// What its worker was started with; `switch` and `rack` count for placement.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// What keeps jobs apart on it, in its worker's words: `sandbox`, `seccomp`, `users`, `memory`, `cpu`,
    /// `pids`, `devices`, `network`, `disk`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub isolation: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen_at: Option<Timestamp>,
    /// Why two daemons must be holding its certificate. For operators only, like the next two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspect: Option<String>,
    /// Which boards that its worker reported stay with another node, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
    /// Until when its certificate is good; absent when it has none, or it was revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certified_until: Option<Timestamp>,
    /// Present while its worker does not speak. For operators only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silence: Option<Silence>,
    pub gpus: Vec<Gpu>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SilenceState {
    /// What runs there may still run; nothing of it is started elsewhere.
    Suspect,
    /// What ran there has ended, by its lease or by an operator's word.
    Lost,
}

/// What it means that a node's worker does not speak.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Silence {
    pub state: SilenceState,
    /// Ranks of attempts there whose end is not known.
    pub attempts: u32,
    /// When it was lost, or will be if it stays silent; absent where only an operator's word ends its work,
    /// because its worker is too old to do that by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_at: Option<Timestamp>,
    /// Why it is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PatchNode {
    pub cordoned: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewJoinToken {
    /// Seconds it stays valid; one hour when absent, a week at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_s: Option<u64>,
}

/// A one-time ticket with which a worker joins.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JoinToken {
    pub id: JoinTokenId,
    /// Shown once.
    pub secret: String,
    pub expires_at: Timestamp,
    /// The line to run on the host.
    pub command: String,
}

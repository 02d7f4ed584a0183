//! Types of the overviews: the state of the whole portal for operators, and the numbers of an organization's
//! jobs.

use serde::{Deserialize, Serialize};

use crate::ids::{NodeId, OrgId};
use crate::jobs::Priority;
use crate::nodes::NodeState;
use crate::operations::{Rack, Stuck};
use crate::quotas::{AuditEvent, QuotaRequest};
use crate::time::Timestamp;

/// The most objects of each list of an [`OperatorOverview`].
pub const OVERVIEW_ITEMS: usize = 10;

/// The greatest number of ended jobs in a [`JobCounts`].
pub const MAX_COUNTED: u64 = 10_000;

/// The number of nodes in one state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NodeCount {
    /// The state.
    pub state: NodeState,
    /// The number of nodes.
    pub nodes: u64,
}

/// A node that does not take all of its work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NodeNotice {
    /// The id of the node.
    pub node: NodeId,
    /// The name of the node.
    pub name: String,
    /// The state of the node.
    pub state: NodeState,
    /// Two workers used the certificate of the node, so its data directory may have been copied.
    #[serde(default)]
    pub may_be_copied: bool,
    /// The latest message of the worker; absent before the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen_at: Option<Timestamp>,
}

/// A reported board out of service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BoardNotice {
    /// The node of the board.
    pub node: NodeId,
    /// The name of the node.
    pub node_name: String,
    /// The UUID of the board.
    pub gpu_uuid: String,
    /// The number of the board on its node, from 0.
    pub index: u32,
    /// The code of the quarantine; absent for a board without an answer or without an approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// A sentence about the fault, the missing answer or the missing approval.
    pub reason: String,
    /// The start of the quarantine; absent for a board without an answer or without an approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// True for a board without a fault that waits for the approval of an operator.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub awaits_approval: bool,
}

/// The free capacity of one board model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ModelCapacity {
    /// The board model.
    pub model: String,
    /// The number of reported boards, without those of lost nodes with a revoked certificate.
    pub boards: u64,
    /// The number of boards that take new work: on a ready node, not out of service and not in maintenance.
    pub usable: u64,
    /// The number of usable boards without any job, MIG instance or present reservation.
    pub free: u64,
    /// The largest MIG profile with room on a usable board in MIG mode; absent without room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub largest_free_slice: Option<String>,
}

/// The nodes and boards of the portal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClusterSummary {
    /// The number of nodes in each state, also of states without nodes.
    pub states: Vec<NodeCount>,
    /// The number of nodes in the states `unreachable`, `draining` and `awaiting_approval` and of nodes that may have been
    /// copied, without lost nodes with a revoked certificate.
    pub notice_count: u64,
    /// At most 10 of these nodes, by name.
    pub notices: Vec<NodeNotice>,
    /// The number of reported boards out of service or without an approval, without those of lost nodes with a revoked
    /// certificate.
    pub boards_out_of_service: u64,
    /// At most 10 of these boards: faults before changes of the MIG mode, then the latest first.
    pub board_notices: Vec<BoardNotice>,
    /// The capacity by board model, in the order of the models' names.
    pub capacity: Vec<ModelCapacity>,
}

/// The queue of one priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct QueueLength {
    /// The priority.
    pub priority: Priority,
    /// The number of queued jobs.
    pub jobs: u64,
    /// The submission of the oldest of these jobs.
    pub oldest_at: Timestamp,
}

/// The open jobs of all organizations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WorkSummary {
    /// The number of jobs with devices, also of starting and stopping jobs.
    pub running_jobs: u64,
    /// The number of devices of these jobs: boards, slices and shares.
    pub running_devices: u64,
    /// The number of queued jobs.
    pub queued_jobs: u64,
    /// The submission of the oldest queued job; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_queued_at: Option<Timestamp>,
    /// The queue by priority, the highest first, without empty priorities.
    pub queue: Vec<QueueLength>,
}

/// An organization without available money.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OrgWithoutCredit {
    /// The organization.
    pub org: OrgId,
    /// The name of the organization.
    pub org_name: String,
    /// The available money in micro-units of the currency, with the credit limit: zero or less.
    pub available_micros: i64,
}

/// The charges of all organizations by day (UTC), as the usage of organizations has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Revenue {
    /// The charges of today in micro-units of the currency.
    pub today_micros: i64,
    /// The charges of this calendar month until now in micro-units of the currency.
    pub month_micros: i64,
}

/// The last check of the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LedgerCheck {
    /// The time of the check.
    pub at: Timestamp,
    /// The number of mismatches.
    pub mismatches: u64,
}

/// The effect of the free space of the data directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum DiskState {
    /// The space is above the mark, or there is no mark.
    Enough,
    /// The space is below the mark: uploads are refused.
    NoUploads,
    /// The space is below half of the mark: uploads, submissions and files of workers are refused.
    NoSubmissions,
}

/// The free space of the portal's data directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DiskSpace {
    /// The free bytes of the file system.
    pub free_bytes: u64,
    /// The mark in bytes, from the option `--min-free-gib`; 0 without one.
    pub min_free_bytes: u64,
    /// The effect of the free space.
    pub state: DiskState,
}

/// The state of the whole portal for operators.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OperatorOverview {
    /// The time of this overview.
    pub at: Timestamp,
    /// The ISO 4217 code of the currency.
    pub currency: String,
    /// The nodes and boards.
    pub cluster: ClusterSummary,
    /// The open jobs.
    pub work: WorkSummary,
    /// The number of findings of work without progress.
    pub stuck_count: u64,
    /// At most 10 of these findings, the longest first.
    pub stuck: Vec<Stuck>,
    /// The number of pending requests for other limits.
    pub quota_request_count: u64,
    /// At most 10 of these requests, the oldest first.
    pub quota_requests: Vec<QuotaRequest>,
    /// The number of change requests that wait for a second operator and that the operator may read.
    pub change_request_count: u64,
    /// The number of organizations without available money.
    pub orgs_without_credit_count: u64,
    /// At most 10 of these organizations, the lowest amount first.
    pub orgs_without_credit: Vec<OrgWithoutCredit>,
    /// The last check of the ledger; absent before the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ledger_check: Option<LedgerCheck>,
    /// The charges of today and of this month.
    pub revenue: Revenue,
    /// The free space of the data directory; absent if it cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskSpace>,
    /// The number of racks.
    pub rack_count: u64,
    /// At most 10 racks, the fullest power budget first, then racks without a budget by name.
    pub racks: Vec<Rack>,
    /// The latest 10 audit events, newest first; none for a role or a token that may not read the audit log.
    pub audit_events: Vec<AuditEvent>,
}

/// The numbers of an organization's jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobCounts {
    /// The number of jobs with devices, also of starting and stopping jobs.
    pub running: u64,
    /// The number of queued jobs.
    pub queued: u64,
    /// The number of ended jobs, counted up to 10000.
    #[cfg_attr(feature = "schema", schemars(range(max = 10_000)))]
    pub ended: u64,
}

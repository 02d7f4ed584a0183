//! Nodes, boards and join tokens.

use std::collections::BTreeMap;

use berth_types::health::GpuFacts;
use berth_types::ids::{JobId, JoinTokenId, NodeId, OrgId};
use berth_types::node_pools::NodePool;
use berth_types::nodes::{HostMount, JoinTerms};
use berth_types::rdma::RdmaPort;
use berth_types::time::Timestamp;

use super::gangs::GangPorts;
use super::types::JsonColumn;
use super::{StoreError, Tx};

/// The quarantine code of a board on which a device could not be made.
const UNAVAILABLE: &str = "device.unavailable";

#[derive(Debug, Clone, sqlx::FromRow)]
pub struct StoredNode {
    pub id: NodeId,
    pub name: String,
    pub cordoned: bool,
    /// True during a drain.
    pub draining: bool,
    pub simulated: bool,
    pub unisolated: bool,
    pub driver_version: String,
    pub worker_version: String,
    pub last_seen_at: Option<Timestamp>,
    /// 0 if unknown, also for the next field.
    pub cpu_milli: i64,
    pub memory_mib: i64,
    pub address: String,
    /// The labels that count.
    pub labels: JsonColumn<BTreeMap<String, String>>,
    /// The labels of the worker's report.
    pub reported_labels: JsonColumn<BTreeMap<String, String>>,
    /// True if each report replaces the labels that count.
    pub adopts_labels: bool,
    /// Absent for a node that waits for an approval.
    pub approved_at: Option<Timestamp>,
    /// The terms of its join token; empty after their use.
    pub terms: JsonColumn<JoinTerms>,
    /// The reason for the suspicion that two daemons hold its certificate.
    pub suspect: Option<String>,
    /// The latest expiry of its certificates that are not revoked; absent without such a certificate.
    pub certified_until: Option<Timestamp>,
    /// The isolation that the worker offers.
    pub isolation: JsonColumn<BTreeMap<String, String>>,
    /// True if its worker can run images.
    pub images: bool,
    /// The ports of its RDMA devices.
    pub rdma_ports: JsonColumn<Vec<RdmaPort>>,
    /// True if its worker keeps egress policies.
    pub egress: bool,
    /// True if its worker gives a job the network of the host.
    pub host_network: bool,
    /// The first UDP port for networks between ranks; 0: ranks have the network of the host.
    pub gang_first_port: i64,
    /// True for such networks without encryption.
    pub gang_plain: bool,
    /// The host mounts that answered.
    pub host_mounts: JsonColumn<Vec<HostMount>>,
    /// A sentence about reported boards that belong to another node; empty without such boards.
    pub gpus_left_out: String,
    /// The only organization whose work the node takes, and its name.
    pub dedicated_to: Option<OrgId>,
    pub dedicated_name: Option<String>,
    /// The work that the node is for.
    pub pool: NodePool,
    /// The node takes no rank of a job on several nodes until this time.
    pub aside_until: Option<Timestamp>,
    /// The reason as a sentence; empty for a node that was never set aside.
    pub aside_reason: String,
}

/// A worker's report of its host at the start of a session.
#[derive(Debug, Clone)]
pub struct NodeReport {
    pub simulated: bool,
    pub unisolated: bool,
    pub driver_version: String,
    pub worker_version: String,
    /// 0 if unknown, also for the next field.
    pub cpu_milli: i64,
    pub memory_mib: i64,
    /// The address for connections from other nodes.
    pub address: String,
    /// The labels of the worker's settings.
    pub labels: JsonColumn<BTreeMap<String, String>>,
    /// The isolation that the worker offers.
    pub isolation: JsonColumn<BTreeMap<String, String>>,
    /// True if its worker can run images.
    pub images: bool,
    /// Absent: ranks of jobs on several nodes have the network of the host.
    pub gang_ports: Option<GangPorts>,
    /// The ports of its RDMA devices.
    pub rdma_ports: JsonColumn<Vec<RdmaPort>>,
    /// True if its worker measures the RDMA links of a rank before its start.
    pub checks_rdma_links: bool,
    /// True if its worker keeps egress policies.
    pub egress: bool,
    /// True if its worker gives a job the network of the host.
    pub host_network: bool,
    /// The host mounts that answered.
    pub host_mounts: JsonColumn<Vec<HostMount>>,
    /// The TCP port of its listener for gateways; 0 without one.
    pub inference_port: u16,
    pub boards: Vec<GpuReport>,
}

#[derive(Debug, Clone)]
pub struct GpuReport {
    pub uuid: String,
    pub index: i64,
    pub model: String,
    pub memory_mib: i64,
    pub mig_enabled: bool,
    pub nvlink_island: i64,
    /// `(profile, start)` of the MIG instances from outside this portal.
    pub foreign_instances: JsonColumn<Vec<(u32, u32)>>,
}

#[derive(Debug, Clone, sqlx::FromRow)]
pub struct StoredGpu {
    pub uuid: String,
    pub node_id: NodeId,
    pub idx: i64,
    pub model: String,
    pub memory_mib: i64,
    pub mig_enabled: bool,
    pub nvlink_island: i64,
    pub present: bool,
    /// The reason against placements on it: its quarantine or its silence.
    pub quarantined: Option<String>,
    /// `(profile, start)` of the MIG instances from outside this portal.
    pub foreign_instances: JsonColumn<Vec<(u32, u32)>>,
    /// The facts that the worker read; the others have default values.
    pub facts: JsonColumn<GpuFacts>,
    /// True if its node is cordoned.
    pub cordoned: bool,
    /// The only organization whose work its node takes.
    pub dedicated_to: Option<OrgId>,
    /// The work that its node is for.
    pub pool: NodePool,
}

/// The owner of a board that another node reports.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct BoardOwner {
    pub node_id: NodeId,
    pub node_name: String,
    /// True if the last report of the owner had the board.
    pub present: bool,
    /// True if an attempt holds a device on the board.
    pub held: bool,
    /// True for an approved node.
    pub approved: bool,
}

/// The node, the index and the model of a board. The board may have been on another node at the time of a job.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct BoardName {
    pub uuid: String,
    pub node_id: NodeId,
    pub node_name: String,
    pub idx: i64,
    pub model: String,
}

pub async fn insert_join_token(
    tx: &mut Tx<'_>,
    id: JoinTokenId,
    hash: &str,
    created_by: &str,
    now: Timestamp,
    expires_at: Timestamp,
) -> Result<(), StoreError> {
    let sql =
        "INSERT INTO join_tokens (id, hash, created_by, created_at, expires_at) VALUES ($1, $2, $3, $4, $5)";
    exec!(tx, sql, id, hash, created_by, now, expires_at).map(|_| ())
}

/// Deletes join tokens that are used or have expired.
pub async fn forget_join_tokens(tx: &mut Tx<'_>, now: Timestamp) -> Result<(), StoreError> {
    let sql = "DELETE FROM join_tokens WHERE used_at IS NOT NULL OR expires_at <= $1";
    exec!(tx, sql, now).map(|_| ())
}

/// Marks a join token as used. Returns false if it does not exist, was used or has expired.
pub async fn use_join_token(tx: &mut Tx<'_>, hash: &str, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "UPDATE join_tokens SET used_at = $2 WHERE hash = $1 AND used_at IS NULL AND expires_at > $2";
    Ok(exec!(tx, sql, hash, now)? == 1)
}

/// Adds a node that waits for an approval.
pub async fn insert(tx: &mut Tx<'_>, node: NodeId, name: &str, now: Timestamp) -> Result<(), StoreError> {
    let sql = "INSERT INTO nodes (id, name, cordoned, simulated, unisolated, driver_version, \
               worker_version, created_at) VALUES ($1, $2, $3, $3, $3, '', '', $4)";
    exec!(tx, sql, node, name, false, now).map(|_| ())
}

/// Lists all nodes that are not removed by name. A corrupt row is left out.
pub async fn list(tx: &mut Tx<'_>) -> Result<Vec<StoredNode>, StoreError> {
    let sql = "SELECT id, name, cordoned, EXISTS (SELECT 1 FROM drains d WHERE d.node_id = nodes.id) AS draining, \
               simulated, unisolated, driver_version, worker_version, last_seen_at, \
               cpu_milli, memory_mib, address, labels, reported_labels, adopts_labels, approved_at, terms, isolation, \
               images, rdma_ports, egress, host_network, gang_first_port, gang_plain, host_mounts, gpus_left_out, suspect, dedicated_to, pool, \
               aside_until, aside_reason, \
               (SELECT o.name FROM orgs o WHERE o.id = nodes.dedicated_to) AS dedicated_name, (SELECT MAX(c.expires_at) FROM node_certificates c \
               WHERE c.node_id = nodes.id AND c.revoked_at IS NULL) AS certified_until FROM nodes WHERE removed_at IS NULL ORDER BY name, id";
    list_readable!(tx, StoredNode, sql)
}

/// Lists the approved nodes by name. A corrupt row is left out.
pub async fn list_approved(tx: &mut Tx<'_>) -> Result<Vec<StoredNode>, StoreError> {
    let mut rows = list(tx).await?;
    rows.retain(|row| row.approved_at.is_some());
    Ok(rows)
}

/// Lists the removed nodes whose rows stay, with their names.
pub async fn list_removed(tx: &mut Tx<'_>) -> Result<Vec<(NodeId, String)>, StoreError> {
    list!(tx, (NodeId, String), "SELECT id, name FROM nodes WHERE removed_at IS NOT NULL ORDER BY id")
}

/// Lists the names of these nodes, also of removed ones.
pub async fn list_names(tx: &mut Tx<'_>, ids: &[NodeId]) -> Result<Vec<(NodeId, String)>, StoreError> {
    let sqlite = "SELECT id, name FROM nodes WHERE id IN (SELECT value FROM json_each($1))";
    let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
    list_in!(tx, (NodeId, String), sqlite, "SELECT id, name FROM nodes WHERE id = ANY($1)", ids)
}

/// The text of a query for boards with their nodes, without its condition.
macro_rules! select_gpus {
    () => {
        "SELECT g.uuid, g.node_id, g.idx, g.model, g.memory_mib, g.mig_enabled, g.nvlink_island, g.present, \
         COALESCE(g.quarantined, g.silent, \
         CASE WHEN g.awaits_approval THEN 'The board waits for the approval of an operator.' END) AS quarantined, \
         g.foreign_instances, g.facts, n.cordoned, n.dedicated_to, n.pool FROM gpus g JOIN nodes n ON n.id = g.node_id"
    };
}

/// Lists the boards of approved nodes by node and index. A corrupt row is left out: no job gets that board.
pub async fn list_gpus(tx: &mut Tx<'_>) -> Result<Vec<StoredGpu>, StoreError> {
    let sql = concat!(
        select_gpus!(),
        " WHERE n.approved_at IS NOT NULL AND n.removed_at IS NULL ORDER BY g.node_id, g.idx, g.uuid"
    );
    list_readable!(tx, StoredGpu, sql)
}

/// Lists the boards of removed nodes. A corrupt row is left out.
pub async fn list_removed_gpus(tx: &mut Tx<'_>) -> Result<Vec<StoredGpu>, StoreError> {
    list_readable!(tx, StoredGpu, concat!(select_gpus!(), " WHERE n.removed_at IS NOT NULL ORDER BY g.uuid"))
}

/// Lists the boards of all nodes, also of nodes without an approval, by node and index. A corrupt row is left out.
pub async fn list_all_gpus(tx: &mut Tx<'_>) -> Result<Vec<StoredGpu>, StoreError> {
    let sql = concat!(select_gpus!(), " WHERE n.removed_at IS NULL ORDER BY g.node_id, g.idx, g.uuid");
    list_readable!(tx, StoredGpu, sql)
}

/// Lists the boards with these UUIDs, with the names of their nodes.
pub async fn list_board_names(tx: &mut Tx<'_>, uuids: &[String]) -> Result<Vec<BoardName>, StoreError> {
    let sqlite = "SELECT g.uuid, g.node_id, n.name AS node_name, g.idx, g.model FROM gpus g JOIN nodes n ON n.id = g.node_id \
                  WHERE g.uuid IN (SELECT value FROM json_each($1))";
    let postgres = "SELECT g.uuid, g.node_id, n.name AS node_name, g.idx, g.model FROM gpus g JOIN nodes n ON n.id = g.node_id \
                    WHERE g.uuid = ANY($1)";
    list_in!(tx, BoardName, sqlite, postgres, uuids.to_vec())
}

/// Finds the owner of a board, if it is another node that is not removed.
pub async fn find_other_owner(
    tx: &mut Tx<'_>,
    gpu_uuid: &str,
    node: NodeId,
) -> Result<Option<BoardOwner>, StoreError> {
    let sql = "SELECT g.node_id, n.name AS node_name, g.present, n.approved_at IS NOT NULL AS approved, \
               EXISTS (SELECT 1 FROM allocations a WHERE a.gpu_uuid = g.uuid AND a.held) AS held \
               FROM gpus g JOIN nodes n ON n.id = g.node_id WHERE g.uuid = $1 AND g.node_id <> $2 \
               AND n.removed_at IS NULL";
    find!(tx, BoardOwner, sql, gpu_uuid, node)
}

/// Records the sentence about reported boards of other nodes. Returns true if it changed.
pub async fn set_gpus_left_out(tx: &mut Tx<'_>, node: NodeId, text: &str) -> Result<bool, StoreError> {
    let sql = "UPDATE nodes SET gpus_left_out = $2 WHERE id = $1 AND gpus_left_out <> $2";
    Ok(exec!(tx, sql, node, text)? == 1)
}

/// Records a worker's report of its host. Its boards become boards of this node, also boards of another node.
pub async fn record_report(
    tx: &mut Tx<'_>,
    node: NodeId,
    report: &NodeReport,
    now: Timestamp,
) -> Result<(), StoreError> {
    let sql = "UPDATE nodes SET simulated = $2, unisolated = $3, driver_version = $4, worker_version = $5, \
               last_seen_at = $6, cpu_milli = $7, memory_mib = $8, address = $9, reported_labels = $10, \
               labels = CASE WHEN adopts_labels THEN $10 ELSE labels END, isolation = $11, images = $12, \
               gang_first_port = $13, gang_plain = $14, rdma_ports = $15, egress = $16, host_network = $17, \
               host_mounts = $18, gang_checks = $19, inference_port = $20, checks_rdma_links = $21 WHERE id = $1";
    exec!(
        tx,
        sql,
        node,
        report.simulated,
        report.unisolated,
        &report.driver_version,
        &report.worker_version,
        now,
        report.cpu_milli,
        report.memory_mib,
        &report.address,
        &report.labels,
        &report.isolation,
        report.images,
        report.gang_ports.map_or(0, |ports| i64::from(ports.first)),
        report.gang_ports.is_some_and(|ports| ports.plain),
        &report.rdma_ports,
        report.egress,
        report.host_network,
        &report.host_mounts,
        report.gang_ports.is_some_and(|ports| ports.checks),
        i64::from(report.inference_port),
        report.checks_rdma_links
    )?;
    exec!(tx, "UPDATE gpus SET present = $2 WHERE node_id = $1", node, false)?;
    for board in &report.boards {
        let sql = "INSERT INTO gpus (uuid, node_id, idx, model, memory_mib, mig_enabled, present, foreign_instances, nvlink_island) \
                   VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (uuid) DO UPDATE SET node_id = $2, idx = $3, \
                   model = $4, memory_mib = $5, mig_enabled = $6, present = $7, foreign_instances = $8, nvlink_island = $9, \
                   quarantined = CASE WHEN gpus.quarantine_code = $10 AND gpus.task_number <= gpus.task_done THEN NULL ELSE gpus.quarantined END, \
                   quarantine_code = CASE WHEN gpus.quarantine_code = $10 AND gpus.task_number <= gpus.task_done THEN NULL ELSE gpus.quarantine_code END";
        exec!(
            tx,
            sql,
            &board.uuid,
            node,
            board.index,
            &board.model,
            board.memory_mib,
            board.mig_enabled,
            true,
            &board.foreign_instances,
            board.nvlink_island,
            UNAVAILABLE
        )?;
    }
    Ok(())
}

/// Quarantines the boards of an attempt on a node until the next report of their worker. A quarantine for
/// another reason stays.
pub async fn quarantine(
    tx: &mut Tx<'_>,
    job: JobId,
    attempt: i64,
    node: NodeId,
    reason: &str,
) -> Result<(), StoreError> {
    let sql = "UPDATE gpus SET quarantined = $4, quarantine_code = $5 \
               WHERE (quarantined IS NULL OR quarantine_code = $5) AND uuid IN \
               (SELECT gpu_uuid FROM allocations WHERE job_id = $1 AND attempt = $2 AND node_id = $3 AND held)";
    exec!(tx, sql, job, attempt, node, reason, UNAVAILABLE).map(|_| ())
}

pub async fn touch(tx: &mut Tx<'_>, node: NodeId, now: Timestamp) -> Result<(), StoreError> {
    exec!(tx, "UPDATE nodes SET last_seen_at = $2 WHERE id = $1", node, now).map(|_| ())
}

/// Sets or clears the cordon of a node. Returns true if the node exists.
pub async fn set_cordoned(tx: &mut Tx<'_>, node: NodeId, cordoned: bool) -> Result<bool, StoreError> {
    Ok(exec!(tx, "UPDATE nodes SET cordoned = $2 WHERE id = $1", node, cordoned)? == 1)
}

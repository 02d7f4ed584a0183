//! Nodes, boards and join tokens.

use berth_types::health::GpuFacts;
use berth_types::ids::{JoinTokenId, NodeId};
use berth_types::time::Timestamp;

use super::{StoreError, Tx};

/// Why a board is out of service on which a device could not be made.
const UNAVAILABLE: &str = "device.unavailable";

#[derive(Debug, Clone, sqlx::FromRow)]
pub struct NodeRow {
    pub id: String,
    pub name: String,
    pub cordoned: bool,
    pub simulated: bool,
    pub unisolated: bool,
    pub driver_version: String,
    pub worker_version: String,
    pub last_seen_at: Option<i64>,
    /// 0 when unknown, like the next.
    pub cpu_milli: i64,
    pub memory_mib: i64,
    pub address: String,
    /// JSON.
    pub labels: String,
    /// Why two daemons must be holding its certificate.
    pub suspect: Option<String>,
    /// Until when the newest of its certificates is good; absent when it has none that was not revoked.
    pub certified_until: Option<i64>,
    /// JSON.
    pub isolation: String,
    /// It runs images.
    pub images: bool,
    /// Which boards that it reported stay with another node; empty when none do.
    pub left_out: String,
}

/// What a worker says of its host when a session begins.
#[derive(Debug, Clone)]
pub struct NodeReport {
    pub simulated: bool,
    pub unisolated: bool,
    pub driver_version: String,
    pub worker_version: String,
    /// 0 when unknown, like the next.
    pub cpu_milli: i64,
    pub memory_mib: i64,
    /// Where other nodes reach it.
    pub address: String,
    /// JSON.
    pub labels: String,
    /// JSON: what keeps jobs apart, in words.
    pub isolation: String,
    /// It runs images.
    pub images: bool,
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
    /// JSON of `[profile, start]` pairs.
    pub foreign_instances: String,
}

#[derive(Debug, Clone, sqlx::FromRow)]
pub struct GpuRow {
    pub uuid: String,
    pub node_id: String,
    pub idx: i64,
    pub model: String,
    pub memory_mib: i64,
    pub mig_enabled: bool,
    pub nvlink_island: i64,
    pub present: bool,
    /// Why nothing is placed on it: it is out of service, or does not answer.
    pub quarantined: Option<String>,
    pub foreign_instances: String,
    /// JSON.
    pub facts: String,
    /// Its node takes nothing new.
    pub cordoned: bool,
}

/// The node other than the one that reports a board to which that board belongs.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct OtherRow {
    pub node_id: String,
    pub node_name: String,
    /// It reported the board when it was here last.
    pub present: bool,
    /// Something of an attempt is held on the board.
    pub held: bool,
}

impl GpuRow {
    /// What its worker read of it, as far as it did.
    pub fn told(&self) -> GpuFacts {
        serde_json::from_str(&self.facts).unwrap_or_default()
    }
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
    exec!(tx, sql, id.to_string(), hash, created_by, now.micros(), expires_at.micros()).map(|_| ())
}

/// Forgets join tokens that can let nobody in any more.
pub async fn forget_join_tokens(tx: &mut Tx<'_>, now: Timestamp) -> Result<(), StoreError> {
    let sql = "DELETE FROM join_tokens WHERE used_at IS NOT NULL OR expires_at <= $1";
    exec!(tx, sql, now.micros()).map(|_| ())
}

/// Spends a join token; `false` when there is none, or it was used or has expired.
pub async fn use_join_token(tx: &mut Tx<'_>, hash: &str, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "UPDATE join_tokens SET used_at = $2 WHERE hash = $1 AND used_at IS NULL AND expires_at > $2";
    Ok(exec!(tx, sql, hash, now.micros())? == 1)
}

pub async fn insert(tx: &mut Tx<'_>, node: NodeId, name: &str, now: Timestamp) -> Result<(), StoreError> {
    let sql = "INSERT INTO nodes (id, name, cordoned, simulated, unisolated, driver_version, \
               worker_version, created_at) VALUES ($1, $2, $3, $3, $3, '', '', $4)";
    exec!(tx, sql, node.to_string(), name, false, now.micros()).map(|_| ())
}

pub async fn list(tx: &mut Tx<'_>) -> Result<Vec<NodeRow>, StoreError> {
    let sql = "SELECT id, name, cordoned, simulated, unisolated, driver_version, worker_version, last_seen_at, \
               cpu_milli, memory_mib, address, labels, isolation, images, left_out, suspect, (SELECT MAX(c.expires_at) FROM node_certificates c \
               WHERE c.node_id = nodes.id AND c.revoked_at IS NULL) AS certified_until FROM nodes ORDER BY name, id";
    list!(tx, NodeRow, sql)
}

pub async fn list_gpus(tx: &mut Tx<'_>) -> Result<Vec<GpuRow>, StoreError> {
    let sql = "SELECT g.uuid, g.node_id, g.idx, g.model, g.memory_mib, g.mig_enabled, g.nvlink_island, g.present, \
               COALESCE(g.quarantined, g.silent) AS quarantined, g.foreign_instances, g.facts, n.cordoned \
               FROM gpus g JOIN nodes n ON n.id = g.node_id ORDER BY g.node_id, g.idx, g.uuid";
    list!(tx, GpuRow, sql)
}

/// Who has a board, if it is not this node.
pub async fn find_other(
    tx: &mut Tx<'_>,
    gpu_uuid: &str,
    node: NodeId,
) -> Result<Option<OtherRow>, StoreError> {
    let sql = "SELECT g.node_id, n.name AS node_name, g.present, \
               EXISTS (SELECT 1 FROM allocations a WHERE a.gpu_uuid = g.uuid AND a.held) AS held \
               FROM gpus g JOIN nodes n ON n.id = g.node_id WHERE g.uuid = $1 AND g.node_id <> $2";
    find!(tx, OtherRow, sql, gpu_uuid, node.to_string())
}

/// Records which boards of its report stay with other nodes; says whether that is something else than before.
pub async fn set_left_out(tx: &mut Tx<'_>, node: NodeId, words: &str) -> Result<bool, StoreError> {
    let sql = "UPDATE nodes SET left_out = $2 WHERE id = $1 AND left_out <> $2";
    Ok(exec!(tx, sql, node.to_string(), words)? == 1)
}

/// Records what a worker reports of its host. Its boards become this node's, whoever had them.
pub async fn report(
    tx: &mut Tx<'_>,
    node: NodeId,
    report: &NodeReport,
    now: Timestamp,
) -> Result<(), StoreError> {
    let id = node.to_string();
    let sql = "UPDATE nodes SET simulated = $2, unisolated = $3, driver_version = $4, worker_version = $5, \
               last_seen_at = $6, cpu_milli = $7, memory_mib = $8, address = $9, labels = $10, isolation = $11, images = $12 \
               WHERE id = $1";
    exec!(
        tx,
        sql,
        &id,
        report.simulated,
        report.unisolated,
        &report.driver_version,
        &report.worker_version,
        now.micros(),
        report.cpu_milli,
        report.memory_mib,
        &report.address,
        &report.labels,
        &report.isolation,
        report.images
    )?;
    exec!(tx, "UPDATE gpus SET present = $2 WHERE node_id = $1", &id, false)?;
    for board in &report.boards {
        let sql = "INSERT INTO gpus (uuid, node_id, idx, model, memory_mib, mig_enabled, present, foreign_instances, nvlink_island) \
                   VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (uuid) DO UPDATE SET node_id = $2, idx = $3, \
                   model = $4, memory_mib = $5, mig_enabled = $6, present = $7, foreign_instances = $8, nvlink_island = $9, \
                   quarantined = CASE WHEN gpus.quarantine_code = $10 THEN NULL ELSE gpus.quarantined END, \
                   quarantine_code = CASE WHEN gpus.quarantine_code = $10 THEN NULL ELSE gpus.quarantine_code END";
        exec!(
            tx,
            sql,
            &board.uuid,
            &id,
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

/// Takes the boards of an attempt on a node out of service, until their worker reports them anew. One that is
/// out of it for another reason stays so.
pub async fn quarantine(
    tx: &mut Tx<'_>,
    job: &str,
    attempt: i64,
    node: &str,
    reason: &str,
) -> Result<(), StoreError> {
    let sql = "UPDATE gpus SET quarantined = $4, quarantine_code = $5 \
               WHERE (quarantined IS NULL OR quarantine_code = $5) AND uuid IN \
               (SELECT gpu_uuid FROM allocations WHERE job_id = $1 AND attempt = $2 AND node_id = $3 AND held)";
    exec!(tx, sql, job, attempt, node, reason, UNAVAILABLE).map(|_| ())
}

pub async fn touch(tx: &mut Tx<'_>, node: NodeId, now: Timestamp) -> Result<(), StoreError> {
    exec!(tx, "UPDATE nodes SET last_seen_at = $2 WHERE id = $1", node.to_string(), now.micros()).map(|_| ())
}

/// Says whether there is such a node.
pub async fn set_cordoned(tx: &mut Tx<'_>, node: NodeId, cordoned: bool) -> Result<bool, StoreError> {
    Ok(exec!(tx, "UPDATE nodes SET cordoned = $2 WHERE id = $1", node.to_string(), cordoned)? == 1)
}

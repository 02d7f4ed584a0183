//! Leases of attempts, and lost nodes.

use berth_types::ids::{JobId, NodeId};
use berth_types::time::Timestamp;

use super::types::{JsonColumn, StoredEvidence};
use super::{StoreError, Tx};

/// A node with the state of its lease.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredNodeLease {
    pub id: NodeId,
    pub name: String,
    /// True if its worker ends jobs at the end of their leases.
    pub leased: bool,
    pub last_seen_at: Option<Timestamp>,
    pub lost_at: Option<Timestamp>,
    pub lost_reason: Option<String>,
}

/// An open rank without a known end.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct UnendedAttempt {
    pub job_id: JobId,
    pub number: i64,
    /// 0: it has no lease.
    pub lease_ms: i64,
    /// The evidence of process and devices.
    pub evidence: Option<JsonColumn<StoredEvidence>>,
}

/// The number of open ranks of a node without a known end.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct UnendedCount {
    pub node_id: NodeId,
    pub ranks: i64,
    /// The longest of their leases.
    pub longest_ms: i64,
    /// The shortest of their leases; 0: a rank has no lease.
    pub shortest_ms: i64,
}

pub async fn list_nodes(tx: &mut Tx<'_>) -> Result<Vec<StoredNodeLease>, StoreError> {
    let sql = "SELECT id, name, leased, last_seen_at, lost_at, lost_reason FROM nodes WHERE removed_at IS NULL ORDER BY id";
    list!(tx, StoredNodeLease, sql)
}

/// Lists the lost nodes.
pub async fn list_lost(tx: &mut Tx<'_>) -> Result<Vec<NodeId>, StoreError> {
    let sql = "SELECT id FROM nodes WHERE lost_at IS NOT NULL AND removed_at IS NULL ORDER BY id";
    let rows = list!(tx, (NodeId,), sql)?;
    Ok(rows.into_iter().map(|(id,)| id).collect())
}

pub async fn find_node(tx: &mut Tx<'_>, node: NodeId) -> Result<Option<StoredNodeLease>, StoreError> {
    let sql = "SELECT id, name, leased, last_seen_at, lost_at, lost_reason FROM nodes \
               WHERE id = $1 AND removed_at IS NULL";
    find!(tx, StoredNodeLease, sql, node)
}

pub async fn list_unended(tx: &mut Tx<'_>, node: NodeId) -> Result<Vec<UnendedAttempt>, StoreError> {
    let sql = "SELECT job_id, number, lease_ms, evidence FROM attempts \
               WHERE node_id = $1 AND is_open = $2 AND ended = $3 ORDER BY job_id, number";
    list!(tx, UnendedAttempt, sql, node, true, false)
}

pub async fn count_unended(tx: &mut Tx<'_>) -> Result<Vec<UnendedCount>, StoreError> {
    let sql = "SELECT node_id, COUNT(*) AS ranks, CAST(COALESCE(MAX(lease_ms), 0) AS BIGINT) AS longest_ms, \
               CAST(COALESCE(MIN(lease_ms), 0) AS BIGINT) AS shortest_ms FROM attempts \
               WHERE is_open = $1 AND ended = $2 GROUP BY node_id";
    list!(tx, UnendedCount, sql, true, false)
}

/// Records the return of a node's worker. Returns true if the node was lost.
pub async fn mark_returned(tx: &mut Tx<'_>, node: NodeId, leased: bool) -> Result<bool, StoreError> {
    let was_lost = find_node(tx, node).await?.is_some_and(|row| row.lost_at.is_some());
    let sql = "UPDATE nodes SET leased = $2, lost_at = NULL, lost_reason = NULL WHERE id = $1";
    exec!(tx, sql, node, leased)?;
    Ok(was_lost)
}

/// Records a node as lost; its jobs count as lost from now on. Returns false if it was lost before.
pub async fn mark_lost(
    tx: &mut Tx<'_>,
    node: NodeId,
    now: Timestamp,
    reason: &str,
) -> Result<bool, StoreError> {
    let sql = "UPDATE nodes SET lost_at = $2, lost_reason = $3 WHERE id = $1 AND lost_at IS NULL";
    Ok(exec!(tx, sql, node, now, reason)? == 1)
}

//! Leases of attempts, and nodes whose work was taken for ended.

use berth_types::ids::NodeId;
use berth_types::time::Timestamp;

use super::{StoreError, Tx};

/// How a node stands with its lease.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct NodeLeaseRow {
    pub id: String,
    pub name: String,
    /// Its worker ends what it runs by itself.
    pub leased: bool,
    pub last_seen_at: Option<i64>,
    pub lost_at: Option<i64>,
    pub lost_why: Option<String>,
}

/// A rank whose end is not known.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct UnendedRow {
    pub job_id: String,
    pub number: i64,
    /// 0: it has none.
    pub lease_ms: i64,
    /// JSON: what was seen of its process and devices.
    pub evidence: Option<String>,
}

/// Ranks whose end is not known, by node.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct UnendedCount {
    pub node_id: String,
    pub ranks: i64,
    /// The longest and the shortest of their leases; 0: one has none.
    pub longest_ms: i64,
    pub shortest_ms: i64,
}

pub async fn list_nodes(tx: &mut Tx<'_>) -> Result<Vec<NodeLeaseRow>, StoreError> {
    let sql = "SELECT id, name, leased, last_seen_at, lost_at, lost_why FROM nodes ORDER BY id";
    list!(tx, NodeLeaseRow, sql)
}

pub async fn find_node(tx: &mut Tx<'_>, node: NodeId) -> Result<Option<NodeLeaseRow>, StoreError> {
    let sql = "SELECT id, name, leased, last_seen_at, lost_at, lost_why FROM nodes WHERE id = $1";
    find!(tx, NodeLeaseRow, sql, node.to_string())
}

pub async fn list_unended(tx: &mut Tx<'_>, node: NodeId) -> Result<Vec<UnendedRow>, StoreError> {
    let sql = "SELECT job_id, number, lease_ms, evidence FROM attempts \
               WHERE node_id = $1 AND is_open = $2 AND ended = $3 ORDER BY job_id, number";
    list!(tx, UnendedRow, sql, node.to_string(), true, false)
}

pub async fn count_unended(tx: &mut Tx<'_>) -> Result<Vec<UnendedCount>, StoreError> {
    let sql = "SELECT node_id, COUNT(*) AS ranks, CAST(COALESCE(MAX(lease_ms), 0) AS BIGINT) AS longest_ms, \
               CAST(COALESCE(MIN(lease_ms), 0) AS BIGINT) AS shortest_ms FROM attempts \
               WHERE is_open = $1 AND ended = $2 GROUP BY node_id";
    list!(tx, UnendedCount, sql, true, false)
}

/// A node's worker is there; says whether the node had been lost.
pub async fn returned(tx: &mut Tx<'_>, node: NodeId, leased: bool) -> Result<bool, StoreError> {
    let was = find_node(tx, node).await?.is_some_and(|row| row.lost_at.is_some());
    let sql = "UPDATE nodes SET leased = $2, lost_at = NULL, lost_why = NULL WHERE id = $1";
    exec!(tx, sql, node.to_string(), leased)?;
    Ok(was)
}

/// What runs on a node counts as ended from now on; `false` when it did already.
pub async fn mark_lost(tx: &mut Tx<'_>, node: NodeId, now: Timestamp, why: &str) -> Result<bool, StoreError> {
    let sql = "UPDATE nodes SET lost_at = $2, lost_why = $3 WHERE id = $1 AND lost_at IS NULL";
    Ok(exec!(tx, sql, node.to_string(), now.micros(), why)? == 1)
}

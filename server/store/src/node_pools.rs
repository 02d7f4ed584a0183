//! The pools of nodes, the reserve for bursts, and the time in which jobs give their devices back.

use berth_types::ids::{JobId, NodeId};
use berth_types::node_pools::NodePool;
use berth_types::time::Timestamp;

use super::{StoreError, Tx};

/// Finds the name and the pool of a node.
pub async fn find(tx: &mut Tx<'_>, node: NodeId) -> Result<Option<(String, NodePool)>, StoreError> {
    let sql = "SELECT name, pool, id AS row_id FROM nodes WHERE id = $1";
    find!(tx, (String, NodePool), sql, node)
}

/// Sets the pool of a node.
pub async fn set(tx: &mut Tx<'_>, node: NodeId, pool: NodePool) -> Result<(), StoreError> {
    exec!(tx, "UPDATE nodes SET pool = $2 WHERE id = $1", node, pool).map(|_| ())
}

/// The boards of each model that jobs leave free on nodes for inference; 0 before the first setting.
pub async fn burst_reserve(tx: &mut Tx<'_>) -> Result<i64, StoreError> {
    let sql = "SELECT boards, pool AS row_id FROM pool_reserves WHERE pool = $1";
    Ok(find!(tx, (i64,), sql, NodePool::Inference)?.map_or(0, |(boards,)| boards))
}

/// Sets the boards of each model that jobs leave free on nodes for inference.
pub async fn put_burst_reserve(tx: &mut Tx<'_>, boards: i64) -> Result<(), StoreError> {
    let sql = "INSERT INTO pool_reserves (pool, boards) VALUES ($1, $2) ON CONFLICT (pool) DO UPDATE SET boards = $2";
    exec!(tx, sql, NodePool::Inference, boards).map(|_| ())
}

/// Finds the latest stop of an attempt.
pub async fn find_stop(tx: &mut Tx<'_>, job: JobId, attempt: i64) -> Result<Option<Timestamp>, StoreError> {
    let sql = "SELECT MAX(at) FROM job_events WHERE job_id = $1 AND attempt = $2 AND state = 'stopping'";
    Ok(find!(tx, (Option<Timestamp>,), sql, job, attempt)?.and_then(|(at,)| at))
}

/// Records the time in which an attempt gave its devices back, if it is the longest of its job.
pub async fn record_give_back(tx: &mut Tx<'_>, job: JobId, gives_back_ms: i64) -> Result<(), StoreError> {
    let sql =
        "UPDATE jobs SET gives_back_ms = $2 WHERE id = $1 AND (gives_back_ms IS NULL OR gives_back_ms < $2)";
    exec!(tx, sql, job, gives_back_ms).map(|_| ())
}

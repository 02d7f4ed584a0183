//! The measured links between nodes, and the nodes that are set aside for a bad one.

use berth_types::ids::{JobId, NodeId};
use berth_types::time::Timestamp;

use super::{StoreError, Tx};

/// The most measurements of a pair of nodes.
const MAX_KEPT: i64 = 20;

/// A good measurement of the link between two nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkMeasurement {
    pub nodes: (NodeId, NodeId),
    pub job: JobId,
    pub attempt: i64,
    /// True if the throughput is that by RDMA.
    pub rdma: bool,
    /// The median of the round trips in microseconds.
    pub rtt_us: i64,
    /// The throughput of the slower direction in MiB a second.
    pub mib_per_s: i64,
}

/// The nodes of a pair in the order of the table.
fn ordered((a, b): (NodeId, NodeId)) -> (NodeId, NodeId) {
    if a <= b { (a, b) } else { (b, a) }
}

/// Adds a measurement, and deletes the oldest ones of its pair and kind beyond 20. Both ranks of a pair report it. The
/// lower throughput counts, so that no worker alone raises what is expected of the link.
pub async fn insert(tx: &mut Tx<'_>, link: &LinkMeasurement, now: Timestamp) -> Result<(), StoreError> {
    let (first, second) = ordered(link.nodes);
    let sql = "INSERT INTO node_links (first_node, second_node, job_id, attempt, measured_at, rtt_us, mib_per_s, rdma) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (first_node, second_node, job_id, attempt) \
               DO UPDATE SET rtt_us = excluded.rtt_us, mib_per_s = excluded.mib_per_s \
               WHERE excluded.mib_per_s < node_links.mib_per_s";
    exec!(tx, sql, first, second, link.job, link.attempt, now, link.rtt_us, link.mib_per_s, link.rdma)?;
    let sql = "DELETE FROM node_links WHERE first_node = $1 AND second_node = $2 AND rdma = $4 AND measured_at < \
               (SELECT MIN(kept.measured_at) FROM (SELECT measured_at FROM node_links WHERE first_node = $1 \
               AND second_node = $2 AND rdma = $4 ORDER BY measured_at DESC LIMIT $3) AS kept)";
    exec!(tx, sql, first, second, MAX_KEPT, link.rdma).map(|_| ())
}

/// Lists the last throughputs of a pair of nodes in MiB a second, by RDMA or by TCP, at most 20.
pub async fn list_throughputs(
    tx: &mut Tx<'_>,
    nodes: (NodeId, NodeId),
    rdma: bool,
) -> Result<Vec<i64>, StoreError> {
    let (first, second) = ordered(nodes);
    let sql = "SELECT mib_per_s, first_node AS row_id FROM node_links \
               WHERE first_node = $1 AND second_node = $2 AND rdma = $4 ORDER BY measured_at DESC, job_id, attempt LIMIT $3";
    Ok(list!(tx, (i64,), sql, first, second, MAX_KEPT, rdma)?
        .into_iter()
        .map(|(mib_per_s,)| mib_per_s)
        .collect())
}

/// Sets a node aside until a time, for a reason as a sentence. A node that is set aside for longer stays so.
pub async fn set_aside(
    tx: &mut Tx<'_>,
    node: NodeId,
    until: Timestamp,
    reason: &str,
) -> Result<(), StoreError> {
    let sql = "UPDATE nodes SET aside_until = $2, aside_reason = $3 \
               WHERE id = $1 AND (aside_until IS NULL OR aside_until < $2)";
    exec!(tx, sql, node, until, reason).map(|_| ())
}

/// Releases a node, and forgets the measurements of its links: a network that was changed has other figures. Returns false
/// if the node does not exist.
pub async fn release(tx: &mut Tx<'_>, node: NodeId) -> Result<bool, StoreError> {
    let sql = "UPDATE nodes SET aside_until = NULL, aside_reason = '' WHERE id = $1 AND removed_at IS NULL";
    let found = exec!(tx, sql, node)? == 1;
    exec!(tx, "DELETE FROM node_links WHERE first_node = $1 OR second_node = $1", node)?;
    Ok(found)
}

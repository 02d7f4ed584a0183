//! Certificates of nodes, the nodes of join tokens, and the last admitted daemon of each node.

use berth_types::ids::{JoinTokenId, NodeId};
use berth_types::time::Timestamp;

use super::{StoreError, Tx};

#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredCertificate {
    /// Lower-case hex.
    pub serial: String,
    pub node_id: NodeId,
    pub issued_at: Timestamp,
    pub expires_at: Timestamp,
    pub revoked_at: Option<Timestamp>,
}

/// The last admitted daemon of a node; `instance` is empty without one.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredInstance {
    pub instance: String,
    pub epoch: i64,
    pub connections: i64,
    pub suspect: Option<String>,
}

pub async fn insert(tx: &mut Tx<'_>, row: &StoredCertificate) -> Result<(), StoreError> {
    let sql = "INSERT INTO node_certificates (serial, node_id, issued_at, expires_at, revoked_at) \
               VALUES ($1, $2, $3, $4, $5)";
    exec!(tx, sql, &row.serial, row.node_id, row.issued_at, row.expires_at, row.revoked_at).map(|_| ())
}

pub async fn find(tx: &mut Tx<'_>, serial: &str) -> Result<Option<StoredCertificate>, StoreError> {
    let sql =
        "SELECT serial, node_id, issued_at, expires_at, revoked_at FROM node_certificates WHERE serial = $1";
    find!(tx, StoredCertificate, sql, serial)
}

/// Revokes the certificates of a node; returns the number that was not revoked before.
pub async fn revoke_all(tx: &mut Tx<'_>, node: NodeId, now: Timestamp) -> Result<u64, StoreError> {
    let sql = "UPDATE node_certificates SET revoked_at = $2 WHERE node_id = $1 AND revoked_at IS NULL";
    exec!(tx, sql, node, now)
}

/// Returns true if the node has a certificate that is not revoked.
pub async fn is_certified(tx: &mut Tx<'_>, node: NodeId) -> Result<bool, StoreError> {
    let sql =
        "SELECT CAST(COUNT(*) AS BIGINT) FROM node_certificates WHERE node_id = $1 AND revoked_at IS NULL";
    Ok(find!(tx, (i64,), sql, node)?.is_some_and(|(count,)| count > 0))
}

/// Deletes the certificates of a node that expired before `before`.
pub async fn forget(tx: &mut Tx<'_>, node: NodeId, before: Timestamp) -> Result<(), StoreError> {
    let sql = "DELETE FROM node_certificates WHERE node_id = $1 AND expires_at < $2";
    exec!(tx, sql, node, before).map(|_| ())
}

/// Binds a join token to a node.
pub async fn set_token_node(tx: &mut Tx<'_>, token: JoinTokenId, node: NodeId) -> Result<(), StoreError> {
    let sql = "UPDATE join_tokens SET node_id = $2 WHERE id = $1";
    exec!(tx, sql, token, node).map(|_| ())
}

/// Finds the node of a join token: `None` without such a token, an inner `None` for a new node.
pub async fn find_token_node(tx: &mut Tx<'_>, hash: &str) -> Result<Option<Option<NodeId>>, StoreError> {
    let sql = "SELECT node_id, id AS row_id FROM join_tokens WHERE hash = $1";
    Ok(find!(tx, (Option<NodeId>,), sql, hash)?.map(|(node,)| node))
}

/// Marks the unused join tokens of a node as used.
pub async fn void_tokens(tx: &mut Tx<'_>, node: NodeId, now: Timestamp) -> Result<(), StoreError> {
    let sql = "UPDATE join_tokens SET used_at = $2 WHERE node_id = $1 AND used_at IS NULL";
    exec!(tx, sql, node, now).map(|_| ())
}

pub async fn find_instance(tx: &mut Tx<'_>, node: NodeId) -> Result<Option<StoredInstance>, StoreError> {
    let sql =
        "SELECT id, instance, epoch, connections, suspect FROM nodes WHERE id = $1 AND removed_at IS NULL";
    find!(tx, StoredInstance, sql, node)
}

pub async fn set_instance(
    tx: &mut Tx<'_>,
    node: NodeId,
    instance: &str,
    epoch: i64,
    connections: i64,
) -> Result<(), StoreError> {
    let sql = "UPDATE nodes SET instance = $2, epoch = $3, connections = $4 WHERE id = $1";
    exec!(tx, sql, node, instance, epoch, connections).map(|_| ())
}

/// Marks a node as suspect, because two daemons hold its certificate. Returns false if it was marked before.
pub async fn mark_suspect(tx: &mut Tx<'_>, node: NodeId, reason: &str) -> Result<bool, StoreError> {
    let sql = "UPDATE nodes SET suspect = $2 WHERE id = $1 AND suspect IS NULL";
    Ok(exec!(tx, sql, node, reason)? == 1)
}

/// Clears the last admitted daemon of a node and its mark as suspect; the next daemon counts as the first.
pub async fn forget_instance(tx: &mut Tx<'_>, node: NodeId) -> Result<(), StoreError> {
    let sql = "UPDATE nodes SET instance = '', epoch = 0, connections = 0, suspect = NULL WHERE id = $1";
    exec!(tx, sql, node).map(|_| ())
}

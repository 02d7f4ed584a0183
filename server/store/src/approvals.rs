//! The approval of nodes and of their boards, the terms of join tokens, and the labels of nodes.

use std::collections::BTreeMap;

use berth_types::ids::{JobId, JoinTokenId, NodeId};
use berth_types::nodes::JoinTerms;
use berth_types::time::Timestamp;

use super::types::JsonColumn;
use super::{StoreError, Tx};

/// The approval of a node.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredApproval {
    /// Absent for a node that waits.
    pub approved_at: Option<Timestamp>,
    /// True for a node with simulated boards.
    pub simulated: bool,
    /// The terms of its join token; empty after their use.
    pub terms: JsonColumn<JoinTerms>,
}

/// The approval of a board.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredBoardApproval {
    pub uuid: String,
    pub model: String,
    pub memory_mib: i64,
    /// True if the latest report of its node has the board.
    pub present: bool,
    pub awaits_approval: bool,
}

pub async fn find(tx: &mut Tx<'_>, node: NodeId) -> Result<Option<StoredApproval>, StoreError> {
    let sql = "SELECT id, approved_at, simulated, terms FROM nodes WHERE id = $1 AND removed_at IS NULL";
    find!(tx, StoredApproval, sql, node)
}

/// Lists the boards of a node, also boards that it no longer reports.
pub async fn list_boards(tx: &mut Tx<'_>, node: NodeId) -> Result<Vec<StoredBoardApproval>, StoreError> {
    let sql = "SELECT uuid, model, memory_mib, present, awaits_approval FROM gpus WHERE node_id = $1 ORDER BY idx, uuid";
    list!(tx, StoredBoardApproval, sql, node)
}

/// Records the approval of a node.
pub async fn approve(tx: &mut Tx<'_>, node: NodeId, now: Timestamp) -> Result<(), StoreError> {
    exec!(tx, "UPDATE nodes SET approved_at = $2 WHERE id = $1", node, now).map(|_| ())
}

/// Sets whether a board waits for an approval.
pub async fn set_awaits_approval(
    tx: &mut Tx<'_>,
    gpu_uuid: &str,
    awaits_approval: bool,
) -> Result<(), StoreError> {
    exec!(tx, "UPDATE gpus SET awaits_approval = $2 WHERE uuid = $1", gpu_uuid, awaits_approval).map(|_| ())
}

/// Records the terms of a join token.
pub async fn set_token_terms(
    tx: &mut Tx<'_>,
    token: JoinTokenId,
    terms: &JoinTerms,
) -> Result<(), StoreError> {
    let terms = JsonColumn(terms.clone());
    exec!(tx, "UPDATE join_tokens SET terms = $2 WHERE id = $1", token, &terms).map(|_| ())
}

/// Finds the terms of a join token.
pub async fn find_token_terms(tx: &mut Tx<'_>, hash: &str) -> Result<Option<JoinTerms>, StoreError> {
    let sql = "SELECT terms, id AS row_id FROM join_tokens WHERE hash = $1";
    Ok(find!(tx, (JsonColumn<JoinTerms>,), sql, hash)?.map(|(terms,)| terms.0))
}

/// Gives the terms of a join token, with their labels, to a node.
pub async fn set_terms(tx: &mut Tx<'_>, node: NodeId, terms: &JoinTerms) -> Result<(), StoreError> {
    let (stored, labels) = (JsonColumn(terms.clone()), JsonColumn(terms.labels.clone()));
    let sql = "UPDATE nodes SET terms = $2, labels = $3, adopts_labels = $4 WHERE id = $1";
    exec!(tx, sql, node, &stored, &labels, terms.adopt_labels).map(|_| ())
}

/// Clears the terms of a node after their use: they approve no further boards.
pub async fn spend_terms(tx: &mut Tx<'_>, node: NodeId) -> Result<(), StoreError> {
    exec!(tx, "UPDATE nodes SET terms = '{}' WHERE id = $1", node).map(|_| ())
}

/// Finds the labels of a node that count.
pub async fn find_labels(tx: &mut Tx<'_>, node: NodeId) -> Result<BTreeMap<String, String>, StoreError> {
    let sql = "SELECT labels, id AS row_id FROM nodes WHERE id = $1";
    let found = find!(tx, (JsonColumn<BTreeMap<String, String>>,), sql, node)?;
    Ok(found.map(|(labels,)| labels.0).unwrap_or_default())
}

/// Replaces the labels of a node that count. Reports do not change them afterwards.
pub async fn set_labels(
    tx: &mut Tx<'_>,
    node: NodeId,
    labels: &BTreeMap<String, String>,
) -> Result<(), StoreError> {
    let labels = JsonColumn(labels.clone());
    let sql = "UPDATE nodes SET labels = $2, adopts_labels = $3 WHERE id = $1";
    exec!(tx, sql, node, &labels, false).map(|_| ())
}

/// Sets whether a node adopts the labels of its reports. If it does, those of the latest report count at once.
pub async fn set_adopts_labels(tx: &mut Tx<'_>, node: NodeId, adopts: bool) -> Result<(), StoreError> {
    let sql = "UPDATE nodes SET adopts_labels = $2, labels = CASE WHEN $2 THEN reported_labels ELSE labels END \
               WHERE id = $1";
    exec!(tx, sql, node, adopts).map(|_| ())
}

/// Deletes the boards that a node without an approval no longer reports. A board of a removed node stays for the jobs
/// that ran on it, without an approval.
pub async fn forget_missing_boards(tx: &mut Tx<'_>, node: NodeId) -> Result<(), StoreError> {
    let sql = "DELETE FROM gpus WHERE node_id = $1 AND NOT present AND NOT EXISTS \
               (SELECT 1 FROM allocations a WHERE a.held IN (TRUE, FALSE) AND a.gpu_uuid = gpus.uuid)";
    exec!(tx, sql, node)?;
    exec!(tx, "UPDATE gpus SET awaits_approval = NOT present WHERE node_id = $1", node).map(|_| ())
}

/// True if this text is the id of a node that was removed. The portal expects nothing of its host any more.
pub async fn was_removed(tx: &mut Tx<'_>, node: &str) -> Result<bool, StoreError> {
    let Ok(node) = node.parse::<NodeId>() else { return Ok(false) };
    let sql = "SELECT subject FROM audit_events WHERE subject = $1 AND action = 'node.removed' LIMIT 1";
    Ok(!list!(tx, (String,), sql, node.to_string())?.is_empty())
}

/// Removes a node with its drain, certificates and join tokens; returns the jobs whose ranks were still open there, and
/// those that waited for their volumes. The rows of an approved node and of its boards stay, with their quarantines and
/// for old records, and so do boards that records of jobs name. No list has them.
pub async fn remove(tx: &mut Tx<'_>, node: NodeId, now: Timestamp) -> Result<Vec<JobId>, StoreError> {
    for sql in [
        "DELETE FROM drains WHERE node_id = $1",
        "DELETE FROM node_certificates WHERE node_id = $1",
        "DELETE FROM join_tokens WHERE node_id = $1",
        "DELETE FROM node_links WHERE first_node = $1 OR second_node = $1",
        "DELETE FROM gpus WHERE node_id = $1 AND NOT EXISTS \
         (SELECT 1 FROM allocations a WHERE a.held IN (TRUE, FALSE) AND a.gpu_uuid = gpus.uuid) \
         AND EXISTS (SELECT 1 FROM nodes n WHERE n.id = $1 AND n.approved_at IS NULL)",
        // The planner must learn of the removal of an approved node.
        "DELETE FROM nodes WHERE id = $1 AND approved_at IS NULL \
         AND NOT EXISTS (SELECT 1 FROM gpus g WHERE g.node_id = $1)",
        // A host that joins again takes its boards along, free of old work.
        "UPDATE gpus SET present = FALSE, awaits_approval = FALSE WHERE node_id = $1",
        "UPDATE allocations SET held = FALSE, unclean = NULL WHERE node_id = $1 AND held = TRUE",
    ] {
        exec!(tx, sql, node)?;
    }
    let sql = "UPDATE nodes SET removed_at = $2, dedicated_to = NULL WHERE id = $1";
    exec!(tx, sql, node, now)?;
    close_ranks(tx, node).await
}

/// Closes the open ranks of a node that is removed: their logs, files and proofs of clean devices never come. Returns
/// their jobs, and those that waited for their volumes.
async fn close_ranks(tx: &mut Tx<'_>, node: NodeId) -> Result<Vec<JobId>, StoreError> {
    let sql =
        "SELECT job_id, number FROM attempts WHERE node_id = $1 AND is_open = TRUE ORDER BY job_id, number";
    let open = list!(tx, (JobId, i64), sql, node)?;
    let sql = "UPDATE attempts SET is_open = FALSE, saving = FALSE WHERE node_id = $1 AND is_open = TRUE";
    exec!(tx, sql, node)?;
    let mut jobs = Vec::new();
    for (job, number) in open {
        super::gangs::delete_closed(tx, job, number).await?;
        jobs.push(job);
        jobs.extend(super::volumes::uses::list_jobs_behind(tx, job).await?);
    }
    Ok(jobs)
}

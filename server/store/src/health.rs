//! The health of boards: facts from their workers, quarantines, and tasks of operators.

use berth_types::health::{GpuFacts, GpuTaskKind};
use berth_types::ids::NodeId;
use berth_types::time::Timestamp;

use super::types::JsonColumn;
use super::{StoreError, Tx};

#[derive(Debug, Clone, sqlx::FromRow)]
pub struct StoredHealth {
    pub uuid: String,
    pub node_id: NodeId,
    pub idx: i64,
    pub model: String,
    pub memory_mib: i64,
    pub present: bool,
    pub mig_enabled: bool,
    pub quarantined: Option<String>,
    pub quarantine_code: Option<String>,
    pub quarantined_at: Option<Timestamp>,
    pub silent: Option<String>,
    /// True for a board beyond those of its node's approval.
    pub awaits_approval: bool,
    /// The facts that the worker read; the others have default values.
    pub facts: JsonColumn<GpuFacts>,
    pub task_number: i64,
    pub task_kind: Option<GpuTaskKind>,
    pub task_done: i64,
    pub task_succeeded: Option<bool>,
    pub task_detail: Option<String>,
    /// The board for which an operator requested a reset of several boards; `None` for a task of this board alone.
    pub task_group: Option<String>,
    /// The number of held devices on the board, without those whose proof of cleanness failed.
    pub held: i64,
}

/// A reported board out of service.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredBoardNotice {
    pub uuid: String,
    pub node_id: NodeId,
    pub node_name: String,
    pub idx: i64,
    pub quarantined: Option<String>,
    pub quarantine_code: Option<String>,
    pub quarantined_at: Option<Timestamp>,
    pub silent: Option<String>,
    /// True for a board beyond those of its node's approval.
    pub awaits_approval: bool,
}

/// A task of an operator for a board.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredTask {
    pub uuid: String,
    pub task_number: i64,
    pub task_kind: Option<GpuTaskKind>,
    /// As in [`StoredHealth`].
    pub task_group: Option<String>,
}

/// The reason for a quarantine.
#[derive(Debug, Clone)]
pub struct NewQuarantine {
    pub code: String,
    pub reason: String,
    pub at: Timestamp,
}

/// Lists the boards of a node, also boards that it no longer reports.
pub async fn list(tx: &mut Tx<'_>, node: NodeId) -> Result<Vec<StoredHealth>, StoreError> {
    let sql = "SELECT uuid, node_id, idx, model, memory_mib, present, mig_enabled, quarantined, quarantine_code, \
               quarantined_at, silent, awaits_approval, facts, task_number, task_kind, task_done, task_succeeded, task_detail, task_group, \
               (SELECT CAST(COUNT(*) AS BIGINT) FROM allocations a WHERE a.held = TRUE AND a.gpu_uuid = gpus.uuid AND a.unclean IS NULL) AS held \
               FROM gpus WHERE node_id = $1 ORDER BY idx, uuid";
    list!(tx, StoredHealth, sql, node)
}

/// Finds a board. `None` also for a board of a removed node.
pub async fn find(tx: &mut Tx<'_>, gpu_uuid: &str) -> Result<Option<StoredHealth>, StoreError> {
    let sql = "SELECT uuid, node_id, idx, model, memory_mib, present, mig_enabled, quarantined, quarantine_code, \
               quarantined_at, silent, awaits_approval, facts, task_number, task_kind, task_done, task_succeeded, task_detail, task_group, \
               (SELECT CAST(COUNT(*) AS BIGINT) FROM allocations a WHERE a.held = TRUE AND a.gpu_uuid = gpus.uuid AND a.unclean IS NULL) AS held \
               FROM gpus WHERE uuid = $1 AND EXISTS (SELECT 1 FROM nodes n WHERE n.id = gpus.node_id AND n.removed_at IS NULL)";
    find!(tx, StoredHealth, sql, gpu_uuid)
}

/// Lists reported boards out of service: faults before changes of the mode `mode_code`, then the latest first. Boards of
/// nodes without an approval, and of lost nodes with a revoked certificate, are left out.
pub async fn list_out_of_service(
    tx: &mut Tx<'_>,
    mode_code: &str,
    limit: i64,
) -> Result<Vec<StoredBoardNotice>, StoreError> {
    let sql = "SELECT g.uuid, g.node_id, n.name AS node_name, g.idx, g.quarantined, g.quarantine_code, \
               g.quarantined_at, g.silent, g.awaits_approval FROM gpus g JOIN nodes n ON n.id = g.node_id \
               WHERE g.present = $1 AND n.approved_at IS NOT NULL \
               AND (g.quarantined IS NOT NULL OR g.silent IS NOT NULL OR g.awaits_approval = $1) \
               AND (n.lost_at IS NULL OR EXISTS (SELECT 1 FROM node_certificates c \
               WHERE c.node_id = n.id AND c.revoked_at IS NULL)) \
               ORDER BY CASE WHEN g.quarantine_code = $2 THEN 1 ELSE 0 END, COALESCE(g.quarantined_at, 0) DESC, g.uuid \
               LIMIT $3";
    list!(tx, StoredBoardNotice, sql, true, mode_code, limit)
}

/// Records the reason for a board's silence; `None` if it answers.
pub async fn set_silent(tx: &mut Tx<'_>, gpu_uuid: &str, silent: Option<&str>) -> Result<(), StoreError> {
    exec!(tx, "UPDATE gpus SET silent = $2 WHERE uuid = $1", gpu_uuid, silent).map(|_| ())
}

/// Records the facts that were read from a board.
pub async fn set_facts(
    tx: &mut Tx<'_>,
    gpu_uuid: &str,
    facts: &GpuFacts,
    mig_enabled: bool,
) -> Result<(), StoreError> {
    let sql = "UPDATE gpus SET facts = $2, mig_enabled = $3 WHERE uuid = $1";
    exec!(tx, sql, gpu_uuid, JsonColumn(facts), mig_enabled).map(|_| ())
}

/// Quarantines a board for a fault report of its worker. Returns true if the report is new.
pub async fn quarantine_for_fault(
    tx: &mut Tx<'_>,
    gpu_uuid: &str,
    serial: i64,
    quarantine: &NewQuarantine,
) -> Result<bool, StoreError> {
    let sql = "UPDATE gpus SET quarantined = $3, quarantine_code = $4, quarantined_at = $5, fault_serial = $2 \
               WHERE uuid = $1 AND fault_serial < $2";
    Ok(exec!(tx, sql, gpu_uuid, serial, &quarantine.reason, &quarantine.code, quarantine.at)? == 1)
}

/// Quarantines a board.
pub async fn quarantine(
    tx: &mut Tx<'_>,
    gpu_uuid: &str,
    quarantine: &NewQuarantine,
) -> Result<(), StoreError> {
    let sql = "UPDATE gpus SET quarantined = $2, quarantine_code = $3, quarantined_at = $4 WHERE uuid = $1";
    exec!(tx, sql, gpu_uuid, &quarantine.reason, &quarantine.code, quarantine.at).map(|_| ())
}

/// Replaces the text of a quarantine's reason, if the board is quarantined with this code.
pub async fn set_quarantine_reason(
    tx: &mut Tx<'_>,
    gpu_uuid: &str,
    code: &str,
    reason: &str,
) -> Result<(), StoreError> {
    let sql = "UPDATE gpus SET quarantined = $3 WHERE uuid = $1 AND quarantine_code = $2 AND quarantined IS NOT NULL";
    exec!(tx, sql, gpu_uuid, code, reason).map(|_| ())
}

/// Ends the quarantine of a board. Returns true if it was quarantined.
pub async fn lift_quarantine(tx: &mut Tx<'_>, gpu_uuid: &str) -> Result<bool, StoreError> {
    let sql = "UPDATE gpus SET quarantined = NULL, quarantine_code = NULL, quarantined_at = NULL \
               WHERE uuid = $1 AND quarantined IS NOT NULL";
    Ok(exec!(tx, sql, gpu_uuid)? == 1)
}

/// Sets the task of a board, in place of an earlier task. The task number grows with time, so the worker sees
/// a new number even after a restore of the database. `group`: the board for which the reset of several boards was
/// requested.
pub async fn set_task(
    tx: &mut Tx<'_>,
    gpu_uuid: &str,
    kind: GpuTaskKind,
    group: Option<&str>,
    now: Timestamp,
) -> Result<(), StoreError> {
    let sql = "UPDATE gpus SET task_number = CASE WHEN task_number >= $3 THEN task_number + 1 ELSE $3 END, \
               task_kind = $2, task_succeeded = NULL, task_detail = NULL, task_group = $4 WHERE uuid = $1";
    exec!(tx, sql, gpu_uuid, kind, now.micros(), group).map(|_| ())
}

/// Cancels the open task of a board.
pub async fn cancel_task(tx: &mut Tx<'_>, gpu_uuid: &str) -> Result<(), StoreError> {
    let sql = "UPDATE gpus SET task_done = task_number, task_kind = NULL WHERE uuid = $1 AND task_number > task_done";
    exec!(tx, sql, gpu_uuid).map(|_| ())
}

/// Removes the result of the latest task of a board.
pub async fn forget_result(tx: &mut Tx<'_>, gpu_uuid: &str) -> Result<(), StoreError> {
    let sql = "UPDATE gpus SET task_kind = NULL WHERE uuid = $1 AND task_number <= task_done";
    exec!(tx, sql, gpu_uuid).map(|_| ())
}

/// Records the result of the newest task. Returns true if it was not recorded before.
pub async fn finish_task(
    tx: &mut Tx<'_>,
    gpu_uuid: &str,
    number: i64,
    succeeded: bool,
    detail: &str,
) -> Result<bool, StoreError> {
    let sql = "UPDATE gpus SET task_done = $2, task_succeeded = $3, task_detail = $4 \
               WHERE uuid = $1 AND task_number = $2 AND task_done < $2";
    Ok(exec!(tx, sql, gpu_uuid, number, succeeded, detail)? == 1)
}

/// Lists the open tasks for the present boards of a node. A change of mode waits until nothing is held on the
/// board, and a reset of several boards until nothing is held on any of them. A reset does not wait for devices whose
/// proof of cleanness failed: a board off the bus proves nothing before it.
pub async fn list_tasks(tx: &mut Tx<'_>, node: NodeId) -> Result<Vec<StoredTask>, StoreError> {
    let sql = "SELECT uuid, task_number, task_kind, task_group FROM gpus WHERE node_id = $1 AND present AND task_number > task_done \
               AND (task_kind = 'check' OR NOT EXISTS \
               (SELECT 1 FROM allocations a JOIN gpus g ON g.uuid = a.gpu_uuid WHERE a.held \
               AND (g.uuid = gpus.uuid OR (g.node_id = gpus.node_id AND g.task_group = gpus.task_group AND g.task_number > g.task_done)) \
               AND (gpus.task_kind <> 'reset' OR a.unclean IS NULL))) ORDER BY uuid";
    list!(tx, StoredTask, sql, node)
}

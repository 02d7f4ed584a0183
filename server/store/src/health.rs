//! How boards are: what their workers say of them, why they are out of service, what operators want done.

use berth_types::ids::NodeId;
use berth_types::time::Timestamp;

use super::{StoreError, Tx};

#[derive(Debug, Clone, sqlx::FromRow)]
pub struct HealthRow {
    pub uuid: String,
    pub node_id: String,
    pub idx: i64,
    pub model: String,
    pub memory_mib: i64,
    pub present: bool,
    pub mig_enabled: bool,
    pub quarantined: Option<String>,
    pub quarantine_code: Option<String>,
    pub quarantined_at: Option<i64>,
    pub silent: Option<String>,
    /// JSON.
    pub facts: String,
    pub task_number: i64,
    pub task_kind: Option<String>,
    pub task_done: i64,
    pub task_good: Option<bool>,
    pub task_words: Option<String>,
}

/// What an operator wants done with a board.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct TaskRow {
    pub uuid: String,
    pub task_number: i64,
    pub task_kind: Option<String>,
}

/// Why a board is taken out of service.
#[derive(Debug, Clone)]
pub struct NewQuarantine {
    pub code: String,
    pub reason: String,
    pub at: Timestamp,
}

/// The boards of a node, those that it no longer tells of too.
pub async fn list(tx: &mut Tx<'_>, node: NodeId) -> Result<Vec<HealthRow>, StoreError> {
    let sql = "SELECT uuid, node_id, idx, model, memory_mib, present, mig_enabled, quarantined, quarantine_code, \
               quarantined_at, silent, facts, task_number, task_kind, task_done, task_good, task_words \
               FROM gpus WHERE node_id = $1 ORDER BY idx, uuid";
    list!(tx, HealthRow, sql, node.to_string())
}

pub async fn find(tx: &mut Tx<'_>, gpu_uuid: &str) -> Result<Option<HealthRow>, StoreError> {
    let sql = "SELECT uuid, node_id, idx, model, memory_mib, present, mig_enabled, quarantined, quarantine_code, \
               quarantined_at, silent, facts, task_number, task_kind, task_done, task_good, task_words \
               FROM gpus WHERE uuid = $1";
    find!(tx, HealthRow, sql, gpu_uuid)
}

/// Records whether a board answers.
pub async fn set_silent(tx: &mut Tx<'_>, gpu_uuid: &str, silent: Option<&str>) -> Result<(), StoreError> {
    exec!(tx, "UPDATE gpus SET silent = $2 WHERE uuid = $1", gpu_uuid, silent).map(|_| ())
}

/// Records what was read of a board; `facts` is JSON.
pub async fn set_facts(
    tx: &mut Tx<'_>,
    gpu_uuid: &str,
    facts: &str,
    mig_enabled: bool,
) -> Result<(), StoreError> {
    let sql = "UPDATE gpus SET facts = $2, mig_enabled = $3 WHERE uuid = $1";
    exec!(tx, sql, gpu_uuid, facts, mig_enabled).map(|_| ())
}

/// Takes a board out of service for a fault of its worker's; says whether the fault is a new one.
pub async fn quarantine_for(
    tx: &mut Tx<'_>,
    gpu_uuid: &str,
    serial: i64,
    why: &NewQuarantine,
) -> Result<bool, StoreError> {
    let sql = "UPDATE gpus SET quarantined = $3, quarantine_code = $4, quarantined_at = $5, fault_serial = $2 \
               WHERE uuid = $1 AND fault_serial < $2";
    Ok(exec!(tx, sql, gpu_uuid, serial, &why.reason, &why.code, why.at.micros())? == 1)
}

/// Takes a board out of service.
pub async fn set_aside(tx: &mut Tx<'_>, gpu_uuid: &str, why: &NewQuarantine) -> Result<(), StoreError> {
    let sql = "UPDATE gpus SET quarantined = $2, quarantine_code = $3, quarantined_at = $4 WHERE uuid = $1";
    exec!(tx, sql, gpu_uuid, &why.reason, &why.code, why.at.micros()).map(|_| ())
}

/// Says in other words why a board is out of service, where it is so for this reason.
pub async fn reword(tx: &mut Tx<'_>, gpu_uuid: &str, code: &str, reason: &str) -> Result<(), StoreError> {
    let sql = "UPDATE gpus SET quarantined = $3 WHERE uuid = $1 AND quarantine_code = $2 AND quarantined IS NOT NULL";
    exec!(tx, sql, gpu_uuid, code, reason).map(|_| ())
}

/// Puts a board back into service; says whether it was out of it.
pub async fn lift(tx: &mut Tx<'_>, gpu_uuid: &str) -> Result<bool, StoreError> {
    let sql = "UPDATE gpus SET quarantined = NULL, quarantine_code = NULL, quarantined_at = NULL \
               WHERE uuid = $1 AND quarantined IS NOT NULL";
    Ok(exec!(tx, sql, gpu_uuid)? == 1)
}

/// Wants something done with a board, in place of what was wanted before. Its number grows with time, so that
/// it is a new one for the worker even when this database was put back from a backup.
pub async fn want(tx: &mut Tx<'_>, gpu_uuid: &str, kind: &str, now: Timestamp) -> Result<(), StoreError> {
    let sql = "UPDATE gpus SET task_number = CASE WHEN task_number >= $3 THEN task_number + 1 ELSE $3 END, \
               task_kind = $2, task_good = NULL, task_words = NULL WHERE uuid = $1";
    exec!(tx, sql, gpu_uuid, kind, now.micros()).map(|_| ())
}

/// Wants nothing done any more.
pub async fn call_off(tx: &mut Tx<'_>, gpu_uuid: &str) -> Result<(), StoreError> {
    let sql = "UPDATE gpus SET task_done = task_number, task_kind = NULL WHERE uuid = $1 AND task_number > task_done";
    exec!(tx, sql, gpu_uuid).map(|_| ())
}

/// Records how the newest task went; says whether it was not known.
pub async fn finish_task(
    tx: &mut Tx<'_>,
    gpu_uuid: &str,
    number: i64,
    good: bool,
    words: &str,
) -> Result<bool, StoreError> {
    let sql = "UPDATE gpus SET task_done = $2, task_good = $3, task_words = $4 \
               WHERE uuid = $1 AND task_number = $2 AND task_done < $2";
    Ok(exec!(tx, sql, gpu_uuid, number, good, words)? == 1)
}

/// What is to be done with the boards of a node now. A mode changes only when nothing is held on its board.
pub async fn list_tasks(tx: &mut Tx<'_>, node: NodeId) -> Result<Vec<TaskRow>, StoreError> {
    let sql = "SELECT uuid, task_number, task_kind FROM gpus WHERE node_id = $1 AND present AND task_number > task_done \
               AND (task_kind = 'check' OR NOT EXISTS \
               (SELECT 1 FROM allocations a WHERE a.gpu_uuid = gpus.uuid AND a.held)) ORDER BY uuid";
    list!(tx, TaskRow, sql, node.to_string())
}

//! Attempts and what they hold on boards.

use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::time::Timestamp;

use super::{StoreError, Tx};

#[derive(Debug, Clone, sqlx::FromRow)]
pub struct AttemptRow {
    pub job_id: String,
    pub number: i64,
    pub org_id: String,
    pub node_id: String,
    pub known: bool,
    pub ended: bool,
    pub clean: bool,
    pub log_bytes: Option<i64>,
    pub is_open: bool,
}

/// Slices that an attempt has or had.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct AllocationRow {
    pub job_id: String,
    pub attempt: i64,
    pub idx: i64,
    pub org_id: String,
    pub node_id: String,
    pub gpu_uuid: String,
    pub profile_id: Option<i64>,
    pub start: i64,
    pub size: i64,
    pub mig_uuid: Option<String>,
    pub unclean: Option<String>,
}

/// An allocation with what the map and the planner need of its job.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct HeldRow {
    #[sqlx(flatten)]
    pub allocation: AllocationRow,
    pub job_name: String,
    pub org_name: String,
    pub started_at: Option<i64>,
    pub max_duration_s: i64,
    pub metered_before_ms: i64,
    pub priority: i64,
    pub preemptible: bool,
    pub cpu_milli: i64,
    pub memory_mib: i64,
    /// The job's.
    pub state: String,
    /// The job's latest.
    #[sqlx(rename = "latest")]
    pub attempt: i64,
    /// Memory slices of the whole board.
    pub cells: i64,
}

pub async fn insert(
    tx: &mut Tx<'_>,
    job: JobId,
    number: u32,
    org: OrgId,
    node: NodeId,
    now: Timestamp,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO attempts (job_id, number, org_id, node_id, known, ended, clean, is_open, created_at) \
               VALUES ($1, $2, $3, $4, $5, $5, $5, $6, $7)";
    let (number, no, yes) = (i64::from(number), false, true);
    exec!(tx, sql, job.to_string(), number, org.to_string(), node.to_string(), no, yes, now.micros())
        .map(|_| ())
}

pub async fn insert_allocation(tx: &mut Tx<'_>, row: &AllocationRow) -> Result<(), StoreError> {
    let sql = "INSERT INTO allocations (job_id, attempt, idx, org_id, node_id, gpu_uuid, profile_id, start, size, held) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";
    exec!(
        tx,
        sql,
        &row.job_id,
        row.attempt,
        row.idx,
        &row.org_id,
        &row.node_id,
        &row.gpu_uuid,
        row.profile_id,
        row.start,
        row.size,
        true
    )
    .map(|_| ())
}

/// An attempt that runs on this node.
pub async fn find(
    tx: &mut Tx<'_>,
    job: JobId,
    number: u32,
    node: NodeId,
) -> Result<Option<AttemptRow>, StoreError> {
    let sql = "SELECT job_id, number, org_id, node_id, known, ended, clean, log_bytes, is_open FROM attempts \
               WHERE job_id = $1 AND number = $2 AND node_id = $3";
    find!(tx, AttemptRow, sql, job.to_string(), i64::from(number), node.to_string())
}

/// The length of an attempt's log, once it is known.
pub async fn find_log_bytes(tx: &mut Tx<'_>, job: JobId, number: u32) -> Result<Option<i64>, StoreError> {
    let sql = "SELECT log_bytes FROM attempts WHERE job_id = $1 AND number = $2";
    let row = find!(tx, (Option<i64>,), sql, job.to_string(), i64::from(number))?;
    Ok(row.and_then(|(bytes,)| bytes))
}

/// Writes what is known of an attempt.
pub async fn update(tx: &mut Tx<'_>, row: &AttemptRow) -> Result<(), StoreError> {
    let sql = "UPDATE attempts SET known = $3, ended = $4, clean = $5, log_bytes = $6, is_open = $7 \
               WHERE job_id = $1 AND number = $2";
    exec!(tx, sql, &row.job_id, row.number, row.known, row.ended, row.clean, row.log_bytes, row.is_open)
        .map(|_| ())
}

pub async fn list_open(tx: &mut Tx<'_>, node: NodeId) -> Result<Vec<AttemptRow>, StoreError> {
    let sql = "SELECT job_id, number, org_id, node_id, known, ended, clean, log_bytes, is_open FROM attempts \
               WHERE node_id = $1 AND is_open = $2 ORDER BY job_id, number";
    list!(tx, AttemptRow, sql, node.to_string(), true)
}

/// What an attempt has or had, in the order of its slots.
pub async fn list_allocations(
    tx: &mut Tx<'_>,
    job: &str,
    attempt: i64,
) -> Result<Vec<AllocationRow>, StoreError> {
    let sql = "SELECT job_id, attempt, idx, org_id, node_id, gpu_uuid, profile_id, start, size, mig_uuid, unclean \
               FROM allocations WHERE job_id = $1 AND attempt = $2 ORDER BY idx";
    list!(tx, AllocationRow, sql, job, attempt)
}

macro_rules! select_held {
    ($rest:literal) => {
        concat!(
            "SELECT a.job_id, a.attempt, a.idx, a.org_id, a.node_id, a.gpu_uuid, a.profile_id, a.start, a.size, \
             a.mig_uuid, a.unclean, j.name AS job_name, o.name AS org_name, j.started_at, j.max_duration_s, \
             j.metered_before_ms, j.priority, j.preemptible, j.cpu_milli, j.memory_mib, j.state, j.attempt AS latest, f.board_cells AS cells \
             FROM allocations a JOIN jobs j ON j.id = a.job_id JOIN orgs o ON o.id = a.org_id \
             JOIN offerings f ON f.id = j.offering_id ",
            $rest
        )
    };
}

/// Everything that is held on any board.
pub async fn list_held(tx: &mut Tx<'_>) -> Result<Vec<HeldRow>, StoreError> {
    list!(tx, HeldRow, select_held!("WHERE a.held = $1 ORDER BY a.gpu_uuid, a.start"), true)
}

/// What the attempts of a job hold.
pub async fn list_held_by(tx: &mut Tx<'_>, job: JobId) -> Result<Vec<HeldRow>, StoreError> {
    let sql = select_held!("WHERE a.job_id = $1 AND a.held = $2 ORDER BY a.attempt, a.idx");
    list!(tx, HeldRow, sql, job.to_string(), true)
}

pub async fn set_mig_uuid(
    tx: &mut Tx<'_>,
    job: &str,
    attempt: i64,
    idx: i64,
    uuid: &str,
) -> Result<(), StoreError> {
    let sql = "UPDATE allocations SET mig_uuid = $4 WHERE job_id = $1 AND attempt = $2 AND idx = $3";
    exec!(tx, sql, job, attempt, idx, uuid).map(|_| ())
}

/// Gives everything that an attempt holds back to the boards.
pub async fn release(tx: &mut Tx<'_>, job: &str, attempt: i64) -> Result<(), StoreError> {
    let sql = "UPDATE allocations SET held = $3, unclean = NULL WHERE job_id = $1 AND attempt = $2";
    exec!(tx, sql, job, attempt, false).map(|_| ())
}

/// Keeps it from being used until it is proved clean.
pub async fn mark_unclean(tx: &mut Tx<'_>, job: &str, attempt: i64, reason: &str) -> Result<(), StoreError> {
    let sql = "UPDATE allocations SET unclean = $3 WHERE job_id = $1 AND attempt = $2 AND held = $4";
    exec!(tx, sql, job, attempt, reason, true).map(|_| ())
}

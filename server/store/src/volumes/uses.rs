//! Which volumes jobs ask for, and which versions their attempts were given.

use berth_types::ids::JobId;

use super::super::{StoreError, Tx};

/// A volume that a job asks for.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct WantedRow {
    pub job_id: String,
    pub volume_id: String,
    /// The volume's.
    pub name: String,
}

/// A volume that an attempt was given.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct UseRow {
    pub job_id: String,
    pub attempt: i64,
    pub volume_id: String,
    pub version: i64,
    pub writable: bool,
    pub given_up: bool,
    pub kept_version: Option<i64>,
    pub note: Option<String>,
}

macro_rules! select_uses {
    ($rest:literal) => {
        concat!(
            "SELECT job_id, attempt, volume_id, version, writable, given_up, kept_version, note FROM volume_uses ",
            $rest
        )
    };
}

pub async fn insert_wanted(
    tx: &mut Tx<'_>,
    job: JobId,
    idx: i64,
    volume: &str,
    writable: bool,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO job_volumes (job_id, idx, volume_id, writable) VALUES ($1, $2, $3, $4)";
    exec!(tx, sql, job.to_string(), idx, volume, writable).map(|_| ())
}

/// The volumes that a job asks for, in its order: id, and whether it writes.
pub async fn list_wanted(tx: &mut Tx<'_>, job: &str) -> Result<Vec<(String, bool)>, StoreError> {
    let sql = "SELECT volume_id, writable FROM job_volumes WHERE job_id = $1 ORDER BY idx";
    list!(tx, (String, bool), sql, job)
}

/// The volumes to which this job waits to write; `''`: those of all jobs.
pub async fn list_waiting(tx: &mut Tx<'_>, job: &str) -> Result<Vec<WantedRow>, StoreError> {
    let sql = "SELECT w.job_id, w.volume_id, v.name FROM job_volumes w JOIN jobs j ON j.id = w.job_id \
               JOIN volumes v ON v.id = w.volume_id \
               WHERE w.writable = $2 AND j.state = 'queued' AND ($1 = '' OR w.job_id = $1) ORDER BY w.job_id, w.idx";
    list!(tx, WantedRow, sql, job, true)
}

/// The jobs that wait to write to a volume to which this one writes.
pub async fn list_behind(tx: &mut Tx<'_>, job: &str) -> Result<Vec<String>, StoreError> {
    let sql = "SELECT DISTINCT w.job_id FROM job_volumes m JOIN job_volumes w ON w.volume_id = m.volume_id \
               JOIN jobs j ON j.id = w.job_id \
               WHERE m.job_id = $1 AND m.writable = $2 AND w.writable = $2 AND j.state = 'queued'";
    let rows = list!(tx, (String,), sql, job, true)?;
    Ok(rows.into_iter().map(|(job,)| job).collect())
}

/// A job that has not ended and asks for this volume, or whose attempt is not closed.
pub async fn find_user(tx: &mut Tx<'_>, volume: &str) -> Result<Option<String>, StoreError> {
    let sql = "SELECT w.job_id FROM job_volumes w JOIN jobs j ON j.id = w.job_id WHERE w.volume_id = $1 \
               AND (j.ended_at IS NULL OR EXISTS (SELECT 1 FROM volume_uses u JOIN attempts a \
                ON a.job_id = u.job_id AND a.number = u.attempt \
                WHERE u.job_id = w.job_id AND u.volume_id = $1 AND a.is_open = $2)) ORDER BY w.job_id LIMIT 1";
    Ok(find!(tx, (String,), sql, volume, true)?.map(|(job,)| job))
}

pub async fn insert(tx: &mut Tx<'_>, row: &UseRow) -> Result<(), StoreError> {
    let sql = "INSERT INTO volume_uses (job_id, attempt, volume_id, version, writable, given_up, kept_version, note) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
    exec!(
        tx,
        sql,
        &row.job_id,
        row.attempt,
        &row.volume_id,
        row.version,
        row.writable,
        row.given_up,
        row.kept_version,
        &row.note
    )
    .map(|_| ())
}

pub async fn find(
    tx: &mut Tx<'_>,
    job: &str,
    attempt: i64,
    volume: &str,
) -> Result<Option<UseRow>, StoreError> {
    let sql = select_uses!("WHERE job_id = $1 AND attempt = $2 AND volume_id = $3");
    find!(tx, UseRow, sql, job, attempt, volume)
}

/// What an attempt was given.
pub async fn list(tx: &mut Tx<'_>, job: &str, attempt: i64) -> Result<Vec<UseRow>, StoreError> {
    list!(tx, UseRow, select_uses!("WHERE job_id = $1 AND attempt = $2 ORDER BY volume_id"), job, attempt)
}

/// The attempts that write to a volume, or may still hand over what they wrote.
pub async fn list_writers(tx: &mut Tx<'_>, volume: &str) -> Result<Vec<UseRow>, StoreError> {
    let sql = select_uses!(
        "WHERE volume_id = $1 AND writable = $2 AND given_up = $3 AND EXISTS (SELECT 1 FROM attempts a \
         WHERE a.job_id = volume_uses.job_id AND a.number = volume_uses.attempt AND a.is_open = $2) ORDER BY job_id"
    );
    list!(tx, UseRow, sql, volume, true, false)
}

/// From now on nothing is taken any more of those that wrote to a volume.
pub async fn give_up(tx: &mut Tx<'_>, volume: &str) -> Result<(), StoreError> {
    let sql = "UPDATE volume_uses SET given_up = $2 WHERE volume_id = $1 AND writable = $2 AND given_up = $3";
    exec!(tx, sql, volume, true, false).map(|_| ())
}

/// Says what became of what an attempt left: the version that holds it, or none and why.
pub async fn settle(
    tx: &mut Tx<'_>,
    row: &UseRow,
    kept_version: Option<i64>,
    note: Option<&str>,
) -> Result<(), StoreError> {
    let sql = "UPDATE volume_uses SET kept_version = $4, note = $5 WHERE job_id = $1 AND attempt = $2 AND volume_id = $3";
    exec!(tx, sql, &row.job_id, row.attempt, &row.volume_id, kept_version, note).map(|_| ())
}

//! Volumes that jobs request, and versions that their attempts got.

use berth_types::ids::{JobId, VolumeId};

use super::super::{StoreError, Tx};

/// A volume that a job requests.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredVolumeRequest {
    pub job_id: JobId,
    pub volume_id: VolumeId,
    /// The name of the volume.
    pub name: String,
    pub writable: bool,
}

/// A version of a volume that an attempt got.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredVolumeUse {
    pub job_id: JobId,
    pub attempt: i64,
    pub volume_id: VolumeId,
    pub version: i64,
    pub writable: bool,
    /// Another job writes to the volume now, so changes of this attempt are refused.
    pub abandoned: bool,
    /// The version with the changes of this attempt.
    pub kept_version: Option<i64>,
    pub note: Option<String>,
}

macro_rules! select_uses {
    ($rest:literal) => {
        concat!(
            "SELECT job_id, attempt, volume_id, version, writable, abandoned, kept_version, note FROM volume_uses ",
            $rest
        )
    };
}

pub async fn insert_request(
    tx: &mut Tx<'_>,
    job: JobId,
    idx: i64,
    volume: VolumeId,
    writable: bool,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO job_volumes (job_id, idx, volume_id, writable) VALUES ($1, $2, $3, $4)";
    exec!(tx, sql, job, idx, volume, writable).map(|_| ())
}

/// Lists the volumes that a job requests, in its order: (id, writable).
pub async fn list_requests(tx: &mut Tx<'_>, job: JobId) -> Result<Vec<(VolumeId, bool)>, StoreError> {
    let sql = "SELECT volume_id, writable FROM job_volumes WHERE job_id = $1 ORDER BY idx";
    list!(tx, (VolumeId, bool), sql, job)
}

/// Lists the volumes that a queued job (`None`: each queued job) requests and to which an open attempt writes.
pub async fn list_waiting_requests(
    tx: &mut Tx<'_>,
    job: Option<JobId>,
) -> Result<Vec<StoredVolumeRequest>, StoreError> {
    macro_rules! select_waiting {
        ($condition:literal) => {
            concat!(
                "SELECT w.job_id, w.volume_id, v.name, w.writable FROM job_volumes w JOIN jobs j ON j.id = w.job_id \
                 JOIN volumes v ON v.id = w.volume_id WHERE j.state = 'queued' AND w.volume_id IN (SELECT u.volume_id \
                 FROM volume_uses u JOIN attempts a ON a.job_id = u.job_id AND a.number = u.attempt \
                 WHERE u.writable = $1 AND a.is_open = $1)",
                $condition,
                " ORDER BY w.job_id, w.idx"
            )
        };
    }
    match job {
        Some(job) => list!(tx, StoredVolumeRequest, select_waiting!(" AND w.job_id = $2"), true, job),
        None => list!(tx, StoredVolumeRequest, select_waiting!(""), true),
    }
}

/// Lists the storage classes of a queued job (`None`: of all queued jobs), each with its job.
pub async fn list_waiting_classes(
    tx: &mut Tx<'_>,
    job: Option<JobId>,
) -> Result<Vec<(JobId, String)>, StoreError> {
    macro_rules! select_classes {
        ($condition:literal) => {
            concat!(
                "SELECT DISTINCT w.job_id, v.class FROM job_volumes w JOIN jobs j ON j.id = w.job_id \
                 JOIN volumes v ON v.id = w.volume_id WHERE v.class IS NOT NULL AND j.state = 'queued'",
                $condition,
                " ORDER BY w.job_id, v.class"
            )
        };
    }
    match job {
        Some(job) => list!(tx, (JobId, String), select_classes!(" AND w.job_id = $1"), job),
        None => list!(tx, (JobId, String), select_classes!("")),
    }
}

/// Lists the queued jobs that request a volume to which this job writes.
pub async fn list_jobs_behind(tx: &mut Tx<'_>, job: JobId) -> Result<Vec<JobId>, StoreError> {
    let sql = "SELECT DISTINCT w.job_id FROM job_volumes m JOIN job_volumes w ON w.volume_id = m.volume_id \
               JOIN jobs j ON j.id = w.job_id \
               WHERE m.job_id = $1 AND m.writable = $2 AND j.state = 'queued'";
    let rows = list!(tx, (JobId,), sql, job, true)?;
    Ok(rows.into_iter().map(|(job,)| job).collect())
}

/// Finds a job that uses this volume: it has not ended, or its attempt is open.
pub async fn find_user(tx: &mut Tx<'_>, volume: VolumeId) -> Result<Option<JobId>, StoreError> {
    let sql = "SELECT w.job_id FROM job_volumes w JOIN jobs j ON j.id = w.job_id WHERE w.volume_id = $1 \
               AND (j.ended_at IS NULL OR EXISTS (SELECT 1 FROM volume_uses u JOIN attempts a \
                ON a.job_id = u.job_id AND a.number = u.attempt \
                WHERE u.job_id = w.job_id AND u.volume_id = $1 AND a.is_open = $2)) ORDER BY w.job_id LIMIT 1";
    Ok(find!(tx, (JobId,), sql, volume, true)?.map(|(job,)| job))
}

pub async fn insert(tx: &mut Tx<'_>, row: &StoredVolumeUse) -> Result<(), StoreError> {
    let sql = "INSERT INTO volume_uses (job_id, attempt, volume_id, version, writable, abandoned, kept_version, note) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
    exec!(
        tx,
        sql,
        row.job_id,
        row.attempt,
        row.volume_id,
        row.version,
        row.writable,
        row.abandoned,
        row.kept_version,
        &row.note
    )
    .map(|_| ())
}

pub async fn find(
    tx: &mut Tx<'_>,
    job: JobId,
    attempt: i64,
    volume: VolumeId,
) -> Result<Option<StoredVolumeUse>, StoreError> {
    let sql = select_uses!("WHERE job_id = $1 AND attempt = $2 AND volume_id = $3");
    find!(tx, StoredVolumeUse, sql, job, attempt, volume)
}

/// Lists the volumes of an attempt.
pub async fn list(tx: &mut Tx<'_>, job: JobId, attempt: i64) -> Result<Vec<StoredVolumeUse>, StoreError> {
    list!(
        tx,
        StoredVolumeUse,
        select_uses!("WHERE job_id = $1 AND attempt = $2 ORDER BY volume_id"),
        job,
        attempt
    )
}

/// Lists the open attempts that write to a volume or may still hand over changes.
pub async fn list_writers(tx: &mut Tx<'_>, volume: VolumeId) -> Result<Vec<StoredVolumeUse>, StoreError> {
    let sql = select_uses!(
        "WHERE volume_id = $1 AND writable = $2 AND abandoned = $3 AND EXISTS (SELECT 1 FROM attempts a \
         WHERE a.job_id = volume_uses.job_id AND a.number = volume_uses.attempt AND a.is_open = $2) ORDER BY job_id"
    );
    list!(tx, StoredVolumeUse, sql, volume, true, false)
}

/// Refuses from now on the changes of all attempts that write to a volume.
pub async fn abandon(tx: &mut Tx<'_>, volume: VolumeId) -> Result<(), StoreError> {
    let sql =
        "UPDATE volume_uses SET abandoned = $2 WHERE volume_id = $1 AND writable = $2 AND abandoned = $3";
    exec!(tx, sql, volume, true, false).map(|_| ())
}

/// Records the result of an attempt's changes: the version that has them, if any, and a note.
pub async fn set_result(
    tx: &mut Tx<'_>,
    row: &StoredVolumeUse,
    kept_version: Option<i64>,
    note: Option<&str>,
) -> Result<(), StoreError> {
    let sql = "UPDATE volume_uses SET kept_version = $4, note = $5 WHERE job_id = $1 AND attempt = $2 AND volume_id = $3";
    exec!(tx, sql, row.job_id, row.attempt, row.volume_id, kept_version, note).map(|_| ())
}

//! Files of jobs that outlive their attempt. Their bytes are in the object store.

use berth_types::files::{FileKind, FileState};
use berth_types::ids::{FileId, JobId, OrgId};
use berth_types::lists::ListOptions;
use berth_types::time::Timestamp;

use super::{StoreError, Tx};

#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredFile {
    pub id: FileId,
    pub org_id: OrgId,
    pub job_id: JobId,
    pub attempt: i64,
    pub rank: i64,
    pub kind: FileKind,
    pub seq: i64,
    pub path: String,
    pub bytes: i64,
    /// Lower-case hex.
    pub sha256: String,
    pub files: i64,
    pub state: FileState,
    pub note: Option<String>,
    pub created_at: Timestamp,
}

macro_rules! select_files {
    ($rest:literal) => {
        concat!(
            "SELECT id, org_id, job_id, attempt, rank, kind, seq, path, bytes, sha256, files, state, note, created_at \
             FROM job_files ",
            $rest
        )
    };
}

pub async fn insert(tx: &mut Tx<'_>, row: &StoredFile) -> Result<(), StoreError> {
    let sql = "INSERT INTO job_files (id, org_id, job_id, attempt, rank, kind, seq, path, bytes, sha256, files, state, \
               note, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)";
    exec!(
        tx,
        sql,
        row.id,
        row.org_id,
        row.job_id,
        row.attempt,
        row.rank,
        row.kind,
        row.seq,
        &row.path,
        row.bytes,
        &row.sha256,
        row.files,
        row.state,
        &row.note,
        row.created_at
    )
    .map(|_| ())
}

/// Finds the stored row of the same file as `row`.
pub async fn find_same(tx: &mut Tx<'_>, row: &StoredFile) -> Result<Option<StoredFile>, StoreError> {
    let sql = select_files!(
        "WHERE job_id = $1 AND attempt = $2 AND rank = $3 AND kind = $4 AND seq = $5 AND path = $6"
    );
    find!(tx, StoredFile, sql, row.job_id, row.attempt, row.rank, row.kind, row.seq, &row.path)
}

/// Lists the artifacts of one rank of an attempt, in any state.
pub async fn list_artifacts(
    tx: &mut Tx<'_>,
    job: JobId,
    attempt: i64,
    rank: i64,
) -> Result<Vec<StoredFile>, StoreError> {
    let sql = select_files!(
        "WHERE job_id = $1 AND attempt = $2 AND rank = $3 AND kind = 'artifact' AND seq = 0 ORDER BY path"
    );
    list!(tx, StoredFile, sql, job, attempt, rank)
}

/// Finds a file of a job of this organization, in any state.
pub async fn find(
    tx: &mut Tx<'_>,
    org: OrgId,
    job: JobId,
    file: FileId,
) -> Result<Option<StoredFile>, StoreError> {
    let sql = select_files!("WHERE org_id = $1 AND job_id = $2 AND id = $3");
    find!(tx, StoredFile, sql, org, job, file)
}

/// Lists a page of the files of a job by id, without gone files.
pub async fn list(
    tx: &mut Tx<'_>,
    org: OrgId,
    job: JobId,
    options: &ListOptions<FileId>,
) -> Result<Vec<StoredFile>, StoreError> {
    let sql = page_sql!(
        options.sort,
        [select_files!("WHERE org_id = $1 AND job_id = $2 AND state <> 'gone'")],
        "id",
        "$3",
        "$4"
    );
    list!(tx, StoredFile, sql, org, job, options.cursor_text(), options.rows())
}

/// Counts the files of a job, also gone files whose row still exists.
pub async fn count_for_job(tx: &mut Tx<'_>, job: JobId) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COUNT(*) AS BIGINT) FROM job_files WHERE job_id = $1";
    Ok(find!(tx, (i64,), sql, job)?.map_or(0, |(count,)| count))
}

/// Lists the checkpoints of one rank of a job that are not gone, newest first.
pub async fn list_checkpoints(tx: &mut Tx<'_>, job: JobId, rank: i64) -> Result<Vec<StoredFile>, StoreError> {
    let sql = select_files!(
        "WHERE job_id = $1 AND rank = $2 AND kind = 'checkpoint' AND state <> 'gone' ORDER BY attempt DESC, seq DESC"
    );
    list!(tx, StoredFile, sql, job, rank)
}

/// Moves a file from one state to another. Returns true if it was in the first.
pub async fn set_state(
    tx: &mut Tx<'_>,
    id: FileId,
    from: FileState,
    to: FileState,
    note: Option<&str>,
) -> Result<bool, StoreError> {
    let sql = "UPDATE job_files SET state = $3, note = COALESCE($4, note) WHERE id = $1 AND state = $2";
    Ok(exec!(tx, sql, id, from, to, note)? == 1)
}

/// Marks as gone the files of one kind whose job ended before `before`. Returns their number.
pub async fn expire(tx: &mut Tx<'_>, kind: FileKind, before: Timestamp) -> Result<u64, StoreError> {
    let sql = "UPDATE job_files SET state = 'gone' WHERE state <> 'gone' AND kind = $1 \
               AND job_id IN (SELECT id FROM jobs WHERE ended_at IS NOT NULL AND ended_at < $2)";
    exec!(tx, sql, kind, before)
}

/// Marks as gone the partial files of closed ranks. Returns their number.
pub async fn abandon(tx: &mut Tx<'_>) -> Result<u64, StoreError> {
    let sql = "UPDATE job_files SET state = 'gone' WHERE state = 'partial' AND NOT EXISTS (SELECT 1 FROM attempts a \
               WHERE a.job_id = job_files.job_id AND a.number = job_files.attempt AND a.rank = job_files.rank \
               AND a.is_open = $1)";
    exec!(tx, sql, true)
}

/// Lists the gone files; their bytes must be removed.
pub async fn list_gone(tx: &mut Tx<'_>, limit: i64) -> Result<Vec<StoredFile>, StoreError> {
    list!(tx, StoredFile, select_files!("WHERE state = 'gone' ORDER BY id LIMIT $1"), limit)
}

/// Deletes the row of a gone file.
pub async fn remove(tx: &mut Tx<'_>, id: FileId) -> Result<(), StoreError> {
    exec!(tx, "DELETE FROM job_files WHERE id = $1 AND state = 'gone'", id).map(|_| ())
}

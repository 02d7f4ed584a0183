//! Blobs of volumes, complete or partial. Their bytes are in the object store.

use berth_types::files::FileState;
use berth_types::ids::{FileId, JobId, OrgId, VolumeId};
use berth_types::time::Timestamp;
use berth_types::volumes::BlobKind;

use super::super::{StoreError, Tx};

#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredBlob {
    pub id: FileId,
    pub org_id: OrgId,
    pub volume_id: VolumeId,
    pub kind: BlobKind,
    pub path: String,
    /// The id of the job; empty for an upload.
    pub job_id: String,
    pub attempt: i64,
    pub bytes: i64,
    /// Lower-case hex; empty if it is not known yet.
    pub sha256: String,
    pub tag: String,
    /// The state; never `Refused`.
    pub state: FileState,
    pub touched_at: Timestamp,
}

macro_rules! select_blobs {
    ($rest:literal) => {
        concat!(
            "SELECT id, org_id, volume_id, kind, path, job_id, attempt, bytes, sha256, tag, state, touched_at \
             FROM volume_blobs ",
            $rest
        )
    };
}

pub async fn insert(tx: &mut Tx<'_>, row: &StoredBlob) -> Result<(), StoreError> {
    let sql = "INSERT INTO volume_blobs (id, org_id, volume_id, kind, path, job_id, attempt, bytes, sha256, tag, \
               state, touched_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";
    exec!(
        tx,
        sql,
        row.id,
        row.org_id,
        row.volume_id,
        row.kind,
        &row.path,
        &row.job_id,
        row.attempt,
        row.bytes,
        &row.sha256,
        &row.tag,
        row.state,
        row.touched_at
    )
    .map(|_| ())
}

/// Finds the upload to a path, if the volume does not have it yet.
pub async fn find_upload(
    tx: &mut Tx<'_>,
    volume: VolumeId,
    path: &str,
) -> Result<Option<StoredBlob>, StoreError> {
    let sql = select_blobs!("WHERE volume_id = $1 AND kind = 'upload' AND path = $2 AND state <> 'gone'");
    find!(tx, StoredBlob, sql, volume, path)
}

/// Records that the volume has an upload now.
pub async fn mark_placed(tx: &mut Tx<'_>, id: FileId) -> Result<(), StoreError> {
    exec!(tx, "UPDATE volume_blobs SET path = '' WHERE id = $1", id).map(|_| ())
}

/// Finds the blob of an attempt with the kind and content of `like`, complete or partial.
pub async fn find_handed_over(tx: &mut Tx<'_>, like: &StoredBlob) -> Result<Option<StoredBlob>, StoreError> {
    let sql = select_blobs!(
        "WHERE volume_id = $1 AND kind = $2 AND job_id = $3 AND attempt = $4 AND sha256 = $5 AND bytes = $6 \
         AND state <> 'gone'"
    );
    find!(
        tx,
        StoredBlob,
        sql,
        like.volume_id,
        like.kind,
        &like.job_id,
        like.attempt,
        &like.sha256,
        like.bytes
    )
}

/// Lists the complete files of an attempt.
pub async fn list_complete_files(
    tx: &mut Tx<'_>,
    volume: VolumeId,
    job: JobId,
    attempt: i64,
) -> Result<Vec<StoredBlob>, StoreError> {
    let sql = select_blobs!(
        "WHERE volume_id = $1 AND kind = 'file' AND job_id = $2 AND attempt = $3 AND state = 'complete'"
    );
    list!(tx, StoredBlob, sql, volume, job, attempt)
}

/// Lists the files of an attempt, complete or partial.
pub async fn list_handed_over(
    tx: &mut Tx<'_>,
    volume: VolumeId,
    job: JobId,
    attempt: i64,
) -> Result<Vec<StoredBlob>, StoreError> {
    let sql = select_blobs!(
        "WHERE volume_id = $1 AND kind = 'file' AND job_id = $2 AND attempt = $3 AND state <> 'gone'"
    );
    list!(tx, StoredBlob, sql, volume, job, attempt)
}

/// Counts the blobs of an attempt for a volume.
pub async fn count_handed_over(
    tx: &mut Tx<'_>,
    volume: VolumeId,
    job: JobId,
    attempt: i64,
) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COUNT(*) AS BIGINT) FROM volume_blobs WHERE volume_id = $1 AND job_id = $2 AND attempt = $3";
    Ok(find!(tx, (i64,), sql, volume, job, attempt)?.map_or(0, |(count,)| count))
}

/// Counts the uploads that the volume does not have yet: (number, bytes).
pub async fn uploads(tx: &mut Tx<'_>, volume: VolumeId) -> Result<(i64, i64), StoreError> {
    let sql = "SELECT CAST(COUNT(*) AS BIGINT), CAST(COALESCE(SUM(bytes), 0) AS BIGINT) FROM volume_blobs \
               WHERE volume_id = $1 AND kind = 'upload' AND path <> '' AND state <> 'gone'";
    Ok(find!(tx, (i64, i64), sql, volume)?.unwrap_or_default())
}

/// Lists the uploads that the volume does not have yet, oldest first.
pub async fn list_uploads(
    tx: &mut Tx<'_>,
    volume: VolumeId,
    limit: i64,
) -> Result<Vec<StoredBlob>, StoreError> {
    let sql = select_blobs!(
        "WHERE volume_id = $1 AND kind = 'upload' AND path <> '' AND state <> 'gone' ORDER BY id LIMIT $2"
    );
    list!(tx, StoredBlob, sql, volume, limit)
}

/// Records that bytes of a blob still arrive.
pub async fn touch(tx: &mut Tx<'_>, id: FileId, now: Timestamp) -> Result<(), StoreError> {
    exec!(tx, "UPDATE volume_blobs SET touched_at = $2 WHERE id = $1", id, now).map(|_| ())
}

/// Marks a blob as complete, with its hash. Returns true if it was partial.
pub async fn complete(tx: &mut Tx<'_>, id: FileId, sha256: &str) -> Result<bool, StoreError> {
    let sql = "UPDATE volume_blobs SET state = 'complete', sha256 = $2 WHERE id = $1 AND state = 'partial'";
    Ok(exec!(tx, sql, id, sha256)? == 1)
}

/// Marks a blob as complete; its hash was known.
pub async fn mark_complete(tx: &mut Tx<'_>, id: FileId) -> Result<(), StoreError> {
    let sql = "UPDATE volume_blobs SET state = 'complete' WHERE id = $1 AND state = 'partial'";
    exec!(tx, sql, id).map(|_| ())
}

/// Marks a blob as gone, unless a version has it.
pub async fn give_up(tx: &mut Tx<'_>, id: FileId) -> Result<(), StoreError> {
    let sql = "UPDATE volume_blobs SET state = 'gone' WHERE id = $1 \
               AND NOT EXISTS (SELECT 1 FROM volume_files f WHERE f.blob_id = volume_blobs.id)";
    exec!(tx, sql, id).map(|_| ())
}

/// Marks as gone the uploads without bytes since `before`, and the blobs that are in no version and belong to
/// no open attempt. Returns their number.
pub async fn abandon(tx: &mut Tx<'_>, before: Timestamp) -> Result<u64, StoreError> {
    let sql = "UPDATE volume_blobs SET state = 'gone' WHERE state <> 'gone' AND kind = 'upload' AND path <> '' AND touched_at < $1";
    let uploads = exec!(tx, sql, before)?;
    let sql = "UPDATE volume_blobs SET state = 'gone' WHERE state <> 'gone' AND (kind <> 'upload' OR path = '') \
               AND NOT EXISTS (SELECT 1 FROM volume_files f WHERE f.blob_id = volume_blobs.id) \
               AND NOT EXISTS (SELECT 1 FROM attempts a WHERE a.job_id = volume_blobs.job_id \
                AND a.number = volume_blobs.attempt AND a.is_open = $1)";
    Ok(uploads + exec!(tx, sql, true)?)
}

/// Lists the gone blobs; their bytes must be removed.
pub async fn list_gone(tx: &mut Tx<'_>, limit: i64) -> Result<Vec<StoredBlob>, StoreError> {
    list!(tx, StoredBlob, select_blobs!("WHERE state = 'gone' ORDER BY id LIMIT $1"), limit)
}

/// Deletes the row of a gone blob.
pub async fn remove(tx: &mut Tx<'_>, id: FileId) -> Result<(), StoreError> {
    exec!(tx, "DELETE FROM volume_blobs WHERE id = $1 AND state = 'gone'", id).map(|_| ())
}

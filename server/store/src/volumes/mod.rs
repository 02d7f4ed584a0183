//! Volumes of organizations and the files of their versions. [`blobs`] has the content of the files,
//! [`uses`] has the jobs with volumes, and [`classes`] has the storage classes.

pub mod blobs;
pub mod classes;
pub mod uses;

use berth_types::ids::{FileId, OrgId, VolumeId};
use berth_types::lists::{ListOptions, NameCursor};
use berth_types::time::Timestamp;

use super::{StoreError, Tx};

#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredVolume {
    pub id: VolumeId,
    pub org_id: OrgId,
    pub name: String,
    /// Without a meaning for a volume of a storage class.
    pub max_bytes: i64,
    /// The storage class; absent for a volume whose files the portal has.
    pub class: Option<String>,
    pub version: i64,
    pub created_by: String,
    pub created_at: Timestamp,
    pub changed_at: Timestamp,
}

/// A file in one or more versions of a volume.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredVolumeFile {
    pub volume_id: VolumeId,
    pub path: String,
    pub blob_id: FileId,
    pub bytes: i64,
    /// Lower-case hex.
    pub sha256: String,
    pub executable: bool,
    pub from_version: i64,
    pub changed_at: Timestamp,
}

macro_rules! select_volumes {
    ($rest:literal) => {
        concat!(
            "SELECT id, org_id, name, max_bytes, class, version, created_by, created_at, changed_at FROM volumes ",
            $rest
        )
    };
}

macro_rules! select_files {
    ($rest:literal) => {
        concat!(
            "SELECT volume_id, path, blob_id, bytes, sha256, executable, from_version, changed_at FROM volume_files ",
            $rest
        )
    };
}

pub async fn insert(tx: &mut Tx<'_>, row: &StoredVolume) -> Result<(), StoreError> {
    let sql = "INSERT INTO volumes (id, org_id, name, max_bytes, class, version, created_by, created_at, \
               changed_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
    exec!(
        tx,
        sql,
        row.id,
        row.org_id,
        &row.name,
        row.max_bytes,
        &row.class,
        row.version,
        &row.created_by,
        row.created_at,
        row.changed_at
    )
    .map(|_| ())
}

pub async fn find(tx: &mut Tx<'_>, org: OrgId, name: &str) -> Result<Option<StoredVolume>, StoreError> {
    find!(tx, StoredVolume, select_volumes!("WHERE org_id = $1 AND name = $2"), org, name)
}

/// Finds a volume of any organization. Only for volumes of an attempt.
pub async fn find_any(tx: &mut Tx<'_>, id: VolumeId) -> Result<Option<StoredVolume>, StoreError> {
    find!(tx, StoredVolume, select_volumes!("WHERE id = $1"), id)
}

/// Lists a page of the volumes of an organization by name.
pub async fn list(
    tx: &mut Tx<'_>,
    org: OrgId,
    options: &ListOptions<NameCursor>,
) -> Result<Vec<StoredVolume>, StoreError> {
    let sql = page_sql!(options.sort, [select_volumes!("WHERE org_id = $1")], "name", "$2", "$3");
    list!(tx, StoredVolume, sql, org, options.cursor_name(), options.rows())
}

/// Counts the volumes of an organization.
pub async fn count(tx: &mut Tx<'_>, org: OrgId) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COUNT(*) AS BIGINT) FROM volumes WHERE org_id = $1";
    Ok(find!(tx, (i64,), sql, org)?.map_or(0, |(count,)| count))
}

/// Makes the next version of a volume the present version.
///
/// # Errors
/// [`StoreError::Stale`] if `version` is not the next version.
pub async fn set_version(
    tx: &mut Tx<'_>,
    id: VolumeId,
    version: i64,
    now: Timestamp,
) -> Result<(), StoreError> {
    let sql = "UPDATE volumes SET version = $2, changed_at = $3 WHERE id = $1 AND version = $4";
    let changed = exec!(tx, sql, id, version, now, version - 1)?;
    if changed == 1 { Ok(()) } else { Err(StoreError::Stale) }
}

/// Deletes a volume. Its blobs become `gone`; their bytes are removed later.
pub async fn delete(tx: &mut Tx<'_>, id: VolumeId) -> Result<(), StoreError> {
    exec!(tx, "DELETE FROM volume_files WHERE volume_id = $1", id)?;
    exec!(tx, "UPDATE volume_blobs SET state = 'gone' WHERE volume_id = $1", id)?;
    exec!(tx, "DELETE FROM volumes WHERE id = $1", id).map(|_| ())
}

/// Sums the files of a version: (bytes, number).
pub async fn totals(tx: &mut Tx<'_>, id: VolumeId, version: i64) -> Result<(i64, i64), StoreError> {
    let sql = "SELECT CAST(COALESCE(SUM(bytes), 0) AS BIGINT), CAST(COUNT(*) AS BIGINT) FROM volume_files \
               WHERE volume_id = $1 AND from_version <= $2 AND (to_version IS NULL OR to_version > $2)";
    Ok(find!(tx, (i64, i64), sql, id, version)?.unwrap_or_default())
}

pub async fn insert_file(tx: &mut Tx<'_>, row: &StoredVolumeFile) -> Result<(), StoreError> {
    let sql = "INSERT INTO volume_files (volume_id, path, blob_id, bytes, sha256, executable, from_version, \
               changed_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
    exec!(
        tx,
        sql,
        row.volume_id,
        &row.path,
        row.blob_id,
        row.bytes,
        &row.sha256,
        row.executable,
        row.from_version,
        row.changed_at
    )
    .map(|_| ())
}

/// Finds the present file at a path.
pub async fn find_file(
    tx: &mut Tx<'_>,
    id: VolumeId,
    path: &str,
) -> Result<Option<StoredVolumeFile>, StoreError> {
    let sql = select_files!("WHERE volume_id = $1 AND path = $2 AND to_version IS NULL");
    find!(tx, StoredVolumeFile, sql, id, path)
}

/// Finds a present file with this content.
pub async fn find_content(
    tx: &mut Tx<'_>,
    id: VolumeId,
    sha256: &str,
    bytes: i64,
) -> Result<Option<StoredVolumeFile>, StoreError> {
    let sql = select_files!(
        "WHERE volume_id = $1 AND sha256 = $2 AND bytes = $3 AND to_version IS NULL ORDER BY path LIMIT 1"
    );
    find!(tx, StoredVolumeFile, sql, id, sha256, bytes)
}

/// Finds a file of a version by its blob.
pub async fn find_blob(
    tx: &mut Tx<'_>,
    id: VolumeId,
    version: i64,
    blob: FileId,
) -> Result<Option<StoredVolumeFile>, StoreError> {
    let sql = select_files!(
        "WHERE volume_id = $1 AND blob_id = $3 AND from_version <= $2 AND (to_version IS NULL OR to_version > $2) \
         ORDER BY path LIMIT 1"
    );
    find!(tx, StoredVolumeFile, sql, id, version, blob)
}

/// Lists the present files with a path that begins with `prefix` (`''`: all).
pub async fn list_below(
    tx: &mut Tx<'_>,
    id: VolumeId,
    prefix: &str,
    limit: i64,
) -> Result<Vec<StoredVolumeFile>, StoreError> {
    let sql = select_files!(
        "WHERE volume_id = $1 AND to_version IS NULL AND substr(path, 1, CAST($3 AS INTEGER)) = $2 \
         ORDER BY path LIMIT $4"
    );
    let chars = i64::try_from(prefix.chars().count()).unwrap_or(i64::MAX);
    list!(tx, StoredVolumeFile, sql, id, prefix, chars, limit)
}

/// Lists the files of a version by path, after the path `after`.
pub async fn list_version(
    tx: &mut Tx<'_>,
    id: VolumeId,
    version: i64,
    after: &str,
    limit: i64,
) -> Result<Vec<StoredVolumeFile>, StoreError> {
    let sql = select_files!(
        "WHERE volume_id = $1 AND from_version <= $2 AND (to_version IS NULL OR to_version > $2) AND path > $3 \
         ORDER BY path LIMIT $4"
    );
    list!(tx, StoredVolumeFile, sql, id, version, after, limit)
}

/// Ends the present file: `version` and later versions do not have it. Returns true if the file existed.
pub async fn end_file(tx: &mut Tx<'_>, id: VolumeId, path: &str, version: i64) -> Result<bool, StoreError> {
    let sql =
        "UPDATE volume_files SET to_version = $3 WHERE volume_id = $1 AND path = $2 AND to_version IS NULL";
    Ok(exec!(tx, sql, id, path, version)? == 1)
}

/// Deletes the files that are neither in the present version nor in a version of an open attempt.
pub async fn forget_old(tx: &mut Tx<'_>) -> Result<u64, StoreError> {
    let sql = "DELETE FROM volume_files WHERE to_version IS NOT NULL AND NOT EXISTS \
               (SELECT 1 FROM volume_uses u JOIN attempts a ON a.job_id = u.job_id AND a.number = u.attempt \
                WHERE u.volume_id = volume_files.volume_id AND u.version >= volume_files.from_version \
                AND u.version < volume_files.to_version AND a.is_open = $1)";
    exec!(tx, sql, true)
}

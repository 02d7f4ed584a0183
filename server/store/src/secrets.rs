//! Sealed secrets of organizations. This crate cannot read their values.

use berth_types::ids::OrgId;
use berth_types::lists::{ListOptions, NameCursor};
use berth_types::time::Timestamp;

use super::{StoreError, Tx};

#[derive(Debug, Clone, sqlx::FromRow)]
pub struct StoredSecret {
    pub org_id: OrgId,
    pub name: String,
    pub version: i64,
    pub sealed: String,
    pub created_by: String,
    pub created_at: Timestamp,
    pub updated_by: String,
    pub updated_at: Timestamp,
    pub last_used_at: Option<Timestamp>,
}

macro_rules! select_secrets {
    ($rest:literal) => {
        concat!(
            "SELECT org_id, name, version, sealed, created_by, created_at, updated_by, updated_at, last_used_at \
             FROM secrets ",
            $rest
        )
    };
}

/// Lists a page of the secrets of an organization by name.
pub async fn list(
    tx: &mut Tx<'_>,
    org: OrgId,
    options: &ListOptions<NameCursor>,
) -> Result<Vec<StoredSecret>, StoreError> {
    let sql = page_sql!(options.sort, [select_secrets!("WHERE org_id = $1")], "name", "$2", "$3");
    list!(tx, StoredSecret, sql, org, options.cursor_name(), options.rows())
}

/// Lists the secrets of all organizations.
pub async fn list_all(tx: &mut Tx<'_>) -> Result<Vec<StoredSecret>, StoreError> {
    list!(tx, StoredSecret, select_secrets!("ORDER BY org_id, name"))
}

pub async fn find(tx: &mut Tx<'_>, org: OrgId, name: &str) -> Result<Option<StoredSecret>, StoreError> {
    let sql = select_secrets!("WHERE org_id = $1 AND name = $2");
    find!(tx, StoredSecret, sql, org, name)
}

/// Counts the secrets of an organization.
pub async fn count(tx: &mut Tx<'_>, org: OrgId) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COUNT(*) AS BIGINT) FROM secrets WHERE org_id = $1";
    Ok(find!(tx, (i64,), sql, org)?.map_or(0, |(count,)| count))
}

/// Stores a secret in place of its earlier version.
pub async fn put(tx: &mut Tx<'_>, row: &StoredSecret) -> Result<(), StoreError> {
    let sql = "INSERT INTO secrets (org_id, name, version, sealed, created_by, created_at, updated_by, updated_at, last_used_at) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) \
               ON CONFLICT (org_id, name) DO UPDATE SET version = excluded.version, sealed = excluded.sealed, \
               updated_by = excluded.updated_by, updated_at = excluded.updated_at";
    exec!(
        tx,
        sql,
        row.org_id,
        &row.name,
        row.version,
        &row.sealed,
        &row.created_by,
        row.created_at,
        &row.updated_by,
        row.updated_at,
        row.last_used_at
    )
    .map(|_| ())
}

/// Deletes a secret. Returns true if it existed.
pub async fn delete(tx: &mut Tx<'_>, org: OrgId, name: &str) -> Result<bool, StoreError> {
    let sql = "DELETE FROM secrets WHERE org_id = $1 AND name = $2";
    Ok(exec!(tx, sql, org, name)? == 1)
}

/// Records that a worker got a secret.
pub async fn mark_used(tx: &mut Tx<'_>, org: OrgId, name: &str, now: Timestamp) -> Result<(), StoreError> {
    let sql = "UPDATE secrets SET last_used_at = $3 WHERE org_id = $1 AND name = $2";
    exec!(tx, sql, org, name, now).map(|_| ())
}

/// Replaces the sealed value of a version. Returns true if the stored value was still that of `row`.
pub async fn reseal(tx: &mut Tx<'_>, row: &StoredSecret, sealed: &str) -> Result<bool, StoreError> {
    let sql =
        "UPDATE secrets SET sealed = $4 WHERE org_id = $1 AND name = $2 AND version = $3 AND sealed = $5";
    Ok(exec!(tx, sql, row.org_id, &row.name, row.version, sealed, &row.sealed)? == 1)
}

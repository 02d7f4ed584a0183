//! Inference keys. A revoked key stays, because its number is never used again.

use berth_types::ids::{InferenceKeyId, OrgId};
use berth_types::lists::ListOptions;
use berth_types::time::Timestamp;

use super::services::texts;
use super::{JsonColumn, StoreError, Tx};

/// An inference key that is not revoked.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct StoredKey {
    pub id: InferenceKeyId,
    /// The number of the key for gateways.
    pub number: i64,
    pub org_id: OrgId,
    pub name: String,
    /// The last four characters of the secret.
    pub hint: String,
    pub models: JsonColumn<Vec<String>>,
    pub requests_per_minute: Option<i64>,
    pub tokens_per_minute: Option<i64>,
    pub day_budget_micros: Option<i64>,
    pub month_budget_micros: Option<i64>,
    pub total_budget_micros: Option<i64>,
    pub expires_at: Option<Timestamp>,
    pub last_used_at: Option<Timestamp>,
    pub created_at: Timestamp,
    pub created_by: String,
}

macro_rules! select_keys {
    ($rest:literal) => {
        concat!(
            "SELECT id, number, org_id, name, hint, models, requests_per_minute, tokens_per_minute, \
             day_budget_micros, month_budget_micros, total_budget_micros, expires_at, last_used_at, created_at, \
             created_by FROM inference_keys WHERE revoked_at IS NULL ",
            $rest
        )
    };
}

/// Adds a key with the SHA-256 hash of its secret in hexadecimal digits.
pub async fn insert(tx: &mut Tx<'_>, row: &StoredKey, secret_hash: &str) -> Result<(), StoreError> {
    let sql = "INSERT INTO inference_keys (id, number, org_id, name, secret_hash, hint, models, requests_per_minute, \
               tokens_per_minute, day_budget_micros, month_budget_micros, total_budget_micros, expires_at, created_at, \
               created_by) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)";
    exec!(
        tx,
        sql,
        row.id,
        row.number,
        row.org_id,
        &row.name,
        secret_hash,
        &row.hint,
        &row.models,
        row.requests_per_minute,
        row.tokens_per_minute,
        row.day_budget_micros,
        row.month_budget_micros,
        row.total_budget_micros,
        row.expires_at,
        row.created_at,
        &row.created_by
    )
    .map(|_| ())
}

/// Returns the greatest number of a key, also of a revoked one; 0 without one.
pub async fn last_number(tx: &mut Tx<'_>) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COALESCE(MAX(number), 0) AS BIGINT) FROM inference_keys";
    Ok(find!(tx, (i64,), sql)?.map_or(0, |(number,)| number))
}

/// Counts the keys of an organization (`None`: of all).
pub async fn count(tx: &mut Tx<'_>, org: Option<OrgId>) -> Result<i64, StoreError> {
    let found = match org {
        Some(org) => {
            let sql = "SELECT CAST(COUNT(*) AS BIGINT) FROM inference_keys WHERE org_id = $1 AND revoked_at IS NULL";
            find!(tx, (i64,), sql, org)?
        }
        None => {
            find!(tx, (i64,), "SELECT CAST(COUNT(*) AS BIGINT) FROM inference_keys WHERE revoked_at IS NULL")?
        }
    };
    Ok(found.map_or(0, |(count,)| count))
}

/// Lists a page of the keys of an organization by id.
pub async fn list_page(
    tx: &mut Tx<'_>,
    org: OrgId,
    options: &ListOptions<InferenceKeyId>,
) -> Result<Vec<StoredKey>, StoreError> {
    let sql = page_sql!(options.sort, [select_keys!("AND org_id = $1")], "id", "$2", "$3");
    list!(tx, StoredKey, sql, org, options.cursor_text(), options.rows())
}

/// Lists those of these keys that are not revoked, by id.
pub async fn list_of_ids(tx: &mut Tx<'_>, ids: &[InferenceKeyId]) -> Result<Vec<StoredKey>, StoreError> {
    list_in!(
        tx,
        StoredKey,
        select_keys!("AND id IN (SELECT value FROM json_each($1)) ORDER BY id"),
        select_keys!("AND id = ANY($1) ORDER BY id"),
        texts(ids)
    )
}

/// Revokes a key of this organization. Returns its name if it existed.
pub async fn revoke(
    tx: &mut Tx<'_>,
    org: OrgId,
    id: InferenceKeyId,
    now: Timestamp,
) -> Result<Option<String>, StoreError> {
    let found = find!(tx, StoredKey, select_keys!("AND org_id = $1 AND id = $2"), org, id)?;
    exec!(tx, "UPDATE inference_keys SET revoked_at = $3 WHERE org_id = $1 AND id = $2", org, id, now)?;
    Ok(found.map(|key| key.name))
}

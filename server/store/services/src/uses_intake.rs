//! The caller of a report, and the counts of its use.

use berth_service_types::services::ServiceAccess;
use berth_types::ids::{GatewayId, InferenceKeyId, OrgId, RevisionId, ServiceId};
use berth_types::time::Timestamp;

use super::types::JsonColumn;
use super::{StoreError, Tx};

/// A gateway with a token.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredCaller {
    pub id: GatewayId,
    pub number: i64,
    pub token_hash: String,
    pub version: String,
    pub life: i64,
    /// The last counted report of the life.
    pub last_report: i64,
    pub last_seen_at: Option<Timestamp>,
}

/// Finds the gateway with the hash of a token, unless it is removed.
pub async fn find_caller(tx: &mut Tx<'_>, hash: &str) -> Result<Option<StoredCaller>, StoreError> {
    let sql = "SELECT id, number, token_hash, version, life, last_report, last_seen_at FROM gateways \
               WHERE token_hash = $1 AND removed_at IS NULL";
    find!(tx, StoredCaller, sql, hash)
}

/// Records a report by its life and number. Returns false if it, or a later one, is recorded already, and if the gateway
/// has another token by now.
pub async fn record_report(
    tx: &mut Tx<'_>,
    (gateway, token_hash): (GatewayId, &str),
    (life, number): (i64, i64),
    version: &str,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let sql = "UPDATE gateways SET life = $2, last_report = $3, version = $4, last_seen_at = $5 WHERE id = $1 \
               AND token_hash = $6 AND removed_at IS NULL AND (life < $2 OR (life = $2 AND last_report < $3))";
    Ok(exec!(tx, sql, gateway, life, number, version, now, token_hash)? == 1)
}

/// A revision with the facts that its use needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, sqlx::FromRow)]
pub struct UsedRevision {
    pub id: RevisionId,
    pub service_id: ServiceId,
    pub org_id: OrgId,
    pub access: ServiceAccess,
    /// The end of the last time in which its service was public.
    pub public_until: Option<Timestamp>,
}

/// Lists those of these revisions that exist.
pub async fn list_revisions(
    tx: &mut Tx<'_>,
    revisions: Vec<String>,
) -> Result<Vec<UsedRevision>, StoreError> {
    macro_rules! select_revisions {
        ($condition:literal) => {
            concat!(
                "SELECT r.id, r.service_id, r.org_id, s.access, s.public_until FROM service_revisions r \
                 JOIN services s ON s.id = r.service_id WHERE r.id ",
                $condition
            )
        };
    }
    list_in!(
        tx,
        UsedRevision,
        select_revisions!("IN (SELECT value FROM json_each($1))"),
        select_revisions!("= ANY($1)"),
        revisions
    )
}

/// An inference key with the facts that its use needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, sqlx::FromRow)]
pub struct UsedKey {
    pub id: InferenceKeyId,
    pub org_id: OrgId,
    pub last_used_at: Option<Timestamp>,
}

/// Lists those of these keys that exist. A revoked key may have been used before.
pub async fn list_keys(tx: &mut Tx<'_>, keys: Vec<String>) -> Result<Vec<UsedKey>, StoreError> {
    macro_rules! select_keys {
        ($condition:literal) => {
            concat!("SELECT id, org_id, last_used_at FROM inference_keys WHERE id ", $condition)
        };
    }
    list_in!(
        tx,
        UsedKey,
        select_keys!("IN (SELECT value FROM json_each($1))"),
        select_keys!("= ANY($1)"),
        keys
    )
}

/// Sets the time of the last use of a key.
pub async fn touch_key(tx: &mut Tx<'_>, key: InferenceKeyId, now: Timestamp) -> Result<(), StoreError> {
    let sql = "UPDATE inference_keys SET last_used_at = $2 WHERE id = $1";
    exec!(tx, sql, key, now).map(|_| ())
}

/// The use of a revision by a key in an hour. Without a key the id is empty.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredUse {
    pub service_id: ServiceId,
    pub revision_id: RevisionId,
    pub key_id: String,
    pub hour_at: Timestamp,
    pub org_id: OrgId,
    pub requests: i64,
    pub errors: i64,
    pub prompt_tokens: i64,
    pub completion_tokens: i64,
    pub token_nanos: i64,
    pub first_byte: JsonColumn<Vec<i64>>,
}

/// Lists the use of these revisions in an hour.
pub async fn list_hour(
    tx: &mut Tx<'_>,
    revisions: Vec<String>,
    hour_at: Timestamp,
) -> Result<Vec<StoredUse>, StoreError> {
    macro_rules! select_uses {
        ($condition:literal) => {
            concat!(
                "SELECT service_id, revision_id, key_id, hour_at, org_id, requests, errors, prompt_tokens, \
                 completion_tokens, token_nanos, first_byte FROM service_use WHERE hour_at = $2 AND revision_id ",
                $condition
            )
        };
    }
    list_in!(
        tx,
        StoredUse,
        select_uses!("IN (SELECT value FROM json_each($1))"),
        select_uses!("= ANY($1)"),
        revisions,
        hour_at
    )
}

/// Adds or replaces the use of a revision by a key in an hour.
pub async fn put(tx: &mut Tx<'_>, row: &StoredUse) -> Result<(), StoreError> {
    let sql = "INSERT INTO service_use (service_id, revision_id, key_id, hour_at, org_id, requests, errors, \
               prompt_tokens, completion_tokens, token_nanos, first_byte) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) \
               ON CONFLICT (service_id, revision_id, key_id, hour_at) DO UPDATE SET requests = $6, errors = $7, \
               prompt_tokens = $8, completion_tokens = $9, token_nanos = $10, first_byte = $11";
    exec!(
        tx,
        sql,
        row.service_id,
        row.revision_id,
        &row.key_id,
        row.hour_at,
        row.org_id,
        row.requests,
        row.errors,
        row.prompt_tokens,
        row.completion_tokens,
        row.token_nanos,
        &row.first_byte
    )
    .map(|_| ())
}

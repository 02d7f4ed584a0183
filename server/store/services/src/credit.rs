//! The blocks of credit that gateways have, and the budgets of the keys that pay.

use berth_types::ids::{InferenceKeyId, OrgId, TransferId};
use berth_types::time::Timestamp;

use super::{StoreError, Tx};

/// A block of credit. Amounts are in nano-units, except for the hold and the charge.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredBlock {
    pub gateway_number: i64,
    pub life: i64,
    pub number: i64,
    pub org_id: OrgId,
    pub key_number: i64,
    /// The name of the key.
    pub key_name: String,
    /// The last characters of its secret.
    pub key_hint: String,
    pub size_nanos: i64,
    pub spent_nanos: i64,
    pub lent_at: Timestamp,
    pub until_at: Timestamp,
    pub ending: bool,
    /// The wait for its gateway ended before the gateway reported all of it.
    pub void: bool,
    pub closed: bool,
    /// The transfer of its hold.
    pub hold_id: TransferId,
    /// The rest of the hold.
    pub held_micros: i64,
    /// The charge at its end.
    pub posted_micros: i64,
}

macro_rules! select_blocks {
    ($($rest:literal),+) => {
        concat!(
            "SELECT b.hold_id, b.gateway_number, b.life, b.number, b.org_id, b.key_number, k.name AS key_name, \
             k.hint AS key_hint, b.size_nanos, b.spent_nanos, b.lent_at, b.until_at, b.ending, b.void, b.closed, b.held_micros, b.posted_micros \
             FROM credit_blocks b JOIN inference_keys k ON k.number = b.key_number WHERE ",
            $($rest),+
        )
    };
}

pub async fn insert(tx: &mut Tx<'_>, row: &StoredBlock) -> Result<(), StoreError> {
    let sql = "INSERT INTO credit_blocks (gateway_number, life, number, org_id, key_number, size_nanos, spent_nanos, \
               lent_at, until_at, ending, void, closed, hold_id, held_micros, posted_micros) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)";
    exec!(
        tx,
        sql,
        row.gateway_number,
        row.life,
        row.number,
        row.org_id,
        row.key_number,
        row.size_nanos,
        row.spent_nanos,
        row.lent_at,
        row.until_at,
        row.ending,
        row.void,
        row.closed,
        row.hold_id,
        row.held_micros,
        row.posted_micros
    )
    .map(|_| ())
}

/// Stores the state of a block after a report, or at its end.
pub async fn update(tx: &mut Tx<'_>, row: &StoredBlock) -> Result<(), StoreError> {
    let sql = "UPDATE credit_blocks SET size_nanos = $2, spent_nanos = $3, ending = $4, void = $5, closed = $6, \
               held_micros = $7, posted_micros = $8 WHERE hold_id = $1";
    exec!(
        tx,
        sql,
        row.hold_id,
        row.size_nanos,
        row.spent_nanos,
        row.ending,
        row.void,
        row.closed,
        row.held_micros,
        row.posted_micros
    )
    .map(|_| ())
}

/// Finds a block by gateway, life and number.
pub async fn find(
    tx: &mut Tx<'_>,
    (gateway, life, number): (i64, i64, i64),
) -> Result<Option<StoredBlock>, StoreError> {
    let sql = select_blocks!("b.gateway_number = $1 AND b.life = $2 AND b.number = $3");
    find!(tx, StoredBlock, sql, gateway, life, number)
}

/// Lists the open blocks of a gateway, of all its lives.
pub async fn list_of_gateway(tx: &mut Tx<'_>, gateway: i64) -> Result<Vec<StoredBlock>, StoreError> {
    let sql = select_blocks!("b.gateway_number = $1 AND NOT b.closed ORDER BY b.life, b.number");
    list!(tx, StoredBlock, sql, gateway)
}

/// Lists the first open blocks of a gateway.
pub async fn list_open(tx: &mut Tx<'_>, gateway: i64, most: i64) -> Result<Vec<StoredBlock>, StoreError> {
    let sql = select_blocks!("b.gateway_number = $1 AND NOT b.closed ORDER BY b.life, b.number LIMIT $2");
    list!(tx, StoredBlock, sql, gateway, most)
}

/// Sums the holds of the open blocks by gateway, in micro-units.
pub async fn sum_open(tx: &mut Tx<'_>) -> Result<Vec<(i64, i64)>, StoreError> {
    let sql = "SELECT gateway_number, CAST(SUM(held_micros) AS BIGINT) FROM credit_blocks WHERE NOT closed \
               GROUP BY gateway_number";
    list!(tx, (i64, i64), sql)
}

/// True for a gateway that is not removed.
pub async fn is_present(tx: &mut Tx<'_>, gateway: i64) -> Result<bool, StoreError> {
    let sql = "SELECT number, id AS row_id FROM gateways WHERE number = $1 AND removed_at IS NULL";
    Ok(find!(tx, (i64,), sql, gateway)?.is_some())
}

/// Adds the charge of a gateway to an organization in an hour.
pub async fn add_gateway_hour(
    tx: &mut Tx<'_>,
    (gateway, org): (i64, OrgId),
    hour_at: Timestamp,
    nanos: i64,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO gateway_hours (gateway_number, org_id, hour_at, nanos) VALUES ($1, $2, $3, $4) \
               ON CONFLICT (gateway_number, org_id, hour_at) DO UPDATE SET nanos = gateway_hours.nanos + $4";
    exec!(tx, sql, gateway, org, hour_at, nanos).map(|_| ())
}

/// Returns the charge of a gateway to an organization in an hour.
pub async fn find_gateway_hour(
    tx: &mut Tx<'_>,
    (gateway, org): (i64, OrgId),
    hour_at: Timestamp,
) -> Result<i64, StoreError> {
    let sql = "SELECT nanos, org_id AS row_id FROM gateway_hours \
               WHERE gateway_number = $1 AND org_id = $2 AND hour_at = $3";
    Ok(find!(tx, (i64,), sql, gateway, org, hour_at)?.map_or(0, |(nanos,)| nanos))
}

/// Lists the open blocks of these organizations.
pub async fn list_of_orgs(tx: &mut Tx<'_>, orgs: Vec<String>) -> Result<Vec<StoredBlock>, StoreError> {
    list_in!(
        tx,
        StoredBlock,
        select_blocks!(
            "NOT b.closed AND b.org_id ",
            "IN (SELECT value FROM json_each($1))",
            " ORDER BY b.hold_id"
        ),
        select_blocks!("NOT b.closed AND b.org_id ", "= ANY($1)", " ORDER BY b.hold_id"),
        orgs
    )
}

/// Lists the first open blocks whose time ended before `before`, and those of removed gateways and replaced tokens.
pub async fn list_lost(
    tx: &mut Tx<'_>,
    before: Timestamp,
    limit: i64,
) -> Result<Vec<StoredBlock>, StoreError> {
    let sql = select_blocks!(
        "NOT b.closed AND (b.until_at < $1 OR b.gateway_number NOT IN \
         (SELECT g.number FROM gateways g WHERE g.removed_at IS NULL)) ORDER BY b.hold_id LIMIT $2"
    );
    list!(tx, StoredBlock, sql, before, limit)
}

/// Lists the blocks of a gateway whose key is revoked or expired, and that get requests still: (life, number).
pub async fn list_without_key(
    tx: &mut Tx<'_>,
    gateway: i64,
    now: Timestamp,
) -> Result<Vec<(i64, i64)>, StoreError> {
    let sql = "SELECT b.life, b.number FROM credit_blocks b JOIN inference_keys k ON k.number = b.key_number \
               WHERE b.gateway_number = $1 AND NOT b.closed AND NOT b.ending \
               AND (k.revoked_at IS NOT NULL OR k.expires_at <= $2) ORDER BY b.life, b.number";
    list!(tx, (i64, i64), sql, gateway, now)
}

/// The key of an ask, with its budgets.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct PayingKey {
    pub id: InferenceKeyId,
    pub number: i64,
    pub org_id: OrgId,
    pub name: String,
    pub hint: String,
    pub day_budget_micros: Option<i64>,
    pub month_budget_micros: Option<i64>,
    pub total_budget_micros: Option<i64>,
}

/// Finds the key with a number, unless it is revoked or expired.
pub async fn find_key(tx: &mut Tx<'_>, number: i64, now: Timestamp) -> Result<Option<PayingKey>, StoreError> {
    let sql = "SELECT id, number, org_id, name, hint, day_budget_micros, month_budget_micros, total_budget_micros \
               FROM inference_keys WHERE number = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $2)";
    find!(tx, PayingKey, sql, number, now)
}

/// Adds the spent part of a closed block to the day of its loan.
pub async fn add_day(tx: &mut Tx<'_>, key: i64, day: i64, nanos: i64) -> Result<(), StoreError> {
    let sql = "INSERT INTO credit_days (key_number, day, nanos) VALUES ($1, $2, $3) \
               ON CONFLICT (key_number, day) DO UPDATE SET nanos = credit_days.nanos + $3";
    exec!(tx, sql, key, day, nanos).map(|_| ())
}

/// Lists the spent nano-units of the closed blocks of a key by day.
pub async fn list_days(tx: &mut Tx<'_>, key: i64) -> Result<Vec<(i64, i64)>, StoreError> {
    let sql = "SELECT day, nanos FROM credit_days WHERE key_number = $1 ORDER BY day";
    list!(tx, (i64, i64), sql, key)
}

/// The latest life of a gateway with blocks, and the least number of a block that this life still has.
pub async fn find_marks(tx: &mut Tx<'_>, gateway: i64) -> Result<(i64, i64), StoreError> {
    let sql = "SELECT credit_life, credit_oldest, id AS row_id FROM gateways WHERE number = $1";
    Ok(find!(tx, (i64, i64), sql, gateway)?.unwrap_or((0, 0)))
}

/// Stores the marks of a gateway, and deletes the closed blocks that it can no longer report.
pub async fn set_marks(tx: &mut Tx<'_>, gateway: i64, (life, oldest): (i64, i64)) -> Result<(), StoreError> {
    let sql = "UPDATE gateways SET credit_life = $2, credit_oldest = $3 WHERE number = $1";
    exec!(tx, sql, gateway, life, oldest)?;
    let sql = "DELETE FROM credit_blocks WHERE gateway_number = $1 AND closed \
               AND (life < $2 OR (life = $2 AND number < $3))";
    exec!(tx, sql, gateway, life, oldest).map(|_| ())
}

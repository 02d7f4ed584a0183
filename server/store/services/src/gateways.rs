//! Gateways. A removed gateway stays, because its number is never used again.

use berth_types::ids::GatewayId;
use berth_types::lists::ListOptions;
use berth_types::time::Timestamp;

use super::{StoreError, Tx};

/// A gateway that is not removed.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct StoredGateway {
    pub id: GatewayId,
    /// The number of the gateway in its blocks of credit.
    pub number: i64,
    pub name: String,
    /// Empty without an address for callers.
    pub url: String,
    pub version: String,
    pub last_seen_at: Option<Timestamp>,
    pub created_at: Timestamp,
    pub created_by: String,
}

macro_rules! select_gateways {
    ($rest:literal) => {
        concat!(
            "SELECT id, number, name, url, version, last_seen_at, created_at, created_by FROM gateways \
             WHERE removed_at IS NULL ",
            $rest
        )
    };
}

/// Adds a gateway with the SHA-256 hash of its token in hexadecimal digits.
pub async fn insert(tx: &mut Tx<'_>, row: &StoredGateway, token_hash: &str) -> Result<(), StoreError> {
    let sql = "INSERT INTO gateways (id, number, name, url, token_hash, created_at, created_by) \
               VALUES ($1, $2, $3, $4, $5, $6, $7)";
    exec!(tx, sql, row.id, row.number, &row.name, &row.url, token_hash, row.created_at, &row.created_by)
        .map(|_| ())
}

/// Returns the greatest number of a gateway, also of a removed one; 0 without one.
pub async fn last_number(tx: &mut Tx<'_>) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COALESCE(MAX(number), 0) AS BIGINT) FROM gateways";
    Ok(find!(tx, (i64,), sql)?.map_or(0, |(number,)| number))
}

/// Lists the numbers of the gateways.
pub async fn list_numbers(tx: &mut Tx<'_>) -> Result<Vec<i64>, StoreError> {
    let sql = "SELECT number, id AS row_id FROM gateways WHERE removed_at IS NULL ORDER BY number";
    Ok(list!(tx, (i64,), sql)?.into_iter().map(|(number,)| number).collect())
}

/// Lists all gateways by name.
pub async fn list(tx: &mut Tx<'_>) -> Result<Vec<StoredGateway>, StoreError> {
    list!(tx, StoredGateway, select_gateways!("ORDER BY name"))
}

/// Lists a page of the gateways by id.
pub async fn list_page(
    tx: &mut Tx<'_>,
    options: &ListOptions<GatewayId>,
) -> Result<Vec<StoredGateway>, StoreError> {
    let sql = page_sql!(options.sort, [select_gateways!("")], "id", "$1", "$2");
    list!(tx, StoredGateway, sql, options.cursor_text(), options.rows())
}

/// Removes a gateway. Returns it if it existed.
pub async fn remove(
    tx: &mut Tx<'_>,
    id: GatewayId,
    now: Timestamp,
) -> Result<Option<StoredGateway>, StoreError> {
    let found = find!(tx, StoredGateway, select_gateways!("AND id = $1"), id)?;
    exec!(tx, "UPDATE gateways SET removed_at = $2 WHERE id = $1 AND removed_at IS NULL", id, now)?;
    Ok(found)
}

/// Replaces the hash of the token of a gateway, and its number: what came with the former token is none of the gateway
/// any more. The number of the last report stays, because the gateway may repeat that report, except after a life in the
/// future. Returns the gateway before it, if it exists.
pub async fn replace_token(
    tx: &mut Tx<'_>,
    id: GatewayId,
    (token_hash, number): (&str, i64),
    now: Timestamp,
) -> Result<Option<StoredGateway>, StoreError> {
    let found = find!(tx, StoredGateway, select_gateways!("AND id = $1"), id)?;
    let sql = "UPDATE gateways SET token_hash = $2, number = $3, credit_life = 0, credit_oldest = 0, \
               last_report = CASE WHEN life > $4 THEN 0 ELSE last_report END, \
               life = CASE WHEN life > $4 THEN 0 ELSE life END WHERE id = $1 AND removed_at IS NULL";
    exec!(tx, sql, id, token_hash, number, now.millis())?;
    Ok(found)
}

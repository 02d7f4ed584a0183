//! Tokens that give access to the metrics and to nothing else.

use berth_types::accounts::{Role, Token};
use berth_types::ids::{TokenId, UserId};
use berth_types::time::Timestamp;

use super::{StoreError, Tx};

#[derive(Debug, sqlx::FromRow)]
struct MetricsTokenRow {
    id: String,
    name: String,
    hint: String,
    created_at: i64,
    expires_at: Option<i64>,
    last_used_at: Option<i64>,
}

impl MetricsTokenRow {
    fn token(self) -> Result<Token, StoreError> {
        Ok(Token {
            id: self.id.parse().map_err(|_| StoreError::Corrupt(self.id.clone()))?,
            name: self.name,
            role: Role::Viewer,
            hint: self.hint,
            created_at: Timestamp::from_micros(self.created_at),
            expires_at: self.expires_at.map(Timestamp::from_micros),
            last_used_at: self.last_used_at.map(Timestamp::from_micros),
        })
    }
}

pub async fn insert(
    tx: &mut Tx<'_>,
    token: &Token,
    hash: &str,
    created_by: UserId,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO metrics_tokens (id, name, hash, hint, created_by, created_at, expires_at) \
               VALUES ($1, $2, $3, $4, $5, $6, $7)";
    exec!(
        tx,
        sql,
        token.id.to_string(),
        &token.name,
        hash,
        &token.hint,
        created_by.to_string(),
        token.created_at.micros(),
        token.expires_at.map(Timestamp::micros)
    )
    .map(|_| ())
}

/// Finds the token with this hash, if it has not expired.
pub async fn find(tx: &mut Tx<'_>, hash: &str, now: Timestamp) -> Result<Option<Token>, StoreError> {
    let sql = "SELECT id, name, hint, created_at, expires_at, last_used_at FROM metrics_tokens \
               WHERE hash = $1 AND (expires_at IS NULL OR expires_at > $2)";
    find!(tx, MetricsTokenRow, sql, hash, now.micros())?.map(MetricsTokenRow::token).transpose()
}

/// Lists the tokens, newest first.
pub async fn list(tx: &mut Tx<'_>) -> Result<Vec<Token>, StoreError> {
    let sql =
        "SELECT id, name, hint, created_at, expires_at, last_used_at FROM metrics_tokens ORDER BY id DESC";
    list!(tx, MetricsTokenRow, sql)?.into_iter().map(MetricsTokenRow::token).collect()
}

pub async fn touch(tx: &mut Tx<'_>, token: TokenId, now: Timestamp) -> Result<(), StoreError> {
    let sql = "UPDATE metrics_tokens SET last_used_at = $2 WHERE id = $1";
    exec!(tx, sql, token.to_string(), now.micros()).map(|_| ())
}

/// Deletes a token. Returns true if it existed.
pub async fn delete(tx: &mut Tx<'_>, token: TokenId) -> Result<bool, StoreError> {
    Ok(exec!(tx, "DELETE FROM metrics_tokens WHERE id = $1", token.to_string())? == 1)
}

//! Tokens that give access to the metrics and to nothing else.

use berth_types::accounts::{Role, Token};
use berth_types::ids::{TokenId, UserId};
use berth_types::lists::ListOptions;
use berth_types::time::Timestamp;

use super::{StoreError, Tx};

#[derive(Debug, sqlx::FromRow)]
struct MetricsTokenRow {
    id: TokenId,
    name: String,
    hint: String,
    created_at: Timestamp,
    expires_at: Option<Timestamp>,
    last_used_at: Option<Timestamp>,
}

impl From<MetricsTokenRow> for Token {
    fn from(row: MetricsTokenRow) -> Self {
        Self {
            id: row.id,
            name: row.name,
            role: Role::Viewer,
            scopes: Vec::new(),
            networks: Vec::new(),
            service_account: None,
            hint: row.hint,
            created_at: row.created_at,
            expires_at: row.expires_at,
            last_used_at: row.last_used_at,
        }
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
    exec!(tx, sql, token.id, &token.name, hash, &token.hint, created_by, token.created_at, token.expires_at)
        .map(|_| ())
}

/// Finds the token with this hash, if it has not expired.
pub async fn find(tx: &mut Tx<'_>, hash: &str, now: Timestamp) -> Result<Option<Token>, StoreError> {
    let sql = "SELECT id, name, hint, created_at, expires_at, last_used_at FROM metrics_tokens \
               WHERE hash = $1 AND (expires_at IS NULL OR expires_at > $2)";
    Ok(find!(tx, MetricsTokenRow, sql, hash, now)?.map(Token::from))
}

/// Lists a page of the tokens by id.
pub async fn list(tx: &mut Tx<'_>, options: &ListOptions<TokenId>) -> Result<Vec<Token>, StoreError> {
    let sql = page_sql!(
        options.sort,
        ["SELECT id, name, hint, created_at, expires_at, last_used_at FROM metrics_tokens WHERE TRUE"],
        "id",
        "$1",
        "$2"
    );
    let rows = list!(tx, MetricsTokenRow, sql, options.cursor_text(), options.rows())?;
    Ok(rows.into_iter().map(Token::from).collect())
}

pub async fn touch(tx: &mut Tx<'_>, token: TokenId, now: Timestamp) -> Result<(), StoreError> {
    let sql = "UPDATE metrics_tokens SET last_used_at = $2 WHERE id = $1";
    exec!(tx, sql, token, now).map(|_| ())
}

/// Deletes a token. Returns true if it existed.
pub async fn delete(tx: &mut Tx<'_>, token: TokenId) -> Result<bool, StoreError> {
    Ok(exec!(tx, "DELETE FROM metrics_tokens WHERE id = $1", token)? == 1)
}

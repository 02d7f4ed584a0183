//! The addresses of the gateways, for the pages.

use super::{StoreError, Tx};

/// Lists the addresses of at most `limit` gateways, oldest first. A gateway without an address is left out.
pub async fn list_gateway_urls(tx: &mut Tx<'_>, limit: i64) -> Result<Vec<String>, StoreError> {
    let sql = "SELECT url FROM gateways WHERE removed_at IS NULL AND url <> '' ORDER BY number LIMIT $1";
    Ok(list!(tx, (String,), sql, limit)?.into_iter().map(|(url,)| url).collect())
}

//! The addresses of the gateways, for the pages.

use super::{StoreError, Tx};

/// Lists the addresses of all gateways, oldest first, each once. A gateway without an address is left out.
pub async fn list_gateway_urls(tx: &mut Tx<'_>) -> Result<Vec<String>, StoreError> {
    let sql =
        "SELECT url FROM gateways WHERE removed_at IS NULL AND url <> '' GROUP BY url ORDER BY MIN(number)";
    Ok(list!(tx, (String,), sql)?.into_iter().map(|(url,)| url).collect())
}

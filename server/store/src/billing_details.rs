//! The details of customers on new invoices.

use berth_types::ids::OrgId;
use berth_types::invoices::BillingDetails;
use berth_types::time::Timestamp;

use super::{StoreError, Tx};

#[derive(Debug, sqlx::FromRow)]
struct DetailsRow {
    org_id: OrgId,
    name: String,
    address: String,
    tax_id: String,
}

/// Lists the details of these organizations. Organizations without any are absent.
pub async fn list(tx: &mut Tx<'_>, orgs: &[OrgId]) -> Result<Vec<(OrgId, BillingDetails)>, StoreError> {
    macro_rules! select_details {
        ($condition:literal) => {
            concat!("SELECT org_id, name, address, tax_id FROM billing_details WHERE org_id ", $condition)
        };
    }
    let sqlite = select_details!("IN (SELECT value FROM json_each($1))");
    let orgs: Vec<String> = orgs.iter().map(ToString::to_string).collect();
    let rows = list_in!(tx, DetailsRow, sqlite, select_details!("= ANY($1)"), orgs)?;
    let details = |row: DetailsRow| {
        (row.org_id, BillingDetails { name: row.name, address: row.address, tax_id: row.tax_id })
    };
    Ok(rows.into_iter().map(details).collect())
}

/// Finds the details of an organization; `None` before they were set.
pub async fn find(tx: &mut Tx<'_>, org: OrgId) -> Result<Option<BillingDetails>, StoreError> {
    Ok(list(tx, &[org]).await?.pop().map(|(_, details)| details))
}

/// Records that an organization has lost its last member.
pub async fn set_left(tx: &mut Tx<'_>, org: OrgId, now: Timestamp) -> Result<(), StoreError> {
    exec!(tx, "UPDATE billing_details SET left_at = $2 WHERE org_id = $1", org, now).map(|_| ())
}

/// Deletes the details of organizations that lost their last member before this time.
pub async fn forget_left(tx: &mut Tx<'_>, before: Timestamp) -> Result<(), StoreError> {
    let sql = "DELETE FROM billing_details WHERE left_at < $1 \
               AND NOT EXISTS (SELECT 1 FROM members m WHERE m.org_id = billing_details.org_id)";
    exec!(tx, sql, before).map(|_| ())
}

/// Sets the details of an organization.
pub async fn put(tx: &mut Tx<'_>, org: OrgId, details: &BillingDetails) -> Result<(), StoreError> {
    let sql = "INSERT INTO billing_details (org_id, name, address, tax_id) VALUES ($1, $2, $3, $4) \
               ON CONFLICT (org_id) DO UPDATE SET name = $2, address = $3, tax_id = $4";
    exec!(tx, sql, org, &details.name, &details.address, &details.tax_id).map(|_| ())
}

//! The grants of RDMA to organizations.

use berth_types::ids::OrgId;

use super::{StoreError, Tx};

/// Finds the grant of an organization. `None` if the organization does not exist.
pub async fn find_grant(tx: &mut Tx<'_>, org: OrgId) -> Result<Option<bool>, StoreError> {
    let sql = "SELECT rdma, id AS row_id FROM orgs WHERE id = $1";
    Ok(find!(tx, (bool,), sql, org)?.map(|(granted,)| granted))
}

/// Sets the grant of an organization.
pub async fn set_grant(tx: &mut Tx<'_>, org: OrgId, granted: bool) -> Result<(), StoreError> {
    exec!(tx, "UPDATE orgs SET rdma = $2 WHERE id = $1", org, granted).map(|_| ())
}

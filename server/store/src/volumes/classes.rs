//! Storage classes, their grants to organizations, and the numbers of these organizations.

use berth_types::ids::{NodeId, OrgId};
use berth_types::nodes::HostMount;
use berth_types::time::Timestamp;

use super::super::types::JsonColumn;
use super::super::{StoreError, Tx};

#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredClass {
    pub name: String,
    pub created_by: String,
    pub created_at: Timestamp,
}

/// An organization that may create volumes of a class.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredGrant {
    pub class: String,
    pub org_id: OrgId,
    pub org_name: String,
}

/// Adds a class. Returns false if it exists.
pub async fn insert(tx: &mut Tx<'_>, row: &StoredClass) -> Result<bool, StoreError> {
    let sql = "INSERT INTO storage_classes (name, created_by, created_at) VALUES ($1, $2, $3) \
               ON CONFLICT (name) DO NOTHING";
    Ok(exec!(tx, sql, &row.name, &row.created_by, row.created_at)? == 1)
}

pub async fn find(tx: &mut Tx<'_>, name: &str) -> Result<Option<StoredClass>, StoreError> {
    let sql = "SELECT name, created_by, created_at FROM storage_classes WHERE name = $1";
    find!(tx, StoredClass, sql, name)
}

/// Lists all classes by name.
pub async fn list(tx: &mut Tx<'_>) -> Result<Vec<StoredClass>, StoreError> {
    let sql = "SELECT name, created_by, created_at FROM storage_classes ORDER BY name";
    list!(tx, StoredClass, sql)
}

/// Deletes a class with its grants. It must have no volume.
pub async fn delete(tx: &mut Tx<'_>, name: &str) -> Result<(), StoreError> {
    exec!(tx, "DELETE FROM storage_grants WHERE class = $1", name)?;
    exec!(tx, "DELETE FROM storage_classes WHERE name = $1", name).map(|_| ())
}

/// Lists the grants of all classes, by class and name of the organization.
pub async fn list_grants(tx: &mut Tx<'_>) -> Result<Vec<StoredGrant>, StoreError> {
    let sql = "SELECT g.class, g.org_id, o.name AS org_name FROM storage_grants g JOIN orgs o ON o.id = g.org_id \
               ORDER BY g.class, o.name, g.org_id";
    list!(tx, StoredGrant, sql)
}

/// Lists the classes of an organization by name.
pub async fn list_of_org(tx: &mut Tx<'_>, org: OrgId) -> Result<Vec<String>, StoreError> {
    let rows =
        list!(tx, (String,), "SELECT class FROM storage_grants WHERE org_id = $1 ORDER BY class", org)?;
    Ok(rows.into_iter().map(|(class,)| class).collect())
}

/// Returns true if an organization may create volumes of a class.
pub async fn is_granted(tx: &mut Tx<'_>, class: &str, org: OrgId) -> Result<bool, StoreError> {
    let sql = "SELECT CAST(COUNT(*) AS BIGINT) FROM storage_grants WHERE class = $1 AND org_id = $2";
    Ok(find!(tx, (i64,), sql, class, org)?.is_some_and(|(count,)| count > 0))
}

/// Counts the grants of a class.
pub async fn count_grants(tx: &mut Tx<'_>, class: &str) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COUNT(*) AS BIGINT) FROM storage_grants WHERE class = $1";
    Ok(find!(tx, (i64,), sql, class)?.map_or(0, |(count,)| count))
}

/// Adds a grant. Returns false if it exists.
pub async fn grant(tx: &mut Tx<'_>, class: &str, org: OrgId) -> Result<bool, StoreError> {
    let sql =
        "INSERT INTO storage_grants (class, org_id) VALUES ($1, $2) ON CONFLICT (class, org_id) DO NOTHING";
    Ok(exec!(tx, sql, class, org)? == 1)
}

/// Removes a grant. Returns false if it does not exist.
pub async fn revoke(tx: &mut Tx<'_>, class: &str, org: OrgId) -> Result<bool, StoreError> {
    Ok(exec!(tx, "DELETE FROM storage_grants WHERE class = $1 AND org_id = $2", class, org)? == 1)
}

/// Counts the volumes of a class, of one organization or (`None`) of all.
pub async fn count_volumes(tx: &mut Tx<'_>, class: &str, org: Option<OrgId>) -> Result<i64, StoreError> {
    let found = match org {
        Some(org) => {
            let sql = "SELECT CAST(COUNT(*) AS BIGINT) FROM volumes WHERE class = $1 AND org_id = $2";
            find!(tx, (i64,), sql, class, org)?
        }
        None => {
            let sql = "SELECT CAST(COUNT(*) AS BIGINT) FROM volumes WHERE class = $1";
            find!(tx, (i64,), sql, class)?
        }
    };
    Ok(found.map_or(0, |(count,)| count))
}

/// Finds the number of an organization with a class.
pub async fn find_group(tx: &mut Tx<'_>, org: OrgId) -> Result<Option<i64>, StoreError> {
    let sql = "SELECT number FROM storage_groups WHERE org_id = $1";
    Ok(find!(tx, (i64,), sql, org)?.map(|(number,)| number))
}

/// Gives an organization the next number, if it has none.
pub async fn assign_group(tx: &mut Tx<'_>, org: OrgId) -> Result<(), StoreError> {
    if find_group(tx, org).await?.is_some() {
        return Ok(());
    }
    let sql = "SELECT CAST(COALESCE(MAX(number), 0) AS BIGINT) FROM storage_groups";
    let last = find!(tx, (i64,), sql)?.map_or(0, |(last,)| last);
    exec!(tx, "INSERT INTO storage_groups (org_id, number) VALUES ($1, $2)", org, last + 1).map(|_| ())
}

/// Lists the approved nodes with host mounts.
pub async fn list_host_mounts(
    tx: &mut Tx<'_>,
) -> Result<Vec<(NodeId, JsonColumn<Vec<HostMount>>)>, StoreError> {
    let sql = "SELECT id, host_mounts FROM nodes WHERE host_mounts <> '[]' AND approved_at IS NOT NULL \
               AND removed_at IS NULL ORDER BY id";
    list!(tx, (NodeId, JsonColumn<Vec<HostMount>>), sql)
}

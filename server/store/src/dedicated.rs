//! Dedicated nodes, and the organizations that use no others.

use berth_types::ids::{JobId, NodeId, OrgId};

use super::{StoreError, Tx};

/// The facts that decide about the use of a node by an organization.
#[derive(Debug, Clone, Copy, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredNodeUse {
    /// The only organization whose work the node takes.
    pub dedicated_to: Option<OrgId>,
    /// True if the organization uses only nodes that are dedicated to it.
    pub own_nodes_only: bool,
}

/// Finds the facts about the use of a node by an organization. `None` if one of them does not exist.
pub async fn find_use(
    tx: &mut Tx<'_>,
    org: OrgId,
    node: NodeId,
) -> Result<Option<StoredNodeUse>, StoreError> {
    let sql = "SELECT n.dedicated_to, o.own_nodes_only, n.id AS row_id FROM nodes n JOIN orgs o ON o.id = $2 \
               WHERE n.id = $1 AND n.removed_at IS NULL";
    find!(tx, StoredNodeUse, sql, node, org)
}

/// Finds the name of a node and the organization to which it is dedicated.
pub async fn find_node(tx: &mut Tx<'_>, node: NodeId) -> Result<Option<(String, Option<OrgId>)>, StoreError> {
    let sql = "SELECT name, dedicated_to, id AS row_id FROM nodes WHERE id = $1 AND removed_at IS NULL";
    find!(tx, (String, Option<OrgId>), sql, node)
}

/// Dedicates a node to an organization, or (`None`) to none.
pub async fn set_node(tx: &mut Tx<'_>, node: NodeId, org: Option<OrgId>) -> Result<(), StoreError> {
    exec!(tx, "UPDATE nodes SET dedicated_to = $2 WHERE id = $1", node, org).map(|_| ())
}

/// Finds the setting "own nodes only" of an organization. `None` if the organization does not exist.
pub async fn find_own_only(tx: &mut Tx<'_>, org: OrgId) -> Result<Option<bool>, StoreError> {
    let sql = "SELECT own_nodes_only, id AS row_id FROM orgs WHERE id = $1";
    Ok(find!(tx, (bool,), sql, org)?.map(|(own_only,)| own_only))
}

/// Sets the setting "own nodes only" of an organization.
pub async fn set_own_only(tx: &mut Tx<'_>, org: OrgId, own_only: bool) -> Result<(), StoreError> {
    exec!(tx, "UPDATE orgs SET own_nodes_only = $2 WHERE id = $1", org, own_only).map(|_| ())
}

/// Lists the organizations that use only nodes that are dedicated to them.
pub async fn list_own_only(tx: &mut Tx<'_>) -> Result<Vec<OrgId>, StoreError> {
    let sql = "SELECT id FROM orgs WHERE own_nodes_only ORDER BY id";
    Ok(list!(tx, (OrgId,), sql)?.into_iter().map(|(org,)| org).collect())
}

/// Lists the nodes that are dedicated to an organization, by name, at most `limit`.
pub async fn list_nodes(
    tx: &mut Tx<'_>,
    org: OrgId,
    limit: i64,
) -> Result<Vec<(NodeId, String)>, StoreError> {
    let sql = "SELECT id, name FROM nodes WHERE dedicated_to = $1 ORDER BY name, id LIMIT $2";
    list!(tx, (NodeId, String), sql, org, limit)
}

/// Counts the nodes that are dedicated to an organization.
pub async fn count_nodes(tx: &mut Tx<'_>, org: OrgId) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COUNT(*) AS BIGINT) FROM nodes WHERE dedicated_to = $1";
    Ok(find!(tx, (i64,), sql, org)?.map_or(0, |(count,)| count))
}

/// Lists the nodes with the organizations to which they are dedicated.
pub async fn list_dedicated(tx: &mut Tx<'_>) -> Result<Vec<(NodeId, OrgId)>, StoreError> {
    let sql = "SELECT id, dedicated_to FROM nodes WHERE dedicated_to IS NOT NULL ORDER BY id";
    list!(tx, (NodeId, OrgId), sql)
}

/// Lists the jobs that hold devices of a node, each with its organization.
pub async fn list_jobs_on(tx: &mut Tx<'_>, node: NodeId) -> Result<Vec<(JobId, OrgId)>, StoreError> {
    let sql =
        "SELECT DISTINCT job_id, org_id FROM allocations WHERE held = $2 AND node_id = $1 ORDER BY job_id";
    list!(tx, (JobId, OrgId), sql, node, true)
}

/// Lists the jobs of an organization that hold devices, each with a node.
pub async fn list_jobs_of(tx: &mut Tx<'_>, org: OrgId) -> Result<Vec<(JobId, NodeId)>, StoreError> {
    let sql = "SELECT DISTINCT job_id, node_id FROM allocations WHERE held = $2 AND org_id = $1 \
               ORDER BY job_id, node_id";
    list!(tx, (JobId, NodeId), sql, org, true)
}

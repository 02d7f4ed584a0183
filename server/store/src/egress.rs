//! Named networks, and the egress policies of organizations.

use berth_types::egress::{EgressPolicy, NetworkOrg, OpenNetwork};
use berth_types::ids::{NodeId, OrgId};

use super::types::JsonColumn;
use super::{StoreError, Tx};

/// A named network with its ranges.
#[derive(Debug, Clone, sqlx::FromRow)]
struct StoredNetwork {
    name: String,
    ranges: JsonColumn<Vec<String>>,
}

impl From<StoredNetwork> for OpenNetwork {
    fn from(row: StoredNetwork) -> Self {
        Self { name: row.name, ranges: row.ranges.0 }
    }
}

/// Lists the named networks by name.
pub async fn list_networks(tx: &mut Tx<'_>) -> Result<Vec<OpenNetwork>, StoreError> {
    let rows = list!(tx, StoredNetwork, "SELECT name, ranges FROM named_networks ORDER BY name")?;
    Ok(rows.into_iter().map(OpenNetwork::from).collect())
}

/// Finds the ranges of a named network.
pub async fn find_ranges(tx: &mut Tx<'_>, name: &str) -> Result<Option<Vec<String>>, StoreError> {
    let sql = "SELECT ranges, name AS row_id FROM named_networks WHERE name = $1";
    Ok(find!(tx, (JsonColumn<Vec<String>>,), sql, name)?.map(|(ranges,)| ranges.0))
}

/// Counts the named networks.
pub async fn count_networks(tx: &mut Tx<'_>) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COUNT(*) AS BIGINT) FROM named_networks";
    Ok(find!(tx, (i64,), sql)?.map_or(0, |(count,)| count))
}

/// Adds a named network, or replaces its ranges.
pub async fn put_network(tx: &mut Tx<'_>, name: &str, ranges: &[String]) -> Result<(), StoreError> {
    let ranges = JsonColumn(ranges.to_vec());
    let sql = "INSERT INTO named_networks (name, ranges) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET ranges = $2";
    exec!(tx, sql, name, &ranges).map(|_| ())
}

/// Deletes a named network that no policy names. Returns true if it existed.
pub async fn delete_network(tx: &mut Tx<'_>, name: &str) -> Result<bool, StoreError> {
    Ok(exec!(tx, "DELETE FROM named_networks WHERE name = $1", name)? == 1)
}

/// Counts the organizations whose policies name a network.
pub async fn count_orgs(tx: &mut Tx<'_>, name: &str) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COUNT(*) AS BIGINT) FROM org_networks WHERE network = $1";
    Ok(find!(tx, (i64,), sql, name)?.map_or(0, |(count,)| count))
}

/// Lists the organizations whose policies name a network, by name, at most `limit`.
pub async fn list_orgs(tx: &mut Tx<'_>, name: &str, limit: i64) -> Result<Vec<NetworkOrg>, StoreError> {
    let sql = "SELECT o.id, o.name FROM org_networks n JOIN orgs o ON o.id = n.org_id WHERE n.network = $1 \
               ORDER BY o.name, o.id LIMIT $2";
    let rows = list!(tx, (OrgId, String), sql, name, limit)?;
    Ok(rows.into_iter().map(|(id, name)| NetworkOrg { id, name }).collect())
}

/// Finds the egress policy of an organization. `None` if the organization does not exist.
pub async fn find_policy(tx: &mut Tx<'_>, org: OrgId) -> Result<Option<EgressPolicy>, StoreError> {
    let sql = "SELECT internet, host_network, id AS row_id FROM orgs WHERE id = $1";
    let Some((internet, host_network)) = find!(tx, (bool, bool), sql, org)? else { return Ok(None) };
    let sql = "SELECT w.name, w.ranges FROM org_networks n JOIN named_networks w ON w.name = n.network \
               WHERE n.org_id = $1 ORDER BY w.name";
    let networks = list!(tx, StoredNetwork, sql, org)?.into_iter().map(OpenNetwork::from).collect();
    Ok(Some(EgressPolicy { internet, networks, host_network }))
}

/// Replaces the egress policy of an organization. The networks must exist.
pub async fn set_policy(
    tx: &mut Tx<'_>,
    org: OrgId,
    (internet, host_network): (bool, bool),
    networks: &[String],
) -> Result<(), StoreError> {
    let sql = "UPDATE orgs SET internet = $2, host_network = $3 WHERE id = $1";
    exec!(tx, sql, org, internet, host_network)?;
    exec!(tx, "DELETE FROM org_networks WHERE org_id = $1", org)?;
    for network in networks {
        exec!(tx, "INSERT INTO org_networks (org_id, network) VALUES ($1, $2)", org, network.as_str())?;
    }
    Ok(())
}

/// Lists the organizations whose policies differ from the internet alone.
pub async fn list_differing(tx: &mut Tx<'_>) -> Result<Vec<OrgId>, StoreError> {
    let sql = "SELECT id FROM orgs WHERE NOT internet UNION SELECT org_id FROM org_networks";
    Ok(list!(tx, (OrgId,), sql)?.into_iter().map(|(org,)| org).collect())
}

/// Finds the networks that the worker of a node gives to jobs: with egress policies, and of the host.
pub async fn find_node_networks(tx: &mut Tx<'_>, node: NodeId) -> Result<Option<(bool, bool)>, StoreError> {
    find!(tx, (bool, bool), "SELECT egress, host_network, id AS row_id FROM nodes WHERE id = $1", node)
}

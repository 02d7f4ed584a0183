//! The networks of gangs: the number and the seed of the keys of each attempt on several nodes.

use berth_types::ids::{JobId, NodeId, OrgId};

use super::{StoreError, Tx};

/// The UDP ports of a node for the networks of gangs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GangPorts {
    pub first: u16,
    /// True for packets without encryption.
    pub plain: bool,
    /// True if the worker measures the links of a rank before its start.
    pub checks: bool,
}

/// The network of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredGangNetwork {
    pub job_id: JobId,
    pub attempt: i64,
    /// Unique among the networks of each node.
    pub number: i64,
    /// The seed of the keys of the ranks.
    pub sealed: String,
}

/// The sealed seed of the network of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredSeed {
    pub org_id: OrgId,
    pub job_id: JobId,
    pub attempt: i64,
    pub sealed: String,
}

/// The node of a rank, with its means for the network of the gang.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredRankPlace {
    pub rank: i64,
    pub node_id: NodeId,
    pub node_name: String,
    pub address: String,
    /// 0: ranks on this node have the network of the host.
    pub gang_first_port: i64,
    pub gang_plain: bool,
    pub gang_checks: bool,
    /// True if the worker measures RDMA links.
    pub checks_rdma_links: bool,
}

pub async fn insert(tx: &mut Tx<'_>, row: &StoredGangNetwork) -> Result<(), StoreError> {
    let sql = "INSERT INTO gang_networks (job_id, attempt, number, sealed) VALUES ($1, $2, $3, $4)";
    exec!(tx, sql, row.job_id, row.attempt, row.number, &row.sealed).map(|_| ())
}

/// Finds the network of an attempt.
pub async fn find(
    tx: &mut Tx<'_>,
    job: JobId,
    attempt: i64,
) -> Result<Option<StoredGangNetwork>, StoreError> {
    let sql = "SELECT job_id, attempt, number, sealed FROM gang_networks WHERE job_id = $1 AND attempt = $2";
    find!(tx, StoredGangNetwork, sql, job, attempt)
}

/// Lists the seeds of all networks.
pub async fn list_seeds(tx: &mut Tx<'_>) -> Result<Vec<StoredSeed>, StoreError> {
    let sql = "SELECT j.org_id, g.job_id, g.attempt, g.sealed FROM gang_networks g JOIN jobs j ON j.id = g.job_id \
               ORDER BY g.job_id, g.attempt";
    list!(tx, StoredSeed, sql)
}

/// Replaces the sealed value of a seed. Returns true if the stored value was still that of `row`.
pub async fn reseal(tx: &mut Tx<'_>, row: &StoredSeed, sealed: &str) -> Result<bool, StoreError> {
    let sql = "UPDATE gang_networks SET sealed = $4 WHERE job_id = $1 AND attempt = $2 AND sealed = $3";
    Ok(exec!(tx, sql, row.job_id, row.attempt, &row.sealed, sealed)? == 1)
}

/// Lists the numbers of the networks on a node.
pub async fn list_numbers(tx: &mut Tx<'_>, node: NodeId) -> Result<Vec<i64>, StoreError> {
    let sql = "SELECT g.number, g.job_id AS row_id FROM attempts a JOIN gang_networks g \
               ON g.job_id = a.job_id AND g.attempt = a.number \
               WHERE a.node_id = $1 AND a.is_open = $2 ORDER BY g.number";
    Ok(list!(tx, (i64,), sql, node, true)?.into_iter().map(|(number,)| number).collect())
}

/// Returns true if another job on several nodes has an open rank with a network on one of the two nodes.
pub async fn is_shared(tx: &mut Tx<'_>, (a, b): (NodeId, NodeId), job: JobId) -> Result<bool, StoreError> {
    let sql = "SELECT CAST(COUNT(*) AS BIGINT) FROM attempts a JOIN gang_networks g \
               ON g.job_id = a.job_id AND g.attempt = a.number \
               WHERE a.node_id IN ($1, $2) AND a.is_open = $3 AND a.job_id <> $4";
    Ok(find!(tx, (i64,), sql, a, b, true, job)?.is_some_and(|(count,)| count > 0))
}

/// Lists the nodes of the ranks of an attempt.
pub async fn list_places(
    tx: &mut Tx<'_>,
    job: JobId,
    attempt: i64,
) -> Result<Vec<StoredRankPlace>, StoreError> {
    let sql = "SELECT a.job_id, a.rank, a.node_id, n.name AS node_name, n.address, n.gang_first_port, n.gang_plain, n.gang_checks, n.checks_rdma_links \
               FROM attempts a JOIN nodes n ON n.id = a.node_id \
               WHERE a.job_id = $1 AND a.number = $2 ORDER BY a.rank";
    list!(tx, StoredRankPlace, sql, job, attempt)
}

/// Deletes the network of an attempt without an open rank, with its keys.
pub async fn delete_closed(tx: &mut Tx<'_>, job: JobId, attempt: i64) -> Result<(), StoreError> {
    let sql = "DELETE FROM gang_networks WHERE job_id = $1 AND attempt = $2 AND NOT EXISTS \
               (SELECT 1 FROM attempts a WHERE a.job_id = $1 AND a.number = $2 AND a.is_open = $3)";
    exec!(tx, sql, job, attempt, true).map(|_| ())
}

//! Jobs of all organizations for operators, drains of nodes, open ranks, and racks.

use std::collections::BTreeMap;

use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::jobs::{JobState, NewJob};
use berth_types::lists::ListOptions;
use berth_types::time::Timestamp;

use super::jobs::JobSearch;
use super::types::{JsonColumn, RankEnd};
use super::{StoreError, Tx};

/// A filter of jobs. An absent or empty field matches every job.
#[derive(Debug, Clone, Default)]
pub struct JobQuery {
    pub org: Option<OrgId>,
    pub node: Option<NodeId>,
    /// The slug of an offering.
    pub offering: String,
    pub search: JobSearch,
}

impl JobQuery {
    /// Organization, node and state as texts; an absent field is empty.
    fn texts(&self) -> (String, String, &'static str) {
        let org = self.org.map_or_else(String::new, |org| org.to_string());
        let node = self.node.map_or_else(String::new, |node| node.to_string());
        (org, node, self.search.state.map_or("", JobState::name))
    }
}

/// A job of any organization.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct StoredOperatorJob {
    pub id: JobId,
    pub org_id: OrgId,
    pub org_name: String,
    pub name: String,
    pub slug: String,
    pub state: JobState,
    pub attempt: i64,
    pub device_count: i64,
    pub nodes: i64,
    pub node_name: Option<String>,
    pub labels: JsonColumn<BTreeMap<String, String>>,
    pub created_by: String,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    pub exit_code: Option<i64>,
    pub failure_code: Option<String>,
    pub failure_detail: Option<String>,
    pub metered_ms: i64,
    pub cost_micros: i64,
}

// A key of labels begins after `{` or `,`. REPLACE is case-sensitive on both engines; LIKE is not.
macro_rules! matching_jobs {
    ($select:literal, $rest:literal) => {
        matching_jobs!($select, "($1 = '' OR j.org_id = $1)", $rest)
    };
    ($select:literal, $org:literal, $rest:literal) => {
        concat!(
            $select,
            " FROM jobs j JOIN orgs o ON o.id = j.org_id JOIN offerings f ON f.id = j.offering_id WHERE ",
            $org,
            " AND ($2 = '' OR EXISTS (SELECT 1 FROM allocations a \
             WHERE a.job_id = j.id AND a.attempt = j.attempt AND a.node_id = $2)) \
             AND ($3 = '' OR j.state = $3) AND ($4 = '' OR f.slug = $4) \
             AND ($5 = '' OR REPLACE(j.labels, '{' || $5, '') <> j.labels OR REPLACE(j.labels, ',' || $5, '') <> j.labels) \
             AND ($6 = '' OR ($6 = 'ended' AND j.ended_at IS NOT NULL) OR ($6 = 'open' AND j.ended_at IS NULL)) \
             AND ($7 = '' OR REPLACE(LOWER(j.name), LOWER($7), '') <> LOWER(j.name)) \
             AND ($8 = '' OR REPLACE(LOWER(j.created_by), LOWER($8), '') <> LOWER(j.created_by)) ",
            $rest
        )
    };
}

/// The matching jobs that can be stopped. A condition that holds for each job would hide the index of the open
/// jobs of an organization.
macro_rules! stoppable_jobs {
    (where $org:literal, $select:literal, $rest:literal) => {
        concat!(
            matching_jobs!(
                $select,
                $org,
                "AND j.ended_at IS NULL AND (j.stop_cause IS NULL OR j.stop_cause IN ('preempted', 'rank_failed', 'drained')) "
            ),
            $rest
        )
    };
    ($query:expr, $select:literal, $rest:literal) => {
        match $query.org {
            Some(_) => stoppable_jobs!(where "j.org_id = $1", $select, $rest),
            None => stoppable_jobs!(where "$1 = ''", $select, $rest),
        }
    };
}

/// Lists a page of the matching jobs by id.
pub async fn list_jobs(
    tx: &mut Tx<'_>,
    query: &JobQuery,
    options: &ListOptions<JobId>,
) -> Result<Vec<StoredOperatorJob>, StoreError> {
    let sql = page_sql!(
        options.sort,
        [matching_jobs!(
            "SELECT j.id, j.org_id, o.name AS org_name, j.name, f.slug, j.state, j.attempt, j.device_count, j.nodes, \
             (SELECT MIN(n.name) FROM allocations a JOIN nodes n ON n.id = a.node_id \
             WHERE a.job_id = j.id AND a.attempt = j.attempt) AS node_name, j.labels, j.created_by, j.created_at, \
             j.started_at, j.ended_at, j.exit_code, j.failure_code, j.failure_detail, j.metered_ms, j.cost_micros",
            ""
        )],
        "j.id",
        "$9",
        "$10"
    );
    let (org, node, state) = query.texts();
    let (cursor, rows) = (options.cursor_text(), options.rows());
    let JobQuery { offering, search, .. } = query;
    let JobSearch { label, name, created_by, .. } = search;
    let end = search.end_text();
    list!(
        tx,
        StoredOperatorJob,
        sql,
        &org,
        &node,
        state,
        offering,
        label,
        end,
        name,
        created_by,
        cursor,
        rows
    )
}

/// Counts the matching jobs that can be stopped, by organization: (id, name, jobs). A job whose present stop
/// is final does not count.
pub async fn count_stoppable(
    tx: &mut Tx<'_>,
    query: &JobQuery,
) -> Result<Vec<(OrgId, String, i64)>, StoreError> {
    let sql = stoppable_jobs!(
        query,
        "SELECT j.org_id, o.name, CAST(COUNT(*) AS BIGINT)",
        "GROUP BY j.org_id, o.name ORDER BY o.name, j.org_id"
    );
    let (org, node, state) = query.texts();
    let JobQuery { offering, search, .. } = query;
    let JobSearch { label, name, created_by, .. } = search;
    let end = search.end_text();
    list!(tx, (OrgId, String, i64), sql, &org, &node, state, offering, label, end, name, created_by)
}

/// Lists the ids of the oldest `limit` matching jobs that can be stopped.
pub async fn list_stoppable(tx: &mut Tx<'_>, query: &JobQuery, limit: i64) -> Result<Vec<JobId>, StoreError> {
    let sql = stoppable_jobs!(query, "SELECT j.id", "ORDER BY j.id LIMIT $9");
    let (org, node, state) = query.texts();
    let JobQuery { offering, search, .. } = query;
    let JobSearch { label, name, created_by, .. } = search;
    let end = search.end_text();
    let rows = list!(tx, (JobId,), sql, &org, &node, state, offering, label, end, name, created_by, limit)?;
    Ok(rows.into_iter().map(|(id,)| id).collect())
}

/// A drain of a node.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredDrain {
    pub node_id: NodeId,
    pub node_name: String,
    pub reason: String,
    pub deadline_at: Option<Timestamp>,
    pub grace_s: Option<i64>,
    pub was_cordoned: bool,
    pub started_by: String,
    pub started_at: Timestamp,
    pub emptied_at: Option<Timestamp>,
    /// True for a drain by the shutdown of the host, false for a drain by an operator.
    pub by_host: bool,
}

/// Starts a drain or replaces the terms of a drain, and cordons the node. Returns true if the node exists.
pub async fn put_drain(tx: &mut Tx<'_>, node: NodeId, drain: &StoredDrain) -> Result<bool, StoreError> {
    let sql = "SELECT cordoned, id AS row_id FROM nodes WHERE id = $1 AND removed_at IS NULL";
    let found = find!(tx, (bool,), sql, node)?;
    let Some((was_cordoned,)) = found else { return Ok(false) };
    let sql = "INSERT INTO drains (node_id, reason, deadline_at, grace_s, was_cordoned, started_by, started_at, by_host) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (node_id) DO UPDATE SET reason = $2, \
               deadline_at = $3, grace_s = $4, started_by = $6, emptied_at = NULL, by_host = $8";
    exec!(
        tx,
        sql,
        node,
        &drain.reason,
        drain.deadline_at,
        drain.grace_s,
        was_cordoned,
        &drain.started_by,
        drain.started_at,
        drain.by_host
    )?;
    super::nodes::set_cordoned(tx, node, true).await
}

pub async fn list_drains(tx: &mut Tx<'_>) -> Result<Vec<StoredDrain>, StoreError> {
    let sql = "SELECT d.node_id, n.name AS node_name, d.reason, d.deadline_at, d.grace_s, d.was_cordoned, d.started_by, \
               d.started_at, d.emptied_at, d.by_host FROM drains d JOIN nodes n ON n.id = d.node_id ORDER BY n.name, d.node_id";
    list!(tx, StoredDrain, sql)
}

/// Finds the drain of a node.
pub async fn find_drain(tx: &mut Tx<'_>, node: NodeId) -> Result<Option<StoredDrain>, StoreError> {
    Ok(list_drains(tx).await?.into_iter().find(|row| row.node_id == node))
}

/// Sets the deadline of a drain, unless its deadline is earlier.
pub async fn shorten_drain_deadline(
    tx: &mut Tx<'_>,
    node: NodeId,
    deadline: Timestamp,
) -> Result<(), StoreError> {
    let sql =
        "UPDATE drains SET deadline_at = $2 WHERE node_id = $1 AND (deadline_at IS NULL OR deadline_at > $2)";
    exec!(tx, sql, node, deadline)?;
    Ok(())
}

/// Deletes the drain of a node. Returns true if it existed.
pub async fn delete_drain(tx: &mut Tx<'_>, node: NodeId) -> Result<bool, StoreError> {
    Ok(exec!(tx, "DELETE FROM drains WHERE node_id = $1", node)? == 1)
}

/// Records that a drained node is empty. Returns false if a rank on it is open, this was recorded before, or
/// the node has no drain.
pub async fn set_emptied(tx: &mut Tx<'_>, node: NodeId, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "UPDATE drains SET emptied_at = $2 WHERE node_id = $1 AND emptied_at IS NULL AND NOT EXISTS \
               (SELECT 1 FROM attempts a WHERE a.node_id = $1 AND a.is_open = $3)";
    Ok(exec!(tx, sql, node, now, true)? == 1)
}

/// An open rank, with its job.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct StoredOperatorRank {
    pub job_id: JobId,
    pub number: i64,
    pub org_id: OrgId,
    pub org_name: String,
    pub job_name: String,
    pub node_id: NodeId,
    pub node_name: String,
    pub created_at: Timestamp,
    pub ended: bool,
    pub ended_at: Option<Timestamp>,
    pub clean: bool,
    pub outcome: Option<JsonColumn<RankEnd>>,
    /// The reason why a device of the rank could not be proved clean.
    pub unclean: Option<String>,
    /// The state of the job.
    pub state: JobState,
    /// The latest attempt of the job.
    pub latest: i64,
    /// The submission without its inputs.
    pub spec: JsonColumn<NewJob>,
    pub preemptible: bool,
    pub grace_s: i64,
    pub started_at: Option<Timestamp>,
    pub max_duration_s: i64,
    pub metered_before_ms: i64,
    /// The time at which the job entered its state.
    pub since: Option<Timestamp>,
    pub job_ended_at: Option<Timestamp>,
}

/// The open ranks with a condition. `$2` is true.
macro_rules! select_open {
    ($condition:literal) => {
        concat!(
            "SELECT a.job_id, a.number, a.org_id, o.name AS org_name, j.name AS job_name, a.node_id, n.name AS node_name, \
             a.created_at, a.ended, a.ended_at, a.clean, a.outcome, (SELECT MIN(h.unclean) FROM allocations h \
             WHERE h.job_id = a.job_id AND h.attempt = a.number AND h.node_id = a.node_id AND h.held = $2) AS unclean, \
             j.state, j.attempt AS latest, j.spec, j.preemptible, j.grace_s, j.started_at, j.max_duration_s, \
             j.metered_before_ms, (SELECT MIN(e.at) FROM job_events e WHERE e.job_id = j.id AND e.state = j.state \
             AND e.attempt = j.attempt) AS since, j.ended_at AS job_ended_at \
             FROM attempts a JOIN jobs j ON j.id = a.job_id JOIN orgs o ON o.id = a.org_id JOIN nodes n ON n.id = a.node_id \
             WHERE ",
            $condition,
            " AND a.is_open = $2 ORDER BY a.job_id, a.number, a.rank"
        )
    };
}

/// Lists the open ranks of a node (`None`: of all).
pub async fn list_open(tx: &mut Tx<'_>, node: Option<NodeId>) -> Result<Vec<StoredOperatorRank>, StoreError> {
    let node = node.map_or_else(String::new, |node| node.to_string());
    list!(tx, StoredOperatorRank, select_open!("($1 = '' OR a.node_id = $1)"), &node, true)
}

/// Lists the open ranks of these nodes.
pub async fn list_open_on(tx: &mut Tx<'_>, nodes: &[NodeId]) -> Result<Vec<StoredOperatorRank>, StoreError> {
    let sqlite = select_open!("a.node_id IN (SELECT value FROM json_each($1))");
    let nodes: Vec<String> = nodes.iter().map(ToString::to_string).collect();
    list_in!(tx, StoredOperatorRank, sqlite, select_open!("a.node_id = ANY($1)"), nodes, true)
}

/// Lists the racks with their power budgets in watts.
pub async fn list_racks(tx: &mut Tx<'_>) -> Result<Vec<(String, i64)>, StoreError> {
    list!(tx, (String, i64), "SELECT name, budget_watts FROM racks ORDER BY name")
}

pub async fn put_rack(tx: &mut Tx<'_>, name: &str, budget_watts: i64) -> Result<(), StoreError> {
    let sql = "INSERT INTO racks (name, budget_watts) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET budget_watts = $2";
    exec!(tx, sql, name, budget_watts).map(|_| ())
}

/// Deletes a rack. Returns true if it existed.
pub async fn delete_rack(tx: &mut Tx<'_>, name: &str) -> Result<bool, StoreError> {
    Ok(exec!(tx, "DELETE FROM racks WHERE name = $1", name)? == 1)
}

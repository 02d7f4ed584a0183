//! The revisions of services.

use berth_service_types::revisions::{NewRevision, RevisionState};
use berth_types::ids::{InferenceKeyId, OrgId, RevisionId, ServiceId};
use berth_types::lists::ListOptions;
use berth_types::time::Timestamp;

use super::services::texts;
use super::{JsonColumn, StoreError, Tx};

/// A revision as stored. Its specification can have secret texts, so it has no `Debug`.
#[derive(Clone, sqlx::FromRow)]
pub struct StoredRevision {
    pub id: RevisionId,
    pub service_id: ServiceId,
    pub org_id: OrgId,
    pub number: i64,
    pub state: RevisionState,
    /// The reason for the state; empty without one.
    pub detail: String,
    pub weight_percent: i64,
    pub spec: JsonColumn<NewRevision>,
    pub created_at: Timestamp,
    pub created_by: String,
}

/// The place of a revision in the rollout of its service.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredProgress {
    pub number: i64,
    pub state: RevisionState,
    pub weight_percent: i64,
    /// The percentage for which its replicas start now.
    pub goal_percent: i64,
    /// True if a person set the percentage.
    pub held: bool,
    /// True if it was live before and comes back.
    pub returns: bool,
    /// The number of the revision that was live before it.
    pub before_number: Option<i64>,
}

/// A revision without its specification.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct StoredSummary {
    pub id: RevisionId,
    pub service_id: ServiceId,
    pub number: i64,
    pub state: RevisionState,
    pub weight_percent: i64,
    pub canary_keys: JsonColumn<Vec<InferenceKeyId>>,
}

macro_rules! select_revisions {
    ($rest:literal) => {
        concat!(
            "SELECT id, service_id, org_id, number, state, detail, weight_percent, spec, created_at, created_by \
             FROM service_revisions ",
            $rest
        )
    };
}

/// Adds a revision without a place in the rollout yet ([`set_progress`]).
pub async fn insert(tx: &mut Tx<'_>, row: &StoredRevision) -> Result<(), StoreError> {
    let sql = "INSERT INTO service_revisions (id, service_id, org_id, number, state, detail, weight_percent, spec, \
               port, concurrency, replica_protocol, created_at, created_by) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)";
    exec!(
        tx,
        sql,
        row.id,
        row.service_id,
        row.org_id,
        row.number,
        row.state,
        &row.detail,
        row.weight_percent,
        &row.spec,
        i64::from(row.spec.0.port),
        i64::from(row.spec.0.concurrency),
        row.spec.0.replica_protocol,
        row.created_at,
        &row.created_by
    )
    .map(|_| ())
}

/// Finds a revision by its number.
pub async fn find(
    tx: &mut Tx<'_>,
    service: ServiceId,
    number: i64,
) -> Result<Option<StoredRevision>, StoreError> {
    let sql = select_revisions!("WHERE service_id = $1 AND number = $2");
    find!(tx, StoredRevision, sql, service, number)
}

/// Finds a revision of a service by its id.
pub async fn find_by_id(
    tx: &mut Tx<'_>,
    service: ServiceId,
    id: RevisionId,
) -> Result<Option<StoredRevision>, StoreError> {
    let sql = select_revisions!("WHERE service_id = $1 AND id = $2");
    find!(tx, StoredRevision, sql, service, id)
}

/// Lists a page of the revisions of a service by number.
pub async fn list_page(
    tx: &mut Tx<'_>,
    service: ServiceId,
    options: &ListOptions<i64>,
) -> Result<Vec<StoredRevision>, StoreError> {
    let sql =
        page_sql!(options.sort, [select_revisions!("WHERE service_id = $1")], "number", number "$2", "$3");
    let (cursor, rows) = (options.cursor.unwrap_or(0), options.rows());
    list!(tx, StoredRevision, sql, service, cursor, rows)
}

/// Returns the greatest number of a revision of a service; 0 without one.
pub async fn last_number(tx: &mut Tx<'_>, service: ServiceId) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COALESCE(MAX(number), 0) AS BIGINT) FROM service_revisions WHERE service_id = $1";
    Ok(find!(tx, (i64,), sql, service)?.map_or(0, |(number,)| number))
}

/// Lists the rollout of a service by number.
pub async fn list_progress(tx: &mut Tx<'_>, service: ServiceId) -> Result<Vec<StoredProgress>, StoreError> {
    let sql = "SELECT number, state, weight_percent, goal_percent, held, returns, before_number, id AS row_id \
               FROM service_revisions WHERE service_id = $1 ORDER BY number";
    list!(tx, StoredProgress, sql, service)
}

/// Stores the place of a revision in the rollout. Another state removes the reason for the state, and the end of its way
/// to become live removes its keys.
pub async fn set_progress(
    tx: &mut Tx<'_>,
    service: ServiceId,
    row: &StoredProgress,
) -> Result<(), StoreError> {
    let sql = "UPDATE service_revisions SET detail = CASE WHEN state = $3 THEN detail ELSE '' END, state = $3, \
               weight_percent = $4, goal_percent = $5, held = $6, returns = $7, before_number = $8, \
               canary_keys = CASE WHEN $3 IN ('staging', 'canary') THEN canary_keys ELSE '[]' END \
               WHERE service_id = $1 AND number = $2";
    exec!(
        tx,
        sql,
        service,
        row.number,
        row.state,
        row.weight_percent,
        row.goal_percent,
        row.held,
        row.returns,
        row.before_number
    )
    .map(|_| ())
}

/// Sets the keys whose requests all go to a revision while it is a canary. Returns false if it had the same keys.
pub async fn set_canary_keys(
    tx: &mut Tx<'_>,
    service: ServiceId,
    number: i64,
    keys: &JsonColumn<Vec<InferenceKeyId>>,
) -> Result<bool, StoreError> {
    let sql = "UPDATE service_revisions SET canary_keys = $3 \
               WHERE service_id = $1 AND number = $2 AND canary_keys <> $3";
    Ok(exec!(tx, sql, service, number, keys)? == 1)
}

/// Sets the reason for the state of a revision.
pub async fn set_detail(
    tx: &mut Tx<'_>,
    service: ServiceId,
    number: i64,
    detail: &str,
) -> Result<(), StoreError> {
    let sql = "UPDATE service_revisions SET detail = $3 WHERE service_id = $1 AND number = $2";
    exec!(tx, sql, service, number, detail).map(|_| ())
}

/// Replaces the specification of a revision.
pub async fn set_spec(
    tx: &mut Tx<'_>,
    service: ServiceId,
    number: i64,
    spec: &JsonColumn<NewRevision>,
) -> Result<(), StoreError> {
    let sql = "UPDATE service_revisions SET spec = $3 WHERE service_id = $1 AND number = $2";
    exec!(tx, sql, service, number, spec).map(|_| ())
}

/// Deletes a revision and its ended replicas. A revision with a replica that has not ended stays.
pub async fn delete_unused(tx: &mut Tx<'_>, service: ServiceId, number: i64) -> Result<(), StoreError> {
    let sql = "DELETE FROM service_replicas WHERE ended_at IS NOT NULL AND revision_id = \
               (SELECT id FROM service_revisions WHERE service_id = $1 AND number = $2)";
    exec!(tx, sql, service, number)?;
    let sql = "DELETE FROM service_revisions WHERE service_id = $1 AND number = $2 AND NOT EXISTS \
               (SELECT 1 FROM service_replicas r WHERE r.revision_id = service_revisions.id)";
    exec!(tx, sql, service, number).map(|_| ())
}

/// Lists the revisions of services that have requests or replicas, and the newest ones, by number.
pub async fn list_summaries(
    tx: &mut Tx<'_>,
    services: &[ServiceId],
) -> Result<Vec<StoredSummary>, StoreError> {
    macro_rules! select_summaries {
        ($condition:literal) => {
            concat!(
                "SELECT v.id, v.service_id, v.number, v.state, v.weight_percent, v.canary_keys FROM service_revisions v \
                 WHERE (v.state IN ('staging', 'canary', 'live', 'draining') \
                 OR v.number = (SELECT MAX(m.number) FROM service_revisions m WHERE m.service_id = v.service_id) \
                 OR EXISTS (SELECT 1 FROM service_replicas r WHERE r.revision_id = v.id AND r.ended_at IS NULL)) \
                 AND v.service_id ",
                $condition,
                " ORDER BY v.service_id, v.number"
            )
        };
    }
    list_in!(
        tx,
        StoredSummary,
        select_summaries!("IN (SELECT value FROM json_each($1))"),
        select_summaries!("= ANY($1)"),
        texts(services)
    )
}

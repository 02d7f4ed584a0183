//! The replicas of services, and what the loop of services reads and writes.

use berth_service_types::revisions::{NewRevision, ReplicaProtocol, RevisionState, RolloutRule};
use berth_service_types::scaling::Scaling;
use berth_service_types::services::ServiceState;
use berth_types::ids::{JobId, OrgId, RevisionId, ServiceId};
use berth_types::jobs::JobState;
use berth_types::time::Timestamp;

use super::types::JsonColumn;
use super::{StoreError, Tx};

/// The label of the job of a replica, with the name of its service.
pub const LABEL: &str = "berth-service";

/// The ended replicas of a revision that are kept.
const KEPT_ENDED: i64 = 20;

/// A service for the loop.
#[derive(Debug, Clone, PartialEq, sqlx::FromRow)]
pub struct LoopService {
    pub id: ServiceId,
    pub org_id: OrgId,
    pub name: String,
    pub scaling: JsonColumn<Scaling>,
    pub rollout: JsonColumn<RolloutRule>,
    pub stopped: bool,
    pub state: ServiceState,
    pub detail: String,
    /// The last decision as JSON; empty before the first.
    pub decision: String,
    /// The end of the last wait for the organization itself; the greatest time while it lasts.
    pub own_wait_until: Option<Timestamp>,
    pub deleted_at: Option<Timestamp>,
}

/// A revision for the loop, without its specification.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct LoopRevision {
    pub id: RevisionId,
    pub service_id: ServiceId,
    pub number: i64,
    pub state: RevisionState,
    pub detail: String,
    pub weight_percent: i64,
    pub goal_percent: i64,
    pub held: bool,
    /// True if it was live before and comes back.
    pub returns: bool,
    pub before_number: Option<i64>,
}

/// A replica with its job for the loop. The fields of the job are absent before its submission.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct LoopReplica {
    pub job_id: JobId,
    pub service_id: ServiceId,
    pub revision_id: RevisionId,
    pub created_at: Timestamp,
    pub ready_attempt: Option<i64>,
    pub ready_since: Option<Timestamp>,
    pub first_ready_at: Option<Timestamp>,
    pub unready_since: Option<Timestamp>,
    pub draining_since: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    pub failed: bool,
    pub job_state: Option<JobState>,
    pub attempt: Option<i64>,
    pub max_duration_s: Option<i64>,
    pub metered_before_ms: Option<i64>,
    pub started_at: Option<Timestamp>,
    pub exit_code: Option<i64>,
    pub failure_code: Option<String>,
    pub failure_detail: Option<String>,
}

/// Services with their revisions and replicas.
#[derive(Debug, Clone, Default)]
pub struct LoopWorld {
    pub services: Vec<LoopService>,
    /// The revisions with requests, and those with replicas.
    pub revisions: Vec<LoopRevision>,
    /// The replicas that have not ended, and the last ended ones of the revisions with requests.
    pub replicas: Vec<LoopReplica>,
}

/// The part of a revision that the start of a replica needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaTerms {
    pub port: u16,
    /// True if it speaks HTTP/2.
    pub http2: bool,
    pub readiness_path: String,
    pub concurrency: u32,
}

/// Lists the services with work for the loop by id, after an id: those that are not deleted, and deleted ones with
/// replicas.
pub async fn list_ids(
    tx: &mut Tx<'_>,
    after: Option<ServiceId>,
    most: i64,
) -> Result<Vec<ServiceId>, StoreError> {
    let sql = "SELECT id FROM services WHERE id > $1 AND (deleted_at IS NULL OR EXISTS (SELECT 1 FROM \
               service_replicas p WHERE p.service_id = services.id AND p.ended_at IS NULL)) ORDER BY id LIMIT $2";
    let after = after.map(|id| id.to_string()).unwrap_or_default();
    let rows = list!(tx, (ServiceId,), sql, after, most)?;
    Ok(rows.into_iter().map(|(id,)| id).collect())
}

/// Returns true if a replica has not ended.
pub async fn any_open(tx: &mut Tx<'_>) -> Result<bool, StoreError> {
    let sql = "SELECT job_id FROM service_replicas WHERE ended_at IS NULL LIMIT 1";
    Ok(find!(tx, (JobId,), sql)?.is_some())
}

/// Writes into the state of a service that a row of it cannot be read. Returns true if the state is new.
pub async fn mark_unreadable(tx: &mut Tx<'_>, service: ServiceId, detail: &str) -> Result<bool, StoreError> {
    let sql = "UPDATE services SET state = 'degraded', detail = $2 \
               WHERE id = $1 AND (state <> 'degraded' OR detail <> $2)";
    Ok(exec!(tx, sql, service, detail)? > 0)
}

macro_rules! select_loop_services {
    ($condition:literal) => {
        concat!(
            "SELECT id, org_id, name, scaling, rollout, stopped, state, detail, decision, own_wait_until, deleted_at \
             FROM services WHERE id ",
            $condition
        )
    };
}

macro_rules! select_replicas {
    ($condition:literal) => {
        concat!(
            "SELECT p.job_id, p.service_id, p.revision_id, p.created_at, p.ready_attempt, p.ready_since, \
             p.first_ready_at, p.unready_since, p.draining_since, p.ended_at, p.failed, j.state AS job_state, \
             j.attempt, j.max_duration_s, j.metered_before_ms, j.started_at, j.exit_code, j.failure_code, j.failure_detail \
             FROM service_replicas p LEFT JOIN jobs j ON j.id = p.job_id WHERE ",
            $condition,
            " ORDER BY p.created_at, p.job_id"
        )
    };
}

macro_rules! select_revisions {
    ($condition:literal) => {
        concat!(
            "SELECT r.id, r.service_id, r.number, r.state, r.detail, r.weight_percent, r.goal_percent, r.held, \
             r.returns, r.before_number FROM service_revisions r WHERE ",
            $condition,
            " AND (r.state NOT IN ('retired', 'rolled_back') OR EXISTS (SELECT 1 FROM service_replicas p \
             WHERE p.revision_id = r.id AND p.ended_at IS NULL)) ORDER BY r.service_id, r.number"
        )
    };
}

/// Reads services with their revisions and replicas.
pub async fn read_world(tx: &mut Tx<'_>, services: &[ServiceId]) -> Result<LoopWorld, StoreError> {
    let ids: Vec<String> = services.iter().map(ToString::to_string).collect();
    let sqlite = select_loop_services!("IN (SELECT value FROM json_each($1))");
    let postgres = select_loop_services!("= ANY($1)");
    let found = list_in!(tx, LoopService, sqlite, postgres, ids.clone())?;
    let sqlite = select_revisions!("r.service_id IN (SELECT value FROM json_each($1))");
    let postgres = select_revisions!("r.service_id = ANY($1)");
    let revisions = list_in!(tx, LoopRevision, sqlite, postgres, ids.clone())?;
    let sqlite = select_replicas!("p.service_id IN (SELECT value FROM json_each($1)) AND p.ended_at IS NULL");
    let postgres = select_replicas!("p.service_id = ANY($1) AND p.ended_at IS NULL");
    let mut replicas = list_in!(tx, LoopReplica, sqlite, postgres, ids)?;
    let active = revisions
        .iter()
        .filter(|row| !matches!(row.state, RevisionState::Retired | RevisionState::RolledBack))
        .map(|row| row.id.to_string());
    let active: Vec<String> = active.collect();
    let sqlite =
        select_replicas!("p.revision_id IN (SELECT value FROM json_each($1)) AND p.ended_at IS NOT NULL");
    let postgres = select_replicas!("p.revision_id = ANY($1) AND p.ended_at IS NOT NULL");
    replicas.extend(list_in!(tx, LoopReplica, sqlite, postgres, active)?);
    Ok(LoopWorld { services: found, revisions, replicas })
}

/// Finds the specification of a revision.
pub async fn find_spec(tx: &mut Tx<'_>, revision: RevisionId) -> Result<Option<NewRevision>, StoreError> {
    type Row = (RevisionId, JsonColumn<NewRevision>);
    let row = find!(tx, Row, "SELECT id, spec FROM service_revisions WHERE id = $1", revision)?;
    Ok(row.map(|(_, spec)| spec.0))
}

/// Finds what the start of a replica needs; `None` for another job.
pub async fn find_start(tx: &mut Tx<'_>, job: JobId) -> Result<Option<ReplicaTerms>, StoreError> {
    type Row = (RevisionId, JsonColumn<NewRevision>);
    let sql = "SELECT r.id, r.spec FROM service_replicas p JOIN service_revisions r ON r.id = p.revision_id \
               WHERE p.job_id = $1";
    let row = find!(tx, Row, sql, job)?;
    Ok(row.map(|(_, JsonColumn(spec))| ReplicaTerms {
        port: spec.port,
        http2: spec.replica_protocol == ReplicaProtocol::Http2,
        readiness_path: spec.readiness_path,
        concurrency: spec.concurrency,
    }))
}

/// Records whether an attempt of a replica is ready. Returns the service if that changed.
pub async fn set_ready(
    tx: &mut Tx<'_>,
    job: JobId,
    attempt: i64,
    ready: bool,
    now: Timestamp,
) -> Result<Option<ServiceId>, StoreError> {
    let changed = if ready {
        let sql = "UPDATE service_replicas SET ready_attempt = $2, ready_since = $3, \
                   first_ready_at = COALESCE(first_ready_at, $3), unready_since = NULL \
                   WHERE job_id = $1 AND ended_at IS NULL AND (ready_attempt IS NULL OR ready_attempt < $2)";
        exec!(tx, sql, job, attempt, now)?
    } else {
        let sql = "UPDATE service_replicas SET ready_attempt = NULL, ready_since = NULL, unready_since = $3 \
                   WHERE job_id = $1 AND ready_attempt = $2";
        exec!(tx, sql, job, attempt, now)?
    };
    if changed == 0 {
        return Ok(None);
    }
    let sql = "SELECT service_id, job_id FROM service_replicas WHERE job_id = $1";
    Ok(find!(tx, (ServiceId, JobId), sql, job)?.map(|(service, _)| service))
}

/// Adds a replica before the submission of its job.
pub async fn insert(
    tx: &mut Tx<'_>,
    job: JobId,
    service: &LoopService,
    revision: RevisionId,
    now: Timestamp,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO service_replicas (job_id, service_id, revision_id, org_id, created_at) \
               VALUES ($1, $2, $3, $4, $5)";
    exec!(tx, sql, job, service.id, revision, service.org_id, now)?;
    // Its charges count for the promise of the service after the row of the replica is deleted.
    let sql = "INSERT INTO service_jobs (job_id, service_id, created_at) VALUES ($1, $2, $3)";
    exec!(tx, sql, job, service.id, now).map(|_| ())
}

/// Begins the drain of a replica. A failed one was not ready in time.
pub async fn drain(tx: &mut Tx<'_>, job: JobId, failed: bool, now: Timestamp) -> Result<(), StoreError> {
    let sql = "UPDATE service_replicas SET draining_since = COALESCE(draining_since, $2), failed = $3 \
               WHERE job_id = $1 AND ended_at IS NULL";
    exec!(tx, sql, job, now, failed).map(|_| ())
}

/// Records the end of a replica, and deletes the oldest ended ones of its revision.
pub async fn end(
    tx: &mut Tx<'_>,
    (job, revision): (JobId, RevisionId),
    failed: bool,
    now: Timestamp,
) -> Result<(), StoreError> {
    let sql = "UPDATE service_replicas SET ended_at = $2, failed = $3, ready_attempt = NULL, ready_since = NULL \
               WHERE job_id = $1 AND ended_at IS NULL";
    exec!(tx, sql, job, now, failed)?;
    let sql = "DELETE FROM service_replicas WHERE revision_id = $1 AND ended_at IS NOT NULL AND job_id NOT IN \
               (SELECT job_id FROM service_replicas WHERE revision_id = $1 AND ended_at IS NOT NULL \
               ORDER BY created_at DESC, job_id DESC LIMIT $2)";
    exec!(tx, sql, revision, KEPT_ENDED).map(|_| ())
}

/// Writes the state of a revision in its rollout. The end of its way to become live removes its keys.
pub async fn update_revision(tx: &mut Tx<'_>, row: &LoopRevision) -> Result<(), StoreError> {
    let sql = "UPDATE service_revisions SET state = $2, detail = $3, weight_percent = $4, goal_percent = $5, \
               held = $6, returns = $7, before_number = $8, \
               canary_keys = CASE WHEN $2 IN ('staging', 'canary') THEN canary_keys ELSE '[]' END WHERE id = $1";
    exec!(
        tx,
        sql,
        row.id,
        row.state,
        &row.detail,
        row.weight_percent,
        row.goal_percent,
        row.held,
        row.returns,
        row.before_number
    )
    .map(|_| ())
}

/// Writes the state of a service, the last decision about its replicas, and its wait for the organization itself.
pub async fn update_service(tx: &mut Tx<'_>, row: &LoopService) -> Result<(), StoreError> {
    let sql = "UPDATE services SET state = $2, detail = $3, decision = $4, own_wait_until = $5 WHERE id = $1";
    exec!(tx, sql, row.id, row.state, &row.detail, &row.decision, row.own_wait_until).map(|_| ())
}

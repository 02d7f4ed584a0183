//! Services that are not deleted, with their hosts and open replicas.

use berth_service_types::revisions::RolloutRule;
use berth_service_types::scaling::{Scaling, ScalingDecision};
use berth_service_types::services::{ServiceAccess, ServiceModel, ServiceProtocol, ServiceState};
use berth_types::ids::{JobId, OrgId, RevisionId, ServiceId};
use berth_types::jobs::JobState;
use berth_types::lists::ListOptions;
use berth_types::time::Timestamp;

use super::{JsonColumn, StoreError, Tx};

/// The last decision about the number of replicas; `None` before the first, with an empty text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoredDecision(pub Option<ScalingDecision>);

impl TryFrom<String> for StoredDecision {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self(None));
        }
        serde_json::from_str(&text).map(|decision| Self(Some(decision))).map_err(|e| e.to_string())
    }
}

#[derive(Debug, Clone, sqlx::FromRow)]
pub struct StoredService {
    pub id: ServiceId,
    pub org_id: OrgId,
    /// The slug of the organization.
    pub org_slug: String,
    pub name: String,
    pub protocol: ServiceProtocol,
    pub access: ServiceAccess,
    pub hosts: JsonColumn<Vec<String>>,
    pub models: JsonColumn<Vec<ServiceModel>>,
    pub max_body_bytes: i64,
    pub scaling: JsonColumn<Scaling>,
    pub rollout: JsonColumn<RolloutRule>,
    pub stopped: bool,
    pub state: ServiceState,
    /// The reason for the state; empty without one.
    pub detail: String,
    #[sqlx(try_from = "String")]
    pub decision: StoredDecision,
    pub nano_per_prompt_token: i64,
    pub nano_per_completion_token: i64,
    /// One more with each change.
    pub version: i64,
    pub created_at: Timestamp,
    pub created_by: String,
}

macro_rules! select_services {
    ($rest:literal) => {
        concat!(
            "SELECT s.id, s.org_id, o.slug AS org_slug, s.name, s.protocol, s.access, s.hosts, s.models, \
             s.max_body_bytes, s.scaling, s.rollout, s.stopped, s.state, s.detail, s.decision, s.nano_per_prompt_token, \
             s.nano_per_completion_token, s.version, s.created_at, s.created_by \
             FROM services s JOIN orgs o ON o.id = s.org_id ",
            $rest
        )
    };
}

/// The texts of ids for a list in a statement.
pub(crate) fn texts<T: ToString>(ids: &[T]) -> Vec<String> {
    ids.iter().map(ToString::to_string).collect()
}

/// Adds a service. Its slug is that of its organization and is not stored.
///
/// # Errors
/// [`StoreError::Duplicate`] if the organization has a service with this name.
pub async fn insert(tx: &mut Tx<'_>, row: &StoredService) -> Result<(), StoreError> {
    let sql = "INSERT INTO services (id, org_id, name, protocol, access, hosts, models, max_body_bytes, scaling, \
               stopped, state, detail, nano_per_prompt_token, nano_per_completion_token, version, created_at, created_by, \
               rollout) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)";
    exec!(
        tx,
        sql,
        row.id,
        row.org_id,
        &row.name,
        row.protocol,
        row.access,
        &row.hosts,
        &row.models,
        row.max_body_bytes,
        &row.scaling,
        row.stopped,
        row.state,
        &row.detail,
        row.nano_per_prompt_token,
        row.nano_per_completion_token,
        row.version,
        row.created_at,
        &row.created_by,
        &row.rollout
    )?;
    put_hosts(tx, row.id, &row.hosts).await
}

/// Finds a service of this organization.
pub async fn find(tx: &mut Tx<'_>, org: OrgId, id: ServiceId) -> Result<Option<StoredService>, StoreError> {
    let sql = select_services!("WHERE s.org_id = $1 AND s.id = $2 AND s.deleted_at IS NULL");
    find!(tx, StoredService, sql, org, id)
}

/// Finds a service of any organization.
pub async fn find_any(tx: &mut Tx<'_>, id: ServiceId) -> Result<Option<StoredService>, StoreError> {
    find!(tx, StoredService, select_services!("WHERE s.id = $1 AND s.deleted_at IS NULL"), id)
}

/// Returns true for a service of this organization, also for a deleted one.
pub async fn is_of_org(tx: &mut Tx<'_>, org: OrgId, id: ServiceId) -> Result<bool, StoreError> {
    let sql = "SELECT id FROM services WHERE org_id = $1 AND id = $2";
    Ok(find!(tx, (ServiceId,), sql, org, id)?.is_some())
}

/// Returns true if the organization has a service with this name.
pub async fn has_name(tx: &mut Tx<'_>, org: OrgId, name: &str) -> Result<bool, StoreError> {
    let sql = "SELECT id FROM services WHERE org_id = $1 AND name = $2 AND deleted_at IS NULL";
    Ok(find!(tx, (ServiceId,), sql, org, name)?.is_some())
}

/// Counts the services of an organization (`None`: of all).
pub async fn count(tx: &mut Tx<'_>, org: Option<OrgId>) -> Result<i64, StoreError> {
    let found = match org {
        Some(org) => {
            let sql =
                "SELECT CAST(COUNT(*) AS BIGINT) FROM services WHERE org_id = $1 AND deleted_at IS NULL";
            find!(tx, (i64,), sql, org)?
        }
        None => find!(tx, (i64,), "SELECT CAST(COUNT(*) AS BIGINT) FROM services WHERE deleted_at IS NULL")?,
    };
    Ok(found.map_or(0, |(count,)| count))
}

/// The text of a query for a page of services, after its SELECT.
macro_rules! services_page {
    ($org:expr, $options:expr, $($select:tt)+) => {
        org_page_sql!(
            $org,
            $options.sort,
            [$($select)+],
            "s.org_id",
            " AND s.deleted_at IS NULL",
            "s.id",
            "$2",
            "$3"
        )
    };
}

/// Lists a page of the services of an organization (`None`: of all) by id. A corrupt row is left out.
pub async fn list_page(
    tx: &mut Tx<'_>,
    org: Option<OrgId>,
    options: &ListOptions<ServiceId>,
) -> Result<Vec<StoredService>, StoreError> {
    let sql = services_page!(org, options, select_services!(""));
    let org = org.map_or_else(String::new, |org| org.to_string());
    list_readable!(tx, StoredService, sql, &org, options.cursor_text(), options.rows())
}

/// Lists the ids of the same page, also those of corrupt rows: the next page follows them.
pub async fn list_page_ids(
    tx: &mut Tx<'_>,
    org: Option<OrgId>,
    options: &ListOptions<ServiceId>,
) -> Result<Vec<ServiceId>, StoreError> {
    let sql = services_page!(org, options, "SELECT s.id FROM services s ");
    let org = org.map_or_else(String::new, |org| org.to_string());
    let rows = list!(tx, (ServiceId,), sql, &org, options.cursor_text(), options.rows())?;
    Ok(rows.into_iter().map(|(id,)| id).collect())
}

/// Lists the models of the services of an organization.
pub async fn list_models(
    tx: &mut Tx<'_>,
    org: OrgId,
) -> Result<Vec<(ServiceId, JsonColumn<Vec<ServiceModel>>)>, StoreError> {
    let sql = "SELECT id, models FROM services WHERE org_id = $1 AND deleted_at IS NULL ORDER BY id";
    list!(tx, (ServiceId, JsonColumn<Vec<ServiceModel>>), sql, org)
}

/// Lists the models of the public services of all organizations.
pub async fn list_public_models(
    tx: &mut Tx<'_>,
) -> Result<Vec<(ServiceId, JsonColumn<Vec<ServiceModel>>)>, StoreError> {
    let sql = "SELECT id, models FROM services WHERE deleted_at IS NULL AND access = 'public' ORDER BY id";
    list!(tx, (ServiceId, JsonColumn<Vec<ServiceModel>>), sql)
}

/// Replaces the host names of a service.
async fn put_hosts(tx: &mut Tx<'_>, id: ServiceId, hosts: &[String]) -> Result<(), StoreError> {
    exec!(tx, "DELETE FROM service_hosts WHERE service_id = $1", id)?;
    for host in hosts {
        exec!(tx, "INSERT INTO service_hosts (host, service_id) VALUES ($1, $2)", host, id)?;
    }
    Ok(())
}

/// Stores access, hosts, models, scaling, rollout and `stopped` of a service, and raises its version. Returns true if the stored
/// version was still that of `row`.
pub async fn update(tx: &mut Tx<'_>, row: &StoredService) -> Result<bool, StoreError> {
    let sql = "UPDATE services SET access = $3, hosts = $4, scaling = $5, stopped = $6, models = $7, \
               rollout = $8, version = version + 1 WHERE id = $1 AND version = $2 AND deleted_at IS NULL";
    let changed = exec!(
        tx,
        sql,
        row.id,
        row.version,
        row.access,
        &row.hosts,
        &row.scaling,
        row.stopped,
        &row.models,
        &row.rollout
    )? == 1;
    if changed {
        put_hosts(tx, row.id, &row.hosts).await?;
    }
    Ok(changed)
}

/// Records that a service was public until now.
pub async fn end_public(tx: &mut Tx<'_>, id: ServiceId, now: Timestamp) -> Result<(), StoreError> {
    exec!(tx, "UPDATE services SET public_until = $2 WHERE id = $1", id, now).map(|_| ())
}

/// Raises the version of a service after a change of its revisions.
pub async fn raise_version(tx: &mut Tx<'_>, id: ServiceId) -> Result<(), StoreError> {
    exec!(tx, "UPDATE services SET version = version + 1 WHERE id = $1", id).map(|_| ())
}

/// Sets the price of tokens in nano-units.
pub async fn set_token_price(
    tx: &mut Tx<'_>,
    id: ServiceId,
    (prompt, completion): (i64, i64),
) -> Result<(), StoreError> {
    let sql = "UPDATE services SET nano_per_prompt_token = $2, nano_per_completion_token = $3, \
               version = version + 1 WHERE id = $1";
    exec!(tx, sql, id, prompt, completion).map(|_| ())
}

/// Deletes a service. Its hosts are free at once. Returns true if it existed.
pub async fn delete(tx: &mut Tx<'_>, org: OrgId, id: ServiceId, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "UPDATE services SET deleted_at = $3, hosts = '[]', version = version + 1 \
               WHERE org_id = $1 AND id = $2 AND deleted_at IS NULL";
    let existed = exec!(tx, sql, org, id, now)? == 1;
    if existed {
        put_hosts(tx, id, &[]).await?;
    }
    Ok(existed)
}

/// A replica that has not ended, with its job.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct StoredReplicaView {
    pub job_id: JobId,
    pub service_id: ServiceId,
    pub revision_id: RevisionId,
    pub revision_number: i64,
    /// Absent before the submission of the job.
    pub state: Option<JobState>,
    pub attempt: Option<i64>,
    pub ready_attempt: Option<i64>,
    pub ready_since: Option<Timestamp>,
    pub draining_since: Option<Timestamp>,
    pub created_at: Timestamp,
}

/// Lists the replicas of services that have not ended, oldest first.
pub async fn list_replicas(
    tx: &mut Tx<'_>,
    services: &[ServiceId],
) -> Result<Vec<StoredReplicaView>, StoreError> {
    macro_rules! select_replicas {
        ($condition:literal) => {
            concat!(
                "SELECT r.job_id, r.service_id, r.revision_id, v.number AS revision_number, j.state, j.attempt, \
                 r.ready_attempt, r.ready_since, r.draining_since, r.created_at FROM service_replicas r \
                 JOIN service_revisions v ON v.id = r.revision_id LEFT JOIN jobs j ON j.id = r.job_id \
                 WHERE r.ended_at IS NULL AND r.service_id ",
                $condition,
                " ORDER BY r.created_at, r.job_id"
            )
        };
    }
    list_in!(
        tx,
        StoredReplicaView,
        select_replicas!("IN (SELECT value FROM json_each($1))"),
        select_replicas!("= ANY($1)"),
        texts(services)
    )
}

/// Lists the names of the nodes of placed replicas, by job and rank.
pub async fn list_replica_nodes(
    tx: &mut Tx<'_>,
    services: &[ServiceId],
) -> Result<Vec<(JobId, String)>, StoreError> {
    macro_rules! select_nodes {
        ($condition:literal) => {
            concat!(
                "SELECT a.job_id, n.name FROM service_replicas r JOIN jobs j ON j.id = r.job_id \
                 JOIN attempts a ON a.job_id = j.id AND a.number = j.attempt JOIN nodes n ON n.id = a.node_id \
                 WHERE r.ended_at IS NULL AND j.state <> 'queued' AND r.service_id ",
                $condition,
                " ORDER BY a.job_id, a.rank"
            )
        };
    }
    list_in!(
        tx,
        (JobId, String),
        select_nodes!("IN (SELECT value FROM json_each($1))"),
        select_nodes!("= ANY($1)"),
        texts(services)
    )
}

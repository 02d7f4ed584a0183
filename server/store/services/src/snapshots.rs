//! The rows of the snapshot for gateways. A corrupt row is left out.

use berth_service_types::revisions::ReplicaProtocol;
use berth_service_types::services::{ServiceAccess, ServiceModel, ServiceProtocol};
use berth_types::ids::{InferenceKeyId, JobId, NodeId, OrgId, RevisionId, ServiceId};
use berth_types::time::Timestamp;

use super::types::JsonColumn;
use super::{StoreError, Tx};

#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct ServiceRow {
    pub id: ServiceId,
    pub org_id: OrgId,
    /// The slug of the organization.
    pub org_slug: String,
    pub name: String,
    pub protocol: ServiceProtocol,
    pub access: ServiceAccess,
    pub models: JsonColumn<Vec<ServiceModel>>,
    pub max_body_bytes: i64,
    pub nano_per_prompt_token: i64,
    pub nano_per_completion_token: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct HostRow {
    pub host: String,
    pub service_id: ServiceId,
    /// The organization of the service.
    pub org_id: OrgId,
}

#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct RevisionRow {
    pub id: RevisionId,
    pub service_id: ServiceId,
    pub org_id: OrgId,
    pub weight_percent: i64,
    pub port: i64,
    pub concurrency: i64,
    pub replica_protocol: ReplicaProtocol,
    /// The keys whose requests all go to this revision; empty for all but a canary.
    pub canary_keys: JsonColumn<Vec<InferenceKeyId>>,
}

/// The first rank of a replica whose worker reports it ready.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct ReplicaRow {
    pub job_id: JobId,
    pub service_id: ServiceId,
    pub revision_id: RevisionId,
    pub org_id: OrgId,
    pub attempt: i64,
    pub ready_since: Timestamp,
    pub draining_since: Option<Timestamp>,
    pub node_id: NodeId,
    /// The address of the node for connections.
    pub address: String,
    pub inference_port: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct KeyRow {
    pub id: InferenceKeyId,
    pub number: i64,
    pub org_id: OrgId,
    pub secret_hash: String,
    pub models: JsonColumn<Vec<String>>,
    pub requests_per_minute: Option<i64>,
    pub tokens_per_minute: Option<i64>,
    pub expires_at: Option<Timestamp>,
}

/// Lists the services that are neither deleted nor stopped.
pub async fn list_services(tx: &mut Tx<'_>) -> Result<Vec<ServiceRow>, StoreError> {
    let sql = "SELECT s.id, s.org_id, o.slug AS org_slug, s.name, s.protocol, s.access, s.models, s.max_body_bytes, \
               s.nano_per_prompt_token, s.nano_per_completion_token FROM services s JOIN orgs o ON o.id = s.org_id \
               WHERE s.deleted_at IS NULL AND NOT s.stopped ORDER BY s.id";
    list_readable!(tx, ServiceRow, sql)
}

/// Lists the host names of services, with and without a proof.
pub async fn list_hosts(tx: &mut Tx<'_>) -> Result<Vec<HostRow>, StoreError> {
    let sql = "SELECT h.host, h.service_id, s.org_id FROM service_hosts h JOIN services s ON s.id = h.service_id \
               ORDER BY h.host, h.service_id";
    list_readable!(tx, HostRow, sql)
}

/// Lists the revisions with weight or with replicas, by service, the greatest weight first.
pub async fn list_revisions(tx: &mut Tx<'_>) -> Result<Vec<RevisionRow>, StoreError> {
    let sql = "SELECT r.id, r.service_id, r.org_id, r.weight_percent, r.port, r.concurrency, r.replica_protocol, \
               CASE WHEN r.state = 'canary' THEN r.canary_keys ELSE '[]' END AS canary_keys \
               FROM service_revisions r JOIN services s ON s.id = r.service_id WHERE s.deleted_at IS NULL AND NOT s.stopped \
               AND (r.weight_percent > 0 OR r.id IN \
               (SELECT p.revision_id FROM service_replicas p WHERE p.ended_at IS NULL)) \
               ORDER BY r.service_id, r.weight_percent DESC, r.number DESC";
    list_readable!(tx, RevisionRow, sql)
}

/// Lists the ready replicas whose attempt has not ended, on nodes with a listener for gateways.
pub async fn list_replicas(tx: &mut Tx<'_>) -> Result<Vec<ReplicaRow>, StoreError> {
    let sql = "SELECT p.job_id, p.service_id, p.revision_id, p.org_id, a.number AS attempt, p.ready_since, p.draining_since, \
               n.id AS node_id, n.address, n.inference_port FROM service_replicas p \
               JOIN attempts a ON a.job_id = p.job_id AND a.number = p.ready_attempt AND a.rank = 0 \
               JOIN nodes n ON n.id = a.node_id WHERE p.ended_at IS NULL AND p.ready_since IS NOT NULL \
               AND a.is_open AND NOT a.ended AND n.inference_port > 0 ORDER BY p.job_id";
    list_readable!(tx, ReplicaRow, sql)
}

/// Lists the keys that are not revoked, and not expired before `since`.
pub async fn list_keys(tx: &mut Tx<'_>, since: Timestamp) -> Result<Vec<KeyRow>, StoreError> {
    let sql = "SELECT id, number, org_id, secret_hash, models, requests_per_minute, tokens_per_minute, expires_at \
               FROM inference_keys WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $1) ORDER BY number";
    list_readable!(tx, KeyRow, sql, since)
}

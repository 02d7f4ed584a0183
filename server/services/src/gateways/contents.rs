//! The contents of a snapshot, from the rows of the database. A row that no gateway could read is left out.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};

use berth_service_types::revisions;
use berth_service_types::services::{ServiceAccess, ServiceProtocol};
use berth_serving::snapshot::{
    Access, Address, Allowed, Key, KeyHash, MAX_REVISION_REPLICAS, MAX_REVISIONS, Model, Name, Protocol,
    RateLimits, Replica, ReplicaId, ReplicaProtocol, ReplicaToken, Revision, Service, Snapshot, VERSION,
};
use berth_store::services::gateways;
use berth_store::services::snapshots::{self, HostRow, KeyRow, ReplicaRow, RevisionRow, ServiceRow};
use berth_store::{StoreError, Tx};
use berth_types::ids::{InferenceKeyId, JobId, OrgId, RevisionId, ServiceId};
use berth_types::time::Timestamp;

use crate::hosts::owners::list_confirmed;

/// The rows of a snapshot. Equal rows make equal snapshots, except for their time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Rows {
    pub services: Vec<ServiceRow>,
    pub hosts: Vec<HostRow>,
    pub revisions: Vec<RevisionRow>,
    pub replicas: Vec<ReplicaRow>,
    pub keys: Vec<KeyRow>,
    /// The numbers of the gateways: a gateway learns its own from a snapshot.
    pub gateways: Vec<i64>,
}

/// A caller hears for a week that its key has expired. After that the key is unknown.
const KEPT_EXPIRED_S: i64 = 7 * 86_400;

impl Rows {
    pub async fn read(tx: &mut Tx<'_>, now: Timestamp) -> Result<Self, StoreError> {
        Ok(Self {
            services: snapshots::list_services(tx).await?,
            hosts: list_confirmed(tx).await?,
            revisions: snapshots::list_revisions(tx).await?,
            replicas: snapshots::list_replicas(tx).await?,
            keys: snapshots::list_keys(tx, now.plus_seconds(-KEPT_EXPIRED_S)).await?,
            gateways: gateways::list_numbers(tx).await?,
        })
    }
}

/// The facts of a snapshot that are in no row.
pub(super) struct Frame<'a> {
    pub number: u64,
    pub now: Timestamp,
    /// The certificate of the authority as PEM.
    pub authority: String,
    /// The token of the first rank of an attempt.
    pub token: &'a dyn Fn(JobId, u32) -> String,
}

/// The snapshot of some rows.
pub(super) fn build(rows: &Rows, frame: Frame<'_>) -> Snapshot {
    let mut replicas = replicas(rows, &frame);
    let owners: HashMap<InferenceKeyId, OrgId> = rows.keys.iter().map(|row| (row.id, row.org_id)).collect();
    let mut revisions: HashMap<ServiceId, Vec<Revision>> = HashMap::new();
    for row in &rows.revisions {
        let of_service = revisions.entry(row.service_id).or_default();
        let Ok(weight_percent) = u8::try_from(row.weight_percent) else { continue };
        if of_service.len() < MAX_REVISIONS {
            let replicas = replicas.remove(&row.id).unwrap_or_default();
            of_service.push(Revision {
                id: row.id,
                weight_percent,
                replica_protocol: replica_protocol(row.replica_protocol),
                pinned_keys: pinned_keys(row, &owners),
                replicas,
            });
        }
    }
    let mut hosts: HashMap<ServiceId, Vec<&str>> = HashMap::new();
    for row in &rows.hosts {
        hosts.entry(row.service_id).or_default().push(&row.host);
    }
    let mut services = Vec::with_capacity(rows.services.len());
    for row in &rows.services {
        let hosts = hosts.remove(&row.id).unwrap_or_default();
        match service(row, &hosts, revisions.remove(&row.id).unwrap_or_default()) {
            Some(service) => services.push(service),
            None => {
                tracing::error!(service = %row.id, "a service is not in the snapshot: it has a bad field or revision")
            }
        }
    }
    let mut keys = Vec::with_capacity(rows.keys.len());
    for row in &rows.keys {
        match key(row) {
            Some(key) => keys.push(key),
            None => tracing::error!(key = %row.id, "a key is not in the snapshot: it has a bad field"),
        }
    }
    Snapshot {
        version: VERSION,
        number: frame.number,
        gateway_number: 0,
        authority: frame.authority,
        services,
        keys,
    }
}

/// The keys of a canary, each once. A revoked key has no row.
fn pinned_keys(row: &RevisionRow, owners: &HashMap<InferenceKeyId, OrgId>) -> Vec<InferenceKeyId> {
    let known = row.canary_keys.iter().copied().filter(|key| owners.get(key) == Some(&row.org_id));
    known.collect::<BTreeSet<InferenceKeyId>>().into_iter().collect()
}

const fn replica_protocol(stored: revisions::ReplicaProtocol) -> ReplicaProtocol {
    match stored {
        revisions::ReplicaProtocol::Http1 => ReplicaProtocol::Http1,
        revisions::ReplicaProtocol::Http2 => ReplicaProtocol::Http2,
    }
}

/// The replicas by revision. A node whose address is no IP address is unknown to gateways.
fn replicas(rows: &Rows, frame: &Frame<'_>) -> HashMap<RevisionId, Vec<Replica>> {
    let revisions: HashMap<RevisionId, &RevisionRow> =
        rows.revisions.iter().map(|row| (row.id, row)).collect();
    let mut all: HashMap<RevisionId, Vec<Replica>> = HashMap::new();
    for row in &rows.replicas {
        let Some(revision) = revisions.get(&row.revision_id) else { continue };
        let Some(replica) = replica(row, revision, frame) else {
            tracing::warn!(job = %row.job_id, node = %row.node_id, "a replica is not in the snapshot: its node has no IP address");
            continue;
        };
        let of_revision = all.entry(row.revision_id).or_default();
        if of_revision.len() < MAX_REVISION_REPLICAS {
            of_revision.push(replica);
        }
    }
    all
}

fn replica(row: &ReplicaRow, revision: &RevisionRow, frame: &Frame<'_>) -> Option<Replica> {
    let attempt = u32::try_from(row.attempt).ok()?;
    let address: IpAddr = row.address.parse().ok()?;
    Some(Replica {
        id: ReplicaId { job: row.job_id, attempt, rank: 0 },
        org: row.org_id,
        node: row.node_id,
        address: SocketAddr::new(address, u16::try_from(row.inference_port).ok()?),
        port: u16::try_from(revision.port).ok()?,
        token: ReplicaToken::try_from((frame.token)(row.job_id, attempt)).ok()?,
        ready_for_ms: u64::try_from(frame.now.millis_since(row.ready_since)).unwrap_or(0),
        concurrency: u32::try_from(revision.concurrency).ok()?,
        draining: row.draining_since.is_some(),
    })
}

fn name(text: &str) -> Option<Name> {
    Name::try_from(text.to_owned()).ok()
}

fn service(row: &ServiceRow, hosts: &[&str], revisions: Vec<Revision>) -> Option<Service> {
    // A revision that cannot be read is absent. Gateways take no snapshot with a part of the weights.
    let weights: u32 = revisions.iter().map(|revision| u32::from(revision.weight_percent)).sum();
    if weights != 0 && weights != 100 {
        return None;
    }
    let mut addresses = vec![Address::Prefix(name(&format!("/s/{}/{}", row.org_slug, row.name))?)];
    for host in hosts {
        addresses.push(Address::Host(name(host)?));
    }
    let mut models = Vec::new();
    for model in row.models.iter() {
        models.push(Model { name: name(&model.name)?, context_tokens: model.context_tokens });
    }
    Some(Service {
        id: row.id,
        org: row.org_id,
        name: name(&row.name)?,
        access: match row.access {
            ServiceAccess::Public => Access::Public,
            ServiceAccess::Organization => Access::Organization,
        },
        protocol: match row.protocol {
            ServiceProtocol::Http => Protocol::Http,
            ServiceProtocol::OpenAi => Protocol::OpenAi,
        },
        addresses,
        models,
        max_body_bytes: u64::try_from(row.max_body_bytes).ok()?,
        nano_per_prompt_token: u64::try_from(row.nano_per_prompt_token).ok()?,
        nano_per_completion_token: u64::try_from(row.nano_per_completion_token).ok()?,
        revisions,
    })
}

/// A positive limit; absent without one.
fn limit(column: Option<i64>) -> Option<Option<u64>> {
    column.map(u64::try_from).transpose().ok()
}

fn key(row: &KeyRow) -> Option<Key> {
    let mut names = Vec::new();
    for allowed in row.models.iter() {
        names.push(name(allowed)?);
    }
    Some(Key {
        id: row.id,
        number: u64::try_from(row.number).ok()?,
        org: row.org_id,
        hash: KeyHash::try_from(row.secret_hash.clone()).ok()?,
        allowed: if names.is_empty() { Allowed::All } else { Allowed::Only(names) },
        limits: RateLimits {
            requests_per_minute: limit(row.requests_per_minute)?,
            tokens_per_minute: limit(row.tokens_per_minute)?,
        },
        expires_at: row.expires_at,
    })
}

//! The checks of a snapshot beyond its types.

use std::collections::{HashMap, HashSet};

use berth_types::ids::{InferenceKeyId, OrgId, RevisionId, ServiceId};

use super::{
    Access, Address, Key, MAX_BODY_BYTES, MAX_CONCURRENCY, MAX_CONTEXT_TOKENS, MAX_KEYS, MAX_REPLICAS,
    MAX_SERVICES, Protocol, Replica, ReplicaId, Revision, Service, Snapshot, VERSION,
};

/// The first fault of a snapshot. Its text has no secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotFault {
    #[error("the snapshot has more than 64 MiB")]
    TooLarge,
    #[error("the snapshot has version {0}, and this gateway reads another")]
    Version(u32),
    #[error("the snapshot is not readable at line {line}, column {column}")]
    Json { line: usize, column: usize },
    #[error("the snapshot has too many services, keys or replicas")]
    TooMany,
    #[error("service {0} is in the snapshot twice, or its name is")]
    RepeatedService(ServiceId),
    #[error("key {0} is in the snapshot twice, or its hash is")]
    RepeatedKey(InferenceKeyId),
    #[error("revision {0} is in the snapshot twice")]
    RepeatedRevision(RevisionId),
    #[error("a replica of revision {0} is in the snapshot twice")]
    RepeatedReplica(RevisionId),
    #[error("an address of service {0} is not valid, or another service has it")]
    Address(ServiceId),
    #[error("the models of service {0} do not fit its protocol, are not valid, or another service has one")]
    Models(ServiceId),
    #[error("the limit of bodies of service {0} is not valid")]
    BodyLimit(ServiceId),
    #[error("the weights of service {service} add up to {sum}, in place of 100 or 0")]
    Weights { service: ServiceId, sum: u32 },
    #[error("service {0} has a pin of another organization's key, or pins a key twice")]
    Pin(ServiceId),
    #[error("revision {0} has a replica of another organization")]
    ForeignReplica(RevisionId),
    #[error("a replica of revision {0} has a port or a concurrency that is not valid")]
    Replica(RevisionId),
    #[error("a rate limit of key {0} is zero or too large")]
    RateLimit(InferenceKeyId),
}

/// The most requests or tokens a minute of a key.
const MAX_RATE: u64 = 1_000_000_000_000;

pub fn validate(snapshot: &Snapshot) -> Result<(), SnapshotFault> {
    if snapshot.version != VERSION {
        return Err(SnapshotFault::Version(snapshot.version));
    }
    if snapshot.services.len() > MAX_SERVICES || snapshot.keys.len() > MAX_KEYS {
        return Err(SnapshotFault::TooMany);
    }
    let keys = check_keys(&snapshot.keys)?;
    let mut seen = Seen::default();
    for service in &snapshot.services {
        check_service(service, &mut seen)?;
        check_revisions(service, &keys, &mut seen)?;
    }
    if seen.replicas.len() > MAX_REPLICAS { Err(SnapshotFault::TooMany) } else { Ok(()) }
}

/// The ids, names and addresses that a snapshot has once only.
#[derive(Default)]
struct Seen<'a> {
    services: HashSet<ServiceId>,
    names: HashSet<(OrgId, &'a str)>,
    hosts: HashSet<&'a str>,
    prefixes: HashSet<&'a str>,
    models: HashSet<(OrgId, &'a str)>,
    public_models: HashSet<&'a str>,
    revisions: HashSet<RevisionId>,
    replicas: HashSet<ReplicaId>,
}

fn check_keys(keys: &[Key]) -> Result<HashMap<InferenceKeyId, OrgId>, SnapshotFault> {
    let mut orgs = HashMap::new();
    let mut hashes = HashSet::new();
    for key in keys {
        if orgs.insert(key.id, key.org).is_some() || !hashes.insert(key.hash.bytes()) {
            return Err(SnapshotFault::RepeatedKey(key.id));
        }
        let rates = [key.limits.requests_per_minute, key.limits.tokens_per_minute];
        if rates.into_iter().flatten().any(|rate| rate == 0 || rate > MAX_RATE) {
            return Err(SnapshotFault::RateLimit(key.id));
        }
    }
    Ok(orgs)
}

fn check_service<'a>(service: &'a Service, seen: &mut Seen<'a>) -> Result<(), SnapshotFault> {
    if !seen.services.insert(service.id) || !seen.names.insert((service.org, service.name.as_str())) {
        return Err(SnapshotFault::RepeatedService(service.id));
    }
    for address in &service.addresses {
        let fits = match address {
            Address::Host(host) => is_host(host.as_str()) && seen.hosts.insert(host.as_str()),
            Address::Prefix(prefix) => is_prefix(prefix.as_str()) && seen.prefixes.insert(prefix.as_str()),
        };
        if !fits {
            return Err(SnapshotFault::Address(service.id));
        }
    }
    if service.models.is_empty() != (service.protocol == Protocol::Http) {
        return Err(SnapshotFault::Models(service.id));
    }
    for model in &service.models {
        let name = model.name.as_str();
        let fits = (1..=MAX_CONTEXT_TOKENS).contains(&model.context_tokens)
            && seen.models.insert((service.org, name))
            && (service.access != Access::Public || seen.public_models.insert(name));
        if !fits {
            return Err(SnapshotFault::Models(service.id));
        }
    }
    if service.max_body_bytes == 0 || service.max_body_bytes > MAX_BODY_BYTES {
        return Err(SnapshotFault::BodyLimit(service.id));
    }
    Ok(())
}

fn check_revisions<'a>(
    service: &'a Service,
    keys: &HashMap<InferenceKeyId, OrgId>,
    seen: &mut Seen<'a>,
) -> Result<(), SnapshotFault> {
    let sum: u32 = service.revisions.iter().map(|r| u32::from(r.weight_percent)).sum();
    if sum != 0 && sum != 100 {
        return Err(SnapshotFault::Weights { service: service.id, sum });
    }
    let mut pinned = HashSet::new();
    for revision in &service.revisions {
        if !seen.revisions.insert(revision.id) {
            return Err(SnapshotFault::RepeatedRevision(revision.id));
        }
        for key in &revision.pinned_keys {
            // The key may be revoked by now: then no request comes with it.
            let foreign = keys.get(key).is_some_and(|org| *org != service.org);
            if foreign || !pinned.insert(*key) {
                return Err(SnapshotFault::Pin(service.id));
            }
        }
        for replica in &revision.replicas {
            check_replica(service, revision, replica, seen)?;
        }
    }
    Ok(())
}

fn check_replica(
    service: &Service,
    revision: &Revision,
    replica: &Replica,
    seen: &mut Seen<'_>,
) -> Result<(), SnapshotFault> {
    if replica.org != service.org {
        return Err(SnapshotFault::ForeignReplica(revision.id));
    }
    let fits = replica.port != 0
        && replica.address.port() != 0
        && (1..=MAX_CONCURRENCY).contains(&replica.concurrency);
    if !fits {
        return Err(SnapshotFault::Replica(revision.id));
    }
    if !seen.replicas.insert(replica.id) {
        return Err(SnapshotFault::RepeatedReplica(revision.id));
    }
    Ok(())
}

/// True for a host name in the form in which requests are looked up.
pub fn is_host(host: &str) -> bool {
    let label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    host.len() <= 253 && host.split('.').all(label)
}

/// True for whole segments of a path that hide no path of the gateway itself.
fn is_prefix(prefix: &str) -> bool {
    let Some(rest) = prefix.strip_prefix('/') else { return false };
    let segment = |segment: &str| {
        !segment.is_empty()
            && segment.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
            && !segment.bytes().all(|b| b == b'.')
    };
    rest.split('/').next() != Some("v1") && rest.split('/').all(segment)
}

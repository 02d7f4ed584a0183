//! Small snapshots for tests.

use berth_types::ids::{InferenceKeyId, JobId, NodeId, OrgId, RevisionId, ServiceId};
use uuid::Uuid;

use super::*;

pub fn name(text: &str) -> Name {
    Name::try_from(text.to_owned()).unwrap()
}

pub fn org(number: u128) -> OrgId {
    OrgId::from_uuid(Uuid::from_u128(number))
}

pub fn key_id(number: u128) -> InferenceKeyId {
    InferenceKeyId::from_uuid(Uuid::from_u128(number))
}

pub fn revision_id(number: u128) -> RevisionId {
    RevisionId::from_uuid(Uuid::from_u128(number))
}

pub fn replica_id(number: u128) -> ReplicaId {
    ReplicaId { job: JobId::from_uuid(Uuid::from_u128(number)), attempt: 1, rank: 0 }
}

/// A replica that has been ready for an hour.
pub fn replica(number: u128, org_number: u128, concurrency: u32) -> Replica {
    Replica {
        id: replica_id(number),
        org: org(org_number),
        node: NodeId::from_uuid(Uuid::from_u128(number)),
        address: SocketAddr::from(([10, 0, 0, 1], 8_443)),
        port: 8_000,
        token: ReplicaToken::try_from(format!("token-{number}")).unwrap(),
        ready_for_ms: 3_600_000,
        concurrency,
        draining: false,
    }
}

pub fn revision(number: u128, weight_percent: u8, replicas: Vec<Replica>) -> Revision {
    Revision {
        id: revision_id(number),
        weight_percent,
        replica_protocol: ReplicaProtocol::Http1,
        pinned_keys: Vec::new(),
        replicas,
    }
}

/// A service of an organization with the models of its name, without a revision.
pub fn service(number: u128, org_number: u128, text: &str, models: &[&str]) -> Service {
    Service {
        id: ServiceId::from_uuid(Uuid::from_u128(number)),
        org: org(org_number),
        name: name(text),
        access: Access::Organization,
        protocol: if models.is_empty() { Protocol::Http } else { Protocol::OpenAi },
        addresses: Vec::new(),
        models: models.iter().map(|model| Model { name: name(model), context_tokens: 4_096 }).collect(),
        max_body_bytes: 1_000,
        nano_per_prompt_token: 0,
        nano_per_completion_token: 0,
        revisions: Vec::new(),
    }
}

pub fn key(number: u128, org_number: u128, secret: &str) -> Key {
    Key {
        id: key_id(number),
        number: u64::try_from(number).unwrap(),
        org: org(org_number),
        hash: KeyHash::new(secret),
        allowed: Allowed::All,
        limits: RateLimits::default(),
        expires_at: None,
    }
}

pub fn snapshot(services: Vec<Service>, keys: Vec<Key>) -> Snapshot {
    Snapshot { version: VERSION, number: 1, gateway_number: 1, authority: String::new(), services, keys }
}

/// A valid snapshot with one of each.
pub fn small() -> Snapshot {
    let mut chat = service(1, 1, "chat", &["llama"]);
    chat.addresses = vec![Address::Host(name("chat.example.org")), Address::Prefix(name("/chat"))];
    chat.revisions = vec![revision(1, 90, vec![replica(1, 1, 4)]), revision(2, 10, vec![replica(2, 1, 4)])];
    chat.revisions[1].pinned_keys = vec![key_id(1)];
    snapshot(vec![chat, service(2, 2, "digits", &[])], vec![key(1, 1, "one"), key(2, 2, "two")])
}

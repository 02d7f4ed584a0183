//! The snapshot: the services, replicas and keys that a gateway has from the portal.
//!
//! A gateway that is cut off from the portal goes on with its last snapshot, so a snapshot is complete by
//! itself. A snapshot with a fault is refused as a whole, and the last one stays in force.

mod validation;

use std::fmt;
use std::net::SocketAddr;

use berth_types::ids::{InferenceKeyId, JobId, NodeId, OrgId, RevisionId, ServiceId};
use berth_types::time::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::bounded::list;

pub use crate::bounded::{MAX_NAME_BYTES, Name, NameError};
pub use validation::{SnapshotFault, is_host};

/// The version of the format. Each change of a field raises it.
pub const VERSION: u32 = 2;
/// Bytes of a snapshot as JSON.
pub const MAX_SNAPSHOT_BYTES: usize = 64 << 20;
/// Services of all organizations.
pub const MAX_SERVICES: usize = 10_000;
/// Keys of all organizations.
pub const MAX_KEYS: usize = 100_000;
/// Replicas of all services.
pub const MAX_REPLICAS: usize = 20_000;
/// Replicas of a revision.
pub const MAX_REVISION_REPLICAS: usize = 1_000;
/// Revisions of a service that have replicas or weight.
pub const MAX_REVISIONS: usize = 8;
/// Keys that are pinned to a revision.
pub const MAX_PINS: usize = 100;
/// Hosts and prefixes of a service.
pub const MAX_ADDRESSES: usize = 16;
/// Models of a service.
pub const MAX_MODELS: usize = 64;
/// Models and services in the list of a key.
pub const MAX_ALLOWED: usize = 100;
/// Bytes of a request's body that a service can permit.
pub const MAX_BODY_BYTES: u64 = 64 << 20;
/// Concurrent requests of one replica.
pub const MAX_CONCURRENCY: u32 = 10_000;
/// Tokens of a context.
pub const MAX_CONTEXT_TOKENS: u64 = 10_000_000;
/// Bytes of the token of a replica.
const MAX_TOKEN_BYTES: usize = 512;

/// All that a gateway knows of services.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    pub version: u32,
    /// Snapshots of one portal are numbered, and an older one never replaces a newer one.
    pub number: u64,
    /// The number of the gateway that this snapshot is for, in its blocks of credit.
    pub gateway_number: u64,
    /// The certificate of the authority of the workers, as PEM.
    pub authority: String,
    #[serde(deserialize_with = "list::<_, _, MAX_SERVICES>")]
    pub services: Vec<Service>,
    #[serde(deserialize_with = "list::<_, _, MAX_KEYS>")]
    pub keys: Vec<Key>,
}

/// The callers of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Everybody, without a key too.
    Public,
    /// Keys of its organization.
    Organization,
}

/// The language of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    Http,
    /// The HTTP interface of OpenAI: a request names its model, and an answer counts its tokens.
    #[serde(rename = "openai")]
    OpenAi,
}

/// An address of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Address {
    /// A host name in lower case, without a port.
    Host(Name),
    /// The begin of a path on the gateway's own host, such as `/digits`. It is removed from the request.
    Prefix(Name),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    pub name: Name,
    /// The most tokens of a prompt and its completion together.
    pub context_tokens: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    pub id: ServiceId,
    pub org: OrgId,
    /// The name, unique in its organization.
    pub name: Name,
    pub access: Access,
    pub protocol: Protocol,
    #[serde(deserialize_with = "list::<_, _, MAX_ADDRESSES>")]
    pub addresses: Vec<Address>,
    /// The models of an OpenAI service; a plain HTTP service has none.
    #[serde(deserialize_with = "list::<_, _, MAX_MODELS>")]
    pub models: Vec<Model>,
    pub max_body_bytes: u64,
    /// The price of tokens in nano-units of the currency.
    pub nano_per_prompt_token: u64,
    pub nano_per_completion_token: u64,
    #[serde(deserialize_with = "list::<_, _, MAX_REVISIONS>")]
    pub revisions: Vec<Revision>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Revision {
    pub id: RevisionId,
    /// The share of requests; the weights of a service add up to 100, or to 0 while it takes none.
    pub weight_percent: u8,
    pub replica_protocol: ReplicaProtocol,
    /// Keys whose requests all go to this revision.
    #[serde(deserialize_with = "list::<_, _, MAX_PINS>")]
    pub pinned_keys: Vec<InferenceKeyId>,
    #[serde(deserialize_with = "list::<_, _, MAX_REVISION_REPLICAS>")]
    pub replicas: Vec<Replica>,
}

/// The protocol between a gateway and the replicas of a revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplicaProtocol {
    Http1,
    /// HTTP/2 without negotiation.
    Http2,
}

/// The name of a replica: an attempt, and the rank that answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplicaId {
    pub job: JobId,
    pub attempt: u32,
    pub rank: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replica {
    pub id: ReplicaId,
    /// The organization of the job.
    pub org: OrgId,
    pub node: NodeId,
    /// The TLS listener of the node's worker.
    pub address: SocketAddr,
    /// The port in the attempt's network.
    pub port: u16,
    /// The right to reach this port through the worker.
    pub token: ReplicaToken,
    /// The milliseconds since its readiness, at the time of the snapshot.
    pub ready_for_ms: u64,
    /// The requests that each gateway sends to it at the same time.
    pub concurrency: u32,
    /// A draining replica gets no new request.
    pub draining: bool,
}

/// The secret of a replica for its worker.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct ReplicaToken(String);

impl ReplicaToken {
    /// The text for the worker. It must reach no log.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ReplicaToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReplicaToken")
    }
}

impl TryFrom<String> for ReplicaToken {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, &'static str> {
        if text.is_empty() || text.len() > MAX_TOKEN_BYTES || !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err("a token of a replica has 1 to 512 printable ASCII characters");
        }
        Ok(Self(text))
    }
}

impl From<ReplicaToken> for String {
    fn from(token: ReplicaToken) -> Self {
        token.0
    }
}

/// An inference key. A revoked key is absent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    pub id: InferenceKeyId,
    /// The number of the key in blocks of credit.
    pub number: u64,
    pub org: OrgId,
    pub hash: KeyHash,
    pub allowed: Allowed,
    pub limits: RateLimits,
    pub expires_at: Option<Timestamp>,
}

/// The models and services of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Allowed {
    All,
    /// These models, and plain HTTP services of these names.
    Only(#[serde(deserialize_with = "list::<_, _, MAX_ALLOWED>")] Vec<Name>),
}

impl Allowed {
    pub fn includes(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.iter().any(|known| known.as_str() == name),
        }
    }
}

/// The rates of a key; `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateLimits {
    pub requests_per_minute: Option<u64>,
    pub tokens_per_minute: Option<u64>,
}

/// The SHA-256 hash of the secret of a key. Comparisons read all bytes, so their time says nothing.
#[derive(Clone, Copy, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct KeyHash([u8; 32]);

impl KeyHash {
    pub fn new(secret: &str) -> Self {
        Self(Sha256::digest(secret.as_bytes()).into())
    }

    pub(crate) const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl PartialEq for KeyHash {
    fn eq(&self, other: &Self) -> bool {
        let difference = self.0.iter().zip(&other.0).fold(0_u8, |all, (a, b)| all | (a ^ b));
        std::hint::black_box(difference) == 0
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash")
    }
}

impl TryFrom<String> for KeyHash {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, &'static str> {
        let mut bytes = [0; 32];
        let read = hex::decode_to_slice(&text, &mut bytes);
        read.map(|()| Self(bytes)).map_err(|_| "a hash of a key has 64 hexadecimal digits")
    }
}

impl From<KeyHash> for String {
    fn from(hash: KeyHash) -> Self {
        hex::encode(hash.0)
    }
}

impl Snapshot {
    /// Reads and validates a snapshot.
    ///
    /// # Errors
    /// Too many bytes, another version, bad JSON, or a fault in the contents.
    pub fn from_json(text: &[u8]) -> Result<Self, SnapshotFault> {
        /// The version is read alone first, because another version can have other fields.
        #[derive(Deserialize)]
        struct Head {
            version: u32,
        }

        if text.len() > MAX_SNAPSHOT_BYTES {
            return Err(SnapshotFault::TooLarge);
        }
        let bad_json = |e: serde_json::Error| SnapshotFault::Json { line: e.line(), column: e.column() };
        let head: Head = serde_json::from_slice(text).map_err(bad_json)?;
        if head.version != VERSION {
            return Err(SnapshotFault::Version(head.version));
        }
        let snapshot: Self = serde_json::from_slice(text).map_err(bad_json)?;
        snapshot.validate()?;
        Ok(snapshot)
    }

    /// Checks what the types alone do not.
    ///
    /// # Errors
    /// The first fault.
    pub fn validate(&self) -> Result<(), SnapshotFault> {
        validation::validate(self)
    }
}

#[cfg(test)]
pub(crate) mod samples;
#[cfg(test)]
mod tests;

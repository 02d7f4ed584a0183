//! Types of services.

use berth_types::ids::{InferenceKeyId, JobId, OrgId, RevisionId, ServiceId};
use berth_types::jobs::JobState;
use berth_types::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::hosts::ServiceHost;
use crate::revisions::{NewRevision, RevisionState, RolloutRule};
use crate::scaling::{Scaling, ScalingDecision};

/// The callers of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ServiceAccess {
    /// Everybody who reaches a gateway, without a key.
    Public,
    /// Inference keys of the organization.
    #[default]
    Organization,
}

impl ServiceAccess {
    pub const ALL: [Self; 2] = [Self::Public, Self::Organization];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::Organization => "organization",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|access| access.name() == name)
    }
}

/// The protocol of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ServiceProtocol {
    /// Any HTTP, below the path of the service.
    #[default]
    Http,
    /// The HTTP interface of OpenAI: requests name a model, and answers count tokens.
    #[serde(rename = "openai")]
    OpenAi,
}

impl ServiceProtocol {
    pub const ALL: [Self; 2] = [Self::Http, Self::OpenAi];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::OpenAi => "openai",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|protocol| protocol.name() == name)
    }
}

/// The state of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ServiceState {
    /// It has no replica, and the first request starts one.
    Asleep,
    /// Its replicas start, and none is ready.
    Waking,
    /// It has as many ready replicas as it needs.
    Ready,
    /// It has ready replicas, but fewer than it needs, or its newest revision does not start.
    Degraded,
    /// It needs replicas, has none that is ready, and the last ones failed.
    Failed,
}

impl ServiceState {
    pub const ALL: [Self; 5] = [Self::Asleep, Self::Waking, Self::Ready, Self::Degraded, Self::Failed];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Asleep => "asleep",
            Self::Waking => "waking",
            Self::Ready => "ready",
            Self::Degraded => "degraded",
            Self::Failed => "failed",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

/// A model of an OpenAI service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ServiceModel {
    /// The name in requests: 1 to 100 printable ASCII characters without spaces; unique in the organization.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 100), regex(pattern = "^[!-~]+$")))]
    pub name: String,
    /// The most tokens of a prompt and its completion together, 1 to 10 million.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 10_000_000)))]
    pub context_tokens: u64,
}

/// The body of a new service, with its first revision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewService {
    /// 1 to 40 lower-case letters, digits and hyphens, with a letter first; unique in the organization.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 40), regex(pattern = "^[a-z][a-z0-9-]*$"))
    )]
    pub name: String,
    #[serde(default)]
    pub protocol: ServiceProtocol,
    #[serde(default)]
    pub access: ServiceAccess,
    /// Host names in lower case whose requests go to the service, at most 8. The organization must prove each one, and
    /// an operator must point it to the gateways. The path `/s/ORGANIZATION/SERVICE` on each gateway leads to the service too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 8), inner(length(min = 1, max = 253))))]
    pub hosts: Vec<String>,
    /// The models of an OpenAI service, 1 to 16; none of a plain HTTP service.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 16)))]
    pub models: Vec<ServiceModel>,
    /// The most bytes of the body of a request, 1 to 67108864; 1048576 when absent.
    #[serde(default = "default_body_bytes")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 67_108_864)))]
    pub max_body_bytes: u64,
    #[serde(default)]
    pub scaling: Scaling,
    #[serde(default)]
    pub rollout: RolloutRule,
    /// The first revision.
    pub revision: NewRevision,
}

const fn default_body_bytes() -> u64 {
    1 << 20
}

/// The body of a change of a service. Absent fields stay.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PatchService {
    /// The callers of the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<ServiceAccess>,
    /// As in a new service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 8), inner(length(min = 1, max = 253))))]
    pub hosts: Option<Vec<String>>,
    /// All models of the service, as in a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 16)))]
    pub models: Option<Vec<ServiceModel>>,
    /// The whole rule for the number of replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<Scaling>,
    /// The whole rule for the steps of canaries. A step that runs goes on with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutRule>,
    /// True stops all replicas and refuses all requests, until it is false again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<bool>,
}

/// A replica of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ServiceReplica {
    /// The job of the replica.
    pub job: JobId,
    /// The revision of the replica.
    pub revision: RevisionId,
    /// The number of the revision.
    pub revision_number: i64,
    /// The state of the job; `queued` before its submission.
    pub state: JobState,
    /// False before the submission of the job: it has no page yet.
    #[serde(default)]
    pub submitted: bool,
    /// The time since which the replica answers at its readiness path; absent while it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_since: Option<Timestamp>,
    /// The begin of its drain; absent while it gets new requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draining_since: Option<Timestamp>,
    /// The names of its nodes; empty before its placement.
    pub nodes: Vec<String>,
    /// The time of the decision for the replica.
    pub created_at: Timestamp,
}

/// The price of the tokens of a service, and the body that sets it. The seconds of replicas are charged beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TokenPrice {
    /// Micro-units of the currency for a million tokens of prompts: 0 to 1000000000000, a multiple of 1000.
    #[cfg_attr(
        feature = "schema",
        schemars(range(min = 0, max = 1_000_000_000_000_i64), extend("multipleOf" = 1_000))
    )]
    pub prompt_micros_per_million: i64,
    /// The same for tokens of completions.
    #[cfg_attr(
        feature = "schema",
        schemars(range(min = 0, max = 1_000_000_000_000_i64), extend("multipleOf" = 1_000))
    )]
    pub completion_micros_per_million: i64,
}

/// A service of an organization.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Service {
    /// The id of the service.
    pub id: ServiceId,
    /// The organization of the service.
    pub org: OrgId,
    /// The name, unique in the organization.
    pub name: String,
    /// The state of the service.
    pub state: ServiceState,
    /// The reason for the state, in sentences; absent for a ready or sleeping service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    pub protocol: ServiceProtocol,
    pub access: ServiceAccess,
    /// The host names of the service.
    pub hosts: Vec<String>,
    /// The host names with their proofs, in the same order.
    #[serde(default)]
    pub host_states: Vec<ServiceHost>,
    /// The path of the service on each gateway.
    pub path: String,
    /// The models of an OpenAI service.
    pub models: Vec<ServiceModel>,
    /// The price of tokens.
    pub token_price: TokenPrice,
    /// The most bytes of the body of a request.
    pub max_body_bytes: u64,
    pub scaling: Scaling,
    pub rollout: RolloutRule,
    /// The last decision about the number of replicas; absent before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<ScalingDecision>,
    /// True while a person keeps the service stopped.
    pub stopped: bool,
    /// The revisions with requests or replicas, and the newest one, by number.
    pub revisions: Vec<RevisionSummary>,
    /// The replicas that have not ended, oldest first.
    pub replicas: Vec<ServiceReplica>,
    /// The time of the creation.
    pub created_at: Timestamp,
    /// The name of the user who created the service.
    pub created_by: String,
    /// The use of the last 24 hours.
    pub last_day: ServiceUse,
}

/// A revision in the answer about its service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RevisionSummary {
    /// The id of the revision.
    pub id: RevisionId,
    /// The number from 1 on.
    pub number: i64,
    /// The state of the revision.
    pub state: RevisionState,
    /// The part of the requests, 0 to 100.
    pub weight_percent: u8,
    /// The inference keys whose requests all go to the revision while it is a canary with a ready replica. Absent for
    /// callers who may not run jobs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub canary_keys: Vec<CanaryKey>,
}

/// An inference key whose requests all go to a canary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CanaryKey {
    /// The id of the key.
    pub id: InferenceKeyId,
    /// The name of the key.
    pub name: String,
}

/// The use of a service, or of a key, in a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ServiceUse {
    /// Requests that a replica began, with those that failed.
    pub requests: u64,
    /// Those of them that failed by the replica.
    pub errors: u64,
    /// Tokens of prompts.
    pub prompt_tokens: u64,
    /// Tokens of completions.
    pub completion_tokens: u64,
    /// The charge for the tokens, in micro-units of the currency. In the ledger each block of credit is rounded down, so its
    /// charge can be up to a micro-unit lower. The seconds of replicas are charged with their jobs.
    pub token_micros: i64,
}

/// The use of a service in an hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ServiceHour {
    /// The begin of the hour.
    pub at: Timestamp,
    #[serde(flatten)]
    pub used: ServiceUse,
    /// The 50th percentile of the time to the first byte in milliseconds, as the upper bound of its bucket.
    /// Absent without a request, and above all bounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_byte_p50_ms: Option<u64>,
    /// The 99th percentile in the same form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_byte_p99_ms: Option<u64>,
}

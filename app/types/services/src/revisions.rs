//! Types of the revisions of a service.

use berth_types::ids::{InferenceKeyId, RevisionId};
use berth_types::jobs::NewJob;
use berth_types::time::Timestamp;
use serde::{Deserialize, Serialize};

/// The state of a revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RevisionState {
    /// Its replicas start; it gets no requests.
    Staging,
    /// It has a part of the requests, beside the live revision.
    Canary,
    /// It has all requests that no canary has.
    Live,
    /// It gets no new requests, and its last ones end.
    Draining,
    /// It has no replicas.
    Retired,
    /// It was worse than the live revision, did not start, or a person withdrew it.
    RolledBack,
}

impl RevisionState {
    pub const ALL: [Self; 6] =
        [Self::Staging, Self::Canary, Self::Live, Self::Draining, Self::Retired, Self::RolledBack];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Staging => "staging",
            Self::Canary => "canary",
            Self::Live => "live",
            Self::Draining => "draining",
            Self::Retired => "retired",
            Self::RolledBack => "rolled_back",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

/// The protocol between gateways and a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ReplicaProtocol {
    /// HTTP/1.1, with WebSocket.
    #[default]
    Http1,
    /// HTTP/2 without TLS and without negotiation, as gRPC needs it.
    Http2,
}

impl ReplicaProtocol {
    pub const ALL: [Self; 2] = [Self::Http1, Self::Http2];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Http1 => "http1",
            Self::Http2 => "http2",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|protocol| protocol.name() == name)
    }

    /// True for the protocol of a revision that names none.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The body of a new revision. A revision never changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewRevision {
    /// The job of each replica. `name` is ignored; `max_duration_s` is the greatest age of a replica: a new one
    /// replaces it before. `depends_on` and `reservation` are not allowed, and `preemptible` is.
    pub job: NewJob,
    /// The TCP port of the replica, 1 to 65535. The variable `PORT` of rank 0 has it, or a free port in place of it if
    /// jobs have the network of the host.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 65_535)))]
    pub port: u16,
    /// The protocol between gateways and the replica; `http1` when absent.
    #[serde(default, skip_serializing_if = "ReplicaProtocol::is_default")]
    pub replica_protocol: ReplicaProtocol,
    /// The path whose answer 200 to a GET says that the replica is ready: at most 200 printable ASCII characters with
    /// `/` first. With `http2` also `grpc:` or `grpc:NAME`: the answer `SERVING` of `grpc.health.v1.Health/Check` for
    /// the whole server or for the named part of it.
    #[serde(default = "default_readiness_path")]
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 200), regex(pattern = "^(/|grpc:)[!-~]*$"))
    )]
    pub readiness_path: String,
    /// Seconds from the start of the program to its readiness, 1 to 86400; 600 when absent. A later replica counts as
    /// failed.
    #[serde(default = "default_ready_within_s")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 86_400)))]
    pub ready_within_s: u32,
    /// The requests that each gateway sends to a replica at the same time, 1 to 10000; 8 when absent.
    #[serde(default = "default_concurrency")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 10_000)))]
    pub concurrency: u32,
    /// The percentages of the requests that the revision gets step by step, rising, each 0 to 99, at most 20. After
    /// the last step it becomes live. Without steps it becomes live as soon as its replicas are ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 20), inner(range(max = 99))))]
    pub canary_percent: Vec<u8>,
    /// A text about the change, at most 300 printable characters.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 300)))]
    pub note: String,
}

fn default_readiness_path() -> String {
    "/".to_owned()
}

const fn default_ready_within_s() -> u32 {
    600
}

const fn default_concurrency() -> u32 {
    8
}

/// A revision of a service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Revision {
    /// The id of the revision.
    pub id: RevisionId,
    /// The number from 1 on.
    pub number: i64,
    /// The state of the revision.
    pub state: RevisionState,
    /// The reason for the state, as a sentence; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The part of the requests, 0 to 100.
    pub weight_percent: u8,
    /// The specification, without the texts of script, variables and files.
    pub spec: NewRevision,
    /// The time of the creation.
    pub created_at: Timestamp,
    /// The name of the user who created the revision.
    pub created_by: String,
}

/// The rule for the steps of canaries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct RolloutRule {
    /// The least number of a canary's requests in a step, 1 to 1000000.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1_000_000)))]
    pub min_requests: u64,
    /// The least time of a step in seconds, 1 to 86400.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 86_400)))]
    pub min_seconds: u32,
    /// The permitted percentage of failed requests, 0 to 100, while the live revision has too few requests for a
    /// comparison.
    #[cfg_attr(feature = "schema", schemars(range(max = 100)))]
    pub error_percent: u8,
    /// False: a good canary stays at its percentage until a person changes it. A worse one is withdrawn in any case.
    pub automatic: bool,
}

impl Default for RolloutRule {
    fn default() -> Self {
        Self { min_requests: 50, min_seconds: 60, error_percent: 5, automatic: true }
    }
}

/// The body of a change of the traffic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PutTraffic {
    /// The revision on its way to become live, by its number.
    pub revision: i64,
    /// Its part of the requests, 0 to 100; the live revision has the rest. With 100 it becomes live. A different part
    /// ends the steps of a canary and stays until a person changes it; with the present one the steps go on.
    #[serde(deserialize_with = "crate::numbers::read_u8")]
    #[cfg_attr(feature = "schema", schemars(range(max = 100)))]
    pub percent: u8,
    /// The inference keys of the organization whose requests all go to the revision while it is a canary with a ready
    /// replica, at most 20, and none with 100 percent. They replace the former ones; none when absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 20)))]
    pub canary_keys: Vec<InferenceKeyId>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_outside_of_its_type_is_read_and_beyond_its_range() {
        for (number, percent) in [(7_i64, 7), (-1, u8::MAX), (256, u8::MAX)] {
            let traffic = serde_json::json!({"revision": 1, "percent": number});
            assert_eq!(serde_json::from_value::<PutTraffic>(traffic).unwrap().percent, percent);
        }
    }
}

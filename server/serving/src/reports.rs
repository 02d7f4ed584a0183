//! The reports of a gateway to the portal.
//!
//! A gateway repeats a report until the portal has accepted it. The portal counts each number of a life once.

use berth_types::ids::{InferenceKeyId, RevisionId, ServiceId};
use serde::{Deserialize, Serialize};

use crate::bounded::list;
use crate::snapshot::ReplicaId;

/// Bytes of a report as JSON.
pub const MAX_REPORT_BYTES: usize = 4 << 20;
/// Services in a report. A gateway sends the others in the next one.
pub const MAX_LOADS: usize = 2_000;
/// Rows of use in a report.
pub const MAX_USES: usize = 5_000;
/// Services with faults in a report. A gateway sends the others in the next one.
pub const MAX_FAULTS: usize = 2_000;
/// Drained replicas in a report.
pub const MAX_DRAINED: usize = 2_000;
/// Bytes of the version of a gateway.
pub const MAX_VERSION_BYTES: usize = 60;
/// Buckets of times to the first byte; their bounds are those of the judge of canaries, and the last has the rest.
pub const BUCKETS: usize = 25;

/// A report of a gateway: the load now, and the use since the report before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatewayReport {
    /// A higher number for each start of the gateway.
    pub life: u64,
    /// The number in this life, from 1.
    pub number: u64,
    /// The version of the program, at most [`MAX_VERSION_BYTES`].
    pub version: String,
    /// The number of the snapshot that the gateway uses; 0 for none.
    pub snapshot: u64,
    /// Services with requests, or with requests at the report before.
    #[serde(deserialize_with = "list::<_, _, MAX_LOADS>")]
    pub loads: Vec<ServiceLoad>,
    #[serde(deserialize_with = "list::<_, _, MAX_USES>")]
    pub uses: Vec<Use>,
    /// Absent in the reports of earlier versions, and without faults.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "list::<_, _, MAX_FAULTS>")]
    pub faults: Vec<ServiceFaults>,
    /// Draining replicas that have no request of this gateway, with those of services that left the snapshot.
    #[serde(deserialize_with = "list::<_, _, MAX_DRAINED>")]
    pub drained: Vec<ReplicaId>,
}

/// The requests of a service at a gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceLoad {
    pub service: ServiceId,
    pub in_flight: u32,
    pub waiting: u32,
    /// A request began since the report before. It may have ended already.
    #[serde(default)]
    pub begun: bool,
}

/// The use of a revision by a key since the report before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Use {
    pub service: ServiceId,
    pub revision: RevisionId,
    /// Absent for requests to a public service without a key.
    pub key: Option<InferenceKeyId>,
    pub requests: u64,
    pub errors: u64,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    /// The charges for tokens in nano-units.
    pub token_nanos: u64,
    /// Counts of times to the first byte.
    #[serde(deserialize_with = "list::<_, _, BUCKETS>")]
    pub first_byte: Vec<u64>,
}

/// The faults at a service since the report before. None of them is a fault of the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceFaults {
    pub service: ServiceId,
    /// Requests that were refused while the service had no ready replica.
    pub asleep: u64,
    /// Requests that reached the worker of no replica, although the service had one.
    pub unreached: u64,
    /// Requests whose replica was lost with its worker: its connection broke or it was silent, and then the worker did not
    /// answer.
    pub lost: u64,
}

/// The answer of the portal to a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportAnswer {
    /// The reports up to this number of the life are counted.
    pub counted_through: u64,
}

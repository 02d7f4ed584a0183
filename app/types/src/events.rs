//! Types of the events in live streams.

use serde::{Deserialize, Serialize};

use crate::ids::JobId;
use crate::jobs::{Job, JobState};
use crate::time::Timestamp;

/// One recorded change of a job. For each job `seq` counts from 1 without gaps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobEvent {
    /// The changed job.
    pub job: JobId,
    /// The number of the event among the events of the job.
    pub seq: i64,
    /// The time of the change.
    pub at: Timestamp,
    /// The state after the change.
    pub state: JobState,
    /// The number of the attempt; 0 before the first one.
    pub attempt: u32,
    /// A sentence about the change.
    pub detail: String,
}

/// The data of an SSE event named `change`: the present job, and the recorded event of the change if there
/// is one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobChange {
    /// The recorded event; absent for a change of the presentation alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<JobEvent>,
    /// The job after the change.
    pub job: Job,
}

/// The data of an SSE event named `cost`: the meter of a running job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobCost {
    /// The running job.
    pub job: JobId,
    /// Metered milliseconds of all attempts.
    pub metered_ms: i64,
    /// The charge so far in micro-units of the currency.
    pub cost_micros: i64,
    /// The hold for the rest of the worst-case price, in micro-units of the currency.
    pub held_micros: i64,
}

/// The data of an SSE event named `log`: the bytes of a log from offset `from` up to the event's id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LogChunk {
    /// The offset of the first byte of the chunk in the log, in bytes.
    pub from: u64,
    /// The bytes as text, if they are UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The bytes in base 64, if they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
    /// The times of the bytes; absent if the portal recorded none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<LogTimes>,
}

/// The times of a chunk of a log, as two columns of equal length with at most 4,096 ascending values. A time holds
/// from its offset up to the next offset. The first offset is after the start of the chunk if the bytes before it
/// have no time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LogTimes {
    /// The offset of the first byte with the time in the log, in bytes.
    #[cfg_attr(feature = "schema", schemars(length(max = 4_096)))]
    pub from: Vec<u64>,
    /// The time of the output by the portal's clock, in milliseconds since 1970-01-01T00:00:00Z.
    #[cfg_attr(feature = "schema", schemars(length(max = 4_096)))]
    pub at_ms: Vec<i64>,
}

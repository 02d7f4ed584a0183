//! The type of evidence: a worker's record of process and devices, apart from the meter.

use serde::{Deserialize, Serialize};

/// The evidence of one rank in cumulative milliseconds. Time without an observation of the worker counts in
/// no field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Evidence {
    /// The number of the rank, from 0.
    pub rank: u32,
    /// Milliseconds with the first process of the rank alive.
    pub process_ms: i64,
    /// Milliseconds with an answer from all devices of the rank.
    pub device_ms: i64,
    /// Milliseconds without an answer from a queried device of the rank.
    pub lost_ms: i64,
    /// Milliseconds with a compute process on a device of the rank; absent without such data from the driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_ms: Option<i64>,
    /// The clearing of the memory of the rank's devices before the start; absent without a clearing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_clearing: Option<MemoryClearing>,
}

/// The proof that a worker overwrote the memory of the devices of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MemoryClearing {
    /// The overwritten memory in bytes.
    pub cleared_bytes: u64,
    /// The memory of the devices in bytes. The rest belongs to the driver.
    pub total_bytes: u64,
    /// The number of words that were read back and compared.
    pub samples: u64,
    /// The duration in milliseconds.
    pub took_ms: u64,
}

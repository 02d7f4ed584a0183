//! What was seen of an attempt's process and devices, apart from the meter.

use serde::{Deserialize, Serialize};

/// Of one rank, in cumulative milliseconds. What its worker did not observe counts nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Evidence {
    pub rank: u32,
    /// Its first process existed.
    pub process_ms: i64,
    /// All its devices answered.
    pub device_ms: i64,
    /// One of its devices was asked and did not answer.
    pub lost_ms: i64,
    /// A compute process was on one of its devices; absent where the driver cannot say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_ms: Option<i64>,
}

//! When a job ends by itself, and after which ends it is tried again.

use serde::{Deserialize, Serialize};

/// What may be followed by another try.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RetryOn {
    /// Its node or worker went down, or could not make its devices.
    NodeLost,
    /// It made room for a more important job. Such tries are not counted.
    Preempted,
    /// It ended with an exit code other than 0, or by a signal.
    Exit,
}

/// When a job is tried again. Without it only a preempted job is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Retry {
    /// Tries after the first, up to 100.
    pub max: u32,
    pub on: Vec<RetryOn>,
}

/// When a job's devices count as idle, so that it is stopped. Where the driver reports no utilisation they
/// never do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct StopWhenIdle {
    /// Their mean utilisation is below this, 1 to 100.
    #[serde(default = "idle_percent")]
    pub below_percent: u32,
    /// Seconds for which it must be so, 600 to 86400; rounded up to minutes.
    #[serde(default = "idle_seconds")]
    pub for_s: u32,
}

impl Default for StopWhenIdle {
    fn default() -> Self {
        Self { below_percent: idle_percent(), for_s: idle_seconds() }
    }
}

fn idle_percent() -> u32 {
    40
}

fn idle_seconds() -> u32 {
    3_600
}

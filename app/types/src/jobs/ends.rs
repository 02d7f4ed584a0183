//! Types of the rules for retries and for stops of idle jobs.

use serde::{Deserialize, Serialize};

/// A kind of end with a retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RetryOn {
    /// A failure of the node, of the worker or of the devices before the start.
    NodeLost,
    /// A preemption. Attempts after a preemption do not count as retries.
    Preempted,
    /// An end with an exit code other than 0 or by a signal.
    Exit,
}

/// The rules for retries. Without them only a preempted job gets another attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Retry {
    /// The maximum number of retries after the first attempt, up to 100.
    #[cfg_attr(feature = "schema", schemars(range(max = 100)))]
    pub max: u32,
    /// The kinds of end with a retry, at least one, each once.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 3), extend("uniqueItems" = true)))]
    pub on: Vec<RetryOn>,
}

/// The rule for a stop of a job with idle devices. Devices without a utilization report from the driver never
/// count as idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct StopWhenIdle {
    /// The limit of the mean utilization in percent, 1 to 100; 40 when absent.
    #[serde(default = "idle_percent")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 100)))]
    pub below_percent: u32,
    /// Seconds below the limit before the stop, 600 to 86400, rounded up to minutes; 3600 when absent.
    #[serde(default = "idle_seconds")]
    #[cfg_attr(feature = "schema", schemars(range(min = 600, max = 86_400)))]
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

//! Types of the number of replicas of a service.

use berth_types::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::schedule::ScheduleWindow;

/// The rule for the number of replicas.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Scaling {
    /// The least number of replicas, 0 to 100. With 0 the service falls asleep after `idle_s` without a request.
    #[cfg_attr(feature = "schema", schemars(range(max = 100)))]
    pub min_replicas: u32,
    /// The greatest number of replicas, 1 to 100.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 100)))]
    pub max_replicas: u32,
    /// The requests in flight and waiting for each replica, 1 to 10000.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 10_000)))]
    pub target_requests: u32,
    /// Seconds of higher demand before the number rises, 0 to 3600.
    #[cfg_attr(feature = "schema", schemars(range(max = 3_600)))]
    pub up_delay_s: u32,
    /// Seconds of lower demand before the number falls, 0 to 3600.
    #[cfg_attr(feature = "schema", schemars(range(max = 3_600)))]
    pub down_delay_s: u32,
    /// Seconds without a request before the number falls to zero, at least `down_delay_s`, at most 604800.
    #[cfg_attr(feature = "schema", schemars(range(max = 604_800)))]
    pub idle_s: u32,
    /// True: decisions are shown and not applied; the number stays at `min_replicas`, at least 1.
    pub shadow: bool,
    /// Higher floors at times of the week, at most 100. The highest floor of all present windows holds.
    #[cfg_attr(feature = "schema", schemars(length(max = 100)))]
    pub schedule: Vec<ScheduleWindow>,
    /// The time zone of the schedule by its IANA name, such as `Europe/Oslo`.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 64)))]
    pub time_zone: String,
}

impl Default for Scaling {
    fn default() -> Self {
        Self {
            min_replicas: 1,
            max_replicas: 1,
            target_requests: 4,
            up_delay_s: 10,
            down_delay_s: 120,
            idle_s: 600,
            shadow: false,
            schedule: Vec::new(),
            time_zone: "UTC".to_owned(),
        }
    }
}

/// A decision about the number of replicas.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ScalingDecision {
    /// The time of the decision.
    pub at: Timestamp,
    /// The number of replicas.
    pub replicas: u32,
    /// False in shadow mode.
    pub applied: bool,
    /// The reason as a sentence.
    pub reason: String,
    /// Requests in flight at all gateways.
    pub in_flight: u64,
    /// Requests that wait for a replica.
    pub waiting: u64,
}

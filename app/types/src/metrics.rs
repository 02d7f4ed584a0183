//! Readings of a job's devices.

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// One reading of one device. Absent means that the driver does not report it, never zero.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Sample {
    pub at: Timestamp,
    pub rank: u32,
    /// Index among the rank's devices.
    pub device: u32,
    pub utilization_percent: Option<f64>,
    pub memory_used_mib: Option<f64>,
    pub power_watts: Option<f64>,
    pub temperature_celsius: Option<f64>,
}

/// Columns of equal length, one value a step; `null` where nothing was read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Series {
    pub rank: u32,
    pub device: u32,
    /// Whole board's or slice's memory.
    pub memory_total_mib: f64,
    /// Seconds since the epoch, start of each step.
    pub at_s: Vec<f64>,
    pub utilization_percent: Vec<Option<f64>>,
    pub memory_used_mib: Vec<Option<f64>>,
    pub power_watts: Vec<Option<f64>>,
    pub temperature_celsius: Vec<Option<f64>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Metrics {
    /// Seconds that a value stands for; what is old enough to be kept at a longer step comes at that.
    pub step_s: u64,
    pub series: Vec<Series>,
}

//! Types of the readings of a job's devices.

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// One reading of one device. A value without a report from the driver is `null`, never zero.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Sample {
    /// The time of the reading.
    pub at: Timestamp,
    /// The number of the rank, from 0.
    pub rank: u32,
    /// The index among the rank's devices, from 0.
    pub device: u32,
    /// The busy part of the device's time in percent.
    pub utilization_percent: Option<f64>,
    /// The used memory in MiB.
    pub memory_used_mib: Option<f64>,
    /// The power in watts.
    pub power_watts: Option<f64>,
    /// The temperature in degrees Celsius.
    pub temperature_celsius: Option<f64>,
}

/// The readings of one device as columns of equal length, with one value a step; `null` for a step without a
/// reading.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Series {
    /// The number of the rank, from 0.
    pub rank: u32,
    /// The index among the rank's devices, from 0.
    pub device: u32,
    /// The memory of the board or slice in MiB.
    pub memory_total_mib: f64,
    /// The start of each step in seconds since 1970-01-01T00:00:00Z.
    pub at_s: Vec<f64>,
    /// The busy part of the device's time in percent, by step.
    pub utilization_percent: Vec<Option<f64>>,
    /// The used memory in MiB, by step.
    pub memory_used_mib: Vec<Option<f64>>,
    /// The power in watts, by step.
    pub power_watts: Vec<Option<f64>>,
    /// The temperature in degrees Celsius, by step.
    pub temperature_celsius: Vec<Option<f64>>,
}

/// The readings of all devices of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Metrics {
    /// The length of a step in seconds. Older readings have longer steps.
    pub step_s: u64,
    /// The series of each device.
    pub series: Vec<Series>,
}

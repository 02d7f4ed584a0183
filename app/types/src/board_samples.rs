//! Types of the kept readings of a board, for operators.

use serde::{Deserialize, Serialize};

use crate::ids::{JobId, OrgId};
use crate::time::Timestamp;

/// The most jobs of a [`BoardSamples`].
pub const MAX_BOARD_JOBS: usize = 100;

/// A time of a job on a board, from the assignment of devices to the end of its process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BoardJob {
    /// The id of the job.
    pub job: JobId,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// The name of the job.
    pub job_name: String,
    /// The organization of the job.
    pub org: OrgId,
    /// The name of the organization.
    pub org_name: String,
    /// The assignment of the devices.
    pub from: Timestamp,
    /// The end of the process; absent before the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Timestamp>,
}

/// The kept readings of a board as columns of equal length, oldest first, with its jobs. A value is the mean of
/// one step; `null` for a step without a reading. A step has 10 seconds in the last hour and 60 seconds before,
/// for 24 hours. The portal keeps readings in memory: they begin anew with the portal.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BoardSamples {
    /// The start of each step in seconds since 1970-01-01T00:00:00Z, by the clock of the portal.
    pub at_s: Vec<f64>,
    /// The busy part of the board's time in percent, by step.
    pub utilization_percent: Vec<Option<f64>>,
    /// The used memory in MiB, by step.
    pub memory_used_mib: Vec<Option<f64>>,
    /// The power in watts, by step.
    pub power_watts: Vec<Option<f64>>,
    /// The temperature in degrees Celsius, by step.
    pub temperature_celsius: Vec<Option<f64>>,
    /// The latest 100 times of jobs on the board, newest first.
    pub jobs: Vec<BoardJob>,
}

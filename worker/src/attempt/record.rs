//! The daemon's record of an attempt.

use std::collections::BTreeSet;
use std::path::PathBuf;

use berth_clearing::Cleared;
use berth_images::Image;
use berth_isolation::cgroups::AttemptCgroups;
use berth_job_files::outputs::OutputPlan;
use berth_proto::{Assignment, Spec};
use berth_replicas::ReplicaSettings;
use berth_shim::model::{AttemptKey, JobFailure};
use berth_shim::{AttemptLimits, BoardLimits};
use serde::{Deserialize, Serialize};

use super::links::MeasuredLink;
use crate::devices::AttemptDevice;

/// The record of an attempt, saved in its directory.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AttemptRecord {
    pub job: String,
    pub number: u32,
    pub devices: Vec<AttemptDevice>,
    pub limit_ms: i64,
    /// The failure of an attempt whose end the shim did not record.
    pub failure: Option<JobFailure>,
    /// The failure of a board under the attempt, which ends it.
    #[serde(default)]
    pub device_fault: Option<JobFailure>,
    pub stop_asked: bool,
    pub clean: bool,
    /// The user of its files. No other attempt gets this user while they exist.
    #[serde(default)]
    pub uid: Option<u32>,
    #[serde(default)]
    pub group: AttemptCgroups,
    /// Empty in records of earlier daemons.
    #[serde(default)]
    pub organization: String,
    #[serde(default, rename = "keep")]
    pub outputs: OutputPlan,
    #[serde(default)]
    pub image: Option<Image>,
    /// A container may exist, which the cleanup removes.
    #[serde(default)]
    pub contained: bool,
    /// The directory of the secret files, until the attempt is clean.
    #[serde(default)]
    pub secrets: Option<PathBuf>,
    /// The proof of the clearing of its devices before its start. `None`: nothing was cleared.
    #[serde(default)]
    pub cleared: Option<Cleared>,
    /// The links of a rank of a gang before its start.
    #[serde(default)]
    pub links: Vec<MeasuredLink>,
    /// The settings of a replica of a service. `None`: the attempt is none.
    #[serde(default)]
    pub replica: Option<ReplicaSettings>,
}

/// The settings of a replica. Wrong ones are logged, and the attempt is never ready.
fn replica_settings(key: &AttemptKey, spec: &Spec) -> Option<ReplicaSettings> {
    let settings = ReplicaSettings::from_spec(spec.replica.as_ref()?);
    let wrong = |field: &&str| {
        tracing::error!(job = key.job, field, "no gateway reaches a replica with a wrong field")
    };
    settings.inspect_err(wrong).ok()
}

impl AttemptRecord {
    pub fn new(key: &AttemptKey, assignment: &Assignment) -> Self {
        Self {
            job: key.job.clone(),
            number: key.number,
            devices: assignment.slots.iter().map(AttemptDevice::from_slot).collect(),
            limit_ms: assignment.limit_ms,
            failure: None,
            device_fault: None,
            stop_asked: false,
            clean: false,
            uid: None,
            group: AttemptCgroups::default(),
            organization: assignment.organization.clone(),
            outputs: assignment.spec.as_ref().map(OutputPlan::from_spec).unwrap_or_default(),
            image: None,
            contained: false,
            secrets: None,
            cleared: None,
            links: Vec::new(),
            replica: assignment.spec.as_ref().and_then(|spec| replica_settings(key, spec)),
        }
    }

    /// True if the attempt created a device.
    pub fn made_devices(&self) -> bool {
        self.devices.iter().any(|device| device.made)
    }

    /// The limits of the attempt.
    pub fn limits(&self, per_board: &BoardLimits) -> AttemptLimits {
        let boards: BTreeSet<&str> = self.devices.iter().map(|device| device.gpu_uuid.as_str()).collect();
        per_board.scale(boards.len(), self.devices.iter().all(AttemptDevice::is_whole_board))
    }

    /// The name of the attempt's container.
    pub fn container_name(&self) -> String {
        format!("{}-{}", self.job, self.number)
    }
}

//! Types of stored bytes: the storage of an organization, and the retention of its ended jobs.

use serde::{Deserialize, Serialize};

/// The stored bytes of an organization and their limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OrgStorage {
    /// The limit of all stored bytes.
    pub limit_bytes: u64,
    /// True for an organization that never had credit: its limit is the smaller one without credit.
    pub without_credit: bool,
    /// The limit of stored submissions; only without credit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_submissions: Option<u64>,
    /// The bytes of everything below together.
    pub used_bytes: u64,
    /// The bytes of artifacts and checkpoints.
    pub file_bytes: u64,
    /// The bytes of volumes and uploads.
    pub volume_bytes: u64,
    /// The bytes of submissions with their scripts, variables and files.
    pub submission_bytes: u64,
    /// The number of stored submissions.
    pub submissions: u64,
    /// The bytes of the logs of ended jobs, counted within some minutes after their end.
    pub log_bytes: u64,
}

/// The retention of ended jobs. After it the submission, the logs and the files of a job are removed; its name,
/// times and cost stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Retention {
    /// The days after the end of a job; absent: for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_ended_jobs_days: Option<u32>,
    /// The days that the portal sets for all organizations; absent: for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub portal_days: Option<u32>,
    /// The days that the organization chose; absent without a choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen_days: Option<u32>,
}

/// The choice of a retention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SetRetention {
    /// The days after the end of a job, 1 to 36500 and at most those of the portal; absent: those of the portal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 36_500)))]
    pub keep_ended_jobs_days: Option<u32>,
}

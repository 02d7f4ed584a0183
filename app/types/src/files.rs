//! Types of checkpoints and of the kept files of jobs.

use serde::{Deserialize, Serialize};

use crate::ids::FileId;
use crate::time::Timestamp;

/// The signal that requests a job to save its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum CheckpointSignal {
    #[default]
    #[serde(rename = "SIGTERM")]
    Term,
    #[serde(rename = "SIGINT")]
    Int,
    #[serde(rename = "SIGHUP")]
    Hup,
    #[serde(rename = "SIGUSR1")]
    Usr1,
    #[serde(rename = "SIGUSR2")]
    Usr2,
}

impl CheckpointSignal {
    /// The number of the signal on Linux.
    pub const fn number(self) -> i32 {
        match self {
            Self::Hup => 1,
            Self::Int => 2,
            Self::Usr1 => 10,
            Self::Usr2 => 12,
            Self::Term => 15,
        }
    }
}

/// The checkpoint rules of a job: the signal and the grace before a stop. With `dir`, the portal keeps the
/// files of that directory and restores them for the next attempt.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// The signal for the request to save; `SIGTERM` when absent.
    #[serde(default)]
    pub signal: CheckpointSignal,
    /// Seconds from the signal to SIGKILL, 1 to 600; 10 when absent.
    #[serde(default = "checkpoint_grace")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 600)))]
    pub grace_s: u32,
    /// A path below the job's directory, at most 512 bytes; required with `every_s` or `keep`. Each rank has
    /// its own copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 512)))]
    pub dir: Option<String>,
    /// Seconds between two checkpoints of a running job, 5 to 86400; only at the attempt's end when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 5, max = 86_400)))]
    pub every_s: Option<u32>,
    /// The number of newest checkpoints to keep, 2 to 10; 2 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 2, max = 10)))]
    pub keep: Option<u32>,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Self {
            signal: CheckpointSignal::default(),
            grace_s: checkpoint_grace(),
            dir: None,
            every_s: None,
            keep: None,
        }
    }
}

fn checkpoint_grace() -> u32 {
    10
}

/// The kind of a kept file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// A copy of a rank's checkpoint directory at one time, as a tar archive.
    Checkpoint,
    /// A file of the job's directory that matches a pattern of `artifacts`.
    Artifact,
}

impl FileKind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Checkpoint => "checkpoint",
            Self::Artifact => "artifact",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        [Self::Checkpoint, Self::Artifact].into_iter().find(|kind| kind.name() == name)
    }
}

/// The state of a kept file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FileState {
    /// Incomplete; a partial file cannot be fetched, and no attempt gets it.
    Partial,
    /// Complete, with a verified hash.
    Complete,
    /// Not kept; `note` has the reason.
    Refused,
    /// Marked for removal. No answer contains such a file.
    Gone,
}

impl FileState {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Partial => "partial",
            Self::Complete => "complete",
            Self::Refused => "refused",
            Self::Gone => "gone",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        let all = [Self::Partial, Self::Complete, Self::Refused, Self::Gone];
        all.into_iter().find(|state| state.name() == name)
    }
}

/// A kept file of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobFile {
    /// The id of the file.
    pub id: FileId,
    /// The kind of the file.
    pub kind: FileKind,
    /// The state of the file.
    pub state: FileState,
    /// The path of an artifact in the job's directory, or the path of the checkpoint directory.
    pub path: String,
    /// The size in bytes.
    pub bytes: u64,
    /// The SHA-256 of the bytes in hexadecimal digits.
    pub sha256: String,
    /// The number of the attempt that made the file.
    pub attempt: u32,
    /// The number of the rank that made the file, from 0.
    pub rank: u32,
    /// The number of files in a checkpoint; 1 for an artifact.
    pub files: u64,
    /// A sentence about the paths left out, or the reason of a refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The time of the portal's first record of the file.
    pub created_at: Timestamp,
}

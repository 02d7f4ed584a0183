//! What jobs save, and the files of theirs that are kept: checkpoints and artifacts.

use serde::{Deserialize, Serialize};

use crate::ids::FileId;
use crate::time::Timestamp;

/// A signal by which a job is told to save its state.
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
    /// Its number on Linux.
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

/// What a job gets before it must make room: a signal, and time. With a directory, what it saved there is
/// kept, and given back to its next attempt.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    #[serde(default)]
    pub signal: CheckpointSignal,
    /// Seconds from the signal until it is killed.
    #[serde(default = "checkpoint_grace")]
    pub grace_s: u32,
    /// A directory inside the job's own. Each rank keeps its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
    /// It is kept this often while the job runs, in seconds; only at an attempt's end when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_s: Option<u32>,
    /// How many of the newest are kept, 2 to 10; 2 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// A job's checkpoint directory at one moment, as a tar archive.
    Checkpoint,
    /// A file that the job said should be kept.
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FileState {
    /// Not all of it is here yet; it cannot be fetched and is never given to an attempt.
    Partial,
    /// All of it is here, and its hash was checked.
    Complete,
    /// It is not kept; its note says why.
    Refused,
    /// It is about to be removed. Never shown.
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

/// A file that a job left, or is leaving.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobFile {
    pub id: FileId,
    pub kind: FileKind,
    pub state: FileState,
    /// Of an artifact: where it was in the job's directory. Of a checkpoint: the directory.
    pub path: String,
    pub bytes: u64,
    /// Of its bytes, in hexadecimal digits.
    pub sha256: String,
    pub attempt: u32,
    pub rank: u32,
    /// Files in a checkpoint; 1 for an artifact.
    pub files: u64,
    /// What was left out of it, or why it is not kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    pub created_at: Timestamp,
}

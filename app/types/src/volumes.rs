//! Named volumes of an organization: files that several jobs share, and that people put in and fetch.

use serde::{Deserialize, Serialize};

use crate::ids::VolumeId;
use crate::time::Timestamp;

/// A volume that is to be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewVolume {
    /// Up to 63 lower-case letters, digits and `-`; jobs and addresses use it, and it stays.
    pub name: String,
    /// Bytes of all files in it.
    pub max_bytes: u64,
}

/// A volume as it is now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Volume {
    pub id: VolumeId,
    pub name: String,
    pub max_bytes: u64,
    pub used_bytes: u64,
    pub files: u64,
    /// Rises by one with every change of what is in it.
    pub version: i64,
    pub created_by: String,
    pub created_at: Timestamp,
    pub changed_at: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    Dir,
    File,
}

/// A file or a directory in one directory of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct VolumeEntry {
    /// Within its directory.
    pub name: String,
    /// Within the volume.
    pub path: String,
    pub kind: EntryKind,
    /// Of a directory: of all files below it.
    pub bytes: u64,
    /// 1 for a file; of a directory, all below it.
    pub files: u64,
    /// Of a file's bytes, in hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// The last change of it, or of anything below it.
    pub changed_at: Timestamp,
}

/// A file that is to be put into a volume. The same again goes on with what is there already.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewUpload {
    /// Length of all of it.
    pub bytes: u64,
    /// SHA-256 in hexadecimal digits, checked at the end. What the volume has already is not sent again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Up to 200 bytes of the sender's own, such as the file's time of change: another tag begins anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// How far a file has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Upload {
    /// Where in the volume it goes.
    pub path: String,
    pub bytes: u64,
    /// The next part begins here.
    pub received: u64,
    /// It is in the volume.
    pub done: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum VolumeMode {
    /// What the job changes, if it can, is its own.
    #[default]
    Ro,
    /// What the job leaves is the volume's next version.
    Rw,
}

impl VolumeMode {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ro => "ro",
            Self::Rw => "rw",
        }
    }
}

/// A volume that a job asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct VolumeUse {
    /// Of a volume of its organization.
    pub name: String,
    /// Where the job finds it: below its own directory, or one directory at the root such as `/data`.
    pub path: String,
    #[serde(default)]
    pub mode: VolumeMode,
}

/// A volume of a job, with what became of it in the job's latest attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobVolume {
    pub name: String,
    pub path: String,
    pub mode: VolumeMode,
    /// The version that the attempt was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<i64>,
    /// The version that holds what the attempt left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_version: Option<i64>,
    /// What was left out of that, or why nothing was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

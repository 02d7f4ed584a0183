//! Types of volumes: named, versioned sets of files for the jobs of an organization.

use serde::{Deserialize, Serialize};

use crate::ids::VolumeId;
use crate::time::Timestamp;

/// The body of a new volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewVolume {
    /// The permanent name: 1 to 63 lower-case letters, digits and `-`, with a letter or digit first.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 63), regex(pattern = crate::patterns::VOLUME_NAME))
    )]
    pub name: String,
    /// The limit of all files in bytes, 1 to 2^50. Absent for a volume of a storage class, which the portal does not
    /// limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1_125_899_906_842_624_u64)))]
    pub max_bytes: Option<u64>,
    /// The storage class, of which the organization has a grant: the files are on a file system of the nodes. Absent
    /// for a volume whose files the portal has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 63), regex(pattern = crate::patterns::VOLUME_NAME))
    )]
    pub class: Option<String>,
}

/// A volume in its latest version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Volume {
    /// The id of the volume.
    pub id: VolumeId,
    /// The volume's name.
    pub name: String,
    /// The limit of all files in bytes; absent with a storage class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u64>,
    /// The storage class: the files are on a file system of the nodes, and the portal does not know them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// The size of all files in bytes; 0 with a storage class.
    pub used_bytes: u64,
    /// The number of files; 0 with a storage class.
    pub files: u64,
    /// The number of the version, one more with each change of the files.
    pub version: i64,
    /// The name of the user who created the volume.
    pub created_by: String,
    /// The time of the creation.
    pub created_at: Timestamp,
    /// The latest change of the files.
    pub changed_at: Timestamp,
    /// The unfinished uploads, at most 100, oldest first; only in the answer with a single volume.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unfinished_uploads: Vec<UnfinishedUpload>,
}

/// An upload whose file is not in the volume yet. Its whole length counts as used, until 7 days after its last part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UnfinishedUpload {
    /// The path in the volume.
    pub path: String,
    /// The length of the file in bytes.
    pub bytes: u64,
    /// The number of received bytes.
    pub received_bytes: u64,
}

/// The kind of an entry in a directory of a volume.
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
    /// The name in the directory.
    pub name: String,
    /// The path in the volume.
    pub path: String,
    /// The kind of the entry.
    pub kind: EntryKind,
    /// The size of a file, or of all files below a directory, in bytes.
    pub bytes: u64,
    /// 1 for a file; the number of files below a directory.
    pub files: u64,
    /// The SHA-256 of a file's bytes in hexadecimal digits; absent for a directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// The latest change of the file, or of any file below the directory.
    pub changed_at: Timestamp,
}

/// The body of an upload into a volume. A repeated request continues the upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewUpload {
    /// The length of the file in bytes, less than 2^63 and within the free space of the volume.
    #[cfg_attr(feature = "schema", schemars(range(max = i64::MAX)))]
    pub bytes: u64,
    /// The SHA-256 as 64 hexadecimal digits, verified at the end. Content that the volume already has needs
    /// no upload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 64, max = 64), regex(pattern = "^[0-9A-Fa-f]{64}$"))
    )]
    pub sha256: Option<String>,
    /// A text of the client, at most 200 bytes without NUL, such as the file's modification time. Another tag
    /// restarts the upload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 200)))]
    pub tag: Option<String>,
}

/// The progress of an upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Upload {
    /// The path in the volume.
    pub path: String,
    /// The length of the file in bytes.
    pub bytes: u64,
    /// The number of received bytes: the offset of the next part.
    pub received: u64,
    /// True if the file is in the volume.
    pub done: bool,
}

/// The access of a job to a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum VolumeMode {
    /// Read only: the portal keeps no changes of the job.
    #[default]
    Ro,
    /// Read and write: the files at the end of the attempt become the next version. Jobs write to a volume of a
    /// storage class at the same time, and it has no versions.
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

/// The kind of a stored content of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlobKind {
    /// An upload of a person.
    Upload,
    /// A file of an attempt.
    File,
    /// The list of all files at the end of an attempt.
    Listing,
}

impl BlobKind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Upload => "upload",
            Self::File => "file",
            Self::Listing => "listing",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        [Self::Upload, Self::File, Self::Listing].into_iter().find(|kind| kind.name() == name)
    }
}

/// A volume for a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct VolumeUse {
    /// The name of a volume of the organization, once in a job.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 63), regex(pattern = crate::patterns::VOLUME_NAME))
    )]
    pub name: String,
    /// The path of the volume in the job, at most 512 bytes: a path below the job's directory, or a directory
    /// of the root, such as `/data`.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 512)))]
    pub path: String,
    /// The access; `ro` for a job on several nodes, except for a volume of a storage class.
    #[serde(default)]
    pub mode: VolumeMode,
}

/// A volume of a job, with its versions in the latest attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobVolume {
    /// The name of the volume.
    pub name: String,
    /// The path of the volume in the job.
    pub path: String,
    /// The access.
    pub mode: VolumeMode,
    /// The number of the version at the start of the attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<i64>,
    /// The number of the version with the files of the attempt's end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_version: Option<i64>,
    /// A sentence about the paths left out, or the reason for no new version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

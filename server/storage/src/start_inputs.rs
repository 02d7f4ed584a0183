//! The inputs that the storage has for the start of a rank: secrets, volumes and the checkpoint.

use std::fmt;

use berth_core::dedicated::UsableNodes;
use berth_store::{self as store, StoreError, Tx};
use berth_types::ids::{FileId, NodeId, OrgId, VolumeId};
use berth_types::jobs::Failure;
use berth_types::problems::Problem;

/// True if an organization may use a node: the last check before the node gets data of the organization.
///
/// # Errors
/// The database cannot be read.
pub async fn may_use_node(tx: &mut Tx<'_>, org: OrgId, node: NodeId) -> Result<bool, StoreError> {
    let found = store::dedicated::find_use(tx, org, node).await?;
    Ok(found.is_some_and(|found| UsableNodes { org, own_only: found.own_nodes_only }.has(found.dedicated_to)))
}

/// Checks that an organization may use a node that asks for its files.
///
/// # Errors
/// 404 if it may not.
pub(crate) async fn check_node(tx: &mut Tx<'_>, org: OrgId, node: NodeId) -> Result<(), Problem> {
    if may_use_node(tx, org, node).await? {
        return Ok(());
    }
    tracing::error!(%node, %org, "a node asks for files of an organization that may not use it");
    Err(Problem::not_found())
}

/// The directory of the checkpoints of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointDir {
    /// A path below the job's directory.
    pub path: String,
    /// Seconds between two checkpoints; 0: only at the end of the attempt.
    pub every_s: u32,
}

/// The checkpoint that the worker restores before the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestoredCheckpoint {
    pub file: FileId,
    pub bytes: u64,
    pub sha256: Vec<u8>,
}

/// The checkpoints of a rank at its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartCheckpoint {
    /// The job has no directory for checkpoints.
    Unused,
    /// The hand-over of the attempt before is not complete: the rank must wait.
    Awaited,
    /// The directory, and the newest complete checkpoint if there is one.
    Ready(CheckpointDir, Option<RestoredCheckpoint>),
}

/// A volume of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankVolume {
    pub volume: VolumeId,
    pub name: String,
    pub path: String,
    pub writable: bool,
    /// The sum of all its files; 0 with a storage class.
    pub bytes: u64,
    /// The storage class; absent for a volume whose files the portal has.
    pub class: Option<String>,
    /// The number of its organization among those with storage classes; 0 without a class.
    pub group: u32,
}

/// The credentials for the registry of an image.
#[derive(Clone, PartialEq, Eq)]
pub struct RegistryLogin {
    /// The host, and its port where it has one.
    pub registry: String,
    pub username: String,
    pub password: String,
    /// The name of the secret.
    pub secret: String,
}

/// The password and the user name must not reach a log.
impl fmt::Debug for RegistryLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { registry, secret, .. } = self;
        f.debug_struct("RegistryLogin").field("registry", registry).field("secret", secret).finish()
    }
}

/// A secret with its open value.
#[derive(Clone, PartialEq, Eq)]
pub struct RankSecret {
    pub name: String,
    pub value: String,
    /// The variable that has the value.
    pub env: Option<String>,
    /// The file that has the value.
    pub file: Option<String>,
}

/// The value must not reach a log.
impl fmt::Debug for RankSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, env, file, .. } = self;
        f.debug_struct("RankSecret").field("name", name).field("env", env).field("file", file).finish()
    }
}

/// The secrets of a rank, all of them open.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StartSecrets {
    pub secrets: Vec<RankSecret>,
    /// Absent for a job without an image, or with a local one.
    pub registry_login: Option<RegistryLogin>,
}

/// The reason why a rank does not get its inputs.
#[derive(Debug)]
pub enum StartInputError {
    /// An input cannot be used: the rank ends with this failure.
    Unusable(Failure),
    /// The database cannot be read.
    Store(StoreError),
}

impl From<StoreError> for StartInputError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

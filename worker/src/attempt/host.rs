//! The means of this host for attempts.

use std::path::PathBuf;
use std::sync::Arc;

use crate::devices::BoardSharers;
use crate::gpu::Gpus;
use crate::images::Podman;
use crate::isolation::cgroups::Cgroups;
use crate::isolation::sandbox::Sandbox;
use crate::shim::forker::Forker;

/// The means of this host for attempts.
pub struct Host {
    /// The directory of the attempts' directories.
    pub root: PathBuf,
    pub forker: Forker,
    pub gpus: Arc<Gpus>,
    pub sharers: BoardSharers,
    pub sandbox: Sandbox,
    pub cgroups: Cgroups,
    /// The podman for images, or the reason why there is none.
    pub images: Result<Podman, String>,
    /// The most processes and threads of a job.
    pub job_pids: u64,
    /// The disk limit of a job.
    pub job_disk_mib: u64,
    pub simulated: bool,
    /// The time between SIGTERM and SIGKILL.
    pub grace_ms: i64,
}

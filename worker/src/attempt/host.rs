//! The means of this host for attempts.

use std::path::PathBuf;
use std::sync::Arc;

use berth_clearing::MemoryClearing;
use berth_gpu::Gpus;
use berth_images::Podman;
use berth_isolation::cgroups::Cgroups;
use berth_isolation::device_nodes::DeviceTree;
use berth_isolation::sandbox::Sandbox;
use berth_job_files::cache::FileCache;
use berth_job_files::inputs::host_mounts::HostMounts;
use berth_network::JobNetwork;
use berth_shim::BoardLimits;
use berth_shim::forker::Forker;
use berth_system::rdma::RdmaTree;

use crate::devices::BoardSharers;

/// The means of this host for attempts.
pub struct Host {
    /// The directory of the attempts' directories.
    pub root: PathBuf,
    pub forker: Forker,
    pub gpus: Arc<Gpus>,
    pub sharers: BoardSharers,
    /// The clearing of the memory of devices between organizations.
    pub clearing: MemoryClearing,
    pub sandbox: Sandbox,
    pub cgroups: Cgroups,
    pub network: Arc<JobNetwork>,
    /// The podman for images, or the reason why there is none.
    pub images: Result<Podman, String>,
    /// The host mounts for volumes of storage classes.
    pub mounts: HostMounts,
    /// The cache of files of volumes. `None`: it is off.
    pub cache: Option<Arc<FileCache>>,
    pub device_tree: DeviceTree,
    pub rdma: RdmaTree,
    /// The program for the measurement of RDMA links. `None`: this worker does not measure them.
    pub rdma_program: Option<PathBuf>,
    pub limits: BoardLimits,
    pub simulated: bool,
    /// The time between SIGTERM and SIGKILL.
    pub grace_ms: i64,
}

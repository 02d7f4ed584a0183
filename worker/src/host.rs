//! What the daemon works with on its host. Must not do anything.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use crate::cgroups::Cgroups;
use crate::forker::Forker;
use crate::gpu::Gpus;
use crate::images::Podman;
use crate::sandbox::Sandbox;
use crate::sharing::Sharers;
use crate::telemetry::Telemetry;

/// What the daemon works with.
pub struct Host {
    /// Holds one directory for each attempt.
    pub root: PathBuf,
    /// Starts shims.
    pub forker: Forker,
    pub gpus: Arc<Gpus>,
    pub sharers: Sharers,
    pub sandbox: Sandbox,
    pub cgroups: Cgroups,
    /// What runs images, or why nothing does.
    pub images: Result<Podman, String>,
    /// Processes and threads that a job may have.
    pub job_pids: u64,
    /// What a job's directory may hold.
    pub job_disk_mib: u64,
    pub simulated: bool,
    /// Between SIGTERM and SIGKILL.
    pub grace_ms: i64,
    /// Where other nodes reach this one.
    pub address: String,
    /// Where it stands, and whatever else the operator says of it.
    pub labels: HashMap<String, String>,
    pub telemetry: Arc<Telemetry>,
}

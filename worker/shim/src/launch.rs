//! The input files of a shim.

use std::path::PathBuf;

use berth_isolation::cgroups::AttemptCgroups;
use serde::{Deserialize, Serialize};

use super::lease::ShimLease;

/// Files in an attempt's directory: the launch, a changed limit, a stop notice, and the log.
pub const LAUNCH: &str = "launch.json";
pub const LIMIT: &str = "limit.json";
pub const NOTICE: &str = "notice.json";
pub const LOG: &str = "rank-0.log";

/// The command of an attempt, as the daemon writes it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Launch {
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    pub cwd: PathBuf,
    pub limit_ms: i64,
    /// Between SIGTERM and SIGKILL.
    pub grace_ms: i64,
    /// The number of outermost processes that belong to the sandbox and get no signal.
    pub sandbox_depth: u32,
    #[serde(default)]
    pub limits: Limits,
    /// The shim gets secrets through its standard input.
    #[serde(default, rename = "told")]
    pub has_secrets: bool,
    /// The directory of the secret files, which the shim removes at the end.
    #[serde(default)]
    pub secrets: Option<PathBuf>,
    /// Absent: the command goes on during any silence of the portal.
    #[serde(default)]
    pub lease: Option<ShimLease>,
    /// The container that the command attaches to.
    #[serde(default)]
    pub container: Option<Container>,
    /// The group of the organization for volumes on host mounts, for shells beside the command.
    #[serde(default)]
    pub storage_group: Option<u32>,
}

/// A container, for its shim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// The file with the pid of its supervisor.
    pub supervisor: PathBuf,
    /// A program that prints the state of the container, run with the environment of the command.
    pub inspect: Vec<String>,
}

/// The limits of a command.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Empty without cgroups.
    pub group: AttemptCgroups,
    /// 0: only the common limit of this host's jobs.
    pub memory_mib: u64,
    /// Processes and threads together; 0: no limit.
    pub pids: u64,
    /// Open files of each process; 0: the limit of the shim.
    #[serde(default)]
    pub open_files: u64,
    /// Locked memory is unlimited, so that programs can pin it for boards and network adapters.
    #[serde(default)]
    pub locked_memory: bool,
    /// The job's directory with its limit in MiB.
    pub disk: Option<(PathBuf, u64)>,
    /// Directories that count to the same limit.
    #[serde(default)]
    pub volumes: Vec<PathBuf>,
    /// The container engine puts the processes into the group; the command stays outside.
    #[serde(default)]
    pub nested: bool,
}

/// A stop with another signal and grace than the usual ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopNotice {
    /// The number of the signal.
    pub signal: i32,
    pub grace_ms: i64,
}

//! Resource limits and cgroups of a process of an attempt.

use std::fs;
use std::io;

use berth_contract::LOG_LIMIT;
use berth_isolation::cgroups::Controller;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};

use super::launch::Limits;

/// The kernel's default of the highest limit of open files.
const OPEN_FILES: u64 = 1 << 20;

/// The highest limits that this process can give to an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitCeilings {
    pub open_files: u64,
    /// Locked memory can be unlimited.
    pub locked_memory: bool,
}

impl LimitCeilings {
    /// Tries the limits on this process and restores its own. It must have no other thread.
    pub fn probe() -> Self {
        let kernel = fs::read_to_string("/proc/sys/fs/nr_open").ok();
        let kernel = kernel.and_then(|text| text.trim().parse().ok()).unwrap_or(OPEN_FILES);
        Self {
            open_files: ceiling(Resource::RLIMIT_NOFILE, kernel),
            locked_memory: ceiling(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY) == RLIM_INFINITY,
        }
    }
}

/// The highest limit that this process can set, `wanted` at most, or its present limit. 0: unknown.
fn ceiling(resource: Resource, wanted: u64) -> u64 {
    let Ok((soft, hard)) = getrlimit(resource) else { return 0 };
    if hard >= wanted || setrlimit(resource, soft, wanted).is_err() {
        return hard;
    }
    // A lower limit is always permitted.
    let _ = setrlimit(resource, soft, hard);
    wanted
}

/// Sets both limits of a resource. Without the right to raise the present limit, that one is the bound.
fn set(resource: Resource, most: u64) -> io::Result<()> {
    if setrlimit(resource, most, most).is_ok() {
        return Ok(());
    }
    let (_, hard) = getrlimit(resource)?;
    setrlimit(resource, most.min(hard), most.min(hard)).map_err(io::Error::from)
}

/// Applies the limits to this process and its later children.
pub fn apply_limits(limits: &Limits) -> io::Result<()> {
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    let lower = |resource, most: u64| {
        let (_, hard) = getrlimit(resource)?;
        setrlimit(resource, most.min(hard), most.min(hard))
    };
    if limits.open_files > 0 {
        set(Resource::RLIMIT_NOFILE, limits.open_files)?;
    }
    if limits.locked_memory {
        set(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY)?;
    }
    if limits.pids > 0 && !limits.nested && !limits.group.limits(Controller::Pids) {
        lower(Resource::RLIMIT_NPROC, limits.pids)?;
    }
    if let Some((_, most_mib)) = &limits.disk {
        // The command writes the log too, which has its own limit.
        lower(Resource::RLIMIT_FSIZE, most_mib.saturating_mul(1 << 20).max(2 * LOG_LIMIT))?;
    }
    if limits.nested { Ok(()) } else { limits.group.join() }
}

//! Resource limits and cgroups of a process of an attempt.

use std::io;

use berth_contract::LOG_LIMIT;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::launch::Limits;
use crate::isolation::cgroups::Controller;

/// Applies the limits to this process and its later children.
pub fn apply_limits(limits: &Limits) -> io::Result<()> {
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    let lower = |resource, most: u64| {
        let (_, hard) = getrlimit(resource)?;
        setrlimit(resource, most.min(hard), most.min(hard))
    };
    if limits.pids > 0 && !limits.nested && !limits.group.limits(Controller::Pids) {
        lower(Resource::RLIMIT_NPROC, limits.pids)?;
    }
    if let Some((_, most_mib)) = &limits.disk {
        // The command writes the log too, which has its own limit.
        lower(Resource::RLIMIT_FSIZE, most_mib.saturating_mul(1 << 20).max(2 * LOG_LIMIT))?;
    }
    if limits.nested { Ok(()) } else { limits.group.join() }
}

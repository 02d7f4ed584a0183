//! The owners of processes: the attempt whose shim, or whose entered process, is above each.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use berth_system::processes::{ProcessStat, stat};
use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;

/// The parents of processes as far as they were read: each process once, a root never.
pub(super) struct ProcessOwners<'a> {
    /// The processes above all others of an attempt, with its directory; `true`: proved to be of that attempt still.
    roots: HashMap<i32, (&'a Path, bool)>,
    parents: HashMap<i32, Option<i32>>,
}

impl<'a> ProcessOwners<'a> {
    /// With roots that exist for certain.
    pub fn with_roots(roots: HashMap<i32, &'a Path>) -> Self {
        let roots = roots.into_iter().map(|(pid, dir)| (pid, (dir, true))).collect();
        Self { roots, parents: HashMap::new() }
    }

    /// With shims that may have ended since their start.
    pub fn with_shims(shims: HashMap<i32, &'a Path>) -> Self {
        let roots = shims.into_iter().map(|(pid, dir)| (pid, (dir, false))).collect();
        Self { roots, parents: HashMap::new() }
    }

    /// Reads a process. `false`: the process has ended.
    pub fn exists(&mut self, pid: u32) -> bool {
        let Some(number) = i32::try_from(pid).ok().filter(|number| *number > 0) else { return true };
        let found = stat(number);
        let exists = !has_ended(number, found.as_ref());
        self.parents.insert(number, found.map(|found| found.parent));
        exists
    }

    /// The attempt of the first root above a process.
    pub fn owner(&mut self, pid: u32) -> Option<PathBuf> {
        let mut at = i32::try_from(pid).ok()?;
        loop {
            if let Some((dir, proved)) = self.roots.get_mut(&at) {
                let dir: &Path = dir;
                // The number may belong to another process since the shim's end; a shim that exists keeps its number.
                *proved = *proved || berth_shim::shim_pid(dir) == Some(at);
                if *proved {
                    return Some(dir.to_path_buf());
                }
                self.roots.remove(&at);
            }
            at = (*self.parents.entry(at).or_insert_with(|| stat(at).map(|found| found.parent)))?;
        }
    }
}

/// True if a process has ended for certain. A process whose first thread has ended looks dead while other threads
/// run, and an invisible process may be of any owner.
pub(super) fn has_ended(pid: i32, found: Option<&ProcessStat>) -> bool {
    let threads = || std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    match found {
        Some(found) => found.dead && threads() == 1,
        None => kill(Pid::from_raw(pid), None) == Err(Errno::ESRCH),
    }
}

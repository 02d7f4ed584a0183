//! The processes of an attempt together with those of entries into it.

use std::path::Path;

use berth_shim::shim_pid;
use berth_system::processes::{descendants, is_below};

use super::entries::entry_processes;

/// The processes of entries into the attempt in this directory.
pub fn entered(dir: &Path) -> Vec<u32> {
    let below = entry_processes(dir).into_iter().flat_map(descendants);
    below.filter_map(|(pid, _)| u32::try_from(pid).ok()).collect()
}

/// All processes of the attempt in this directory.
pub fn all(dir: &Path) -> Vec<u32> {
    let own = shim_pid(dir).map(descendants).unwrap_or_default();
    let own = own.into_iter().filter_map(|(pid, _)| u32::try_from(pid).ok());
    own.chain(entered(dir)).collect()
}

/// The processes above all others of the attempt in this directory: its shim and its entry processes.
pub fn roots(dir: &Path) -> Vec<i32> {
    shim_pid(dir).into_iter().chain(entry_processes(dir)).collect()
}

/// Those of the given processes that belong to the attempt in this directory.
pub fn among(pids: &[u32], dir: &Path) -> Vec<u32> {
    let roots = roots(dir);
    let theirs = |pid: &u32| i32::try_from(*pid).is_ok_and(|pid| is_below(pid, &roots));
    pids.iter().copied().filter(theirs).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::super::entries::{end_all, lock_file, lock_files, try_lock};
    use super::*;

    #[test]
    fn an_entry_is_known_by_its_lock() {
        let dir = tempfile::tempdir().unwrap();
        assert!(lock_files(dir.path()).is_empty());
        std::fs::write(dir.path().join("enter-x.lock"), "").unwrap();
        let path = lock_file(dir.path(), std::process::id());
        std::fs::write(&path, "").unwrap();
        assert_eq!(lock_files(dir.path()), [(std::process::id().cast_signed(), path.clone())]);
        // The lock file of a killed entry process: no process holds it, and there is no wait.
        end_all(dir.path()).unwrap();
        assert!(entered(dir.path()).is_empty());
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let held = try_lock(&path).unwrap().unwrap();
        assert!(entered(dir.path()).contains(&child.id()), "what this process started");
        assert_eq!(among(&[1, child.id()], dir.path()), [child.id()]);
        drop(held);
        assert!(among(&[child.id()], dir.path()).is_empty(), "nobody is inside any more");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

//! The entries of people into an attempt. Each is a process with a lock file in the attempt's directory.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use berth_system::signals::send_if;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::Signal;

/// The lock file of the entry process with this pid.
pub(super) fn lock_file(dir: &Path, pid: u32) -> PathBuf {
    dir.join(format!("enter-{pid}.lock"))
}

/// Takes the lock of this process as an entry. The entry exists for as long as the lock is held.
pub(super) fn lock_own(dir: &Path) -> io::Result<Option<Flock<File>>> {
    let path = lock_file(dir, std::process::id());
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    Ok(Flock::lock(file, FlockArg::LockExclusiveNonblock).ok())
}

/// The pids of all entry processes, also of ended ones, with their lock files.
pub(super) fn lock_files(dir: &Path) -> Vec<(i32, PathBuf)> {
    let Ok(files) = std::fs::read_dir(dir) else { return Vec::new() };
    let lock = |file: std::fs::DirEntry| {
        let name = file.file_name();
        let pid = name.to_str()?.strip_prefix("enter-")?.strip_suffix(".lock")?.parse().ok()?;
        Some((pid, file.path()))
    };
    files.flatten().filter_map(lock).collect()
}

/// Takes the lock of an entry. `None`: the entry process holds it.
pub(super) fn try_lock(path: &Path) -> io::Result<Option<Flock<File>>> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    Ok(Flock::lock(file, FlockArg::LockExclusiveNonblock).ok())
}

/// The entry processes of the attempt in this directory.
pub fn entry_processes(dir: &Path) -> Vec<i32> {
    let held = lock_files(dir).into_iter().filter(|(_, path)| matches!(try_lock(path), Ok(None)));
    held.map(|(pid, _)| pid).collect()
}

/// Ends all entries and waits for them. The caller does this after the end of the attempt: a later entry process
/// notices that end and exits.
pub fn end_all(dir: &Path) -> io::Result<()> {
    for (pid, path) in lock_files(dir) {
        if try_lock(&path)?.is_none() {
            // While the lock is held, the number is that of the entry process.
            send_if(pid, Signal::SIGTERM, || matches!(try_lock(&path), Ok(None)));
            let file = OpenOptions::new().read(true).write(true).open(&path)?;
            Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| io::Error::from(errno))?;
        }
    }
    Ok(())
}

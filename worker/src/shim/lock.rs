//! The lock that a shim holds as long as it is there, and what is found out by it: whether there is one, who is
//! below it, and when it has gone.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{LOCK, Records};
use crate::processes::descendants;

/// The lock of this directory; an error while a shim holds it.
pub fn lock(dir: &Path) -> io::Result<Flock<File>> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(dir.join(LOCK))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno.into())
}

/// The same for the shim itself: whoever looks whether there is one holds it for a moment.
pub(super) fn lock_soon(dir: &Path) -> io::Result<Flock<File>> {
    const TRIES: (Duration, u32) = (Duration::from_millis(10), 50);
    for _ in 1..TRIES.1 {
        match lock(dir) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(TRIES.0),
            result => return result,
        }
    }
    lock(dir)
}

/// Whether a shim holds the lock of this directory, and its pid.
pub fn shim_pid(dir: &Path) -> Option<i32> {
    let file = OpenOptions::new().read(true).write(true).open(dir.join(LOCK)).ok()?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(_) => None,
        Err(_) => Records::read(dir).shim,
    }
}

/// Every process of the attempt in this directory, and of people who are inside it.
pub fn processes(dir: &Path) -> Vec<u32> {
    let own = shim_pid(dir).map(descendants).unwrap_or_default();
    let own = own.into_iter().filter_map(|(pid, _)| u32::try_from(pid).ok());
    own.chain(crate::enter::processes(dir)).collect()
}

/// The processes below which everything of the attempt in this directory is, people who are inside it too.
pub fn roots(dir: &Path) -> Vec<i32> {
    shim_pid(dir).into_iter().chain(crate::enter::inside(dir)).collect()
}

/// Those of these processes that are of the attempt in this directory, or of people who are inside it.
pub fn among(pids: &[u32], dir: &Path) -> Vec<u32> {
    let roots = roots(dir);
    let theirs = |pid: &u32| i32::try_from(*pid).is_ok_and(|pid| crate::processes::is_below(pid, &roots));
    pids.iter().copied().filter(theirs).collect()
}

/// Tells the shim of this directory something; nothing happens when there is none.
pub fn tell(dir: &Path, signal: Signal) {
    if let Some(pid) = shim_pid(dir) {
        let _ = kill(Pid::from_raw(pid), signal);
    }
}

/// Waits until no shim holds this directory, which is when all its processes are gone.
pub fn wait_gone(dir: &Path) -> io::Result<()> {
    match OpenOptions::new().read(true).write(true).open(dir.join(LOCK)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(file) => Flock::lock(file, FlockArg::LockExclusive).map(|_| ()).map_err(|(_, errno)| errno.into()),
    }
}

//! The lock of a shim, which it holds for its whole life.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};

/// The file of the lock and of the shim's records.
pub const LOCK: &str = "shim.lock";

/// Takes the lock of this directory.
///
/// # Errors
/// `WouldBlock` while a shim holds it.
pub fn try_lock(dir: &Path) -> io::Result<Flock<File>> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(dir.join(LOCK))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno.into())
}

/// Takes the lock for the shim itself. A search for a shim holds it for a moment, so this tries several times.
pub(super) fn lock_with_retries(dir: &Path) -> io::Result<Flock<File>> {
    const TRIES: (Duration, u32) = (Duration::from_millis(10), 50);
    for _ in 1..TRIES.1 {
        match try_lock(dir) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(TRIES.0),
            result => return result,
        }
    }
    try_lock(dir)
}

/// Waits until no shim holds the lock; all processes of the attempt are gone then. Blocking.
pub fn wait_until_released(dir: &Path) -> io::Result<()> {
    match OpenOptions::new().read(true).write(true).open(dir.join(LOCK)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(file) => Flock::lock(file, FlockArg::LockExclusive).map(|_| ()).map_err(|(_, errno)| errno.into()),
    }
}

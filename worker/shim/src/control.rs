//! The shim of a directory, from outside.

use std::fs::OpenOptions;
use std::path::Path;

use berth_system::signals::send_if;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::Signal;

use super::lock::LOCK;
use super::records::ShimRecords;

/// The pid of the shim that holds the lock of this directory. `None`: there is no shim.
pub fn shim_pid(dir: &Path) -> Option<i32> {
    let file = OpenOptions::new().read(true).write(true).open(dir.join(LOCK)).ok()?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(_) => None,
        Err(_) => ShimRecords::read(dir).shim,
    }
}

/// Sends a signal to the shim of this directory, if there is one.
pub fn send_signal(dir: &Path, signal: Signal) {
    if let Some(pid) = shim_pid(dir) {
        // The shim may have ended meanwhile.
        send_if(pid, signal, || shim_pid(dir) == Some(pid));
    }
}

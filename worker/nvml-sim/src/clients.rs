//! The processes with an open NVML. Like the driver's clients, each of them holds all boards of the host.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};

use crate::fault::Fault;
use crate::world::configured;

/// The file that each client locks together with the others, and a reset alone.
const CLIENTS: &str = "clients";
/// The tries of a reset, and the time between them: a new process holds the files of its parent for a moment.
const TRIES: usize = 50;
const TRY_EVERY: Duration = Duration::from_millis(20);

/// The starts of NVML in this process without their end.
struct Open {
    starts: usize,
    lock: Option<Flock<File>>,
}

fn open() -> MutexGuard<'static, Open> {
    static OPEN: Mutex<Open> = Mutex::new(Open { starts: 0, lock: None });
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn file() -> Result<File, Fault> {
    let path = Path::new(&configured()?).join(CLIENTS);
    let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    opened.map_err(|_| Fault::OperatingSystem)
}

/// Starts NVML in this process. It waits for the end of a reset.
pub fn start() -> Result<(), Fault> {
    let mut open = open();
    if open.lock.is_none() {
        let lock = Flock::lock(file()?, FlockArg::LockShared).map_err(|_| Fault::OperatingSystem)?;
        open.lock = Some(lock);
    }
    open.starts += 1;
    Ok(())
}

/// Ends NVML in this process, with the last of its starts.
pub fn end() -> Result<(), Fault> {
    let mut open = open();
    open.starts = open.starts.checked_sub(1).ok_or(Fault::Uninitialized)?;
    if open.starts == 0 {
        open.lock = None;
    }
    Ok(())
}

/// Keeps all clients out until the result is dropped.
pub fn keep_out() -> Result<Flock<File>, Fault> {
    for _ in 0..TRIES {
        if let Ok(lock) = Flock::lock(file()?, FlockArg::LockExclusiveNonblock) {
            return Ok(lock);
        }
        std::thread::sleep(TRY_EVERY);
    }
    Err(Fault::InUse)
}

//! Waits for the end of shims that nobody tells of, without a thread for each: an attempt runs for days, and a
//! node has many.
//!
//! Knows when a process ended, not how.

#![expect(unsafe_code, reason = "registering a descriptor with the runtime promises that it stays open")]

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::shim;

/// A process that is waited for.
struct Waited(AsyncFd<OwnedFd>);

impl Waited {
    /// An error when it is not there, or when the kernel has no descriptors of processes.
    fn open(pid: i32) -> io::Result<Self> {
        let pid =
            Some(pid).filter(|pid| *pid > 0).and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        // SAFETY: the descriptor is owned by what is registered, never replaced, and closed only with it.
        let process = unsafe { AsyncFd::register_with_interest(process, Interest::READABLE) };
        Ok(Self(process.map_err(io::Error::from)?))
    }

    async fn ended(self) -> io::Result<()> {
        // It becomes readable when the process ends, and stays so.
        let ready = self.0.readable().await;
        ready.map(|_| ())
    }
}

/// Waits until no shim holds this directory, which is when all its processes are gone.
pub async fn gone(dir: PathBuf) {
    if let Some(pid) = shim::shim_pid(&dir)
        && let Ok(process) = Waited::open(pid)
        // Its number may have been given to another between the two.
        && shim::shim_pid(&dir) == Some(pid)
    {
        // Whatever that says, the lock is waited for.
        let _ = process.ended().await;
    }
    // A lock that cannot be waited for is as good as free: the files say the rest.
    let _ = tokio::task::spawn_blocking(move || shim::wait_gone(&dir)).await;
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::path::Path;
    use std::process::{Child, Command, Stdio};
    use std::time::Duration;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    /// Holds a directory as a shim does, until its input ends.
    fn holder(dir: &Path) -> Child {
        let path = dir.join(shim::LOCK);
        let lock = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        lock.lock().unwrap();
        let child = Command::new("sh")
            .args(["-c", "read -r _"])
            .stdin(Stdio::piped())
            .stdout(Stdio::from(lock))
            .spawn()
            .unwrap();
        std::fs::write(path, format!("{{\"shim\":{}}}\n", child.id())).unwrap();
        child
    }

    /// One thread for what blocks: whoever takes it keeps the others waiting.
    fn narrow() -> tokio::runtime::Runtime {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).max_blocking_threads(1).enable_all().build().unwrap()
    }

    #[test]
    fn many_are_waited_for_without_a_thread_for_each() {
        narrow().block_on(async {
            let dirs: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
            let mut children: Vec<Child> = dirs.iter().map(|dir| holder(dir.path())).collect();
            let inputs: Vec<_> = children.iter_mut().map(|child| child.stdin.take()).collect();
            let waits: Vec<_> = dirs.iter().map(|dir| tokio::spawn(gone(dir.path().to_owned()))).collect();
            let free = tokio::time::timeout(LONG, tokio::task::spawn_blocking(|| 7)).await;
            assert_eq!(free.unwrap().unwrap(), 7, "nobody holds the thread");
            assert!(waits.iter().all(|wait| !wait.is_finished()));
            drop(inputs);
            for wait in waits {
                tokio::time::timeout(LONG, wait).await.unwrap().unwrap();
            }
            for child in &mut children {
                assert!(child.wait().is_ok());
            }
        });
    }

    #[test]
    fn who_ended_before_is_not_waited_for() {
        narrow().block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let mut child = holder(dir.path());
            drop(child.stdin.take());
            child.wait().unwrap();
            let empty = tempfile::tempdir().unwrap();
            let both = async {
                gone(dir.path().to_owned()).await;
                gone(empty.path().to_owned()).await;
            };
            tokio::time::timeout(LONG, both).await.unwrap();
        });
    }
}

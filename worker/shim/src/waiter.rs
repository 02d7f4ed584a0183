//! Waits for the end of shims that are no children of this process, without a thread for each: an attempt runs for
//! days, and a node has many.

#![expect(unsafe_code, reason = "registering a descriptor with the runtime promises that it stays open")]

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::control::shim_pid;
use super::lock::wait_until_released;

/// A process by its descriptor.
struct ProcessHandle(AsyncFd<OwnedFd>);

impl ProcessHandle {
    /// # Errors
    /// The process does not exist, or the kernel has no descriptors of processes.
    fn open(pid: i32) -> io::Result<Self> {
        let pid =
            Some(pid).filter(|pid| *pid > 0).and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        // SAFETY: the registered value owns the descriptor, never replaces it, and closes it at its own end.
        let process = unsafe { AsyncFd::register_with_interest(process, Interest::READABLE) };
        Ok(Self(process.map_err(io::Error::from)?))
    }

    async fn wait(self) -> io::Result<()> {
        // The descriptor is readable from the end of the process on.
        let ready = self.0.readable().await;
        ready.map(|_| ())
    }
}

/// Waits until no shim holds the lock of this directory; all its processes are gone then.
pub async fn wait_until_gone(dir: PathBuf) {
    if let Some(pid) = shim_pid(&dir)
        && let Ok(process) = ProcessHandle::open(pid)
        // The number may belong to another process since the first read.
        && shim_pid(&dir) == Some(pid)
    {
        // The lock decides in any case.
        let _ = process.wait().await;
    }
    // An unreadable lock counts as free: the records decide then.
    let _ = tokio::task::spawn_blocking(move || wait_until_released(&dir)).await;
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::path::Path;
    use std::process::{Child, Command, Stdio};
    use std::time::Duration;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    /// A process that holds the lock like a shim until its input ends.
    fn holder(dir: &Path) -> Child {
        let path = dir.join(crate::LOCK);
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

    /// A runtime with one blocking thread, which one blocking wait would occupy.
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
            let waits: Vec<_> =
                dirs.iter().map(|dir| tokio::spawn(wait_until_gone(dir.path().to_owned()))).collect();
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
                wait_until_gone(dir.path().to_owned()).await;
                wait_until_gone(empty.path().to_owned()).await;
            };
            tokio::time::timeout(LONG, both).await.unwrap();
        });
    }
}

//! Waits for the end of processes, without a thread for each: an attempt runs for days, and a node has many.
//!
//! Knows when a process ended, not how.

#![expect(unsafe_code, reason = "registering a descriptor with the runtime promises that it stays open")]

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Child;

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

/// Waits for the end of a child and collects it, so that no zombie is left.
pub async fn collect(mut child: Child) {
    let ended = match i32::try_from(child.id()).map_err(io::Error::other).and_then(Waited::open) {
        Ok(process) => process.ended().await,
        Err(error) => Err(error),
    };
    if ended.is_ok() {
        // Its own record says how it went.
        let _ = child.wait();
        return;
    }
    let _ = tokio::task::spawn_blocking(move || child.wait()).await;
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
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    fn sleeper() -> Child {
        Command::new("sh").args(["-c", "read -r _"]).stdin(Stdio::piped()).spawn().unwrap()
    }

    /// One thread for what blocks: whoever takes it keeps the others waiting.
    fn narrow() -> tokio::runtime::Runtime {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).max_blocking_threads(1).enable_all().build().unwrap()
    }

    #[test]
    fn many_are_waited_for_without_a_thread_for_each() {
        narrow().block_on(async {
            let mut children: Vec<Child> = (0..3).map(|_| sleeper()).collect();
            let inputs: Vec<_> = children.iter_mut().map(|child| child.stdin.take()).collect();
            let pids: Vec<u32> = children.iter().map(Child::id).collect();
            let waits: Vec<_> = children.into_iter().map(|child| tokio::spawn(collect(child))).collect();
            let free = tokio::time::timeout(LONG, tokio::task::spawn_blocking(|| 7)).await;
            assert_eq!(free.unwrap().unwrap(), 7, "nobody holds the thread");
            assert!(waits.iter().all(|wait| !wait.is_finished()));
            drop(inputs);
            for wait in waits {
                tokio::time::timeout(LONG, wait).await.unwrap().unwrap();
            }
            let left = pids.iter().filter(|pid| std::path::Path::new(&format!("/proc/{pid}")).exists());
            assert_eq!(left.count(), 0, "collected");
        });
    }

    #[test]
    fn who_ended_before_is_not_waited_for() {
        narrow().block_on(async {
            let mut child = sleeper();
            drop(child.stdin.take());
            let dir = tempfile::tempdir().unwrap();
            let both = async {
                collect(child).await;
                gone(dir.path().to_owned()).await;
            };
            tokio::time::timeout(LONG, both).await.unwrap();
        });
    }
}

//! Whose processes are on the boards that attempts of one organization share, as these come and go.
//!
//! Must not decide what becomes of a process that is nobody's.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;

use crate::attempts::Device;
use crate::processes::stat;
use crate::shim;

/// The attempts that have shares of boards.
#[derive(Debug, Default)]
pub struct Sharers(Mutex<HashMap<PathBuf, Sharer>>);

#[derive(Debug)]
struct Sharer {
    gpu_uuids: Vec<String>,
    /// Known once it was started by this daemon.
    shim: Option<i32>,
}

impl Sharers {
    fn held(&self) -> MutexGuard<'_, HashMap<PathBuf, Sharer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An attempt is here. To be called before anything of it can be on a device.
    pub fn join(&self, dir: &Path, devices: &[Device]) {
        let shared = devices.iter().filter(|device| device.share_milli.is_some());
        let gpu_uuids: Vec<String> = shared.map(|device| device.gpu_uuid.clone()).collect();
        if !gpu_uuids.is_empty() {
            self.held().insert(dir.to_owned(), Sharer { gpu_uuids, shim: None });
        }
    }

    /// Its shim is this process.
    pub fn started(&self, dir: &Path, shim: i32) {
        if let Some(sharer) = self.held().get_mut(dir) {
            sharer.shim = Some(shim);
        }
    }

    /// Nothing of it is here any more.
    pub fn leave(&self, dir: &Path) {
        self.held().remove(dir);
    }

    /// Those of these processes that are there still and of no attempt that shares the board, but for the one
    /// in `own`. What was found on the board was started before this is called, so whoever it is of has joined.
    pub fn strangers(&self, gpu_uuid: &str, own: &Path, pids: Vec<u32>) -> Vec<u32> {
        let others: Vec<(PathBuf, Option<i32>)> = self
            .held()
            .iter()
            .filter(|(dir, sharer)| *dir != own && sharer.gpu_uuids.iter().any(|uuid| uuid == gpu_uuid))
            .map(|(dir, sharer)| (dir.clone(), sharer.shim))
            .collect();
        let shims: HashMap<i32, &Path> =
            others.iter().filter_map(|(dir, shim)| Some(((*shim)?, dir.as_path()))).collect();
        // Its number may have been given to another since it ended.
        let is_shim = |pid: i32| shims.get(&pid).is_some_and(|dir| shim::shim_pid(dir) == Some(pid));
        let unknown: Vec<u32> =
            pids.into_iter().filter(|pid| !is_gone(*pid) && !above(*pid).any(is_shim)).collect();
        if unknown.is_empty() {
            return unknown;
        }
        // Of a shim that a former daemon started, or of people who are inside.
        let dirs: Vec<PathBuf> = others.into_iter().map(|(dir, _)| dir).collect();
        let theirs = shim::among(&unknown, &dirs);
        unknown.into_iter().filter(|pid| !theirs.contains(pid) && !is_gone(*pid)).collect()
    }
}

/// Whether it has ended for certain, and so is on no device. One whose first thread has ended looks dead and is
/// not while it has others, and one that cannot be seen from here may be anybody's.
fn is_gone(pid: u32) -> bool {
    let Some(number) = i32::try_from(pid).ok().filter(|number| *number > 0) else { return false };
    let threads = || std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    kill(Pid::from_raw(number), None) == Err(Errno::ESRCH)
        || (stat(number).is_some_and(|found| found.dead) && threads() == 1)
}

/// Its parent, that one's parent, and so on.
fn above(pid: u32) -> impl Iterator<Item = i32> {
    std::iter::successors(i32::try_from(pid).ok(), |pid| Some(stat(*pid)?.parent)).skip(1)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    fn device(gpu_uuid: &str, share_milli: Option<u32>) -> Device {
        let text = serde_json::json!({"gpu_uuid": gpu_uuid, "share_milli": share_milli});
        serde_json::from_value(text).unwrap()
    }

    #[test]
    fn only_what_is_nobodys_is_strange() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id();
        let sharers = Sharers::default();
        let strange = |own: &Path| sharers.strangers("GPU-1", own, vec![pid]);
        let nowhere = Path::new("/nowhere");
        assert_eq!(strange(nowhere), [pid], "nobody is here");
        // This process is its shim.
        let lock = shim::lock(one.path()).unwrap();
        let this = std::process::id();
        std::fs::write(one.path().join(shim::LOCK), this.to_string()).unwrap();
        let share = [device("GPU-1", Some(100)), device("GPU-2", None)];
        sharers.join(one.path(), &share);
        assert!(strange(nowhere).is_empty(), "whether its shim is known or not");
        sharers.started(one.path(), i32::try_from(this).unwrap());
        assert!(strange(nowhere).is_empty());
        assert_eq!(strange(one.path()), [pid], "its own are to be gone");
        assert_eq!(sharers.strangers("GPU-2", nowhere, vec![pid]), [pid], "that is no share");
        sharers.started(other.path(), 1);
        sharers.join(other.path(), &share[1..]);
        drop(lock);
        assert_eq!(strange(nowhere), [pid], "its shim has ended, whoever has its number");
        let lock = shim::lock(one.path()).unwrap();
        assert!(strange(nowhere).is_empty());
        sharers.leave(one.path());
        assert_eq!(strange(nowhere), [pid]);
        drop(lock);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(strange(nowhere).is_empty(), "it has ended");
        assert_eq!(sharers.strangers("GPU-1", nowhere, vec![0]), [0], "who has no number here is not known");
    }

    #[test]
    fn who_goes_on_without_its_first_thread_is_there() {
        let script = "import ctypes, threading, time\n\
                      threading.Thread(target=time.sleep, args=(60,)).start()\n\
                      print('up', flush=True)\n\
                      ctypes.CDLL(None).pthread_exit(None)";
        let mut child = Command::new("python3").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        let dead = || stat(i32::try_from(child.id()).unwrap()).unwrap().dead;
        while !dead() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert!(dead(), "its first thread has ended");
        let nowhere = Path::new("/nowhere");
        let strange = |pid: u32| Sharers::default().strangers("GPU-1", nowhere, vec![pid]);
        assert_eq!(strange(child.id()), [child.id()]);
        let pid = child.id();
        child.kill().unwrap();
        // Its other threads go; then it only waits to be collected.
        while !is_gone(pid) && Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert!(strange(pid).is_empty());
        child.wait().unwrap();
    }
}

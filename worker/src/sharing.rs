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
use crate::gpu::GpuError;
use crate::processes::{Stat, stat};
use crate::questions::Questions;
use crate::shim;

/// A process with the attempt whose it is; `None`: nobody's that is known.
pub type Owned = (u32, Option<PathBuf>);

/// The attempts that have shares of boards.
#[derive(Debug, Default)]
pub struct Sharers {
    here: Mutex<HashMap<PathBuf, Sharer>>,
    questions: Questions<Result<Vec<Owned>, GpuError>>,
}

#[derive(Debug)]
struct Sharer {
    gpu_uuids: Vec<String>,
    /// Known once it was started by this daemon.
    shim: Option<i32>,
}

impl Sharers {
    fn held(&self) -> MutexGuard<'_, HashMap<PathBuf, Sharer>> {
        self.here.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Whose the processes are that `look` finds on a board, as it is called after this. One look is for all who
    /// ask meanwhile.
    pub fn on_board(
        &self,
        gpu_uuid: &str,
        look: impl FnOnce() -> Result<Vec<u32>, GpuError>,
    ) -> Result<Vec<Owned>, GpuError> {
        let ask = || look().map(|pids| self.owners(gpu_uuid, pids));
        self.questions.ask(gpu_uuid, ask).unwrap_or(Err(GpuError::Unresponsive))
    }

    /// Those of these processes that are there still, with whose they are. What was found on the board was started
    /// before this is called, so whoever it is of has joined.
    fn owners(&self, gpu_uuid: &str, pids: Vec<u32>) -> Vec<Owned> {
        let shares = |sharer: &Sharer| sharer.gpu_uuids.iter().any(|uuid| uuid == gpu_uuid);
        let here: Vec<(PathBuf, Option<i32>)> = self
            .held()
            .iter()
            .filter(|(_, sharer)| shares(sharer))
            .map(|(dir, sharer)| (dir.clone(), sharer.shim))
            .collect();
        let shims = here.iter().filter_map(|(dir, shim)| Some(((*shim)?, dir.as_path()))).collect();
        let mut families = Families::below(shims);
        let there: Vec<u32> = pids.into_iter().filter(|pid| families.meet(*pid)).collect();
        let mut owned: Vec<Owned> = there.into_iter().map(|pid| (pid, families.owner(pid))).collect();
        if owned.iter().any(|(_, owner)| owner.is_none()) {
            // Of a shim that a former daemon started or that has only begun, or of people who are inside.
            let all =
                here.iter().flat_map(|(dir, _)| shim::roots(dir).into_iter().map(move |pid| (pid, dir)));
            let mut families = Families::of(all.map(|(pid, dir)| (pid, dir.as_path())).collect());
            owned.retain_mut(|(pid, of)| {
                *of = of.take().or_else(|| families.owner(*pid));
                of.is_some() || families.meet(*pid)
            });
        }
        owned
    }
}

/// Who is below whom, as far as it was looked at: at each process once, and at a root not at all.
struct Families<'a> {
    /// The processes above all of an attempt, and of which; `bool`: known to be that attempt's still.
    roots: HashMap<i32, (&'a Path, bool)>,
    parents: HashMap<i32, Option<i32>>,
}

impl<'a> Families<'a> {
    fn of(roots: HashMap<i32, &'a Path>) -> Self {
        let roots = roots.into_iter().map(|(pid, dir)| (pid, (dir, true))).collect();
        Self { roots, parents: HashMap::new() }
    }

    /// Of shims that were started, which may have ended since.
    fn below(shims: HashMap<i32, &'a Path>) -> Self {
        let roots = shims.into_iter().map(|(pid, dir)| (pid, (dir, false))).collect();
        Self { roots, parents: HashMap::new() }
    }

    /// Looks whether a process is there.
    fn meet(&mut self, pid: u32) -> bool {
        let Some(number) = i32::try_from(pid).ok().filter(|number| *number > 0) else { return true };
        let found = stat(number);
        let there = !is_gone(number, found.as_ref());
        self.parents.insert(number, found.map(|found| found.parent));
        there
    }

    /// Whose a process is: that of the first root above it.
    fn owner(&mut self, pid: u32) -> Option<PathBuf> {
        let mut at = i32::try_from(pid).ok()?;
        loop {
            if let Some((dir, sure)) = self.roots.get_mut(&at) {
                let dir: &Path = dir;
                // Its number may have been given to another since it ended; while it is there it is nobody else's.
                *sure = *sure || shim::shim_pid(dir) == Some(at);
                if *sure {
                    return Some(dir.to_path_buf());
                }
                self.roots.remove(&at);
            }
            at = (*self.parents.entry(at).or_insert_with(|| stat(at).map(|found| found.parent)))?;
        }
    }
}

/// Whether a process has ended for certain, and so is on no device. One whose first thread has ended looks dead and
/// is not while it has others, and one that cannot be seen from here may be anybody's.
fn is_gone(pid: i32, found: Option<&Stat>) -> bool {
    let threads = || std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    match found {
        Some(found) => found.dead && threads() == 1,
        None => kill(Pid::from_raw(pid), None) == Err(Errno::ESRCH),
    }
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
    fn a_process_is_whose_shim_is_above_it() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id();
        let sharers = Sharers::default();
        let owner = |gpu: &str| sharers.owners(gpu, vec![pid]);
        let (nobody, this_one) = (vec![(pid, None)], vec![(pid, Some(one.path().to_owned()))]);
        assert_eq!(owner("GPU-1"), nobody, "nobody is here");
        // This process is its shim.
        let lock = shim::lock(one.path()).unwrap();
        let this = std::process::id();
        std::fs::write(one.path().join(shim::LOCK), format!("{{\"shim\":{this}}}\n")).unwrap();
        let share = [device("GPU-1", Some(100)), device("GPU-2", None)];
        sharers.join(one.path(), &share);
        assert_eq!(owner("GPU-1"), this_one, "whether its shim is known or not");
        sharers.started(one.path(), i32::try_from(this).unwrap());
        assert_eq!(owner("GPU-1"), this_one);
        assert_eq!(owner("GPU-2"), nobody, "that is no share");
        sharers.started(other.path(), 1);
        sharers.join(other.path(), &share[1..]);
        drop(lock);
        assert_eq!(owner("GPU-1"), nobody, "its shim has ended, whoever has its number");
        let lock = shim::lock(one.path()).unwrap();
        assert_eq!(owner("GPU-1"), this_one);
        sharers.leave(one.path());
        assert_eq!(owner("GPU-1"), nobody);
        drop(lock);
        assert_eq!(sharers.on_board("GPU-1", || Ok(vec![pid])), Ok(nobody));
        assert_eq!(sharers.on_board("GPU-2", || Err(GpuError::Lost)), Err(GpuError::Lost));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(owner("GPU-1"), [], "it has ended");
        assert_eq!(sharers.owners("GPU-1", vec![0]), [(0, None)], "who has no number here is not known");
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
        let found = |pid: u32| Sharers::default().owners("GPU-1", vec![pid]);
        assert_eq!(found(child.id()), [(child.id(), None)]);
        let pid = child.id();
        child.kill().unwrap();
        // Its other threads go; then it only waits to be collected.
        let number = i32::try_from(pid).unwrap();
        while !is_gone(number, stat(number).as_ref()) && Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert!(found(pid).is_empty());
        child.wait().unwrap();
    }
}

//! The attempts that share boards, and the owners of the processes there.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use berth_exec::attempt_processes;
use berth_gpu::GpuError;
use berth_system::sync::lock;

use super::device::AttemptDevice;
use super::process_owners::ProcessOwners;
use berth_system::single_flight::SingleFlight;

/// A process with the directory of its attempt. `None`: no known attempt.
pub type OwnedProcess = (u32, Option<PathBuf>);

/// The attempts with shares of boards.
#[derive(Debug, Default)]
pub struct BoardSharers {
    attempts: Mutex<HashMap<PathBuf, SharingAttempt>>,
    searches: SingleFlight<Result<Vec<OwnedProcess>, GpuError>>,
}

#[derive(Debug)]
struct SharingAttempt {
    gpu_uuids: Vec<String>,
    /// Known if this daemon started the shim.
    shim: Option<i32>,
}

impl BoardSharers {
    fn locked(&self) -> MutexGuard<'_, HashMap<PathBuf, SharingAttempt>> {
        lock(&self.attempts)
    }

    /// Adds an attempt. The caller does this before a process of the attempt can be on a device.
    pub fn add(&self, dir: &Path, devices: &[AttemptDevice]) {
        let shared = devices.iter().filter(|device| device.share_milli.is_some());
        let gpu_uuids: Vec<String> = shared.map(|device| device.gpu_uuid.clone()).collect();
        if !gpu_uuids.is_empty() {
            self.locked().insert(dir.to_owned(), SharingAttempt { gpu_uuids, shim: None });
        }
    }

    /// Notes the pid of an attempt's shim.
    pub fn set_shim(&self, dir: &Path, shim: i32) {
        if let Some(attempt) = self.locked().get_mut(dir) {
            attempt.shim = Some(shim);
        }
    }

    /// Removes an attempt without processes.
    pub fn remove(&self, dir: &Path) {
        self.locked().remove(dir);
    }

    /// The processes on a board with their owners. `find` lists the processes after this call begins; callers that
    /// come meanwhile share one list.
    pub fn processes_on_board(
        &self,
        gpu_uuid: &str,
        find: impl FnOnce() -> Result<Vec<u32>, GpuError>,
    ) -> Result<Vec<OwnedProcess>, GpuError> {
        let search = || find().map(|pids| self.owners(gpu_uuid, pids));
        self.searches.run(gpu_uuid, search).unwrap_or(Err(GpuError::Unresponsive))
    }

    /// The processes that still exist, with their owners. Each was started before this call, so its attempt is known.
    fn owners(&self, gpu_uuid: &str, pids: Vec<u32>) -> Vec<OwnedProcess> {
        let shares = |attempt: &SharingAttempt| attempt.gpu_uuids.iter().any(|uuid| uuid == gpu_uuid);
        let here: Vec<(PathBuf, Option<i32>)> = self
            .locked()
            .iter()
            .filter(|(_, attempt)| shares(attempt))
            .map(|(dir, attempt)| (dir.clone(), attempt.shim))
            .collect();
        let shims = here.iter().filter_map(|(dir, shim)| Some(((*shim)?, dir.as_path()))).collect();
        let mut owners = ProcessOwners::with_shims(shims);
        let existing: Vec<u32> = pids.into_iter().filter(|pid| owners.exists(*pid)).collect();
        let mut owned: Vec<OwnedProcess> = existing.into_iter().map(|pid| (pid, owners.owner(pid))).collect();
        if owned.iter().any(|(_, owner)| owner.is_none()) {
            // The shim may be of an earlier daemon or have just begun, or the process may be an entered one.
            let all = here
                .iter()
                .flat_map(|(dir, _)| attempt_processes::roots(dir).into_iter().map(move |pid| (pid, dir)));
            let mut owners = ProcessOwners::with_roots(all.map(|(pid, dir)| (pid, dir.as_path())).collect());
            owned.retain_mut(|(pid, owner)| {
                *owner = owner.take().or_else(|| owners.owner(*pid));
                owner.is_some() || owners.exists(*pid)
            });
        }
        owned
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::super::process_owners::has_ended;
    use super::*;
    use berth_system::processes::stat;

    fn device(gpu_uuid: &str, share_milli: Option<u32>) -> AttemptDevice {
        let text = serde_json::json!({"gpu_uuid": gpu_uuid, "share_milli": share_milli});
        serde_json::from_value(text).unwrap()
    }

    #[test]
    fn a_process_is_whose_shim_is_above_it() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id();
        let sharers = BoardSharers::default();
        let owner = |gpu: &str| sharers.owners(gpu, vec![pid]);
        let (nobody, this_one) = (vec![(pid, None)], vec![(pid, Some(one.path().to_owned()))]);
        assert_eq!(owner("GPU-1"), nobody, "nobody is here");
        // This process is its shim.
        let lock = berth_shim::try_lock(one.path()).unwrap();
        let this = std::process::id();
        std::fs::write(one.path().join(berth_shim::LOCK), format!("{{\"shim\":{this}}}\n")).unwrap();
        let share = [device("GPU-1", Some(100)), device("GPU-2", None)];
        sharers.add(one.path(), &share);
        assert_eq!(owner("GPU-1"), this_one, "whether its shim is known or not");
        sharers.set_shim(one.path(), i32::try_from(this).unwrap());
        assert_eq!(owner("GPU-1"), this_one);
        assert_eq!(owner("GPU-2"), nobody, "that is no share");
        sharers.set_shim(other.path(), 1);
        sharers.add(other.path(), &share[1..]);
        drop(lock);
        assert_eq!(owner("GPU-1"), nobody, "its shim has ended, whoever has its number");
        let lock = berth_shim::try_lock(one.path()).unwrap();
        assert_eq!(owner("GPU-1"), this_one);
        sharers.remove(one.path());
        assert_eq!(owner("GPU-1"), nobody);
        drop(lock);
        assert_eq!(sharers.processes_on_board("GPU-1", || Ok(vec![pid])), Ok(nobody));
        assert_eq!(sharers.processes_on_board("GPU-2", || Err(GpuError::Lost)), Err(GpuError::Lost));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(owner("GPU-1"), [], "it has ended");
        assert_eq!(sharers.owners("GPU-1", vec![0]), [(0, None)], "who has no number here is not known");
    }

    #[test]
    fn a_process_without_its_first_thread_exists() {
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
        let found = |pid: u32| BoardSharers::default().owners("GPU-1", vec![pid]);
        assert_eq!(found(child.id()), [(child.id(), None)]);
        let pid = child.id();
        child.kill().unwrap();
        // Its other threads end; then only its parent must collect it.
        let number = i32::try_from(pid).unwrap();
        while !has_ended(number, stat(number).as_ref()) && Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert!(found(pid).is_empty());
        child.wait().unwrap();
    }
}

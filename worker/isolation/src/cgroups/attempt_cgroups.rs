//! The cgroups of one attempt: creation with limits, joining, counts, and the end of all processes in them. Blocking.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use berth_system::signals::ProcessHandle;
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use super::device_filter;
use super::device_rules::device_rules;
use super::directory::{Allowance, CgroupDir, Controller};
use super::memory_watch::MemoryWatch;
use super::tree;

/// Limits memory together with swap.
pub(super) fn limit_memory(place: &CgroupDir, mib: u64) -> io::Result<()> {
    let bytes = mib.saturating_mul(1 << 20).to_string();
    if place.unified {
        place.write("memory.max", &bytes)?;
        // The file is absent if the kernel does not count swap.
        let _ = place.write("memory.swap.max", "0");
    } else {
        // The limit of memory and swap must not be below that of memory, so one of two orders works.
        let _ = place.write("memory.limit_in_bytes", &bytes);
        let _ = place.write("memory.memsw.limit_in_bytes", &bytes);
        place.write("memory.limit_in_bytes", &bytes)?;
    }
    Ok(())
}

/// Limits the device nodes: by the controller of version 1, or by a filter in version 2.
fn limit_devices(place: &CgroupDir, nodes: &[PathBuf]) -> io::Result<()> {
    let rules = device_rules(nodes)?;
    if place.unified {
        return device_filter::attach(&place.dir, &rules).map_err(|e| {
            io::Error::new(e.kind(), format!("the filter of device nodes in {}: {e}", place.dir.display()))
        });
    }
    place.write("devices.deny", "a")?;
    let mut allow = fs::OpenOptions::new().write(true).open(place.dir.join("devices.allow"))?;
    for rule in rules {
        allow.write_all(format!("c {rule} rw").as_bytes())?;
    }
    Ok(())
}

/// The most processes that are open at one time.
const OPEN_PROCESSES: usize = 64;

/// The memory use of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUse {
    /// Processes that were killed for lack of memory.
    pub kills: u64,
    pub peak_mib: Option<u64>,
}

/// The cgroups of one attempt: one in each hierarchy that limits or counts something for it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptCgroups {
    pub(super) places: Vec<CgroupDir>,
    /// Directories in other hierarchies, which a container engine leaves behind.
    #[serde(default)]
    pub(super) others: Vec<PathBuf>,
}

impl AttemptCgroups {
    pub(super) fn make(&self, allowance: &Allowance) -> io::Result<()> {
        for place in &self.places {
            fs::create_dir(&place.dir)?;
            for controller in &place.controllers {
                match controller {
                    Controller::Memory => {
                        if place.unified {
                            // A job without one of its processes must not go on.
                            place.write("memory.oom.group", "1")?;
                        }
                        if allowance.memory_mib > 0 {
                            limit_memory(place, allowance.memory_mib)?;
                        }
                    }
                    Controller::Cpu if allowance.cpu_milli > 0 => {
                        let quota = allowance.cpu_milli.saturating_mul(100);
                        if place.unified {
                            place.write("cpu.max", &format!("{quota} 100000"))?;
                        } else {
                            place.write("cpu.cfs_period_us", "100000")?;
                            place.write("cpu.cfs_quota_us", &quota.to_string())?;
                        }
                    }
                    Controller::Pids => place.write("pids.max", &allowance.pids.to_string())?,
                    Controller::Devices => limit_devices(place, &allowance.devices)?,
                    Controller::Cpu | Controller::Freezer => {}
                }
            }
        }
        Ok(())
    }

    /// True if the group limits this.
    pub fn limits(&self, controller: Controller) -> bool {
        self.places.iter().any(|p| p.has(controller))
    }

    /// Moves the calling process into the group. Its later children are in the group too.
    pub fn join(&self) -> io::Result<()> {
        self.places.iter().try_for_each(|p| p.write("cgroup.procs", "0"))
    }

    /// All processes in the group.
    pub fn processes(&self) -> io::Result<Vec<i32>> {
        let mut all = Vec::new();
        for place in &self.places {
            all.extend(place.processes()?);
        }
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }

    /// The memory use so far. `None`: the group does not count memory, or is gone.
    pub fn memory(&self) -> Option<MemoryUse> {
        let place = self.places.iter().find(|p| p.has(Controller::Memory))?;
        let (events, peak) = if place.unified {
            ("memory.events", "memory.peak")
        } else {
            ("memory.oom_control", "memory.max_usage_in_bytes")
        };
        let kills = place.number(events, "oom_kill ")?;
        Some(MemoryUse { kills, peak_mib: place.number(peak, "").map(|bytes| bytes >> 20) })
    }

    /// Kills all processes, proves the group empty, and removes it.
    ///
    /// # Errors
    /// The reason why processes are left.
    pub fn end(&self) -> Result<(), String> {
        /// The time between two rounds, and the number of rounds.
        const ROUNDS: (Duration, u32) = (Duration::from_millis(20), 250);
        if self.remove_empty() {
            return Ok(());
        }
        for _ in 0..ROUNDS.1 {
            let left =
                self.processes().map_err(|e| format!("the cgroup of the attempt is not readable: {e}"))?;
            if left.is_empty() && self.remove() {
                return Ok(());
            }
            self.kill(&left);
            // The kernel has no event for an empty group in every hierarchy.
            std::thread::sleep(ROUNDS.0);
        }
        let left = self.processes().unwrap_or_default();
        Err(format!("the cgroup of the attempt is not empty: {left:?}"))
    }

    fn kill(&self, processes: &[i32]) {
        for place in self.places.iter().filter(|p| p.unified) {
            // Older kernels have no such file; the signals below suffice.
            let _ = place.write("cgroup.kill", "1");
        }
        // Frozen processes start no others meanwhile; the kill takes effect after the thaw.
        let freezer = self.places.iter().find(|p| p.has(Controller::Freezer));
        let freeze = |state: &str| freezer.map(|p| p.write("freezer.state", state));
        let _ = freeze("FROZEN");
        let now = self.processes().unwrap_or_else(|_| processes.to_vec());
        for some in now.chunks(OPEN_PROCESSES) {
            let opened: Vec<(i32, ProcessHandle)> =
                some.iter().filter_map(|pid| Some((*pid, ProcessHandle::open(*pid)?))).collect();
            // A number that has left the group may belong to another process.
            let left = self.processes().unwrap_or_default();
            for (_, process) in opened.iter().filter(|(pid, _)| left.binary_search(pid).is_ok()) {
                process.send(Signal::SIGKILL);
            }
        }
        let _ = freeze("THAWED");
    }

    /// Removes the directories if they are empty; the kernel removes no other. `true`: all are gone.
    fn remove_empty(&self) -> bool {
        let gone = |dir: &Path| match fs::remove_dir(dir) {
            Ok(()) => true,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        // A process is in every hierarchy, so the first directory that is not empty ends this without a change.
        self.others.is_empty() && self.places.iter().all(|place| gone(&place.dir))
    }

    /// Removes the directories with those below them. `true`: all are gone.
    fn remove(&self) -> bool {
        // A remaining directory in another hierarchy is harmless: nothing is counted there.
        self.others.iter().for_each(|dir| {
            tree::remove(dir);
        });
        self.places.iter().all(|place| tree::remove(&place.dir))
    }

    /// The events of memory that runs out in this group. `None`: the kernel has none, or the group's own count
    /// suffices.
    pub fn watch_memory(&self) -> Option<MemoryWatch> {
        let memory = self.places.iter().find(|p| p.has(Controller::Memory) && !p.unified)?;
        MemoryWatch::start(memory)
    }

    /// Moves the calling process into the cgroups of another one, in this group or below it, so the same limits
    /// apply. Both processes must be visible in this PID namespace.
    pub fn join_beside(&self, pid: i32) -> io::Result<()> {
        for place in &self.places {
            let holds = |dir: &PathBuf| {
                let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
                text.lines().any(|line| line.parse::<i32>() == Ok(pid))
            };
            match tree::directories(&place.dir).into_iter().find(holds) {
                Some(dir) => fs::write(dir.join("cgroup.procs"), "0")?,
                // A container engine may skip a hierarchy that limits nothing.
                None if place.controllers.is_empty() => {}
                None => return Err(io::ErrorKind::NotFound.into()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_joins_beside_another_one() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("job");
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("cgroup.procs"), "7\n0\n").unwrap();
        fs::write(root.join("a/b/cgroup.procs"), "9\n").unwrap();
        let place = |dir: &str, controllers: &[Controller]| CgroupDir {
            dir: dir.into(),
            unified: true,
            controllers: controllers.to_vec(),
        };
        let at = root.display().to_string();
        let places = vec![place(&at, &[Controller::Memory]), place("/none", &[])];
        let group = AttemptCgroups { places, others: Vec::new() };
        group.join_beside(9).unwrap();
        assert_eq!(fs::read_to_string(root.join("a/b/cgroup.procs")).unwrap(), "0");
        assert_eq!(fs::read_to_string(root.join("cgroup.procs")).unwrap(), "7\n0\n", "beside it, not above");
        assert!(group.join_beside(8).is_err(), "who is nowhere is followed nowhere");
    }
}

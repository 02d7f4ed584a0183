//! The cgroups of one attempt: made with its limits, joined, read, and ended with everything in them.
//!
//! Must not decide where they are. Blocking.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::stat::{major, minor};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::{Allowance, Controller, Place, nested};

/// Memory, with what would be swapped out counted in.
pub(super) fn limit_memory(place: &Place, mib: u64) -> io::Result<()> {
    let bytes = mib.saturating_mul(1 << 20).to_string();
    if place.unified {
        place.write("memory.max", &bytes)?;
        // Absent where the kernel does not count swap.
        let _ = place.write("memory.swap.max", "0");
    } else {
        // The sum can never be below its part: whichever way the limit moves, one order is right.
        let _ = place.write("memory.limit_in_bytes", &bytes);
        let _ = place.write("memory.memsw.limit_in_bytes", &bytes);
        place.write("memory.limit_in_bytes", &bytes)?;
    }
    Ok(())
}

/// Device nodes that every process may open: null, zero, full, random, urandom, tty, ptmx and pts.
const USUAL_NODES: [&str; 8] = ["1:3", "1:5", "1:7", "1:8", "1:9", "5:0", "5:2", "136:*"];

fn limit_devices(place: &Place, nodes: &[PathBuf]) -> io::Result<()> {
    place.write("devices.deny", "a")?;
    let mut allow = fs::OpenOptions::new().write(true).open(place.dir.join("devices.allow"))?;
    for node in USUAL_NODES {
        allow.write_all(format!("c {node} rw").as_bytes())?;
    }
    for node in nodes {
        let device = fs::metadata(node)?.rdev();
        allow.write_all(format!("c {}:{} rw", major(device), minor(device)).as_bytes())?;
    }
    Ok(())
}

/// What became of an attempt's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Processes that were killed because there was no more.
    pub kills: u64,
    pub peak_mib: Option<u64>,
}

/// The cgroups of one attempt, one in each hierarchy that does something for it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    pub(super) places: Vec<Place>,
    /// Directories in further hierarchies, which whoever makes a container leaves behind.
    #[serde(default)]
    pub(super) others: Vec<PathBuf>,
}

impl Group {
    pub(super) fn make(&self, allowance: &Allowance) -> io::Result<()> {
        for place in &self.places {
            fs::create_dir(&place.dir)?;
            for controller in &place.controllers {
                match controller {
                    Controller::Memory => {
                        if place.unified {
                            // A job without one of its processes is no job.
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

    /// Whether it limits this.
    pub fn limits(&self, controller: Controller) -> bool {
        self.places.iter().any(|p| p.has(controller))
    }

    /// Moves the calling process into it; what it starts is then in it too.
    pub fn join(&self) -> io::Result<()> {
        self.places.iter().try_for_each(|p| p.write("cgroup.procs", "0"))
    }

    /// Every process in it.
    pub fn processes(&self) -> io::Result<Vec<i32>> {
        let mut all = Vec::new();
        for place in &self.places {
            all.extend(place.processes()?);
        }
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }

    /// Read while it is there.
    pub fn memory(&self) -> Option<Memory> {
        let place = self.places.iter().find(|p| p.has(Controller::Memory))?;
        let (events, peak) = if place.unified {
            ("memory.events", "memory.peak")
        } else {
            ("memory.oom_control", "memory.max_usage_in_bytes")
        };
        let kills = place.number(events, "oom_kill ")?;
        Some(Memory { kills, peak_mib: place.number(peak, "").map(|bytes| bytes >> 20) })
    }

    /// Kills everything in it, proves it empty, and removes it. The reason when that cannot be done.
    pub fn end(&self) -> Result<(), String> {
        /// Between two looks, and how many.
        const LOOK: (Duration, u32) = (Duration::from_millis(20), 250);
        if self.remove_empty() {
            return Ok(());
        }
        for _ in 0..LOOK.1 {
            let left = self.processes().map_err(|e| format!("its cgroup cannot be read: {e}"))?;
            if left.is_empty() && self.remove() {
                return Ok(());
            }
            self.kill(&left);
            // Nothing tells when the last of them is gone from every hierarchy.
            std::thread::sleep(LOOK.0);
        }
        let left = self.processes().unwrap_or_default();
        Err(format!("its cgroup is not empty: {left:?}"))
    }

    fn kill(&self, processes: &[i32]) {
        for place in self.places.iter().filter(|p| p.unified) {
            // Older kernels have no such file; then the signals below do it.
            let _ = place.write("cgroup.kill", "1");
        }
        // What is frozen cannot start another while it is looked at; a kill takes effect when thawed.
        let freezer = self.places.iter().find(|p| p.has(Controller::Freezer));
        let freeze = |state: &str| freezer.map(|p| p.write("freezer.state", state));
        let _ = freeze("FROZEN");
        let now = self.processes().unwrap_or_else(|_| processes.to_vec());
        for pid in now {
            // One that ended meanwhile is what is wanted.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        let _ = freeze("THAWED");
    }

    /// Whether all its directories are gone now, in which nothing was any more: the kernel removes no other.
    fn remove_empty(&self) -> bool {
        let gone = |dir: &Path| match fs::remove_dir(dir) {
            Ok(()) => true,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        // What is in one hierarchy is in the others too, so the first that is not empty leaves all as they are.
        self.others.is_empty() && self.places.iter().all(|place| gone(&place.dir))
    }

    /// Whether all its directories are gone now.
    fn remove(&self) -> bool {
        // Nothing is counted or killed in the others: what is left there is an empty name.
        self.others.iter().for_each(|dir| {
            nested::remove(dir);
        });
        self.places.iter().all(|place| nested::remove(&place.dir))
    }
}

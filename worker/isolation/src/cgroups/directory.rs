//! One cgroup: its directory with its controllers.

use std::fs;
use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::tree;

/// A kind of limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Controller {
    Memory,
    Cpu,
    Pids,
    /// Device nodes: a controller of version 1; in version 2 a BPF filter, where the kernel permits one.
    Devices,
    /// Version 1 only; stops processes while they are killed.
    Freezer,
}

impl Controller {
    pub(super) const ALL: [Self; 5] = [Self::Memory, Self::Cpu, Self::Pids, Self::Devices, Self::Freezer];
    /// The controllers of version 2.
    pub(super) const UNIFIED: [Self; 3] = [Self::Memory, Self::Cpu, Self::Pids];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Pids => "pids",
            Self::Devices => "devices",
            Self::Freezer => "freezer",
        }
    }
}

/// A directory of one hierarchy, with the controllers there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupDir {
    pub(super) dir: PathBuf,
    /// The hierarchy is of version 2.
    pub(super) unified: bool,
    pub(super) controllers: Vec<Controller>,
}

impl CgroupDir {
    pub(super) fn has(&self, controller: Controller) -> bool {
        self.controllers.contains(&controller)
    }

    /// Writes a control file. The error names the file.
    pub(super) fn write(&self, file: &str, text: &str) -> io::Result<()> {
        let path = self.dir.join(file);
        fs::write(&path, text).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
    }

    /// The number after a key in a control file; with an empty key the file's only number.
    pub(super) fn number(&self, file: &str, key: &str) -> Option<u64> {
        let text = fs::read_to_string(self.dir.join(file)).ok()?;
        text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok())
    }

    /// The processes in this directory and below it.
    pub(super) fn processes(&self) -> io::Result<Vec<i32>> {
        tree::processes(&self.dir)
    }
}

/// The limits of an attempt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allowance {
    /// Thousandths of a processor; 0: no limit.
    pub cpu_milli: u64,
    /// 0: only the common limit of this host's jobs.
    pub memory_mib: u64,
    /// Processes and threads together.
    pub pids: u64,
    /// Device nodes in addition to those that every process needs.
    pub devices: Vec<PathBuf>,
}

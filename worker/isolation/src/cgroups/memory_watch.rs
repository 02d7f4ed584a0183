//! Out-of-memory events of a version 1 cgroup and of those below it.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::directory::CgroupDir;

/// Receives the kernel's event for memory that ran out. Version 1 counts the kill only in the cgroup of the killed
/// process, which is gone with its container.
#[derive(Debug)]
pub struct MemoryWatch {
    event: EventFd,
    /// The registration holds as long as this file is open.
    _control: File,
}

impl MemoryWatch {
    /// `None`: the kernel has no such event.
    pub(super) fn start(dir: &CgroupDir) -> Option<Self> {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).ok()?;
        let control = File::open(dir.dir.join("memory.oom_control")).ok()?;
        let line = format!("{} {}", event.as_fd().as_raw_fd(), control.as_raw_fd());
        dir.write("cgroup.event_control", &line).ok()?;
        Some(Self { event, _control: control })
    }

    /// True if memory ran out since the last call.
    pub fn ran_out(&self) -> bool {
        self.event.read().is_ok_and(|times| times > 0)
    }
}

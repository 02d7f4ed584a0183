//! Signals to processes by their descriptors: a number may belong to another process by the time of the signal.

use std::os::fd::OwnedFd;

use nix::sys::signal::{Signal, kill};
use nix::unistd;
use rustix::io::Errno;
use rustix::process::{self, Pid, PidfdFlags, pidfd_open, pidfd_send_signal};

/// A process at the time of the opening, which a later process with the same number is not.
pub struct ProcessHandle {
    pid: i32,
    /// Absent on kernels without descriptors of processes (before 5.3), under a filter of system calls that forbids
    /// them, and without a free descriptor.
    descriptor: Option<OwnedFd>,
}

impl ProcessHandle {
    /// `None`: there is no such process.
    pub fn open(pid: i32) -> Option<Self> {
        let number = Some(pid).filter(|pid| *pid > 0).and_then(Pid::from_raw)?;
        Self::opened(pid, pidfd_open(number, PidfdFlags::empty()))
    }

    /// The process by the answer of the kernel.
    fn opened(pid: i32, answer: Result<OwnedFd, Errno>) -> Option<Self> {
        match answer {
            Ok(descriptor) => Some(Self { pid, descriptor: Some(descriptor) }),
            Err(Errno::SRCH | Errno::INVAL) => None,
            // A process that no signal reaches would run on, so its number has to do.
            Err(_) => Some(Self { pid, descriptor: None }),
        }
    }

    /// Sends a signal. The caller has tested after the opening that the number is still that of the process it means.
    /// `false`: the process has ended.
    pub fn send(&self, signal: Signal) -> bool {
        let by_number = || kill(unistd::Pid::from_raw(self.pid), signal).is_ok();
        let Some(descriptor) = &self.descriptor else { return by_number() };
        let Some(named) = process::Signal::from_named_raw(signal as i32) else { return false };
        match pidfd_send_signal(descriptor, named) {
            Ok(()) => true,
            Err(Errno::NOSYS | Errno::PERM) => by_number(),
            Err(_) => false,
        }
    }
}

/// Sends a signal to the process with this number if `is_meant` holds for it. `false`: nothing was sent.
pub fn send_if(pid: i32, signal: Signal, is_meant: impl FnOnce() -> bool) -> bool {
    ProcessHandle::open(pid).is_some_and(|process| is_meant() && process.send(signal))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn only_the_process_that_is_meant_gets_a_signal() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        assert!(!send_if(pid, Signal::SIGTERM, || false), "another process has the number");
        let opened = ProcessHandle::open(pid).unwrap();
        assert!(send_if(pid, Signal::SIGKILL, || true));
        assert_eq!(child.wait().unwrap().signal(), Some(9), "the first signal was not sent");
        assert!(!opened.send(Signal::SIGKILL), "it has ended, whoever has its number");
        assert!(!send_if(0, Signal::SIGKILL, || true) && !send_if(-1, Signal::SIGKILL, || true));
    }

    #[test]
    fn a_process_without_a_descriptor_gets_its_signal_by_its_number() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        assert!(ProcessHandle::opened(pid, Err(Errno::SRCH)).is_none());
        for refusal in [Errno::NOSYS, Errno::PERM, Errno::MFILE] {
            assert!(ProcessHandle::opened(pid, Err(refusal)).unwrap().send(Signal::SIGKILL), "{refusal}");
        }
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }
}

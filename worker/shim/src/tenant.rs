//! The processes of the tenant below a shim. The shim decides about the time of a signal.

use std::path::PathBuf;

use berth_system::processes::{descendants, is_below};
use berth_system::signals::send_if;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

/// A request to end, as the tenant's processes get it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopSignal {
    /// SIGTERM to all processes of the tenant. The sandbox's own processes would end the rest at once.
    Terminate,
    /// The signal of the job's choice, to its first process only: most signals would end the helpers of that process
    /// before it saves its state.
    Notice(Signal),
}

/// The place of the tenant's processes below the shim.
#[derive(Debug)]
pub struct Tenant {
    /// The child of the shim.
    pub command: i32,
    /// The number of outermost processes that belong to the sandbox and get no signal.
    pub depth: u32,
    /// The pid file of a container's supervisor, which is a child of the shim and not of the command.
    pub supervisor: Option<PathBuf>,
}

impl Tenant {
    /// The outermost process of the sandbox. `None`: there is none yet.
    fn root(&self) -> Option<i32> {
        let Some(file) = &self.supervisor else { return Some(self.command) };
        let pid = std::fs::read_to_string(file).ok()?.trim().parse::<i32>().ok()?;
        // The number may belong to another process by now.
        let ours = descendants(Pid::this().as_raw());
        ours.into_iter().any(|(other, _)| other == pid).then_some(pid)
    }

    /// Sends the signal. `false`: no process of the tenant was there.
    pub fn signal(&self, stop: StopSignal) -> bool {
        let Some(root) = self.root() else { return false };
        let mut all = vec![(root, 0)];
        all.extend(descendants(root));
        let (first, signal) = match stop {
            StopSignal::Terminate => (false, Signal::SIGTERM),
            StopSignal::Notice(signal) => (true, signal),
        };
        let theirs = |depth: u32| if first { depth == self.depth } else { depth >= self.depth };
        let mut sent = false;
        for (pid, _) in all.into_iter().filter(|(_, depth)| theirs(*depth)) {
            sent |= send_below(pid, signal);
        }
        sent
    }

    /// Kills the tenant's processes. The supervisor of a container stays, because it reports the end; with `all` it
    /// is killed too.
    pub fn kill(&self, all: bool) {
        if self.supervisor.is_some()
            && !all
            && let Some(root) = self.root()
        {
            let inside = descendants(root);
            if !inside.is_empty() {
                inside.iter().for_each(|(pid, _)| kill_process(*pid));
                return;
            }
        }
        descendants(self.command).iter().for_each(|(pid, _)| kill_process(*pid));
        kill_process(self.command);
    }
}

fn kill_process(pid: i32) {
    // The process may have ended meanwhile.
    send_below(pid, Signal::SIGKILL);
}

/// Sends a signal to a process below this one. `false`: the process has ended.
fn send_below(pid: i32, signal: Signal) -> bool {
    send_if(pid, signal, || is_below(pid, &[Pid::this().as_raw()]))
}

//! Collecting and ending what a command leaves to its shim, at a cost that does not grow with what else runs
//! on the host.
//!
//! Must not know why any of it is done. Only a process without waits of its own elsewhere may call it.

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::Pid;

use crate::processes::descendants;

/// Any child of this process.
const ANY: Pid = Pid::from_raw(-1);

/// Collects orphans that ended; the command itself is left to its own wait.
pub fn reap_strays(command: i32) {
    let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    loop {
        let ended = match waitid(Id::All, look) {
            Ok(status) => status.pid(),
            Err(Errno::ECHILD) => None,
            // It ended by a signal that has no name here, which hides those behind it.
            Err(_) => return reap_each(command),
        };
        match ended {
            Some(pid) if pid.as_raw() != command => {
                // Only this process collects its children, so it is still there.
                let _ = waitpid(pid, Some(WaitPidFlag::WNOHANG));
            }
            // With the command all is over, and what is left is collected then.
            _ => return,
        }
    }
}

fn reap_each(command: i32) {
    for (pid, depth) in descendants(Pid::this().as_raw()) {
        if depth == 1 && pid != command {
            let _ = waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG));
        }
    }
}

/// Kills and collects until no child is left. A child that forks while it is killed is found in the
/// next round, because its children become this process's own.
pub fn end_all() {
    loop {
        // Most commands leave nobody, and then there is nobody to look for.
        loop {
            match waitpid(ANY, Some(WaitPidFlag::WNOHANG)) {
                Err(Errno::ECHILD) => return,
                Ok(WaitStatus::StillAlive) => break,
                // One was collected, whatever it died of.
                Ok(_) | Err(_) => {}
            }
        }
        for pid in below(Pid::this().as_raw()) {
            // One that ended meanwhile is what is wanted.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        // Every child was killed, so one of them ends now. Whose parent has just become this process is
        // looked for after that: its parent is among those that end.
        let _ = waitpid(ANY, None);
    }
}

/// Every process below `root`, by the kernel's own lists of children; by a look at all processes of the host
/// where the kernel keeps none.
fn below(root: i32) -> Vec<i32> {
    let mut all = Vec::new();
    let mut edge = vec![root];
    while let Some(parent) = edge.pop() {
        match children(parent) {
            Some(found) => {
                all.extend(&found);
                edge.extend(found);
            }
            None if parent == root => return descendants(root).into_iter().map(|(pid, _)| pid).collect(),
            // It has ended meanwhile.
            None => {}
        }
    }
    all
}

/// The children of all threads of a process; `None` when the kernel does not say.
fn children(parent: i32) -> Option<Vec<i32>> {
    let mut all = Vec::new();
    let mut told = false;
    for task in std::fs::read_dir(format!("/proc/{parent}/task")).ok()?.flatten() {
        // A thread may have ended meanwhile; its children are another's then.
        let Ok(text) = std::fs::read_to_string(task.path().join("children")) else { continue };
        told = true;
        all.extend(text.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
    }
    told.then_some(all)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn everyone_below_is_found_and_nobody_else() {
        let script = "sleep 300 & sh -c 'sleep 300 & echo up; wait' & wait";
        let mut top = Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(top.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let root = i32::try_from(top.id()).unwrap();
        let (mut found, mut expected) = (below(root), descendants(root));
        found.sort_unstable();
        expected.sort_unstable();
        let expected: Vec<i32> = expected.into_iter().map(|(pid, _)| pid).collect();
        for pid in found.iter().chain([&root]) {
            let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
        }
        top.wait().unwrap();
        assert_eq!(found, expected);
        assert_eq!(found.len(), 3, "two that sleep, and a shell between");
        assert!(below(root).is_empty(), "it has ended");
    }
}

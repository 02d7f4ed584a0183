//! Collects and ends the processes that a command leaves to its shim, at a cost that does not depend on the other
//! processes of the host.
//!
//! Only a process that waits for no child elsewhere may call this module.

use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::Pid;

use crate::processes::{descendants, is_below};
use crate::signals::send_if;

/// Any child of this process.
const ANY: Pid = Pid::from_raw(-1);

/// Collects ended orphans. The end of the command itself stays for its own wait.
pub fn reap_strays(command: i32) {
    let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    loop {
        let ended = match waitid(Id::All, look) {
            Ok(status) => status.pid(),
            Err(Errno::ECHILD) => None,
            // A child ended by a signal without a name here, which hides the children behind it.
            Err(_) => return reap_each(command),
        };
        match ended {
            Some(pid) if pid.as_raw() != command => {
                // Only this process collects its children, so the number is still valid.
                let _ = waitpid(pid, Some(WaitPidFlag::WNOHANG));
            }
            // After the end of the command `end_all` collects the rest.
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

/// Kills and collects until no child is left. The next round finds the children of a child that forked meanwhile,
/// because they become children of this process.
pub fn end_all() {
    loop {
        // Most commands leave no process, and then no search is needed.
        loop {
            match waitpid(ANY, Some(WaitPidFlag::WNOHANG)) {
                Err(Errno::ECHILD) => return,
                Ok(WaitStatus::StillAlive) => break,
                // One child was collected.
                Ok(_) | Err(_) => {}
            }
        }
        let this = Pid::this().as_raw();
        for pid in below(this) {
            // The process may have ended meanwhile.
            send_if(pid, Signal::SIGKILL, || is_below(pid, &[this]));
        }
        // Every child was killed, so one of them ends now. Processes that became children of this one after the
        // search are found in the next round: their parents are among those that end.
        let _ = waitpid(ANY, None);
    }
}

/// Every process below `root`, from the kernel's lists of children. A kernel without such lists needs a search
/// through all processes of the host.
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
            // The process has ended meanwhile.
            None => {}
        }
    }
    all
}

/// The children of all threads of a process. `None`: the kernel has no list.
fn children(parent: i32) -> Option<Vec<i32>> {
    let mut all = Vec::new();
    let mut listed = false;
    for task in std::fs::read_dir(format!("/proc/{parent}/task")).ok()?.flatten() {
        // A thread may have ended meanwhile; its children belong to another thread then.
        let Ok(text) = std::fs::read_to_string(task.path().join("children")) else { continue };
        listed = true;
        all.extend(text.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
    }
    listed.then_some(all)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use nix::sys::signal::kill;

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

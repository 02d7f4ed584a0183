//! Processes of an attempt, as `/proc` shows them: finding them and signalling them.
//!
//! Must not know why any of it is done.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A process as `/proc/PID/stat` has it.
pub struct Stat {
    /// It has ended and only waits to be collected.
    pub dead: bool,
    pub parent: i32,
    pub started: u64,
}

pub fn stat(pid: i32) -> Option<Stat> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Fields are counted after the name, which may hold spaces and brackets.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let dead = matches!(fields.next()?, "Z" | "X");
    let parent = fields.next()?.parse().ok()?;
    let started = fields.nth(17)?.parse().ok()?;
    Some(Stat { dead, parent, started })
}

/// Every process below `root` with its distance from it; `root` itself is not among them.
pub fn descendants(root: i32) -> Vec<(i32, u32)> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pairs: Vec<(i32, i32)> = entries
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok())
        .filter_map(|pid| Some((pid, stat(pid)?.parent)))
        .collect();
    let mut out = Vec::new();
    let mut edge = vec![(root, 0)];
    while let Some((parent, depth)) = edge.pop() {
        for (pid, of) in &pairs {
            if *of == parent {
                out.push((*pid, depth + 1));
                edge.push((*pid, depth + 1));
            }
        }
    }
    out
}

/// SIGTERM to the tenant's processes. The sandbox's own would take the rest down at once.
pub fn ask_to_end(command: i32, sandbox_depth: u32) {
    if sandbox_depth == 0 {
        let _ = kill(Pid::from_raw(command), Signal::SIGTERM);
    }
    for (pid, depth) in descendants(command) {
        if depth >= sandbox_depth {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
    }
}

/// The signal that a job chose, to its first process only: the others are its helpers, which most
/// signals would end before the state is saved.
pub fn give_notice(command: i32, sandbox_depth: u32, signal: Signal) {
    if sandbox_depth == 0 {
        let _ = kill(Pid::from_raw(command), signal);
    }
    for (pid, depth) in descendants(command) {
        if depth == sandbox_depth {
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }
}

pub fn kill_tree(command: i32) {
    for (pid, _) in descendants(command) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
    let _ = kill(Pid::from_raw(command), Signal::SIGKILL);
}

//! The processes below a shim: who they are, who of them is the tenant's, and how they are told to end.
//!
//! Must not decide when.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

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
    // Longer than it can be, so that one call reads it: each writes all of it anew.
    let mut text = [0; 2_048];
    let length = File::open(format!("/proc/{pid}/stat")).ok()?.read(&mut text).ok()?;
    // Fields are counted after the name, which may hold spaces and brackets, and need not be a text.
    let rest = text.get(..length)?.rsplit(|byte| *byte == b')').next()?;
    let mut fields = std::str::from_utf8(rest).ok()?.split_whitespace();
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

/// Whether a process is somewhere below one of these. Its way up is short, where all that is below them would be
/// looked for among every process of the host.
pub fn is_below(pid: i32, roots: &[i32]) -> bool {
    let up = std::iter::successors(Some(pid), |pid| Some(stat(*pid)?.parent));
    up.skip(1).any(|pid| roots.contains(&pid))
}

/// Closes what this process was given beside its standard streams. For the very start of one that goes on to
/// start a tenant's: whatever whoever started it forgot to keep to itself would be the tenant's too.
pub fn close_inherited() -> std::io::Result<()> {
    let open: Vec<i32> = std::fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|fd| *fd > 2)
        .collect();
    for fd in open {
        // The directory that was just read is closed already.
        let _ = nix::unistd::close(fd);
    }
    Ok(())
}

/// What a tenant's processes are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// SIGTERM to all of them. The sandbox's own would take the rest down at once.
    End,
    /// The signal that a job chose, to its first process only: the others are its helpers, which most
    /// signals would end before the state is saved.
    Notice(Signal),
}

/// Where the tenant's processes are.
#[derive(Debug)]
pub struct Tenant {
    /// What the shim started.
    pub command: i32,
    /// How many of the outermost processes are the sandbox's own and are not signalled.
    pub depth: u32,
    /// Names the process that stands over a container. It is not the command's child but the shim's.
    pub supervisor: Option<PathBuf>,
}

impl Tenant {
    /// The outermost process of the sandbox; `None` while there is none.
    fn root(&self) -> Option<i32> {
        let Some(file) = &self.supervisor else { return Some(self.command) };
        let pid = std::fs::read_to_string(file).ok()?.trim().parse::<i32>().ok()?;
        // The number may be another process's by now.
        let ours = descendants(Pid::this().as_raw());
        ours.into_iter().any(|(other, _)| other == pid).then_some(pid)
    }

    /// Says it to them; whether anybody was there to hear it.
    pub fn tell(&self, word: Word) -> bool {
        let Some(root) = self.root() else { return false };
        let mut all = vec![(root, 0)];
        all.extend(descendants(root));
        let (first, signal) = match word {
            Word::End => (false, Signal::SIGTERM),
            Word::Notice(signal) => (true, signal),
        };
        let theirs = |depth: u32| if first { depth == self.depth } else { depth >= self.depth };
        let mut heard = false;
        for (pid, _) in all.into_iter().filter(|(_, depth)| theirs(*depth)) {
            heard |= kill(Pid::from_raw(pid), signal).is_ok();
        }
        heard
    }

    /// Kills them. What stands over a container then says how it ended; `all`: it too is killed.
    pub fn kill(&self, all: bool) {
        if self.supervisor.is_some()
            && !all
            && let Some(root) = self.root()
        {
            let inside = descendants(root);
            if !inside.is_empty() {
                inside.iter().for_each(|(pid, _)| end(*pid));
                return;
            }
        }
        descendants(self.command).iter().for_each(|(pid, _)| end(*pid));
        end(self.command);
    }
}

fn end(pid: i32) {
    // One that ended meanwhile is what is wanted.
    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::process::{Command, id};

    use super::*;

    #[test]
    fn nobody_hides_behind_a_name() {
        let dir = tempfile::tempdir().unwrap();
        for name in [b"plain".as_slice(), b"a b) Z 1", b"\xff\xfe)"] {
            let program = dir.path().join(OsStr::from_bytes(name));
            std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
            let mut child = Command::new(&program).arg("60").spawn().unwrap();
            let (pid, this) = (i32::try_from(child.id()).unwrap(), i32::try_from(id()).unwrap());
            let found = stat(pid);
            let below = descendants(this).contains(&(pid, 1));
            child.kill().unwrap();
            child.wait().unwrap();
            let found = found.unwrap();
            assert_eq!((found.parent, found.dead, below), (this, false, true), "{name:?}");
            assert!(found.started > 0);
        }
    }
}

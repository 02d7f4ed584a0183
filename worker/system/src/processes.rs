//! Processes of the host from `/proc`.

use std::fs::File;
use std::io::Read;

/// Fields of `/proc/PID/stat`.
pub struct ProcessStat {
    /// The process has ended, and its parent has not collected it.
    pub dead: bool,
    pub parent: i32,
    /// The start in clock ticks since the boot.
    pub started: u64,
}

pub fn stat(pid: i32) -> Option<ProcessStat> {
    // The buffer is longer than the file, so one call reads it: the kernel formats the whole for each call.
    let mut text = [0; 2_048];
    let length = File::open(format!("/proc/{pid}/stat")).ok()?.read(&mut text).ok()?;
    // The fields are counted after the name, which may have spaces, brackets and bytes that are no UTF-8.
    let rest = text.get(..length)?.rsplit(|byte| *byte == b')').next()?;
    let mut fields = std::str::from_utf8(rest).ok()?.split_whitespace();
    let dead = matches!(fields.next()?, "Z" | "X");
    let parent = fields.next()?.parse().ok()?;
    let started = fields.nth(17)?.parse().ok()?;
    Some(ProcessStat { dead, parent, started })
}

/// Every process below `root` with its distance from it, without `root` itself.
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

/// True if a process is below one of the roots. The path up from the process is short; a search down from the roots
/// would read every process of the host.
pub fn is_below(pid: i32, roots: &[i32]) -> bool {
    let up = std::iter::successors(Some(pid), |pid| Some(stat(*pid)?.parent));
    up.skip(1).any(|pid| roots.contains(&pid))
}

/// Closes all inherited files except the standard streams. A process calls this first if it starts a tenant's
/// process later: a file that its own parent left open would reach the tenant.
pub fn close_inherited() -> std::io::Result<()> {
    let open: Vec<i32> = std::fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|fd| *fd > 2)
        .collect();
    for fd in open {
        // The descriptor of the directory listing is closed already.
        let _ = nix::unistd::close(fd);
    }
    Ok(())
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

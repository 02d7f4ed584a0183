//! Removes a directory that a tenant filled, at any depth and width. The standard library holds an open file and
//! a stack frame for each level: some thousand levels, which a job makes in a moment, would remain or crash the
//! daemon.
//!
//! No process of the tenant may run. No link is followed. Blocking.

use std::ffi::CString;
use std::io;
use std::path::Path;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};

/// Names in one read.
const AT_ONCE: usize = 4_096;

fn flags() -> OFlag {
    OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC
}

/// Some names of a directory; none when it is empty.
fn some_names(dir: &mut Dir) -> Result<Vec<CString>, Errno> {
    let mut names: Vec<CString> = Vec::new();
    for entry in dir.iter() {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
        if names.len() >= AT_ONCE {
            break;
        }
    }
    Ok(names)
}

/// Removes a file or an empty directory. `false`: the directory is not empty.
fn unlink(dir: &Dir, name: &CString) -> Result<bool, Errno> {
    match unlinkat(dir, name.as_c_str(), UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => return Ok(true),
        Err(Errno::EISDIR | Errno::EPERM) => {}
        Err(error) => return Err(error),
    }
    match unlinkat(dir, name.as_c_str(), UnlinkatFlags::RemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(true),
        Err(Errno::ENOTEMPTY | Errno::EEXIST) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Moves a directory into the root, under a free name.
fn lift(root: &Dir, dir: &Dir, name: &CString, last: &mut u64) -> Result<(), Errno> {
    loop {
        *last += 1;
        match renameat(dir, name.as_c_str(), root, last.to_string().as_str()) {
            Err(Errno::EEXIST | Errno::ENOTEMPTY | Errno::ENOTDIR) => {}
            other => return other,
        }
    }
}

/// Removes a directory and everything in it. An absent entry is no error; an absent directory is one.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let mut root = Dir::open(path, flags(), Mode::empty())?;
    let mut last = 0u64;
    loop {
        let names = some_names(&mut root)?;
        if names.is_empty() {
            return std::fs::remove_dir(path);
        }
        for name in names {
            if unlink(&root, &name)? {
                continue;
            }
            let mut dir = Dir::openat(&root, name.as_c_str(), flags(), Mode::empty())?;
            loop {
                let below = some_names(&mut dir)?;
                if below.is_empty() {
                    break;
                }
                for child in below {
                    if !unlink(&dir, &child)? {
                        lift(&root, &dir, &child, &mut last)?;
                    }
                }
            }
            // The directory is empty now.
            unlink(&root, &name)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::fcntl::openat;
    use nix::sys::stat::mkdirat;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_is_deeper_than_any_stack_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("work");
        std::fs::create_dir(&root).unwrap();
        let mut at = nix::fcntl::open(&root, flags(), Mode::empty()).unwrap();
        for _ in 0..20_000 {
            mkdirat(&at, "d", Mode::S_IRWXU).unwrap();
            at = openat(&at, "d", flags(), Mode::empty()).unwrap();
        }
        drop(at);
        remove_tree(&root).unwrap();
        assert!(!root.exists());
        assert_eq!(remove_tree(&root).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn nothing_outside_is_touched_whatever_the_names_are() {
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("kept"), "x").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("work");
        // Names that moved directories would get.
        for name in ["a/b/c/d", "1/2/3", "2/1/x", "5"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        for name in ["3", "4", "a/b/1", "a/b/c/file"] {
            std::fs::write(root.join(name), "x").unwrap();
        }
        symlink(outside.path(), root.join("away")).unwrap();
        symlink(outside.path(), root.join("a/b/away")).unwrap();
        for n in 0..2 * AT_ONCE {
            std::fs::write(root.join(format!("a/{n}")), "").unwrap();
        }
        remove_tree(&root).unwrap();
        assert!(!root.exists() && outside.path().join("kept").exists());
        symlink(outside.path(), &root).unwrap();
        assert!(remove_tree(&root).is_err(), "the root itself may not be a link");
        assert!(outside.path().join("kept").exists());
    }
}

//! TreeListing and creation of files in a job's directory without following links.
//!
//! The job may change the directory meanwhile and may be hostile: each step starts from an open directory and refuses
//! links. Blocking.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::lchown;
use std::path::Path;
use std::rc::Rc;

use berth_types::paths::{CHECKPOINT_ENTRIES, JOB_PATHS, LeftOut, PathRules};
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, mkdirat};
use nix::time::{ClockId, clock_gettime};
use sha2::{Digest, Sha256};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TreeEntryKind {
    Dir,
    File,
    /// A link with its target, which never leaves its own directory.
    Link(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeEntry {
    /// Relative to the listed directory, with `/` between its parts.
    pub path: String,
    pub kind: TreeEntryKind,
    pub bytes: u64,
    /// Permissions only.
    pub mode: u32,
    /// Seconds since 1970.
    pub modified_s: u64,
    /// The inode and the time of the last change, in seconds and nanoseconds. Every change alters it.
    pub stamp: (u64, i64, i64),
}

/// The content of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TreeListing {
    /// Each directory before its content.
    pub entries: Vec<TreeEntry>,
    /// Devices, sockets, pipes, links that lead out, unreadable entries and those of other users, and paths that are
    /// no UTF-8, too long or too deep.
    pub left_out: LeftOut,
}

#[derive(Debug)]
pub enum TreeError {
    TooMany,
    Io(Errno),
}

impl TreeListing {
    pub fn files(&self) -> u64 {
        self.entries.iter().filter(|e| e.kind != TreeEntryKind::Dir).count() as u64
    }

    /// The time of the last change, in seconds and nanoseconds.
    pub fn changed(&self) -> (i64, i64) {
        self.entries.iter().map(|e| (e.stamp.1, e.stamp.2)).max().unwrap_or_default()
    }

    /// A hash that every change alters.
    pub fn fingerprint(&self) -> String {
        let mut hash = Sha256::new();
        for e in &self.entries {
            hash.update(format!("{:?} {:?} {} {:?}\n", e.path, e.kind, e.bytes, e.stamp));
        }
        format!("{:x}", hash.finalize())
    }
}

/// The kernel's clock for changes of files.
pub fn file_clock() -> (i64, i64) {
    clock_gettime(ClockId::CLOCK_REALTIME_COARSE).map_or((0, 0), |t| (t.tv_sec(), t.tv_nsec()))
}

fn dir_flags() -> OFlag {
    OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC
}

/// Opens a directory of the worker.
pub fn open_root(path: &Path) -> io::Result<OwnedFd> {
    Ok(open(path, dir_flags(), Mode::empty())?)
}

/// The permissions of an open file.
pub fn mode(fd: &OwnedFd) -> io::Result<u32> {
    Ok(fstat(fd)?.st_mode & 0o777)
}

/// Opens a directory below another one. With `make`, missing directories are created.
pub fn descend(root: &OwnedFd, parts: &[&str], make: bool) -> io::Result<OwnedFd> {
    let mut at = root.try_clone()?;
    for part in parts {
        if make {
            match mkdirat(&at, *part, Mode::S_IRWXU) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        at = openat(&at, *part, dir_flags(), Mode::empty())?;
    }
    Ok(at)
}

/// Opens the parent directory of a path, and returns it with the name.
pub fn parent_of<'a>(root: &OwnedFd, path: &'a str, make: bool) -> io::Result<(OwnedFd, &'a str)> {
    let parts: Vec<&str> = path.split('/').collect();
    let (name, above) = parts.split_last().ok_or(io::ErrorKind::InvalidInput)?;
    Ok((descend(root, above, make)?, *name))
}

/// Opens a listed file. `None`: it was changed since the listing.
pub fn open_file(root: &OwnedFd, entry: &TreeEntry) -> io::Result<Option<File>> {
    let (dir, name) = parent_of(root, &entry.path, false)?;
    // A pipe in its place must not block this.
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let file = File::from(openat(&dir, name, flags, Mode::empty())?);
    let stat = fstat(&file)?;
    let same = stamp(&stat) == entry.stamp && u64::try_from(stat.st_size) == Ok(entry.bytes);
    Ok((same && file_type(&stat) == SFlag::S_IFREG).then_some(file))
}

pub fn file_type(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT
}

fn stamp(stat: &FileStat) -> (u64, i64, i64) {
    (stat.st_ino, stat.st_ctime, stat.st_ctime_nsec)
}

/// True if a link's target stays in its directory.
fn stays_inside(target: &str) -> bool {
    let plain = target.split('/').all(|part| !matches!(part, "" | "." | ".."));
    plain && target.len() <= 100
}

/// An entry from its attributes. `None`: neither a directory, a file nor a link that stays inside.
pub fn entry(dir: &impl AsFd, name: &CStr, path: String, stat: &FileStat) -> Option<TreeEntry> {
    let found = file_type(stat);
    let kind = if found == SFlag::S_IFDIR {
        TreeEntryKind::Dir
    } else if found == SFlag::S_IFREG {
        TreeEntryKind::File
    } else if found == SFlag::S_IFLNK {
        let target = readlinkat(dir, name).ok()?.into_string().ok()?;
        TreeEntryKind::Link(Some(target).filter(|t| stays_inside(t))?)
    } else {
        return None;
    };
    let bytes = if kind == TreeEntryKind::File { u64::try_from(stat.st_size).unwrap_or(0) } else { 0 };
    Some(TreeEntry {
        path,
        kind,
        bytes,
        mode: stat.st_mode & 0o777,
        modified_s: u64::try_from(stat.st_mtime).unwrap_or(0),
        stamp: stamp(stat),
    })
}

/// The path of a name below a directory (`""`: the root), as bytes.
pub fn raw_path(path: &str, name: &CStr) -> Vec<u8> {
    let mut raw = path.as_bytes().to_vec();
    if !path.is_empty() {
        raw.push(b'/');
    }
    raw.extend(name.to_bytes());
    raw
}

/// The same path if the rules permit it.
pub fn permitted_path(path: &str, name: &CStr, rules: &PathRules) -> Option<String> {
    String::from_utf8(raw_path(path, name)).ok().filter(|path| rules.check(path).is_ok())
}

/// Opens a subdirectory. `None`: it is gone or replaced.
pub fn open_below(parent: &impl AsFd, name: &CStr) -> Result<Option<OwnedFd>, Errno> {
    match openat(parent, name, dir_flags(), Mode::empty()) {
        Ok(dir) => Ok(Some(dir)),
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Opens a directory again, with its own read position.
pub fn reopen(dir: &impl AsFd) -> Result<OwnedFd, Errno> {
    openat(dir, ".", dir_flags(), Mode::empty())
}

/// The sorted names in a directory. More than `most` are an error.
fn sorted_names(dir: &mut Dir, most: usize) -> Result<Vec<CString>, TreeError> {
    let mut names: Vec<CString> = Vec::new();
    for entry in dir.iter() {
        let entry = entry.map_err(TreeError::Io)?;
        if matches!(entry.file_name().to_bytes(), b"." | b"..") {
            continue;
        }
        if names.len() >= most {
            return Err(TreeError::TooMany);
        }
        names.push(entry.file_name().to_owned());
    }
    names.sort();
    Ok(names)
}

/// The content of a job's directory. With `owner`, only entries of this user.
pub fn list(root: &OwnedFd, owner: Option<u32>) -> Result<TreeListing, TreeError> {
    list_with_rules(root, owner, &JOB_PATHS)
}

/// The same with other rules for paths.
pub fn list_with_rules(
    root: &OwnedFd,
    owner: Option<u32>,
    rules: &PathRules,
) -> Result<TreeListing, TreeError> {
    let mut out = TreeListing::default();
    let mut seen = 0;
    let first = Dir::openat(root, ".", dir_flags(), Mode::empty()).map_err(TreeError::Io)?;
    let mut waiting: Vec<(Rc<Dir>, CString, String)> = Vec::new();
    let (mut dir, mut path) = (first, String::new());
    loop {
        let found = sorted_names(&mut dir, CHECKPOINT_ENTRIES - seen)?;
        seen += found.len();
        let here = Rc::new(dir);
        for name in found {
            let Ok(stat) = fstatat(&*here, name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW) else { continue };
            let theirs = owner.is_some_and(|uid| stat.st_uid != uid);
            let permitted = permitted_path(&path, &name, rules).filter(|_| !theirs);
            let Some(entry) = permitted.and_then(|path| entry(&*here, &name, path, &stat)) else {
                out.left_out.add(&raw_path(&path, &name));
                continue;
            };
            if entry.kind == TreeEntryKind::Dir {
                waiting.push((here.clone(), name, entry.path.clone()));
            }
            out.entries.push(entry);
        }
        (dir, path) = loop {
            let Some((parent, name, path)) = waiting.pop() else { return Ok(out) };
            match open_below(&*parent, &name) {
                Ok(Some(dir)) => break (Dir::from_fd(dir).map_err(TreeError::Io)?, path),
                // The next listing will differ.
                Ok(None) => {}
                Err(Errno::EACCES) => out.left_out.add(path.as_bytes()),
                Err(error) => return Err(TreeError::Io(error)),
            }
        };
    }
}

/// Gives a directory and its subdirectories to a user; `files` too. No process of the user may run.
pub fn change_owner(path: &Path, uid: u32, files: bool) -> io::Result<()> {
    lchown(path, Some(uid), Some(uid))?;
    if !path.symlink_metadata()?.is_dir() {
        return Ok(());
    }
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        if files || entry.file_type()?.is_dir() {
            change_owner(&entry.path(), uid, files)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn listed(dir: &Path) -> TreeListing {
        list(&open_root(dir).unwrap(), None).unwrap()
    }

    #[test]
    fn no_link_leads_out_and_what_is_special_is_left_out() {
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("secret"), "s").unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::write(dir.path().join("a/b/file"), "12345").unwrap();
        symlink("b", dir.path().join("a/latest")).unwrap();
        symlink(outside.path(), dir.path().join("away")).unwrap();
        symlink("../..", dir.path().join("a/up")).unwrap();
        nix::unistd::mkfifo(&dir.path().join("pipe"), Mode::S_IRWXU).unwrap();
        let found = listed(dir.path());
        let paths: Vec<(&str, u64)> = found.entries.iter().map(|e| (e.path.as_str(), e.bytes)).collect();
        assert_eq!(paths, [("a", 0), ("a/b", 0), ("a/latest", 0), ("a/b/file", 5)]);
        assert_eq!((found.left_out.count, found.files()), (3, 2));
        assert_eq!(found.entries[2].kind, TreeEntryKind::Link("b".to_owned()));
        // No part of a path may be a link.
        let root = open_root(dir.path()).unwrap();
        assert!(descend(&root, &["away"], false).is_err());
        let through = TreeEntry { path: "away/secret".to_owned(), ..found.entries[3].clone() };
        assert!(open_file(&root, &through).is_err());
        assert!(open_file(&root, &found.entries[3]).unwrap().is_some());
        let uid = nix::unistd::getuid().as_raw();
        assert!(list(&root, Some(uid + 1)).unwrap().entries.is_empty());
    }

    #[test]
    fn what_cannot_be_kept_is_counted_and_named() {
        use std::os::unix::ffi::OsStrExt;

        let dir = tempfile::tempdir().unwrap();
        let deep = vec!["d"; JOB_PATHS.parts - 1].join("/");
        std::fs::create_dir_all(dir.path().join(&deep).join("in/below")).unwrap();
        std::fs::write(dir.path().join(&deep).join("file"), "").unwrap();
        for odd in [&b"\xff"[..], b"a\nb", b"a\\b"] {
            std::fs::write(dir.path().join(std::ffi::OsStr::from_bytes(odd)), "").unwrap();
        }
        let found = listed(dir.path());
        assert_eq!((found.entries.len(), found.files()), (JOB_PATHS.parts + 1, 1));
        assert_eq!(found.left_out.count, 4, "{:?}", found.left_out);
        let note = found.left_out.note("x");
        assert!(note.contains(r#""a\nb", "a\\b", "\xff""#), "{note}");
        // The rules of a volume leave out all deep entries.
        let found =
            list_with_rules(&open_root(dir.path()).unwrap(), None, &PathRules { bytes: 9, parts: 64 })
                .unwrap();
        assert_eq!((found.entries.len(), found.left_out.count), (5, 4));
    }

    #[test]
    fn more_than_are_kept_are_no_listing() {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..CHECKPOINT_ENTRIES {
            nix::sys::stat::mknod(&dir.path().join(n.to_string()), SFlag::S_IFREG, Mode::S_IRUSR, 0).unwrap();
        }
        assert_eq!(listed(dir.path()).entries.len(), CHECKPOINT_ENTRIES);
        symlink("none", dir.path().join("odd\\")).unwrap();
        let many = list(&open_root(dir.path()).unwrap(), None);
        assert!(matches!(many, Err(TreeError::TooMany)), "also what is left out counts");
    }

    #[test]
    fn a_change_shows() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("x"), "1").unwrap();
        let before = listed(dir.path());
        assert_eq!(before.fingerprint(), listed(dir.path()).fingerprint());
        std::fs::remove_file(dir.path().join("x")).unwrap();
        std::fs::write(dir.path().join("x"), "12").unwrap();
        assert_ne!(before.fingerprint(), listed(dir.path()).fingerprint());
        let root = open_root(dir.path()).unwrap();
        assert!(open_file(&root, &before.entries[0]).unwrap().is_none(), "it is another file now");
        // Kernels with fine time stamps may be ahead of the coarse clock, but not of this one.
        let now = clock_gettime(ClockId::CLOCK_REALTIME).unwrap();
        assert!(before.changed() <= (now.tv_sec(), now.tv_nsec()));
    }
}

//! What a job left in a directory, and files made in one, without ever following a link.
//!
//! The job may change everything meanwhile and try to lead this astray, so each step on the way goes from a
//! directory that is held open, and refuses to be a link. Blocking.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
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
pub enum Kind {
    Dir,
    File,
    /// Where it leads: never out of the directory that it is in.
    Link(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Relative to the listed directory, with `/` between its parts.
    pub path: String,
    pub kind: Kind,
    pub bytes: u64,
    /// Permissions only.
    pub mode: u32,
    /// Seconds since 1970.
    pub modified_s: u64,
    /// Inode and time of the last change, in seconds and nanoseconds: what is different when anything is.
    pub stamp: (u64, i64, i64),
}

/// What is in a directory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Listing {
    /// Each directory before what is in it.
    pub entries: Vec<Entry>,
    /// Devices, sockets, pipes, links that lead out, what belongs to others or cannot be read, and paths that
    /// are no text, too long or too deep.
    pub left_out: LeftOut,
}

#[derive(Debug)]
pub enum ListError {
    TooMany,
    Io(Errno),
}

impl Listing {
    pub fn files(&self) -> u64 {
        self.entries.iter().filter(|e| e.kind != Kind::Dir).count() as u64
    }

    /// When the last of it was changed, in seconds and nanoseconds.
    pub fn changed(&self) -> (i64, i64) {
        self.entries.iter().map(|e| (e.stamp.1, e.stamp.2)).max().unwrap_or_default()
    }

    /// Different whenever anything in it is.
    pub fn fingerprint(&self) -> String {
        let mut hash = Sha256::new();
        for e in &self.entries {
            hash.update(format!("{:?} {:?} {} {:?}\n", e.path, e.kind, e.bytes, e.stamp));
        }
        format!("{:x}", hash.finalize())
    }
}

/// The clock by which the kernel says when a file was changed.
pub fn file_clock() -> (i64, i64) {
    clock_gettime(ClockId::CLOCK_REALTIME_COARSE).map_or((0, 0), |t| (t.tv_sec(), t.tv_nsec()))
}

fn dir_flags() -> OFlag {
    OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC
}

/// A directory that is the worker's own.
pub fn open_root(path: &Path) -> io::Result<OwnedFd> {
    Ok(open(path, dir_flags(), Mode::empty())?)
}

/// The permissions of what is open.
pub fn mode(fd: &OwnedFd) -> io::Result<u32> {
    Ok(fstat(fd)?.st_mode & 0o777)
}

/// A directory below another, made where it is not there and `make` says so.
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

/// A path as the directory it is in and its name there.
pub fn parent_of<'a>(root: &OwnedFd, path: &'a str, make: bool) -> io::Result<(OwnedFd, &'a str)> {
    let parts: Vec<&str> = path.split('/').collect();
    let (name, above) = parts.split_last().ok_or(io::ErrorKind::InvalidInput)?;
    Ok((descend(root, above, make)?, *name))
}

/// A file that was listed, as it is now. `None`: it is no file any more, or was changed.
pub fn open_file(root: &OwnedFd, entry: &Entry) -> io::Result<Option<File>> {
    let (dir, name) = parent_of(root, &entry.path, false)?;
    // A pipe that took its place must not hold this up.
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let file = File::from(openat(&dir, name, flags, Mode::empty())?);
    let stat = fstat(&file)?;
    let same = stamp(&stat) == entry.stamp && u64::try_from(stat.st_size) == Ok(entry.bytes);
    Ok((same && kind_of(&stat) == SFlag::S_IFREG).then_some(file))
}

pub(super) fn kind_of(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT
}

fn stamp(stat: &FileStat) -> (u64, i64, i64) {
    (stat.st_ino, stat.st_ctime, stat.st_ctime_nsec)
}

/// Whether a link's target stays below the directory that it is in.
fn stays_inside(target: &str) -> bool {
    let plain = target.split('/').all(|part| !matches!(part, "" | "." | ".."));
    plain && target.len() <= 100
}

pub(super) fn entry(dir: &impl AsFd, name: &CStr, path: String, stat: &FileStat) -> Option<Entry> {
    let found = kind_of(stat);
    let kind = if found == SFlag::S_IFDIR {
        Kind::Dir
    } else if found == SFlag::S_IFREG {
        Kind::File
    } else if found == SFlag::S_IFLNK {
        let target = readlinkat(dir, name).ok()?.into_string().ok()?;
        Kind::Link(Some(target).filter(|t| stays_inside(t))?)
    } else {
        return None;
    };
    let bytes = if kind == Kind::File { u64::try_from(stat.st_size).unwrap_or(0) } else { 0 };
    Some(Entry {
        path,
        kind,
        bytes,
        mode: stat.st_mode & 0o777,
        modified_s: u64::try_from(stat.st_mtime).unwrap_or(0),
        stamp: stamp(stat),
    })
}

/// A name below a directory (`""`: the listed one), as the bytes that it has.
pub(super) fn raw_below(path: &str, name: &CStr) -> Vec<u8> {
    let mut raw = path.as_bytes().to_vec();
    if !path.is_empty() {
        raw.push(b'/');
    }
    raw.extend(name.to_bytes());
    raw
}

/// The same as a path that is kept.
pub(super) fn below(path: &str, name: &CStr, rules: &PathRules) -> Option<String> {
    String::from_utf8(raw_below(path, name)).ok().filter(|below| rules.check(below).is_ok())
}

/// Opens a directory. `None`: it is gone, or became something else.
pub(super) fn open_below(parent: &impl AsFd, name: &CStr) -> Result<Option<OwnedFd>, Errno> {
    match openat(parent, name, dir_flags(), Mode::empty()) {
        Ok(dir) => Ok(Some(dir)),
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A directory for itself, whose place in its names is its own.
pub(super) fn reopen(dir: &impl AsFd) -> Result<OwnedFd, Errno> {
    openat(dir, ".", dir_flags(), Mode::empty())
}

/// The names in a directory in their order; more than `most` are an error.
fn names(dir: &mut Dir, most: usize) -> Result<Vec<CString>, ListError> {
    let mut names: Vec<CString> = Vec::new();
    for entry in dir.iter() {
        let entry = entry.map_err(ListError::Io)?;
        if matches!(entry.file_name().to_bytes(), b"." | b"..") {
            continue;
        }
        if names.len() >= most {
            return Err(ListError::TooMany);
        }
        names.push(entry.file_name().to_owned());
    }
    names.sort();
    Ok(names)
}

/// Everything in a job's directory. With `owner`, only what belongs to this user.
pub fn list(root: &OwnedFd, owner: Option<u32>) -> Result<Listing, ListError> {
    list_by(root, owner, &JOB_PATHS)
}

/// The same by other rules.
pub fn list_by(root: &OwnedFd, owner: Option<u32>, rules: &PathRules) -> Result<Listing, ListError> {
    let mut out = Listing::default();
    let mut seen = 0;
    let first = Dir::openat(root, ".", dir_flags(), Mode::empty()).map_err(ListError::Io)?;
    let mut waiting: Vec<(Rc<Dir>, CString, String)> = Vec::new();
    let (mut dir, mut path) = (first, String::new());
    loop {
        let found = names(&mut dir, CHECKPOINT_ENTRIES - seen)?;
        seen += found.len();
        let here = Rc::new(dir);
        for name in found {
            let Ok(stat) = fstatat(&*here, name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW) else { continue };
            let theirs = owner.is_some_and(|uid| stat.st_uid != uid);
            let kept = below(&path, &name, rules).filter(|_| !theirs);
            let Some(entry) = kept.and_then(|below| entry(&*here, &name, below, &stat)) else {
                out.left_out.add(&raw_below(&path, &name));
                continue;
            };
            if entry.kind == Kind::Dir {
                waiting.push((here.clone(), name, entry.path.clone()));
            }
            out.entries.push(entry);
        }
        (dir, path) = loop {
            let Some((parent, name, path)) = waiting.pop() else { return Ok(out) };
            match open_below(&*parent, &name) {
                Ok(Some(dir)) => break (Dir::from_fd(dir).map_err(ListError::Io)?, path),
                // The look after this one will differ.
                Ok(None) => {}
                Err(Errno::EACCES) => out.left_out.add(path.as_bytes()),
                Err(error) => return Err(ListError::Io(error)),
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn listed(dir: &Path) -> Listing {
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
        assert_eq!(found.entries[2].kind, Kind::Link("b".to_owned()));
        // On the way to a file no part may be a link either.
        let root = open_root(dir.path()).unwrap();
        assert!(descend(&root, &["away"], false).is_err());
        let through = Entry { path: "away/secret".to_owned(), ..found.entries[3].clone() };
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
        // By the rules of a volume all of the deep ones are left out.
        let found =
            list_by(&open_root(dir.path()).unwrap(), None, &PathRules { bytes: 9, parts: 64 }).unwrap();
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
        assert!(matches!(many, Err(ListError::TooMany)), "also what is left out counts");
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
        // Kernels that stamp finely where it matters are ahead of the coarse clock, and never of this one.
        let now = clock_gettime(ClockId::CLOCK_REALTIME).unwrap();
        assert!(before.changed() <= (now.tv_sec(), now.tv_nsec()));
    }
}

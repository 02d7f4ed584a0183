//! What a job left in a directory, and files made in one, without ever following a link.
//!
//! The job may change everything meanwhile and try to lead this astray, so each step on the way goes from a
//! directory that is held open, and refuses to be a link. Blocking.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;

use berth_proto::MOST_FILES;
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, mkdirat};
use nix::time::{ClockId, clock_gettime};
use sha2::{Digest, Sha256};

/// Directories within directories.
const MOST_DEEP: usize = 100;
/// Of what is kept; the portal takes no longer paths.
const MOST_PATH: usize = 512;

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
    /// Devices, sockets, pipes, links that lead out, names that are no text, what belongs to others.
    pub left_out: u64,
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

fn kind_of(stat: &FileStat) -> SFlag {
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

fn entry(dir: &Dir, name: &CString, path: String, stat: &FileStat) -> Option<Entry> {
    let found = kind_of(stat);
    let kind = if found == SFlag::S_IFDIR {
        Kind::Dir
    } else if found == SFlag::S_IFREG {
        Kind::File
    } else if found == SFlag::S_IFLNK {
        let target = readlinkat(dir, name.as_c_str()).ok()?.into_string().ok()?;
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

/// A name that may be part of a kept path.
fn plain_name(name: &CString) -> Option<&str> {
    name.to_str().ok().filter(|n| !n.contains('\\') && !n.chars().any(char::is_control))
}

fn names(dir: &mut Dir) -> Vec<CString> {
    let mut names: Vec<CString> = Vec::new();
    for entry in dir.iter() {
        // A directory that cannot be read on is left as far as it was.
        let Ok(entry) = entry else { break };
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
        // More than are kept: the listing ends with that.
        if names.len() > MOST_FILES {
            break;
        }
    }
    names.sort();
    names
}

/// Everything in a directory. With `owner`, only what belongs to this user.
pub fn list(root: &OwnedFd, owner: Option<u32>) -> Result<Listing, ListError> {
    list_to(root, owner, MOST_PATH)
}

/// The same with paths of at most so many bytes.
pub fn list_to(root: &OwnedFd, owner: Option<u32>, most_path: usize) -> Result<Listing, ListError> {
    let mut out = Listing::default();
    let mut first = Some(Dir::openat(root, ".", dir_flags(), Mode::empty()).map_err(ListError::Io)?);
    let mut waiting: Vec<(Rc<Dir>, CString, String, usize)> = Vec::new();
    loop {
        let (mut dir, path, depth) = match first.take() {
            Some(root) => (root, String::new(), 0),
            None => {
                let Some((parent, name, path, depth)) = waiting.pop() else { return Ok(out) };
                match Dir::openat(&*parent, name.as_c_str(), dir_flags(), Mode::empty()) {
                    Ok(dir) => (dir, path, depth),
                    Err(Errno::EMFILE | Errno::ENFILE) => return Err(ListError::TooMany),
                    // It is gone by now, or became something else: the look after this one will differ.
                    Err(_) => continue,
                }
            }
        };
        let found = names(&mut dir);
        let dir = Rc::new(dir);
        for name in found {
            let Ok(stat) = fstatat(&*dir, name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW) else { continue };
            let below = plain_name(&name)
                .map(|n| if path.is_empty() { n.to_owned() } else { format!("{path}/{n}") })
                .filter(|below| below.len() <= most_path);
            let theirs = owner.is_some_and(|uid| stat.st_uid != uid);
            let entry = below.filter(|_| !theirs).and_then(|below| entry(&dir, &name, below, &stat));
            let Some(entry) = entry else {
                out.left_out += 1;
                continue;
            };
            if entry.kind == Kind::Dir {
                if depth >= MOST_DEEP {
                    out.left_out += 1;
                    continue;
                }
                waiting.push((dir.clone(), name, entry.path.clone(), depth + 1));
            }
            out.entries.push(entry);
            if out.entries.len() > MOST_FILES {
                return Err(ListError::TooMany);
            }
        }
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
        assert_eq!((found.left_out, found.files()), (3, 2));
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

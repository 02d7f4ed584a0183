//! The files in a job's directory that its patterns mean. Directories that no pattern reaches are never opened, so
//! what is in them costs nothing. No link is followed. Blocking.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use berth_types::paths::{
    ATTEMPT_ARTIFACTS, JOB_PATHS, LeftOut, REACHED_DIRECTORIES, REACHED_ENTRIES, is_reserved,
};
use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::{SFlag, fstatat};

use super::patterns::{Patterns, Reach};
use super::tree::{self, Entry, Kind};

/// What was found.
#[derive(Debug, Default)]
pub struct Found {
    /// The first by path.
    pub files: BTreeMap<String, Entry>,
    /// There are more than are kept.
    pub more: bool,
    /// Files that are longer than what a job may have on this node: holes take no room in its directory, and
    /// would be read and sent as if they did.
    pub too_long: LeftOut,
    /// Paths that are no text, too long or too deep, and what cannot be read or belongs to others.
    pub odd: LeftOut,
    /// The patterns reach more than is looked through; what lies beyond was not seen.
    pub cut: bool,
}

/// What is looked through, and by what.
struct Walk<'a> {
    patterns: &'a Patterns,
    owner: Option<u32>,
    most_bytes: u64,
    /// Of entries.
    left: usize,
    waiting: Vec<Waiting>,
    found: Found,
}

/// A directory that is to be looked through.
struct Waiting {
    parent: Rc<OwnedFd>,
    name: CString,
    path: String,
    reach: Reach,
}

/// Finds the files that patterns mean. With `owner`, only what belongs to this user.
pub fn find(
    root: &OwnedFd,
    owner: Option<u32>,
    patterns: &Patterns,
    most_bytes: u64,
) -> Result<Found, Errno> {
    find_within(root, owner, patterns, most_bytes, REACHED_ENTRIES)
}

fn find_within(
    root: &OwnedFd,
    owner: Option<u32>,
    patterns: &Patterns,
    most_bytes: u64,
    left: usize,
) -> Result<Found, Errno> {
    let mut walk = Walk { patterns, owner, most_bytes, left, waiting: Vec::new(), found: Found::default() };
    let root = Rc::new(tree::reopen(root)?);
    walk.look_through(&root, "", &patterns.root())?;
    while let Some(next) = walk.waiting.pop() {
        match tree::open_below(&*next.parent, &next.name) {
            Ok(Some(dir)) => walk.look_through(&Rc::new(dir), &next.path, &next.reach)?,
            // Nothing of the job runs any more, so it never was a directory.
            Ok(None) => {}
            Err(Errno::EACCES) => walk.found.odd.add(next.path.as_bytes()),
            Err(error) => return Err(error),
        }
    }
    Ok(walk.found)
}

impl Walk<'_> {
    fn look_through(&mut self, dir: &Rc<OwnedFd>, path: &str, reach: &Reach) -> Result<(), Errno> {
        let mut names = Dir::from_fd(tree::reopen(dir)?)?;
        for entry in names.iter() {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let Some(left) = self.left.checked_sub(Patterns::cost(reach)) else {
                self.found.cut = true;
                self.waiting.clear();
                return Ok(());
            };
            self.left = left;
            let below = self.patterns.step(reach, &name.to_string_lossy());
            let (meant, leads_on) = (self.patterns.mean(&below), self.patterns.lead_on(&below));
            // Most have said already what they are.
            let wanted = match entry.file_type() {
                Some(Type::Directory) => leads_on,
                Some(Type::File) => meant,
                Some(_) => false,
                None => meant || leads_on,
            };
            if wanted && !(path.is_empty() && is_reserved(&name.to_string_lossy())) {
                self.note(dir, path, &CString::from(name), (below, meant, leads_on));
            }
        }
        Ok(())
    }

    /// Takes in a file or a directory that patterns mean or reach.
    fn note(
        &mut self,
        dir: &Rc<OwnedFd>,
        path: &str,
        name: &CString,
        (reach, meant, leads_on): (Reach, bool, bool),
    ) {
        let Ok(stat) = fstatat(&**dir, name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW) else { return };
        let kind = tree::kind_of(&stat);
        let wanted = if kind == SFlag::S_IFDIR { leads_on } else { meant && kind == SFlag::S_IFREG };
        if !wanted {
            return;
        }
        let theirs = self.owner.is_some_and(|uid| stat.st_uid != uid);
        let plain = tree::below(path, name, &JOB_PATHS).filter(|_| !theirs);
        let Some(entry) = plain.and_then(|plain| tree::entry(&**dir, name, plain, &stat)) else {
            self.found.odd.add(&tree::raw_below(path, name));
            return;
        };
        if entry.kind == Kind::Dir {
            if self.waiting.len() >= REACHED_DIRECTORIES {
                self.found.cut = true;
                return;
            }
            let (parent, name) = (dir.clone(), name.clone());
            self.waiting.push(Waiting { parent, name, path: entry.path, reach });
        } else if entry.bytes > self.most_bytes {
            self.found.too_long.add(entry.path.as_bytes());
        } else {
            self.found.files.insert(entry.path.clone(), entry);
            if self.found.files.len() > ATTEMPT_ARTIFACTS {
                self.found.files.pop_last();
                self.found.more = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use nix::sys::stat::{Mode, mknod};

    use super::*;

    fn found(dir: &Path, patterns: &[&str], left: usize) -> Found {
        let patterns: Vec<String> = patterns.iter().map(|text| (*text).to_owned()).collect();
        let root = tree::open_root(dir).unwrap();
        find_within(&root, None, &Patterns::new(&patterns), 1 << 20, left).unwrap()
    }

    fn paths(found: &Found) -> Vec<&str> {
        found.files.keys().map(String::as_str).collect()
    }

    fn fill(dir: &Path, names: impl Iterator<Item = String>) {
        std::fs::create_dir_all(dir).unwrap();
        for name in names {
            mknod(&dir.join(name), SFlag::S_IFREG, Mode::S_IRUSR | Mode::S_IWUSR, 0).unwrap();
        }
    }

    #[test]
    fn what_no_pattern_reaches_costs_nothing() {
        let dir = tempfile::tempdir().unwrap();
        // More than any checkpoint may have, in many directories and in one.
        for part in 0..110 {
            let lib = dir.path().join(format!("venv/lib/part-{part}"));
            fill(&lib, (0..1_000).map(|n| format!("{n}.py")));
        }
        fill(&dir.path().join("out"), ["a.txt", "b.png"].map(str::to_owned).into_iter());
        fill(&dir.path().join("out/deep"), ["c.txt".to_owned()].into_iter());
        // Only the root's names and those of out are read.
        let few = found(dir.path(), &["out/*.txt"], 6);
        assert_eq!((paths(&few), few.cut, few.more, few.odd.count), (vec!["out/a.txt"], false, false, 0));
        // All of it is looked through where a pattern may mean it.
        let wide = found(dir.path(), &["**/c.txt"], REACHED_ENTRIES);
        assert_eq!((paths(&wide), wide.cut), (vec!["out/deep/c.txt"], false));
        let most = found(dir.path(), &["venv/**"], REACHED_ENTRIES);
        assert_eq!((most.files.len(), most.more, most.cut), (ATTEMPT_ARTIFACTS, true, false));
        assert_eq!(paths(&most)[..2], ["venv/lib/part-0/0.py", "venv/lib/part-0/1.py"], "the first by name");
        let cut = found(dir.path(), &["**/c.txt"], 100);
        assert!(cut.cut);
    }

    #[test]
    fn what_is_meant_and_cannot_be_kept_is_named() {
        use std::os::unix::ffi::OsStrExt;

        let dir = tempfile::tempdir().unwrap();
        let deep = vec!["d"; JOB_PATHS.parts].join("/");
        std::fs::create_dir_all(dir.path().join("out").join(&deep)).unwrap();
        let odd = std::ffi::OsStr::from_bytes(b"odd\xff");
        fill(&dir.path().join("out"), ["plain", "line\nbreak", "back\\slash"].map(str::to_owned).into_iter());
        std::fs::write(dir.path().join("out").join(odd), "").unwrap();
        std::fs::create_dir(dir.path().join("out/bell\u{7}")).unwrap();
        std::fs::write(dir.path().join(odd), "not meant").unwrap();
        std::fs::File::create(dir.path().join("out/hole")).unwrap().set_len(2 << 20).unwrap();
        std::os::unix::fs::symlink("plain", dir.path().join("out/link")).unwrap();
        let found = found(dir.path(), &["out/**"], REACHED_ENTRIES);
        assert_eq!((paths(&found), found.odd.count, found.too_long.count), (vec!["out/plain"], 5, 1));
    }

    #[test]
    fn everything_is_nothing_of_the_workers_own() {
        let dir = tempfile::tempdir().unwrap();
        fill(dir.path(), [".berth-script", ".hidden", "a"].map(str::to_owned).into_iter());
        fill(&dir.path().join(".volumes"), ["x".to_owned()].into_iter());
        fill(&dir.path().join("sub"), [".berth-script".to_owned()].into_iter());
        let found = found(dir.path(), &["**", ".*", ".volumes/**"], REACHED_ENTRIES);
        assert_eq!(paths(&found), [".hidden", "a", "sub/.berth-script"]);
    }
}

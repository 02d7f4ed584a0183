//! The search for files that match a job's patterns. A directory that no pattern can match inside is never opened. No
//! link is followed. Blocking.

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

use super::patterns::{PatternState, Patterns};
use crate::transfer::tree::{self, TreeEntry, TreeEntryKind};

/// The result of a search.
#[derive(Debug, Default)]
pub struct FoundArtifacts {
    /// The first files by path.
    pub files: BTreeMap<String, TreeEntry>,
    /// More files match than are kept.
    pub more: bool,
    /// Files longer than the disk limit of a job: holes take no space on the disk, but would be sent.
    pub too_long: LeftOut,
    /// Paths that are no UTF-8, too long or too deep, unreadable files, and those of other users.
    pub odd: LeftOut,
    /// The search ended early, because the patterns reach too many entries.
    pub cut: bool,
}

/// A running search.
struct ArtifactSearch<'a> {
    patterns: &'a Patterns,
    owner: Option<u32>,
    most_bytes: u64,
    /// The entries that may still be read.
    left: usize,
    waiting: Vec<WaitingDirectory>,
    found: FoundArtifacts,
}

/// A directory that the search reads later.
struct WaitingDirectory {
    parent: Rc<OwnedFd>,
    name: CString,
    path: String,
    state: PatternState,
}

/// Finds the files that match the patterns. With `owner`, only files of this user.
pub fn find(
    root: &OwnedFd,
    owner: Option<u32>,
    patterns: &Patterns,
    most_bytes: u64,
) -> Result<FoundArtifacts, Errno> {
    find_within(root, owner, patterns, most_bytes, REACHED_ENTRIES)
}

fn find_within(
    root: &OwnedFd,
    owner: Option<u32>,
    patterns: &Patterns,
    most_bytes: u64,
    left: usize,
) -> Result<FoundArtifacts, Errno> {
    let found = FoundArtifacts::default();
    let mut search = ArtifactSearch { patterns, owner, most_bytes, left, waiting: Vec::new(), found };
    let root = Rc::new(tree::reopen(root)?);
    search.read_directory(&root, "", &patterns.root())?;
    while let Some(next) = search.waiting.pop() {
        match tree::open_below(&*next.parent, &next.name) {
            Ok(Some(dir)) => search.read_directory(&Rc::new(dir), &next.path, &next.state)?,
            // No process of the job runs any more, so it never was a directory.
            Ok(None) => {}
            Err(Errno::EACCES) => search.found.odd.add(next.path.as_bytes()),
            Err(error) => return Err(error),
        }
    }
    Ok(search.found)
}

impl ArtifactSearch<'_> {
    fn read_directory(&mut self, dir: &Rc<OwnedFd>, path: &str, state: &PatternState) -> Result<(), Errno> {
        let mut names = Dir::from_fd(tree::reopen(dir)?)?;
        for entry in names.iter() {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let Some(left) = self.left.checked_sub(Patterns::cost(state)) else {
                self.found.cut = true;
                self.waiting.clear();
                return Ok(());
            };
            self.left = left;
            let below = self.patterns.step(state, &name.to_string_lossy());
            let (matches, may_match_below) =
                (self.patterns.matches(&below), self.patterns.may_match_below(&below));
            // Most file systems report the type with the name.
            let wanted = match entry.file_type() {
                Some(Type::Directory) => may_match_below,
                Some(Type::File) => matches,
                Some(_) => false,
                None => matches || may_match_below,
            };
            if wanted && !(path.is_empty() && is_reserved(&name.to_string_lossy())) {
                self.add(dir, path, &CString::from(name), (below, matches, may_match_below));
            }
        }
        Ok(())
    }

    /// Adds a file that matches, or a directory that may have matching files.
    fn add(
        &mut self,
        dir: &Rc<OwnedFd>,
        path: &str,
        name: &CString,
        (state, matches, may_match_below): (PatternState, bool, bool),
    ) {
        let Ok(stat) = fstatat(&**dir, name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW) else { return };
        let kind = tree::file_type(&stat);
        let wanted = if kind == SFlag::S_IFDIR { may_match_below } else { matches && kind == SFlag::S_IFREG };
        if !wanted {
            return;
        }
        let theirs = self.owner.is_some_and(|uid| stat.st_uid != uid);
        let permitted = tree::permitted_path(path, name, &JOB_PATHS).filter(|_| !theirs);
        let Some(entry) = permitted.and_then(|path| tree::entry(&**dir, name, path, &stat)) else {
            self.found.odd.add(&tree::raw_path(path, name));
            return;
        };
        if entry.kind == TreeEntryKind::Dir {
            if self.waiting.len() >= REACHED_DIRECTORIES {
                self.found.cut = true;
                return;
            }
            let (parent, name) = (dir.clone(), name.clone());
            self.waiting.push(WaitingDirectory { parent, name, path: entry.path, state });
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

    fn found(dir: &Path, patterns: &[&str], left: usize) -> FoundArtifacts {
        let patterns: Vec<String> = patterns.iter().map(|text| (*text).to_owned()).collect();
        let root = tree::open_root(dir).unwrap();
        find_within(&root, None, &Patterns::new(&patterns), 1 << 20, left).unwrap()
    }

    fn paths(found: &FoundArtifacts) -> Vec<&str> {
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
        // More entries than a checkpoint may have, in many directories.
        for part in 0..110 {
            let lib = dir.path().join(format!("venv/lib/part-{part}"));
            fill(&lib, (0..1_000).map(|n| format!("{n}.py")));
        }
        fill(&dir.path().join("out"), ["a.txt", "b.png"].map(str::to_owned).into_iter());
        fill(&dir.path().join("out/deep"), ["c.txt".to_owned()].into_iter());
        // Only the names in the root and in `out` are read.
        let few = found(dir.path(), &["out/*.txt"], 6);
        assert_eq!((paths(&few), few.cut, few.more, few.odd.count), (vec!["out/a.txt"], false, false, 0));
        // The whole tree is read if a pattern may match anywhere.
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

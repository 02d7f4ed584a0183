//! Directories of attempts that are over, with the files of records in them, for the next attempts: on most file
//! systems to make and to remove half a dozen names takes longer than a short job.
//!
//! Nothing that a tenant wrote, and nothing that is read before it is written anew, may stay in one. Blocking.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::attempts::{CLEAN, RECORD};
use crate::removing::remove_tree;
use crate::shim::{EXIT, LAUNCH, LOCK, START};

/// Begins the name of one beside the attempts' own, which never begin so.
const PREFIX: &str = ".spare-";
/// More than become free before the next is begun, on a node full of short jobs.
const MOST: usize = 256;

/// Those that are free, the one that has been for longest first: what is removed in a directory slows down for a
/// while what is made there.
#[derive(Debug, Default)]
pub struct SpareDirs(Mutex<Free>);

#[derive(Debug, Default)]
struct Free {
    dirs: VecDeque<PathBuf>,
    last: u64,
}

/// Makes an attempt's directory anew, for the worker's own user alone.
pub fn make(dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

impl SpareDirs {
    fn with<T>(&self, act: impl FnOnce(&mut Free) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Removes what a former daemon left of them in `root`.
    pub fn sweep(&self, root: &Path) -> io::Result<()> {
        for entry in fs::read_dir(root)? {
            let entry = entry?;
            if entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes()) {
                remove_tree(&entry.path())?;
            }
        }
        Ok(())
    }

    /// Makes an attempt's directory, or gives it one that another left.
    pub fn make(&self, dir: &Path) -> io::Result<()> {
        // One that is there already is no other's to replace.
        let spare = if dir.exists() { None } else { self.with(|free| free.dirs.pop_front()) };
        match spare {
            Some(spare) if fs::rename(&spare, dir).is_ok() => Ok(()),
            _ => make(dir),
        }
    }

    /// Removes an attempt's directory and everything in it, or keeps what the next may have.
    pub fn remove(&self, dir: &Path) -> io::Result<()> {
        let number = self.with(|free| {
            free.last += 1;
            (free.dirs.len() < MOST).then_some(free.last)
        });
        let Some(number) = number else { return remove_tree(dir) };
        let spare = dir.with_file_name(format!("{PREFIX}{number}"));
        // From here on it is no attempt, whatever is still in it.
        if fs::rename(dir, &spare).is_err() {
            return remove_tree(dir);
        }
        if emptied(&spare).is_err() {
            return remove_tree(&spare);
        }
        self.with(|free| free.dirs.push_back(spare));
        Ok(())
    }
}

/// Leaves nothing in it but an empty lock, and the files that records are written to before they get their names.
fn emptied(dir: &Path) -> io::Result<()> {
    let part = |name: &str| dir.join(name).with_extension("part");
    let parts = [RECORD, START, EXIT, LAUNCH].map(part);
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        match path.file_name().and_then(|name| name.to_str()) {
            // A number in it would be taken for the next shim's.
            Some(LOCK) => fs::OpenOptions::new().write(true).open(path)?.set_len(0)?,
            Some(name @ (RECORD | START | EXIT | LAUNCH)) => fs::rename(&path, part(name))?,
            Some(CLEAN) => fs::rename(&path, part(LAUNCH))?,
            _ if parts.contains(&path) => {}
            // A directory is the tenant's, or holds what was: then all of it goes.
            _ => fs::remove_file(path)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use berth_proto::Assignment;

    use super::*;
    use crate::agent::Key;
    use crate::attempts::Attempt;
    use crate::files::{put_json, put_new_json};
    use crate::shim::{self, LOG};

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn the_next_attempt_gets_the_directory_and_finds_nothing_of_the_last_one() {
        let root = tempfile::tempdir().unwrap();
        let spares = SpareDirs::default();
        let begin = |job: &str| {
            let key = Key { job: job.to_owned(), number: 1 };
            Attempt::begin(root.path(), &spares, &key, &Assignment::default()).unwrap()
        };
        let first = begin("job_a");
        first.save_new().unwrap();
        let lock = shim::lock(&first.dir).unwrap();
        fs::write(first.dir.join(LOCK), "1").unwrap();
        for name in [LAUNCH, START, EXIT, "evidence.json"] {
            put_json(&first.dir.join(name), &"of the first, and longer than what comes", false).unwrap();
        }
        fs::rename(first.dir.join(LAUNCH), first.dir.join(CLEAN)).unwrap();
        fs::write(first.dir.join(LOG), "hush").unwrap();
        fs::write(first.dir.join("evidence.part"), "half").unwrap();
        drop(lock);
        let inode = fs::metadata(&first.dir).unwrap().ino();
        spares.remove(&first.dir).unwrap();
        assert!(!first.dir.exists());
        assert!(Attempt::load_all(root.path()).unwrap().is_empty());

        let next = begin("job_b");
        let there = fs::metadata(&next.dir).unwrap();
        assert_eq!((there.ino(), there.permissions().mode() & 0o777), (inode, 0o700));
        assert_eq!(names(&next.dir), ["attempt.part", "exit.part", "launch.part", LOCK, "start.part"]);
        assert_eq!(fs::read_to_string(next.dir.join(LOCK)).unwrap(), "");
        assert!(Attempt::load_all(root.path()).unwrap().is_empty(), "it is not recorded");
        next.save_new().unwrap();
        put_new_json(&next.dir.join(EXIT), &"short").unwrap();
        assert_eq!(fs::read_to_string(next.dir.join(EXIT)).unwrap(), "\"short\"");
        let [found] = &Attempt::load_all(root.path()).unwrap()[..] else { panic!() };
        assert_eq!((found.record.job.as_str(), found.record.clean), ("job_b", false));
        assert_eq!((&found.start, &found.exit), (&None, &None));
    }

    #[test]
    fn what_holds_more_than_records_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let spares = SpareDirs::default();
        let dir = root.path().join("job_a-1");
        spares.make(&dir).unwrap();
        fs::create_dir_all(dir.join("work/deep")).unwrap();
        fs::write(dir.join(RECORD), "").unwrap();
        spares.remove(&dir).unwrap();
        assert!(names(root.path()).is_empty());
        let gone = spares.remove(&dir).unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);

        // One that is there is left as it is, and what a former daemon kept is nobody's.
        spares.make(&dir).unwrap();
        spares.remove(&dir).unwrap();
        let other = root.path().join("job_b-1");
        fs::create_dir(&other).unwrap();
        fs::write(other.join(RECORD), "mine").unwrap();
        spares.make(&other).unwrap();
        assert_eq!(names(&other), [RECORD]);
        assert_eq!(names(root.path()).len(), 2);
        SpareDirs::default().sweep(root.path()).unwrap();
        assert_eq!(names(root.path()), ["job_b-1"]);
        spares.make(&dir).unwrap();
        assert!(names(&dir).is_empty(), "made anew, since the spare one has gone");
    }
}

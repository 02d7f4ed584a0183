//! The files of readings: one for each attempt, `readings/JOB/ATTEMPT.frames`.
//!
//! Added to by the second, written anew now and then; a file that is written anew takes the place of the old
//! one whole or not at all. Which of them must be looked at, and when, is in memory and is found out again by
//! looking at all of them once.

use std::collections::HashMap;
use std::fs::{DirEntry, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use berth_types::ids::JobId;

use super::tiers::{Keep, due_s, settle};
use super::{codec, open_append};

const SUFFIX: &str = "frames";
/// A file that was added to so often is written anew: many small frames are long.
const MOST_ADDED: u32 = 300;
/// So many files may be written to at the same time.
const LOCKS: usize = 16;

/// A job and the number of its attempt.
pub type Key = (JobId, u32);

/// What is known of a file.
#[derive(Debug, Clone, Copy)]
struct Known {
    due_s: i64,
    added: u32,
}

impl Known {
    const fn is_due(self, now_s: i64) -> bool {
        self.due_s <= now_s || self.added >= MOST_ADDED
    }
}

#[derive(Debug, Default)]
struct All {
    known: HashMap<Key, Known>,
    /// Every file that was there at the start has been looked at.
    complete: bool,
}

#[derive(Debug, Default)]
pub struct Files {
    all: Mutex<All>,
    /// Held while a file or its directory changes; which one, its job says.
    writing: [Mutex<()>; LOCKS],
}

pub fn readings(root: &Path, (job, attempt): Key) -> PathBuf {
    root.join("readings").join(job.to_string()).join(format!("{attempt}.{SUFFIX}"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is in a directory; nothing when it is not there.
fn entries(dir: &Path) -> io::Result<Vec<DirEntry>> {
    match std::fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        other => other?.collect(),
    }
}

/// The attempts of which there are readings.
fn walk(root: &Path) -> io::Result<Vec<Key>> {
    let mut out = Vec::new();
    for dir in entries(&root.join("readings"))? {
        let Some(job) = dir.file_name().to_str().and_then(|name| name.parse::<JobId>().ok()) else {
            continue;
        };
        for file in entries(&dir.path())? {
            let path = file.path();
            let ours = path.extension().is_some_and(|suffix| suffix == SUFFIX);
            let number = path.file_stem().and_then(|stem| stem.to_str()?.parse::<u32>().ok());
            out.extend(number.filter(|_| ours).map(|number| (job, number)));
        }
    }
    Ok(out)
}

impl Files {
    fn writing(&self, job: JobId) -> Option<MutexGuard<'_, ()>> {
        let slot = usize::try_from(job.uuid().as_u128() % (LOCKS as u128)).unwrap_or(0);
        self.writing.get(slot).map(lock)
    }

    /// Adds frames to a file, which is to be looked at when they are due, if not earlier.
    pub fn append(&self, root: &Path, key: Key, bytes: &[u8], due: i64) -> io::Result<()> {
        {
            let _writing = self.writing(key.0);
            open_append(&readings(root, key))?.write_all(bytes)?;
        }
        let mut all = lock(&self.all);
        let known = all.known.entry(key).or_insert(Known { due_s: i64::MAX, added: 0 });
        known.due_s = known.due_s.min(due);
        known.added = known.added.saturating_add(1);
        Ok(())
    }

    /// Settles every file that is due.
    pub fn settle(&self, root: &Path, keep: Keep, now_s: i64) -> io::Result<()> {
        if !lock(&self.all).complete {
            for key in walk(root)? {
                if let Err(error) = self.look(root, keep, key) {
                    tracing::warn!(job = %key.0, attempt = key.1, %error, "readings cannot be read; they stay as they are");
                }
            }
            lock(&self.all).complete = true;
        }
        let due: Vec<Key> = {
            let all = lock(&self.all);
            all.known.iter().filter(|(_, known)| known.is_due(now_s)).map(|(key, _)| *key).collect()
        };
        for key in due {
            // One that cannot be written does not keep the others from it.
            if let Err(error) = self.rewrite(root, keep, now_s, key) {
                tracing::warn!(job = %key.0, attempt = key.1, %error, "readings cannot be settled; the next look tries again");
            }
        }
        Ok(())
    }

    /// Finds out when a file is due.
    fn look(&self, root: &Path, keep: Keep, key: Key) -> io::Result<()> {
        let bytes = match std::fs::read(readings(root, key)) {
            // Removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        let blocks = codec::decode(&bytes);
        // It was added to until the portal ended; many small frames are worth a rewriting.
        let added = u32::try_from(blocks.len()).unwrap_or(u32::MAX);
        let due = if bytes.is_empty() { i64::MIN } else { due_s(&blocks, keep) };
        let mut all = lock(&self.all);
        let known = all.known.entry(key).or_insert(Known { due_s: due, added });
        known.due_s = known.due_s.min(due);
        Ok(())
    }

    fn rewrite(&self, root: &Path, keep: Keep, now_s: i64, key: Key) -> io::Result<()> {
        let path = readings(root, key);
        let _writing = self.writing(key.0);
        let bytes = match std::fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                lock(&self.all).known.remove(&key);
                return Ok(());
            }
            other => other?,
        };
        let found = codec::decode(&bytes);
        if found.is_empty() && !bytes.is_empty() {
            // Another version's, perhaps: it is not this one's to remove.
            tracing::warn!(file = %path.display(), "nothing in this file of readings can be read; it is left alone");
            lock(&self.all).known.remove(&key);
            return Ok(());
        }
        let blocks = settle(found, keep, now_s);
        let draft = path.with_extension("new");
        if blocks.is_empty() {
            std::fs::remove_file(&path)?;
            // One is left where a portal died while it wrote.
            let _ = std::fs::remove_file(&draft);
            lock(&self.all).known.remove(&key);
            // It goes with its last file only.
            let _ = path.parent().map(std::fs::remove_dir);
            return Ok(());
        }
        let mut new = Vec::with_capacity(bytes.len());
        blocks.iter().for_each(|block| codec::encode(&mut new, block));
        let mut file = File::create(&draft)?;
        file.write_all(&new)?;
        // Before it takes the old one's place: a power cut must not leave it empty.
        file.sync_data()?;
        std::fs::rename(&draft, &path)?;
        lock(&self.all).known.insert(key, Known { due_s: due_s(&blocks, keep), added: 0 });
        Ok(())
    }
}

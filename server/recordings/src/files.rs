//! The files of readings: one for each attempt, `readings/JOB/ATTEMPT.frames`.
//!
//! Readings are appended every second. A compaction replaces a file atomically. The times of the next
//! compactions are in memory; after a start all files are read once to find them.

use std::collections::HashMap;
use std::fs::{DirEntry, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use berth_types::ids::JobId;

use super::tiers::{Retention, downsample, due_s};
use super::{codec, open_append};

const SUFFIX: &str = "frames";
/// A file with this number of appended frames is compacted, because many small frames take much space.
const MAX_APPENDED: u32 = 300;
/// Greatest number of files that are written at the same time.
const LOCKS: usize = 16;

/// A job and the number of its attempt.
pub type Key = (JobId, u32);

/// The state of a file.
#[derive(Debug, Clone, Copy)]
struct RecordingState {
    /// Time of the next compaction, in seconds since the epoch.
    due_s: i64,
    /// Number of frames appended since the last compaction.
    appended: u32,
}

impl RecordingState {
    const fn is_due(self, now_s: i64) -> bool {
        self.due_s <= now_s || self.appended >= MAX_APPENDED
    }
}

#[derive(Debug, Default)]
struct Index {
    states: HashMap<Key, RecordingState>,
    /// True once all files that existed at the start were read.
    complete: bool,
}

#[derive(Debug, Default)]
pub struct RecordingFiles {
    index: Mutex<Index>,
    /// Held during a change of a file or its directory. The job of a file determines its lock.
    writing: [Mutex<()>; LOCKS],
}

/// The path of an attempt's readings.
pub fn readings(root: &Path, (job, attempt): Key) -> PathBuf {
    root.join("readings").join(job.to_string()).join(format!("{attempt}.{SUFFIX}"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The entries of a directory; none if it does not exist.
fn entries(dir: &Path) -> io::Result<Vec<DirEntry>> {
    match std::fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        other => other?.collect(),
    }
}

/// The attempts with a file of readings.
fn list_attempts(root: &Path) -> io::Result<Vec<Key>> {
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

/// Removes a directory with its files. An absent one is removed already.
pub fn remove_dir(dir: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// The bytes of the files in a directory; 0 without the directory.
pub fn total_bytes(dir: &Path) -> io::Result<u64> {
    let mut bytes = 0_u64;
    for entry in entries(dir)? {
        bytes = bytes.saturating_add(entry.metadata()?.len());
    }
    Ok(bytes)
}

impl RecordingFiles {
    fn writing(&self, job: JobId) -> Option<MutexGuard<'_, ()>> {
        let slot = usize::try_from(job.uuid().as_u128() % (LOCKS as u128)).unwrap_or(0);
        self.writing.get(slot).map(lock)
    }

    /// Appends frames to a file. Its next compaction is at `due`, in seconds since the epoch, or earlier.
    pub fn append(&self, root: &Path, key: Key, bytes: &[u8], due: i64) -> io::Result<()> {
        {
            let _writing = self.writing(key.0);
            open_append(&readings(root, key))?.write_all(bytes)?;
        }
        let mut index = lock(&self.index);
        let state = index.states.entry(key).or_insert(RecordingState { due_s: i64::MAX, appended: 0 });
        state.due_s = state.due_s.min(due);
        state.appended = state.appended.saturating_add(1);
        Ok(())
    }

    /// Removes the readings of all attempts of a job. The next compaction forgets them.
    pub fn remove(&self, root: &Path, job: JobId) -> io::Result<()> {
        let _writing = self.writing(job);
        remove_dir(&root.join("readings").join(job.to_string()))
    }

    /// Compacts each file that is due.
    pub fn compact(&self, root: &Path, retention: Retention, now_s: i64) -> io::Result<()> {
        if !lock(&self.index).complete {
            for key in list_attempts(root)? {
                if let Err(error) = self.add_to_index(root, retention, key) {
                    tracing::warn!(job = %key.0, attempt = key.1, %error, "a file of readings is not readable; it stays unchanged");
                }
            }
            lock(&self.index).complete = true;
        }
        let due: Vec<Key> = {
            let index = lock(&self.index);
            index.states.iter().filter(|(_, state)| state.is_due(now_s)).map(|(key, _)| *key).collect()
        };
        for key in due {
            // A failure does not stop the compaction of the other files.
            if let Err(error) = self.rewrite(root, retention, now_s, key) {
                tracing::warn!(job = %key.0, attempt = key.1, %error, "readings cannot be compacted; trying again");
            }
        }
        Ok(())
    }

    /// Reads a file and stores the time of its next compaction.
    fn add_to_index(&self, root: &Path, retention: Retention, key: Key) -> io::Result<()> {
        let bytes = match std::fs::read(readings(root, key)) {
            // Removed in the meantime.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        let blocks = codec::decode(&bytes);
        // Frames that the last portal appended count, so a file of many small frames is compacted.
        let appended = u32::try_from(blocks.len()).unwrap_or(u32::MAX);
        let due = if bytes.is_empty() { i64::MIN } else { due_s(&blocks, retention) };
        let mut index = lock(&self.index);
        let state = index.states.entry(key).or_insert(RecordingState { due_s: due, appended });
        state.due_s = state.due_s.min(due);
        Ok(())
    }

    fn rewrite(&self, root: &Path, retention: Retention, now_s: i64, key: Key) -> io::Result<()> {
        let path = readings(root, key);
        let _writing = self.writing(key.0);
        let bytes = match std::fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                lock(&self.index).states.remove(&key);
                return Ok(());
            }
            other => other?,
        };
        let found = codec::decode(&bytes);
        if found.is_empty() && !bytes.is_empty() {
            // Another version may have written the file, so it is not removed.
            tracing::warn!(file = %path.display(), "a file of readings has no readable part; it stays unchanged");
            lock(&self.index).states.remove(&key);
            return Ok(());
        }
        let blocks = downsample(found, retention, now_s);
        let draft = path.with_extension("new");
        if blocks.is_empty() {
            std::fs::remove_file(&path)?;
            // A portal that died during a compaction leaves a draft.
            let _ = std::fs::remove_file(&draft);
            lock(&self.index).states.remove(&key);
            // The directory is removed with its last file only.
            let _ = path.parent().map(std::fs::remove_dir);
            return Ok(());
        }
        let mut new = Vec::with_capacity(bytes.len());
        blocks.iter().for_each(|block| codec::encode(&mut new, block));
        let mut file = File::create(&draft)?;
        file.write_all(&new)?;
        // Before the rename, so that a power cut does not leave an empty file.
        file.sync_data()?;
        std::fs::rename(&draft, &path)?;
        lock(&self.index)
            .states
            .insert(key, RecordingState { due_s: due_s(&blocks, retention), appended: 0 });
        Ok(())
    }
}

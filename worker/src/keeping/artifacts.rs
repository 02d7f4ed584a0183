//! Files that a job said should be kept, when an attempt is over.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use berth_proto::{AttemptId, MOST_ARTIFACTS, Parcel};
use sha2::{Digest, Sha256};

use super::transfer::{Portal, Source, send};
use super::tree::{self, Entry, Kind, ListError};
use super::{Task, blocking, failed, patterns, work};

/// The job's directory, the files in it that its patterns mean, and whether there were more than are kept.
type Chosen = (OwnedFd, Vec<Entry>, bool);

fn chosen(task: &Task) -> Result<Option<Chosen>, String> {
    let Some(root) = work(task)? else { return Ok(None) };
    let listing = match tree::list(&root, task.uid) {
        Ok(listing) => listing,
        Err(ListError::TooMany) => return Ok(Some((root, Vec::new(), true))),
        Err(ListError::Io(error)) => return Err(failed(&error.into())),
    };
    let wanted = |e: &Entry| {
        e.kind == Kind::File && task.keep.artifacts.iter().any(|pattern| patterns::matches(pattern, &e.path))
    };
    let mut entries: Vec<Entry> = listing.entries.into_iter().filter(wanted).collect();
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    let meant = entries.len();
    // Holes take no room in the job's directory, and would be read and sent as if they did.
    let mut room = task.most_bytes;
    entries.retain(|e| {
        let left = room.checked_sub(e.bytes);
        room = left.unwrap_or(room);
        left.is_some()
    });
    entries.truncate(MOST_ARTIFACTS);
    let more = entries.len() < meant;
    Ok(Some((root, entries, more)))
}

pub(super) fn hash_of(root: &OwnedFd, entry: &Entry) -> Result<Option<(File, Vec<u8>)>, String> {
    let Some(file) = tree::open_file(root, entry).map_err(|e| failed(&e))? else { return Ok(None) };
    let mut hash = Sha256::new();
    let (mut offset, mut buffer) = (0, vec![0; 1 << 20]);
    loop {
        let read = file.read_at(&mut buffer, offset).map_err(|e| failed(&e))?;
        let Some(data) = buffer.get(..read).filter(|d| !d.is_empty()) else { break };
        hash.update(data);
        offset += read as u64;
    }
    Ok((offset == entry.bytes).then(|| (file, hash.finalize().to_vec())))
}

/// Hands over what the patterns mean.
pub(super) async fn keep(task: &Task, portal: &mut Portal) -> Result<(), String> {
    let looking = task.clone();
    let Some((root, entries, more)) = blocking(move || chosen(&looking)).await? else { return Ok(()) };
    let root = Arc::new(root);
    let attempt = Some(AttemptId::new(&task.key.job, task.key.number));
    for entry in entries {
        let (from, this) = (root.clone(), entry.clone());
        // Nothing of the job runs, so a file that is another now is the worker's own doing: the disk's end.
        let Some((file, sha256)) = blocking(move || hash_of(&from, &this)).await? else { continue };
        let parcel = Parcel {
            attempt: attempt.clone(),
            path: entry.path,
            bytes: entry.bytes,
            sha256,
            files: 1,
            ..Parcel::default()
        };
        send(portal, parcel, Source::Open(file)).await?;
    }
    if more {
        let note = format!(
            "Only {MOST_ARTIFACTS} files of an attempt are kept, of no more bytes than its directory may hold; pack them into archives."
        );
        let parcel = Parcel { attempt, path: "more".to_owned(), note, refused: true, ..Parcel::default() };
        send(portal, Parcel { sha256: Sha256::digest(b"").to_vec(), ..parcel }, Source::Path(PathBuf::new()))
            .await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::Key;
    use crate::keeping::Keep;

    #[test]
    fn artifacts_are_files_that_the_patterns_mean() {
        let dir = tempfile::tempdir().unwrap();
        let work = dir.path().join("work");
        std::fs::create_dir_all(work.join("out/deep")).unwrap();
        for name in ["out/b.txt", "out/a.txt", "out/c.png", "out/deep/d.txt", "e.txt"] {
            std::fs::write(work.join(name), name).unwrap();
        }
        std::os::unix::fs::symlink("a.txt", work.join("out/link.txt")).unwrap();
        let keep = Keep { artifacts: vec!["out/*.txt".to_owned()], ..Keep::default() };
        let key = Key { job: "job".to_owned(), number: 1 };
        let task = Task { key, dir: dir.path().to_owned(), keep, uid: None, over: true, most_bytes: 1 << 20 };
        let (root, entries, more) = chosen(&task).unwrap().unwrap();
        let paths: Vec<&str> = entries.iter().map(|e| e.path.as_str()).collect();
        assert_eq!((paths, more), (vec!["out/a.txt", "out/b.txt"], false));
        let (_, sha256) = hash_of(&root, &entries[0]).unwrap().unwrap();
        assert_eq!(sha256, Sha256::digest(b"out/a.txt").to_vec());
        // Longer than all that the directory may hold, and no room on the disk.
        std::fs::File::create(work.join("out/a0.txt")).unwrap().set_len(2 << 20).unwrap();
        let (_, entries, more) = chosen(&task).unwrap().unwrap();
        let paths: Vec<&str> = entries.iter().map(|e| e.path.as_str()).collect();
        assert_eq!((paths, more), (vec!["out/a.txt", "out/b.txt"], true));
    }
}

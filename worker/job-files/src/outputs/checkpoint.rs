//! Checkpoints: a copy of a directory at a moment without changes, packed and uploaded.

use std::os::fd::OwnedFd;
use std::time::Duration;

use berth_proto::OutputFile;
use berth_system::clock::boottime_ms;
use berth_system::files::{find_json, put_json};
use berth_types::paths::{CHECKPOINT_ENTRIES, JOB_PATHS};
use nix::errno::Errno;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::task::OutputTask;
use crate::transfer::archive::{self, ArchiveSum, PackError};
use crate::transfer::tree::{self, TreeError, TreeListing};
use crate::transfer::{Portal, UploadSource, blocking, create_file, make_kept_dir, unreadable, upload};

/// The packed checkpoint, until the portal has all of it.
const PACKED: &str = "kept/checkpoint.tar";
const STATE: &str = "kept/progress.json";
/// The tries for a moment without changes, and the time between two: several ticks of the kernel's clock for changes.
const TRIES: u32 = 20;
const BETWEEN_TRIES: Duration = Duration::from_millis(25);

/// The notes for a directory without files at the end, after an earlier checkpoint.
const EMPTY: &str =
    "The directory was empty at the end of the attempt. The next attempt starts with an empty directory.";
const REMOVED: &str = "The directory was removed before the end of the attempt. The next attempt starts with an empty directory.";
/// The consequence of a checkpoint that cannot be kept.
const NOT_KEPT: &str =
    "The checkpoint was not kept. The next attempt starts from the previous checkpoint, if there is one.";

/// A packed checkpoint.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct PackedCheckpoint {
    seq: u64,
    bytes: u64,
    sha256: Vec<u8>,
    files: u64,
    note: String,
    /// The checkpoint is too large or has too many files: only its note is sent.
    refused: bool,
    fingerprint: String,
}

/// The saved state of a hand-over.
#[derive(Debug, Default, Serialize, Deserialize)]
struct CheckpointState {
    packed: Option<PackedCheckpoint>,
    /// The fingerprint of the checkpoint that the portal has.
    sent: Option<String>,
}

/// Packs and uploads the checkpoint directory, unless the portal has its present content.
pub(super) async fn hand_over(task: &OutputTask, dir: &str, portal: &mut Portal) -> Result<(), String> {
    let packing = (task.clone(), dir.to_owned());
    let Some(packed) = blocking(move || pack_next(&packing.0, &packing.1)).await? else { return Ok(()) };
    let file = OutputFile {
        attempt: Some(task.key.id()),
        checkpoint: true,
        path: dir.to_owned(),
        seq: packed.seq,
        bytes: packed.bytes,
        sha256: packed.sha256.clone(),
        files: packed.files,
        note: packed.note.clone(),
        refused: packed.refused,
        ..OutputFile::default()
    };
    upload(portal, file, UploadSource::Path(task.dir.join(PACKED))).await?;
    let at = task.dir.clone();
    blocking(move || {
        let state = CheckpointState { packed: None, sent: Some(packed.fingerprint) };
        put_json(&at.join(STATE), &state, true).map_err(|e| unreadable(&e))?;
        // A note has no file.
        let _ = std::fs::remove_file(at.join(PACKED));
        Ok(())
    })
    .await
}

/// The file at the path of the checkpoint directory.
enum CheckpointDir {
    Open(OwnedFd),
    Absent,
    /// The reason why it cannot be kept.
    Unusable(&'static str),
}

fn open_checkpoint_dir(work: &OwnedFd, dir: &str) -> Result<CheckpointDir, String> {
    let parts: Vec<&str> = dir.split('/').collect();
    let error = match tree::descend(work, &parts, false) {
        Ok(dir) => return Ok(CheckpointDir::Open(dir)),
        Err(error) => error,
    };
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT) => Ok(CheckpointDir::Absent),
        // No link is followed.
        Some(Errno::ENOTDIR | Errno::ELOOP) => {
            Ok(CheckpointDir::Unusable("A file or a link was in place of the directory."))
        }
        Some(Errno::EACCES) => Ok(CheckpointDir::Unusable("The directory is not readable.")),
        _ => Err(unreadable(&error)),
    }
}

/// Packs the next checkpoint. `None`: there is none, the portal has it, or the directory kept changing.
fn pack_next(task: &OutputTask, dir: &str) -> Result<Option<PackedCheckpoint>, String> {
    let Some(work) = task.open_work()? else { return Ok(None) };
    let found = open_checkpoint_dir(&work, dir)?;
    make_kept_dir(&task.dir).map_err(|e| unreadable(&e))?;
    let state: CheckpointState = find_json(&task.dir.join(STATE)).unwrap_or_default();
    // A running job may be about to write the directory anew. At the end, an older checkpoint must not replace an
    // empty directory.
    let empty_counts = task.over && (task.plan.restored || state.sent.is_some());
    match found {
        CheckpointDir::Open(root) => pack_dir(task, &root, &state, empty_counts),
        CheckpointDir::Absent if empty_counts => pack_removed(task, &work, &state),
        CheckpointDir::Unusable(why) if task.over => pack_note(task, &state, &format!("{why} {NOT_KEPT}")),
        CheckpointDir::Absent | CheckpointDir::Unusable(_) => Ok(None),
    }
}

fn pack_dir(
    task: &OutputTask,
    root: &OwnedFd,
    state: &CheckpointState,
    empty_counts: bool,
) -> Result<Option<PackedCheckpoint>, String> {
    for _ in 0..TRIES {
        let began = tree::file_clock();
        let listing = match tree::list(root, task.uid) {
            Ok(listing) => listing,
            Err(TreeError::TooMany) => {
                let why = format!("The directory has more than {CHECKPOINT_ENTRIES} entries. {NOT_KEPT}");
                return pack_note(task, state, &why);
            }
            Err(TreeError::Io(error)) => return Err(unreadable(&error.into())),
        };
        let fingerprint = listing.fingerprint();
        let nothing = listing.files() == 0 && !empty_counts;
        if nothing || state.sent.as_ref() == Some(&fingerprint) {
            return Ok(None);
        }
        if let Some(packed) = state.packed.as_ref().filter(|p| p.fingerprint == fingerprint) {
            return Ok(Some(packed.clone()));
        }
        // A change in this tick of the clock cannot be told from a later one in the same tick, while the job runs.
        if task.over || listing.changed() < began {
            match pack(task, root, &listing) {
                Ok(sum) if is_unchanged(root, task, &fingerprint) => {
                    let note = note_about(&listing);
                    return save_packed(task, &listing, sum, (fingerprint, note)).map(Some);
                }
                Ok(_) | Err(PackError::Changed) => {}
                Err(PackError::TooLarge) => {
                    return pack_note(task, state, &format!("The checkpoint is too large. {NOT_KEPT}"));
                }
                Err(PackError::Io(error)) => return Err(unreadable(&error)),
            }
        }
        std::thread::sleep(BETWEEN_TRIES);
    }
    // After the end of the attempt nothing changes, so a later try succeeds.
    if task.over { Err("the checkpoint directory kept changing".to_owned()) } else { Ok(None) }
}

/// Packs an empty checkpoint for a directory that the job removed.
fn pack_removed(
    task: &OutputTask,
    work: &OwnedFd,
    state: &CheckpointState,
) -> Result<Option<PackedCheckpoint>, String> {
    if state.sent.as_deref() == Some(REMOVED) {
        return Ok(None);
    }
    let listing = TreeListing::default();
    match pack(task, work, &listing) {
        Ok(sum) => save_packed(task, &listing, sum, (REMOVED.to_owned(), REMOVED.to_owned())).map(Some),
        Err(PackError::Io(error)) => Err(unreadable(&error)),
        Err(PackError::Changed | PackError::TooLarge) => Err("an empty checkpoint changed".to_owned()),
    }
}

fn is_unchanged(root: &OwnedFd, task: &OutputTask, fingerprint: &str) -> bool {
    tree::list(root, task.uid).is_ok_and(|now| now.fingerprint() == fingerprint)
}

fn pack(task: &OutputTask, root: &OwnedFd, listing: &TreeListing) -> Result<ArchiveSum, PackError> {
    let file = create_file(&task.dir.join(PACKED))?;
    archive::pack(root, listing, file, task.most_bytes)
}

/// The note about a checkpoint.
fn note_about(listing: &TreeListing) -> String {
    let rule = format!(
        "only files, directories and internal links of the job are kept, at UTF-8 paths of at most {} bytes and {} parts",
        JOB_PATHS.bytes, JOB_PATHS.parts
    );
    let left_out = listing.left_out.note(&rule);
    if listing.files() > 0 {
        return left_out;
    }
    [EMPTY, &left_out].join(" ").trim_end().to_owned()
}

/// A number from the boot clock: a later checkpoint has a higher one.
fn next_seq() -> u64 {
    u64::try_from(boottime_ms()).unwrap_or(0)
}

fn save_packed(
    task: &OutputTask,
    listing: &TreeListing,
    sum: ArchiveSum,
    (fingerprint, note): (String, String),
) -> Result<PackedCheckpoint, String> {
    let packed = PackedCheckpoint {
        seq: next_seq(),
        bytes: sum.bytes,
        sha256: sum.sha256,
        files: listing.files(),
        note,
        refused: false,
        fingerprint,
    };
    save_state(task, packed)
}

fn save_state(task: &OutputTask, packed: PackedCheckpoint) -> Result<PackedCheckpoint, String> {
    let sent = find_json::<CheckpointState>(&task.dir.join(STATE)).and_then(|state| state.sent);
    let state = CheckpointState { packed: Some(packed.clone()), sent };
    put_json(&task.dir.join(STATE), &state, true).map_err(|e| unreadable(&e))?;
    Ok(packed)
}

/// A note in place of a checkpoint, sent once.
fn pack_note(
    task: &OutputTask,
    state: &CheckpointState,
    why: &str,
) -> Result<Option<PackedCheckpoint>, String> {
    if state.sent.as_deref() == Some(why) {
        return Ok(None);
    }
    let packed = PackedCheckpoint {
        seq: next_seq(),
        bytes: 0,
        sha256: Sha256::digest(b"").to_vec(),
        files: 0,
        note: why.to_owned(),
        refused: true,
        fingerprint: why.to_owned(),
    };
    save_state(task, packed).map(Some)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use berth_proto::{Restore, Spec};

    use super::super::plan::OutputPlan;
    use super::*;
    use crate::inputs::checkpoint::restore;
    use crate::transfer::RESTORE;
    use berth_shim::model::AttemptKey;

    fn task(dir: &Path, over: bool) -> OutputTask {
        let checkpoint_dir = Some("a/ckpt".to_owned());
        let plan = OutputPlan { checkpoint_dir, every_s: 5, ..OutputPlan::default() };
        let key = AttemptKey { job: "job".to_owned(), number: 1 };
        OutputTask { key, dir: dir.to_owned(), plan, uid: None, over, most_bytes: 1 << 20 }
    }

    #[test]
    fn a_checkpoint_is_packed_once_and_again_when_it_changed() {
        let dir = tempfile::tempdir().unwrap();
        let task = task(dir.path(), false);
        std::fs::create_dir_all(dir.path().join("work")).unwrap();
        assert!(pack_next(&task, "a/ckpt").unwrap().is_none(), "it is not there");
        let ckpt = dir.path().join("work/a/ckpt");
        std::fs::create_dir_all(&ckpt).unwrap();
        assert!(pack_next(&task, "a/ckpt").unwrap().is_none(), "nothing is in it");
        std::fs::write(ckpt.join("epoch"), "1").unwrap();
        let first = pack_next(&task, "a/ckpt").unwrap().unwrap();
        assert_eq!((first.files, first.refused, first.note.as_str()), (1, false, ""));
        let bytes = std::fs::read(dir.path().join(PACKED)).unwrap();
        assert_eq!(Sha256::digest(&bytes).to_vec(), first.sha256);
        // After an interruption the same checkpoint is resumed.
        assert_eq!(pack_next(&task, "a/ckpt").unwrap().unwrap().seq, first.seq);
        let done = CheckpointState { packed: None, sent: Some(first.fingerprint) };
        put_json(&dir.path().join(STATE), &done, false).unwrap();
        assert!(pack_next(&task, "a/ckpt").unwrap().is_none(), "the portal has it");
        std::fs::write(ckpt.join("epoch"), "2").unwrap();
        let second = pack_next(&task, "a/ckpt").unwrap().unwrap();
        assert!(second.seq > first.seq);
        // The restored directory equals the packed one.
        let next = tempfile::tempdir().unwrap();
        std::fs::create_dir(next.path().join("work")).unwrap();
        make_kept_dir(next.path()).unwrap();
        std::fs::copy(dir.path().join(PACKED), next.path().join(RESTORE)).unwrap();
        let spec = Spec {
            checkpoint_dir: "a/ckpt".to_owned(),
            restore: Some(Restore::default()),
            ..Spec::default()
        };
        restore(next.path(), &spec).unwrap();
        assert_eq!(std::fs::read_to_string(next.path().join("work/a/ckpt/epoch")).unwrap(), "2");
        assert!(!next.path().join(RESTORE).exists());
    }

    #[test]
    fn what_changes_while_it_is_packed_is_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let task = task(dir.path(), false);
        make_kept_dir(dir.path()).unwrap();
        std::fs::write(dir.path().join("x"), "before").unwrap();
        let root = tree::open_root(dir.path()).unwrap();
        let listing = tree::list(&root, None).unwrap();
        assert!(is_unchanged(&root, &task, &listing.fingerprint()));
        std::fs::write(dir.path().join("x"), "after it was listed").unwrap();
        assert!(!is_unchanged(&root, &task, &listing.fingerprint()));
        assert!(matches!(pack(&task, &root, &listing), Err(PackError::Changed)));
    }

    /// Saves the state after an upload.
    fn sent(dir: &Path, packed: PackedCheckpoint) {
        let state = CheckpointState { packed: None, sent: Some(packed.fingerprint) };
        put_json(&dir.join(STATE), &state, false).unwrap();
    }

    #[test]
    fn an_empty_directory_is_kept_as_the_last_word_of_an_attempt() {
        let dir = tempfile::tempdir().unwrap();
        let (running, over) = (task(dir.path(), false), task(dir.path(), true));
        let ckpt = dir.path().join("work/a/ckpt");
        std::fs::create_dir_all(&ckpt).unwrap();
        assert!(pack_next(&over, "a/ckpt").unwrap().is_none(), "nothing was ever kept of it");
        let restored =
            OutputTask { plan: OutputPlan { restored: true, ..over.plan.clone() }, ..over.clone() };
        assert_eq!(pack_next(&restored, "a/ckpt").unwrap().unwrap().note, EMPTY);
        std::fs::remove_file(dir.path().join(STATE)).unwrap();
        std::fs::write(ckpt.join("epoch"), "1").unwrap();
        sent(dir.path(), pack_next(&over, "a/ckpt").unwrap().unwrap());
        std::fs::remove_file(ckpt.join("epoch")).unwrap();
        assert!(pack_next(&running, "a/ckpt").unwrap().is_none(), "it may be about to be written anew");
        let empty = pack_next(&over, "a/ckpt").unwrap().unwrap();
        assert_eq!((empty.files, empty.refused, empty.note.as_str()), (0, false, EMPTY));
        sent(dir.path(), empty);
        assert!(pack_next(&over, "a/ckpt").unwrap().is_none(), "the portal has it");
        // The job's own files do not come back either.
        let next = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(next.path().join("work/a/ckpt/sub")).unwrap();
        make_kept_dir(next.path()).unwrap();
        std::fs::copy(dir.path().join(PACKED), next.path().join(RESTORE)).unwrap();
        let restore_of = Some(Restore::default());
        let spec = Spec { checkpoint_dir: "a/ckpt".to_owned(), restore: restore_of, ..Spec::default() };
        restore(next.path(), &spec).unwrap();
        assert_eq!(std::fs::read_dir(next.path().join("work/a/ckpt")).unwrap().count(), 0);
    }

    #[test]
    fn a_directory_that_was_removed_or_replaced_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let (running, over) = (task(dir.path(), false), task(dir.path(), true));
        let ckpt = dir.path().join("work/a/ckpt");
        std::fs::create_dir_all(&ckpt).unwrap();
        std::fs::write(ckpt.join("epoch"), "1").unwrap();
        sent(dir.path(), pack_next(&over, "a/ckpt").unwrap().unwrap());
        std::fs::remove_dir_all(&ckpt).unwrap();
        assert!(pack_next(&running, "a/ckpt").unwrap().is_none());
        let removed = pack_next(&over, "a/ckpt").unwrap().unwrap();
        assert_eq!((removed.files, removed.refused, removed.note.as_str()), (0, false, REMOVED));
        for part in ["work/a/ckpt", "work/a"] {
            let place = dir.path().join(part);
            // The directory may be absent.
            let _ = std::fs::remove_dir(&place);
            std::os::unix::fs::symlink("/tmp", &place).unwrap();
            let replaced = pack_next(&over, "a/ckpt").unwrap().unwrap();
            assert!(replaced.refused && replaced.note.contains("previous checkpoint"), "{}", replaced.note);
            assert!(pack_next(&running, "a/ckpt").unwrap().is_none());
            std::fs::remove_file(&place).unwrap();
            std::fs::write(&place, "a file").unwrap();
            assert!(pack_next(&over, "a/ckpt").unwrap().unwrap().refused, "{part}");
            std::fs::remove_file(&place).unwrap();
        }
    }

    #[test]
    fn what_is_too_large_is_said_once() {
        let dir = tempfile::tempdir().unwrap();
        let task = OutputTask { most_bytes: 1_000, ..task(dir.path(), true) };
        std::fs::create_dir_all(dir.path().join("work/a/ckpt")).unwrap();
        std::fs::write(dir.path().join("work/a/ckpt/x"), vec![1; 2_000]).unwrap();
        let noted = pack_next(&task, "a/ckpt").unwrap().unwrap();
        assert!(noted.refused && noted.note.contains("too large"));
        put_json(
            &dir.path().join(STATE),
            &CheckpointState { packed: None, sent: Some(noted.fingerprint) },
            false,
        )
        .unwrap();
        assert!(pack_next(&task, "a/ckpt").unwrap().is_none());
    }
}

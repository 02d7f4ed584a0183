//! What of an attempt outlives it: its checkpoint directory and the files that it said should be kept are
//! handed to the portal, and the newest checkpoint is fetched before an attempt starts.
//!
//! A checkpoint is a moment at which nothing in the directory changed, or it is none. Everything can be
//! broken off and taken up again: what was packed stays until the portal has it.

pub mod archive;
mod artifacts;
mod bundles;
pub mod patterns;
pub(crate) mod transfer;
pub mod tree;
mod volumes;
mod walk;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use berth_proto::{AttemptId, Parcel, Spec};
use berth_types::paths::{CHECKPOINT_ENTRIES, JOB_PATHS};
use nix::errno::Errno;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tonic::transport::Channel;

use self::archive::{PackError, Sum};
use self::transfer::{Portal, Source, client, send};
use self::tree::{ListError, Listing};
use crate::agent::Key;
use crate::attempts::Attempt;
use crate::files::{find_json, inside, put_json};
use crate::removing::remove_tree;
use crate::shim;

pub use self::transfer::fetch;

/// Below the attempt's directory, where nobody waits for changes.
const PLACE: &str = "kept";
/// The packed checkpoint, while the portal has not all of it.
const PACKED: &str = "kept/checkpoint.tar";
const PROGRESS: &str = "kept/progress.json";
/// What an attempt starts with.
const RESTORE: &str = "kept/restore.tar";
/// Looks at a directory for a moment in which nothing changes, and the time between two of them: several
/// ticks of the clock by which the kernel tells changes.
const LOOKS: u32 = 20;
const BETWEEN_LOOKS: Duration = Duration::from_millis(25);

/// Of a directory in which there is nothing at the end, though a checkpoint of it was kept before.
const EMPTY: &str = "It was empty when the attempt ended, and the next attempt begins with it so.";
const GONE: &str = "It was removed before the attempt ended, and the next attempt begins with it empty.";
/// Of what was there in place of a checkpoint.
const UNKEPT: &str = "It is not kept, and a next attempt begins with the checkpoint before, if there is one.";

/// What is kept of an attempt, as its specification says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keep {
    /// The checkpoint directory, inside the job's own.
    pub dir: Option<String>,
    /// 0: at the end only.
    pub every_s: u32,
    /// Patterns.
    pub artifacts: Vec<String>,
    /// It began with a checkpoint.
    #[serde(default)]
    pub restored: bool,
    /// Volumes that it writes to.
    #[serde(default)]
    pub volumes: Vec<Written>,
    /// The portal has all of it.
    pub done: bool,
}

/// A volume that an attempt writes to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// The portal's id of it.
    pub volume: String,
    /// Its place among the volumes of the attempt.
    pub index: usize,
}

impl Keep {
    pub fn of(spec: &Spec) -> Self {
        Self {
            dir: Some(spec.checkpoint_dir.clone()).filter(|dir| !dir.is_empty()),
            every_s: spec.checkpoint_every_s,
            artifacts: spec.artifacts.clone(),
            restored: spec.restore.is_some(),
            volumes: written(spec),
            done: false,
        }
    }

    pub fn is_nothing(&self) -> bool {
        self.dir.is_none() && self.artifacts.is_empty() && self.volumes.is_empty()
    }
}

impl Attempt {
    /// Whether it has, or will have, files that the portal should have and has not. One that never ran has
    /// none; what a host's crash left may be torn.
    pub fn saves(&self) -> bool {
        !self.record.keep.done
            && !self.record.keep.is_nothing()
            && self.start.as_ref().is_some_and(|start| start.boot_id == shim::boot_id())
    }

    /// What there is to keep now.
    pub fn keeping(&self, over: bool, most_bytes: u64) -> Task {
        Task {
            key: self.key(),
            dir: self.dir.clone(),
            keep: self.record.keep.clone(),
            uid: self.record.uid,
            over,
            most_bytes,
        }
    }

    /// The portal has everything of it. Whether its files may be removed: never before this is recorded, or
    /// what a removal that was broken off has left would be handed over in place of the whole.
    pub fn note_kept(&mut self) -> bool {
        self.record.keep.done = true;
        let saved = self.save();
        if let Err(error) = &saved {
            tracing::error!(dir = %self.dir.display(), %error, "an attempt cannot be recorded; its files are asked for again");
        }
        saved.is_ok()
    }

    /// Removes the job's own directory and its volumes.
    pub fn remove_work(&self) {
        for place in ["work", crate::volumes::PLACE] {
            if let Err(error) = remove_tree(&self.dir.join(place))
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(dir = %self.dir.display(), %error, "files of a job are left until it is forgotten");
            }
        }
    }
}

/// One attempt whose files are kept.
#[derive(Debug, Clone)]
pub struct Task {
    pub key: Key,
    /// The attempt's directory, with the job's own in it.
    pub dir: PathBuf,
    pub keep: Keep,
    /// Only what belongs to this user is the job's.
    pub uid: Option<u32>,
    /// Nothing of it runs any more.
    pub over: bool,
    /// No checkpoint is larger.
    pub most_bytes: u64,
}

/// A packed checkpoint.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Packed {
    seq: u64,
    bytes: u64,
    sha256: Vec<u8>,
    files: u64,
    note: String,
    /// It is too large, or has too many files: only its note is sent.
    refused: bool,
    fingerprint: String,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Progress {
    packed: Option<Packed>,
    /// What the portal has.
    sent: Option<String>,
}

fn written(spec: &Spec) -> Vec<Written> {
    let writable = spec.volumes.iter().enumerate().filter(|(_, mount)| mount.writable);
    writable.map(|(index, mount)| Written { volume: mount.volume.clone(), index }).collect()
}

fn failed(error: &io::Error) -> String {
    format!("the files of a job cannot be read: {error}")
}

/// Runs a blocking step.
async fn blocking<T: Send + 'static>(
    step: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(step).await.map_err(|e| e.to_string())?
}

/// Hands over what there is to keep now. What is half done at an error is taken up by the next call.
pub async fn keep(task: Task, channel: Channel) -> Result<(), String> {
    let mut portal = client(channel);
    if let Some(dir) = task.keep.dir.clone() {
        checkpoint(&task, &dir, &mut portal).await?;
    }
    if task.over && !task.keep.artifacts.is_empty() {
        artifacts::keep(&task, &mut portal).await?;
    }
    if task.over {
        volumes::keep(&task, &mut portal).await?;
    }
    Ok(())
}

async fn checkpoint(task: &Task, dir: &str, portal: &mut Portal) -> Result<(), String> {
    let packing = (task.clone(), dir.to_owned());
    let Some(packed) = blocking(move || look(&packing.0, &packing.1)).await? else { return Ok(()) };
    let parcel = Parcel {
        attempt: Some(AttemptId::new(&task.key.job, task.key.number)),
        checkpoint: true,
        path: dir.to_owned(),
        seq: packed.seq,
        bytes: packed.bytes,
        sha256: packed.sha256.clone(),
        files: packed.files,
        note: packed.note.clone(),
        refused: packed.refused,
        ..Parcel::default()
    };
    send(portal, parcel, Source::Path(task.dir.join(PACKED))).await?;
    let at = task.dir.clone();
    blocking(move || {
        put_json(&at.join(PROGRESS), &Progress { packed: None, sent: Some(packed.fingerprint) }, true)
            .map_err(|e| failed(&e))?;
        // It may be a note only.
        let _ = std::fs::remove_file(at.join(PACKED));
        Ok(())
    })
    .await
}

/// The job's own directory. `None`: everything of it was kept, and it was removed.
fn work(task: &Task) -> Result<Option<OwnedFd>, String> {
    match tree::open_root(&task.dir.join("work")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some).map_err(|e| failed(&e)),
    }
}

/// What is at the place of the checkpoint directory.
enum At {
    Dir(OwnedFd),
    Nothing,
    /// Why it cannot be kept.
    Other(&'static str),
}

fn at_place(work: &OwnedFd, dir: &str) -> Result<At, String> {
    let parts: Vec<&str> = dir.split('/').collect();
    let error = match tree::descend(work, &parts, false) {
        Ok(dir) => return Ok(At::Dir(dir)),
        Err(error) => error,
    };
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT) => Ok(At::Nothing),
        // No link is followed.
        Some(Errno::ENOTDIR | Errno::ELOOP) => Ok(At::Other("A file or a link was in its place.")),
        Some(Errno::EACCES) => Ok(At::Other("It cannot be read.")),
        _ => Err(failed(&error)),
    }
}

/// The checkpoint that is to be sent, packed. `None`: there is none, the portal has it, or nothing was ever
/// still.
fn look(task: &Task, dir: &str) -> Result<Option<Packed>, String> {
    let Some(work) = work(task)? else { return Ok(None) };
    let place = at_place(&work, dir)?;
    make_place(&task.dir).map_err(|e| failed(&e))?;
    let progress: Progress = find_json(&task.dir.join(PROGRESS)).unwrap_or_default();
    // While it runs it may be about to be made anew. At the end an older one must not come back for it.
    let empty_counts = task.over && (task.keep.restored || progress.sent.is_some());
    match place {
        At::Dir(root) => look_into(task, &root, &progress, empty_counts),
        At::Nothing if empty_counts => gone(task, &work, &progress),
        At::Other(why) if task.over => note(task, &progress, &format!("{why} {UNKEPT}")),
        At::Nothing | At::Other(_) => Ok(None),
    }
}

fn look_into(
    task: &Task,
    root: &OwnedFd,
    progress: &Progress,
    empty_counts: bool,
) -> Result<Option<Packed>, String> {
    for _ in 0..LOOKS {
        let began = tree::file_clock();
        let listing = match tree::list(root, task.uid) {
            Ok(listing) => listing,
            Err(ListError::TooMany) => {
                let why = format!("It has more than {CHECKPOINT_ENTRIES} entries. {UNKEPT}");
                return note(task, progress, &why);
            }
            Err(ListError::Io(error)) => return Err(failed(&error.into())),
        };
        let fingerprint = listing.fingerprint();
        let nothing = listing.files() == 0 && !empty_counts;
        if nothing || progress.sent.as_ref() == Some(&fingerprint) {
            return Ok(None);
        }
        if let Some(packed) = progress.packed.as_ref().filter(|p| p.fingerprint == fingerprint) {
            return Ok(Some(packed.clone()));
        }
        // While it runs: what was changed in this very tick cannot be told from what follows in it.
        if task.over || listing.changed() < began {
            match pack(task, root, &listing) {
                Ok(sum) if still(root, task, &fingerprint) => {
                    return packed(task, &listing, sum, (fingerprint, said_of(&listing))).map(Some);
                }
                Ok(_) | Err(PackError::Changed) => {}
                Err(PackError::TooLarge) => {
                    return note(task, progress, &format!("It is too large. {UNKEPT}"));
                }
                Err(PackError::Io(error)) => return Err(failed(&error)),
            }
        }
        std::thread::sleep(BETWEEN_LOOKS);
    }
    // At the end nothing changes any more, so another look will find it so.
    if task.over { Err("a checkpoint was never still".to_owned()) } else { Ok(None) }
}

/// A checkpoint without anything, for a directory that the job removed.
fn gone(task: &Task, work: &OwnedFd, progress: &Progress) -> Result<Option<Packed>, String> {
    if progress.sent.as_deref() == Some(GONE) {
        return Ok(None);
    }
    let listing = Listing::default();
    match pack(task, work, &listing) {
        Ok(sum) => packed(task, &listing, sum, (GONE.to_owned(), GONE.to_owned())).map(Some),
        Err(PackError::Io(error)) => Err(failed(&error)),
        Err(PackError::Changed | PackError::TooLarge) => Err("nothing cannot be packed".to_owned()),
    }
}

fn still(root: &OwnedFd, task: &Task, fingerprint: &str) -> bool {
    tree::list(root, task.uid).is_ok_and(|now| now.fingerprint() == fingerprint)
}

fn pack(task: &Task, root: &OwnedFd, listing: &Listing) -> Result<Sum, PackError> {
    let file = create(&task.dir.join(PACKED))?;
    archive::pack(root, listing, file, task.most_bytes)
}

/// Makes the place for what is on its way. Not the attempt's directory: it may have been forgotten.
fn make_place(dir: &Path) -> io::Result<()> {
    match std::fs::create_dir(dir.join(PLACE)) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

fn create(path: &Path) -> io::Result<File> {
    File::options().write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// What is to be known of a checkpoint.
fn said_of(listing: &Listing) -> String {
    let rule = format!(
        "only the job's own files, directories and links inside them are kept, at paths of plain UTF-8 with at most {} bytes and {} parts",
        JOB_PATHS.bytes, JOB_PATHS.parts
    );
    let left_out = listing.left_out.note(&rule);
    if listing.files() > 0 {
        return left_out;
    }
    [EMPTY, &left_out].join(" ").trim_end().to_owned()
}

/// By the clock since the host's start: a later checkpoint has a higher number.
fn next_seq() -> u64 {
    u64::try_from(shim::boottime_ms()).unwrap_or(0)
}

fn packed(
    task: &Task,
    listing: &Listing,
    sum: Sum,
    (fingerprint, note): (String, String),
) -> Result<Packed, String> {
    let packed = Packed {
        seq: next_seq(),
        bytes: sum.bytes,
        sha256: sum.sha256,
        files: listing.files(),
        note,
        refused: false,
        fingerprint,
    };
    record(task, packed)
}

fn record(task: &Task, packed: Packed) -> Result<Packed, String> {
    let sent = find_json::<Progress>(&task.dir.join(PROGRESS)).and_then(|p| p.sent);
    let progress = Progress { packed: Some(packed.clone()), sent };
    put_json(&task.dir.join(PROGRESS), &progress, true).map_err(|e| failed(&e))?;
    Ok(packed)
}

/// In place of a checkpoint; said once.
fn note(task: &Task, progress: &Progress, why: &str) -> Result<Option<Packed>, String> {
    if progress.sent.as_deref() == Some(why) {
        return Ok(None);
    }
    let packed = Packed {
        seq: next_seq(),
        bytes: 0,
        sha256: Sha256::digest(b"").to_vec(),
        files: 0,
        note: why.to_owned(),
        refused: true,
        fingerprint: why.to_owned(),
    };
    record(task, packed).map(Some)
}

/// Makes the checkpoint directory of an attempt that has not started, with what was fetched for it.
pub fn restore(dir: &Path, spec: &Spec) -> io::Result<()> {
    if spec.checkpoint_dir.is_empty() {
        return Ok(());
    }
    let work = dir.join("work");
    let root = tree::open_root(&work)?;
    let parts: Vec<&str> = spec.checkpoint_dir.split('/').collect();
    if spec.restore.is_some()
        && let Some(place) = inside(&work, &spec.checkpoint_dir)
    {
        // The job's own files in it were there at its first start. No job has run here yet.
        match remove_tree(&place) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    let root = tree::descend(&root, &parts, true)?;
    if spec.restore.is_some() {
        let file = dir.join(RESTORE);
        archive::unpack(io::BufReader::with_capacity(1 << 20, File::open(&file)?), &root)?;
        std::fs::remove_file(file)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use berth_proto::Restore;

    use super::*;

    fn task(dir: &Path, over: bool) -> Task {
        let keep = Keep { dir: Some("a/ckpt".to_owned()), every_s: 5, ..Keep::default() };
        let key = Key { job: "job".to_owned(), number: 1 };
        Task { key, dir: dir.to_owned(), keep, uid: None, over, most_bytes: 1 << 20 }
    }

    #[test]
    fn a_checkpoint_is_packed_once_and_again_when_it_changed() {
        let dir = tempfile::tempdir().unwrap();
        let task = task(dir.path(), false);
        std::fs::create_dir_all(dir.path().join("work")).unwrap();
        assert!(look(&task, "a/ckpt").unwrap().is_none(), "it is not there");
        let ckpt = dir.path().join("work/a/ckpt");
        std::fs::create_dir_all(&ckpt).unwrap();
        assert!(look(&task, "a/ckpt").unwrap().is_none(), "nothing is in it");
        std::fs::write(ckpt.join("epoch"), "1").unwrap();
        let first = look(&task, "a/ckpt").unwrap().unwrap();
        assert_eq!((first.files, first.refused, first.note.as_str()), (1, false, ""));
        let bytes = std::fs::read(dir.path().join(PACKED)).unwrap();
        assert_eq!(Sha256::digest(&bytes).to_vec(), first.sha256);
        // Broken off and taken up: the same one.
        assert_eq!(look(&task, "a/ckpt").unwrap().unwrap().seq, first.seq);
        let done = Progress { packed: None, sent: Some(first.fingerprint) };
        put_json(&dir.path().join(PROGRESS), &done, false).unwrap();
        assert!(look(&task, "a/ckpt").unwrap().is_none(), "the portal has it");
        std::fs::write(ckpt.join("epoch"), "2").unwrap();
        let second = look(&task, "a/ckpt").unwrap().unwrap();
        assert!(second.seq > first.seq);
        // It comes back as it was.
        let next = tempfile::tempdir().unwrap();
        std::fs::create_dir(next.path().join("work")).unwrap();
        make_place(next.path()).unwrap();
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
        make_place(dir.path()).unwrap();
        std::fs::write(dir.path().join("x"), "before").unwrap();
        let root = tree::open_root(dir.path()).unwrap();
        let listing = tree::list(&root, None).unwrap();
        assert!(still(&root, &task, &listing.fingerprint()));
        std::fs::write(dir.path().join("x"), "after it was listed").unwrap();
        assert!(!still(&root, &task, &listing.fingerprint()));
        assert!(matches!(pack(&task, &root, &listing), Err(PackError::Changed)));
    }

    /// As if the portal had it.
    fn sent(dir: &Path, packed: Packed) {
        let progress = Progress { packed: None, sent: Some(packed.fingerprint) };
        put_json(&dir.join(PROGRESS), &progress, false).unwrap();
    }

    #[test]
    fn an_empty_directory_is_kept_as_the_last_word_of_an_attempt() {
        let dir = tempfile::tempdir().unwrap();
        let (running, over) = (task(dir.path(), false), task(dir.path(), true));
        let ckpt = dir.path().join("work/a/ckpt");
        std::fs::create_dir_all(&ckpt).unwrap();
        assert!(look(&over, "a/ckpt").unwrap().is_none(), "nothing was ever kept of it");
        let restored = Task { keep: Keep { restored: true, ..over.keep.clone() }, ..over.clone() };
        assert_eq!(look(&restored, "a/ckpt").unwrap().unwrap().note, EMPTY);
        std::fs::remove_file(dir.path().join(PROGRESS)).unwrap();
        std::fs::write(ckpt.join("epoch"), "1").unwrap();
        sent(dir.path(), look(&over, "a/ckpt").unwrap().unwrap());
        std::fs::remove_file(ckpt.join("epoch")).unwrap();
        assert!(look(&running, "a/ckpt").unwrap().is_none(), "it may be about to be written anew");
        let empty = look(&over, "a/ckpt").unwrap().unwrap();
        assert_eq!((empty.files, empty.refused, empty.note.as_str()), (0, false, EMPTY));
        sent(dir.path(), empty);
        assert!(look(&over, "a/ckpt").unwrap().is_none(), "the portal has it");
        // Nothing of what the job was given comes back either.
        let next = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(next.path().join("work/a/ckpt/sub")).unwrap();
        make_place(next.path()).unwrap();
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
        sent(dir.path(), look(&over, "a/ckpt").unwrap().unwrap());
        std::fs::remove_dir_all(&ckpt).unwrap();
        assert!(look(&running, "a/ckpt").unwrap().is_none());
        let removed = look(&over, "a/ckpt").unwrap().unwrap();
        assert_eq!((removed.files, removed.refused, removed.note.as_str()), (0, false, GONE));
        for part in ["work/a/ckpt", "work/a"] {
            let place = dir.path().join(part);
            // It may not be there.
            let _ = std::fs::remove_dir(&place);
            std::os::unix::fs::symlink("/tmp", &place).unwrap();
            let replaced = look(&over, "a/ckpt").unwrap().unwrap();
            assert!(replaced.refused && replaced.note.contains("checkpoint before"), "{}", replaced.note);
            assert!(look(&running, "a/ckpt").unwrap().is_none());
            std::fs::remove_file(&place).unwrap();
            std::fs::write(&place, "a file").unwrap();
            assert!(look(&over, "a/ckpt").unwrap().unwrap().refused, "{part}");
            std::fs::remove_file(&place).unwrap();
        }
    }

    #[test]
    fn what_an_earlier_build_recorded_is_read() {
        let old = r#"{"dir":"ckpt","every_s":5,"artifacts":["out/**"],"done":false}"#;
        let keep: Keep = serde_json::from_str(old).unwrap();
        assert!(!keep.restored && keep.volumes.is_empty() && keep.dir.as_deref() == Some("ckpt"));
    }

    #[test]
    fn what_is_too_large_is_said_once() {
        let dir = tempfile::tempdir().unwrap();
        let task = Task { most_bytes: 1_000, ..task(dir.path(), true) };
        std::fs::create_dir_all(dir.path().join("work/a/ckpt")).unwrap();
        std::fs::write(dir.path().join("work/a/ckpt/x"), vec![1; 2_000]).unwrap();
        let said = look(&task, "a/ckpt").unwrap().unwrap();
        assert!(said.refused && said.note.contains("too large"));
        put_json(&dir.path().join(PROGRESS), &Progress { packed: None, sent: Some(said.fingerprint) }, false)
            .unwrap();
        assert!(look(&task, "a/ckpt").unwrap().is_none());
    }
}

//! Intake of files from workers in chunks, and checkpoints for new attempts.
//!
//! A file is complete when its hash is checked and all its bytes are in the store. A repeated chunk and a
//! crash of the portal at any step lead to the same result.

use std::ops::Range;

use super::checkpoint_retention::outdated;
use berth_types::files::{FileKind, FileState};
use berth_types::ids::{FileId, JobId, NodeId};
use berth_types::jobs::NewJob;
use berth_types::paths::{ATTEMPT_ARTIFACTS, JOB_ARTIFACTS, JOB_PATHS, NOTE_CHARS};
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use futures::FutureExt;

use super::Files;
use super::staging::ChunkOutcome;
use crate::allowance::{Exceeded, StorageLimits};
use crate::start_inputs::{CheckpointDir, RestoredCheckpoint, StartCheckpoint, check_node};
use berth_foundation::Change;
use berth_store::attempts::{StoredAttempt, StoredOpenRank};
use berth_store::files::StoredFile;
use berth_store::{self as store, StoreError, Tx};

/// The default number of kept checkpoints.
const DEFAULT_KEEP: u32 = 2;
/// Path and number of the note about a job's full number of artifacts. No other file or note has this number.
const FULL_NOTE: (&str, i64) = ("artifacts", 2);
/// The SHA-256 of an empty file.
const EMPTY_SHA256: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// A worker's offer of a file.
#[derive(Debug, Clone)]
pub struct OfferedFile {
    pub job: JobId,
    pub attempt: u32,
    pub kind: FileKind,
    pub path: String,
    pub seq: i64,
    pub bytes: i64,
    /// Lower-case hex.
    pub sha256: String,
    pub files: i64,
    pub note: String,
    /// The worker sends no content, for the reason in the note.
    pub refused: bool,
}

/// The progress of a file: its received bytes, and whether the worker has nothing more to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileProgress {
    pub bytes: u64,
    pub done: bool,
}

const DONE: FileProgress = FileProgress { bytes: 0, done: true };

/// The storage use of a job and its organization, read on first use, and the limits.
pub(super) struct StorageUse {
    limits: StorageLimits,
    /// The files of the job and the bytes of the organization.
    used: Option<(i64, i64)>,
}

impl StorageUse {
    pub(super) fn new(limits: StorageLimits) -> Self {
        Self { limits, used: None }
    }

    async fn used(&mut self, tx: &mut Tx<'_>, row: &StoredFile) -> Result<(i64, i64), StoreError> {
        let used = match self.used {
            Some(used) => used,
            None => {
                let files = store::files::count_for_job(tx, row.job_id).await?;
                (files, store::storage::used_bytes(tx, row.org_id).await?)
            }
        };
        self.used = Some(used);
        Ok(used)
    }
}

/// Adds a note, once in an attempt, about the full number of artifacts of its job.
async fn note_full(tx: &mut Tx<'_>, refused: &StoredFile, id: FileId) -> Result<(), StoreError> {
    let note = format!("The job has {JOB_ARTIFACTS} files, the maximum. Remove some of them.");
    let (path, seq) = FULL_NOTE;
    let row = StoredFile {
        id,
        kind: FileKind::Artifact,
        seq,
        path: path.to_owned(),
        bytes: 0,
        sha256: EMPTY_SHA256.to_owned(),
        files: 0,
        state: FileState::Refused,
        note: Some(note),
        ..refused.clone()
    };
    if store::files::find_same(tx, &row).await?.is_none() {
        store::files::insert(tx, &row).await?;
    }
    Ok(())
}

/// The checkpoint of a stored file, for the restore.
fn restored_checkpoint(file: &StoredFile) -> Result<RestoredCheckpoint, StoreError> {
    let corrupt = |error| StoreError::corrupt("job_files", file.id, "sha256", error);
    Ok(RestoredCheckpoint {
        file: file.id,
        bytes: u64::try_from(file.bytes).unwrap_or(0),
        sha256: hex::decode(&file.sha256).map_err(corrupt)?,
    })
}

fn new_row(attempt: &StoredAttempt, offered: &OfferedFile, id: FileId, now: Timestamp) -> StoredFile {
    StoredFile {
        id,
        org_id: attempt.org_id,
        job_id: attempt.job_id,
        attempt: attempt.number,
        rank: attempt.rank,
        kind: offered.kind,
        seq: offered.seq,
        path: offered.path.clone(),
        bytes: offered.bytes,
        sha256: offered.sha256.clone(),
        files: offered.files,
        state: FileState::Partial,
        note: Some(offered.note.clone()).filter(|note| !note.is_empty()),
        created_at: now,
    }
}

/// Marks partial checkpoints of the same attempt before `next` as gone.
async fn discard_partial(tx: &mut Tx<'_>, next: &StoredFile) -> Result<(), StoreError> {
    let others = store::files::list_checkpoints(tx, next.job_id, next.rank).await?;
    let earlier = others.iter().filter(|o| o.attempt == next.attempt && o.seq < next.seq);
    for other in earlier.filter(|o| o.state == FileState::Partial) {
        store::files::set_state(tx, other.id, FileState::Partial, FileState::Gone, None).await?;
    }
    Ok(())
}

/// The note of a file beyond the storage limit of its organization.
fn storage_full_note(kind: FileKind, exceeded: Exceeded) -> String {
    let consequence = match kind {
        FileKind::Checkpoint => " The next attempt starts from the previous checkpoint, if there is one.",
        FileKind::Artifact => "",
    };
    format!("{}{consequence}", exceeded.text())
}

/// Finds or inserts the row of an offered file of an open attempt. `None` if the file is not accepted.
pub(super) async fn register(
    tx: &mut Tx<'_>,
    attempt: &StoredAttempt,
    offered: &OfferedFile,
    (id, now): (FileId, Timestamp),
    usage: &mut StorageUse,
) -> Result<Option<StoredFile>, StoreError> {
    let mut row = new_row(attempt, offered, id, now);
    if let Some(same) = store::files::find_same(tx, &row).await? {
        if (same.bytes, &same.sha256) == (row.bytes, &row.sha256) {
            return Ok(Some(same));
        }
        let note = Some("The file changed during its transfer.");
        store::files::set_state(tx, same.id, FileState::Partial, FileState::Refused, note).await?;
        return Ok(None);
    }
    let (files, bytes) = usage.used(tx, &row).await?;
    let is_artifact = offered.kind == FileKind::Artifact && !offered.refused;
    // Checkpoints and notes have their own margin above the limit of artifacts.
    let max_files = if is_artifact { JOB_ARTIFACTS } else { JOB_ARTIFACTS + ATTEMPT_ARTIFACTS };
    if usize::try_from(files).unwrap_or(usize::MAX) >= max_files {
        if is_artifact {
            note_full(tx, &row, id).await?;
        }
        return Ok(None);
    }
    if offered.kind == FileKind::Checkpoint {
        discard_partial(tx, &row).await?;
    }
    let total = bytes.saturating_add(row.bytes);
    let exceeded = usage.limits.find_exceeded(tx, row.org_id, total).await?;
    if let Some(exceeded) = exceeded.filter(|_| !offered.refused) {
        row.note = Some(storage_full_note(offered.kind, exceeded));
    }
    let mut stored = row.bytes;
    if exceeded.is_some() || offered.refused {
        row.state = FileState::Refused;
        stored = 0;
    }
    store::files::insert(tx, &row).await?;
    usage.used = Some((files + 1, bytes.saturating_add(stored)));
    Ok(Some(row))
}

/// Marks a whole file complete and outdated checkpoints gone. Returns true if there are gone files to remove.
async fn mark_complete(tx: &mut Tx<'_>, row: &StoredFile) -> Result<bool, StoreError> {
    if !store::files::set_state(tx, row.id, FileState::Partial, FileState::Complete, None).await? {
        return Ok(true);
    }
    if row.kind != FileKind::Checkpoint {
        return Ok(false);
    }
    let Some(job) = store::jobs::find_any(tx, row.job_id).await? else { return Ok(false) };
    let keep = job.spec.checkpoint.as_ref().and_then(|c| c.keep).unwrap_or(DEFAULT_KEEP);
    let rows = store::files::list_checkpoints(tx, row.job_id, row.rank).await?;
    let states: Vec<FileState> = rows.iter().map(|row| row.state).collect();
    let over = outdated(&states, usize::try_from(keep).unwrap_or(usize::MAX));
    for index in &over {
        if let Some(old) = rows.get(*index) {
            store::files::set_state(tx, old.id, old.state, FileState::Gone, None).await?;
        }
    }
    Ok(!over.is_empty())
}

impl Files {
    /// Receives a chunk of a file from the node of its attempt and returns the progress of the file.
    pub async fn receive_chunk(
        &self,
        node: NodeId,
        mut offered: OfferedFile,
        offset: u64,
        data: Vec<u8>,
    ) -> Result<FileProgress, Problem> {
        self.context.disk.check_hand_over()?;
        if JOB_PATHS.check(&offered.path).is_err() {
            return Ok(DONE);
        }
        offered.note = offered.note.chars().filter(|c| !c.is_control()).take(NOTE_CHARS).collect();
        let (job, number) = (offered.job, offered.attempt);
        let now = self.context.now();
        let id: FileId = self.context.new_id(now);
        let limits = StorageLimits::new(&self.context.settings);
        let registering = self.context.db.write(move |tx| {
            let offered = offered.clone();
            async move {
                let attempt = store::attempts::find_open(tx, offered.job, offered.attempt, node).await?;
                let Some(attempt) = attempt else { return Ok(None) };
                register(tx, &attempt, &offered, (id, now), &mut StorageUse::new(limits)).await
            }
            .boxed()
        });
        let Some(row) = registering.await? else { return Ok(DONE) };
        if row.state != FileState::Partial {
            return Ok(DONE);
        }
        let object = row.id.to_string();
        let Some(_lock) = self.objects.try_lock(&object) else {
            return Err(Problem::unavailable("Another transfer of the same file is in progress.", 1));
        };
        let total = u64::try_from(row.bytes).unwrap_or(0);
        let sent = data.len() as u64;
        match self.staging.add_chunk(&object, offset, data, total, &row.sha256).await? {
            ChunkOutcome::Partial(bytes) => {
                if sent > 0 && bytes == offset.saturating_add(sent) {
                    self.handovers.record_progress(job, number, node, now);
                }
                return Ok(FileProgress { bytes, done: false });
            }
            ChunkOutcome::HashMismatch => return Ok(FileProgress { bytes: 0, done: false }),
            ChunkOutcome::Whole(_) => {}
        }
        self.objects.finish(&object).await?;
        self.handovers.record_progress(job, number, node, self.context.now());
        let org = row.org_id;
        let sweep = self.context.db.write(move |tx| {
            let row = row.clone();
            async move { mark_complete(tx, &row).await }.boxed()
        });
        if sweep.await? {
            let files = self.clone();
            // The request does not wait for the removal. The hourly round repeats a failed one.
            tokio::spawn(async move { files.sweep_files().await });
        }
        self.context.publish(Change::Job { org, job, event: None });
        Ok(FileProgress { bytes: total, done: true })
    }

    /// Reads a part of a checkpoint, for a node with an open attempt of the same job and rank. It ends with the
    /// file at the latest.
    ///
    /// # Errors
    /// The node has no such attempt, or there is no such complete checkpoint.
    pub async fn read_chunk(
        &self,
        node: NodeId,
        job: JobId,
        attempt: u32,
        file: FileId,
        range: Range<u64>,
    ) -> Result<Vec<u8>, Problem> {
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let attempt = store::attempts::find(&mut tx, job, attempt, node).await?.filter(|a| a.is_open);
        let attempt = attempt.ok_or_else(Problem::not_found)?;
        check_node(&mut tx, attempt.org_id, node).await?;
        let row = store::files::find(&mut tx, attempt.org_id, job, file).await?;
        drop(conn);
        let fits = |row: &StoredFile| {
            row.kind == FileKind::Checkpoint && row.state == FileState::Complete && row.rank == attempt.rank
        };
        let row = row.filter(fits).ok_or_else(Problem::not_found)?;
        let total = u64::try_from(row.bytes).unwrap_or(0);
        let end = range.end.min(total);
        Ok(self.objects.read_piece(&row.id.to_string(), range.start.min(end)..end).await?.to_vec())
    }

    /// The directory of a rank's checkpoints and the newest one.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn find_start_checkpoint(
        &self,
        tx: &mut Tx<'_>,
        row: &StoredOpenRank,
        submission: &NewJob,
    ) -> Result<StartCheckpoint, StoreError> {
        let checkpoint = submission.checkpoint.as_ref();
        let Some((path, every_s)) = checkpoint.and_then(|c| Some((c.dir.clone()?, c.every_s))) else {
            return Ok(StartCheckpoint::Unused);
        };
        let saving = store::attempts::list_saving(tx, row.job_id, row.number).await?;
        if self.handovers.awaited(self.context.live.connected()).includes_any(&saving, self.context.now()) {
            return Ok(StartCheckpoint::Awaited);
        }
        let checkpoints = store::files::list_checkpoints(tx, row.job_id, row.rank).await?;
        let newest = checkpoints.iter().find(|c| c.state == FileState::Complete);
        let restored = newest.map(restored_checkpoint).transpose()?;
        let dir = CheckpointDir { path, every_s: every_s.unwrap_or(0) };
        Ok(StartCheckpoint::Ready(dir, restored))
    }
}

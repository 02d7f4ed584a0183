//! What workers hand over, piece by piece, and what an attempt begins with.
//!
//! A file counts from the moment at which all of it is in the store and its hash was checked. A piece that
//! comes again, and a portal that died at any step, lead to the same end.

use super::checkpoint_retention::outdated;
use berth_proto as proto;
use berth_types::files::{Checkpoint, FileKind, FileState};
use berth_types::ids::{FileId, JobId, NodeId, OrgId};
use berth_types::jobs::NewJob;
use berth_types::paths::{ATTEMPT_ARTIFACTS, JOB_ARTIFACTS, JOB_PATHS, NOTE_CHARS};
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use futures::FutureExt;
use serde::Deserialize;

use super::Files;
use super::staging::Taken;
use berth_foundation::Change;
use berth_store::attempts::{AttemptRow, OpenRow};
use berth_store::files::FileRow;
use berth_store::{self as store, StoreError, Tx};

/// Checkpoints that are kept when the job does not say.
const USUALLY_KEPT: u32 = 2;
/// Where it is said that a job has as many artifacts as it may. No file, and no note of a worker's, has this number.
const FULL: (&str, i64) = ("artifacts", 2);
/// SHA-256 of nothing.
const NOTHING: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// A file as a worker offers it.
#[derive(Debug, Clone)]
pub struct Offered {
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
    /// There is nothing to come, and the note says why.
    pub refused: bool,
}

/// How far a file has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    pub bytes: u64,
    pub done: bool,
}

const DONE: Kept = Kept { bytes: 0, done: true };

/// What of a submission is about checkpoints.
#[derive(Deserialize)]
struct Wanted {
    #[serde(default)]
    checkpoint: Option<Checkpoint>,
}

/// What a job and its organization have, read when it is first needed, and what they may have.
pub(super) struct Room {
    limit: i64,
    /// Files of the job and bytes of the organization.
    used: Option<(i64, i64)>,
}

impl Room {
    pub(super) fn new(limit: i64) -> Self {
        Self { limit, used: None }
    }

    async fn used(&mut self, tx: &mut Tx<'_>, row: &FileRow) -> Result<(i64, i64), StoreError> {
        let used = match self.used {
            Some(used) => used,
            None => {
                let files = store::files::count_of(tx, &row.job_id).await?;
                (files, store::files::bytes_of(tx, &row.org_id).await?)
            }
        };
        self.used = Some(used);
        Ok(used)
    }
}

/// Says once in an attempt that its job has no room for more artifacts.
async fn say_full(tx: &mut Tx<'_>, like: &FileRow, id: FileId) -> Result<(), StoreError> {
    let note = format!("The job has {JOB_ARTIFACTS} files, and no more are kept; remove some.");
    let (path, seq) = FULL;
    let row = FileRow {
        id: id.to_string(),
        kind: FileKind::Artifact.name().to_owned(),
        seq,
        path: path.to_owned(),
        bytes: 0,
        sha256: NOTHING.to_owned(),
        files: 0,
        state: FileState::Refused.name().to_owned(),
        note: Some(note),
        ..like.clone()
    };
    if store::files::find_same(tx, &row).await?.is_none() {
        store::files::insert(tx, &row).await?;
    }
    Ok(())
}

fn new_row(attempt: &AttemptRow, offered: &Offered, id: FileId, now: Timestamp) -> FileRow {
    FileRow {
        id: id.to_string(),
        org_id: attempt.org_id.clone(),
        job_id: attempt.job_id.clone(),
        attempt: attempt.number,
        rank: attempt.rank,
        kind: offered.kind.name().to_owned(),
        seq: offered.seq,
        path: offered.path.clone(),
        bytes: offered.bytes,
        sha256: offered.sha256.clone(),
        files: offered.files,
        state: FileState::Partial.name().to_owned(),
        note: Some(offered.note.clone()).filter(|note| !note.is_empty()),
        created_at: now.micros(),
    }
}

/// A checkpoint that was never handed over whole makes room for the next.
async fn give_up_partial(tx: &mut Tx<'_>, next: &FileRow) -> Result<(), StoreError> {
    let others = store::files::list_checkpoints(tx, &next.job_id, next.rank).await?;
    let left = others.iter().filter(|o| o.attempt == next.attempt && o.seq < next.seq);
    for other in left.filter(|o| o.state == FileState::Partial.name()) {
        store::files::set_state(tx, &other.id, FileState::Partial, FileState::Gone, None).await?;
    }
    Ok(())
}

/// Why a file does not fit into what its organization may have.
fn storage_full(kind: FileKind, limit: i64) -> String {
    let instead = match kind {
        FileKind::Checkpoint => " A next attempt begins with the checkpoint before, if there is one.",
        FileKind::Artifact => "",
    };
    format!("The organization's {} GiB for files are used up; remove some.{instead}", limit >> 30)
}

/// The row of an offered file of an open attempt: the one that is there, or a new one. `None`: nothing of it is
/// taken.
pub(super) async fn enter(
    tx: &mut Tx<'_>,
    attempt: &AttemptRow,
    offered: &Offered,
    (id, now): (FileId, Timestamp),
    room: &mut Room,
) -> Result<Option<FileRow>, StoreError> {
    let mut row = new_row(attempt, offered, id, now);
    if let Some(same) = store::files::find_same(tx, &row).await? {
        if (same.bytes, &same.sha256) == (row.bytes, &row.sha256) {
            return Ok(Some(same));
        }
        let note = Some("It was changed while it was being kept.");
        store::files::set_state(tx, &same.id, FileState::Partial, FileState::Refused, note).await?;
        return Ok(None);
    }
    let (files, bytes) = room.used(tx, &row).await?;
    let artifact = offered.kind == FileKind::Artifact && !offered.refused;
    // Checkpoints and notes have room of their own.
    let most = if artifact { JOB_ARTIFACTS } else { JOB_ARTIFACTS + ATTEMPT_ARTIFACTS };
    if usize::try_from(files).unwrap_or(usize::MAX) >= most {
        if artifact {
            say_full(tx, &row, id).await?;
        }
        return Ok(None);
    }
    if offered.kind == FileKind::Checkpoint {
        give_up_partial(tx, &row).await?;
    }
    let too_much = bytes.saturating_add(row.bytes) > room.limit;
    if too_much && !offered.refused {
        row.note = Some(storage_full(offered.kind, room.limit));
    }
    let mut stored = row.bytes;
    if too_much || offered.refused {
        row.state = FileState::Refused.name().to_owned();
        stored = 0;
    }
    store::files::insert(tx, &row).await?;
    room.used = Some((files + 1, bytes.saturating_add(stored)));
    Ok(Some(row))
}

/// A whole file counts now; what it makes out of date is given up. Says whether anything is.
async fn complete(tx: &mut Tx<'_>, row: &FileRow) -> Result<bool, StoreError> {
    if !store::files::set_state(tx, &row.id, FileState::Partial, FileState::Complete, None).await? {
        return Ok(true);
    }
    if row.kind != FileKind::Checkpoint.name() {
        return Ok(false);
    }
    let job: JobId = row.job_id.parse().map_err(|_| StoreError::Corrupt(row.job_id.clone()))?;
    let Some(job) = store::jobs::find_any(tx, job).await? else { return Ok(false) };
    let Wanted { checkpoint } =
        serde_json::from_str(&job.spec).map_err(|_| StoreError::Corrupt(job.id.clone()))?;
    let keep = checkpoint.and_then(|c| c.keep).unwrap_or(USUALLY_KEPT);
    let rows = store::files::list_checkpoints(tx, &row.job_id, row.rank).await?;
    let states: Vec<FileState> =
        rows.iter().map(|r| FileState::parse(&r.state).unwrap_or(FileState::Gone)).collect();
    let over = outdated(&states, usize::try_from(keep).unwrap_or(usize::MAX));
    for index in &over {
        if let (Some(old), Some(state)) = (rows.get(*index), states.get(*index)) {
            store::files::set_state(tx, &old.id, *state, FileState::Gone, None).await?;
        }
    }
    Ok(!over.is_empty())
}

impl Files {
    /// Takes a piece of a file from the node that has its attempt, and says where to go on.
    pub async fn keep_piece(
        &self,
        node: NodeId,
        mut offered: Offered,
        offset: u64,
        data: Vec<u8>,
    ) -> Result<Kept, Problem> {
        if JOB_PATHS.check(&offered.path).is_err() {
            return Ok(DONE);
        }
        offered.note = offered.note.chars().filter(|c| !c.is_control()).take(NOTE_CHARS).collect();
        let (job, number) = (offered.job, offered.attempt);
        let now = self.context.now();
        let (id, limit): (FileId, i64) = (self.context.new_id(now), self.context.settings.org_storage_bytes);
        let entering = self.context.db.write(move |tx| {
            let offered = offered.clone();
            async move {
                let attempt = store::attempts::find(tx, offered.job, offered.attempt, node).await?;
                let Some(attempt) = attempt.filter(|a| a.is_open) else { return Ok(None) };
                enter(tx, &attempt, &offered, (id, now), &mut Room::new(limit)).await
            }
            .boxed()
        });
        let Some(row) = entering.await? else { return Ok(DONE) };
        if row.state != FileState::Partial.name() {
            return Ok(DONE);
        }
        let Some(_claim) = self.objects.claim(&row.id) else {
            return Err(Problem::unavailable("The same file is being written.", 1));
        };
        let total = u64::try_from(row.bytes).unwrap_or(0);
        let sent = data.len() as u64;
        match self.staging.take_piece(&row.id, offset, data, total, &row.sha256).await? {
            Taken::Part(bytes) => {
                if sent > 0 && bytes == offset.saturating_add(sent) {
                    self.handovers.note(job, number, node, now);
                }
                return Ok(Kept { bytes, done: false });
            }
            Taken::Spoilt => return Ok(Kept { bytes: 0, done: false }),
            Taken::Whole(_) => {}
        }
        self.objects.finish(&row.id).await?;
        self.handovers.note(job, number, node, self.context.now());
        let (job, org) = (row.job_id.parse::<JobId>(), row.org_id.parse::<OrgId>());
        let sweep = self.context.db.write(move |tx| {
            let row = row.clone();
            async move { complete(tx, &row).await }.boxed()
        });
        if sweep.await? {
            let files = self.clone();
            // Nobody waits for it, and the next look does what this one could not.
            tokio::spawn(async move { files.sweep_files().await });
        }
        if let (Ok(job), Ok(org)) = (job, org) {
            self.context.publish(Change::Job { org, job, event: None });
        }
        Ok(Kept { bytes: total, done: true })
    }

    /// A piece of a checkpoint, for a node that has a later attempt of its job.
    pub async fn give_piece(
        &self,
        node: NodeId,
        job: JobId,
        attempt: u32,
        file: FileId,
        offset: u64,
    ) -> Result<Vec<u8>, Problem> {
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let here = store::attempts::find(&mut tx, job, attempt, node).await?.filter(|a| a.is_open);
        let here = here.ok_or_else(Problem::not_found)?;
        let org = here.org_id.parse().map_err(|_| Problem::internal())?;
        let row = store::files::find(&mut tx, org, job, file).await?;
        drop(conn);
        let fits = |row: &FileRow| {
            row.kind == FileKind::Checkpoint.name()
                && row.state == FileState::Complete.name()
                && row.rank == here.rank
        };
        let row = row.filter(fits).ok_or_else(Problem::not_found)?;
        let total = u64::try_from(row.bytes).unwrap_or(0);
        let end = offset.saturating_add(proto::PIECE as u64).min(total);
        Ok(self.objects.read_piece(&row.id, offset.min(end)..end).await?.to_vec())
    }

    /// Adds to an attempt's specification what is about files. False: it is not told yet, because it waits
    /// for what the attempt before it still has to hand over.
    pub async fn add_kept(
        &self,
        tx: &mut Tx<'_>,
        row: &OpenRow,
        submission: &NewJob,
        spec: &mut proto::Spec,
    ) -> Result<bool, StoreError> {
        spec.artifacts = submission.artifacts.clone();
        let checkpoint = submission.checkpoint.as_ref();
        let Some((dir, every_s)) = checkpoint.and_then(|c| Some((c.dir.clone()?, c.every_s))) else {
            return Ok(true);
        };
        let saving = store::attempts::list_saving(tx, &row.job_id, row.number).await?;
        if self.handovers.awaited(self.context.live.connected()).any(&saving, self.context.now()) {
            return Ok(false);
        }
        let checkpoints = store::files::list_checkpoints(tx, &row.job_id, row.rank).await?;
        let newest = checkpoints.into_iter().find(|c| c.state == FileState::Complete.name());
        spec.restore = newest.map(|file| proto::Restore {
            bytes: u64::try_from(file.bytes).unwrap_or(0),
            sha256: digits(&file.sha256),
            file: file.id,
        });
        // What the tenant sets overrides what is set for it.
        spec.env.entry("BERTH_CHECKPOINT_DIR".to_owned()).or_insert_with(|| dir.clone());
        spec.checkpoint_dir = dir;
        spec.checkpoint_every_s = every_s.unwrap_or(0);
        Ok(true)
    }
}

/// Bytes from their hexadecimal digits.
pub fn digits(text: &str) -> Vec<u8> {
    let pair = |at: usize| text.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
    (0..text.len()).step_by(2).filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_bytes() {
        assert_eq!(digits("00ff10"), [0, 255, 16]);
    }
}

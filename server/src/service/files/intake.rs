//! What workers hand over, piece by piece, and what an attempt begins with.
//!
//! A file counts from the moment at which all of it is in the store and its hash was checked. A piece that
//! comes again, and a portal that died at any step, lead to the same end.

use std::collections::HashSet;

use berth_core::admission::check_path;
use berth_core::keeping::outdated;
use berth_proto as proto;
use berth_types::files::{Checkpoint, FileKind, FileState};
use berth_types::ids::{FileId, JobId, NodeId, OrgId};
use berth_types::jobs::NewJob;
use berth_types::problems::Problem;
use futures::FutureExt;
use serde::Deserialize;

use super::staging::Taken;
use crate::portal::Portal;
use crate::store::attempts::{AttemptRow, OpenRow};
use crate::store::files::FileRow;
use crate::store::{self, StoreError, Tx};

/// Files that one job may have, over all its attempts.
const MOST_FILES: i64 = 10_000;
/// Checkpoints that are kept when the job does not say.
const USUALLY_KEPT: u32 = 2;
/// Bytes of a note.
const MOST_NOTE: usize = 300;
/// How long an attempt waits for what the one before still has to hand over, in seconds: while that one's
/// node is there, and when it is not.
const WAIT_S: i64 = 600;
const WAIT_LOST_S: i64 = 60;

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

/// The row of an offered file: the one that is there, or a new one. `None`: nothing of it is taken.
async fn enter(
    tx: &mut Tx<'_>,
    node: NodeId,
    offered: &Offered,
    id: FileId,
    limit: i64,
    now: i64,
) -> Result<Option<FileRow>, StoreError> {
    let attempt = store::attempts::find(tx, offered.job, offered.attempt, node).await?;
    let Some(attempt) = attempt.filter(|a| a.is_open) else { return Ok(None) };
    let mut row = FileRow {
        id: id.to_string(),
        org_id: attempt.org_id,
        job_id: attempt.job_id,
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
        created_at: now,
    };
    if let Some(same) = store::files::find_same(tx, &row).await? {
        if (same.bytes, &same.sha256) == (row.bytes, &row.sha256) {
            return Ok(Some(same));
        }
        let note = Some("It was changed while it was being kept.");
        store::files::set_state(tx, &same.id, FileState::Partial, FileState::Refused, note).await?;
        return Ok(None);
    }
    if store::files::count_of(tx, &row.job_id).await? >= MOST_FILES {
        return Ok(None);
    }
    // One that was never handed over whole makes room for the next.
    if offered.kind == FileKind::Checkpoint {
        let others = store::files::list_checkpoints(tx, &row.job_id, row.rank).await?;
        let left = others.iter().filter(|o| o.attempt == row.attempt && o.seq < row.seq);
        for other in left.filter(|o| o.state == FileState::Partial.name()) {
            store::files::set_state(tx, &other.id, FileState::Partial, FileState::Gone, None).await?;
        }
    }
    if offered.refused {
        row.state = FileState::Refused.name().to_owned();
    } else if store::files::bytes_of(tx, &row.org_id).await?.saturating_add(row.bytes) > limit {
        row.state = FileState::Refused.name().to_owned();
        let note = format!("The organization's {} GiB for files are used up; remove some.", limit >> 30);
        row.note = Some(note);
    }
    store::files::insert(tx, &row).await?;
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

impl Portal {
    /// Takes a piece of a file from the node that has its attempt, and says where to go on.
    pub async fn keep_piece(
        &self,
        node: NodeId,
        mut offered: Offered,
        offset: u64,
        data: Vec<u8>,
    ) -> Result<Kept, Problem> {
        if check_path(&offered.path).is_err() {
            return Ok(DONE);
        }
        offered.note = offered.note.chars().filter(|c| !c.is_control()).take(MOST_NOTE).collect();
        let now = self.now();
        let (id, limit): (FileId, i64) = (self.new_id(now), self.settings.org_storage_bytes);
        let entering = self.db.write(move |tx| {
            let offered = offered.clone();
            async move { enter(tx, node, &offered, id, limit, now.micros()).await }.boxed()
        });
        let Some(row) = entering.await? else { return Ok(DONE) };
        if row.state != FileState::Partial.name() {
            return Ok(DONE);
        }
        let Some(_claim) = self.depot.claim(&row.id) else {
            return Err(Problem::unavailable("The same file is being written.", 1));
        };
        let total = u64::try_from(row.bytes).unwrap_or(0);
        match self.take_piece(&row.id, offset, data, total, &row.sha256).await? {
            Taken::Part(bytes) => return Ok(Kept { bytes, done: false }),
            Taken::Spoilt => return Ok(Kept { bytes: 0, done: false }),
            Taken::Whole(_) => {}
        }
        self.depot.finish(&row.id).await?;
        let (job, org) = (row.job_id.parse::<JobId>(), row.org_id.parse::<OrgId>());
        let sweep = self.db.write(move |tx| {
            let row = row.clone();
            async move { complete(tx, &row).await }.boxed()
        });
        if sweep.await? {
            let portal = self.clone();
            // Nobody waits for it, and the next look does what this one could not.
            tokio::spawn(async move { portal.sweep_files().await });
        }
        if let (Ok(job), Ok(org)) = (job, org) {
            self.tell_change(org, None, job).await;
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
        let mut conn = self.db.read().await?;
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
        Ok(self.depot.read_piece(&row.id, offset.min(end)..end).await?.to_vec())
    }

    /// Adds to an attempt's specification what is about files. False: it is not told yet, because it waits
    /// for what the attempt before it still has to hand over.
    pub(crate) async fn add_kept(
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
        if waits(&saving, self.now().micros(), &self.live.connected()) {
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

/// Whether one of these ranks is still expected to hand something over.
pub(crate) fn waits(saving: &[AttemptRow], now: i64, connected: &HashSet<NodeId>) -> bool {
    saving.iter().any(|rank| {
        let there = rank.node_id.parse::<NodeId>().is_ok_and(|node| connected.contains(&node));
        let wait_s = if there { WAIT_S } else { WAIT_LOST_S };
        now - rank.ended_at.unwrap_or(0) < wait_s * 1_000_000
    })
}

/// Bytes from their hexadecimal digits.
pub(crate) fn digits(text: &str) -> Vec<u8> {
    let pair = |at: usize| text.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
    (0..text.len()).step_by(2).filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_waits_for_the_one_before_but_not_for_ever() {
        let node = NodeId::from_uuid(uuid::Uuid::from_u128(1));
        let rank = AttemptRow {
            job_id: String::new(),
            number: 1,
            rank: 0,
            org_id: String::new(),
            node_id: node.to_string(),
            known: true,
            running: true,
            ended: true,
            outcome: None,
            ended_at: Some(0),
            clean: true,
            log_bytes: None,
            is_open: true,
            evidence: None,
            saving: true,
            progress: String::new(),
            image_digest: None,
        };
        let (here, gone) = (HashSet::from([node]), HashSet::new());
        let at = |s: i64| s * 1_000_000;
        assert!(!waits(&[], 0, &here));
        let ranks = [rank];
        assert!(waits(&ranks, at(599), &here) && !waits(&ranks, at(600), &here));
        assert!(waits(&ranks, at(59), &gone) && !waits(&ranks, at(60), &gone));
    }

    #[test]
    fn digits_are_bytes() {
        assert_eq!(digits("00ff10"), [0, 255, 16]);
    }
}

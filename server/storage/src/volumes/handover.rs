//! Exchange of volume files with workers, in both directions.
//!
//! Files arrive one by one and do not change the volume. The list of files arrives last. It becomes the next
//! version of the volume, or is refused as a whole. A repeated chunk and a crash of the portal at any step
//! lead to the same result.

use std::ops::Range;

use berth_types::files::FileState;
use berth_types::ids::{FileId, JobId, NodeId, VolumeId};
use berth_types::paths::{NOTE_CHARS, VOLUME_FILES, VOLUME_PATHS};
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use berth_types::volumes::BlobKind;
use futures::FutureExt;

use super::Volumes;
use super::handover_lists::{HandedOverFile, ListError, UNREADABLE, apply_list, check_list, shortened};
use super::refusals::{RefusedHandOver, publish, refuse};
use super::uses::TOO_LATE;
use crate::allowance::{Exceeded, StorageLimits};
use crate::files::{ChunkOutcome, FileProgress};
use crate::start_inputs::check_node;
use berth_foundation::Change;
use berth_store::attempts::StoredAttempt;
use berth_store::volumes::StoredVolumeFile;
use berth_store::volumes::blobs::StoredBlob;
use berth_store::volumes::uses::StoredVolumeUse;
use berth_store::{self as store, StoreError, Tx};

/// Files in one message to a worker.
const FILES_PER_MESSAGE: i64 = 1_000;
/// The largest list in bytes: more than the list of a full volume with the longest paths.
const MAX_LIST_BYTES: i64 = 16 << 20;
const DONE: FileProgress = FileProgress { bytes: 0, done: true };

/// A worker's offer of a file or a list for a volume.
#[derive(Debug, Clone)]
pub struct OfferedVolumeFile {
    pub job: JobId,
    pub attempt: u32,
    pub volume: VolumeId,
    /// The path inside the volume.
    pub path: String,
    pub bytes: i64,
    /// Lower-case hex.
    pub sha256: String,
    /// The content is the list of all files of the next version.
    pub listing: bool,
    pub note: String,
    /// The worker sends no content, for the reason in the note.
    pub refused: bool,
}

impl OfferedVolumeFile {
    const fn write_key(&self) -> (JobId, u32, VolumeId) {
        (self.job, self.attempt, self.volume)
    }
}

/// The checked part of an offer.
pub(super) struct CheckedOffer<'a> {
    pub path: &'a str,
    pub bytes: i64,
    pub listing: bool,
}

/// The note of a hand-over that an offer takes beyond a limit. `count` is the number of files that the
/// attempt has offered before. `exceeded` is the storage limit that the organization would exceed.
pub(super) fn refusal(
    offer: &CheckedOffer<'_>,
    max_bytes: i64,
    count: i64,
    exceeded: Option<Exceeded>,
) -> Option<String> {
    let max = if offer.listing { MAX_LIST_BYTES } else { max_bytes };
    if offer.bytes > max {
        Some(format!(
            "{} is larger than the limit of the volume. No new version was created.",
            shortened(offer.path)
        ))
    } else if count > i64::try_from(VOLUME_FILES).unwrap_or(i64::MAX) {
        Some(format!("A volume has at most {VOLUME_FILES} files. No new version was created."))
    } else {
        exceeded.map(|exceeded| format!("{} No new version was created.", exceeded.text()))
    }
}

/// Finds the attempt and its volume use without a result of its hand-over.
async fn find_open(
    tx: &mut Tx<'_>,
    node: NodeId,
    (job, number, volume): (JobId, u32, VolumeId),
) -> Result<Option<(StoredAttempt, StoredVolumeUse)>, StoreError> {
    let attempt = store::attempts::find(tx, job, number, node).await?;
    let Some(attempt) = attempt.filter(|a| a.is_open) else { return Ok(None) };
    let given = store::volumes::uses::find(tx, attempt.job_id, attempt.number, volume).await?;
    let open = |row: &StoredVolumeUse| row.writable && row.kept_version.is_none() && row.note.is_none();
    Ok(given.filter(open).map(|given| (attempt, given)))
}

/// Finds the attempt and its volume use that still accepts a hand-over.
pub(super) async fn find_write(
    tx: &mut Tx<'_>,
    node: NodeId,
    key: (JobId, u32, VolumeId),
) -> Result<Option<(StoredAttempt, StoredVolumeUse)>, StoreError> {
    Ok(find_open(tx, node, key).await?.filter(|(_, given)| !given.abandoned))
}

/// The row of an offer; `None` if no content is expected, perhaps because of a refusal.
type Registered = (Option<StoredBlob>, Option<RefusedHandOver>);

/// Finds or inserts the row of an offer.
async fn register(
    tx: &mut Tx<'_>,
    node: NodeId,
    offered: &OfferedVolumeFile,
    (id, limits, now): (FileId, StorageLimits, Timestamp),
) -> Result<Registered, StoreError> {
    const UNEXPECTED: Registered = (None, None);
    let Some((attempt, given)) = find_open(tx, node, offered.write_key()).await? else {
        return Ok(UNEXPECTED);
    };
    let Some(volume) = store::volumes::find_any(tx, offered.volume).await? else { return Ok(UNEXPECTED) };
    let refused = match (given.abandoned, offered.refused) {
        (true, _) => Some(TOO_LATE),
        (false, true) => Some(offered.note.as_str()),
        (false, false) => None,
    };
    if let Some(note) = refused {
        return Ok((None, refuse(tx, &given, &volume.name, note, now).await?));
    }
    let row = StoredBlob {
        id,
        org_id: attempt.org_id,
        volume_id: volume.id,
        kind: if offered.listing { BlobKind::Listing } else { BlobKind::File },
        path: String::new(),
        job_id: attempt.job_id.to_string(),
        attempt: attempt.number,
        bytes: offered.bytes,
        sha256: offered.sha256.clone(),
        tag: String::new(),
        state: FileState::Partial,
        touched_at: now,
    };
    if let Some(known) = store::volumes::blobs::find_handed_over(tx, &row).await? {
        return Ok((Some(known), None));
    }
    if !offered.listing
        && store::volumes::find_content(tx, volume.id, &row.sha256, row.bytes).await?.is_some()
    {
        return Ok(UNEXPECTED);
    }
    let count = store::volumes::blobs::count_handed_over(tx, volume.id, attempt.job_id, row.attempt).await?;
    let stored = store::storage::used_bytes(tx, row.org_id).await?;
    let exceeded = limits.find_exceeded(tx, row.org_id, stored.saturating_add(row.bytes)).await?;
    let offer = CheckedOffer { path: &offered.path, bytes: row.bytes, listing: offered.listing };
    let note = refusal(&offer, volume.max_bytes, count, exceeded);
    if let Some(note) = note {
        return Ok((None, refuse(tx, &given, &volume.name, &note, now).await?));
    }
    store::volumes::blobs::insert(tx, &row).await?;
    Ok((Some(row), None))
}

/// A file of a version of a volume, for a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionFile {
    pub path: String,
    pub file: FileId,
    pub bytes: u64,
    pub sha256: Vec<u8>,
    pub executable: bool,
}

/// Applies a received list once and records the result of the hand-over. Returns the event of a refusal.
async fn settle(
    tx: &mut Tx<'_>,
    node: NodeId,
    offered: &OfferedVolumeFile,
    (blob, list): (FileId, Option<Vec<HandedOverFile>>),
    now: Timestamp,
) -> Result<Option<RefusedHandOver>, StoreError> {
    store::volumes::blobs::give_up(tx, blob).await?;
    let Some((_, given)) = find_open(tx, node, offered.write_key()).await? else { return Ok(None) };
    let Some(volume) = store::volumes::find_any(tx, offered.volume).await? else { return Ok(None) };
    if given.abandoned {
        return refuse(tx, &given, &volume.name, TOO_LATE, now).await;
    }
    let mut notes = vec![offered.note.clone()];
    let checked =
        list.ok_or_else(|| UNREADABLE.to_owned()).and_then(|list| check_list(list, volume.max_bytes));
    let applied = match checked {
        Ok((listed, left_out)) => {
            notes.push(left_out.note(&format!(
                "paths in a volume have at most {} bytes and {} parts",
                VOLUME_PATHS.bytes, VOLUME_PATHS.parts
            )));
            apply_list(tx, &volume, &given, &listed, now).await
        }
        Err(note) => Err(ListError::Refused(note)),
    };
    let version = match applied {
        Ok(version) => version,
        Err(ListError::Refused(note)) => return refuse(tx, &given, &volume.name, &note, now).await,
        Err(ListError::Store(error)) => return Err(error),
    };
    notes.retain(|note| !note.is_empty());
    let note = notes.join(" ");
    let note = Some(note.as_str()).filter(|note| !note.is_empty());
    store::volumes::uses::set_result(tx, &given, Some(version), note).await?;
    Ok(None)
}

impl Volumes {
    /// Receives a chunk of a hand-over to a volume from the node of the attempt. Returns the progress of the
    /// file.
    pub async fn receive_volume_chunk(
        &self,
        node: NodeId,
        mut offered: OfferedVolumeFile,
        offset: u64,
        data: Vec<u8>,
    ) -> Result<FileProgress, Problem> {
        self.context.disk.check_hand_over()?;
        offered.note = offered.note.chars().filter(|c| !c.is_control()).take(NOTE_CHARS).collect();
        let now = self.context.now();
        let input: (FileId, StorageLimits, Timestamp) =
            (self.context.new_id(now), StorageLimits::new(&self.context.settings), now);
        let offer = offered.clone();
        let registering = self.context.db.write(move |tx| {
            let offered = offer.clone();
            async move { register(tx, node, &offered, input).await }.boxed()
        });
        let (row, refused) = registering.await?;
        publish(&self.context, refused);
        let Some(row) = row else { return Ok(DONE) };
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
                    self.handovers.record_progress(offered.job, offered.attempt, node, now);
                }
                return Ok(FileProgress { bytes, done: false });
            }
            ChunkOutcome::HashMismatch => return Ok(FileProgress { bytes: 0, done: false }),
            ChunkOutcome::Whole(_) => {}
        }
        if offered.listing {
            self.settle_list(node, offered, row.id, now).await?;
        } else {
            self.objects.finish(&object).await?;
            self.handovers.record_progress(offered.job, offered.attempt, node, self.context.now());
            let completing = self.context.db.write(move |tx| {
                let row = row.clone();
                async move { store::volumes::blobs::complete(tx, row.id, &row.sha256).await }.boxed()
            });
            completing.await?;
        }
        Ok(FileProgress { bytes: total, done: true })
    }

    async fn settle_list(
        &self,
        node: NodeId,
        offered: OfferedVolumeFile,
        blob: FileId,
        now: Timestamp,
    ) -> Result<(), Problem> {
        let list = (self.decode_list)(&self.staging.staged_bytes(&blob.to_string()).await?);
        let job = offered.job;
        let settling = self.context.db.write(move |tx| {
            let (offered, list) = (offered.clone(), list.clone());
            async move { settle(tx, node, &offered, (blob, list), now).await }.boxed()
        });
        let refused = settling.await?;
        self.tidy_volumes_soon();
        if refused.is_some() {
            publish(&self.context, refused);
            return Ok(());
        }
        let mut conn = self.context.db.read().await?;
        let row = store::jobs::find_any(&mut conn.tx(), job).await?;
        drop(conn);
        if let Some(row) = row {
            self.context.publish(Change::Job { org: row.org_id, job, event: None });
        }
        Ok(())
    }

    /// The assigned volume version of an open attempt on this node.
    async fn assigned_version(
        &self,
        tx: &mut Tx<'_>,
        node: NodeId,
        (job, attempt): (JobId, u32),
        volume: VolumeId,
    ) -> Result<i64, Problem> {
        let attempt = store::attempts::find(tx, job, attempt, node).await?.filter(|a| a.is_open);
        let attempt = attempt.ok_or_else(Problem::not_found)?;
        check_node(tx, attempt.org_id, node).await?;
        let given = store::volumes::uses::find(tx, attempt.job_id, attempt.number, volume).await?;
        given.map(|given| given.version).ok_or_else(Problem::not_found)
    }

    /// Files of the assigned version after the path `after`, for the node of an open attempt.
    pub async fn list_volume_version(
        &self,
        node: NodeId,
        attempt: (JobId, u32),
        volume: VolumeId,
        after: &str,
    ) -> Result<Vec<VersionFile>, Problem> {
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let version = self.assigned_version(&mut tx, node, attempt, volume).await?;
        let rows = store::volumes::list_version(&mut tx, volume, version, after, FILES_PER_MESSAGE).await?;
        let file = |row: StoredVolumeFile| {
            let sha256 = hex::decode(&row.sha256)
                .map_err(|error| StoreError::corrupt("volume_files", &row.path, "sha256", error))?;
            Ok(VersionFile {
                path: row.path,
                file: row.blob_id,
                bytes: u64::try_from(row.bytes).unwrap_or(0),
                sha256,
                executable: row.executable,
            })
        };
        Ok(rows.into_iter().map(file).collect::<Result<_, StoreError>>()?)
    }

    /// Reads a part of a file of the assigned version, for the node of an open attempt. It ends with the file at
    /// the latest.
    pub async fn read_volume_chunk(
        &self,
        node: NodeId,
        attempt: (JobId, u32),
        volume: VolumeId,
        (file, range): (FileId, Range<u64>),
    ) -> Result<Vec<u8>, Problem> {
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let version = self.assigned_version(&mut tx, node, attempt, volume).await?;
        let row = store::volumes::find_blob(&mut tx, volume, version, file).await?;
        drop(conn);
        let row = row.ok_or_else(Problem::not_found)?;
        let total = u64::try_from(row.bytes).unwrap_or(0);
        let end = range.end.min(total);
        Ok(self.objects.read_piece(&row.blob_id.to_string(), range.start.min(end)..end).await?.to_vec())
    }
}

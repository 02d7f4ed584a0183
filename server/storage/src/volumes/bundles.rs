//! Bundles of small files of one volume: their registration and their known contents. The contents of the
//! volume and the earlier hand-overs are read once for a bundle.

use std::collections::{HashMap, HashSet};

use berth_types::files::FileState;
use berth_types::ids::{FileId, NodeId, VolumeId};
use berth_types::paths::VOLUME_FILES;
use berth_types::time::Timestamp;
use berth_types::volumes::BlobKind;

use super::handover::{CheckedOffer, find_write, refusal};
use super::refusals::{RefusedHandOver, refuse};
use crate::files::{BundleInput, ExpectedIds, OfferedBundle};
use berth_store::attempts::StoredAttempt;
use berth_store::volumes::blobs::StoredBlob;
use berth_store::{self as store, StoreError, Tx};

/// The identity of a content: its hash and its length in bytes.
type ContentKey = (String, i64);

async fn contents(tx: &mut Tx<'_>, volume: VolumeId) -> Result<HashSet<ContentKey>, StoreError> {
    let most = i64::try_from(VOLUME_FILES).unwrap_or(i64::MAX);
    let files = store::volumes::list_below(tx, volume, "", most).await?;
    Ok(files.into_iter().map(|file| (file.sha256, file.bytes)).collect())
}

/// Returns true for each file of a bundle that is in the store or not accepted.
pub async fn known_files(
    tx: &mut Tx<'_>,
    node: NodeId,
    bundle: &OfferedBundle,
    volume: VolumeId,
) -> Result<Vec<bool>, StoreError> {
    let Some((attempt, _)) = find_write(tx, node, (bundle.job, bundle.attempt, volume)).await? else {
        return Ok(vec![true; bundle.files.len()]);
    };
    let mut known = contents(tx, volume).await?;
    let handed = store::volumes::blobs::list_handed_over(tx, volume, attempt.job_id, attempt.number).await?;
    let whole = handed.into_iter().filter(|row| row.state == FileState::Complete);
    known.extend(whole.map(|row| (row.sha256, row.bytes)));
    Ok(bundle.files.iter().map(|file| known.contains(&(file.sha256.clone(), file.bytes))).collect())
}

fn new_row(
    attempt: &StoredAttempt,
    volume: VolumeId,
    (id, now): (FileId, Timestamp),
    content: &ContentKey,
) -> StoredBlob {
    StoredBlob {
        id,
        org_id: attempt.org_id,
        volume_id: volume,
        kind: BlobKind::File,
        path: String::new(),
        job_id: attempt.job_id.to_string(),
        attempt: attempt.number,
        bytes: content.1,
        sha256: content.0.clone(),
        tag: String::new(),
        state: FileState::Partial,
        touched_at: now,
    }
}

/// Registers the files of a bundle. A file beyond a limit refuses the whole hand-over of the attempt, whose event comes
/// with the ids.
pub async fn register_files(
    tx: &mut Tx<'_>,
    node: NodeId,
    bundle: &OfferedBundle,
    volume: VolumeId,
    input: &BundleInput,
) -> Result<(ExpectedIds, Option<RefusedHandOver>), StoreError> {
    let nothing = vec![None; bundle.files.len()];
    let write = find_write(tx, node, (bundle.job, bundle.attempt, volume)).await?;
    let Some((attempt, given)) = write else { return Ok((nothing, None)) };
    let Some(volume) = store::volumes::find_any(tx, volume).await? else { return Ok((nothing, None)) };
    let present = contents(tx, volume.id).await?;
    let handed =
        store::volumes::blobs::list_handed_over(tx, volume.id, attempt.job_id, attempt.number).await?;
    let mut handed: HashMap<ContentKey, Option<FileId>> = handed
        .into_iter()
        .map(|row| ((row.sha256, row.bytes), (row.state == FileState::Partial).then_some(row.id)))
        .collect();
    let mut count =
        store::volumes::blobs::count_handed_over(tx, volume.id, attempt.job_id, attempt.number).await?;
    let mut stored = store::storage::used_bytes(tx, attempt.org_id).await?;
    let mut out = Vec::new();
    for (file, id) in bundle.files.iter().zip(&input.ids) {
        let content = (file.sha256.clone(), file.bytes);
        if present.contains(&content) {
            out.push(None);
            continue;
        }
        if let Some(known) = handed.get(&content) {
            out.push(*known);
            continue;
        }
        let total = stored.saturating_add(file.bytes);
        let exceeded = input.limits.find_exceeded(tx, attempt.org_id, total).await?;
        let offer = CheckedOffer { path: &file.path, bytes: file.bytes, listing: false };
        if let Some(note) = refusal(&offer, volume.max_bytes, count, exceeded) {
            let refused = refuse(tx, &given, &volume.name, &note, input.now).await?;
            return Ok((nothing, refused));
        }
        let row = new_row(&attempt, volume.id, (*id, input.now), &content);
        store::volumes::blobs::insert(tx, &row).await?;
        (count, stored) = (count + 1, total);
        handed.insert(content, Some(row.id));
        out.push(Some(row.id));
    }
    Ok((out, None))
}

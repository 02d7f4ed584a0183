//! Many small files of one volume that a worker hands over at once. What is in the volume, and what came before, is
//! read once for all of them.

use std::collections::{HashMap, HashSet};

use berth_types::ids::{FileId, NodeId};
use berth_types::paths::VOLUME_FILES;
use berth_types::time::Timestamp;

use super::handover::{Offer, refusal, writes};
use crate::files::{Expected, OfferedBundle, Order};
use berth_store::attempts::AttemptRow;
use berth_store::volumes::blobs::BlobRow;
use berth_store::{self as store, StoreError, Tx};

/// A content: its hash and length.
type Content = (String, i64);

async fn contents(tx: &mut Tx<'_>, volume: &str) -> Result<HashSet<Content>, StoreError> {
    let most = i64::try_from(VOLUME_FILES).unwrap_or(i64::MAX);
    let files = store::volumes::list_below(tx, volume, "", most).await?;
    Ok(files.into_iter().map(|file| (file.sha256, file.bytes)).collect())
}

/// Which files of a bundle are here, or are not wanted.
pub async fn known_files(
    tx: &mut Tx<'_>,
    node: NodeId,
    bundle: &OfferedBundle,
    volume: &str,
) -> Result<Vec<bool>, StoreError> {
    let Some((attempt, _)) = writes(tx, node, (bundle.job, bundle.attempt, volume)).await? else {
        return Ok(vec![true; bundle.files.len()]);
    };
    let mut there = contents(tx, volume).await?;
    let handed = store::volumes::blobs::list_handed(tx, volume, &attempt.job_id, attempt.number).await?;
    let whole = handed.into_iter().filter(|row| row.state == "complete");
    there.extend(whole.map(|row| (row.sha256, row.bytes)));
    Ok(bundle.files.iter().map(|file| there.contains(&(file.sha256.clone(), file.bytes))).collect())
}

fn new_row(attempt: &AttemptRow, volume: &str, (id, now): (FileId, Timestamp), content: &Content) -> BlobRow {
    BlobRow {
        id: id.to_string(),
        org_id: attempt.org_id.clone(),
        volume_id: volume.to_owned(),
        kind: "file".to_owned(),
        path: String::new(),
        job_id: attempt.job_id.clone(),
        attempt: attempt.number,
        bytes: content.1,
        sha256: content.0.clone(),
        tag: String::new(),
        state: "partial".to_owned(),
        touched_at: now.micros(),
    }
}

/// Enters the files of a bundle. One that does not fit refuses all that the attempt leaves.
pub async fn enter_files(
    tx: &mut Tx<'_>,
    node: NodeId,
    bundle: &OfferedBundle,
    volume: &str,
    order: &Order,
) -> Result<Expected, StoreError> {
    let nothing = vec![None; bundle.files.len()];
    let writing = writes(tx, node, (bundle.job, bundle.attempt, volume)).await?;
    let Some((attempt, given)) = writing else { return Ok(nothing) };
    let Some(volume) = store::volumes::find_any(tx, volume).await? else { return Ok(nothing) };
    let there = contents(tx, &volume.id).await?;
    let handed = store::volumes::blobs::list_handed(tx, &volume.id, &attempt.job_id, attempt.number).await?;
    let mut handed: HashMap<Content, Option<String>> = handed
        .into_iter()
        .map(|row| ((row.sha256, row.bytes), (row.state == "partial").then_some(row.id)))
        .collect();
    let mut count =
        store::volumes::blobs::count_offered(tx, &volume.id, &attempt.job_id, attempt.number).await?;
    let mut stored = store::files::bytes_of(tx, &attempt.org_id).await?;
    let mut out = Vec::new();
    for (file, id) in bundle.files.iter().zip(&order.ids) {
        let content = (file.sha256.clone(), file.bytes);
        if there.contains(&content) {
            out.push(None);
            continue;
        }
        if let Some(known) = handed.get(&content) {
            out.push(known.clone());
            continue;
        }
        let offer = Offer { path: &file.path, bytes: file.bytes, listing: false };
        if let Some(note) = refusal(&offer, volume.max_bytes, (count, stored), order.limit) {
            store::volumes::uses::settle(tx, &given, None, Some(&note)).await?;
            return Ok(nothing);
        }
        let row = new_row(&attempt, &volume.id, (*id, order.now), &content);
        store::volumes::blobs::insert(tx, &row).await?;
        (count, stored) = (count + 1, stored.saturating_add(file.bytes));
        handed.insert(content, Some(row.id.clone()));
        out.push(Some(row.id));
    }
    Ok(out)
}

//! Many small artifacts of one attempt that a worker hands over at once.

use std::collections::BTreeMap;

use berth_types::files::{FileKind, FileState};
use berth_types::ids::{FileId, JobId, NodeId};
use berth_types::paths::JOB_PATHS;
use berth_types::time::Timestamp;
use sha2::{Digest, Sha256};

use super::intake::{Offered, Room, enter};
use berth_store::{self as store, StoreError, Tx};

/// Files of one attempt that are offered together.
#[derive(Debug, Clone)]
pub struct OfferedBundle {
    pub job: JobId,
    pub attempt: u32,
    /// The volume's id; `None`: they are artifacts.
    pub volume: Option<String>,
    pub files: Vec<SmallFile>,
}

#[derive(Debug, Clone)]
pub struct SmallFile {
    pub path: String,
    pub bytes: i64,
    /// Lower-case hex.
    pub sha256: String,
    /// Nothing where it is only asked for.
    pub data: bytes::Bytes,
}

/// For each file of a bundle the id under which its bytes are expected; `None`: nothing of it is.
pub type Expected = Vec<Option<String>>;

/// New ids for the files of a bundle, the present time and the bytes that the organization may have.
#[derive(Clone)]
pub struct Order {
    pub ids: Vec<FileId>,
    pub now: Timestamp,
    pub limit: i64,
}

/// Enters artifacts.
pub(crate) async fn enter_artifacts(
    tx: &mut Tx<'_>,
    node: NodeId,
    bundle: &OfferedBundle,
    order: &Order,
) -> Result<Expected, StoreError> {
    let attempt = store::attempts::find(tx, bundle.job, bundle.attempt, node).await?;
    let Some(attempt) = attempt.filter(|a| a.is_open) else { return Ok(vec![None; bundle.files.len()]) };
    let mut room = Room::new(order.limit);
    let mut out = Vec::new();
    for (file, id) in bundle.files.iter().zip(&order.ids) {
        if JOB_PATHS.check(&file.path).is_err() {
            out.push(None);
            continue;
        }
        let offered = Offered {
            job: bundle.job,
            attempt: bundle.attempt,
            kind: FileKind::Artifact,
            path: file.path.clone(),
            seq: 0,
            bytes: file.bytes,
            sha256: file.sha256.clone(),
            files: 1,
            note: String::new(),
            refused: false,
        };
        let row = enter(tx, &attempt, &offered, (*id, order.now), &mut room).await?;
        out.push(row.filter(|row| row.state == FileState::Partial.name()).map(|row| row.id));
    }
    Ok(out)
}

/// Which artifacts are here, or are not wanted.
pub(crate) async fn known_artifacts(
    tx: &mut Tx<'_>,
    node: NodeId,
    bundle: &OfferedBundle,
) -> Result<Vec<bool>, StoreError> {
    let attempt = store::attempts::find(tx, bundle.job, bundle.attempt, node).await?;
    let Some(attempt) = attempt.filter(|a| a.is_open) else { return Ok(vec![true; bundle.files.len()]) };
    let rows = store::files::list_artifacts(tx, &attempt.job_id, attempt.number, attempt.rank).await?;
    let rows: BTreeMap<&str, &store::files::FileRow> =
        rows.iter().map(|row| (row.path.as_str(), row)).collect();
    let known = |file: &SmallFile| match rows.get(file.path.as_str()) {
        // One that is another now is told so when it is sent.
        Some(row) => {
            row.state != FileState::Partial.name() && (row.bytes, &row.sha256) == (file.bytes, &file.sha256)
        }
        None => JOB_PATHS.check(&file.path).is_err(),
    };
    Ok(bundle.files.iter().map(known).collect())
}

/// The files whose bytes are what was said, each content once, with its id.
pub(crate) fn sound(bundle: &OfferedBundle, expected: &Expected) -> BTreeMap<String, bytes::Bytes> {
    let mut out = BTreeMap::new();
    for (file, id) in bundle.files.iter().zip(expected) {
        let Some(id) = id.as_ref().filter(|id| !out.contains_key(*id)) else { continue };
        if format!("{:x}", Sha256::digest(&file.data)) == file.sha256 {
            out.insert(id.clone(), file.data.clone());
        } else {
            tracing::warn!(file = id, "a file did not arrive as it was sent; it is begun anew");
        }
    }
    out
}

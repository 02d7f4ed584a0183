//! Bundles of small artifacts: their registration and the check of their contents.

use std::collections::BTreeMap;

use berth_types::files::{FileKind, FileState};
use berth_types::ids::{FileId, JobId, NodeId, VolumeId};
use berth_types::paths::JOB_PATHS;
use berth_types::time::Timestamp;
use sha2::{Digest, Sha256};

use super::intake::{OfferedFile, StorageUse, register};
use crate::allowance::StorageLimits;
use berth_store::{self as store, StoreError, Tx};

/// A bundle of small files of one attempt.
#[derive(Debug, Clone)]
pub struct OfferedBundle {
    pub job: JobId,
    pub attempt: u32,
    /// The volume; `None` for artifacts.
    pub volume: Option<VolumeId>,
    pub files: Vec<SmallFile>,
}

#[derive(Debug, Clone)]
pub struct SmallFile {
    pub path: String,
    pub bytes: i64,
    /// Lower-case hex.
    pub sha256: String,
    /// The content; empty in a query (`Bundles::check_bundle`).
    pub data: bytes::Bytes,
}

/// For each file of a bundle the id of its expected content; `None` if no content is expected.
pub type ExpectedIds = Vec<Option<FileId>>;

/// The input of a registration: an id for each file of the bundle, the present time, and the limits of stored
/// bytes.
#[derive(Clone)]
pub struct BundleInput {
    pub ids: Vec<FileId>,
    pub now: Timestamp,
    pub limits: StorageLimits,
}

/// Registers the artifacts of a bundle.
pub(crate) async fn register_artifacts(
    tx: &mut Tx<'_>,
    node: NodeId,
    bundle: &OfferedBundle,
    input: &BundleInput,
) -> Result<ExpectedIds, StoreError> {
    let attempt = store::attempts::find_open(tx, bundle.job, bundle.attempt, node).await?;
    let Some(attempt) = attempt else { return Ok(vec![None; bundle.files.len()]) };
    let mut usage = StorageUse::new(input.limits);
    let mut out = Vec::new();
    for (file, id) in bundle.files.iter().zip(&input.ids) {
        if JOB_PATHS.check(&file.path).is_err() {
            out.push(None);
            continue;
        }
        let offered = OfferedFile {
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
        let row = register(tx, &attempt, &offered, (*id, input.now), &mut usage).await?;
        out.push(row.filter(|row| row.state == FileState::Partial).map(|row| row.id));
    }
    Ok(out)
}

/// Returns true for each artifact that is in the store or not accepted.
pub(crate) async fn known_artifacts(
    tx: &mut Tx<'_>,
    node: NodeId,
    bundle: &OfferedBundle,
) -> Result<Vec<bool>, StoreError> {
    let attempt = store::attempts::find_open(tx, bundle.job, bundle.attempt, node).await?;
    let Some(attempt) = attempt else { return Ok(vec![true; bundle.files.len()]) };
    let rows = store::files::list_artifacts(tx, attempt.job_id, attempt.number, attempt.rank).await?;
    let rows: BTreeMap<&str, &store::files::StoredFile> =
        rows.iter().map(|row| (row.path.as_str(), row)).collect();
    let known = |file: &SmallFile| match rows.get(file.path.as_str()) {
        // A changed artifact is refused at its registration, so it must be sent.
        Some(row) => {
            row.state != FileState::Partial && (row.bytes, &row.sha256) == (file.bytes, &file.sha256)
        }
        None => JOB_PATHS.check(&file.path).is_err(),
    };
    Ok(bundle.files.iter().map(known).collect())
}

/// The contents with the announced hash by id, each content once.
pub(crate) fn verified_contents(
    bundle: &OfferedBundle,
    expected: &ExpectedIds,
) -> BTreeMap<FileId, bytes::Bytes> {
    let mut out = BTreeMap::new();
    for (file, id) in bundle.files.iter().zip(expected) {
        let Some(id) = id.filter(|id| !out.contains_key(id)) else { continue };
        if format!("{:x}", Sha256::digest(&file.data)) == file.sha256 {
            out.insert(id, file.data.clone());
        } else {
            tracing::warn!(file = %id, "a received file is damaged; its transfer starts again");
        }
    }
    out
}

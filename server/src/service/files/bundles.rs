//! Many small files that a worker hands over at once, each whole: two transactions for all of them, one that
//! enters them and one that counts them, and between the two their bytes reach the store.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use berth_types::files::{FileKind, FileState};
use berth_types::ids::{FileId, JobId, NodeId};
use berth_types::paths::JOB_PATHS;
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use futures::FutureExt;
use sha2::{Digest, Sha256};

use super::intake::{Offered, Room, enter};
use crate::depot::{Claim, DepotError};
use crate::portal::Portal;
use crate::store::{self, StoreError, Tx};

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
pub(crate) type Expected = Vec<Option<String>>;

/// New ids for the files of a bundle, the present time and the bytes that the organization may have.
#[derive(Clone)]
pub(crate) struct Order {
    pub ids: Vec<FileId>,
    pub now: Timestamp,
    pub limit: i64,
}

/// Enters artifacts.
async fn enter_artifacts(
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
async fn known_artifacts(
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
fn sound(bundle: &OfferedBundle, expected: &Expected) -> BTreeMap<String, bytes::Bytes> {
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

impl Portal {
    /// Says of each file of a bundle whether it is here, or is not wanted.
    pub async fn ask_bundle(&self, node: NodeId, bundle: OfferedBundle) -> Result<Vec<bool>, Problem> {
        let mut conn = self.db.read().await?;
        let mut tx = conn.tx();
        Ok(match &bundle.volume {
            None => known_artifacts(&mut tx, node, &bundle).await?,
            Some(volume) => super::super::volumes::known(&mut tx, node, &bundle, volume).await?,
        })
    }

    /// Takes a bundle from the node that has its attempt, and says of each file whether that is done with.
    pub async fn keep_bundle(&self, node: NodeId, bundle: OfferedBundle) -> Result<Vec<bool>, Problem> {
        let (now, bundle) = (self.now(), Arc::new(bundle));
        let ids = bundle.files.iter().map(|_| self.new_id(now)).collect();
        let order = Order { ids, now, limit: self.settings.org_storage_bytes };
        let offered = bundle.clone();
        let entering = self.db.write(move |tx| {
            let (bundle, order) = (offered.clone(), order.clone());
            async move {
                match &bundle.volume {
                    None => enter_artifacts(tx, node, &bundle, &order).await,
                    Some(volume) => {
                        super::super::volumes::enter_bundle(tx, node, &bundle, volume, &order).await
                    }
                }
            }
            .boxed()
        });
        let expected = entering.await?;
        let (checked, wanted) = (bundle.clone(), expected.clone());
        let checking = tokio::task::spawn_blocking(move || sound(&checked, &wanted));
        let mut files = checking.await.map_err(|_| Problem::internal())?;
        // Whoever else writes one of them is not disturbed; it is asked for again.
        let claims: Vec<Claim<'_>> = files.keys().filter_map(|id| self.depot.claim(id)).collect();
        let claimed: HashSet<String> = claims.iter().map(|claim| claim.id().to_owned()).collect();
        files.retain(|id, _| claimed.contains(id));
        if !files.is_empty() {
            self.depot.put_all(files).await.map_err(|error: DepotError| Problem::from(error))?;
            self.count(&bundle, claimed.iter().cloned().collect()).await?;
            self.handovers.note(bundle.job, bundle.attempt, node, self.now());
        }
        drop(claims);
        Ok(expected.iter().map(|id| id.as_ref().is_none_or(|id| claimed.contains(id))).collect())
    }

    /// Files that are in the store count from now on.
    async fn count(&self, bundle: &OfferedBundle, ids: Vec<String>) -> Result<(), Problem> {
        let (is_volume, job) = (bundle.volume.is_some(), bundle.job);
        let counting = self.db.write(move |tx| {
            let ids = ids.clone();
            async move {
                for id in &ids {
                    if is_volume {
                        store::volumes::blobs::mark_complete(tx, id).await?;
                    } else {
                        let (from, to) = (FileState::Partial, FileState::Complete);
                        store::files::set_state(tx, id, from, to, None).await?;
                    }
                }
                store::jobs::find_any(tx, job).await
            }
            .boxed()
        });
        let row = counting.await?.filter(|_| !is_volume);
        if let Some(org) = row.and_then(|row| row.org_id.parse().ok()) {
            self.tell_change(org, None, job).await;
        }
        Ok(())
    }
}

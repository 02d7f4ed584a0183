//! Bundles: many small whole files in one request of a worker. One transaction registers the files of a
//! bundle. Then their bytes go to the store, and a second transaction marks the files complete.

use std::collections::HashMap;
use std::sync::Arc;

use berth_foundation::objects::{Objects, WriteLock};
use berth_foundation::{Change, Context};
use berth_store as store;
use berth_types::files::FileState;
use berth_types::ids::{FileId, NodeId};
use berth_types::problems::Problem;
use futures::FutureExt;

use crate::allowance::StorageLimits;
use crate::files::{
    BundleInput, HandOvers, OfferedBundle, known_artifacts, register_artifacts, verified_contents,
};
use crate::volumes::{known_files, publish_refused, register_files};

/// Receives bundles of small files from workers.
#[derive(Clone)]
pub struct Bundles {
    context: Context,
    objects: Arc<Objects>,
    handovers: Arc<HandOvers>,
}

impl Bundles {
    pub const fn new(context: Context, objects: Arc<Objects>, handovers: Arc<HandOvers>) -> Self {
        Self { context, objects, handovers }
    }

    /// Returns true for each file of a bundle that is in the store or not accepted.
    pub async fn check_bundle(&self, node: NodeId, bundle: OfferedBundle) -> Result<Vec<bool>, Problem> {
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        Ok(match &bundle.volume {
            None => known_artifacts(&mut tx, node, &bundle).await?,
            Some(volume) => known_files(&mut tx, node, &bundle, *volume).await?,
        })
    }

    /// Receives a bundle from the node of its attempt. Returns true for each file that is in the store or not
    /// accepted.
    pub async fn receive_bundle(&self, node: NodeId, bundle: OfferedBundle) -> Result<Vec<bool>, Problem> {
        self.context.disk.check_hand_over()?;
        let (now, bundle) = (self.context.now(), Arc::new(bundle));
        let ids = bundle.files.iter().map(|_| self.context.new_id(now)).collect();
        let input = BundleInput { ids, now, limits: StorageLimits::new(&self.context.settings) };
        let offered = bundle.clone();
        let registering = self.context.db.write(move |tx| {
            let (bundle, input) = (offered.clone(), input.clone());
            async move {
                match &bundle.volume {
                    None => Ok((register_artifacts(tx, node, &bundle, &input).await?, None)),
                    Some(volume) => register_files(tx, node, &bundle, *volume, &input).await,
                }
            }
            .boxed()
        });
        let (expected, refused) = registering.await?;
        publish_refused(&self.context, refused);
        let (checked, ids) = (bundle.clone(), expected.clone());
        let checking = tokio::task::spawn_blocking(move || verified_contents(&checked, &ids));
        let mut files = checking.await.map_err(|_| Problem::internal())?;
        // A file with another writer is left out. The worker sends it again.
        let locks: HashMap<FileId, WriteLock<'_>> = files
            .keys()
            .filter_map(|id| self.objects.try_lock(&id.to_string()).map(|lock| (*id, lock)))
            .collect();
        files.retain(|id, _| locks.contains_key(id));
        if !files.is_empty() {
            let objects = files.into_iter().map(|(id, data)| (id.to_string(), data)).collect();
            self.objects.put_all(objects).await?;
            self.mark_complete(&bundle, locks.keys().copied().collect()).await?;
            self.handovers.record_progress(bundle.job, bundle.attempt, node, self.context.now());
        }
        Ok(expected.iter().map(|id| id.is_none_or(|id| locks.contains_key(&id))).collect())
    }

    /// Marks files complete whose bytes are in the store.
    async fn mark_complete(&self, bundle: &OfferedBundle, ids: Vec<FileId>) -> Result<(), Problem> {
        let (is_volume, job) = (bundle.volume.is_some(), bundle.job);
        let marking = self.context.db.write(move |tx| {
            let ids = ids.clone();
            async move {
                for id in ids {
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
        let row = marking.await?.filter(|_| !is_volume);
        if let Some(row) = row {
            self.context.publish(Change::Job { org: row.org_id, job, event: None });
        }
        Ok(())
    }
}

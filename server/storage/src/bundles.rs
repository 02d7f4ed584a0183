//! Many small files that a worker hands over at once, each whole: one transaction enters all of them, one counts
//! them, and between the two their bytes reach the store.

use std::collections::HashSet;
use std::sync::Arc;

use berth_foundation::objects::{Claim, Objects};
use berth_foundation::{Change, Context};
use berth_store as store;
use berth_types::files::FileState;
use berth_types::ids::NodeId;
use berth_types::problems::Problem;
use futures::FutureExt;

use crate::files::{HandOvers, OfferedBundle, Order, enter_artifacts, known_artifacts, sound};
use crate::volumes::{enter_files, known_files};

/// Bundles of small files from workers.
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

    /// Says of each file of a bundle whether it is here, or is not wanted.
    pub async fn ask_bundle(&self, node: NodeId, bundle: OfferedBundle) -> Result<Vec<bool>, Problem> {
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        Ok(match &bundle.volume {
            None => known_artifacts(&mut tx, node, &bundle).await?,
            Some(volume) => known_files(&mut tx, node, &bundle, volume).await?,
        })
    }

    /// Takes a bundle from the node that has its attempt, and says of each file whether that is done with.
    pub async fn keep_bundle(&self, node: NodeId, bundle: OfferedBundle) -> Result<Vec<bool>, Problem> {
        let (now, bundle) = (self.context.now(), Arc::new(bundle));
        let ids = bundle.files.iter().map(|_| self.context.new_id(now)).collect();
        let order = Order { ids, now, limit: self.context.settings.org_storage_bytes };
        let offered = bundle.clone();
        let entering = self.context.db.write(move |tx| {
            let (bundle, order) = (offered.clone(), order.clone());
            async move {
                match &bundle.volume {
                    None => enter_artifacts(tx, node, &bundle, &order).await,
                    Some(volume) => enter_files(tx, node, &bundle, volume, &order).await,
                }
            }
            .boxed()
        });
        let expected = entering.await?;
        let (checked, wanted) = (bundle.clone(), expected.clone());
        let checking = tokio::task::spawn_blocking(move || sound(&checked, &wanted));
        let mut files = checking.await.map_err(|_| Problem::internal())?;
        // Whoever else writes one of them is not disturbed; it is asked for again.
        let claims: Vec<Claim<'_>> = files.keys().filter_map(|id| self.objects.claim(id)).collect();
        let claimed: HashSet<String> = claims.iter().map(|claim| claim.id().to_owned()).collect();
        files.retain(|id, _| claimed.contains(id));
        if !files.is_empty() {
            self.objects.put_all(files).await?;
            self.count(&bundle, claimed.iter().cloned().collect()).await?;
            self.handovers.note(bundle.job, bundle.attempt, node, self.context.now());
        }
        drop(claims);
        Ok(expected.iter().map(|id| id.as_ref().is_none_or(|id| claimed.contains(id))).collect())
    }

    /// Files that are in the store count from now on.
    async fn count(&self, bundle: &OfferedBundle, ids: Vec<String>) -> Result<(), Problem> {
        let (is_volume, job) = (bundle.volume.is_some(), bundle.job);
        let counting = self.context.db.write(move |tx| {
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
            self.context.publish(Change::Job { org, job, event: None });
        }
        Ok(())
    }
}

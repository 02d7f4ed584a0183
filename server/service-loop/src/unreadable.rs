//! Services with a row that cannot be read: they keep their replicas, their state says so, and the others go on.

use berth_foundation::Change;
use berth_store::services::replicas::{self, LoopWorld};
use berth_store::{StoreError, Tx};
use berth_types::ids::ServiceId;
use futures::FutureExt;

use super::Controller;

const UNREADABLE: &str = "A stored row of this service cannot be read, so its replicas stay as they are. The operator finds the row in the log of the portal.";

/// Reads services with their revisions and replicas, and lists those that cannot be read.
///
/// # Errors
/// The database cannot be read.
pub async fn read_world(
    tx: &mut Tx<'_>,
    batch: &[ServiceId],
) -> Result<(LoopWorld, Vec<ServiceId>), StoreError> {
    match replicas::read_world(tx, batch).await {
        Ok(world) => return Ok((world, Vec::new())),
        Err(StoreError::Corrupt(_)) => {}
        Err(error) => return Err(error),
    }
    let (mut all, mut unreadable) = (LoopWorld::default(), Vec::new());
    for service in batch {
        match replicas::read_world(tx, &[*service]).await {
            Ok(world) => {
                all.services.extend(world.services);
                all.revisions.extend(world.revisions);
                all.replicas.extend(world.replicas);
            }
            Err(error @ StoreError::Corrupt(_)) => {
                tracing::error!(%service, %error, "a row of a service cannot be read, so its replicas stay as they are");
                unreadable.push(*service);
            }
            Err(error) => return Err(error),
        }
    }
    Ok((all, unreadable))
}

impl Controller {
    /// Writes into the state of a service that a row of it cannot be read.
    pub(super) async fn mark_unreadable(&self, service: ServiceId) -> Result<(), StoreError> {
        let done = self
            .context
            .db
            .write(move |tx| async move { replicas::mark_unreadable(tx, service, UNREADABLE).await }.boxed());
        if done.await? {
            self.context.publish(Change::Service(service));
        }
        Ok(())
    }
}

//! The loop that places jobs: looks, plans, commits, and never stops trying.

use std::time::Duration;

use berth_core::plan::{Snapshot, Waiting, plan};
use berth_types::jobs::Priority;
use berth_types::time::Timestamp;

use crate::portal::Portal;
use crate::service::cluster;
use crate::service::jobs::shape;
use crate::store::{self, StoreError};

/// A full pass at least this often, whatever wakes it or not.
const PASS_EVERY: Duration = Duration::from_secs(5);
/// As much of the queue as one pass looks at.
const QUEUE: i64 = 2_000;

/// Runs for as long as the portal does.
pub async fn run(portal: Portal) {
    loop {
        if let Err(error) = pass(&portal).await {
            tracing::error!(%error, "a pass of the scheduler failed; the next one tries again");
        }
        // Whether it was woken or time has passed makes no difference.
        let _ = tokio::time::timeout(PASS_EVERY, portal.live.schedule.notified()).await;
    }
}

/// One pass; says how many jobs were placed.
pub async fn pass(portal: &Portal) -> Result<usize, StoreError> {
    let snapshot = snapshot(portal).await?;
    if snapshot.queue.is_empty() {
        return Ok(0);
    }
    let decided = plan(&snapshot);
    if decided.is_empty() { Ok(0) } else { portal.commit(decided).await }
}

async fn snapshot(portal: &Portal) -> Result<Snapshot, StoreError> {
    let mut conn = portal.db.read().await?;
    let mut tx = conn.tx();
    let rows = store::jobs::list_queued(&mut tx, QUEUE).await?;
    if rows.is_empty() {
        return Ok(Snapshot::default());
    }
    let gpus = cluster::boards(&mut tx, &portal.live.connected(), portal.now()).await?;
    let queue = rows
        .iter()
        .filter_map(|row| {
            Some(Waiting {
                job: row.id.parse().ok()?,
                generation: row.generation,
                shape: shape(row),
                priority: match row.priority {
                    0 => Priority::Low,
                    1 => Priority::Normal,
                    _ => Priority::High,
                },
                queued_at: Timestamp::from_micros(row.created_at),
            })
        })
        .collect();
    Ok(Snapshot { gpus, queue })
}

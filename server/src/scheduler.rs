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
/// Between two passes while something waits for which there is no room: a crowd of submissions is
/// looked at together.
const CROWDED: Duration = Duration::from_millis(100);
/// As much of the queue as one pass looks at.
const QUEUE: i64 = 2_000;
/// As many jobs of one shape as one pass looks at: when one of them does not fit, no other does.
const QUEUE_OF_EACH: i64 = 200;

/// Runs for as long as the portal does.
pub async fn run(portal: Portal) {
    loop {
        match pass(&portal).await {
            Ok(Pass::Idle | Pass::Placed(_)) => {}
            Ok(Pass::Crowded) => tokio::time::sleep(CROWDED).await,
            Err(error) => tracing::error!(%error, "a pass of the scheduler failed; the next one tries again"),
        }
        // Whether it was woken or time has passed makes no difference.
        let _ = tokio::time::timeout(PASS_EVERY, portal.live.schedule.notified()).await;
    }
}

/// What a pass came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// Nothing waits.
    Idle,
    /// So many jobs were placed.
    Placed(usize),
    /// Jobs wait, and none of them fits.
    Crowded,
}

/// One pass.
pub async fn pass(portal: &Portal) -> Result<Pass, StoreError> {
    let snapshot = snapshot(portal).await?;
    if snapshot.queue.is_empty() {
        return Ok(Pass::Idle);
    }
    let decided = plan(&snapshot);
    if decided.is_empty() {
        return Ok(Pass::Crowded);
    }
    portal.commit(decided).await.map(Pass::Placed)
}

async fn snapshot(portal: &Portal) -> Result<Snapshot, StoreError> {
    let mut conn = portal.db.read().await?;
    let mut tx = conn.tx();
    let rows = store::jobs::list_queued(&mut tx, QUEUE, QUEUE_OF_EACH).await?;
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

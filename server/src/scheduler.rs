//! The loop that places jobs: tells the engine what changed, commits what it decides, and never stops trying.

use std::time::Duration;

use berth_core::engine::Decision;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use crate::portal::Portal;
use crate::store::StoreError;

/// A pass at least this often, whatever wakes it or not: what only time brings comes too.
const PASS_EVERY: Duration = Duration::from_secs(5);
/// Everything is read again at least this often.
const READ_ALL_EVERY: Duration = Duration::from_secs(60);
/// Between the steps of a long search.
const STEP: Duration = Duration::from_millis(10);
/// From the begin of one pass to the next: what comes meanwhile is decided together.
const PACE: Duration = Duration::from_millis(50);
/// After a failure.
const SOON: Duration = Duration::from_millis(50);

/// Runs for as long as the portal does.
pub async fn run(portal: Portal) {
    let mut read_all = Instant::now();
    loop {
        if read_all.elapsed() >= READ_ALL_EVERY {
            portal.touch_everything();
            read_all = Instant::now();
        }
        let began = Instant::now();
        let passed = pass(&portal).await;
        portal.telemetry.passed(began.elapsed());
        let (wait, pace) = match passed {
            Ok(Pass { unfinished: false, next, .. }) => (next.unwrap_or(PASS_EVERY).min(PASS_EVERY), PACE),
            Ok(_) => (STEP, STEP),
            Err(error) => {
                tracing::error!(%error, "a pass of the scheduler failed; the next one tries again");
                portal.touch_everything();
                (SOON, PACE)
            }
        };
        // Whether it was woken or time has passed makes no difference.
        let _ = tokio::time::timeout(wait, portal.live.schedule.notified()).await;
        tokio::time::sleep_until(began + pace).await;
    }
}

/// What a pass came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass {
    /// So many decisions were kept.
    pub kept: usize,
    /// The engine has not looked at everything yet.
    pub unfinished: bool,
    /// After so long something ends or begins by itself.
    pub next: Option<Duration>,
}

/// Waits for a pass that is under way; none begins for as long as what this gives is kept.
pub async fn hold(portal: &Portal) -> OwnedMutexGuard<()> {
    portal.planner.passing.clone().lock_owned().await
}

/// One pass, when no other is under way.
pub async fn pass(portal: &Portal) -> Result<Pass, StoreError> {
    let _one = hold(portal).await;
    let decided = portal.decide().await?;
    let mut kept = 0;
    let mut starts = Vec::new();
    for decision in decided.decisions {
        match decision {
            Decision::Start { job, generation, attempt, ranks } => {
                starts.push((job, generation, attempt, ranks))
            }
            Decision::Preempt { victim, for_job } => {
                kept += usize::from(portal.preempt(victim, for_job).await?)
            }
            Decision::Orphan { job, generation, on } => {
                kept += usize::from(portal.orphan(job, generation, on).await?);
            }
        }
    }
    if !starts.is_empty() {
        kept += portal.commit(starts).await?;
    }
    let next = decided.next_after_ms.and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis);
    Ok(Pass { kept, unfinished: decided.unfinished, next })
}

//! Passes of the scheduler: the engine decides, and its decisions are committed.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use berth_core::engine::Decision;
use berth_foundation::telemetry::Telemetry;
use berth_store::StoreError;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use crate::attempts::Attempts;
use crate::placements::Placements;
use crate::planner::Planner;

/// Everything is read again at least this often.
const READ_ALL_EVERY: Duration = Duration::from_secs(60);

/// The outcome of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass {
    /// So many decisions were committed.
    pub kept: usize,
    /// The engine has not looked at everything yet.
    pub unfinished: bool,
    /// After so long something ends or begins by itself.
    pub next: Option<Duration>,
}

/// The loop that places jobs.
#[derive(Clone)]
pub struct Scheduler {
    planner: Planner,
    attempts: Attempts,
    placements: Placements,
    telemetry: Arc<Telemetry>,
    /// The begin of the last full read.
    read_all_at: Arc<Mutex<Option<Instant>>>,
}

impl Scheduler {
    pub fn new(
        planner: Planner,
        attempts: Attempts,
        placements: Placements,
        telemetry: Arc<Telemetry>,
    ) -> Self {
        Self { planner, attempts, placements, telemetry, read_all_at: Arc::default() }
    }

    /// A pass as the loop of the portal runs it: measured, and after a full read where one is due.
    ///
    /// # Errors
    /// As [`Self::pass`]; the next pass reads everything again.
    pub async fn timed_pass(&self) -> Result<Pass, StoreError> {
        let began = Instant::now();
        if self.is_read_due(began) {
            self.planner.read_all();
        }
        let passed = self.pass().await;
        self.telemetry.passed(began.elapsed());
        passed.inspect_err(|_| self.planner.read_all())
    }

    /// Whether a full read is due; it counts as done then.
    fn is_read_due(&self, now: Instant) -> bool {
        let mut last = self.read_all_at.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last.is_none_or(|last| now.duration_since(last) >= READ_ALL_EVERY);
        if due {
            *last = Some(now);
        }
        due
    }

    /// Waits for a pass that is under way; none begins for as long as the guard is held.
    pub async fn hold(&self) -> OwnedMutexGuard<()> {
        self.planner.hold_passes().await
    }

    /// One pass, when no other is under way.
    ///
    /// # Errors
    /// The database could not be read, or a decision could not be committed.
    pub async fn pass(&self) -> Result<Pass, StoreError> {
        let _one = self.hold().await;
        let decided = self.planner.decide().await?;
        let mut kept = 0;
        let mut starts = Vec::new();
        for decision in decided.decisions {
            match decision {
                Decision::Start { job, generation, attempt, ranks } => {
                    starts.push((job, generation, attempt, ranks))
                }
                Decision::Preempt { victim, for_job } => {
                    kept += usize::from(self.attempts.preempt(victim, for_job).await?)
                }
                Decision::Orphan { job, generation, on } => {
                    kept += usize::from(self.attempts.orphan(job, generation, on).await?);
                }
            }
        }
        if !starts.is_empty() {
            kept += self.placements.commit(starts).await?;
        }
        let next = decided.next_after_ms.and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis);
        Ok(Pass { kept, unfinished: decided.unfinished, next })
    }
}

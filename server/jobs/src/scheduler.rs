//! The passes of the scheduler: it asks the engine for decisions and commits them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use berth_engine::Decision;
use berth_foundation::telemetry::Telemetry;
use berth_store::StoreError;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use crate::attempts::Attempts;
use crate::placements::Placements;
use crate::planner::Planner;

/// The longest time between two full reads of the database.
const READ_ALL_EVERY: Duration = Duration::from_secs(60);

/// The outcome of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass {
    /// The number of committed decisions.
    pub committed: usize,
    /// The engine has not checked all waiting jobs yet.
    pub unfinished: bool,
    /// The time until the next end or begin by the clock alone.
    pub next: Option<Duration>,
}

/// The scheduler of the queue.
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

    /// One measured pass for the loop of the portal, after a full read if that is due.
    ///
    /// # Errors
    /// The errors of [`Self::pass`]; the next pass reads the whole database again.
    pub async fn timed_pass(&self) -> Result<Pass, StoreError> {
        let began = Instant::now();
        if self.start_due_read(began) {
            self.planner.read_all();
        }
        let passed = self.pass().await;
        self.telemetry.observe_pass(began.elapsed());
        passed.inspect_err(|_| self.planner.read_all())
    }

    /// Returns true if a full read is due, and records it as done.
    fn start_due_read(&self, now: Instant) -> bool {
        let mut last = self.read_all_at.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last.is_none_or(|last| now.duration_since(last) >= READ_ALL_EVERY);
        if due {
            *last = Some(now);
        }
        due
    }

    /// Waits for the present pass. No pass begins during the life of the guard.
    pub async fn lock_passes(&self) -> OwnedMutexGuard<()> {
        self.planner.lock_passes().await
    }

    /// One pass, after the end of the present one.
    ///
    /// # Errors
    /// The database cannot be read, or a decision cannot be committed.
    pub async fn pass(&self) -> Result<Pass, StoreError> {
        let _guard = self.lock_passes().await;
        let decided = self.planner.decide().await?;
        let mut committed = 0;
        let mut starts = Vec::new();
        for decision in decided.decisions {
            match decision {
                Decision::Start { job, generation, attempt, ranks } => {
                    starts.push((job, generation, attempt, ranks))
                }
                Decision::Preempt { victim, for_job } => {
                    committed += usize::from(self.attempts.preempt(victim, for_job).await?)
                }
                Decision::Orphan { job, generation, on } => {
                    committed += usize::from(self.attempts.orphan(job, generation, on).await?);
                }
            }
        }
        if !starts.is_empty() {
            committed += self.placements.commit(starts).await?;
        }
        let next = decided.next_after_ms.and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis);
        Ok(Pass { committed, unfinished: decided.unfinished, next })
    }
}

//! The details of a wait: its reasons, the objects behind them, and the proof of suggested changes.

use std::sync::Arc;
use std::time::Duration;

use berth_engine::{Blocker, Engine};
use berth_engine::{
    Obstacles, RequestSummary, Snapshot, SuggestedChange, Trial, WaitReasons, explanation, waits_for_own_org,
};
use berth_placement::assignment::AssignedDevice;
use berth_placement::request::Request;
use berth_storage::volumes::uses;
use berth_store::StoreError;
use berth_store::jobs::StoredJob;
use berth_store::offerings::StoredOffering;
use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::jobs::{Explanation, NewJob};
use berth_types::time::Timestamp;
use berth_types::volumes::VolumeMode;
use tokio::sync::{Mutex, OwnedMutexGuard, Semaphore};

use super::facts::{request_summary, waiting_facts};
use super::{
    Planner, assigned_devices, being_placed, bookings, invalid, on_blocking_thread, submission_request,
};

/// The largest number of suggested changes.
const MAX_SUGGESTED: usize = 3;
/// The longest wait for another proof. After it the answer has no suggested changes.
const PROOF_WAIT: Duration = Duration::from_millis(200);
/// Requests that wait for a proof.
const MAX_PROOF_WAITING: usize = 8;

/// The turns of proofs: one at a time, because the copy of an engine needs much memory.
#[derive(Debug)]
pub(super) struct ProofTurns {
    turn: Arc<Mutex<()>>,
    waiting: Semaphore,
}

impl Default for ProofTurns {
    fn default() -> Self {
        Self { turn: Arc::default(), waiting: Semaphore::new(MAX_PROOF_WAITING) }
    }
}

impl ProofTurns {
    /// The turn; `None` after [`PROOF_WAIT`], and if too many requests wait.
    async fn find(&self) -> Option<OwnedMutexGuard<()>> {
        let _waiting = self.waiting.try_acquire().ok()?;
        tokio::time::timeout(PROOF_WAIT, self.turn.clone().lock_owned()).await.ok()
    }
}

/// The explanation of a wait with its details.
pub struct WaitDetails {
    pub explanation: Explanation,
    /// The jobs and bookings behind each blocker of the explanation.
    pub obstacles: Vec<Obstacles>,
    /// Sets of changes with which the request alone would find a place now.
    pub changes: Vec<Vec<SuggestedChange>>,
    /// Absent if nothing can be proved.
    pub proof: Option<Proof>,
}

/// The state of the engine at an explanation. Only one exists at a time, because a copy needs much memory.
pub struct Proof {
    snapshot: Snapshot,
    now: Timestamp,
    turn: OwnedMutexGuard<()>,
}

impl Proof {
    /// The positions of the first trials, at most three, that would start at once beside all waiting jobs.
    pub async fn list_starting(self, org: OrgId, trials: Vec<Trial>) -> Vec<usize> {
        let Self { snapshot, now, turn } = self;
        on_blocking_thread(move || {
            let found = snapshot.list_starting(&trials, org, now, MAX_SUGGESTED);
            drop(turn);
            found
        })
        .await
    }
}

/// A submission as a trial, with the rate of all its devices and the storage classes of its volumes.
pub fn trial(
    spec: &NewJob,
    offering: &StoredOffering,
    nano_per_second: i64,
    storage: Vec<Arc<str>>,
) -> Trial {
    let (request, _) = submission_request(spec, offering, nano_per_second);
    let request = Request { storage, ..request };
    let seconds = i64::try_from(spec.max_duration_s).unwrap_or(i64::MAX);
    let inside = spec.reservation.map(bookings::booking_id);
    Trial { request, priority: spec.priority, seconds, inside }
}

/// The details without a proof, and if a change of the request could help.
fn details(
    why: WaitReasons,
    obstacles: Vec<Obstacles>,
    asked: &RequestSummary,
    now: Timestamp,
) -> (WaitDetails, bool) {
    let helps =
        |b: &Blocker| !matches!(b, Blocker::InvalidRequest(_) | Blocker::Dependency(_) | Blocker::Volume(_));
    let helps = why.blockers.first().is_some_and(helps);
    let explanation = explanation(&why, asked, now);
    (WaitDetails { explanation, obstacles, changes: why.changes, proof: None }, helps)
}

impl Planner {
    /// A copy of the present engine for the proof of changes. `None` while others prove theirs.
    async fn find_proof(&self, now: Timestamp) -> Option<Proof> {
        let turn = self.state.proving.find().await?;
        self.ask(move |engine| Some(Proof { snapshot: Snapshot::new(engine)?, now, turn })).await
    }

    /// The storage classes of a queued job; none if they cannot be read.
    async fn storage_of(&self, job: JobId) -> Vec<Arc<str>> {
        let Ok(mut conn) = self.context.db.read().await else { return Vec::new() };
        let found = uses::waiting_storage_classes(&mut conn.tx(), Some(job)).await;
        found.unwrap_or_default().remove(&job).unwrap_or_default()
    }

    /// Explains why a queued job waits, from the present facts of the engine. With `provable` the answer has
    /// the proof of suggested changes.
    pub async fn explain_wait(&self, row: &StoredJob, provable: bool) -> WaitDetails {
        let (now, asked) = (self.context.now(), request_summary(row));
        let (mut facts, uses_volumes) = waiting_facts(row);
        if uses_volumes {
            facts.request.storage = self.storage_of(row.id).await;
        }
        let question = move |engine: &mut Engine| match engine.why(facts.id, now) {
            Some(why) => {
                let obstacles = Obstacles::list(engine, facts, &why.blockers, now);
                details(why, obstacles, &asked, now)
            }
            None => {
                let explanation = being_placed(now);
                (WaitDetails { explanation, obstacles: Vec::new(), changes: Vec::new(), proof: None }, false)
            }
        };
        let (mut details, helps) = self.ask(question).await;
        if provable && helps {
            details.proof = self.find_proof(now).await;
        }
        details
    }

    /// True if all of these queued jobs wait for their own organization: for one of its limits, a volume, or its own nodes.
    /// False without a job.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn is_own_wait(&self, jobs: Vec<JobId>) -> Result<bool, StoreError> {
        self.refresh().await?;
        let now = self.context.now();
        let is_own = move |engine: &mut Engine| {
            !jobs.is_empty() && jobs.iter().all(|job| waits_for_own_org(engine, *job, now))
        };
        Ok(self.ask(is_own).await)
    }

    /// The reasons of a submission as if it waited, and the devices on which it would start at once, of its
    /// reservation if it has one. `storage` are the storage classes of its volumes. Records nothing.
    pub async fn dry_run(
        &self,
        org: OrgId,
        spec: &NewJob,
        offering: &StoredOffering,
        nano_per_second: i64,
        storage: Vec<Arc<str>>,
    ) -> (WaitDetails, Vec<(NodeId, Vec<AssignedDevice>)>) {
        // The engine does not know here if dependencies have ended and volumes are free.
        let free = spec.depends_on.is_empty() && spec.volumes.iter().all(|v| v.mode != VolumeMode::Rw);
        let now = self.context.now();
        let (_, asked) = submission_request(spec, offering, nano_per_second);
        let (trial, model) = (trial(spec, offering, nano_per_second, storage), offering.gpu_model.clone());
        let question = move |engine: &mut Engine| {
            let Trial { request, priority, seconds, inside } = &trial;
            let (why, places) = engine
                .dry_run(request, org, *priority, *seconds, *inside, now)
                .unwrap_or_else(|absurd| (invalid(absurd), Vec::new()));
            let obstacles = Obstacles::list(engine, trial.facts(org, now), &why.blockers, now);
            let places = places.into_iter().map(|(node, slots)| (node, assigned_devices(&model, &slots)));
            (details(why, obstacles, &asked, now), places.collect::<Vec<_>>())
        };
        let ((mut details, helps), places) = self.ask(question).await;
        if free && helps {
            details.proof = self.find_proof(now).await;
        }
        (details, places)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn proofs_wait_for_a_short_time_and_in_a_bounded_number() {
        let turns = ProofTurns::default();
        let first = turns.find().await.unwrap();
        let mut waiting: Vec<_> = (0..MAX_PROOF_WAITING).map(|_| Box::pin(turns.find())).collect();
        for one in &mut waiting {
            assert!(futures::poll!(one).is_pending());
        }
        assert!(futures::poll!(Box::pin(turns.find())).is_ready(), "too many wait");
        for one in waiting {
            assert!(one.await.is_none());
        }
        drop(first);
        assert!(turns.find().await.is_some());
    }
}

//! Trials of changed submissions: a copy of the engine decides as the next pass would.

use berth_types::ids::{JobId, OrgId};
use berth_types::jobs::Priority;
use berth_types::time::Timestamp;

use super::facts::JobFacts;
use super::{Decision, Engine, apply, forecast, place, run_end};
use berth_placement::calendar::Exclusions;
use berth_placement::cluster::BookingId;
use berth_placement::request::{Ask, Request};

/// The largest number of passes of one question.
const MAX_PASSES: usize = 6;

/// A submission that is tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trial {
    pub request: Request,
    pub priority: Priority,
    /// The time limit in seconds.
    pub seconds: i64,
    /// The booking inside which it would run.
    pub inside: Option<BookingId>,
}

impl Trial {
    /// The facts of the submitted job. Its id is the last of the jobs of the same age.
    pub fn facts(&self, org: OrgId, now: Timestamp) -> JobFacts {
        JobFacts {
            id: JobId::from_uuid(uuid::Uuid::max()),
            generation: 0,
            attempt: 0,
            org,
            request: self.request.clone(),
            priority: self.priority,
            max_duration_s: self.seconds,
            preemptible: false,
            grace_s: 0,
            gives_back_ms: None,
            queued_at: now,
            depends_on: Vec::new(),
            inside: self.inside,
            volume: None,
        }
    }
}

/// A copy of an engine at one moment.
#[derive(Debug)]
pub struct Snapshot(Engine);

impl Snapshot {
    /// Copies an engine; `None` in a cloud that is too large for copies.
    pub fn new(engine: &Engine) -> Option<Self> {
        forecast::is_small(engine).then(|| Self(engine.clone()))
    }

    /// The positions of the first `most` trials that the next pass would start beside all jobs of the snapshot.
    pub fn list_starting(mut self, trials: &[Trial], org: OrgId, now: Timestamp, most: usize) -> Vec<usize> {
        let mut passes = 0;
        let mut found = Vec::new();
        for (index, trial) in trials.iter().enumerate() {
            if found.len() >= most || passes >= MAX_PASSES {
                break;
            }
            // A pass in a copy is expensive, so it follows a search of a place.
            if !has_place(&mut self.0, trial, org, now) {
                continue;
            }
            passes += 1;
            if starts(&self.0, trial, org, now) {
                found.push(index);
            }
        }
        found
    }
}

/// True if a place is free for a trial. Inside bookings the pass alone decides.
fn has_place(engine: &mut Engine, trial: &Trial, org: OrgId, now: Timestamp) -> bool {
    let Ok(ask) = Ask::from_request(&trial.request, org, &mut engine.cluster) else { return false };
    let until = run_end(now, trial.seconds);
    trial.inside.is_some() || place::find_places(engine, &ask, now, until, Exclusions::default()).is_some()
}

/// True if the next pass starts a trial.
fn starts(engine: &Engine, trial: &Trial, org: OrgId, now: Timestamp) -> bool {
    let mut copy = engine.clone();
    let facts = trial.facts(org, now);
    let id = facts.id;
    apply::put_job(&mut copy, facts);
    copy.pass(now).iter().any(|one| matches!(one, Decision::Start { job, .. } if *job == id))
}

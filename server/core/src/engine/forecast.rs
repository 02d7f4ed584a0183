//! When those who wait start if every run takes its longest time and nobody else comes.
//!
//! The engine is its own oracle here: a copy of it lives through the ends that are known. In a large cloud
//! that would take too long; there only a start that is held is foreseen.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use berth_types::ids::{JobId, OrgId};
use berth_types::time::Timestamp;

use super::{Decision, Engine, Waiting};
use crate::calendar::LATE_S;
use crate::cluster::{Models, Owner};

/// Jobs and nodes that are looked at in all, over all ends.
const WORK: usize = 200_000;
/// Ends that are looked at.
const ENDS: usize = 512;

/// When each job that waits starts, as far as was looked.
#[derive(Debug, Clone)]
pub(super) struct Forecast {
    state: State,
    starts: HashMap<JobId, Timestamp>,
}

/// What a forecast is based on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    changes: u64,
    queue: u64,
    bookings: u64,
    /// Nothing that it expected to have ended by now is still there.
    until: Timestamp,
}

/// The jobs that are queued again when their runs have ended, and whom they may delay.
struct Returns {
    first: Option<Timestamp>,
    /// Board models for which they may change who starts.
    models: Models,
}

impl Returns {
    fn new(engine: &Engine) -> Self {
        let claims = || engine.claims.values().filter(|claim| claim.requeues);
        let first = claims().map(|claim| claim.ends_by.unwrap_or(Timestamp::from_micros(0))).min();
        if first.is_some() && !engine.racks.is_empty() {
            return Self { first, models: Models::ANY };
        }
        let mut models = claims().fold(0, |models, claim| models | engine.models_named(&claim.models).0);
        let mut orgs: BTreeSet<OrgId> = claims().map(|claim| claim.org).collect();
        // A job that starts later changes the turns and limits of its organization for all models.
        loop {
            let known = (models, orgs.len());
            for Waiting { facts, ask, .. } in engine.jobs.values() {
                let own = ask.map_or(0, |ask| ask.shape.models.0);
                if own & models != 0 || orgs.contains(&facts.org) {
                    models |= own;
                    orgs.insert(facts.org);
                }
            }
            for node in engine.cluster.nodes() {
                let gpus = 0..node.facts.gpus.len();
                let own = gpus.fold(0, |models, gpu| models | Models::only(node.model_ix(gpu)).0);
                models |= if own & models != 0 { own } else { 0 };
            }
            if known == (models, orgs.len()) {
                return Self { first, models: Models(models) };
            }
        }
    }

    /// True if a start that is foreseen may come later because of them.
    fn may_delay(&self, engine: &Engine, job: JobId, at: Timestamp) -> bool {
        let models =
            engine.jobs.get(&job).and_then(|waiting| waiting.ask).map_or(Models::ANY, |ask| ask.shape.models);
        self.first.is_some_and(|first| first <= at) && models.0 & self.models.0 != 0
    }
}

impl Engine {
    /// The board models of these names; all of them where no name is given.
    fn models_named(&self, names: &[Arc<str>]) -> Models {
        if names.is_empty() {
            return Models::ANY;
        }
        let known = names.iter().filter_map(|name| self.cluster.find_model(name));
        Models(known.fold(0, |models, model| models | Models::only(model).0))
    }

    /// Steps of a forecast in a cloud of this size.
    fn steps(&self) -> usize {
        (WORK / (1 + self.cluster.nodes().len() + self.jobs.len() + self.claims.len())).min(ENDS)
    }

    /// Whether starts can be foreseen by living through what is known.
    pub(super) fn is_small(&self) -> bool {
        self.steps() >= 8
    }

    /// When a job starts at the latest, if that can be foreseen; now, if the next pass starts it. The outer
    /// `None`: the cloud is too large to look.
    pub(super) fn foresee(&mut self, job: JobId, now: Timestamp) -> Option<Option<Timestamp>> {
        if !self.is_small() {
            return None;
        }
        let steps = self.steps();
        let changes = self.cluster.changes();
        let (queue, bookings) = (self.queue.total_version(), self.calendar.total_version());
        let known = self.memory.forecast.as_ref().is_some_and(|known| {
            let same = State { changes, queue, bookings, until: known.state.until };
            known.state == same && now < known.state.until
        });
        if !known {
            let (mut starts, until) = self.live_through(steps, now);
            // The turn of a job that returns to the queue is not known yet.
            let returns = Returns::new(self);
            starts.retain(|job, at| *at <= now || self.is_firm(*job) || !returns.may_delay(self, *job, *at));
            let state = State { changes, queue, bookings, until };
            self.memory.forecast = Some(Forecast { state, starts });
        }
        Some(self.memory.forecast.as_ref().and_then(|known| known.starts.get(&job).copied()))
    }

    /// The starts that follow, and until when they are right if nothing happens.
    fn live_through(&self, steps: usize, now: Timestamp) -> (HashMap<JobId, Timestamp>, Timestamp) {
        let mut trial = self.clone();
        trial.memory.forecast = None;
        let mut starts = HashMap::new();
        let mut at = now;
        let mut first = None;
        for _ in 0..steps {
            for decision in trial.pass(at) {
                if let Decision::Start { job, .. } = decision {
                    starts.insert(job, at);
                }
            }
            if trial.jobs.is_empty() {
                break;
            }
            let Some(next) = trial.next_change(at) else { break };
            first.get_or_insert(next);
            at = next;
            trial.end_by(at);
        }
        (starts, first.unwrap_or(Timestamp::from_micros(i64::MAX)))
    }

    /// The next time at which something ends or begins by itself.
    pub fn next_change(&self, now: Timestamp) -> Option<Timestamp> {
        let late = self.ends.first().filter(|(end, _)| *end <= now).map(|_| now.plus_seconds(LATE_S));
        let ends = self.ends_after(now).map(|(end, _)| end).next();
        let booked = self.calendar.iter().flat_map(|b| [b.from, b.until]);
        let held = self.held_starts().map(|(_, b)| b.from);
        booked.chain(held).chain(ends).chain(late).filter(|at| *at > now).min()
    }

    /// What had to end by then has ended.
    fn end_by(&mut self, now: Timestamp) {
        let over: Vec<Owner> = self
            .claims
            .values()
            .filter(|c| c.ends_by.is_some_and(|end| end <= now))
            .map(|c| c.owner)
            .collect();
        for owner in over {
            self.remove_claim(owner, now);
        }
    }
}

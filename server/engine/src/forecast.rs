//! The forecast of starts, if every run lasts to its limit and no further job comes.
//!
//! A copy of the engine simulates the known ends. In a large cloud the simulation would take too long; there
//! only held starts are known.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use berth_types::ids::{JobId, OrgId};
use berth_types::time::Timestamp;

use super::facts::Claim;
use super::{Decision, Engine, WaitingJob, apply, order};
use berth_placement::calendar::LATE_S;
use berth_placement::cluster::{Cluster, Models, Node, NodeFacts, Owner};

/// The largest number of visited jobs, claims and nodes over all steps.
const MAX_WORK: usize = 200_000;
/// The largest number of steps.
const MAX_ENDS: usize = 512;

/// The starts of waiting jobs within the steps of a simulation.
#[derive(Debug, Clone)]
pub(super) struct Forecast {
    state: ForecastState,
    starts: HashMap<JobId, Timestamp>,
}

/// The state of the engine at a forecast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ForecastState {
    changes: u64,
    queue: u64,
    bookings: u64,
    /// The first expected change after the forecast, until which the forecast is valid.
    until: Timestamp,
}

/// The jobs that return to the queue after the end of their runs, and the models whose jobs they may delay.
struct Requeues {
    first: Option<Timestamp>,
    /// Board models on which they may change starts.
    models: Models,
    /// Their highest class. Firm held starts give way to higher classes.
    class: i64,
}

impl Requeues {
    fn new(engine: &Engine) -> Self {
        let claims = || engine.claims.iter().filter(|claim| returns_at(engine, claim).is_some());
        let first = engine.claims.iter().filter_map(|claim| returns_at(engine, claim)).min();
        let class = claims().map(|claim| claim.priority.rank()).max().unwrap_or(0);
        if first.is_some() && !engine.racks.is_empty() {
            return Self { first, models: Models::ANY, class };
        }
        let mut models =
            claims().fold(0, |models, claim| models | models_named(&engine.cluster, &claim.models).0);
        let mut orgs: BTreeSet<OrgId> = claims().map(|claim| claim.org).collect();
        // A later start changes the turns and the use of its organization on all models.
        loop {
            let known = (models, orgs.len());
            for WaitingJob { facts, ask, .. } in engine.jobs.values() {
                let job_models = ask.map_or(0, |ask| ask.shape.models.0);
                if job_models & models != 0 || orgs.contains(&facts.org) {
                    models |= job_models;
                    orgs.insert(facts.org);
                }
            }
            for node in engine.cluster.nodes() {
                let gpus = 0..node.facts.gpus.len();
                let node_models = gpus.fold(0, |models, gpu| models | Models::only(node.model_ix(gpu)).0);
                models |= if node_models & models != 0 { node_models } else { 0 };
            }
            if known == (models, orgs.len()) {
                return Self { first, models: Models(models), class };
            }
        }
    }

    /// True if these jobs may delay a forecast start.
    fn may_delay(&self, engine: &Engine, job: JobId, at: Timestamp) -> bool {
        if engine.holds.is_firm(job) && order::class(engine, job).is_some_and(|class| class >= self.class) {
            return false;
        }
        let models =
            engine.jobs.get(&job).and_then(|waiting| waiting.ask).map_or(Models::ANY, |ask| ask.shape.models);
        self.first.is_some_and(|first| first <= at) && models.0 & self.models.0 != 0
    }
}

/// The earliest return of a job to the queue after a stop of its run: the run is stopped already, or a drain
/// stops it before its limit.
fn returns_at(engine: &Engine, claim: &Claim) -> Option<Timestamp> {
    let end = claim.ends_by.unwrap_or(Timestamp::from_micros(0));
    if claim.requeues {
        return Some(end);
    }
    let nodes =
        claim.ranks.iter().filter_map(|rank| engine.cluster.node(engine.cluster.find_node(rank.node)?));
    nodes.filter_map(|node| node.facts.drains_by).filter(|at| *at < end).min()
}

/// The board models with these names; all models if the list is empty.
fn models_named(cluster: &Cluster, names: &[Arc<str>]) -> Models {
    if names.is_empty() {
        return Models::ANY;
    }
    let known = names.iter().filter_map(|name| cluster.find_model(name));
    Models(known.fold(0, |models, model| models | Models::only(model).0))
}

impl Engine {
    /// The next expected end of a run, or begin or end of a booking or held start.
    pub fn next_change(&self, now: Timestamp) -> Option<Timestamp> {
        let late = self.ends.first().filter(|end| *end <= now).map(|_| now.plus_seconds(LATE_S));
        let ends = self.ends.after(now).map(|(end, _)| end).next();
        let booked = self.calendar.iter().flat_map(|b| [b.from, b.until]);
        let held = self.held_starts().map(|(_, b)| b.from);
        booked.chain(held).chain(ends).chain(late).filter(|at| *at > now).min()
    }
}

/// The number of steps of a forecast in a cloud of this size.
fn steps(engine: &Engine) -> usize {
    (MAX_WORK / (1 + engine.cluster.nodes().len() + engine.jobs.len() + engine.claims.len())).min(MAX_ENDS)
}

/// Returns true if the cloud is small enough for a simulation.
pub(super) fn is_small(engine: &Engine) -> bool {
    steps(engine) >= 8
}

/// The latest start of a job, if it is known; `now` if the next pass starts the job. The outer `None`:
/// the cloud is too large for a simulation.
pub(super) fn start(engine: &mut Engine, job: JobId, now: Timestamp) -> Option<Option<Timestamp>> {
    if !is_small(engine) {
        return None;
    }
    let steps = steps(engine);
    let changes = engine.cluster.changes();
    let (queue, bookings) = (engine.queue.total_version(), engine.calendar.total_version());
    let known = engine.caches.forecast.as_ref().is_some_and(|known| {
        let same = ForecastState { changes, queue, bookings, until: known.state.until };
        known.state == same && now < known.state.until
    });
    if !known {
        let (mut starts, until) = simulate(engine, steps, now);
        // The turn of a job that will return to the queue is not known yet.
        let requeues = Requeues::new(engine);
        starts.retain(|job, at| *at <= now || !requeues.may_delay(engine, *job, *at));
        let state = ForecastState { changes, queue, bookings, until };
        engine.caches.forecast = Some(Forecast { state, starts });
    }
    Some(engine.caches.forecast.as_ref().and_then(|known| known.starts.get(&job).copied()))
}

/// Simulates the known ends. Returns the starts, and the first expected change.
fn simulate(engine: &Engine, steps: usize, now: Timestamp) -> (HashMap<JobId, Timestamp>, Timestamp) {
    let mut trial = engine.clone();
    trial.caches.forecast = None;
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
        end_runs_until(&mut trial, at);
        open_awaited(&mut trial);
    }
    (starts, first.unwrap_or(Timestamp::from_micros(i64::MAX)))
}

/// Connects the nodes that are expected back.
fn open_awaited(engine: &mut Engine) {
    let awaited = |node: &&Node| node.facts.awaited && !node.facts.open;
    let open = |node: &Node| NodeFacts { open: true, away: false, awaited: false, ..node.facts.clone() };
    let back: Vec<NodeFacts> = engine.cluster.nodes().iter().filter(awaited).map(open).collect();
    back.into_iter().for_each(|facts| apply::put_node(engine, facts));
}

/// Removes the claims with an end at or before `now`.
fn end_runs_until(engine: &mut Engine, now: Timestamp) {
    let over: Vec<Owner> =
        engine.claims.iter().filter(|c| c.ends_by.is_some_and(|end| end <= now)).map(|c| c.owner).collect();
    for owner in over {
        apply::remove_claim(engine, owner, now);
    }
}

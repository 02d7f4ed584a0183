//! The turns of waiting jobs, and their ways out of the queue and back.

use berth_types::ids::JobId;
use berth_types::time::Timestamp;

use super::Engine;
use berth_placement::pools::Work;
use berth_placement::queue::{Turn, Turns};

/// The inputs for the present turns of waiting jobs.
pub(super) fn turns(engine: &Engine, now: Timestamp) -> Turns<'_> {
    Turns { shares: &engine.shares, quotas: &engine.quotas, cluster: &engine.cluster, now }
}

/// The turn of a waiting job.
pub(super) fn turn(engine: &Engine, job: JobId, now: Timestamp) -> Option<Turn> {
    let waiting = engine.jobs.get(&job)?;
    Some(turns(engine, now).turn(waiting.lane?.group, waiting.facts.queued_at, job))
}

/// The submitted class of a job.
pub(super) fn class(engine: &Engine, job: JobId) -> Option<i64> {
    Some(engine.jobs.get(&job)?.facts.priority.rank())
}

/// True for a waiting replica of a service.
pub(super) fn is_replica(engine: &Engine, job: JobId) -> bool {
    let ask = engine.jobs.get(&job).and_then(|waiting| waiting.ask);
    ask.is_some_and(|ask| ask.shape.work == Work::Replica)
}

/// Removes a job from the queue: it has a held start, or no node could ever hold it.
pub(super) fn set_aside(engine: &mut Engine, job: JobId) {
    let Some(waiting) = engine.jobs.get(&job) else { return };
    if let Some(lane) = waiting.lane {
        engine.queue.remove(lane, waiting.facts.queued_at, job);
    }
}

/// Returns a job that was set aside to the queue.
pub(super) fn put_back(engine: &mut Engine, job: JobId) {
    let Some(waiting) = engine.jobs.get(&job) else { return };
    if let Some(lane) = waiting.lane {
        engine.queue.insert(lane, waiting.facts.queued_at, job);
    }
}

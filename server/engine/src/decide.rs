//! The decisions of a pass: each counts as done at once.

use berth_types::ids::JobId;
use berth_types::jobs::{Condition, DependsOn};
use berth_types::time::Timestamp;

use super::facts::{Claim, ClaimBill, ClaimRank};
use super::{Decision, Engine, apply, find_node_id, run_end};
use berth_placement::calendar::NodeSlots;
use berth_placement::cluster::Owner;
use berth_placement::pools::Work;

/// Removes the jobs that depend on the success of a job without success.
pub(super) fn orphans(engine: &mut Engine, out: &mut Vec<Decision>) {
    let mut orphaned = Vec::new();
    for (on, waiting) in engine.dependencies.failed() {
        for job in waiting {
            let Some(waiting) = engine.jobs.get(job) else { continue };
            let is_unmet = |d: &DependsOn| d.job == on && d.condition == Condition::Succeeded;
            if waiting.facts.depends_on.iter().any(is_unmet) {
                orphaned.push((*job, waiting.facts.generation, on));
            }
        }
    }
    orphaned.sort_unstable();
    orphaned.dedup_by_key(|(job, ..)| *job);
    for (job, generation, on) in orphaned {
        apply::remove_job(engine, job);
        out.push(Decision::Orphan { job, generation, on });
    }
}

/// Starts a job on these places: adds the decision, and replaces the waiting job by a claim.
pub(super) fn start(
    engine: &mut Engine,
    job: JobId,
    places: &[NodeSlots],
    now: Timestamp,
    out: &mut Vec<Decision>,
) {
    let Some(waiting) = engine.jobs.get(&job) else { return };
    let Some(ask) = waiting.ask else { return };
    let facts = waiting.facts.clone();
    let attempt = facts.attempt.saturating_add(1);
    let ranks: Vec<ClaimRank> = places
        .iter()
        .filter_map(|place| {
            Some(ClaimRank {
                node: find_node_id(&engine.cluster, place.node)?,
                slots: place.slots.clone(),
                cpu_milli: ask.shape.cpu_milli,
                memory_mib: ask.shape.memory_mib,
            })
        })
        .collect();
    out.push(Decision::Start {
        job,
        generation: facts.generation,
        attempt,
        ranks: ranks.iter().map(|r| (r.node, r.slots.clone())).collect(),
    });
    apply::remove_job(engine, job);
    let ends_by = run_end(now, facts.max_duration_s);
    let booked = facts.inside.and_then(|id| engine.calendar.get(id)).map(|booking| booking.until);
    let claim = Claim {
        owner: Owner { job, attempt },
        org: facts.org,
        ranks,
        milli: ask.milli(&engine.cluster),
        since: now,
        // The end of a reservation stops the runs inside.
        ends_by: Some(booked.map_or(ends_by, |until| ends_by.min(until))),
        priority: facts.priority,
        stops: false,
        stopped_for: None,
        requeues: false,
        models: facts.request.models.clone(),
        preemptible: facts.preemptible.then_some(facts.grace_s),
        gives_back_ms: facts.gives_back_ms,
        replica: facts.request.work == Work::Replica,
        saved_at: None,
        inside: facts.inside,
        bill: ClaimBill {
            offering: facts.request.offering.clone(),
            devices_milli: ask.need(&engine.cluster).devices_milli,
            nano_per_second: facts.request.nano_per_second,
        },
    };
    engine.started.insert(claim.owner);
    apply::put_claim(engine, claim, now);
}

/// Stops attempts for a job or (`None`) for the reserve for bursts: adds the decisions, and counts the attempts as
/// stopping.
pub(super) fn preempt(
    engine: &mut Engine,
    victims: Vec<Owner>,
    for_job: Option<JobId>,
    now: Timestamp,
    out: &mut Vec<Decision>,
) {
    for victim in victims {
        let Some(claim) = engine.claims.get(victim) else { continue };
        let mut stopped = claim.clone();
        let grace = stopped.preemptible.take().unwrap_or(0);
        stopped.ends_by = Some(run_end(now, grace));
        (stopped.stops, stopped.stopped_for, stopped.requeues) = (true, for_job, true);
        apply::put_claim(engine, stopped, now);
        out.push(Decision::Preempt { victim, for_job });
    }
}

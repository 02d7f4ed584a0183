//! The explanation of a wait for members: names of the objects behind a blocker, and suggested changes with prices.

use std::collections::HashMap;

use berth_billing::budgets;
use berth_core::suggestions::{Offered, candidates, label, shorter_limit_s};
use berth_engine::{Obstacle, Obstacles, SuggestedChange as EngineChange, Trial};
use berth_foundation::{Caller, Context, Right, has_right};
use berth_storage::volumes::uses;
use berth_store::offerings::StoredOffering;
use berth_store::{self as store, Tx};
use berth_types::ids::{JobId, OrgId, ReservationId};
use berth_types::jobs::{
    BlockingKind, BlockingObject, Explanation, JobState, NewJob, SubmissionChange, SuggestedChange, Topology,
};
use berth_types::money::per_hour_micros;
use berth_types::problems::Problem;

use super::Jobs;
use super::checks::job_price;
use super::show::stored_devices;
use crate::planner::{WaitDetails, trial};

/// The devices of one job that an explanation shows.
const MAX_DEVICES: usize = 4;

impl Jobs {
    /// The explanation of a waiting job: its blockers with the objects behind them, the smallest change, the earliest
    /// start, and for members who can run jobs the changes with which it would start at once.
    pub async fn explain_job(&self, caller: &Caller, org: OrgId, job: JobId) -> Result<Explanation, Problem> {
        self.context.authorise(caller, org, Right::View).await?;
        let mut conn = self.context.db.read().await?;
        let row = store::jobs::find(&mut conn.tx(), org, job).await?.ok_or_else(Problem::not_found)?;
        drop(conn);
        if row.phase.state != JobState::Queued {
            let state = row.phase.state.name().replace('_', " ");
            let basis = format!("The job is not waiting. Its state is {state}.");
            return Ok(Explanation { earliest_start: row.started_at, basis, ..Explanation::default() });
        }
        let runs = has_right(&self.context, caller, org, Right::Run).await?;
        self.planner.refresh().await?;
        let details = self.planner.explain_wait(&row, runs).await;
        let max_duration_s = u64::try_from(row.max_duration_s).unwrap_or(0);
        let spec = NewJob { max_duration_s, ..row.spec.0 };
        complete(&self.context, org, (&spec, row.surcharge_basis_points), details).await
    }
}

/// The explanation with the names that the organization may see, and with the changes that start at once. The submission
/// comes with its surcharge in basis points.
pub(super) async fn complete(
    context: &Context,
    org: OrgId,
    (spec, surcharge): (&NewJob, i64),
    details: WaitDetails,
) -> Result<Explanation, Problem> {
    let WaitDetails { mut explanation, obstacles, changes, proof } = details;
    if let Some(proof) = proof {
        let priced = priced_changes(context, org, (spec, surcharge), &changes).await?;
        let (suggested, trials): (Vec<SuggestedChange>, Vec<Trial>) = priced.into_iter().unzip();
        let starting = proof.list_starting(org, trials).await;
        let now = context.now();
        let mut conn = context.db.read().await?;
        let mut tx = conn.tx();
        for change in starting.into_iter().filter_map(|index| suggested.get(index).cloned()) {
            let (worst, currency) = (change.worst_case_micros, &change.currency);
            if budgets::check_cost(&mut tx, org, &spec.labels, worst, currency, (now, now)).await.is_ok() {
                explanation.suggested_changes.push(change);
            }
        }
    }
    let mut conn = context.db.read().await?;
    let mut objects = objects(&mut conn.tx(), org, &obstacles).await?.into_iter();
    for (blocker, found) in explanation.blockers.iter_mut().zip(obstacles) {
        blocker.objects = objects.by_ref().take(found.named.len()).flatten().collect();
        (blocker.more_objects, blocker.others) = (found.more, found.others);
    }
    Ok(explanation)
}

/// A set of changes from the engine. `None` if too little time is left for a shorter run.
fn engine_change(changes: &[EngineChange]) -> Option<SubmissionChange> {
    let mut out = SubmissionChange::default();
    for change in changes {
        match change {
            EngineChange::Seconds(left_s) => out.max_duration_s = Some(shorter_limit_s(*left_s)?),
            EngineChange::Count(count) => out.count = Some(*count),
            EngineChange::Nodes(nodes) => out.nodes = Some(*nodes),
            EngineChange::Anywhere | EngineChange::WithoutNvlink => out.topology = Some(Topology::Any),
        }
    }
    Some(out)
}

/// The changes to try for which the organization has the money, with their trials.
async fn priced_changes(
    context: &Context,
    org: OrgId,
    (spec, surcharge): (&NewJob, i64),
    changes: &[Vec<EngineChange>],
) -> Result<Vec<(SuggestedChange, Trial)>, Problem> {
    let mut conn = context.db.read().await?;
    let mut tx = conn.tx();
    let mut offerings = store::offerings::list(&mut tx, context.now()).await?;
    offerings.retain(|offering| offering.price.is_some());
    let available = store::ledger::available(&mut tx, org).await?;
    let storage = uses::storage_classes(&mut tx, org, spec).await?;
    let by_slug = |slug: &str| offerings.iter().find(|offering| offering.slug == slug);
    let Some(own) = by_slug(&spec.offering) else { return Ok(Vec::new()) };
    let offers: Vec<Offered<'_>> = offerings.iter().map(StoredOffering::offered).collect();
    let first = changes.iter().filter_map(|set| engine_change(set)).collect();
    let priced = candidates(spec, own.offered(), &offers, first).into_iter().filter_map(|change| {
        let changed = change.apply(spec.clone());
        let offering = by_slug(&changed.offering)?;
        let price = job_price(&changed, &offering.price?, surcharge).ok()?;
        let suggested = SuggestedChange {
            label: label(&change, own.offered(), offering.offered()),
            change,
            per_hour_micros: per_hour_micros(price.nano_per_second)?,
            worst_case_micros: price.worst_micros,
            currency: context.settings.currency.clone(),
        };
        let trial = trial(&changed, offering, price.nano_per_second, storage.clone());
        (price.worst_micros <= available).then_some((suggested, trial))
    });
    Ok(priced.collect())
}

/// The objects behind all blockers, in order. `None` for a job or a reservation that is not of the organization.
async fn objects(
    tx: &mut Tx<'_>,
    org: OrgId,
    obstacles: &[Obstacles],
) -> Result<Vec<Option<BlockingObject>>, Problem> {
    let named = || obstacles.iter().flat_map(|found| &found.named);
    let id = |obstacle: &Obstacle| match obstacle {
        Obstacle::Job { job, .. } => Some(*job),
        Obstacle::Reservation { .. } | Obstacle::Maintenance { .. } => None,
    };
    let ids: Vec<JobId> = named().filter_map(id).collect();
    let jobs = store::jobs::list_names(tx, org, &ids).await?;
    let placed = jobs.iter().filter(|(.., state)| *state != JobState::Queued && !state.ended());
    let placed: Vec<JobId> = placed.map(|(job, ..)| *job).collect();
    let mut devices = stored_devices(tx, &placed).await?;
    devices.values_mut().for_each(|devices| devices.truncate(MAX_DEVICES));
    let jobs: HashMap<JobId, (String, JobState)> =
        jobs.into_iter().map(|(job, name, state)| (job, (name, state))).collect();
    let mut out = Vec::new();
    for obstacle in named() {
        out.push(match *obstacle {
            Obstacle::Job { job, ends_by, frees_place } => {
                jobs.get(&job).map(|(name, state)| BlockingObject {
                    job: Some(job),
                    state: Some(*state),
                    devices: devices.get(&job).cloned().unwrap_or_default(),
                    ends_by,
                    frees_place,
                    ..BlockingObject::new(BlockingKind::Job, name.clone())
                })
            }
            Obstacle::Reservation { id, from, until } => {
                let row = store::reservations::find(tx, org, ReservationId::from_uuid(id.0)).await?;
                row.map(|row| BlockingObject {
                    reservation: Some(row.id),
                    starts_at: Some(from),
                    ends_by: Some(until),
                    ..BlockingObject::new(BlockingKind::Reservation, row.name)
                })
            }
            Obstacle::Maintenance { from, until } => Some(BlockingObject {
                starts_at: Some(from),
                ends_by: Some(until),
                ..BlockingObject::new(BlockingKind::Maintenance, String::new())
            }),
        });
    }
    Ok(out)
}

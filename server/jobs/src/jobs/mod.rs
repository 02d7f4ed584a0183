//! Submitting and planning jobs; `change` moves them on, `show` shows them.
//!
//! The worst case of a job is held in the transaction that records it, so however many submissions
//! arrive at once, what is held never exceeds what is there.

mod change;
mod show;

use std::collections::BTreeMap;

use berth_core::admission::check_job;
use berth_core::quotas::Need;
use berth_core::rating::{share_rate, total_rate, worst_case_micros};
use berth_types::events::JobEvent;
use berth_types::ids::{JobId, OrgId, TransferId};
use berth_types::jobs::{Condition, Job, JobPlan, JobState, NewJob};
use berth_types::money::{money_text, per_hour_micros};
use berth_types::problems::Problem;
use berth_types::reservations::ReservationState;
use berth_types::time::Timestamp;
use futures::FutureExt;

pub use show::LogEnd;

use crate::charges::hold_posting;
use crate::planner::Planner;
use crate::planner::{cpu_milli, memory_mib};
use crate::quotas::{self, Order};
use berth_billing::budgets;
use berth_foundation::{Caller, Right, idempotency};
use berth_foundation::{Change, Context};
use berth_recordings::Recordings;
use berth_storage::secrets;
use berth_storage::volumes::uses;
use berth_store::jobs::{JobInputs, NewJobRow};
use berth_store::offerings::{StoredOffering, StoredPrice};
use berth_store::{self as store, StoreError, Tx};

/// Seconds between SIGTERM and SIGKILL for jobs that do not choose: the worker's default.
const DEFAULT_GRACE_S: i64 = 10;

/// What a submission costs at most.
#[derive(Debug, Clone, Copy)]
struct Quote {
    rate: i64,
    worst: i64,
}

/// What a device costs this submission: what runs in a reservation is paid with it.
fn rate_of(spec: &NewJob, price: &StoredPrice) -> i64 {
    match (spec.reservation, spec.preemptible) {
        (Some(_), _) => 0,
        (None, true) => price.preemptible(),
        (None, false) => price.nano_per_second,
    }
}

fn quote(spec: &NewJob, nano_per_second: i64) -> Result<Quote, Problem> {
    let rate = match spec.gpu_milli {
        Some(milli) => share_rate(nano_per_second, milli),
        None => total_rate(nano_per_second, spec.count.saturating_mul(spec.nodes)),
    };
    let worst = rate.and_then(|rate| worst_case_micros(rate, spec.max_duration_s));
    let (Some(rate), Some(worst)) = (rate, worst) else {
        return Err(Problem::invalid_field(
            "/max_duration_s",
            "The price of this is beyond any account; ask for less.",
        ));
    };
    Ok(Quote { rate, worst })
}

/// Thousandths of whole boards that a submission takes.
fn board_milli(spec: &NewJob, offering: &StoredOffering) -> i64 {
    let each = offering.cells * 1_000 / offering.board_cells.max(1);
    match spec.gpu_milli {
        Some(milli) => i64::from(milli),
        None => each.saturating_mul(i64::from(spec.count)).saturating_mul(i64::from(spec.nodes)),
    }
}

/// What a submission counts for against limits. The offering is named, not numbered, here.
fn need(spec: &NewJob, boards_milli: i64, nano_per_second: i64) -> Need {
    let devices = i64::from(spec.count) * i64::from(spec.nodes) * 1_000;
    let devices_milli = spec.gpu_milli.map_or(devices, i64::from);
    Need { boards_milli, offering: 0, devices_milli, nano_per_second }
}

pub fn no_such_offering() -> Problem {
    Problem::invalid_field(
        "/offering",
        "There is no such offering; GET /api/v1/offerings lists what there is.",
    )
}

/// A share is of a whole board.
fn check_share(spec: &NewJob, mig_profile: Option<&str>) -> Result<(), Problem> {
    match (spec.gpu_milli, mig_profile) {
        (Some(_), Some(_)) => Err(Problem::invalid_field(
            "/gpu_milli",
            "A MIG slice is not shared further; choose the offering of the whole board.",
        )),
        _ => Ok(()),
    }
}

pub fn no_price() -> Problem {
    Problem::invalid_field(
        "/offering",
        "This offering has no price yet, so it cannot be ordered. Ask the operator to set one.",
    )
}

fn too_little(missing: i64, worst: i64, currency: &str) -> Problem {
    Problem::new(
        402,
        "funds.insufficient",
        "Not enough credit",
        format!(
            "The job can cost up to {}, which is {} more than is available. Shorten it, choose a smaller offering, or add credit. Nothing was started or charged.",
            money_text(worst, currency),
            money_text(missing, currency)
        ),
    )
}

/// The large parts of a submission, and the rest of it as JSON. The names of the files stay in the rest.
fn split(spec: &NewJob) -> serde_json::Result<(JobInputs, String)> {
    let inputs = JobInputs {
        script: spec.script.clone(),
        env: serde_json::to_string(&spec.env)?,
        files: serde_json::to_string(&spec.files)?,
    };
    let files = spec.files.keys().map(|path| (path.clone(), String::new())).collect();
    let rest = NewJob { script: None, env: BTreeMap::new(), files, ..spec.clone() };
    Ok((inputs, serde_json::to_string(&rest)?))
}

/// What a job waits for must be there, and still be able to end as it has to.
async fn check_dependencies(
    tx: &mut Tx<'_>,
    org: OrgId,
    spec: &NewJob,
) -> Result<Option<Problem>, StoreError> {
    for (index, dependency) in spec.depends_on.iter().enumerate() {
        let refuse = |detail: &str| Problem::invalid_field(&format!("/depends_on/{index}/job"), detail);
        let Some(row) = store::jobs::find(tx, org, dependency.job).await? else {
            return Ok(Some(refuse("There is no such job in this organization.")));
        };
        let failed = row.phase.state.ended() && row.phase.state != JobState::Succeeded;
        if failed && dependency.condition == Condition::Succeeded {
            return Ok(Some(refuse("That job has ended without success, so this one would never start.")));
        }
    }
    Ok(None)
}

/// A reservation must be the organization's own, still to be used, and of what is asked for.
async fn check_reservation(
    tx: &mut Tx<'_>,
    org: OrgId,
    spec: &NewJob,
    offering: &StoredOffering,
    now: Timestamp,
) -> Result<Option<Problem>, StoreError> {
    let Some(id) = spec.reservation else { return Ok(None) };
    let refuse = |pointer: &str, detail: String| Ok(Some(Problem::invalid_field(pointer, detail)));
    let Some(row) = store::reservations::find(tx, org, id).await? else {
        return refuse("/reservation", "There is no such reservation in this organization.".to_owned());
    };
    if !ReservationState::parse(&row.state).is_some_and(ReservationState::holds) {
        return refuse("/reservation", format!("That reservation is {}.", row.state));
    }
    if spec.gpu_milli.is_some() {
        return refuse("/gpu_milli", "A job in a reservation takes whole devices of it.".to_owned());
    }
    let whole = row.mig_profile.is_none();
    let same = row.slug.as_deref() == Some(offering.slug.as_str());
    let part = whole && row.gpu_model.as_deref() == Some(offering.gpu_model.as_str());
    if !same && !part {
        let slug = row.slug.unwrap_or_default();
        return refuse("/offering", format!("The reservation is of {slug}; ask for that."));
    }
    if i64::from(spec.nodes) > row.nodes || (same && i64::from(spec.count) > row.gpus_per_node) {
        let detail = format!(
            "The reservation has {} devices on each of {} nodes; ask for no more.",
            row.gpus_per_node, row.nodes
        );
        return refuse("/count", detail);
    }
    // It starts a moment after it is submitted or the reservation begins, and must end before that does.
    let most_s = (row.ends_at - row.starts_at.max(now.micros())) / 1_000_000;
    if i64::try_from(spec.max_duration_s).unwrap_or(i64::MAX) >= most_s {
        let detail = format!("The reservation has {most_s} s for it; limit the job to less than that.");
        return refuse("/max_duration_s", detail);
    }
    Ok(None)
}

enum Submitted {
    New(Box<Job>, JobEvent),
    Refused(Problem),
}

/// The jobs of organizations.
#[derive(Clone)]
pub struct Jobs {
    context: Context,
    planner: Planner,
    recordings: Recordings,
}

impl Jobs {
    pub fn new(context: Context, planner: Planner, recordings: Recordings) -> Self {
        Self { context, planner, recordings }
    }

    /// Records a job, holds its worst case, and puts it in the queue.
    pub async fn submit_job(&self, caller: &Caller, org: OrgId, spec: NewJob) -> Result<Job, Problem> {
        self.context.authorise(caller, org, Right::Run).await?;
        if let Some(made) = caller.done_before() {
            return self.show_job(org, made.parse().map_err(|_| Problem::internal())?).await;
        }
        let errors = check_job(&spec);
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let now = self.context.now();
        self.refuse_what_never_starts(org, &spec, now).await?;
        let (id, hold): (JobId, TransferId) = (self.context.new_id(now), self.context.new_id(now));
        let (inputs, text) = split(&spec).map_err(|_| Problem::internal())?;
        let jobs = self.clone();
        let (created_by, once) = (caller.user.name.clone(), caller.once.clone());
        let done = self.context.db.write(move |tx| {
            let (jobs, spec, text, created_by) =
                (jobs.clone(), spec.clone(), text.clone(), created_by.clone());
            let (inputs, once) = (inputs.clone(), once.clone());
            async move {
                let Some(offering) = store::offerings::find(tx, &spec.offering, now).await? else {
                    return Ok(Submitted::Refused(no_such_offering()));
                };
                let Some(price) = offering.price else { return Ok(Submitted::Refused(no_price())) };
                if let Err(problem) = check_share(&spec, offering.mig_profile.as_deref()) {
                    return Ok(Submitted::Refused(problem));
                }
                if let Some(problem) = check_dependencies(tx, org, &spec).await? {
                    return Ok(Submitted::Refused(problem));
                }
                if let Some(problem) = check_reservation(tx, org, &spec, &offering, now).await? {
                    return Ok(Submitted::Refused(problem));
                }
                if let Some(problem) = secrets::check_wanted(tx, org, &spec).await? {
                    return Ok(Submitted::Refused(problem));
                }
                if let Some(problem) = uses::check_wanted(tx, org, &spec).await? {
                    return Ok(Submitted::Refused(problem));
                }
                let rate = rate_of(&spec, &price);
                let quote = match quote(&spec, rate) {
                    Ok(quote) => quote,
                    Err(problem) => return Ok(Submitted::Refused(problem)),
                };
                let board_milli = board_milli(&spec, &offering);
                let order = Order {
                    slug: offering.slug.clone(),
                    need: need(&spec, board_milli, quote.rate),
                    max_duration_s: i64::try_from(spec.max_duration_s).unwrap_or(i64::MAX),
                };
                let currency = &jobs.context.settings.currency;
                let available = store::ledger::available(tx, org).await?;
                if quote.worst > available {
                    let missing = quote.worst - available;
                    return Ok(Submitted::Refused(too_little(missing, quote.worst, currency)));
                }
                if let Some(problem) =
                    budgets::exceeded(tx, org, &spec.labels, quote.worst, currency, (now, now)).await?
                {
                    return Ok(Submitted::Refused(problem));
                }
                let beyond = match spec.reservation {
                    None => quotas::admit(tx, org, &order, currency, now).await?,
                    // The reservation was counted; the queue is everyone's.
                    Some(_) => {
                        let (limits, _) = quotas::effective(tx, org).await?;
                        quotas::queue_full(tx, org, &limits).await?
                    }
                };
                if let Some(problem) = beyond {
                    return Ok(Submitted::Refused(problem));
                }
                let row = NewJobRow {
                    id,
                    org,
                    name: spec.name.trim().to_owned(),
                    offering: offering.id,
                    spec: text,
                    inputs,
                    priority: spec.priority.rank(),
                    preemptible: spec.preemptible,
                    cpu_milli: cpu_milli(&spec),
                    memory_mib: memory_mib(&spec),
                    nodes: i64::from(spec.nodes),
                    // What a reservation takes is counted with it.
                    board_milli: if spec.reservation.is_some() { 0 } else { board_milli },
                    reservation: spec.reservation,
                    labels: serde_json::to_string(&spec.labels)
                        .map_err(|e| StoreError::Corrupt(e.to_string()))?,
                    device_milli: order.need.devices_milli,
                    grace_s: spec.checkpoint.as_ref().map_or(DEFAULT_GRACE_S, |c| i64::from(c.grace_s)),
                    device_count: i64::from(spec.count),
                    max_duration_s: i64::try_from(spec.max_duration_s).unwrap_or(i64::MAX),
                    price_version: price.version,
                    nano_per_second: quote.rate,
                    held_micros: quote.worst,
                    hold: (quote.worst > 0).then_some(hold),
                    created_by,
                    created_at: now,
                };
                store::jobs::insert(tx, &row).await?;
                uses::record_wanted(tx, org, id, &spec).await?;
                if quote.worst > 0 {
                    let memo = row.name.clone();
                    let posting = hold_posting(hold, org, id, quote.worst, memo, now);
                    store::ledger::post(tx, &posting).await?;
                }
                let detail = "Submitted; its worst case is set aside.".to_owned();
                let event =
                    JobEvent { job: id, seq: 1, at: now, state: JobState::Queued, attempt: 0, detail };
                store::jobs::insert_event(tx, org, &event).await?;
                let stored = store::jobs::find(tx, org, id).await?.ok_or(StoreError::Unknown)?;
                let job = Job { script: row.inputs.script, ..jobs.job(stored, vec![])? };
                idempotency::claim(tx, once.as_ref(), &id.to_string(), now).await?;
                Ok(Submitted::New(Box::new(job), event))
            }
            .boxed()
        });
        match done.await? {
            Submitted::New(job, event) => {
                self.context.publish(Change::Job { org, job: job.id, event: Some(event) });
                Ok(*job)
            }
            Submitted::Refused(problem) => Err(problem),
        }
    }

    /// Refuses what no node of the cloud could ever take: it would hold its worst case for ever. What a
    /// reservation was confirmed for has its boards.
    async fn refuse_what_never_starts(
        &self,
        org: OrgId,
        spec: &NewJob,
        now: Timestamp,
    ) -> Result<(), Problem> {
        if spec.reservation.is_some() {
            return Ok(());
        }
        let offering = {
            let mut conn = self.context.db.read().await?;
            store::offerings::find(&mut conn.tx(), &spec.offering, now).await?
        };
        // What is not on offer, or has no price, is refused for that.
        let Some(offering) = offering.filter(|o| o.price.is_some()) else { return Ok(()) };
        check_share(spec, offering.mig_profile.as_deref())?;
        let Some(why) = self.planner.never(org, spec, &offering).await? else { return Ok(()) };
        let Some(blocker) = why.blockers.first() else { return Ok(()) };
        let detail = format!("{} {}", blocker.detail, blocker.change);
        Err(Problem::new(422, "job.never_starts", "It could never start", detail))
    }

    /// What a submission would cost at most, and whether there is enough for it. Changes nothing.
    pub async fn plan_job(&self, caller: &Caller, org: OrgId, spec: &NewJob) -> Result<JobPlan, Problem> {
        self.context.authorise(caller, org, Right::Run).await?;
        let errors = check_job(spec);
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let offering = store::offerings::find(&mut tx, &spec.offering, self.context.now())
            .await?
            .ok_or_else(no_such_offering)?;
        let price = offering.price.ok_or_else(no_price)?;
        check_share(spec, offering.mig_profile.as_deref())?;
        if let Some(problem) = secrets::check_wanted(&mut tx, org, spec).await? {
            return Err(problem);
        }
        if let Some(problem) = uses::check_wanted(&mut tx, org, spec).await? {
            return Err(problem);
        }
        let quote = quote(spec, rate_of(spec, &price))?;
        let available = store::ledger::available(&mut tx, org).await?;
        drop(conn);
        self.planner.refresh().await?;
        let (why, places) = self.planner.trial(org, spec, &offering, quote.rate);
        let mut conn = self.context.db.read().await?;
        let mut placement = Vec::new();
        for (node, slots) in places {
            placement.extend(self.devices_of(&mut conn.tx(), node, &slots).await?);
        }
        Ok(JobPlan {
            offering: offering.slug,
            price_version: price.version,
            per_hour_micros: per_hour_micros(quote.rate).unwrap_or(i64::MAX),
            worst_case_micros: quote.worst,
            available_micros: available,
            affordable: quote.worst <= available,
            currency: self.context.settings.currency.clone(),
            placement,
            blockers: why.blockers,
        })
    }
}

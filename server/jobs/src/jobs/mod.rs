//! The submission and the plan of jobs. `checks` has the price and the checks, `change` the later changes by
//! members, and `show` the API's view of jobs.
//!
//! The transaction of a job's record also holds its worst case. So concurrent submissions together never hold
//! more than the available money.

pub mod log_streams;
pub mod routes;
pub mod streams;

mod change;
mod checks;
mod replicas;
mod show;
mod waits;

use std::sync::Arc;

use berth_core::admission::check_job;
use berth_types::events::JobEvent;
use berth_types::ids::{JobId, OrgId, ServiceId, TransferId};
use berth_types::jobs::{Job, JobPlan, JobState, NewJob};
use berth_types::money::per_hour_micros;
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use futures::FutureExt;

pub use checks::{no_price, no_such_offering};
pub use replicas::{check_replica_job, is_own_wait};
pub use show::LogEnd;

use self::checks::{
    JobPrice, board_milli, check_rdma, check_references, check_slice, insufficient_funds, is_rdma_granted,
    job_price, quota_need,
};
use self::show::plan_devices;
use crate::charges::hold_posting;
use crate::planner::Planner;
use crate::planner::{cpu_milli, memory_mib};
use crate::quotas::{self, SubmissionDemand};
use berth_billing::budgets;
use berth_foundation::callers::IdempotencyKey;
use berth_foundation::{Caller, Right, idempotency};
use berth_foundation::{Change, Context};
use berth_recordings::Recordings;
use berth_storage::allowance::StorageLimits;
use berth_storage::volumes::uses;
use berth_store::jobs::{JobInputs, NewStoredJob};
use berth_store::offerings::StoredOffering;
use berth_store::types::JsonColumn;
use berth_store::{self as store, StoreError, Tx, WriteError};

/// The grace in seconds of jobs without a checkpoint: the worker's default.
const DEFAULT_GRACE_S: i64 = 10;

/// Splits a submission into its large inputs and the rest. The names of the files stay in the rest.
fn split_inputs(mut spec: NewJob) -> (JobInputs, NewJob) {
    let names = spec.files.keys().map(|path| (path.clone(), String::new())).collect();
    let inputs = JobInputs {
        script: spec.script.take(),
        env: JsonColumn(std::mem::take(&mut spec.env)),
        files: JsonColumn(std::mem::replace(&mut spec.files, names)),
    };
    (inputs, spec)
}

/// The submitter of a job.
#[derive(Clone)]
struct Submitter {
    name: String,
    /// The service whose replica the job is.
    service: Option<ServiceId>,
}

/// A submission with everything for its record.
#[derive(Clone)]
struct Submission {
    id: JobId,
    hold: TransferId,
    org: OrgId,
    /// The submission without its inputs.
    spec: Arc<NewJob>,
    inputs: JobInputs,
    by: Submitter,
    at: Timestamp,
}

impl Submission {
    fn into_row(
        self,
        offering: &StoredOffering,
        (price_version, surcharge): (i64, i64),
        price: JobPrice,
        demand: &SubmissionDemand,
    ) -> NewStoredJob {
        let spec = &self.spec;
        NewStoredJob {
            id: self.id,
            org: self.org,
            name: spec.name.trim().to_owned(),
            offering: offering.id,
            spec: JsonColumn(NewJob::clone(spec)),
            inputs: self.inputs,
            priority: spec.priority.rank(),
            preemptible: spec.preemptible,
            cpu_milli: cpu_milli(spec),
            memory_mib: memory_mib(spec),
            nodes: i64::from(spec.nodes),
            // The boards of a reservation count with the reservation.
            board_milli: if spec.reservation.is_some() { 0 } else { demand.need.boards_milli },
            reservation: spec.reservation,
            labels: JsonColumn(spec.labels.clone()),
            device_milli: demand.need.devices_milli,
            grace_s: spec.checkpoint.as_ref().map_or(DEFAULT_GRACE_S, |c| i64::from(c.grace_s)),
            device_count: i64::from(spec.count),
            max_duration_s: demand.max_duration_s,
            price_version,
            nano_per_second: price.nano_per_second,
            surcharge_basis_points: surcharge,
            held_micros: price.worst_micros,
            hold: (price.worst_micros > 0).then_some(self.hold),
            created_by: self.by.name,
            created_at: self.at,
        }
    }
}

/// Submits a job under an id. `key` is the key of the request, if it has one.
async fn submit(
    jobs: &Jobs,
    (id, org): (JobId, OrgId),
    spec: NewJob,
    by: Submitter,
    key: Option<IdempotencyKey>,
) -> Result<Job, Problem> {
    // The revision of a replica was checked when it was made: a later rule does not stop its service.
    let errors = if by.service.is_some() { Vec::new() } else { check_job(&spec) };
    if !errors.is_empty() {
        return Err(Problem::invalid(errors));
    }
    jobs.context.disk.check_submission()?;
    let now = jobs.context.now();
    jobs.refuse_impossible(org, &spec, now).await?;
    let hold: TransferId = jobs.context.new_id(now);
    let (inputs, spec) = split_inputs(spec);
    let spec = Arc::new(spec);
    let submission = Submission { id, hold, org, spec, inputs, by, at: now };
    let own = jobs.clone();
    let done = jobs.context.db.try_write(move |tx| {
        let (jobs, submission, key) = (own.clone(), submission.clone(), key.clone());
        async move {
            let submitted = jobs.record_submission(tx, submission).await?;
            idempotency::claim(tx, key.as_ref(), &id.to_string(), now).await?;
            Ok(submitted)
        }
        .boxed()
    });
    let (job, event) = done.await?;
    jobs.context.publish(Change::Job { org, job: id, event: Some(event) });
    Ok(job)
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
    ///
    /// # Errors
    /// The submission is invalid, could never start, or is beyond a limit of the organization.
    pub async fn submit_job(&self, caller: &Caller, org: OrgId, spec: NewJob) -> Result<Job, Problem> {
        self.context.authorise(caller, org, Right::Run).await?;
        if let Some(created) = caller.already_created() {
            return self.show_job(org, created.parse().map_err(|_| Problem::internal())?).await;
        }
        let id = self.context.new_id(self.context.now());
        let by = Submitter { name: caller.user.name.clone(), service: None };
        submit(self, (id, org), spec, by, caller.idempotency_key.clone()).await
    }

    /// Submits the job of a replica under the id that its service has chosen, with the surcharge of the service's promise.
    /// Returns false if it exists already.
    ///
    /// # Errors
    /// As for any submission.
    pub async fn submit_replica(
        &self,
        id: JobId,
        (org, service): (OrgId, ServiceId),
        spec: NewJob,
        created_by: String,
    ) -> Result<bool, Problem> {
        let mut conn = self.context.db.read().await?;
        let found = store::jobs::find_any(&mut conn.tx(), id).await?;
        drop(conn);
        if found.is_some() {
            return Ok(false);
        }
        let by = Submitter { name: created_by, service: Some(service) };
        submit(self, (id, org), spec, by, None).await.map(|_| true)
    }

    /// Checks a submission against the stored state, and records it with its hold if nothing is against it.
    ///
    /// # Errors
    /// A refusal if the submission names unknown objects, or is beyond the credit or a limit.
    async fn record_submission(
        &self,
        tx: &mut Tx<'_>,
        submission: Submission,
    ) -> Result<(Job, JobEvent), WriteError> {
        let (id, org, now) = (submission.id, submission.org, submission.at);
        let (spec, hold) = (submission.spec.clone(), submission.hold);
        let Some(offering) = store::offerings::find(tx, &spec.offering, now).await? else {
            return Err(no_such_offering().into());
        };
        let Some(price) = offering.price else { return Err(no_price().into()) };
        check_references(tx, org, &spec, &offering, now).await?;
        // Read in this transaction, so that the rate is that of the promise at the submission.
        let surcharge = replicas::surcharge(tx, submission.by.service).await?;
        let job_price = job_price(&spec, &price, surcharge)?;
        let demand = SubmissionDemand {
            slug: offering.slug.clone(),
            need: quota_need(&spec, board_milli(&spec, &offering), job_price.nano_per_second),
            max_duration_s: i64::try_from(spec.max_duration_s).unwrap_or(i64::MAX),
        };
        self.check_limits(tx, &submission, &demand, job_price.worst_micros).await?;
        let row = submission.into_row(&offering, (price.version, surcharge), job_price, &demand);
        store::jobs::insert(tx, &row).await?;
        uses::record_volumes(tx, org, id, &spec).await?;
        if job_price.worst_micros > 0 {
            let memo = row.name.clone();
            let posting = hold_posting(hold, org, id, job_price.worst_micros, memo, now);
            store::ledger::post(tx, &posting).await?;
        }
        let detail = "Submitted; the maximum cost is reserved.".to_owned();
        let event = JobEvent { job: id, seq: 1, at: now, state: JobState::Queued, attempt: 0, detail };
        store::job_events::insert_event(tx, org, &event).await?;
        let stored = store::jobs::find(tx, org, id).await?.ok_or(StoreError::Unknown)?;
        let job = Job { script: row.inputs.script, ..self.job_from_row(stored, vec![]) };
        Ok((job, event))
    }

    /// Counts a submission against the quota of its organization. If the storage, the balance, a budget or the
    /// quota does not allow it, refuses it and changes nothing.
    async fn check_limits(
        &self,
        tx: &mut Tx<'_>,
        submission: &Submission,
        demand: &SubmissionDemand,
        worst_micros: i64,
    ) -> Result<(), WriteError> {
        let (org, now, spec) = (submission.org, submission.at, &submission.spec);
        let currency = &self.context.settings.currency;
        let JobInputs { script, env, files } = &submission.inputs;
        let bytes = store::storage::submission_bytes(spec, script.as_deref(), [&env.0, &files.0])?;
        StorageLimits::new(&self.context.settings).check_submission(tx, org, bytes).await?;
        let available = store::ledger::available(tx, org).await?;
        if worst_micros > available {
            return Err(insufficient_funds(worst_micros - available, worst_micros, currency).into());
        }
        budgets::check_cost(tx, org, &spec.labels, worst_micros, currency, (now, now)).await?;
        match spec.reservation {
            None => quotas::admit(tx, org, demand, currency, now).await,
            // The reservation is counted already; only the limit of waiting jobs remains.
            Some(_) => {
                let (limits, _) = quotas::effective(tx, org).await?;
                quotas::check_queue(tx, org, &limits).await
            }
        }
    }

    /// Refuses a submission that no node could ever run: it would hold its worst case for ever. A job in a
    /// reservation has its boards.
    async fn refuse_impossible(&self, org: OrgId, spec: &NewJob, now: Timestamp) -> Result<(), Problem> {
        if spec.reservation.is_some() {
            return Ok(());
        }
        let (offering, is_granted) = {
            let mut conn = self.context.db.read().await?;
            let mut tx = conn.tx();
            let offering = store::offerings::find(&mut tx, &spec.offering, now).await?;
            (offering, spec.rdma && is_rdma_granted(&mut tx, org).await?)
        };
        // The check in the transaction refuses an unknown offering and an offering without a price.
        let Some(offering) = offering.filter(|o| o.price.is_some()) else { return Ok(()) };
        check_slice(spec, offering.mig_profile.as_deref())?;
        check_rdma(spec, offering.mig_profile.as_deref(), is_granted)?;
        let Some(why) = self.planner.explain_impossible(org, spec, &offering).await? else { return Ok(()) };
        let Some(blocker) = why.blockers.first() else { return Ok(()) };
        let detail = format!("{} {}", blocker.detail, blocker.change);
        Err(Problem::new(422, "job.never_starts", "Job cannot start", detail))
    }

    /// The plan of a submission: its highest price, the available money, and the devices of a start at once.
    /// Changes nothing.
    ///
    /// # Errors
    /// The submission is invalid or names unknown objects.
    pub async fn plan_job(&self, caller: &Caller, org: OrgId, spec: &NewJob) -> Result<JobPlan, Problem> {
        self.context.authorise(caller, org, Right::Run).await?;
        let errors = check_job(spec);
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let now = self.context.now();
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let offering =
            store::offerings::find(&mut tx, &spec.offering, now).await?.ok_or_else(no_such_offering)?;
        let price = offering.price.ok_or_else(no_price)?;
        check_references(&mut tx, org, spec, &offering, now).await?;
        let reservation = match spec.reservation {
            Some(id) => store::reservations::find(&mut tx, org, id).await?,
            None => None,
        };
        let job_price = job_price(spec, &price, 0)?;
        let available = store::ledger::available(&mut tx, org).await?;
        let storage = uses::storage_classes(&mut tx, org, spec).await?;
        drop(conn);
        self.planner.refresh().await?;
        let rate = job_price.nano_per_second;
        let (details, places) = self.planner.dry_run(org, spec, &offering, rate, storage).await;
        let why = waits::complete(&self.context, org, (spec, 0), details).await?;
        let mut conn = self.context.db.read().await?;
        let placement = plan_devices(&mut conn.tx(), places).await?;
        Ok(JobPlan {
            offering: offering.slug,
            price_version: price.version,
            per_hour_micros: per_hour_micros(job_price.nano_per_second).unwrap_or(i64::MAX),
            worst_case_micros: job_price.worst_micros,
            available_micros: available,
            affordable: job_price.worst_micros <= available,
            currency: self.context.settings.currency.clone(),
            placement,
            reservation_starts_at: reservation.map(|row| row.starts_at).filter(|at| *at > now),
            blockers: why.blockers,
            suggested_changes: why.suggested_changes,
        })
    }
}

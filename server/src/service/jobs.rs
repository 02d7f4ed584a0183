//! Submitting, showing and stopping jobs.
//!
//! The worst case of a job is held in the transaction that records it, so however many submissions
//! arrive at once, what is held never exceeds what is there.

use berth_core::admission::check_job;
use berth_core::jobs::{Effect, Event, Machine, Rejected, StopCause};
use berth_core::rating::{total_rate, worst_case_micros};
use berth_types::Page;
use berth_types::events::JobEvent;
use berth_types::ids::{JobId, OrgId, TransferId};
use berth_types::jobs::{Action, Failure, Job, JobPlan, JobState, NewJob};
use berth_types::ledger::TransferKind;
use berth_types::money::{money_text, per_hour_micros};
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use futures::FutureExt;

use super::{Caller, Right};
use crate::portal::Portal;
use crate::store::accounts::Replay;
use crate::store::jobs::{JobRow, JobUpdate, NewJobRow};
use crate::store::ledger::Posting;
use crate::store::{self, StoreError};

/// A key that the caller chose, and the fingerprint of the request that came with it.
#[derive(Debug, Clone)]
pub struct Idempotency {
    pub key: String,
    pub request_hash: String,
}

/// What a submission costs at most.
#[derive(Debug, Clone, Copy)]
struct Quote {
    rate: i64,
    worst: i64,
}

fn quote(spec: &NewJob, nano_per_second: i64) -> Result<Quote, Problem> {
    let rate = total_rate(nano_per_second, spec.count);
    let worst = worst_case_micros(nano_per_second, spec.count, spec.max_duration_s);
    let (Some(rate), Some(worst)) = (rate, worst) else {
        return Err(Problem::invalid_field(
            "/max_duration_s",
            "The price of this is beyond any account; ask for less.",
        ));
    };
    Ok(Quote { rate, worst })
}

fn no_such_offering() -> Problem {
    Problem::invalid_field(
        "/offering",
        "There is no such offering; GET /api/v1/offerings lists what there is.",
    )
}

fn no_price() -> Problem {
    Problem::invalid_field(
        "/offering",
        "This offering has no price yet, so it cannot be ordered. Ask the operator to set one.",
    )
}

fn key_reused() -> Problem {
    Problem::new(
        422,
        "idempotency.other_request",
        "The key belongs to another request",
        "This Idempotency-Key was used with a different body. Use a new key for a new request.",
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

enum Submitted {
    New(Box<Job>),
    Refused(Problem),
    Replayed(Replay),
}

impl Portal {
    /// Records a job, holds its worst case, and puts it in the queue. The same key with the same
    /// request gives the first answer again.
    pub async fn submit_job(
        &self,
        caller: &Caller,
        org: OrgId,
        spec: NewJob,
        idempotency: Option<Idempotency>,
    ) -> Result<Job, Problem> {
        self.authorise(caller, org, Right::Run).await?;
        let errors = check_job(&spec);
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let now = self.now();
        let (id, hold): (JobId, TransferId) = (self.new_id(now), self.new_id(now));
        let text = serde_json::to_string(&spec).map_err(|_| Problem::internal())?;
        let portal = self.clone();
        let created_by = caller.user.name.clone();
        let done = self.db.write(move |tx| {
            let (portal, spec, text, created_by) =
                (portal.clone(), spec.clone(), text.clone(), created_by.clone());
            let idempotency = idempotency.clone();
            async move {
                let scope = org.to_string();
                if let Some(ask) = &idempotency
                    && let Some(replay) = store::accounts::find_idempotency(tx, &scope, &ask.key).await?
                {
                    let same = replay.request_hash == ask.request_hash;
                    return Ok(if same {
                        Submitted::Replayed(replay)
                    } else {
                        Submitted::Refused(key_reused())
                    });
                }
                let Some(offering) = store::offerings::find(tx, &spec.offering).await? else {
                    return Ok(Submitted::Refused(no_such_offering()));
                };
                let Some(price) = offering.price else { return Ok(Submitted::Refused(no_price())) };
                let quote = match quote(&spec, price.nano_per_second) {
                    Ok(quote) => quote,
                    Err(problem) => return Ok(Submitted::Refused(problem)),
                };
                let (posted, held) = store::ledger::balance(tx, org).await?;
                if quote.worst > posted - held {
                    let missing = quote.worst - (posted - held);
                    return Ok(Submitted::Refused(too_little(
                        missing,
                        quote.worst,
                        &portal.settings.currency,
                    )));
                }
                let row = NewJobRow {
                    id,
                    org,
                    name: spec.name.trim().to_owned(),
                    offering: offering.id,
                    spec: text,
                    priority: spec.priority.rank(),
                    device_count: i64::from(spec.count),
                    max_duration_s: i64::try_from(spec.max_duration_s).unwrap_or(i64::MAX),
                    price_version: price.version,
                    nano_per_second: quote.rate,
                    held_micros: quote.worst,
                    created_by,
                    created_at: now,
                };
                store::jobs::insert(tx, &row).await?;
                if quote.worst > 0 {
                    let memo = row.name.clone();
                    let posting = hold_posting(hold, org, id, quote.worst, memo, now);
                    store::ledger::post(tx, &posting).await?;
                }
                let event = JobEvent {
                    job: id,
                    seq: 1,
                    at: now,
                    state: JobState::Queued,
                    attempt: 0,
                    detail: "Submitted; its worst case is set aside.".to_owned(),
                };
                store::jobs::insert_event(tx, org, &event).await?;
                let stored = store::jobs::find(tx, org, id).await?.ok_or(StoreError::Unknown)?;
                let job = portal.job(stored)?;
                if let Some(ask) = &idempotency {
                    let answer =
                        serde_json::to_string(&job).map_err(|e| StoreError::Corrupt(e.to_string()))?;
                    let replay = Replay { request_hash: ask.request_hash.clone(), status: 201, answer };
                    if !store::accounts::insert_idempotency(tx, &scope, &ask.key, &replay, now).await? {
                        return Err(StoreError::Contended);
                    }
                }
                Ok(Submitted::New(Box::new(job)))
            }
            .boxed()
        });
        match done.await? {
            Submitted::New(job) => Ok(*job),
            Submitted::Refused(problem) => Err(problem),
            Submitted::Replayed(replay) => {
                serde_json::from_str(&replay.answer).map_err(|_| Problem::internal())
            }
        }
    }

    /// What a submission would cost at most, and whether there is enough for it. Changes nothing.
    pub async fn plan_job(&self, caller: &Caller, org: OrgId, spec: &NewJob) -> Result<JobPlan, Problem> {
        self.authorise(caller, org, Right::Run).await?;
        let errors = check_job(spec);
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let mut conn = self.db.read().await?;
        let mut tx = conn.tx();
        let offering = store::offerings::find(&mut tx, &spec.offering).await?.ok_or_else(no_such_offering)?;
        let price = offering.price.ok_or_else(no_price)?;
        let quote = quote(spec, price.nano_per_second)?;
        let (posted, held) = store::ledger::balance(&mut tx, org).await?;
        let shape = berth_core::plan::Shape {
            model: offering.gpu_model,
            profile: offering.mig_profile,
            count: spec.count,
        };
        let why = berth_core::plan::explain(&[], &shape, 0, self.now());
        Ok(JobPlan {
            offering: offering.slug,
            price_version: price.version,
            per_hour_micros: per_hour_micros(quote.rate).unwrap_or(i64::MAX),
            worst_case_micros: quote.worst,
            available_micros: posted - held,
            affordable: quote.worst <= posted - held,
            currency: self.settings.currency.clone(),
            placement: Vec::new(),
            blockers: why.blockers,
        })
    }

    pub async fn get_job(&self, caller: &Caller, org: OrgId, job: JobId) -> Result<Job, Problem> {
        self.authorise(caller, org, Right::Look).await?;
        let mut conn = self.db.read().await?;
        let row = store::jobs::find(&mut conn.tx(), org, job).await?.ok_or_else(Problem::not_found)?;
        Ok(self.job(row)?)
    }

    /// Jobs, newest first.
    pub async fn list_jobs(
        &self,
        caller: &Caller,
        org: OrgId,
        state: Option<JobState>,
        cursor: Option<JobId>,
        limit: u32,
    ) -> Result<Page<Job>, Problem> {
        self.authorise(caller, org, Right::Look).await?;
        let before = cursor.map_or_else(String::new, |c| c.to_string());
        let mut conn = self.db.read().await?;
        let state = state.map_or("", JobState::name);
        let rows = store::jobs::list(&mut conn.tx(), org, state, &before, i64::from(limit)).await?;
        let full = rows.len() == limit as usize;
        let items = rows.into_iter().map(|row| self.job(row)).collect::<Result<Vec<_>, _>>()?;
        let next_cursor = items.last().filter(|_| full).map(|j| j.id.to_string());
        Ok(Page { items, next_cursor })
    }

    pub async fn list_job_events(
        &self,
        caller: &Caller,
        org: OrgId,
        job: JobId,
        after: i64,
    ) -> Result<Page<JobEvent>, Problem> {
        self.get_job(caller, org, job).await?;
        let mut conn = self.db.read().await?;
        Ok(Page::whole(store::jobs::list_events(&mut conn.tx(), job, after).await?))
    }

    /// Asks a job to end. Asking twice is the same as asking once; a job that ended otherwise is a 409.
    pub async fn cancel_job(&self, caller: &Caller, org: OrgId, job: JobId) -> Result<Job, Problem> {
        self.authorise(caller, org, Right::Run).await?;
        let now = self.now();
        let (release, usage): (TransferId, TransferId) = (self.new_id(now), self.new_id(now));
        let portal = self.clone();
        let done = self.db.write(move |tx| {
            let portal = portal.clone();
            async move {
                let Some(row) = store::jobs::find(tx, org, job).await? else {
                    return Ok(Err(Problem::not_found()));
                };
                let (machine, generation) = (machine(&row)?, row.generation);
                let applied = machine.apply(Event::Cancel);
                let (next, effects) = match applied {
                    Ok(change) => change,
                    Err(Rejected::NoChange) => return Ok(Ok(portal.job(row)?)),
                    Err(Rejected::Ended) if machine.state() == JobState::Cancelled => {
                        return Ok(Ok(portal.job(row)?));
                    }
                    Err(_) => {
                        let detail = format!(
                            "The job is {} already; nothing was changed.",
                            row.state.replace('_', " ")
                        );
                        return Ok(Err(Problem::conflict("job.ended", "The job has ended", detail)));
                    }
                };
                let settle = effects.contains(&Effect::Settle);
                if settle {
                    settle_job(tx, &row, org, job, (usage, release), now).await?;
                }
                let update = JobUpdate {
                    job,
                    generation,
                    state: next.state(),
                    stop_cause: matches!(next, Machine::Stopping { .. }).then_some("cancelled"),
                    held_micros: if settle { 0 } else { row.held_micros },
                    ended_at: next.state().ended().then_some(now),
                    exit_code: None,
                    failure: None,
                };
                store::jobs::update(tx, &update).await?;
                let event = JobEvent {
                    job,
                    seq: generation + 1,
                    at: now,
                    state: next.state(),
                    attempt: u32::try_from(row.attempt).unwrap_or(0),
                    detail: "Stopped by a member.".to_owned(),
                };
                store::jobs::insert_event(tx, org, &event).await?;
                let row = store::jobs::find(tx, org, job).await?.ok_or(StoreError::Unknown)?;
                Ok(Ok(portal.job(row)?))
            }
            .boxed()
        });
        done.await?
    }

    /// The wire form of a stored job.
    fn job(&self, row: JobRow) -> Result<Job, StoreError> {
        let corrupt = |what: &str| StoreError::Corrupt(format!("job {}: {what}", row.id));
        let spec: NewJob = serde_json::from_str(&row.spec).map_err(|_| corrupt("spec"))?;
        let state = JobState::parse(&row.state).ok_or_else(|| corrupt("state"))?;
        let time = Timestamp::from_micros;
        let actions = match state {
            JobState::Queued | JobState::Assigned | JobState::Starting | JobState::Running => {
                vec![Action::Cancel]
            }
            _ => vec![],
        };
        Ok(Job {
            id: row.id.parse().map_err(|_| corrupt("id"))?,
            org: row.org_id.parse().map_err(|_| corrupt("org"))?,
            state,
            reasons: vec![],
            attempt: u32::try_from(row.attempt).unwrap_or(0),
            offering: row.slug,
            simulated: row.simulated,
            count: spec.count,
            priority: spec.priority,
            command: spec.command,
            script: spec.script,
            files: spec.files.into_keys().collect(),
            labels: spec.labels,
            max_duration_s: u64::try_from(row.max_duration_s).unwrap_or(0),
            devices: vec![],
            created_at: time(row.created_at),
            created_by: row.created_by,
            started_at: row.started_at.map(time),
            ended_at: row.ended_at.map(time),
            exit_code: row.exit_code.and_then(|c| i32::try_from(c).ok()),
            failure: row
                .failure_code
                .map(|code| Failure { code, detail: row.failure_detail.unwrap_or_default() }),
            metered_ms: row.metered_ms,
            cost_micros: row.cost_micros,
            held_micros: row.held_micros,
            nano_per_second: row.nano_per_second,
            currency: self.settings.currency.clone(),
            price_version: row.price_version,
            generation: row.generation,
            actions,
            name: row.name,
        })
    }
}

fn machine(row: &JobRow) -> Result<Machine, StoreError> {
    let state = JobState::parse(&row.state).ok_or_else(|| StoreError::Corrupt(row.state.clone()))?;
    let stop = match row.stop_cause.as_deref() {
        Some("timed_out") => Some(StopCause::TimedOut),
        Some(_) => Some(StopCause::Cancelled),
        None => None,
    };
    Ok(Machine::restore(state, u32::try_from(row.attempt).unwrap_or(0), stop))
}

fn hold_posting(
    id: TransferId,
    org: OrgId,
    job: JobId,
    amount_micros: i64,
    memo: String,
    at: Timestamp,
) -> Posting {
    let kind = TransferKind::Hold;
    Posting {
        id,
        org,
        kind,
        amount_micros,
        pending: None,
        source: "job",
        source_id: job.to_string(),
        seq: 1,
        memo,
        at,
    }
}

/// Posts what was used since the last posting and gives back the rest of the hold.
async fn settle_job(
    tx: &mut store::Tx<'_>,
    row: &JobRow,
    org: OrgId,
    job: JobId,
    (usage, release): (TransferId, TransferId),
    at: Timestamp,
) -> Result<(), StoreError> {
    let due = row.cost_micros - row.posted_micros;
    let pending = store::ledger::find_hold(tx, "job", &row.id).await?;
    let posting = |id, kind, amount_micros| Posting {
        kind,
        pending,
        seq: row.generation,
        ..hold_posting(id, org, job, amount_micros, row.name.clone(), at)
    };
    if due > 0 {
        store::ledger::post(tx, &posting(usage, TransferKind::Usage, due)).await?;
    }
    let rest = row.held_micros - due;
    if rest > 0 {
        store::ledger::post(tx, &posting(release, TransferKind::Release, rest)).await?;
    }
    Ok(())
}

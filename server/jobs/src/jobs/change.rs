//! The changes of jobs by members: cancelling and extending.

use std::collections::HashMap;

use berth_core::jobs::{MachineEvent, Rejected};
use berth_core::rating::charge_micros;
use berth_types::events::JobEvent;
use berth_types::ids::{JobId, OrgId};
use berth_types::jobs::{ExtendJob, Job, JobState};
use berth_types::money::money_text;
use berth_types::problems::Problem;
use berth_types::time::{Timestamp, duration_text};
use futures::FutureExt;

use super::Jobs;
use crate::charges::hold_posting;
use crate::planner::bookings::is_free;
use crate::quotas;
use crate::transitions::{advance, machine};
use berth_billing::budgets;
use berth_foundation::{Caller, Right, idempotency};
use berth_foundation::{Change, Context};
use berth_store::jobs::StoredJob;
use berth_store::ledger::Posting;
use berth_store::reservations::{StoredDevice, StoredPlaces};
use berth_store::{self as store, StoreError, Tx, WriteError};

fn already_ended(row: &StoredJob) -> Problem {
    let detail =
        format!("The job is already {}. Nothing was changed.", row.phase.state.name().replace('_', " "));
    Problem::conflict("job.ended", "Job ended", detail)
}

impl Jobs {
    /// Cancels a job. A second call changes nothing.
    ///
    /// # Errors
    /// The job is unknown or has ended in another way.
    pub async fn cancel_job(&self, caller: &Caller, org: OrgId, job: JobId) -> Result<Job, Problem> {
        self.context.authorise(caller, org, Right::Run).await?;
        let now = self.context.now();
        let context = self.context.clone();
        let by = caller.user.name.clone();
        let audit = self.context.audit_event(caller, "job.cancelled", job.to_string(), String::new());
        let done = self.context.db.try_write(move |tx| {
            let (context, by, audit) = (context.clone(), by.clone(), audit.clone());
            async move {
                let Some(mut row) = store::jobs::find(tx, org, job).await? else {
                    return Err(Problem::not_found().into());
                };
                let detail = format!("Stopped by {by}.");
                match machine(&row).apply(MachineEvent::Cancel) {
                    Ok(_) => {
                        store::quotas::insert_audit(tx, Some(org), &audit).await?;
                        Ok(advance(tx, &context, &mut row, MachineEvent::Cancel, detail, now).await?)
                    }
                    Err(Rejected::NoChange) => Ok(None),
                    Err(Rejected::Ended) if row.phase.state == JobState::Cancelled => Ok(None),
                    Err(_) => Err(already_ended(&row).into()),
                }
            }
            .boxed()
        });
        if let Some(event) = done.await? {
            self.publish_assignments(job).await?;
            self.context.publish(Change::Job { org, job, event: Some(event) });
        }
        self.show_job(org, job).await
    }

    /// Gives a job a longer time limit, and holds the additional worst case.
    ///
    /// # Errors
    /// The job is unknown or has ended, its devices are promised to others, or the limit is beyond a limit of
    /// the organization.
    pub async fn extend_job(
        &self,
        caller: &Caller,
        org: OrgId,
        job: JobId,
        input: ExtendJob,
    ) -> Result<Job, Problem> {
        self.context.authorise(caller, org, Right::Run).await?;
        if caller.already_created().is_some() {
            return self.show_job(org, job).await;
        }
        let now = self.context.now();
        let (context, key) = (self.context.clone(), caller.idempotency_key.clone());
        // No reservation may get its devices between the check and the longer limit.
        let reading = self.planner.lock_reading().await;
        let done = self.context.db.try_write(move |tx| {
            let (context, key) = (context.clone(), key.clone());
            async move {
                let Some(row) = store::jobs::find(tx, org, job).await? else {
                    return Err(Problem::not_found().into());
                };
                let event = extend(tx, &context, &row, input, now).await?;
                idempotency::claim(tx, key.as_ref(), "", now).await?;
                Ok(event)
            }
            .boxed()
        });
        let done = done.await;
        self.context.publish(Change::JobDevices(job));
        drop(reading);
        let event = done?;
        self.publish_assignments(job).await?;
        self.context.publish(Change::Job { org, job, event: Some(event) });
        self.show_job(org, job).await
    }

    /// Publishes a change of the assignments of the job's nodes.
    async fn publish_assignments(&self, job: JobId) -> Result<(), StoreError> {
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let Some(row) = store::jobs::find_any(&mut tx, job).await? else { return Ok(()) };
        let slots = store::attempts::list_allocations(&mut tx, row.id, row.attempt).await?;
        for slot in slots {
            self.context.publish(Change::Assignments(slot.node_id));
        }
        Ok(())
    }
}

/// Returns true if a job can run up to a longer limit without a conflict with a reservation or maintenance.
async fn is_clear_until(
    tx: &mut Tx<'_>,
    row: &StoredJob,
    limit_s: i64,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let mut earliest = now;
    let mut last = None;
    if let Some(id) = row.reservation_id {
        let Some(reservation) = store::reservations::find_any(tx, id).await? else { return Ok(false) };
        earliest = now.max(reservation.starts_at);
        // A start takes a moment, so a job without one gets a second less, as at its submission.
        last = Some(reservation.ends_at.plus_seconds(-i64::from(row.started_at.is_none())));
    }
    let begun = row.started_at.unwrap_or(earliest);
    let end = |seconds: i64| begun.plus_seconds(seconds - row.metered_before_ms / 1_000);
    let (from, until) = (end(row.max_duration_s), end(limit_s));
    if last.is_some_and(|last| until > last) {
        return Ok(false);
    }
    if row.attempt == 0 || row.phase.state == JobState::Queued {
        return Ok(true);
    }
    let mut places: StoredPlaces = Vec::new();
    for a in store::attempts::list_allocations(tx, row.id, row.attempt).await? {
        let number = |n: i64| u32::try_from(n).unwrap_or(0);
        places.push((
            a.node_id,
            vec![StoredDevice {
                gpu_uuid: a.gpu_uuid,
                profile_id: a.profile_id.map(number),
                start: number(a.start),
                size: number(a.size),
            }],
        ));
    }
    is_free(tx, &places, (from, until), &HashMap::new(), row.reservation_id.as_slice()).await
}

/// Gives `row` a longer time limit, and holds the additional worst case.
///
/// # Errors
/// A refusal if the job has ended, its devices are promised to others, or the limit is beyond a limit of the
/// organization.
async fn extend(
    tx: &mut Tx<'_>,
    context: &Context,
    row: &StoredJob,
    input: ExtendJob,
    now: Timestamp,
) -> Result<JobEvent, WriteError> {
    let (org, job) = (row.org_id, row.id);
    let state = machine(row).state();
    if state.ended() || state == JobState::Stopping {
        return Err(already_ended(row).into());
    }
    let longest = i64::try_from(berth_core::admission::MAX_DURATION_S).unwrap_or(i64::MAX);
    let new = i64::try_from(input.max_duration_s).unwrap_or(i64::MAX);
    if new <= row.max_duration_s || new > longest {
        let detail = format!(
            "The time limit is {} now. Enter a longer one, at most {}.",
            duration_text(row.max_duration_s.saturating_mul(1_000)),
            duration_text(longest.saturating_mul(1_000))
        );
        return Err(Problem::invalid_field("/max_duration_s", detail).into());
    }
    if !is_clear_until(tx, row, new, now).await? {
        let detail = "The devices are reserved after the present time limit, or the reservation of the job ends before the new one. The job continues to its present time limit.";
        return Err(Problem::conflict("job.promised", "Devices reserved", detail).into());
    }
    let worst = |seconds: i64| charge_micros(row.nano_per_second, seconds.saturating_mul(1_000));
    let (Some(old_worst), Some(new_worst)) = (worst(row.max_duration_s), worst(new)) else {
        let detail = "The price exceeds every possible balance. Enter a shorter time limit.";
        return Err(Problem::invalid_field("/max_duration_s", detail).into());
    };
    let more = new_worst - old_worst;
    let available = store::ledger::available(tx, org).await?;
    if more > available {
        let currency = &context.settings.currency;
        let detail = format!(
            "The longer time limit can cost {} more, and {} is available. The job continues to its present time limit. Add credit, or enter a shorter time limit.",
            money_text(more, currency),
            money_text(available, currency)
        );
        return Err(Problem::new(402, "funds.insufficient", "Not enough credit", detail).into());
    }
    let currency = &context.settings.currency;
    budgets::check_cost(tx, org, &row.labels, more, currency, (now, now)).await?;
    let (limits, _) = quotas::effective(tx, org).await?;
    let longer = row.board_milli.saturating_mul(new - row.max_duration_s);
    quotas::count_board_time(tx, org, longer, &limits, row.created_at).await?;
    if more > 0 {
        let posting = Posting {
            seq: row.generation + 1,
            ..hold_posting(context.new_id(now), org, job, more, row.name.clone(), now)
        };
        store::ledger::post(tx, &posting).await?;
    }
    store::jobs::update_limit(tx, job, row.generation, new, row.held_micros + more).await?;
    let event = JobEvent {
        job,
        seq: row.generation + 1,
        at: now,
        state,
        attempt: u32::try_from(row.attempt).unwrap_or(0),
        detail: format!("Time limit extended to {}.", duration_text(new.saturating_mul(1_000))),
    };
    store::job_events::insert_event(tx, org, &event).await?;
    Ok(event)
}

//! The transitions of a job: each event with its postings and its records.

use berth_core::jobs::{DRAINED, Effect, HALTED, Machine, MachineEvent, Outcome, SPENT, StopCause};
use berth_foundation::Context;
use berth_foundation::days::month_of;
use berth_store::jobs::StoredJob;
use berth_store::ledger::Posting;
use berth_store::stops::{Phase, Stop};
use berth_store::{self as store, StoreError, Tx};
use berth_types::events::JobEvent;
use berth_types::jobs::{Failure, JobState};
use berth_types::ledger::TransferKind;
use berth_types::time::Timestamp;

use crate::charges::{charge, find_hold, hold_posting};

/// The codes of failures with the reason of an operator or a budget.
const GIVEN: [&str; 3] = [DRAINED, HALTED, SPENT];

pub(crate) fn machine(row: &StoredJob) -> Machine {
    Machine::restore(row.phase.state, u32::try_from(row.attempt).unwrap_or(0), row.stop_cause())
}

/// Applies one event to a job with its postings and its records, and updates `row`. `None` if the state does
/// not allow the event; then nothing has changed.
pub(crate) async fn advance(
    tx: &mut Tx<'_>,
    context: &Context,
    row: &mut StoredJob,
    event: MachineEvent,
    detail: String,
    now: Timestamp,
) -> Result<Option<JobEvent>, StoreError> {
    let stepped = step(tx, context, row, event, detail, now).await?;
    if let Some(event) = &stepped {
        record(tx, row, std::slice::from_ref(event)).await?;
    }
    Ok(stepped)
}

/// Writes a job after one or more steps, with the events of these steps in their order.
pub(crate) async fn record(tx: &mut Tx<'_>, row: &StoredJob, events: &[JobEvent]) -> Result<(), StoreError> {
    let steps = i64::try_from(events.len()).unwrap_or(i64::MAX);
    store::jobs::update(tx, row, row.generation - steps).await?;
    for event in events {
        store::job_events::insert_event(tx, row.org_id, event).await?;
    }
    Ok(())
}

/// Applies one event to `row` with its postings. The caller records the row and the event in the same
/// transaction. `None` if the state does not allow the event.
pub(crate) async fn step(
    tx: &mut Tx<'_>,
    context: &Context,
    row: &mut StoredJob,
    event: MachineEvent,
    detail: String,
    now: Timestamp,
) -> Result<Option<JobEvent>, StoreError> {
    let assigned = match event {
        MachineEvent::Assign { attempt } => Some(i64::from(attempt)),
        _ => None,
    };
    let room_for = match event {
        MachineEvent::Preempt { for_job, .. } => for_job,
        _ => None,
    };
    // The stop of a waiting job has no earlier stop with a reason.
    let stop = row.phase.stop.as_ref();
    let present = matches!(event, MachineEvent::Halt | MachineEvent::Spend).then(|| detail.clone());
    let reason = stop.and_then(|stop| stop.reason.clone()).filter(|text| !text.is_empty()).or(present);
    let gives_back = gives_back(row, &event);
    let Ok((next, effects)) = machine(row).apply(event) else { return Ok(None) };
    if gives_back {
        record_give_back(tx, row, now).await?;
    }
    row.attempt = assigned.unwrap_or(row.attempt);
    if let Some(for_job) = room_for {
        store::attempts::set_room_for(tx, row.id, row.attempt, for_job).await?;
    }
    if effects.contains(&Effect::Settle) {
        settle(tx, context, row, now).await?;
    }
    for effect in effects {
        match effect {
            Effect::Finish { exit_code, failure } => {
                row.exit_code = exit_code.map(i64::from);
                let given_reason = |f: &Failure| reason.clone().filter(|_| GIVEN.contains(&f.code.as_str()));
                let failure = failure.map(|f| (given_reason(&f).unwrap_or_else(|| f.detail.clone()), f.code));
                (row.failure_detail, row.failure_code) = failure.unzip();
            }
            Effect::Requeue => {
                use StopCause::{Drained, Preempted};
                row.retries +=
                    i64::from(!matches!(row.stop_cause(), Some(Preempted { .. } | Drained { .. })));
                row.metered_before_ms = row.metered_ms;
                row.started_at = None;
            }
            Effect::WakeNode | Effect::Settle => {}
        }
    }
    row.phase = phase(next, &detail);
    if next.state() == JobState::Running && row.started_at.is_none() {
        row.started_at = Some(now);
    }
    if next.state().ended() {
        row.ended_at = Some(now);
        // A requeue has removed the start, and the last attempt had none.
        if row.started_at.is_none() && row.metered_ms > 0 {
            row.started_at = store::job_events::find_last_start(tx, row.id).await?;
        }
    }
    row.generation += 1;
    let event = JobEvent {
        job: row.id,
        seq: row.generation,
        at: now,
        state: next.state(),
        attempt: u32::try_from(row.attempt).unwrap_or(0),
        detail,
    };
    if next.state().ended() || next.state() == JobState::Running {
        insert_notice(tx, context, row, &event).await?;
    }
    Ok(Some(event))
}

/// True for the end of a process that was stopped for another job or a drain.
fn gives_back(row: &StoredJob, event: &MachineEvent) -> bool {
    let exits = matches!(event, MachineEvent::End { outcome: Outcome::Exited { .. }, .. });
    exits && matches!(row.stop_cause(), Some(StopCause::Preempted { .. } | StopCause::Drained { .. }))
}

/// Records the time since the stop of the present attempt, from which the engine learns how soon the job gives its
/// devices back.
async fn record_give_back(tx: &mut Tx<'_>, row: &StoredJob, now: Timestamp) -> Result<(), StoreError> {
    let Some(stopped_at) = store::node_pools::find_stop(tx, row.id, row.attempt).await? else {
        return Ok(());
    };
    let gives_back_ms = now.millis_since(stopped_at).max(0);
    store::node_pools::record_give_back(tx, row.id, gives_back_ms).await
}

/// Records a notice about an event of a job, if its organization has a webhook.
async fn insert_notice(
    tx: &mut Tx<'_>,
    context: &Context,
    row: &StoredJob,
    event: &JobEvent,
) -> Result<(), StoreError> {
    if !context.live.has_webhook(row.org_id) {
        return Ok(());
    }
    let state = event.state.name();
    let data = serde_json::json!({
        "job": row.id, "name": row.name, "state": state, "attempt": row.attempt, "exit_code": row.exit_code,
        "cost_micros": row.cost_micros, "metered_ms": row.metered_ms, "failure": row.failure_code,
    });
    let subject = format!("Job {}: {}", row.name, state.replace('_', " "));
    let is_given = row.failure_code.as_ref().is_some_and(|code| GIVEN.contains(&code.as_str()));
    // The exit code of a process that was stopped says nothing about the reason.
    let reason = row.failure_detail.as_ref().filter(|_| is_given);
    let detail = reason.unwrap_or(&event.detail).clone();
    let notice = context.notice(row.org_id, &format!("job.{state}"), subject, detail, &data);
    store::budgets::insert_notice(tx, &notice).await
}

/// The state of a job with the cause of its stop and the reason of an operator or a budget.
fn phase(next: Machine, detail: &str) -> Phase {
    let has_reason =
        |cause| matches!(cause, StopCause::Halted | StopCause::Spent | StopCause::Drained { .. });
    let stop = match next {
        Machine::Stopping { cause, .. } => {
            Some(Stop { cause, reason: has_reason(cause).then(|| detail.to_owned()) })
        }
        _ => None,
    };
    Phase { state: next.state(), stop }
}

/// Charges the use since the last charge, and releases the rest of the hold.
async fn settle(
    tx: &mut Tx<'_>,
    context: &Context,
    row: &mut StoredJob,
    at: Timestamp,
) -> Result<(), StoreError> {
    charge(tx, context, row, at).await?;
    if row.held_micros > 0 {
        let pending = find_hold(tx, row).await?;
        let rest = Posting {
            kind: TransferKind::Release,
            pending,
            seq: row.generation,
            ..hold_posting(context.new_id(at), row.org_id, row.id, row.held_micros, row.name.clone(), at)
        };
        store::ledger::post(tx, &rest).await?;
    }
    row.held_micros = 0;
    // The unused part of its counted board time goes back to the month of its submission.
    let unused = row.max_duration_s - row.metered_ms / 1_000;
    let month = month_of(row.created_at);
    store::quotas::count_month(tx, row.org_id, &month, -row.board_milli.saturating_mul(unused)).await?;
    Ok(())
}

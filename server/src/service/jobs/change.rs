//! What moves a job on: one function applies an event with everything that follows from it; stopping
//! and extending are what members do.

use std::collections::HashMap;

use berth_core::jobs::{DRAINED, Effect, Event, HALTED, Machine, Rejected, StopCause};
use berth_core::rating::charge_micros;
use berth_types::events::JobEvent;
use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::jobs::{ExtendJob, Failure, Job, JobState};
use berth_types::ledger::TransferKind;
use berth_types::money::money_text;
use berth_types::problems::Problem;
use berth_types::time::{Timestamp, duration_text};
use futures::FutureExt;

use super::charge::hold_of;
use super::{charge, hold_posting};
use crate::portal::Portal;
use crate::service::quotas::{self, month_of};
use crate::service::reservations::confirm::is_free;
use crate::service::{Caller, Right, budgets, keys};
use crate::store::jobs::JobRow;
use crate::store::ledger::Posting;
use crate::store::reservations::{StoredDevice, StoredPlaces};
use crate::store::{self, StoreError, Tx};

/// Why it is being stopped.
pub(crate) fn stop_cause(row: &JobRow) -> Option<StopCause> {
    row.stop_cause.as_deref().map(cause_of)
}

/// A cause as it is stored.
pub(crate) fn cause_of(text: &str) -> StopCause {
    match text {
        "timed_out" => StopCause::TimedOut,
        "preempted" => StopCause::Preempted,
        "rank_failed" => StopCause::RankFailed,
        halted if halted.starts_with("halted:") => StopCause::Halted,
        other => idle_cause(other).or_else(|| drain_cause(other)).unwrap_or(StopCause::Cancelled),
    }
}

/// Reads `drained:1:30:Who and why.`
fn drain_cause(text: &str) -> Option<StopCause> {
    let mut parts = text.strip_prefix("drained:")?.splitn(3, ':');
    let again = parts.next()? == "1";
    Some(StopCause::Drained { again, grace_s: parts.next()?.parse().ok()? })
}

/// Which operator stopped it or emptied its node, and why, as it was recorded when it was told to stop.
fn operator_words(row: &JobRow) -> Option<String> {
    let cause = row.stop_cause.as_deref()?;
    let words = match cause.strip_prefix("drained:") {
        Some(drained) => drained.splitn(3, ':').nth(2)?,
        None => cause.strip_prefix("halted:")?,
    };
    (!words.is_empty()).then(|| words.to_owned())
}

/// Reads `idle:3:3600`.
fn idle_cause(text: &str) -> Option<StopCause> {
    let (percent, for_s) = text.strip_prefix("idle:")?.split_once(':')?;
    Some(StopCause::Idle { percent: percent.parse().ok()?, for_s: for_s.parse().ok()? })
}

/// The cause as it is stored.
fn cause_text(cause: StopCause, detail: &str) -> String {
    match cause {
        StopCause::Drained { again, grace_s } => {
            format!("drained:{}:{grace_s}:{detail}", i32::from(again))
        }
        StopCause::Halted => format!("halted:{detail}"),
        StopCause::TimedOut => "timed_out".to_owned(),
        StopCause::Cancelled => "cancelled".to_owned(),
        StopCause::Preempted => "preempted".to_owned(),
        StopCause::RankFailed => "rank_failed".to_owned(),
        StopCause::Idle { percent, for_s } => format!("idle:{percent}:{for_s}"),
    }
}

fn machine(row: &JobRow) -> Result<Machine, StoreError> {
    let state = JobState::parse(&row.state).ok_or_else(|| StoreError::Corrupt(row.state.clone()))?;
    Ok(Machine::restore(state, u32::try_from(row.attempt).unwrap_or(0), stop_cause(row)))
}

fn ids(row: &JobRow) -> Result<(OrgId, JobId), StoreError> {
    let corrupt = |_| StoreError::Corrupt(row.id.clone());
    Ok((row.org_id.parse().map_err(corrupt)?, row.id.parse().map_err(corrupt)?))
}

/// Applies one event to a job, with the money and the records that follow, and brings `row` up to
/// date. `Err(Rejected)` inside: it does not fit, and nothing was changed.
pub(crate) async fn advance(
    tx: &mut Tx<'_>,
    portal: &Portal,
    row: &mut JobRow,
    event: Event,
    detail: String,
    now: Timestamp,
) -> Result<Result<JobEvent, Rejected>, StoreError> {
    let stepped = step(tx, portal, row, event, detail, now).await?;
    if let Ok(event) = &stepped {
        record(tx, row, std::slice::from_ref(event)).await?;
    }
    Ok(stepped)
}

/// Writes a job after one or more steps, and the events that they gave, in their order.
pub(crate) async fn record(tx: &mut Tx<'_>, row: &JobRow, events: &[JobEvent]) -> Result<(), StoreError> {
    let (org, _) = ids(row)?;
    let steps = i64::try_from(events.len()).unwrap_or(i64::MAX);
    store::jobs::update(tx, row, row.generation - steps).await?;
    for event in events {
        store::jobs::insert_event(tx, org, event).await?;
    }
    Ok(())
}

/// Applies one event to `row`, and posts the money that follows. The row and the event are still to be
/// recorded, in the same transaction.
pub(crate) async fn step(
    tx: &mut Tx<'_>,
    portal: &Portal,
    row: &mut JobRow,
    event: Event,
    detail: String,
    now: Timestamp,
) -> Result<Result<JobEvent, Rejected>, StoreError> {
    let (org, job) = ids(row)?;
    let assigned = match event {
        Event::Assign { attempt } => Some(i64::from(attempt)),
        _ => None,
    };
    // Who is stopped while it waits has not been told to stop before.
    let words = operator_words(row).or_else(|| (event == Event::Halt).then(|| detail.clone()));
    let (next, effects) = match machine(row)?.apply(event) {
        Ok(change) => change,
        Err(rejected) => return Ok(Err(rejected)),
    };
    row.attempt = assigned.unwrap_or(row.attempt);
    if effects.contains(&Effect::Settle) {
        settle(tx, portal, row, org, job, now).await?;
    }
    for effect in effects {
        match effect {
            Effect::Finish { exit_code, failure } => {
                row.exit_code = exit_code.map(i64::from);
                let said =
                    |f: &Failure| words.clone().filter(|_| [DRAINED, HALTED].contains(&f.code.as_str()));
                let failure = failure.map(|f| (said(&f).unwrap_or_else(|| f.detail.clone()), f.code));
                (row.failure_detail, row.failure_code) = failure.unzip();
            }
            Effect::Requeue => {
                use StopCause::{Drained, Preempted};
                row.retries += i64::from(!matches!(stop_cause(row), Some(Preempted | Drained { .. })));
                row.metered_before_ms = row.metered_ms;
                row.started_at = None;
            }
            Effect::WakeNode | Effect::Settle => {}
        }
    }
    row.state = next.state().name().to_owned();
    row.stop_cause = match next {
        Machine::Stopping { cause, .. } => Some(cause_text(cause, &detail)),
        _ => None,
    };
    if next.state() == JobState::Running && row.started_at.is_none() {
        row.started_at = Some(now.micros());
    }
    if next.state().ended() {
        row.ended_at = Some(now.micros());
    }
    row.generation += 1;
    let event = JobEvent {
        job,
        seq: row.generation,
        at: now,
        state: next.state(),
        attempt: u32::try_from(row.attempt).unwrap_or(0),
        detail,
    };
    let told = next.state().ended() || next.state() == JobState::Running;
    if told && portal.live.is_hooked(&row.org_id) {
        let state = next.state().name();
        let data = serde_json::json!({
            "job": row.id, "name": row.name, "state": state, "attempt": row.attempt, "exit_code": row.exit_code,
            "cost_micros": row.cost_micros, "metered_ms": row.metered_ms, "failure": row.failure_code,
        });
        let subject = format!("{} is {}", row.name, state.replace('_', " "));
        let notice =
            portal.notice(&row.org_id, &format!("job.{state}"), subject, event.detail.clone(), &data);
        store::budgets::insert_notice(tx, &notice).await?;
    }
    Ok(Ok(event))
}

/// Posts what was used since the last charge and gives back the rest of the hold.
async fn settle(
    tx: &mut Tx<'_>,
    portal: &Portal,
    row: &mut JobRow,
    org: OrgId,
    job: JobId,
    at: Timestamp,
) -> Result<(), StoreError> {
    charge(tx, portal, row, at).await?;
    if row.held_micros > 0 {
        let pending = hold_of(tx, row).await?;
        let rest = Posting {
            kind: TransferKind::Release,
            pending,
            seq: row.generation,
            ..hold_posting(portal.new_id(at), org, job, row.held_micros, row.name.clone(), at)
        };
        store::ledger::post(tx, &rest).await?;
    }
    row.held_micros = 0;
    // What it was counted for and did not use is given back to the month in which it was submitted.
    let unused = row.max_duration_s - row.metered_ms / 1_000;
    let month = month_of(Timestamp::from_micros(row.created_at));
    store::quotas::count_month(tx, org, &month, -row.board_milli.saturating_mul(unused)).await?;
    Ok(())
}

fn ended(row: &JobRow) -> Problem {
    let detail = format!("The job is {} already; nothing was changed.", row.state.replace('_', " "));
    Problem::conflict("job.ended", "The job has ended", detail)
}

impl Portal {
    /// Asks a job to end. Asking twice is the same as asking once; a job that ended otherwise is a 409.
    pub async fn cancel_job(&self, caller: &Caller, org: OrgId, job: JobId) -> Result<Job, Problem> {
        self.authorise(caller, org, Right::Run).await?;
        let now = self.now();
        let portal = self.clone();
        let by = caller.user.name.clone();
        let done = self.db.write(move |tx| {
            let (portal, by) = (portal.clone(), by.clone());
            async move {
                let Some(mut row) = store::jobs::find(tx, org, job).await? else {
                    return Ok(Err(Problem::not_found()));
                };
                let detail = format!("Stopped by {by}.");
                match advance(tx, &portal, &mut row, Event::Cancel, detail, now).await? {
                    Ok(event) => Ok(Ok(Some(event))),
                    Err(Rejected::NoChange) => Ok(Ok(None)),
                    Err(Rejected::Ended) if row.state == JobState::Cancelled.name() => Ok(Ok(None)),
                    Err(_) => Ok(Err(ended(&row))),
                }
            }
            .boxed()
        });
        if let Some(event) = done.await?? {
            self.wake_job(job).await?;
            self.tell_change(org, Some(event), job).await;
        }
        self.show_job(org, job).await
    }

    /// Gives a job a later limit, and holds what that can cost.
    pub async fn extend_job(
        &self,
        caller: &Caller,
        org: OrgId,
        job: JobId,
        input: ExtendJob,
    ) -> Result<Job, Problem> {
        self.authorise(caller, org, Right::Run).await?;
        if caller.done_before().is_some() {
            return self.show_job(org, job).await;
        }
        let now = self.now();
        let (portal, once) = (self.clone(), caller.once.clone());
        // Nothing is promised on its devices between the look and the longer limit.
        let reading = self.planner.reading.lock().await;
        let done = self.db.write(move |tx| {
            let (portal, once) = (portal.clone(), once.clone());
            async move {
                let Some(row) = store::jobs::find(tx, org, job).await? else {
                    return Ok(Err(Problem::not_found()));
                };
                let done = extend(tx, &portal, &row, org, job, input, now).await?;
                if done.is_ok() {
                    keys::claim(tx, once.as_ref(), "", now).await?;
                }
                Ok(done)
            }
            .boxed()
        });
        let done = done.await;
        self.touch_job(job);
        drop(reading);
        let event = done??;
        self.wake_job(job).await?;
        self.tell_change(org, Some(event), job).await;
        self.show_job(org, job).await
    }

    /// Makes the job's nodes look at what they must have.
    async fn wake_job(&self, job: JobId) -> Result<(), StoreError> {
        let mut conn = self.db.read().await?;
        let mut tx = conn.tx();
        let Some(row) = store::jobs::find_any(&mut tx, job).await? else { return Ok(()) };
        let slots = store::attempts::list_allocations(&mut tx, &row.id, row.attempt).await?;
        for node in slots.iter().filter_map(|s| s.node_id.parse::<NodeId>().ok()) {
            self.live.wake_node(node);
        }
        Ok(())
    }
}

/// Whether a job could run on to a later limit without running into what is promised.
async fn stays_clear(
    tx: &mut Tx<'_>,
    row: &JobRow,
    limit_s: i64,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let begun = row.started_at.map_or(now, Timestamp::from_micros);
    let end = |seconds: i64| begun.plus_seconds(seconds - row.metered_before_ms / 1_000).micros();
    let (from, until) = (end(row.max_duration_s), end(limit_s));
    if let Some(id) = &row.reservation_id {
        let id = id.parse().map_err(|_| StoreError::Corrupt(row.id.clone()))?;
        let over = store::reservations::find_any(tx, id).await?.is_none_or(|r| until > r.ends_at);
        if over {
            return Ok(false);
        }
    }
    if row.attempt == 0 || row.state == JobState::Queued.name() {
        return Ok(true);
    }
    let mut places: StoredPlaces = Vec::new();
    for a in store::attempts::list_allocations(tx, &row.id, row.attempt).await? {
        let node: NodeId = a.node_id.parse().map_err(|_| StoreError::Corrupt(a.node_id.clone()))?;
        let number = |n: i64| u32::try_from(n).unwrap_or(0);
        places.push((
            node,
            vec![StoredDevice {
                gpu_uuid: a.gpu_uuid,
                profile_id: a.profile_id.map(number),
                start: number(a.start),
                size: number(a.size),
            }],
        ));
    }
    let own: Vec<String> = row.reservation_id.iter().cloned().collect();
    is_free(tx, &places, (from, until), &HashMap::new(), &own).await
}

async fn extend(
    tx: &mut Tx<'_>,
    portal: &Portal,
    row: &JobRow,
    org: OrgId,
    job: JobId,
    input: ExtendJob,
    now: Timestamp,
) -> Result<Result<JobEvent, Problem>, StoreError> {
    let state = machine(row)?.state();
    if state.ended() || state == JobState::Stopping {
        return Ok(Err(ended(row)));
    }
    let longest = i64::try_from(berth_core::admission::MAX_DURATION_S).unwrap_or(i64::MAX);
    let new = i64::try_from(input.max_duration_s).unwrap_or(i64::MAX);
    if new <= row.max_duration_s || new > longest {
        let detail = format!(
            "The limit is {} now; give a longer one, up to {}.",
            duration_text(row.max_duration_s.saturating_mul(1_000)),
            duration_text(longest.saturating_mul(1_000))
        );
        return Ok(Err(Problem::invalid_field("/max_duration_s", detail)));
    }
    if !stays_clear(tx, row, new, now).await? {
        let detail = "Its devices are promised to others after its present limit, or its reservation is over then. The job goes on to its present limit.";
        return Ok(Err(Problem::conflict("job.promised", "Its devices are promised", detail)));
    }
    let worst = |seconds: i64| charge_micros(row.nano_per_second, seconds.saturating_mul(1_000));
    let (Some(old_worst), Some(new_worst)) = (worst(row.max_duration_s), worst(new)) else {
        return Ok(Err(Problem::invalid_field(
            "/max_duration_s",
            "The price of this is beyond any account.",
        )));
    };
    let more = new_worst - old_worst;
    let available = store::ledger::available(tx, org).await?;
    if more > available {
        let currency = &portal.settings.currency;
        let detail = format!(
            "The longer limit can cost {} more, and {} is available. The job goes on to its present limit.",
            money_text(more, currency),
            money_text(available, currency)
        );
        return Ok(Err(Problem::new(402, "funds.insufficient", "Not enough credit", detail)));
    }
    let labels = serde_json::from_str(&row.labels).unwrap_or_default();
    let currency = &portal.settings.currency;
    if let Some(problem) = budgets::exceeded(tx, org, &labels, more, currency, (now, now)).await? {
        return Ok(Err(problem));
    }
    let (limits, _) = quotas::effective(tx, org).await?;
    let longer = row.board_milli.saturating_mul(new - row.max_duration_s);
    let submitted = Timestamp::from_micros(row.created_at);
    if let Some(problem) = quotas::count(tx, org, longer, &limits, submitted).await? {
        return Ok(Err(problem));
    }
    if more > 0 {
        let posting = Posting {
            seq: row.generation + 1,
            ..hold_posting(portal.new_id(now), org, job, more, row.name.clone(), now)
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
        detail: format!("Limit extended to {}.", duration_text(new.saturating_mul(1_000))),
    };
    store::jobs::insert_event(tx, org, &event).await?;
    Ok(Ok(event))
}

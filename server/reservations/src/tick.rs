//! The changes of reservations by the clock: begin, charges, failures of boards, and end.

use std::sync::Arc;

use berth_core::jobs::MachineEvent;
use berth_core::rating::charge_micros;
use berth_types::ids::{OrgId, ReservationId};
use berth_types::jobs::{Failure, JobState};
use berth_types::reservations::ReservationState;
use berth_types::time::Timestamp;
use futures::FutureExt;

use crate::Reservations;

use crate::boards::Boards;
use crate::charges::{
    MIN_LOST_S, charge, cost_if_ended, credit_lost, elapsed_micros, end, policy_of, release, skip_outage,
};
use berth_foundation::fault;
use berth_foundation::{Change, Context};
use berth_store::reservations::StoredReservation;
use berth_store::{self as store, StoreError, Tx};

/// A running reservation is charged at least this often.
const CHARGE_EVERY_S: i64 = 3_600;
/// The notice of an end comes this long before it.
const WARNING_S: i64 = 900;

/// Records a notice about a change of a reservation for webhooks and mail.
async fn notify(
    tx: &mut Tx<'_>,
    context: &Context,
    row: &StoredReservation,
    kind: &str,
    (change, detail): (&str, String),
) -> Result<(), StoreError> {
    let Some(org) = row.org_id else { return Ok(()) };
    let data = serde_json::json!({
        "reservation": row.id, "name": row.name, "starts_at": row.starts_at, "ends_at": row.ends_at,
        "degraded_milli": row.lost_milli,
    });
    let subject = format!("Reservation {} {change}", row.name);
    let notice = context.notice(org, &format!("reservation.{kind}"), subject, detail, &data);
    store::budgets::insert_notice(tx, &notice).await
}

/// True if this part of failed devices is due to replace the recorded part. Each part of a failure lasts a minute at
/// least, because shorter ones get no credit. Only the end of the failure comes earlier.
fn is_part_due(row: &StoredReservation, lost_milli: i64, now: Timestamp) -> bool {
    // After a clock set back, the last change can be in the future.
    let is_recent = |at: Timestamp| (0..MIN_LOST_S * 1_000).contains(&now.millis_since(at));
    let goes_on = row.lost_milli > 0 && lost_milli > 0;
    lost_milli != row.lost_milli && !(goes_on && row.lost_since.is_some_and(is_recent))
}

/// Credits the time of failed devices and records their present part. Returns true after a change.
async fn credit_failures(
    tx: &mut Tx<'_>,
    context: &Context,
    row: &mut StoredReservation,
    boards: &Boards,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let lost = boards.lost_milli(row, now)?;
    if !is_part_due(row, lost, now) {
        return Ok(false);
    }
    credit_lost(tx, context, row, now).await?;
    row.lost_milli = lost;
    row.lost_since = (lost > 0).then_some(now);
    let (kind, change) = match lost {
        0 => ("restored", "has all its devices again".to_owned()),
        _ => ("degraded", format!("has {}.{} % failed devices", lost / 10, lost % 10)),
    };
    let detail =
        "The time of failed devices is credited automatically. The ledger shows the credit.".to_owned();
    notify(tx, context, row, kind, (&change, detail)).await?;
    Ok(true)
}

/// Notifies of the end of a reservation a while before it. Returns true after a notice.
async fn warn_of_end(
    tx: &mut Tx<'_>,
    context: &Context,
    row: &mut StoredReservation,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let due = !row.warned && row.ends_at <= now.plus_seconds(WARNING_S);
    if due {
        row.warned = true;
        let change = format!("ends at {}", row.ends_at.minute());
        let detail = "Its jobs are stopped then. You can extend it while its devices are free.".to_owned();
        notify(tx, context, row, "ending", (&change, detail)).await?;
    }
    Ok(due)
}

/// Ends a reservation in which no job ran and none waits, if its terms return it. Returns true after the end.
async fn return_unused(
    tx: &mut Tx<'_>,
    context: &Context,
    row: &mut StoredReservation,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let policy = policy_of(row)?;
    let idle_s = now.millis_since(row.starts_at) / 1_000;
    if policy.no_show_after_s.is_some_and(|after| idle_s >= after)
        && row.org_id.is_some()
        && row.lost_milli == 0
        && store::reservations::open_jobs(tx, row.id).await?.is_empty()
        && store::reservations::list_job_use(tx, &[row.id]).await?.iter().all(|row| row.attempts == 0)
    {
        let cost = cost_if_ended(row, ReservationState::Active, &policy, now);
        end(tx, context, row, (ReservationState::Ended, "no job ran in it"), cost, now).await?;
        let detail = "No job ran in it, so it was returned under its terms.".to_owned();
        notify(tx, context, row, "ended", ("was returned", detail)).await?;
        fault::point("reservation.no_show.recording");
        return Ok(true);
    }
    Ok(false)
}

/// Charges the elapsed time once an hour. Returns true after a charge.
async fn charge_elapsed(
    tx: &mut Tx<'_>,
    context: &Context,
    row: &mut StoredReservation,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let cost = elapsed_micros(row, now);
    let hour = charge_micros(row.nano_per_second, CHARGE_EVERY_S * 1_000).unwrap_or(i64::MAX);
    let due = row.nano_per_second > 0 && cost - row.posted_micros >= hour;
    if due {
        charge(tx, context, row, cost, now).await?;
    }
    Ok(due)
}

/// Brings one reservation up to the present. Returns true if it has changed.
async fn advance(
    tx: &mut Tx<'_>,
    context: &Context,
    row: &mut StoredReservation,
    boards: &Boards,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let state = row.state;
    let (began, over) = (row.starts_at <= now, row.ends_at <= now);
    if state == ReservationState::Pending && began {
        let cause = "not approved before its start";
        end(tx, context, row, (ReservationState::Expired, cause), 0, now).await?;
        let detail = "Nothing was charged.".to_owned();
        notify(tx, context, row, "expired", ("expired without approval", detail)).await?;
        return Ok(true);
    }
    let (mut changed, mut starts) = (false, false);
    if state == ReservationState::Scheduled && over {
        let cause = "missed: the portal did not run at its time";
        end(tx, context, row, (ReservationState::Ended, cause), 0, now).await?;
        let detail = "The portal was not running in its time. Nothing was charged.".to_owned();
        notify(tx, context, row, "ended", ("was missed", detail)).await?;
        return Ok(true);
    }
    if state == ReservationState::Scheduled && began {
        row.state = ReservationState::Active;
        let mut detail = format!("Jobs of the reservation can run until {}.", row.ends_at.minute());
        let placed = store::reservations::find_first_placement(tx, row.id).await?;
        if skip_outage(row, placed, now) {
            let total = row.total_micros;
            release(tx, context, row, total, now).await?;
            let begin = row.starts_at.minute();
            detail =
                format!("The portal was not running at its start, so it is charged from {begin}. {detail}");
        }
        notify(tx, context, row, "started", ("started", detail)).await?;
        (changed, starts) = (true, true);
    }
    if !began {
        return Ok(false);
    }
    if over {
        // The end credits the recorded failure. The boards may already have the next work.
        let total = row.total_micros;
        end(tx, context, row, (ReservationState::Ended, ""), total, now).await?;
        let detail = "Jobs still running in it were stopped.".to_owned();
        notify(tx, context, row, "ended", ("ended", detail)).await?;
        fault::point("reservation.end.recording");
        return Ok(true);
    }
    changed |= credit_failures(tx, context, row, boards, now).await?;
    changed |= warn_of_end(tx, context, row, now).await?;
    if return_unused(tx, context, row, now).await? {
        return Ok(true);
    }
    changed |= charge_elapsed(tx, context, row, now).await?;
    if changed {
        store::reservations::update(tx, row).await?;
    }
    if starts {
        fault::point("reservation.start.recording");
    }
    Ok(changed)
}

/// Returns true if a change other than the end is due for a running reservation.
fn has_due_change(row: &StoredReservation, boards: &Boards, now: Timestamp) -> bool {
    let hour = charge_micros(row.nano_per_second, CHARGE_EVERY_S * 1_000).unwrap_or(i64::MAX);
    let charge_due = row.nano_per_second > 0 && elapsed_micros(row, now) - row.posted_micros >= hour;
    let idle_s = now.millis_since(row.starts_at) / 1_000;
    let no_show = policy_of(row).is_ok_and(|p| p.no_show_after_s.is_some_and(|after| idle_s >= after));
    let ending = !row.warned && row.ends_at <= now.plus_seconds(WARNING_S);
    let part_due = boards.lost_milli(row, now).is_ok_and(|lost| is_part_due(row, lost, now));
    charge_due || no_show || ending || part_due
}

impl Reservations {
    /// Begins, charges and ends all due reservations.
    pub async fn tick_reservations(&self) -> Result<(), StoreError> {
        let now = self.context.now();
        let (rows, boards) = {
            let mut conn = self.context.db.read().await?;
            let mut tx = conn.tx();
            let rows = store::reservations::list_holding(&mut tx).await?;
            let boards = Boards::read(&mut tx, &self.context, &rows, now).await?;
            (rows, Arc::new(boards))
        };
        let due = |row: &&StoredReservation| {
            let began = row.starts_at <= now;
            let active = row.state == ReservationState::Active;
            began && (!active || row.ends_at <= now || has_due_change(row, &boards, now))
        };
        let mut any_changed = false;
        let ids: Vec<(ReservationId, Option<OrgId>)> =
            rows.iter().filter(due).map(|row| (row.id, row.org_id)).collect();
        for (id, org) in ids {
            let (context, boards) = (self.context.clone(), Arc::clone(&boards));
            fault::point("reservation.tick.due");
            let changed = self.context.db.write(move |tx| {
                let (context, boards) = (context.clone(), Arc::clone(&boards));
                async move {
                    let Some(mut row) = store::reservations::find_any(tx, id).await? else {
                        return Ok(false);
                    };
                    if !row.state.holds() {
                        return Ok(false);
                    }
                    advance(tx, &context, &mut row, &boards, now).await
                }
                .boxed()
            });
            if changed.await? {
                fault::point("reservation.tick.recorded");
                any_changed = true;
                if let Some(org) = org {
                    self.context.publish(Change::Charged(org));
                }
                self.end_jobs_of(id).await?;
            }
        }
        if any_changed {
            self.context.publish(Change::Reservations);
        }
        // An earlier end of a reservation may have failed before the end of its jobs.
        let left = {
            let mut conn = self.context.db.read().await?;
            store::reservations::list_over_with_jobs(&mut conn.tx()).await?
        };
        for id in left {
            self.end_jobs_of(id).await?;
        }
        Ok(())
    }

    /// Ends the jobs of a reservation that is over. Running jobs are stopped, and waiting jobs never start.
    pub(crate) async fn end_jobs_of(&self, id: ReservationId) -> Result<(), StoreError> {
        let (reservation, open) = {
            let mut conn = self.context.db.read().await?;
            let mut tx = conn.tx();
            match store::reservations::find_any(&mut tx, id).await? {
                Some(row) if !row.state.holds() => {
                    (row.state, store::reservations::open_jobs(&mut tx, id).await?)
                }
                _ => return Ok(()),
            }
        };
        let cause = if reservation == ReservationState::Cancelled { "was cancelled" } else { "ended" };
        for (job, state, generation) in open {
            let detail = format!("The reservation of the job {cause}.");
            let (generation, event) = match state == JobState::Queued {
                true => {
                    let failure = Failure { code: "reservation.ended".to_owned(), detail: detail.clone() };
                    (Some(generation), MachineEvent::Orphan { failure })
                }
                false => (None, MachineEvent::Cancel),
            };
            if let Err(error) = self.attempts.apply_event(job, generation, event, detail).await {
                tracing::error!(%job, %error, "a job continues after the end of its reservation; trying again");
            }
        }
        Ok(())
    }
}

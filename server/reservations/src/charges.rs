//! The money of a reservation: its cost so far and at its end, its charges, and the credit for failed boards.

use berth_core::rating::charge_micros;
use berth_foundation::Context;
use berth_foundation::days::day_of;
use berth_store::ledger::Posting;
use berth_store::reservations::StoredReservation;
use berth_store::usage::{Charge, UsageMode};
use berth_store::{self as store, StoreError, Tx};
use berth_types::ids::TransferId;
use berth_types::ledger::TransferKind;
use berth_types::reservations::{ReservationPolicy, ReservationState};
use berth_types::time::Timestamp;

/// The shortest failure of devices in seconds that gets a credit.
pub(crate) const MIN_LOST_S: i64 = 60;

pub(crate) fn policy_of(row: &StoredReservation) -> Result<ReservationPolicy, StoreError> {
    serde_json::from_str(&row.policy).map_err(|e| StoreError::corrupt("reservations", row.id, "policy", e))
}

/// The cost of a reservation so far: its rate over the time since its begin.
pub(crate) fn elapsed_micros(row: &StoredReservation, now: Timestamp) -> i64 {
    let ms = now.min(row.ends_at).millis_since(row.starts_at).max(0);
    charge_micros(row.nano_per_second, ms).unwrap_or(row.total_micros).min(row.total_micros)
}

fn percent(amount: i64, percent: i64) -> i64 {
    let part = i128::from(amount) * i128::from(percent.clamp(0, 100)) / 100;
    i64::try_from(part).unwrap_or(amount)
}

/// The whole cost of a reservation with its end now.
pub(crate) fn cost_if_ended(
    row: &StoredReservation,
    state: ReservationState,
    policy: &ReservationPolicy,
    now: Timestamp,
) -> i64 {
    match state {
        ReservationState::Scheduled => {
            let free_until = row.starts_at.plus_seconds(-policy.cancel_free_before_s);
            // Nobody could use the time since its begin: the portal did not run.
            let usable = row.total_micros - elapsed_micros(row, now);
            if now <= free_until { 0 } else { percent(usable, policy.late_cancel_percent) }
        }
        ReservationState::Active => {
            let used = elapsed_micros(row, now);
            used + percent(row.total_micros - used, policy.early_release_percent)
        }
        _ => row.posted_micros,
    }
}

/// Charges the part of a cost that is not charged yet.
pub(crate) async fn charge(
    tx: &mut Tx<'_>,
    context: &Context,
    row: &mut StoredReservation,
    cost_micros: i64,
    now: Timestamp,
) -> Result<(), StoreError> {
    let due = (cost_micros - row.posted_micros).min(row.held_micros);
    let Some(org) = row.org_id.filter(|_| due > 0) else { return Ok(()) };
    let pending = store::ledger::find_hold(tx, "reservation", &row.id.to_string()).await?;
    // Costs only grow, so the sum after a charge is a unique number for it.
    let seq = row.posted_micros + due;
    let charge = posting(context, row, TransferKind::Usage, due, seq, now)?;
    store::ledger::post(tx, &store::ledger::Posting { pending, ..charge }).await?;
    // The charged time is the time since the begin less the time of the earlier charges.
    let paid_ms = |micros: i64| {
        let ms = i128::from(micros) * 1_000_000 / i128::from(row.nano_per_second.max(1));
        i64::try_from(ms).unwrap_or(i64::MAX)
    };
    let passed_ms = now.min(row.ends_at).millis_since(row.starts_at).max(0);
    let ms = (passed_ms - paid_ms(row.posted_micros)).max(0);
    // The rest is a fee for a cancellation or a return, which has no price of a device.
    let for_use = (elapsed_micros(row, now) - row.posted_micros).clamp(0, due);
    let charged = Charge {
        org,
        day: day_of(now),
        offering: &row.offering_id.map(|id| id.to_string()).unwrap_or_default(),
        mode: UsageMode::Reserved,
        member: &row.created_by,
        price_version: row.price_version,
        surcharge_basis_points: 0,
        labels: Vec::new(),
        device_milli_ms: ms.saturating_mul(row.nodes.saturating_mul(row.gpus_per_node)).saturating_mul(1_000),
        cost_micros: for_use,
    };
    if ms > 0 || for_use > 0 {
        store::usage::add_charge(tx, &charged).await?;
    }
    if due > for_use {
        let fee = Charge { price_version: 0, device_milli_ms: 0, cost_micros: due - for_use, ..charged };
        store::usage::add_charge(tx, &fee).await?;
    }
    row.posted_micros += due;
    row.held_micros -= due;
    Ok(())
}

/// Moves the begin of a reservation behind an outage of the portal over it: nobody could use that time. The end stays, and
/// the price is that of the rest. `placed` is the first placement of a job in it. Returns true if the begin has moved.
pub(crate) fn skip_outage(row: &mut StoredReservation, placed: Option<Timestamp>, now: Timestamp) -> bool {
    // The scheduler can place its jobs before the loop of reservations looks at it.
    let usable = placed.unwrap_or(now).min(now).min(row.ends_at);
    // Maintenance has no price.
    if row.org_id.is_none() || usable.millis_since(row.starts_at) < MIN_LOST_S * 1_000 {
        return false;
    }
    row.starts_at = Timestamp::from_micros(usable.micros().div_euclid(1_000_000) * 1_000_000);
    row.total_micros = elapsed_micros(row, row.ends_at);
    true
}

/// Releases the hold beyond `kept_micros`.
pub(crate) async fn release(
    tx: &mut Tx<'_>,
    context: &Context,
    row: &mut StoredReservation,
    kept_micros: i64,
    now: Timestamp,
) -> Result<(), StoreError> {
    let micros = row.held_micros - kept_micros;
    if micros > 0 && row.org_id.is_some() {
        let pending = store::ledger::find_hold(tx, "reservation", &row.id.to_string()).await?;
        let rest = posting(context, row, TransferKind::Release, micros, row.generation, now)?;
        store::ledger::post(tx, &store::ledger::Posting { pending, ..rest }).await?;
        row.held_micros = kept_micros;
    }
    Ok(())
}

/// Ends a reservation at a cost: charges the cost and releases the rest of the hold.
pub(crate) async fn end(
    tx: &mut Tx<'_>,
    context: &Context,
    row: &mut StoredReservation,
    (state, cause): (ReservationState, &str),
    cost_micros: i64,
    now: Timestamp,
) -> Result<(), StoreError> {
    if row.state == ReservationState::Active {
        credit_lost(tx, context, row, now).await?;
    }
    charge(tx, context, row, cost_micros, now).await?;
    release(tx, context, row, 0, now).await?;
    row.state = state;
    row.cause = cause.to_owned();
    row.ended_at = Some(now);
    store::reservations::update(tx, row).await
}

/// A posting of a reservation; variants of it change single fields.
pub(crate) fn posting(
    context: &Context,
    row: &StoredReservation,
    kind: TransferKind,
    amount_micros: i64,
    seq: i64,
    at: Timestamp,
) -> Result<Posting, StoreError> {
    let org = row.org_id.ok_or_else(|| StoreError::Corrupt(row.id.to_string()))?;
    Ok(Posting {
        id: context.new_id::<TransferId>(at),
        org,
        kind,
        amount_micros,
        pending: None,
        source: "reservation",
        source_id: row.id.to_string(),
        seq,
        memo: row.name.clone(),
        at,
    })
}

/// Credits the cost of failed devices up to now.
pub(crate) async fn credit_lost(
    tx: &mut Tx<'_>,
    context: &Context,
    row: &mut StoredReservation,
    now: Timestamp,
) -> Result<(), StoreError> {
    let (Some(since), true) = (row.lost_since, row.lost_milli > 0 && row.org_id.is_some()) else {
        return Ok(());
    };
    let until = now.min(row.ends_at);
    let ms = until.millis_since(since.max(row.starts_at)).max(0);
    if ms < MIN_LOST_S * 1_000 {
        let id = row.id.to_string();
        // A credit up to `since` makes this the rest of a longer failure.
        let credited = (TransferKind::Credit, "reservation", id.as_str(), since.micros());
        if !store::ledger::is_posted(tx, credited).await? {
            return Ok(());
        }
    }
    let whole = charge_micros(row.nano_per_second, ms).unwrap_or(0);
    let part = i64::try_from(i128::from(whole) * i128::from(row.lost_milli) / 1_000).unwrap_or(0);
    let part = part.min(row.total_micros - row.credited_micros);
    if part > 0 {
        let credit = posting(context, row, TransferKind::Credit, part, until.micros(), now)?;
        let memo = format!("{}: {} ‰ of the devices failed", row.name, row.lost_milli);
        store::ledger::post(tx, &store::ledger::Posting { memo, ..credit }).await?;
        row.credited_micros += part;
    }
    row.lost_since = Some(until);
    Ok(())
}

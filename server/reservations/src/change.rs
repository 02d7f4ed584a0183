//! The changes of reservations: cancelling, extending, and the decision of the operator.

use std::collections::{BTreeSet, HashMap};

use berth_placement::calendar::Booking;
use berth_types::ids::{JobId, OrgId, ReservationId};
use berth_types::ledger::TransferKind;
use berth_types::operators::OperatorRight;
use berth_types::problems::Problem;
use berth_types::reservations::{ExtendReservation, Reservation, ReservationState};
use berth_types::time::Timestamp;
use futures::FutureExt;

use crate::Reservations;

use crate::charges::posting;
use crate::charges::{cost_if_ended, elapsed_micros, end, policy_of, skip_outage};
use crate::checks::check_extension;
use berth_foundation::Change;
use berth_foundation::fault;
use berth_foundation::{Caller, Context, Right, idempotency};
use berth_jobs::planner::bookings;
use berth_jobs::planner::bookings::is_free;
use berth_store::reservations::StoredReservation;
use berth_store::{self as store, StoreError, WriteError};

fn already_over(row: &StoredReservation) -> Problem {
    let detail = format!("The reservation is already {}. Nothing was changed.", row.state.name());
    Problem::conflict("reservation.ended", "Reservation ended", detail)
}

/// Checks the rights of an operator to end a reservation. Maintenance is of the fleet.
async fn authorise_end(context: &Context, caller: &Caller, id: ReservationId) -> Result<(), Problem> {
    context.authorise_operator(caller, OperatorRight::ManageWork).await?;
    let mut conn = context.db.read().await?;
    let found = store::reservations::find_any(&mut conn.tx(), id).await?;
    drop(conn);
    if found.is_some_and(|row| row.org_id.is_none()) {
        context.authorise_operator(caller, OperatorRight::ManageFleet).await?;
    }
    Ok(())
}

impl Reservations {
    /// Cancels a future reservation or returns a running one, at the cost of its terms. `org` is `None` for
    /// the operator, who only charges the time up to now.
    ///
    /// # Errors
    /// The reservation is unknown or over. 403 for a role of operators without the right.
    pub async fn cancel_reservation(
        &self,
        caller: &Caller,
        org: Option<OrgId>,
        id: ReservationId,
    ) -> Result<Reservation, Problem> {
        match org {
            Some(org) => {
                self.context.authorise(caller, org, Right::Run).await?;
            }
            None => authorise_end(&self.context, caller, id).await?,
        }
        if caller.already_created().is_some() {
            return self.show_reservation(id).await;
        }
        let now = self.context.now();
        let (context, key) = (self.context.clone(), caller.idempotency_key.clone());
        let event = self.context.audit_event(caller, "reservation.cancelled", id.to_string(), String::new());
        fault::point("reservation.cancel.begun");
        let done = self.context.db.try_write(move |tx| {
            let (context, event, key) = (context.clone(), event.clone(), key.clone());
            async move {
                let found = match org {
                    Some(org) => store::reservations::find(tx, org, id).await?,
                    None => store::reservations::find_any(tx, id).await?,
                };
                let Some(mut row) = found else { return Err(Problem::not_found().into()) };
                let state = row.state;
                if state == ReservationState::Cancelled {
                    return Ok(());
                }
                if !state.holds() {
                    return Err(already_over(&row).into());
                }
                if state == ReservationState::Scheduled {
                    let placed = store::reservations::find_first_placement(tx, id).await?;
                    skip_outage(&mut row, placed, now);
                }
                let by_operator = org.is_none();
                let cost = match (by_operator, state) {
                    (true, ReservationState::Active) => elapsed_micros(&row, now),
                    (true, _) => 0,
                    (false, _) => cost_if_ended(&row, state, &policy_of(&row)?, now),
                };
                let cause = if by_operator { "by the operator" } else { "" };
                let ends = if state == ReservationState::Active {
                    ReservationState::Ended
                } else {
                    ReservationState::Cancelled
                };
                let cause =
                    if ends == ReservationState::Ended && cause.is_empty() { "released" } else { cause };
                end(tx, &context, &mut row, (ends, cause), cost, now).await?;
                store::quotas::insert_audit(tx, row.org_id, &event).await?;
                idempotency::claim(tx, key.as_ref(), "", now).await?;
                fault::point("reservation.cancel.recording");
                Ok(())
            }
            .boxed()
        });
        done.await?;
        fault::point("reservation.cancel.recorded");
        self.context.publish(Change::Reservations);
        self.end_jobs_of(id).await?;
        self.show_reservation(id).await
    }

    /// Extends a reservation at its own rate if its devices are free.
    ///
    /// # Errors
    /// The reservation is unknown or over, its devices are not free, or the organization has not enough
    /// credit.
    pub async fn extend_reservation(
        &self,
        caller: &Caller,
        org: OrgId,
        id: ReservationId,
        input: ExtendReservation,
    ) -> Result<Reservation, Problem> {
        self.context.authorise(caller, org, Right::Run).await?;
        if caller.already_created().is_some() {
            return self.show_reservation(id).await;
        }
        let now = self.context.now();
        let mut conn = self.context.db.read().await?;
        let found = store::reservations::find(&mut conn.tx(), org, id).await?;
        drop(conn);
        let row = found.ok_or_else(Problem::not_found)?;
        if !row.state.holds() {
            return Err(already_over(&row));
        }
        let longer_ms = input.ends_at.millis_since(row.ends_at);
        let length_s = input.ends_at.millis_since(row.starts_at) / 1_000;
        if longer_ms < 1_000 || length_s > crate::MAX_LENGTH_S {
            let end = row.ends_at.minute();
            let detail =
                format!("The reservation ends {end} now. Choose a later end within a year of its start.");
            return Err(Problem::invalid_field("/ends_at", detail));
        }
        self.planner.refresh().await?;
        let reading = self.planner.lock_reading().await;
        // A refused extension must not book, since its booking would refuse those of others meanwhile.
        {
            let mut conn = self.context.db.read().await?;
            check_extension(&mut conn.tx(), &self.context, &row, input.ends_at, now).await?;
        }
        let (longer, ends_at) = (StoredReservation { ends_at: input.ends_at, ..row.clone() }, row.ends_at);
        let free = self.planner.ask(move |engine| {
            let booking: Booking = bookings::booking(engine, &longer)?;
            // Jobs inside the reservation are no obstacle: only the time after its present end counts.
            let rest = Booking { from: ends_at, ..booking.clone() };
            let free = engine.has_room(&rest, now);
            if free {
                engine.book(booking, Vec::new());
            }
            Ok::<bool, StoreError>(free)
        });
        let free = free.await;
        fault::point("reservation.extend.booked");
        let done = match free {
            Ok(true) => self.record_extension(caller, row, input.ends_at, now).await,
            Ok(false) => {
                let detail = "The devices are reserved or in use after the present end. Nothing was changed. Choose an earlier end, or reserve the later time separately.";
                Err(Problem::conflict("reservation.taken", "Devices not free", detail).into())
            }
            Err(error) => Err(WriteError::Store(error)),
        };
        fault::point("reservation.extend.recorded");
        drop(reading);
        self.context.publish(Change::Reservations);
        done?;
        // The engine has the ends of the runs inside with their claims.
        let mut conn = self.context.db.read().await?;
        let held = store::attempts::list_held(&mut conn.tx()).await?;
        drop(conn);
        let inside = held.iter().filter(|row| row.reservation_id == Some(id));
        let jobs: BTreeSet<JobId> = inside.map(|row| row.allocation.job_id).collect();
        jobs.into_iter().for_each(|job| self.context.publish(Change::JobDevices(job)));
        self.show_reservation(id).await
    }

    async fn record_extension(
        &self,
        caller: &Caller,
        old: StoredReservation,
        ends_at: Timestamp,
        now: Timestamp,
    ) -> Result<(), WriteError> {
        let (context, key) = (self.context.clone(), caller.idempotency_key.clone());
        let event =
            self.context.audit_event(caller, "reservation.extended", old.id.to_string(), ends_at.minute());
        self.context
            .db
            .try_write(move |tx| {
                let (context, old, event, key) = (context.clone(), old.clone(), event.clone(), key.clone());
                async move {
                    let Some(mut row) = store::reservations::find_any(tx, old.id).await? else {
                        return Err(Problem::not_found().into());
                    };
                    if row.generation != old.generation {
                        return Err(StoreError::Stale.into());
                    }
                    let (org, more) = check_extension(tx, &context, &row, ends_at, now).await?;
                    let window = (row.ends_at, ends_at);
                    if !is_free(tx, &row.places()?, window, &HashMap::new(), &[row.id]).await? {
                        return Err(crate::confirm::capacity_taken().into());
                    }
                    if more > 0 {
                        let hold =
                            posting(&context, &row, TransferKind::Hold, more, row.generation + 1, now)?;
                        store::ledger::post(tx, &hold).await?;
                    }
                    row.ends_at = ends_at;
                    row.warned = false;
                    row.total_micros += more;
                    row.held_micros += more;
                    store::reservations::update(tx, &row).await?;
                    store::quotas::insert_audit(tx, Some(org), &event).await?;
                    idempotency::claim(tx, key.as_ref(), "", now).await?;
                    fault::point("reservation.extend.recording");
                    Ok(())
                }
                .boxed()
            })
            .await
    }

    /// Approves or declines a reservation that waits for approval.
    ///
    /// # Errors
    /// The reservation is unknown or does not wait for approval.
    pub async fn decide_reservation(
        &self,
        caller: &Caller,
        id: ReservationId,
        approve: bool,
    ) -> Result<Reservation, Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageWork).await?;
        if caller.already_created().is_some() {
            return self.show_reservation(id).await;
        }
        let now = self.context.now();
        let (context, key) = (self.context.clone(), caller.idempotency_key.clone());
        let action = if approve { "reservation.approved" } else { "reservation.declined" };
        let event = self.context.audit_event(caller, action, id.to_string(), String::new());
        let done = self.context.db.try_write(move |tx| {
            let (context, event, key) = (context.clone(), event.clone(), key.clone());
            async move {
                let Some(mut row) = store::reservations::find_any(tx, id).await? else {
                    return Err(Problem::not_found().into());
                };
                if row.state != ReservationState::Pending {
                    let detail = format!("The reservation is {}. Nothing was changed.", row.state.name());
                    let title = "No approval pending";
                    return Err(Problem::conflict("reservation.decided", title, detail).into());
                }
                if approve {
                    row.state = ReservationState::Scheduled;
                    store::reservations::update(tx, &row).await?;
                } else {
                    let declined = (ReservationState::Cancelled, "declined by the operator");
                    end(tx, &context, &mut row, declined, 0, now).await?;
                }
                store::quotas::insert_audit(tx, row.org_id, &event).await?;
                idempotency::claim(tx, key.as_ref(), "", now).await?;
                Ok(())
            }
            .boxed()
        });
        done.await?;
        self.context.publish(Change::Reservations);
        self.show_reservation(id).await
    }
}

#[cfg(test)]
mod tests {
    use berth_types::jobs::Topology;
    use berth_types::reservations::ReservationPolicy;

    use super::*;

    fn row() -> StoredReservation {
        StoredReservation {
            id: "res_00000000000000000000000000".parse().unwrap(),
            org_id: None,
            org_name: None,
            name: String::new(),
            state: ReservationState::Scheduled,
            cause: String::new(),
            quote_id: None,
            series: String::new(),
            offering_id: None,
            slug: None,
            gpu_model: None,
            mig_profile: None,
            nodes: 1,
            gpus_per_node: 1,
            topology: Topology::Any,
            board_milli: 1_000,
            starts_at: Timestamp::from_micros(1_000_000_000),
            ends_at: Timestamp::from_micros(2_000_000_000),
            ended_at: None,
            nano_per_second: 1_000_000,
            price_version: 1,
            total_micros: 1_000_000,
            held_micros: 1_000_000,
            posted_micros: 0,
            credited_micros: 0,
            places: String::new(),
            policy: String::new(),
            lost_milli: 0,
            lost_since: None,
            warned: false,
            generation: 1,
            created_by: String::new(),
            created_at: Timestamp::default(),
        }
    }

    #[test]
    fn cancelling_costs_the_fee_of_the_terms() {
        let policy = ReservationPolicy {
            cancel_free_before_s: 500,
            late_cancel_percent: 50,
            early_release_percent: 20,
            ..ReservationPolicy::default()
        };
        let at = |seconds: i64| Timestamp::from_micros(seconds * 1_000_000);
        let cost = |state, seconds| cost_if_ended(&row(), state, &policy, at(seconds));
        assert_eq!(cost(ReservationState::Scheduled, 500), 0);
        assert_eq!(cost(ReservationState::Scheduled, 501), 500_000);
        assert_eq!(cost(ReservationState::Scheduled, 1_500), 250_000, "the portal missed half of its time");
        assert_eq!(cost(ReservationState::Scheduled, 2_500), 0, "the portal missed all of it");
        assert_eq!(cost(ReservationState::Active, 1_500), 500_000 + 100_000);
        assert_eq!(cost(ReservationState::Active, 2_500), 1_000_000, "never more than its price");
        assert_eq!(elapsed_micros(&row(), at(0)), 0);
    }

    #[test]
    fn an_outage_over_the_begin_moves_it_and_costs_nothing() {
        let at = |seconds: i64| Timestamp::from_micros(seconds * 1_000_000);
        let owned =
            || StoredReservation { org_id: Some("org_00000000000000000000000000".parse().unwrap()), ..row() };
        for (placed_s, now_s, begin_s) in [
            (None, 1_000, None),
            (None, 1_059, None),
            (None, 1_060, Some(1_060)),
            (None, 1_750, Some(1_750)),
            (None, 2_500, Some(2_000)),
            (Some(1_030), 1_750, None),
            (Some(1_100), 1_750, Some(1_100)),
            (Some(1_800), 1_750, Some(1_750)),
        ] {
            let mut row = owned();
            let moved = skip_outage(&mut row, placed_s.map(at), at(now_s));
            assert_eq!(moved, begin_s.is_some(), "{placed_s:?} {now_s}");
            let begin_s = begin_s.unwrap_or(1_000);
            assert_eq!((row.starts_at, row.ends_at), (at(begin_s), at(2_000)), "{placed_s:?} {now_s}");
            assert_eq!(row.total_micros, (2_000 - begin_s) * 1_000, "{placed_s:?} {now_s}");
        }
        let mut within = owned();
        assert!(skip_outage(&mut within, None, Timestamp::from_micros(1_500_700_000)));
        assert_eq!(within.starts_at, at(1_500), "a whole second");
        assert!(!skip_outage(&mut row(), None, at(1_750)), "maintenance keeps its begin");
    }
}

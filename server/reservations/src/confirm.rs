//! The confirmation of quotes: bookings in the engine's calendar, a hold and a record, all or none of them.
//! Also the plan of maintenance windows.

use std::collections::HashMap;

use berth_core::dedicated::UsableNodes;
use berth_engine::{Engine, Refusal};
use berth_placement::calendar::{Booking, BookingKind};
use berth_placement::request::Request;
use berth_types::ids::{OrgId, ReservationId};
use berth_types::jobs::Topology;
use berth_types::ledger::TransferKind;
use berth_types::operators::OperatorRight;
use berth_types::problems::{FieldError, Problem};
use berth_types::reservations::{
    NewMaintenance, NewReservation, Quote, Reservation, ReservationState, Window,
};
use berth_types::time::Timestamp;
use futures::FutureExt;

use crate::Reservations;

use crate::charges::posting;
use crate::checks::{check_before_booking, check_confirmation, quote_used, window_cost};
use crate::obstacle::refuse_maintenance;
use crate::{board_milli, span, stored_quote_request};
use berth_foundation::{Caller, Change, Context, Right, fault, idempotency};
use berth_jobs::planner::bookings::{self, booking_id, is_free, maintenance_org, stored_places};
use berth_store::offerings::StoredOffering;
use berth_store::reservations::{StoredDevice, StoredPlaces, StoredReservation};
use berth_store::{self as store, StoreError, Tx, WriteError};

/// The devices of new reservations, and the new devices of moved ones.
struct Placed {
    places: Vec<StoredPlaces>,
    moved: HashMap<ReservationId, StoredPlaces>,
}

fn quote_expired(quote: &Quote) -> Problem {
    let detail = format!(
        "The price was valid until {}. Nothing was reserved. Request a new quote.",
        quote.expires_at.minute()
    );
    Problem::new(409, "quote.expired", "Quote expired", detail)
}

pub(crate) fn capacity_taken() -> Problem {
    let detail = "Another reservation or job took the devices. Nothing was reserved. Request a new quote; it lists the nearest free times.";
    Problem::new(409, "reservation.taken", "Devices not free", detail)
}

/// The problem of a refused booking. It names the nodes without a connection that could hold the booking.
fn refusal_problem(refusal: &Refusal) -> Problem {
    let away = match refusal {
        Refusal::Taken { away, .. } => crate::away_text(*away),
        _ => None,
    };
    match away {
        Some(away) => {
            let detail = format!("{away} Nothing was reserved.");
            Problem::new(409, "reservation.taken", "Nodes not connected", detail)
        }
        None => capacity_taken(),
    }
}

/// Parses the ids that a claimed idempotency key has as JSON.
fn parse_ids(created: &str) -> Result<Vec<ReservationId>, Problem> {
    serde_json::from_str(created).map_err(|_| Problem::internal())
}

/// True if an organization may use all nodes of some places.
async fn may_use(tx: &mut Tx<'_>, org: OrgId, places: &StoredPlaces) -> Result<bool, StoreError> {
    for (node, _) in places {
        let Some(found) = store::dedicated::find_use(tx, org, *node).await? else { return Ok(false) };
        let nodes = UsableNodes { org, own_only: found.own_nodes_only };
        if !nodes.has(found.dedicated_to) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Records the new devices of moved reservations. Returns false if one of them does not exist any more, or if its
/// organization may not use its new nodes.
async fn move_others(
    tx: &mut Tx<'_>,
    moved: &HashMap<ReservationId, StoredPlaces>,
) -> Result<bool, StoreError> {
    for (id, places) in moved {
        let Some(mut row) = store::reservations::find_any(tx, *id).await? else { return Ok(false) };
        if !row.state.holds() {
            continue;
        }
        if let Some(org) = row.org_id
            && !may_use(tx, org, places).await?
        {
            return Ok(false);
        }
        row.places = json(places)?;
        store::reservations::update(tx, &row).await?;
    }
    Ok(true)
}

pub(crate) fn json<T: serde::Serialize>(value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|e| StoreError::Corrupt(e.to_string()))
}

/// Books all windows in the engine. The next read of the stored bookings undoes those that are not recorded.
fn book(
    engine: &mut Engine,
    model: &str,
    request: &Request,
    org: OrgId,
    windows: &[(ReservationId, Window)],
    now: Timestamp,
) -> Result<Placed, Refusal> {
    let mut placed = Placed { places: Vec::new(), moved: HashMap::new() };
    for (id, window) in windows {
        let (ask, places, moved) = engine.quote(request, org, span(*window), now)?;
        placed.places.push(stored_places(model, &engine.name_places(&places)));
        for booking in &moved {
            let id = ReservationId::from_uuid(booking.id.0);
            placed.moved.insert(id, stored_places(model, &engine.name_places(&booking.places)));
        }
        let (from, until) = (window.starts_at, window.ends_at);
        let kind = BookingKind::Reservation;
        engine.book(Booking { id: booking_id(*id), kind, org, ask: Some(ask), from, until, places }, moved);
    }
    Ok(placed)
}

/// The faults of a maintenance window that need no look at the boards.
fn maintenance_errors(input: &NewMaintenance, from: Timestamp, now: Timestamp) -> Vec<FieldError> {
    let mut errors = Vec::new();
    berth_core::admission::check_name("/reason", &input.reason, &mut errors);
    if input.starts_at < now.plus_seconds(-crate::LATE_S) {
        errors.push(FieldError::new("/starts_at", "The time is in the past."));
    } else if from > now.plus_seconds(crate::MAX_LENGTH_S) {
        errors.push(FieldError::new("/starts_at", "Choose a start within a year from now."));
    }
    let length_s = input.ends_at.millis_since(from) / 1_000;
    if !(crate::MIN_LENGTH_S..=crate::MAX_LENGTH_S).contains(&length_s) {
        let detail = "Maintenance lasts one minute to one year.";
        errors.push(FieldError::new("/ends_at", detail));
    }
    if !crate::are_uuids(&input.gpus) {
        errors.push(FieldError::new("/gpus", "Enter at most 64 boards, each once."));
    }
    errors
}

/// The record of a maintenance window on these places.
fn maintenance_row(
    id: ReservationId,
    input: &NewMaintenance,
    (from, until): (Timestamp, Timestamp),
    places: &StoredPlaces,
    created_by: &str,
    now: Timestamp,
) -> Result<StoredReservation, StoreError> {
    let count = i64::try_from(places.iter().map(|(_, devices)| devices.len()).sum::<usize>()).unwrap_or(0);
    Ok(StoredReservation {
        id,
        org_id: None,
        org_name: None,
        name: input.reason.trim().to_owned(),
        state: ReservationState::Scheduled,
        cause: String::new(),
        quote_id: None,
        series: String::new(),
        offering_id: None,
        slug: None,
        gpu_model: None,
        mig_profile: None,
        nodes: 1,
        gpus_per_node: count,
        topology: Topology::Any,
        board_milli: count * 1_000,
        starts_at: from,
        ends_at: until,
        ended_at: None,
        nano_per_second: 0,
        price_version: 0,
        total_micros: 0,
        held_micros: 0,
        posted_micros: 0,
        credited_micros: 0,
        places: json(places)?,
        policy: json(&berth_types::reservations::ReservationPolicy::default())?,
        lost_milli: 0,
        lost_since: None,
        warned: false,
        generation: 1,
        created_by: created_by.to_owned(),
        created_at: now,
    })
}

/// Records a maintenance window. Returns false if the stored bookings or runs have its boards.
async fn record_maintenance(
    context: &Context,
    caller: &Caller,
    row: StoredReservation,
    places: StoredPlaces,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let (id, reason) = (row.id.to_string(), row.name.clone());
    let event = context.audit_event(caller, "maintenance.planned", id, reason);
    let key = caller.idempotency_key.clone();
    context
        .db
        .write(move |tx| {
            let (row, places, event, key) = (row.clone(), places.clone(), event.clone(), key.clone());
            async move {
                let window = (row.starts_at, row.ends_at);
                if !is_free(tx, &places, window, &HashMap::new(), &[]).await? {
                    return Ok(false);
                }
                idempotency::claim(tx, key.as_ref(), &row.id.to_string(), now).await?;
                store::reservations::insert(tx, &row).await?;
                store::quotas::insert_audit(tx, None, &event).await?;
                Ok(true)
            }
            .boxed()
        })
        .await
}

impl Reservations {
    /// Confirms a quote with all its windows, and holds its whole cost.
    ///
    /// # Errors
    /// The quote is unknown, used or expired, its devices are not free, or the organization has not enough
    /// credit.
    pub async fn reserve(
        &self,
        caller: &Caller,
        org: OrgId,
        input: NewReservation,
    ) -> Result<Vec<Reservation>, Problem> {
        self.context.authorise(caller, org, Right::Run).await?;
        if let Some(created) = caller.already_created() {
            return self.show_reservations(&parse_ids(created)?).await;
        }
        let mut errors = Vec::new();
        berth_core::admission::check_name("/name", &input.name, &mut errors);
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let now = self.context.now();
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let found = store::reservations::find_quote(&mut tx, org, input.quote).await?;
        let (quote, used_at) = found.ok_or_else(|| {
            Problem::invalid_field(
                "/quote",
                "This quote does not exist in the organization. Request a quote first.",
            )
        })?;
        if used_at.is_some() {
            return Err(quote_used());
        }
        if quote.expires_at <= now || quote.windows.first().is_none_or(|w| w.ends_at <= now) {
            return Err(quote_expired(&quote));
        }
        let offering =
            store::offerings::find(&mut tx, &quote.offering, now).await?.ok_or_else(Problem::not_found)?;
        drop(conn);
        self.planner.refresh().await?;
        // The engine reads no bookings until the record, since a read before it would undo the new bookings.
        let reading = self.planner.lock_reading().await;
        let mut windows = quote.windows.clone();
        if let Some(first) = windows.first_mut() {
            // A window with a begin of a moment ago begins now.
            let second = Timestamp::from_micros(now.micros().div_euclid(1_000_000) * 1_000_000);
            first.starts_at = first.starts_at.max(second);
        }
        // A refused confirmation must not book, since its booking would refuse those of others meanwhile.
        check_before_booking(&self.context, org, (&quote, &offering), &windows, now).await?;
        let windows: Vec<(ReservationId, Window)> =
            windows.into_iter().map(|w| (self.context.new_id(now), w)).collect();
        let request = stored_quote_request(&quote, &offering);
        fault::point("reservation.confirm.begun");
        let (model, asked) = (offering.gpu_model.clone(), windows.clone());
        let placed = self.planner.ask(move |e| book(e, &model, &request, org, &asked, now));
        let placed = match placed.await {
            Ok(placed) => placed,
            Err(refusal) => {
                drop(reading);
                self.context.publish(Change::Reservations);
                return Err(refusal_problem(&refusal));
            }
        };
        let rows = self.new_rows(caller, &quote, &offering, &input, org, &windows, &placed, now);
        fault::point("reservation.confirm.booked");
        let done = match rows {
            Ok(rows) => self.record(caller, org, &quote, rows, placed.moved, now).await,
            Err(error) => Err(error.into()),
        };
        fault::point("reservation.confirm.recorded");
        // With or without success the engine reads the stored bookings.
        drop(reading);
        self.context.publish(Change::Reservations);
        self.show_reservations(&done?).await
    }

    #[expect(clippy::too_many_arguments, reason = "everything that a record is made of, used once")]
    fn new_rows(
        &self,
        caller: &Caller,
        quote: &Quote,
        offering: &StoredOffering,
        input: &NewReservation,
        org: OrgId,
        windows: &[(ReservationId, Window)],
        placed: &Placed,
        now: Timestamp,
    ) -> Result<Vec<StoredReservation>, StoreError> {
        let series = match windows {
            [_] => String::new(),
            several => several.first().map(|(id, _)| id.to_string()).unwrap_or_default(),
        };
        let state =
            if quote.needs_approval { ReservationState::Pending } else { ReservationState::Scheduled };
        let mut rows = Vec::new();
        for ((id, window), places) in windows.iter().zip(&placed.places) {
            let total = window_cost(window, quote.nano_per_second);
            rows.push(StoredReservation {
                id: *id,
                org_id: Some(org),
                org_name: None,
                name: input.name.trim().to_owned(),
                state,
                cause: String::new(),
                quote_id: Some(quote.id),
                series: series.clone(),
                offering_id: Some(offering.id),
                slug: None,
                gpu_model: None,
                mig_profile: None,
                nodes: i64::from(quote.nodes),
                gpus_per_node: i64::from(quote.gpus_per_node),
                topology: quote.topology,
                board_milli: board_milli(offering, quote.nodes, quote.gpus_per_node),
                starts_at: window.starts_at,
                ends_at: window.ends_at,
                ended_at: None,
                nano_per_second: quote.nano_per_second,
                price_version: quote.price_version,
                total_micros: total,
                held_micros: total,
                posted_micros: 0,
                credited_micros: 0,
                places: json(places)?,
                policy: json(&quote.policy)?,
                lost_milli: 0,
                lost_since: None,
                warned: false,
                generation: 1,
                created_by: caller.user.name.clone(),
                created_at: now,
            });
        }
        Ok(rows)
    }

    /// Records the new reservations with their holds, and returns their ids. A refusal changes nothing.
    async fn record(
        &self,
        caller: &Caller,
        org: OrgId,
        quote: &Quote,
        rows: Vec<StoredReservation>,
        moved: HashMap<ReservationId, StoredPlaces>,
        now: Timestamp,
    ) -> Result<Vec<ReservationId>, WriteError> {
        let context = self.context.clone();
        let (quote, key) = (quote.clone(), caller.idempotency_key.clone());
        self.context
            .db
            .try_write(move |tx| {
                let (context, quote, rows, moved) =
                    (context.clone(), quote.clone(), rows.clone(), moved.clone());
                let key = key.clone();
                async move {
                    let milli = rows.first().map_or(0, |r| r.board_milli);
                    let costs: Vec<(Timestamp, i64)> =
                        rows.iter().map(|r| (r.starts_at, r.total_micros)).collect();
                    check_confirmation(tx, &context, org, &quote, (milli, &costs), now).await?;
                    let own: Vec<ReservationId> = rows.iter().map(|row| row.id).collect();
                    for row in &rows {
                        let (window, places) = ((row.starts_at, row.ends_at), row.places()?);
                        let usable = may_use(tx, org, &places).await?;
                        if !usable || !is_free(tx, &places, window, &moved, &own).await? {
                            return Err(capacity_taken().into());
                        }
                    }
                    if !move_others(tx, &moved).await? {
                        return Err(capacity_taken().into());
                    }
                    store::reservations::use_quote(tx, quote.id, now).await?;
                    for row in &rows {
                        store::reservations::insert(tx, row).await?;
                        if row.held_micros > 0 {
                            let hold = posting(&context, row, TransferKind::Hold, row.held_micros, 1, now)?;
                            store::ledger::post(tx, &hold).await?;
                        }
                    }
                    idempotency::claim(tx, key.as_ref(), &json(&own)?, now).await?;
                    fault::point("reservation.confirm.recording");
                    Ok(own)
                }
                .boxed()
            })
            .await
    }

    /// Books boards of a node for maintenance.
    ///
    /// # Errors
    /// The node or a board is unknown, the window is invalid, or a reservation or a job may have the boards
    /// then.
    pub async fn plan_maintenance(
        &self,
        caller: &Caller,
        input: NewMaintenance,
    ) -> Result<Reservation, Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageFleet).await?;
        if let Some(created) = caller.already_created() {
            return self.show_reservation(created.parse().map_err(|_| Problem::internal())?).await;
        }
        let now = self.context.now();
        let (from, until) = (input.starts_at.max(now), input.ends_at);
        let errors = maintenance_errors(&input, from, now);
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let mut conn = self.context.db.read().await?;
        let boards = store::nodes::list_gpus(&mut conn.tx()).await?;
        drop(conn);
        let is_requested = |uuid: &String| input.gpus.is_empty() || input.gpus.contains(uuid);
        let chosen: Vec<_> =
            boards.iter().filter(|g| g.node_id == input.node && g.present && is_requested(&g.uuid)).collect();
        if chosen.is_empty() && input.gpus.is_empty() {
            let detail =
                "No approved node with boards has this id. GET /api/v1/operator/nodes lists the nodes.";
            return Err(Problem::invalid_field("/node", detail));
        }
        if chosen.is_empty() || (!input.gpus.is_empty() && chosen.len() != input.gpus.len()) {
            let detail = "The node has no such board. GET /api/v1/operator/nodes lists the boards.";
            return Err(Problem::invalid_field("/gpus", detail));
        }
        let device = |uuid: &str, model: &str| StoredDevice {
            gpu_uuid: uuid.to_owned(),
            profile_id: None,
            start: 0,
            size: berth_mig::board_by_name(model).map_or(1, |b| b.memory_slices),
        };
        let places: StoredPlaces =
            vec![(input.node, chosen.iter().map(|g| device(&g.uuid, &g.model)).collect())];
        let id: ReservationId = self.context.new_id(now);
        let row = maintenance_row(id, &input, (from, until), &places, &caller.user.name, now)?;
        self.planner.refresh().await?;
        let reading = self.planner.lock_reading().await;
        let named = bookings::named_places(&places);
        let fits = self.planner.ask(move |engine| {
            let booking = Booking {
                id: booking_id(id),
                kind: BookingKind::Maintenance,
                org: maintenance_org(),
                ask: None,
                from,
                until,
                places: engine.resolve_places(&named),
            };
            let fits = engine.is_clear(&booking);
            if fits {
                engine.book(booking, Vec::new());
            }
            fits
        });
        let fits = fits.await;
        let done =
            if fits { record_maintenance(&self.context, caller, row, places, now).await } else { Ok(false) };
        drop(reading);
        self.context.publish(Change::Reservations);
        if !done? {
            return Err(refuse_maintenance(&self.context, &chosen, (from, until), now).await?);
        }
        self.show_reservation(id).await
    }
}

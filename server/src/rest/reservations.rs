//! Quotes, reservations, maintenance and the calendar.

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json as Answer, Router};
use berth_types::Page;
use berth_types::ids::{OrgId, QuoteId, ReservationId};
use berth_types::reservations::{
    Calendar, ExtendReservation, NewMaintenance, NewQuote, NewReservation, Quote, Reservation,
    ReservationPolicy, ReservationState,
};
use berth_types::time::Timestamp;
use serde::Deserialize;

use super::extract::{Failed, Json, Path, Query, Signed, cursor, limit};
use crate::portal::Portal;

pub fn routes() -> Router<Portal> {
    Router::new()
        .route("/orgs/{org}/quotes", post(quote))
        .route("/orgs/{org}/quotes/{id}", get(show_quote))
        .route("/orgs/{org}/reservations", get(list).post(reserve))
        .route("/orgs/{org}/reservations/{id}", get(show))
        .route("/orgs/{org}/reservations/{id}/cancel", post(cancel))
        .route("/orgs/{org}/reservations/{id}/extend", post(extend))
        .route("/orgs/{org}/calendar", get(calendar))
        .route("/operator/reservations", get(list_all).post(maintain))
        .route("/operator/reservations/{id}/cancel", post(take_back))
        .route("/operator/reservations/{id}/approve", post(approve))
        .route("/operator/reservations/{id}/decline", post(decline))
        .route("/operator/calendar", get(whole_calendar))
        .route("/operator/reservation-policy", get(policy).put(set_policy))
}

async fn quote(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<NewQuote>,
) -> Result<(StatusCode, Answer<Quote>), Failed> {
    Ok((StatusCode::CREATED, Answer(portal.reservations.quote(&caller, org, body.value).await?)))
}

async fn show_quote(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path((org, id)): Path<(OrgId, QuoteId)>,
) -> Result<Answer<Quote>, Failed> {
    Ok(Answer(portal.reservations.get_quote(&caller, org, id).await?))
}

/// Answers with every reservation that the quote became: one, or one for each window.
async fn reserve(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<NewReservation>,
) -> Result<(StatusCode, Answer<Page<Reservation>>), Failed> {
    Ok((
        StatusCode::CREATED,
        Answer(Page::whole(portal.reservations.reserve(&caller, org, body.value).await?)),
    ))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    state: Option<ReservationState>,
    limit: Option<u32>,
    cursor: Option<String>,
}

async fn list(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<List>,
) -> Result<Answer<Page<Reservation>>, Failed> {
    let (from, most) = (cursor(query.cursor)?, limit(query.limit)?);
    Ok(Answer(portal.reservations.list_reservations(&caller, Some(org), query.state, from, most).await?))
}

async fn list_all(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Query(query): Query<List>,
) -> Result<Answer<Page<Reservation>>, Failed> {
    let (from, most) = (cursor(query.cursor)?, limit(query.limit)?);
    Ok(Answer(portal.reservations.list_reservations(&caller, None, query.state, from, most).await?))
}

async fn show(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path((org, id)): Path<(OrgId, ReservationId)>,
) -> Result<Answer<Reservation>, Failed> {
    Ok(Answer(portal.reservations.get_reservation(&caller, org, id).await?))
}

async fn cancel(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path((org, id)): Path<(OrgId, ReservationId)>,
) -> Result<Answer<Reservation>, Failed> {
    Ok(Answer(portal.reservations.cancel_reservation(&caller, Some(org), id).await?))
}

async fn take_back(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(id): Path<ReservationId>,
) -> Result<Answer<Reservation>, Failed> {
    Ok(Answer(portal.reservations.cancel_reservation(&caller, None, id).await?))
}

async fn extend(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path((org, id)): Path<(OrgId, ReservationId)>,
    body: Json<ExtendReservation>,
) -> Result<Answer<Reservation>, Failed> {
    Ok(Answer(portal.reservations.extend_reservation(&caller, org, id, body.value).await?))
}

async fn maintain(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    body: Json<NewMaintenance>,
) -> Result<(StatusCode, Answer<Reservation>), Failed> {
    Ok((StatusCode::CREATED, Answer(portal.reservations.plan_maintenance(&caller, body.value).await?)))
}

async fn approve(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(id): Path<ReservationId>,
) -> Result<Answer<Reservation>, Failed> {
    Ok(Answer(portal.reservations.decide_reservation(&caller, id, true).await?))
}

async fn decline(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(id): Path<ReservationId>,
) -> Result<Answer<Reservation>, Failed> {
    Ok(Answer(portal.reservations.decide_reservation(&caller, id, false).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Between {
    from: Timestamp,
    until: Timestamp,
}

async fn calendar(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<Between>,
) -> Result<Answer<Calendar>, Failed> {
    Ok(Answer(portal.reservations.calendar(&caller, Some(org), query.from, query.until).await?))
}

async fn whole_calendar(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Query(query): Query<Between>,
) -> Result<Answer<Calendar>, Failed> {
    Ok(Answer(portal.reservations.calendar(&caller, None, query.from, query.until).await?))
}

async fn policy(
    State(portal): State<Portal>,
    Signed(caller): Signed,
) -> Result<Answer<ReservationPolicy>, Failed> {
    Ok(Answer(portal.reservations.reservation_policy(&caller).await?))
}

async fn set_policy(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    body: Json<ReservationPolicy>,
) -> Result<Answer<ReservationPolicy>, Failed> {
    Ok(Answer(portal.reservations.set_reservation_policy(&caller, body.value).await?))
}

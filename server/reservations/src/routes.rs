//! Quotes, reservations, maintenance and the calendar.

use crate::Reservations;
use crate::capacity::get_capacity;
use aide::axum::ApiRouter;
use aide::axum::routing::{get_with, post_with};
use axum::Json as Answer;
use axum::extract::State;
use berth_foundation::Scope;
use berth_rest::answers::Created;
use berth_rest::lists::ListQuery;
use berth_rest::operations::doc;
use berth_rest::{Failed, Json, Path, Query, Signed};
use berth_types::capacity::Capacity;
use berth_types::ids::{OrgId, QuoteId, ReservationId};
use berth_types::reservations::{
    Calendar, ExtendReservation, NewMaintenance, NewQuote, NewReservation, Quote, Reservation,
    ReservationPolicy, ReservationState,
};
use berth_types::scopes::ApiScope;
use berth_types::time::Timestamp;
use berth_types::{Page, Sort};
use serde::Deserialize;

pub fn routes() -> ApiRouter<Reservations> {
    ApiRouter::new()
        .api_route(
            "/orgs/{org}/quotes",
            post_with(quote, doc(ApiScope::ReservationsWrite, "Quotes a reservation.")),
        )
        .api_route(
            "/orgs/{org}/quotes/{id}",
            get_with(show_quote, doc(ApiScope::ReservationsRead, "Gives a quote.")),
        )
        .api_route(
            "/orgs/{org}/reservations",
            get_with(list, doc(ApiScope::ReservationsRead, "Lists the reservations of an organization."))
                .post_with(reserve, doc(ApiScope::ReservationsWrite, "Reserves by a quote.")),
        )
        .api_route(
            "/orgs/{org}/reservations/{id}",
            get_with(show, doc(ApiScope::ReservationsRead, "Gives a reservation.")),
        )
        .api_route(
            "/orgs/{org}/reservations/{id}/cancel",
            post_with(cancel, doc(ApiScope::ReservationsWrite, "Cancels or returns a reservation.")),
        )
        .api_route(
            "/orgs/{org}/reservations/{id}/extend",
            post_with(extend, doc(ApiScope::ReservationsWrite, "Extends a reservation.")),
        )
        .api_route(
            "/orgs/{org}/calendar",
            get_with(calendar, doc(ApiScope::ReservationsRead, "Gives the calendar of an organization.")),
        )
        .api_route(
            "/orgs/{org}/capacity",
            get_with(
                capacity,
                doc(ApiScope::ReservationsRead, "Gives the free boards of each model over time."),
            ),
        )
        .api_route(
            "/operator/reservations",
            get_with(list_all, doc(ApiScope::ReservationsRead, "Lists all reservations."))
                .post_with(maintain, doc(ApiScope::ReservationsWrite, "Plans maintenance of a node.")),
        )
        .api_route(
            "/operator/reservations/{id}/cancel",
            post_with(cancel_any, doc(ApiScope::ReservationsWrite, "Cancels any reservation.")),
        )
        .api_route(
            "/operator/reservations/{id}/approve",
            post_with(approve, doc(ApiScope::ReservationsWrite, "Approves a reservation.")),
        )
        .api_route(
            "/operator/reservations/{id}/decline",
            post_with(decline, doc(ApiScope::ReservationsWrite, "Declines a reservation.")),
        )
        .api_route(
            "/operator/calendar",
            get_with(whole_calendar, doc(ApiScope::ReservationsRead, "Gives the calendar of all nodes.")),
        )
        .api_route(
            "/operator/capacity",
            get_with(
                whole_capacity,
                doc(
                    ApiScope::ReservationsRead,
                    "Gives the free boards of each model over time, for operators.",
                ),
            ),
        )
        .api_route(
            "/operator/reservation-policy",
            get_with(policy, doc(ApiScope::ReservationsRead, "Gives the terms of reservations."))
                .put_with(set_policy, doc(ApiScope::Admin, "Replaces the terms of reservations.")),
        )
}

async fn quote(
    State(reservations): State<Reservations>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<NewQuote>,
) -> Result<Created<Quote>, Failed> {
    Ok(Created(reservations.quote(&caller, org, body.value).await?))
}

async fn show_quote(
    State(reservations): State<Reservations>,
    Signed(caller): Signed,
    Path((org, id)): Path<(OrgId, QuoteId)>,
) -> Result<Answer<Quote>, Failed> {
    Ok(Answer(reservations.get_quote(&caller, org, id).await?))
}

/// Answers with the reservations of the quote: one for each window.
async fn reserve(
    State(reservations): State<Reservations>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<NewReservation>,
) -> Result<Created<Page<Reservation>>, Failed> {
    Ok(Created(Page::whole(reservations.reserve(&caller, org, body.value).await?)))
}

/// The query of an organization's reservations.
#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReservationQuery {
    /// Only reservations in this state.
    state: Option<ReservationState>,
    /// The most items of a page, 1 to 200; 50 when absent.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    #[schemars(length(min = 1, max = 4_096))]
    cursor: Option<String>,
    /// The order of the list. When absent, `desc` for lists by creation and `asc` for all other lists.
    sort: Option<Sort>,
}

async fn list(
    State(reservations): State<Reservations>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<ReservationQuery>,
) -> Result<Answer<Page<Reservation>>, Failed> {
    let options = ListQuery { limit: query.limit, cursor: query.cursor, sort: query.sort }
        .by_creation_with(&query.state)?;
    Ok(Answer(reservations.list_reservations(&caller, Scope::Org(org), query.state, &options).await?))
}

/// The query of all reservations.
#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct AllReservationsQuery {
    /// Only reservations of this organization.
    org: Option<OrgId>,
    /// Only reservations in this state.
    state: Option<ReservationState>,
    /// The most items of a page, 1 to 200; 50 when absent.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    #[schemars(length(min = 1, max = 4_096))]
    cursor: Option<String>,
    /// The order of the list. When absent, `desc` for lists by creation and `asc` for all other lists.
    sort: Option<Sort>,
}

async fn list_all(
    State(reservations): State<Reservations>,
    Signed(caller): Signed,
    Query(query): Query<AllReservationsQuery>,
) -> Result<Answer<Page<Reservation>>, Failed> {
    let options = ListQuery { limit: query.limit, cursor: query.cursor, sort: query.sort }
        .by_creation_with(&(query.org, query.state))?;
    let scope = Scope::Operator(query.org);
    Ok(Answer(reservations.list_reservations(&caller, scope, query.state, &options).await?))
}

async fn show(
    State(reservations): State<Reservations>,
    Signed(caller): Signed,
    Path((org, id)): Path<(OrgId, ReservationId)>,
) -> Result<Answer<Reservation>, Failed> {
    Ok(Answer(reservations.get_reservation(&caller, org, id).await?))
}

async fn cancel(
    State(reservations): State<Reservations>,
    Signed(caller): Signed,
    Path((org, id)): Path<(OrgId, ReservationId)>,
) -> Result<Answer<Reservation>, Failed> {
    Ok(Answer(reservations.cancel_reservation(&caller, Some(org), id).await?))
}

async fn cancel_any(
    State(reservations): State<Reservations>,
    Signed(caller): Signed,
    Path(id): Path<ReservationId>,
) -> Result<Answer<Reservation>, Failed> {
    Ok(Answer(reservations.cancel_reservation(&caller, None, id).await?))
}

async fn extend(
    State(reservations): State<Reservations>,
    Signed(caller): Signed,
    Path((org, id)): Path<(OrgId, ReservationId)>,
    body: Json<ExtendReservation>,
) -> Result<Answer<Reservation>, Failed> {
    Ok(Answer(reservations.extend_reservation(&caller, org, id, body.value).await?))
}

async fn maintain(
    State(reservations): State<Reservations>,
    Signed(caller): Signed,
    body: Json<NewMaintenance>,
) -> Result<Created<Reservation>, Failed> {
    Ok(Created(reservations.plan_maintenance(&caller, body.value).await?))
}

async fn approve(
    State(reservations): State<Reservations>,
    Signed(caller): Signed,
    Path(id): Path<ReservationId>,
) -> Result<Answer<Reservation>, Failed> {
    Ok(Answer(reservations.decide_reservation(&caller, id, true).await?))
}

async fn decline(
    State(reservations): State<Reservations>,
    Signed(caller): Signed,
    Path(id): Path<ReservationId>,
) -> Result<Answer<Reservation>, Failed> {
    Ok(Answer(reservations.decide_reservation(&caller, id, false).await?))
}

#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Between {
    /// The start of the period.
    from: Timestamp,
    /// The end of the period, later than `from` by at most 93 days.
    until: Timestamp,
    /// Only boards of this model.
    #[schemars(length(min = 1, max = 100))]
    model: Option<String>,
}

async fn calendar(
    State(reservations): State<Reservations>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<Between>,
) -> Result<Answer<Calendar>, Failed> {
    let period = (query.from, query.until);
    Ok(Answer(reservations.calendar(&caller, Some(org), period, query.model.as_deref()).await?))
}

async fn whole_calendar(
    State(reservations): State<Reservations>,
    Signed(caller): Signed,
    Query(query): Query<Between>,
) -> Result<Answer<Calendar>, Failed> {
    let period = (query.from, query.until);
    Ok(Answer(reservations.calendar(&caller, None, period, query.model.as_deref()).await?))
}

/// The query of the capacity.
#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct CapacityQuery {
    /// The start of the period; the present time when absent.
    from: Option<Timestamp>,
    /// The end of the period, later than `from` by at most 93 days; one day later when absent.
    until: Option<Timestamp>,
}

async fn capacity(
    State(reservations): State<Reservations>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<CapacityQuery>,
) -> Result<Answer<Capacity>, Failed> {
    Ok(Answer(get_capacity(&reservations, &caller, Some(org), query.from, query.until).await?))
}

async fn whole_capacity(
    State(reservations): State<Reservations>,
    Signed(caller): Signed,
    Query(query): Query<CapacityQuery>,
) -> Result<Answer<Capacity>, Failed> {
    Ok(Answer(get_capacity(&reservations, &caller, None, query.from, query.until).await?))
}

async fn policy(
    State(reservations): State<Reservations>,
    Signed(caller): Signed,
) -> Result<Answer<ReservationPolicy>, Failed> {
    Ok(Answer(reservations.reservation_policy(&caller).await?))
}

async fn set_policy(
    State(reservations): State<Reservations>,
    Signed(caller): Signed,
    body: Json<ReservationPolicy>,
) -> Result<Answer<ReservationPolicy>, Failed> {
    Ok(Answer(reservations.set_reservation_policy(&caller, body.value).await?))
}

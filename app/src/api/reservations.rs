//! Quotes, reservations and the calendar of an organization.

use std::future::Future;

use berth_types::Page;
use berth_types::capacity::Capacity;
use berth_types::ids::{OrgId, ReservationId};
use berth_types::reservations::{
    Calendar, ExtendReservation, NewQuote, NewReservation, Quote, Reservation, ReservationState,
};
use berth_types::time::Timestamp;

use super::escape::escaped;
use super::{Answer, send};

/// Creates a quote with price and availability. The quote fixes the price, not the devices.
pub fn quote(org: OrgId, input: &NewQuote) -> impl Future<Output = Answer<Quote>> + Send + 'static {
    send("POST", format!("/orgs/{org}/quotes"), input, None)
}

/// Confirms a quote: one reservation per window. The quote is the key, so that repeated requests reserve once and
/// have the same answer.
pub fn reserve(
    org: OrgId,
    input: &NewReservation,
) -> impl Future<Output = Answer<Page<Reservation>>> + Send + 'static {
    send("POST", format!("/orgs/{org}/reservations"), input, Some(input.quote.to_string()))
}

/// Lists reservations in one state or in all states, newest first.
pub fn list(
    org: OrgId,
    state: Option<ReservationState>,
    cursor: Option<String>,
    limit: u32,
) -> impl Future<Output = Answer<Page<Reservation>>> + Send + 'static {
    let state = state.map_or_else(String::new, |s| format!("&state={}", s.name()));
    let cursor = cursor.map_or_else(String::new, |c| format!("&cursor={c}"));
    super::get(format!("/orgs/{org}/reservations?limit={limit}{state}{cursor}"))
}

/// Gets a reservation.
pub fn get(org: OrgId, id: ReservationId) -> impl Future<Output = Answer<Reservation>> + Send + 'static {
    super::get(format!("/orgs/{org}/reservations/{id}"))
}

/// Cancels a reservation before its start, or returns the rest of it. Repeated requests with the same key do it
/// once.
pub fn cancel(
    org: OrgId,
    id: ReservationId,
    key: Option<String>,
) -> impl Future<Output = Answer<Reservation>> + Send + 'static {
    send("POST", format!("/orgs/{org}/reservations/{id}/cancel"), &(), key)
}

/// Extends a reservation at its own rate. Repeated requests with the same key do it once.
pub fn extend(
    org: OrgId,
    id: ReservationId,
    input: &ExtendReservation,
    key: Option<String>,
) -> impl Future<Output = Answer<Reservation>> + Send + 'static {
    send("POST", format!("/orgs/{org}/reservations/{id}/extend"), input, key)
}

/// Gets the bookings and jobs of the boards of a model (`None`: of all boards) between two times.
pub fn calendar(
    org: OrgId,
    (from, until): (Timestamp, Timestamp),
    model: Option<String>,
) -> impl Future<Output = Answer<Calendar>> + Send + 'static {
    let model = model.map_or_else(String::new, |model| format!("&model={}", escaped(&model)));
    super::get(format!("/orgs/{org}/calendar?from={from}&until={until}{model}"))
}

/// Gets the free boards of each model between two times (`None`: for a day from now).
pub fn capacity(
    org: OrgId,
    period: Option<(Timestamp, Timestamp)>,
) -> impl Future<Output = Answer<Capacity>> + Send + 'static {
    let query = period.map_or_else(String::new, |(from, until)| format!("?from={from}&until={until}"));
    super::get(format!("/orgs/{org}/capacity{query}"))
}

//! Quotes, reservations and the calendar, as an organization sees them.

use std::future::Future;

use berth_types::Page;
use berth_types::ids::{OrgId, ReservationId};
use berth_types::reservations::{
    Calendar, ExtendReservation, NewQuote, NewReservation, Quote, Reservation, ReservationState,
};
use berth_types::time::Timestamp;

use super::{Answer, send};

/// Prices a reservation and says whether there is room for it; holds the price, not the place.
pub fn quote(org: OrgId, input: &NewQuote) -> impl Future<Output = Answer<Quote>> + Send + 'static {
    send("POST", format!("/orgs/{org}/quotes"), input, None)
}

/// Confirms a quote: one reservation, or one for each of its windows. A quote is used once, so it is its
/// own key: asking twice reserves once, and answers the same.
pub fn reserve(
    org: OrgId,
    input: &NewReservation,
) -> impl Future<Output = Answer<Page<Reservation>>> + Send + 'static {
    send("POST", format!("/orgs/{org}/reservations"), input, Some(input.quote.to_string()))
}

/// Newest first, of one state or of all.
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

/// One reservation.
pub fn get(org: OrgId, id: ReservationId) -> impl Future<Output = Answer<Reservation>> + Send + 'static {
    super::get(format!("/orgs/{org}/reservations/{id}"))
}

/// Cancels it before it begins, or gives back what is left of it; the same key does it once.
pub fn cancel(
    org: OrgId,
    id: ReservationId,
    key: Option<String>,
) -> impl Future<Output = Answer<Reservation>> + Send + 'static {
    send("POST", format!("/orgs/{org}/reservations/{id}/cancel"), &(), key)
}

/// Makes it longer at its own rate; the same key does it once.
pub fn extend(
    org: OrgId,
    id: ReservationId,
    input: &ExtendReservation,
    key: Option<String>,
) -> impl Future<Output = Answer<Reservation>> + Send + 'static {
    send("POST", format!("/orgs/{org}/reservations/{id}/extend"), input, key)
}

/// What is promised and what runs on every board between two times.
pub fn calendar(
    org: OrgId,
    from: Timestamp,
    until: Timestamp,
) -> impl Future<Output = Answer<Calendar>> + Send + 'static {
    super::get(format!("/orgs/{org}/calendar?from={from}&until={until}"))
}

//! Reservations of all organizations, maintenance and terms, for operators.

use std::future::Future;

use berth_types::Page;
use berth_types::ids::ReservationId;
use berth_types::reservations::{NewMaintenance, Reservation, ReservationPolicy, ReservationState};

use super::{Answer, get, send};

/// Lists reservations and maintenance in one state or in all states, newest first.
pub fn list(
    state: Option<ReservationState>,
    cursor: Option<String>,
) -> impl Future<Output = Answer<Page<Reservation>>> + Send + 'static {
    let state = state.map_or_else(String::new, |s| format!("&state={}", s.name()));
    let cursor = cursor.map_or_else(String::new, |c| format!("&cursor={c}"));
    get(format!("/operator/reservations?limit=50{state}{cursor}"))
}

/// Creates maintenance of boards of a node.
pub fn maintain(input: &NewMaintenance) -> impl Future<Output = Answer<Reservation>> + Send + 'static {
    send("POST", "/operator/reservations", input, None)
}

/// Approves a pending reservation.
pub fn approve(id: ReservationId) -> impl Future<Output = Answer<Reservation>> + Send + 'static {
    send("POST", format!("/operator/reservations/{id}/approve"), &(), None)
}

/// Declines a pending reservation.
pub fn decline(id: ReservationId) -> impl Future<Output = Answer<Reservation>> + Send + 'static {
    send("POST", format!("/operator/reservations/{id}/decline"), &(), None)
}

/// Cancels a reservation or maintenance.
pub fn cancel(id: ReservationId) -> impl Future<Output = Answer<Reservation>> + Send + 'static {
    send("POST", format!("/operator/reservations/{id}/cancel"), &(), None)
}

/// Gets the terms of future quotes.
pub fn policy() -> impl Future<Output = Answer<ReservationPolicy>> + Send + 'static {
    get("/operator/reservation-policy")
}

/// Sets the terms of future quotes.
pub fn set_policy(
    input: &ReservationPolicy,
) -> impl Future<Output = Answer<ReservationPolicy>> + Send + 'static {
    send("PUT", "/operator/reservation-policy", input, None)
}

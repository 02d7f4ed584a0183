//! Reservations of everybody, maintenance and the terms, for operators.

use std::future::Future;

use berth_types::Page;
use berth_types::ids::ReservationId;
use berth_types::reservations::{NewMaintenance, Reservation, ReservationPolicy, ReservationState};

use super::{Answer, get, send};

/// Reservations and maintenance, newest first, of one state or of all.
pub fn list(
    state: Option<ReservationState>,
    cursor: Option<String>,
) -> impl Future<Output = Answer<Page<Reservation>>> + Send + 'static {
    let state = state.map_or_else(String::new, |s| format!("&state={}", s.name()));
    let cursor = cursor.map_or_else(String::new, |c| format!("&cursor={c}"));
    get(format!("/operator/reservations?limit=50{state}{cursor}"))
}

/// Keeps boards of a node free for a time.
pub fn maintain(input: &NewMaintenance) -> impl Future<Output = Answer<Reservation>> + Send + 'static {
    send("POST", "/operator/reservations", input, None)
}

/// Lets a reservation that waits for it go ahead.
pub fn approve(id: ReservationId) -> impl Future<Output = Answer<Reservation>> + Send + 'static {
    send("POST", format!("/operator/reservations/{id}/approve"), &(), None)
}

/// Refuses a reservation that waits for approval.
pub fn decline(id: ReservationId) -> impl Future<Output = Answer<Reservation>> + Send + 'static {
    send("POST", format!("/operator/reservations/{id}/decline"), &(), None)
}

/// Takes a reservation or maintenance back.
pub fn take_back(id: ReservationId) -> impl Future<Output = Answer<Reservation>> + Send + 'static {
    send("POST", format!("/operator/reservations/{id}/cancel"), &(), None)
}

/// The terms of what is quoted from now on.
pub fn policy() -> impl Future<Output = Answer<ReservationPolicy>> + Send + 'static {
    get("/operator/reservation-policy")
}

/// Sets the terms of what is quoted from now on.
pub fn set_policy(
    input: &ReservationPolicy,
) -> impl Future<Output = Answer<ReservationPolicy>> + Send + 'static {
    send("PUT", "/operator/reservation-policy", input, None)
}

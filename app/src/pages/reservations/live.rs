//! The signals of a reservation's page.

use berth_types::ids::{OrgId, ReservationId};
use berth_types::reservations::{Reservation, ReservationState};
use berth_types::time::Timestamp;
use leptos::prelude::*;
use leptos::task::spawn_local;

use crate::api;
use crate::ui::Zone;

/// The signals of the page.
#[derive(Clone, Copy)]
pub struct LiveReservation {
    /// The organization.
    pub org: OrgId,
    /// The id of the reservation.
    pub id: ReservationId,
    /// The reservation.
    pub one: RwSignal<Reservation>,
    /// The zone of all times on the page.
    pub zone: RwSignal<Zone>,
    /// The present time: first of the portal, then of the browser.
    pub now: RwSignal<Option<Timestamp>>,
}

impl LiveReservation {
    /// Updates the reservation, unless the answer is older.
    pub fn update(self, fresh: Reservation) {
        self.one.maybe_update(|one| {
            let newer = fresh.generation >= one.generation && *one != fresh;
            if newer {
                *one = fresh;
            }
            newer
        });
    }

    /// Reloads the reservation.
    pub fn reload(self) {
        spawn_local(async move {
            // The next round repeats a failed request.
            if let Ok(fresh) = api::reservations::get(self.org, self.id).await {
                self.update(fresh);
            }
        });
    }

    /// Returns true if the reservation holds devices.
    pub(super) fn holds(self) -> bool {
        self.one.with(|one| one.state.holds())
    }

    /// Returns true if jobs can be launched in the reservation.
    pub(super) fn usable(self) -> bool {
        self.one.with(|one| matches!(one.state, ReservationState::Scheduled | ReservationState::Active))
    }
}

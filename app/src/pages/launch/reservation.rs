//! Choice of a reservation for the job. The portal checks the fit.

use berth_types::ids::ReservationId;
use berth_types::reservations::Reservation;
use leptos::prelude::*;

use super::super::text::offering_text;
use super::form::Form;
use crate::ui::{SelectField, Zone, use_zone};

/// Returns the text of an option: name, offering and time.
fn option_text(one: &Reservation, zone: Zone) -> String {
    let devices = one.nodes.saturating_mul(one.gpus_per_node);
    format!(
        "{}: {}, {} to {}",
        one.name,
        offering_text(&one.offering, devices),
        zone.minute(one.starts_at),
        zone.minute(one.ends_at)
    )
}

/// Sets the reservation of the job, and with it the offering.
fn choose(form: Form, all: &[Reservation], id: Option<ReservationId>) {
    let found = id.and_then(|id| all.iter().find(|one| one.id == id));
    form.reservation.set(found.map(|one| one.id));
    if let Some(one) = found {
        form.offering.set(one.offering.clone());
    }
}

/// The select field; absent without reservations.
#[component]
pub fn ReservationSelect(
    /// Active and scheduled reservations.
    reservations: Vec<Reservation>,
    /// The reservation in the address.
    requested: Option<ReservationId>,
    /// The form.
    form: Form,
    /// The error below the field.
    error: Signal<Option<String>>,
) -> impl IntoView {
    choose(form, &reservations, requested);
    let chosen = form.reservation.get_untracked();
    let missing = requested.is_some() && chosen.is_none();
    if reservations.is_empty() && !missing {
        return ().into_any();
    }
    let zone = use_zone();
    let options: Vec<AnyView> = reservations
        .iter()
        .map(|one| {
            let (value, picked, shown) = (one.id.to_string(), chosen == Some(one.id), one.clone());
            view! { <option value=value selected=picked>{move || option_text(&shown, zone.get())}</option> }
                .into_any()
        })
        .collect();
    let hint = Signal::derive(move || match (form.reservation.get().is_some(), missing) {
        (true, _) => {
            "Paid with the reservation. The job starts no earlier than the reservation and is stopped at its end."
        }
        (false, true) => {
            "The requested reservation has ended or belongs to another organization. Without a reservation, the job is charged separately."
        }
        (false, false) => "Without a reservation, the job uses free devices and is charged separately.",
    });
    let choice = move |id: String| choose(form, &reservations, id.parse::<ReservationId>().ok());
    view! {
        <SelectField label="Reservation" id="reservation" hint=hint error=error choose=Callback::new(choice)>
            <option value="" selected={chosen.is_none()}>"no reservation"</option>
            {options}
        </SelectField>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_has_name_offering_and_time() {
        let one: Reservation = serde_json::from_value(serde_json::json!({
            "id": "res_00000000000000000000000001", "kind": "reservation", "name": "night", "state": "active",
            "offering": "h100-80gb", "nodes": 2, "gpus_per_node": 2, "topology": "any",
            "starts_at": "2026-11-22T09:00:00Z", "ends_at": "2026-11-22T11:00:00Z", "degraded_milli": 0,
            "devices": [], "nano_per_second": 1, "price_version": 1, "currency": "USD", "total_micros": 1,
            "held_micros": 1, "posted_micros": 0, "credited_micros": 0, "elapsed_device_ms": 0,
            "used_device_ms": 0, "cancel_fee_micros": 0, "created_at": "2026-11-20T09:00:00Z",
            "created_by": "a", "generation": 1,
            "policy": berth_types::reservations::ReservationPolicy::default(),
        }))
        .unwrap();
        assert_eq!(
            option_text(&one, Zone::Utc),
            "night: h100-80gb × 4, 2026-11-22 09:00 UTC to 2026-11-22 11:00 UTC"
        );
    }
}

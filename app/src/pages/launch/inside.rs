//! Whether the job runs inside a reservation, and in which.
//!
//! Must not decide what fits into one: the portal says so at the field that does not.

use berth_types::ids::ReservationId;
use berth_types::reservations::Reservation;
use leptos::prelude::*;

use super::super::parts::FieldError;
use super::super::words::offering_text;
use super::form::Form;

/// A reservation as an option: name, what it is of, and its time.
fn option_text(one: &Reservation) -> String {
    let devices = one.nodes.saturating_mul(one.gpus_per_node);
    format!(
        "{}: {}, {} to {}",
        one.name,
        offering_text(&one.offering, devices),
        one.starts_at.minute(),
        one.ends_at.minute()
    )
}

/// Puts the job into a reservation, or outside of any. What it can run on follows.
fn choose(form: Form, all: &[Reservation], id: Option<ReservationId>) {
    let found = id.and_then(|id| all.iter().find(|one| one.id == id));
    form.reservation.set(found.map(|one| one.id));
    if let Some(one) = found {
        form.offering.set(one.offering.clone());
    }
}

/// The select, for those who have a reservation that can still be used.
#[component]
pub fn RunsIn(
    /// Those that are active or to come.
    reservations: Vec<Reservation>,
    /// The one that the address asks for.
    asked: Option<ReservationId>,
    /// The form.
    form: Form,
    /// What is wrong with the choice.
    error: Signal<Option<String>>,
) -> impl IntoView {
    choose(form, &reservations, asked);
    let chosen = form.reservation.get_untracked();
    let lost = asked.is_some() && chosen.is_none();
    if reservations.is_empty() && !lost {
        return ().into_any();
    }
    let options: Vec<AnyView> = reservations
        .iter()
        .map(|one| {
            let (value, text, picked) = (one.id.to_string(), option_text(one), chosen == Some(one.id));
            view! { <option value=value selected=picked>{text}</option> }.into_any()
        })
        .collect();
    let hint = move || match (form.reservation.get().is_some(), lost) {
        (true, _) => "Paid with the reservation. The job waits for its begin, and is stopped at its end.",
        (false, true) => {
            "The reservation that led here is over, or is not one of this organization. Outside of any, the job is paid by itself."
        }
        (false, false) => "Outside of any, the job takes what is free and is paid by itself.",
    };
    view! {
        <div class="field">
            <label class="field__label" for="reservation">"Runs in"</label>
            <select
                id="reservation"
                name="reservation"
                aria-describedby="reservation-hint reservation-error"
                aria-invalid=move || error.get().map(|_| "true")
                on:change=move |ev| {
                    choose(form, &reservations, event_target_value(&ev).parse::<ReservationId>().ok());
                }
            >
                <option value="" selected={chosen.is_none()}>"no reservation"</option>
                {options}
            </select>
            <p class="field__hint" id="reservation-hint">{hint}</p>
            <FieldError id="reservation-error" error=error/>
        </div>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_says_what_it_is_and_when() {
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
        assert_eq!(option_text(&one), "night: h100-80gb × 4, 2026-11-22 09:00 UTC to 2026-11-22 11:00 UTC");
    }
}

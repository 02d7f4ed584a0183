//! Dialogs for the cancellation, the return and the extension of a reservation. The fee appears before the
//! confirmation.

use berth_types::money::per_hour_micros;
use berth_types::reservations::{ExtendReservation, Reservation, ReservationState};
use leptos::prelude::*;

use super::live::LiveReservation;
use super::text::consequence;
use crate::api;
use crate::pages::confirm::ConfirmDialog;
use crate::pages::dialog_form::DialogForm;
use crate::pages::parts::{Call, CallProblem, FormKey, now_ms};
use crate::pages::text::price_text;
use crate::ui::*;

/// The confirmation of a cancellation before the start or of a return after it.
#[component]
pub fn CancelDialog(
    /// The reservation.
    live: LiveReservation,
    /// True with an open dialog.
    open: RwSignal<bool>,
) -> impl IntoView {
    let call = Call::idle();
    let key = FormKey::new(call);
    let one = live.one;
    let active = Memo::new(move |_| one.with(|one| one.state == ReservationState::Active));
    let title = Signal::derive(move || {
        let verb = if active.get() { "Return" } else { "Cancel" };
        one.with(|one| format!("{verb} {}?", one.name))
    });
    let verb = Signal::derive(move || {
        let verb = if active.get() { "Return reservation" } else { "Cancel reservation" };
        verb.to_owned()
    });
    let end = move |()| {
        let once = key.for_text(live.id.to_string());
        call.run(api::reservations::cancel(live.org, live.id, once), move |fresh: Reservation| {
            key.reset();
            live.update(fresh);
            open.set(false);
        });
    };
    view! {
        <ConfirmDialog
            id="cancel"
            title=title
            open=open
            call=call
            keep="Keep reservation"
            verb=verb
            confirm=Callback::new(end)
        >
            <p>{move || one.with(consequence)}</p>
        </ConfirmDialog>
    }
}

/// The form for a later end.
#[component]
pub fn ExtendDialog(
    /// The reservation.
    live: LiveReservation,
    /// True with an open dialog.
    open: RwSignal<bool>,
) -> impl IntoView {
    let call = Call::idle();
    let key = FormKey::new(call);
    let (one, zone) = (live.one, live.zone);
    let end = RwSignal::new(String::new());
    let format_error = RwSignal::new(None::<String>);
    let field_error = call.field("/ends_at");
    let error = Signal::derive(move || format_error.get().or_else(|| field_error.get()));
    // The form starts with one more hour.
    let reset = move |()| {
        let later = one.with_untracked(|one| one.ends_at.plus_seconds(3_600));
        end.set(zone.get_untracked().field(later));
        format_error.set(None);
    };
    let submit = move |()| {
        let ends_at = match zone.get_untracked().instant(&end.get_untracked()) {
            Ok(ends_at) => ends_at,
            Err(error) => {
                format_error.set(Some(error.text().to_owned()));
                return;
            }
        };
        format_error.set(None);
        let body = ExtendReservation { ends_at };
        let once = key.for_body(&body);
        call.run(api::reservations::extend(live.org, live.id, &body, once), move |fresh: Reservation| {
            key.reset();
            live.update(fresh);
            open.set(false);
        });
    };
    let text = move || {
        let zone = zone.get();
        one.with(|one| {
            let hourly = per_hour_micros(one.nano_per_second).unwrap_or(i64::MAX);
            format!(
                "Present end: {}. More time costs {}/h, reserved at once. Time zone: {}.",
                zone.wall(one.ends_at).moment(),
                price_text(hourly, &one.currency),
                zone.title(now_ms())
            )
        })
    };
    view! {
        <DialogForm
            id="extend"
            title="Extend reservation"
            open=open
            call=call
            keep="Keep end"
            verb="Extend"
            reset=Callback::new(reset)
            submit=Callback::new(submit)
        >
            <p>{text}</p>
            <Field label="New end" name="new-end" kind="datetime-local" value=end error=error/>
            <CallProblem call=call beside_fields=&["/ends_at"]/>
        </DialogForm>
    }
}

//! Ending a reservation and making it longer, each in a dialog that says what it means.
//!
//! Must not end anything before the fee was on the screen.

use berth_types::money::per_hour_micros;
use berth_types::reservations::{ExtendReservation, Reservation, ReservationState};
use leptos::ev::SubmitEvent;
use leptos::prelude::*;

use super::detail::Live;
use super::words::consequence;
use crate::api;
use crate::pages::confirm::ConfirmDialog;
use crate::pages::parts::{Call, CallProblem, FormKey, Modal, Submit};
use crate::pages::words::price_text;
use crate::ui::*;

/// Cancels it before it begins; gives it back while it runs.
#[component]
pub fn CancelDialog(
    /// The reservation.
    live: Live,
    /// Whether the dialog is open.
    open: RwSignal<bool>,
) -> impl IntoView {
    let call = Call::idle();
    let key = FormKey::beside(call);
    let one = live.one;
    let active = Memo::new(move |_| one.with(|one| one.state == ReservationState::Active));
    let title = Signal::derive(move || {
        let verb = if active.get() { "Give back" } else { "Cancel" };
        one.with(|one| format!("{verb} {}?", one.name))
    });
    let verb = Signal::derive(move || {
        let verb = if active.get() { "Give it back" } else { "Cancel reservation" };
        verb.to_owned()
    });
    let end = move |()| {
        let once = key.of(live.id.to_string());
        call.run(api::reservations::cancel(live.org, live.id, once), move |fresh: Reservation| {
            key.done();
            live.take(fresh);
            open.set(false);
        });
    };
    view! {
        <ConfirmDialog
            id="cancel"
            title=title
            open=open
            call=call
            keep="Keep it"
            verb=verb
            confirm=Callback::new(end)
        >
            <p>{move || one.with(consequence)}</p>
        </ConfirmDialog>
    }
}

/// Gives it a later end.
#[component]
pub fn ExtendDialog(
    /// The reservation.
    live: Live,
    /// Whether the dialog is open.
    open: RwSignal<bool>,
) -> impl IntoView {
    let call = Call::idle();
    let key = FormKey::beside(call);
    let (one, zone) = (live.one, live.zone);
    let end = RwSignal::new(String::new());
    let unread = RwSignal::new(None::<String>);
    let refused = call.field("/ends_at");
    let error = Signal::derive(move || unread.get().or_else(|| refused.get()));
    // It opens with an hour more.
    Effect::new(move || {
        if open.get() {
            let later = one.with_untracked(|one| one.ends_at.plus_seconds(3_600));
            end.set(zone.get_untracked().field(later));
            unread.set(None);
            call.problem.set(None);
        }
    });
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        let Some(ends_at) = zone.get_untracked().instant(&end.get_untracked()) else {
            unread.set(Some("Give a date and a time.".to_owned()));
            return;
        };
        unread.set(None);
        let body = ExtendReservation { ends_at };
        let once = key.of_body(&body);
        call.run(api::reservations::extend(live.org, live.id, &body, once), move |fresh: Reservation| {
            key.done();
            live.take(fresh);
            open.set(false);
        });
    };
    let now = move || {
        let zone = zone.get();
        one.with(|one| {
            let hourly = per_hour_micros(one.nano_per_second).unwrap_or(i64::MAX);
            format!(
                "It ends {} now. More time costs {} an hour, which is set aside at once. Times are in {}.",
                zone.wall(one.ends_at).moment(),
                price_text(hourly, &one.currency),
                zone.title()
            )
        })
    };
    view! {
        <Modal id="extend" title="Extend the reservation" open=open>
            <form method="post" novalidate=true on:submit=submit>
                <div class="dialog__body">
                    <p>{now}</p>
                    <Field label="New end" name="new-end" kind="datetime-local" value=end error=error/>
                    <CallProblem call=call beside_fields=&["/ends_at"]/>
                </div>
                <div class="dialog__actions">
                    <button class="btn" type="button" on:click=move |_| open.set(false)>"Keep the end"</button>
                    <Submit call=call>"Extend"</Submit>
                </div>
            </form>
        </Modal>
    }
}

//! Dialog of a rejection with its reason.

use berth_types::change_requests::RejectChange;
use leptos::prelude::*;

use super::super::super::dialog_form::DialogForm;
use super::super::super::parts::{Call, CallProblem};
use super::ChangesState;
use crate::api;
use crate::ui::TextField;

const FIELDS: &[&str] = &["/reason"];

/// The dialog for the chosen request.
#[component]
pub fn RejectDialog(
    /// The signals of the page.
    state: ChangesState,
) -> impl IntoView {
    let call = Call::idle();
    let target = state.rejecting;
    let reason = RwSignal::new(String::new());
    let detail =
        move || target.one.with(|one| one.as_ref().map(|one| one.detail.clone()).unwrap_or_default());
    let submit = move |()| {
        let body = RejectChange { reason: reason.get_untracked() };
        state.send(target, call, |id| api::change_requests::reject(id, &body));
    };
    view! {
        <DialogForm
            id="reject-change"
            title=target.title("Reject", "change request", |one| one.action.title())
            open=target.open
            call=call
            keep="Keep waiting"
            verb="Reject request"
            danger=true
            reset=Callback::new(move |()| reason.set(String::new()))
            submit=Callback::new(submit)
        >
            <p class="break">{detail}</p>
            <p>"The request ends without effect."</p>
            <CallProblem call=call beside_fields=FIELDS/>
            <TextField
                label="Reason"
                id="reject-reason"
                max_length=500
                value=reason
                hint="The requester reads it on this page."
                error=call.field("/reason")
            />
        </DialogForm>
    }
}

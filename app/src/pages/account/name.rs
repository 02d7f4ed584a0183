//! Form of the name.

use berth_types::accounts::User;
use berth_types::people::PatchMe;
use leptos::ev::SubmitEvent;
use leptos::prelude::*;

use super::super::parts::{Call, CallProblem, Submit};
use crate::api;
use crate::session::use_session;
use crate::ui::*;

const FIELDS: &[&str] = &["/name"];

/// The form with the name of the signed-in person.
#[component]
pub fn NameForm() -> impl IntoView {
    let present = use_session().name;
    let call = Call::idle();
    let name = RwSignal::new(present.get_untracked());
    let status = RwSignal::new(String::new());
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        status.set(String::new());
        let body = PatchMe { name: name.get_untracked() };
        call.run(api::people::rename(&body), move |user: User| {
            present.set(user.name.clone());
            name.set(user.name);
            status.set("Name saved.".to_owned());
        });
    };
    view! {
        <form class="form card" method="post" on:submit=submit>
            <h2 class="card__title">"Name"</h2>
            <CallProblem call=call beside_fields=FIELDS/>
            <PersonNameField value=name error=call.field("/name")/>
            <p class="quiet">"Earlier jobs, invoices and other records keep your former name."</p>
            <div class="form__actions">
                <Submit call=call quiet=true>"Save name"</Submit>
            </div>
            <p class="quiet said" role="status">{move || status.get()}</p>
        </form>
    }
}

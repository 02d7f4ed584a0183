//! A card with a form: its title, its button and the result of its last request.

use leptos::ev::SubmitEvent;
use leptos::prelude::*;

use super::curl::CopyAsCurl;
use super::parts::{Call, CallProblem, Submit};

/// A card with the fields of one request. The problem of the request is above the fields.
#[component]
pub fn CardForm(
    /// The heading.
    title: &'static str,
    /// A sentence below the heading.
    #[prop(optional)]
    lead: Option<&'static str>,
    /// The request of the form.
    call: Call,
    /// The pointers of fields with their own errors.
    beside_fields: &'static [&'static str],
    /// The label of the button.
    #[prop(into)]
    verb: Signal<String>,
    /// True beside the primary action of the page.
    #[prop(optional)]
    quiet: bool,
    /// The result of the last request, beside the button.
    #[prop(optional)]
    status: Option<RwSignal<&'static str>>,
    /// The request as a line for curl, with its label.
    #[prop(optional)]
    curl: Option<(Signal<String>, &'static str)>,
    /// Sends the request.
    submit: Callback<()>,
    /// The fields.
    children: Children,
) -> impl IntoView {
    let send = move |event: SubmitEvent| {
        event.prevent_default();
        submit.run(());
    };
    let lead = lead.map(|text| view! { <p class="prose">{text}</p> });
    let status =
        status.map(|status| view! { <span class="quiet" role="status">{move || status.get()}</span> });
    let curl = curl.map(|(line, label)| view! { <CopyAsCurl line=line label=label/> });
    view! {
        <form class="form card" method="post" aria-label=title on:submit=send>
            <h2 class="card__title">{title}</h2>
            {lead}
            <CallProblem call=call beside_fields=beside_fields/>
            {children()}
            <div class="form__actions">
                <Submit call=call quiet=quiet>{move || verb.get()}</Submit>
                {status}
            </div>
            {curl}
        </form>
    }
}

//! Form of a new webhook.
//!
//! The portal checks URL and events; its errors are shown at the fields.

use berth_types::ids::{OrgId, WebhookId};
use berth_types::webhooks::{NewWebhook, Webhook};
use leptos::prelude::*;

use super::super::card_form::CardForm;
use super::super::parts::{Call, FieldError, FormKey};
use crate::api;
use crate::ui::*;

const FIELDS: &[&str] = &["/url", "/kinds"];

/// The common kinds of events, each with its description.
const KINDS: [(&str, &str); 5] = [
    ("job.*", "Start, idle hours and end of a job."),
    ("reservation.*", "Start, failed devices, coming end and end of a reservation."),
    ("budget.passed", "A budget reached 50, 75 or 100 %."),
    ("credit.expiring", "Credit expires in 7 days or in 1 day."),
    ("invoice.*", "New invoice, or failed charge of the saved card."),
];

/// Joins the selected kinds, in the order of the form, with the entered kinds, without duplicates.
fn joined_kinds(selected: &[&str], entered: &str) -> Vec<String> {
    let selected = KINDS.iter().map(|(kind, _)| *kind).filter(|kind| selected.contains(kind));
    let entered = entered.split([',', ' ', '\t', '\n']).filter(|kind| !kind.is_empty());
    let mut out: Vec<String> = Vec::new();
    for kind in selected.chain(entered) {
        if !out.iter().any(|known| known == kind) {
            out.push(kind.to_owned());
        }
    }
    out
}

/// The URL and the events of a webhook.
#[component]
pub fn WebhookForm(
    /// The organization of the webhook.
    org: OrgId,
    /// All webhooks in the order of the portal, with a new one last.
    hooks: RwSignal<Vec<Webhook>>,
    /// The webhook of the shown deliveries; a new webhook is selected.
    selected: RwSignal<Option<WebhookId>>,
    /// The secret of the new webhook, shown once.
    secret: RwSignal<Option<String>>,
) -> impl IntoView {
    let call = Call::idle();
    let key = FormKey::new(call);
    let url = RwSignal::new(String::new());
    let other = RwSignal::new(String::new());
    let kinds = RwSignal::new(Vec::<&'static str>::new());
    let submit = move |()| {
        let body = NewWebhook {
            url: url.get_untracked().trim().to_owned(),
            kinds: joined_kinds(&kinds.get_untracked(), &other.get_untracked()),
        };
        call.run(api::webhooks::create(org, &body, key.for_body(&body)), move |mut made: Webhook| {
            key.reset();
            // The list contains no secrets.
            secret.set(made.secret.take());
            selected.set(Some(made.id));
            hooks.update(|hooks| hooks.push(made));
            url.set(String::new());
            other.set(String::new());
            kinds.set(Vec::new());
        });
    };
    let checkbox = move |(kind, text): (&'static str, &'static str)| {
        view! {
            <label class="check">
                <input
                    type="checkbox"
                    name="kind"
                    value=kind
                    prop:checked=move || kinds.with(|kinds| kinds.contains(&kind))
                    on:change=move |ev| {
                        let checked = event_target_checked(&ev);
                        kinds
                            .update(|kinds| {
                                kinds.retain(|known| *known != kind);
                                if checked {
                                    kinds.push(kind);
                                }
                            });
                    }
                />
                <span><span class="mono">{kind}</span><span class="check__hint">{text}</span></span>
            </label>
        }
    };
    view! {
        <CardForm
            title="New webhook"
            call=call
            beside_fields=FIELDS
            verb="Create webhook"
            submit=Callback::new(submit)
        >
            <Field
                label="URL"
                name="webhook-url"
                kind="text"
                value=url
                hint=Some("An https:// URL with a public address.".to_owned())
                error=call.field("/url")
            />
            <fieldset class="field field--wide" aria-describedby="webhook-kinds-error">
                <legend class="field__label">"Events"</legend>
                <div class="pairs">{KINDS.map(checkbox).into_iter().collect_view()}</div>
                <FieldError id="webhook-kinds-error" error=call.list_field("/kinds")/>
            </fieldset>
            <Field
                label="Other events"
                name="webhook-other"
                kind="text"
                value=other
                hint=Some("Comma-separated, such as job.failed; * for all events.".to_owned())
                error=Signal::derive(|| None)
            />
        </CardForm>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_in_the_order_of_the_form_without_duplicates() {
        assert_eq!(joined_kinds(&["invoice.*", "job.*"], ""), ["job.*", "invoice.*"]);
        assert_eq!(joined_kinds(&["job.*"], " job.failed,  job.*,*"), ["job.*", "job.failed", "*"]);
        assert!(joined_kinds(&[], " , ").is_empty());
    }
}

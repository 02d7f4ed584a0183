//! Making a webhook.
//!
//! Must not judge an address or a kind: what the portal refuses stands beside its field.

use berth_types::ids::{OrgId, WebhookId};
use berth_types::webhooks::{NewWebhook, Webhook};
use leptos::ev::SubmitEvent;
use leptos::prelude::*;

use super::super::parts::{Call, CallProblem, FieldError, FormKey, Submit};
use crate::api;
use crate::ui::*;

const FIELDS: &[&str] = &["/url", "/kinds"];

/// What most want to hear of, and what that is.
const KINDS: [(&str, &str); 5] = [
    ("job.*", "A job runs, stands idle, has ended, was stopped."),
    ("reservation.*", "A reservation begins, ends soon, is over."),
    ("budget.passed", "A budget has come to 50, 75 or 100 %."),
    ("credit.expiring", "Credit expires in seven days, or in one."),
    ("invoice.*", "An invoice was issued; the saved card could not be charged."),
];

/// The kinds that are ticked, in the order of the form, and those that are typed; each once.
fn kinds_of(ticked: &[&str], other: &str) -> Vec<String> {
    let ticked = KINDS.iter().map(|(kind, _)| *kind).filter(|kind| ticked.contains(kind));
    let typed = other.split([',', ' ', '\t', '\n']).filter(|kind| !kind.is_empty());
    let mut out: Vec<String> = Vec::new();
    for kind in ticked.chain(typed) {
        if !out.iter().any(|known| known == kind) {
            out.push(kind.to_owned());
        }
    }
    out
}

/// An address, and what it hears of.
#[component]
pub fn HookForm(
    /// Whose it is.
    org: OrgId,
    /// All webhooks; a new one comes last, as the portal lists them.
    hooks: RwSignal<Vec<Webhook>>,
    /// Whose deliveries are shown; a new one's at once.
    chosen: RwSignal<Option<WebhookId>>,
    /// The new one's secret, to be shown once.
    secret: RwSignal<Option<String>>,
) -> impl IntoView {
    let call = Call::idle();
    let key = FormKey::beside(call);
    let url = RwSignal::new(String::new());
    let other = RwSignal::new(String::new());
    let ticked = RwSignal::new(Vec::<&'static str>::new());
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        let body = NewWebhook {
            url: url.get_untracked().trim().to_owned(),
            kinds: kinds_of(&ticked.get_untracked(), &other.get_untracked()),
        };
        call.run(api::webhooks::create(org, &body, key.of_body(&body)), move |mut made: Webhook| {
            key.done();
            // The list never holds it.
            secret.set(made.secret.take());
            chosen.set(Some(made.id));
            hooks.update(|hooks| hooks.push(made));
            url.set(String::new());
            other.set(String::new());
            ticked.set(Vec::new());
        });
    };
    let tick = move |(kind, words): (&'static str, &'static str)| {
        view! {
            <label class="check">
                <input
                    type="checkbox"
                    name="kind"
                    value=kind
                    prop:checked=move || ticked.with(|ticked| ticked.contains(&kind))
                    on:change=move |ev| {
                        let wanted = event_target_checked(&ev);
                        ticked
                            .update(|ticked| {
                                ticked.retain(|known| *known != kind);
                                if wanted {
                                    ticked.push(kind);
                                }
                            });
                    }
                />
                <span><span class="mono">{kind}</span><span class="check__hint">{words}</span></span>
            </label>
        }
    };
    view! {
        <form class="form card" method="post" on:submit=submit>
            <h2 class="card__title">"Create a webhook"</h2>
            <CallProblem call=call beside_fields=FIELDS/>
            <Field
                label="Address"
                name="webhook-url"
                kind="text"
                value=url
                hint=Some("Begins with https:// and can be reached from the internet.".to_owned())
                error=call.field("/url")
                autocomplete=Some("off")
            />
            <fieldset class="field field--wide" aria-describedby="webhook-kinds-error">
                <legend class="field__label">"What it hears of"</legend>
                <div class="pairs">{KINDS.map(tick).into_iter().collect_view()}</div>
                <FieldError id="webhook-kinds-error" error=call.field("/kinds")/>
            </fieldset>
            <Field
                label="Other kinds"
                name="webhook-other"
                kind="text"
                value=other
                hint=Some("Apart by commas, such as job.failed; * for everything.".to_owned())
                error=Signal::derive(|| None)
                autocomplete=Some("off")
            />
            <div class="form__actions">
                <Submit call=call>"Create webhook"</Submit>
            </div>
        </form>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_come_in_the_order_of_the_form_and_once() {
        assert_eq!(kinds_of(&["invoice.*", "job.*"], ""), ["job.*", "invoice.*"]);
        assert_eq!(kinds_of(&["job.*"], " job.failed,  job.*,*"), ["job.*", "job.failed", "*"]);
        assert!(kinds_of(&[], " , ").is_empty());
    }
}

//! Asking the operator for another limit.
//!
//! Must not promise anything: a request changes no limit until it is granted.

use berth_types::ids::OrgId;
use berth_types::problems::{FieldError as Wrong, Problem};
use berth_types::quotas::{NewQuotaRequest, Quota, QuotaRequest};
use leptos::ev::SubmitEvent;
use leptos::prelude::*;

use super::super::parts::{Call, CallProblem, FieldError, FormKey, Submit};
use super::form::NumberField;
use super::kinds::{Kind, Subject};
use crate::api;

const FIELDS: &[&str] = &["/limits", "/reason"];

/// The first thing wrong with the limit that is asked for; there is one field for all of it.
fn wrong_limit(call: Call) -> Signal<Option<String>> {
    Signal::derive(move || {
        call.problem.with(|problem| {
            let mut errors = problem.as_ref()?.errors.iter();
            errors.find(|error| error.pointer.starts_with("/limits")).map(|error| error.detail.clone())
        })
    })
}

/// What is asked for, or what keeps it from being a request.
fn request(subject: &Subject, value: &str, reason: &str) -> Result<NewQuotaRequest, Vec<Wrong>> {
    let mut errors = Vec::new();
    let value = subject.unit().parse(value);
    if value.is_none() {
        errors.push(Wrong::new(format!("/limits/{}", subject.name()), subject.unit().example()));
    }
    let reason = reason.trim();
    if reason.is_empty() {
        errors.push(Wrong::new("/reason", "Say what it is for: the operator decides by it."));
    }
    match value {
        Some(value) if errors.is_empty() => {
            Ok(NewQuotaRequest { limits: subject.alone(value), reason: reason.to_owned() })
        }
        _ => Err(errors),
    }
}

/// What it is at present.
fn present(subject: &Subject, quota: &Quota, currency: &str) -> String {
    match subject.of(&quota.limits) {
        Some(value) => format!("{} now.", subject.unit().text(value, currency)),
        None => "No limit now.".to_owned(),
    }
}

/// Which limit, what it should be, and why.
#[component]
pub fn AskForm(
    /// Who asks.
    org: OrgId,
    /// What it may use at present.
    quota: RwSignal<Quota>,
    /// What was asked for; a new request comes in front.
    requests: RwSignal<Vec<QuotaRequest>>,
    /// Slugs of what can be ordered.
    offerings: Vec<String>,
    /// The portal's currency.
    currency: String,
) -> impl IntoView {
    let call = Call::idle();
    let key = FormKey::beside(call);
    let subjects: Vec<Subject> = Kind::COUNTED
        .into_iter()
        .map(Subject::Kind)
        .chain(offerings.into_iter().map(Subject::Devices))
        .collect();
    // What is limited is what is asked for more of.
    let first = quota
        .with_untracked(|quota| subjects.iter().find(|subject| subject.of(&quota.limits).is_some()).cloned());
    let first = first.unwrap_or(Subject::Kind(Kind::Boards));
    let options: Vec<AnyView> = subjects
        .iter()
        .map(|subject| {
            let picked = *subject == first;
            view! { <option value=subject.name() selected=picked>{subject.label()}</option> }.into_any()
        })
        .collect();
    let subject = RwSignal::new(first);
    let value = RwSignal::new(String::new());
    let reason = RwSignal::new(String::new());
    let said = RwSignal::new("");
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        said.set("");
        let asked = subject.with_untracked(|subject| {
            value.with_untracked(|value| reason.with_untracked(|reason| request(subject, value, reason)))
        });
        match asked {
            Err(errors) => call.problem.set(Some(Problem::invalid(errors))),
            Ok(body) => {
                call.run(api::quotas::ask(org, &body, key.of_body(&body)), move |made: QuotaRequest| {
                    key.done();
                    requests.update(|requests| requests.insert(0, made));
                    value.set(String::new());
                    reason.set(String::new());
                    said.set("Sent. The answer appears below.");
                })
            }
        }
    };
    let of_unit = currency.clone();
    let unit = Signal::derive(move || subject.with(|subject| subject.unit_text(&of_unit)));
    let hint = Signal::derive(move || {
        subject.with(|subject| quota.with(|quota| present(subject, quota, &currency)))
    });
    let wrong_reason = call.field("/reason");
    view! {
        <form class="form card" method="post" on:submit=submit>
            <h2 class="card__title">"Ask for more"</h2>
            <CallProblem call=call beside_fields=FIELDS/>
            <div class="field-row">
                <div class="field">
                    <label class="field__label" for="ask-limit">"Limit"</label>
                    <select
                        id="ask-limit"
                        on:change=move |ev| {
                            if let Some(chosen) = Subject::parse(&event_target_value(&ev)) {
                                subject.set(chosen);
                            }
                        }
                    >
                        {options}
                    </select>
                </div>
                <NumberField label="New value" id="ask-value" unit=unit value=value hint=hint error=wrong_limit(call)/>
            </div>
            <div class="field field--wide">
                <label class="field__label" for="ask-reason">"Reason"</label>
                <textarea
                    id="ask-reason"
                    rows="3"
                    maxlength="1000"
                    aria-describedby="ask-reason-hint ask-reason-error"
                    aria-invalid=move || wrong_reason.get().map(|_| "true")
                    prop:value=move || reason.get()
                    on:input=move |ev| reason.set(event_target_value(&ev))
                ></textarea>
                <p class="field__hint" id="ask-reason-hint">"What it is for, and until when. The operator reads it."</p>
                <FieldError id="ask-reason-error" error=wrong_reason/>
            </div>
            <div class="form__actions">
                <Submit call=call>"Ask the operator"</Submit>
                <span class="quiet" role="status">{move || said.get()}</span>
            </div>
        </form>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_one_limit_or_says_what_is_missing() {
        let boards = Subject::Kind(Kind::Boards);
        let asked = request(&boards, "0.25", " two at once ").unwrap();
        assert_eq!((asked.limits.boards_milli, asked.reason.as_str()), (Some(250), "two at once"));
        let pointers = |subject: &Subject, value: &str, reason: &str| -> Vec<String> {
            request(subject, value, reason).unwrap_err().into_iter().map(|error| error.pointer).collect()
        };
        assert_eq!(pointers(&boards, "much", "x"), ["/limits/boards_milli"]);
        let devices = Subject::Devices("a30-24gb".to_owned());
        assert_eq!(pointers(&devices, "1.5", " "), ["/limits/devices/a30-24gb", "/reason"]);
    }
}

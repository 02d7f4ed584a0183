//! Form to request another limit from the operator. A request changes nothing before its grant.

use berth_types::ids::OrgId;
use berth_types::problems::{FieldError as Wrong, Problem};
use berth_types::quotas::{NewQuotaRequest, Quota, QuotaRequest};
use leptos::prelude::*;

use super::super::card_form::CardForm;
use super::super::parts::{Call, FormKey};
use super::form::NumberField;
use super::kinds::{LimitKind, Subject};
use crate::api;
use crate::ui::{SelectField, TextArea};

const FIELDS: &[&str] = &["/limits", "/reason"];

/// Returns the first error about the requested limit, for its one field.
fn limit_error(call: Call) -> Signal<Option<String>> {
    Signal::derive(move || {
        call.problem.with(|problem| {
            let mut errors = problem.as_ref()?.errors.iter();
            errors.find(|error| error.pointer.starts_with("/limits")).map(|error| error.detail.clone())
        })
    })
}

/// Parses the fields of the form.
fn request(subject: &Subject, value: &str, reason: &str) -> Result<NewQuotaRequest, Vec<Wrong>> {
    let mut errors = Vec::new();
    let value = subject.unit().parse(value);
    if value.is_none() {
        errors.push(Wrong::new(format!("/limits/{}", subject.name()), subject.unit().example()));
    }
    let reason = reason.trim();
    if reason.is_empty() {
        errors.push(Wrong::new("/reason", "Enter a reason: the operator decides by it."));
    }
    match value {
        Some(value) if errors.is_empty() => Ok(NewQuotaRequest {
            limits: subject.only(value),
            credit_micros: None,
            reason: reason.to_owned(),
        }),
        _ => Err(errors),
    }
}

/// Returns the present value of a limit.
fn current_text(subject: &Subject, quota: &Quota, currency: &str) -> String {
    match subject.value(&quota.limits) {
        Some(value) => format!("Current limit: {}.", subject.unit().text(value, currency)),
        None => "Currently no limit.".to_owned(),
    }
}

/// The form with limit, new value and reason.
#[component]
pub fn LimitRequestForm(
    /// The organization of the request.
    org: OrgId,
    /// The present limits and their use.
    quota: RwSignal<Quota>,
    /// All requests; the form inserts the new one at the front.
    requests: RwSignal<Vec<QuotaRequest>>,
    /// The slugs of all offerings.
    offerings: Vec<String>,
    /// The currency of the portal.
    currency: String,
) -> impl IntoView {
    let call = Call::idle();
    let key = FormKey::new(call);
    let subjects: Vec<Subject> = LimitKind::COUNTED
        .into_iter()
        .map(Subject::Kind)
        .chain(offerings.into_iter().map(Subject::Devices))
        .collect();
    // The first existing limit is the probable subject.
    let first = quota.with_untracked(|quota| {
        subjects.iter().find(|subject| subject.value(&quota.limits).is_some()).cloned()
    });
    let first = first.unwrap_or(Subject::Kind(LimitKind::Boards));
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
    let status = RwSignal::new("");
    let submit = move |()| {
        status.set("");
        let parsed = subject.with_untracked(|subject| {
            value.with_untracked(|value| reason.with_untracked(|reason| request(subject, value, reason)))
        });
        match parsed {
            Err(errors) => call.problem.set(Some(Problem::invalid(errors))),
            Ok(body) => call.run(
                api::quotas::create_request(org, &body, key.for_body(&body)),
                move |made: QuotaRequest| {
                    key.reset();
                    requests.update(|requests| requests.insert(0, made));
                    value.set(String::new());
                    reason.set(String::new());
                    status.set("Request sent. The answer appears below.");
                },
            ),
        }
    };
    let choose = move |name: String| {
        if let Some(chosen) = Subject::parse(&name) {
            subject.set(chosen);
        }
    };
    let unit_currency = currency.clone();
    let unit = Signal::derive(move || subject.with(|subject| subject.unit_text(&unit_currency)));
    let hint = Signal::derive(move || {
        subject.with(|subject| quota.with(|quota| current_text(subject, quota, &currency)))
    });
    view! {
        <CardForm
            title="Request another limit"
            call=call
            beside_fields=FIELDS
            verb="Send request"
            status=status
            submit=Callback::new(submit)
        >
            <div class="field-row">
                <SelectField label="Limit" id="ask-limit" choose=Callback::new(choose)>{options}</SelectField>
                <NumberField label="New value" id="ask-value" unit=unit value=value hint=hint error=limit_error(call)/>
            </div>
            <TextArea
                label="Reason"
                id="ask-reason"
                rows=3
                max_length=1000
                value=reason
                hint="Purpose and end date. The operator reads this text."
                error=call.field("/reason")
            />
        </CardForm>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_one_limit_and_a_reason() {
        let boards = Subject::Kind(LimitKind::Boards);
        let parsed = request(&boards, "0.25", " two at once ").unwrap();
        assert_eq!((parsed.limits.boards_milli, parsed.reason.as_str()), (Some(250), "two at once"));
        let pointers = |subject: &Subject, value: &str, reason: &str| -> Vec<String> {
            request(subject, value, reason).unwrap_err().into_iter().map(|error| error.pointer).collect()
        };
        assert_eq!(pointers(&boards, "much", "x"), ["/limits/boards_milli"]);
        let devices = Subject::Devices("a30-24gb".to_owned());
        assert_eq!(pointers(&devices, "1.5", " "), ["/limits/devices/a30-24gb", "/reason"]);
    }
}

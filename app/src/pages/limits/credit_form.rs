//! Dialog to request credit from the operator. A request changes nothing before its grant.

use berth_types::ids::OrgId;
use berth_types::money::parse_amount_micros;
use berth_types::problems::{FieldError as Wrong, Problem};
use berth_types::quotas::{Limits, NewQuotaRequest, QuotaRequest};
use leptos::prelude::*;

use super::super::dialog_form::DialogForm;
use super::super::parts::{Call, CallProblem, FormKey, ready};
use super::super::text::typed_amount;
use super::form::NumberField;
use crate::address::org_link;
use crate::api;
use crate::ui::*;

const FIELDS: &[&str] = &["/credit_micros", "/reason"];

/// Returns the first input for missing money in micro-units: the next hundredth; empty without missing money.
fn suggested_amount(missing_micros: i64) -> String {
    let cents = missing_micros.max(0).saturating_add(9_999) / 10_000;
    if cents == 0 { String::new() } else { typed_amount(cents.saturating_mul(10_000)) }
}

/// Parses the fields of the form.
///
/// # Errors
/// One error for each invalid field.
fn parse(amount: &str, reason: &str) -> Result<NewQuotaRequest, Vec<Wrong>> {
    let mut errors = Vec::new();
    let credit_micros = parse_amount_micros(amount);
    if credit_micros.is_none() {
        errors.push(Wrong::new("/credit_micros", "Enter an amount, such as 500 or 12.50."));
    }
    let reason = reason.trim().to_owned();
    if reason.is_empty() {
        errors.push(Wrong::new("/reason", "Enter a reason: the operator decides by it."));
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    Ok(NewQuotaRequest { limits: Limits::default(), credit_micros, reason })
}

/// The button *Request credit* with its dialog.
#[component]
pub fn CreditRequest(
    /// The organization of the request.
    org: OrgId,
    /// The currency of the portal.
    currency: String,
    /// The missing money in micro-units of the currency; 0 without a known amount.
    #[prop(into)]
    missing_micros: Signal<i64>,
) -> impl IntoView {
    let ready = ready();
    let call = Call::idle();
    let key = FormKey::new(call);
    let open = RwSignal::new(false);
    let amount = RwSignal::new(String::new());
    let reason = RwSignal::new(String::new());
    let sent = RwSignal::new(false);
    let reset = move |()| amount.set(suggested_amount(missing_micros.get_untracked()));
    let submit = move |()| {
        let parsed = parse(&amount.get_untracked(), &reason.get_untracked());
        match parsed {
            Err(errors) => call.problem.set(Some(Problem::invalid(errors))),
            Ok(body) => call.run(
                api::quotas::create_request(org, &body, key.for_body(&body)),
                move |_made: QuotaRequest| {
                    key.reset();
                    reason.set(String::new());
                    sent.set(true);
                    open.set(false);
                },
            ),
        }
    };
    let limits = org_link("/limits");
    let status = move || {
        let limits = limits.clone();
        sent.get().then(|| {
            view! { "Request sent. The answer of the operator appears under " <a href=limits>"Limits"</a> "." }
        })
    };
    view! {
        <div class="stack">
            <p>
                <button class="btn" type="button" disabled=move || !ready.get() on:click=move |_| open.set(true)>
                    "Request credit"
                </button>
            </p>
            <p class="quiet said" role="status">{status}</p>
        </div>
        <DialogForm
            id="request-credit"
            title="Request credit"
            open=open
            call=call
            keep="Cancel"
            verb="Send request"
            reset=Callback::new(reset)
            submit=Callback::new(submit)
        >
            <p>
                "The operator of this portal decides about the request. Nothing is charged. Granted credit is available at once."
            </p>
            <CallProblem call=call beside_fields=FIELDS/>
            <NumberField
                label="Amount"
                id="credit-amount"
                unit=currency
                value=amount
                hint="The operator can grant another amount."
                error=call.field("/credit_micros")
            />
            <TextArea
                label="Reason"
                id="credit-reason"
                rows=3
                max_length=1000
                value=reason
                hint="The operator reads this text."
                error=call.field("/reason")
            />
        </DialogForm>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_an_amount_and_a_reason() {
        let body = parse("12.50", " a deadline ").unwrap();
        assert_eq!((body.credit_micros, body.reason.as_str()), (Some(12_500_000), "a deadline"));
        assert_eq!(body.limits, Limits::default());
        let errors = parse("much", " ").unwrap_err();
        let at: Vec<&str> = errors.iter().map(|error| error.pointer.as_str()).collect();
        assert_eq!(at, FIELDS);
    }

    #[test]
    fn the_suggested_amount_covers_what_is_missing() {
        for (missing, text) in [(299_998, "0.30"), (1, "0.01"), (300_000, "0.30"), (0, ""), (-5, "")] {
            assert_eq!(suggested_amount(missing), text);
        }
    }
}

//! Form for a new budget.
//!
//! Checks only the format of the amount. Errors of the portal appear beside their fields.

use berth_types::budgets::{AtLimit, Budget, NewBudget};
use berth_types::ids::OrgId;
use berth_types::money::parse_amount_micros;
use berth_types::problems::Problem;
use leptos::prelude::*;

use super::super::card_form::CardForm;
use super::super::curl;
use super::super::limits::form::NumberField;
use super::super::parts::{Call, FieldError, FormKey, origin};
use super::text::{at_limit_label, at_limit_text};
use crate::api;
use crate::ui::*;

const FIELDS: &[&str] = &["/name", "/limit_micros", "/label", "/value", "/at_limit"];

/// The form with name, amount, scope and action at the limit.
#[component]
pub fn BudgetForm(
    /// The organization of the budget.
    org: OrgId,
    /// All budgets; the form appends the new one.
    budgets: RwSignal<Vec<Budget>>,
    /// The currency of the portal.
    currency: String,
) -> impl IntoView {
    let call = Call::idle();
    let key = FormKey::new(call);
    let status = RwSignal::new("");
    let name = RwSignal::new(String::new());
    let amount = RwSignal::new(String::new());
    let label = RwSignal::new(String::new());
    let value = RwSignal::new(String::new());
    let at_limit = RwSignal::new(AtLimit::Notify);
    // `None` without a valid amount.
    let input = move || {
        let text = |field: RwSignal<String>| field.with(|text| text.trim().to_owned());
        Some(NewBudget {
            limit_micros: parse_amount_micros(&amount.get())?,
            name: text(name),
            label: text(label),
            value: text(value),
            at_limit: at_limit.get(),
        })
    };
    let origin = origin();
    let line = Signal::derive(move || match input() {
        Some(body) => {
            let body = serde_json::to_string(&body).unwrap_or_default();
            curl::post(&origin.get(), &format!("/orgs/{org}/budgets"), &body)
        }
        None => curl::INCOMPLETE.to_owned(),
    });
    let submit = move |()| {
        status.set("");
        let Some(body) = untrack(input) else {
            let detail = "Enter an amount, such as 500 or 12.50.";
            call.problem.set(Some(Problem::invalid_field("/limit_micros", detail)));
            return;
        };
        call.run(api::budgets::create(org, &body, key.for_body(&body)), move |made: Budget| {
            key.reset();
            budgets.update(|budgets| budgets.push(made));
            for field in [name, amount, label, value] {
                field.set(String::new());
            }
            status.set("Budget created. It counts from the first day of this month.");
        });
    };
    let choice = move |action: AtLimit| {
        let at_first = action == AtLimit::Notify;
        view! {
            <label class="check">
                <input
                    type="radio"
                    name="at-limit"
                    value=action.name()
                    checked=at_first
                    prop:checked=move || { at_limit.get() == action }
                    on:change=move |_| at_limit.set(action)
                />
                <span>{at_limit_label(action)}<span class="check__hint">{at_limit_text(action)}</span></span>
            </label>
        }
    };
    view! {
        <CardForm
            title="New budget"
            call=call
            beside_fields=FIELDS
            verb="Create budget"
            status=status
            curl=(line, "New budget with curl")
            submit=Callback::new(submit)
        >
            <div class="field-row">
                <Field
                    label="Name"
                    name="budget-name"
                    kind="text"
                    value=name
                    hint=Some("Shown when the budget refuses a submission.".to_owned())
                    error=call.field("/name")
                />
                <NumberField
                    label="Amount"
                    id="budget-amount"
                    unit=currency
                    value=amount
                    hint="Per calendar month (UTC)."
                    error=call.field("/limit_micros")
                />
            </div>
            <fieldset class="field field--wide" aria-describedby="budget-at-limit-error">
                <legend class="field__label">"Action at the limit"</legend>
                <div class="pairs">{AtLimit::ALL.map(choice).into_iter().collect_view()}</div>
                <FieldError id="budget-at-limit-error" error=call.field("/at_limit")/>
            </fieldset>
            <div class="field-row">
                <Field
                    label="Label key"
                    name="budget-label"
                    kind="text"
                    value=label
                    hint=Some("Counts only jobs with this label, such as project. Empty: all jobs and reservations.".to_owned())
                    error=call.field("/label")
                />
                <Field
                    label="Label value"
                    name="budget-value"
                    kind="text"
                    value=value
                    hint=Some("For example alpha. Required with a label key.".to_owned())
                    error=call.field("/value")
                />
            </div>
        </CardForm>
    }
}

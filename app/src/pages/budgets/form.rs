//! Making a budget.
//!
//! Must not check more than the portal cannot read: what it refuses stands beside its field.

use berth_types::budgets::{AtLimit, Budget, NewBudget};
use berth_types::ids::OrgId;
use berth_types::money::parse_amount_micros;
use berth_types::problems::Problem;
use leptos::ev::SubmitEvent;
use leptos::prelude::*;

use super::super::limits::form::NumberField;
use super::super::parts::{Call, CallProblem, FieldError, FormKey, Submit};
use super::words::{at_limit_title, at_limit_words};
use crate::api;
use crate::ui::*;

const FIELDS: &[&str] = &["/name", "/limit_micros", "/label", "/value", "/at_limit"];

/// Name, amount, what it counts, and what happens at its limit.
#[component]
pub fn BudgetForm(
    /// Whose it is.
    org: OrgId,
    /// All budgets; a new one comes last.
    budgets: RwSignal<Vec<Budget>>,
    /// The portal's currency.
    currency: String,
) -> impl IntoView {
    let call = Call::idle();
    let key = FormKey::beside(call);
    let said = RwSignal::new("");
    let name = RwSignal::new(String::new());
    let amount = RwSignal::new(String::new());
    let label = RwSignal::new(String::new());
    let value = RwSignal::new(String::new());
    let at_limit = RwSignal::new(AtLimit::Notify);
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        said.set("");
        let Some(limit_micros) = parse_amount_micros(&amount.get_untracked()) else {
            let detail = "Give an amount such as 500 or 12.50.";
            call.problem.set(Some(Problem::invalid_field("/limit_micros", detail)));
            return;
        };
        let body = NewBudget {
            name: name.get_untracked().trim().to_owned(),
            label: label.get_untracked().trim().to_owned(),
            value: value.get_untracked().trim().to_owned(),
            limit_micros,
            at_limit: at_limit.get_untracked(),
        };
        call.run(api::budgets::create(org, &body, key.of_body(&body)), move |made: Budget| {
            key.done();
            budgets.update(|budgets| budgets.push(made));
            for field in [name, amount, label, value] {
                field.set(String::new());
            }
            said.set("Made. It counts from the first of this month.");
        });
    };
    let choice = move |way: AtLimit| {
        let at_first = way == AtLimit::Notify;
        view! {
            <label class="check">
                <input
                    type="radio"
                    name="at-limit"
                    value=way.name()
                    checked=at_first
                    prop:checked=move || { at_limit.get() == way }
                    on:change=move |_| at_limit.set(way)
                />
                <span>{at_limit_title(way)}<span class="check__hint">{at_limit_words(way)}</span></span>
            </label>
        }
    };
    view! {
        <form class="form card" method="post" on:submit=submit>
            <h2 class="card__title">"Make a budget"</h2>
            <CallProblem call=call beside_fields=FIELDS/>
            <div class="field-row">
                <Field
                    label="Name"
                    name="budget-name"
                    kind="text"
                    value=name
                    hint=Some("Whoever is refused by it reads this.".to_owned())
                    error=call.field("/name")
                    autocomplete=Some("off")
                />
                <NumberField
                    label="Amount"
                    id="budget-amount"
                    unit=currency
                    value=amount
                    hint="For a calendar month, by UTC."
                    error=call.field("/limit_micros")
                />
            </div>
            <fieldset class="field field--wide" aria-describedby="budget-at-limit-error">
                <legend class="field__label">"At its limit"</legend>
                <div class="pairs">{AtLimit::ALL.map(choice).into_iter().collect_view()}</div>
                <FieldError id="budget-at-limit-error" error=call.field("/at_limit")/>
            </fieldset>
            <div class="field-row">
                <Field
                    label="Only jobs with the label"
                    name="budget-label"
                    kind="text"
                    value=label
                    hint=Some("Its key, such as project. Empty: everything is counted, reservations too.".to_owned())
                    error=call.field("/label")
                    autocomplete=Some("off")
                />
                <Field
                    label="whose value is"
                    name="budget-value"
                    kind="text"
                    value=value
                    hint=Some("Such as alpha.".to_owned())
                    error=call.field("/value")
                    autocomplete=Some("off")
                />
            </div>
            <div class="form__actions">
                <Submit call=call>"Make budget"</Submit>
                <span class="quiet" role="status">{move || said.get()}</span>
            </div>
        </form>
    }
}

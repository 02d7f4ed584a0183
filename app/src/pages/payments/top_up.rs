//! Adding credit: how much, and whether the card is kept.
//!
//! Must not check more than the portal cannot read, nor ask for anything of a card.

use berth_types::ids::OrgId;
use berth_types::money::{money_text, parse_amount_micros};
use berth_types::payments::{NewTopUp, PayHere};
use berth_types::problems::Problem;
use leptos::ev::SubmitEvent;
use leptos::prelude::*;

use super::super::limits::form::NumberField;
use super::super::parts::{Call, CallProblem, FormKey, Submit, leave_for};
use crate::api;

const FIELDS: &[&str] = &["/amount_micros"];

/// An amount, and the way to Stripe's page where it is paid.
#[component]
pub fn TopUpForm(
    /// Whose balance it is for.
    org: OrgId,
    /// The portal's currency.
    currency: String,
    /// The smallest step of an amount.
    step_micros: i64,
) -> impl IntoView {
    let call = Call::idle();
    let key = FormKey::beside(call);
    let said = RwSignal::new("");
    let amount = RwSignal::new(String::new());
    let save_card = RwSignal::new(false);
    let hint = format!("In steps of {}.", money_text(step_micros, &currency));
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        said.set("");
        let Some(amount_micros) = parse_amount_micros(&amount.get_untracked()) else {
            let detail = "Give an amount such as 25 or 12.50.";
            call.problem.set(Some(Problem::invalid_field("/amount_micros", detail)));
            return;
        };
        let body = NewTopUp { amount_micros, save_card: save_card.get_untracked() };
        call.run(api::payments::top_up(org, &body, key.of_body(&body)), move |there: PayHere| {
            key.done();
            said.set("Stripe's page opens.");
            leave_for(&there.url);
        });
    };
    view! {
        <form class="form card" method="post" aria-labelledby="top-up-title" on:submit=submit>
            <h2 class="card__title" id="top-up-title">"Add credit"</h2>
            <p class="quiet">
                "You pay on a page of Stripe's and come back here. The number of your card never reaches this portal."
            </p>
            <CallProblem call=call beside_fields=FIELDS/>
            <NumberField
                label="Amount"
                id="top-up-amount"
                unit=currency
                value=amount
                hint=hint
                error=call.field("/amount_micros")
            />
            <label class="check">
                <input
                    type="checkbox"
                    name="save-card"
                    prop:checked=move || save_card.get()
                    on:change=move |ev| save_card.set(event_target_checked(&ev))
                />
                <span>
                    "Keep the card for automatic recharge"
                    <span class="check__hint">
                        "Stripe keeps it. It is charged only by the rule that you set, and you can remove it under Receipts and cards."
                    </span>
                </span>
            </label>
            <div class="form__actions">
                <Submit call=call>"Pay by card"</Submit>
                <span class="quiet" role="status">{move || said.get()}</span>
            </div>
        </form>
    }
}

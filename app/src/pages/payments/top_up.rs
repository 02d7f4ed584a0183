//! Form of a card payment for credit.
//!
//! The form checks only the syntax and contains no data of a card.

use berth_types::ids::OrgId;
use berth_types::money::{money_text, parse_amount_micros};
use berth_types::payments::{NewTopUp, PayHere};
use berth_types::problems::Problem;
use leptos::ev::SubmitEvent;
use leptos::prelude::*;

use super::super::limits::form::NumberField;
use super::super::parts::{Call, CallProblem, FormKey, Submit, open_url};
use crate::api;

const FIELDS: &[&str] = &["/amount_micros"];

/// The amount of the payment. The submission leads to the payment page of Stripe.
#[component]
pub fn TopUpForm(
    /// The organization of the balance.
    org: OrgId,
    /// The portal's currency.
    currency: String,
    /// The smallest step of an amount.
    step_micros: i64,
) -> impl IntoView {
    let call = Call::idle();
    let key = FormKey::new(call);
    let status = RwSignal::new("");
    let amount = RwSignal::new(String::new());
    let save_card = RwSignal::new(false);
    let hint = format!("In steps of {}.", money_text(step_micros, &currency));
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        status.set("");
        let Some(amount_micros) = parse_amount_micros(&amount.get_untracked()) else {
            let detail = "Enter an amount, such as 25 or 12.50.";
            call.problem.set(Some(Problem::invalid_field("/amount_micros", detail)));
            return;
        };
        let body = NewTopUp { amount_micros, save_card: save_card.get_untracked() };
        call.run(api::payments::top_up(org, &body, key.for_body(&body)), move |page: PayHere| {
            key.reset();
            status.set("Opening the payment page of Stripe.");
            open_url(&page.url);
        });
    };
    view! {
        <form class="form card" method="post" aria-labelledby="top-up-title" on:submit=submit>
            <h2 class="card__title" id="top-up-title">"Add credit"</h2>
            <p class="quiet">
                "You pay on a page of Stripe and then return here. This portal never receives your card number."
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
                    "Save card for automatic recharge"
                    <span class="check__hint">
                        "Stripe stores the card. Only your automatic recharge charges it. You can remove it under \"Manage cards and receipts\"."
                    </span>
                </span>
            </label>
            <div class="form__actions">
                <Submit call=call>"Pay by card"</Submit>
                <span class="quiet" role="status">{move || status.get()}</span>
            </div>
        </form>
    }
}

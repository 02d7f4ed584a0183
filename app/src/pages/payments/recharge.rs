//! Form of the automatic recharge from the saved card.
//!
//! The form checks only the syntax; the portal checks the values.

use berth_types::ids::OrgId;
use berth_types::money::parse_amount_micros;
use berth_types::payments::{AutoRecharge, PaymentSettings};
use berth_types::problems::{FieldError, Problem};
use leptos::ev::SubmitEvent;
use leptos::prelude::*;

use super::super::limits::form::NumberField;
use super::super::parts::{Call, CallProblem, Submit, ready};
use super::super::text::typed_amount;
use super::Wallet;
use super::text::rule_text;
use crate::api;

const FIELDS: &[&str] = &["/below_micros", "/amount_micros", "/most_a_day"];

/// Parses the fields of the form; the errors are for their fields.
fn parse_rule(below: &str, amount: &str, most: &str) -> Result<AutoRecharge, Vec<FieldError>> {
    let below_micros = parse_amount_micros(below);
    // An amount of zero turns the rule off; a button does that.
    let amount_micros = parse_amount_micros(amount).filter(|micros| *micros > 0);
    let most_a_day = most.trim().parse::<i64>().ok();
    match (below_micros, amount_micros, most_a_day) {
        (Some(below_micros), Some(amount_micros), Some(most_a_day)) => {
            Ok(AutoRecharge { below_micros, amount_micros, most_a_day })
        }
        _ => {
            let mut errors = Vec::new();
            if below_micros.is_none() {
                errors.push(FieldError::new("/below_micros", "Enter an amount, such as 10 or 12.50."));
            }
            if amount_micros.is_none() {
                errors.push(FieldError::new("/amount_micros", "Enter an amount, such as 50."));
            }
            if most_a_day.is_none() {
                errors.push(FieldError::new("/most_a_day", "Enter a whole number, such as 2."));
            }
            Err(errors)
        }
    }
}

/// The threshold, the amount and the daily maximum.
#[component]
pub fn RechargeForm(
    /// The organization of the balance.
    org: OrgId,
    /// The payment settings with the present rule.
    wallet: RwSignal<Wallet>,
    /// The portal's currency.
    currency: String,
) -> impl IntoView {
    let ready = ready();
    let call = Call::idle();
    let status = RwSignal::new("");
    let rule = wallet.with_untracked(|wallet| wallet.settings.auto_recharge);
    let typed = |micros: i64| if rule.amount_micros > 0 { typed_amount(micros) } else { String::new() };
    let below = RwSignal::new(typed(rule.below_micros));
    let amount = RwSignal::new(typed(rule.amount_micros));
    let most = RwSignal::new(rule.most_a_day.max(1).to_string());
    let card_saved = Memo::new(move |_| wallet.with(|wallet| wallet.settings.card_saved));
    let on = Memo::new(move |_| wallet.with(|wallet| wallet.settings.auto_recharge.amount_micros > 0));
    let set = move |rule: AutoRecharge| {
        call.run(api::payments::set_recharge(org, &rule), move |fresh: PaymentSettings| {
            let off = fresh.auto_recharge.amount_micros <= 0;
            status.set(if off { "Automatic recharge turned off." } else { "Rule saved and in effect." });
            wallet.update(|wallet| wallet.settings = fresh);
        });
    };
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        status.set("");
        let rule = parse_rule(&below.get_untracked(), &amount.get_untracked(), &most.get_untracked());
        match rule {
            Ok(rule) => set(rule),
            Err(errors) => call.problem.set(Some(Problem::invalid(errors))),
        }
    };
    let turn_off = move |_: leptos::ev::MouseEvent| {
        status.set("");
        set(AutoRecharge::default());
    };
    let off_button = move || {
        on.get().then(|| {
            view! {
                <button
                    class="btn"
                    type="button"
                    disabled=move || !ready.get() || call.pending.get()
                    on:click=turn_off
                >
                    "Turn off"
                </button>
            }
        })
    };
    let text_currency = currency.clone();
    let text = move || {
        wallet.with(|wallet| {
            let settings = &wallet.settings;
            rule_text(&settings.auto_recharge, settings.card_saved, &text_currency)
        })
    };
    view! {
        <form class="form card" method="post" aria-labelledby="recharge-title" on:submit=submit>
            <h2 class="card__title" id="recharge-title">"Automatic recharge"</h2>
            <p class="preview">{text}</p>
            <CallProblem call=call beside_fields=FIELDS/>
            <div class="field-row">
                <NumberField
                    label="Threshold"
                    id="recharge-below"
                    unit=currency.clone()
                    value=below
                    hint="Charges the card when less is available. Reserved money does not count as available."
                    error=call.field("/below_micros")
                />
                <NumberField
                    label="Amount"
                    id="recharge-amount"
                    unit=currency
                    value=amount
                    hint="Charged to the saved card."
                    error=call.field("/amount_micros")
                />
                <NumberField
                    label="Maximum charges"
                    id="recharge-most"
                    unit="per day"
                    value=most
                    hint="Days in UTC."
                    error=call.field("/most_a_day")
                    inputmode="numeric"
                />
            </div>
            <div class="form__actions">
                <Submit call=call quiet=true disabled=Signal::derive(move || !card_saved.get())>"Save rule"</Submit>
                {off_button}
                <span class="quiet" role="status">{move || status.get()}</span>
            </div>
        </form>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_parsed_or_each_field_has_an_error() {
        let rule = AutoRecharge { below_micros: 10_000_000, amount_micros: 50_500_000, most_a_day: 2 };
        assert_eq!(parse_rule("10", "50.50", " 2 "), Ok(rule));
        let wrong = parse_rule("ten", "0", "").unwrap_err();
        let pointers: Vec<&str> = wrong.iter().map(|error| error.pointer.as_str()).collect();
        assert_eq!(pointers, FIELDS);
    }
}

//! Automatic recharge: when the saved card is charged by itself.
//!
//! Must not charge anything, nor check more than the portal cannot read.

use berth_types::ids::OrgId;
use berth_types::money::parse_amount_micros;
use berth_types::payments::{AutoRecharge, PaymentSettings};
use berth_types::problems::{FieldError as Wrong, Problem};
use leptos::ev::SubmitEvent;
use leptos::prelude::*;

use super::super::limits::form::NumberField;
use super::super::parts::{Call, CallProblem, ready};
use super::super::words::typed_amount;
use super::Wallet;
use super::words::rule_words;
use crate::api;

const FIELDS: &[&str] = &["/below_micros", "/amount_micros", "/most_a_day"];

/// The rule that is typed, or what keeps it from being one.
fn read(below: &str, amount: &str, most: &str) -> Result<AutoRecharge, Vec<Wrong>> {
    let below_micros = parse_amount_micros(below);
    // Nothing to charge would be no rule; there is a button for that.
    let amount_micros = parse_amount_micros(amount).filter(|micros| *micros > 0);
    let most_a_day = most.trim().parse::<i64>().ok();
    match (below_micros, amount_micros, most_a_day) {
        (Some(below_micros), Some(amount_micros), Some(most_a_day)) => {
            Ok(AutoRecharge { below_micros, amount_micros, most_a_day })
        }
        _ => {
            let mut errors = Vec::new();
            if below_micros.is_none() {
                errors.push(Wrong::new("/below_micros", "Give an amount such as 10 or 12.50."));
            }
            if amount_micros.is_none() {
                errors.push(Wrong::new("/amount_micros", "Give an amount such as 50."));
            }
            if most_a_day.is_none() {
                errors.push(Wrong::new("/most_a_day", "Give a number such as 2."));
            }
            Err(errors)
        }
    }
}

/// Below what, how much, and how often.
#[component]
pub fn RechargeForm(
    /// Whose balance it is for.
    org: OrgId,
    /// Whether a card is saved, and the present rule.
    wallet: RwSignal<Wallet>,
    /// The portal's currency.
    currency: String,
) -> impl IntoView {
    let ready = ready();
    let call = Call::idle();
    let said = RwSignal::new("");
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
            said.set(if off { "Turned off." } else { "Saved. It holds from now on." });
            wallet.update(|wallet| wallet.settings = fresh);
        });
    };
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        said.set("");
        let typed = read(&below.get_untracked(), &amount.get_untracked(), &most.get_untracked());
        match typed {
            Ok(rule) => set(rule),
            Err(errors) => call.problem.set(Some(Problem::invalid(errors))),
        }
    };
    let turn_off = move |_: leptos::ev::MouseEvent| {
        said.set("");
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
    let of_words = currency.clone();
    let words = move || {
        wallet.with(|wallet| {
            let settings = &wallet.settings;
            rule_words(&settings.auto_recharge, settings.card_saved, &of_words)
        })
    };
    view! {
        <form class="form card" method="post" aria-labelledby="recharge-title" on:submit=submit>
            <h2 class="card__title" id="recharge-title">"Automatic recharge"</h2>
            <p class="preview">{words}</p>
            <CallProblem call=call beside_fields=FIELDS/>
            <div class="field-row">
                <NumberField
                    label="When less is available than"
                    id="recharge-below"
                    unit=currency.clone()
                    value=below
                    hint="What waits or runs is set aside already."
                    error=call.field("/below_micros")
                />
                <NumberField
                    label="Charge"
                    id="recharge-amount"
                    unit=currency
                    value=amount
                    hint="To the saved card."
                    error=call.field("/amount_micros")
                />
                <NumberField
                    label="At most"
                    id="recharge-most"
                    unit="a day"
                    value=most
                    hint="A day by UTC."
                    error=call.field("/most_a_day")
                    inputmode="numeric"
                />
            </div>
            <div class="form__actions">
                <button
                    class="btn"
                    type="submit"
                    disabled=move || !ready.get() || call.pending.get() || !card_saved.get()
                    aria-busy=move || call.pending.get().then_some("true")
                >
                    "Save the rule"
                </button>
                {off_button}
                <span class="quiet" role="status">{move || said.get()}</span>
            </div>
        </form>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_read_or_every_field_says_what_it_wants() {
        let rule = AutoRecharge { below_micros: 10_000_000, amount_micros: 50_500_000, most_a_day: 2 };
        assert_eq!(read("10", "50.50", " 2 "), Ok(rule));
        let wrong = read("ten", "0", "").unwrap_err();
        let pointers: Vec<&str> = wrong.iter().map(|error| error.pointer.as_str()).collect();
        assert_eq!(pointers, FIELDS);
    }
}

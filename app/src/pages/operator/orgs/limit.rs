//! Letting an organization pay afterwards: how far below nothing its balance may go.
//!
//! Must not touch what it has drawn already: the portal refuses a limit below that.

use berth_types::ledger::{Balance, CreditLimit};
use berth_types::money::{money_text, parse_amount_micros};
use berth_types::problems::Problem;
use leptos::ev::SubmitEvent;
use leptos::prelude::*;

use super::super::super::limits::form::NumberField;
use super::super::super::parts::{Call, CallProblem, Modal, Submit};
use super::Desk;
use crate::api;

/// What a limit means for whoever has it.
fn said(name: &str, balance: &Balance) -> String {
    let text = |micros: i64| money_text(micros, &balance.currency);
    let available = text(balance.available_micros);
    match balance.credit_limit_micros {
        0 => format!("{name} has no credit limit now and pays in advance. {available} is available to it."),
        limit => format!(
            "{name} may go {} below nothing and pays afterwards. {available} is available to it.",
            text(limit)
        ),
    }
}

/// How far.
#[component]
pub fn CreditLimitDialog(
    /// What the page acts on.
    desk: Desk,
) -> impl IntoView {
    let call = Call::idle();
    let open = desk.limiting;
    let amount = RwSignal::new(String::new());
    let title = Signal::derive(move || desk.titled("Credit limit of", "Credit limit"));
    // What was typed for one organization is not meant for the next.
    Effect::new(move || {
        if open.get() {
            call.problem.set(None);
            amount.set(String::new());
        }
    });
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        let Some((org, name)) = desk.org() else { return };
        let Some(credit_limit_micros) = parse_amount_micros(&amount.get_untracked()) else {
            let detail = "Give an amount such as 500 or 12.50, or 0 for none.";
            call.problem.set(Some(Problem::invalid_field("/credit_limit_micros", detail)));
            return;
        };
        let body = CreditLimit { credit_limit_micros };
        call.run(api::money::set_credit_limit(org, &body), move |balance: Balance| {
            desk.take(org, &balance, said(&name, &balance));
            open.set(false);
        });
    };
    view! {
        <Modal id="credit-limit" title=title open=open>
            <form method="post" on:submit=submit>
                <div class="dialog__body">
                    <p>
                        "Their balance may go so far below nothing. Whoever has a limit pays afterwards: invoices stay open until you mark them paid. It takes the place of the limit they have, and cannot be lower than what is drawn already."
                    </p>
                    <CallProblem call=call beside_fields=&["/credit_limit_micros"]/>
                    <NumberField
                        label="New limit"
                        id="credit-limit-amount"
                        unit=Signal::derive(move || desk.currency())
                        value=amount
                        hint="0: they pay in advance."
                        error=call.field("/credit_limit_micros")
                    />
                </div>
                <div class="dialog__actions">
                    <button class="btn" type="button" on:click=move |_| open.set(false)>"Leave it"</button>
                    <Submit call=call>"Set limit"</Submit>
                </div>
            </form>
        </Modal>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_said_with_what_is_available() {
        let balance = |limit: i64| Balance {
            currency: "USD".to_owned(),
            posted_micros: -2_000_000,
            held_micros: 0,
            accrued_micros: 0,
            credit_limit_micros: limit,
            available_micros: limit - 2_000_000,
            burn_per_hour_micros: 0,
            expiring: Vec::new(),
        };
        assert_eq!(
            said("Kelda Lab", &balance(50_000_000)),
            "Kelda Lab may go $50.00 below nothing and pays afterwards. $48.00 is available to it."
        );
        assert!(said("Kelda Lab", &balance(0)).contains("pays in advance"));
    }
}

//! Dialog of the credit limit. The portal refuses a limit below the present debt.

use berth_types::change_requests::Outcome;
use berth_types::ledger::{Balance, CreditLimit};
use berth_types::money::{available_text, money_text, parse_amount_micros};
use berth_types::problems::Problem;
use leptos::prelude::*;

use super::super::super::dialog_form::DialogForm;
use super::super::super::limits::form::NumberField;
use super::super::super::parts::{Call, CallProblem};
use super::super::waiting::EffectTime;
use super::OrgsState;
use crate::api;

/// Returns the new credit limit and the available money.
fn status_text(name: &str, balance: &Balance) -> String {
    let available = available_text(balance.available_micros, &balance.currency);
    match balance.credit_limit_micros {
        0 => format!("{name}: no credit limit, prepaid only. Available: {available}."),
        limit => {
            format!("{name}: credit limit {}. Available: {available}.", money_text(limit, &balance.currency))
        }
    }
}

/// The dialog with the new limit.
#[component]
pub fn CreditLimitDialog(
    /// The signals of the page.
    state: OrgsState,
) -> impl IntoView {
    let call = Call::idle();
    let open = state.limiting;
    let amount = RwSignal::new(String::new());
    let title = Signal::derive(move || state.title("Credit limit of", "Credit limit"));
    let reset = move |()| amount.set(String::new());
    let submit = move |()| {
        let Some((org, name)) = state.org() else { return };
        let Some(credit_limit_micros) = parse_amount_micros(&amount.get_untracked()) else {
            let detail = "Enter an amount, such as 500 or 12.50, or 0 for prepaid only.";
            call.problem.set(Some(Problem::invalid_field("/credit_limit_micros", detail)));
            return;
        };
        let body = CreditLimit { credit_limit_micros };
        call.run(api::money::set_credit_limit(org, &body), move |outcome: Outcome<Balance>| {
            state.show(org, outcome, |balance| status_text(&name, balance));
            open.set(false);
        });
    };
    view! {
        <DialogForm
            id="credit-limit"
            title=title
            open=open
            call=call
            keep="Cancel"
            verb="Set limit"
            reset=Callback::new(reset)
            submit=Callback::new(submit)
        >
            <p>
                "The credit limit is the permitted debt of the organization. With a limit, the organization pays its invoices afterwards: each invoice stays open until you mark it as paid. The new limit replaces the present one and cannot be below the present debt."
            </p>
            <EffectTime waits=state.second_operator at_once="The new limit counts at once."/>
            <CallProblem call=call beside_fields=&["/credit_limit_micros"]/>
            <NumberField
                label="New limit"
                id="credit-limit-amount"
                unit=Signal::derive(move || state.currency())
                value=amount
                hint="0: prepaid only."
                error=call.field("/credit_limit_micros")
            />
        </DialogForm>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_has_limit_and_available_money() {
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
            status_text("Kelda Lab", &balance(50_000_000)),
            "Kelda Lab: credit limit $50.00. Available: $48.00."
        );
        assert!(status_text("Kelda Lab", &balance(0)).contains("prepaid only"));
    }
}

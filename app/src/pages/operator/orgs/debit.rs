//! Dialog of a debit: a refund or a correction. The portal refuses more than the available money.

use berth_types::change_requests::Outcome;
use berth_types::ledger::{Balance, NewDebit};
use berth_types::money::{money_text, parse_amount_micros};
use berth_types::problems::{FieldError as Wrong, Problem};
use leptos::prelude::*;

use super::super::super::dialog_form::DialogForm;
use super::super::super::limits::form::NumberField;
use super::super::super::parts::{Call, CallProblem, FormKey};
use super::super::waiting::EffectTime;
use super::OrgsState;
use crate::api;
use crate::ui::*;

const FIELDS: &[&str] = &["/amount_micros", "/memo"];

/// Parses the form of a debit.
///
/// # Errors
/// One error for each invalid field.
fn parse(amount: &str, memo: &str) -> Result<NewDebit, Vec<Wrong>> {
    let mut errors = Vec::new();
    let amount = parse_amount_micros(amount);
    if amount.is_none() {
        errors.push(Wrong::new("/amount_micros", "Enter an amount, such as 500 or 12.50."));
    }
    let memo = memo.trim().to_owned();
    if memo.is_empty() {
        errors.push(Wrong::new("/memo", "Enter a reason. It appears in the ledger of the organization."));
    }
    match amount {
        Some(amount_micros) if errors.is_empty() => Ok(NewDebit { amount_micros, memo }),
        _ => Err(errors),
    }
}

/// The dialog with amount and reason.
#[component]
pub fn DebitDialog(
    /// The signals of the page.
    state: OrgsState,
) -> impl IntoView {
    let call = Call::idle();
    let open = state.debiting;
    let amount = RwSignal::new(String::new());
    let memo = RwSignal::new(String::new());
    let key = FormKey::new(call);
    let title = Signal::derive(move || state.title("Debit", "Debit"));
    let reset = move |()| {
        amount.set(String::new());
        memo.set(String::new());
    };
    let submit = move |()| {
        let Some((org, name)) = state.org() else { return };
        let body = match parse(&amount.get_untracked(), &memo.get_untracked()) {
            Ok(body) => body,
            Err(errors) => {
                call.problem.set(Some(Problem::invalid(errors)));
                return;
            }
        };
        let micros = body.amount_micros;
        let once = key.for_text(format!("{org} {micros} {}", body.memo));
        call.run(api::money::debit(org, &body, once), move |outcome: Outcome<Balance>| {
            key.reset();
            state.show(org, outcome, |balance| {
                format!("{} debited from {name}.", money_text(micros, &balance.currency))
            });
            open.set(false);
        });
    };
    view! {
        <DialogForm
            id="take-back"
            title=title
            open=open
            call=call
            keep="Cancel"
            verb="Debit account"
            danger=true
            reset=Callback::new(reset)
            submit=Callback::new(submit)
        >
            <EffectTime waits=state.second_operator at_once="The debit reduces the balance at once."/>
            <p>
                "The debit stays in the ledger of the organization. Money reserved for jobs and reservations is not affected. To undo a debit, grant a credit."
            </p>
            <CallProblem call=call beside_fields=FIELDS/>
            <NumberField
                label="Amount"
                id="back-amount"
                unit=Signal::derive(move || state.currency())
                value=amount
                hint="At most the available money."
                error=call.field("/amount_micros")
            />
            <TextField
                label="Reason"
                id="back-memo"
                max_length=200
                value=memo
                hint="Shown in the ledger of the organization, such as: refund to card."
                error=call.field("/memo")
            />
        </DialogForm>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_debit_needs_amount_and_reason() {
        let body = parse("12.50", " refund to card ").unwrap();
        assert_eq!((body.amount_micros, body.memo.as_str()), (12_500_000, "refund to card"));
        let at: Vec<String> =
            parse("much", " ").unwrap_err().into_iter().map(|error| error.pointer).collect();
        assert_eq!(at, ["/amount_micros", "/memo"]);
    }
}

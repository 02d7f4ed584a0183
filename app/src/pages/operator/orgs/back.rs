//! Taking money back from an organization: a refund, or a correction.
//!
//! Must not reach for what is set aside: the portal refuses more than is available.

use berth_types::ledger::{Balance, NewDebit};
use berth_types::money::{money_text, parse_amount_micros};
use berth_types::problems::{FieldError as Wrong, Problem};
use leptos::ev::SubmitEvent;
use leptos::prelude::*;

use super::super::super::limits::form::NumberField;
use super::super::super::parts::{Call, CallProblem, FieldError, FormKey, Modal};
use super::Desk;
use crate::api;

const FIELDS: &[&str] = &["/amount_micros", "/memo"];

/// What is taken back, or what keeps it from being anything.
fn read(amount: &str, memo: &str) -> Result<NewDebit, Vec<Wrong>> {
    let mut errors = Vec::new();
    let amount = parse_amount_micros(amount);
    if amount.is_none() {
        errors.push(Wrong::new("/amount_micros", "Give an amount such as 500 or 12.50."));
    }
    let memo = memo.trim().to_owned();
    if memo.is_empty() {
        errors.push(Wrong::new("/memo", "Say what for: it stands in their ledger."));
    }
    match amount {
        Some(amount_micros) if errors.is_empty() => Ok(NewDebit { amount_micros, memo }),
        _ => Err(errors),
    }
}

/// How much, and what for.
#[component]
pub fn TakeBackDialog(
    /// What the page acts on.
    desk: Desk,
) -> impl IntoView {
    let call = Call::idle();
    let open = desk.taking;
    let amount = RwSignal::new(String::new());
    let memo = RwSignal::new(String::new());
    let key = FormKey::beside(call);
    let title = Signal::derive(move || desk.titled("Take money back from", "Take money back"));
    // What was typed for one organization is not meant for the next.
    Effect::new(move || {
        if open.get() {
            call.problem.set(None);
            amount.set(String::new());
            memo.set(String::new());
        }
    });
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        let Some((org, name)) = desk.org() else { return };
        let body = match read(&amount.get_untracked(), &memo.get_untracked()) {
            Ok(body) => body,
            Err(errors) => {
                call.problem.set(Some(Problem::invalid(errors)));
                return;
            }
        };
        let micros = body.amount_micros;
        let asked = key.of(format!("{org} {micros} {}", body.memo));
        call.run(api::money::take_back(org, &body, asked), move |balance: Balance| {
            key.done();
            let taken = money_text(micros, &balance.currency);
            desk.take(org, &balance, format!("{taken} was taken back from {name}."));
            open.set(false);
        });
    };
    let wrong_memo = call.field("/memo");
    view! {
        <Modal id="take-back" title=title open=open>
            <form method="post" on:submit=submit>
                <div class="dialog__body">
                    <p>
                        "It leaves their balance at once, and stands in their ledger for good. What is set aside for jobs and reservations stays. To undo it, grant it again."
                    </p>
                    <CallProblem call=call beside_fields=FIELDS/>
                    <NumberField
                        label="Amount"
                        id="back-amount"
                        unit=Signal::derive(move || desk.currency())
                        value=amount
                        hint="No more than is available to them."
                        error=call.field("/amount_micros")
                    />
                    <div class="field">
                        <label class="field__label" for="back-memo">"What for"</label>
                        <input
                            id="back-memo"
                            autocomplete="off"
                            maxlength="200"
                            aria-describedby="back-memo-hint back-memo-error"
                            aria-invalid=move || wrong_memo.get().map(|_| "true")
                            prop:value=move || memo.get()
                            on:input=move |ev| memo.set(event_target_value(&ev))
                        />
                        <p class="field__hint" id="back-memo-hint">"Shown to them in their ledger, such as refund to card."</p>
                        <FieldError id="back-memo-error" error=wrong_memo/>
                    </div>
                </div>
                <div class="dialog__actions">
                    <button class="btn" type="button" on:click=move |_| open.set(false)>"Take nothing"</button>
                    <button
                        class="btn btn--danger btn--primary"
                        type="submit"
                        disabled=move || call.pending.get()
                        aria-busy=move || call.pending.get().then_some("true")
                    >
                        "Take money back"
                    </button>
                </div>
            </form>
        </Modal>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_is_taken_back_for_a_reason() {
        let body = read("12.50", " refund to card ").unwrap();
        assert_eq!((body.amount_micros, body.memo.as_str()), (12_500_000, "refund to card"));
        let at: Vec<String> = read("much", " ").unwrap_err().into_iter().map(|error| error.pointer).collect();
        assert_eq!(at, ["/amount_micros", "/memo"]);
    }
}

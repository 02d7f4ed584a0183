//! Confirmation of an invoice's end: paid, or void by a credit note. Neither can be undone.

use berth_types::change_requests::Outcome;
use berth_types::invoices::Invoice;
use berth_types::money::money_text;
use leptos::prelude::*;

use super::super::super::dialog_form::DialogForm;
use super::super::super::invoices::text::title;
use super::super::super::parts::{Call, CallProblem, FormKey};
use super::super::waiting::EffectTime;
use super::InvoicesState;
use crate::api;

/// The end of an open invoice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Close {
    /// The amount was received.
    Pay,
    /// A credit note voids it.
    Void,
}

impl Close {
    /// Returns the label of the button.
    pub const fn verb(self) -> &'static str {
        match self {
            Self::Pay => "Mark as paid",
            Self::Void => "Void",
        }
    }
}

/// Returns the consequences for money.
fn consequence(invoice: &Invoice, how: Close) -> String {
    let document = &invoice.document;
    let text = |micros: i64| money_text(micros, &document.currency);
    let (total, net, buyer) = (text(document.total_micros), text(document.subtotal_micros), &document.buyer);
    match how {
        Close::Pay => format!(
            "Confirms the receipt of {total}. {net}, the amount without taxes, is credited to {buyer}. This cannot be undone."
        ),
        Close::Void => format!(
            "A credit note with its own number voids the invoice, {net} is credited to {buyer}, and no payment is due. The month is not billed again. This cannot be undone."
        ),
    }
}

/// The confirmation for the chosen invoice.
#[component]
pub fn CloseDialog(
    /// The signals of the page.
    state: InvoicesState,
) -> impl IntoView {
    let call = Call::idle();
    let key = FormKey::new(call);
    let InvoicesState { chosen, closing: open, .. } = state;
    let title = Signal::derive(move || {
        chosen.with(|chosen| match chosen {
            Some((invoice, Close::Pay)) => format!("Mark {} as paid?", title(invoice)),
            Some((invoice, Close::Void)) => format!("Void {}?", title(invoice)),
            None => "Close the invoice?".to_owned(),
        })
    });
    let text = move || {
        chosen.with(|chosen| {
            chosen.as_ref().map(|(invoice, how)| consequence(invoice, *how)).unwrap_or_default()
        })
    };
    let pays =
        Memo::new(move |_| chosen.with(|chosen| chosen.as_ref().is_some_and(|(_, how)| *how == Close::Pay)));
    let close = move |()| {
        let Some((invoice, how)) = chosen.get_untracked() else { return };
        let once = key.for_text(format!("{} {}", invoice.id, how == Close::Pay));
        let done = move |outcome: Outcome<Invoice>| {
            key.reset();
            match outcome {
                Outcome::Requested(request) => state.waiting.set(Some(*request)),
                Outcome::Done(fresh) => {
                    state.waiting.set(None);
                    state.merge_all(vec![fresh]);
                    // The answer is without the new credit note.
                    state.reload();
                }
            }
            open.set(false);
        };
        match how {
            Close::Pay => call.run(api::invoices::pay(invoice.id, once), done),
            Close::Void => call.run(api::invoices::void(invoice.id, once), done),
        }
    };
    let verb = Signal::derive(move || {
        let verb = if pays.get() { "Mark as paid" } else { "Void invoice" };
        verb.to_owned()
    });
    view! {
        <DialogForm
            id="close-invoice"
            title=title
            open=open
            call=call
            keep="Keep open"
            verb=verb
            danger=Signal::derive(move || !pays.get())
            submit=Callback::new(close)
        >
            <p>{text}</p>
            <EffectTime waits=state.second_operator at_once="The invoice is closed at once."/>
            <CallProblem call=call beside_fields=&[]/>
        </DialogForm>
    }
}

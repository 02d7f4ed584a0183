//! Closing an open invoice: it was paid, or it is taken back. Each after a question, since neither can be
//! undone.
//!
//! Must not say more about money than the invoice does.

use berth_types::invoices::Invoice;
use berth_types::money::money_text;
use leptos::prelude::*;

use super::super::super::invoices::words::title;
use super::super::super::parts::{Call, CallProblem, FormKey, Modal};
use super::Desk;
use crate::api;

/// How an invoice is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Close {
    /// Its amount came in.
    Pay,
    /// A credit note takes it back.
    TakeBack,
}

impl Close {
    /// On its button.
    pub const fn verb(self) -> &'static str {
        match self {
            Self::Pay => "Mark paid",
            Self::TakeBack => "Take back",
        }
    }
}

/// What closing it means.
fn consequence(invoice: &Invoice, how: Close) -> String {
    let document = &invoice.document;
    let text = |micros: i64| money_text(micros, &document.currency);
    let (total, net, buyer) = (text(document.total_micros), text(document.subtotal_micros), &document.buyer);
    match how {
        Close::Pay => format!(
            "{total} came in for it. What was used of that, {net} without taxes, is credited to {buyer}, and the invoice is closed as paid. This cannot be undone."
        ),
        Close::TakeBack => format!(
            "A credit note with a number of its own takes it back, {net} is credited to {buyer}, and nothing is to be paid. The month is not billed to them again. This cannot be undone."
        ),
    }
}

/// The question, for whichever invoice was chosen.
#[component]
pub fn CloseDialog(
    /// What the page acts on.
    desk: Desk,
) -> impl IntoView {
    let call = Call::idle();
    let key = FormKey::beside(call);
    let Desk { chosen, asking: open, .. } = desk;
    let title = Signal::derive(move || {
        chosen.with(|chosen| match chosen {
            Some((invoice, Close::Pay)) => format!("Mark {} as paid?", title(invoice)),
            Some((invoice, Close::TakeBack)) => format!("Take {} back?", title(invoice)),
            None => "Close the invoice?".to_owned(),
        })
    });
    let words = move || {
        chosen.with(|chosen| {
            chosen.as_ref().map(|(invoice, how)| consequence(invoice, *how)).unwrap_or_default()
        })
    };
    let pays =
        Memo::new(move |_| chosen.with(|chosen| chosen.as_ref().is_some_and(|(_, how)| *how == Close::Pay)));
    // What went wrong with one says nothing of the next.
    Effect::new(move || {
        if open.get() {
            call.problem.set(None);
        }
    });
    let close = move |_: leptos::ev::MouseEvent| {
        let Some((invoice, how)) = chosen.get_untracked() else { return };
        let once = key.of(format!("{} {}", invoice.id, how == Close::Pay));
        let done = move |fresh: Invoice| {
            key.done();
            desk.take(vec![fresh]);
            // A credit note is one more invoice, which the answer does not tell.
            desk.look();
            open.set(false);
        };
        match how {
            Close::Pay => call.run(api::invoices::pay(invoice.id, once), done),
            Close::TakeBack => call.run(api::invoices::take_back(invoice.id, once), done),
        }
    };
    let class = move || if pays.get() { "btn btn--primary" } else { "btn btn--danger btn--primary" };
    view! {
        <Modal id="close-invoice" title=title open=open>
            <div class="dialog__body">
                <p>{words}</p>
                <CallProblem call=call beside_fields=&[]/>
            </div>
            <div class="dialog__actions">
                <button class="btn" type="button" on:click=move |_| open.set(false)>"Leave it open"</button>
                <button
                    class=class
                    type="button"
                    disabled=move || call.pending.get()
                    aria-busy=move || call.pending.get().then_some("true")
                    on:click=close
                >
                    {move || if pays.get() { "Mark paid" } else { "Take it back" }}
                </button>
            </div>
        </Modal>
    }
}

//! Page of the invoices of all organizations: list, closing, and billing of a past month. Invoices are final;
//! only a credit note corrects them.

pub mod close;
pub mod settings;

use std::future::Future;

use berth_types::Page as Rows;
use berth_types::change_requests::ChangeRequest;
use berth_types::ids::InvoiceId;
use berth_types::invoices::{BillingSettings, Invoice, InvoiceKind, InvoiceState};
use berth_types::money::{column_decimals, column_text};
use berth_types::operators::OperatorRight;
use futures::try_join;
use leptos::ev::SubmitEvent;
use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::{Deserialize, Serialize};

use self::close::{Close, CloseDialog};
use self::settings::SettingsForm;
use super::super::curl::ListCurl;
use super::super::days::{day_at, month_before, month_text};
use super::super::invoices::document::{PrintButton, document};
use super::super::invoices::text::{merge, period, title};
use super::super::invoices::{corrected_text, day_cell, state_cell};
use super::super::load_more::LoadMore;
use super::super::org_data::answer_view;
use super::super::parts::{Call, CallProblem, FieldError, Submit, every_visible, now_ms, ready};
use super::super::text::counted;
use super::waiting::{WaitingNotice, second_operator_required};
use super::{guarded, is_operator, may};
use crate::api;
use crate::api::Answer;
use crate::api::invoices::Billed;
use crate::session::Page;
use crate::ui::*;

/// The first data of the page.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    first: Rows<Invoice>,
    settings: BillingSettings,
}

fn load() -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let (first, settings) = (api::invoices::all(None), api::invoices::settings());
    async move {
        let (first, settings) = try_join!(first, settings)?;
        Ok(Loaded { first, settings })
    }
}

/// The page of all invoices.
#[component]
pub fn InvoicesPage() -> impl IntoView {
    if is_operator() { view! { <AllInvoices/> }.into_any() } else { view! { <NotFound/> }.into_any() }
}

#[component]
fn AllInvoices() -> impl IntoView {
    let data: Resource<Answer<Loaded>> = Resource::new(|| (), |()| load());
    view! {
        <Page title="Invoices".to_owned()>
            {answer_view(data, |loaded| view! { <InvoicesView loaded=loaded/> }.into_any())}
        </Page>
    }
}

/// The signals of the page.
#[derive(Clone, Copy)]
pub struct InvoicesState {
    all: RwSignal<Vec<Invoice>>,
    /// The invoice with its open document.
    shown: RwSignal<Option<InvoiceId>>,
    /// The invoice of the dialog and its end.
    chosen: RwSignal<Option<(Invoice, Close)>>,
    closing: RwSignal<bool>,
    /// The last closing, if it waits for a second operator.
    waiting: RwSignal<Option<ChangeRequest>>,
    /// True with the rule for a second operator.
    second_operator: ReadSignal<bool>,
    ready: ReadSignal<bool>,
}

impl InvoicesState {
    /// Merges invoices of an answer. The page may have been left meanwhile.
    fn merge_all(self, fresh: Vec<Invoice>) {
        self.all.maybe_update(|all| {
            let mut next = all.clone();
            fresh.into_iter().for_each(|one| merge(&mut next, one));
            let moved = *all != next;
            *all = next;
            moved
        });
    }

    /// Reloads the newest invoices.
    fn reload(self) {
        let fresh = api::invoices::all(None);
        spawn_local(async move {
            // The next round repeats a failed request.
            if let Ok(fresh) = fresh.await {
                self.merge_all(fresh.items);
            }
        });
    }
}

#[component]
fn InvoicesView(loaded: Loaded) -> impl IntoView {
    let Loaded { first, settings } = loaded;
    let state = InvoicesState {
        all: RwSignal::new(first.items),
        shown: RwSignal::new(None),
        chosen: RwSignal::new(None),
        closing: RwSignal::new(false),
        waiting: RwSignal::new(None),
        second_operator: second_operator_required(),
        ready: ready(),
    };
    let cursor = RwSignal::new(first.next_cursor);
    let more = Call::idle();
    every_visible(30_000, move || state.reload());
    let load_more = move |()| {
        let next = api::invoices::all(cursor.get_untracked());
        more.run(next, move |page: Rows<Invoice>| {
            state.merge_all(page.items);
            cursor.set(page.next_cursor);
        });
    };
    let none = Memo::new(move |_| state.all.with(Vec::is_empty));
    let one = Memo::new(move |_| {
        let id = state.shown.get()?;
        state.all.with(|all| all.iter().find(|one| one.id == id).cloned())
    });
    view! {
        <WaitingNotice waiting=state.waiting/>
        {move || one.get().map(|one| view! { <DocumentView invoice=one state=state/> })}
        <section class="section">
            <div class="section__head">
                <h2>"All invoices"</h2>
                <div class="section__aside">"Days and months in UTC"</div>
            </div>
            {move || {
                if none.get() {
                    empty("No invoices yet. One hour after the end of a month, each organization with charges in it is billed automatically. Complete the invoice settings below before the first invoice.")
                } else {
                    state.all.with(|all| table(all, state))
                }
            }}
            <LoadMore cursor=cursor call=more load=Callback::new(load_more)/>
            <ListCurl path="/operator/invoices" label="Invoices with curl"/>
        </section>
        {guarded(
            OperatorRight::ManageMoney,
            view! { <BillForm state=state/><SettingsForm settings=settings/> }.into_any(),
        )}
        <CloseDialog state=state/>
    }
}

/// The document of an invoice. A print shows only the document.
#[component]
fn DocumentView(invoice: Invoice, state: InvoicesState) -> impl IntoView {
    let panel = NodeRef::<leptos::html::Section>::new();
    // The document appears above the list, so the focus moves to it.
    Effect::new(move || {
        if let Some(panel) = panel.get() {
            // A failed focus has no effect.
            let _ = panel.focus();
        }
    });
    let heading = title(&invoice);
    let other = state.all.with_untracked(|all| corrected_text(&invoice, all)).map(|text| {
        let text = format!("This credit note {text}.");
        view! { <p>{text}</p> }.into_any()
    });
    view! {
        <section class="section to-print" tabindex="-1" aria-labelledby="in-full" node_ref=panel>
            <div class="section__head">
                <h2 id="in-full">{heading}</h2>
                <div class="section__aside">
                    <PrintButton/>
                    <button class="btn" type="button" on:click=move |_| state.shown.set(None)>"Close"</button>
                </div>
            </div>
            {document(&invoice, other)}
        </section>
    }
}

fn table(all: &[Invoice], state: InvoicesState) -> AnyView {
    let decimals = column_decimals(all.iter().map(|one| one.document.total_micros));
    let rows: Vec<AnyView> = all.iter().map(|one| row(one, (all, decimals), state)).collect();
    table_of(
        "Invoices, newest first",
        &[
            ("Invoice", ""),
            STATE,
            ("Organization", ""),
            ("Month", ""),
            ("Due", "nowrap"),
            ("Total", "num"),
            ACTIONS,
        ],
        rows,
    )
}

fn row(invoice: &Invoice, (all, decimals): (&[Invoice], usize), state: InvoicesState) -> AnyView {
    let id = invoice.id;
    let name = title(invoice);
    let below = corrected_text(invoice, all).map(|text| view! { <span class="table__sub">{text}</span> });
    let buyer = invoice.document.buyer.clone();
    let total = column_text(invoice.document.total_micros, &invoice.document.currency, decimals);
    let open = invoice.kind == InvoiceKind::Invoice
        && invoice.state == InvoiceState::Open
        && may(OperatorRight::ManageMoney);
    let close_button = |how: Close| {
        let this = invoice.clone();
        let label = format!("{} {}", how.verb(), title(invoice));
        open.then(|| {
            view! {
                " "
                <button
                    class="btn btn--small"
                    type="button"
                    aria-label=label
                    disabled=move || !state.ready.get()
                    on:click=move |_| {
                        state.chosen.set(Some((this.clone(), how)));
                        state.closing.set(true);
                    }
                >
                    {how.verb()}
                </button>
            }
        })
    };
    let (pay, void) = (close_button(Close::Pay), close_button(Close::Void));
    let show_label = format!("Show {name}");
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{name}{below}</th>
            {state_cell(invoice)}
            <td role="cell" data-label="Organization">{buyer}</td>
            <td role="cell" data-label="Month">{period(invoice)}</td>
            {day_cell("Due", invoice.due_at)}
            <td role="cell" class="num" data-label="Total">{total}</td>
            <td role="cell" class="table__actions">
                <button
                    class="btn btn--small"
                    type="button"
                    aria-label=show_label
                    disabled=move || !state.ready.get()
                    on:click=move |_| state.shown.set(Some(id))
                >
                    "Show"
                </button>
                {pay}
                {void}
            </td>
        </tr>
    }
    .into_any()
}

/// Returns the result of billing a month.
fn billed_text(made: usize, month: &str) -> String {
    let month = month_text(month);
    match made {
        0 => format!("No invoices created for {month}: no charges, or all charges are billed."),
        made => format!("{} created for {month}.", counted(made, "invoice", "invoices")),
    }
}

/// Milliseconds after the end of a month before which the portal does not bill it.
const SETTLE_MS: i64 = 3_600_000;

/// Returns the last month that the portal bills at a Unix time in milliseconds; empty beyond the calendar.
fn last_month(now_ms: i64) -> String {
    month_before(&day_at(now_ms.saturating_sub(SETTLE_MS))).unwrap_or_default()
}

/// The form for the missing invoices of a past month.
#[component]
fn BillForm(state: InvoicesState) -> impl IntoView {
    let call = Call::idle();
    let status = RwSignal::new(String::new());
    let month = RwSignal::new(String::new());
    // The server has no clock, so the month starts empty.
    Effect::new(move || {
        if month.with_untracked(String::is_empty) {
            month.set(last_month(now_ms()));
        }
    });
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        status.set(String::new());
        let chosen = month.get_untracked().trim().to_owned();
        call.run(api::invoices::bill(chosen.clone()), move |billed: Billed| {
            status.set(billed_text(billed.made, &chosen));
            state.reload();
        });
    };
    let error = call.field("/month");
    view! {
        <form class="form card" method="post" on:submit=submit>
            <h2 class="card__title">"Missing invoices"</h2>
            <p class="prose">
                "Months are billed automatically one hour after their end. This form creates the missing invoices of a past month now. Organizations with a credit limit pay afterwards; all other invoices are already paid from the balance."
            </p>
            <CallProblem call=call beside_fields=&["/month"]/>
            <div class="field">
                <label class="field__label" for="bill-month">"Month"</label>
                <input
                    id="bill-month"
                    type="month"
                    aria-describedby="bill-month-hint bill-month-error"
                    aria-invalid=move || error.get().map(|_| "true")
                    prop:value=move || month.get()
                    on:input=move |ev| month.set(event_target_value(&ev))
                />
                <p class="field__hint" id="bill-month-hint">"A past month, such as 2026-10."</p>
                <FieldError id="bill-month-error" error=error/>
            </div>
            <div class="form__actions">
                <Submit call=call quiet=true>"Create invoices"</Submit>
                <span class="quiet" role="status">{move || status.get()}</span>
            </div>
        </form>
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_types::time::Timestamp;

    #[test]
    fn billing_has_a_result() {
        assert_eq!(billed_text(2, "2026-10"), "2 invoices created for October 2026.");
        assert!(billed_text(0, "2026-10").starts_with("No invoices created for October 2026"));
    }

    #[test]
    fn the_form_begins_with_a_month_that_the_portal_bills() {
        let month = |at: &str| last_month(at.parse::<Timestamp>().unwrap().millis());
        assert_eq!(month("2026-12-01T00:59:59Z"), "2026-10");
        assert_eq!(month("2026-12-01T01:00:00Z"), "2026-11");
    }
}

//! The invoices of everybody: read, closed, and made for a month that is over.
//!
//! Must not calculate or change what an invoice says: it is final, and corrected only by a credit note.

pub mod close;
pub mod settings;

use std::future::Future;

use berth_types::Page as Rows;
use berth_types::ids::InvoiceId;
use berth_types::invoices::{BillingSettings, Invoice, InvoiceKind, InvoiceState};
use leptos::ev::SubmitEvent;
use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::{Deserialize, Serialize};

use self::close::{Close, CloseDialog};
use self::settings::SettingsForm;
use super::super::days::{day_at, month_before, month_text};
use super::super::invoices::document::{PrintButton, document};
use super::super::invoices::words::{exact_money, merge, period, title};
use super::super::invoices::{day_cell, state_cell, taken_back};
use super::super::limits::replace;
use super::super::more::More;
use super::super::parts::{Call, CallProblem, FieldError, Loading, every, now_ms, ready};
use super::super::words::counted;
use super::is_operator;
use crate::api;
use crate::api::Answer;
use crate::api::invoices::Billed;
use crate::session::Page;
use crate::ui::*;

/// What the page starts with.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    first: Rows<Invoice>,
    settings: BillingSettings,
}

fn load() -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let (first, settings) = (api::invoices::all(None), api::invoices::settings());
    async move {
        let first = first.await?;
        Ok(Loaded { first, settings: settings.await? })
    }
}

/// The page with all invoices.
#[component]
pub fn InvoicesPage() -> impl IntoView {
    if is_operator() { view! { <Everybody/> }.into_any() } else { view! { <NotFound/> }.into_any() }
}

#[component]
fn Everybody() -> impl IntoView {
    let data: Resource<Answer<Loaded>> = Resource::new(|| (), |()| load());
    view! {
        <Page title="Invoices".to_owned()>
            <Suspense fallback=|| view! { <Loading/> }>
                {move || Suspend::new(async move {
                    match data.await {
                        Err(problem) => view! { <ProblemNotice problem=problem/> }.into_any(),
                        Ok(loaded) => view! { <InvoicesView loaded=loaded/> }.into_any(),
                    }
                })}
            </Suspense>
        </Page>
    }
}

/// What the rows of the list act on.
#[derive(Clone, Copy)]
pub struct Desk {
    all: RwSignal<Vec<Invoice>>,
    /// The one that is shown in full.
    shown: RwSignal<Option<InvoiceId>>,
    /// The one that is to be closed, and how.
    chosen: RwSignal<Option<(Invoice, Close)>>,
    asking: RwSignal<bool>,
    ready: ReadSignal<bool>,
}

impl Desk {
    /// Takes in what an answer tells.
    fn take(self, fresh: Vec<Invoice>) {
        let mut next = self.all.get_untracked();
        fresh.into_iter().for_each(|one| merge(&mut next, one));
        replace(self.all, next);
    }

    /// Fetches the newest ones; the rest stays as it is known.
    fn look(self) {
        let fresh = api::invoices::all(None);
        spawn_local(async move {
            // What cannot be fetched now leaves what is shown; the next round tries again.
            if let Ok(fresh) = fresh.await {
                self.take(fresh.items);
            }
        });
    }
}

#[component]
fn InvoicesView(loaded: Loaded) -> impl IntoView {
    let Loaded { first, settings } = loaded;
    let desk = Desk {
        all: RwSignal::new(first.items),
        shown: RwSignal::new(None),
        chosen: RwSignal::new(None),
        asking: RwSignal::new(false),
        ready: ready(),
    };
    let cursor = RwSignal::new(first.next_cursor);
    let more = Call::idle();
    every(30_000, move || desk.look());
    let load_more = move |()| {
        let next = api::invoices::all(cursor.get_untracked());
        more.run(next, move |page: Rows<Invoice>| {
            desk.take(page.items);
            cursor.set(page.next_cursor);
        });
    };
    let none = Memo::new(move |_| desk.all.with(Vec::is_empty));
    let one = Memo::new(move |_| {
        let id = desk.shown.get()?;
        desk.all.with(|all| all.iter().find(|one| one.id == id).cloned())
    });
    view! {
        {move || one.get().map(|one| view! { <InFull invoice=one desk=desk/> })}
        <section class="section">
            <div class="section__head"><h2>"All invoices"</h2></div>
            {move || {
                if none.get() {
                    empty("No invoice yet. An hour after a month is over, every organization that was charged in it is billed by itself. What invoices say is set below, best before the first one.")
                } else {
                    desk.all.with(|all| table(all, desk))
                }
            }}
            <More cursor=cursor call=more load=Callback::new(load_more)/>
        </section>
        <BillForm desk=desk/>
        <SettingsForm settings=settings/>
        <CloseDialog desk=desk/>
    }
}

/// One invoice as its organization reads it; on paper it stands alone.
#[component]
fn InFull(invoice: Invoice, desk: Desk) -> impl IntoView {
    let panel = NodeRef::<leptos::html::Section>::new();
    // It comes above the list, so whoever asked for it is taken there.
    Effect::new(move || {
        if let Some(panel) = panel.get() {
            // What cannot be focused is only not focused.
            let _ = panel.focus();
        }
    });
    let heading = title(&invoice);
    let other = desk.all.with_untracked(|all| taken_back(&invoice, all)).map(|words| {
        let words = format!("It {words}.");
        view! { <p>{words}</p> }.into_any()
    });
    view! {
        <section class="section to-print" tabindex="-1" aria-labelledby="in-full" node_ref=panel>
            <div class="section__head">
                <h2 id="in-full">{heading}</h2>
                <div class="section__aside">
                    <PrintButton/>
                    <button class="btn" type="button" on:click=move |_| desk.shown.set(None)>"Close"</button>
                </div>
            </div>
            {document(&invoice, other)}
        </section>
    }
}

fn table(all: &[Invoice], desk: Desk) -> AnyView {
    let rows: Vec<AnyView> = all.iter().map(|one| row(one, all, desk)).collect();
    table_of(
        "Invoices, newest first",
        &[
            ("Invoice", ""),
            STATE,
            ("Organization", ""),
            ("For", ""),
            ("Due", "nowrap"),
            ("Total", "num"),
            ACTIONS,
        ],
        rows,
    )
}

fn row(invoice: &Invoice, all: &[Invoice], desk: Desk) -> AnyView {
    let id = invoice.id;
    let name = title(invoice);
    let below = taken_back(invoice, all).map(|words| view! { <span class="table__sub">{words}</span> });
    let buyer = invoice.document.buyer.clone();
    let total = exact_money(invoice.document.total_micros, &invoice.document.currency);
    let open = invoice.kind == InvoiceKind::Invoice && invoice.state == InvoiceState::Open;
    let close = |how: Close| {
        let this = invoice.clone();
        let label = format!("{} {}", how.verb(), title(invoice));
        open.then(|| {
            view! {
                " "
                <button
                    class="btn btn--small"
                    type="button"
                    aria-label=label
                    disabled=move || !desk.ready.get()
                    on:click=move |_| {
                        desk.chosen.set(Some((this.clone(), how)));
                        desk.asking.set(true);
                    }
                >
                    {how.verb()}
                </button>
            }
        })
    };
    let (pay, take_back) = (close(Close::Pay), close(Close::TakeBack));
    let show_label = format!("Show {name}");
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{name}{below}</th>
            {state_cell(invoice)}
            <td role="cell" data-label="Organization">{buyer}</td>
            <td role="cell" data-label="For">{period(invoice)}</td>
            {day_cell("Due", invoice.due_at)}
            <td role="cell" class="num" data-label="Total">{total}</td>
            <td role="cell" class="table__actions">
                <button
                    class="btn btn--small"
                    type="button"
                    aria-label=show_label
                    disabled=move || !desk.ready.get()
                    on:click=move |_| desk.shown.set(Some(id))
                >
                    "Show"
                </button>
                {pay}
                {take_back}
            </td>
        </tr>
    }
    .into_any()
}

/// What came of billing a month.
fn billed_words(made: usize, month: &str) -> String {
    let month = month_text(month);
    match made {
        0 => format!("Nobody is left to bill for {month}: nothing was charged, or all of it is billed."),
        made => format!("{} made for {month}.", counted(made, "invoice", "invoices")),
    }
}

/// Billing a month that is over, for those who were not billed yet.
#[component]
fn BillForm(desk: Desk) -> impl IntoView {
    let call = Call::idle();
    let said = RwSignal::new(String::new());
    let month = RwSignal::new(String::new());
    // The clock is the browser's, so the server leaves the month empty.
    Effect::new(move || {
        if month.with_untracked(String::is_empty) {
            month.set(month_before(&day_at(now_ms())).unwrap_or_default());
        }
    });
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        said.set(String::new());
        let wanted = month.get_untracked().trim().to_owned();
        call.run(api::invoices::bill(wanted.clone()), move |billed: Billed| {
            said.set(billed_words(billed.made, &wanted));
            desk.look();
        });
    };
    let error = call.field("/month");
    view! {
        <form class="form card" method="post" on:submit=submit>
            <h2 class="card__title">"Bill a month"</h2>
            <p class="prose">
                "Months are billed by themselves soon after they are over. This bills one now, for every organization that was charged in it and has no invoice for it yet. Whoever has a credit limit pays afterwards; for all others it is paid from the balance already."
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
                <p class="field__hint" id="bill-month-hint">"One that is over, such as 2026-10."</p>
                <FieldError id="bill-month-error" error=error/>
            </div>
            <div class="form__actions">
                <button
                    class="btn"
                    type="submit"
                    disabled=move || !desk.ready.get() || call.pending.get()
                    aria-busy=move || call.pending.get().then_some("true")
                >
                    "Bill the month"
                </button>
                <span class="quiet" role="status">{move || said.get()}</span>
            </div>
        </form>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn billing_says_what_came_of_it() {
        assert_eq!(billed_words(2, "2026-10"), "2 invoices made for October 2026.");
        assert!(billed_words(0, "2026-10").starts_with("Nobody is left to bill for October 2026"));
    }
}

//! Page of the monthly invoices of an organization. An invoice is final after its issue. Beside them are the
//! statements of the months, also of the present one.

pub mod details;
pub mod document;
pub mod one;
pub mod statement;
pub mod text;

use std::future::Future;

use berth_types::Page as Rows;
use berth_types::ids::OrgId;
use berth_types::invoices::{BillingDetails, Invoice, InvoiceKind, MonthStatement};
use berth_types::money::{column_decimals, column_text};
use berth_types::time::Timestamp;
use futures::try_join;
use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::{Deserialize, Serialize};

use self::details::BillingDetailsCard;
pub use self::one::InvoicePage;
pub use self::statement::StatementPage;
use self::statement::Statements;
use self::text::{merge, period, title};
use super::billing::BillingTabs;
use super::curl::{self, ListCurl};
use super::days::date_text;
use super::limits::replace;
use super::load_more::LoadMore;
use super::org_data::org_view;
use super::parts::{Call, every_visible, origin};
use crate::address::org_link;
use crate::api;
use crate::api::Answer;
use crate::session::Page;
use crate::ui::*;

/// The first data of the page.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    org: OrgId,
    first: Rows<Invoice>,
    /// The statement of the present month.
    statement: MonthStatement,
    details: BillingDetails,
}

fn load(org: OrgId) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let first = api::invoices::list(org, None);
    let statement = api::invoices::statement(org, None);
    let details = api::invoices::details(org);
    async move {
        let (first, statement, details) = try_join!(first, statement, details)?;
        Ok(Loaded { org, first, statement, details })
    }
}

/// The page of all invoices.
#[component]
pub fn InvoicesPage() -> impl IntoView {
    view! {
        <Page title="Invoices".to_owned()>
            <BillingTabs current="/invoices"/>
            {org_view(load, |loaded: Loaded| view! { <InvoicesView loaded=loaded/> }.into_any())}
        </Page>
    }
}

#[component]
fn InvoicesView(loaded: Loaded) -> impl IntoView {
    let Loaded { org, first, statement, details } = loaded;
    let all = RwSignal::new(first.items);
    let cursor = RwSignal::new(first.next_cursor);
    let more = Call::idle();
    // An open invoice can become paid while the page is open.
    every_visible(60_000, move || {
        let fresh = api::invoices::list(org, None);
        spawn_local(async move {
            // The next round repeats a failed request.
            if let Ok(fresh) = fresh.await {
                let Some(mut next) = all.try_get_untracked() else { return };
                fresh.items.into_iter().for_each(|one| merge(&mut next, one));
                replace(all, next);
            }
        });
    });
    let load_more = move |()| {
        let next = api::invoices::list(org, cursor.get_untracked());
        more.run(next, move |page: Rows<Invoice>| {
            all.update(|all| page.items.into_iter().for_each(|one| merge(all, one)));
            cursor.set(page.next_cursor);
        });
    };
    let none = Memo::new(move |_| all.with(Vec::is_empty));
    // The empty state has the same command.
    let path = Signal::derive(move || format!("/orgs/{org}/invoices"));
    view! {
        <section class="section">
            <div class="section__head">
                <h2>"Invoices"</h2>
                <div class="section__aside">"Days and months in UTC"</div>
            </div>
            {move || {
                if none.get() {
                    view! { <NoInvoices org=org/> }.into_any()
                } else {
                    all.with(|all| table(all))
                }
            }}
            <LoadMore cursor=cursor call=more load=Callback::new(load_more)/>
            {move || (!none.get()).then(|| view! { <ListCurl path=path label="Invoices with curl"/> })}
        </section>
        <Statements org=org first=statement/>
        <section class="section">
            <div class="section__head"><h2>"Customer"</h2></div>
            <BillingDetailsCard org=org details=details/>
        </section>
    }
}

/// The empty state with an example request.
#[component]
fn NoInvoices(org: OrgId) -> impl IntoView {
    let origin = origin();
    let line = Signal::derive(move || curl::get(&origin.get(), &format!("/orgs/{org}/invoices")));
    view! {
        <div class="empty">
            <p class="empty__text">
                "No invoices yet. An invoice is issued soon after the end of each month with charges. The charges of the current month are in its statement below."
            </p>
            <a class="btn" href=org_link("/usage")>"Show usage"</a>
            <CopyBlock text=line label="Invoices with curl".to_owned()/>
        </div>
    }
}

/// Returns a cell with a day, or an empty cell.
pub fn day_cell(label: &'static str, at: Option<Timestamp>) -> AnyView {
    match at {
        Some(at) => view! { <td role="cell" class="nowrap" data-label=label>{date_text(at)}</td> }.into_any(),
        None => view! { <td role="cell" class="nowrap"></td> }.into_any(),
    }
}

/// Returns a cell with the state of an invoice or the mark of a credit note.
pub fn state_cell(invoice: &Invoice) -> AnyView {
    let state = match invoice.kind {
        InvoiceKind::Invoice => view! { <InvoiceBadge state=invoice.state/> }.into_any(),
        InvoiceKind::CreditNote => view! { <span class="tag tag--accent">"credit note"</span> }.into_any(),
    };
    view! { <td role="cell" class="table__state" data-label="State">{state}</td> }.into_any()
}

/// Returns the text of a credit note about its voided invoice, with the number of a listed invoice.
pub fn corrected_text(invoice: &Invoice, all: &[Invoice]) -> Option<String> {
    let id = invoice.corrects?;
    let known = all.iter().find(|other| other.id == id);
    Some(known.map_or_else(|| "voids an invoice".to_owned(), |other| format!("voids {}", title(other))))
}

fn table(all: &[Invoice]) -> AnyView {
    let decimals = column_decimals(all.iter().map(|one| one.document.total_micros));
    let rows: Vec<AnyView> = all.iter().map(|one| row(one, all, decimals)).collect();
    table_of(
        "Invoices, newest first",
        &[("Invoice", ""), STATE, ("Month", ""), ("Issued", "nowrap"), ("Due", "nowrap"), ("Total", "num")],
        rows,
    )
}

fn row(invoice: &Invoice, all: &[Invoice], decimals: usize) -> AnyView {
    let path = org_link(&format!("/invoices/{}", invoice.id));
    let below = corrected_text(invoice, all).map(|text| view! { <span class="table__sub">{text}</span> });
    let total = column_text(invoice.document.total_micros, &invoice.document.currency, decimals);
    view! {
        <tr role="row">
            <th role="rowheader" scope="row"><a href=path>{title(invoice)}</a>{below}</th>
            {state_cell(invoice)}
            <td role="cell" data-label="Month">{period(invoice)}</td>
            {day_cell("Issued", Some(invoice.issued_at))}
            {day_cell("Due", invoice.due_at)}
            <td role="cell" class="num" data-label="Total">{total}</td>
        </tr>
    }
    .into_any()
}

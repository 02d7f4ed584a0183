//! Invoices: what was used in a month, as it was billed.
//!
//! Must not calculate or change anything: an invoice is final when it is issued.

pub mod document;
pub mod one;
pub mod words;

use std::future::Future;

use berth_types::Page as Rows;
use berth_types::ids::OrgId;
use berth_types::invoices::{Invoice, InvoiceKind};
use berth_types::time::Timestamp;
use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::{Deserialize, Serialize};

pub use self::one::InvoicePage;
use self::words::{exact_money, merge, period, title};
use super::billing::BillingTabs;
use super::curl;
use super::days::date_text;
use super::limits::replace;
use super::more::More;
use super::of_org::of_org;
use super::parts::{Call, every, origin};
use crate::api;
use crate::api::Answer;
use crate::session::Page;
use crate::ui::*;

/// What the page starts with.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    org: OrgId,
    first: Rows<Invoice>,
}

fn load(org: OrgId) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let first = api::invoices::list(org, None);
    async move { Ok(Loaded { org, first: first.await? }) }
}

/// The page with all invoices.
#[component]
pub fn InvoicesPage() -> impl IntoView {
    view! {
        <Page title="Invoices".to_owned()>
            <BillingTabs current="/invoices"/>
            {of_org(load, |loaded: Loaded| view! { <InvoicesView loaded=loaded/> }.into_any())}
        </Page>
    }
}

#[component]
fn InvoicesView(loaded: Loaded) -> impl IntoView {
    let Loaded { org, first } = loaded;
    let all = RwSignal::new(first.items);
    let cursor = RwSignal::new(first.next_cursor);
    let more = Call::idle();
    // A month is billed once, but an open invoice may be paid while somebody looks.
    every(60_000, move || {
        let fresh = api::invoices::list(org, None);
        spawn_local(async move {
            // What cannot be fetched now leaves what is shown; the next round tries again.
            if let Ok(fresh) = fresh.await {
                let mut next = all.get_untracked();
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
    view! {
        {move || {
            if none.get() {
                view! { <Nothing org=org/> }.into_any()
            } else {
                all.with(|all| table(all))
            }
        }}
        <More cursor=cursor call=more load=Callback::new(load_more)/>
    }
}

/// Empty teaches: one sentence, one action, the same as a curl line.
#[component]
fn Nothing(org: OrgId) -> impl IntoView {
    let origin = origin();
    let line = Signal::derive(move || curl::get(&origin.get(), &format!("/orgs/{org}/invoices")));
    view! {
        <div class="empty">
            <p class="empty__text">
                "No invoice yet. Soon after the end of a month, what was used in it is billed here: numbered, final, and made to be printed. Until then it stands under Usage."
            </p>
            <a class="btn" href="/usage">"Show usage"</a>
            <CopyBlock text=line label="The same with curl".to_owned()/>
        </div>
    }
}

/// A day, or nothing where there is none.
pub fn day_cell(label: &'static str, at: Option<Timestamp>) -> AnyView {
    match at {
        Some(at) => view! { <td role="cell" class="nowrap" data-label=label>{date_text(at)}</td> }.into_any(),
        None => view! { <td role="cell" class="nowrap"></td> }.into_any(),
    }
}

/// How an invoice stands; a credit note is marked as one.
pub fn state_cell(invoice: &Invoice) -> AnyView {
    let state = match invoice.kind {
        InvoiceKind::Invoice => view! { <InvoiceBadge state=invoice.state/> }.into_any(),
        InvoiceKind::CreditNote => view! { <span class="tag tag--accent">"credit note"</span> }.into_any(),
    };
    view! { <td role="cell" class="table__state" data-label="State">{state}</td> }.into_any()
}

/// What a credit note takes back, as far as the list knows it.
pub fn taken_back(invoice: &Invoice, all: &[Invoice]) -> Option<String> {
    let id = invoice.corrects?;
    let known = all.iter().find(|other| other.id == id);
    Some(
        known.map_or_else(
            || "takes back an invoice".to_owned(),
            |other| format!("takes back {}", title(other)),
        ),
    )
}

fn table(all: &[Invoice]) -> AnyView {
    let rows: Vec<AnyView> = all.iter().map(|one| row(one, all)).collect();
    table_of(
        "Invoices, newest first",
        &[("Invoice", ""), STATE, ("For", ""), ("Issued", "nowrap"), ("Due", "nowrap"), ("Total", "num")],
        rows,
    )
}

fn row(invoice: &Invoice, all: &[Invoice]) -> AnyView {
    let path = format!("/invoices/{}", invoice.id);
    let below = taken_back(invoice, all).map(|words| view! { <span class="table__sub">{words}</span> });
    let total = exact_money(invoice.document.total_micros, &invoice.document.currency);
    view! {
        <tr role="row">
            <th role="rowheader" scope="row"><a href=path>{title(invoice)}</a>{below}</th>
            {state_cell(invoice)}
            <td role="cell" data-label="For">{period(invoice)}</td>
            {day_cell("Issued", Some(invoice.issued_at))}
            {day_cell("Due", invoice.due_at)}
            <td role="cell" class="num" data-label="Total">{total}</td>
        </tr>
    }
    .into_any()
}

//! The document of an invoice for screen and print, with the parts that a statement shares. Its content never
//! changes after the issue.

use berth_types::documents::{DocumentText, LabelledText, SumText, TableText, invoice_text};
use berth_types::invoices::{Invoice, InvoiceKind};
use leptos::prelude::*;

use super::super::parts::ready;
use crate::ui::*;

/// The button that opens the print dialog of the browser.
#[component]
pub fn PrintButton() -> impl IntoView {
    let ready = ready();
    let print = move |_: leptos::ev::MouseEvent| {
        // A browser can forbid printing; the page has the same content.
        let _ = window().print();
    };
    view! {
        <button class="btn" type="button" disabled=move || !ready.get() on:click=print>
            "Print"
        </button>
    }
}

/// Returns a link that saves a PDF file.
pub fn pdf_link(path: String, file: String) -> AnyView {
    view! { <a class="btn" href=path rel="external" download=file>"Download PDF"</a> }.into_any()
}

fn party(party: LabelledText) -> AnyView {
    view! {
        <address>
            <span class="invoice__label">{party.label}</span>
            <span class="invoice__lines">{party.text}</span>
        </address>
    }
    .into_any()
}

fn fact(fact: LabelledText) -> AnyView {
    view! {
        <span class="invoice__label">{fact.label}</span>
        <span class="invoice__lines">{fact.text}</span>
    }
    .into_any()
}

/// Returns seller, buyer, number and dates.
pub fn parties(document: &DocumentText) -> AnyView {
    let parties: Vec<AnyView> = document.parties.iter().cloned().map(party).collect();
    let column = |facts: &Vec<LabelledText>| {
        let facts: Vec<AnyView> = facts.iter().cloned().map(fact).collect();
        view! { <div>{facts}</div> }.into_any()
    };
    let facts: Vec<AnyView> = document.facts.iter().map(column).collect();
    view! { <div class="invoice__parties">{parties}{facts}</div> }.into_any()
}

/// Returns the net, the taxes and the total.
pub fn sums(sums: &[SumText]) -> AnyView {
    let sum = |sum: &SumText| {
        let SumText { label, amount, is_total } = sum.clone();
        if is_total {
            view! { <dt class="is-total">{label}</dt><dd class="is-total">{amount}</dd> }.into_any()
        } else {
            view! { <dt>{label}</dt><dd>{amount}</dd> }.into_any()
        }
    };
    let sums: Vec<AnyView> = sums.iter().map(sum).collect();
    view! { <dl class="invoice__total">{sums}</dl> }.into_any()
}

/// Returns the sentences below the sums.
pub fn notes(notes: &[String]) -> AnyView {
    let notes: Vec<AnyView> = notes.iter().cloned().map(|note| view! { <p>{note}</p> }.into_any()).collect();
    notes.into_any()
}

/// Returns the rows of a table.
pub fn rows(table: &TableText) -> Vec<AnyView> {
    let [_, second, third] = table.heads;
    table.rows.iter().cloned().map(|cells| row([second, third], cells)).collect()
}

fn row([second, third]: [&'static str; 2], [name, number, amount]: [String; 3]) -> AnyView {
    // A cell without a number has no label on a phone.
    let number = if number.is_empty() {
        view! { <td role="cell" class="num"></td> }.into_any()
    } else {
        view! { <td role="cell" class="num" data-label=second>{number}</td> }.into_any()
    };
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{name}</th>
            {number}
            <td role="cell" class="num" data-label=third>{amount}</td>
        </tr>
    }
    .into_any()
}

/// Returns the document; `other` is the line about its credit note or its voided invoice.
pub fn document(invoice: &Invoice, other: Option<AnyView>) -> AnyView {
    let document = invoice_text(invoice);
    let kind = match invoice.kind {
        InvoiceKind::Invoice => view! { <InvoiceBadge state=invoice.state/> }.into_any(),
        InvoiceKind::CreditNote => view! { <span class="tag tag--accent">{document.mark}</span> }.into_any(),
    };
    let tables: Vec<AnyView> = document.tables.iter().map(lines).collect();
    view! {
        <article class="invoice">
            <div class="invoice__head">
                <span class="brand"><PortalName mark="brand__mark"/></span>
                {kind}
            </div>
            {parties(&document)}
            {tables}
            {sums(&document.sums)}
            {notes(&document.notes)}
            {other}
        </article>
    }
    .into_any()
}

/// Returns the table of the lines of an invoice.
fn lines(table: &TableText) -> AnyView {
    let [first, second, third] = table.heads;
    view! {
        <div class="table-wrap">
            <table class="table table--compact" role="table">
                <caption class="visually-hidden">{table.caption}</caption>
                <thead role="rowgroup">
                    <tr role="row">
                        <th role="columnheader" scope="col">{first}</th>
                        <th role="columnheader" scope="col" class="num">{second}</th>
                        <th role="columnheader" scope="col" class="num">{third}</th>
                    </tr>
                </thead>
                <tbody role="rowgroup">{rows(table)}</tbody>
            </table>
        </div>
    }
    .into_any()
}

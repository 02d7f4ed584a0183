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

/// Returns a link that saves a CSV file.
pub fn csv_link(path: String, file: String) -> AnyView {
    view! { <a class="btn" href=path rel="external" download=file>"Download CSV"</a> }.into_any()
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

/// Returns the heads of a table with their classes.
pub fn heads(table: &TableText) -> Vec<(&'static str, &'static str)> {
    let class = |index: usize| if index == 0 { "" } else { "num" };
    table.heads.iter().enumerate().map(|(index, head)| (*head, class(index))).collect()
}

/// Returns the rows of a table.
pub fn rows(table: &TableText) -> Vec<AnyView> {
    table.rows.iter().map(|cells| row(&table.heads, cells)).collect()
}

fn row(heads: &[&'static str], cells: &[String]) -> AnyView {
    let cell = |(label, text): (&&'static str, &String)| {
        let (label, text) = (*label, text.clone());
        // A cell without a number has no label on a phone.
        if text.is_empty() {
            view! { <td role="cell" class="num"></td> }.into_any()
        } else {
            view! { <td role="cell" class="num" data-label=label>{text}</td> }.into_any()
        }
    };
    let name = cells.first().cloned().unwrap_or_default();
    let numbers: Vec<AnyView> = heads.iter().zip(cells).skip(1).map(cell).collect();
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{name}</th>
            {numbers}
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
    let head = |(index, text): (usize, &&'static str)| {
        let text = *text;
        if index == 0 {
            view! { <th role="columnheader" scope="col">{text}</th> }.into_any()
        } else {
            view! { <th role="columnheader" scope="col" class="num">{text}</th> }.into_any()
        }
    };
    let heads: Vec<AnyView> = table.heads.iter().enumerate().map(head).collect();
    view! {
        <div class="table-wrap">
            <table class="table table--compact" role="table">
                <caption class="visually-hidden">{table.caption}</caption>
                <thead role="rowgroup">
                    <tr role="row">{heads}</tr>
                </thead>
                <tbody role="rowgroup">{rows(table)}</tbody>
            </table>
        </div>
    }
    .into_any()
}

//! The document of an invoice for screen and print. Its content never changes after the issue.

use berth_types::invoices::{Invoice, InvoiceDocument, InvoiceKind, InvoiceLine};
use berth_types::money::{column_decimals, column_text};
use leptos::prelude::*;

use super::super::days::date_text;
use super::super::parts::ready;
use super::super::usage::text::device_hours;
use super::text::{line_text, period, rate_text, status_text};
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
            "Print or save as PDF"
        </button>
    }
}

/// Returns the number of decimals of the lines and the sums, so that the printed lines add up to the total.
fn decimals(document: &InvoiceDocument) -> usize {
    let lines = document.lines.iter().map(|line| line.amount_micros);
    let taxes = document.taxes.iter().map(|tax| tax.amount_micros);
    column_decimals(lines.chain(taxes).chain([document.subtotal_micros, document.total_micros]))
}

/// Returns seller, buyer, number and dates.
fn parties(invoice: &Invoice) -> AnyView {
    let document = &invoice.document;
    let seller = if document.seller.trim().is_empty() {
        "The operator of this portal".to_owned()
    } else {
        document.seller.clone()
    };
    let buyer = document.buyer.clone();
    let number = invoice.number;
    let due = invoice.due_at.map(|at| {
        view! {
            <br/>
            <span class="invoice__label">"Due"</span>
            <br/>
            {date_text(at)}
        }
    });
    view! {
        <div class="invoice__parties">
            <address>
                <span class="invoice__label">"From"</span>
                <span class="invoice__lines">{seller}</span>
            </address>
            <address>
                <span class="invoice__label">"To"</span>
                <span class="invoice__lines">{buyer}</span>
            </address>
            <div>
                <span class="invoice__label">"Number"</span>
                <br/>
                {number}
                <br/>
                <span class="invoice__label">"Month"</span>
                <br/>
                {period(invoice)} " (UTC)"
            </div>
            <div>
                <span class="invoice__label">"Issued"</span>
                <br/>
                {date_text(invoice.issued_at)}
                {due}
            </div>
        </div>
    }
    .into_any()
}

/// Returns the document; `other` is the line about its credit note or its voided invoice.
pub fn document(invoice: &Invoice, other: Option<AnyView>) -> AnyView {
    let document = &invoice.document;
    let decimals = decimals(document);
    let text = |micros: i64| column_text(micros, &document.currency, decimals);
    let kind = match invoice.kind {
        InvoiceKind::Invoice => view! { <InvoiceBadge state=invoice.state/> }.into_any(),
        InvoiceKind::CreditNote => view! { <span class="tag tag--accent">"credit note"</span> }.into_any(),
    };
    let lines: Vec<AnyView> = document.lines.iter().map(|one| line(one, text(one.amount_micros))).collect();
    let taxes: Vec<AnyView> = document
        .taxes
        .iter()
        .map(|tax| {
            let name = format!("{}, {}", tax.name, rate_text(tax.basis_points));
            view! { <dt>{name}</dt><dd>{text(tax.amount_micros)}</dd> }.into_any()
        })
        .collect();
    let status = status_text(invoice).map(|text| view! { <p>{text}</p> });
    view! {
        <article class="invoice">
            <div class="invoice__head">
                <span class="brand"><PortalName mark="brand__mark"/></span>
                {kind}
            </div>
            {parties(invoice)}
            <div class="table-wrap">
                <table class="table table--compact" role="table">
                    <caption class="visually-hidden">"Invoice lines"</caption>
                    <thead role="rowgroup">
                        <tr role="row">
                            <th role="columnheader" scope="col">"Item"</th>
                            <th role="columnheader" scope="col" class="num">"Device-hours"</th>
                            <th role="columnheader" scope="col" class="num">"Amount"</th>
                        </tr>
                    </thead>
                    <tbody role="rowgroup">{lines}</tbody>
                </table>
            </div>
            <dl class="invoice__total">
                <dt>"Net"</dt>
                <dd>{text(document.subtotal_micros)}</dd>
                {taxes}
                <dt class="is-total">"Total"</dt>
                <dd class="is-total">{text(document.total_micros)}</dd>
            </dl>
            {status}
            {other}
        </article>
    }
    .into_any()
}

/// Returns the row of a line with its amount as text.
pub fn line(line: &InvoiceLine, amount: String) -> AnyView {
    // A line without device time has no hours.
    let hours = if line.device_ms > 0 {
        let hours = device_hours(line.device_ms);
        view! { <td role="cell" class="num" data-label="Device-hours">{hours}</td> }.into_any()
    } else {
        view! { <td role="cell" class="num"></td> }.into_any()
    };
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{line_text(line)}</th>
            {hours}
            <td role="cell" class="num" data-label="Amount">{amount}</td>
        </tr>
    }
    .into_any()
}

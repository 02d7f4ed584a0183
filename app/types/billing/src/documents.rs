//! The texts of invoices and statements. Pages and PDF files show the same.
//!
//! Pure: without a clock.

use crate::invoices::{Invoice, InvoiceKind, InvoiceLine, InvoiceState, MonthStatement, StatementEntry};
use crate::ledger::TransferKind;
use berth_values::days::{date_text, month_text};
use berth_values::money::{
    column_decimals, column_text, grouped, money_text, per_hour_micros, signed_column_text, signed_money,
};

const HOUR_MS: i64 = 3_600_000;

/// A text with its label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelledText {
    pub label: &'static str,
    /// A name and an address have line breaks.
    pub text: String,
}

/// A table. Its first column has texts, all others have numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableText {
    /// The name of the table for screen readers.
    pub caption: &'static str,
    pub heads: Vec<&'static str>,
    /// The rows, with a cell for each head.
    pub rows: Vec<Vec<String>>,
    /// The sentence in place of a table without rows.
    pub empty: &'static str,
}

/// A line below the tables: a part of the total, or the total.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SumText {
    pub label: String,
    pub amount: String,
    pub is_total: bool,
}

/// All texts of an invoice or a statement, in the order of reading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentText {
    /// `Invoice 12`, `Credit note 13`, `Statement of October 2026`.
    pub title: String,
    /// The state of an invoice, or `credit note`; empty for a statement.
    pub mark: &'static str,
    pub parties: Vec<LabelledText>,
    /// Number, month and dates, in columns.
    pub facts: Vec<Vec<LabelledText>>,
    pub tables: Vec<TableText>,
    pub sums: Vec<SumText>,
    /// Sentences below the sums.
    pub notes: Vec<String>,
}

impl DocumentText {
    /// Returns the number of rows of all tables.
    pub fn row_count(&self) -> usize {
        self.tables.iter().map(|table| table.rows.len()).sum()
    }
}

/// Returns device-hours as text: `1,284.50`, with four decimals below one hour. Rounded down like the meter.
pub fn device_hours(device_ms: i64) -> String {
    let ms = device_ms.max(0);
    if ms == 0 {
        return "0".to_owned();
    }
    let (hours, rest) = (ms / HOUR_MS, ms % HOUR_MS);
    if hours == 0 {
        return format!("0.{:04}", rest * 10_000 / HOUR_MS);
    }
    format!("{}.{:02}", grouped(hours.unsigned_abs()), rest * 100 / HOUR_MS)
}

/// Returns the mode of an order as text.
pub fn mode_text(mode: &str) -> &str {
    match mode {
        "on_demand" => "on demand",
        other => other,
    }
}

/// Returns the title: `Invoice 12`, `Credit note 13`.
pub fn invoice_title(invoice: &Invoice) -> String {
    match invoice.kind {
        InvoiceKind::Invoice => format!("Invoice {}", invoice.number),
        InvoiceKind::CreditNote => format!("Credit note {}", invoice.number),
    }
}

/// Returns the name of the files of an invoice without its ending: `invoice-12`, `credit-note-13`.
pub fn invoice_file_stem(invoice: &Invoice) -> String {
    match invoice.kind {
        InvoiceKind::Invoice => format!("invoice-{}", invoice.number),
        InvoiceKind::CreditNote => format!("credit-note-{}", invoice.number),
    }
}

/// Returns the name of the PDF file: `invoice-12.pdf`, `credit-note-13.pdf`.
pub fn invoice_pdf_name(invoice: &Invoice) -> String {
    format!("{}.pdf", invoice_file_stem(invoice))
}

/// Returns a tax rate as text: `19 %`, `7.25 %`.
pub fn rate_text(basis_points: i64) -> String {
    format!("{} %", typed_rate(basis_points))
}

/// Returns a tax rate as input: `19`, `7.25`.
pub fn typed_rate(basis_points: i64) -> String {
    let points = basis_points.max(0);
    match points % 100 {
        0 => (points / 100).to_string(),
        rest => format!("{}.{rest:02}", points / 100).trim_end_matches('0').to_owned(),
    }
}

/// Returns a surcharge as text: `+10 %`, `+2.5 %`.
pub fn surcharge_text(basis_points: u32) -> String {
    format!("+{}", rate_text(basis_points.into()))
}

/// Returns the item of a line: an offering with its mode and its surcharge, or other text. A reserved line without device
/// time and price has the fees of reservations.
pub fn line_text(line: &InvoiceLine) -> String {
    if line.mode == "reserved" && line.device_ms == 0 && line.unit_nano_per_second.is_none() {
        return format!("{}, cancelled or returned reservations", line.item);
    }
    if line.mode.is_empty() {
        return line.item.clone();
    }
    let surcharge = match line.surcharge_basis_points {
        0 => String::new(),
        points => format!(", with {} for a promise", surcharge_text(points)),
    };
    format!("{}, {}{surcharge}", line.item, mode_text(&line.mode))
}

/// Returns the payment status in one sentence; nothing for a credit note.
pub fn status_text(invoice: &Invoice) -> Option<String> {
    if invoice.kind == InvoiceKind::CreditNote {
        return None;
    }
    let total = money_text(invoice.document.total_micros, &invoice.document.currency);
    Some(match (invoice.state, invoice.due_at) {
        (InvoiceState::Open, Some(due)) => format!("{total} due by {}.", date_text(due)),
        (InvoiceState::Open, None) => format!("{total} due."),
        (InvoiceState::Paid, None) => "Paid from the balance: no further payment due.".to_owned(),
        (InvoiceState::Paid, Some(_)) => match invoice.paid_at {
            Some(at) => format!("Paid on {}.", date_text(at)),
            None => "Paid.".to_owned(),
        },
        (InvoiceState::Void, _) => "Void: no payment due.".to_owned(),
        (InvoiceState::Uncollectible, _) => format!("{total} not paid, written off as uncollectible."),
    })
}

/// The heads of the lines of invoices and statements.
fn line_heads() -> Vec<&'static str> {
    vec!["Item", "Device-hours", "Price per hour", "Amount"]
}

/// Returns the row of a line with its amount as text. A line without device time has no hours, and a line without a
/// recorded price has no price.
fn line_row(line: &InvoiceLine, currency: &str, amount: String) -> Vec<String> {
    let hours = if line.device_ms > 0 { device_hours(line.device_ms) } else { String::new() };
    let per_hour = line.unit_nano_per_second.and_then(per_hour_micros);
    let price = per_hour.map(|micros| money_text(micros, currency)).unwrap_or_default();
    vec![line_text(line), hours, price, amount]
}

/// Returns the parts of a party that are not empty, one below the other.
fn party_text(name: &str, address: &str, tax_id: &str) -> String {
    let tax_id = if tax_id.is_empty() { String::new() } else { format!("Tax ID {tax_id}") };
    let parts = [name, address, &tax_id].into_iter().filter(|part| !part.is_empty());
    parts.collect::<Vec<&str>>().join("\n")
}

/// Returns the texts of an invoice. The lines and the sums have one number of decimals, so that the lines add up
/// to the total.
pub fn invoice_text(invoice: &Invoice) -> DocumentText {
    let document = &invoice.document;
    let lines = document.lines.iter().map(|line| line.amount_micros);
    let taxes = document.taxes.iter().map(|tax| tax.amount_micros);
    let decimals =
        column_decimals(lines.chain(taxes).chain([document.subtotal_micros, document.total_micros]));
    let amount = |micros: i64| column_text(micros, &document.currency, decimals);
    let sum = |label: String, micros: i64| SumText { label, amount: amount(micros), is_total: false };
    let mut sums = vec![sum("Net".to_owned(), document.subtotal_micros)];
    for tax in &document.taxes {
        sums.push(sum(format!("{}, {}", tax.name, rate_text(tax.basis_points)), tax.amount_micros));
    }
    sums.push(SumText { is_total: true, ..sum("Total".to_owned(), document.total_micros) });
    let seller = match document.seller.trim() {
        "" => "The operator of this portal",
        _ => document.seller.as_str(),
    };
    let seller = party_text(seller, "", &document.seller_tax_id);
    let buyer = party_text(&document.buyer, &document.buyer_address, &document.buyer_tax_id);
    let mut dates = vec![LabelledText { label: "Issued", text: date_text(invoice.issued_at) }];
    dates.extend(invoice.due_at.map(|at| LabelledText { label: "Due", text: date_text(at) }));
    DocumentText {
        title: invoice_title(invoice),
        mark: match invoice.kind {
            InvoiceKind::Invoice => invoice.state.name(),
            InvoiceKind::CreditNote => "credit note",
        },
        parties: vec![
            LabelledText { label: "From", text: seller },
            LabelledText { label: "To", text: buyer },
        ],
        facts: vec![
            vec![
                LabelledText { label: "Number", text: invoice.number.to_string() },
                LabelledText { label: "Month", text: format!("{} (UTC)", month_text(&invoice.month)) },
            ],
            dates,
        ],
        tables: vec![TableText {
            caption: "Invoice lines",
            heads: line_heads(),
            rows: document
                .lines
                .iter()
                .map(|line| line_row(line, &document.currency, amount(line.amount_micros)))
                .collect(),
            empty: "No charges.",
        }],
        sums,
        notes: status_text(invoice).into_iter().collect(),
    }
}

/// Returns the title: `Statement of October 2026`, `November 2026 so far`.
pub fn statement_title(statement: &MonthStatement) -> String {
    let month = month_text(&statement.month);
    if statement.complete { format!("Statement of {month}") } else { format!("{month} so far") }
}

/// Returns the name of the PDF file: `statement-2026-10.pdf`.
pub fn statement_pdf_name(statement: &MonthStatement) -> String {
    format!("statement-{}.pdf", statement.month)
}

/// Returns the sum of the credits and debits in micro-units of the currency.
pub fn moved_micros(statement: &MonthStatement) -> i64 {
    statement.entries.iter().map(|entry| entry.amount_micros).fold(0, i64::saturating_add)
}

/// Returns the causes of the sum of one source.
fn entry_text(entry: &StatementEntry) -> String {
    let text = match (entry.kind, entry.source.as_str()) {
        (TransferKind::Credit, "grant") => "Granted credit",
        (TransferKind::Credit, "stripe") => "Card payments",
        (TransferKind::Credit, "invoice") => "Credit for closed invoices",
        (TransferKind::Debit, "debit") => "Debits by the operator",
        (TransferKind::Debit, "expiry") => "Expired credit",
        (TransferKind::Debit, "stripe") => "Refunded card payments",
        (_, "tax") => "Taxes of invoices",
        (_, other) => other,
    };
    text.to_owned()
}

/// Returns the tables of charges and of credits and debits.
fn statement_tables(statement: &MonthStatement) -> Vec<TableText> {
    let currency = statement.currency.as_str();
    let decimals = column_decimals(statement.lines.iter().map(|line| line.amount_micros));
    let charge =
        |line: &InvoiceLine| line_row(line, currency, column_text(line.amount_micros, currency, decimals));
    let charges = TableText {
        caption: "Charges by offering",
        heads: line_heads(),
        rows: statement.lines.iter().map(charge).collect(),
        empty: "No charges.",
    };
    let decimals = column_decimals(statement.entries.iter().map(|entry| entry.amount_micros));
    let entry = |entry: &StatementEntry| {
        let amount = signed_column_text(entry.amount_micros, currency, decimals);
        vec![entry_text(entry), entry.count.to_string(), amount]
    };
    let entries = TableText {
        caption: "Credits, payments and debits",
        heads: vec!["Credits and debits", "Entries", "Amount"],
        rows: statement.entries.iter().map(entry).collect(),
        empty: "No credits, payments or debits.",
    };
    vec![charges, entries]
}

/// Returns the texts of the statement of an organization with the name `buyer`.
pub fn statement_text(statement: &MonthStatement, buyer: String) -> DocumentText {
    let currency = statement.currency.as_str();
    let sum = |label: &str, amount: String| SumText { label: label.to_owned(), amount, is_total: false };
    let change = sum("Change of the balance", signed_money(statement.change_micros, currency));
    let note = if statement.complete {
        "A statement of the ledger, not an invoice."
    } else {
        "A running statement, not an invoice: charges of this month are added until its end."
    };
    let month = format!("{} (UTC)", month_text(&statement.month));
    DocumentText {
        title: statement_title(statement),
        mark: "",
        parties: vec![LabelledText { label: "Organization", text: buyer }],
        facts: vec![vec![LabelledText { label: "Month", text: month }]],
        tables: statement_tables(statement),
        sums: vec![
            sum("Charges", money_text(statement.charged_micros, currency)),
            sum("Credits, payments and debits", signed_money(moved_micros(statement), currency)),
            SumText { is_total: true, ..change },
        ],
        notes: vec![note.to_owned()],
    }
}

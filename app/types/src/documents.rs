//! The texts of invoices and statements. Pages and PDF files show the same.
//!
//! Pure: without a clock.

use crate::days::{date_text, month_text};
use crate::invoices::{Invoice, InvoiceKind, InvoiceLine, InvoiceState, MonthStatement, StatementEntry};
use crate::ledger::TransferKind;
use crate::money::{column_decimals, column_text, grouped, money_text, signed_column_text, signed_money};

const HOUR_MS: i64 = 3_600_000;

/// A text with its label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelledText {
    pub label: &'static str,
    /// A name and an address have line breaks.
    pub text: String,
}

/// A table. Its first column has texts, the other two have numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableText {
    /// The name of the table for screen readers.
    pub caption: &'static str,
    pub heads: [&'static str; 3],
    pub rows: Vec<[String; 3]>,
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

/// Returns the name of the PDF file: `invoice-12.pdf`, `credit-note-13.pdf`.
pub fn invoice_pdf_name(invoice: &Invoice) -> String {
    match invoice.kind {
        InvoiceKind::Invoice => format!("invoice-{}.pdf", invoice.number),
        InvoiceKind::CreditNote => format!("credit-note-{}.pdf", invoice.number),
    }
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

/// Returns the item of a line: an offering with its mode, or other text.
pub fn line_text(line: &InvoiceLine) -> String {
    if line.mode.is_empty() { line.item.clone() } else { format!("{}, {}", line.item, mode_text(&line.mode)) }
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

/// Returns the row of a line with its amount as text. A line without device time has no hours.
fn line_row(line: &InvoiceLine, amount: String) -> [String; 3] {
    let hours = if line.device_ms > 0 { device_hours(line.device_ms) } else { String::new() };
    [line_text(line), hours, amount]
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
    let seller = if document.seller.trim().is_empty() {
        "The operator of this portal".to_owned()
    } else {
        document.seller.clone()
    };
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
            LabelledText { label: "To", text: document.buyer.clone() },
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
            heads: ["Item", "Device-hours", "Amount"],
            rows: document.lines.iter().map(|line| line_row(line, amount(line.amount_micros))).collect(),
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
        (_, other) => other,
    };
    text.to_owned()
}

/// Returns the tables of charges and of credits and debits.
fn statement_tables(statement: &MonthStatement) -> Vec<TableText> {
    let currency = statement.currency.as_str();
    let decimals = column_decimals(statement.lines.iter().map(|line| line.amount_micros));
    let charge = |line: &InvoiceLine| line_row(line, column_text(line.amount_micros, currency, decimals));
    let charges = TableText {
        caption: "Charges by offering",
        heads: ["Item", "Device-hours", "Amount"],
        rows: statement.lines.iter().map(charge).collect(),
        empty: "No charges.",
    };
    let decimals = column_decimals(statement.entries.iter().map(|entry| entry.amount_micros));
    let entry = |entry: &StatementEntry| {
        let amount = signed_column_text(entry.amount_micros, currency, decimals);
        [entry_text(entry), entry.count.to_string(), amount]
    };
    let entries = TableText {
        caption: "Credits, payments and debits",
        heads: ["Credits and debits", "Entries", "Amount"],
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

#[cfg(test)]
mod tests {
    use super::*;

    /// An invoice of five dollars, or its credit note.
    fn invoice(number: i64, state: &str, corrects: Option<i64>) -> Invoice {
        let id = |number: i64| format!("inv_{number:0>26}");
        let sign = if corrects.is_some() { -1 } else { 1 };
        serde_json::from_value(serde_json::json!({
            "id": id(number), "number": number, "org": "org_00000000000000000000000001", "month": "2026-10",
            "kind": if corrects.is_some() { "credit_note" } else { "invoice" }, "state": state,
            "issued_at": "2026-11-01T01:00:00Z", "due_at": (state == "open").then_some("2026-11-15T01:00:00Z"),
            "corrects": corrects.map(id),
            "document": {
                "seller": "Harbour\nPier 1", "buyer": "Kelda Lab", "currency": "USD",
                "subtotal_micros": sign * 5_000_000, "total_micros": sign * 5_950_001,
                "taxes": [{"name": "VAT", "basis_points": 1_900, "amount_micros": sign * 950_001}], "lines": [
                    {"item": "h100-80gb", "mode": "on_demand", "device_ms": 7_200_000, "amount_micros": sign * 5_500_000},
                    {"item": "Returned charges", "device_ms": 0, "amount_micros": sign * -500_000},
                ],
            },
        }))
        .unwrap()
    }

    fn statement() -> MonthStatement {
        let entry = |kind: TransferKind, source: &str| StatementEntry {
            kind,
            source: source.to_owned(),
            count: 1,
            amount_micros: if kind == TransferKind::Credit { 5 } else { -2 },
        };
        MonthStatement {
            month: "2026-11".to_owned(),
            complete: false,
            currency: "USD".to_owned(),
            lines: Vec::new(),
            charged_micros: 0,
            entries: vec![
                entry(TransferKind::Credit, "grant"),
                entry(TransferKind::Debit, "expiry"),
                entry(TransferKind::Credit, "other"),
            ],
            change_micros: 8,
        }
    }

    #[test]
    fn short_use_is_not_zero() {
        assert_eq!(device_hours(0), "0");
        assert_eq!(device_hours(900), "0.0002");
        assert_eq!(device_hours(1_800_000), "0.5000");
        assert_eq!(device_hours(3_600_000), "1.00");
        assert_eq!(device_hours(4_624_200_000), "1,284.50");
        assert_eq!(device_hours(-5), "0");
    }

    #[test]
    fn a_mode_becomes_text() {
        assert_eq!((mode_text("on_demand"), mode_text("reserved")), ("on demand", "reserved"));
    }

    #[test]
    fn an_invoice_has_a_payment_status() {
        let status = |state: &str| status_text(&invoice(12, state, None)).unwrap();
        assert_eq!(status("open"), "$5.950001 due by 15 November 2026.");
        assert!(status("paid").starts_with("Paid from the balance"));
        assert!(status("void").starts_with("Void:"));
        let note = invoice(13, "paid", Some(12));
        assert_eq!((status_text(&note), invoice_title(&note)), (None, "Credit note 13".to_owned()));
    }

    #[test]
    fn the_amounts_of_an_invoice_have_one_number_of_decimals() {
        let text = invoice_text(&invoice(12, "open", None));
        let table = text.tables.first().unwrap();
        assert_eq!(
            table.rows,
            [
                ["h100-80gb, on demand".to_owned(), "2.00".to_owned(), "$5.500000".to_owned()],
                ["Returned charges".to_owned(), String::new(), "−$0.500000".to_owned()],
            ]
        );
        let sums: Vec<(&str, &str, bool)> =
            text.sums.iter().map(|sum| (sum.label.as_str(), sum.amount.as_str(), sum.is_total)).collect();
        let expected =
            [("Net", "$5.000000", false), ("VAT, 19 %", "$0.950001", false), ("Total", "$5.950001", true)];
        assert_eq!(sums, expected);
        assert_eq!((text.title.as_str(), text.mark, text.row_count()), ("Invoice 12", "open", 2));
        assert_eq!(text.notes, ["$5.950001 due by 15 November 2026."]);
        assert_eq!(invoice_text(&invoice(13, "paid", Some(12))).mark, "credit note");
    }

    #[test]
    fn a_statement_has_a_title_and_its_causes() {
        let mut statement = statement();
        assert_eq!(
            (statement_title(&statement).as_str(), moved_micros(&statement)),
            ("November 2026 so far", 8)
        );
        statement.complete = true;
        let text = statement_text(&statement, "Kelda Lab".to_owned());
        assert_eq!(text.title, "Statement of November 2026");
        let causes: Vec<&str> =
            text.tables.iter().flat_map(|table| &table.rows).map(|[cause, _, _]| cause.as_str()).collect();
        assert_eq!(causes, ["Granted credit", "Expired credit", "other"]);
        assert_eq!(text.sums.last().map(|sum| sum.amount.as_str()), Some("+$0.000008"));
        assert_eq!(text.row_count(), 3);
    }
}

//! Texts of invoices: titles, tax rates and payment status.
//!
//! Pure.

use berth_types::invoices::{Invoice, InvoiceKind, InvoiceLine, InvoiceState};
use berth_types::money::{money_text, parse_amount_micros};

use super::super::days::{date_text, month_text};
use super::super::usage::text::mode_text;

/// Returns the title: `Invoice 12`, `Credit note 13`.
pub fn title(invoice: &Invoice) -> String {
    match invoice.kind {
        InvoiceKind::Invoice => format!("Invoice {}", invoice.number),
        InvoiceKind::CreditNote => format!("Credit note {}", invoice.number),
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

/// Parses a percentage such as `7.25` to hundredths of a percent; `None` for other text or more decimals.
pub fn parse_rate(text: &str) -> Option<i64> {
    let micros = parse_amount_micros(text.trim().trim_end_matches('%').trim_end())?;
    (micros % 10_000 == 0).then_some(micros / 10_000)
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

/// Returns the billed month: `October 2026`.
pub fn period(invoice: &Invoice) -> String {
    month_text(&invoice.month)
}

/// Inserts an invoice into a list with the newest first, or replaces its older copy.
pub fn merge(known: &mut Vec<Invoice>, fresh: Invoice) {
    match known.iter_mut().find(|one| one.id == fresh.id) {
        Some(one) => *one = fresh,
        None => {
            let place = known.iter().position(|one| one.number < fresh.number).unwrap_or(known.len());
            known.insert(place, fresh);
        }
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
                "seller": "Harbour", "buyer": "Kelda Lab", "currency": "USD", "subtotal_micros": sign * 5_000_000,
                "total_micros": sign * 5_000_000, "taxes": [], "lines": [
                    {"item": "h100-80gb", "mode": "on_demand", "device_ms": 7_200_000, "amount_micros": sign * 5_000_000},
                ],
            },
        }))
        .unwrap()
    }

    #[test]
    fn a_rate_survives_text_and_parsing() {
        for (points, text) in
            [(1_900, "19"), (725, "7.25"), (750, "7.5"), (5, "0.05"), (0, "0"), (10_000, "100")]
        {
            assert_eq!(typed_rate(points), text);
            assert_eq!(parse_rate(text), Some(points));
        }
        assert_eq!((parse_rate(" 19 % "), rate_text(725).as_str()), (Some(1_900), "7.25 %"));
        for wrong in ["", "a fifth", "7.255", "-1"] {
            assert_eq!(parse_rate(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn an_invoice_has_a_payment_status() {
        let status = |state: &str| status_text(&invoice(12, state, None)).unwrap();
        assert_eq!(status("open"), "$5.00 due by 15 November 2026.");
        assert!(status("paid").starts_with("Paid from the balance"));
        assert!(status("void").starts_with("Void:"));
        let note = invoice(13, "paid", Some(12));
        assert_eq!((status_text(&note), title(&note)), (None, "Credit note 13".to_owned()));
        assert_eq!(period(&note), "October 2026");
        assert_eq!(note.document.lines.first().map(line_text).as_deref(), Some("h100-80gb, on demand"));
    }

    #[test]
    fn newer_invoices_come_first_and_known_ones_once() {
        let mut known = vec![invoice(3, "open", None), invoice(1, "open", None)];
        for fresh in [invoice(2, "open", None), invoice(4, "open", None), invoice(3, "void", None)] {
            merge(&mut known, fresh);
        }
        let seen: Vec<(i64, InvoiceState)> = known.iter().map(|one| (one.number, one.state)).collect();
        let open = InvoiceState::Open;
        assert_eq!(seen, [(4, open), (3, InvoiceState::Void), (2, open), (1, open)]);
    }
}

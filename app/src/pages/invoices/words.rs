//! Invoices in words: numbers, exact amounts, rates, and what is still to be done.
//!
//! Pure text; what is owed and what was paid is the portal's word.

use berth_types::invoices::{Invoice, InvoiceKind, InvoiceLine, InvoiceState};
use berth_types::money::{money_text, parse_amount_micros};

use super::super::days::{date_text, month_text};
use super::super::usage::words::mode_text;
use super::super::words::full_money;

/// `Invoice 12`, `Credit note 13`.
pub fn title(invoice: &Invoice) -> String {
    match invoice.kind {
        InvoiceKind::Invoice => format!("Invoice {}", invoice.number),
        InvoiceKind::CreditNote => format!("Credit note {}", invoice.number),
    }
}

/// An amount with every digit that it has, and two decimals at least: `$11.573612`, `$12.50`. The lines
/// of an invoice then add up to its sum on paper too.
pub fn exact_money(micros: i64, currency: &str) -> String {
    let text = full_money(micros, currency);
    let keep = text.len().saturating_sub(4);
    let short = text.trim_end_matches('0').len().max(keep);
    text.get(..short).unwrap_or(&text).to_owned()
}

/// Hundredths of a percent as a rate: `19 %`, `7.25 %`.
pub fn rate_text(basis_points: i64) -> String {
    format!("{} %", typed_rate(basis_points))
}

/// Hundredths of a percent as they would be typed: `19`, `7.25`.
pub fn typed_rate(basis_points: i64) -> String {
    let points = basis_points.max(0);
    match points % 100 {
        0 => (points / 100).to_string(),
        rest => format!("{}.{rest:02}", points / 100).trim_end_matches('0').to_owned(),
    }
}

/// Hundredths of a percent for a percentage such as `19` or `7.25`; `None` when it is none, or finer.
pub fn parse_rate(text: &str) -> Option<i64> {
    let micros = parse_amount_micros(text.trim().trim_end_matches('%').trim_end())?;
    (micros % 10_000 == 0).then_some(micros / 10_000)
}

/// What a line is for: an offering with how it was ordered, or what else it is.
pub fn line_text(line: &InvoiceLine) -> String {
    if line.mode.is_empty() { line.item.clone() } else { format!("{}, {}", line.item, mode_text(&line.mode)) }
}

/// Whether there is still something to pay, in one sentence; nothing for a credit note.
pub fn standing(invoice: &Invoice) -> Option<String> {
    if invoice.kind == InvoiceKind::CreditNote {
        return None;
    }
    let total = money_text(invoice.document.total_micros, &invoice.document.currency);
    Some(match (invoice.state, invoice.due_at) {
        (InvoiceState::Open, Some(due)) => format!("{total} is to be paid by {}.", date_text(due)),
        (InvoiceState::Open, None) => format!("{total} is to be paid."),
        (InvoiceState::Paid, None) => {
            "It was paid from the balance as it was used: nothing is left to pay.".to_owned()
        }
        (InvoiceState::Paid, Some(_)) => match invoice.paid_at {
            Some(at) => format!("It was paid on {}.", date_text(at)),
            None => "It is paid.".to_owned(),
        },
        (InvoiceState::Void, _) => "It was taken back: nothing is to be paid.".to_owned(),
        (InvoiceState::Uncollectible, _) => format!("{total} was not paid and is not expected any more."),
    })
}

/// What it is for: `October 2026`.
pub fn period(invoice: &Invoice) -> String {
    month_text(&invoice.month)
}

/// Puts an invoice where it belongs in a list that is newest first; a known one is replaced.
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

    /// An invoice of five dollars, or the credit note that takes one back.
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
    fn amounts_are_exact_and_no_longer_than_that() {
        for (micros, text) in [
            (11_573_612, "$11.573612"),
            (12_500_000, "$12.50"),
            (0, "$0.00"),
            (-3, "−$0.000003"),
            (10, "$0.00001"),
        ] {
            assert_eq!(exact_money(micros, "USD"), text);
        }
        assert_eq!(exact_money(5_000_000, "EUR"), "€5.00");
    }

    #[test]
    fn a_rate_is_typed_as_it_is_written() {
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
    fn an_invoice_says_how_it_stands() {
        let said = |state: &str| standing(&invoice(12, state, None)).unwrap();
        assert_eq!(said("open"), "$5.00 is to be paid by 15 November 2026.");
        assert!(said("paid").starts_with("It was paid from the balance"));
        assert!(said("void").starts_with("It was taken back"));
        let note = invoice(13, "paid", Some(12));
        assert_eq!((standing(&note), title(&note)), (None, "Credit note 13".to_owned()));
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

//! Texts of the lists and forms of invoices. The texts of the documents are in `berth_types::documents`.
//!
//! Pure.

use berth_types::invoices::Invoice;
use berth_types::money::parse_amount_micros;

use super::super::days::month_text;
use super::super::load_more::merge_newest;

pub use berth_types::documents::{invoice_title as title, rate_text, typed_rate};

/// Parses a percentage such as `7.25` to hundredths of a percent; `None` for other text or more decimals.
pub fn parse_rate(text: &str) -> Option<i64> {
    let micros = parse_amount_micros(text.trim().trim_end_matches('%').trim_end())?;
    (micros % 10_000 == 0).then_some(micros / 10_000)
}

/// Returns the billed month: `October 2026`.
pub fn period(invoice: &Invoice) -> String {
    month_text(&invoice.month)
}

/// Inserts an invoice into a list with the newest first, or replaces its older copy.
pub fn merge(known: &mut Vec<Invoice>, fresh: Invoice) {
    merge_newest(known, fresh, |one| one.number, |_| ());
}

#[cfg(test)]
mod tests {
    use berth_types::invoices::InvoiceState;

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

//! Tests of the texts of invoices and statements.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail loudly, like tests")]

use berth_billing_types::documents::{
    SumText, device_hours, invoice_text, invoice_title, line_text, mode_text, moved_micros, statement_text,
    statement_title, status_text,
};
use berth_billing_types::invoices::{Invoice, InvoiceLine, MonthStatement, StatementEntry};
use berth_billing_types::ledger::TransferKind;
use berth_values::money::parse_amount_micros;

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
                {"item": "h100-80gb", "mode": "on_demand", "device_ms": 7_200_000,
                 "unit_nano_per_second": 763_889, "amount_micros": sign * 5_500_000},
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
        [["h100-80gb, on demand", "2.00", "$2.75", "$5.500000"], ["Returned charges", "", "", "−$0.500000"],]
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
    assert_eq!((statement_title(&statement).as_str(), moved_micros(&statement)), ("November 2026 so far", 8));
    statement.complete = true;
    let text = statement_text(&statement, "Kelda Lab".to_owned());
    assert_eq!(text.title, "Statement of November 2026");
    let causes: Vec<&str> = text
        .tables
        .iter()
        .flat_map(|table| &table.rows)
        .filter_map(|row| row.first())
        .map(String::as_str)
        .collect();
    assert_eq!(causes, ["Granted credit", "Expired credit", "other"]);
    assert_eq!(text.sums.last().map(|sum| sum.amount.as_str()), Some("+$0.000008"));
    assert_eq!(text.row_count(), 3);
}

#[test]
fn the_parties_have_names_addresses_and_tax_numbers() {
    let mut bill = invoice(12, "open", None);
    let parties = |bill: &Invoice| -> Vec<String> {
        invoice_text(bill).parties.into_iter().map(|party| party.text).collect()
    };
    assert_eq!(parties(&bill), ["Harbour\nPier 1", "Kelda Lab"]);
    bill.document.seller_tax_id = "NL1".to_owned();
    bill.document.buyer_tax_id = "DE2".to_owned();
    bill.document.buyer_address = "Kade 4\nKiel".to_owned();
    assert_eq!(parties(&bill), ["Harbour\nPier 1\nTax ID NL1", "Kelda Lab\nKade 4\nKiel\nTax ID DE2"]);
    bill.document.seller = " ".to_owned();
    assert_eq!(parties(&bill).first().unwrap(), "The operator of this portal\nTax ID NL1");
}

#[test]
fn fees_of_reservations_have_a_line_without_hours_and_price() {
    let mut bill = invoice(12, "open", None);
    let line = |device_ms: i64, unit_nano_per_second: Option<i64>| InvoiceLine {
        item: "h100-80gb".to_owned(),
        mode: "reserved".to_owned(),
        device_ms,
        unit_nano_per_second,
        surcharge_basis_points: 0,
        amount_micros: 1_000_000,
    };
    bill.document.lines = vec![line(3_600_000, Some(277_778)), line(3_600_000, None), line(0, None)];
    let rows = invoice_text(&bill).tables.into_iter().flat_map(|table| table.rows);
    let rows: Vec<Vec<String>> = rows.map(|row| row.into_iter().take(3).collect()).collect();
    assert_eq!(
        rows,
        [
            ["h100-80gb, reserved", "1.00", "$1.00"],
            ["h100-80gb, reserved", "1.00", ""],
            ["h100-80gb, cancelled or returned reservations", "", ""],
        ]
    );
}

#[test]
fn a_line_names_its_surcharge() {
    let mut line = invoice(12, "open", None).document.lines.first().unwrap().clone();
    let plain = line_text(&line);
    let texts = [(0, ""), (1_000, ", with +10 % for a promise"), (125, ", with +1.25 % for a promise")];
    for (points, text) in texts {
        line.surcharge_basis_points = points;
        assert_eq!(line_text(&line), format!("{plain}{text}"));
    }
}

/// Returns an amount on a document in micro-units.
fn parsed(text: &str) -> i64 {
    let digits = text.replace(['−', '$', ','], "");
    let micros = parse_amount_micros(&digits).unwrap();
    if text.starts_with('−') { -micros } else { micros }
}

#[test]
fn the_amounts_on_an_invoice_add_up_to_its_total() {
    let amounts = [-1_000_001, -10, -1, 0, 1, 9, 10, 999_999, 1_000_000, 1_234_567_890];
    let mut bill = invoice(12, "open", None);
    let line = bill.document.lines.first().unwrap().clone();
    for first in amounts {
        for second in amounts {
            for tax in amounts {
                let lines =
                    [first, second].map(|amount_micros| InvoiceLine { amount_micros, ..line.clone() });
                bill.document.lines = lines.to_vec();
                bill.document.subtotal_micros = first + second;
                bill.document.total_micros = first + second + tax;
                bill.document.taxes.iter_mut().for_each(|one| one.amount_micros = tax);
                let text = invoice_text(&bill);
                let rows = text.tables.iter().flat_map(|table| &table.rows);
                let lines: i64 = rows.filter_map(|row| row.last()).map(|amount| parsed(amount)).sum();
                let sums: Vec<i64> = text.sums.iter().map(|sum: &SumText| parsed(&sum.amount)).collect();
                assert_eq!(sums, [lines, tax, lines + tax], "{first} {second} {tax}");
            }
        }
    }
}

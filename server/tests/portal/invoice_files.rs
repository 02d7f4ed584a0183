//! Tests of invoices and statements as PDF files. Another library reads the files.

use crate::common::{Caller, TestPortal, engines};
use axum::http::{HeaderMap, Request, StatusCode, header};
use berth_store as store;
use berth_types::ids::InvoiceId;
use berth_types::invoices::{InvoiceDocument, InvoiceKind, InvoiceLine, InvoiceState, TaxLine};
use futures::FutureExt;
use serde_json::{Value, json};

/// Fetches a file.
pub async fn fetch(t: &TestPortal, caller: &Caller, path: &str) -> (HeaderMap, Vec<u8>) {
    let Caller::Cookie(cookie) = caller else { panic!("a person") };
    let request = Request::builder().uri(format!("/api/v1{path}")).header(header::COOKIE, cookie);
    let request = request.body(axum::body::Body::empty()).unwrap();
    let response = tower::ServiceExt::oneshot(t.router.clone(), request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK, "{path}");
    let headers = response.headers().clone();
    let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (headers, bytes.to_vec())
}

/// Returns the text of all pages.
fn text(bytes: &[u8]) -> String {
    let file = lopdf::Document::load_mem(bytes).unwrap();
    let numbers: Vec<u32> = file.get_pages().into_keys().collect();
    file.extract_text(&numbers).unwrap()
}

pub fn document(lines: usize) -> InvoiceDocument {
    let line = |item: String, device_ms: i64, amount_micros: i64| InvoiceLine {
        item,
        mode: if device_ms > 0 { "on_demand".to_owned() } else { String::new() },
        device_ms,
        unit_nano_per_second: (device_ms > 0).then_some(173_611),
        surcharge_basis_points: 0,
        amount_micros,
    };
    let mut all = vec![line("Returned charges".to_owned(), 0, -500_000)];
    all.extend((1..lines).map(|n| line(format!("board-{n}"), 7_200_000, 1_250_000)));
    InvoiceDocument {
        seller: "Harbour Ltd\nPier 1".to_owned(),
        seller_tax_id: "NL123".to_owned(),
        buyer: "Лаборатория Ελλάδα".to_owned(),
        buyer_address: "Kade 4".to_owned(),
        buyer_tax_id: String::new(),
        lines: all,
        subtotal_micros: 2_000_000,
        taxes: vec![TaxLine { name: "VAT".to_owned(), basis_points: 1_900, amount_micros: 380_000 }],
        total_micros: 2_380_000,
        currency: "EUR".to_owned(),
    }
}

/// Issues an open invoice of a month.
pub async fn issue(t: &TestPortal, org: &str, month: &'static str, document: &InvoiceDocument) -> InvoiceId {
    let (org, now) = (org.parse().unwrap(), t.portal.context.now());
    let id: InvoiceId = t.portal.context.new_id(now);
    let text = serde_json::to_string(document).unwrap();
    let total_micros = document.total_micros;
    let work = t.portal.context.db.write(move |tx| {
        let text = text.clone();
        async move {
            let row = store::invoices::StoredInvoice {
                id,
                number: store::invoices::next_number(tx).await?,
                kind: InvoiceKind::Invoice,
                org_id: org,
                month: month.to_owned(),
                state: InvoiceState::Open,
                document: text,
                total_micros,
                issued_at: now,
                due_at: Some(now.plus_seconds(14 * 86_400)),
                paid_at: None,
                corrects: None,
            };
            store::invoices::insert(tx, &row).await
        }
        .boxed()
    });
    work.await.unwrap();
    id
}

#[tokio::test]
async fn an_invoice_is_a_pdf_file_with_the_texts_of_its_page() {
    for (engine, db, _location) in engines("invoice_files").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        let (bob, bobs) = t.tenant("bobs").await;
        let id = issue(&t, &org, "2026-09", &document(3)).await;
        let path = format!("/orgs/{org}/invoices/{id}/pdf");
        let (headers, bytes) = fetch(&t, &ada, &path).await;
        assert_eq!(headers[header::CONTENT_TYPE], "application/pdf", "{engine}");
        let name = "attachment; filename*=UTF-8''invoice-1.pdf";
        assert_eq!(headers[header::CONTENT_DISPOSITION], name, "{engine}");
        let file = text(&bytes);
        for wanted in [
            "Invoice 1",
            "Berth",
            "open",
            "Harbour Ltd",
            "Pier 1",
            "Tax ID NL123",
            "Kade 4",
            "Price per hour",
            "€0.625",
            "Лаборатория Ελλάδα",
            "September 2026",
            "Issued",
            "Due",
            "Returned charges",
            "−€0.50",
            "board-1, on demand",
            "2.00",
            "€1.25",
            "Net",
            "€2.00",
            "VAT, 19 %",
            "€0.38",
            "Total",
            "€2.38",
            "€2.38 due by",
            "1 of 1",
        ] {
            assert!(file.contains(wanted), "{engine}: {wanted}: {file}");
        }
        // A later request has the same bytes.
        t.clock.advance_s(60);
        assert_eq!(fetch(&t, &ada, &path).await.1, bytes, "{engine}");
        for foreign in [path.clone(), format!("/orgs/{bobs}/invoices/{id}/pdf")] {
            t.get(&bob, &foreign).await.problem(404, "object.not_found");
        }
        t.get(&Caller::Nobody, &path).await.problem(401, "auth.required");

        t.post(&operator, &format!("/operator/invoices/{id}/void"), Value::Null).await.expect(200);
        assert!(text(&fetch(&t, &ada, &path).await.1).contains("Void: no payment due."), "{engine}");
        let list = t.get(&ada, &format!("/orgs/{org}/invoices")).await.expect(200);
        let note = list["items"][0]["id"].as_str().unwrap();
        let (headers, bytes) = fetch(&t, &ada, &format!("/orgs/{org}/invoices/{note}/pdf")).await;
        let name = "attachment; filename*=UTF-8''credit-note-2.pdf";
        assert_eq!(headers[header::CONTENT_DISPOSITION], name, "{engine}");
        let file = text(&bytes);
        for wanted in ["Credit note 2", "−€2.38", "Voids Invoice 1."] {
            assert!(file.contains(wanted), "{engine}: {wanted}: {file}");
        }

        let long = issue(&t, &org, "2026-08", &document(10_001)).await;
        let long = format!("/orgs/{org}/invoices/{long}/pdf");
        t.get(&ada, &long).await.problem(422, "document.too_long");
    }
}

#[tokio::test]
async fn a_statement_is_a_pdf_file_with_the_texts_of_its_page() {
    for (engine, db, _location) in engines("statement_files").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        let (bob, _) = t.tenant("bobs").await;
        t.add_price_and_credit(&operator, &org, 10_000_000).await;
        let debit = json!({"amount_micros": 1_000_000, "memo": "a correction"});
        t.post(&operator, &format!("/operator/orgs/{org}/debits"), debit).await.expect(201);
        let path = format!("/orgs/{org}/statement/pdf");
        let month: String = t.portal.context.now().to_string().chars().take(7).collect();
        let (headers, bytes) = fetch(&t, &ada, &path).await;
        let name = format!("attachment; filename*=UTF-8''statement-{month}.pdf");
        assert_eq!(headers[header::CONTENT_DISPOSITION], name.as_str(), "{engine}");
        let file = text(&bytes);
        for wanted in [
            "so far",
            "lab",
            "No charges.",
            "Granted credit",
            "+$10.00",
            "Debits by the operator",
            "−$1.00",
            "Change of the balance",
            "+$9.00",
            "A running statement, not an invoice",
        ] {
            assert!(file.contains(wanted), "{engine}: {wanted}: {file}");
        }
        assert_eq!(fetch(&t, &ada, &format!("{path}?month={month}")).await.1, bytes, "{engine}");
        t.get(&bob, &path).await.problem(404, "object.not_found");
        t.get(&ada, &format!("{path}?month=2099-01")).await.problem(400, "request.malformed");
        t.get(&ada, &format!("{path}?format=csv")).await.expect(400);
    }
}

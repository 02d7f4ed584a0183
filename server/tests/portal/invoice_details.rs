//! Tests of the contents of invoices: prices of lines, fees, billing details and the table in CSV.

use crate::common::{Caller, PASSWORD, TestPortal, engines};
use crate::gateways::number;
use crate::idle_portal::{HOUR, IdlePortal};
use crate::invoice_files::fetch;
use crate::money::record_charge;
use berth_store as store;
use futures::FutureExt;
use serde_json::{Value, json};

/// Records an hour of one device at a version of its price.
async fn charge(t: &TestPortal, org: &str, offering: &str, price_version: i64, micros: i64) {
    let (org, at, offering) = (org.parse().unwrap(), t.portal.context.now(), offering.to_owned());
    let work = t.portal.context.db.write(move |tx| {
        let offering = offering.clone();
        async move {
            let charged = store::usage::Charge {
                org,
                day: at.micros() / 86_400_000_000,
                offering: &offering,
                mode: store::usage::UsageMode::Preemptible,
                member: "Ada",
                price_version,
                surcharge_basis_points: 0,
                labels: Vec::new(),
                device_milli_ms: 3_600_000_000,
                cost_micros: micros,
            };
            store::usage::add_charge(tx, &charged).await
        }
        .boxed()
    });
    work.await.unwrap();
}

/// Returns a line of an hour of a slice.
fn line(rate: Value, micros: i64) -> Value {
    let mut line = json!({
        "item": "h100-80gb.1g.10gb", "mode": "preemptible", "device_ms": 3_600_000, "amount_micros": micros,
    });
    if !rate.is_null() {
        line["unit_nano_per_second"] = rate;
    }
    line
}

/// Makes a token with a role in the organization of its owner.
async fn token(t: &TestPortal, owner: &Caller, org: &str, role: &str) -> Caller {
    let made = t.post(owner, &format!("/orgs/{org}/tokens"), json!({"name": role, "role": role})).await;
    Caller::Token(made.expect(201)["secret"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn an_invoice_has_a_line_for_each_price_and_keeps_its_details() {
    for (engine, db, _location) in engines("invoice_details").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        t.add_price_and_credit(&operator, &org, 100_000_000).await;
        let slice = "h100-80gb.1g.10gb";
        let prices = json!({
            "offering": slice, "per_hour_micros": 7_200_000, "preemptible_per_hour_micros": 1_800_000,
        });
        t.post(&operator, "/operator/prices", prices).await.expect(201);
        let offerings = t.get(&ada, "/offerings?limit=200").await.expect(200);
        let offering =
            offerings["items"].as_array().unwrap().iter().find(|one| one["slug"] == slice).unwrap();
        let offering = offering["id"].as_str().unwrap().to_owned();
        // Use without a recorded price, at the rate on demand of the first version, and at the own rate of the second.
        for (version, micros) in [(2, 1_800_000), (0, 5), (1, 3_599_999), (2, 1)] {
            charge(&t, &org, &offering, version, micros).await;
        }
        let mut second = line(json!(500_000), 1_800_001);
        second["device_ms"] = json!(7_200_000);
        let lines = json!([line(Value::Null, 5), line(json!(1_000_000), 3_599_999), second]);
        let statement = t.get(&ada, &format!("/orgs/{org}/statement")).await.expect(200);
        assert_eq!(statement["lines"], lines, "{engine}");

        let details = json!({"name": " Lab GmbH ", "address": "Kade 4\nKiel", "tax_id": "DE123"});
        t.call(&ada, "PUT", &format!("/orgs/{org}/billing-details"), details).await.expect(200);
        let settings = json!({
            "seller": "Harbour Ltd\nPier 1", "seller_tax_id": "=NL1",
            "taxes": [{"name": "VAT", "basis_points": 1_900}],
        });
        t.call(&operator, "PUT", "/operator/billing-settings", settings).await.expect(200);
        t.clock.advance_s(20 * 86_400);
        assert_eq!(t.portal.invoices.bill_last_month().await.unwrap(), 1, "{engine}");
        let (ada, operator) = (t.sign_in("lab@example.org").await, t.sign_in("harbour@example.org").await);
        let invoices = t.get(&ada, &format!("/orgs/{org}/invoices")).await.expect(200);
        let invoice = invoices["items"][0].clone();
        let expected = json!({
            "seller": "Harbour Ltd\nPier 1", "seller_tax_id": "=NL1", "buyer": "Lab GmbH",
            "buyer_address": "Kade 4\nKiel", "buyer_tax_id": "DE123", "lines": lines,
            "subtotal_micros": 5_400_005, "currency": "USD", "total_micros": 6_426_005,
            "taxes": [{"name": "VAT", "basis_points": 1_900, "amount_micros": 1_026_000}],
        });
        assert_eq!(invoice["document"], expected, "{engine}");

        // Later details and settings change no issued invoice.
        t.call(&ada, "PUT", &format!("/orgs/{org}/billing-details"), json!({})).await.expect(200);
        t.call(&operator, "PUT", "/operator/billing-settings", json!({})).await.expect(200);
        let path = format!("/orgs/{org}/invoices/{}", invoice["id"].as_str().unwrap());
        assert_eq!(t.get(&ada, &path).await.expect(200), invoice, "{engine}");

        let (headers, bytes) = fetch(&t, &ada, &format!("{path}?format=csv")).await;
        assert_eq!(headers["content-disposition"], "attachment; filename=\"invoice-1.csv\"", "{engine}");
        let mut file = csv::Reader::from_reader(bytes.as_slice());
        let rows: Vec<Vec<String>> =
            file.records().map(|row| row.unwrap().iter().map(str::to_owned).collect()).collect();
        let kinds: Vec<(&str, &str)> = rows.iter().map(|row| (row[2].as_str(), row[6].as_str())).collect();
        assert_eq!(kinds, [("line", ""), ("line", "1000000"), ("line", "500000"), ("tax", "")], "{engine}");
        let total: i64 = rows.iter().map(|row| row[7].parse::<i64>().unwrap()).sum();
        assert_eq!(total, 6_426_005, "{engine}: the rows add up to the total");
        let parties = ["USD", "Harbour Ltd\nPier 1", "'=NL1", "Lab GmbH", "Kade 4\nKiel", "DE123"];
        assert_eq!(rows[0][8..], parties, "{engine}");
        t.get(&ada, &format!("{path}?format=xml")).await.expect(400);
    }
}

#[tokio::test]
async fn two_rates_of_tax_have_two_names() {
    for (engine, db, _location) in engines("tax_names").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let path = "/operator/billing-settings";
        let rate = |name: &str| json!({"name": name, "basis_points": 700});
        let two = |name: &str| json!({"taxes": [rate("VAT"), rate(name)]});
        let problem = t.call(&operator, "PUT", path, two("VAT ")).await.problem(422, "request.invalid");
        assert_eq!(problem["errors"][0]["pointer"], "/taxes/1", "{engine}: {problem}");
        t.call(&operator, "PUT", path, two("City tax")).await.expect(200);
    }
}

#[tokio::test]
async fn billing_details_are_set_by_owners_and_billing_members_and_audited() {
    for (engine, db, _location) in engines("billing_details").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        let (bob, _) = t.tenant("bobs").await;
        let path = format!("/orgs/{org}/billing-details");
        let empty = json!({"name": "", "address": "", "tax_id": ""});
        assert_eq!(t.get(&ada, &path).await.expect(200), empty, "{engine}");
        let details = |name: &str| json!({"name": name, "address": "Kade 4\nKiel", "tax_id": "DE1"});
        let set = t.call(&ada, "PUT", &path, details("Lab GmbH")).await.expect(200);
        assert_eq!(set, details("Lab GmbH"), "{engine}");
        let billing = token(&t, &ada, &org, "billing").await;
        t.call(&billing, "PUT", &path, details("Lab AG")).await.expect(200);
        let member = token(&t, &ada, &org, "member").await;
        assert_eq!(t.get(&member, &path).await.expect(200), details("Lab AG"), "{engine}");
        t.call(&member, "PUT", &path, empty.clone()).await.expect(403);
        let viewer = token(&t, &ada, &org, "viewer").await;
        t.get(&viewer, &path).await.expect(403);
        for method in ["GET", "PUT"] {
            t.call(&bob, method, &path, empty.clone()).await.problem(404, "object.not_found");
        }
        t.call(&ada, "PUT", &path, json!({"street": "Kade"})).await.expect(422);
        let log = "/operator/audit-events?limit=200&action=billing_details.set";
        let events = t.get(&operator, log).await.expect(200);
        let events = events["items"].as_array().unwrap().iter();
        let states: Vec<(&Value, &Value)> = events.map(|event| (&event["before"], &event["after"])).collect();
        assert_eq!(states.len(), 2, "{engine}");
        let parse = |state: &Value| serde_json::from_str::<Value>(state.as_str().unwrap()).unwrap();
        assert_eq!(parse(states[0].0), details("Lab GmbH"), "{engine}");
        assert_eq!(parse(states[0].1), details("Lab AG"), "{engine}");
        assert_eq!((states[1].0, parse(states[1].1)), (&Value::Null, details("Lab GmbH")), "{engine}");
    }
}

#[tokio::test]
async fn the_last_invoice_after_the_deletion_of_an_account_has_the_details() {
    for (engine, db, _location) in engines("last_invoice").await {
        let t = TestPortal::on(db);
        t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        let details = json!({"name": "Lab GmbH", "address": "Kade 4\nKiel", "tax_id": "DE123"});
        t.call(&ada, "PUT", &format!("/orgs/{org}/billing-details"), details).await.expect(200);
        record_charge(&t, &org, 1_000_000).await;
        t.post(&ada, "/me/deletion", json!({"password": PASSWORD})).await.expect(204);
        t.clock.advance_s(20 * 86_400);
        t.portal.forget_old().await.unwrap();
        assert_eq!(t.portal.invoices.bill_last_month().await.unwrap(), 1, "{engine}");
        let operator = t.sign_in("harbour@example.org").await;
        let invoices = t.get(&operator, "/operator/invoices").await.expect(200);
        let document = &invoices["items"][0]["document"];
        assert_eq!(document["buyer"], "Lab GmbH", "{engine}: {invoices}");
        assert_eq!(document["buyer_address"], "Kade 4\nKiel", "{engine}");
        let kept = async || number(&t, "SELECT CAST(COUNT(*) AS BIGINT) FROM billing_details").await;
        assert_eq!(kept().await, 1, "{engine}");
        t.clock.advance_s(21 * 86_400);
        t.portal.forget_old().await.unwrap();
        assert_eq!(kept().await, 0, "{engine}");
    }
}

#[tokio::test]
async fn the_fee_of_a_returned_reservation_has_a_line_of_its_own() {
    for (engine, db, _location) in engines("fee_lines").await {
        let mut setup = IdlePortal::on(db).await;
        setup.set_policy(json!({"early_release_percent": 50})).await;
        let begin = setup.at(HOUR);
        let reserved = setup.reserve(1, 1, begin, setup.at(5 * HOUR)).await;
        setup.let_time_pass(HOUR).await;
        setup.let_time_pass(2 * HOUR).await;
        setup.cancel(&reserved).await.expect(200);
        let ended = setup.reservation(&reserved).await;
        let path = format!("/orgs/{}/statement", setup.org);
        let statement = setup.t.get(&setup.ada, &path).await.expect(200);
        let lines = statement["lines"].as_array().unwrap();
        let fee = lines.iter().find(|line| line["unit_nano_per_second"].is_null()).unwrap();
        let usage = lines.iter().find(|line| line["unit_nano_per_second"] == 1_000_000).unwrap();
        assert_eq!(
            (lines.len(), &fee["device_ms"], &fee["mode"]),
            (2, &json!(0), &json!("reserved")),
            "{engine}"
        );
        let (ms, micros) = (usage["device_ms"].as_i64().unwrap(), usage["amount_micros"].as_i64().unwrap());
        assert!((ms - micros).abs() <= 1_000, "{engine}: a micro-unit a millisecond: {usage}");
        assert_eq!(micros + fee["amount_micros"].as_i64().unwrap(), ended["posted_micros"], "{engine}");
        assert!(fee["amount_micros"].as_i64().unwrap() > 0, "{engine}");
    }
}

#[tokio::test]
async fn charges_from_before_recorded_prices_stay() {
    use sqlx::Connection;
    let mut conn = sqlx::SqliteConnection::connect("sqlite::memory:").await.unwrap();
    for sql in [
        include_str!("../../../migrations/0001_accounts.sql"),
        include_str!("../../../migrations/0002_billing.sql"),
        "INSERT INTO usage_days (org_id, day, offering_id, mode, member, device_milli_ms, cost_micros) \
         VALUES ('org', 7, 'slice', 'reserved', 'Ada', 5, 3)",
        include_str!("../../../migrations/0022_invoice_details.sql"),
    ] {
        sqlx::raw_sql(sql).execute(&mut conn).await.unwrap();
    }
    let sql = "SELECT day, price_version, device_milli_ms, cost_micros FROM usage_days";
    let rows: Vec<(i64, i64, i64, i64)> = sqlx::query_as(sql).fetch_all(&mut conn).await.unwrap();
    assert_eq!(rows, [(7, 0, 5, 3)]);
}

#[tokio::test]
async fn an_invoice_from_the_balance_takes_its_taxes_once() {
    for (engine, db, _location) in engines("invoice_taxes").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (_ada, org) = t.tenant("lab").await;
        let (_bob, other) = t.tenant("bobs").await;
        t.add_price_and_credit(&operator, &org, 100_000).await;
        let settings = json!({"seller": "Harbour Ltd", "taxes": [{"name": "VAT", "basis_points": 1_900}, {"name": "city", "basis_points": 100}]});
        t.call(&operator, "PUT", "/operator/billing-settings", settings).await.expect(200);
        let limit = json!({"credit_limit_micros": 50_000_000});
        t.call(&operator, "PUT", &format!("/operator/orgs/{other}/credit-limit"), limit).await.expect(200);
        record_charge(&t, &org, 1_000_000).await;
        record_charge(&t, &other, 2_000_000).await;
        t.clock.advance_s(20 * 86_400);
        for documents in [2, 0] {
            assert_eq!(t.portal.invoices.bill_last_month().await.unwrap(), documents, "{engine}");
            let ada = t.sign_in("lab@example.org").await;
            let balance = t.get(&ada, &format!("/orgs/{org}/balance")).await.expect(200);
            // The taxes are owed beyond the balance too.
            assert_eq!(balance["posted_micros"], 100_000 - 200_000, "{engine} {balance}");
            let ledger = t.get(&ada, &format!("/orgs/{org}/transfers")).await.expect(200);
            let taxes = &ledger["items"][0];
            assert_eq!(
                (&taxes["source"], &taxes["kind"], &taxes["amount_micros"], &taxes["memo"]),
                (&json!("tax"), &json!("debit"), &json!(-200_000), &json!("Taxes of invoice 1")),
                "{engine} {ledger}"
            );
            let bob = t.sign_in("bobs@example.org").await;
            let balance = t.get(&bob, &format!("/orgs/{other}/balance")).await.expect(200);
            assert_eq!(balance["posted_micros"], 0, "{engine}: its payment has the taxes {balance}");
        }
    }
}

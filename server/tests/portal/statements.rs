//! Tests of the money pages: statements of months, usage without a label, the forecast, requests for credit.

use crate::common::{Caller, TestPortal, engines};
use berth_store as store;
use futures::FutureExt;
use serde_json::{Value, json};

/// Records a charge like the end of a job, with the label `project` if `project` is not empty.
async fn charge(t: &TestPortal, org: &str, project: &str, micros: i64) {
    let (org, at, project) = (org.parse().unwrap(), t.portal.context.now(), project.to_owned());
    let work = t.portal.context.db.write(move |tx| {
        let project = project.clone();
        async move {
            let label = (!project.is_empty()).then(|| ("project".to_owned(), project));
            let charged = store::usage::Charge {
                org,
                day: at.micros() / 86_400_000_000,
                offering: "none",
                mode: store::usage::UsageMode::OnDemand,
                member: "Ada",
                price_version: 0,
                surcharge_basis_points: 0,
                labels: label.into_iter().collect(),
                device_milli_ms: 3_600_000_000,
                cost_micros: micros,
            };
            store::usage::add_charge(tx, &charged).await
        }
        .boxed()
    });
    work.await.unwrap();
}

/// Returns an answer as text, such as CSV.
async fn text(t: &TestPortal, caller: &Caller, path: &str) -> String {
    let Caller::Cookie(cookie) = caller else { panic!("a person") };
    let request = axum::http::Request::builder().uri(format!("/api/v1{path}")).header("cookie", cookie);
    let request = request.body(axum::body::Body::empty()).unwrap();
    let response = tower::ServiceExt::oneshot(t.router.clone(), request).await.unwrap();
    let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Returns the sum of a number over rows.
fn sum(rows: &Value, field: &str) -> i64 {
    rows.as_array().unwrap().iter().map(|row| row[field].as_i64().unwrap()).sum()
}

#[tokio::test]
async fn a_statement_has_the_charges_credits_and_debits_of_its_month() {
    for (engine, db, _location) in engines("statements").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        let (bob, _) = t.tenant("bobs").await;
        t.add_price_and_credit(&operator, &org, 10_000_000).await;
        let debit = json!({"amount_micros": 1_000_000, "memo": "a correction"});
        t.post(&operator, &format!("/operator/orgs/{org}/debits"), debit).await.expect(201);
        charge(&t, &org, "", 2_500_000).await;
        let path = format!("/orgs/{org}/statement");
        let month: String = t.portal.context.now().to_string().chars().take(7).collect();
        let mut expected = json!({
            "month": month, "complete": false, "currency": "USD",
            "lines": [
                {"item": "none", "mode": "on_demand", "device_ms": 3_600_000, "amount_micros": 2_500_000},
            ],
            "charged_micros": 2_500_000,
            "entries": [
                {"kind": "credit", "source": "grant", "count": 1, "amount_micros": 10_000_000},
                {"kind": "debit", "source": "debit", "count": 1, "amount_micros": -1_000_000},
            ],
            "change_micros": 6_500_000,
        });
        assert_eq!(t.get(&ada, &path).await.expect(200), expected, "{engine}");
        let csv = text(&t, &ada, &format!("{path}?format=csv")).await;
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(
            lines[0], "month,kind,item,mode,device_ms,amount_micros,currency,unit_nano_per_second",
            "{engine}"
        );
        assert_eq!(lines[1], format!("{month},charge,none,on_demand,3600000,-2500000,USD,"), "{engine}");
        assert_eq!(lines[2..].len(), 2, "{engine}: {csv}");

        t.get(&bob, &path).await.expect(404);
        for bad in ["2099-01", "2026-1", "November"] {
            t.get(&ada, &format!("{path}?month={bad}")).await.problem(400, "request.malformed");
        }
        // The past month is complete, and the next one begins at nothing.
        t.clock.advance_s(20 * 86_400);
        let ada = t.sign_in("lab@example.org").await;
        expected["complete"] = json!(true);
        assert_eq!(t.get(&ada, &format!("{path}?month={month}")).await.expect(200), expected, "{engine}");
        let fresh = t.get(&ada, &path).await.expect(200);
        assert_eq!((&fresh["complete"], &fresh["change_micros"]), (&json!(false), &json!(0)), "{engine}");
        assert_eq!((&fresh["lines"], &fresh["entries"]), (&json!([]), &json!([])), "{engine}");
    }
}

#[tokio::test]
async fn usage_by_label_adds_up_to_all_usage() {
    for (engine, db, _location) in engines("unlabelled").await {
        let t = TestPortal::on(db);
        let (ada, org) = t.tenant("lab").await;
        for (project, micros) in [("alpha", 100), ("", 7), ("beta", 20)] {
            charge(&t, &org, project, micros).await;
        }
        let path = format!("/orgs/{org}/usage");
        let all = t.get(&ada, &path).await.expect(200);
        let grouped = t.get(&ada, &format!("{path}?group=label&label=project")).await.expect(200);
        let rows: Vec<(&str, i64)> = grouped["rows"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| (row["key"].as_str().unwrap(), row["cost_micros"].as_i64().unwrap()))
            .collect();
        assert_eq!(rows, [("", 7), ("alpha", 100), ("beta", 20)], "{engine}");
        for field in ["cost_micros", "device_ms"] {
            assert_eq!(sum(&grouped["rows"], field), sum(&all["rows"], field), "{engine} {field}");
            assert_eq!(grouped[field], all[field], "{engine} {field}");
        }
        // A label that no job has leaves one row with all use.
        let other = t.get(&ada, &format!("{path}?group=label&label=team")).await.expect(200);
        assert_eq!(other["rows"], all["rows"], "{engine}");
        let csv = text(&t, &ada, &format!("{path}?group=label&label=project&format=csv")).await;
        assert!(csv.lines().any(|line| line.contains(",No label,")), "{engine}: {csv}");

        // The charges of one day are a part of the month, so more is expected.
        let forecast = all["forecast_month_micros"].as_i64().unwrap();
        assert!(forecast > all["month_to_date_micros"].as_i64().unwrap(), "{engine}: {all}");
    }
}

#[tokio::test]
async fn credit_is_requested_and_granted_once() {
    for (engine, db, _location) in engines("credit_requests").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        let (bob, _) = t.tenant("bobs").await;
        let requests = format!("/orgs/{org}/quota-requests");
        for bad in [
            json!({"reason": "x"}),
            json!({"credit_micros": 0, "reason": "x"}),
            json!({"credit_micros": 1_000_000_000_000_001_i64, "reason": "x"}),
            json!({"credit_micros": 5, "reason": " "}),
        ] {
            t.post(&ada, &requests, bad).await.problem(422, "request.invalid");
        }
        let body = json!({"credit_micros": 5_000_000, "reason": "a deadline"});
        t.post(&bob, &requests, body.clone()).await.expect(404);
        let request = t.post(&ada, &requests, body.clone()).await.expect(201);
        assert_eq!(
            (&request["credit_micros"], &request["limits"]),
            (&json!(5_000_000), &json!({})),
            "{engine}"
        );
        let granted_of = |r: &Value| (r.get("granted_limits").cloned(), r.get("granted_micros").cloned());
        assert_eq!(granted_of(&request), (None, None), "{engine}");
        let decide =
            |request: &Value| format!("/operator/quota-requests/{}", request["id"].as_str().unwrap());
        let granted = t.post(&operator, &decide(&request), json!({"grant": true})).await.expect(200);
        assert_eq!(granted["state"], "granted", "{engine}");
        assert_eq!(granted_of(&granted), (Some(json!({})), Some(json!(5_000_000))), "{engine}");
        let again = t.post(&operator, &decide(&request), json!({"grant": true})).await;
        again.problem(409, "quota_request.decided");
        let posted =
            async || t.get(&ada, &format!("/orgs/{org}/balance")).await.expect(200)["posted_micros"].clone();
        assert_eq!(posted().await, 5_000_000, "{engine}");
        let quota = t.get(&ada, &format!("/orgs/{org}/quota")).await.expect(200);
        assert_eq!(quota["is_default"], true, "{engine}: credit is no limit");

        // Other amounts, and a refusal.
        for (micros, balance) in [(1_495_000, 6_495_000), (6_000_000, 12_495_000)] {
            let request = t.post(&ada, &requests, body.clone()).await.expect(201);
            let other = json!({"grant": true, "credit_micros": micros});
            let granted = t.post(&operator, &decide(&request), other).await.expect(200);
            assert_eq!(granted["credit_micros"], 5_000_000, "{engine}: the request stays");
            assert_eq!(granted_of(&granted).1, Some(json!(micros)), "{engine}");
            assert_eq!(posted().await, balance, "{engine}");
        }
        let declined = t.post(&ada, &requests, body.clone()).await.expect(201);
        let no = json!({"grant": false, "note": "No."});
        let declined = t.post(&operator, &decide(&declined), no).await.expect(200);
        assert_eq!(granted_of(&declined), (None, None), "{engine}");
        let audit = t.get(&ada, &format!("/orgs/{org}/audit-events")).await.expect(200);
        let details: Vec<&str> = audit["items"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|event| event["action"] == "credit.granted")
            .map(|event| event["detail"].as_str().unwrap())
            .collect();
        let wanted = [
            "$6.00: More than the requested credit",
            "$1.495: Part of the requested credit",
            "$5.00: Credit as requested",
        ];
        assert_eq!(details, wanted, "{engine}");

        let books = t.post(&operator, "/operator/reconciliation", Value::Null).await.expect(200);
        assert_eq!(books["mismatches"], json!([]), "{engine} {books}");
    }
}

#[tokio::test]
async fn a_request_names_the_limits_that_were_granted() {
    for (engine, db, _location) in engines("granted_limits").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        let requests = format!("/orgs/{org}/quota-requests");
        let body = json!({"limits": {"running_jobs": 50}, "reason": "a deadline"});
        let request = t.post(&ada, &requests, body).await.expect(201);
        assert_eq!(request.get("granted_limits"), None, "{engine}");
        let decide = format!("/operator/quota-requests/{}", request["id"].as_str().unwrap());
        let less = json!({"grant": true, "limits": {"running_jobs": 7}});
        let granted = t.post(&operator, &decide, less).await.expect(200);
        let listed = t.get(&ada, &requests).await.expect(200)["items"][0].clone();
        for read in [granted, listed] {
            assert_eq!(read["limits"], json!({"running_jobs": 50}), "{engine}: the request stays");
            assert_eq!(read["granted_limits"], json!({"running_jobs": 7}), "{engine}");
            assert_eq!(read.get("granted_micros"), None, "{engine}: no credit");
        }
        let quota = t.get(&ada, &format!("/orgs/{org}/quota")).await.expect(200);
        assert_eq!(quota["limits"], json!({"running_jobs": 7}), "{engine}");
    }
}

#[tokio::test]
async fn members_request_credit_within_a_number_of_open_requests() {
    let t = TestPortal::sqlite().await;
    let (ada, org) = t.tenant("lab").await;
    let token = async |role: &str| {
        let new = json!({"name": role, "role": role});
        let made = t.post(&ada, &format!("/orgs/{org}/tokens"), new).await.expect(201);
        Caller::Token(made["secret"].as_str().unwrap().to_owned())
    };
    let (member, viewer) = (token("member").await, token("viewer").await);
    let requests = format!("/orgs/{org}/quota-requests");
    let credit = json!({"credit_micros": 5_000_000, "reason": "a deadline"});
    t.post(&viewer, &requests, credit.clone()).await.problem(403, "auth.forbidden");
    let limits = json!({"limits": {"boards_milli": 1_000}, "credit_micros": 1, "reason": "x"});
    t.post(&member, &requests, limits).await.problem(403, "auth.forbidden");
    for _ in 0..20 {
        t.post(&member, &requests, credit.clone()).await.expect(201);
    }
    let refused = t.post(&ada, &requests, credit).await.problem(422, "request.invalid");
    assert!(refused["errors"][0]["detail"].as_str().unwrap().contains("20 open requests"), "{refused}");
}

//! Prices by mode and date, accounts below nothing, use by day, and books that are looked at.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests fail loudly, like tests"
)]

mod common;
#[expect(dead_code, reason = "this file uses a part of it")]
mod quay;

use common::{As, TestPortal, engines, job};
use quay::Quay;
use serde_json::{Value, json};

const SLICE: &str = "h100-80gb.1g.10gb";

#[tokio::test]
async fn a_price_has_modes_and_a_date_and_the_past_is_never_priced_anew() {
    for (engine, db, _place) in engines("prices").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        t.stock(&operator, &org, 1_000_000_000).await;
        let set = |body: Value| t.post(&operator, "/operator/prices", body);
        let now = t.portal.now();
        let price = json!({
            "offering": SLICE, "per_hour_micros": 7_200_000, "preemptible_per_hour_micros": 3_600_000,
            "reserved_per_hour_micros": 5_400_000, "effective_from": now.plus_seconds(3_600),
        });
        set(price).await.expect(201);
        let jobs = format!("/orgs/{org}/jobs");
        let rate = async |preemptible: bool| {
            let mut body = job();
            body["preemptible"] = json!(preemptible);
            t.post(&ada, &jobs, body).await.expect(201)["nano_per_second"].as_i64().unwrap()
        };
        assert_eq!((rate(false).await, rate(true).await), (1_000_000, 1_000_000), "{engine}: not yet");
        t.clock.advance_s(3_601);
        assert_eq!((rate(false).await, rate(true).await), (2_000_000, 1_000_000), "{engine}");
        // One that holds at once comes before one that is to hold later, whatever their numbers.
        let later = json!({"offering": SLICE, "per_hour_micros": 36_000_000, "effective_from": t.portal.now().plus_seconds(3_600)});
        set(later).await.expect(201);
        set(json!({"offering": SLICE, "per_hour_micros": 10_800_000})).await.expect(201);
        assert_eq!(rate(false).await, 3_000_000, "{engine}");
        t.clock.advance_s(3_601);
        assert_eq!(rate(false).await, 10_000_000, "{engine}");
        for (body, pointer) in [
            (json!({"offering": SLICE, "per_hour_micros": -1}), "/per_hour_micros"),
            (json!({"offering": SLICE, "per_hour_micros": 1, "reserved_per_hour_micros": i64::MAX}), "/reserved_per_hour_micros"),
            (json!({"offering": SLICE, "per_hour_micros": 1, "effective_from": now.plus_seconds(-3_600)}), "/effective_from"),
            (json!({"offering": "rtx", "per_hour_micros": 1}), "/offering"),
        ] {
            let problem = set(body).await.problem(422, "request.invalid");
            assert_eq!(problem["errors"][0]["pointer"], pointer, "{engine} {problem}");
        }
        let listed = t.get(&operator, &format!("/operator/prices?offering={SLICE}")).await.expect(200);
        let versions: Vec<i64> =
            listed["items"].as_array().unwrap().iter().map(|v| v["version"].as_i64().unwrap()).collect();
        assert_eq!(versions, [4, 3, 2, 1], "{engine}: none is ever edited");
        t.get(&ada, &format!("/operator/prices?offering={SLICE}")).await.expect(404);
    }
}

#[tokio::test]
async fn an_account_goes_below_nothing_by_its_limit_and_no_further() {
    for (engine, db, _place) in engines("limits").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        t.stock(&operator, &org, 60_000).await;
        let jobs = format!("/orgs/{org}/jobs");
        t.post(&ada, &jobs, job()).await.expect(201);
        t.post(&ada, &jobs, job()).await.problem(402, "funds.insufficient");
        let limit = format!("/operator/orgs/{org}/credit-limit");
        let put = |micros: i64| t.call(&operator, "PUT", &limit, json!({"credit_limit_micros": micros}));
        let balance = put(120_000).await.expect(200);
        assert_eq!((&balance["available_micros"], &balance["credit_limit_micros"]), (&json!(120_000), &json!(120_000)));
        let all = futures::future::join_all((0..20).map(|_| t.post(&ada, &jobs, job()))).await;
        assert_eq!(all.iter().filter(|r| r.status.as_u16() == 201).count(), 2, "{engine}");
        put(60_000).await.problem(409, "credit_limit.drawn");
        put(-1).await.problem(422, "request.invalid");
        t.call(&ada, "PUT", &limit, json!({"credit_limit_micros": 1})).await.expect(404);

        // Money may be taken back, as far as it is there.
        let debits = format!("/operator/orgs/{org}/debits");
        let debit = |micros: i64| t.post(&operator, &debits, json!({"amount_micros": micros, "memo": "Refund"}));
        debit(1).await.problem(402, "funds.insufficient");
        let credit = json!({"amount_micros": 500_000});
        t.post(&operator, &format!("/operator/orgs/{org}/credits"), credit).await.expect(201);
        let after = debit(400_000).await.expect(201);
        assert_eq!(after["available_micros"], 100_000, "{engine} {after}");
        debit(0).await.problem(422, "request.invalid");
        t.post(&ada, &debits, json!({"amount_micros": 1, "memo": "x"})).await.expect(404);
        let statement = t.get(&ada, &format!("/orgs/{org}/transfers")).await.expect(200);
        assert_eq!((&statement["items"][0]["kind"], &statement["items"][0]["amount_micros"]), (&json!("debit"), &json!(-400_000)));
        let books = t.post(&operator, "/operator/reconciliation", Value::Null).await.expect(200);
        assert_eq!(books["mismatches"], json!([]), "{engine} {books}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_used_is_told_by_day_offering_member_and_label() {
    let quay = Quay::open().await;
    let labelled = |project: &str, preemptible: bool| {
        json!({"script": "sleep 0.3", "labels": {"project": project}, "preemptible": preemptible})
    };
    for (project, preemptible) in [("alpha", false), ("beta", true), ("alpha", false)] {
        let id = quay.submit(labelled(project, preemptible)).await;
        assert_eq!(quay.ended(&id).await["state"], "succeeded");
    }
    let get = async |query: &str| {
        let path = format!("/orgs/{}/usage{query}", quay.org);
        quay.t.get(&quay.ada, &path).await.expect(200)
    };
    let keys = |usage: &Value| -> Vec<String> {
        usage["rows"].as_array().unwrap().iter().map(|r| r["key"].as_str().unwrap().to_owned()).collect()
    };
    let all = get("").await;
    let transfers = quay.t.get(&quay.ada, &format!("/orgs/{}/transfers", quay.org)).await.expect(200);
    let charged: i64 = transfers["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|t| t["kind"] == "usage")
        .map(|t| -t["amount_micros"].as_i64().unwrap())
        .sum();
    assert_eq!(all["cost_micros"], charged, "{all}");
    assert!(all["device_ms"].as_i64().unwrap() >= 900, "{all}");
    assert_eq!((keys(&get("?group=offering").await), keys(&get("?group=member").await)), (vec![SLICE.to_owned()], vec!["Ada".to_owned()]));
    assert_eq!(keys(&get("?group=mode").await), ["on_demand", "preemptible"]);
    let by_label = get("?group=label&label=project").await;
    assert_eq!(keys(&by_label), ["alpha", "beta"]);
    let sum: i64 = by_label["rows"].as_array().unwrap().iter().map(|r| r["cost_micros"].as_i64().unwrap()).sum();
    assert_eq!(sum, charged);
    assert_eq!(get("?from=2020-01-01&until=2020-01-31").await["rows"], json!([]));
    let path = format!("/orgs/{}/usage", quay.org);
    for bad in ["?group=label", "?from=yesterday", "?from=2026-01-02&until=2026-01-01", "?from=2020-01-01&until=2026-01-01"] {
        quay.t.get(&quay.ada, &format!("{path}{bad}")).await.problem(400, "request.malformed");
    }
    let As::Cookie(cookie) = &quay.ada else { panic!("a person") };
    let request = axum::http::Request::builder().uri(format!("/api/v1{path}?format=csv")).header("cookie", cookie);
    let request = request.body(axum::body::Body::empty()).unwrap();
    let response = tower::ServiceExt::oneshot(quay.t.router.clone(), request).await.unwrap();
    let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    assert!(text.starts_with("day,key,device_ms,cost_micros,currency\n2026-11-"), "{text}");
    let (bob, other) = quay.t.tenant("bobs").await;
    quay.t.get(&bob, &path).await.expect(404);
    assert_eq!(quay.t.get(&bob, &format!("/orgs/{other}/usage")).await.expect(200)["cost_micros"], 0);

    // What another price would have meant for what ran.
    let preview = json!({"offering": SLICE, "per_hour_micros": 7_200_000});
    let preview = quay.t.post(&quay.operator, "/operator/prices?preview=true", preview).await.expect(200);
    assert_eq!((&preview["jobs"], &preview["charged_micros"]), (&json!(3), &json!(charged)), "{preview}");
    assert!((charged * 2 - 3..=charged * 2).contains(&preview["would_micros"].as_i64().unwrap()), "{preview}");
    let books = quay.t.get(&quay.operator, "/operator/reconciliation").await.expect(200);
    assert_eq!((&books["mismatches"], books["transfers"].as_i64() > Some(3)), (&json!([]), true), "{books}");
    quay.t.get(&quay.ada, "/operator/reconciliation").await.expect(404);
}

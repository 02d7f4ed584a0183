//! Tests of prices, credit limits, usage, budgets, invoices and reconciliations.

use crate::common::{Caller, TestPortal, engines, job};
use crate::worker_portal::WorkerPortal;
use berth_server::loops;
use serde_json::{Value, json};

const SLICE: &str = "h100-80gb.1g.10gb";

#[tokio::test]
async fn a_price_has_modes_and_a_date_and_never_changes_the_past() {
    for (engine, db, _location) in engines("prices").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        t.add_price_and_credit(&operator, &org, 1_000_000_000).await;
        let set = |body: Value| t.post(&operator, "/operator/prices", body);
        let now = t.portal.context.now();
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
        // An immediate price applies before a later one, despite its higher version.
        let later = json!({"offering": SLICE, "per_hour_micros": 36_000_000, "effective_from": t.portal.context.now().plus_seconds(3_600)});
        set(later).await.expect(201);
        set(json!({"offering": SLICE, "per_hour_micros": 10_800_000})).await.expect(201);
        assert_eq!(rate(false).await, 3_000_000, "{engine}");
        t.clock.advance_s(3_601);
        assert_eq!(rate(false).await, 10_000_000, "{engine}");
        for (body, pointer) in [
            (json!({"offering": SLICE, "per_hour_micros": -1}), "/per_hour_micros"),
            (
                json!({"offering": SLICE, "per_hour_micros": 1, "reserved_per_hour_micros": i64::MAX}),
                "/reserved_per_hour_micros",
            ),
            (
                json!({"offering": SLICE, "per_hour_micros": 1, "effective_from": now.plus_seconds(-3_600)}),
                "/effective_from",
            ),
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
async fn a_balance_is_negative_by_at_most_its_credit_limit() {
    for (engine, db, _location) in engines("limits").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        t.add_price_and_credit(&operator, &org, 60_000).await;
        let jobs = format!("/orgs/{org}/jobs");
        t.post(&ada, &jobs, job()).await.expect(201);
        t.post(&ada, &jobs, job()).await.problem(402, "funds.insufficient");
        let limit = format!("/operator/orgs/{org}/credit-limit");
        let put = |micros: i64| t.call(&operator, "PUT", &limit, json!({"credit_limit_micros": micros}));
        let balance = put(120_000).await.expect(200);
        assert_eq!(
            (&balance["available_micros"], &balance["credit_limit_micros"]),
            (&json!(120_000), &json!(120_000))
        );
        let all = futures::future::join_all((0..20).map(|_| t.post(&ada, &jobs, job()))).await;
        assert_eq!(all.iter().filter(|r| r.status.as_u16() == 201).count(), 2, "{engine}");
        put(60_000).await.problem(409, "credit_limit.drawn");
        put(-1).await.problem(422, "request.invalid");
        t.call(&ada, "PUT", &limit, json!({"credit_limit_micros": 1})).await.expect(404);

        // A debit is limited by the available money.
        let debits = format!("/operator/orgs/{org}/debits");
        let debit =
            |micros: i64| t.post(&operator, &debits, json!({"amount_micros": micros, "memo": "Refund"}));
        debit(1).await.problem(402, "funds.insufficient");
        let credit = json!({"amount_micros": 500_000});
        t.post(&operator, &format!("/operator/orgs/{org}/credits"), credit).await.expect(201);
        let after = debit(400_000).await.expect(201);
        assert_eq!(after["available_micros"], 100_000, "{engine} {after}");
        debit(0).await.problem(422, "request.invalid");
        t.post(&ada, &debits, json!({"amount_micros": 1, "memo": "x"})).await.expect(404);
        let statement = t.get(&ada, &format!("/orgs/{org}/transfers")).await.expect(200);
        assert_eq!(
            (&statement["items"][0]["kind"], &statement["items"][0]["amount_micros"]),
            (&json!("debit"), &json!(-400_000))
        );
        let books = t.post(&operator, "/operator/reconciliation", Value::Null).await.expect(200);
        assert_eq!(books["mismatches"], json!([]), "{engine} {books}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_is_reported_by_day_offering_member_and_label() {
    let setup = WorkerPortal::open().await;
    let labelled = |project: &str, preemptible: bool| json!({"script": "sleep 0.3", "labels": {"project": project}, "preemptible": preemptible});
    for (project, preemptible) in [("alpha", false), ("beta", true), ("alpha", false)] {
        let id = setup.submit(labelled(project, preemptible)).await;
        assert_eq!(setup.until_ended(&id).await["state"], "succeeded");
    }
    let get = async |query: &str| {
        let path = format!("/orgs/{}/usage{query}", setup.org);
        setup.t.get(&setup.ada, &path).await.expect(200)
    };
    let keys = |usage: &Value| -> Vec<String> {
        usage["rows"].as_array().unwrap().iter().map(|r| r["key"].as_str().unwrap().to_owned()).collect()
    };
    let all = get("").await;
    let transfers = setup.t.get(&setup.ada, &format!("/orgs/{}/transfers", setup.org)).await.expect(200);
    let charged: i64 = transfers["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|t| t["kind"] == "usage")
        .map(|t| -t["amount_micros"].as_i64().unwrap())
        .sum();
    assert_eq!(all["cost_micros"], charged, "{all}");
    assert!(all["device_ms"].as_i64().unwrap() >= 900, "{all}");
    assert_eq!(
        (keys(&get("?group=offering").await), keys(&get("?group=member").await)),
        (vec![SLICE.to_owned()], vec!["Ada".to_owned()])
    );
    assert_eq!(keys(&get("?group=mode").await), ["on_demand", "preemptible"]);
    let by_label = get("?group=label&label=project").await;
    assert_eq!(keys(&by_label), ["alpha", "beta"]);
    let sum: i64 =
        by_label["rows"].as_array().unwrap().iter().map(|r| r["cost_micros"].as_i64().unwrap()).sum();
    assert_eq!(sum, charged);
    assert_eq!(get("?from=2020-01-01&until=2020-01-31").await["rows"], json!([]));
    let path = format!("/orgs/{}/usage", setup.org);
    for bad in [
        "?group=label",
        "?from=yesterday",
        "?from=2026-01-02&until=2026-01-01",
        "?from=2020-01-01&until=2026-01-01",
    ] {
        setup.t.get(&setup.ada, &format!("{path}{bad}")).await.problem(400, "request.malformed");
    }
    let Caller::Cookie(cookie) = &setup.ada else { panic!("a person") };
    let request =
        axum::http::Request::builder().uri(format!("/api/v1{path}?format=csv")).header("cookie", cookie);
    let request = request.body(axum::body::Body::empty()).unwrap();
    let response = tower::ServiceExt::oneshot(setup.t.router.clone(), request).await.unwrap();
    let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    assert!(text.starts_with("day,key,device_ms,cost_micros,currency\n2026-11-"), "{text}");
    let (bob, other) = setup.t.tenant("bobs").await;
    setup.t.get(&bob, &path).await.expect(404);
    assert_eq!(setup.t.get(&bob, &format!("/orgs/{other}/usage")).await.expect(200)["cost_micros"], 0);

    // The preview shows the charges of these jobs at another price.
    let preview = json!({"offering": SLICE, "per_hour_micros": 7_200_000});
    let preview = setup.t.post(&setup.operator, "/operator/prices?preview=true", preview).await.expect(200);
    assert_eq!((&preview["jobs"], &preview["charged_micros"]), (&json!(3), &json!(charged)), "{preview}");
    assert!(
        (charged * 2 - 3..=charged * 2).contains(&preview["would_micros"].as_i64().unwrap()),
        "{preview}"
    );
    let books = setup.t.get(&setup.operator, "/operator/reconciliation").await.expect(200);
    assert_eq!((&books["mismatches"], books["transfers"].as_i64() > Some(3)), (&json!([]), true), "{books}");
    setup.t.get(&setup.ada, "/operator/reconciliation").await.expect(404);
    let new = json!({"name": "prometheus"});
    let token = setup.t.post(&setup.operator, "/operator/metrics-tokens", new).await.expect(201);
    let bearer = format!("Bearer {}", token["secret"].as_str().unwrap());
    let request = axum::http::Request::builder().uri("/metrics").header("authorization", bearer);
    let request = request.body(axum::body::Body::empty()).unwrap();
    let response = tower::ServiceExt::oneshot(setup.t.router.clone(), request).await.unwrap();
    let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    for line in ["berth_ledger_mismatches 0", "berth_nodes{state=\"ready\"} 1", "# TYPE berth_jobs gauge"] {
        assert!(text.lines().any(|l| l == line), "{line}: {text}");
    }
}

#[tokio::test]
async fn a_refusing_budget_is_never_exceeded() {
    for (engine, db, _location) in engines("budgets").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        let (bob, _) = t.tenant("bobs").await;
        t.add_price_and_credit(&operator, &org, 1_000_000_000).await;
        let budgets = format!("/orgs/{org}/budgets");
        for (body, pointer) in [
            (json!({"name": " ", "limit_micros": 1}), "/name"),
            (json!({"name": "b", "limit_micros": 0}), "/limit_micros"),
            (json!({"name": "b", "limit_micros": 1, "label": "project"}), "/value"),
        ] {
            let problem = t.post(&ada, &budgets, body).await.problem(422, "request.invalid");
            assert_eq!(problem["errors"][0]["pointer"], pointer, "{engine} {problem}");
        }
        t.post(&bob, &budgets, json!({"name": "b", "limit_micros": 1})).await.expect(404);
        // The limit equals three worst-case prices, for one project.
        let alpha = json!({"name": "alpha", "label": "project", "value": "alpha", "limit_micros": 180_000, "at_limit": "refuse"});
        let budget = t.post(&ada, &budgets, alpha).await.expect(201);
        let twin = json!({"name": " alpha ", "limit_micros": 1});
        let problem = t.post(&ada, &budgets, twin).await.problem(422, "request.invalid");
        assert_eq!(problem["errors"][0]["pointer"], "/name", "{engine} {problem}");
        let labelled = |project: &str| {
            let mut body = job();
            body["labels"] = json!({"project": project});
            body
        };
        let jobs = format!("/orgs/{org}/jobs");
        let all = futures::future::join_all((0..10).map(|_| t.post(&ada, &jobs, labelled("alpha")))).await;
        let made: Vec<&Value> = all.iter().filter(|r| r.status.as_u16() == 201).map(|r| &r.body).collect();
        assert_eq!(made.len(), 3, "{engine}");
        let refused = all.iter().find(|r| r.status.as_u16() == 403).unwrap();
        assert_eq!(refused.body["code"], "budget.exceeded", "{engine}");
        let words = "The maximum cost is $0.06. Budget alpha: $0.18 a month, $0.00 left";
        assert!(refused.body["detail"].as_str().unwrap().starts_with(words), "{engine} {}", refused.body);
        t.post(&ada, &jobs, labelled("beta")).await.expect(201);
        let listed = t.get(&ada, &budgets).await.expect(200);
        assert_eq!(
            (&listed["items"][0]["spent_micros"], &listed["items"][0]["committed_micros"]),
            (&json!(0), &json!(180_000))
        );
        let extend = format!("{jobs}/{}/extend", made[0]["id"].as_str().unwrap());
        t.post(&ada, &extend, json!({"max_duration_s": 61})).await.problem(403, "budget.exceeded");
        let cancel = format!("{jobs}/{}/cancel", made[0]["id"].as_str().unwrap());
        t.post(&ada, &cancel, Value::Null).await.expect(202);
        t.post(&ada, &jobs, labelled("alpha")).await.expect(201);
        let path = format!("{budgets}/{}", budget["id"].as_str().unwrap());
        t.call(&bob, "DELETE", &path, Value::Null).await.expect(404);
        t.call(&ada, "DELETE", &path, Value::Null).await.expect(204);
        t.post(&ada, &jobs, labelled("alpha")).await.expect(201);
    }
}

#[tokio::test]
async fn the_refusal_of_a_longer_time_limit_has_exact_amounts() {
    let t = TestPortal::sqlite().await;
    let operator = t.operator().await;
    let (ada, org) = t.tenant("lab").await;
    t.add_price_and_credit(&operator, &org, 300_001).await;
    let price = json!({"offering": SLICE, "per_hour_micros": 150_000});
    t.post(&operator, "/operator/prices", price).await.expect(201);
    let mut hour = job();
    hour["max_duration_s"] = json!(3_600);
    let jobs = format!("/orgs/{org}/jobs");
    let made = t.post(&ada, &jobs, hour).await.expect(201);
    assert_eq!(made["held_micros"], 150_001, "{made}");
    let extend = format!("{jobs}/{}/extend", made["id"].as_str().unwrap());
    let two_hours = json!({"max_duration_s": 7_200});
    let problem = t.post(&ada, &extend, two_hours).await.problem(402, "funds.insufficient");
    let words = "The longer time limit can cost $0.150001 more, and $0.15 is available.";
    assert!(problem["detail"].as_str().unwrap().starts_with(words), "{problem}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spent_budget_stops_running_jobs() {
    let setup = WorkerPortal::open().await;
    let running = setup.submit(json!({"script": "exec sleep 300", "max_duration_s": 600})).await;
    setup.until(&running, |j| j["metered_ms"].as_i64() > Some(1_000)).await;
    let hooks = format!("/orgs/{}/webhooks", setup.org);
    let hook = json!({"url": "http://127.0.0.1:9/hook", "kinds": ["budget.*"]});
    let hook = setup.t.post(&setup.ada, &hooks, hook).await.expect(201);
    let budgets = format!("/orgs/{}/budgets", setup.org);
    let body = json!({"name": "all", "limit_micros": 1_000, "at_limit": "stop"});
    setup.t.post(&setup.ada, &budgets, body).await.expect(201);
    loops::check_budgets(&setup.t.portal.budgets, &setup.t.portal.attempts, None).await.unwrap();
    loops::check_budgets(&setup.t.portal.budgets, &setup.t.portal.attempts, None).await.unwrap();
    let done = setup.until_ended(&running).await;
    let failure = json!({"code": "budget.spent", "detail": "The budget all is spent."});
    assert_eq!((&done["state"], &done["failure"]), (&json!("cancelled"), &failure), "{done}");
    let listed = setup.t.get(&setup.ada, &budgets).await.expect(200);
    assert_eq!(listed["items"][0]["passed_percent"], 100, "{listed}");
    setup.t.portal.webhooks.deliver().await.unwrap();
    let path = format!("{hooks}/{}/deliveries", hook["id"].as_str().unwrap());
    let deliveries = setup.t.get(&setup.ada, &path).await.expect(200);
    assert_eq!(deliveries["items"].as_array().unwrap().len(), 1, "told once: {deliveries}");
    assert_eq!(deliveries["items"][0]["subject"], "Budget all: 100 % spent");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_stops_running_jobs_with_the_charge_that_spends_it() {
    let setup = WorkerPortal::open().await;
    let running = setup.submit(json!({"script": "exec sleep 300", "max_duration_s": 600})).await;
    let job = setup.until(&running, |j| j["metered_ms"].as_i64() > Some(1_000)).await;
    // The loop checks at its start, and without a charge only after 30 s.
    let looks = loops::start_budgets(&setup.t.portal);
    let limit = job["cost_micros"].as_i64().unwrap() + 3_000;
    let body = json!({"name": "all", "limit_micros": limit, "at_limit": "stop"});
    setup.t.post(&setup.ada, &format!("/orgs/{}/budgets", setup.org), body).await.expect(201);
    let done = setup.until_ended(&running).await;
    looks.abort();
    assert_eq!(done["state"], "cancelled", "{done}");
    let cost = done["cost_micros"].as_i64().unwrap();
    // The rate is 1000 micro-units a second, so the stop came with the next report.
    assert!((limit..limit + 6_000).contains(&cost), "{cost} of {limit}");
    setup.assert_settled(&done).await;
}

/// Records a charge like the end of a job.
pub async fn record_charge(t: &TestPortal, org: &str, micros: i64) {
    use berth_store as store;
    use futures::FutureExt;
    let (org, at) = (org.parse().unwrap(), t.portal.context.now());
    let work = t.portal.context.db.write(move |tx| {
        async move {
            let charged = store::usage::Charge {
                org,
                day: at.micros() / 86_400_000_000,
                offering: "none",
                mode: store::usage::UsageMode::OnDemand,
                member: "Ada",
                price_version: 0,
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

#[tokio::test]
async fn months_are_billed_once_numbered_without_gaps_and_final() {
    for (engine, db, location) in engines("invoices").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (_ada, org) = t.tenant("lab").await;
        let (_bob, other) = t.tenant("bobs").await;
        t.tenant("idle").await;
        t.add_price_and_credit(&operator, &org, 1_000_000_000).await;
        let settings = json!({"seller": "Harbour Ltd\nPier 1", "taxes": [{"name": "VAT", "basis_points": 2_000}], "due_days": 14});
        t.call(&operator, "PUT", "/operator/billing-settings", settings).await.expect(200);
        let limit = json!({"credit_limit_micros": 50_000_000});
        t.call(&operator, "PUT", &format!("/operator/orgs/{other}/credit-limit"), limit).await.expect(200);
        record_charge(&t, &org, 1_000_000).await;
        record_charge(&t, &other, 2_000_000).await;
        assert_eq!(t.portal.invoices.bill_last_month().await.unwrap(), 0, "{engine}: this month is not over");
        t.clock.advance_s(20 * 86_400);
        let [ada, bob, operator] = [
            t.sign_in("lab@example.org").await,
            t.sign_in("bobs@example.org").await,
            t.sign_in("harbour@example.org").await,
        ];
        let made = futures::future::join_all((0..4).map(|_| t.portal.invoices.bill_last_month())).await;
        let made: usize = made.into_iter().map(Result::unwrap).sum();
        assert_eq!(made, 2, "{engine}: whoever used something, once");
        let mine = t.get(&ada, &format!("/orgs/{org}/invoices")).await.expect(200)["items"][0].clone();
        let theirs = t.get(&bob, &format!("/orgs/{other}/invoices")).await.expect(200)["items"][0].clone();
        assert_eq!((&mine["state"], &theirs["state"]), (&json!("paid"), &json!("open")), "{engine}");
        assert_eq!(theirs["document"]["total_micros"], 2_400_000, "{engine} {theirs}");
        let mut numbers = [mine["number"].as_i64().unwrap(), theirs["number"].as_i64().unwrap()];
        numbers.sort_unstable();
        assert_eq!(numbers, [1, 2], "{engine}");
        let path = |i: &Value| format!("/orgs/{org}/invoices/{}", i["id"].as_str().unwrap());
        assert_eq!(t.get(&ada, &path(&mine)).await.expect(200), mine);
        t.get(&ada, &path(&theirs)).await.expect(404);

        let close =
            |i: &Value, what: &str| format!("/operator/invoices/{}/{what}", i["id"].as_str().unwrap());
        t.post(&ada, &close(&theirs, "void"), Value::Null).await.expect(404);
        t.post(&operator, &close(&mine, "void"), Value::Null).await.problem(409, "invoice.closed");
        let void = t.post(&operator, &close(&theirs, "void"), Value::Null).await.expect(200);
        assert_eq!(void["state"], "void", "{engine}");
        t.post(&operator, &close(&theirs, "paid"), Value::Null).await.problem(409, "invoice.closed");
        let all = t.get(&operator, "/operator/invoices").await.expect(200);
        let note = &all["items"][0];
        assert_eq!(
            (&note["number"], &note["kind"], &note["corrects"]),
            (&json!(3), &json!("credit_note"), &theirs["id"]),
            "{engine}"
        );
        assert_eq!(note["document"]["total_micros"], -2_400_000, "{engine}");
        // The ledger returned the amount.
        let balance = t.get(&bob, &format!("/orgs/{other}/balance")).await.expect(200);
        assert_eq!(balance["posted_micros"], 2_000_000, "{engine} {balance}");
        // Later settings and direct SQL change no issued invoice.
        t.call(&operator, "PUT", "/operator/billing-settings", json!({"seller": "Other"})).await.expect(200);
        assert_eq!(t.get(&ada, &path(&mine)).await.expect(200), mine);
        for sql in ["UPDATE invoices SET total_micros = 1", "DELETE FROM invoices"] {
            use sqlx::Connection;
            let refused = match &location {
                crate::common::StoreLocation::Sqlite(dir) => {
                    let url = format!("sqlite://{}", dir.path().join("berth.db").display());
                    let mut raw = sqlx::SqliteConnection::connect(&url).await.unwrap();
                    sqlx::query(sql).execute(&mut raw).await.is_err()
                }
                crate::common::StoreLocation::Postgres(url) => {
                    let mut raw = sqlx::PgConnection::connect(url).await.unwrap();
                    sqlx::query(sql).execute(&mut raw).await.is_err()
                }
            };
            assert!(refused, "{engine}: {sql}");
        }
        for (body, status) in [
            (json!({"month": "2026-11"}), 201),
            (json!({"month": "2099-01"}), 422),
            (json!({"month": "x"}), 422),
        ] {
            t.post(&operator, "/operator/invoices", body).await.expect(status);
        }
        for bad in [
            json!({"due_days": 400}),
            json!({"taxes": [{"name": "", "basis_points": 1}]}),
            json!({"taxes": [{"name": "x", "basis_points": -1}]}),
        ] {
            t.call(&operator, "PUT", "/operator/billing-settings", bad).await.problem(422, "request.invalid");
        }
    }
}

#[tokio::test]
async fn a_request_with_an_idempotency_key_is_done_once_and_replayed() {
    for (engine, db, _location) in engines("keys").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        t.add_price_and_credit(&operator, &org, 0).await;
        let credits = format!("/operator/orgs/{org}/credits");
        let debits = format!("/operator/orgs/{org}/debits");
        let ask = async |path: &str, body: Value, key: &str| {
            let caller = if path.starts_with("/operator") { &operator } else { &ada };
            t.call_with(caller, "POST", path, body, &[("idempotency-key", key)]).await
        };
        let posted = async || {
            t.get(&ada, &format!("/orgs/{org}/balance")).await.expect(200)["posted_micros"].as_i64().unwrap()
        };
        let amount = |micros: i64| json!({"amount_micros": micros, "memo": "for it"});
        // A refused request changes nothing, so its key stays free.
        ask(&debits, amount(4), "d").await.problem(402, "funds.insufficient");
        let first = ask(&credits, amount(10), "c").await.expect(201);
        ask(&credits, amount(10), "c2").await.expect(201);
        assert_eq!(ask(&credits, amount(10), "c").await.expect(201), first, "{engine}: as it was then");
        for _ in 0..2 {
            assert_eq!(ask(&debits, amount(4), "d").await.expect(201)["posted_micros"], 16, "{engine}");
        }
        ask(&debits, amount(10), "c").await.problem(422, "idempotency.other_request");
        ask(&credits, amount(11), "c").await.problem(422, "idempotency.other_request");
        t.lose_answer("operator", "d", "").await;
        assert_eq!(ask(&debits, amount(4), "d").await.expect(201)["posted_micros"], 16, "{engine}: once");
        assert_eq!(posted().await, 16, "{engine}");

        let price = json!({"offering": "h100-80gb.1g.10gb", "per_hour_micros": 7_200_000});
        for lost in [false, true, false] {
            if lost {
                t.lose_answer("operator", "p", "").await;
            }
            let offering = ask("/operator/prices", price.clone(), "p").await.expect(201);
            assert_eq!(offering["price"]["version"], 2, "{engine}");
        }
        let preview = ask("/operator/prices?preview=true", price, "p2").await.expect(200);
        assert_eq!(preview["jobs"], 0, "{engine}: it does nothing, and its key stays free");
        ask(&credits, amount(1), "p2").await.expect(201);

        let body = json!({"name": "month", "limit_micros": 5});
        let jobs = format!("/orgs/{org}/jobs");
        ask(&credits, amount(1_000_000), "c3").await.expect(201);
        let reason = json!({"limits": {"running_jobs": 5}, "reason": "more"});
        for (path, body) in [
            (jobs, job()),
            (format!("/orgs/{org}/budgets"), body),
            (format!("/orgs/{org}/quota-requests"), reason),
        ] {
            let made = ask(&path, body.clone(), &path).await.expect(201);
            let id = made["id"].as_str().unwrap();
            assert_eq!(ask(&path, body.clone(), &path).await.expect(201), made, "{engine}");
            t.lose_answer(&org, &path, id).await;
            assert_eq!(ask(&path, body, &path).await.expect(201)["id"], id, "{engine}");
            let listed = t.get(&ada, &path).await.expect(200);
            assert_eq!(listed["items"].as_array().unwrap().len(), 1, "{engine} {listed}");
        }
    }
}

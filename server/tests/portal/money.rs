//! Prices by mode and date, accounts below nothing, use by day, and books that are looked at.

use crate::common::{As, TestPortal, engines, job};
use crate::quay::Quay;
use berth_server::loops;
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
        // One that holds at once comes before one that is to hold later, whatever their numbers.
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
        assert_eq!(
            (&balance["available_micros"], &balance["credit_limit_micros"]),
            (&json!(120_000), &json!(120_000))
        );
        let all = futures::future::join_all((0..20).map(|_| t.post(&ada, &jobs, job()))).await;
        assert_eq!(all.iter().filter(|r| r.status.as_u16() == 201).count(), 2, "{engine}");
        put(60_000).await.problem(409, "credit_limit.drawn");
        put(-1).await.problem(422, "request.invalid");
        t.call(&ada, "PUT", &limit, json!({"credit_limit_micros": 1})).await.expect(404);

        // Money may be taken back, as far as it is there.
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
async fn what_was_used_is_told_by_day_offering_member_and_label() {
    let quay = Quay::open().await;
    let labelled = |project: &str, preemptible: bool| json!({"script": "sleep 0.3", "labels": {"project": project}, "preemptible": preemptible});
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
    let path = format!("/orgs/{}/usage", quay.org);
    for bad in [
        "?group=label",
        "?from=yesterday",
        "?from=2026-01-02&until=2026-01-01",
        "?from=2020-01-01&until=2026-01-01",
    ] {
        quay.t.get(&quay.ada, &format!("{path}{bad}")).await.problem(400, "request.malformed");
    }
    let As::Cookie(cookie) = &quay.ada else { panic!("a person") };
    let request =
        axum::http::Request::builder().uri(format!("/api/v1{path}?format=csv")).header("cookie", cookie);
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
    assert!(
        (charged * 2 - 3..=charged * 2).contains(&preview["would_micros"].as_i64().unwrap()),
        "{preview}"
    );
    let books = quay.t.get(&quay.operator, "/operator/reconciliation").await.expect(200);
    assert_eq!((&books["mismatches"], books["transfers"].as_i64() > Some(3)), (&json!([]), true), "{books}");
    quay.t.get(&quay.ada, "/operator/reconciliation").await.expect(404);
    let new = json!({"name": "prometheus"});
    let token = quay.t.post(&quay.operator, "/operator/metrics-tokens", new).await.expect(201);
    let bearer = format!("Bearer {}", token["secret"].as_str().unwrap());
    let request = axum::http::Request::builder().uri("/metrics").header("authorization", bearer);
    let request = request.body(axum::body::Body::empty()).unwrap();
    let response = tower::ServiceExt::oneshot(quay.t.router.clone(), request).await.unwrap();
    let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    for line in ["berth_ledger_mismatches 0", "berth_nodes{state=\"ready\"} 1", "# TYPE berth_jobs gauge"] {
        assert!(text.lines().any(|l| l == line), "{line}: {text}");
    }
}

#[tokio::test]
async fn a_budget_that_refuses_is_never_exceeded_and_tells_in_time() {
    for (engine, db, _place) in engines("budgets").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        let (bob, _) = t.tenant("bobs").await;
        t.stock(&operator, &org, 1_000_000_000).await;
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
        // Three jobs at their longest, for one project only.
        let alpha = json!({"name": "alpha", "label": "project", "value": "alpha", "limit_micros": 180_000, "at_limit": "refuse"});
        let budget = t.post(&ada, &budgets, alpha).await.expect(201);
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

#[tokio::test(flavor = "multi_thread")]
async fn a_spent_budget_stops_what_runs_under_it() {
    let quay = Quay::open().await;
    let running = quay.submit(json!({"script": "exec sleep 300", "max_duration_s": 600})).await;
    quay.until(&running, |j| j["metered_ms"].as_i64() > Some(1_000)).await;
    let hooks = format!("/orgs/{}/webhooks", quay.org);
    let hook = json!({"url": "http://127.0.0.1:9/hook", "kinds": ["budget.*"]});
    let hook = quay.t.post(&quay.ada, &hooks, hook).await.expect(201);
    let budgets = format!("/orgs/{}/budgets", quay.org);
    let body = json!({"name": "all", "limit_micros": 1_000, "at_limit": "stop"});
    quay.t.post(&quay.ada, &budgets, body).await.expect(201);
    loops::check_budgets(&quay.t.portal.budgets, &quay.t.portal.attempts).await.unwrap();
    loops::check_budgets(&quay.t.portal.budgets, &quay.t.portal.attempts).await.unwrap();
    let done = quay.ended(&running).await;
    assert_eq!(done["state"], "cancelled", "{done}");
    let listed = quay.t.get(&quay.ada, &budgets).await.expect(200);
    assert_eq!(listed["items"][0]["passed_percent"], 100, "{listed}");
    quay.t.portal.webhooks.deliver().await.unwrap();
    let path = format!("{hooks}/{}/deliveries", hook["id"].as_str().unwrap());
    let told = quay.t.get(&quay.ada, &path).await.expect(200);
    assert_eq!(told["items"].as_array().unwrap().len(), 1, "told once: {told}");
    assert_eq!(told["items"][0]["subject"], "100 % of the budget all is spent");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_stops_what_runs_as_soon_as_it_is_spent() {
    let quay = Quay::open().await;
    let running = quay.submit(json!({"script": "exec sleep 300", "max_duration_s": 600})).await;
    let job = quay.until(&running, |j| j["metered_ms"].as_i64() > Some(1_000)).await;
    // The loop looks at once, and without a charge not again for half a minute.
    let looks = loops::start_budgets(&quay.t.portal);
    let limit = job["cost_micros"].as_i64().unwrap() + 3_000;
    let body = json!({"name": "all", "limit_micros": limit, "at_limit": "stop"});
    quay.t.post(&quay.ada, &format!("/orgs/{}/budgets", quay.org), body).await.expect(201);
    let done = quay.ended(&running).await;
    looks.abort();
    assert_eq!(done["state"], "cancelled", "{done}");
    let cost = done["cost_micros"].as_i64().unwrap();
    // A thousand micros a second: it was looked at with the next report.
    assert!((limit..limit + 6_000).contains(&cost), "{cost} of {limit}");
    quay.settled(&done).await;
}

/// Ends a job's run as its worker would, and so charges it.
async fn charged_month(t: &TestPortal, org: &str, micros: i64) {
    use berth_store as store;
    use futures::FutureExt;
    let (org, at) = (org.to_owned(), t.portal.context.now());
    let work = t.portal.context.db.write(move |tx| {
        let org = org.clone();
        async move {
            let charged = store::usage::Charged {
                org: &org,
                day: at.micros() / 86_400_000_000,
                offering: "none",
                mode: "on_demand",
                member: "Ada",
                labels: Vec::new(),
                device_milli_ms: 3_600_000_000,
                cost_micros: micros,
            };
            store::usage::count(tx, &charged).await
        }
        .boxed()
    });
    work.await.unwrap();
}

#[tokio::test]
async fn months_are_billed_once_numbered_without_gaps_and_final() {
    for (engine, db, place) in engines("invoices").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (_ada, org) = t.tenant("lab").await;
        let (_bob, other) = t.tenant("bobs").await;
        t.tenant("idle").await;
        t.stock(&operator, &org, 1_000_000_000).await;
        let settings = json!({"seller": "Harbour Ltd\nPier 1", "taxes": [{"name": "VAT", "basis_points": 2_000}], "due_days": 14});
        t.call(&operator, "PUT", "/operator/billing-settings", settings).await.expect(200);
        let limit = json!({"credit_limit_micros": 50_000_000});
        t.call(&operator, "PUT", &format!("/operator/orgs/{other}/credit-limit"), limit).await.expect(200);
        charged_month(&t, &org, 1_000_000).await;
        charged_month(&t, &other, 2_000_000).await;
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
        // What the books gave back.
        let balance = t.get(&bob, &format!("/orgs/{other}/balance")).await.expect(200);
        assert_eq!(balance["posted_micros"], 2_000_000, "{engine} {balance}");
        // Later settings change nothing that was issued, and nor can anything else.
        t.call(&operator, "PUT", "/operator/billing-settings", json!({"seller": "Other"})).await.expect(200);
        assert_eq!(t.get(&ada, &path(&mine)).await.expect(200), mine);
        for sql in ["UPDATE invoices SET total_micros = 1", "DELETE FROM invoices"] {
            use sqlx::Connection;
            let refused = match &place {
                crate::common::Place::Sqlite(dir) => {
                    let url = format!("sqlite://{}", dir.path().join("berth.db").display());
                    let mut raw = sqlx::SqliteConnection::connect(&url).await.unwrap();
                    sqlx::query(sql).execute(&mut raw).await.is_err()
                }
                crate::common::Place::Postgres(url) => {
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
async fn what_has_a_key_is_done_once_and_answered_as_it_was() {
    for (engine, db, _place) in engines("keys").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        t.stock(&operator, &org, 0).await;
        let credits = format!("/operator/orgs/{org}/credits");
        let debits = format!("/operator/orgs/{org}/debits");
        let ask = async |path: &str, body: Value, key: &str| {
            let who = if path.starts_with("/operator") { &operator } else { &ada };
            t.call_with(who, "POST", path, body, &[("idempotency-key", key)]).await
        };
        let posted = async || {
            t.get(&ada, &format!("/orgs/{org}/balance")).await.expect(200)["posted_micros"].as_i64().unwrap()
        };
        let amount = |micros: i64| json!({"amount_micros": micros, "memo": "for it"});
        // What was refused changed nothing, so it is not what the key stands for.
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

//! Tests of the REST API in process, from the view of a customer's script.

use crate::common::{Caller, PASSWORD, TestPortal, engines, job};
use axum::body::Body;
use axum::http::{Request, header};
use berth_store as store;
use serde_json::{Value, json};

#[tokio::test]
async fn set_up_works_once_and_only_with_the_printed_token() {
    let t = TestPortal::sqlite().await;
    assert_eq!(t.get(&Caller::Nobody, "/info").await.expect(200)["needs_setup"], true);
    let body = |token: &str| json!({"token": token, "email": "a@b.c", "password": PASSWORD, "name": "A"});
    t.post(&Caller::Nobody, "/setup", body("guess")).await.problem(422, "request.invalid");
    let token = t.portal.accounts.open_setup().await.unwrap().unwrap();
    t.post(&Caller::Nobody, "/setup", body(&token)).await.expect(201);
    t.post(&Caller::Nobody, "/setup", body(&token)).await.problem(409, "setup.done");
    assert_eq!(t.portal.accounts.open_setup().await.unwrap(), None);
    assert_eq!(t.get(&Caller::Nobody, "/info").await.expect(200)["needs_setup"], false);
}

#[tokio::test]
async fn sessions_open_close_and_expire() {
    let t = TestPortal::sqlite().await;
    let (ada, org) = t.tenant("lab").await;
    let me = t.get(&ada, "/me").await.expect(200);
    assert_eq!(me["memberships"][0]["org"]["id"], org);
    assert_eq!(me["memberships"][0]["role"], "owner");
    for (email, password) in
        [("lab@example.org", "wrong wrong wrong wrong"), ("nobody@example.org", PASSWORD)]
    {
        let reply = t.post(&Caller::Nobody, "/sessions", json!({"email": email, "password": password})).await;
        reply.problem(401, "auth.wrong_password");
    }
    t.clock.advance_s(11 * 3_600);
    t.get(&ada, "/me").await.expect(200);
    t.clock.advance_s(11 * 3_600);
    t.get(&ada, "/me").await.expect(200);
    t.clock.advance_s(13 * 3_600);
    t.get(&ada, "/me").await.problem(401, "auth.required");
    let ada = t.sign_in("lab@example.org").await;
    t.call(&ada, "DELETE", "/sessions/current", Value::Null).await.expect(204);
    t.get(&ada, "/me").await.problem(401, "auth.required");
    t.get(&Caller::Cookie("berth_session=forged".into()), "/me").await.problem(401, "auth.required");
}

#[tokio::test]
async fn invalid_sign_up_fields_are_each_reported_by_pointer() {
    let t = TestPortal::sqlite().await;
    let good = json!({"email": "x@y.z", "password": PASSWORD, "name": "X", "organization": "O"});
    let cases = [
        ("/email", json!("no address")),
        ("/email", json!("a b@c")),
        ("/name", json!("")),
        ("/name", json!("x".repeat(50_000))),
        ("/password", json!("short")),
        ("/password", json!("passwordpassword")),
        ("/organization", json!("a\u{0}b")),
    ];
    for (pointer, value) in cases {
        let mut body = good.clone();
        *body.pointer_mut(pointer).unwrap() = value;
        let problem = t.post(&Caller::Nobody, "/sign-up", body).await.problem(422, "request.invalid");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
    }
    let large = json!({"email": "x".repeat(1 << 20)});
    t.post(&Caller::Nobody, "/sign-up", large).await.problem(413, "request.too_large");
    t.post(&Caller::Nobody, "/sign-up", good.clone()).await.expect(201);
    t.post(&Caller::Nobody, "/sign-up", good).await.problem(409, "account.exists");
}

#[tokio::test]
async fn tokens_carry_a_role_expire_and_are_revoked() {
    let t = TestPortal::sqlite().await;
    t.operator().await;
    let (ada, org) = t.tenant("lab").await;
    let path = format!("/orgs/{org}/tokens");
    let new = json!({"name": "ci", "role": "viewer", "expires_at": "2026-12-01T00:00:00Z"});
    let created = t.post(&ada, &path, new).await.expect(201);
    let secret = created["secret"].as_str().unwrap().to_owned();
    assert!(secret.starts_with("berth_") && secret.len() == 42);
    let ci = Caller::Token(secret.clone());
    t.get(&ci, &format!("/orgs/{org}/jobs")).await.expect(200);
    t.post(&ci, &format!("/orgs/{org}/jobs"), job()).await.problem(403, "auth.forbidden");
    t.get(&ci, &format!("/orgs/{org}/balance")).await.problem(403, "auth.forbidden");
    let listed = t.get(&ada, &path).await.expect(200);
    assert!(!listed.to_string().contains(&secret), "a secret is shown once");
    assert!(listed["items"][0]["last_used_at"].is_string(), "{listed}");
    t.clock.advance_s(400 * 86_400);
    t.get(&ci, &format!("/orgs/{org}/jobs")).await.problem(401, "auth.required");
    let ada = t.sign_in("lab@example.org").await;
    let id = created["token"]["id"].as_str().unwrap();
    t.call(&ada, "DELETE", &format!("{path}/{id}"), Value::Null).await.expect(204);
    t.call(&ada, "DELETE", &format!("{path}/{id}"), Value::Null).await.problem(404, "object.not_found");
    let past = json!({"name": "old", "role": "member", "expires_at": "2020-01-01T00:00:00Z"});
    t.post(&ada, &path, past).await.problem(422, "request.invalid");
    let operator = t.sign_in("harbour@example.org").await;
    let made = t.post(&operator, "/operator/tokens", json!({"name": "cron"})).await.expect(201);
    let machine = Caller::Token(made["secret"].as_str().unwrap().to_owned());
    let listed = t.get(&machine, "/operator/tokens").await.expect(200);
    assert_eq!(listed["items"][0]["name"], "cron");
    let path = format!("/operator/tokens/{}", made["token"]["id"].as_str().unwrap());
    t.call(&operator, "DELETE", &path, Value::Null).await.expect(204);
    t.get(&machine, "/operator/tokens").await.problem(401, "auth.required");
    t.call(&operator, "DELETE", &path, Value::Null).await.problem(404, "object.not_found");
}

#[tokio::test]
async fn a_foreign_organization_answers_like_a_missing_one() {
    let t = TestPortal::sqlite().await;
    let operator = t.operator().await;
    let (ada, org) = t.tenant("lab").await;
    let (eve, _) = t.tenant("eve").await;
    t.add_price_and_credit(&operator, &org, 10_000_000).await;
    let job_id = t.post(&ada, &format!("/orgs/{org}/jobs"), job()).await.expect(201)["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let missing = "org_00000000000000000000000000";
    let routes = [
        ("GET", "/jobs", Value::Null),
        ("POST", "/jobs", job()),
        ("GET", "/jobs/JOB", Value::Null),
        ("GET", "/jobs/JOB/events", Value::Null),
        ("GET", "/jobs/JOB/logs", Value::Null),
        ("GET", "/jobs/JOB/metrics", Value::Null),
        ("GET", "/jobs/JOB/explanation", Value::Null),
        ("GET", "/jobs/JOB/submission", Value::Null),
        ("POST", "/jobs?dry_run=true", job()),
        ("POST", "/jobs/JOB/cancel", Value::Null),
        ("POST", "/jobs/JOB/extend", json!({"max_duration_s": 90})),
        ("GET", "/nodes", Value::Null),
        ("GET", "/cluster", Value::Null),
        ("GET", "/boards", Value::Null),
        ("GET", "/boards/GPU-x", Value::Null),
        ("GET", "/transfers?format=csv", Value::Null),
        ("DELETE", "/tokens/tok_00000000000000000000000000", Value::Null),
        ("GET", "/balance", Value::Null),
        ("GET", "/transfers", Value::Null),
        ("GET", "/tokens", Value::Null),
        ("POST", "/tokens", json!({"name": "x", "role": "owner"})),
    ];
    for (method, route, body) in routes {
        let mut bodies = vec![];
        for org in [org.as_str(), missing] {
            let path = format!("/orgs/{org}{}", route.replace("JOB", &job_id));
            let mut problem =
                t.call(&eve, method, &path, body.clone()).await.problem(404, "object.not_found");
            problem["request_id"] = Value::Null;
            bodies.push(problem);
        }
        assert_eq!(bodies[0], bodies[1], "{method} {route}");
    }
    // The refusal comes before the start of a stream.
    for route in ["/events", "/jobs/JOB/events", "/jobs/JOB/logs", "/jobs/JOB/metrics"] {
        let path = format!("/orgs/{org}{}", route.replace("JOB", &job_id));
        let stream = [("accept", "text/event-stream")];
        t.call_with(&eve, "GET", &path, Value::Null, &stream).await.problem(404, "object.not_found");
    }
    for (method, path, body) in [
        ("GET", "/operator/orgs", Value::Null),
        ("POST", &format!("/operator/orgs/{org}/credits"), json!({"amount_micros": 5})),
        ("GET", "/operator/nodes", Value::Null),
        ("PATCH", "/operator/nodes/node_00000000000000000000000000", json!({"cordoned": true})),
        ("POST", "/operator/join-tokens", json!({})),
        ("POST", "/operator/nodes/node_00000000000000000000000000/join-token", json!({})),
        ("POST", "/operator/nodes/node_00000000000000000000000000/revoke", Value::Null),
        ("POST", "/operator/nodes/node_00000000000000000000000000/approve", json!({})),
        ("DELETE", "/operator/nodes/node_00000000000000000000000000", Value::Null),
        ("POST", "/operator/gpus/GPU-x/approve", Value::Null),
        ("GET", "/operator/nodes/node_00000000000000000000000000/gpus", Value::Null),
        ("POST", "/operator/gpus/GPU-x/check", Value::Null),
        ("POST", "/operator/gpus/GPU-x/release", Value::Null),
        ("POST", "/operator/gpus/GPU-x/mode", json!({"mig": true})),
        ("POST", "/operator/tokens", json!({"name": "x"})),
        ("GET", "/operator/tokens", Value::Null),
        ("DELETE", "/operator/tokens/tok_00000000000000000000000001", Value::Null),
        ("POST", "/operator/prices", json!({"offering": "h100-80gb", "per_hour_micros": 1})),
    ] {
        t.call(&ada, method, path, body).await.problem(404, "object.not_found");
    }
}

#[tokio::test]
async fn a_job_holds_its_worst_case_price_until_it_is_cancelled() {
    let t = TestPortal::sqlite().await;
    let operator = t.operator().await;
    let (ada, org) = t.tenant("lab").await;
    t.add_price_and_credit(&operator, &org, 100_000).await;
    let jobs = format!("/orgs/{org}/jobs");
    let plan = t.post(&ada, &format!("{jobs}?dry_run=true"), job()).await.expect(200);
    assert_eq!((&plan["worst_case_micros"], &plan["affordable"]), (&json!(60_000), &json!(true)));
    assert_eq!(t.get(&ada, &jobs).await.expect(200)["items"], json!([]));

    let submitted = t.post(&ada, &jobs, job()).await.expect(201);
    assert_eq!(submitted["state"], "queued");
    assert_eq!(submitted["held_micros"], 60_000);
    let balance = t.get(&ada, &format!("/orgs/{org}/balance")).await.expect(200);
    assert_eq!((&balance["posted_micros"], &balance["available_micros"]), (&json!(100_000), &json!(40_000)));
    let refused = t.post(&ada, &jobs, job()).await.problem(402, "funds.insufficient");
    assert!(refused["detail"].as_str().unwrap().contains("$0.02"), "{refused}");

    // A new price does not change the price of submitted jobs.
    let price = json!({"offering": "h100-80gb.1g.10gb", "per_hour_micros": 999_000_000});
    t.post(&operator, "/operator/prices", price).await.expect(201);
    let path = format!("{jobs}/{}", submitted["id"].as_str().unwrap());
    assert_eq!(t.get(&ada, &path).await.expect(200)["price_version"], 1);

    let cancelled = t.post(&ada, &format!("{path}/cancel"), Value::Null).await.expect(202);
    assert_eq!((&cancelled["state"], &cancelled["held_micros"]), (&json!("cancelled"), &json!(0)));
    t.post(&ada, &format!("{path}/cancel"), Value::Null).await.expect(202);
    let balance = t.get(&ada, &format!("/orgs/{org}/balance")).await.expect(200);
    assert_eq!(balance["available_micros"], 100_000);
    let kinds: Vec<Value> = t.get(&ada, &format!("/orgs/{org}/transfers")).await.expect(200)["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["kind"].clone())
        .collect();
    assert_eq!(kinds, ["release", "hold", "credit"]);
    let events = t.get(&ada, &format!("{path}/events")).await.expect(200);
    let seqs: Vec<i64> =
        events["items"].as_array().unwrap().iter().map(|e| e["seq"].as_i64().unwrap()).collect();
    assert_eq!(seqs, [1, 2]);
}

#[tokio::test]
async fn the_same_idempotency_key_gives_one_job_and_one_hold() {
    let t = TestPortal::sqlite().await;
    let operator = t.operator().await;
    let (ada, org) = t.tenant("lab").await;
    t.add_price_and_credit(&operator, &org, 10_000_000).await;
    let jobs = format!("/orgs/{org}/jobs");
    let key = [("idempotency-key", "k-1")];
    let many =
        futures::future::join_all((0..32).map(|_| t.call_with(&ada, "POST", &jobs, job(), &key))).await;
    let mut ids = std::collections::BTreeSet::new();
    for reply in many {
        // A request during the first one gets 409.
        if reply.status == 409 {
            reply.problem(409, "idempotency.in_flight");
        } else {
            ids.insert(reply.expect(201)["id"].to_string());
        }
    }
    ids.insert(t.call_with(&ada, "POST", &jobs, job(), &key).await.expect(201)["id"].to_string());
    assert_eq!(ids.len(), 1);
    assert_eq!(t.get(&ada, &format!("/orgs/{org}/balance")).await.expect(200)["held_micros"], 60_000);
    let mut other = job();
    other["name"] = json!("another");
    t.call_with(&ada, "POST", &jobs, other, &key).await.problem(422, "idempotency.other_request");
    t.call_with(&ada, "POST", &jobs, job(), &[("idempotency-key", "")])
        .await
        .problem(400, "request.malformed");
}

#[tokio::test]
async fn a_secret_is_shown_once_and_an_idempotency_key_belongs_to_its_caller() {
    for (engine, db, _location) in engines("key_secrets").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        let (bob, _) = t.tenant("bobs").await;
        let (tokens, hooks) = (format!("/orgs/{org}/tokens"), format!("/orgs/{org}/webhooks"));
        let hook = json!({"url": "http://127.0.0.1:9/", "kinds": ["*"]});
        for (caller, scope, path, body) in [
            (&ada, org.as_str(), tokens.as_str(), json!({"name": "script", "role": "owner"})),
            (&ada, org.as_str(), hooks.as_str(), hook),
            (&operator, "operator", "/operator/join-tokens", json!({})),
        ] {
            let key = [("idempotency-key", path)];
            let ask = || t.call_with(caller, "POST", path, body.clone(), &key);
            assert!(ask().await.expect(201)["secret"].is_string(), "{engine} {path}");
            ask().await.problem(409, "idempotency.shown_once");
            let mut conn = t.portal.context.db.read().await.unwrap();
            let kept = store::accounts::find_idempotency(&mut conn.tx(), scope, path).await.unwrap().unwrap();
            drop(conn);
            assert_eq!(kept.answer, "", "{engine} {path}");
            t.lose_answer(scope, path, "").await;
            ask().await.problem(409, "idempotency.shown_once");
        }
        for path in [&tokens, &hooks] {
            let listed = t.get(&ada, path).await.expect(200);
            assert_eq!(listed["items"].as_array().unwrap().len(), 1, "{engine} {listed}");
        }
        let budgets = format!("/orgs/{org}/budgets");
        let body = || json!({"name": "month", "limit_micros": 5});
        let key = [("idempotency-key", "b")];
        t.call_with(&ada, "POST", &budgets, body(), &key).await.expect(201);
        t.call_with(&bob, "POST", &budgets, body(), &key).await.problem(404, "object.not_found");
        t.call_with(&Caller::Nobody, "POST", &budgets, body(), &key).await.expect(401);
        let new = json!({"name": "other", "role": "viewer"});
        let secret = t.post(&ada, &tokens, new).await.expect(201)["secret"].as_str().unwrap().to_owned();
        let viewer = Caller::Token(secret);
        t.call_with(&viewer, "POST", &budgets, body(), &key).await.problem(422, "idempotency.other_request");
    }
}

#[tokio::test]
async fn a_thousand_concurrent_submissions_never_exceed_the_balance() {
    let t = TestPortal::sqlite().await;
    let operator = t.operator().await;
    let (ada, org) = t.tenant("lab").await;
    t.add_price_and_credit(&operator, &org, 100 * 60_000).await;
    let jobs = format!("/orgs/{org}/jobs");
    let all = futures::future::join_all((0..1_000).map(|_| t.post(&ada, &jobs, job()))).await;
    let accepted = all.iter().filter(|r| r.status.as_u16() == 201).count();
    let refused = all.iter().filter(|r| r.status.as_u16() == 402).count();
    assert_eq!((accepted, refused), (100, 900));
    assert_eq!(t.get(&ada, &format!("/orgs/{org}/balance")).await.expect(200)["available_micros"], 0);
}

#[tokio::test]
async fn lists_are_paginated() {
    let t = TestPortal::sqlite().await;
    let operator = t.operator().await;
    let (ada, org) = t.tenant("lab").await;
    t.add_price_and_credit(&operator, &org, 10_000_000).await;
    let jobs = format!("/orgs/{org}/jobs");
    for _ in 0..5 {
        t.post(&ada, &jobs, job()).await.expect(201);
    }
    let (mut seen, mut path) = (vec![], format!("{jobs}?limit=2"));
    loop {
        let page = t.get(&ada, &path).await.expect(200);
        seen.extend(page["items"].as_array().unwrap().iter().map(|j| j["id"].to_string()));
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        path = format!("{jobs}?limit=2&cursor={cursor}");
    }
    assert_eq!(seen.len(), 5);
    assert!(seen.windows(2).all(|w| w[0] > w[1]), "newest first");
    for bad in ["limit=0", "limit=9999", "limit=x", "cursor=nope", "state=asleep", "colour=red"] {
        t.get(&ada, &format!("{jobs}?{bad}")).await.problem(400, "request.malformed");
    }
}

#[tokio::test]
async fn invalid_submissions_are_refused_without_a_job_or_hold() {
    let t = TestPortal::sqlite().await;
    let operator = t.operator().await;
    let (ada, org) = t.tenant("lab").await;
    t.add_price_and_credit(&operator, &org, 10_000_000).await;
    let jobs = format!("/orgs/{org}/jobs");
    let with = |pointer: &str, value: Value| {
        let mut body = job();
        body[pointer] = value;
        body
    };
    let bodies = [
        with("colour", json!("red")),
        with("count", json!("one")),
        with("count", json!(0)),
        with("count", json!(-1)),
        with("count", json!(4_294_967_296u64)),
        with("count", json!(1.5)),
        with("max_duration_s", json!(0)),
        with("max_duration_s", json!(u64::MAX)),
        with("nodes", json!(1_000_000_000)),
        with("name", json!("")),
        with("name", json!("x".repeat(1 << 20))),
        with("name", json!("a\u{0}b")),
        with("files", json!({"../../etc/passwd": "x"})),
        with("files", json!({"/abs": "x"})),
        with("offering", json!("rtx-9090")),
        with("offering", json!("h100-80gb")),
        with("command", json!([])),
        with("command", Value::Null),
        with("priority", json!("urgent")),
        with("stop_when_idle", json!({"for_s": 60})),
        with("stop_when_idle", json!({"below_percent": 101})),
        with("stop_when_idle", json!({"after_s": 600})),
        json!([]),
        json!("text"),
    ];
    for body in bodies {
        t.post(&ada, &jobs, body).await.problem(422, "request.invalid");
    }
    for raw in [b"{".to_vec(), b"".to_vec(), vec![0xff, 0xfe], b"{\"name\": \"\xff\"}".to_vec()] {
        let Caller::Cookie(cookie) = &ada else { panic!() };
        let request = Request::post(format!("/api/v1{jobs}"))
            .header(header::COOKIE, cookie)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(raw))
            .unwrap();
        t.send(request).await.problem(400, "request.malformed");
    }
    assert_eq!(t.get(&ada, &jobs).await.expect(200)["items"], json!([]));
    assert_eq!(t.get(&ada, &format!("/orgs/{org}/balance")).await.expect(200)["held_micros"], 0);
}

#[tokio::test]
async fn cross_site_requests_of_a_signed_in_person_are_refused() {
    let t = TestPortal::sqlite().await;
    let (ada, org) = t.tenant("lab").await;
    let path = format!("/orgs/{org}/tokens");
    let body = json!({"name": "x", "role": "owner"});
    let cases: [(&[(&str, &str)], u16); 5] = [
        (&[("sec-fetch-site", "cross-site")], 403),
        (&[("sec-fetch-site", "same-site")], 403),
        (&[("origin", "https://evil.example"), ("host", "berth.example")], 403),
        (&[("origin", "https://berth.example"), ("host", "berth.example")], 201),
        (&[("sec-fetch-site", "same-origin")], 201),
    ];
    for (headers, status) in cases {
        t.call_with(&ada, "POST", &path, body.clone(), headers).await.expect(status);
    }
}

#[tokio::test]
async fn unknown_routes_and_methods_answer_with_a_problem() {
    let t = TestPortal::sqlite().await;
    t.get(&Caller::Nobody, "/nowhere").await.problem(404, "object.not_found");
    t.call(&Caller::Nobody, "PUT", "/info", Value::Null).await.problem(405, "request.method");
    t.get(&Caller::Nobody, "/me").await.problem(401, "auth.required");
    // PostgreSQL stores no NUL in a text, so the portal refuses NUL before the store.
    let (ada, org) = t.tenant("lab").await;
    t.get(&ada, &format!("/orgs/{org}/volumes/a%00b")).await.problem(404, "object.not_found");
    t.get(&ada, &format!("/orgs/{org}/volumes?cursor=%00")).await.problem(400, "request.malformed");
    let request = Request::post("/api/v1/sign-up").body(Body::from("x")).unwrap();
    t.send(request).await.problem(415, "request.media_type");
    for price in [-1i64, i64::MAX] {
        let operator = Caller::Nobody;
        let body = json!({"offering": "h100-80gb", "per_hour_micros": price});
        t.post(&operator, "/operator/prices", body).await.problem(401, "auth.required");
    }
}

#[tokio::test]
async fn the_csv_statement_escapes_formulas() {
    let t = TestPortal::sqlite().await;
    let operator = t.operator().await;
    let (ada, org) = t.tenant("lab").await;
    let credit = json!({"amount_micros": 5, "memo": "=cmd|' /C calc'!A0"});
    t.post(&operator, &format!("/operator/orgs/{org}/credits"), credit).await.expect(201);
    let until = t.portal.context.now().plus_seconds(86_400);
    let lent = json!({"amount_micros": 7, "memo": "a trial", "expires_at": until});
    t.post(&operator, &format!("/operator/orgs/{org}/credits"), lent).await.expect(201);
    let Caller::Cookie(cookie) = &ada else { panic!("a person") };
    let request = Request::builder().uri(format!("/api/v1/orgs/{org}/transfers?format=csv"));
    let request = request.header(header::COOKIE, cookie).body(Body::empty()).unwrap();
    let response = tower::ServiceExt::oneshot(t.router.clone(), request).await.unwrap();
    assert_eq!(response.headers()[header::CONTENT_TYPE], "text/csv; charset=utf-8");
    let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "at,id,kind,amount_micros,currency,source,source_id,memo,expires_at");
    assert!(
        lines[1].contains(",credit,7,USD,grant,") && lines[1].ends_with(&format!(",a trial,{until}")),
        "{text}"
    );
    assert!(
        lines[2].contains(",credit,5,USD,grant,") && lines[2].ends_with(",'=cmd|' /C calc'!A0,"),
        "{text}"
    );
}

#[tokio::test]
async fn a_value_of_the_wrong_type_is_reported_by_its_pointer() {
    let t = TestPortal::sqlite().await;
    let (ada, org) = t.tenant("lab").await;
    let jobs = format!("/orgs/{org}/jobs");
    let job = json!({"name": "x", "offering": "h100-80gb", "max_duration_s": 60, "command": ["true"]});
    for (pointer, value) in [
        ("/priority", json!(1)),
        ("/priority", json!("highest")),
        ("/count", json!("1")),
        ("/count", json!(-1)),
        ("/command/0", json!([7])),
        ("/checkpoint/grace_s", json!({"grace_s": "ten"})),
        ("/checkpoint/signal", json!({"signal": null})),
        ("/retry/on/1", json!({"max": 1, "on": ["exit", 5]})),
    ] {
        let mut body = job.clone();
        let field = pointer.split('/').nth(1).unwrap();
        body[field] = value;
        let problem = t.post(&ada, &jobs, body).await.problem(422, "request.invalid");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
    }
    let list = json!(["x", "h100-80gb", 1, 1, ["true"]]);
    let problem = t.post(&ada, &jobs, list).await.problem(422, "request.invalid");
    assert_eq!(problem["errors"][0]["detail"], "The body must be a JSON object.", "{problem}");
}

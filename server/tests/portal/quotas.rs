//! Tests of quotas: refusals, waits and rights.

use crate::common::{Caller, TestPortal, engines, job};
use crate::worker_portal::WorkerPortal;
use serde_json::{Value, json};

async fn put(t: &TestPortal, caller: &Caller, path: &str, body: Value) -> crate::common::Reply {
    t.call(caller, "PUT", path, body).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_concurrent_submissions_stay_within_credit_and_quota() {
    for (engine, db, _location) in engines("quotas").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        let (bob, poor) = t.tenant("poor").await;
        t.add_price_and_credit(&operator, &org, 1_000_000_000).await;
        let credit = json!({"amount_micros": 100 * 60_000});
        t.post(&operator, &format!("/operator/orgs/{poor}/credits"), credit).await.expect(201);
        put(&t, &operator, &format!("/operator/orgs/{org}/quota"), json!({"queued_jobs": 100}))
            .await
            .expect(200);
        for (caller, org, refusal) in [(&ada, &org, 403), (&bob, &poor, 402)] {
            let jobs = format!("/orgs/{org}/jobs");
            let all = futures::future::join_all((0..1_000).map(|_| t.post(caller, &jobs, job()))).await;
            let count = |status: u16| all.iter().filter(|r| r.status.as_u16() == status).count();
            assert_eq!((count(201), count(refusal)), (100, 900), "{engine}");
            let quota = t.get(caller, &format!("/orgs/{org}/quota")).await.expect(200);
            assert_eq!(quota["used"]["queued_jobs"], 100, "{engine} {quota}");
            let balance = t.get(caller, &format!("/orgs/{org}/balance")).await.expect(200);
            assert!(balance["available_micros"].as_i64().unwrap() >= 0, "{engine} {balance}");
        }
    }
}

#[tokio::test]
async fn the_monthly_quota_counts_time_limits_and_returns_unused_time() {
    for (engine, db, _location) in engines("months").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        t.add_price_and_credit(&operator, &org, 100_000_000_000).await;
        let quota = format!("/operator/orgs/{org}/quota");
        put(&t, &operator, &quota, json!({"board_hours_per_month": 1})).await.expect(200);
        // A slice is an eighth of a board: eight hours are one whole-board hour.
        let hours = |n: u32| {
            let mut body = job();
            body["max_duration_s"] = json!(n * 3_600);
            body
        };
        let jobs = format!("/orgs/{org}/jobs");
        let first = t.post(&ada, &jobs, hours(6)).await.expect(201);
        let problem = t.post(&ada, &jobs, hours(3)).await.problem(403, "quota.exceeded");
        assert_eq!(problem["errors"][0]["pointer"], "/max_duration_s", "{engine} {problem}");
        assert!(problem["detail"].as_str().unwrap().contains("with 0.2 left"), "{engine} {problem}");
        t.post(&ada, &jobs, hours(2)).await.expect(201);
        let extend = format!("{jobs}/{}/extend", first["id"].as_str().unwrap());
        let longer = json!({"max_duration_s": 7 * 3_600});
        t.post(&ada, &extend, longer.clone()).await.problem(403, "quota.exceeded");
        let used = |quota: Value| quota["used"]["board_hours_milli"].as_i64().unwrap();
        let quota_path = format!("/orgs/{org}/quota");
        assert_eq!(used(t.get(&ada, &quota_path).await.expect(200)), 1_000, "{engine}");
        let cancel = format!("{jobs}/{}/cancel", first["id"].as_str().unwrap());
        t.post(&ada, &cancel, Value::Null).await.expect(202);
        assert_eq!(
            used(t.get(&ada, &quota_path).await.expect(200)),
            250,
            "{engine}: what was not used is given back"
        );
        t.post(&ada, &jobs, hours(6)).await.expect(201);
        // The next month starts at zero.
        t.clock.advance_s(31 * 86_400);
        let ada = t.sign_in("lab@example.org").await;
        t.post(&ada, &jobs, hours(8)).await.expect(201);
    }
}

#[tokio::test]
async fn a_job_larger_than_a_limit_is_refused_at_submission() {
    let t = TestPortal::sqlite().await;
    let operator = t.operator().await;
    let (ada, org) = t.tenant("lab").await;
    t.add_price_and_credit(&operator, &org, 100_000_000_000).await;
    let price = json!({"offering": "h100-80gb", "per_hour_micros": 3_600_000});
    t.post(&operator, "/operator/prices", price).await.expect(201);
    let jobs = format!("/orgs/{org}/jobs");
    let mut three = job();
    (three["offering"], three["count"]) = (json!("h100-80gb"), json!(3));
    for (limits, ok) in [
        (json!({"boards_milli": 2_999}), false),
        (json!({"boards_milli": 3_000}), true),
        (json!({"devices": {"h100-80gb": 2}}), false),
        (json!({"devices": {"h100-80gb": 3}}), true),
        (json!({"running_jobs": 0}), false),
        (json!({"spend_per_hour_micros": 10_799_000}), false),
        (json!({"spend_per_hour_micros": 10_800_000}), true),
    ] {
        // The default limits apply to organizations without their own.
        put(&t, &operator, "/operator/quota", limits.clone()).await.expect(200);
        let reply = t.post(&ada, &jobs, three.clone()).await;
        if ok {
            reply.expect(201);
        } else {
            reply.problem(403, "quota.exceeded");
        }
    }
    let quota = t.get(&ada, &format!("/orgs/{org}/quota")).await.expect(200);
    assert_eq!(
        (&quota["is_default"], &quota["limits"]["spend_per_hour_micros"]),
        (&json!(true), &json!(10_800_000))
    );
    let own = format!("/operator/orgs/{org}/quota");
    let set = put(&t, &operator, &own, json!({"boards_milli": 0})).await.expect(200);
    assert_eq!(set["is_default"], false);
    t.post(&ada, &jobs, three.clone()).await.problem(403, "quota.exceeded");
    t.call(&operator, "DELETE", &own, Value::Null).await.expect(200);
    t.post(&ada, &jobs, three).await.expect(201);
}

#[tokio::test]
async fn only_operators_set_limits_and_invalid_limits_change_nothing() {
    let t = TestPortal::sqlite().await;
    let operator = t.operator().await;
    let (ada, org) = t.tenant("lab").await;
    let (bob, other) = t.tenant("other").await;
    t.add_price_and_credit(&operator, &org, 1_000_000).await;
    let own = format!("/operator/orgs/{org}/quota");
    for (body, pointer) in [
        (json!({"boards_milli": -1}), "/boards_milli"),
        (json!({"weight_milli": 0}), "/weight_milli"),
        (json!({"queued_jobs": i64::MAX}), "/queued_jobs"),
        (json!({"devices": {"no-such": 1}}), "/devices/no-such"),
        (json!({"devices": {"h100-80gb": -1}}), "/devices/h100-80gb"),
    ] {
        let problem = put(&t, &operator, &own, body).await.problem(422, "request.invalid");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
    }
    put(&t, &operator, &own, json!({"boards": 1})).await.expect(422);
    put(&t, &operator, "/operator/orgs/org_00000000000000000000000000/quota", json!({})).await.expect(404);
    for path in [own.as_str(), "/operator/quota"] {
        put(&t, &ada, path, json!({})).await.expect(404);
        t.get(&ada, path).await.expect(404);
    }
    t.get(&bob, &format!("/orgs/{org}/quota")).await.expect(404);
    assert_eq!(t.get(&ada, &format!("/orgs/{org}/quota")).await.expect(200)["limits"], json!({}));

    // A quota request, its refusals and both decisions.
    let requests = format!("/orgs/{org}/quota-requests");
    for bad in [
        json!({"limits": {}, "reason": "x"}),
        json!({"limits": {"boards_milli": 1}, "reason": " "}),
        json!({"limits": {"weight_milli": 5_000}, "reason": "x"}),
        json!({"limits": {"devices": {"no-such": 1}}, "reason": "x"}),
    ] {
        t.post(&ada, &requests, bad).await.problem(422, "request.invalid");
    }
    t.post(&bob, &requests, json!({"limits": {"boards_milli": 1}, "reason": "x"})).await.expect(404);
    put(&t, &operator, &own, json!({"boards_milli": 1_000, "queued_jobs": 5})).await.expect(200);
    let ask = |milli: i64| json!({"limits": {"boards_milli": milli}, "reason": "a deadline"});
    let first = t.post(&ada, &requests, ask(8_000)).await.expect(201);
    let second = t.post(&ada, &requests, ask(16_000)).await.expect(201);
    let decide = |r: &Value| format!("/operator/quota-requests/{}", r["id"].as_str().unwrap());
    t.post(&ada, &decide(&first), json!({"grant": true})).await.expect(404);
    // An invalid decision changes nothing.
    let slip = json!({"grant": true, "limits": {"devices": {"no-such": 1}}});
    t.post(&operator, &decide(&first), slip).await.problem(422, "request.invalid");
    let granted = json!({"grant": true, "limits": {"boards_milli": 4_000}, "note": "Half for now."});
    let answer = t.post(&operator, &decide(&first), granted).await.expect(200);
    assert_eq!((&answer["state"], &answer["note"]), (&json!("granted"), &json!("Half for now.")));
    t.post(&operator, &decide(&first), json!({"grant": false})).await.problem(409, "quota_request.decided");
    t.post(&operator, &decide(&second), json!({"grant": false, "note": "No."})).await.expect(200);
    let quota = t.get(&ada, &format!("/orgs/{org}/quota")).await.expect(200);
    assert_eq!(quota["limits"], json!({"boards_milli": 4_000, "queued_jobs": 5}), "only what was named");
    let listed = t.get(&ada, &requests).await.expect(200);
    assert_eq!(listed["items"].as_array().unwrap().len(), 2);
    assert_eq!(t.get(&bob, &format!("/orgs/{other}/quota-requests")).await.expect(200)["items"], json!([]));

    // The audit events have every act, for the organization and for operators.
    let audit = t.get(&ada, &format!("/orgs/{org}/audit-events")).await.expect(200);
    let actions: Vec<&str> =
        audit["items"].as_array().unwrap().iter().map(|e| e["action"].as_str().unwrap()).collect();
    let wanted = ["quota.declined", "quota.granted", "quota.requested", "quota.requested", "quota.set"];
    assert_eq!(actions[..5], wanted, "{audit}");
    t.get(&ada, "/operator/audit-events").await.expect(404);
    assert!(!t.get(&operator, "/operator/audit-events?limit=1").await.expect(200)["next_cursor"].is_null());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_at_a_limit_waits_with_a_reason_and_starts_when_the_limit_is_raised() {
    let setup = WorkerPortal::open().await;
    let own = format!("/operator/orgs/{}/quota", setup.org);
    put(&setup.t, &setup.operator, &own, json!({"boards_milli": 125})).await.expect(200);
    let first = setup.submit_script("exec sleep 300").await;
    setup.until(&first, |j| j["state"] == "running").await;
    let second = setup.submit_script("true").await;
    let path = format!("/orgs/{}/jobs/{second}/explanation", setup.org);
    let why = setup.t.get(&setup.ada, &path).await.expect(200);
    assert_eq!(why["blockers"][0]["code"], "quota.boards", "{why}");
    let detail = "Limit of boards at once: 0.125. In use: 0.125; this job needs 0.125 more.";
    assert_eq!(why["blockers"][0]["detail"], detail, "{why}");
    let quota = setup.t.get(&setup.ada, &format!("/orgs/{}/quota", setup.org)).await.expect(200);
    assert_eq!(
        (&quota["used"]["boards_milli"], &quota["used"]["running_jobs"]),
        (&json!(125), &json!(1)),
        "{quota}"
    );
    assert_eq!(quota["used"]["devices_milli"], json!({"h100-80gb.1g.10gb": 1_000}), "{quota}");
    // The limit does not delay another organization.
    let (bob, other) = setup.t.tenant("bobs").await;
    let credit = json!({"amount_micros": 1_000_000_000});
    setup.t.post(&setup.operator, &format!("/operator/orgs/{other}/credits"), credit).await.expect(201);
    let theirs = setup.t.post(&bob, &format!("/orgs/{other}/jobs"), job()).await.expect(201);
    let path = format!("/orgs/{other}/jobs/{}", theirs["id"].as_str().unwrap());
    let over = async || (setup.t.get(&bob, &path).await.expect(200)["state"] != "queued").then_some(());
    crate::worker_portal::eventually("another organization's job starts", over).await;
    assert_eq!(setup.job(&second).await["state"], "queued");
    put(&setup.t, &setup.operator, &own, json!({"boards_milli": 250})).await.expect(200);
    assert_eq!(setup.until_ended(&second).await["state"], "succeeded");
    let third = setup.submit_script("true").await;
    assert_eq!(setup.until_ended(&third).await["state"], "succeeded", "the next has its room");
    let path = format!("/orgs/{}/jobs/{first}/cancel", setup.org);
    setup.t.post(&setup.ada, &path, Value::Null).await.expect(202);
    setup.until_all_free().await;
}

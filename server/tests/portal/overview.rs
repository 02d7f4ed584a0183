//! Tests of the operators' overview, the filtered list of nodes and the counts of jobs, on every engine.

use crate::common::{Caller, TestPortal, engines};
use crate::gateways::run;
use crate::idle_portal::{DAY, IdlePortal, node};
use crate::operations::{items, put, schedule_all, submit};
use crate::stores::insert_node;
use berth_fleet::reports::{BoardReport, ReportedFault};
use berth_foundation::days::day_of;
use berth_store as store;
use berth_store::usage::{Charge, UsageMode};
use berth_types::health::GpuFacts;
use berth_types::time::Timestamp;
use futures::FutureExt;
use serde_json::{Value, json};

const OVERVIEW: &str = "/operator/overview";

async fn overview(setup: &IdlePortal) -> Value {
    setup.t.get(&setup.operator, OVERVIEW).await.expect(200)
}

/// The number of nodes in a state.
fn nodes_in(overview: &Value, state: &str) -> Value {
    let states = overview["cluster"]["states"].as_array().unwrap();
    states.iter().find(|one| one["state"] == state).unwrap()["nodes"].clone()
}

/// Records a charge of an organization on a day.
pub async fn charge(setup: &IdlePortal, org: &str, day: i64, cost_micros: i64) {
    let org = org.parse().unwrap();
    let done = setup.t.portal.context.db.write(move |tx| {
        async move {
            let charged = Charge {
                org,
                day,
                offering: "",
                mode: UsageMode::OnDemand,
                member: "Ada",
                price_version: 0,
                surcharge_basis_points: 0,
                labels: Vec::new(),
                device_milli_ms: 1_000,
                cost_micros,
            };
            store::usage::add_charge(tx, &charged).await
        }
        .boxed()
    });
    done.await.unwrap();
}

async fn quarantine(setup: &IdlePortal, n: u128, gpu: &str) {
    let fault = ReportedFault { serial: 1, code: "gpu.xid".to_owned(), detail: "XID 79".to_owned() };
    let facts = GpuFacts { mig: Some(false), mig_pending: Some(false), ..GpuFacts::default() };
    let board = BoardReport {
        gpu_uuid: gpu.to_owned(),
        silent: None,
        fault: Some(fault),
        done: None,
        facts: Some(facts),
        mig_profiles: vec![],
    };
    setup.t.portal.health.apply_health(node(n), vec![board]).await.unwrap();
}

/// Adds nodes without a session, from number 3 on.
async fn add_nodes(setup: &IdlePortal, names: &[&str]) {
    for (n, name) in (3..).zip(names) {
        let (at, name) = (setup.t.portal.context.now(), (*name).to_owned());
        let join = setup.t.portal.context.db.write(move |tx| {
            let name = name.clone();
            async move { insert_node(tx, node(n), &name, at).await }.boxed()
        });
        join.await.unwrap();
        setup.report(n).await;
    }
}

#[tokio::test]
async fn an_idle_portal_has_free_boards_and_nothing_to_do() {
    for (engine, db, _location) in engines("overview_idle").await {
        let setup = IdlePortal::on(db).await;
        let found = overview(&setup).await;
        assert_eq!(nodes_in(&found, "ready"), 2, "{engine} {found}");
        let capacity = json!([{"model": "H100-80GB", "boards": 4, "usable": 4, "free": 4}]);
        assert_eq!(found["cluster"]["capacity"], capacity, "{engine}");
        for count in ["stuck_count", "quota_request_count", "orgs_without_credit_count", "rack_count"] {
            assert_eq!(found[count], 0, "{engine} {count}");
        }
        let cluster = (&found["cluster"]["notice_count"], &found["cluster"]["boards_out_of_service"]);
        assert_eq!(cluster, (&json!(0), &json!(0)), "{engine}");
        let work = json!({"running_jobs": 0, "running_devices": 0, "queued_jobs": 0, "queue": []});
        assert_eq!(found["work"], work, "{engine}");
        assert_eq!(found["revenue"], json!({"today_micros": 0, "month_micros": 0}), "{engine}");
        assert!(found.get("ledger_check").is_none(), "{engine}: no check so far");
        for other in [&setup.ada, &Caller::Nobody] {
            let status = setup.t.get(other, OVERVIEW).await.status.as_u16();
            assert!(matches!(status, 401 | 404), "{engine} {status}");
        }
    }
}

/// Asserts the work of the overview against the list of jobs.
async fn assert_work_equals_the_list(setup: &IdlePortal, found: &Value, engine: &str) {
    let jobs = items(&setup.t, &setup.operator, "/operator/jobs?limit=200").await;
    let number = |job: &Value, field: &str| job[field].as_u64().unwrap();
    let with_devices = |job: &&Value| {
        matches!(job["state"].as_str().unwrap(), "assigned" | "starting" | "running" | "stopping")
    };
    let running = jobs.iter().filter(with_devices);
    let devices: u64 = running.clone().map(|job| number(job, "count") * number(job, "nodes")).sum();
    let queued: Vec<&Value> = jobs.iter().filter(|job| job["state"] == "queued").collect();
    let work = &found["work"];
    assert_eq!(work["running_jobs"], running.count(), "{engine} {work}");
    assert_eq!(work["running_devices"], devices, "{engine}");
    assert_eq!(work["queued_jobs"], queued.len(), "{engine}");
    let times = || queued.iter().map(|job| job["created_at"].as_str().unwrap().parse::<Timestamp>().unwrap());
    let oldest: Option<Timestamp> =
        work["oldest_queued_at"].as_str().map(|text| text.parse::<Timestamp>().unwrap());
    assert_eq!(oldest, times().min(), "{engine}");
}

#[tokio::test]
async fn the_overview_equals_independent_counts() {
    for (engine, db, _location) in engines("overview").await {
        let setup = IdlePortal::on(db).await;
        let (t, operator) = (&setup.t, &setup.operator);
        add_nodes(&setup, &["pier-3", "pier-4"]).await;
        put(t, operator, &format!("/operator/nodes/{}/drain", node(2)), json!({"reason": "firmware"}))
            .await
            .expect(200);
        quarantine(&setup, 1, "GPU-1-0").await;
        // One board of the ready node is left, and it holds the first of two jobs.
        let first = submit(&setup, json!({})).await;
        schedule_all(&setup).await;
        for priority in ["normal", "high"] {
            submit(&setup, json!({"priority": priority, "name": priority})).await;
        }
        schedule_all(&setup).await;
        let found = overview(&setup).await;
        let states: Vec<Value> =
            ["ready", "draining", "unreachable", "cordoned"].map(|state| nodes_in(&found, state)).to_vec();
        assert_eq!(json!(states), json!([1, 1, 2, 0]), "{engine} {found}");
        let names: Vec<&Value> =
            found["cluster"]["notices"].as_array().unwrap().iter().map(|n| &n["name"]).collect();
        assert_eq!(json!(names), json!(["node-2", "pier-3", "pier-4"]), "{engine}");
        assert_eq!(found["cluster"]["notice_count"], 3, "{engine}");
        assert_eq!(found["cluster"]["boards_out_of_service"], 1, "{engine}");
        let notice = &found["cluster"]["board_notices"][0];
        assert_eq!(
            (&notice["gpu_uuid"], &notice["node_name"], &notice["code"], &notice["reason"]),
            (&json!("GPU-1-0"), &json!("node-1"), &json!("gpu.xid"), &json!("XID 79")),
            "{engine}"
        );
        let capacity = json!([{"model": "H100-80GB", "boards": 8, "usable": 1, "free": 0}]);
        assert_eq!(found["cluster"]["capacity"], capacity, "{engine}");
        assert_work_equals_the_list(&setup, &found, engine).await;
        let queue = found["work"]["queue"].as_array().unwrap();
        let classes: Vec<(&Value, &Value)> = queue.iter().map(|q| (&q["priority"], &q["jobs"])).collect();
        assert_eq!(classes, [(&json!("high"), &json!(1)), (&json!("normal"), &json!(1))], "{engine}");

        t.clock.advance_s(601);
        let found = overview(&setup).await;
        assert_eq!(
            (&found["stuck_count"], &found["stuck"][0]["job"]),
            (&json!(1), &json!(first)),
            "{engine}"
        );
        let listed = items(t, operator, "/operator/stuck").await;
        assert_eq!(found["stuck"], json!(listed), "{engine}");
        let audit = items(t, operator, "/operator/audit-events?limit=10").await;
        assert_eq!(found["audit_events"], json!(audit), "{engine}");
        assert_eq!(audit[0]["subject"], "GPU-1-0", "{engine}: the latest act");
        // A token reads the events with the scope of the audit log only.
        for (scope, is_empty) in [("fleet:read", true), ("admin", false)] {
            let made = t.post(operator, "/operator/tokens", json!({"name": scope, "scopes": [scope]})).await;
            let token = Caller::Token(made.expect(201)["secret"].as_str().unwrap().to_owned());
            let events = t.get(&token, OVERVIEW).await.expect(200)["audit_events"].clone();
            assert_eq!(events.as_array().unwrap().is_empty(), is_empty, "{engine} {scope}");
        }
    }
}

#[tokio::test]
async fn boards_of_retired_nodes_hide_no_other_board() {
    for (engine, db, _location) in engines("overview_retired").await {
        let setup = IdlePortal::on(db).await;
        quarantine(&setup, 1, "GPU-1-0").await;
        setup.t.clock.advance_s(60);
        // Nodes without a certificate, like revoked ones.
        add_nodes(&setup, &["old-3", "old-4", "old-5", "old-6", "old-7"]).await;
        for n in 3..=7 {
            for board in 0..2 {
                quarantine(&setup, n, &format!("GPU-{n}-{board}")).await;
            }
        }
        let cluster = overview(&setup).await["cluster"].clone();
        assert_eq!(
            (&cluster["boards_out_of_service"], &cluster["notice_count"]),
            (&json!(11), &json!(5)),
            "{engine}"
        );
        // Hosts without an approval hide no other board either.
        let approval = |at: &str| format!("UPDATE nodes SET approved_at = {at} WHERE name LIKE 'old-%'");
        run(&setup.t, approval("NULL")).await;
        let notices = overview(&setup).await["cluster"]["board_notices"].clone();
        assert_eq!((&notices[0]["gpu_uuid"], &notices[1]), (&json!("GPU-1-0"), &Value::Null), "{engine}");
        run(&setup.t, approval("1")).await;
        for n in 3..=7 {
            let lost = format!("/operator/nodes/{}/lost", node(n));
            setup.t.post(&setup.operator, &lost, Value::Null).await.expect(200);
        }
        let cluster = overview(&setup).await["cluster"].clone();
        assert_eq!(
            (&cluster["boards_out_of_service"], &cluster["notice_count"]),
            (&json!(1), &json!(0)),
            "{engine}"
        );
        let notices = cluster["board_notices"].as_array().unwrap();
        let named: Vec<&Value> = notices.iter().map(|notice| &notice["gpu_uuid"]).collect();
        assert_eq!(json!(named), json!(["GPU-1-0"]), "{engine}");
        let capacity = json!([{"model": "H100-80GB", "boards": 4, "usable": 3, "free": 3}]);
        assert_eq!(cluster["capacity"], capacity, "{engine}");
    }
}

#[tokio::test]
async fn the_overview_has_requests_money_and_power() {
    for (engine, db, _location) in engines("overview_money").await {
        let setup = IdlePortal::on(db).await;
        let (t, operator) = (&setup.t, &setup.operator);
        for n in 1..=12 {
            let body = json!({"limits": {"boards_milli": n * 1_000}, "reason": "a deadline"});
            t.post(&setup.ada, &format!("/orgs/{}/quota-requests", setup.org), body).await.expect(201);
            put(t, operator, &format!("/operator/racks/r{n:02}"), json!({"budget_watts": 2_000}))
                .await
                .expect(204);
        }
        // An organization that never had credit is not listed.
        t.tenant("new").await;
        let (_, poor) = t.tenant("poor").await;
        t.post(operator, &format!("/operator/orgs/{poor}/credits"), json!({"amount_micros": 5}))
            .await
            .expect(201);
        let debit = json!({"amount_micros": 5, "memo": "spent"});
        t.post(operator, &format!("/operator/orgs/{poor}/debits"), debit).await.expect(201);
        let today = day_of(t.portal.context.now());
        let first =
            day_of(format!("{}-01T00:00:00Z", &t.portal.context.now().to_string()[..7]).parse().unwrap());
        assert!(first < today, "the clock of the test is not on a first day");
        charge(&setup, &setup.org, today, 5).await;
        charge(&setup, &setup.other, today, 7).await;
        charge(&setup, &setup.org, first, 100).await;
        charge(&setup, &setup.other, first - 1, 1_000).await;
        let found = overview(&setup).await;
        assert_eq!(found["revenue"], json!({"today_micros": 12, "month_micros": 112}), "{engine}");
        let poor = json!([{"org": poor, "org_name": "poor", "available_micros": 0}]);
        assert_eq!(found["orgs_without_credit"], poor, "{engine}");
        assert_eq!(found["orgs_without_credit_count"], 1, "{engine}");
        let pending = items(t, operator, "/operator/quota-requests?state=pending&sort=asc&limit=10").await;
        assert_eq!(found["quota_request_count"], 12, "{engine}");
        assert_eq!(found["quota_requests"], json!(pending), "{engine}: the oldest ten");
        assert_eq!((&found["rack_count"], found["racks"].as_array().unwrap().len()), (&json!(12), 10));
        let decide = format!("/operator/quota-requests/{}", pending[0]["id"].as_str().unwrap());
        t.post(operator, &decide, json!({"grant": false})).await.expect(200);
        assert_eq!(overview(&setup).await["quota_request_count"], 11, "{engine}");
        t.portal.reconciliations.reconcile().await.unwrap();
        let check = overview(&setup).await["ledger_check"].clone();
        // The charges above have no transfers.
        assert!(check["mismatches"].as_u64().unwrap() > 0, "{engine} {check}");
        t.clock.advance_s(40 * DAY);
        let operator = t.sign_in("harbour@example.org").await;
        let later = t.get(&operator, OVERVIEW).await.expect(200);
        assert_eq!(later["revenue"], json!({"today_micros": 0, "month_micros": 0}), "{engine}");
    }
}

async fn names(t: &TestPortal, operator: &Caller, query: &str) -> Value {
    let nodes = items(t, operator, &format!("/operator/nodes?{query}")).await;
    nodes.iter().map(|node| node["name"].clone()).collect()
}

#[tokio::test]
async fn operators_find_nodes_by_state_model_and_name() {
    for (engine, db, _location) in engines("overview_nodes").await {
        let setup = IdlePortal::on(db).await;
        let (t, operator) = (&setup.t, &setup.operator);
        add_nodes(&setup, &["Pier-3", "pier-4"]).await;
        let all = json!(["Pier-3", "node-1", "node-2", "pier-4"]);
        assert_eq!(names(t, operator, "model=h100").await, all, "{engine}");
        assert_eq!(names(t, operator, "name=PIER").await, json!(["Pier-3", "pier-4"]), "{engine}");
        assert_eq!(names(t, operator, "name=PIER&sort=desc").await, json!(["pier-4", "Pier-3"]), "{engine}");
        assert_eq!(names(t, operator, "state=ready").await, json!(["node-1", "node-2"]), "{engine}");
        assert_eq!(names(t, operator, "model=a30").await, json!([]), "{engine}");
        put(t, operator, &format!("/operator/nodes/{}/drain", node(2)), json!({"reason": "firmware"}))
            .await
            .expect(200);
        assert_eq!(names(t, operator, "state=draining").await, json!(["node-2"]), "{engine}");
        let page = t.get(operator, "/operator/nodes?state=unreachable&limit=1").await.expect(200);
        assert_eq!(page["items"][0]["gpus"].as_array().unwrap().len(), 2, "{engine}");
        let next = format!("state=unreachable&limit=1&cursor={}", page["next_cursor"].as_str().unwrap());
        assert_eq!(names(t, operator, &next).await, json!(["pier-4"]), "{engine}");
        let long = format!("/operator/nodes?name={}", "a".repeat(101));
        t.get(operator, &long).await.problem(400, "request.malformed");
        t.get(operator, "/operator/nodes?state=lost").await.problem(400, "request.malformed");
        let one = t.get(operator, &format!("/operator/nodes/{}", node(1))).await.expect(200);
        assert_eq!((&one["name"], &one["state"]), (&json!("node-1"), &json!("ready")), "{engine}");
        let unknown = "/operator/nodes/node_00000000000000000000000000";
        t.get(operator, unknown).await.problem(404, "object.not_found");
        t.get(&setup.ada, &format!("/operator/nodes/{}", node(1))).await.problem(404, "object.not_found");
    }
}

#[tokio::test]
async fn the_acts_on_a_board_are_its_history() {
    for (engine, db, _location) in engines("overview_history").await {
        let setup = IdlePortal::on(db).await;
        let (t, operator) = (&setup.t, &setup.operator);
        for (n, gpu) in [(1, "GPU-1-0"), (2, "GPU-2-0")] {
            quarantine(&setup, n, gpu).await;
        }
        t.post(operator, "/operator/gpus/GPU-1-0/release", Value::Null).await.expect(200);
        let events = items(t, operator, "/operator/audit-events?subject=GPU-1-0").await;
        let actions: Vec<&Value> = events.iter().map(|event| &event["action"]).collect();
        assert_eq!(json!(actions), json!(["gpu.released", "gpu.quarantined"]), "{engine}");
        let first = t.get(operator, "/operator/audit-events?subject=GPU-1-0&limit=1").await.expect(200);
        let cursor = first["next_cursor"].as_str().unwrap();
        let next = format!("/operator/audit-events?subject=GPU-1-0&limit=1&cursor={cursor}");
        assert_eq!(items(t, operator, &next).await, events[1..], "{engine}");
        let long = format!("/operator/audit-events?subject={}", "a".repeat(201));
        t.get(operator, &long).await.problem(400, "request.malformed");
    }
}

#[tokio::test]
async fn the_jobs_of_an_organization_are_counted() {
    for (engine, db, _location) in engines("job_counts").await {
        let setup = IdlePortal::on(db).await;
        let counts = format!("/orgs/{}/job-counts", setup.org);
        let read = async || setup.t.get(&setup.ada, &counts).await.expect(200);
        assert_eq!(read().await, json!({"running": 0, "queued": 0, "ended": 0}), "{engine}");
        let mut jobs = Vec::new();
        for _ in 0..7 {
            jobs.push(submit(&setup, json!({})).await);
        }
        // Four boards take four jobs.
        schedule_all(&setup).await;
        assert_eq!(read().await, json!({"running": 4, "queued": 3, "ended": 0}), "{engine}");
        let queued = items(&setup.t, &setup.ada, &format!("/orgs/{}/jobs?state=queued", setup.org)).await;
        let cancel = format!("/orgs/{}/jobs/{}/cancel", setup.org, queued[0]["id"].as_str().unwrap());
        setup.t.post(&setup.ada, &cancel, Value::Null).await.expect(202);
        assert_eq!(read().await, json!({"running": 4, "queued": 2, "ended": 1}), "{engine}");
        setup.t.get(&setup.bob, &counts).await.problem(404, "object.not_found");
        let other = format!("/orgs/{}/job-counts", setup.other);
        let none = json!({"running": 0, "queued": 0, "ended": 0});
        assert_eq!(setup.t.get(&setup.bob, &other).await.expect(200), none, "{engine}");
    }
}

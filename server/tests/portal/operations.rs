//! Tests of the operators' routes for nodes and jobs, on every engine.

use crate::common::{Caller, Reply, TestPortal, engines};
use crate::daemons::certificate_request;
use crate::idle_portal::{IdlePortal, node};
use crate::stores::insert_node;
use crate::worker_portal::{WorkerPortal, eventually};
use berth_fleet::reports::BoardReport;
use berth_store::nodes::{GpuReport, NodeReport};
use berth_store::types::JsonColumn;
use berth_types::health::GpuFacts;
use futures::FutureExt;
use serde_json::{Value, json};

pub async fn put(t: &TestPortal, caller: &Caller, path: &str, body: Value) -> Reply {
    t.call(caller, "PUT", path, body).await
}

pub async fn submit(setup: &IdlePortal, spec: Value) -> String {
    let mut body =
        json!({"name": "train", "offering": "h100-80gb", "command": ["true"], "max_duration_s": 600});
    body.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let made = setup.t.post(&setup.ada, &format!("/orgs/{}/jobs", setup.org), body).await.expect(201);
    made["id"].as_str().unwrap().to_owned()
}

/// Runs the scheduler until no decision is left.
pub async fn schedule_all(setup: &IdlePortal) {
    for _ in 0..100 {
        let pass = setup.t.portal.scheduler.pass().await.unwrap();
        if !pass.unfinished && pass.committed == 0 {
            return;
        }
    }
    panic!("it never comes to an end");
}

pub async fn job(setup: &IdlePortal, id: &str) -> Value {
    setup.t.get(&setup.ada, &format!("/orgs/{}/jobs/{id}", setup.org)).await.expect(200)
}

pub async fn items(t: &TestPortal, caller: &Caller, path: &str) -> Vec<Value> {
    t.get(caller, path).await.expect(200)["items"].as_array().unwrap().clone()
}

/// Returns the text of a CSV answer.
async fn text(t: &TestPortal, caller: &Caller, path: &str) -> String {
    let Caller::Cookie(cookie) = caller else { panic!("a person") };
    let request = axum::http::Request::builder().uri(format!("/api/v1{path}")).header("cookie", cookie);
    let request = request.body(axum::body::Body::empty()).unwrap();
    let response = tower::ServiceExt::oneshot(t.router.clone(), request).await.unwrap();
    assert_eq!(response.status(), 200, "{path}");
    assert_eq!(response.headers()["content-type"], "text/csv; charset=utf-8");
    let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

pub async fn report(setup: &IdlePortal, n: u128, driver: &str, labels: Value) {
    let board = |i: u32| GpuReport {
        uuid: format!("GPU-{n}-{i}"),
        index: i64::from(i),
        model: "H100-80GB".to_owned(),
        memory_mib: 81_920,
        mig_enabled: false,
        nvlink_island: 0,
        foreign_instances: JsonColumn::default(),
    };
    let report = NodeReport {
        simulated: true,
        unisolated: false,
        driver_version: driver.to_owned(),
        worker_version: "0.1".to_owned(),
        cpu_milli: 64_000,
        memory_mib: 512_000,
        address: "10.0.0.1".to_owned(),
        labels: JsonColumn(serde_json::from_value(labels).unwrap()),
        isolation: JsonColumn::default(),
        images: false,
        gang_ports: None,
        rdma_ports: JsonColumn::default(),
        egress: false,
        host_network: false,
        host_mounts: JsonColumn::default(),
        checks_rdma_links: false,
        inference_port: 0,
        boards: (0..2).map(board).collect(),
    };
    setup.t.portal.nodes.report_node(node(n), report).await.unwrap();
}

#[tokio::test]
async fn a_submission_before_the_first_pass_is_checked_against_the_nodes() {
    for (engine, db, _location) in engines("before_a_pass").await {
        let setup = IdlePortal::on(db).await;
        let job = json!({"name": "train", "offering": "h100-80gb", "command": ["true"], "max_duration_s": 600, "count": 3});
        let refused = setup.t.post(&setup.ada, &format!("/orgs/{}/jobs", setup.org), job).await;
        assert_eq!(refused.body["code"], "job.never_starts", "{engine}: {}", refused.body);
        submit(&setup, json!({"count": 2})).await;
    }
}

#[tokio::test]
async fn the_scheduler_considers_every_job_of_a_burst() {
    for (engine, db, _location) in engines("many_at_once").await {
        let setup = IdlePortal::on(db).await;
        // From here on the scheduler reads only changed jobs.
        schedule_all(&setup).await;
        let mut jobs = Vec::new();
        for _ in 0..40 {
            jobs.push(submit(&setup, json!({"gpu_milli": 50})).await);
        }
        let after = submit(&setup, json!({"gpu_milli": 50, "depends_on": [{"job": jobs[0]}]})).await;
        schedule_all(&setup).await;
        for id in &jobs {
            assert_eq!(job(&setup, id).await["state"], "assigned", "{engine}");
        }
        assert_eq!(job(&setup, &after).await["state"], "queued", "{engine}");
        let quota = setup.t.get(&setup.ada, &format!("/orgs/{}/quota", setup.org)).await.expect(200);
        let used = (&quota["used"]["running_jobs"], &quota["used"]["boards_milli"]);
        assert_eq!(used, (&json!(40), &json!(2_000)), "{engine}: what they hold is known, too");
    }
}

#[tokio::test]
async fn a_bulk_stop_ends_only_the_expected_matching_jobs() {
    for (engine, db, _location) in engines("bulk_stop").await {
        let setup = IdlePortal::on(db).await;
        let vision = json!({"labels": {"team": "vision"}, "nodes": 1});
        let (one, two) = (submit(&setup, vision.clone()).await, submit(&setup, vision).await);
        let other = submit(&setup, json!({"labels": {"team": "Vision", "subteam": "vision"}})).await;
        let stop = "/operator/jobs/stop";
        let order = |expected: u64| json!({"filter": {"label": "team=vision"}, "reason": "power cut", "expected": expected});
        setup.t.post(&setup.ada, stop, order(2)).await.problem(404, "object.not_found");
        let preview =
            setup.t.post(&setup.operator, "/operator/jobs/stop?preview=true", order(0)).await.expect(200);
        assert_eq!((&preview["matched"], &preview["orgs"][0]["jobs"]), (&json!(2), &json!(2)), "{engine}");
        assert_eq!((&preview["orgs"][0]["org_name"], &preview["stopped"]), (&json!("lab"), &json!(0)));
        setup.t.post(&setup.operator, stop, order(1)).await.problem(409, "jobs.more");
        let bare = json!({"filter": {"label": "team=vision"}, "reason": "power cut"});
        setup.t.post(&setup.operator, stop, bare).await.problem(422, "request.invalid");
        let unexplained = json!({"filter": {"label": "team=vision"}, "expected": 2});
        let asked =
            setup.t.post(&setup.operator, "/operator/jobs/stop?preview=true", unexplained.clone()).await;
        assert_eq!(asked.expect(200), preview, "{engine}: who only looks gives no reason");
        let refused = setup.t.post(&setup.operator, stop, unexplained).await.problem(422, "request.invalid");
        assert_eq!(refused["errors"][0]["pointer"], "/reason", "{engine}");
        let vague = json!({"filter": {"label": "vision"}, "reason": "power cut", "expected": 1});
        setup.t.post(&setup.operator, stop, vague).await.problem(422, "request.invalid");
        assert_eq!(job(&setup, &one).await["state"], "queued", "{engine}: a refusal stops nothing");
        // A repeated request stops nothing more.
        let key = [("idempotency-key", "cut")];
        let done = setup.t.call_with(&setup.operator, "POST", stop, order(2), &key).await.expect(202);
        assert_eq!((&done["stopped"], &done["left"]), (&json!(2), &json!(0)), "{engine} {done}");
        assert_eq!(setup.t.call_with(&setup.operator, "POST", stop, order(2), &key).await.expect(202), done);
        let again = setup.t.post(&setup.operator, stop, order(2)).await.expect(202);
        assert_eq!((&again["matched"], &again["stopped"]), (&json!(0), &json!(0)), "{engine} {again}");
        for id in [&one, &two] {
            let ended = job(&setup, id).await;
            assert_eq!((&ended["state"], &ended["held_micros"]), (&json!("cancelled"), &json!(0)));
            let why = "Stopped by the operator (Harbour master): power cut.";
            assert_eq!(ended["failure"], json!({"code": "operator.stopped", "detail": why}), "{engine}");
        }
        assert_eq!(job(&setup, &other).await["state"], "queued", "{engine}: another label");
        let audit = items(&setup.t, &setup.ada, &format!("/orgs/{}/audit-events", setup.org)).await;
        let stops: Vec<&Value> = audit.iter().filter(|e| e["action"] == "jobs.stopped").collect();
        assert_eq!(
            (stops.len(), &stops[0]["detail"]),
            (1, &json!("2 jobs: power cut")),
            "{engine} {audit:?}"
        );
        // A running job is stopped once; a later cancellation by its organization changes nothing.
        schedule_all(&setup).await;
        assert_eq!(job(&setup, &other).await["state"], "assigned", "{engine}");
        let all = json!({"reason": "power cut.", "expected": 9});
        assert_eq!(setup.t.post(&setup.operator, stop, all).await.expect(202)["stopped"], 1, "{engine}");
        let cancel = format!("/orgs/{}/jobs/{other}/cancel", setup.org);
        let stopping = setup.t.post(&setup.ada, &cancel, Value::Null).await.expect(202);
        assert_eq!(stopping["state"], "stopping", "{engine}");
        setup.assert_books_balance().await;
    }
}

#[tokio::test]
async fn operators_list_jobs_of_all_organizations_also_as_csv() {
    for (engine, db, _location) in engines("all_jobs").await {
        let setup = IdlePortal::on(db).await;
        let one = submit(&setup, json!({"name": "=1+1", "labels": {"team": "a, b"}})).await;
        let body =
            json!({"name": "other", "offering": "h100-80gb", "command": ["true"], "max_duration_s": 60});
        setup.t.post(&setup.bob, &format!("/orgs/{}/jobs", setup.other), body).await.expect(201);
        schedule_all(&setup).await;
        let first = setup.t.get(&setup.operator, "/operator/jobs?limit=1").await.expect(200);
        assert_eq!(
            (&first["items"][0]["name"], &first["items"][0]["org_name"]),
            (&json!("other"), &json!("bobs"))
        );
        assert!(first["items"][0].get("command").is_none(), "{engine}: what they run is theirs");
        let next = format!("/operator/jobs?limit=1&cursor={}", first["next_cursor"].as_str().unwrap());
        assert_eq!(items(&setup.t, &setup.operator, &next).await[0]["id"], one, "{engine}");
        let at = job(&setup, &one).await["devices"][0].clone();
        let count = async |query: String| {
            items(&setup.t, &setup.operator, &format!("/operator/jobs?{query}")).await.len()
        };
        let node_id = at["node"].as_str().unwrap();
        assert_eq!(count(format!("org={}&node={node_id}&state=assigned", setup.org)).await, 1, "{engine}");
        assert_eq!(count("state=running".to_owned()).await, 0, "{engine}");
        assert_eq!(count("offering=h100-80gb&label=team%3Da%2C%20b".to_owned()).await, 1, "{engine}");
        setup.t.get(&setup.operator, "/operator/jobs?labels=x").await.problem(400, "request.malformed");
        setup.t.get(&setup.ada, "/operator/jobs").await.problem(404, "object.not_found");
        let all = text(&setup.t, &setup.operator, "/operator/jobs.csv").await;
        assert_eq!(all.lines().count(), 3, "{engine} {all}");
        assert_eq!(text(&setup.t, &setup.operator, "/operator/jobs?format=csv").await, all);
        let own = text(&setup.t, &setup.ada, &format!("/orgs/{}/jobs.csv", setup.org)).await;
        let lines: Vec<&str> = own.lines().collect();
        assert!(lines[0].starts_with("id,org,org_name,name,state,"), "{own}");
        let expected = format!("{one},{},lab,'=1+1,assigned,1,h100-80gb,1,1,", setup.org);
        assert!(lines[1].starts_with(&expected) && lines[1].contains("\"team=a, b\""), "{engine} {own}");
        assert_eq!(lines.len(), 2, "{engine}: nobody else's");
        assert_eq!(
            text(&setup.t, &setup.ada, &format!("/orgs/{}/jobs.csv?state=failed", setup.org))
                .await
                .lines()
                .count(),
            1
        );
        let foreign = format!("/orgs/{}/jobs.csv", setup.org);
        setup.t.get(&setup.bob, &foreign).await.problem(404, "object.not_found");
    }
}

#[tokio::test]
async fn stuck_jobs_are_listed_with_their_cause() {
    for (engine, db, _location) in engines("stuck").await {
        let mut setup = IdlePortal::on(db).await;
        let id = submit(&setup, json!({})).await;
        schedule_all(&setup).await;
        assert!(items(&setup.t, &setup.operator, "/operator/stuck").await.is_empty(), "{engine}");
        setup.t.clock.advance_s(601);
        let stuck = items(&setup.t, &setup.operator, "/operator/stuck").await;
        assert_eq!((&stuck[0]["job"], &stuck[0]["cause"]), (&json!(id), &json!("never_starts")), "{engine}");
        assert_eq!(stuck[0]["help"], "stop_job", "{engine}");
        setup.sessions.clear();
        let stuck = items(&setup.t, &setup.operator, "/operator/stuck").await;
        assert_eq!((stuck.len(), &stuck[0]["cause"]), (1, &json!("node_silent")), "{engine} {stuck:?}");
        setup.t.get(&setup.ada, "/operator/stuck").await.problem(404, "object.not_found");
    }
}

#[tokio::test]
async fn the_inventory_marks_hosts_with_unusual_facts() {
    for (engine, db, _location) in engines("inventory").await {
        let setup = IdlePortal::on(db).await;
        let at = setup.t.portal.context.now();
        let join = setup
            .t
            .portal
            .context
            .db
            .write(move |tx| async move { insert_node(tx, node(3), "node-3", at).await }.boxed());
        join.await.unwrap();
        report(&setup, 3, "535", json!({})).await;
        let hosts = items(&setup.t, &setup.operator, "/operator/inventory").await;
        assert_eq!(hosts.len(), 3, "{engine}");
        let odd = |name: &str| hosts.iter().find(|host| host["name"] == name).unwrap()["odd"].clone();
        let expected = json!([{"fact": "driver", "model": "H100-80GB", "usual": "550"}]);
        assert_eq!((odd("node-3"), odd("node-1")), (expected, json!([])), "{engine} {hosts:?}");
        let csv = text(&setup.t, &setup.operator, "/operator/inventory?format=csv").await;
        let of_three: Vec<&str> = csv.lines().filter(|l| l.contains(",node-3,")).collect();
        assert!(of_three[0].contains(",2 x H100-80GB,driver,535,550,"), "{engine} {csv}");
        for (n, vbios) in [(1, "96.00"), (2, "96.00"), (3, "95.00")] {
            let facts = GpuFacts { vbios: Some(vbios.to_owned()), ..GpuFacts::default() };
            let gpu_uuid = format!("GPU-{n}-0");
            let board = BoardReport {
                gpu_uuid,
                silent: None,
                fault: None,
                done: None,
                facts: Some(facts),
                mig_profiles: vec![],
            };
            setup.t.portal.health.apply_health(node(n), vec![board]).await.unwrap();
        }
        let hosts = items(&setup.t, &setup.operator, "/operator/inventory").await;
        let third = hosts.iter().find(|host| host["name"] == "node-3").unwrap();
        let expected = json!({"fact": "vbios", "model": "H100-80GB", "usual": "96.00"});
        assert_eq!(
            (&third["facts"]["vbios"], &third["odd"][1]),
            (&json!("95.00"), &expected),
            "{engine} {hosts:?}"
        );
        setup.t.get(&setup.ada, "/operator/inventory").await.problem(404, "object.not_found");
    }
}

#[tokio::test]
async fn placements_stay_within_the_power_budget_of_a_rack() {
    for (engine, db, _location) in engines("racks").await {
        let setup = IdlePortal::on(db).await;
        for n in 1..=2 {
            report(&setup, n, "550", json!({"rack": "r12"})).await;
        }
        let path = "/operator/racks/r12";
        put(&setup.t, &setup.operator, path, json!({"budget_watts": 0}))
            .await
            .problem(422, "request.invalid");
        put(&setup.t, &setup.ada, path, json!({"budget_watts": 2_000}))
            .await
            .problem(404, "object.not_found");
        put(&setup.t, &setup.operator, path, json!({"budget_watts": 2_000})).await.expect(204);
        let quote = setup.quote(setup.quote_request(2, 2, setup.at(3_600), setup.at(7_200))).await;
        let why = json!(["Power in rack r12: 2.8 kW needed, 2 kW of 2 kW available."]);
        assert_eq!((&quote["feasible"], &quote["refusals"]), (&json!(false), &why), "{engine} {quote}");
        assert_eq!(quote["conflicts"], json!([]), "{engine}: nothing else is in the way");
        let (first, second) = (submit(&setup, json!({"count": 2})).await, submit(&setup, json!({})).await);
        schedule_all(&setup).await;
        assert_eq!(job(&setup, &first).await["state"], "assigned", "{engine}");
        let waits = job(&setup, &second).await;
        let why = "Power in rack r12: 700 W needed, 600 W of 2 kW available.";
        assert_eq!((&waits["state"], &waits["reasons"][0]), (&json!("queued"), &json!(why)), "{engine}");
        let racks = items(&setup.t, &setup.operator, "/operator/racks").await;
        let rack = &racks[0];
        assert_eq!(
            (&rack["name"], &rack["budget_watts"], &rack["boards"]),
            (&json!("r12"), &json!(2_000), &json!(4))
        );
        assert_eq!((&rack["counted_watts"], &rack["most_watts"]), (&json!(1_400), &json!(2_800)), "{engine}");
        put(&setup.t, &setup.operator, path, json!({"budget_watts": 2_100})).await.expect(204);
        schedule_all(&setup).await;
        assert_eq!(job(&setup, &second).await["state"], "assigned", "{engine}: there is enough now");
        setup.t.call(&setup.operator, "DELETE", path, Value::Null).await.expect(204);
        setup.t.call(&setup.operator, "DELETE", path, Value::Null).await.problem(404, "object.not_found");
    }
}

#[tokio::test]
async fn a_lost_node_draws_no_power_of_its_rack() {
    for (engine, db, _location) in engines("lost_rack").await {
        let mut setup = IdlePortal::on(db).await;
        for n in 1..=2 {
            report(&setup, n, "550", json!({"rack": "r12"})).await;
        }
        let path = "/operator/racks/r12";
        put(&setup.t, &setup.operator, path, json!({"budget_watts": 2_000})).await.expect(204);
        let (first, second) = (submit(&setup, json!({"count": 2})).await, submit(&setup, json!({})).await);
        schedule_all(&setup).await;
        assert_eq!(job(&setup, &second).await["state"], "queued", "{engine}");
        let lost = job(&setup, &first).await["devices"][0]["node"].as_str().unwrap().to_owned();
        let place = usize::from(lost != node(1).to_string());
        drop(setup.sessions.remove(place));
        let made =
            setup.t.post(&setup.operator, &format!("/operator/nodes/{lost}/join-token"), json!({})).await;
        let (secret, (_key, csr)) = (made.expect(201)["secret"].clone(), certificate_request());
        let secret = secret.as_str().unwrap();
        setup.t.portal.enrolment.join(secret, "pier", &csr, None).await.unwrap();
        schedule_all(&setup).await;
        assert_eq!(job(&setup, &second).await["state"], "queued", "{engine}: the first may still run");
        let rack = async || items(&setup.t, &setup.operator, "/operator/racks").await[0].clone();
        let watts = async || rack().await["counted_watts"].clone();
        assert_eq!(watts().await, 1_400, "{engine}");
        let declare = format!("/operator/nodes/{lost}/lost");
        setup.t.post(&setup.operator, &declare, Value::Null).await.expect(200);
        assert_eq!(watts().await, 0, "{engine}");
        schedule_all(&setup).await;
        assert_eq!(job(&setup, &second).await["state"], "assigned", "{engine}");
        assert_eq!(watts().await, 700, "{engine}");
        let counts = async || {
            let found = setup.t.get(&setup.operator, "/operator/overview").await.expect(200);
            let (cluster, rack) = (&found["cluster"], rack().await);
            json!([cluster["notice_count"], cluster["capacity"][0]["boards"], rack["nodes"], rack["boards"]])
        };
        assert_eq!(counts().await, json!([1, 4, 2, 4]), "{engine}");
        let revoke = format!("/operator/nodes/{lost}/revoke");
        setup.t.post(&setup.operator, &revoke, Value::Null).await.expect(200);
        assert_eq!(counts().await, json!([0, 2, 1, 2]), "{engine}: the node is retired");
        assert_eq!(watts().await, 700, "{engine}");
    }
}

#[tokio::test]
async fn a_power_budget_needs_the_name_of_a_rack() {
    for (engine, db, _location) in engines("rack_names").await {
        let setup = IdlePortal::on(db).await;
        let long = "r".repeat(64);
        let wide = "%C3%A4".repeat(32);
        for name in ["%20", "%C2%A0%20", "a%0Ab", long.as_str(), wide.as_str()] {
            let path = format!("/operator/racks/{name}");
            let reply = put(&setup.t, &setup.operator, &path, json!({"budget_watts": 2_000})).await;
            reply.problem(422, "request.invalid");
            setup
                .t
                .call(&setup.operator, "DELETE", &path, Value::Null)
                .await
                .problem(404, "object.not_found");
        }
        assert!(items(&setup.t, &setup.operator, "/operator/racks").await.is_empty(), "{engine}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_see_the_loops_of_the_portal() {
    let setup = WorkerPortal::open().await;
    let loops = setup.t.get(&setup.operator, "/operator/loops").await.expect(200);
    assert_eq!(loops["items"][0]["name"], "scheduler", "{loops}");
    let scheduler = eventually("a run of the scheduler", async || {
        let loops = setup.t.get(&setup.operator, "/operator/loops").await.expect(200);
        let first = loops["items"][0].clone();
        (first["runs"].as_u64() > Some(0)).then_some(first)
    })
    .await;
    assert_eq!((&scheduler["period_ms"], &scheduler["failures"]), (&json!(5_000), &json!(0)), "{scheduler}");
    assert!(scheduler["last_run_at"].is_string() && scheduler["last_error"].is_null(), "{scheduler}");
    setup.t.get(&setup.ada, "/operator/loops").await.problem(404, "object.not_found");
}

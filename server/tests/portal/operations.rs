//! What operators do with nodes and jobs of everyone, on every engine.

use crate::common::{As, Reply, TestPortal, engines};
use crate::harbour::{Harbour, node};
use crate::quay::{Quay, eventually};
use berth_proto::{BoardFacts, BoardHealth, Health};
use berth_store as store;
use berth_store::nodes::{GpuReport, NodeReport};
use futures::FutureExt;
use serde_json::{Value, json};

pub async fn put(t: &TestPortal, who: &As, path: &str, body: Value) -> Reply {
    t.call(who, "PUT", path, body).await
}

pub async fn submit(h: &Harbour, spec: Value) -> String {
    let mut body =
        json!({"name": "train", "offering": "h100-80gb", "command": ["true"], "max_duration_s": 600});
    body.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let made = h.t.post(&h.ada, &format!("/orgs/{}/jobs", h.org), body).await.expect(201);
    made["id"].as_str().unwrap().to_owned()
}

/// Passes until there is nothing more to decide.
pub async fn place(h: &Harbour) {
    for _ in 0..100 {
        let pass = h.t.portal.scheduler.pass().await.unwrap();
        if !pass.unfinished && pass.kept == 0 {
            return;
        }
    }
    panic!("it never comes to an end");
}

pub async fn job(h: &Harbour, id: &str) -> Value {
    h.t.get(&h.ada, &format!("/orgs/{}/jobs/{id}", h.org)).await.expect(200)
}

pub async fn items(t: &TestPortal, who: &As, path: &str) -> Vec<Value> {
    t.get(who, path).await.expect(200)["items"].as_array().unwrap().clone()
}

/// The text of an answer that is no JSON.
async fn text(t: &TestPortal, who: &As, path: &str) -> String {
    let As::Cookie(cookie) = who else { panic!("a person") };
    let request = axum::http::Request::builder().uri(format!("/api/v1{path}")).header("cookie", cookie);
    let request = request.body(axum::body::Body::empty()).unwrap();
    let response = tower::ServiceExt::oneshot(t.router.clone(), request).await.unwrap();
    assert_eq!(response.status(), 200, "{path}");
    assert_eq!(response.headers()["content-type"], "text/csv; charset=utf-8");
    let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

async fn report(h: &Harbour, n: u128, driver: &str, labels: Value) {
    let board = |i: u32| GpuReport {
        uuid: format!("GPU-{n}-{i}"),
        index: i64::from(i),
        model: "H100-80GB".to_owned(),
        memory_mib: 81_920,
        mig_enabled: false,
        nvlink_island: 0,
        foreign_instances: "[]".to_owned(),
    };
    let report = NodeReport {
        simulated: true,
        unisolated: false,
        driver_version: driver.to_owned(),
        worker_version: "0.1".to_owned(),
        cpu_milli: 64_000,
        memory_mib: 512_000,
        address: "10.0.0.1".to_owned(),
        labels: labels.to_string(),
        isolation: "{}".to_owned(),
        images: false,
        boards: (0..2).map(board).collect(),
    };
    h.t.portal.nodes.report_node(node(n), report).await.unwrap();
}

#[tokio::test]
async fn however_many_come_at_once_each_is_looked_at() {
    for (engine, db, _place) in engines("many_at_once").await {
        let h = Harbour::on(db).await;
        // From here on only what is touched is read.
        place(&h).await;
        let mut jobs = Vec::new();
        for _ in 0..40 {
            jobs.push(submit(&h, json!({"gpu_milli": 50})).await);
        }
        let after = submit(&h, json!({"gpu_milli": 50, "depends_on": [{"job": jobs[0]}]})).await;
        place(&h).await;
        for id in &jobs {
            assert_eq!(job(&h, id).await["state"], "assigned", "{engine}");
        }
        assert_eq!(job(&h, &after).await["state"], "queued", "{engine}");
        let quota = h.t.get(&h.ada, &format!("/orgs/{}/quota", h.org)).await.expect(200);
        let used = (&quota["used"]["running_jobs"], &quota["used"]["boards_milli"]);
        assert_eq!(used, (&json!(40), &json!(2_000)), "{engine}: what they hold is known, too");
    }
}

#[tokio::test]
async fn an_operator_stops_what_is_meant_and_no_more() {
    for (engine, db, _place) in engines("bulk_stop").await {
        let h = Harbour::on(db).await;
        let vision = json!({"labels": {"team": "vision"}, "nodes": 1});
        let (one, two) = (submit(&h, vision.clone()).await, submit(&h, vision).await);
        let other = submit(&h, json!({"labels": {"team": "Vision", "subteam": "vision"}})).await;
        let stop = "/operator/jobs/stop";
        let order = |expected: u64| json!({"filter": {"label": "team=vision"}, "reason": "power cut", "expected": expected});
        h.t.post(&h.ada, stop, order(2)).await.problem(404, "object.not_found");
        let preview = h.t.post(&h.operator, "/operator/jobs/stop?preview=true", order(0)).await.expect(200);
        assert_eq!((&preview["matched"], &preview["orgs"][0]["jobs"]), (&json!(2), &json!(2)), "{engine}");
        assert_eq!((&preview["orgs"][0]["org_name"], &preview["stopped"]), (&json!("lab"), &json!(0)));
        h.t.post(&h.operator, stop, order(1)).await.problem(409, "jobs.more");
        let bare = json!({"filter": {"label": "team=vision"}, "reason": "power cut"});
        h.t.post(&h.operator, stop, bare).await.problem(422, "request.invalid");
        let unexplained = json!({"filter": {"label": "team=vision"}, "expected": 2});
        let asked = h.t.post(&h.operator, "/operator/jobs/stop?preview=true", unexplained.clone()).await;
        assert_eq!(asked.expect(200), preview, "{engine}: who only looks gives no reason");
        let refused = h.t.post(&h.operator, stop, unexplained).await.problem(422, "request.invalid");
        assert_eq!(refused["errors"][0]["pointer"], "/reason", "{engine}");
        let vague = json!({"filter": {"label": "vision"}, "reason": "power cut", "expected": 1});
        h.t.post(&h.operator, stop, vague).await.problem(422, "request.invalid");
        assert_eq!(job(&h, &one).await["state"], "queued", "{engine}: a refusal stops nothing");
        // The same order again does nothing more.
        let key = [("idempotency-key", "cut")];
        let done = h.t.call_with(&h.operator, "POST", stop, order(2), &key).await.expect(202);
        assert_eq!((&done["stopped"], &done["left"]), (&json!(2), &json!(0)), "{engine} {done}");
        assert_eq!(h.t.call_with(&h.operator, "POST", stop, order(2), &key).await.expect(202), done);
        let again = h.t.post(&h.operator, stop, order(2)).await.expect(202);
        assert_eq!((&again["matched"], &again["stopped"]), (&json!(0), &json!(0)), "{engine} {again}");
        for id in [&one, &two] {
            let ended = job(&h, id).await;
            assert_eq!((&ended["state"], &ended["held_micros"]), (&json!("cancelled"), &json!(0)));
            let why = "Stopped by the operator (Harbour master): power cut.";
            assert_eq!(ended["failure"], json!({"code": "operator.stopped", "detail": why}), "{engine}");
        }
        assert_eq!(job(&h, &other).await["state"], "queued", "{engine}: another label");
        let audit = items(&h.t, &h.ada, &format!("/orgs/{}/audit-events", h.org)).await;
        let told: Vec<&Value> = audit.iter().filter(|e| e["action"] == "jobs.stopped").collect();
        assert_eq!((told.len(), &told[0]["detail"]), (1, &json!("2 jobs: power cut")), "{engine} {audit:?}");
        // What has a place is told to stop, and its tenant's own stop changes nothing more.
        place(&h).await;
        assert_eq!(job(&h, &other).await["state"], "assigned", "{engine}");
        let all = json!({"reason": "power cut.", "expected": 9});
        assert_eq!(h.t.post(&h.operator, stop, all).await.expect(202)["stopped"], 1, "{engine}");
        let cancel = format!("/orgs/{}/jobs/{other}/cancel", h.org);
        let stopping = h.t.post(&h.ada, &cancel, Value::Null).await.expect(202);
        assert_eq!(stopping["state"], "stopping", "{engine}");
        h.books_are_right().await;
    }
}

#[tokio::test]
async fn jobs_of_everyone_are_listed_and_written_as_csv() {
    for (engine, db, _place) in engines("all_jobs").await {
        let h = Harbour::on(db).await;
        let one = submit(&h, json!({"name": "=1+1", "labels": {"team": "a, b"}})).await;
        let body =
            json!({"name": "other", "offering": "h100-80gb", "command": ["true"], "max_duration_s": 60});
        h.t.post(&h.bob, &format!("/orgs/{}/jobs", h.other), body).await.expect(201);
        place(&h).await;
        let first = h.t.get(&h.operator, "/operator/jobs?limit=1").await.expect(200);
        assert_eq!(
            (&first["items"][0]["name"], &first["items"][0]["org_name"]),
            (&json!("other"), &json!("bobs"))
        );
        assert!(first["items"][0].get("command").is_none(), "{engine}: what they run is theirs");
        let next = format!("/operator/jobs?limit=1&cursor={}", first["next_cursor"].as_str().unwrap());
        assert_eq!(items(&h.t, &h.operator, &next).await[0]["id"], one, "{engine}");
        let at = job(&h, &one).await["devices"][0].clone();
        let count =
            async |query: String| items(&h.t, &h.operator, &format!("/operator/jobs?{query}")).await.len();
        let node_id = at["node"].as_str().unwrap();
        assert_eq!(count(format!("org={}&node={node_id}&state=assigned", h.org)).await, 1, "{engine}");
        assert_eq!(count("state=running".to_owned()).await, 0, "{engine}");
        assert_eq!(count("offering=h100-80gb&label=team%3Da%2C%20b".to_owned()).await, 1, "{engine}");
        h.t.get(&h.operator, "/operator/jobs?labels=x").await.problem(400, "request.malformed");
        h.t.get(&h.ada, "/operator/jobs").await.problem(404, "object.not_found");
        let all = text(&h.t, &h.operator, "/operator/jobs.csv").await;
        assert_eq!(all.lines().count(), 3, "{engine} {all}");
        assert_eq!(text(&h.t, &h.operator, "/operator/jobs?format=csv").await, all);
        let own = text(&h.t, &h.ada, &format!("/orgs/{}/jobs.csv", h.org)).await;
        let lines: Vec<&str> = own.lines().collect();
        assert!(lines[0].starts_with("id,org,org_name,name,state,"), "{own}");
        let expected = format!("{one},{},lab,'=1+1,assigned,1,h100-80gb,1,1,", h.org);
        assert!(lines[1].starts_with(&expected) && lines[1].contains("\"team=a, b\""), "{engine} {own}");
        assert_eq!(lines.len(), 2, "{engine}: nobody else's");
        assert_eq!(
            text(&h.t, &h.ada, &format!("/orgs/{}/jobs.csv?state=failed", h.org)).await.lines().count(),
            1
        );
        let foreign = format!("/orgs/{}/jobs.csv", h.org);
        h.t.get(&h.bob, &foreign).await.problem(404, "object.not_found");
    }
}

#[tokio::test]
async fn what_is_stuck_is_told_with_its_cause() {
    for (engine, db, _place) in engines("stuck").await {
        let mut h = Harbour::on(db).await;
        let id = submit(&h, json!({})).await;
        place(&h).await;
        assert!(items(&h.t, &h.operator, "/operator/stuck").await.is_empty(), "{engine}");
        h.t.clock.advance_s(601);
        let stuck = items(&h.t, &h.operator, "/operator/stuck").await;
        assert_eq!((&stuck[0]["job"], &stuck[0]["cause"]), (&json!(id), &json!("never_starts")), "{engine}");
        assert_eq!(stuck[0]["help"], "stop_job", "{engine}");
        h.sessions.clear();
        let stuck = items(&h.t, &h.operator, "/operator/stuck").await;
        assert_eq!((stuck.len(), &stuck[0]["cause"]), (1, &json!("node_silent")), "{engine} {stuck:?}");
        h.t.get(&h.ada, "/operator/stuck").await.problem(404, "object.not_found");
    }
}

#[tokio::test]
async fn the_odd_ones_of_the_fleet_are_marked() {
    for (engine, db, _place) in engines("inventory").await {
        let h = Harbour::on(db).await;
        let at = h.t.portal.context.now();
        let join =
            h.t.portal.context.db.write(move |tx| {
                async move { store::nodes::insert(tx, node(3), "node-3", at).await }.boxed()
            });
        join.await.unwrap();
        report(&h, 3, "535", json!({})).await;
        let hosts = items(&h.t, &h.operator, "/operator/inventory").await;
        assert_eq!(hosts.len(), 3, "{engine}");
        let odd = |name: &str| hosts.iter().find(|host| host["name"] == name).unwrap()["odd"].clone();
        let expected = json!([{"fact": "driver", "model": "H100-80GB", "usual": "550"}]);
        assert_eq!((odd("node-3"), odd("node-1")), (expected, json!([])), "{engine} {hosts:?}");
        let csv = text(&h.t, &h.operator, "/operator/inventory?format=csv").await;
        let of_three: Vec<&str> = csv.lines().filter(|l| l.contains(",node-3,")).collect();
        assert!(of_three[0].contains(",2 x H100-80GB,driver,535,550,"), "{engine} {csv}");
        for (n, vbios) in [(1, "96.00"), (2, "96.00"), (3, "95.00")] {
            let facts = BoardFacts { vbios: Some(vbios.to_owned()), ..BoardFacts::default() };
            let gpu_uuid = format!("GPU-{n}-0");
            let board = BoardHealth { gpu_uuid, facts: Some(facts), ..BoardHealth::default() };
            h.t.portal.health.apply_health(node(n), Health { boards: vec![board] }).await.unwrap();
        }
        let hosts = items(&h.t, &h.operator, "/operator/inventory").await;
        let third = hosts.iter().find(|host| host["name"] == "node-3").unwrap();
        let expected = json!({"fact": "vbios", "model": "H100-80GB", "usual": "96.00"});
        assert_eq!(
            (&third["facts"]["vbios"], &third["odd"][1]),
            (&json!("95.00"), &expected),
            "{engine} {hosts:?}"
        );
        h.t.get(&h.ada, "/operator/inventory").await.problem(404, "object.not_found");
    }
}

#[tokio::test]
async fn a_rack_feeds_no_more_than_its_budget() {
    for (engine, db, _place) in engines("racks").await {
        let h = Harbour::on(db).await;
        for n in 1..=2 {
            report(&h, n, "550", json!({"rack": "r12"})).await;
        }
        let path = "/operator/racks/r12";
        put(&h.t, &h.operator, path, json!({"budget_watts": 0})).await.problem(422, "request.invalid");
        put(&h.t, &h.ada, path, json!({"budget_watts": 2_000})).await.problem(404, "object.not_found");
        put(&h.t, &h.operator, path, json!({"budget_watts": 2_000})).await.expect(204);
        let quote = h.quote(h.ask(2, 2, h.at(3_600), h.at(7_200))).await;
        let why = json!(["Rack r12 has 2 kW left of 2 kW, this needs 2.8 kW."]);
        assert_eq!((&quote["feasible"], &quote["refusals"]), (&json!(false), &why), "{engine} {quote}");
        assert_eq!(quote["conflicts"], json!([]), "{engine}: nothing else is in the way");
        let (first, second) = (submit(&h, json!({"count": 2})).await, submit(&h, json!({})).await);
        place(&h).await;
        assert_eq!(job(&h, &first).await["state"], "assigned", "{engine}");
        let waits = job(&h, &second).await;
        let why = "Rack r12 has 600 W left of 2 kW, this needs 700 W.";
        assert_eq!((&waits["state"], &waits["reasons"][0]), (&json!("queued"), &json!(why)), "{engine}");
        let racks = items(&h.t, &h.operator, "/operator/racks").await;
        let rack = &racks[0];
        assert_eq!(
            (&rack["name"], &rack["budget_watts"], &rack["boards"]),
            (&json!("r12"), &json!(2_000), &json!(4))
        );
        assert_eq!((&rack["counted_watts"], &rack["most_watts"]), (&json!(1_400), &json!(2_800)), "{engine}");
        put(&h.t, &h.operator, path, json!({"budget_watts": 2_100})).await.expect(204);
        place(&h).await;
        assert_eq!(job(&h, &second).await["state"], "assigned", "{engine}: there is enough now");
        h.t.call(&h.operator, "DELETE", path, Value::Null).await.expect(204);
        h.t.call(&h.operator, "DELETE", path, Value::Null).await.problem(404, "object.not_found");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_see_the_loops_of_the_portal() {
    let quay = Quay::open().await;
    let loops = quay.t.get(&quay.operator, "/operator/loops").await.expect(200);
    assert_eq!(loops["items"][0]["name"], "scheduler", "{loops}");
    let told = eventually("a run of the scheduler", async || {
        let loops = quay.t.get(&quay.operator, "/operator/loops").await.expect(200);
        let first = loops["items"][0].clone();
        (first["runs"].as_u64() > Some(0)).then_some(first)
    })
    .await;
    assert_eq!((&told["period_ms"], &told["failures"]), (&json!(5_000), &json!(0)), "{told}");
    assert!(told["last_run_at"].is_string() && told["last_error"].is_null(), "{told}");
    quay.t.get(&quay.ada, "/operator/loops").await.problem(404, "object.not_found");
}

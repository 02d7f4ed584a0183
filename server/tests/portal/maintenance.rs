//! Tests of maintenance windows and of the visibility of names in the calendar.

use crate::common::engines;
use crate::idle_portal::{DAY, HOUR, IdlePortal, node};
use crate::operations::{job, schedule_all, submit};
use crate::operators;
use berth_store as store;
use berth_types::ids::{JobId, NodeId};
use berth_types::time::Timestamp;
use futures::FutureExt;
use serde_json::{Value, json};

#[tokio::test]
async fn maintenance_keeps_boards_free_and_the_calendar_hides_foreign_names() {
    let setup = IdlePortal::on(
        crate::common::new_sqlite(&tempfile::tempdir().unwrap().keep().join("berth.db")).await,
    )
    .await;
    let reserved = setup.reserve(1, 2, setup.at(DAY), setup.at(2 * DAY)).await;
    let taken = reserved["devices"][0]["node"].clone();
    let free = if taken == json!(node(1)) { json!(node(2)) } else { json!(node(1)) };
    let plan = |node: &Value, from: Timestamp, until: Timestamp| json!({"node": node, "starts_at": from, "ends_at": until, "reason": "New driver"});
    let post = |body: Value| setup.t.post(&setup.operator, "/operator/reservations", body);
    let refused = post(plan(&taken, setup.at(DAY + HOUR), setup.at(DAY + 2 * HOUR))).await;
    let refused = refused.problem(409, "maintenance.in_use");
    let until = setup.at(2 * DAY).minute();
    let text = format!(" is reserved by lab as training week until {until}.");
    assert!(refused["detail"].as_str().unwrap().contains(&text), "{refused}");
    let window = post(plan(&free, setup.at(DAY), setup.at(DAY + 2 * HOUR))).await.expect(201);
    assert_eq!((&window["kind"], window["devices"].as_array().unwrap().len()), (&json!("maintenance"), 2));
    let again = post(plan(&free, setup.at(DAY + HOUR), setup.at(3 * DAY))).await;
    let again = again.problem(409, "maintenance.in_use");
    assert!(again["detail"].as_str().unwrap().contains("in maintenance (New driver) until"), "{again}");
    let unknown = json!("node_00000000000000000000000000");
    let unknown =
        post(plan(&unknown, setup.at(DAY), setup.at(2 * DAY))).await.problem(422, "request.invalid");
    assert_eq!(unknown["errors"][0]["pointer"], "/node", "{unknown}");
    setup
        .t
        .post(&setup.ada, "/operator/reservations", plan(&free, setup.at(3 * DAY), setup.at(4 * DAY)))
        .await
        .expect(404);
    let refused = setup.quote(setup.quote_request(2, 1, setup.at(DAY + HOUR), setup.at(DAY + 90 * 60))).await;
    assert!(refused["conflicts"].as_array().unwrap().iter().any(|c| c["name"] == "New driver"), "{refused}");

    // An organization sees the names of its own spans only; operators see all names.
    let between = format!("calendar?from={}&until={}", setup.at(0), setup.at(7 * DAY));
    let mine = setup.t.get(&setup.ada, &format!("/orgs/{}/{between}", setup.org)).await.expect(200);
    let theirs = setup.t.get(&setup.bob, &format!("/orgs/{}/{between}", setup.other)).await.expect(200);
    let all = setup.t.get(&setup.operator, &format!("/operator/{between}")).await.expect(200);
    let names = |calendar: &Value| -> Vec<String> {
        let rows = calendar["rows"].as_array().unwrap();
        let spans = rows.iter().flat_map(|r| r["spans"].as_array().unwrap());
        spans.map(|s| s["name"].as_str().unwrap_or("").to_owned()).collect()
    };
    assert_eq!(mine["rows"].as_array().unwrap().len(), 4);
    let count = |list: Vec<String>, name: &str| list.iter().filter(|n| *n == name).count();
    assert_eq!((count(names(&mine), "training week"), count(names(&mine), "New driver")), (2, 2), "{mine}");
    assert_eq!((count(names(&theirs), "training week"), count(names(&theirs), "")), (0, 2), "{theirs}");
    assert_eq!(count(names(&all), "training week"), 2);
    let page = setup.t.get(&setup.operator, "/operator/reservations").await.expect(200);
    assert_eq!(page["items"].as_array().unwrap().len(), 2, "{page}");
    // Maintenance can be planned for cordoned nodes too.
    let path = format!("/operator/nodes/{}", free.as_str().unwrap());
    setup.t.call(&setup.operator, "PATCH", &path, json!({"cordoned": true})).await.expect(200);
    let more = post(plan(&free, setup.at(3 * DAY), setup.at(4 * DAY))).await.expect(201);
    let cancel = format!("/operator/reservations/{}/cancel", more["id"].as_str().unwrap());
    // The role that decides reservations does not open the boards of the fleet.
    setup.t.tenant("sue").await;
    let support = json!({"email": "sue@example.org", "role": "support", "reason": "The night shift."});
    setup.t.post(&setup.operator, "/operator/operators", support).await.expect(201);
    let support = setup.t.sign_in("sue@example.org").await;
    setup.t.post(&support, &cancel, Value::Null).await.problem(403, "auth.forbidden");
    setup.t.post(&setup.operator, &cancel, Value::Null).await.expect(200);
    setup.t.call(&setup.operator, "PATCH", &path, json!({"cordoned": false})).await.expect(200);
    let cancel = format!("/operator/reservations/{}/cancel", window["id"].as_str().unwrap());
    // The windows belong to the fleet: a role that cancels reservations only leaves them.
    let (support, _) = operators::add(&setup.t, &setup.operator, "support", "support").await;
    setup.t.post(&support, &cancel, Value::Null).await.problem(403, "auth.forbidden");
    setup.t.post(&setup.operator, &cancel, Value::Null).await.expect(200);
    setup.reserve(1, 2, setup.at(DAY + HOUR), setup.at(DAY + 90 * 60)).await;
}

#[tokio::test]
async fn boards_of_a_present_window_are_neither_usable_nor_free() {
    for (engine, db, _location) in engines("maintenance_present").await {
        let mut setup = IdlePortal::on(db).await;
        let (from, until) = (setup.at(HOUR), setup.at(3 * HOUR));
        let plan = json!({"node": node(1), "starts_at": from, "ends_at": until, "reason": "New driver"});
        setup.t.post(&setup.operator, "/operator/reservations", plan).await.expect(201);
        let present = json!({"until": until, "reason": "New driver", "boards": 2});
        // Before, in and after the window.
        for (wait_s, maintenance, usable) in
            [(0, None, 4), (2 * HOUR, Some(&present), 2), (2 * HOUR, None, 4)]
        {
            setup.let_time_pass(wait_s).await;
            for (n, expected) in [(1, maintenance), (2, None)] {
                let path = format!("/operator/nodes/{}", node(n));
                let found = setup.t.get(&setup.operator, &path).await.expect(200);
                assert_eq!(found.get("maintenance"), expected, "{engine} {n} {wait_s}");
            }
            let overview = setup.t.get(&setup.operator, "/operator/overview").await.expect(200);
            let capacity = json!([{"model": "H100-80GB", "boards": 4, "usable": usable, "free": usable}]);
            assert_eq!(overview["cluster"]["capacity"], capacity, "{engine} {wait_s}");
        }
    }
}

#[tokio::test]
async fn a_refused_maintenance_names_the_job_on_the_boards() {
    for (engine, db, _location) in engines("maintenance_job").await {
        let setup = IdlePortal::on(db).await;
        let id = submit(&setup, json!({"count": 2})).await;
        schedule_all(&setup).await;
        let place = job(&setup, &id).await["devices"][0]["node"].clone();
        let plan = async || {
            let body = json!({"node": place, "starts_at": setup.at(60), "ends_at": setup.at(HOUR), "reason": "New driver"});
            let refused = setup.t.post(&setup.operator, "/operator/reservations", body).await;
            refused.problem(409, "maintenance.in_use")["detail"].as_str().unwrap().to_owned()
        };
        let detail = plan().await;
        let text = "is in use by the job train of lab, which ends by ";
        assert!(detail.contains(text), "{engine} {detail}");
        let (job, node): (JobId, NodeId) = (id.parse().unwrap(), place.as_str().unwrap().parse().unwrap());
        let marked = setup.t.portal.context.db.write(move |tx| {
            async move { store::attempts::mark_unclean(tx, job, 1, node, "a process").await }.boxed()
        });
        marked.await.unwrap();
        let detail = plan().await;
        let text = "is held by the job train of lab until its devices are proved clean.";
        assert!(detail.contains(text), "{engine} {detail}");
    }
}

#[tokio::test]
async fn maintenance_begins_within_a_year_from_now() {
    for (engine, db, _location) in engines("maintenance_far").await {
        let setup = IdlePortal::on(db).await;
        let plan = async |begin_s: i64| {
            let (from, until) = (setup.at(begin_s), setup.at(begin_s + HOUR));
            let body = json!({"node": node(1), "starts_at": from, "ends_at": until, "reason": "New driver"});
            setup.t.post(&setup.operator, "/operator/reservations", body).await
        };
        for begin_s in [367 * DAY, 30 * 366 * DAY] {
            let refused = plan(begin_s).await.problem(422, "request.invalid");
            let error =
                json!([{"pointer": "/starts_at", "detail": "Choose a start within a year from now."}]);
            assert_eq!(refused["errors"], error, "{engine}");
        }
        plan(366 * DAY).await.expect(201);
    }
}

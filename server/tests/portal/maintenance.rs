//! Maintenance beside reservations, and who sees what of both in the calendar.

use crate::harbour::{DAY, HOUR, Harbour, node};
use berth_store::Db;
use berth_types::time::Timestamp;
use serde_json::{Value, json};

#[tokio::test]
async fn maintenance_keeps_boards_free_and_the_calendar_shows_everything() {
    let h =
        Harbour::on(Db::sqlite(&tempfile::tempdir().unwrap().keep().join("berth.db")).await.unwrap()).await;
    let reserved = h.reserve(1, 2, h.at(DAY), h.at(2 * DAY)).await;
    let taken = reserved["devices"][0]["node"].clone();
    let free = if taken == json!(node(1)) { json!(node(2)) } else { json!(node(1)) };
    let plan = |node: &Value, from: Timestamp, until: Timestamp| json!({"node": node, "starts_at": from, "ends_at": until, "reason": "New driver"});
    let post = |body: Value| h.t.post(&h.operator, "/operator/reservations", body);
    post(plan(&taken, h.at(DAY + HOUR), h.at(DAY + 2 * HOUR))).await.problem(409, "maintenance.in_use");
    let window = post(plan(&free, h.at(DAY), h.at(DAY + 2 * HOUR))).await.expect(201);
    assert_eq!((&window["kind"], window["devices"].as_array().unwrap().len()), (&json!("maintenance"), 2));
    post(plan(&json!("node_00000000000000000000000000"), h.at(DAY), h.at(2 * DAY)))
        .await
        .problem(422, "request.invalid");
    h.t.post(&h.ada, "/operator/reservations", plan(&free, h.at(3 * DAY), h.at(4 * DAY))).await.expect(404);
    let refused = h.quote(h.ask(2, 1, h.at(DAY + HOUR), h.at(DAY + 90 * 60))).await;
    assert!(refused["conflicts"].as_array().unwrap().iter().any(|c| c["name"] == "New driver"), "{refused}");

    // The tenant sees its own by name, others' without; the operator sees all.
    let between = format!("calendar?from={}&until={}", h.at(0), h.at(7 * DAY));
    let mine = h.t.get(&h.ada, &format!("/orgs/{}/{between}", h.org)).await.expect(200);
    let theirs = h.t.get(&h.bob, &format!("/orgs/{}/{between}", h.other)).await.expect(200);
    let all = h.t.get(&h.operator, &format!("/operator/{between}")).await.expect(200);
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
    let page = h.t.get(&h.operator, "/operator/reservations").await.expect(200);
    assert_eq!(page["items"].as_array().unwrap().len(), 2, "{page}");
    // It can be planned for boards that are out of use already: they need it most.
    let path = format!("/operator/nodes/{}", free.as_str().unwrap());
    h.t.call(&h.operator, "PATCH", &path, json!({"cordoned": true})).await.expect(200);
    let more = post(plan(&free, h.at(3 * DAY), h.at(4 * DAY))).await.expect(201);
    let cancel = format!("/operator/reservations/{}/cancel", more["id"].as_str().unwrap());
    h.t.post(&h.operator, &cancel, Value::Null).await.expect(200);
    h.t.call(&h.operator, "PATCH", &path, json!({"cordoned": false})).await.expect(200);
    let cancel = format!("/operator/reservations/{}/cancel", window["id"].as_str().unwrap());
    h.t.post(&h.operator, &cancel, Value::Null).await.expect(200);
    h.reserve(1, 2, h.at(DAY + HOUR), h.at(DAY + 90 * 60)).await;
}

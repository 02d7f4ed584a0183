//! Tests of the map, the list and the states of boards, on every engine.

use crate::common::{Caller, engines};
use crate::idle_portal::{HOUR, IdlePortal, node};
use crate::operations::{items, put, report, schedule_all, submit};
use berth_fleet::reports::{BoardReport, ReportedFault};
use berth_types::health::GpuFacts;
use serde_json::{Value, json};

async fn map(setup: &IdlePortal, caller: &Caller, org: &str) -> Value {
    setup.t.get(caller, &format!("/orgs/{org}/cluster")).await.expect(200)
}

/// The boards of the map, all nodes together.
fn boards(map: &Value) -> Vec<Value> {
    let nodes = map["nodes"].as_array().unwrap();
    nodes.iter().flat_map(|node| node["boards"].as_array().unwrap().clone()).collect()
}

/// The states of the boards, sorted.
async fn states(setup: &IdlePortal) -> Vec<String> {
    let map = map(setup, &setup.ada, &setup.org).await;
    let mut states: Vec<String> =
        boards(&map).iter().map(|board| board["state"].as_str().unwrap().to_owned()).collect();
    states.sort();
    states
}

/// The UUIDs of the boards that match a query.
async fn matching(setup: &IdlePortal, query: &str) -> Vec<String> {
    let path = format!("/orgs/{}/boards?{query}", setup.org);
    let boards = items(&setup.t, &setup.ada, &path).await;
    boards.iter().map(|board| board["uuid"].as_str().unwrap().to_owned()).collect()
}

async fn with_racks(setup: &IdlePortal) {
    report(setup, 1, "550", json!({"rack": "r1"})).await;
    report(setup, 2, "550", json!({"rack": "r2", "zone": "north"})).await;
    schedule_all(setup).await;
}

/// Submits a job of Bob on a whole board.
async fn submit_of_bob(setup: &IdlePortal) {
    let body = json!({"name": "theirs", "offering": "h100-80gb", "command": ["true"], "max_duration_s": 600});
    setup.t.post(&setup.bob, &format!("/orgs/{}/jobs", setup.other), body).await.expect(201);
    schedule_all(setup).await;
}

#[tokio::test]
async fn the_map_shows_foreign_devices_without_their_owners() {
    for (engine, db, _location) in engines("cluster_map").await {
        let setup = IdlePortal::on(db).await;
        with_racks(&setup).await;
        let empty = map(&setup, &setup.ada, &setup.org).await;
        assert_eq!(empty["models"][0]["name"], "H100-80GB", "{engine} {empty}");
        assert_eq!(empty["nodes"][1]["labels"]["rack"], "r2", "{engine} {empty}");
        let first = json!({
            "uuid": "GPU-1-0", "index": 0, "model": 0, "state": "free", "cells": "........", "free": 0,
        });
        assert_eq!(empty["nodes"][0]["boards"][0], first, "{engine}");
        assert_eq!(empty["free_sets"][0][0], json!({"count": 1}), "{engine}: the whole board");
        assert_eq!(empty["free_sets"][0][1], json!({"profile": "1g.10gb", "count": 7}), "{engine}");

        let slice = json!({"name": "secret-sauce", "offering": "h100-80gb.1g.10gb"});
        submit(&setup, slice).await;
        schedule_all(&setup).await;
        submit_of_bob(&setup).await;
        let texts = |map: &Value| {
            let boards = boards(map);
            let text = |board: &Value| board["cells"].as_str().unwrap().to_owned();
            let used = boards.iter().map(text).filter(|cells| cells.contains(['o', 'x']));
            let mut counts: Vec<(usize, usize)> =
                used.map(|cells| (cells.matches('o').count(), cells.matches('x').count())).collect();
            counts.sort_unstable();
            counts
        };
        let (ada, bob) =
            (map(&setup, &setup.ada, &setup.org).await, map(&setup, &setup.bob, &setup.other).await);
        assert_eq!((texts(&ada), texts(&bob)), (vec![(0, 8), (1, 0)], vec![(0, 1), (8, 0)]), "{engine}");
        assert_eq!(states(&setup).await, ["free", "free", "full", "partly_free"], "{engine}");
        let foreign = setup.t.get(&setup.bob, &format!("/orgs/{}/boards", setup.other)).await.expect(200);
        let foreign = foreign.to_string();
        assert!(foreign.contains("theirs") && !foreign.contains("secret-sauce"), "{engine} {foreign}");
    }
}

#[tokio::test]
async fn an_unchanged_map_is_answered_without_a_body() {
    for (engine, db, _location) in engines("cluster_tag").await {
        let setup = IdlePortal::on(db).await;
        let path = format!("/orgs/{}/cluster", setup.org);
        let first = setup.t.get(&setup.ada, &path).await;
        let tag = first.headers["etag"].to_str().unwrap().to_owned();
        first.expect(200);
        let known = [("if-none-match", tag.as_str())];
        let same = setup.t.call_with(&setup.ada, "GET", &path, Value::Null, &known).await;
        assert_eq!(same.status, 304, "{engine}");
        let cordon = json!({"cordoned": true});
        let at = format!("/operator/nodes/{}", node(1));
        setup.t.call(&setup.operator, "PATCH", &at, cordon).await.expect(200);
        let changed = setup.t.call_with(&setup.ada, "GET", &path, Value::Null, &known).await;
        assert_ne!(changed.headers["etag"], tag, "{engine}");
        changed.expect(200);
    }
}

#[tokio::test]
async fn a_board_has_the_state_of_its_node_first() {
    for (engine, db, _location) in engines("cluster_states").await {
        let mut setup = IdlePortal::on(db).await;
        let drain = format!("/operator/nodes/{}/drain", node(1));
        put(&setup.t, &setup.operator, &drain, json!({"reason": "moving"})).await.expect(200);
        assert_eq!(states(&setup).await, ["draining", "draining", "free", "free"], "{engine}");
        assert_eq!(matching(&setup, "fits=board").await, ["GPU-2-0", "GPU-2-1"], "{engine}");
        setup.t.call(&setup.operator, "DELETE", &drain, Value::Null).await.expect(204);
        let at = format!("/operator/nodes/{}", node(1));
        setup.t.call(&setup.operator, "PATCH", &at, json!({"cordoned": true})).await.expect(200);
        assert_eq!(states(&setup).await, ["cordoned", "cordoned", "free", "free"], "{engine}");
        let fault = ReportedFault { serial: 1, code: "gpu.xid".to_owned(), detail: "XID 79".to_owned() };
        let faulty = BoardReport {
            gpu_uuid: "GPU-2-1".to_owned(),
            silent: None,
            fault: Some(fault),
            done: None,
            facts: Some(GpuFacts::default()),
            mig_profiles: vec![],
        };
        setup.t.portal.health.apply_health(node(2), vec![faulty]).await.unwrap();
        assert_eq!(matching(&setup, "state=quarantined").await, ["GPU-2-1"], "{engine}");
        setup.sessions.clear();
        assert_eq!(states(&setup).await, ["not_connected"; 4], "{engine}");
    }
}

#[tokio::test]
async fn a_reserved_board_is_full_without_a_tile() {
    for (engine, db, _location) in engines("cluster_reserved").await {
        let mut setup = IdlePortal::on(db).await;
        setup.reserve(1, 1, setup.at(HOUR), setup.at(3 * HOUR)).await;
        assert_eq!(states(&setup).await, ["free"; 4], "{engine}");
        setup.let_time_pass(HOUR + 60).await;
        assert_eq!(states(&setup).await, ["free", "free", "free", "full"], "{engine}");
        let full = matching(&setup, "state=full").await;
        let path = format!("/orgs/{}/boards/{}", setup.org, full[0]);
        let board = setup.t.get(&setup.ada, &path).await.expect(200);
        assert_eq!((&board["free"], &board["gpu"]["tiles"]), (&json!([]), &json!([])), "{engine}");
    }
}

#[tokio::test]
async fn boards_and_nodes_are_filtered_on_the_portal() {
    for (engine, db, _location) in engines("cluster_filters").await {
        let setup = IdlePortal::on(db).await;
        with_racks(&setup).await;
        submit(&setup, json!({})).await;
        schedule_all(&setup).await;
        let full = matching(&setup, "state=full").await;
        assert_eq!((full.len(), matching(&setup, "own=true").await), (1, full), "{engine}");
        assert_eq!(matching(&setup, "fits=1g.10gb").await.len(), 3, "{engine}");
        assert_eq!(matching(&setup, "rack=r1").await, ["GPU-1-0", "GPU-1-1"], "{engine}");
        assert_eq!(matching(&setup, "label=zone%3Dnorth").await, ["GPU-2-0", "GPU-2-1"], "{engine}");
        assert_eq!(matching(&setup, "model=H100-80GB&sort=desc&limit=1").await, ["GPU-2-1"], "{engine}");
        assert!(matching(&setup, "model=A30-24GB").await.is_empty(), "{engine}");
        let long = format!("rack={}", "a".repeat(128));
        for bad in ["model=", long.as_str(), "state=ready", "fits=", "own=perhaps"] {
            let path = format!("/orgs/{}/boards?{bad}", setup.org);
            setup.t.get(&setup.ada, &path).await.problem(400, "request.malformed");
        }
        let missing = format!("/orgs/{}/boards/GPU-9", setup.org);
        setup.t.get(&setup.ada, &missing).await.problem(404, "object.not_found");
        for (query, count) in [
            ("rack=r1", 1),
            ("rack=r3", 0),
            ("model=H100-80GB", 2),
            ("model=A30-24GB", 0),
            ("state=ready", 2),
        ] {
            let nodes = items(&setup.t, &setup.ada, &format!("/orgs/{}/nodes?{query}", setup.org)).await;
            assert_eq!(nodes.len(), count, "{engine} {query}");
        }
        let bad = format!("/orgs/{}/nodes?rack=", setup.org);
        setup.t.get(&setup.ada, &bad).await.problem(400, "request.malformed");
    }
}

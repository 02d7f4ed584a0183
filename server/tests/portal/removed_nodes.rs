//! Tests of the removal of lost nodes, on both databases.

use crate::common::engines;
use crate::daemons::certificate_request;
use crate::idle_portal::{DAY, IdlePortal, node};
use crate::operations::{items, job, schedule_all};
use berth_jobs::reports::{AttemptPhase, AttemptReport, ReportedEvidence};
use berth_store as store;
use berth_store::certificates::StoredCertificate;
use berth_store::nodes::{GpuReport, NodeReport};
use berth_store::types::JsonColumn;
use berth_types::ids::NodeId;
use futures::FutureExt;
use serde_json::{Value, json};

/// Submits a job, and returns its id.
async fn submit(setup: &IdlePortal) -> String {
    let body = json!({"name": "train", "offering": "h100-80gb", "command": ["true"], "max_duration_s": 3600});
    let made = setup.t.post(&setup.ada, &format!("/orgs/{}/jobs", setup.org), body).await.expect(201);
    made["id"].as_str().unwrap().to_owned()
}

/// Gives a node a certificate for a day.
async fn certify(setup: &IdlePortal, node_id: NodeId) {
    let (issued_at, expires_at) = (setup.at(0), setup.at(DAY));
    let row = StoredCertificate { serial: "01".to_owned(), node_id, issued_at, expires_at, revoked_at: None };
    let write = setup.t.portal.context.db.write(move |tx| {
        let row = row.clone();
        async move { store::certificates::insert(tx, &row).await }.boxed()
    });
    write.await.unwrap();
}

/// Joins a host of a removed node with a new join token.
async fn join_again(setup: &IdlePortal, terms: Value, former: NodeId) -> NodeId {
    let made = setup.t.post(&setup.operator, "/operator/join-tokens", terms).await.expect(201);
    let (_key, csr) = certificate_request();
    let (secret, former) = (made["secret"].as_str().unwrap(), former.to_string());
    setup.t.portal.enrolment.join(secret, "quay", &csr, Some(&former)).await.unwrap().node
}

/// Reports a host with these boards.
async fn report(setup: &IdlePortal, node: NodeId, uuids: &[&str]) {
    let board = |(index, uuid): (i64, &&str)| GpuReport {
        uuid: (*uuid).to_owned(),
        index,
        model: "H100-80GB".to_owned(),
        memory_mib: 81_920,
        mig_enabled: false,
        nvlink_island: 0,
        foreign_instances: JsonColumn::default(),
    };
    let report = NodeReport {
        simulated: true,
        unisolated: false,
        driver_version: "550".to_owned(),
        worker_version: "0.1".to_owned(),
        cpu_milli: 64_000,
        memory_mib: 512_000,
        address: "10.0.0.1".to_owned(),
        labels: JsonColumn::default(),
        isolation: JsonColumn::default(),
        images: false,
        gang_ports: None,
        rdma_ports: JsonColumn::default(),
        checks_rdma_links: false,
        egress: false,
        host_network: false,
        host_mounts: JsonColumn::default(),
        inference_port: 0,
        boards: (0..).zip(uuids).map(board).collect(),
    };
    setup.t.portal.nodes.report_node(node, report).await.unwrap();
}

/// Runs a job on the first node until the node is lost with it. Returns the job.
async fn lose_first(setup: &mut IdlePortal) -> String {
    certify(setup, node(1)).await;
    drop(setup.sessions.remove(1));
    setup.t.portal.planner.read_all();
    let train = submit(setup).await;
    schedule_all(setup).await;
    assert_eq!(job(setup, &train).await["devices"][0]["node"], node(1).to_string());
    let evidence = ReportedEvidence {
        process_ms: 5_000,
        device_ms: 5_000,
        lost_ms: 0,
        busy_ms: None,
        losses: Vec::new(),
        memory_clearing: None,
    };
    let running = AttemptReport {
        metered_ms: 5_000,
        evidence: Some(evidence),
        ..AttemptReport::new(train.parse().unwrap(), 1, AttemptPhase::Running)
    };
    setup.t.portal.attempts.apply_status(node(1), running).await.unwrap();
    setup.sessions.clear();
    train
}

#[tokio::test]
async fn a_lost_node_with_a_revoked_certificate_is_removed_and_its_jobs_keep_its_name() {
    for (engine, db, _location) in engines("removed_lost").await {
        let mut setup = IdlePortal::on(db).await;
        let reserved = setup.reserve(2, 2, setup.at(2 * DAY), setup.at(3 * DAY)).await;
        let train = lose_first(&mut setup).await;
        let (t, operator) = (&setup.t, &setup.operator);
        let path = format!("/operator/nodes/{}", node(1));
        let remove = async || t.call(operator, "DELETE", &path, Value::Null).await;
        remove().await.problem(409, "node.approved");
        t.post(operator, &format!("{path}/lost"), Value::Null).await.expect(200);
        remove().await.problem(409, "node.approved");
        t.post(operator, &format!("{path}/revoke"), Value::Null).await.expect(200);
        let refused = remove().await.problem(409, "node.in_use");
        assert!(refused["detail"].as_str().unwrap().contains("training week"), "{engine} {refused}");
        setup.cancel(&reserved).await.expect(200);
        let before = job(&setup, &train).await;
        assert_eq!(before["failure"]["code"], "node.lost", "{engine} {before}");
        t.call(&setup.ada, "DELETE", &path, Value::Null).await.problem(404, "object.not_found");
        remove().await.expect(204);

        for (method, path, body) in [
            ("DELETE", path.clone(), Value::Null),
            ("GET", path.clone(), Value::Null),
            ("GET", format!("{path}/gpus"), Value::Null),
            ("PATCH", path.clone(), json!({"cordoned": true})),
            ("POST", format!("{path}/join-token"), json!({})),
            ("POST", format!("{path}/lost"), Value::Null),
            ("POST", format!("{path}/revoke"), Value::Null),
            ("PUT", format!("{path}/dedication"), json!({"org": setup.org})),
            ("POST", "/operator/gpus/GPU-1-0/check".to_owned(), Value::Null),
        ] {
            let reply = t.call(operator, method, &path, body).await;
            reply.problem(404, "object.not_found");
        }
        let others = format!("/orgs/{}", setup.org);
        let nodes = format!("{others}/nodes");
        let lists =
            [(operator, "/operator/nodes"), (operator, "/operator/inventory"), (&setup.ada, nodes.as_str())];
        for (caller, list) in lists {
            let rows = items(t, caller, list).await;
            assert_eq!(rows.len(), 1, "{engine} {list}: {rows:?}");
        }
        let boards = items(t, &setup.ada, &format!("{others}/boards")).await;
        assert_eq!(boards.len(), 2, "{engine}: {boards:?}");
        let overview = t.get(operator, "/operator/overview").await.expect(200);
        assert_eq!(overview["cluster"]["capacity"][0]["boards"], 2, "{engine} {overview}");
        t.clock.advance_s(3_600);
        assert_eq!(items(t, operator, "/operator/stuck").await, Vec::<Value>::new(), "{engine}");
        // The scheduler knows the node no more.
        let gang = json!({"name": "gang", "offering": "h100-80gb", "command": ["true"], "max_duration_s": 60, "nodes": 2});
        t.post(&setup.ada, &format!("{others}/jobs"), gang).await.problem(422, "job.never_starts");
        // The removal changes neither the node nor the costs of the old job.
        let after = job(&setup, &train).await;
        assert_eq!(after["devices"][0]["node_name"], "node-1", "{engine} {after}");
        assert_eq!(
            (&after["cost_micros"], &after["evidence"]),
            (&before["cost_micros"], &before["evidence"])
        );
        let rows = items(t, operator, "/operator/jobs").await;
        assert_eq!(rows[0]["node_name"], "node-1", "{engine} {rows:?}");
        let former = setup.reservation(&reserved).await;
        let names: Vec<&Value> =
            former["devices"].as_array().unwrap().iter().map(|device| &device["node_name"]).collect();
        assert!(names.contains(&&json!("node-1")), "{engine} {former}");
        setup.assert_books_balance().await;
    }
}

#[tokio::test]
async fn the_host_of_a_removed_node_joins_again_with_its_boards() {
    for (engine, db, _location) in engines("removed_again").await {
        let mut setup = IdlePortal::on(db).await;
        let train = lose_first(&mut setup).await;
        let (t, operator) = (&setup.t, &setup.operator);
        let path = format!("/operator/nodes/{}", node(1));
        for step in ["lost", "revoke"] {
            t.post(operator, &format!("{path}/{step}"), Value::Null).await.expect(200);
        }
        t.call(operator, "DELETE", &path, Value::Null).await.expect(204);
        // A host without an approval may report the boards, and name them no more.
        let stranger = join_again(&setup, json!({}), node(1)).await;
        report(&setup, stranger, &["GPU-1-0", "GPU-1-1"]).await;
        let found = t.get(operator, &format!("/operator/nodes/{stranger}")).await.expect(200);
        assert_eq!(found["gpus"].as_array().unwrap().len(), 2, "{engine} {found}");
        report(&setup, stranger, &[]).await;
        let path = format!("/operator/nodes/{stranger}");
        t.call(operator, "DELETE", &path, Value::Null).await.expect(204);
        t.get(operator, &path).await.problem(404, "object.not_found");

        let again = join_again(&setup, json!({"approve": true}), stranger).await;
        report(&setup, again, &["GPU-1-0", "GPU-1-1"]).await;
        let found = t.get(operator, &format!("/operator/nodes/{again}")).await.expect(200);
        assert_eq!(found["gpus"].as_array().unwrap().len(), 2, "{engine} {found}");
        let _session = t.portal.context.live.open_session(again);
        let next = submit(&setup).await;
        schedule_all(&setup).await;
        let placed = job(&setup, &next).await;
        assert_eq!(
            (&placed["state"], &placed["devices"][0]["node_name"]),
            (&json!("assigned"), &json!("quay")),
            "{engine}: no device is held any more {placed}"
        );
        let first = job(&setup, &train).await;
        assert_eq!(first["devices"][0]["node_name"], "node-1", "{engine} {first}");
        setup.assert_books_balance().await;
    }
}

#[tokio::test]
async fn a_board_that_stays_for_an_old_job_approves_no_other_board() {
    for (engine, db, _location) in engines("removed_approval").await {
        let mut setup = IdlePortal::on(db).await;
        lose_first(&mut setup).await;
        let (t, operator) = (&setup.t, &setup.operator);
        let path = format!("/operator/nodes/{}", node(1));
        for step in ["lost", "revoke"] {
            t.post(operator, &format!("{path}/{step}"), Value::Null).await.expect(200);
        }
        t.call(operator, "DELETE", &path, Value::Null).await.expect(204);
        let stranger = join_again(&setup, json!({}), node(1)).await;
        report(&setup, stranger, &["GPU-1-0", "GPU-S"]).await;
        report(&setup, stranger, &["GPU-S"]).await;
        let path = format!("/operator/nodes/{stranger}");
        t.post(
            operator,
            &format!("{path}/approve"),
            json!({"boards": [{"uuid": "GPU-S", "model": "H100-80GB"}]}),
        )
        .await
        .expect(200);
        report(&setup, stranger, &["GPU-S", "GPU-X"]).await;
        let found = t.get(operator, &path).await.expect(200);
        let board = |uuid| found["gpus"].as_array().unwrap().iter().find(|gpu| gpu["uuid"] == uuid).unwrap();
        let waits = "The board waits for the approval of an operator.";
        assert_eq!(board("GPU-X")["quarantined"], waits, "{engine} {found}");
        assert!(board("GPU-S").get("quarantined").is_none(), "{engine} {found}");
    }
}

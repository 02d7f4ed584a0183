//! Tests of the approval of nodes and boards, and of the labels that count, on both databases.

use crate::common::{Caller, TestPortal, engines};
use crate::daemons::certificate_request;
use berth_store::Db;
use berth_store::nodes::{GpuReport, NodeReport};
use berth_store::types::JsonColumn;
use berth_types::ids::NodeId;
use serde_json::{Value, json};

const A30: &str = "A30-24GB";

struct Setup {
    t: TestPortal,
    operator: Caller,
    ada: Caller,
    org: String,
}

impl Setup {
    async fn on(db: Db) -> Self {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        Self { t, operator, ada, org }
    }

    async fn token(&self, terms: Value) -> crate::common::Reply {
        self.t.post(&self.operator, "/operator/join-tokens", terms).await
    }

    /// Joins a host with a join token of these terms.
    async fn join(&self, name: &str, terms: Value) -> NodeId {
        let made = self.token(terms).await.expect(201);
        let (_key, csr) = certificate_request();
        let secret = made["secret"].as_str().unwrap();
        self.t.portal.enrolment.join(secret, name, &csr, None).await.unwrap().node
    }

    /// Reports a host with boards of the model A30 in the rack `rack`.
    async fn report_in(&self, node: NodeId, rack: &str, uuids: &[&str]) {
        let board = |(index, uuid): (i64, &&str)| GpuReport {
            uuid: (*uuid).to_owned(),
            index,
            model: A30.to_owned(),
            memory_mib: 24_576,
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
            labels: JsonColumn([("rack".to_owned(), rack.to_owned())].into()),
            isolation: JsonColumn::default(),
            images: false,
            boards: (0..).zip(uuids).map(board).collect(),
        };
        self.t.portal.nodes.report_node(node, report).await.unwrap();
    }

    async fn report(&self, node: NodeId, uuids: &[&str]) {
        self.report_in(node, "r1", uuids).await;
    }

    async fn node(&self, node: NodeId) -> Value {
        self.t.get(&self.operator, &format!("/operator/nodes/{node}")).await.expect(200)
    }

    async fn approve(&self, caller: &Caller, node: NodeId, body: Value) -> crate::common::Reply {
        self.t.post(caller, &format!("/operator/nodes/{node}/approve"), body).await
    }

    /// Returns the answers with nodes and boards that an organization sees.
    async fn seen(&self) -> String {
        let mut seen = String::new();
        for path in ["nodes", "boards", "cluster", "capacity"] {
            let path = format!("/orgs/{}/{path}", self.org);
            seen += &self.t.get(&self.ada, &path).await.expect(200).to_string();
        }
        seen + &self.t.get(&self.ada, "/offerings").await.expect(200).to_string()
    }

    /// Returns the UUIDs of a node's boards that wait for an approval.
    async fn waiting_boards(&self, node: NodeId) -> Vec<String> {
        let path = format!("/operator/nodes/{node}/gpus");
        let boards = self.t.get(&self.operator, &path).await.expect(200);
        let waits = |board: &&Value| board["awaits_approval"] == true && board["present"] == true;
        let boards = boards["items"].as_array().unwrap().iter().filter(waits);
        boards.map(|board| board["uuid"].as_str().unwrap().to_owned()).collect()
    }
}

#[tokio::test]
async fn a_node_waits_for_an_approval_and_no_organization_sees_it() {
    for (engine, db, _location) in engines("approval_waits").await {
        let setup = Setup::on(db).await;
        let node = setup.join("stranger", json!({})).await;
        setup.report(node, &["GPU-S"]).await;
        let _session = setup.t.portal.context.live.open_session(node);
        let found = setup.node(node).await;
        assert_eq!(found["state"], "awaiting_approval", "{engine} {found}");
        assert_eq!(found["awaiting_approval"]["reason"], "Its join token has no approval.", "{engine}");
        let reported = (&found["address"], &found["reported_labels"], found.get("labels"));
        assert_eq!(reported, (&json!("10.0.0.1"), &json!({"rack": "r1"}), None), "{engine}");
        assert_eq!(found["gpus"][0]["uuid"], "GPU-S", "{engine}");
        let seen = setup.seen().await;
        for text in ["stranger", "GPU-S", "A30", "a30"] {
            assert!(!seen.contains(text), "{engine} {text}: {seen}");
        }
        let filtered =
            setup.t.get(&setup.operator, "/operator/nodes?state=awaiting_approval").await.expect(200);
        assert_eq!(filtered["items"][0]["name"], "stranger", "{engine}");

        setup.approve(&setup.ada, node, json!({})).await.problem(404, "object.not_found");
        let two = setup.approve(&setup.operator, node, json!({"boards": 2})).await;
        two.problem(409, "node.boards_changed");
        let approved = setup.approve(&setup.operator, node, json!({"boards": 1})).await.expect(200);
        assert_eq!(
            (&approved["state"], approved.get("awaiting_approval")),
            (&json!("ready"), None),
            "{engine}"
        );
        let seen = setup.seen().await;
        assert!(
            seen.contains("stranger") && seen.contains("GPU-S") && seen.contains("\"a30-24gb\""),
            "{engine}: {seen}"
        );
        assert!(!seen.contains("10.0.0.1") && !seen.contains("reported_labels"), "{engine}: {seen}");
        setup.approve(&setup.operator, node, json!({})).await.problem(409, "node.approved");
        let path = format!("/operator/nodes/{node}");
        setup.t.call(&setup.operator, "DELETE", &path, Value::Null).await.problem(409, "node.approved");
        let audit = setup.t.get(&setup.operator, "/operator/audit-events").await.expect(200).to_string();
        assert!(audit.contains("node.approved"), "{engine} {audit}");
    }
}

#[tokio::test]
async fn a_join_token_approves_only_the_boards_that_it_expects() {
    for (engine, db, _location) in engines("approval_terms").await {
        let setup = Setup::on(db).await;
        let terms = json!({"approve": true, "expected": {"model": "a30", "boards": 2}});
        let node = setup.join("quay", terms).await;
        setup.report(node, &["GPU-1"]).await;
        let waiting = setup.node(node).await["awaiting_approval"].clone();
        let reason = "Its join token expects 2 × A30-24GB, and the node reports 1 × A30-24GB.";
        assert_eq!(waiting["reason"], reason, "{engine}");
        assert_eq!(waiting["expected"], json!({"model": A30, "boards": 2}), "{engine}");
        setup.report(node, &["GPU-1", "GPU-2"]).await;
        let found = setup.node(node).await;
        assert_eq!(
            (&found["state"], found.get("awaiting_approval")),
            (&json!("unreachable"), None),
            "{engine}"
        );
        assert!(setup.waiting_boards(node).await.is_empty(), "{engine}");

        for wrong in [
            json!({"expected": {"model": "A30", "boards": 0}}),
            json!({"expected": {"model": "A30", "boards": 65}}),
            json!({"expected": {"model": "abacus", "boards": 1}}),
            json!({"labels": {"rack": ""}}),
            json!({"labels": {"rack": "r".repeat(64)}}),
            json!({"labels": {"rack": "r1"}, "adopt_labels": true}),
        ] {
            setup.token(wrong).await.problem(422, "request.invalid");
        }
    }
}

#[tokio::test]
async fn a_removed_node_is_gone_with_its_certificate() {
    for (engine, db, _location) in engines("approval_remove").await {
        let setup = Setup::on(db).await;
        let node = setup.join("stranger", json!({})).await;
        setup.report(node, &["GPU-S"]).await;
        let path = format!("/operator/nodes/{node}");
        let rejoin =
            setup.t.post(&setup.operator, &format!("{path}/join-token"), json!({})).await.expect(201);
        setup.t.call(&setup.operator, "DELETE", &path, Value::Null).await.expect(204);
        setup.t.get(&setup.operator, &path).await.problem(404, "object.not_found");
        setup.t.call(&setup.operator, "DELETE", &path, Value::Null).await.problem(404, "object.not_found");
        let (_key, csr) = certificate_request();
        let former = node.to_string();
        let secret = rejoin["secret"].as_str().unwrap();
        let again = setup.t.portal.enrolment.join(secret, "stranger", &csr, Some(&former)).await;
        assert!(again.is_err(), "{engine}: its join tokens are gone");
        // A report that was on its way makes no node.
        setup.report(node, &["GPU-S"]).await;
        setup.t.get(&setup.operator, &path).await.problem(404, "object.not_found");
        let other = setup.join("quay", json!({"approve": true})).await;
        setup.report(other, &["GPU-S"]).await;
        assert_eq!(setup.node(other).await["gpus"][0]["uuid"], "GPU-S", "{engine}");
    }
}

#[tokio::test]
async fn a_board_beyond_the_approval_waits_for_one_of_its_own() {
    for (engine, db, _location) in engines("approval_boards").await {
        let setup = Setup::on(db).await;
        let node = setup.join("quay", json!({"approve": true})).await;
        // The driver of the host answers after the first report.
        setup.report(node, &[]).await;
        setup.report(node, &["GPU-A"]).await;
        let _session = setup.t.portal.context.live.open_session(node);
        assert!(setup.waiting_boards(node).await.is_empty(), "{engine}: the first boards are approved");
        setup.report(node, &["GPU-A", "GPU-B"]).await;
        assert_eq!(setup.waiting_boards(node).await, ["GPU-B"], "{engine}");
        let board = format!("/orgs/{}/boards/GPU-B", setup.org);
        let seen = setup.t.get(&setup.ada, &board).await.expect(200);
        assert_eq!(seen["state"], "quarantined", "{engine} {seen}");
        let path = "/operator/gpus/GPU-B/approve";
        setup.t.post(&setup.ada, path, Value::Null).await.problem(404, "object.not_found");
        let approved = setup.t.post(&setup.operator, path, Value::Null).await.expect(200);
        assert_eq!(approved.get("awaits_approval"), None, "{engine} {approved}");
        assert_eq!(setup.t.get(&setup.ada, &board).await.expect(200)["state"], "free", "{engine}");
        setup.t.post(&setup.operator, path, Value::Null).await.problem(409, "gpu.approved");

        // A replacement takes the approval of the board that is gone.
        setup.report(node, &["GPU-A", "GPU-C"]).await;
        assert!(setup.waiting_boards(node).await.is_empty(), "{engine}");
        setup.report(node, &["GPU-A", "GPU-B", "GPU-C"]).await;
        assert_eq!(setup.waiting_boards(node).await, ["GPU-B"], "{engine}: two boards are approved");
    }
}

#[tokio::test]
async fn a_node_without_an_approval_takes_and_keeps_no_board() {
    for (engine, db, _location) in engines("approval_claims").await {
        let setup = Setup::on(db).await;
        let known = setup.join("quay", json!({"approve": true})).await;
        setup.report(known, &["GPU-1"]).await;
        let stranger = setup.join("stranger", json!({})).await;
        setup.report(stranger, &["GPU-1", "GPU-2"]).await;
        let found = setup.node(stranger).await;
        let text = "Board GPU-1 remains with node quay, which is approved, unlike this node.";
        assert_eq!(found["left_out"], text, "{engine}");
        assert_eq!(found["gpus"].as_array().unwrap().len(), 1, "{engine} {found}");
        setup.report(known, &["GPU-1", "GPU-2"]).await;
        let boards = setup.node(known).await["gpus"].as_array().unwrap().len();
        assert_eq!(boards, 2, "{engine}: the claim of a stranger does not count");
        assert_eq!(setup.waiting_boards(known).await, ["GPU-2"], "{engine}");
        assert_eq!(setup.node(stranger).await["gpus"], json!([]), "{engine}");
    }
}

#[tokio::test]
async fn reported_labels_count_only_after_their_adoption() {
    for (engine, db, _location) in engines("approval_labels").await {
        let setup = Setup::on(db).await;
        let node = setup.join("quay", json!({"approve": true})).await;
        let path = format!("/operator/nodes/{node}");
        let patch = async |body: Value| setup.t.call(&setup.operator, "PATCH", &path, body).await;
        let rack = async || setup.node(node).await["labels"]["rack"].clone();
        setup.report(node, &["GPU-1"]).await;
        assert_eq!(
            (rack().await, &setup.node(node).await["reported_labels"]["rack"]),
            (Value::Null, &json!("r1"))
        );
        let set = patch(json!({"labels": {"rack": "r7"}})).await.expect(200);
        assert_eq!((&set["labels"], set.get("adopts_labels")), (&json!({"rack": "r7"}), None), "{engine}");
        setup.report_in(node, "r2", &["GPU-1"]).await;
        assert_eq!(rack().await, "r7", "{engine}: a report changes no label of an operator");
        let adopted = patch(json!({"adopt_labels": true})).await.expect(200);
        assert_eq!(
            (&adopted["labels"]["rack"], &adopted["adopts_labels"]),
            (&json!("r2"), &json!(true)),
            "{engine}"
        );
        setup.report_in(node, "r3", &["GPU-1"]).await;
        assert_eq!(rack().await, "r3", "{engine}");
        patch(json!({"adopt_labels": false})).await.expect(200);
        setup.report_in(node, "r4", &["GPU-1"]).await;
        assert_eq!(rack().await, "r3", "{engine}: the present labels stay");
        for wrong in [
            json!({"labels": {"": "x"}}),
            json!({"labels": {"rack": "a\nb"}}),
            json!({"labels": {"rack": "r1"}, "adopt_labels": true}),
        ] {
            patch(wrong).await.problem(422, "request.invalid");
        }
        let labelled = setup.join("pier", json!({"approve": true, "labels": {"rack": "r9"}})).await;
        setup.report(labelled, &["GPU-9"]).await;
        assert_eq!(setup.node(labelled).await["labels"], json!({"rack": "r9"}), "{engine}");
    }
}

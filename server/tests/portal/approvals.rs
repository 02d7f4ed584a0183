//! Tests of the approval of nodes and boards, and of the labels that count, on both databases.

use crate::common::{Caller, TestPortal, engines};
use crate::daemons::{PlayedSession, certificate_request, get_node, join};
use crate::worker_portal::without_worker_on;
use berth_proto::{Board, Hello};
use berth_store::Db;
use berth_store::nodes::{GpuReport, NodeReport};
use berth_store::types::JsonColumn;
use berth_types::ids::NodeId;
use serde_json::{Value, json};
use tonic::Code;

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

    /// Reports a host with these boards, each with its model, in the rack `rack`.
    async fn report_models(&self, node: NodeId, rack: &str, boards: &[(&str, &str)]) {
        let board = |(index, (uuid, model)): (i64, &(&str, &str))| GpuReport {
            uuid: (*uuid).to_owned(),
            index,
            model: (*model).to_owned(),
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
            gang_ports: None,
            rdma_ports: JsonColumn::default(),
            egress: false,
            host_network: false,
            host_mounts: JsonColumn::default(),
            checks_rdma_links: false,
            inference_port: 0,
            boards: (0..).zip(boards).map(board).collect(),
        };
        self.t.portal.nodes.report_node(node, report).await.unwrap();
    }

    /// Reports a host with boards of the model A30 in the rack `rack`.
    async fn report_in(&self, node: NodeId, rack: &str, uuids: &[&str]) {
        let boards: Vec<(&str, &str)> = uuids.iter().map(|uuid| (*uuid, A30)).collect();
        self.report_models(node, rack, &boards).await;
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

    /// Returns the details of the audit events with this action about a node, newest first.
    async fn details(&self, action: &str, node: NodeId) -> Vec<String> {
        let path = format!("/operator/audit-events?action={action}&subject={node}&limit=200");
        let events = self.t.get(&self.operator, &path).await.expect(200);
        let events = events["items"].as_array().unwrap().iter();
        events.map(|event| event["detail"].as_str().unwrap().to_owned()).collect()
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
        let seen_boards = json!({"boards": [{"uuid": "GPU-S", "model": A30}]});
        let approved = setup.approve(&setup.operator, node, seen_boards).await.expect(200);
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
        let details = setup.details("node.approved", node).await;
        assert_eq!(details, ["Boards: GPU-S (A30-24GB)."], "{engine}");
    }
}

#[tokio::test]
async fn an_approval_names_the_boards_that_the_operator_saw() {
    for (engine, db, _location) in engines("approval_seen").await {
        let setup = Setup::on(db).await;
        let node = setup.join("stranger", json!({})).await;
        setup.report(node, &["GPU-1", "GPU-2"]).await;
        let seen = |boards: &[(&str, &str)]| {
            let boards = boards.iter().map(|(uuid, model)| json!({"uuid": uuid, "model": model}));
            json!({"boards": boards.collect::<Vec<Value>>()})
        };
        let right = seen(&[("GPU-2", A30), ("GPU-1", A30)]);
        for other in [
            seen(&[]),
            seen(&[("GPU-1", A30)]),
            seen(&[("GPU-1", A30), ("GPU-3", A30)]),
            seen(&[("GPU-1", A30), ("GPU-2", "H100-80GB")]),
            seen(&[("GPU-1", A30), ("GPU-2", A30), ("GPU-3", A30)]),
        ] {
            setup.approve(&setup.operator, node, other).await.problem(409, "node.boards_changed");
        }
        let many = seen(&[("GPU-1", A30); 65]);
        setup.approve(&setup.operator, node, many).await.problem(422, "request.invalid");
        // The same number of boards with another UUID.
        setup.report(node, &["GPU-1", "GPU-3"]).await;
        setup.approve(&setup.operator, node, right.clone()).await.problem(409, "node.boards_changed");
        assert_eq!(setup.details("node.approved", node).await, Vec::<String>::new(), "{engine}");
        setup.report(node, &["GPU-1", "GPU-2"]).await;
        setup.approve(&setup.operator, node, right).await.expect(200);
        let details = setup.details("node.approved", node).await;
        assert_eq!(details, ["Boards: GPU-1 (A30-24GB), GPU-2 (A30-24GB)."], "{engine}");
    }
}

#[tokio::test]
async fn only_approved_boards_are_offered() {
    for (engine, db, _location) in engines("approval_offers").await {
        let setup = Setup::on(db).await;
        let node = setup.join("quay", json!({"approve": true})).await;
        setup.report(node, &["GPU-1"]).await;
        let is_offered = async |slug: &str| {
            let offerings = setup.t.get(&setup.ada, "/offerings").await.expect(200).to_string();
            offerings.contains(&format!("\"{slug}\""))
        };
        let boards = [("GPU-1", A30), ("GPU-2", "H100-80GB")];
        for _ in 0..2 {
            setup.report_models(node, "r1", &boards).await;
            assert!(is_offered("a30-24gb").await && !is_offered("h100-80gb").await, "{engine}");
        }
        setup.t.post(&setup.operator, "/operator/gpus/GPU-2/approve", Value::Null).await.expect(200);
        assert!(is_offered("h100-80gb").await, "{engine}");
    }
}

#[tokio::test]
async fn alternating_reports_of_foreign_boards_have_one_event_a_minute() {
    for (engine, db, _location) in engines("approval_repeated").await {
        let setup = Setup::on(db).await;
        let known = setup.join("quay", json!({"approve": true})).await;
        setup.report(known, &["GPU-1"]).await;
        let stranger = setup.join("stranger", json!({})).await;
        for _ in 0..10 {
            setup.report(stranger, &["GPU-1"]).await;
            setup.report(stranger, &[]).await;
        }
        let details = setup.details("node.boards_left_out", stranger).await;
        assert_eq!(details.len(), 1, "{engine}: {details:?}");
        setup.t.clock.advance_s(60);
        setup.t.portal.context.record_omitted().await.unwrap();
        let details = setup.details("node.boards_left_out", stranger).await;
        assert_eq!(details.len(), 2, "{engine}: {details:?}");
        assert!(details[0].ends_with(" 9 times."), "{engine}: {details:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hello_beyond_its_limits_ends_the_session_without_a_row() {
    for (engine, db, _location) in engines("hello_limits").await {
        let setup = without_worker_on(TestPortal::on(db)).await;
        let token = setup.join_token(json!({"approve": false, "adopt_labels": false})).await;
        let credentials = join(&setup, &token, "").await.unwrap();
        let board = |uuid: String| Board { uuid, name: "A30".to_owned(), ..Board::default() };
        let hello = |connection: i64, boards: Vec<Board>| Hello {
            instance: "a".to_owned(),
            epoch: 1,
            connection,
            simulated: true,
            boards,
            address: "10.0.0.1\0".to_owned(),
            driver_version: "550\0\n".to_owned(),
            worker_version: "\u{1b}0.1\0".to_owned(),
            ..Hello::default()
        };
        let boards = |count: usize| (0..count).map(|n| board(format!("GPU-{n}"))).collect::<Vec<Board>>();
        let hostile = [
            boards(65),
            vec![board("GPU-\0".to_owned())],
            vec![board("G".repeat(257))],
            vec![board(String::new())],
        ];
        for (connection, boards) in (1..).zip(hostile) {
            let hello = hello(connection, boards);
            let played = PlayedSession::open_with_hello(&setup, Some(&credentials), hello).await.unwrap();
            let refused = played.expect_refused(false).await;
            assert_eq!(refused.code(), Code::PermissionDenied, "{engine}: {refused:?}");
            assert!(refused.message().contains("No board was recorded"), "{engine}: {refused:?}");
            assert_eq!(get_node(&setup, &credentials.node).await["gpus"], json!([]), "{engine}");
        }
        // The control characters of the other texts are left out.
        let hello = hello(9, boards(64));
        let played = PlayedSession::open_with_hello(&setup, Some(&credentials), hello).await.unwrap();
        let _played = played.expect_admitted().await;
        let node = get_node(&setup, &credentials.node).await;
        assert_eq!(node["gpus"].as_array().unwrap().len(), 64, "{engine}");
        assert_eq!(
            (&node["address"], &node["driver_version"]),
            (&json!("10.0.0.1"), &json!("550")),
            "{engine} {node}"
        );
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
            json!({"labels": {"rack": "  "}}),
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
        let details = setup.details("node.removed", node).await;
        assert_eq!(details, ["Node stranger. Boards: GPU-S (A30-24GB)."], "{engine}");
        // Its host is new for the portal, unlike that of a present or a foreign node.
        let made = setup.token(json!({"approve": true})).await.expect(201);
        let secret = made["secret"].as_str().unwrap();
        let foreign = "node_00000000000000000000000009".to_owned();
        for former in [other.to_string(), foreign, "\0".to_owned(), String::new()] {
            for secret in [secret, "unknown"] {
                let refused = setup.t.portal.enrolment.join(secret, "stranger", &csr, Some(&former)).await;
                let status = refused.err().map(|problem| problem.status);
                assert_eq!(status, Some(403), "{engine} {former:?} {secret}");
            }
        }
        let joined = setup.t.portal.enrolment.join(secret, "stranger", &csr, Some(&former)).await;
        assert!(joined.is_ok_and(|joined| joined.node != node), "{engine}: the host joins anew");
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
        let overview = setup.t.get(&setup.operator, "/operator/overview").await.expect(200);
        let cluster = &overview["cluster"];
        let notice = &cluster["board_notices"][0];
        assert_eq!(
            (&cluster["boards_out_of_service"], &notice["gpu_uuid"], &notice["awaits_approval"]),
            (&json!(1), &json!("GPU-B"), &json!(true)),
            "{engine} {cluster}"
        );
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
        let details = setup.details("node.labels_set", node).await;
        assert_eq!(details, ["not adopted", "adopted", "rack=r7"], "{engine}");
        setup.report_in(node, "r4", &["GPU-1"]).await;
        assert_eq!(rack().await, "r3", "{engine}: the present labels stay");
        let stale = json!({"labels": {"zone": "z"}, "seen_labels": {"rack": "r7"}, "cordoned": true});
        let refused = patch(stale).await.problem(409, "node.labels_changed");
        assert!(refused["detail"].as_str().unwrap().contains("rack=r3"), "{engine} {refused}");
        assert_eq!(setup.node(node).await["labels"], json!({"rack": "r3"}), "{engine}");
        assert!(setup.details("node.cordoned", node).await.is_empty(), "{engine}: nothing was changed");
        // A stored rack may have blanks only.
        let blank = json!({"labels": {"zone": "z"}, "seen_labels": {"rack": " "}});
        patch(blank).await.problem(409, "node.labels_changed");
        let set = patch(json!({"labels": {"rack": "r3"}, "seen_labels": {"rack": "r3"}})).await.expect(200);
        assert_eq!(set["labels"], json!({"rack": "r3"}), "{engine}");
        for wrong in [
            json!({"labels": {"": "x"}}),
            json!({"labels": {"rack": "a\nb"}}),
            json!({"labels": {"rack": " "}}),
            json!({"labels": {"rack": "ä".repeat(32)}}),
            json!({"labels": {}, "seen_labels": {"rack": ""}}),
            json!({"labels": {"rack": "r1"}, "adopt_labels": true}),
        ] {
            patch(wrong).await.problem(422, "request.invalid");
        }
        let labelled = setup.join("pier", json!({"approve": true, "labels": {"rack": "r9"}})).await;
        setup.report(labelled, &["GPU-9"]).await;
        assert_eq!(setup.node(labelled).await["labels"], json!({"rack": "r9"}), "{engine}");
    }
}

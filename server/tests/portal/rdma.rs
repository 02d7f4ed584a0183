//! Tests of RDMA: the ports of nodes, the grant of an organization, jobs with it on both databases, and the
//! variables of a job under a real worker.

use std::os::unix::fs::symlink;
use std::path::Path;

use crate::common::{TestPortal, engines};
use crate::idle_portal::{Equipment, IdlePortal, node};
use crate::operations::{job, put, schedule_all, submit};
use crate::worker_portal::without_worker_on;
use berth_foundation::Change;
use berth_types::rdma::RdmaPort;
use serde_json::{Value, json};

pub fn port(state: &str) -> RdmaPort {
    RdmaPort {
        device: "mlx5_0".to_owned(),
        port: 1,
        state: state.to_owned(),
        rate_mbps: 400_000,
        link_layer: "InfiniBand".to_owned(),
        lid: Some(42),
        numa_node: Some(0),
        pci_address: Some("0000:18:00.0".to_owned()),
        interfaces: vec!["ib0".to_owned()],
        uverbs: Some("uverbs0".to_owned()),
        distances: Vec::new(),
    }
}

impl IdlePortal {
    /// Grants RDMA to Ada's organization, or revokes it.
    pub async fn grant_rdma(&self, granted: bool) -> Value {
        let path = format!("/operator/orgs/{}/rdma", self.org);
        put(&self.t, &self.operator, &path, json!({"granted": granted})).await.expect(200)
    }
}

#[tokio::test]
async fn rdma_needs_a_grant_and_all_boards_of_a_node_with_active_ports() {
    for (engine, db, _location) in engines("rdma").await {
        let setup = IdlePortal::on(db).await;
        setup
            .report_equipped(1, Equipment { rdma_ports: vec![port("ACTIVE")], ..Equipment::default() })
            .await;
        setup.report_equipped(2, Equipment { rdma_ports: vec![port("DOWN")], ..Equipment::default() }).await;
        setup.t.portal.context.publish(Change::Boards);
        let jobs = format!("/orgs/{}/jobs", setup.org);
        let body = |count: u32, offering: &str| json!({"name": "train", "offering": offering, "command": ["true"], "max_duration_s": 600, "count": count, "rdma": true});
        let own = format!("/orgs/{}/rdma", setup.org);
        assert_eq!(setup.t.get(&setup.ada, &own).await.expect(200), json!({"granted": false}), "{engine}");
        setup.t.get(&setup.bob, &own).await.problem(404, "object.not_found");
        let refused = setup.t.post(&setup.ada, &jobs, body(2, "h100-80gb")).await;
        let refused = refused.problem(422, "request.invalid");
        assert_eq!(refused["errors"][0]["pointer"], "/rdma", "{engine}");
        let grant = format!("/operator/orgs/{}/rdma", setup.org);
        put(&setup.t, &setup.ada, &grant, json!({"granted": true})).await.problem(404, "object.not_found");
        assert_eq!(setup.grant_rdma(true).await, json!({"granted": true}), "{engine}");
        assert_eq!(setup.t.get(&setup.ada, &own).await.expect(200), json!({"granted": true}), "{engine}");
        let audit = setup.t.get(&setup.ada, &format!("/orgs/{}/audit-events", setup.org)).await.expect(200);
        assert!(audit.to_string().contains("org.rdma_set"), "{engine}: {audit}");

        // The planner reads the nodes.
        schedule_all(&setup).await;
        let never =
            setup.t.post(&setup.ada, &jobs, body(1, "h100-80gb")).await.problem(422, "job.never_starts");
        assert!(never["detail"].as_str().unwrap().contains("all boards of a node"), "{engine}: {never}");
        let both = submit(&setup, json!({"count": 2, "nodes": 2, "rdma": true})).await;
        schedule_all(&setup).await;
        let why = setup.t.get(&setup.ada, &format!("{jobs}/{both}/explanation")).await.expect(200);
        assert_eq!(why["blockers"][0]["code"], "capacity.rdma", "{engine}: {why}");
        let one = submit(&setup, json!({"count": 2, "rdma": true})).await;
        schedule_all(&setup).await;
        let shown = job(&setup, &one).await;
        assert_eq!(
            (&shown["state"], &shown["rdma"]),
            (&json!("assigned"), &json!(true)),
            "{engine}: {shown}"
        );
        assert_eq!(shown["devices"][0]["node"], json!(node(1)), "{engine}: the node with an active port");
        let mut ranks = setup.t.portal.attempts.desired(node(1)).await.unwrap();
        let start = ranks.remove(0).start.unwrap();
        assert!(start.rdma && start.unusable.is_none(), "{engine}");
        setup.grant_rdma(false).await;
        let mut ranks = setup.t.portal.attempts.desired(node(1)).await.unwrap();
        let start = ranks.remove(0).start.unwrap();
        assert_eq!(start.unusable.unwrap().code, "rdma.not_granted", "{engine}");
        assert!(start.command.is_empty(), "{engine}");
    }
}

#[tokio::test]
async fn rdma_on_several_nodes_needs_a_policy_that_allows_the_network_of_the_nodes() {
    for (engine, db, _location) in engines("rdma_policy").await {
        let setup = IdlePortal::on(db).await;
        for n in 1..=2 {
            let rdma_ports = vec![port("ACTIVE")];
            setup.report_equipped(n, Equipment { egress: true, rdma_ports, ..Equipment::default() }).await;
        }
        setup.grant_rdma(true).await;
        let gang = submit(&setup, json!({"count": 2, "nodes": 2, "rdma": true})).await;
        schedule_all(&setup).await;
        assert_eq!(job(&setup, &gang).await["state"], "assigned", "{engine}");
        let policy = format!("/operator/orgs/{}/egress-policy", setup.org);
        put(&setup.t, &setup.operator, &policy, json!({"internet": false})).await.expect(200);
        let start = setup.t.portal.attempts.desired(node(1)).await.unwrap().remove(0).start.unwrap();
        assert_eq!(start.unusable.unwrap().code, "network.not_allowed", "{engine}");
        let body = json!({"name": "train", "offering": "h100-80gb", "command": ["true"], "max_duration_s": 600, "count": 2, "nodes": 2, "rdma": true});
        let refused = setup.t.post(&setup.ada, &format!("/orgs/{}/jobs", setup.org), body).await;
        let refused = refused.problem(403, "network.not_allowed");
        assert_eq!(refused["errors"][0]["pointer"], "/rdma", "{engine}: {refused}");
        submit(&setup, json!({"count": 2, "rdma": true})).await;
    }
}

#[tokio::test]
async fn operators_alone_see_the_ports_of_a_node() {
    for (engine, db, _location) in engines("rdma_ports").await {
        let setup = IdlePortal::on(db).await;
        setup
            .report_equipped(1, Equipment { rdma_ports: vec![port("ACTIVE")], ..Equipment::default() })
            .await;
        let shown = setup.t.get(&setup.operator, &format!("/operator/nodes/{}", node(1))).await.expect(200);
        assert_eq!(shown["rdma_ports"], json!([port("ACTIVE")]), "{engine}");
        let nodes = setup.t.get(&setup.ada, &format!("/orgs/{}/nodes", setup.org)).await.expect(200);
        assert!(!nodes.to_string().contains("rdma_ports"), "{engine}: {nodes}");
        setup.report(1).await;
        let shown = setup.t.get(&setup.operator, &format!("/operator/nodes/{}", node(1))).await.expect(200);
        assert_eq!(shown.get("rdma_ports"), None, "{engine}: a report replaces the ports");
    }
}

/// Writes an RDMA device with one port in the form of sysfs. Its place is a PCI path.
fn add_device(root: &Path, name: &str, place: &str, link_layer: &str) {
    let dir = root.join("sys/devices").join(place);
    let port = dir.join("infiniband").join(name).join("ports/1");
    std::fs::create_dir_all(&port).unwrap();
    std::fs::write(dir.join("numa_node"), "0\n").unwrap();
    for (file, text) in [
        ("state", "4: ACTIVE\n"),
        ("rate", "400 Gb/sec (4X NDR)\n"),
        ("link_layer", link_layer),
        ("lid", "0x1\n"),
    ] {
        std::fs::write(port.join(file), text).unwrap();
    }
    symlink("../..", dir.join("infiniband").join(name).join("device")).unwrap();
    let class = root.join("sys/class/infiniband");
    std::fs::create_dir_all(&class).unwrap();
    symlink(format!("../../devices/{place}/infiniband/{name}"), class.join(name)).unwrap();
}

/// Writes the place of a board.
fn add_board(root: &Path, place: &str) {
    let list = root.join("sys/bus/pci/devices");
    std::fs::create_dir_all(root.join("sys/devices").join(place)).unwrap();
    std::fs::create_dir_all(&list).unwrap();
    let address = place.rsplit('/').next().unwrap();
    symlink(format!("../../../devices/{place}"), list.join(address)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_gets_the_ports_of_its_node_and_no_other_network_of_nccl() {
    let mut setup = without_worker_on(TestPortal::sqlite().await).await;
    let root = setup.data.join("rdma");
    // The first simulated board has the address 10:00.0, and mlx5_1 is nearer to it.
    add_board(&root, "pci0000:0e/0000:0e:01.0/0000:0f:00.0/0000:10:00.0");
    add_device(&root, "mlx5_0", "pci0000:20/0000:20:01.0/0000:21:00.0", "InfiniBand\n");
    add_device(&root, "mlx5_1", "pci0000:0e/0000:0e:01.0/0000:0f:01.0/0000:12:00.0", "InfiniBand\n");
    add_device(&root, "mlx5_2", "pci0000:30/0000:30:01.0/0000:31:00.0", "Ethernet\n");
    let token = setup.join_token(json!({})).await;
    setup.start_worker(Some(&token)).unwrap();
    setup.t.add_price_and_credit(&setup.operator, &setup.org, 1_000_000_000).await;
    let price = json!({"offering": "h100-80gb", "per_hour_micros": 3_600_000});
    setup.t.post(&setup.operator, "/operator/prices", price).await.expect(201);
    let grant = format!("/operator/orgs/{}/rdma", setup.org);
    put(&setup.t, &setup.operator, &grant, json!({"granted": true})).await.expect(200);
    let script = "echo \"$NCCL_IB_HCA $NCCL_NET\"";
    let spec = json!({"offering": "h100-80gb", "rdma": true, "script": script});
    let id = setup.submit(spec).await;
    let done = setup.until_ended(&id).await;
    assert_eq!(done["state"], "succeeded", "{done}");
    let log = String::from_utf8(setup.whole_log(&id).await).unwrap();
    assert_eq!(log, "=mlx5_1:1,mlx5_0:1 IB\n");
    let own = json!({"offering": "h100-80gb", "rdma": true, "script": script, "env": {"NCCL_NET": "Socket"}});
    let id = setup.submit(own).await;
    setup.until_ended(&id).await;
    let log = String::from_utf8(setup.whole_log(&id).await).unwrap();
    assert_eq!(log, "=mlx5_1:1,mlx5_0:1 Socket\n", "a job may choose for itself");
    let nodes = setup.t.get(&setup.operator, "/operator/nodes").await.expect(200);
    let ports = nodes["items"][0]["rdma_ports"].as_array().unwrap();
    assert_eq!(ports.len(), 3, "{nodes}");
    assert_eq!(ports[1]["distances"], json!([{"gpu_index": 0, "distance": "PIX"}]), "{nodes}");
}

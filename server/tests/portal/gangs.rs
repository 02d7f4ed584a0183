//! Tests of jobs on several nodes: real ranks under two workers that connect to each other.

use std::path::PathBuf;

use crate::worker_portal::{Worker, WorkerPortal, eventually};
use serde_json::{Value, json};

/// A portal with two nodes of one board each.
struct TwoNodeSetup {
    portal: WorkerPortal,
    second: PathBuf,
    worker: Worker,
}

impl TwoNodeSetup {
    async fn open() -> Self {
        let portal = WorkerPortal::open().await;
        let price = json!({"offering": "h100-80gb", "per_hour_micros": 3_600_000});
        portal.t.post(&portal.operator, "/operator/prices", price).await.expect(201);
        let token = portal.join_token(json!({})).await;
        let second = portal.t.data.path().join("second");
        let mut worker = Worker::start(&portal.address, &second, "1xH100-80GB", Some(&token));
        worker.wait_until_joined().unwrap();
        let setup = Self { portal, second, worker };
        setup.nodes(|nodes| nodes.iter().filter(|n| n["state"] == "ready").count() == 2).await;
        setup
    }

    async fn nodes(&self, ready: impl Fn(&Vec<Value>) -> bool) {
        eventually("the nodes' state", async || {
            let nodes = self.portal.t.get(&self.portal.operator, "/operator/nodes").await.expect(200);
            ready(nodes["items"].as_array().unwrap()).then_some(())
        })
        .await;
    }

    /// The time of a job's first placement.
    async fn placed_at(&self, job: &str) -> String {
        let path = format!("/orgs/{}/jobs/{job}/events", self.portal.org);
        let events = self.portal.t.get(&self.portal.ada, &path).await.expect(200);
        let placed = events["items"].as_array().unwrap().iter().find(|event| event["state"] == "assigned");
        placed.unwrap()["at"].as_str().unwrap().to_owned()
    }

    async fn until_all_free(&self) {
        self.nodes(|nodes| {
            nodes.iter().all(|n| n["gpus"].as_array().unwrap().iter().all(|g| g["tiles"] == json!([])))
        })
        .await;
        for data in [&self.portal.data, &self.second] {
            let kept = async || std::fs::read_dir(data.join("attempts")).unwrap().count();
            eventually("no attempt is kept", async || (kept().await == 0).then_some(())).await;
        }
    }

    async fn submit(&self, spec: Value) -> String {
        let mut body = json!({"offering": "h100-80gb", "nodes": 2, "max_duration_s": 60});
        body.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        self.portal.submit(body).await
    }

    /// Submits an invalid job; returns the problem.
    async fn expect_refused(&self, spec: Value) -> Value {
        let mut body = json!({"name": "never", "offering": "h100-80gb", "nodes": 2, "max_duration_s": 60});
        body.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let path = format!("/orgs/{}/jobs", self.portal.org);
        self.portal.t.post(&self.portal.ada, &path, body).await.expect(422)
    }

    async fn log(&self, job: &str, rank: u32) -> String {
        let path = format!("/orgs/{}/jobs/{job}/logs?rank={rank}", self.portal.org);
        self.portal.log_complete(job.parse().unwrap(), 1, rank).await;
        let crate::common::Caller::Cookie(cookie) = &self.portal.ada else { panic!("a person") };
        let request = axum::http::Request::builder().uri(format!("/api/v1{path}")).header("cookie", cookie);
        let request = request.body(axum::body::Body::empty()).unwrap();
        let response = tower::ServiceExt::oneshot(self.portal.t.router.clone(), request).await.unwrap();
        let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        String::from_utf8(bytes.to_vec()).unwrap()
    }
}

/// A sum of a vector over all ranks: rank 0 gathers, adds and distributes the sum.
const ALL_REDUCE: &str = r#"
import json, os, socket, time
rank, world = int(os.environ["NODE_RANK"]), int(os.environ["NNODES"])
place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
mine = [float(rank + 1) * i for i in range(1000)]
if rank == 0:
    server = socket.create_server(place)
    peers = [server.accept()[0].makefile("rw") for _ in range(world - 1)]
    total = mine
    for peer in peers:
        total = [a + b for a, b in zip(total, json.loads(peer.readline()))]
    for peer in peers:
        peer.write(json.dumps(total) + "\n"); peer.flush()
else:
    for _ in range(200):
        try:
            peer = socket.create_connection(place).makefile("rw"); break
        except OSError:
            time.sleep(0.05)
    peer.write(json.dumps(mine) + "\n"); peer.flush()
    total = json.loads(peer.readline())
print("rank", rank, "of", world, "sum", sum(total), "procs", os.environ["NPROC_PER_NODE"], os.environ["WORLD_SIZE"])
"#;

#[tokio::test(flavor = "multi_thread")]
async fn ranks_on_two_nodes_exchange_data_and_are_charged_for_both() {
    let setup = TwoNodeSetup::open().await;
    let files = json!({"all_reduce.py": ALL_REDUCE});
    let job = setup.submit(json!({"command": ["python3", "all_reduce.py"], "files": files})).await;
    let done = setup.portal.until_ended(&job).await;
    assert_eq!(done["state"], "succeeded", "{done}");
    let devices = done["devices"].as_array().unwrap();
    assert_eq!(devices.len(), 2, "{done}");
    assert_ne!(devices[0]["node"], devices[1]["node"], "{done}");
    let sum = 3.0 * f64::from((0..1_000).sum::<i32>());
    for rank in 0..2 {
        let log = setup.log(&job, rank).await;
        assert_eq!(log, format!("rank {rank} of 2 sum {sum:.1} procs 1 2\n"));
    }
    assert_eq!(done["nano_per_second"], 2_000_000, "two boards");
    setup.portal.assert_settled(&done).await;
    setup.until_all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topology_is_accepted_only_with_labels_on_the_nodes() {
    let setup = TwoNodeSetup::open().await;
    let refused = setup.expect_refused(json!({"script": "true", "topology": "same_switch"})).await;
    let detail = "No suitable node for a whole H100-80GB has the labels of the topology. \
                  Choose the topology any, or ask the operator to label the nodes.";
    assert_eq!(
        (&refused["code"], &refused["detail"]),
        (&json!("job.never_starts"), &json!(detail)),
        "{refused}"
    );
    let rack = setup.submit(json!({"script": "true", "topology": "same_rack"})).await;
    let done = setup.portal.until_ended(&rack).await;
    assert_eq!((&done["state"], &done["topology"]), (&json!("succeeded"), &json!("same_rack")), "{done}");
    let nodes = setup.portal.t.get(&setup.portal.operator, "/operator/nodes").await.expect(200);
    assert_eq!(nodes["items"][0]["labels"], json!({"rack": "r1"}), "{nodes}");
    setup.until_all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_failure_of_one_rank_stops_all_ranks() {
    let setup = TwoNodeSetup::open().await;
    let script = "if [ \"$NODE_RANK\" = 1 ]; then sleep 1; exit 5; fi; echo waiting; exec sleep 300";
    let job = setup.submit(json!({"script": script, "max_duration_s": 600})).await;
    let done = setup.portal.until_ended(&job).await;
    assert_eq!((&done["state"], &done["exit_code"]), (&json!("failed"), &json!(5)), "{done}");
    let detail = "Rank 1: The process ended with exit code 5.";
    assert_eq!((&done["failure"]["detail"], &done["failed_rank"]), (&json!(detail), &json!(1)), "{done}");
    let path = format!("/orgs/{}/jobs/{job}/events?after=0", setup.portal.org);
    let events = setup.portal.t.get(&setup.portal.ada, &path).await.expect(200).to_string();
    assert!(events.contains(detail), "{events}");
    assert_eq!(setup.log(&job, 0).await, "waiting\n");
    assert!(done["metered_ms"].as_i64().unwrap() < 60_000, "{done}");
    setup.portal.assert_settled(&done).await;
    setup.until_all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_gets_all_nodes_or_none_and_a_stop_reaches_every_rank() {
    let setup = TwoNodeSetup::open().await;
    let one = setup.submit(json!({"nodes": 1, "script": "exec sleep 300"})).await;
    setup.portal.until(&one, |j| j["state"] == "running").await;
    let both = setup.submit(json!({"script": "echo up; exec sleep 300"})).await;
    let waits = setup.portal.until(&both, |j| !j["reasons"].as_array().unwrap().is_empty()).await;
    assert_eq!(
        (&waits["state"], &waits["devices"]),
        (&json!("queued"), &json!([])),
        "none is better than half"
    );
    let org = &setup.portal.org;
    let why = format!("/orgs/{org}/jobs/{both}/explanation");
    let why = setup.portal.t.get(&setup.portal.ada, &why).await.expect(200);
    assert_eq!(why["blockers"][0]["code"], "capacity.busy", "{why}");
    assert_eq!(why["smallest_change"], "To start at once: request 1 node.", "{why}");
    for never in [json!({"nodes": 3}), json!({"count": 17}), json!({"cpus": 65_536})] {
        let mut body = json!({"script": "true"});
        body.as_object_mut().unwrap().extend(never.as_object().unwrap().clone());
        let refused = setup.expect_refused(body).await;
        assert_eq!(refused["code"], "job.never_starts", "{never}: {refused}");
    }
    let path = format!("/orgs/{org}/jobs/{one}/cancel");
    setup.portal.t.post(&setup.portal.ada, &path, Value::Null).await.expect(202);
    setup.portal.until(&both, |j| j["state"] == "running").await;
    let path = format!("/orgs/{org}/jobs/{both}/cancel");
    setup.portal.t.post(&setup.portal.ada, &path, Value::Null).await.expect(202);
    let done = setup.portal.until_ended(&both).await;
    assert_eq!(done["state"], "cancelled", "{done}");
    setup.portal.assert_settled(&done).await;
    setup.until_all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn both_nodes_are_preempted_for_one_job_with_any_time_limit() {
    let setup = TwoNodeSetup::open().await;
    for seconds in [200, 300, 600] {
        let stays = json!({
            "nodes": 1, "script": "if [ \"$BERTH_ATTEMPT\" = 1 ]; then sleep 300; fi", "priority": "low",
            "preemptible": true, "max_duration_s": 300,
        });
        let low = [setup.submit(stays.clone()).await, setup.submit(stays).await];
        for job in &low {
            setup.portal.until(job, |j| j["state"] == "running").await;
        }
        let high = json!({"script": "sleep 0.2", "priority": "high", "max_duration_s": seconds});
        let high = setup.submit(high).await;
        let done = setup.portal.until_ended(&high).await;
        assert_eq!(
            (&done["state"], done["devices"].as_array().unwrap().len()),
            (&json!("succeeded"), 2),
            "{done}"
        );
        for job in &low {
            let done = setup.portal.until_ended(job).await;
            assert_eq!((&done["state"], &done["attempt"]), (&json!("succeeded"), &json!(2)), "{done}");
        }
    }
    setup.until_all_free().await;
}

/// A low run that ends `seconds` after its stop.
fn preemptible_run(seconds: u32) -> Value {
    let script = format!("trap 'sleep {seconds}; exit 1' TERM; while true; do sleep 0.05; done");
    json!({
        "nodes": 1, "script": script, "priority": "low", "preemptible": true, "max_duration_s": 300,
        "checkpoint": {"dir": "state", "grace_s": 20},
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn preempted_devices_stay_reserved_while_a_worker_of_another_rank_restarts() {
    let mut setup = TwoNodeSetup::open().await;
    let late = setup.submit(preemptible_run(6)).await;
    let early = setup.submit(preemptible_run(1)).await;
    for job in [&late, &early] {
        setup.portal.until(job, |j| j["state"] == "running").await;
    }
    let node = setup.portal.job(&late).await["devices"][0]["node"].clone();
    let is_second = setup.second.join("attempts").join(format!("{late}-1")).exists();
    let high = setup.submit(json!({"script": "true", "priority": "high", "max_duration_s": 30})).await;
    let behind = setup.submit(json!({"nodes": 1, "script": "true", "max_duration_s": 200})).await;
    setup.portal.until(&late, |j| j["state"] == "stopping").await;
    let worker = if is_second { &mut setup.worker } else { setup.portal.worker.as_mut().unwrap() };
    worker.kill();
    setup.nodes(|nodes| nodes.iter().any(|n| n["id"] == node && n["state"] == "unreachable")).await;
    // The run on the connected node ends while the other node is away.
    setup.portal.until(&early, |j| j["state"] == "queued").await;
    let free = |n: &Value| n["id"] != node && n["gpus"][0]["tiles"] == json!([]);
    setup.nodes(|nodes| nodes.iter().any(free)).await;
    setup.portal.t.portal.scheduler.pass().await.unwrap();
    for (job, state) in [(&behind, "queued"), (&high, "queued")] {
        assert_eq!(setup.portal.job(job).await["state"], state, "the devices are reserved for the gang");
    }
    if is_second {
        setup.worker = Worker::start(&setup.portal.address, &setup.second, "1xH100-80GB", None);
    } else {
        setup.portal.start_worker(None).unwrap();
    }
    assert_eq!(setup.portal.until_ended(&high).await["state"], "succeeded");
    assert_eq!(setup.portal.until_ended(&behind).await["state"], "succeeded");
    // The first rank that ends frees its device for the other job, so the order of the placements counts.
    let [high, behind] = [setup.placed_at(&high).await, setup.placed_at(&behind).await];
    assert!(high < behind, "{high} {behind}");
    for job in [&late, &early] {
        let path = format!("/orgs/{}/jobs/{job}/cancel", setup.portal.org);
        setup.portal.t.post(&setup.portal.ada, &path, Value::Null).await.expect(202);
    }
    setup.until_all_free().await;
}

//! Tests of the clearing of the memory of GPUs between organizations: a real worker with a simulated CUDA library.

use std::path::PathBuf;
use std::process::Command;

use crate::common::Caller;
use crate::worker_portal::{Worker, WorkerPortal, eventually, without_worker, worker_program};
use serde_json::{Value, json};

/// The simulated CUDA library, which the build of the whole workspace creates.
fn library() -> PathBuf {
    let beside = worker_program().parent().unwrap().to_owned();
    let places = ["libberth_cuda_sim.so", "deps/libberth_cuda_sim.so"].map(|place| beside.join(place));
    places.into_iter().find(|place| place.exists()).unwrap()
}

/// Runs a CUDA program on the board in the place of a job. Returns its output.
fn run_tenant(setup: &WorkerPortal, board: &str, act: &str) -> String {
    let output = Command::new("python3")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../worker/cuda-sim/tests/tenant.py"))
        .arg(library())
        .args([act, "a secret"])
        .env("BERTH_NVML_SIM_DIR", setup.data.join("simulated-boards"))
        .env("CUDA_VISIBLE_DEVICES", board)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Runs a short job of an organization to its end, and returns it.
async fn run_job(setup: &WorkerPortal, (caller, org): (&Caller, &str), offering: &str) -> Value {
    let body = json!({"name": "train", "offering": offering, "script": "true", "max_duration_s": 60});
    let path = format!("/orgs/{org}/jobs");
    let made = setup.t.post(caller, &path, body).await.expect(201);
    let path = format!("{path}/{}", made["id"].as_str().unwrap());
    let ended = async || {
        let job = setup.t.get(caller, &path).await.expect(200);
        ["succeeded", "failed"].iter().any(|state| job["state"] == *state).then_some(job)
    };
    eventually("the end of a job", ended).await
}

async fn board(setup: &WorkerPortal) -> Value {
    setup.t.get(&setup.operator, "/operator/nodes").await.expect(200)["items"][0]["gpus"][0].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_finds_no_memory_of_another_organization() {
    let mut setup = without_worker().await;
    let token = setup.join_token(json!({})).await;
    let options = ["--clear-memory", "between-organizations"];
    let mut worker = Worker::start_with(&setup.address, &setup.data, "1xH100-80GB", Some(&token), &options);
    worker.wait_until_joined().unwrap();
    setup.worker = Some(worker);
    setup.t.add_price_and_credit(&setup.operator, &setup.org, 1_000_000_000).await;
    let price = json!({"offering": "h100-80gb", "per_hour_micros": 3_600_000});
    setup.t.post(&setup.operator, "/operator/prices", price).await.expect(201);
    let (bob, other) = setup.t.tenant("bobs").await;
    let credit = json!({"amount_micros": 1_000_000_000, "memo": "hello"});
    setup.t.post(&setup.operator, &format!("/operator/orgs/{other}/credits"), credit).await.expect(201);
    let (ada, bob) = ((&setup.ada, setup.org.as_str()), (&bob, other.as_str()));

    // Nobody knows the last user of a new worker's board.
    let done = run_job(&setup, ada, "h100-80gb").await;
    assert_eq!(done["state"], "succeeded", "{done}");
    let clearing = &done["evidence"][0]["memory_clearing"];
    assert_eq!(clearing["total_bytes"], 80_u64 << 30, "{done}");
    assert!(clearing["cleared_bytes"].as_u64().unwrap() > 79 << 30, "{done}");
    assert!(clearing["samples"].as_u64().unwrap() >= 8 * 79, "{done}");
    setup.assert_settled(&done).await;
    setup.until_all_free().await;
    let uuid = board(&setup).await["uuid"].as_str().unwrap().to_owned();
    run_tenant(&setup, &uuid, "put");

    // Its own organization waits for nothing.
    let done = run_job(&setup, ada, "h100-80gb").await;
    assert_eq!(
        (&done["state"], &done["evidence"][0]["memory_clearing"]),
        (&json!("succeeded"), &Value::Null)
    );
    setup.until_all_free().await;
    assert_eq!(run_tenant(&setup, &uuid, "find"), "found");

    // Another organization finds nothing.
    let done = run_job(&setup, bob, "h100-80gb").await;
    assert!(done["state"] == "succeeded" && !done["evidence"][0]["memory_clearing"].is_null(), "{done}");
    setup.until_all_free().await;
    assert_eq!(run_tenant(&setup, &uuid, "find"), "absent");

    // A new instance may have the memory of the whole board's last user.
    let done = run_job(&setup, ada, "h100-80gb.1g.10gb").await;
    assert_eq!(done["evidence"][0]["memory_clearing"]["total_bytes"], 10_u64 << 30, "{done}");
    setup.until_all_free().await;

    // Without a proof no job starts, and the board goes out of service.
    let faults = json!({uuid.as_str(): {"broken": true}}).to_string();
    std::fs::write(setup.data.join("simulated-boards/cuda-faults.json"), faults).unwrap();
    let failed = run_job(&setup, ada, "h100-80gb").await;
    let failure = (&failed["state"], &failed["failure"]["code"], &failed["cost_micros"]);
    assert_eq!(failure, (&json!("failed"), &json!("device.unavailable"), &json!(0)), "{failed}");
    let detail = failed["failure"]["detail"].as_str().unwrap();
    assert!(detail.contains("cannot be cleared") && detail.contains("ECC_UNCORRECTABLE"), "{detail}");
    let quarantined = board(&setup).await["quarantined"].as_str().map(str::to_owned);
    assert!(quarantined.is_some_and(|why| why.contains("cannot be cleared")));
    let nodes = setup.t.get(&setup.operator, "/operator/nodes").await.expect(200);
    assert_eq!(nodes["items"][0]["isolation"]["gpu_memory"], "cleared between organizations");
}

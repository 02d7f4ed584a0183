//! Tests of the portal as a process that is killed without warning.

use std::process::Command;
use std::sync::mpsc;

use crate::common::{TestPortal, job};
use crate::process::{PortalProcess, call, eventually, free_address, serve, serve_with, worker};
use berth_foundation::Settings;
use berth_store::{self as store, Db};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn kill_9_loses_no_acknowledged_job_and_holds_each_once() {
    let dir = tempfile::tempdir().unwrap();
    let database = dir.path().join("berth.db");
    let (org, token) = {
        let t = TestPortal::on(Db::sqlite(&database).await.unwrap());
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        t.add_price_and_credit(&operator, &org, 1_000_000_000_000).await;
        let new = json!({"name": "script", "role": "member"});
        let created = t.post(&ada, &format!("/orgs/{org}/tokens"), new).await.expect(201);
        (org, created["secret"].as_str().unwrap().to_owned())
    };
    let mut acknowledged: Vec<String> = vec![];
    for _round in 0..8 {
        let mut served = serve(dir.path());
        let (sender, receiver) = mpsc::channel();
        let clients: Vec<_> = (0..8)
            .map(|_| {
                let (address, path, token) =
                    (served.address.clone(), format!("/orgs/{org}/jobs"), token.clone());
                let sender = sender.clone();
                std::thread::spawn(move || {
                    while let Some((status, answer)) = call(&address, "POST", &path, &token, &job()) {
                        assert_eq!(status, 201, "{answer}");
                        sender.send(answer["id"].as_str().unwrap().to_owned()).unwrap();
                    }
                })
            })
            .collect();
        drop(sender);
        // The kill comes after some answers, with more requests in progress.
        acknowledged.extend(receiver.iter().take(40));
        served.kill();
        acknowledged.extend(receiver.iter());
        clients.into_iter().for_each(|c| c.join().unwrap());
    }
    assert!(acknowledged.len() >= 8 * 40);

    let served = serve(dir.path());
    let (mut jobs, mut cursor) = (vec![], String::new());
    loop {
        let path = format!("/orgs/{org}/jobs?limit=200{cursor}");
        let (status, page) = call(&served.address, "GET", &path, &token, &Value::Null).unwrap();
        assert_eq!(status, 200, "{page}");
        jobs.extend(page["items"].as_array().unwrap().iter().map(|j| j["id"].as_str().unwrap().to_owned()));
        let Some(next) = page["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    let lost = acknowledged.iter().filter(|id| !jobs.contains(id)).count();
    assert_eq!(lost, 0, "of {}", acknowledged.len());
    let path = format!("/orgs/{org}/balance");
    let (_, balance) = call(&served.address, "GET", &path, &token, &Value::Null).unwrap();
    assert_eq!(balance["held_micros"].as_i64().unwrap(), 60_000 * i64::try_from(jobs.len()).unwrap());
    let mut served = served;
    served.kill();
    let mut conn = Db::sqlite(&database).await.unwrap().read().await.unwrap();
    assert_eq!(store::ledger::mismatches(&mut conn.tx()).await.unwrap(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_9_during_a_run_charges_every_second_once() {
    let dir = tempfile::tempdir().unwrap();
    let database = dir.path().join("berth.db");
    let (org, token, join) = {
        // One data directory is used, so that the join token has the fingerprint of the started portal.
        let data = dir.path().to_owned();
        let t =
            TestPortal::with(Db::sqlite(&database).await.unwrap(), |settings| Settings { data, ..settings });
        t.clock.set_to_system_time();
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        t.add_price_and_credit(&operator, &org, 1_000_000_000).await;
        let new = json!({"name": "script", "role": "member"});
        let created = t.post(&ada, &format!("/orgs/{org}/tokens"), new).await.expect(201);
        let join = t.post(&operator, "/operator/join-tokens", json!({"approve": true})).await.expect(201);
        let text = |v: &Value| v["secret"].as_str().unwrap().to_owned();
        (org, text(&created), text(&join))
    };
    let worker_address = free_address();
    let mut served = serve_with(dir.path(), &worker_address, &[], None);
    let _worker = worker(&dir.path().join("worker"), &worker_address, &join);
    let script = "i=0; while [ $i -lt 200 ]; do echo line $i; i=$((i+1)); sleep 0.05; done";
    let spec =
        json!({"name": "train", "offering": "h100-80gb.1g.10gb", "script": script, "max_duration_s": 60});
    let (status, job) = call(&served.address, "POST", &format!("/orgs/{org}/jobs"), &token, &spec).unwrap();
    assert_eq!(status, 201, "{job}");
    let path = format!("/orgs/{org}/jobs/{}", job["id"].as_str().unwrap());
    let until = |served: &PortalProcess, ready: &dyn Fn(&Value) -> bool| {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        loop {
            let (_, now) = call(&served.address, "GET", &path, &token, &Value::Null).unwrap();
            if ready(&now) {
                return now;
            }
            assert!(std::time::Instant::now() < deadline, "{now}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    };
    for _ in 0..3 {
        until(&served, &|j| j["state"] == "running" && j["reasons"] == json!([]));
        served.kill();
        served = serve_with(dir.path(), &worker_address, &[], None);
    }
    let done = until(&served, &|j| j["state"] == "succeeded");
    assert_eq!(done["attempt"], 1, "it ran once");
    let metered = done["metered_ms"].as_i64().unwrap();
    assert!((10_000..50_000).contains(&metered), "{done}");
    let path = format!("/orgs/{org}/transfers?limit=200");
    let (_, page) = call(&served.address, "GET", &path, &token, &Value::Null).unwrap();
    let usage = page["items"].as_array().unwrap().iter().filter(|r| r["kind"] == "usage");
    let charged: i64 = usage.map(|r| -r["amount_micros"].as_i64().unwrap()).sum();
    assert_eq!(charged, metered, "3.6 units an hour are one micro a millisecond");
    let log =
        std::fs::read_to_string(dir.path().join("logs").join(job["id"].as_str().unwrap()).join("1-0.log"));
    let expected: String = (0..200).map(|i| format!("line {i}\n")).collect();
    assert_eq!(log.unwrap(), expected, "no byte is lost or repeated");
    served.kill();
    let mut conn = Db::sqlite(&database).await.unwrap().read().await.unwrap();
    assert_eq!(store::ledger::mismatches(&mut conn.tx()).await.unwrap(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_9_keeps_preempted_devices_for_their_job() {
    devices_over_a_kill(false).await;
}

/// The same with a cancellation of the preempted run during its grace.
#[tokio::test(flavor = "multi_thread")]
async fn kill_9_keeps_devices_of_a_cancelled_preempted_run_for_their_job() {
    devices_over_a_kill(true).await;
}

/// Preempts a run for a job, kills the portal, and submits a job with an earlier turn.
async fn devices_over_a_kill(cancels: bool) {
    let dir = tempfile::tempdir().unwrap();
    let database = dir.path().join("berth.db");
    let board = "h100-80gb.7g.80gb";
    let (tenants, join) = {
        let data = dir.path().to_owned();
        let t =
            TestPortal::with(Db::sqlite(&database).await.unwrap(), |settings| Settings { data, ..settings });
        t.clock.set_to_system_time();
        let operator = t.operator().await;
        let mut tenants = Vec::new();
        for name in ["lab", "bay"] {
            let (person, org) = t.tenant(name).await;
            t.add_price_and_credit(&operator, &org, 1_000_000_000).await;
            let new = json!({"name": "script", "role": "member"});
            let created = t.post(&person, &format!("/orgs/{org}/tokens"), new).await.expect(201);
            tenants.push((org, created["secret"].as_str().unwrap().to_owned()));
        }
        let price = json!({"offering": board, "per_hour_micros": 3_600_000});
        t.post(&operator, "/operator/prices", price).await.expect(201);
        let join = t.post(&operator, "/operator/join-tokens", json!({"approve": true})).await.expect(201);
        (tenants, join["secret"].as_str().unwrap().to_owned())
    };
    let worker_address = free_address();
    let mut served = serve_with(dir.path(), &worker_address, &[], None);
    let _worker = worker(&dir.path().join("worker"), &worker_address, &join);
    let submit = |served: &PortalProcess, (org, token): &(String, String), more: Value| {
        let mut spec = json!({"name": "train", "offering": board, "max_duration_s": 100});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (status, job) =
            call(&served.address, "POST", &format!("/orgs/{org}/jobs"), token, &spec).unwrap();
        assert_eq!(status, 201, "{job}");
        (format!("/orgs/{org}/jobs/{}", job["id"].as_str().unwrap()), token.clone())
    };
    let get = |served: &PortalProcess, (path, token): &(String, String)| {
        call(&served.address, "GET", path, token, &Value::Null).unwrap().1
    };
    let until = |served: &PortalProcess, job: &(String, String), state: &str| {
        eventually(|| match get(served, job) {
            now if now["state"] == state => Ok(now),
            now => Err(now.to_string()),
        })
    };
    // The run ends after its grace only.
    let low = json!({
        "script": "trap '' TERM; while true; do sleep 0.05; done", "priority": "low", "preemptible": true,
        "checkpoint": {"dir": "state", "grace_s": 15},
    });
    let low = submit(&served, &tenants[0], low);
    until(&served, &low, "running");
    let runs = json!({"script": "sleep 1", "priority": "high"});
    let first = submit(&served, &tenants[0], runs.clone());
    until(&served, &low, "stopping");
    if cancels {
        let (status, job) =
            call(&served.address, "POST", &format!("{}/cancel", low.0), &low.1, &Value::Null).unwrap();
        assert!(status < 300, "{status} {job}");
    }
    served.kill();
    let mut served = serve_with(dir.path(), &worker_address, &[], None);
    // The organization has no past use, so its turn is first.
    let second = submit(&served, &tenants[1], runs);
    eventually(|| match get(&served, &second)["reasons"] {
        ref reasons if *reasons != json!([]) => Ok(()),
        ref reasons => Err(reasons.to_string()),
    });
    let (first, second) = (until(&served, &first, "succeeded"), until(&served, &second, "succeeded"));
    let started = |job: &Value| job["started_at"].as_str().unwrap().to_owned();
    assert!(started(&first) < started(&second), "{first} {second}");
    served.kill();
}

#[test]
fn invalid_settings_are_reported_and_end_the_program() {
    let run = |args: &[&str]| Command::new(env!("CARGO_BIN_EXE_berth-portal")).args(args).output().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().to_str().unwrap();
    for (args, expected) in [
        (vec!["serve", "--listen", "nowhere"], "nowhere"),
        (vec!["serve", "--data", "/proc/nothing"], "cannot be created"),
        (vec!["serve", "--worker-listen", "0.0.0.0:0", "--data", data], "--worker-url"),
        (vec!["serve", "--readings-by-second-s", "7200", "--readings-by-ten-s", "60"], "--readings-by-ten-s"),
        (vec!["serve", "--worker-url", "http://portal:8081", "--data", data], "https://HOST:PORT"),
        (vec!["migrate", "--data", data, "--database", "mysql://u:hunter2@h/d"], "postgres://"),
        (vec!["migrate", "--data", data, "--database", "postgres://u:hunter2@h/d"], "sslmode=verify-full"),
    ] {
        let out = run(&args);
        let error = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && error.contains(expected), "{args:?}: {error}");
        assert!(!error.contains("hunter2"), "a password is never shown");
    }
    assert!(run(&["migrate", "--data", data]).status.success());
}

//! Tests of shares, retries, stops of idle jobs, and the grace before a preemption.

use crate::worker_portal::WorkerPortal;
use berth_recordings::Recorded;
use berth_types::ids::JobId;
use berth_types::metrics::Sample;
use berth_types::time::Timestamp;
use serde_json::{Value, json};

async fn open() -> WorkerPortal {
    let setup = WorkerPortal::open_at_system_time().await;
    let price = json!({"offering": "h100-80gb", "per_hour_micros": 3_600_000});
    setup.t.post(&setup.operator, "/operator/prices", price).await.expect(201);
    setup
}

fn share(milli: u32, script: &str) -> Value {
    json!({"offering": "h100-80gb", "gpu_milli": milli, "script": script, "max_duration_s": 300})
}

async fn cancel(setup: &WorkerPortal, job: &str) {
    let path = format!("/orgs/{}/jobs/{job}/cancel", setup.org);
    setup.t.post(&setup.ada, &path, Value::Null).await.expect(202);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_board_is_shared_inside_one_organization_only() {
    let setup = open().await;
    let wait = "echo share; exec sleep 300";
    let (first, second) = (setup.submit(share(600, wait)).await, setup.submit(share(400, wait)).await);
    for job in [&first, &second] {
        setup.until(job, |j| j["state"] == "running").await;
    }
    let running = setup.job(&first).await;
    assert_eq!(running["devices"][0]["gpu_milli"], 600, "{running}");
    assert_eq!(running["nano_per_second"], 600_000, "six tenths of the board's price");

    // The board is full for the same organization, and closed for others.
    let mut short = share(1, "true");
    // The job is short enough to end before the held start of the other organization's job below.
    short["max_duration_s"] = json!(60);
    let third = setup.submit(short).await;
    let waits = setup.until(&third, |j| !j["reasons"].as_array().unwrap().is_empty()).await;
    assert_eq!(waits["state"], "queued");
    let (bob, other) = setup.t.tenant("bobs").await;
    let credit = json!({"amount_micros": 1_000_000_000, "memo": "hello"});
    setup.t.post(&setup.operator, &format!("/operator/orgs/{other}/credits"), credit).await.expect(201);
    let mut body = share(100, "true");
    body["name"] = json!("theirs");
    let path = format!("/orgs/{other}/jobs");
    let theirs = setup.t.post(&bob, &path, body).await.expect(201)["id"].as_str().unwrap().to_owned();

    // The tiles of shares are side by side.
    let nodes = setup.t.get(&setup.ada, &format!("/orgs/{}/nodes", setup.org)).await.expect(200);
    let tiles = nodes["items"][0]["gpus"][0]["tiles"].clone();
    let tile = |i: usize| (tiles[i]["gpu_milli"].clone(), tiles[i]["placement"].clone());
    assert_eq!(tile(0), (json!(600), json!({"start": 0, "size": 5})), "{tiles}");
    assert_eq!(tile(1), (json!(400), json!({"start": 5, "size": 3})), "{tiles}");

    // One share is proved clean although a process of the other share is on the board.
    cancel(&setup, &second).await;
    let done = setup.until_ended(&second).await;
    setup.assert_settled(&done).await;
    assert_eq!(setup.until_ended(&third).await["state"], "succeeded");
    assert_eq!(setup.job(&first).await["state"], "running");
    let path = format!("/orgs/{other}/jobs/{theirs}");
    assert_eq!(setup.t.get(&bob, &path).await.expect(200)["state"], "queued", "not beside a stranger");
    cancel(&setup, &first).await;
    let over = async || {
        let job = setup.t.get(&bob, &path).await.expect(200);
        (job["state"] == "succeeded").then_some(())
    };
    crate::worker_portal::eventually("the stranger's turn", over).await;
    setup.until_all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_share_needs_one_device_of_a_whole_board_and_slices_come_singly() {
    let setup = open().await;
    for (spec, pointer) in [
        (json!({"offering": "h100-80gb", "gpu_milli": 0, "script": "true"}), "/gpu_milli"),
        (json!({"offering": "h100-80gb", "gpu_milli": 1000, "script": "true"}), "/gpu_milli"),
        (json!({"offering": "h100-80gb", "gpu_milli": 500, "count": 2, "script": "true"}), "/gpu_milli"),
        (json!({"offering": "h100-80gb.1g.10gb", "gpu_milli": 500, "script": "true"}), "/gpu_milli"),
        (json!({"offering": "h100-80gb.1g.10gb", "count": 2, "script": "true"}), "/count"),
        (
            json!({"offering": "h100-80gb", "gpu_milli": 500, "stop_when_idle": {}, "script": "true"}),
            "/stop_when_idle",
        ),
        (
            json!({"offering": "h100-80gb", "nodes": 2, "topology": "same_node", "script": "true"}),
            "/topology",
        ),
        (json!({"offering": "h100-80gb", "retry": {"max": 1, "on": []}, "script": "true"}), "/retry/on"),
    ] {
        let mut body = spec.clone();
        body["name"] = json!("bad");
        let path = format!("/orgs/{}/jobs", setup.org);
        let problem = setup.t.post(&setup.ada, &path, body.clone()).await.problem(422, "request.invalid");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
        setup.t.post(&setup.ada, &format!("{path}?dry_run=true"), body).await.problem(422, "request.invalid");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_attempts_are_retried_and_all_attempts_are_charged() {
    let setup = open().await;
    let flaky = json!({
        "script": "sleep 0.2; [ \"$BERTH_ATTEMPT\" = 3 ]",
        "retry": {"max": 2, "on": ["exit"]},
    });
    let done = setup.until_ended(&setup.submit(flaky.clone()).await).await;
    assert_eq!(
        (&done["state"], &done["attempt"], &done["retries"]),
        (&json!("succeeded"), &json!(3), &json!(2))
    );
    assert!(done["metered_ms"].as_i64().unwrap() >= 600, "three tries: {done}");
    setup.assert_settled(&done).await;
    let mut once = flaky.clone();
    once["retry"]["max"] = json!(1);
    let done = setup.until_ended(&setup.submit(once).await).await;
    assert_eq!(
        (&done["state"], &done["exit_code"], &done["attempt"]),
        (&json!("failed"), &json!(1), &json!(2))
    );
    let path = format!("/orgs/{}/jobs/{}/events?after=0", setup.org, done["id"].as_str().unwrap());
    let events = setup.t.get(&setup.ada, &path).await.expect(200).to_string();
    assert!(events.contains("Retry 1 of 1 follows."), "{events}");
    setup.assert_settled(&done).await;
    let mut other = flaky;
    other["retry"]["on"] = json!(["node_lost"]);
    let done = setup.until_ended(&setup.submit(other).await).await;
    assert_eq!(
        (&done["state"], &done["attempt"]),
        (&json!("failed"), &json!(1)),
        "an exit is no loss of a node"
    );
    setup.until_all_free().await;
}

/// Returns the system time, which the worker's readings have.
#[expect(clippy::disallowed_methods, reason = "readings carry the host's time")]
fn host_time() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_job_is_stopped_and_not_retried() {
    let setup = open().await;
    let first = setup.submit(json!({"script": "sleep 1", "stop_when_idle": {}})).await;
    let rule = json!({"below_percent": 20, "for_s": 600});
    let idle = setup
        .submit(json!({
            "script": "exec sleep 300", "max_duration_s": 600, "depends_on": [{"job": first}],
            "stop_when_idle": rule, "retry": {"max": 3, "on": ["exit", "node_lost", "preempted"]},
        }))
        .await;
    // The test stores readings of an idle run before the start. After a restart a portal counts stored
    // readings like received ones.
    let (job, now): (JobId, _) = (idle.parse().unwrap(), host_time());
    let rows: Vec<Recorded> = (1..=13)
        .rev()
        .map(|minutes| Recorded {
            sample: Sample {
                at: now.plus_seconds(-60 * minutes),
                rank: 0,
                device: 0,
                utilization_percent: Some(3.5),
                memory_used_mib: None,
                power_watts: None,
                temperature_celsius: None,
            },
            memory_total_mib: 9_984.0,
        })
        .collect();
    setup.t.portal.recordings.append_readings(job, 1, &rows).unwrap();
    let usual = setup.until_ended(&first).await;
    assert_eq!(usual["stop_when_idle"], json!({"below_percent": 40, "for_s": 3_600}), "{usual}");

    let done = setup.until_ended(&idle).await;
    assert_eq!(
        (&done["state"], &done["attempt"], &done["retries"], &done["exit_code"]),
        (&json!("cancelled"), &json!(1), &json!(0), &json!(143)),
        "{done}"
    );
    let why = "Stopped when idle: GPU utilization was 3 % for 10 minutes.";
    assert_eq!(done["failure"], json!({"code": "job.idle", "detail": why}), "{done}");
    assert_eq!(done["stop_when_idle"], rule);
    setup.assert_settled(&done).await;
    let path = format!("/orgs/{}/jobs/{idle}/events?after=0", setup.org);
    let events = setup.t.get(&setup.ada, &path).await.expect(200);
    let events = events["items"].as_array().unwrap();
    let [.., stopping, last] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!((&stopping["state"], &stopping["detail"]), (&json!("stopping"), &json!(why)));
    assert!(last["detail"].as_str().unwrap().starts_with(why), "{last}");
    setup.until_all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preempted_job_saves_its_state_within_its_grace() {
    let setup = open().await;
    let script = "
        trap 'echo saved; sleep 2; echo after; exit 0' USR1
        echo attempt $BERTH_ATTEMPT
        [ \"$BERTH_ATTEMPT\" = 1 ] || exit 0
        while :; do sleep 0.1; done";
    let low = json!({
        "offering": "h100-80gb", "script": script, "priority": "low", "preemptible": true,
        "checkpoint": {"signal": "SIGUSR1", "grace_s": 30}, "max_duration_s": 600,
    });
    let low = setup.submit(low).await;
    // Before this line the script may not yet handle the signal.
    crate::worker_portal::eventually("the first attempt", async || {
        setup.log(&low).await.starts_with(b"attempt 1").then_some(())
    })
    .await;
    let high = json!({"offering": "h100-80gb", "priority": "high", "script": "true"});
    let high = setup.submit(high).await;
    assert_eq!(setup.until_ended(&high).await["state"], "succeeded");
    let done = setup.until_ended(&low).await;
    assert_eq!((&done["state"], &done["attempt"]), (&json!("succeeded"), &json!(2)), "{done}");
    // The worker's grace is one second: output after two seconds proves the job's own grace.
    let first = setup.t.portal.recordings.log(low.parse().unwrap(), 1, 0);
    assert_eq!(std::fs::read_to_string(first).unwrap(), "attempt 1\nsaved\nafter\n");
    setup.assert_settled(&done).await;
    setup.until_all_free().await;
}

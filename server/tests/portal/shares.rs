//! Boards that an organization shares, further tries, jobs that end by themselves when their devices stand idle,
//! and the notice before a job makes room.

use crate::quay::Quay;
use berth_recordings::Recorded;
use berth_types::ids::JobId;
use berth_types::metrics::Sample;
use berth_types::time::Timestamp;
use serde_json::{Value, json};

async fn open() -> Quay {
    let quay = Quay::open_on_time().await;
    let price = json!({"offering": "h100-80gb", "per_hour_micros": 3_600_000});
    quay.t.post(&quay.operator, "/operator/prices", price).await.expect(201);
    quay
}

fn share(milli: u32, script: &str) -> Value {
    json!({"offering": "h100-80gb", "gpu_milli": milli, "script": script, "max_duration_s": 300})
}

async fn cancel(quay: &Quay, job: &str) {
    let path = format!("/orgs/{}/jobs/{job}/cancel", quay.org);
    quay.t.post(&quay.ada, &path, Value::Null).await.expect(202);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_board_is_shared_inside_one_organization_only() {
    let quay = open().await;
    let wait = "echo share; exec sleep 300";
    let (first, second) = (quay.submit(share(600, wait)).await, quay.submit(share(400, wait)).await);
    for job in [&first, &second] {
        quay.until(job, |j| j["state"] == "running").await;
    }
    let running = quay.job(&first).await;
    assert_eq!(running["devices"][0]["gpu_milli"], 600, "{running}");
    assert_eq!(running["nano_per_second"], 600_000, "six tenths of the board's price");

    // The board is full for the same organization, and closed to any other.
    let mut short = share(1, "true");
    // Short enough to end before the start that is held for the stranger below.
    short["max_duration_s"] = json!(60);
    let third = quay.submit(short).await;
    let waits = quay.until(&third, |j| !j["reasons"].as_array().unwrap().is_empty()).await;
    assert_eq!(waits["state"], "queued");
    let (bob, other) = quay.t.tenant("bobs").await;
    let credit = json!({"amount_micros": 1_000_000_000, "memo": "hello"});
    quay.t.post(&quay.operator, &format!("/operator/orgs/{other}/credits"), credit).await.expect(201);
    let mut body = share(100, "true");
    body["name"] = json!("theirs");
    let path = format!("/orgs/{other}/jobs");
    let theirs = quay.t.post(&bob, &path, body).await.expect(201)["id"].as_str().unwrap().to_owned();

    // The map draws the shares side by side, and shows strangers only that they are taken.
    let nodes = quay.t.get(&quay.ada, &format!("/orgs/{}/nodes", quay.org)).await.expect(200);
    let tiles = nodes["items"][0]["gpus"][0]["tiles"].clone();
    let of = |i: usize| (tiles[i]["gpu_milli"].clone(), tiles[i]["placement"].clone());
    assert_eq!(of(0), (json!(600), json!({"start": 0, "size": 5})), "{tiles}");
    assert_eq!(of(1), (json!(400), json!({"start": 5, "size": 3})), "{tiles}");

    // One ends and is proved clean although its neighbour's process is still on the board.
    cancel(&quay, &second).await;
    let done = quay.ended(&second).await;
    quay.settled(&done).await;
    assert_eq!(quay.ended(&third).await["state"], "succeeded");
    assert_eq!(quay.job(&first).await["state"], "running");
    let path = format!("/orgs/{other}/jobs/{theirs}");
    assert_eq!(quay.t.get(&bob, &path).await.expect(200)["state"], "queued", "not beside a stranger");
    cancel(&quay, &first).await;
    let over = async || {
        let job = quay.t.get(&bob, &path).await.expect(200);
        (job["state"] == "succeeded").then_some(())
    };
    crate::quay::eventually("the stranger's turn", over).await;
    quay.all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_share_is_of_one_whole_board() {
    let quay = open().await;
    for (spec, pointer) in [
        (json!({"offering": "h100-80gb", "gpu_milli": 0, "script": "true"}), "/gpu_milli"),
        (json!({"offering": "h100-80gb", "gpu_milli": 1000, "script": "true"}), "/gpu_milli"),
        (json!({"offering": "h100-80gb", "gpu_milli": 500, "count": 2, "script": "true"}), "/gpu_milli"),
        (json!({"offering": "h100-80gb.1g.10gb", "gpu_milli": 500, "script": "true"}), "/gpu_milli"),
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
        let path = format!("/orgs/{}/jobs", quay.org);
        let problem = quay.t.post(&quay.ada, &path, body.clone()).await.problem(422, "request.invalid");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
        quay.t.post(&quay.ada, &format!("{path}?dry_run=true"), body).await.problem(422, "request.invalid");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_end_is_followed_by_further_tries_and_all_of_them_are_charged() {
    let quay = open().await;
    let flaky = json!({
        "script": "sleep 0.2; [ \"$BERTH_ATTEMPT\" = 3 ]",
        "retry": {"max": 2, "on": ["exit"]},
    });
    let done = quay.ended(&quay.submit(flaky.clone()).await).await;
    assert_eq!(
        (&done["state"], &done["attempt"], &done["retries"]),
        (&json!("succeeded"), &json!(3), &json!(2))
    );
    assert!(done["metered_ms"].as_i64().unwrap() >= 600, "three tries: {done}");
    quay.settled(&done).await;
    let mut once = flaky.clone();
    once["retry"]["max"] = json!(1);
    let done = quay.ended(&quay.submit(once).await).await;
    assert_eq!(
        (&done["state"], &done["exit_code"], &done["attempt"]),
        (&json!("failed"), &json!(1), &json!(2))
    );
    let path = format!("/orgs/{}/jobs/{}/events?after=0", quay.org, done["id"].as_str().unwrap());
    let events = quay.t.get(&quay.ada, &path).await.expect(200).to_string();
    assert!(events.contains("It is tried again: 1 of 1."), "{events}");
    quay.settled(&done).await;
    let mut other = flaky;
    other["retry"]["on"] = json!(["node_lost"]);
    let done = quay.ended(&quay.submit(other).await).await;
    assert_eq!(
        (&done["state"], &done["attempt"]),
        (&json!("failed"), &json!(1)),
        "an exit is no loss of a node"
    );
    quay.all_free().await;
}

/// The clock of the host, which the worker's readings carry.
#[expect(clippy::disallowed_methods, reason = "readings carry the host's time")]
fn host_time() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_stands_idle_ends_by_itself_and_is_not_tried_again() {
    let quay = open().await;
    let first = quay.submit(json!({"script": "sleep 1", "stop_when_idle": {}})).await;
    let rule = json!({"below_percent": 20, "for_s": 600});
    let idle = quay
        .submit(json!({
            "script": "exec sleep 300", "max_duration_s": 600, "depends_on": [{"job": first}],
            "stop_when_idle": rule, "retry": {"max": 3, "on": ["exit", "node_lost", "preempted"]},
        }))
        .await;
    // Before it starts: the recordings of a run that did nothing for some minutes. What a portal finds there
    // after a restart counts like what it heard itself.
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
    quay.t.portal.recordings.append_readings(job, 1, &rows).unwrap();
    let usual = quay.ended(&first).await;
    assert_eq!(usual["stop_when_idle"], json!({"below_percent": 40, "for_s": 3_600}), "{usual}");

    let done = quay.ended(&idle).await;
    assert_eq!(
        (&done["state"], &done["attempt"], &done["retries"], &done["exit_code"]),
        (&json!("cancelled"), &json!(1), &json!(0), &json!(143)),
        "{done}"
    );
    let why = "Stopped by itself: GPU utilisation was 3 % for 10 minutes.";
    assert_eq!(done["failure"], json!({"code": "job.idle", "detail": why}), "{done}");
    assert_eq!(done["stop_when_idle"], rule);
    quay.settled(&done).await;
    let path = format!("/orgs/{}/jobs/{idle}/events?after=0", quay.org);
    let events = quay.t.get(&quay.ada, &path).await.expect(200);
    let events = events["items"].as_array().unwrap();
    let [.., stopping, last] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!((&stopping["state"], &stopping["detail"]), (&json!("stopping"), &json!(why)));
    assert!(last["detail"].as_str().unwrap().starts_with(why), "{last}");
    quay.all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_saves_its_state_before_it_makes_room() {
    let quay = open().await;
    let script = "
        trap 'echo saved; sleep 2; echo after; exit 0' USR1
        echo attempt $BERTH_ATTEMPT
        [ \"$BERTH_ATTEMPT\" = 1 ] || exit 0
        while :; do sleep 0.1; done";
    let low = json!({
        "offering": "h100-80gb", "script": script, "priority": "low", "preemptible": true,
        "checkpoint": {"signal": "SIGUSR1", "grace_s": 30}, "max_duration_s": 600,
    });
    let low = quay.submit(low).await;
    quay.until(&low, |j| j["state"] == "running").await;
    let high = json!({"offering": "h100-80gb", "priority": "high", "script": "true"});
    let high = quay.submit(high).await;
    assert_eq!(quay.ended(&high).await["state"], "succeeded");
    let done = quay.ended(&low).await;
    assert_eq!((&done["state"], &done["attempt"]), (&json!("succeeded"), &json!(2)), "{done}");
    // The worker's own grace is one second: what is said after two shows that the job's own counted.
    let first = quay.t.portal.recordings.log(low.parse().unwrap(), 1, 0);
    assert_eq!(std::fs::read_to_string(first).unwrap(), "attempt 1\nsaved\nafter\n");
    quay.settled(&done).await;
    quay.all_free().await;
}

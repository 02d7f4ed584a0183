//! Jobs that wait, with a real worker: for room, for others, and what starts before what.

use crate::common::As;
use crate::quay::Quay;
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_says_why_and_starts_when_there_is_room() {
    let quay = Quay::open().await;
    let price = json!({"offering": "h100-80gb", "per_hour_micros": 3_600_000});
    quay.t.post(&quay.operator, "/operator/prices", price).await.expect(201);
    let small = quay.script("sleep 300").await;
    quay.until(&small, |j| j["state"] == "running").await;
    let whole = quay.submit(json!({"offering": "h100-80gb", "command": ["true"]})).await;
    let waits = quay.until(&whole, |j| !j["reasons"].as_array().unwrap().is_empty()).await;
    assert_eq!(waits["state"], "queued");
    let why =
        quay.t.get(&quay.ada, &format!("/orgs/{}/jobs/{whole}/explanation", quay.org)).await.expect(200);
    assert_eq!(why["blockers"][0]["code"], "capacity.busy", "{why}");
    assert!(why["earliest_start"].is_string(), "{why}");
    // The same question before submitting has the same answer.
    let body = json!({"name": "x", "offering": "h100-80gb", "command": ["true"], "max_duration_s": 60});
    let plan =
        quay.t.post(&quay.ada, &format!("/orgs/{}/jobs?dry_run=true", quay.org), body).await.expect(200);
    assert_eq!(plan["placement"], json!([]), "{plan}");
    let offerings = quay.t.get(&As::Nobody, "/offerings").await.expect(200);
    let slice = offerings["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|o| o["slug"] == "h100-80gb.1g.10gb")
        .unwrap()
        .clone();
    assert_eq!((&slice["available"], &slice["capacity"]), (&json!(6), &json!(7)));
    quay.t.post(&quay.ada, &format!("/orgs/{}/jobs/{small}/cancel", quay.org), Value::Null).await.expect(202);
    assert_eq!(quay.ended(&whole).await["state"], "succeeded");
    quay.all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preempted_job_makes_room_and_goes_on_afterwards() {
    let quay = Quay::open().await;
    let price = json!({"offering": "h100-80gb.7g.80gb", "per_hour_micros": 3_600_000});
    quay.t.post(&quay.operator, "/operator/prices", price).await.expect(201);
    let low = json!({
        "script": "echo attempt $BERTH_ATTEMPT; if [ \"$BERTH_ATTEMPT\" = 1 ]; then sleep 300; fi",
        "priority": "low", "preemptible": true, "max_duration_s": 600,
    });
    let low = quay.submit(low).await;
    quay.until(&low, |j| j["state"] == "running").await;
    let whole = json!({
        "offering": "h100-80gb.7g.80gb", "priority": "high", "script": "sleep 1", "max_duration_s": 60,
    });
    let high = quay.submit(whole).await;
    assert_eq!(quay.ended(&high).await["state"], "succeeded");
    let done = quay.ended(&low).await;
    assert_eq!((&done["state"], &done["attempt"]), (&json!("succeeded"), &json!(2)), "{done}");
    let path = format!("/orgs/{}/jobs/{low}/events?after=0", quay.org);
    let events = quay.t.get(&quay.ada, &path).await.expect(200);
    let states: Vec<&str> =
        events["items"].as_array().unwrap().iter().map(|e| e["state"].as_str().unwrap()).collect();
    let count = |state: &str| states.iter().filter(|s| **s == state).count();
    assert_eq!((count("queued"), count("running"), count("stopping")), (2, 2, 1), "{states:?}");
    assert_eq!((states.first(), states.last()), (Some(&"queued"), Some(&"succeeded")), "{states:?}");
    // Both attempts are charged, once, and never more than the limit.
    quay.settled(&done).await;
    quay.all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_start_after_those_they_depend_on() {
    let quay = Quay::open().await;
    let first = quay.script("sleep 1; exit 3").await;
    let after =
        |condition: &str| json!({"script": "true", "depends_on": [{"job": first, "condition": condition}]});
    let in_any_case = quay.submit(after("finished")).await;
    let only_then = quay.submit(after("succeeded")).await;
    let waits = quay.until(&only_then, |j| !j["reasons"].as_array().unwrap().is_empty()).await;
    assert_eq!(waits["state"], "queued");
    let path = format!("/orgs/{}/jobs/{only_then}/explanation", quay.org);
    let why = quay.t.get(&quay.ada, &path).await.expect(200);
    assert_eq!(why["blockers"][0]["code"], "dependency.waiting", "{why}");
    assert_eq!(quay.ended(&in_any_case).await["state"], "succeeded");
    let orphan = quay.ended(&only_then).await;
    assert_eq!(
        (&orphan["state"], &orphan["failure"]["code"]),
        (&json!("failed"), &json!("dependency.failed"))
    );
    assert_eq!((&orphan["held_micros"], &orphan["cost_micros"]), (&json!(0), &json!(0)), "{orphan}");
    // What can never start is refused at once; so is what nobody has.
    let jobs = format!("/orgs/{}/jobs", quay.org);
    let late = json!({"name": "late", "offering": "h100-80gb.1g.10gb", "script": "true", "depends_on": [{"job": first}]});
    quay.t.post(&quay.ada, &jobs, late).await.problem(422, "request.invalid");
    let none = json!([{"job": "job_00000000000000000000000009"}]);
    let foreign = json!({"name": "x", "offering": "h100-80gb.1g.10gb", "script": "true", "depends_on": none});
    let refused = quay.t.post(&quay.ada, &jobs, foreign).await.problem(422, "request.invalid");
    assert_eq!(refused["errors"][0]["pointer"], "/depends_on/0/job", "{refused}");
    quay.all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn short_jobs_run_around_a_start_that_is_held() {
    let quay = Quay::open().await;
    for offering in ["h100-80gb", "h100-80gb.4g.40gb"] {
        let price = json!({"offering": offering, "per_hour_micros": 3_600_000});
        quay.t.post(&quay.operator, "/operator/prices", price).await.expect(201);
    }
    let half = json!({"offering": "h100-80gb.4g.40gb", "script": "sleep 8", "max_duration_s": 60});
    let half = quay.submit(half).await;
    quay.until(&half, |j| j["state"] == "running").await;
    let whole = json!({"offering": "h100-80gb", "script": "true", "max_duration_s": 600});
    let whole = quay.submit(whole).await;
    let long = quay.submit(json!({"script": "sleep 1", "max_duration_s": 3_600})).await;
    let short = quay.submit(json!({"script": "sleep 1", "max_duration_s": 30})).await;
    assert_eq!(quay.ended(&short).await["state"], "succeeded");
    assert_eq!(quay.job(&long).await["state"], "queued", "it would be in the way of the whole board");
    assert_eq!(quay.job(&whole).await["state"], "queued");
    for job in [&half, &whole, &long] {
        assert_eq!(quay.ended(job).await["state"], "succeeded");
    }
    let started = async |job: &str| quay.job(job).await["started_at"].as_str().unwrap().to_owned();
    assert!(started(&whole).await < started(&long).await);
    quay.all_free().await;
}

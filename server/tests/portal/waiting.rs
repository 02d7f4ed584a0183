//! Tests of waiting jobs with a real worker: capacity, preemption, dependencies and held starts.

use crate::common::{Caller, TestPortal, engines};
use crate::worker_portal::{WorkerPortal, eventually};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_job_is_explained_and_starts_when_devices_are_free() {
    let setup = WorkerPortal::open().await;
    let price = json!({"offering": "h100-80gb", "per_hour_micros": 3_600_000});
    setup.t.post(&setup.operator, "/operator/prices", price).await.expect(201);
    let small = setup.submit_script("sleep 300").await;
    setup.until(&small, |j| j["state"] == "running").await;
    let whole = setup.submit(json!({"offering": "h100-80gb", "command": ["true"]})).await;
    let waits = setup.until(&whole, |j| !j["reasons"].as_array().unwrap().is_empty()).await;
    assert_eq!(waits["state"], "queued");
    let why =
        setup.t.get(&setup.ada, &format!("/orgs/{}/jobs/{whole}/explanation", setup.org)).await.expect(200);
    assert_eq!(why["blockers"][0]["code"], "capacity.busy", "{why}");
    assert!(why["earliest_start"].is_string(), "{why}");
    // A dry run gives the same answer.
    let body = json!({"name": "x", "offering": "h100-80gb", "command": ["true"], "max_duration_s": 60});
    let plan =
        setup.t.post(&setup.ada, &format!("/orgs/{}/jobs?dry_run=true", setup.org), body).await.expect(200);
    assert_eq!(plan["placement"], json!([]), "{plan}");
    let offerings = setup.t.get(&setup.ada, "/offerings").await.expect(200);
    let slice = offerings["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|o| o["slug"] == "h100-80gb.1g.10gb")
        .unwrap()
        .clone();
    assert_eq!((&slice["available"], &slice["capacity"]), (&json!(6), &json!(7)));
    setup
        .t
        .post(&setup.ada, &format!("/orgs/{}/jobs/{small}/cancel", setup.org), Value::Null)
        .await
        .expect(202);
    assert_eq!(setup.until_ended(&whole).await["state"], "succeeded");
    setup.until_all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preempted_job_is_retried_after_the_other_job() {
    let setup = WorkerPortal::open().await;
    let price = json!({"offering": "h100-80gb.7g.80gb", "per_hour_micros": 3_600_000});
    setup.t.post(&setup.operator, "/operator/prices", price).await.expect(201);
    let low = json!({
        "script": "echo attempt $BERTH_ATTEMPT; if [ \"$BERTH_ATTEMPT\" = 1 ]; then sleep 300; fi",
        "priority": "low", "preemptible": true, "max_duration_s": 600,
    });
    let low = setup.submit(low).await;
    setup.until(&low, |j| j["state"] == "running").await;
    let whole = json!({
        "offering": "h100-80gb.7g.80gb", "priority": "high", "script": "sleep 1", "max_duration_s": 60,
    });
    let high = setup.submit(whole).await;
    assert_eq!(setup.until_ended(&high).await["state"], "succeeded");
    let done = setup.until_ended(&low).await;
    assert_eq!((&done["state"], &done["attempt"]), (&json!("succeeded"), &json!(2)), "{done}");
    let path = format!("/orgs/{}/jobs/{low}/events?after=0", setup.org);
    let events = setup.t.get(&setup.ada, &path).await.expect(200);
    let states: Vec<&str> =
        events["items"].as_array().unwrap().iter().map(|e| e["state"].as_str().unwrap()).collect();
    let count = |state: &str| states.iter().filter(|s| **s == state).count();
    assert_eq!((count("queued"), count("running"), count("stopping")), (2, 2, 1), "{states:?}");
    assert_eq!((states.first(), states.last()), (Some(&"queued"), Some(&"succeeded")), "{states:?}");
    // Both attempts are charged once, within the limit.
    setup.assert_settled(&done).await;
    setup.until_all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preempted_job_without_another_attempt_has_not_succeeded() {
    let setup = WorkerPortal::open().await;
    let price = json!({"offering": "h100-80gb.7g.80gb", "per_hour_micros": 3_600_000});
    setup.t.post(&setup.operator, "/operator/prices", price).await.expect(201);
    let low = json!({
        "script": "trap 'exit 0' USR1; echo ready; while :; do sleep 0.1; done",
        "priority": "low", "preemptible": true, "max_duration_s": 600,
        "checkpoint": {"signal": "SIGUSR1", "grace_s": 30},
        "retry": {"max": 3, "on": ["exit", "node_lost"]},
    });
    let low = setup.submit(low).await;
    // Before this line the script may not yet handle the signal.
    eventually("the first line", async || setup.log(&low).await.starts_with(b"ready").then_some(())).await;
    let after = setup.submit(json!({"script": "true", "depends_on": [{"job": low}]})).await;
    let whole = json!({
        "offering": "h100-80gb.7g.80gb", "priority": "high", "script": "true", "max_duration_s": 60,
    });
    let high = setup.submit(whole).await;
    assert_eq!(setup.until_ended(&high).await["state"], "succeeded");
    // Its work is half done, so nothing that depends on it starts.
    let done = setup.until_ended(&low).await;
    assert_eq!(
        (&done["state"], &done["exit_code"], &done["attempt"], &done["failure"]["code"]),
        (&json!("failed"), &json!(0), &json!(1), &json!("job.preempted")),
        "{done}"
    );
    let orphan = setup.until_ended(&after).await;
    assert_eq!(
        (&orphan["state"], &orphan["failure"]["code"]),
        (&json!("failed"), &json!("dependency.failed")),
        "{orphan}"
    );
    setup.assert_settled(&done).await;
    setup.until_all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_start_after_their_dependencies() {
    let setup = WorkerPortal::open().await;
    let first = setup.submit_script("sleep 1; exit 3").await;
    let after =
        |condition: &str| json!({"script": "true", "depends_on": [{"job": first, "condition": condition}]});
    let in_any_case = setup.submit(after("finished")).await;
    let only_then = setup.submit(after("succeeded")).await;
    let waits = setup.until(&only_then, |j| !j["reasons"].as_array().unwrap().is_empty()).await;
    assert_eq!(waits["state"], "queued");
    let path = format!("/orgs/{}/jobs/{only_then}/explanation", setup.org);
    let why = setup.t.get(&setup.ada, &path).await.expect(200);
    assert_eq!(why["blockers"][0]["code"], "dependency.waiting", "{why}");
    assert_eq!(setup.until_ended(&in_any_case).await["state"], "succeeded");
    let orphan = setup.until_ended(&only_then).await;
    assert_eq!(
        (&orphan["state"], &orphan["failure"]["code"]),
        (&json!("failed"), &json!("dependency.failed"))
    );
    assert_eq!((&orphan["held_micros"], &orphan["cost_micros"]), (&json!(0), &json!(0)), "{orphan}");
    // A job that can never start and a job with an unknown dependency are refused.
    let jobs = format!("/orgs/{}/jobs", setup.org);
    let late = json!({"name": "late", "offering": "h100-80gb.1g.10gb", "script": "true", "depends_on": [{"job": first}]});
    setup.t.post(&setup.ada, &jobs, late).await.problem(422, "request.invalid");
    let none = json!([{"job": "job_00000000000000000000000009"}]);
    let foreign = json!({"name": "x", "offering": "h100-80gb.1g.10gb", "script": "true", "depends_on": none});
    let refused = setup.t.post(&setup.ada, &jobs, foreign).await.problem(422, "request.invalid");
    assert_eq!(refused["errors"][0]["pointer"], "/depends_on/0/job", "{refused}");
    setup.until_all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn short_jobs_run_before_a_held_start() {
    let setup = WorkerPortal::open().await;
    for offering in ["h100-80gb", "h100-80gb.4g.40gb"] {
        let price = json!({"offering": offering, "per_hour_micros": 3_600_000});
        setup.t.post(&setup.operator, "/operator/prices", price).await.expect(201);
    }
    let half = json!({"offering": "h100-80gb.4g.40gb", "script": "sleep 8", "max_duration_s": 60});
    let half = setup.submit(half).await;
    setup.until(&half, |j| j["state"] == "running").await;
    let whole = json!({"offering": "h100-80gb", "script": "true", "max_duration_s": 600});
    let whole = setup.submit(whole).await;
    let long = setup.submit(json!({"script": "sleep 1", "max_duration_s": 3_600})).await;
    let short = setup.submit(json!({"script": "sleep 1", "max_duration_s": 30})).await;
    assert_eq!(setup.until_ended(&short).await["state"], "succeeded");
    assert_eq!(setup.job(&long).await["state"], "queued", "it would be in the way of the whole board");
    assert_eq!(setup.job(&whole).await["state"], "queued");
    for job in [&half, &whole, &long] {
        assert_eq!(setup.until_ended(job).await["state"], "succeeded");
    }
    let started = async |job: &str| setup.job(job).await["started_at"].as_str().unwrap().to_owned();
    assert!(started(&whole).await < started(&long).await);
    setup.until_all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn own_jobs_in_the_way_are_named_and_a_suggested_change_starts_at_once() {
    for (engine, db, _location) in engines("waits").await {
        let setup = WorkerPortal::on(TestPortal::on(db)).await;
        let (t, ada) = (&setup.t, &setup.ada);
        let price = json!({"offering": "h100-80gb", "per_hour_micros": 36_000_000});
        t.post(&setup.operator, "/operator/prices", price).await.expect(201);
        let (eve, foreign) = t.tenant("wharf").await;
        let credit = json!({"amount_micros": 100_000_000, "memo": "Welcome"});
        t.post(&setup.operator, &format!("/operator/orgs/{foreign}/credits"), credit).await.expect(201);
        let holds = json!({"name": "holds", "script": "exec sleep 300", "max_duration_s": 600});
        let own = setup.submit(holds).await;
        setup.until(&own, |j| j["state"] == "running").await;
        let body = json!({
            "name": "hidden", "offering": "h100-80gb.1g.10gb", "script": "exec sleep 300", "max_duration_s": 600,
        });
        let other = t.post(&eve, &format!("/orgs/{foreign}/jobs"), body).await.expect(201);
        let other = other["id"].as_str().unwrap().to_owned();
        eventually("the foreign job runs", async || {
            let job = t.get(&eve, &format!("/orgs/{foreign}/jobs/{other}")).await.expect(200);
            (job["state"] == "running").then_some(())
        })
        .await;

        let whole =
            json!({"name": "whole", "offering": "h100-80gb", "command": ["true"], "max_duration_s": 60});
        let waits = setup.submit(whole.clone()).await;
        setup.until(&waits, |j| !j["reasons"].as_array().unwrap().is_empty()).await;
        let path = format!("/orgs/{}/jobs/{waits}/explanation", setup.org);
        let why = t.get(ada, &path).await.expect(200);
        let plan =
            t.post(ada, &format!("/orgs/{}/jobs?dry_run=true", setup.org), whole.clone()).await.expect(200);
        for answer in [&why, &plan] {
            let blocker = &answer["blockers"][0];
            assert_eq!(blocker["code"], "capacity.busy", "{engine}: {answer}");
            let [object] = blocker["objects"].as_array().unwrap().as_slice() else { panic!("{answer}") };
            assert_eq!((&object["kind"], &object["job"]), (&json!("job"), &json!(own)), "{engine}: {answer}");
            assert_eq!((&object["name"], &object["state"]), (&json!("holds"), &json!("running")));
            assert_eq!(object["devices"].as_array().unwrap().len(), 1, "{answer}");
            assert!(object["ends_by"].is_string(), "{answer}");
            assert_eq!(blocker["others"], 1, "{answer}");
            let text = answer.to_string();
            for identity in [other.as_str(), foreign.as_str(), "hidden", "wharf"] {
                assert!(!text.contains(identity), "{engine}: {identity} in {text}");
            }
            let suggested = &answer["suggested_changes"][0];
            assert_eq!(suggested["label"], "1g.10gb, free now", "{engine}: {answer}");
            assert_eq!(suggested["change"], json!({"offering": "h100-80gb.1g.10gb"}));
            assert_eq!(suggested["per_hour_micros"], 3_600_000, "{answer}");
        }
        // A viewer gets no suggestions: they are launches.
        let viewer = json!({"name": "ci", "role": "viewer"});
        let token = t.post(ada, &format!("/orgs/{}/tokens", setup.org), viewer).await.expect(201);
        let viewer = Caller::Token(token["secret"].as_str().unwrap().to_owned());
        let seen = t.get(&viewer, &path).await.expect(200);
        assert_eq!(seen["blockers"][0]["objects"][0]["job"], json!(own), "{seen}");
        assert!(seen["suggested_changes"].is_null(), "{seen}");

        // The suggestion starts beside the waiting job.
        let mut changed = whole;
        changed
            .as_object_mut()
            .unwrap()
            .extend(why["suggested_changes"][0]["change"].as_object().unwrap().clone());
        let small = setup.submit(changed).await;
        assert_eq!(setup.until_ended(&small).await["state"], "succeeded");
        assert_eq!(setup.job(&waits).await["state"], "queued");
        for job in [&waits, &own] {
            t.post(ada, &format!("/orgs/{}/jobs/{job}/cancel", setup.org), Value::Null).await.expect(202);
        }
        t.post(&eve, &format!("/orgs/{foreign}/jobs/{other}/cancel"), Value::Null).await.expect(202);
        setup.until_all_free().await;
    }
}

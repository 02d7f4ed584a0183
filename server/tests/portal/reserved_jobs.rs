//! Tests of jobs inside and next to reservations, with a real worker.

use std::time::Duration;

use crate::worker_portal::WorkerPortal;
use berth_server::loops;
use berth_types::time::Timestamp;
use serde_json::{Value, json};

const HOUR: i64 = 3_600;

#[tokio::test(flavor = "multi_thread")]
async fn jobs_inside_a_reservation_run_without_charge_and_others_wait_for_its_end() {
    let setup = WorkerPortal::open().await;
    let price = json!({"offering": "h100-80gb", "per_hour_micros": 3_600_000});
    setup.t.post(&setup.operator, "/operator/prices", price).await.expect(201);
    let ready = async || {
        let nodes = setup.t.get(&setup.operator, "/operator/nodes").await.expect(200);
        (nodes["items"][0]["state"] == "ready").then_some(())
    };
    crate::worker_portal::eventually("the node is ready", ready).await;
    let now = setup.t.portal.context.now();
    let ask = json!({"offering": "h100-80gb", "starts_at": now, "ends_at": now.plus_seconds(HOUR)});
    let quote = setup.t.post(&setup.ada, &format!("/orgs/{}/quotes", setup.org), ask).await.expect(201);
    let body = json!({"quote": quote["id"], "name": "now"});
    let made = setup.t.post(&setup.ada, &format!("/orgs/{}/reservations", setup.org), body).await.expect(201);
    let reservation = made["items"][0]["id"].clone();
    setup.t.portal.reservations.tick_reservations().await.unwrap();

    // A job outside the reservation waits, and its explanation names the window.
    let outside =
        setup.submit(json!({"offering": "h100-80gb", "script": "true", "max_duration_s": 60})).await;
    let why = format!("/orgs/{}/jobs/{outside}/explanation", setup.org);
    let why = setup.t.get(&setup.ada, &why).await.expect(200);
    assert_eq!(why["blockers"][0]["code"], "window.promised", "{why}");

    let inside = |script: &str, offering: &str, seconds: u32| json!({"offering": offering, "script": script, "reservation": reservation, "max_duration_s": seconds});
    let mut with_cpus = inside("sleep 0.2", "h100-80gb", 600);
    // Processors and memory of the node belong to the reservation too.
    (with_cpus["cpus"], with_cpus["memory_mib"]) = (json!(1), json!(64));
    let whole = setup.submit(with_cpus).await;
    let done = setup.until_ended(&whole).await;
    assert_eq!((&done["state"], &done["cost_micros"]), (&json!("succeeded"), &json!(0)), "{done}");
    assert_eq!(done["reservation"], reservation);
    // A slice of the reserved board also works.
    let slice = setup.submit(inside("exec sleep 300", "h100-80gb.1g.10gb", 600)).await;
    setup.until(&slice, |j| j["state"] == "running").await;
    let waits = setup.submit(inside("true", "h100-80gb", 3_590)).await;
    for (body, pointer, detail) in [
        (inside("true", "h100-80gb", 3_600), "/max_duration_s", " left for the job. "),
        (
            json!({"offering": "h100-80gb", "script": "true", "count": 2, "reservation": reservation, "max_duration_s": 60}),
            "/count",
            "1 device per node on 1 node. ",
        ),
        (
            json!({"offering": "h100-80gb", "script": "true", "reservation": "res_00000000000000000000000000"}),
            "/reservation",
            "does not exist",
        ),
    ] {
        let mut body = body;
        body["name"] = json!("bad");
        let path = format!("/orgs/{}/jobs", setup.org);
        let problem = setup.t.post(&setup.ada, &path, body).await.problem(422, "request.invalid");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
        assert!(problem["errors"][0]["detail"].as_str().unwrap().contains(detail), "{problem}");
    }

    // After the window, running jobs are stopped, waiting jobs of the reservation fail, and other jobs run.
    setup.t.clock.advance_s(HOUR);
    setup.t.portal.reservations.tick_reservations().await.unwrap();
    assert_eq!(setup.until_ended(&slice).await["state"], "cancelled");
    let never = setup.until_ended(&waits).await;
    assert_eq!(
        (&never["state"], &never["failure"]["code"]),
        (&json!("failed"), &json!("reservation.ended")),
        "{never}"
    );
    assert_eq!(setup.until_ended(&outside).await["state"], "succeeded");
    let path = format!("/orgs/{}/reservations/{}", setup.org, reservation.as_str().unwrap());
    let over = setup.t.get(&setup.ada, &path).await.expect(200);
    assert_eq!((&over["state"], &over["posted_micros"]), (&json!("ended"), &quote["total_micros"]), "{over}");
    assert!(over["used_device_ms"].as_i64().unwrap() >= 200, "{over}");
    setup.until_all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_not_extended_into_a_reservation() {
    let setup = WorkerPortal::open().await;
    let price = json!({"offering": "h100-80gb", "per_hour_micros": 3_600_000});
    setup.t.post(&setup.operator, "/operator/prices", price).await.expect(201);
    let job = setup.submit(json!({"script": "exec sleep 300", "max_duration_s": 600})).await;
    setup.until(&job, |j| j["state"] == "running").await;
    let now = setup.t.portal.context.now();
    let ask = json!({"offering": "h100-80gb", "starts_at": now.plus_seconds(HOUR), "ends_at": now.plus_seconds(2 * HOUR)});
    let quote = setup.t.post(&setup.ada, &format!("/orgs/{}/quotes", setup.org), ask).await.expect(201);
    let body = json!({"quote": quote["id"], "name": "later"});
    setup.t.post(&setup.ada, &format!("/orgs/{}/reservations", setup.org), body).await.expect(201);
    let extend = format!("/orgs/{}/jobs/{job}/extend", setup.org);
    let longer = |seconds: i64| setup.t.post(&setup.ada, &extend, json!({"max_duration_s": seconds}));
    longer(2 * HOUR).await.problem(409, "job.promised");
    longer(1_800).await.expect(202);
    setup
        .t
        .post(&setup.ada, &format!("/orgs/{}/jobs/{job}/cancel", setup.org), Value::Null)
        .await
        .expect(202);
    setup.until_all_free().await;
}

/// Reserves a board of this offering for an hour.
async fn reserve(setup: &WorkerPortal, offering: &str, starts_at: Timestamp) -> Value {
    let ask = json!({"offering": offering, "starts_at": starts_at, "ends_at": starts_at.plus_seconds(HOUR)});
    let quote = setup.t.post(&setup.ada, &format!("/orgs/{}/quotes", setup.org), ask).await.expect(201);
    let body = json!({"quote": quote["id"], "name": offering});
    let path = format!("/orgs/{}/reservations", setup.org);
    setup.t.post(&setup.ada, &path, body).await.expect(201)["items"][0].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_in_a_later_reservation_has_its_begin() {
    let setup = WorkerPortal::open().await;
    let price = json!({"offering": "h100-80gb", "per_hour_micros": 3_600_000});
    setup.t.post(&setup.operator, "/operator/prices", price).await.expect(201);
    let ready = async || {
        let nodes = setup.t.get(&setup.operator, "/operator/nodes").await.expect(200);
        (nodes["items"][0]["state"] == "ready").then_some(())
    };
    crate::worker_portal::eventually("the node is ready", ready).await;
    let begins = setup.t.portal.context.now().plus_seconds(6 * HOUR);
    let reservation = reserve(&setup, "h100-80gb", begins).await;
    let path = format!("/orgs/{}/jobs?dry_run=true", setup.org);
    let body = |reservation: &Value, seconds: i64| {
        json!({"name": "later", "offering": "h100-80gb", "script": "true", "reservation": reservation,
               "max_duration_s": seconds})
    };
    let plan = setup.t.post(&setup.ada, &path, body(&reservation["id"], 60)).await.expect(200);
    assert_eq!((&plan["placement"], &plan["per_hour_micros"]), (&json!([]), &json!(0)), "{plan}");
    assert_eq!(plan["reservation_starts_at"], reservation["starts_at"], "{plan}");
    assert_eq!(plan["blockers"][0]["code"], "reservation.closed", "{plan}");
    let outside = setup.t.post(&setup.ada, &path, body(&Value::Null, 60)).await.expect(200);
    assert_eq!(outside["reservation_starts_at"], Value::Null, "{outside}");

    // The plan refuses the same references as the submission.
    for (body, pointer) in [
        (body(&reservation["id"], HOUR), "/max_duration_s"),
        (body(&json!("res_00000000000000000000000000"), 60), "/reservation"),
    ] {
        let problem = setup.t.post(&setup.ada, &path, body).await.problem(422, "request.invalid");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_job_of_a_cancelled_reservation_fails_with_that_reason() {
    let setup = WorkerPortal::open().await;
    let price = json!({"offering": "h100-80gb", "per_hour_micros": 3_600_000});
    setup.t.post(&setup.operator, "/operator/prices", price).await.expect(201);
    let ready = async || {
        let nodes = setup.t.get(&setup.operator, "/operator/nodes").await.expect(200);
        (nodes["items"][0]["state"] == "ready").then_some(())
    };
    crate::worker_portal::eventually("the node is ready", ready).await;
    let begins = setup.t.portal.context.now().plus_seconds(6 * HOUR);
    let reservation = reserve(&setup, "h100-80gb", begins).await;
    let inside = json!({"offering": "h100-80gb", "script": "true", "reservation": reservation["id"], "max_duration_s": 60});
    let job = setup.submit(inside).await;
    let cancel = format!("/orgs/{}/reservations/{}/cancel", setup.org, reservation["id"].as_str().unwrap());
    setup.t.post(&setup.ada, &cancel, Value::Null).await.expect(200);
    let failed = setup.until_ended(&job).await;
    let detail = "The reservation of the job was cancelled.";
    assert_eq!(failed["failure"], json!({"code": "reservation.ended", "detail": detail}), "{failed}");
}

async fn state_of(setup: &WorkerPortal, reservation: &Value) -> Value {
    let path = format!("/orgs/{}/reservations/{}", setup.org, reservation["id"].as_str().unwrap());
    setup.t.get(&setup.ada, &path).await.expect(200)["state"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_starts_on_time_in_either_mig_mode_and_its_waiting_jobs_run() {
    let mut setup = crate::worker_portal::without_worker().await;
    // The loop of a serving portal; these tests do not start it otherwise.
    let looks = loops::start_reservations(&setup.t.portal);
    let token = setup.join_token(json!({})).await;
    setup.start_worker_with("2xH100-80GB,1xA30", Some(&token)).unwrap();
    setup.t.add_price_and_credit(&setup.operator, &setup.org, 1_000_000_000).await;
    let ready = async || {
        let node = setup.t.get(&setup.operator, "/operator/nodes").await.expect(200)["items"][0].clone();
        let in_mode = |model: &str, mig: bool| {
            let boards = node["gpus"].as_array();
            boards.is_some_and(|b| b.iter().any(|g| g["model"] == model && g["mig_enabled"] == mig))
        };
        let both = in_mode("H100-80GB", false) && in_mode("A30-24GB", true);
        (node["state"] == "ready" && both).then_some(())
    };
    crate::worker_portal::eventually("the node is ready, with a board in each mode", ready).await;
    let kinds = ["h100-80gb", "a30-24gb.2g.12gb"];
    for offering in kinds {
        let price = json!({"offering": offering, "per_hour_micros": 3_600_000});
        setup.t.post(&setup.operator, "/operator/prices", price).await.expect(201);
    }
    // A started portal waits for its workers before its first check of reservations.
    let first = reserve(&setup, "h100-80gb", setup.t.portal.context.now()).await;
    let begun = async |r: &Value| (state_of(&setup, r).await == "active").then_some(());
    crate::worker_portal::eventually("the portal looks at reservations", async || begun(&first).await).await;

    let begin = setup.t.portal.context.now().plus_seconds(2);
    let mut waiting = Vec::new();
    for offering in kinds {
        let reservation = reserve(&setup, offering, begin).await;
        let inside = json!({"offering": offering, "script": "true", "reservation": reservation["id"]});
        let job = setup.submit(inside).await;
        waiting.push((offering, reservation, job));
    }
    // The portal's clock is manual, so all reservations still wait.
    for (offering, reservation, job) in &waiting {
        assert_eq!(state_of(&setup, reservation).await, "scheduled", "{offering}");
        let queued = setup.job(job).await;
        assert_eq!(queued["state"], "queued", "{offering} {queued}");
    }
    setup.t.clock.advance_s(2);
    let in_time = tokio::time::Instant::now() + Duration::from_secs(10);
    for (offering, reservation, _) in &waiting {
        let active = crate::worker_portal::eventually("it is active", async || begun(reservation).await);
        let active = tokio::time::timeout_at(in_time, active).await;
        assert!(active.is_ok(), "{offering} is not active ten seconds after its begin");
    }
    for (offering, reservation, job) in &waiting {
        let done = setup.until_ended(job).await;
        assert_eq!(
            (&done["state"], &done["cost_micros"]),
            (&json!("succeeded"), &json!(0)),
            "{offering} {done}"
        );
        assert_eq!(
            done["devices"][0]["gpu_uuid"], reservation["devices"][0]["gpu_uuid"],
            "{offering} {done}"
        );
    }
    looks.abort();
    setup.until_all_free().await;
}

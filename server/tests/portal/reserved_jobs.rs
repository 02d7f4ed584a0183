//! Jobs inside reservations and around them, under a real worker.

use std::time::Duration;

use crate::quay::Quay;
use berth_server::loops;
use berth_types::time::Timestamp;
use serde_json::{Value, json};

const HOUR: i64 = 3_600;

#[tokio::test(flavor = "multi_thread")]
async fn jobs_run_inside_at_no_further_charge_and_others_only_around() {
    let quay = Quay::open().await;
    let price = json!({"offering": "h100-80gb", "per_hour_micros": 3_600_000});
    quay.t.post(&quay.operator, "/operator/prices", price).await.expect(201);
    let ready = async || {
        let nodes = quay.t.get(&quay.operator, "/operator/nodes").await.expect(200);
        (nodes["items"][0]["state"] == "ready").then_some(())
    };
    crate::quay::eventually("the node is ready", ready).await;
    let now = quay.t.portal.context.now();
    let ask = json!({"offering": "h100-80gb", "starts_at": now, "ends_at": now.plus_seconds(HOUR)});
    let quote = quay.t.post(&quay.ada, &format!("/orgs/{}/quotes", quay.org), ask).await.expect(201);
    let body = json!({"quote": quote["id"], "name": "now"});
    let made = quay.t.post(&quay.ada, &format!("/orgs/{}/reservations", quay.org), body).await.expect(201);
    let reservation = made["items"][0]["id"].clone();
    quay.t.portal.reservations.tick_reservations().await.unwrap();

    // Who has no part in it waits, and is told until when.
    let outside = quay.submit(json!({"offering": "h100-80gb", "script": "true", "max_duration_s": 60})).await;
    let why = format!("/orgs/{}/jobs/{outside}/explanation", quay.org);
    let why = quay.t.get(&quay.ada, &why).await.expect(200);
    assert_eq!(why["blockers"][0]["code"], "window.promised", "{why}");

    let inside = |script: &str, offering: &str, seconds: u32| json!({"offering": offering, "script": script, "reservation": reservation, "max_duration_s": seconds});
    let mut with_cpus = inside("sleep 0.2", "h100-80gb", 600);
    // What stands beside the devices on their host is there for it.
    (with_cpus["cpus"], with_cpus["memory_mib"]) = (json!(1), json!(64));
    let whole = quay.submit(with_cpus).await;
    let done = quay.ended(&whole).await;
    assert_eq!((&done["state"], &done["cost_micros"]), (&json!("succeeded"), &json!(0)), "{done}");
    assert_eq!(done["reservation"], reservation);
    // A slice of the reserved board will do as well.
    let slice = quay.submit(inside("exec sleep 300", "h100-80gb.1g.10gb", 600)).await;
    quay.until(&slice, |j| j["state"] == "running").await;
    let waits = quay.submit(inside("true", "h100-80gb", 3_590)).await;
    for (body, pointer) in [
        (inside("true", "h100-80gb", 3_600), "/max_duration_s"),
        (
            json!({"offering": "h100-80gb", "script": "true", "count": 2, "reservation": reservation, "max_duration_s": 60}),
            "/count",
        ),
        (
            json!({"offering": "h100-80gb", "script": "true", "reservation": "res_00000000000000000000000000"}),
            "/reservation",
        ),
    ] {
        let mut body = body;
        body["name"] = json!("bad");
        let path = format!("/orgs/{}/jobs", quay.org);
        let problem = quay.t.post(&quay.ada, &path, body).await.problem(422, "request.invalid");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
    }

    // Its time is over: what runs in it is stopped, what waits for it ends, and others have their turn.
    quay.t.clock.advance_s(HOUR);
    quay.t.portal.reservations.tick_reservations().await.unwrap();
    assert_eq!(quay.ended(&slice).await["state"], "cancelled");
    let never = quay.ended(&waits).await;
    assert_eq!(
        (&never["state"], &never["failure"]["code"]),
        (&json!("failed"), &json!("reservation.ended")),
        "{never}"
    );
    assert_eq!(quay.ended(&outside).await["state"], "succeeded");
    let path = format!("/orgs/{}/reservations/{}", quay.org, reservation.as_str().unwrap());
    let over = quay.t.get(&quay.ada, &path).await.expect(200);
    assert_eq!((&over["state"], &over["posted_micros"]), (&json!("ended"), &quote["total_micros"]), "{over}");
    assert!(over["used_device_ms"].as_i64().unwrap() >= 200, "{over}");
    quay.all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_not_made_longer_into_what_is_promised() {
    let quay = Quay::open().await;
    let price = json!({"offering": "h100-80gb", "per_hour_micros": 3_600_000});
    quay.t.post(&quay.operator, "/operator/prices", price).await.expect(201);
    let job = quay.submit(json!({"script": "exec sleep 300", "max_duration_s": 600})).await;
    quay.until(&job, |j| j["state"] == "running").await;
    let now = quay.t.portal.context.now();
    let ask = json!({"offering": "h100-80gb", "starts_at": now.plus_seconds(HOUR), "ends_at": now.plus_seconds(2 * HOUR)});
    let quote = quay.t.post(&quay.ada, &format!("/orgs/{}/quotes", quay.org), ask).await.expect(201);
    let body = json!({"quote": quote["id"], "name": "later"});
    quay.t.post(&quay.ada, &format!("/orgs/{}/reservations", quay.org), body).await.expect(201);
    let extend = format!("/orgs/{}/jobs/{job}/extend", quay.org);
    let longer = |seconds: i64| quay.t.post(&quay.ada, &extend, json!({"max_duration_s": seconds}));
    longer(2 * HOUR).await.problem(409, "job.promised");
    longer(1_800).await.expect(202);
    quay.t.post(&quay.ada, &format!("/orgs/{}/jobs/{job}/cancel", quay.org), Value::Null).await.expect(202);
    quay.all_free().await;
}

/// A board of this kind, for an hour.
async fn reserve(quay: &Quay, offering: &str, starts_at: Timestamp) -> Value {
    let ask = json!({"offering": offering, "starts_at": starts_at, "ends_at": starts_at.plus_seconds(HOUR)});
    let quote = quay.t.post(&quay.ada, &format!("/orgs/{}/quotes", quay.org), ask).await.expect(201);
    let body = json!({"quote": quote["id"], "name": offering});
    let path = format!("/orgs/{}/reservations", quay.org);
    quay.t.post(&quay.ada, &path, body).await.expect(201)["items"][0].clone()
}

async fn state_of(quay: &Quay, reservation: &Value) -> Value {
    let path = format!("/orgs/{}/reservations/{}", quay.org, reservation["id"].as_str().unwrap());
    quay.t.get(&quay.ada, &path).await.expect(200)["state"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_begins_in_time_in_either_mode_and_what_waits_for_it_runs() {
    let mut quay = crate::quay::portal().await;
    // What looks at reservations in a portal that serves; nobody else does here.
    let looks = loops::start_reservations(&quay.t.portal);
    let token = quay.join_token(json!({})).await;
    quay.start_worker_with("2xH100-80GB,1xA30", Some(&token)).unwrap();
    quay.t.stock(&quay.operator, &quay.org, 1_000_000_000).await;
    let ready = async || {
        let node = quay.t.get(&quay.operator, "/operator/nodes").await.expect(200)["items"][0].clone();
        let in_mode = |model: &str, mig: bool| {
            let boards = node["gpus"].as_array();
            boards.is_some_and(|b| b.iter().any(|g| g["model"] == model && g["mig_enabled"] == mig))
        };
        let both = in_mode("H100-80GB", false) && in_mode("A30-24GB", true);
        (node["state"] == "ready" && both).then_some(())
    };
    crate::quay::eventually("the node is ready, with a board in each mode", ready).await;
    let kinds = ["h100-80gb", "a30-24gb"];
    for offering in kinds {
        let price = json!({"offering": offering, "per_hour_micros": 3_600_000});
        quay.t.post(&quay.operator, "/operator/prices", price).await.expect(201);
    }
    // A portal that was just started leaves its workers time to come back; then it looks.
    let first = reserve(&quay, "h100-80gb", quay.t.portal.context.now()).await;
    let begun = async |r: &Value| (state_of(&quay, r).await == "active").then_some(());
    crate::quay::eventually("the portal looks at reservations", async || begun(&first).await).await;

    let begin = quay.t.portal.context.now().plus_seconds(2);
    let mut waiting = Vec::new();
    for offering in kinds {
        let reservation = reserve(&quay, offering, begin).await;
        let inside = json!({"offering": offering, "script": "true", "reservation": reservation["id"]});
        let job = quay.submit(inside).await;
        waiting.push((offering, reservation, job));
    }
    // The clock of this portal stands until it is moved, so all of them still wait.
    for (offering, reservation, job) in &waiting {
        assert_eq!(state_of(&quay, reservation).await, "scheduled", "{offering}");
        let queued = quay.job(job).await;
        assert_eq!(queued["state"], "queued", "{offering} {queued}");
    }
    quay.t.clock.advance_s(2);
    let in_time = tokio::time::Instant::now() + Duration::from_secs(10);
    for (offering, reservation, _) in &waiting {
        let active = crate::quay::eventually("it is active", async || begun(reservation).await);
        let active = tokio::time::timeout_at(in_time, active).await;
        assert!(active.is_ok(), "{offering} is not active ten seconds after its begin");
    }
    for (offering, reservation, job) in &waiting {
        let done = quay.ended(job).await;
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
    quay.all_free().await;
}

//! The order of the queue as users meet it, with real workers: who makes room, who passes whom, who goes first,
//! in the open and inside reservations.

use crate::common::{As, TestPortal};
use crate::quay::{Quay, Worker, eventually};
use berth_types::time::Timestamp;
use serde_json::{Value, json};

const HOUR: i64 = 3_600;
const H100: &str = "h100-80gb";
const A30: &str = "a30-24gb";
/// For as long as nobody stops it.
const RUNS: &str = "exec sleep 300";

/// A portal with one worker that has these boards, and a price for a whole one.
async fn open(boards: &str, offering: &str) -> Quay {
    open_on(TestPortal::sqlite().await, boards, offering).await
}

/// The same by the machine's time.
async fn open_on_time(boards: &str, offering: &str) -> Quay {
    let t = TestPortal::sqlite().await;
    t.clock.set_by_the_machine();
    open_on(t, boards, offering).await
}

async fn open_on(t: TestPortal, boards: &str, offering: &str) -> Quay {
    let mut quay = crate::quay::portal_on(t).await;
    let token = quay.join_token(json!({})).await;
    quay.start_worker_with(boards, Some(&token)).unwrap();
    quay.t.stock(&quay.operator, &quay.org, 1_000_000_000).await;
    ready(&quay, 1).await;
    let price = json!({"offering": offering, "per_hour_micros": 3_600_000});
    quay.t.post(&quay.operator, "/operator/prices", price).await.expect(201);
    quay
}

/// The nodes, once so many of them take work.
async fn ready(quay: &Quay, count: usize) -> Vec<Value> {
    eventually("the nodes are ready", async || {
        let page = quay.t.get(&quay.operator, "/operator/nodes").await.expect(200);
        let nodes = page["items"].as_array().unwrap().clone();
        let is_ready = |n: &&Value| n["state"] == "ready" && !n["gpus"].as_array().unwrap().is_empty();
        (nodes.iter().filter(is_ready).count() == count).then_some(nodes)
    })
    .await
}

/// A job on one whole H100 unless it says otherwise.
async fn submit(quay: &Quay, script: &str, seconds: i64, more: Value) -> String {
    let mut body = json!({"offering": H100, "script": script, "max_duration_s": seconds});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    quay.submit(body).await
}

async fn runs(quay: &Quay, job: &str) {
    quay.until(job, |j| j["state"] == "running").await;
}

async fn succeeds(quay: &Quay, job: &str) -> Value {
    let done = quay.ended(job).await;
    assert_eq!(done["state"], "succeeded", "{done}");
    done
}

/// A job of anybody, once it is in a state.
async fn reaches(quay: &Quay, who: &As, path: &str, state: &str) -> Value {
    eventually(state, async || {
        let job = quay.t.get(who, path).await.expect(200);
        (job["state"] == state).then_some(job)
    })
    .await
}

async fn cancel(quay: &Quay, job: &str) {
    let path = format!("/orgs/{}/jobs/{job}/cancel", quay.org);
    quay.t.post(&quay.ada, &path, Value::Null).await.expect(202);
}

async fn why(quay: &Quay, job: &str) -> Value {
    let path = format!("/orgs/{}/jobs/{job}/explanation", quay.org);
    quay.t.get(&quay.ada, &path).await.expect(200)
}

/// When somebody's job was given its place.
async fn placed_at(quay: &Quay, who: &As, path: &str) -> Timestamp {
    let events = quay.t.get(who, &format!("{path}/events?after=0")).await.expect(200);
    let mut events = events["items"].as_array().unwrap().iter();
    let placed = events.find(|e| e["state"] == "assigned").unwrap();
    placed["at"].as_str().unwrap().parse().unwrap()
}

/// When a job was given its place; it succeeds.
async fn placed(quay: &Quay, job: &str) -> Timestamp {
    succeeds(quay, job).await;
    placed_at(quay, &quay.ada, &format!("/orgs/{}/jobs/{job}", quay.org)).await
}

/// A reservation of boards of one node, from some seconds from now.
async fn reserve(quay: &Quay, offering: &str, boards: u32, from_s: i64, seconds: i64) -> Value {
    let begins = quay.t.portal.context.now().plus_seconds(from_s);
    let ask = json!({
        "offering": offering, "gpus_per_node": boards, "starts_at": begins,
        "ends_at": begins.plus_seconds(seconds),
    });
    let quote = quay.t.post(&quay.ada, &format!("/orgs/{}/quotes", quay.org), ask).await.expect(201);
    let body = json!({"quote": quote["id"], "name": "window"});
    let made = quay.t.post(&quay.ada, &format!("/orgs/{}/reservations", quay.org), body).await.expect(201);
    quay.t.portal.reservations.tick_reservations().await.unwrap();
    made["items"][0]["id"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn both_boards_of_a_node_are_made_free_for_one_job_whatever_its_length() {
    let quay = open("2xH100-80GB", H100).await;
    for seconds in [200, 300, 600] {
        let stays = "if [ \"$BERTH_ATTEMPT\" = 1 ]; then sleep 300; fi";
        let low = json!({"priority": "low", "preemptible": true});
        let low = [submit(&quay, stays, 300, low.clone()).await, submit(&quay, stays, 300, low).await];
        for job in &low {
            runs(&quay, job).await;
        }
        let high = submit(&quay, "sleep 0.2", seconds, json!({"priority": "high", "count": 2})).await;
        let high = succeeds(&quay, &high).await;
        assert_eq!(high["devices"].as_array().unwrap().len(), 2, "{high}");
        for job in &low {
            let done = succeeds(&quay, job).await;
            assert_eq!(done["attempt"], 2, "limit {seconds}: it made room once: {done}");
        }
    }
    quay.all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_ends_before_a_reservation_passes_one_that_would_not() {
    let quay = open("1xH100-80GB", H100).await;
    reserve(&quay, H100, 1, 70_000, HOUR).await;
    let long = submit(&quay, "true", 86_400, json!({})).await;
    let said = why(&quay, &long).await;
    assert_eq!(said["blockers"][0]["code"], "window.promised", "{said}");
    let shorter = submit(&quay, RUNS, 66_000, json!({})).await;
    runs(&quay, &shorter).await;
    assert_eq!(quay.job(&long).await["state"], "queued");
    cancel(&quay, &shorter).await;
    // The free board is for who ends in time still.
    let short = submit(&quay, "true", 60, json!({})).await;
    succeeds(&quay, &short).await;
    assert_eq!(quay.job(&long).await["state"], "queued");
    cancel(&quay, &long).await;
    quay.all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_can_be_foreseen_has_a_start_although_an_older_job_waits_for_a_cordoned_node() {
    let quay = open("2xH100-80GB", H100).await;
    let token = quay.join_token(json!({})).await;
    let data = quay.t.data.path().join("second");
    let mut second = Worker::start(&quay.address, &data, "1xH100-80GB", Some(&token));
    second.joined().unwrap();
    let nodes = ready(&quay, 2).await;
    let small = nodes.iter().find(|n| n["gpus"].as_array().unwrap().len() == 1).unwrap();
    let small = format!("/operator/nodes/{}", small["id"].as_str().unwrap());
    let cordon = |cordoned: bool| quay.t.call(&quay.operator, "PATCH", &small, json!({"cordoned": cordoned}));
    cordon(true).await.expect(200);

    let first = submit(&quay, RUNS, 600, json!({})).await;
    runs(&quay, &first).await;
    let gang = submit(&quay, "true", 60, json!({"nodes": 2})).await;
    let said = why(&quay, &gang).await;
    assert!(said["earliest_start"].is_null(), "nobody knows when the node is back: {said}");
    let pair = submit(&quay, "true", 60, json!({"count": 2})).await;
    let said = why(&quay, &pair).await;
    assert!(said["earliest_start"].is_string(), "{said}");
    let long = submit(&quay, "true", HOUR, json!({})).await;
    let short = submit(&quay, "true", 60, json!({})).await;
    succeeds(&quay, &short).await;
    for job in [&gang, &pair, &long] {
        assert_eq!(quay.job(job).await["state"], "queued", "one board is free for who ends in time");
    }
    cancel(&quay, &first).await;
    let (pair, long) = (placed(&quay, &pair).await, placed(&quay, &long).await);
    assert!(pair < long, "{pair} {long}");
    assert_eq!(quay.job(&gang).await["state"], "queued");
    cordon(false).await.expect(200);
    succeeds(&quay, &gang).await;
    quay.all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn inside_a_reservation_the_higher_class_goes_first_and_then_the_older_job() {
    let quay = open("1xH100-80GB", H100).await;
    let reservation = reserve(&quay, H100, 1, 0, HOUR).await;
    let inside = |class: &str| json!({"reservation": reservation, "priority": class});
    let first = submit(&quay, RUNS, 600, inside("normal")).await;
    runs(&quay, &first).await;
    let mut waiting = Vec::new();
    for class in ["low", "normal", "normal", "high"] {
        waiting.push(submit(&quay, "true", 60, inside(class)).await);
    }
    for job in &waiting {
        assert_eq!(quay.job(job).await["state"], "queued");
    }
    cancel(&quay, &first).await;
    let mut at = Vec::new();
    for job in &waiting {
        at.push(placed(&quay, job).await);
    }
    let (low, older, younger, high) = (at[0], at[1], at[2], at[3]);
    assert!(high < older && older < younger && younger < low, "{at:?}");
    quay.all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn inside_a_reservation_a_job_for_two_boards_is_not_passed_by_later_ones_for_one() {
    let quay = open("2xH100-80GB", H100).await;
    let reservation = reserve(&quay, H100, 2, 0, 2 * HOUR).await;
    let inside = |count: u32| json!({"reservation": reservation, "count": count});
    let first = submit(&quay, RUNS, 600, inside(1)).await;
    runs(&quay, &first).await;
    let pair = submit(&quay, "true", 60, inside(2)).await;
    let said = why(&quay, &pair).await;
    assert!(said["earliest_start"].is_string(), "{said}");
    let long = submit(&quay, "true", 1_200, inside(1)).await;
    let short = submit(&quay, "true", 60, inside(1)).await;
    succeeds(&quay, &short).await;
    for job in [&pair, &long] {
        assert_eq!(quay.job(job).await["state"], "queued", "one board is free for who ends in time");
    }
    cancel(&quay, &first).await;
    let (pair, long) = (placed(&quay, &pair).await, placed(&quay, &long).await);
    assert!(pair < long, "{pair} {long}");
    quay.all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_too_long_for_the_rest_of_its_reservation_is_told_so_and_delays_nobody() {
    let quay = open("1xH100-80GB", H100).await;
    let reservation = reserve(&quay, H100, 1, 0, HOUR).await;
    let inside = json!({"reservation": reservation});
    let first = submit(&quay, RUNS, 1_800, inside.clone()).await;
    runs(&quay, &first).await;
    // There was time enough for it when it was submitted.
    let long = submit(&quay, "true", 3_000, inside.clone()).await;
    quay.t.clock.advance_s(700);
    let shorter = submit(&quay, "true", 600, inside).await;
    cancel(&quay, &first).await;
    succeeds(&quay, &shorter).await;
    assert_eq!(quay.job(&long).await["state"], "queued");
    let said = why(&quay, &long).await;
    assert_eq!(said["blockers"][0]["code"], "reservation.closed", "{said}");
    let detail = said["blockers"][0]["detail"].as_str().unwrap();
    assert!(detail.ends_with(" left, and the job could run longer than that."), "{said}");
    assert!(said["smallest_change"].as_str().unwrap().starts_with("Limit the run to "), "{said}");
    assert!(!said.to_string().contains("begin"), "its reservation has begun: {said}");
    assert!(said["earliest_start"].is_null(), "{said}");
    cancel(&quay, &long).await;
    quay.all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_board_that_keeps_its_mig_mode_is_reserved_whole_and_never_shared() {
    let quay = open("1xA30", A30).await;
    let reservation = reserve(&quay, A30, 1, 0, HOUR).await;
    let inside = json!({"offering": A30, "reservation": reservation});
    let done = submit(&quay, "true", 60, inside).await;
    let done = succeeds(&quay, &done).await;
    assert_eq!((&done["reservation"], &done["cost_micros"]), (&reservation, &json!(0)), "{done}");

    let held = async || {
        let balance = quay.t.get(&quay.ada, &format!("/orgs/{}/balance", quay.org)).await.expect(200);
        balance["held_micros"].as_i64().unwrap()
    };
    let before = held().await;
    let share = json!({
        "name": "share", "offering": A30, "gpu_milli": 500, "script": "true", "max_duration_s": 60,
    });
    let jobs = format!("/orgs/{}/jobs", quay.org);
    quay.t.post(&quay.ada, &jobs, share).await.problem(422, "job.never_starts");
    assert_eq!(held().await, before, "nothing is held for what is refused");
    quay.all_free().await;
}

/// One organization has used a board for twice as long as another, runs on it, and has a job waiting behind
/// the other's. Whether that job starts first, where so many thousandths of boards are guaranteed to it.
async fn passes_with(guaranteed_milli: i64) -> bool {
    let quay = open("1xH100-80GB", H100).await;
    let (bob, other) = quay.t.tenant("bobs").await;
    let credit = json!({"amount_micros": 1_000_000_000});
    quay.t.post(&quay.operator, &format!("/operator/orgs/{other}/credits"), credit).await.expect(201);
    let quota = json!({"guaranteed_boards_milli": guaranteed_milli});
    quay.t.call(&quay.operator, "PUT", &format!("/operator/orgs/{other}/quota"), quota).await.expect(200);
    let theirs = format!("/orgs/{other}/jobs");
    let submit_theirs = async |script: &str, seconds: i64| {
        let body = json!({"name": "x", "offering": H100, "script": script, "max_duration_s": seconds});
        let made = quay.t.post(&bob, &theirs, body).await.expect(201);
        format!("{theirs}/{}", made["id"].as_str().unwrap())
    };
    let used = submit(&quay, RUNS, 600, json!({})).await;
    runs(&quay, &used).await;
    quay.t.clock.advance_s(100);
    cancel(&quay, &used).await;
    quay.ended(&used).await;
    let running = submit_theirs(RUNS, 600).await;
    reaches(&quay, &bob, &running, "running").await;
    quay.t.clock.advance_s(200);
    let ours = submit(&quay, "true", 60, json!({})).await;
    let waiting = submit_theirs("true", 60).await;
    assert_eq!(quay.job(&ours).await["state"], "queued");
    quay.t.post(&bob, &format!("{running}/cancel"), Value::Null).await.expect(202);
    let ours = placed(&quay, &ours).await;
    reaches(&quay, &bob, &waiting, "succeeded").await;
    quay.all_free().await;
    placed_at(&quay, &bob, &waiting).await < ours
}

#[tokio::test(flavor = "multi_thread")]
async fn who_holds_less_than_is_guaranteed_goes_first_whatever_it_used() {
    assert!(!passes_with(0).await, "who used more goes later");
    assert!(passes_with(2_000).await, "two boards are guaranteed, and it holds one");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_outlasts_its_limit_lets_nobody_pass_the_job_that_waits_for_it() {
    let quay = open_on_time("2xH100-80GB", H100).await;
    let deaf = "trap '' TERM; while :; do sleep 0.1; done";
    let running = [submit(&quay, RUNS, 3, json!({})).await, submit(&quay, deaf, 3, json!({})).await];
    for job in &running {
        runs(&quay, job).await;
    }
    let high = submit(&quay, "true", 60, json!({"priority": "high", "count": 2})).await;
    let mut low = Vec::new();
    for _ in 0..3 {
        low.push(submit(&quay, "true", 5, json!({"priority": "low"})).await);
    }
    for job in &running {
        assert_eq!(quay.ended(job).await["state"], "timed_out");
    }
    let high = placed(&quay, &high).await;
    for job in &low {
        assert!(placed(&quay, job).await > high, "a later turn took a board that was held");
    }
    quay.all_free().await;
}

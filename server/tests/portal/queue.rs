//! Tests of the queue's order with real workers: preemption, backfill and priority, outside and inside
//! reservations.

use crate::common::{Caller, TestPortal};
use crate::worker_portal::{Worker, WorkerPortal, eventually};
use berth_types::time::Timestamp;
use serde_json::{Value, json};

const HOUR: i64 = 3_600;
const H100: &str = "h100-80gb";
const A30: &str = "a30-24gb";
/// A script that runs until it is stopped.
const RUNS_UNTIL_STOPPED: &str = "exec sleep 300";

/// Starts a portal with one worker that has these boards, and a price for a whole board.
async fn open(boards: &str, offering: &str) -> WorkerPortal {
    open_on(TestPortal::sqlite().await, boards, offering).await
}

/// The same with the system time.
async fn open_at_system_time(boards: &str, offering: &str) -> WorkerPortal {
    let t = TestPortal::sqlite().await;
    t.clock.set_to_system_time();
    open_on(t, boards, offering).await
}

async fn open_on(t: TestPortal, boards: &str, offering: &str) -> WorkerPortal {
    let mut setup = crate::worker_portal::without_worker_on(t).await;
    let token = setup.join_token(json!({})).await;
    setup.start_worker_with(boards, Some(&token)).unwrap();
    setup.t.add_price_and_credit(&setup.operator, &setup.org, 1_000_000_000).await;
    ready(&setup, 1).await;
    let price = json!({"offering": offering, "per_hour_micros": 3_600_000});
    setup.t.post(&setup.operator, "/operator/prices", price).await.expect(201);
    setup
}

/// Waits for `count` ready nodes; returns all nodes.
async fn ready(setup: &WorkerPortal, count: usize) -> Vec<Value> {
    eventually("the nodes are ready", async || {
        let page = setup.t.get(&setup.operator, "/operator/nodes").await.expect(200);
        let nodes = page["items"].as_array().unwrap().clone();
        let is_ready = |n: &&Value| n["state"] == "ready" && !n["gpus"].as_array().unwrap().is_empty();
        (nodes.iter().filter(is_ready).count() == count).then_some(nodes)
    })
    .await
}

/// Submits a job for one whole H100, changed by `more`.
async fn submit(setup: &WorkerPortal, script: &str, seconds: i64, more: Value) -> String {
    let mut body = json!({"offering": H100, "script": script, "max_duration_s": seconds});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    setup.submit(body).await
}

async fn until_running(setup: &WorkerPortal, job: &str) {
    setup.until(job, |j| j["state"] == "running").await;
}

async fn until_succeeded(setup: &WorkerPortal, job: &str) -> Value {
    let done = setup.until_ended(job).await;
    assert_eq!(done["state"], "succeeded", "{done}");
    done
}

/// Waits until a job of any organization is in a state.
async fn until_state(setup: &WorkerPortal, caller: &Caller, path: &str, state: &str) -> Value {
    eventually(state, async || {
        let job = setup.t.get(caller, path).await.expect(200);
        (job["state"] == state).then_some(job)
    })
    .await
}

async fn cancel(setup: &WorkerPortal, job: &str) {
    let path = format!("/orgs/{}/jobs/{job}/cancel", setup.org);
    setup.t.post(&setup.ada, &path, Value::Null).await.expect(202);
}

async fn explain(setup: &WorkerPortal, job: &str) -> Value {
    let path = format!("/orgs/{}/jobs/{job}/explanation", setup.org);
    setup.t.get(&setup.ada, &path).await.expect(200)
}

/// Returns the assignment time of a job of any organization.
async fn placed_at(setup: &WorkerPortal, caller: &Caller, path: &str) -> Timestamp {
    let events = setup.t.get(caller, &format!("{path}/events?after=0")).await.expect(200);
    let mut events = events["items"].as_array().unwrap().iter();
    let placed = events.find(|e| e["state"] == "assigned").unwrap();
    placed["at"].as_str().unwrap().parse().unwrap()
}

/// Waits for the success of a job; returns its assignment time.
async fn placed(setup: &WorkerPortal, job: &str) -> Timestamp {
    until_succeeded(setup, job).await;
    placed_at(setup, &setup.ada, &format!("/orgs/{}/jobs/{job}", setup.org)).await
}

/// Reserves boards of one node, starting `from_s` seconds from now.
async fn reserve(setup: &WorkerPortal, offering: &str, boards: u32, from_s: i64, seconds: i64) -> Value {
    let begins = setup.t.portal.context.now().plus_seconds(from_s);
    let ask = json!({
        "offering": offering, "gpus_per_node": boards, "starts_at": begins,
        "ends_at": begins.plus_seconds(seconds),
    });
    let quote = setup.t.post(&setup.ada, &format!("/orgs/{}/quotes", setup.org), ask).await.expect(201);
    let body = json!({"quote": quote["id"], "name": "window"});
    let made = setup.t.post(&setup.ada, &format!("/orgs/{}/reservations", setup.org), body).await.expect(201);
    setup.t.portal.reservations.tick_reservations().await.unwrap();
    made["items"][0]["id"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn both_boards_of_a_node_are_preempted_for_one_job_with_any_time_limit() {
    let setup = open("2xH100-80GB", H100).await;
    for seconds in [200, 300, 600] {
        let stays = "if [ \"$BERTH_ATTEMPT\" = 1 ]; then sleep 300; fi";
        let low = json!({"priority": "low", "preemptible": true});
        let low = [submit(&setup, stays, 300, low.clone()).await, submit(&setup, stays, 300, low).await];
        for job in &low {
            until_running(&setup, job).await;
        }
        let high = submit(&setup, "sleep 0.2", seconds, json!({"priority": "high", "count": 2})).await;
        let high = until_succeeded(&setup, &high).await;
        assert_eq!(high["devices"].as_array().unwrap().len(), 2, "{high}");
        for job in &low {
            let done = until_succeeded(&setup, job).await;
            assert_eq!(done["attempt"], 2, "limit {seconds}: it made room once: {done}");
        }
    }
    setup.until_all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_ends_before_a_reservation_starts_before_an_older_longer_job() {
    let setup = open("1xH100-80GB", H100).await;
    reserve(&setup, H100, 1, 70_000, HOUR).await;
    let long = submit(&setup, "true", 86_400, json!({})).await;
    let explanation = explain(&setup, &long).await;
    assert_eq!(explanation["blockers"][0]["code"], "window.promised", "{explanation}");
    let shorter = submit(&setup, RUNS_UNTIL_STOPPED, 66_000, json!({})).await;
    until_running(&setup, &shorter).await;
    assert_eq!(setup.job(&long).await["state"], "queued");
    cancel(&setup, &shorter).await;
    // The free board takes a job that ends before the reservation.
    let short = submit(&setup, "true", 60, json!({})).await;
    until_succeeded(&setup, &short).await;
    assert_eq!(setup.job(&long).await["state"], "queued");
    cancel(&setup, &long).await;
    setup.until_all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_gets_a_held_start_although_an_older_job_waits_for_a_cordoned_node() {
    let setup = open("2xH100-80GB", H100).await;
    let token = setup.join_token(json!({})).await;
    let data = setup.t.data.path().join("second");
    let mut second = Worker::start(&setup.address, &data, "1xH100-80GB", Some(&token));
    second.wait_until_joined().unwrap();
    let nodes = ready(&setup, 2).await;
    let small = nodes.iter().find(|n| n["gpus"].as_array().unwrap().len() == 1).unwrap();
    let small = format!("/operator/nodes/{}", small["id"].as_str().unwrap());
    let cordon =
        |cordoned: bool| setup.t.call(&setup.operator, "PATCH", &small, json!({"cordoned": cordoned}));
    cordon(true).await.expect(200);

    let first = submit(&setup, RUNS_UNTIL_STOPPED, 600, json!({})).await;
    until_running(&setup, &first).await;
    let gang = submit(&setup, "true", 60, json!({"nodes": 2})).await;
    let explanation = explain(&setup, &gang).await;
    assert!(explanation["earliest_start"].is_null(), "nobody knows when the node is back: {explanation}");
    let pair = submit(&setup, "true", 60, json!({"count": 2})).await;
    let explanation = explain(&setup, &pair).await;
    assert!(explanation["earliest_start"].is_string(), "{explanation}");
    let long = submit(&setup, "true", HOUR, json!({})).await;
    let short = submit(&setup, "true", 60, json!({})).await;
    until_succeeded(&setup, &short).await;
    for job in [&gang, &pair, &long] {
        assert_eq!(setup.job(job).await["state"], "queued", "one board is free for who ends in time");
    }
    cancel(&setup, &first).await;
    let (pair, long) = (placed(&setup, &pair).await, placed(&setup, &long).await);
    assert!(pair < long, "{pair} {long}");
    assert_eq!(setup.job(&gang).await["state"], "queued");
    cordon(false).await.expect(200);
    until_succeeded(&setup, &gang).await;
    setup.until_all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn inside_a_reservation_the_higher_priority_starts_first_and_then_the_older_job() {
    let setup = open("1xH100-80GB", H100).await;
    let reservation = reserve(&setup, H100, 1, 0, HOUR).await;
    let inside = |class: &str| json!({"reservation": reservation, "priority": class});
    let first = submit(&setup, RUNS_UNTIL_STOPPED, 600, inside("normal")).await;
    until_running(&setup, &first).await;
    let mut waiting = Vec::new();
    for class in ["low", "normal", "normal", "high"] {
        waiting.push(submit(&setup, "true", 60, inside(class)).await);
    }
    for job in &waiting {
        assert_eq!(setup.job(job).await["state"], "queued");
    }
    cancel(&setup, &first).await;
    let mut at = Vec::new();
    for job in &waiting {
        at.push(placed(&setup, job).await);
    }
    let (low, older, younger, high) = (at[0], at[1], at[2], at[3]);
    assert!(high < older && older < younger && younger < low, "{at:?}");
    setup.until_all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn inside_a_reservation_later_one_board_jobs_do_not_delay_a_two_board_job() {
    let setup = open("2xH100-80GB", H100).await;
    let reservation = reserve(&setup, H100, 2, 0, 2 * HOUR).await;
    let inside = |count: u32| json!({"reservation": reservation, "count": count});
    let first = submit(&setup, RUNS_UNTIL_STOPPED, 600, inside(1)).await;
    until_running(&setup, &first).await;
    let pair = submit(&setup, "true", 60, inside(2)).await;
    let explanation = explain(&setup, &pair).await;
    assert!(explanation["earliest_start"].is_string(), "{explanation}");
    let long = submit(&setup, "true", 1_200, inside(1)).await;
    let short = submit(&setup, "true", 60, inside(1)).await;
    until_succeeded(&setup, &short).await;
    for job in [&pair, &long] {
        assert_eq!(setup.job(job).await["state"], "queued", "one board is free for who ends in time");
    }
    cancel(&setup, &first).await;
    let (pair, long) = (placed(&setup, &pair).await, placed(&setup, &long).await);
    assert!(pair < long, "{pair} {long}");
    setup.until_all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_too_long_for_the_rest_of_its_reservation_is_explained_and_delays_no_job() {
    let setup = open("1xH100-80GB", H100).await;
    let reservation = reserve(&setup, H100, 1, 0, HOUR).await;
    let inside = json!({"reservation": reservation});
    let first = submit(&setup, RUNS_UNTIL_STOPPED, 1_800, inside.clone()).await;
    until_running(&setup, &first).await;
    // At its submission the rest of the reservation was long enough.
    let long = submit(&setup, "true", 3_000, inside.clone()).await;
    setup.t.clock.advance_s(700);
    let shorter = submit(&setup, "true", 600, inside).await;
    cancel(&setup, &first).await;
    until_succeeded(&setup, &shorter).await;
    assert_eq!(setup.job(&long).await["state"], "queued");
    let explanation = explain(&setup, &long).await;
    assert_eq!(explanation["blockers"][0]["code"], "reservation.closed", "{explanation}");
    let detail = explanation["blockers"][0]["detail"].as_str().unwrap();
    assert!(detail.ends_with(" left, and the time limit of the job is longer."), "{explanation}");
    assert!(
        explanation["smallest_change"]
            .as_str()
            .unwrap()
            .starts_with("To start at once: set a time limit of at most "),
        "{explanation}"
    );
    assert!(!explanation.to_string().contains("begin"), "its reservation has begun: {explanation}");
    assert!(explanation["earliest_start"].is_null(), "{explanation}");
    cancel(&setup, &long).await;
    setup.until_all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_board_that_keeps_its_mig_mode_is_sold_neither_whole_nor_shared() {
    let setup = open("1xA30", A30).await;
    let slice = "a30-24gb.2g.12gb";
    let price = json!({"offering": slice, "per_hour_micros": 3_600_000});
    setup.t.post(&setup.operator, "/operator/prices", price).await.expect(201);
    let reservation = reserve(&setup, slice, 1, 0, HOUR).await;
    let inside = json!({"offering": slice, "reservation": reservation});
    let done = submit(&setup, "true", 60, inside).await;
    let done = until_succeeded(&setup, &done).await;
    assert_eq!((&done["reservation"], &done["cost_micros"]), (&reservation, &json!(0)), "{done}");

    let held = async || {
        let balance = setup.t.get(&setup.ada, &format!("/orgs/{}/balance", setup.org)).await.expect(200);
        balance["held_micros"].as_i64().unwrap()
    };
    let before = held().await;
    let share = json!({
        "name": "share", "offering": A30, "gpu_milli": 500, "script": "true", "max_duration_s": 60,
    });
    let jobs = format!("/orgs/{}/jobs", setup.org);
    setup.t.post(&setup.ada, &jobs, share.clone()).await.problem(422, "job.never_starts");
    let mut whole = share;
    whole.as_object_mut().unwrap().remove("gpu_milli");
    let refused = setup.t.post(&setup.ada, &jobs, whole).await.problem(422, "job.never_starts");
    assert!(refused["detail"].as_str().unwrap().contains("MIG mode"), "{refused}");
    assert_eq!(held().await, before, "nothing is held for what is refused");
    setup.until_all_free().await;
}

/// One organization has used a board twice as long as another, runs on it, and has a job waiting behind the
/// other's. Returns true if that job starts first with this guarantee in thousandths of a board.
async fn starts_first_with(guaranteed_milli: i64) -> bool {
    let setup = open("1xH100-80GB", H100).await;
    let (bob, other) = setup.t.tenant("bobs").await;
    let credit = json!({"amount_micros": 1_000_000_000});
    setup.t.post(&setup.operator, &format!("/operator/orgs/{other}/credits"), credit).await.expect(201);
    let quota = json!({"guaranteed_boards_milli": guaranteed_milli});
    setup.t.call(&setup.operator, "PUT", &format!("/operator/orgs/{other}/quota"), quota).await.expect(200);
    let theirs = format!("/orgs/{other}/jobs");
    let submit_theirs = async |script: &str, seconds: i64| {
        let body = json!({"name": "x", "offering": H100, "script": script, "max_duration_s": seconds});
        let made = setup.t.post(&bob, &theirs, body).await.expect(201);
        format!("{theirs}/{}", made["id"].as_str().unwrap())
    };
    let used = submit(&setup, RUNS_UNTIL_STOPPED, 600, json!({})).await;
    until_running(&setup, &used).await;
    setup.t.clock.advance_s(100);
    cancel(&setup, &used).await;
    setup.until_ended(&used).await;
    let running = submit_theirs(RUNS_UNTIL_STOPPED, 600).await;
    until_state(&setup, &bob, &running, "running").await;
    setup.t.clock.advance_s(200);
    let ours = submit(&setup, "true", 60, json!({})).await;
    let waiting = submit_theirs("true", 60).await;
    assert_eq!(setup.job(&ours).await["state"], "queued");
    setup.t.post(&bob, &format!("{running}/cancel"), Value::Null).await.expect(202);
    let ours = placed(&setup, &ours).await;
    until_state(&setup, &bob, &waiting, "succeeded").await;
    setup.until_all_free().await;
    placed_at(&setup, &bob, &waiting).await < ours
}

#[tokio::test(flavor = "multi_thread")]
async fn an_organization_below_its_guarantee_goes_first_despite_its_past_use() {
    assert!(!starts_first_with(0).await, "who used more goes later");
    assert!(starts_first_with(2_000).await, "two boards are guaranteed, and it holds one");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_past_its_time_limit_lets_no_later_job_pass_a_waiting_job() {
    let setup = open_at_system_time("2xH100-80GB", H100).await;
    let deaf = "trap '' TERM; while :; do sleep 0.1; done";
    let running =
        [submit(&setup, RUNS_UNTIL_STOPPED, 3, json!({})).await, submit(&setup, deaf, 3, json!({})).await];
    for job in &running {
        until_running(&setup, job).await;
    }
    let high = submit(&setup, "true", 60, json!({"priority": "high", "count": 2})).await;
    let mut low = Vec::new();
    for _ in 0..3 {
        low.push(submit(&setup, "true", 5, json!({"priority": "low"})).await);
    }
    for job in &running {
        assert_eq!(setup.until_ended(job).await["state"], "timed_out");
    }
    let high = placed(&setup, &high).await;
    for job in &low {
        assert!(placed(&setup, job).await > high, "a later turn took a board that was held");
    }
    setup.until_all_free().await;
}

#[tokio::test]
async fn no_async_thread_waits_for_the_engine() {
    // The test has one thread: if that one waited for the engine, nothing could end the question.
    let t = TestPortal::sqlite().await;
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let (began, has_begun) = tokio::sync::oneshot::channel();
    let long = tokio::spawn({
        let planner = t.portal.planner.clone();
        async move {
            let wait = move |_: &mut berth_engine::Engine| {
                began.send(()).unwrap();
                ended.recv().unwrap();
            };
            planner.ask(wait).await;
        }
    });
    has_begun.await.unwrap();
    let planner = t.portal.planner.clone();
    let pass = tokio::spawn(async move { planner.decide().await.is_ok() });
    let planner = t.portal.planner.clone();
    let question = tokio::spawn(async move { planner.ask(|engine| engine.waiting()).await });
    // Requests without a question to the engine are answered meanwhile.
    t.get(&Caller::Nobody, "/info").await.expect(200);
    assert!(!pass.is_finished() && !question.is_finished());
    end.send(()).unwrap();
    long.await.unwrap();
    assert!(pass.await.unwrap());
    assert_eq!(question.await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submission_does_not_wait_for_a_pass() {
    let setup = open("1xA30/off", A30).await;
    let planner = setup.t.portal.planner.clone();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let (began, has_begun) = tokio::sync::oneshot::channel();
    let pass = tokio::spawn(async move {
        let wait = move |_: &mut berth_engine::Engine| {
            began.send(()).unwrap();
            ended.recv().unwrap();
        };
        planner.ask(wait).await;
    });
    has_begun.await.unwrap();
    let jobs = format!("/orgs/{}/jobs", setup.org);
    let job = json!({"name": "one", "offering": A30, "script": "true", "max_duration_s": 60});
    let mut two = job.clone();
    two["count"] = json!(2);
    let submitted = tokio::time::timeout(std::time::Duration::from_secs(30), async {
        setup.t.post(&setup.ada, &jobs, two).await.problem(422, "job.never_starts");
        setup.t.post(&setup.ada, &jobs, job).await.expect(201)
    });
    let submitted = submitted.await.expect("an answer during the pass");
    assert!(!pass.is_finished());
    end.send(()).unwrap();
    pass.await.unwrap();
    until_succeeded(&setup, submitted["id"].as_str().unwrap()).await;
    setup.until_all_free().await;
}

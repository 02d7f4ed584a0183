//! Tests of the capacity by board model over time.

use crate::common::engines;
use crate::idle_portal::{DAY, HOUR, IdlePortal, node};
use crate::worker_portal::WorkerPortal;
use berth_types::time::Timestamp;
use serde_json::{Value, json};

/// The steps of the only model: the time, then the free, own, foreign and unavailable boards.
fn steps(answer: &Value) -> Vec<(Timestamp, [u64; 4])> {
    let models = answer["models"].as_array().unwrap();
    assert_eq!(models.len(), 1, "{answer}");
    let step = |step: &Value| {
        let number = |name: &str| step[name].as_u64().unwrap();
        let at: Timestamp = step["at"].as_str().unwrap().parse().unwrap();
        (at, [number("free"), number("own"), number("others"), number("unavailable")])
    };
    models[0]["steps"].as_array().unwrap().iter().map(step).collect()
}

/// The portal's time in an answer.
fn now(answer: &Value) -> Timestamp {
    answer["now"].as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn capacity_counts_boards_by_their_use_and_hides_foreign_owners() {
    for (engine, db, _location) in engines("capacity").await {
        let setup = IdlePortal::on(db).await;
        // Each reading of the clock differs.
        let start = setup.at(0);
        let at = |seconds: i64| start.plus_seconds(seconds);
        let reserved = setup.reserve(1, 2, at(DAY), at(2 * DAY)).await;
        let free = if reserved["devices"][0]["node"] == json!(node(1)) { node(2) } else { node(1) };
        let plan = json!({
            "node": free, "starts_at": at(DAY), "ends_at": at(DAY + HOUR), "reason": "New driver",
        });
        setup.t.post(&setup.operator, "/operator/reservations", plan).await.expect(201);
        let query = format!("capacity?from={}&until={}", at(-HOUR), at(7 * DAY));
        let mine = setup.t.get(&setup.ada, &format!("/orgs/{}/{query}", setup.org)).await.expect(200);
        assert_eq!(
            (
                &mine["models"][0]["model"],
                &mine["models"][0]["boards"],
                &mine["models"][0]["boards_per_node"]
            ),
            (&json!("H100-80GB"), &json!(4), &json!(2)),
            "{engine} {mine}"
        );
        assert_eq!(mine["models"][0]["nodes"], 2, "{engine}");
        assert_eq!(mine["models"][0]["coarse"], false, "{engine}");
        let whole: [(Timestamp, [u64; 4]); 4] = [
            (now(&mine), [4, 0, 0, 0]),
            (at(DAY), [0, 2, 0, 2]),
            (at(DAY + HOUR), [2, 2, 0, 0]),
            (at(2 * DAY), [4, 0, 0, 0]),
        ];
        assert_eq!(steps(&mine), whole, "{engine}");
        let later = format!("/orgs/{}/capacity?from={}&until={}", setup.org, at(DAY), at(2 * DAY));
        let later = setup.t.get(&setup.ada, &later).await.expect(200);
        assert_eq!(steps(&later)[0], (at(DAY), [0, 2, 0, 2]), "{engine}");
        assert_eq!(later["models"][0]["free_now"], 4, "{engine}: no board is in use before that day");
        // The first step is of the time of the answer.
        let foreign = |answer: &Value| {
            let mut steps = whole.map(|(at, [free, own, others, out])| (at, [free, others, own, out]));
            steps[0].0 = now(answer);
            steps
        };
        let theirs = setup.t.get(&setup.bob, &format!("/orgs/{}/{query}", setup.other)).await.expect(200);
        assert_eq!(steps(&theirs), foreign(&theirs), "{engine}");
        assert!(!theirs.to_string().contains("training week"), "{engine} {theirs}");
        let all = setup.t.get(&setup.operator, &format!("/operator/{query}")).await.expect(200);
        assert_eq!(steps(&all), foreign(&all), "{engine}");
        setup.t.get(&setup.bob, &format!("/orgs/{}/{query}", setup.org)).await.expect(404);
        setup.t.get(&setup.ada, &format!("/operator/{query}")).await.expect(404);

        // A cancelled reservation takes no board.
        setup.cancel(&reserved).await.expect(200);
        let after = setup.t.get(&setup.ada, &format!("/orgs/{}/{query}", setup.org)).await.expect(200);
        assert_eq!(steps(&after)[1], (at(DAY), [2, 0, 0, 2]), "{engine}");
    }
}

#[tokio::test]
async fn a_cordoned_node_is_unavailable_and_a_disconnected_one_for_a_minute() {
    for (engine, db, _location) in engines("capacity_nodes").await {
        let mut setup = IdlePortal::on(db).await;
        let path = format!("/orgs/{}/capacity", setup.org);
        let cordon = async |setup: &IdlePortal, cordoned: bool| {
            let node = format!("/operator/nodes/{}", node(1));
            setup.t.call(&setup.operator, "PATCH", &node, json!({"cordoned": cordoned})).await.expect(200);
        };
        cordon(&setup, true).await;
        let answer = setup.t.get(&setup.ada, &path).await.expect(200);
        assert_eq!(steps(&answer), [(now(&answer), [2, 0, 0, 2])], "{engine}");
        // Without a period, the answer has the next day.
        assert_eq!(
            (&answer["from"], &answer["until"]),
            (&json!(now(&answer)), &json!(now(&answer).plus_seconds(DAY))),
            "{engine}"
        );
        cordon(&setup, false).await;
        drop(setup.sessions.pop());
        let answer = setup.t.get(&setup.ada, &path).await.expect(200);
        let expected: [(Timestamp, [u64; 4]); 2] =
            [(now(&answer), [2, 0, 0, 2]), (now(&answer).plus_seconds(60), [4, 0, 0, 0])];
        assert_eq!(steps(&answer), expected, "{engine}");
        let day = now(&answer).plus_seconds(DAY);
        let tomorrow = format!("{path}?from={day}&until={}", day.plus_seconds(DAY));
        let tomorrow = setup.t.get(&setup.ada, &tomorrow).await.expect(200);
        assert_eq!(steps(&tomorrow), [(day, [4, 0, 0, 0])], "{engine}");
        assert_eq!(tomorrow["models"][0]["free_now"], 2, "{engine}: the other two are disconnected now");
    }
}

#[tokio::test]
async fn periods_and_models_have_limits() {
    for (engine, db, _location) in engines("capacity_limits").await {
        let setup = IdlePortal::on(db).await;
        let get =
            async |query: String| setup.t.get(&setup.ada, &format!("/orgs/{}/{query}", setup.org)).await;
        let between = |name: &str, from: i64, until: i64| {
            format!("{name}?from={}&until={}", setup.at(from), setup.at(until))
        };
        for name in ["capacity", "calendar"] {
            get(between(name, DAY, 0)).await.problem(400, "request.malformed");
            get(between(name, 0, 94 * DAY)).await.problem(400, "request.malformed");
        }
        // A period in the past has no steps.
        let past = get(between("capacity", -2 * DAY, -DAY)).await.expect(200);
        assert!(steps(&past).is_empty(), "{engine}");
        let rows = async |model: &str| {
            let answer = get(format!("{}&model={model}", between("calendar", 0, DAY))).await.expect(200);
            answer["rows"].as_array().unwrap().len()
        };
        assert_eq!((rows("H100-80GB").await, rows("A30").await), (4, 0), "{engine}");
        let long = format!("{}&model={}", between("calendar", 0, DAY), "A".repeat(101));
        get(long).await.problem(400, "request.malformed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_job_uses_its_board_until_its_limit() {
    let setup = WorkerPortal::open().await;
    let job = setup.submit(json!({"script": "exec sleep 300", "max_duration_s": 600})).await;
    let running = setup.until(&job, |j| j["state"] == "running").await;
    let started: Timestamp = running["started_at"].as_str().unwrap().parse().unwrap();
    let answer = setup.t.get(&setup.ada, &format!("/orgs/{}/capacity", setup.org)).await.expect(200);
    let steps = steps(&answer);
    assert_eq!((steps[0].1[1], steps[0].1[2]), (1, 0), "{answer}");
    assert_eq!(steps[1].0, started.plus_seconds(600), "{answer}");
    assert_eq!(steps[1].1[1], 0, "{answer}");
    let cancel = format!("/orgs/{}/jobs/{job}/cancel", setup.org);
    setup.t.post(&setup.ada, &cancel, Value::Null).await.expect(202);
    setup.until_all_free().await;
}

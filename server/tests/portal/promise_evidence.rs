//! Tests of the evidence of promises: reports of gateways, charges and wakes.

use berth_types::ids::JobId;
use serde_json::{Value, json};

use crate::common::engines;
use crate::gateways::{add_gateway, send};
use crate::idle_portal::{HOUR, IdlePortal};
use crate::operations::{items, put, schedule_all, submit};
use crate::promises::{LATE_S, Promised, gold};
use crate::services::{ready, revision, run};

/// Seconds after which the counts of the present window are read again.
const FRESH_S: i64 = 30;
/// Seconds for which an effect of the organization excuses the platform.
const EXCUSED_S: i64 = 300;

impl Promised {
    /// A gateway reports faults.
    async fn report_faults(&self, token: &str, number: u64, (asleep, unreached): (u64, u64)) {
        let faults = json!([{"service": self.id, "asleep": asleep, "unreached": unreached, "lost": 0}]);
        let report = json!({
            "life": 1, "number": number, "version": "1", "snapshot": 0, "loads": [], "uses": [],
            "faults": faults, "drained": [],
        });
        let (status, _, body) = send(&self.setup.t.router, ("POST", "reports"), token, report).await;
        assert_eq!(status, 200, "{body}");
    }

    /// The counts of the present window, read anew.
    async fn counts(&self) -> Value {
        self.setup.t.clock.advance_s(FRESH_S);
        self.shown().await["present"]["evidence"].clone()
    }
}

#[tokio::test]
async fn a_report_that_comes_late_counts_in_the_window_of_its_arrival() {
    for (engine, db, location) in engines("promise_late").await {
        let one = Promised::new(db, location, gold()).await;
        let t = &one.setup.t;
        one.charge(10_000, 1_000).await;
        one.add_use(0, 100, 0, 0).await;
        let revisions = items(t, &one.setup.ada, &format!("{}/revisions", one.path)).await;
        let token = add_gateway(t, 1).await;
        // The portal counts a report in the hour of its arrival.
        one.go_to(HOUR + 300);
        one.post_block(HOUR + 310, 1_000).await;
        let used = json!({
            "service": one.id, "revision": revisions[0]["id"], "key": one.key, "requests": 60, "errors": 0,
            "prompt_tokens": 0, "completion_tokens": 0, "token_nanos": 1_000_000, "first_byte": [],
        });
        let faults = json!({"service": one.id, "asleep": 30, "unreached": 10, "lost": 10});
        let report = json!({
            "life": 1, "number": 1, "version": "1", "snapshot": 0, "loads": [], "uses": [used],
            "faults": [faults], "drained": [],
        });
        // A repeated report counts once.
        for _ in 0..2 {
            let (status, _, body) = send(&t.router, ("POST", "reports"), &token, report.clone()).await;
            assert_eq!(status, 200, "{engine}: {body}");
        }
        one.go_to(2 * HOUR + LATE_S);
        one.judge().await;
        let windows = one.shown().await["windows"].as_array().unwrap().clone();
        let counts: Vec<&Value> = windows.iter().map(|w| &w["evidence"]["requests"]).collect();
        let late = json!({"all": 100, "bad": 50});
        assert_eq!(counts, [&late, &json!({"all": 100, "bad": 0})], "{engine}: newest first");
        let credits = one.credits().await;
        assert_eq!(credits.len(), 1, "{engine}");
        assert_eq!(credits[0]["amount_micros"], 100, "{engine}");
    }
}

#[tokio::test]
async fn faults_that_the_organization_makes_do_not_count() {
    for (engine, db, location) in engines("promise_own").await {
        let one = Promised::new(db, location, gold()).await;
        let t = &one.setup.t;
        let token = add_gateway(t, 1).await;
        one.go_to(60);
        let sql = |set: &str| format!("UPDATE services SET {set} WHERE id = '{}'", one.id);
        let (on, failed) = (sql("stopped = FALSE, state = 'asleep'"), sql("state = 'failed'"));
        let states = [(sql("stopped = TRUE"), 0), (on.clone(), 5), (failed, 5), (on, 10)];
        for (number, (state, expected)) in (1..).zip(states) {
            assert_eq!(run(&one.location, state).await, 1, "{engine}");
            one.report_faults(&token, number, (3, 2)).await;
            let counts = one.counts().await;
            assert_eq!(counts["requests"]["bad"], expected, "{engine} {number}: {counts}");
        }
    }
}

/// A class with a share of good requests and one of wakes.
fn requests_and_wakes() -> Value {
    let mut class = gold();
    class["terms"]["wake"] = json!({"within_ms": 5_000, "good_ppm": 900_000, "credit_basis_points": 100});
    class
}

#[tokio::test]
async fn a_wait_for_a_limit_of_the_organization_is_no_fault_and_one_for_boards_is() {
    for (engine, db, location) in engines("promise_quota").await {
        let one = Promised::new(db, location, requests_and_wakes()).await;
        let (setup, t) = (&one.setup, &one.setup.t);
        let token = add_gateway(t, 1).await;
        let quota = format!("/operator/orgs/{}/quota", setup.org);
        put(t, &setup.operator, &quota, json!({"running_jobs": 1})).await.expect(200);
        // A job of the organization reaches its limit, and others have the rest of the four boards.
        setup.turn(0).await;
        let job = json!({"name": "x", "offering": "h100-80gb", "command": ["true"], "max_duration_s": 7_200});
        for _ in 0..3 {
            t.post(&setup.bob, &format!("/orgs/{}/jobs", setup.other), job.clone()).await.expect(201);
        }
        schedule_all(setup).await;
        one.go_to(60);
        one.wakes().await;
        setup.turn(0).await;
        one.report_faults(&token, 1, (30, 0)).await;
        let counts = one.counts().await;
        assert_eq!(counts["requests"], json!({"all": 0, "bad": 0}), "{engine}: {counts}");
        assert_eq!(counts["wakes"], json!({"all": 0, "bad": 0}), "{engine}: {counts}");

        // Without the limit the replica waits for a board. Requests from before may still end for some minutes.
        put(t, &setup.operator, &quota, json!({})).await.expect(200);
        setup.gateway_reports(&one.id, 0, 1);
        setup.turn(0).await;
        one.report_faults(&token, 2, (30, 0)).await;
        assert_eq!(one.counts().await["requests"]["bad"], 0, "{engine}");
        setup.turn(EXCUSED_S).await;
        one.report_faults(&token, 3, (30, 0)).await;
        assert_eq!(one.counts().await["requests"]["bad"], 30, "{engine}");

        // A wake that begins while the boards are in use is late.
        one.wakes().await;
        setup.turn(6).await;
        assert_eq!(one.counts().await["wakes"], json!({"all": 1, "bad": 1}), "{engine}");
    }
}

#[tokio::test]
async fn replicas_wait_for_their_organization_only_if_all_of_them_do() {
    for (engine, db, _location) in engines("promise_mixed").await {
        let setup = IdlePortal::on(db).await;
        let t = &setup.t;
        let job = json!({"name": "x", "offering": "h100-80gb", "command": ["true"], "max_duration_s": 7_200});
        for _ in 0..4 {
            t.post(&setup.bob, &format!("/orgs/{}/jobs", setup.other), job.clone()).await.expect(201);
        }
        schedule_all(&setup).await;
        // The first one waits for a board, and the second one is beyond a limit that came later.
        let small: JobId = submit(&setup, json!({"count": 1})).await.parse().unwrap();
        let large: JobId = submit(&setup, json!({"count": 2})).await.parse().unwrap();
        let quota = format!("/operator/orgs/{}/quota", setup.org);
        put(t, &setup.operator, &quota, json!({"boards_milli": 1_000})).await.expect(200);
        for (asked, expected) in
            [(vec![small], false), (vec![large], true), (vec![small, large], false), (Vec::new(), false)]
        {
            let found = t.portal.planner.is_own_wait(asked.clone()).await.unwrap();
            assert_eq!(found, expected, "{engine}: {asked:?}");
        }
    }
}

#[tokio::test]
async fn a_service_without_a_revision_for_requests_has_no_faults_and_no_wakes() {
    for (engine, db, location) in engines("promise_withdrawn").await {
        let one = Promised::new(db, location, requests_and_wakes()).await;
        let (setup, t) = (&one.setup, &one.setup.t);
        let token = add_gateway(t, 1).await;
        one.go_to(60);
        one.report_faults(&token, 1, (3, 0)).await;
        assert_eq!(one.counts().await["requests"]["bad"], 3, "{engine}: its first revision is on its way");
        t.post(&setup.ada, &format!("{}/rollback", one.path), Value::Null).await.expect(200);
        setup.turn(0).await;
        let shown = t.get(&setup.ada, &one.path).await.expect(200);
        assert_eq!(shown["detail"], "No revision gets requests.", "{engine}: {shown}");
        one.report_faults(&token, 2, (30, 0)).await;
        assert_eq!(one.counts().await["requests"]["bad"], 3, "{engine}");
        setup.gateway_reports(&one.id, 0, 1);
        setup.turn(0).await;
        assert_eq!(one.counts().await["wakes"], json!({"all": 0, "bad": 0}), "{engine}");
        // A wake begins with a revision that can take the request.
        t.post(&setup.ada, &format!("{}/revisions", one.path), revision()).await.expect(201);
        setup.gateway_reports(&one.id, 0, 1);
        t.portal.service_loop.run().await.unwrap();
        assert_eq!(one.counts().await["wakes"]["all"], 1, "{engine}");
    }
}

#[tokio::test]
async fn a_replica_that_was_not_ready_in_time_excuses_until_after_its_end() {
    for (engine, db, location) in engines("promise_unready").await {
        let one = Promised::new(db, location, gold()).await;
        let (setup, t) = (&one.setup, &one.setup.t);
        let token = add_gateway(t, 1).await;
        setup.turn(0).await;
        one.go_to(60);
        let now = t.portal.context.now().micros();
        let change = async |set: &str| {
            let sql = format!("UPDATE service_replicas SET {set} WHERE service_id = '{}'", one.id);
            assert_eq!(run(&one.location, sql).await, 1, "{engine}");
        };
        change(&format!("draining_since = {now}, failed = TRUE")).await;
        // Its grace is longer than the five minutes after its end.
        for number in 1..=2 {
            one.report_faults(&token, number, (3, 0)).await;
            assert_eq!(one.counts().await["requests"]["bad"], 0, "{engine} {number}");
            t.clock.advance_s(EXCUSED_S + 1);
        }
        change(&format!("ended_at = {}", t.portal.context.now().micros())).await;
        for (number, bad) in [(3, 0), (4, 3)] {
            one.report_faults(&token, number, (3, 0)).await;
            assert_eq!(one.counts().await["requests"]["bad"], bad, "{engine} {number}");
            t.clock.advance_s(EXCUSED_S + 1);
        }
    }
}

#[tokio::test]
async fn the_devices_of_a_draining_replica_excuse_no_fault() {
    for (engine, db, location) in engines("promise_draining").await {
        let one = Promised::new(db, location, gold()).await;
        let (setup, t) = (&one.setup, &one.setup.t);
        let token = add_gateway(t, 1).await;
        setup.turn(0).await;
        one.go_to(60);
        one.report_faults(&token, 1, (3, 0)).await;
        assert_eq!(one.counts().await["requests"]["bad"], 0, "{engine}: its program starts");
        let now = t.portal.context.now().micros();
        let drain = format!("UPDATE service_replicas SET draining_since = {now} WHERE ended_at IS NULL");
        assert_eq!(run(&one.location, drain).await, 1, "{engine}");
        one.report_faults(&token, 2, (3, 0)).await;
        assert_eq!(one.counts().await["requests"]["bad"], 3, "{engine}");
    }
}

#[tokio::test]
async fn a_node_that_cannot_run_replicas_excuses_no_fault() {
    for (engine, db, location) in engines("promise_node").await {
        let one = Promised::new(db, location, gold()).await;
        let (setup, t) = (&one.setup, &one.setup.t);
        let token = add_gateway(t, 1).await;
        one.go_to(60);
        for _ in 0..3 {
            // The pauses are 1, 2 and 4 seconds.
            setup.turn(5).await;
            let replicas = setup.replica_jobs().await;
            assert_eq!(replicas.len(), 1, "{engine}");
            setup.cannot_run(replicas[0], "worker.isolation").await;
            setup.turn(0).await;
            assert!(setup.replica_jobs().await.is_empty(), "{engine}: a pause follows");
        }
        let shown = t.get(&setup.ada, &one.path).await.expect(200);
        assert_eq!(shown["state"], "waking", "{engine}: {shown}");
        one.report_faults(&token, 1, (30, 0)).await;
        assert_eq!(one.counts().await["requests"]["bad"], 30, "{engine}");
    }
}

#[tokio::test]
async fn the_counts_of_the_present_window_are_read_every_thirty_seconds_at_most() {
    for (engine, db, location) in engines("promise_fresh").await {
        let one = Promised::new(db, location, gold()).await;
        one.add_use(0, 100, 2, 0).await;
        one.go_to(60);
        let requests = async || one.shown().await["present"]["evidence"]["requests"]["all"].clone();
        assert_eq!(requests().await, 100, "{engine}");
        let more = format!("UPDATE service_use SET requests = 200 WHERE service_id = '{}'", one.id);
        assert_eq!(run(&one.location, more).await, 1, "{engine}");
        for (seconds, expected) in [(0, 100), (FRESH_S - 1, 100), (1, 200)] {
            one.setup.t.clock.advance_s(seconds);
            assert_eq!(requests().await, expected, "{engine} {seconds}");
        }
        // The next window has counts of its own.
        one.go_to(HOUR - 1);
        assert_eq!(requests().await, 200, "{engine}");
        one.go_to(HOUR);
        assert_eq!(requests().await, 0, "{engine}");
    }
}

#[tokio::test]
async fn charges_for_tokens_count_as_far_as_they_are_posted_and_credits_for_lost_time_carry_over() {
    for (engine, db, location) in engines("promise_basis").await {
        let one = Promised::new(db, location, gold()).await;
        // A gateway reports tokens that nobody paid.
        let sql =
            format!("UPDATE service_use SET token_nanos = 900000000 WHERE hour_at = {}", one.begin.micros());
        one.add_use(0, 20, 20, 1_000_000).await;
        assert_eq!(run(&one.location, sql).await, 1, "{engine}");
        // The credit for lost time is above the charges of its window.
        one.charge_at(60, 1_000, 1_500).await;
        one.charge_at(HOUR + 60, 1_000, 4_000).await;
        one.charge_at(2 * HOUR + 60, 5_000, 1_000).await;
        for hour in 1..3 {
            one.add_use(hour, 20, 20, 0).await;
        }
        one.go_to(3 * HOUR + LATE_S);
        one.judge().await;
        let windows = one.shown().await["windows"].as_array().unwrap().clone();
        let charged: Vec<&Value> = windows.iter().map(|w| &w["evidence"]["charged_micros"]).collect();
        assert_eq!(charged, [&json!(1_000), &json!(0), &json!(500)], "{engine}: newest first");
        let credits: Vec<&Value> = windows.iter().map(|w| &w["credit_micros"]).collect();
        assert_eq!(credits, [&json!(100), &json!(0), &json!(50)], "{engine}");
        one.assert_books_balance().await;
    }
}

impl Promised {
    /// The service sleeps without a replica, and a request waits for it.
    async fn wakes(&self) {
        let setup = &self.setup;
        let now = setup.t.portal.context.now().micros();
        let end = format!("UPDATE service_replicas SET ended_at = {now} WHERE ended_at IS NULL");
        assert_eq!(run(&self.location, end).await, 1);
        let asleep = format!("UPDATE services SET state = 'asleep' WHERE id = '{}'", self.id);
        assert_eq!(run(&self.location, asleep).await, 1);
        setup.gateway_reports(&self.id, 0, 1);
        setup.t.portal.service_loop.run().await.unwrap();
    }
}

#[tokio::test]
async fn a_wake_that_its_callers_leave_is_late_only_after_the_promised_time() {
    for (engine, db, location) in engines("promise_left").await {
        let one = Promised::new(db, location, requests_and_wakes()).await;
        let (setup, t) = (&one.setup, &one.setup.t);
        ready(t, &one.path, 1).await;
        let scaling = json!({"min_replicas": 0, "max_replicas": 1, "down_delay_s": 0, "idle_s": 0});
        t.call(&setup.ada, "PATCH", &one.path, json!({"scaling": scaling})).await.expect(200);
        // Jobs of others have all boards.
        let job = json!({"name": "x", "offering": "h100-80gb", "command": ["true"], "max_duration_s": 7_200});
        for _ in 0..4 {
            t.post(&setup.bob, &format!("/orgs/{}/jobs", setup.other), job.clone()).await.expect(201);
        }
        schedule_all(setup).await;
        setup.turn(0).await;
        one.go_to(60);
        for (seconds, expected) in [(2, json!({"all": 1, "bad": 0})), (6, json!({"all": 2, "bad": 1}))] {
            setup.gateway_reports(&one.id, 0, 1);
            t.portal.service_loop.run().await.unwrap();
            assert_eq!(t.get(&setup.ada, &one.path).await.expect(200)["state"], "waking", "{engine}");
            t.clock.advance_s(seconds);
            setup.gateway_reports(&one.id, 0, 0);
            setup.turn(0).await;
            assert_eq!(t.get(&setup.ada, &one.path).await.expect(200)["state"], "asleep", "{engine}");
            assert_eq!(one.counts().await["wakes"], expected, "{engine}: after {seconds} seconds");
        }
    }
}

#[tokio::test]
async fn a_wake_counts_until_a_replica_has_its_devices() {
    for (engine, db, location) in engines("promise_wake").await {
        let wake = json!({"within_ms": 5_000, "good_ppm": 900_000, "credit_basis_points": 100});
        let class = json!({"name": "quick", "terms": {"window": "hour", "wake": wake}});
        let one = Promised::new(db, location, class).await;
        let setup = &one.setup;
        setup.turn(0).await;
        one.go_to(60);
        // Two wakes: the first one takes three seconds, the second one eight. No replica is ever ready.
        for (seconds, late) in [(3, 0), (8, 1)] {
            one.wakes().await;
            setup.t.clock.advance_s(seconds);
            schedule_all(setup).await;
            setup.turn(0).await;
            let counts = one.counts().await;
            assert_eq!(counts["wakes"]["bad"], late, "{engine}: {counts}");
        }
        assert_eq!(one.counts().await["wakes"]["all"], 2, "{engine}");
        // A stop ends the wake in its own transaction.
        one.wakes().await;
        assert_eq!(one.counts().await["wakes"]["all"], 3, "{engine}");
        let stop = json!({"stopped": true});
        setup.t.call(&setup.ada, "PATCH", &one.path, stop).await.expect(200);
        let open = "DELETE FROM service_wakes WHERE took_ms IS NULL".to_owned();
        assert_eq!(run(&one.location, open).await, 0, "{engine}: each wake has ended");
    }
}

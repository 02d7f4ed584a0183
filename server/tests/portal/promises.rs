//! Tests of promises: choices, the judgement of windows with its credits, and the evidence of wakes.

use std::path::Path;

use crate::common::{StoreLocation, TestPortal, engines};
use crate::idle_portal::{HOUR, IdlePortal};
use crate::operations::{items, schedule_all};
use crate::prepared_data::{PreparedData, serve_on_free_port, wait_for_kill};
use crate::process::eventually;
use crate::services::{create, run, service};
use berth_foundation::Settings;
use berth_services::promises::Promises;
use berth_store::ledger::{EVIDENCE, Posting, post};
use berth_store::usage::{Charge, UsageMode, add_charge};
use berth_store::{Db, StoreError};
use berth_types::ids::JobId;
use berth_types::ledger::TransferKind;
use berth_types::time::Timestamp;
use futures::FutureExt;
use serde_json::{Value, json};

/// The fault points of the judgement.
pub const FAULTS: [&str; 2] = ["service.promise.recording", "service.promise.recorded"];

/// The time after the end of a window until its judgement.
const LATE_S: i64 = 900;

/// A class with windows of an hour: 99 % of requests without an error, with a credit of 10 %.
fn gold() -> Value {
    let availability = json!({"good_ppm": 990_000, "credit_basis_points": 1_000});
    json!({"name": "gold", "terms": {"window": "hour", "availability": availability}})
}

/// A service of Ada with its chosen class.
struct Promised {
    setup: IdlePortal,
    location: StoreLocation,
    path: String,
    /// The id of the service.
    id: String,
    /// The id of the class.
    class: String,
    /// The id of an inference key.
    key: String,
    /// The begin of the first whole window.
    begin: Timestamp,
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

impl Promised {
    async fn new(db: Db, location: StoreLocation, class: Value) -> Self {
        let setup = IdlePortal::on(db).await;
        let path = create(&setup, service("digits")).await;
        let id = path.rsplit('/').next().unwrap().to_owned();
        let made = setup.t.post(&setup.operator, "/operator/promises", class).await.expect(201);
        let keys = format!("/orgs/{}/inference-keys", setup.org);
        let key = text(&setup.t.post(&setup.ada, &keys, json!({"name": "batch"})).await.expect(201)["id"]);
        let chosen = json!({"promise": made["id"]});
        let shown = setup.t.call(&setup.ada, "PUT", &format!("{path}/promise"), chosen).await.expect(200);
        assert_eq!(shown["chosen"]["promise"], made["id"], "{shown}");
        assert!(shown["present"].is_null(), "the hour that has begun does not count: {shown}");
        let next = setup.t.portal.context.now().millis() / 1_000 / HOUR + 1;
        let begin = Timestamp::from_micros(next * HOUR * 1_000_000);
        Self { setup, location, path, id, class: text(&made["id"]), key, begin }
    }

    /// Sets the clock to seconds after the begin of the first window.
    fn go_to(&self, seconds: i64) {
        let now = self.setup.t.portal.context.now();
        let left_ms = self.begin.plus_seconds(seconds).millis_since(now);
        self.setup.t.clock.advance_s((left_ms + 999).div_euclid(1_000));
    }

    /// Adds the use of an hour after the begin.
    async fn add_use(&self, hour: i64, requests: i64, errors: i64, token_nanos: i64) {
        let sql = format!(
            "INSERT INTO service_use (service_id, revision_id, key_id, hour_at, org_id, requests, errors, \
             prompt_tokens, completion_tokens, token_nanos, first_byte) VALUES ('{}', \
             'rev_00000000000000000000000001', '{}', {}, '{}', {requests}, {errors}, 0, 0, {token_nanos}, '[]')",
            self.id,
            self.key,
            self.begin.plus_seconds(hour * HOUR).micros(),
            self.setup.org
        );
        assert_eq!(run(&self.location, sql).await, 1);
    }

    /// Charges a job of a replica within the first window, with a later credit for time without evidence.
    async fn charge(&self, charged_micros: i64, credited_micros: i64) {
        let context = &self.setup.t.portal.context;
        let at = self.begin.plus_seconds(60);
        let job: JobId = context.new_id(at);
        let sql = format!(
            "INSERT INTO service_jobs (job_id, service_id, created_at) VALUES ('{job}', '{}', {})",
            self.id,
            at.micros()
        );
        assert_eq!(run(&self.location, sql).await, 1);
        let usage = Posting {
            id: context.new_id(at),
            org: self.setup.org.parse().unwrap(),
            kind: TransferKind::Usage,
            amount_micros: charged_micros,
            pending: None,
            source: "job",
            source_id: job.to_string(),
            seq: 1,
            memo: String::new(),
            at,
        };
        let credit = Posting {
            id: context.new_id(at),
            kind: TransferKind::Credit,
            amount_micros: credited_micros,
            source: EVIDENCE,
            ..usage.clone()
        };
        let done = context.db.write(move |tx| {
            let (usage, credit) = (usage.clone(), credit.clone());
            async move {
                post(tx, &usage).await?;
                post(tx, &credit).await?;
                let charge = Charge {
                    org: usage.org,
                    day: 1,
                    offering: "",
                    mode: UsageMode::OnDemand,
                    member: "",
                    price_version: 0,
                    labels: Vec::new(),
                    device_milli_ms: 0,
                    cost_micros: usage.amount_micros,
                };
                add_charge(tx, &charge).await
            }
            .boxed()
        });
        done.await.unwrap();
    }

    /// Judges until nothing is due.
    async fn judge(&self) {
        let promises = Promises::new(self.setup.t.portal.context.clone());
        while promises.judge().await.unwrap() {}
    }

    async fn shown(&self) -> Value {
        self.setup.t.get(&self.setup.ada, &format!("{}/promise", self.path)).await.expect(200)
    }

    /// The credits for missed promises in micro-units.
    async fn credits(&self) -> Vec<Value> {
        let path = format!("/orgs/{}/transfers?limit=200", self.setup.org);
        let all = items(&self.setup.t, &self.setup.ada, &path).await;
        all.into_iter().filter(|row| row["source"] == "promise").collect()
    }

    async fn assert_books_balance(&self) {
        let books = self.setup.t.post(&self.setup.operator, "/operator/reconciliation", Value::Null).await;
        assert_eq!(books.expect(200)["mismatches"], json!([]));
    }
}

#[tokio::test]
async fn a_missed_window_posts_its_credit_once() {
    for (engine, db, location) in engines("promise_missed").await {
        let one = Promised::new(db, location, gold()).await;
        one.charge(10_000, 1_000).await;
        one.add_use(0, 100, 2, 2_000_000).await;
        one.go_to(1_800);
        let present = one.shown().await["present"].clone();
        assert_eq!(present["evidence"]["charged_micros"], 11_000, "{engine}: {present}");
        let sentence = "2 of 100 requests failed; 99.0000 % good ones are promised";
        assert_eq!(present["misses"], json!([sentence]), "{engine}: {present}");

        one.go_to(HOUR + LATE_S - 1);
        one.judge().await;
        assert_eq!(one.shown().await["windows"], json!([]), "{engine}: late evidence may still come");
        one.go_to(HOUR + LATE_S);
        for _ in 0..3 {
            one.judge().await;
        }
        let credits = one.credits().await;
        assert_eq!(credits.len(), 1, "{engine}: {credits:?}");
        let credit = &credits[0];
        assert_eq!(
            (&credit["amount_micros"], &credit["kind"]),
            (&json!(1_100), &json!("credit")),
            "{engine}"
        );
        assert_eq!(credit["source_id"], one.id.as_str(), "{engine}");
        assert!(credit["memo"].as_str().unwrap().ends_with(sentence), "{engine}: {credit}");
        let windows = one.shown().await["windows"].clone();
        assert_eq!(windows.as_array().unwrap().len(), 1, "{engine}: {windows}");
        let window = &windows[0];
        assert_eq!(
            (&window["transfer"], &window["credit_micros"]),
            (&credit["id"], &json!(1_100)),
            "{engine}"
        );
        assert_eq!(window["misses"], json!([sentence]), "{engine}");
        one.assert_books_balance().await;
    }
}

#[tokio::test]
async fn kept_windows_and_windows_without_cases_have_no_credit() {
    for (engine, db, location) in engines("promise_kept").await {
        let one = Promised::new(db, location, gold()).await;
        one.charge(10_000, 1_000).await;
        one.add_use(0, 100, 1, 0).await;
        // A miss without charges has its sentence and no credit.
        one.add_use(2, 10, 10, 0).await;
        // The portal was away for three windows.
        one.go_to(3 * HOUR + LATE_S);
        one.judge().await;
        let windows = one.shown().await["windows"].as_array().unwrap().clone();
        let misses: Vec<usize> = windows.iter().map(|w| w["misses"].as_array().unwrap().len()).collect();
        assert_eq!(misses, [1, 0, 0], "{engine}: newest first, {windows:?}");
        assert!(windows.iter().all(|w| w["credit_micros"] == 0 && w["transfer"].is_null()), "{engine}");
        assert_eq!(one.credits().await, Vec::<Value>::new(), "{engine}");
    }
}

#[tokio::test]
async fn a_report_that_comes_late_counts_in_the_window_of_its_arrival() {
    for (engine, db, location) in engines("promise_late").await {
        let one = Promised::new(db, location, gold()).await;
        one.charge(10_000, 1_000).await;
        one.add_use(0, 100, 0, 0).await;
        one.go_to(HOUR + 300);
        // The portal counts a report in the hour of its arrival.
        one.add_use(1, 100, 50, 1_000_000).await;
        one.go_to(2 * HOUR + LATE_S);
        one.judge().await;
        let windows = one.shown().await["windows"].as_array().unwrap().clone();
        let bad: Vec<&Value> = windows.iter().map(|w| &w["evidence"]["requests"]["bad"]).collect();
        assert_eq!(bad, [&json!(50), &json!(0)], "{engine}");
        assert_eq!(one.credits().await.len(), 1, "{engine}");
    }
}

#[tokio::test]
async fn a_choice_keeps_its_terms_and_counts_whole_windows() {
    for (engine, db, location) in engines("promise_choice").await {
        let one = Promised::new(db, location, gold()).await;
        let (t, setup) = (&one.setup.t, &one.setup);
        let (class, put) = (format!("/operator/promises/{}", one.class), format!("{}/promise", one.path));
        let mut terms = gold()["terms"].clone();
        terms["availability"]["good_ppm"] = json!(500_000);
        let changed = t.call(&setup.operator, "PATCH", &class, json!({"terms": terms})).await.expect(200);
        assert_eq!(changed["terms"]["availability"]["good_ppm"], 500_000, "{engine}");
        let good_ppm = |shown: &Value| shown["chosen"]["terms"]["availability"]["good_ppm"].clone();
        assert_eq!(good_ppm(&one.shown().await), 990_000, "{engine}");
        t.call(&setup.operator, "DELETE", &class, Value::Null).await.expect(204);
        t.call(&setup.operator, "DELETE", &class, Value::Null).await.problem(404, "object.not_found");
        assert_eq!(items(t, &setup.ada, &format!("/orgs/{}/promises", setup.org)).await, Vec::<Value>::new());
        // A retired class stays with its service, and others cannot choose it.
        let same = t.call(&setup.ada, "PUT", &put, json!({"promise": one.class})).await.expect(200);
        assert_eq!(good_ppm(&same), 990_000, "{engine}");
        let other = create(setup, service("letters")).await;
        let path = format!("{other}/promise");
        let refused = t.call(&setup.ada, "PUT", &path, json!({"promise": one.class})).await;
        refused.problem(422, "request.invalid");
        let foreign = put.replace(&setup.org, &setup.other);
        t.call(&setup.bob, "PUT", &foreign, json!({})).await.problem(404, "object.not_found");
        t.get(&setup.bob, &put).await.problem(404, "object.not_found");

        // The first window ended before the end of the choice, and the second one did not.
        one.charge(10_000, 1_000).await;
        for hour in 0..2 {
            one.add_use(hour, 10, 10, 0).await;
        }
        one.go_to(HOUR + 600);
        let ended = t.call(&setup.ada, "PUT", &put, json!({"promise": null})).await.expect(200);
        assert!(ended["chosen"].is_null(), "{engine}: {ended}");
        one.go_to(4 * HOUR);
        one.judge().await;
        assert_eq!(one.shown().await["windows"].as_array().unwrap().len(), 1, "{engine}");
        assert_eq!(one.credits().await.len(), 1, "{engine}");
        let left = run(&one.location, "DELETE FROM service_promises".to_owned()).await;
        assert_eq!(left, 0, "{engine}: a choice without further windows is deleted");
        let events = format!("/orgs/{}/audit-events?action=service.promise_set", setup.org);
        assert_eq!(items(t, &setup.ada, &events).await.len(), 2, "{engine}");
    }
}

#[tokio::test]
async fn bad_classes_are_refused() {
    for (engine, db, _location) in engines("promise_bad").await {
        let setup = IdlePortal::on(db).await;
        let (t, operator, path) = (&setup.t, &setup.operator, "/operator/promises");
        let key = [("idempotency-key", "one")];
        let made = t.call_with(operator, "POST", path, gold(), &key).await.expect(201);
        let again = t.call_with(operator, "POST", path, gold(), &key).await.expect(201);
        assert_eq!(made, again, "{engine}");
        t.post(operator, path, gold()).await.problem(409, "promise.exists");
        let late = json!({"within_ms": 800, "good_ppm": 1, "credit_basis_points": 1});
        for (terms, pointer) in [
            (json!({"window": "day"}), "/terms"),
            (json!({"window": "day", "first_token": late}), "/terms/first_token/within_ms"),
        ] {
            let refused = t.post(operator, path, json!({"name": "silver", "terms": terms})).await;
            let body = refused.problem(422, "request.invalid");
            assert_eq!(body["errors"][0]["pointer"], pointer, "{engine}: {body}");
        }
        t.post(&setup.ada, path, gold()).await.problem(404, "object.not_found");
        let change = format!("{path}/{}", made["id"].as_str().unwrap());
        t.call(operator, "PATCH", &change, json!({"name": "Gold"})).await.problem(422, "request.invalid");
        assert_eq!(items(t, operator, path).await, [made], "{engine}");
    }
}

#[tokio::test]
async fn a_wake_counts_until_a_replica_is_ready() {
    for (engine, db, location) in engines("promise_wake").await {
        let wake = json!({"within_ms": 5_000, "good_ppm": 900_000, "credit_basis_points": 100});
        let class = json!({"name": "quick", "terms": {"window": "hour", "wake": wake}});
        let one = Promised::new(db, location, class).await;
        let setup = &one.setup;
        setup.turn(0).await;
        one.go_to(60);
        // Two wakes: the first one takes three seconds, the second one eight.
        for (seconds, late) in [(3, 0), (8, 1)] {
            for replica in setup.replica_jobs().await {
                setup.runs(replica, false).await;
            }
            let asleep = format!("UPDATE services SET state = 'asleep' WHERE id = '{}'", one.id);
            assert_eq!(run(&one.location, asleep).await, 1, "{engine}");
            setup.gateway_reports(&one.id, 0, 1);
            setup.t.portal.service_loop.run().await.unwrap();
            schedule_all(setup).await;
            let replica = setup.replica_jobs().await[0];
            setup.runs(replica, false).await;
            setup.t.clock.advance_s(seconds);
            setup.runs(replica, true).await;
            setup.turn(0).await;
            let evidence = one.shown().await["present"]["evidence"].clone();
            assert_eq!(evidence["wakes"]["bad"], late, "{engine}: {evidence}");
        }
        assert_eq!(one.shown().await["present"]["evidence"]["wakes"]["all"], 2, "{engine}");
        let open = "DELETE FROM service_wakes WHERE took_ms IS NULL".to_owned();
        assert_eq!(run(&one.location, open).await, 0, "{engine}: each wake has ended");
    }
}

/// The credit of a missed window exists once after a kill at the point.
fn credit_once(prepared: &PreparedData, data: &Path, point: &'static str) {
    wait_for_kill(&mut serve_on_free_port(data, Some(point)), point);
    let served = serve_on_free_port(data, None);
    let windows = eventually(|| {
        let service = prepared.items(&served, &prepared.path("services"))[0]["id"].clone();
        let path = prepared.path(&format!("services/{}/promise", service.as_str().unwrap()));
        let windows = prepared.get(&served, &path)["windows"].as_array().unwrap().clone();
        if windows.len() == 2 { Ok(windows) } else { Err(format!("{windows:?}")) }
    });
    let credits: Vec<Value> = prepared.items(&served, &prepared.path("transfers?limit=200"));
    let credits: Vec<&Value> = credits.iter().filter(|row| row["source"] == "promise").collect();
    assert_eq!(credits.len(), 1, "{point}: {credits:?}");
    assert_eq!(windows[1]["transfer"], credits[0]["id"], "{point}: {windows:?}");
    prepared.assert_books_balance(&served);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_credit_is_posted_once_after_a_kill_at_each_point() {
    let dir = tempfile::tempdir().unwrap();
    let secrets_key = Some(dir.path().join("secrets.key"));
    let db = crate::common::new_sqlite(&dir.path().join("berth.db")).await;
    let t = TestPortal::with(db, |settings| Settings { secrets_key, ..settings });
    PreparedData::set_clock(&t, 60).await;
    let setup = IdlePortal::with_portal(t).await;
    let path = create(&setup, service("digits")).await;
    let id = path.rsplit('/').next().unwrap().to_owned();
    let class = setup.t.post(&setup.operator, "/operator/promises", gold()).await.expect(201);
    let chosen = json!({"promise": class["id"]});
    setup.t.call(&setup.ada, "PUT", &format!("{path}/promise"), chosen).await.expect(200);
    let keys = format!("/orgs/{}/inference-keys", setup.org);
    let key = text(&setup.t.post(&setup.ada, &keys, json!({"name": "batch"})).await.expect(201)["id"]);
    // Two windows are due: the one that began five hours ago is missed.
    let window = setup.t.portal.context.now().millis() / 1_000 / HOUR - 5;
    let (begin, due) = (window * HOUR * 1_000_000, ((window + 1) * HOUR + LATE_S) * 1_000_000);
    let until = (window + 2) * HOUR * 1_000_000;
    let (org, service) = (setup.org.clone(), id.clone());
    let work = [
        format!(
            "UPDATE service_promises SET next_window = {window}, due_at = {due}, until_at = {until} \
             WHERE service_id = '{service}'"
        ),
        format!(
            "INSERT INTO service_use (service_id, revision_id, key_id, hour_at, org_id, requests, errors, \
             prompt_tokens, completion_tokens, token_nanos, first_byte) VALUES ('{service}', \
             'rev_00000000000000000000000001', '{key}', {begin}, '{org}', 9, 9, 0, 0, 5000000, '[]')"
        ),
    ];
    for sql in work {
        execute(dir.path(), sql).await.unwrap();
    }
    let prepared = PreparedData::create(&setup.t, dir.path(), &setup.org, &setup.ada, &setup.operator).await;
    prepared.run_at_each(&FAULTS, credit_once).await;
}

/// Runs a statement on the database in a data directory.
async fn execute(data: &Path, sql: String) -> Result<(), StoreError> {
    use sqlx::Connection;
    let url = format!("sqlite://{}", data.join("berth.db").display());
    let mut conn = sqlx::SqliteConnection::connect(&url).await?;
    let done = sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&mut conn).await?;
    assert_eq!(done.rows_affected(), 1);
    Ok(())
}

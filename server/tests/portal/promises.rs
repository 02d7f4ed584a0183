//! Tests of promises: classes, choices, and the judgement of windows with its credits.

use std::path::Path;

use crate::common::{StoreLocation, TestPortal, engines};
use crate::idle_portal::{HOUR, IdlePortal};
use crate::operations::items;
use crate::prepared_data::{PreparedData, serve_on_free_port, wait_for_kill};
use crate::process::eventually;
use crate::services::{create, run, service};
use berth_foundation::{Context, Settings};
use berth_services::promises::Promises;
use berth_store::ledger::{CREDIT_BLOCK, EVIDENCE, Posting, post};
use berth_store::usage::{Charge, UsageMode, add_charge};
use berth_store::{Db, StoreError};
use berth_types::ids::{JobId, TransferId};
use berth_types::ledger::TransferKind;
use berth_types::time::Timestamp;
use futures::FutureExt;
use serde_json::{Value, json};

/// The fault points of the judgement.
pub const FAULTS: [&str; 2] = ["service.promise.recording", "service.promise.recorded"];

/// The time after the end of a window until its judgement.
pub const LATE_S: i64 = 900;

/// A class with windows of an hour: 99 % of requests without a fault of the platform, with a credit of 10 %.
pub fn gold() -> Value {
    let availability = json!({"good_ppm": 990_000, "credit_basis_points": 1_000});
    json!({"name": "gold", "terms": {"window": "hour", "availability": availability}})
}

/// The postings of a block of credit: its hold, and the charge of all of it.
fn block(context: &Context, org: &str, at: Timestamp, micros: i64) -> Vec<Posting> {
    let id: TransferId = context.new_id(at);
    let hold = Posting {
        id,
        org: org.parse().unwrap(),
        kind: TransferKind::Hold,
        amount_micros: micros,
        pending: None,
        source: CREDIT_BLOCK,
        source_id: id.to_string(),
        seq: 1,
        memo: String::new(),
        at,
    };
    let usage =
        Posting { id: context.new_id(at), kind: TransferKind::Usage, pending: Some(id), ..hold.clone() };
    vec![hold, usage]
}

/// Posts transfers, each charge with its row of the day.
async fn post_all(context: &Context, postings: Vec<Posting>) {
    let done = context.db.write(move |tx| {
        let postings = postings.clone();
        async move {
            for posting in &postings {
                post(tx, posting).await?;
                if posting.kind != TransferKind::Usage {
                    continue;
                }
                let charge = Charge {
                    org: posting.org,
                    day: 1,
                    offering: "",
                    mode: UsageMode::OnDemand,
                    member: "",
                    price_version: 0,
                    surcharge_basis_points: 0,
                    labels: Vec::new(),
                    device_milli_ms: 0,
                    cost_micros: posting.amount_micros,
                };
                add_charge(tx, &charge).await?;
            }
            Ok(())
        }
        .boxed()
    });
    done.await.unwrap();
}

/// A service of Ada with its chosen class.
pub struct Promised {
    pub setup: IdlePortal,
    pub location: StoreLocation,
    pub path: String,
    /// The id of the service.
    pub id: String,
    /// The id of the class.
    pub class: String,
    /// The id of an inference key.
    pub key: String,
    /// The begin of the first whole window.
    pub begin: Timestamp,
}

pub fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

impl Promised {
    pub async fn new(db: Db, location: StoreLocation, class: Value) -> Self {
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
    pub fn go_to(&self, seconds: i64) {
        let now = self.setup.t.portal.context.now();
        let left_ms = self.begin.plus_seconds(seconds).millis_since(now);
        self.setup.t.clock.advance_s((left_ms + 999).div_euclid(1_000));
    }

    /// Adds the use of an hour after the begin, with the posted charge for its tokens. All answers are errors of the
    /// program, which count for nothing, and the replicas of `lost` requests were lost.
    pub async fn add_use(&self, hour: i64, requests: i64, lost: i64, token_nanos: i64) {
        let hour_at = self.begin.plus_seconds(hour * HOUR);
        let sql = format!(
            "INSERT INTO service_use (service_id, revision_id, key_id, hour_at, org_id, requests, errors, \
             prompt_tokens, completion_tokens, token_nanos, first_byte) VALUES ('{}', \
             'rev_00000000000000000000000001', '{}', {}, '{}', {requests}, {requests}, 0, 0, {token_nanos}, '[]')",
            self.id,
            self.key,
            hour_at.micros(),
            self.setup.org
        );
        assert_eq!(run(&self.location, sql).await, 1);
        let sql = format!(
            "INSERT INTO service_faults (service_id, hour_at, refused, lost) VALUES ('{}', {}, 0, {lost})",
            self.id,
            hour_at.micros()
        );
        assert_eq!(run(&self.location, sql).await, 1);
        self.post_block(hour * HOUR + 60, token_nanos / 1_000).await;
    }

    /// Posts the charge of a block of credit that was lent seconds after the begin.
    pub async fn post_block(&self, seconds: i64, micros: i64) {
        let context = &self.setup.t.portal.context;
        if micros > 0 {
            let at = self.begin.plus_seconds(seconds);
            post_all(context, block(context, &self.setup.org, at, micros)).await;
        }
    }

    /// Charges a job of a replica within the first window, with a later credit for time without evidence.
    pub async fn charge(&self, charged_micros: i64, credited_micros: i64) {
        self.charge_at(60, charged_micros, credited_micros).await;
    }

    /// Charges a job of a replica seconds after the begin, with a credit for time without evidence.
    pub async fn charge_at(&self, seconds: i64, charged_micros: i64, credited_micros: i64) {
        let at = self.begin.plus_seconds(seconds);
        let job: JobId = self.setup.t.portal.context.new_id(at);
        self.charge_job(job, at, (charged_micros, credited_micros)).await;
    }

    /// Makes a job one of a replica, with a charge and a credit for time without evidence.
    pub async fn charge_job(&self, job: JobId, at: Timestamp, (charged_micros, credited_micros): (i64, i64)) {
        let context = &self.setup.t.portal.context;
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
        post_all(context, vec![usage, credit]).await;
    }

    /// Judges until nothing is due.
    pub async fn judge(&self) {
        let promises = Promises::new(self.setup.t.portal.context.clone());
        while promises.judge().await.unwrap() {}
    }

    pub async fn shown(&self) -> Value {
        self.setup.t.get(&self.setup.ada, &format!("{}/promise", self.path)).await.expect(200)
    }

    /// The credits for missed promises in micro-units.
    pub async fn credits(&self) -> Vec<Value> {
        let path = format!("/orgs/{}/transfers?limit=200", self.setup.org);
        let all = items(&self.setup.t, &self.setup.ada, &path).await;
        all.into_iter().filter(|row| row["source"] == "promise").collect()
    }

    pub async fn assert_books_balance(&self) {
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
        let sentence = "2 of 100 requests failed; 99 % good ones are promised";
        assert_eq!(present["misses"], json!([sentence]), "{engine}: {present}");

        one.go_to(HOUR + LATE_S - 1);
        one.judge().await;
        assert_eq!(one.shown().await["windows"], json!([]), "{engine}: late evidence may still come");
        one.go_to(HOUR + LATE_S);
        for _ in 0..3 {
            one.judge().await;
        }
        let credits = one.credits().await;
        let [credit] = &credits[..] else { panic!("{engine}: {credits:?}") };
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
        one.add_use(2, 20, 20, 0).await;
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
async fn a_choice_that_cannot_be_read_does_not_stop_the_others() {
    for (engine, db, location) in engines("promise_damage").await {
        let one = Promised::new(db, location, gold()).await;
        let (t, setup) = (&one.setup.t, &one.setup);
        let other = create(setup, service("letters")).await;
        let chosen = json!({"promise": one.class});
        t.call(&setup.ada, "PUT", &format!("{other}/promise"), chosen).await.expect(200);
        let damage = format!("UPDATE service_promises SET terms = '{{' WHERE service_id = '{}'", one.id);
        assert_eq!(run(&one.location, damage).await, 1, "{engine}");
        one.go_to(HOUR + LATE_S);
        one.judge().await;
        let shown = t.get(&setup.ada, &format!("{other}/promise")).await.expect(200);
        assert_eq!(shown["windows"].as_array().unwrap().len(), 1, "{engine}: {shown}");
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
        let foreign = put.replace(&setup.org, &setup.other);
        t.call(&setup.bob, "PUT", &foreign, json!({})).await.problem(404, "object.not_found");
        t.get(&setup.bob, &put).await.problem(404, "object.not_found");

        // The first window ended before the end of the class, and the second one did not.
        one.charge(10_000, 1_000).await;
        for hour in 0..2 {
            one.add_use(hour, 20, 20, 0).await;
        }
        one.go_to(HOUR + 600);
        let operator = t.sign_in("harbour@example.org").await;
        t.call(&operator, "DELETE", &class, Value::Null).await.expect(204);
        t.call(&operator, "DELETE", &class, Value::Null).await.problem(404, "object.not_found");
        assert_eq!(items(t, &setup.ada, &format!("/orgs/{}/promises", setup.org)).await, Vec::<Value>::new());
        let ended = one.shown().await;
        assert!(ended["chosen"].is_null(), "{engine}: a retired class ends its choices, {ended}");
        let again = t.call(&setup.ada, "PUT", &put, json!({"promise": one.class})).await;
        again.problem(422, "request.invalid");
        one.go_to(4 * HOUR);
        one.judge().await;
        assert_eq!(one.shown().await["windows"].as_array().unwrap().len(), 1, "{engine}");
        assert_eq!(one.credits().await.len(), 1, "{engine}");
        let left = run(&one.location, "DELETE FROM service_promises".to_owned()).await;
        assert_eq!(left, 0, "{engine}: a choice without further windows is deleted");
        let events = format!("/orgs/{}/audit-events?action=service.promise_set", setup.org);
        assert_eq!(items(t, &setup.ada, &events).await.len(), 1, "{engine}");
    }
}

#[tokio::test]
async fn a_new_choice_takes_the_place_of_the_present_one_and_what_it_carries() {
    for (engine, db, location) in engines("promise_carry").await {
        let one = Promised::new(db, location, gold()).await;
        let (t, setup) = (&one.setup.t, &one.setup);
        let silver = json!({"name": "silver", "terms": gold()["terms"]});
        let made = t.post(&setup.operator, "/operator/promises", silver).await.expect(201);
        assert_eq!(run(&one.location, "UPDATE service_promises SET carry_micros = 7".to_owned()).await, 1);
        let put = format!("{}/promise", one.path);
        let shown = t.call(&setup.ada, "PUT", &put, json!({"promise": made["id"]})).await.expect(200);
        assert_eq!(shown["chosen"]["name"], "silver", "{engine}: {shown}");
        let only = "UPDATE service_promises SET carry_micros = 0 WHERE carry_micros = 7 AND name = 'silver'";
        assert_eq!(run(&one.location, only.to_owned()).await, 1, "{engine}");
        assert_eq!(run(&one.location, "DELETE FROM service_promises".to_owned()).await, 1, "{engine}");
    }
}

#[tokio::test]
async fn the_judged_windows_are_a_list_with_pages() {
    for (engine, db, location) in engines("promise_windows").await {
        let one = Promised::new(db, location, gold()).await;
        let (t, setup, list) = (&one.setup.t, &one.setup, format!("{}/promise/windows", one.path));
        t.get(&setup.bob, &list).await.problem(404, "object.not_found");
        // A session without a request for twelve hours ends.
        for hours in [8, 15, 22] {
            one.go_to(hours * HOUR + LATE_S);
            one.judge().await;
            one.shown().await;
        }
        let all = items(t, &setup.ada, &list).await;
        assert_eq!(json!(all[..20]), one.shown().await["windows"], "{engine}");
        let page = t.get(&setup.ada, &format!("{list}?limit=21")).await.expect(200);
        let next = format!("{list}?cursor={}", text(&page["next_cursor"]));
        assert_eq!(items(t, &setup.ada, &next).await, all[21..], "{engine}");
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
             'rev_00000000000000000000000001', '{key}', {begin}, '{org}', 90, 9, 0, 0, 5000000, '[]')"
        ),
        format!(
            "INSERT INTO service_faults (service_id, hour_at, refused, lost) VALUES ('{service}', {begin}, 0, 9)"
        ),
    ];
    for sql in work {
        execute(dir.path(), sql).await.unwrap();
    }
    let context = &setup.t.portal.context;
    post_all(context, block(context, &setup.org, Timestamp::from_micros(begin), 5_000)).await;
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

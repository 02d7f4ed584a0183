//! Tests of stored bytes: the limits without credit, the retention of ended jobs, and the mark of free space.

use std::io::Write;

use crate::common::{Caller, TestPortal, engines, job};
use berth_foundation::Settings;
use berth_foundation::disk::free_bytes;
use berth_recordings::open_append;
use berth_types::ids::JobId;
use serde_json::{Value, json};

const DAY_S: i64 = 86_400;

/// Submits a job and cancels it; returns its id.
async fn ended_job(t: &TestPortal, caller: &Caller, org: &str) -> String {
    let mut body = job();
    body["files"] = json!({"a.txt": "x".repeat(1_000)});
    let made = t.post(caller, &format!("/orgs/{org}/jobs"), body).await.expect(201);
    let id = made["id"].as_str().unwrap().to_owned();
    t.post(caller, &format!("/orgs/{org}/jobs/{id}/cancel"), Value::Null).await.expect(202);
    id
}

/// Writes a log of 500 bytes, as of the first rank of a first attempt.
fn write_log(t: &TestPortal, id: &str) {
    let id: JobId = id.parse().unwrap();
    let path = t.portal.recordings.log(id, 1, 0);
    open_append(&path).unwrap().write_all(&[b'x'; 500]).unwrap();
}

/// The audit events of removals, for the owner.
async fn removals(t: &TestPortal, owner: &Caller, org: &str) -> Vec<Value> {
    let events = t.get(owner, &format!("/orgs/{org}/audit-events?limit=200")).await.expect(200);
    let events = events["items"].as_array().unwrap().clone();
    events.into_iter().filter(|event| event["action"] == "retention.removed").collect()
}

#[tokio::test]
async fn an_organization_without_credit_stores_little() {
    for (engine, db, _location) in engines("free_storage").await {
        let t =
            TestPortal::with(db, |settings| Settings { free_storage_bytes: 2_000, free_jobs: 0, ..settings });
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        let (bob, other) = t.tenant("other").await;
        t.add_price_and_credit(&operator, &org, 0).await;
        let storage = t.get(&ada, &format!("/orgs/{org}/storage")).await.expect(200);
        assert_eq!((&storage["limit_bytes"], &storage["without_credit"]), (&json!(2_000), &json!(true)));
        let jobs = format!("/orgs/{org}/jobs");
        let problem = t.post(&ada, &jobs, job()).await.problem(409, "storage.full");
        assert!(problem["detail"].as_str().unwrap().contains("Without credit"), "{engine}: {problem}");
        let volume = |org: &str| format!("/orgs/{org}/volumes");
        let body = json!({"name": "a", "max_bytes": 100_000});
        t.post(&ada, &volume(&org), body.clone()).await.expect(201);
        t.post(&bob, &volume(&other), body).await.expect(201);
        let begin = async |caller: &Caller, org: &str, bytes: u64| {
            t.call(caller, "PUT", &format!("/orgs/{org}/volumes/a/uploads/x"), json!({"bytes": bytes})).await
        };
        begin(&ada, &org, 2_000).await.expect(200);
        let problem = begin(&ada, &org, 2_001).await.problem(409, "storage.full");
        assert!(problem["detail"].as_str().unwrap().contains("Add credit"), "{engine}: {problem}");

        // Credit at any time, or a credit limit, raises the limit.
        let credit = json!({"amount_micros": 1_000_000_000, "memo": "Welcome"});
        t.post(&operator, &format!("/operator/orgs/{org}/credits"), credit).await.expect(201);
        begin(&ada, &org, 2_001).await.expect(200);
        t.post(&ada, &jobs, job()).await.expect(201);
        begin(&bob, &other, 2_001).await.problem(409, "storage.full");
        let limit = json!({"credit_limit_micros": 1});
        t.call(&operator, "PUT", &format!("/operator/orgs/{other}/credit-limit"), limit).await.expect(200);
        begin(&bob, &other, 2_001).await.expect(200);
        let storage = t.get(&ada, &format!("/orgs/{org}/storage")).await.expect(200);
        assert_eq!((&storage["volume_bytes"], &storage["submissions"]), (&json!(2_001), &json!(1)));
        assert_eq!(storage["without_credit"], false, "{engine}: {storage}");
    }
}

#[tokio::test]
async fn an_ended_job_keeps_its_name_times_and_cost_after_retention() {
    for (engine, db, _location) in engines("retention").await {
        let t = TestPortal::with(db, |settings| Settings { keep_ended_jobs_days: Some(30), ..settings });
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        t.add_price_and_credit(&operator, &org, 1_000_000_000).await;
        let id = ended_job(&t, &ada, &org).await;
        write_log(&t, &id);
        let open = t.post(&ada, &format!("/orgs/{org}/jobs"), job()).await.expect(201);
        assert!(!t.portal.job_retention.tick_retention().await.unwrap());
        let storage = t.get(&ada, &format!("/orgs/{org}/storage")).await.expect(200);
        assert_eq!((&storage["log_bytes"], &storage["submissions"]), (&json!(500), &json!(2)));
        let bytes = storage["submission_bytes"].as_i64().unwrap();
        assert!((1_000..3_000).contains(&bytes), "{engine}: {storage}");
        assert_eq!(storage["used_bytes"], bytes + 500, "{engine}: {storage}");
        let path = format!("/orgs/{org}/jobs/{id}");
        let before = t.get(&ada, &path).await.expect(200);

        t.clock.advance_s(29 * DAY_S);
        t.portal.job_retention.tick_retention().await.unwrap();
        let ada = t.sign_in("lab@example.org").await;
        assert_eq!(t.get(&ada, &path).await.expect(200), before, "{engine}: it is not old yet");
        t.clock.advance_s(2 * DAY_S);
        t.portal.job_retention.tick_retention().await.unwrap();
        t.portal.job_retention.tick_retention().await.unwrap();
        let ada = t.sign_in("lab@example.org").await;
        let removed = t.get(&ada, &path).await.expect(200);
        assert!(removed["removed_at"].is_string(), "{engine}: {removed}");
        for field in ["name", "state", "created_at", "ended_at", "cost_micros", "metered_ms", "created_by"] {
            assert_eq!(removed[field], before[field], "{engine}: {field}");
        }
        assert_eq!((&removed["files"], &removed["command"]), (&json!([]), &Value::Null), "{engine}");
        t.get(&ada, &format!("{path}/submission")).await.problem(409, "job.removed");
        t.get(&ada, &format!("{path}/logs")).await.expect(200);
        let parsed: JobId = id.parse().unwrap();
        assert_eq!(t.portal.recordings.log_bytes(parsed).unwrap(), 0, "{engine}");
        for (attempt, rank) in [(0, 0), (9, 0), (1, 3)] {
            let end = t.portal.jobs.log_end(parsed, attempt, rank).await.unwrap();
            assert!(end.is_some(), "{engine}: attempt {attempt} of rank {rank} never comes");
        }
        let open =
            t.get(&ada, &format!("/orgs/{org}/jobs/{}", open["id"].as_str().unwrap())).await.expect(200);
        assert!(open["removed_at"].is_null(), "{engine}: a waiting job has no end");
        let storage = t.get(&ada, &format!("/orgs/{org}/storage")).await.expect(200);
        assert_eq!((&storage["log_bytes"], &storage["submissions"]), (&json!(0), &json!(1)), "{engine}");
        let events = removals(&t, &ada, &org).await;
        assert_eq!(events.len(), 1, "{engine}: {events:?}");
        let detail = events[0]["detail"].as_str().unwrap();
        assert!(detail.starts_with("1 job, ") && detail.ends_with(" bytes"), "{engine}: {detail}");
        let operator = t.sign_in("harbour@example.org").await;
        let books = t.post(&operator, "/operator/reconciliation", Value::Null).await;
        assert_eq!(books.body["mismatches"], json!([]), "{engine}: {}", books.body);
    }
}

#[tokio::test]
async fn an_organization_shortens_its_own_retention_only() {
    for (engine, db, _location) in engines("own_retention").await {
        let t = TestPortal::with(db, |settings| Settings { keep_ended_jobs_days: Some(30), ..settings });
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        let (bob, other) = t.tenant("other").await;
        t.add_price_and_credit(&operator, &org, 1_000_000_000).await;
        let credit = json!({"amount_micros": 1_000_000_000, "memo": "Welcome"});
        t.post(&operator, &format!("/operator/orgs/{other}/credits"), credit).await.expect(201);
        let path = format!("/orgs/{org}/retention");
        let shown = t.get(&ada, &path).await.expect(200);
        assert_eq!(shown, json!({"keep_ended_jobs_days": 30, "portal_days": 30}), "{engine}");
        for days in [0, 31] {
            let body = json!({"keep_ended_jobs_days": days});
            let problem = t.call(&ada, "PUT", &path, body).await.problem(422, "request.invalid");
            assert_eq!(problem["errors"][0]["pointer"], "/keep_ended_jobs_days", "{engine}: {problem}");
        }
        let week = json!({"keep_ended_jobs_days": 7});
        t.call(&bob, "PUT", &path, week.clone()).await.problem(404, "object.not_found");
        t.get(&bob, &format!("/orgs/{org}/storage")).await.problem(404, "object.not_found");
        t.call(&ada, "PUT", &path, week.clone()).await.expect(200);
        let set = t.call(&ada, "PUT", &path, week).await.expect(200);
        let log = format!("/orgs/{org}/audit-events?action=retention.set");
        let events = t.get(&ada, &log).await.expect(200)["items"].clone();
        assert_eq!(events.as_array().unwrap().len(), 1, "{engine}: {events}");
        assert_eq!((&set["keep_ended_jobs_days"], &set["chosen_days"]), (&json!(7), &json!(7)), "{engine}");

        let (ours, theirs) = (ended_job(&t, &ada, &org).await, ended_job(&t, &bob, &other).await);
        t.clock.advance_s(8 * DAY_S);
        t.portal.job_retention.tick_retention().await.unwrap();
        let (ada, bob) = (t.sign_in("lab@example.org").await, t.sign_in("other@example.org").await);
        let ours = t.get(&ada, &format!("/orgs/{org}/jobs/{ours}")).await.expect(200);
        let theirs = t.get(&bob, &format!("/orgs/{other}/jobs/{theirs}")).await.expect(200);
        assert!(ours["removed_at"].is_string() && theirs["removed_at"].is_null(), "{engine}");
        assert_eq!(removals(&t, &bob, &other).await.len(), 0, "{engine}");
        let back = t.call(&ada, "PUT", &path, json!({})).await.expect(200);
        assert_eq!(back, json!({"keep_ended_jobs_days": 30, "portal_days": 30}), "{engine}");
    }
}

#[tokio::test]
async fn jobs_are_removed_in_batches_with_one_audit_event_a_run() {
    let t = TestPortal::sqlite().await;
    let operator = t.operator().await;
    let (ada, org) = t.tenant("lab").await;
    t.add_price_and_credit(&operator, &org, 1_000_000_000).await;
    for _ in 0..101 {
        ended_job(&t, &ada, &org).await;
    }
    t.clock.advance_s(366 * DAY_S);
    let ada = t.sign_in("lab@example.org").await;
    assert!(t.portal.job_retention.tick_retention().await.unwrap(), "there is more");
    assert!(!t.portal.job_retention.tick_retention().await.unwrap());
    let events = removals(&t, &ada, &org).await;
    let mut counts: Vec<&str> =
        events.iter().map(|event| event["detail"].as_str().unwrap().split(',').next().unwrap()).collect();
    counts.sort_unstable();
    assert_eq!(counts, ["1 job", "100 jobs"]);
    let storage = t.get(&ada, &format!("/orgs/{org}/storage")).await.expect(200);
    assert_eq!((&storage["used_bytes"], &storage["submissions"]), (&json!(0), &json!(0)));
}

#[tokio::test]
async fn a_run_with_a_failure_says_that_work_remains() {
    let t = TestPortal::sqlite().await;
    let operator = t.operator().await;
    let (ada, org) = t.tenant("lab").await;
    t.add_price_and_credit(&operator, &org, 1_000_000_000).await;
    let stuck = ended_job(&t, &ada, &org).await;
    t.clock.advance_s(1);
    for _ in 0..101 {
        ended_job(&t, &ada, &org).await;
    }
    assert!(t.portal.job_retention.tick_retention().await.unwrap(), "two more logs to count");
    assert!(!t.portal.job_retention.tick_retention().await.unwrap());
    // A file in place of a directory.
    let logs = t.data.path().join("logs");
    std::fs::create_dir_all(&logs).unwrap();
    std::fs::write(logs.join(stuck), b"").unwrap();
    t.clock.advance_s(366 * DAY_S);
    assert!(t.portal.job_retention.tick_retention().await.unwrap_err().unfinished, "100 of 101 are removed");
    assert!(!t.portal.job_retention.tick_retention().await.unwrap_err().unfinished);
}

#[tokio::test]
async fn directories_that_fail_do_not_hold_up_newer_jobs() {
    for (engine, db, _location) in engines("stuck_retention").await {
        let t = TestPortal::with(db, |settings| Settings { keep_ended_jobs_days: Some(30), ..settings });
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        t.add_price_and_credit(&operator, &org, 1_000_000_000).await;
        let logs = t.data.path().join("logs");
        std::fs::create_dir_all(&logs).unwrap();
        // A whole batch of older jobs, each with a file in place of its directory.
        let mut stuck = Vec::new();
        for _ in 0..100 {
            let file = logs.join(ended_job(&t, &ada, &org).await);
            std::fs::write(&file, b"").unwrap();
            stuck.push(file);
        }
        let id = ended_job(&t, &ada, &org).await;
        write_log(&t, &id);
        t.portal.job_retention.tick_retention().await.unwrap();
        let storage = t.get(&ada, &format!("/orgs/{org}/storage")).await.expect(200);
        assert_eq!(storage["log_bytes"], 500, "{engine}: the newer job is counted");
        stuck.iter().for_each(|file| std::fs::remove_file(file).unwrap());
        t.portal.job_retention.tick_retention().await.unwrap();
        stuck.iter().for_each(|file| std::fs::write(file, b"").unwrap());

        t.clock.advance_s(31 * DAY_S);
        assert!(t.portal.job_retention.tick_retention().await.is_err(), "{engine}: the failure is shown");
        let ada = t.sign_in("lab@example.org").await;
        let job = t.get(&ada, &format!("/orgs/{org}/jobs/{id}")).await.expect(200);
        assert!(job["removed_at"].is_string(), "{engine}: {job}");
        let storage = t.get(&ada, &format!("/orgs/{org}/storage")).await.expect(200);
        assert_eq!(storage["submissions"], 100, "{engine}: {storage}");
        stuck.iter().for_each(|file| std::fs::remove_file(file).unwrap());
        t.portal.job_retention.tick_retention().await.unwrap();
        let storage = t.get(&ada, &format!("/orgs/{org}/storage")).await.expect(200);
        assert_eq!(storage["submissions"], 0, "{engine}: {storage}");
    }
}

/// A portal whose mark of free space follows from the free bytes.
async fn portal_with_mark(mark: fn(u64) -> u64) -> (TestPortal, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let db = crate::common::new_sqlite(&dir.path().join("berth.db")).await;
    let t = TestPortal::with(db, |settings| {
        let min_free_bytes = mark(free_bytes(&settings.data).unwrap());
        Settings { min_free_bytes, ..settings }
    });
    (t, dir)
}

#[tokio::test]
async fn below_the_mark_uploads_are_refused_and_below_half_of_it_submissions_too() {
    let marks: [(fn(u64) -> u64, bool); 2] = [(|free| free / 2 * 3, true), (|_| u64::MAX, false)];
    for (mark, uploads_only) in marks {
        let (t, _dir) = portal_with_mark(mark).await;
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        t.add_price_and_credit(&operator, &org, 1_000_000_000).await;
        t.post(&ada, &format!("/orgs/{org}/volumes"), json!({"name": "a", "max_bytes": 1_000}))
            .await
            .expect(201);
        let upload = format!("/orgs/{org}/volumes/a/uploads/x");
        let refused = t.call(&ada, "PUT", &upload, json!({"bytes": 1})).await;
        assert_eq!(refused.headers["retry-after"], "60");
        refused.problem(503, "server.unavailable");
        let submitted = t.post(&ada, &format!("/orgs/{org}/jobs"), job()).await;
        let state = if uploads_only {
            let made = submitted.expect(201);
            let cancel = format!("/orgs/{org}/jobs/{}/cancel", made["id"].as_str().unwrap());
            t.post(&ada, &cancel, Value::Null).await.expect(202);
            "no_uploads"
        } else {
            let problem = submitted.problem(503, "server.unavailable");
            assert!(problem["detail"].as_str().unwrap().contains("Nothing was submitted"), "{problem}");
            "no_submissions"
        };
        let overview = t.get(&operator, "/operator/overview").await.expect(200);
        assert_eq!(overview["disk"]["state"], state, "{overview}");
    }
}

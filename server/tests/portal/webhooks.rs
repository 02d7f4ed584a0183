//! Tests of notices: signatures, retries, mails, and the notice of an idle hour.

use berth_server::loops;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use crate::common::{TestPortal, engines};
use crate::idle_portal::IdlePortal;
use crate::operations::{job, schedule_all, submit};
use crate::worker_portal::WorkerPortal;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use berth_core::jobs::MachineEvent;
use berth_foundation::Settings;
use berth_foundation::delivery::sign;
use berth_jobs::reports::{AttemptPhase, AttemptReport};
use berth_recordings::Recorded;
use berth_server::portal::Portal;
use berth_store as store;
use berth_types::ids::{JobId, NodeId};
use berth_types::metrics::Sample;
use berth_types::time::Timestamp;
use serde_json::{Value, json};

/// A receiver that answers with these statuses first, then with 200.
#[derive(Clone, Default)]
pub struct Receiver {
    answers: Arc<Mutex<VecDeque<u16>>>,
    received: Arc<Mutex<Vec<(String, String)>>>,
}

impl Receiver {
    pub async fn open(answers: &[u16]) -> (Self, String) {
        let receiver =
            Self { answers: Arc::new(Mutex::new(answers.iter().copied().collect())), ..Self::default() };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let app =
            axum::Router::new().route("/hook", axum::routing::post(receive)).with_state(receiver.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        (receiver, url)
    }

    pub fn received(&self) -> Vec<(String, String)> {
        self.received.lock().unwrap().clone()
    }

    /// Returns the received notices, oldest first.
    pub fn notices(&self) -> Vec<Value> {
        self.received().iter().map(|(_, body)| serde_json::from_str(body).unwrap()).collect()
    }
}

async fn receive(State(receiver): State<Receiver>, headers: HeaderMap, body: String) -> StatusCode {
    let signature = headers["berth-signature"].to_str().unwrap().to_owned();
    receiver.received.lock().unwrap().push((signature, body));
    let answer = receiver.answers.lock().unwrap().pop_front().unwrap_or(200);
    StatusCode::from_u16(answer).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn notices_are_signed_and_retried_until_delivery() {
    let setup = WorkerPortal::open().await;
    let (receiver, url) = Receiver::open(&[500, 302]).await;
    let hooks = format!("/orgs/{}/webhooks", setup.org);
    let hook = json!({"url": url, "kinds": ["job.*", "budget.passed"]});
    let hook = setup.t.post(&setup.ada, &hooks, hook).await.expect(201);
    let secret = hook["secret"].as_str().unwrap().to_owned();
    let listed = setup.t.get(&setup.ada, &hooks).await.expect(200);
    assert_eq!(
        (&listed["items"][0]["url"], &listed["items"][0]["secret"]),
        (&json!(url), &Value::Null),
        "shown once"
    );

    let job = setup.submit_script("sleep 0.2").await;
    assert_eq!(setup.until_ended(&job).await["state"], "succeeded");
    let deliver = || setup.t.portal.webhooks.deliver();
    deliver().await.unwrap();
    assert_eq!(receiver.received().len(), 2, "running, and succeeded");
    deliver().await.unwrap();
    assert_eq!(receiver.received().len(), 2, "not at once again");
    let deliveries = format!("{hooks}/{}/deliveries", hook["id"].as_str().unwrap());
    let states = async || {
        let page = setup.t.get(&setup.ada, &deliveries).await.expect(200);
        let mut states: Vec<String> = page["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|d| format!("{}{}", d["state"].as_str().unwrap(), d["tries"]))
            .collect();
        states.sort();
        states
    };
    // Redirects are not followed, because they could lead to any address.
    assert_eq!(states().await, ["pending1", "pending1"]);
    setup.t.clock.advance_s(11);
    deliver().await.unwrap();
    assert_eq!(states().await, ["delivered2", "delivered2"]);
    let received = receiver.received();
    assert_eq!(received.len(), 4);
    for (signature, body) in &received {
        let (t, v1) = signature.strip_prefix("t=").unwrap().split_once(",v1=").unwrap();
        assert_eq!(v1, sign(&secret, t.parse().unwrap(), body), "{signature}");
        assert!(!body.contains(&secret));
    }
    let last: Value = serde_json::from_str(&received[3].1).unwrap();
    assert_eq!((&last["data"]["job"], &last["org"]), (&json!(job), &json!(setup.org)), "{last}");

    // A delivery is repeated on request of the organization only.
    let page = setup.t.get(&setup.ada, &deliveries).await.expect(200);
    let again =
        |org: &str| format!("/orgs/{org}/deliveries/{}/redeliver", page["items"][0]["id"].as_str().unwrap());
    setup.t.post(&setup.ada, &again(&setup.org), Value::Null).await.expect(202);
    deliver().await.unwrap();
    assert_eq!(receiver.received().len(), 5);
    let (bob, other) = setup.t.tenant("bobs").await;
    setup.t.post(&bob, &again(&other), Value::Null).await.expect(404);
    setup.t.get(&bob, &deliveries).await.expect(404);
    setup
        .t
        .call(&bob, "DELETE", &format!("{hooks}/{}", hook["id"].as_str().unwrap()), Value::Null)
        .await
        .expect(404);
    setup
        .t
        .call(&setup.ada, "DELETE", &format!("{hooks}/{}", hook["id"].as_str().unwrap()), Value::Null)
        .await
        .expect(204);
    let job = setup.submit_script("true").await;
    setup.until_ended(&job).await;
    deliver().await.unwrap();
    assert_eq!(receiver.received().len(), 5, "nobody listens any more");
}

#[tokio::test]
async fn a_webhook_has_a_url_and_known_kinds() {
    let t = TestPortal::sqlite().await;
    let (ada, org) = t.tenant("ada").await;
    let hooks = format!("/orgs/{org}/webhooks");
    let url = "https://example.org/hook";
    for bad in [
        json!({"url": "ftp://example.org", "kinds": ["*"]}),
        json!({"url": "https://a:b@example.org", "kinds": ["*"]}),
        json!({"url": url, "kinds": []}),
        json!({"url": url, "kinds": ["Job!"]}),
        json!({"url": url, "kinds": ["job.exploded"]}),
        json!({"url": url, "kinds": ["job.*", "jo*"]}),
        json!({"url": url, "kinds": ["jobs.*"]}),
        json!({"url": url, "kinds": ["job.*", "*", "job.*"]}),
    ] {
        t.post(&ada, &hooks, bad).await.problem(422, "request.invalid");
    }
    t.post(&ada, &hooks, json!({"url": url, "kinds": ["*", "job.*", "job.failed"]})).await.expect(201);
}

#[tokio::test(flavor = "multi_thread")]
async fn money_notices_are_mailed_and_deliveries_to_a_dead_receiver_fail() {
    let setup = WorkerPortal::open().await;
    let nobody = "http://127.0.0.1:9/hook";
    let hooks = format!("/orgs/{}/webhooks", setup.org);
    let hook = setup.t.post(&setup.ada, &hooks, json!({"url": nobody, "kinds": ["*"]})).await.expect(201);
    let running = setup.submit(json!({"script": "exec sleep 300", "max_duration_s": 600})).await;
    setup.until(&running, |j| j["metered_ms"].as_i64() > Some(500)).await;
    let budget = json!({"name": "all", "limit_micros": 100, "at_limit": "notify"});
    setup.t.post(&setup.ada, &format!("/orgs/{}/budgets", setup.org), budget).await.expect(201);
    loops::check_budgets(&setup.t.portal.budgets, &setup.t.portal.attempts, None).await.unwrap();
    setup.t.portal.webhooks.deliver().await.unwrap();
    setup
        .t
        .post(&setup.ada, &format!("/orgs/{}/jobs/{running}/cancel", setup.org), Value::Null)
        .await
        .expect(202);
    setup.until_ended(&running).await;
    setup.until_all_free().await;
    let outbox = setup.t.data.path().join("outbox");
    let mails: Vec<String> = std::fs::read_dir(&outbox)
        .unwrap()
        .map(|f| f.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "eml"))
        .map(|p| std::fs::read_to_string(p).unwrap())
        .collect();
    assert_eq!(mails.len(), 1, "to the one owner");
    assert!(mails[0].contains("To: lab@example.org") && mails[0].contains("Budget all: "), "{}", mails[0]);
    for _ in 0..14 {
        setup.t.clock.advance_s(6 * 3_600);
        setup.t.portal.webhooks.deliver().await.unwrap();
    }
    let ada = setup.t.sign_in("lab@example.org").await;
    let path = format!("{hooks}/{}/deliveries", hook["id"].as_str().unwrap());
    let page = setup.t.get(&ada, &path).await.expect(200);
    let delivery =
        page["items"].as_array().unwrap().iter().find(|d| d["kind"] == "budget.passed").unwrap().clone();
    assert_eq!((&delivery["state"], &delivery["tries"]), (&json!("failed"), &json!(12)), "{page}");
    assert!(delivery["last_error"].as_str().unwrap().to_lowercase().contains("refused"), "{delivery}");
}

#[tokio::test(flavor = "multi_thread")]
async fn expiring_credit_is_announced_seven_days_and_one_day_before() {
    for (engine, db, _location) in engines("warnings").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        let (receiver, url) = Receiver::open(&[]).await;
        let hook = json!({"url": url, "kinds": ["*"]});
        t.post(&ada, &format!("/orgs/{org}/webhooks"), hook).await.expect(201);
        let lend = async |micros: i64, days: i64| {
            let until = t.portal.context.now().plus_seconds(days * 86_400);
            let body = json!({"amount_micros": micros, "memo": "Trial", "expires_at": until});
            t.post(&operator, &format!("/operator/orgs/{org}/credits"), body).await.expect(201);
        };
        lend(5_000_000, 10).await;
        // This credit is used up before its expiry.
        lend(2_000_000, 9).await;
        let debit = json!({"amount_micros": 2_000_000, "memo": "Used elsewhere"});
        t.post(&operator, &format!("/operator/orgs/{org}/debits"), debit).await.expect(201);
        let notices = async || {
            for _ in 0..2 {
                t.portal.credit_expiry.tick_credit().await.unwrap();
            }
            t.portal.webhooks.deliver().await.unwrap();
            receiver.notices()
        };
        assert_eq!(notices().await.len(), 0, "{engine}");
        t.clock.advance_s(3 * 86_400);
        let first = notices().await;
        assert_eq!(first.len(), 1, "{engine}: {first:?}");
        assert_eq!(first[0]["type"], "credit.expiring", "{engine}");
        let text = |field: &str| first[0][field].as_str().unwrap();
        assert!(text("subject").starts_with("$5.00 of credit expires on 2026-11-28 "), "{engine}: {first:?}");
        assert!(text("detail").contains("$5.00 of the credit \"Trial\" remains"), "{engine}: {first:?}");
        t.clock.advance_s(6 * 86_400);
        assert_eq!(notices().await.len(), 2, "{engine}");
        t.clock.advance_s(2 * 86_400);
        assert_eq!(notices().await.len(), 2, "{engine}: it is gone now");
        let mut conn = t.portal.context.db.read().await.unwrap();
        let balance = store::ledger::balance(&mut conn.tx(), org.parse().unwrap()).await.unwrap();
        drop(conn);
        assert_eq!(balance, (0, 0), "{engine}");
        let outbox = std::fs::read_dir(t.data.path().join("outbox")).unwrap();
        let mails = outbox.filter(|f| f.as_ref().unwrap().path().extension().is_some_and(|e| e == "eml"));
        assert_eq!(mails.count(), 2, "{engine}: to the one owner");
    }
}

/// Stores readings of a job's two devices, every ten seconds, like a worker's session.
async fn append_readings(
    portal: &Portal,
    job: JobId,
    from: Timestamp,
    seconds: std::ops::Range<i64>,
    percent: f64,
) {
    for second in seconds.step_by(10) {
        let sample = |device: u32, utilization_percent: Option<f64>| Sample {
            at: from.plus_seconds(second),
            rank: 0,
            device,
            utilization_percent,
            memory_used_mib: None,
            power_watts: None,
            temperature_celsius: None,
        };
        // The second device reports no utilization.
        let samples = [sample(0, Some(percent)), sample(1, None)];
        portal.idle_watch.add_readings(job, 1, &samples).await.unwrap();
        let rows = samples.map(|sample| Recorded { sample, memory_total_mib: 81_920.0 });
        portal.recordings.append_readings(job, 1, &rows).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_hour_is_reported_with_its_cost_also_across_a_restart() {
    for (engine, db, _location) in engines("underuse").await {
        let setup = IdlePortal::on(db.clone()).await;
        let hook = json!({"url": "http://127.0.0.1:9/hook", "kinds": ["job.underused"]});
        let hooks = format!("/orgs/{}/webhooks", setup.org);
        let hook = setup.t.post(&setup.ada, &hooks, hook).await.expect(201);
        let body =
            json!({"name": "train", "offering": "h100-80gb", "command": ["true"], "max_duration_s": 36_000});
        let made = setup.t.post(&setup.ada, &format!("/orgs/{}/jobs", setup.org), body).await.expect(201);
        let path = format!("/orgs/{}/jobs/{}", setup.org, made["id"].as_str().unwrap());
        let job: JobId = made["id"].as_str().unwrap().parse().unwrap();
        let mut passes = 0;
        while setup.t.get(&setup.ada, &path).await.expect(200)["state"] == "queued" {
            setup.t.portal.scheduler.pass().await.unwrap();
            passes += 1;
            assert!(passes < 100, "{engine}: it never starts");
        }
        let placed = setup.t.get(&setup.ada, &path).await.expect(200);
        let node: NodeId = placed["devices"][0]["node"].as_str().unwrap().parse().unwrap();
        let runs = |metered_ms: i64| AttemptReport {
            metered_ms,
            ..AttemptReport::new(job, 1, AttemptPhase::Running)
        };
        let minute = setup.t.portal.context.now().micros() / 60_000_000 * 60_000_000;
        let begin = Timestamp::from_micros(minute);
        // Readings before the start of the job do not count.
        append_readings(&setup.t.portal, job, begin.plus_seconds(-20_000), 0..4_000, 1.0).await;
        setup.t.portal.attempts.apply_status(node, runs(0)).await.unwrap();
        setup.t.clock.advance_s(8_000);
        setup.t.portal.attempts.apply_status(node, runs(8_000_000)).await.unwrap();
        let idle_hours = async || -> Vec<String> {
            let events = setup.t.get(&setup.ada, &format!("{path}/events")).await.expect(200);
            let details = events["items"].as_array().unwrap().iter();
            let details = details.map(|e| e["detail"].as_str().unwrap().to_owned());
            details.filter(|d| d.starts_with("GPU utilization")).collect()
        };
        assert_eq!(idle_hours().await, [] as [String; 0], "{engine}");
        append_readings(&setup.t.portal, job, begin, 0..3_600, 12.5).await;
        assert_eq!(idle_hours().await, [] as [String; 0], "{engine}: an hour is not over");
        append_readings(&setup.t.portal, job, begin, 3_600..7_000, 12.5).await;
        let first = idle_hours().await;
        let expected = "GPU utilization was 12 % in the last hour; this hour cost $3.60.";
        assert!(first.len() == 1 && first[0].starts_with(expected), "{engine} {first:?}");
        let shown = setup.t.get(&setup.ada, &path).await.expect(200);
        let idle = json!({"since": begin, "until": begin.plus_seconds(3_600), "percent": 12, "cost_micros": 3_600_000});
        assert_eq!((&shown["underused"], &shown["state"]), (&idle, &json!("running")), "{engine} {shown}");
        let seqs = setup.t.get(&setup.ada, &format!("{path}/events")).await.expect(200);
        assert_eq!(seqs["items"].as_array().unwrap().len(), shown["generation"], "{engine}: no gaps");

        // Another portal continues: it knows the last hour and the reported hour before.
        let data = setup.t.data.path().to_owned();
        let next = TestPortal::with(db.clone(), |settings| Settings { data, ..settings });
        next.clock.advance_s(7_200);
        next.portal.webhooks.publish_job_webhooks().await.unwrap();
        append_readings(&next.portal, job, begin, 7_000..7_200, 12.5).await;
        assert_eq!(idle_hours().await.len(), 1, "{engine}");
        append_readings(&next.portal, job, begin, 7_200..7_300, 12.5).await;
        assert_eq!(idle_hours().await.len(), 2, "{engine}");
        // The devices are busy again, which ends the underuse.
        append_readings(&next.portal, job, begin, 7_300..12_000, 95.0).await;
        next.portal.webhooks.deliver().await.unwrap();
        let deliveries = format!("{hooks}/{}/deliveries", hook["id"].as_str().unwrap());
        let sent = setup.t.get(&setup.ada, &deliveries).await.expect(200);
        assert_eq!(
            (sent["items"].as_array().unwrap().len(), idle_hours().await.len()),
            (2, 2),
            "{engine} {sent}"
        );
        assert_eq!(sent["items"][0]["kind"], "job.underused", "{engine}");
        assert_eq!(
            sent["items"][0]["subject"], "Job train: GPU utilization of 12 % in the last hour",
            "{engine}"
        );
        let usage = setup.t.get(&setup.ada, &format!("/orgs/{}/usage", setup.org)).await.expect(200);
        assert_eq!(usage["underused_micros"], 7_200_000, "{engine} {usage}");
        let theirs = setup.t.get(&setup.bob, &format!("/orgs/{}/usage", setup.other)).await.expect(200);
        assert_eq!(theirs["underused_micros"], 0, "{engine}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_notice_of_a_stopped_job_has_the_reason() {
    for (engine, db, _location) in engines("stop_notices").await {
        let setup = IdlePortal::on(db).await;
        let (receiver, url) = Receiver::open(&[]).await;
        let hook = json!({"url": url, "kinds": ["job.cancelled"]});
        setup.t.post(&setup.ada, &format!("/orgs/{}/webhooks", setup.org), hook).await.expect(201);
        let attempts = &setup.t.portal.attempts;
        for (event, reason, detail) in [
            (MachineEvent::Spend, "The budget all is spent.", "The budget all is spent."),
            (MachineEvent::Halt, "Ola stopped the job: repairs.", "Ola stopped the job: repairs."),
            (MachineEvent::Cancel, "Stopped by ada.", "The process ended with exit code 143."),
        ] {
            let id = submit(&setup, json!({})).await;
            schedule_all(&setup).await;
            let placed = job(&setup, &id).await;
            let node: NodeId = placed["devices"][0]["node"].as_str().unwrap().parse().unwrap();
            let id: JobId = id.parse().unwrap();
            let runs = AttemptReport::new(id, 1, AttemptPhase::Running);
            attempts.apply_status(node, runs).await.unwrap();
            assert!(attempts.apply_event(id, None, event, reason.to_owned()).await.unwrap(), "{engine}");
            let ended = AttemptReport {
                exit_code: Some(143),
                log_bytes: Some(0),
                ..AttemptReport::new(id, 1, AttemptPhase::Clean)
            };
            attempts.apply_status(node, ended).await.unwrap();
            setup.t.portal.webhooks.deliver().await.unwrap();
            let notice = receiver.notices().pop().unwrap();
            assert_eq!((&notice["data"]["job"], &notice["detail"]), (&json!(id), &json!(detail)), "{engine}");
        }
    }
}

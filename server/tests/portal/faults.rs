//! Tests of the portal as a process with a kill at every fault point of the money paths: after the restart
//! and a repeated request each change exists exactly once.

use std::collections::BTreeSet;
use std::path::Path;

use crate::common::TestPortal;
use crate::idle_portal::{DAY, HOUR, IdlePortal};
use crate::prepared_data::{PreparedData, serve_on_free_port, wait_for_kill};
use crate::process::{PortalProcess, call, eventually, free_address, request, serve_with, worker};
use crate::promises::FAULTS as PROMISE;
use crate::service_loop::FAULTS as REPLICA;
use crate::stripe::{FakeStripe, KEY, SECRET};
use berth_foundation::Settings;
use berth_foundation::clock::{Clock, SystemClock};
use berth_foundation::fault;
use berth_store::Db;
use berth_types::time::Timestamp;
use serde_json::{Value, json};

const TICK: [&str; 5] = [
    "reservation.tick.due",
    "reservation.start.recording",
    "reservation.end.recording",
    "reservation.no_show.recording",
    "reservation.tick.recorded",
];
const CANCEL: [&str; 3] =
    ["reservation.cancel.begun", "reservation.cancel.recording", "reservation.cancel.recorded"];
const BILL: [&str; 2] = ["invoice.bill.numbered", "invoice.bill.recorded"];
const PAY: [&str; 2] = ["invoice.pay.recording", "invoice.pay.recorded"];
const CONFIRM: [&str; 4] = [
    "reservation.confirm.begun",
    "reservation.confirm.booked",
    "reservation.confirm.recording",
    "reservation.confirm.recorded",
];
const EXTEND: [&str; 3] =
    ["reservation.extend.booked", "reservation.extend.recording", "reservation.extend.recorded"];
const JOB: [&str; 2] = ["job.end.recording", "job.end.recorded"];
const RETENTION: [&str; 4] = [
    "retention.remove.due",
    "retention.remove.recordings",
    "retention.remove.recording",
    "retention.remove.recorded",
];
const PAYMENT: [&str; 3] = ["payment.event.stored", "payment.event.applying", "payment.event.applied"];

#[test]
fn every_fault_point_is_tested() {
    let tried =
        [&TICK[..], &CANCEL, &BILL, &PAY, &CONFIRM, &EXTEND, &JOB, &PAYMENT, &RETENTION, &REPLICA, &PROMISE]
            .concat();
    let tried: BTreeSet<&str> = tried.into_iter().collect();
    assert_eq!(tried, fault::POINTS.iter().copied().collect::<BTreeSet<&str>>());
}

/// Prepares reservations in every state, and usage of an old month without an invoice.
async fn prepare_reservations(dir: &Path) -> (PreparedData, PreparedIds) {
    // The key is next to the database, so that portals on copies of both can read sealed values.
    let secrets_key = Some(dir.join("secrets.key"));
    let db = Db::sqlite(&dir.join("berth.db")).await.unwrap();
    let t = TestPortal::with(db, |settings| Settings { secrets_key, ..settings });
    PreparedData::set_clock(&t, 70 * DAY).await;
    let mut setup = IdlePortal::with_portal(t).await;
    let (from, until) = (setup.at(60), setup.at(60 + HOUR));
    setup.reserve(1, 1, from, until).await;
    let theirs = format!("/orgs/{}", setup.other);
    let quote = setup
        .t
        .post(&setup.bob, &format!("{theirs}/quotes"), setup.quote_request(1, 1, from, until))
        .await
        .expect(201);
    let body = json!({"quote": quote["id"], "name": "theirs"});
    setup.t.post(&setup.bob, &format!("{theirs}/reservations"), body).await.expect(201);
    setup.let_time_pass(61).await;
    setup.let_time_pass(HOUR).await;
    let month = setup.at(0).to_string()[..7].to_owned();

    let to_now_s = SystemClock.now().millis_since(setup.t.portal.context.now()) / 1_000;
    setup.let_time_pass(to_now_s - 300).await;
    let hook = json!({"url": "http://127.0.0.1:9/", "kinds": ["*"]});
    setup.t.post(&setup.ada, &format!("/orgs/{}/webhooks", setup.org), hook).await.expect(201);
    let id = |r: Value| r["id"].as_str().unwrap().to_owned();
    let (from, until) = (setup.at(2), setup.at(63));
    let over = id(setup.reserve(1, 1, from, until).await);
    setup.let_time_pass(5).await;
    setup.set_policy(json!({"no_show_after_s": 60})).await;
    let (from, until) = (setup.at(1), setup.at(2 * HOUR));
    let unused = id(setup.reserve(1, 1, from, until).await);
    // It begins before the portal stops, so that its time without a job counts.
    setup.let_time_pass(5).await;
    setup.set_policy(json!({})).await;
    let (from, until) = (setup.at(1), setup.at(2 * HOUR));
    let begins = id(setup.reserve(1, 1, from, until).await);
    let (from, until) = (setup.at(2 * DAY), setup.at(2 * DAY + HOUR));
    let later = id(setup.reserve(1, 1, from, until).await);
    let limit = json!({"credit_limit_micros": 1_000_000});
    let path = format!("/operator/orgs/{}/credit-limit", setup.org);
    setup.t.call(&setup.operator, "PUT", &path, limit).await.expect(200);
    let prepared = PreparedData::create(&setup.t, dir, &setup.org, &setup.ada, &setup.operator).await;
    // The nodes stay known during the test.
    setup.t.clock.advance_s(HOUR);
    setup.report(1).await;
    setup.report(2).await;
    (prepared, PreparedIds { over, unused, begins, later, month })
}

/// The ids of the prepared objects.
#[derive(serde::Serialize, serde::Deserialize)]
struct PreparedIds {
    /// An active reservation after its end.
    over: String,
    /// An unused reservation after its start.
    unused: String,
    /// A reservation whose start the portal missed.
    begins: String,
    /// A reservation that starts in two days.
    later: String,
    /// The month with usage of both organizations.
    month: String,
}

impl PreparedIds {
    fn write(&self, dir: &Path) {
        std::fs::write(dir.join("plan.json"), serde_json::to_vec(self).unwrap()).unwrap();
    }

    fn read(prepared: &PreparedData) -> Self {
        serde_json::from_slice(&std::fs::read(prepared.source.join("plan.json")).unwrap()).unwrap()
    }
}

fn tick_once(prepared: &PreparedData, data: &Path, point: &'static str) {
    let ids = PreparedIds::read(prepared);
    wait_for_kill(&mut serve_on_free_port(data, Some(point)), point);
    let served = serve_on_free_port(data, None);
    let state = |id: &str| prepared.get(&served, &prepared.path(&format!("reservations/{id}")));
    eventually(|| {
        let states: Vec<Value> =
            [&ids.begins, &ids.over, &ids.unused].map(|id| state(id)["state"].clone()).to_vec();
        let deliveries = (
            prepared.delivery_count(&served, "reservation.started"),
            prepared.delivery_count(&served, "reservation.ended"),
        );
        let done = states == ["active", "ended", "ended"] && deliveries.0 >= 4 && deliveries.1 >= 3;
        if done { Ok(()) } else { Err(format!("{states:?} {deliveries:?}")) }
    });
    let deliveries = |kind: &str| prepared.delivery_count(&served, kind);
    assert_eq!((deliveries("reservation.started"), deliveries("reservation.ended")), (4, 3), "{point}");
    prepared.assert_booked_once(&served, &ids.begins);
    prepared.assert_booked_once(&served, &ids.later);
    for id in [&ids.over, &ids.unused] {
        let r = state(id);
        assert_eq!(r["held_micros"], 0, "{point} {r}");
        let (hold, usage) = prepared.hold_and_usage(&served, id, 0);
        assert_eq!(
            (json!(hold), json!(usage)),
            (r["total_micros"].clone(), r["posted_micros"].clone()),
            "{r}"
        );
        assert!(usage > 0, "{point} {r}");
    }
    assert_eq!(state(&ids.over)["posted_micros"], state(&ids.over)["total_micros"], "{point}");
    prepared.assert_books_balance(&served);
}

fn cancel_once(prepared: &PreparedData, data: &Path, point: &'static str) {
    let id = PreparedIds::read(prepared).later;
    let path = prepared.path(&format!("reservations/{id}/cancel"));
    let mut first = serve_on_free_port(data, Some(point));
    assert_eq!(prepared.post_with_key(&first, &prepared.token, &path, &Value::Null), None, "{point}");
    wait_for_kill(&mut first, point);
    let served = serve_on_free_port(data, None);
    for _ in 0..2 {
        let (status, r) = prepared.post_with_key(&served, &prepared.token, &path, &Value::Null).unwrap();
        assert_eq!((status, &r["state"], &r["held_micros"]), (200, &json!("cancelled"), &json!(0)), "{r}");
    }
    let (hold, usage) = prepared.hold_and_usage(&served, &id, 0);
    assert!(hold > 0 && usage == 0, "{point}: {hold} {usage}");
    prepared.assert_books_balance(&served);
}

/// Returns the invoices of the prepared month: one for each organization, with numbers without a gap.
fn billed(prepared: &PreparedData, served: &PortalProcess) -> Vec<Value> {
    let path = "/operator/invoices?limit=200";
    let (_, page) = call(&served.address, "GET", path, &prepared.operator, &Value::Null).unwrap();
    let invoices = page["items"].as_array().unwrap().clone();
    let mut numbers: Vec<i64> = invoices.iter().map(|i| i["number"].as_i64().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2], "{page}");
    let organizations: BTreeSet<&str> = invoices.iter().map(|i| i["org"].as_str().unwrap()).collect();
    assert_eq!(organizations.len(), 2, "{page}");
    invoices
}

fn bill_once(prepared: &PreparedData, data: &Path, point: &'static str) {
    let body = json!({"month": PreparedIds::read(prepared).month});
    let mut first = serve_on_free_port(data, Some(point));
    assert_eq!(
        prepared.post_with_key(&first, &prepared.operator, "/operator/invoices", &body),
        None,
        "{point}"
    );
    wait_for_kill(&mut first, point);
    let served = serve_on_free_port(data, None);
    let again = prepared.post_with_key(&served, &prepared.operator, "/operator/invoices", &body).unwrap();
    assert_eq!(again.0, 201, "{point} {again:?}");
    billed(prepared, &served);
    let deliveries = || prepared.delivery_count(&served, "invoice.issued");
    eventually(|| if deliveries() > 0 { Ok(()) } else { Err("no delivery".to_owned()) });
    assert_eq!(deliveries(), 1, "{point}");
    prepared.assert_books_balance(&served);
}

fn pay_once(prepared: &PreparedData, data: &Path, point: &'static str) {
    let body = json!({"month": PreparedIds::read(prepared).month});
    let mut first = serve_on_free_port(data, Some(point));
    let made = call(&first.address, "POST", "/operator/invoices", &prepared.operator, &body).unwrap();
    assert_eq!(made.0, 201, "{point} {made:?}");
    let open = billed(prepared, &first).into_iter().find(|i| i["state"] == "open").unwrap();
    let path = format!("/operator/invoices/{}/paid", open["id"].as_str().unwrap());
    assert_eq!(prepared.post_with_key(&first, &prepared.operator, &path, &Value::Null), None, "{point}");
    wait_for_kill(&mut first, point);
    let served = serve_on_free_port(data, None);
    for _ in 0..2 {
        let (status, invoice) =
            prepared.post_with_key(&served, &prepared.operator, &path, &Value::Null).unwrap();
        assert_eq!((status, &invoice["state"]), (200, &json!("paid")), "{point} {invoice}");
    }
    let rows = prepared.items(&served, &prepared.path("transfers?limit=200"));
    assert_eq!(rows.iter().filter(|r| r["source"] == "invoice").count(), 1, "{point}");
    billed(prepared, &served);
    prepared.assert_books_balance(&served);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_repeats_no_reservation_change_and_no_invoice() {
    let dir = tempfile::tempdir().unwrap();
    let (prepared, ids) = prepare_reservations(dir.path()).await;
    ids.write(dir.path());
    let rest = async {
        prepared.clone().run_at_each(&CANCEL, cancel_once).await;
        prepared.clone().run_at_each(&BILL, bill_once).await;
        prepared.clone().run_at_each(&PAY, pay_once).await;
    };
    tokio::join!(prepared.clone().run_at_each(&TICK, tick_once), rest);
}

/// A portal process with a real worker and one board.
struct PortalWithWorker {
    served: PortalProcess,
    worker_address: String,
    _worker: crate::process::ChildGuard,
}

impl PortalWithWorker {
    fn open(prepared: &PreparedData, data: &Path, point: &str) -> Self {
        let worker_address = free_address();
        let served = serve_with(data, &worker_address, &[], Some(point));
        let join = std::fs::read_to_string(prepared.source.join("join")).unwrap();
        let _worker = worker(&data.join("worker"), &worker_address, &join);
        Self { served, worker_address, _worker }
    }

    /// Restarts the portal after its kill.
    fn restart(&mut self, data: &Path, point: &str) {
        wait_for_kill(&mut self.served, point);
        self.served = serve_with(data, &self.worker_address, &[], None);
    }

    /// Waits for the worker; returns a quote for its board in two days.
    fn quote(&self, prepared: &PreparedData) -> Value {
        // The window has whole seconds, so that its price is exact.
        let second = SystemClock.now().micros().div_euclid(1_000_000) * 1_000_000;
        let at = |hours: i64| Timestamp::from_micros(second).plus_seconds(2 * DAY + hours * HOUR);
        let body = json!({"offering": "h100-80gb", "nodes": 1, "gpus_per_node": 1, "starts_at": at(0), "ends_at": at(1)});
        eventually(|| {
            let path = prepared.path("quotes");
            let (status, quote) = call(&self.served.address, "POST", &path, &prepared.token, &body).unwrap();
            if status == 201 && quote["feasible"] == true { Ok(quote) } else { Err(quote.to_string()) }
        })
    }

    /// Repeats the request until the worker is connected and its board is free.
    fn post_with_key(&self, prepared: &PreparedData, path: &str, body: &Value) -> (u16, Value) {
        eventually(|| {
            let (status, answer) = prepared.post_with_key(&self.served, &prepared.token, path, body).unwrap();
            match answer["code"].as_str() {
                Some("reservation.taken") => Err(answer.to_string()),
                _ => Ok((status, answer)),
            }
        })
    }
}

fn confirm_once(prepared: &PreparedData, data: &Path, point: &'static str) {
    let mut running_portal = PortalWithWorker::open(prepared, data, point);
    let body = json!({"quote": running_portal.quote(prepared)["id"], "name": "training week"});
    let path = prepared.path("reservations");
    assert_eq!(
        prepared.post_with_key(&running_portal.served, &prepared.token, &path, &body),
        None,
        "{point}"
    );
    running_portal.restart(data, point);
    let (status, made) = running_portal.post_with_key(prepared, &path, &body);
    assert_eq!(status, 201, "{point} {made}");
    assert_eq!(running_portal.post_with_key(prepared, &path, &body), (201, made.clone()), "{point}");
    assert_eq!(prepared.items(&running_portal.served, &path).len(), 1, "{point}");
    let r = prepared.assert_booked_once(&running_portal.served, made["items"][0]["id"].as_str().unwrap());
    assert_eq!((&r["state"], &r["total_micros"]), (&json!("scheduled"), &json!(3_600_000)), "{point}");
    prepared.assert_books_balance(&running_portal.served);
}

fn extend_once(prepared: &PreparedData, data: &Path, point: &'static str) {
    let mut running_portal = PortalWithWorker::open(prepared, data, point);
    let body = json!({"quote": running_portal.quote(prepared)["id"], "name": "training week"});
    let address = running_portal.served.address.clone();
    let made = call(&address, "POST", &prepared.path("reservations"), &prepared.token, &body).unwrap();
    assert_eq!(made.0, 201, "{point} {made:?}");
    let r = &made.1["items"][0];
    let ends_at: Timestamp = r["ends_at"].as_str().unwrap().parse().unwrap();
    let id = r["id"].as_str().unwrap();
    let path = prepared.path(&format!("reservations/{id}/extend"));
    let body = json!({"ends_at": ends_at.plus_seconds(HOUR)});
    assert_eq!(
        prepared.post_with_key(&running_portal.served, &prepared.token, &path, &body),
        None,
        "{point}"
    );
    running_portal.restart(data, point);
    let (status, longer) = running_portal.post_with_key(prepared, &path, &body);
    assert_eq!(status, 200, "{point} {longer}");
    assert_eq!(running_portal.post_with_key(prepared, &path, &body).0, 200, "{point}");
    let r = prepared.assert_booked_once(&running_portal.served, id);
    assert_eq!(r["total_micros"], 7_200_000, "{point} {r}");
    prepared.assert_books_balance(&running_portal.served);
}

fn charge_once(prepared: &PreparedData, data: &Path, point: &'static str) {
    let mut running_portal = PortalWithWorker::open(prepared, data, point);
    let path = prepared.path("jobs");
    let (status, job) = prepared
        .post_with_key(&running_portal.served, &prepared.token, &path, &crate::common::job())
        .unwrap();
    assert_eq!(status, 201, "{point} {job}");
    running_portal.restart(data, point);
    let again = prepared
        .post_with_key(&running_portal.served, &prepared.token, &path, &crate::common::job())
        .unwrap();
    assert_eq!((again.0, &again.1["id"]), (201, &job["id"]), "{point}");
    let id = job["id"].as_str().unwrap();
    let done = eventually(|| {
        let now = prepared.get(&running_portal.served, &prepared.path(&format!("jobs/{id}")));
        if now["state"] == "succeeded" { Ok(now) } else { Err(now.to_string()) }
    });
    let (hold, usage) = prepared.hold_and_usage(&running_portal.served, id, 0);
    assert_eq!((hold, json!(usage)), (60_000, done["metered_ms"].clone()), "{point} {done}");
    assert_eq!(prepared.items(&running_portal.served, &path).len(), 1, "{point}");
    prepared.assert_books_balance(&running_portal.served);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_repeats_no_confirmation_extension_or_job_charge() {
    let dir = tempfile::tempdir().unwrap();
    // One data directory is used, so that the join token has the fingerprint of the started portal.
    let data = dir.path().to_owned();
    let db = Db::sqlite(&data.join("berth.db")).await.unwrap();
    let t = TestPortal::with(db, |settings| Settings { data, ..settings });
    PreparedData::set_clock(&t, 10).await;
    let operator = t.operator().await;
    let (ada, org) = t.tenant("lab").await;
    t.add_price_and_credit(&operator, &org, 1_000_000_000).await;
    let price = json!({"offering": "h100-80gb", "per_hour_micros": 3_600_000});
    t.post(&operator, "/operator/prices", price).await.expect(201);
    let join = t.post(&operator, "/operator/join-tokens", json!({"approve": true})).await.expect(201);
    std::fs::write(dir.path().join("join"), join["secret"].as_str().unwrap()).unwrap();
    let prepared = PreparedData::create(&t, dir.path(), &org, &ada, &operator).await;
    drop(t);
    prepared.clone().run_at_each(&CONFIRM, confirm_once).await;
    prepared.clone().run_at_each(&EXTEND, extend_once).await;
    prepared.run_at_each(&JOB, charge_once).await;
}

fn remove_once(prepared: &PreparedData, data: &Path, point: &'static str) {
    let id = std::fs::read_to_string(prepared.source.join("job")).unwrap();
    let logs = data.join("logs").join(&id);
    std::fs::create_dir_all(&logs).unwrap();
    std::fs::write(logs.join("1-0.log"), b"0123456789").unwrap();
    let args = ["--keep-ended-jobs-days", "1"].map(str::to_owned);
    let mut first = serve_with(data, "127.0.0.1:0", &args, Some(point));
    wait_for_kill(&mut first, point);
    let served = serve_with(data, "127.0.0.1:0", &args, None);
    eventually(|| {
        let job = prepared.get(&served, &prepared.path(&format!("jobs/{id}")));
        if job["removed_at"].is_string() { Ok(()) } else { Err(job.to_string()) }
    });
    assert!(!logs.exists(), "{point}");
    let events = prepared.items(&served, &prepared.path("audit-events?limit=200"));
    let removals = events.iter().filter(|event| event["action"] == "retention.removed").count();
    assert_eq!(removals, 1, "{point} {events:?}");
    let storage = prepared.get(&served, &prepared.path("storage"));
    assert_eq!((&storage["log_bytes"], &storage["submissions"]), (&json!(0), &json!(0)), "{point}");
    prepared.assert_books_balance(&served);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_removes_no_old_job_twice() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().to_owned();
    let db = Db::sqlite(&data.join("berth.db")).await.unwrap();
    let t = TestPortal::with(db, |settings| Settings { data, ..settings });
    PreparedData::set_clock(&t, 3 * DAY).await;
    let operator = t.operator().await;
    let (ada, org) = t.tenant("lab").await;
    t.add_price_and_credit(&operator, &org, 1_000_000_000).await;
    let job = t.post(&ada, &format!("/orgs/{org}/jobs"), crate::common::job()).await.expect(201);
    let id = job["id"].as_str().unwrap();
    t.post(&ada, &format!("/orgs/{org}/jobs/{id}/cancel"), Value::Null).await.expect(202);
    std::fs::write(dir.path().join("job"), id).unwrap();
    let prepared = PreparedData::create(&t, dir.path(), &org, &ada, &operator).await;
    drop(t);
    prepared.run_at_each(&RETENTION, remove_once).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_credits_no_stripe_payment_twice() {
    let dir = tempfile::tempdir().unwrap();
    let (stripe, url) = FakeStripe::open().await;
    let db = Db::sqlite(&dir.path().join("berth.db")).await.unwrap();
    let t = TestPortal::with(db, |settings| Settings {
        stripe_key: Some(KEY.to_owned()),
        stripe_url: url.clone(),
        stripe_webhook_secrets: vec![SECRET.to_owned()],
        ..settings
    });
    PreparedData::set_clock(&t, 10).await;
    let operator = t.operator().await;
    let (ada, org) = t.tenant("lab").await;
    let top_up = json!({"amount_micros": 25_000_000, "save_card": false});
    let here = t.post(&ada, &format!("/orgs/{org}/top-ups"), top_up).await.expect(201);
    let intent = stripe.pay(here["url"].as_str().unwrap());
    let prepared = PreparedData::create(&t, dir.path(), &org, &ada, &operator).await;
    drop(t);
    let at_s = SystemClock.now().micros() / 1_000_000;
    let (body, signature) = stripe.event("payment_intent.succeeded", &intent, at_s);
    let secrets = ["--stripe-key", KEY, "--stripe-url", url.as_str(), "--stripe-webhook-secrets", SECRET];
    let args: Vec<String> = secrets.iter().map(|a| (*a).to_owned()).collect();
    let mut running = Vec::new();
    for point in PAYMENT {
        let (prepared, data) = (prepared.clone(), prepared.copy().await);
        let (args, body, signature) = (args.clone(), body.clone(), signature.clone());
        running.push(tokio::task::spawn_blocking(move || {
            let send_event = |served: &PortalProcess| {
                let headers = [("Stripe-Signature", signature.as_str())];
                request(&served.address, "POST", "/stripe/events", &headers, &body).map(|(status, _)| status)
            };
            let mut first = serve_with(data.path(), "127.0.0.1:0", &args, Some(point));
            // The kill is before or after the answer.
            assert!(send_event(&first).is_none_or(|status| status == 200), "{point}");
            wait_for_kill(&mut first, point);
            let served = serve_with(data.path(), "127.0.0.1:0", &args, None);
            // Stripe repeats an event without an answer, and sometimes an answered one.
            assert_eq!(send_event(&served), Some(200), "{point}");
            eventually(|| {
                let balance = prepared.get(&served, &prepared.path("balance"));
                if balance["posted_micros"] == 25_000_000 { Ok(()) } else { Err(balance.to_string()) }
            });
            assert_eq!(send_event(&served), Some(200), "{point}");
            let rows = prepared.items(&served, &prepared.path("transfers?limit=200"));
            assert_eq!(rows.len(), 1, "{point} {rows:?}");
            prepared.assert_books_balance(&served);
        }));
    }
    for done in running {
        done.await.unwrap();
    }
}

//! The portal as a process, killed at every step of what moves money: after the next start, and the
//! client's repeated request, everything is there once.

use std::collections::BTreeSet;
use std::path::Path;

use crate::common::TestPortal;
use crate::harbour::{DAY, HOUR, Harbour};
use crate::process::{Served, call, eventually, free_address, request, serve_with, worker};
use crate::stripe::{FakeStripe, KEY, SECRET};
use crate::world::{World, dies, free};
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
const PAYMENT: [&str; 3] = ["payment.event.stored", "payment.event.applying", "payment.event.applied"];

#[test]
fn every_point_is_tried() {
    let tried = [&TICK[..], &CANCEL, &BILL, &PAY, &CONFIRM, &EXTEND, &JOB, &PAYMENT].concat();
    let tried: BTreeSet<&str> = tried.into_iter().collect();
    assert_eq!(tried, fault::POINTS.iter().copied().collect::<BTreeSet<&str>>());
}

/// Reservations in every state, and use of long ago that nobody has billed.
async fn prepared(dir: &Path) -> (World, Plan) {
    // Beside the database, so that the portals on copies of both can read what this one sealed.
    let secrets_key = Some(dir.join("secrets.key"));
    let db = Db::sqlite(&dir.join("berth.db")).await.unwrap();
    let t = TestPortal::with(db, |settings| Settings { secrets_key, ..settings });
    World::clock(&t, 70 * DAY).await;
    let mut h = Harbour::of(t).await;
    let (from, until) = (h.at(60), h.at(60 + HOUR));
    h.reserve(1, 1, from, until).await;
    let theirs = format!("/orgs/{}", h.other);
    let quote = h.t.post(&h.bob, &format!("{theirs}/quotes"), h.ask(1, 1, from, until)).await.expect(201);
    let body = json!({"quote": quote["id"], "name": "theirs"});
    h.t.post(&h.bob, &format!("{theirs}/reservations"), body).await.expect(201);
    h.pass(61).await;
    h.pass(HOUR).await;
    let month = h.at(0).to_string()[..7].to_owned();

    let to_now_s = SystemClock.now().millis_since(h.t.portal.context.now()) / 1_000;
    h.pass(to_now_s - 300).await;
    let hook = json!({"url": "http://127.0.0.1:9/", "kinds": ["*"]});
    h.t.post(&h.ada, &format!("/orgs/{}/webhooks", h.org), hook).await.expect(201);
    let id = |r: Value| r["id"].as_str().unwrap().to_owned();
    let (from, until) = (h.at(2), h.at(63));
    let over = id(h.reserve(1, 1, from, until).await);
    h.pass(5).await;
    h.policy(json!({"no_show_after_s": 60})).await;
    let (from, until) = (h.at(1), h.at(2 * HOUR));
    let unused = id(h.reserve(1, 1, from, until).await);
    h.policy(json!({})).await;
    let begins = id(h.reserve(1, 1, from, until).await);
    let (from, until) = (h.at(2 * DAY), h.at(2 * DAY + HOUR));
    let later = id(h.reserve(1, 1, from, until).await);
    let limit = json!({"credit_limit_micros": 1_000_000});
    let path = format!("/operator/orgs/{}/credit-limit", h.org);
    h.t.call(&h.operator, "PUT", &path, limit).await.expect(200);
    let world = World::of(&h.t, dir, &h.org, &h.ada, &h.operator).await;
    // Nobody takes the nodes for lost while the test runs.
    h.t.clock.advance_s(HOUR);
    h.report(1).await;
    h.report(2).await;
    (world, Plan { over, unused, begins, later, month })
}

/// What was prepared.
#[derive(serde::Serialize, serde::Deserialize)]
struct Plan {
    /// Runs, and its end has passed.
    over: String,
    /// Has begun, and nobody used it.
    unused: String,
    /// Has begun a moment ago.
    begins: String,
    /// Begins in two days.
    later: String,
    /// In which both organizations used something.
    month: String,
}

impl Plan {
    fn keep(&self, dir: &Path) {
        std::fs::write(dir.join("plan.json"), serde_json::to_vec(self).unwrap()).unwrap();
    }

    fn of(world: &World) -> Self {
        serde_json::from_slice(&std::fs::read(world.source.join("plan.json")).unwrap()).unwrap()
    }
}

fn time_goes_on(world: &World, data: &Path, point: &'static str) {
    let plan = Plan::of(world);
    dies(&mut free(data, Some(point)), point);
    let served = free(data, None);
    let state = |id: &str| world.get(&served, &world.path(&format!("reservations/{id}")));
    eventually(|| {
        let states: Vec<Value> =
            [&plan.begins, &plan.over, &plan.unused].map(|id| state(id)["state"].clone()).to_vec();
        let told = (world.told(&served, "reservation.started"), world.told(&served, "reservation.ended"));
        let done = states == ["active", "ended", "ended"] && told.0 >= 4 && told.1 >= 3;
        if done { Ok(()) } else { Err(format!("{states:?} {told:?}")) }
    });
    let told = |kind: &str| world.told(&served, kind);
    assert_eq!((told("reservation.started"), told("reservation.ended")), (4, 3), "{point}");
    world.stands_once(&served, &plan.begins);
    world.stands_once(&served, &plan.later);
    for id in [&plan.over, &plan.unused] {
        let r = state(id);
        assert_eq!(r["held_micros"], 0, "{point} {r}");
        let (hold, usage) = world.money_of(&served, id, 0);
        assert_eq!(
            (json!(hold), json!(usage)),
            (r["total_micros"].clone(), r["posted_micros"].clone()),
            "{r}"
        );
        assert!(usage > 0, "{point} {r}");
    }
    assert_eq!(state(&plan.over)["posted_micros"], state(&plan.over)["total_micros"], "{point}");
    world.books_are_right(&served);
}

fn is_cancelled(world: &World, data: &Path, point: &'static str) {
    let id = Plan::of(world).later;
    let path = world.path(&format!("reservations/{id}/cancel"));
    let mut first = free(data, Some(point));
    assert_eq!(world.keyed(&first, &world.token, &path, &Value::Null), None, "{point}");
    dies(&mut first, point);
    let served = free(data, None);
    for _ in 0..2 {
        let (status, r) = world.keyed(&served, &world.token, &path, &Value::Null).unwrap();
        assert_eq!((status, &r["state"], &r["held_micros"]), (200, &json!("cancelled"), &json!(0)), "{r}");
    }
    let (hold, usage) = world.money_of(&served, &id, 0);
    assert!(hold > 0 && usage == 0, "{point}: {hold} {usage}");
    world.books_are_right(&served);
}

/// The invoices of the prepared month: one for each organization, numbered without a gap.
fn billed(world: &World, served: &Served) -> Vec<Value> {
    let path = "/operator/invoices?limit=200";
    let (_, page) = call(&served.address, "GET", path, &world.operator, &Value::Null).unwrap();
    let invoices = page["items"].as_array().unwrap().clone();
    let mut numbers: Vec<i64> = invoices.iter().map(|i| i["number"].as_i64().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2], "{page}");
    let of: BTreeSet<&str> = invoices.iter().map(|i| i["org"].as_str().unwrap()).collect();
    assert_eq!(of.len(), 2, "{page}");
    invoices
}

fn is_billed(world: &World, data: &Path, point: &'static str) {
    let body = json!({"month": Plan::of(world).month});
    let mut first = free(data, Some(point));
    assert_eq!(world.keyed(&first, &world.operator, "/operator/invoices", &body), None, "{point}");
    dies(&mut first, point);
    let served = free(data, None);
    let again = world.keyed(&served, &world.operator, "/operator/invoices", &body).unwrap();
    assert_eq!(again.0, 201, "{point} {again:?}");
    billed(world, &served);
    let told = || world.told(&served, "invoice.issued");
    eventually(|| if told() > 0 { Ok(()) } else { Err("no delivery".to_owned()) });
    assert_eq!(told(), 1, "{point}");
    world.books_are_right(&served);
}

fn is_paid(world: &World, data: &Path, point: &'static str) {
    let body = json!({"month": Plan::of(world).month});
    let mut first = free(data, Some(point));
    let made = call(&first.address, "POST", "/operator/invoices", &world.operator, &body).unwrap();
    assert_eq!(made.0, 201, "{point} {made:?}");
    let open = billed(world, &first).into_iter().find(|i| i["state"] == "open").unwrap();
    let path = format!("/operator/invoices/{}/paid", open["id"].as_str().unwrap());
    assert_eq!(world.keyed(&first, &world.operator, &path, &Value::Null), None, "{point}");
    dies(&mut first, point);
    let served = free(data, None);
    for _ in 0..2 {
        let (status, invoice) = world.keyed(&served, &world.operator, &path, &Value::Null).unwrap();
        assert_eq!((status, &invoice["state"]), (200, &json!("paid")), "{point} {invoice}");
    }
    let rows = world.items(&served, &world.path("transfers?limit=200"));
    assert_eq!(rows.iter().filter(|r| r["source"] == "invoice").count(), 1, "{point}");
    billed(world, &served);
    world.books_are_right(&served);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_time_does_is_done_once() {
    let dir = tempfile::tempdir().unwrap();
    let (world, plan) = prepared(dir.path()).await;
    plan.keep(dir.path());
    let rest = async {
        world.clone().at_each(&CANCEL, is_cancelled).await;
        world.clone().at_each(&BILL, is_billed).await;
        world.clone().at_each(&PAY, is_paid).await;
    };
    tokio::join!(world.clone().at_each(&TICK, time_goes_on), rest);
}

/// A portal whose one board a real worker has.
struct Docked {
    served: Served,
    worker_address: String,
    _worker: crate::process::Ending,
}

impl Docked {
    fn open(world: &World, data: &Path, point: &str) -> Self {
        let worker_address = free_address();
        let served = serve_with(data, &worker_address, &[], Some(point));
        let join = std::fs::read_to_string(world.source.join("join")).unwrap();
        let _worker = worker(&data.join("worker"), &worker_address, &join);
        Self { served, worker_address, _worker }
    }

    /// Starts it again after it has killed itself.
    fn again(&mut self, data: &Path, point: &str) {
        dies(&mut self.served, point);
        self.served = serve_with(data, &self.worker_address, &[], None);
    }

    /// A quote for the board in two days, once the worker is there.
    fn quote(&self, world: &World) -> Value {
        // Whole seconds, so that an hour costs what an hour costs.
        let second = SystemClock.now().micros().div_euclid(1_000_000) * 1_000_000;
        let at = |hours: i64| Timestamp::from_micros(second).plus_seconds(2 * DAY + hours * HOUR);
        let body = json!({"offering": "h100-80gb", "nodes": 1, "gpus_per_node": 1, "starts_at": at(0), "ends_at": at(1)});
        eventually(|| {
            let path = world.path("quotes");
            let (status, quote) = call(&self.served.address, "POST", &path, &world.token, &body).unwrap();
            if status == 201 && quote["feasible"] == true { Ok(quote) } else { Err(quote.to_string()) }
        })
    }

    /// Asks until the worker is back, and there is room again.
    fn keyed(&self, world: &World, path: &str, body: &Value) -> (u16, Value) {
        eventually(|| {
            let (status, answer) = world.keyed(&self.served, &world.token, path, body).unwrap();
            match answer["code"].as_str() {
                Some("reservation.taken") => Err(answer.to_string()),
                _ => Ok((status, answer)),
            }
        })
    }
}

fn is_confirmed(world: &World, data: &Path, point: &'static str) {
    let mut docked = Docked::open(world, data, point);
    let body = json!({"quote": docked.quote(world)["id"], "name": "training week"});
    let path = world.path("reservations");
    assert_eq!(world.keyed(&docked.served, &world.token, &path, &body), None, "{point}");
    docked.again(data, point);
    let (status, made) = docked.keyed(world, &path, &body);
    assert_eq!(status, 201, "{point} {made}");
    assert_eq!(docked.keyed(world, &path, &body), (201, made.clone()), "{point}");
    assert_eq!(world.items(&docked.served, &path).len(), 1, "{point}");
    let r = world.stands_once(&docked.served, made["items"][0]["id"].as_str().unwrap());
    assert_eq!((&r["state"], &r["total_micros"]), (&json!("scheduled"), &json!(3_600_000)), "{point}");
    world.books_are_right(&docked.served);
}

fn is_extended(world: &World, data: &Path, point: &'static str) {
    let mut docked = Docked::open(world, data, point);
    let body = json!({"quote": docked.quote(world)["id"], "name": "training week"});
    let address = docked.served.address.clone();
    let made = call(&address, "POST", &world.path("reservations"), &world.token, &body).unwrap();
    assert_eq!(made.0, 201, "{point} {made:?}");
    let r = &made.1["items"][0];
    let ends_at: Timestamp = r["ends_at"].as_str().unwrap().parse().unwrap();
    let id = r["id"].as_str().unwrap();
    let path = world.path(&format!("reservations/{id}/extend"));
    let body = json!({"ends_at": ends_at.plus_seconds(HOUR)});
    assert_eq!(world.keyed(&docked.served, &world.token, &path, &body), None, "{point}");
    docked.again(data, point);
    let (status, longer) = docked.keyed(world, &path, &body);
    assert_eq!(status, 200, "{point} {longer}");
    assert_eq!(docked.keyed(world, &path, &body).0, 200, "{point}");
    let r = world.stands_once(&docked.served, id);
    assert_eq!(r["total_micros"], 7_200_000, "{point} {r}");
    world.books_are_right(&docked.served);
}

fn is_charged(world: &World, data: &Path, point: &'static str) {
    let mut docked = Docked::open(world, data, point);
    let path = world.path("jobs");
    let (status, job) = world.keyed(&docked.served, &world.token, &path, &crate::common::job()).unwrap();
    assert_eq!(status, 201, "{point} {job}");
    docked.again(data, point);
    let again = world.keyed(&docked.served, &world.token, &path, &crate::common::job()).unwrap();
    assert_eq!((again.0, &again.1["id"]), (201, &job["id"]), "{point}");
    let id = job["id"].as_str().unwrap();
    let done = eventually(|| {
        let now = world.get(&docked.served, &world.path(&format!("jobs/{id}")));
        if now["state"] == "succeeded" { Ok(now) } else { Err(now.to_string()) }
    });
    let (hold, usage) = world.money_of(&docked.served, id, 0);
    assert_eq!((hold, json!(usage)), (60_000, done["metered_ms"].clone()), "{point} {done}");
    assert_eq!(world.items(&docked.served, &path).len(), 1, "{point}");
    world.books_are_right(&docked.served);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_asked_for_on_boards_is_done_once() {
    let dir = tempfile::tempdir().unwrap();
    // One data directory, so that the token names the authority of the portals that are started.
    let data = dir.path().to_owned();
    let db = Db::sqlite(&data.join("berth.db")).await.unwrap();
    let t = TestPortal::with(db, |settings| Settings { data, ..settings });
    World::clock(&t, 10).await;
    let operator = t.operator().await;
    let (ada, org) = t.tenant("lab").await;
    t.stock(&operator, &org, 1_000_000_000).await;
    let price = json!({"offering": "h100-80gb", "per_hour_micros": 3_600_000});
    t.post(&operator, "/operator/prices", price).await.expect(201);
    let join = t.post(&operator, "/operator/join-tokens", json!({})).await.expect(201);
    std::fs::write(dir.path().join("join"), join["secret"].as_str().unwrap()).unwrap();
    let world = World::of(&t, dir.path(), &org, &ada, &operator).await;
    drop(t);
    world.clone().at_each(&CONFIRM, is_confirmed).await;
    world.clone().at_each(&EXTEND, is_extended).await;
    world.at_each(&JOB, is_charged).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_stripe_tells_is_credited_once() {
    let dir = tempfile::tempdir().unwrap();
    let (stripe, url) = FakeStripe::open().await;
    let db = Db::sqlite(&dir.path().join("berth.db")).await.unwrap();
    let t = TestPortal::with(db, |settings| Settings {
        stripe_key: Some(KEY.to_owned()),
        stripe_url: url.clone(),
        stripe_webhook_secrets: vec![SECRET.to_owned()],
        ..settings
    });
    World::clock(&t, 10).await;
    let operator = t.operator().await;
    let (ada, org) = t.tenant("lab").await;
    let top_up = json!({"amount_micros": 25_000_000, "save_card": false});
    let here = t.post(&ada, &format!("/orgs/{org}/top-ups"), top_up).await.expect(201);
    let intent = stripe.pay(here["url"].as_str().unwrap());
    let world = World::of(&t, dir.path(), &org, &ada, &operator).await;
    drop(t);
    let at_s = SystemClock.now().micros() / 1_000_000;
    let (body, signature) = stripe.event("payment_intent.succeeded", &intent, at_s);
    let secrets = ["--stripe-key", KEY, "--stripe-url", url.as_str(), "--stripe-webhook-secrets", SECRET];
    let args: Vec<String> = secrets.iter().map(|a| (*a).to_owned()).collect();
    let mut running = Vec::new();
    for point in PAYMENT {
        let (world, data) = (world.clone(), world.copy().await);
        let (args, body, signature) = (args.clone(), body.clone(), signature.clone());
        running.push(tokio::task::spawn_blocking(move || {
            let tell = |served: &Served| {
                let headers = [("Stripe-Signature", signature.as_str())];
                request(&served.address, "POST", "/stripe/events", &headers, &body).map(|(status, _)| status)
            };
            let mut first = serve_with(data.path(), "127.0.0.1:0", &args, Some(point));
            // It dies before the answer, or afterwards.
            assert!(tell(&first).is_none_or(|status| status == 200), "{point}");
            dies(&mut first, point);
            let served = serve_with(data.path(), "127.0.0.1:0", &args, None);
            // Whoever was not answered tells it again, and sometimes who was.
            assert_eq!(tell(&served), Some(200), "{point}");
            eventually(|| {
                let balance = world.get(&served, &world.path("balance"));
                if balance["posted_micros"] == 25_000_000 { Ok(()) } else { Err(balance.to_string()) }
            });
            assert_eq!(tell(&served), Some(200), "{point}");
            let rows = world.items(&served, &world.path("transfers?limit=200"));
            assert_eq!(rows.len(), 1, "{point} {rows:?}");
            world.books_are_right(&served);
        }));
    }
    for done in running {
        done.await.unwrap();
    }
}

//! Paying by card, against a stand-in that does what Stripe does at its worst.

use crate::common::{As, TestPortal, engines};
use crate::stripe::{FakeStripe, KEY, Mood, SECRET};
use axum::body::Body;
use axum::http::Request;
use berth_foundation::Settings;
use berth_foundation::delivery::sign;
use berth_store::{self as store, Db};
use proptest::prelude::*;
use serde_json::{Value, json};

struct Till {
    t: TestPortal,
    stripe: FakeStripe,
    ada: As,
    operator: As,
    org: String,
}

impl Till {
    async fn on(db: Db, currency: &str) -> Self {
        let (stripe, url) = FakeStripe::open().await;
        let t = TestPortal::with(db, |settings| Settings {
            currency: currency.to_owned(),
            stripe_key: Some(KEY.to_owned()),
            stripe_url: url.clone(),
            stripe_webhook_secrets: vec!["whsec_next".to_owned(), SECRET.to_owned()],
            ..settings
        });
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        Self { t, stripe, ada, operator, org }
    }

    fn path(&self, rest: &str) -> String {
        format!("/orgs/{}/{rest}", self.org)
    }

    async fn top_up(&self, micros: i64, save_card: bool) -> String {
        let body = json!({"amount_micros": micros, "save_card": save_card});
        let here = self.t.post(&self.ada, &self.path("top-ups"), body).await.expect(201);
        here["url"].as_str().unwrap().to_owned()
    }

    async fn balance(&self) -> i64 {
        self.t.get(&self.ada, &self.path("balance")).await.expect(200)["posted_micros"].as_i64().unwrap()
    }

    fn now_s(&self) -> i64 {
        self.t.portal.context.now().micros() / 1_000_000
    }

    async fn send(&self, body: &str, header: &str) -> u16 {
        let request = Request::post("/api/v1/stripe/events").header("stripe-signature", header);
        self.t.send(request.body(Body::from(body.to_owned())).unwrap()).await.status.as_u16()
    }

    /// Sends an event as Stripe does, and lets the portal work it through.
    async fn tell(&self, kind: &str, object: &Value) {
        let (body, header) = self.stripe.event(kind, object, self.now_s());
        assert_eq!(self.send(&body, &header).await, 200);
        self.t.portal.payments.tick_payments().await.unwrap();
    }

    async fn books_are_right(&self) {
        let books = self.t.post(&self.operator, "/operator/reconciliation", Value::Null).await.expect(200);
        assert_eq!(books["mismatches"], json!([]), "{books}");
    }
}

#[tokio::test]
async fn a_payment_with_a_key_is_begun_once() {
    for (engine, db, _place) in engines("payment_keys").await {
        let till = Till::on(db, "USD").await;
        let body = || json!({"amount_micros": 25_000_000, "save_card": false});
        let path = till.path("top-ups");
        let ask = || till.t.call_with(&till.ada, "POST", &path, body(), &[("idempotency-key", "k")]);
        // Its answer was lost on the way: the same payment is asked for again, under its own key.
        till.stripe.be(&[Mood::Well, Mood::Forgetful]);
        ask().await.expect(503);
        let here = ask().await.expect(201);
        assert_eq!(ask().await.expect(201), here, "{engine}");
        let id = here["payment"].as_str().unwrap();
        till.t.lose_answer(&till.org, "k", id).await;
        assert_eq!(ask().await.expect(201), here, "{engine}: Stripe gives the same page");
        let listed = till.t.get(&till.ada, &path).await.expect(200);
        assert_eq!(listed["items"].as_array().unwrap().len(), 1, "{engine} {listed}");
        assert_eq!(listed["items"][0]["state"], "open", "{engine}");
        let intent = till.stripe.pay(here["url"].as_str().unwrap());
        till.tell("payment_intent.succeeded", &intent).await;
        till.t.lose_answer(&till.org, "k", id).await;
        ask().await.problem(409, "payments.over");
        assert_eq!(till.balance().await, 25_000_000, "{engine}");
    }
}

#[tokio::test]
async fn a_payment_is_credited_once_however_it_is_told() {
    for (engine, db, _place) in engines("payments").await {
        let till = Till::on(db, "USD").await;
        let settings = till.t.get(&till.ada, &till.path("payment-settings")).await.expect(200);
        assert_eq!(
            (&settings["enabled"], &settings["card_saved"]),
            (&json!(true), &json!(false)),
            "{engine}"
        );
        let url = till.top_up(25_000_000, false).await;
        assert_eq!(till.stripe.session(&url)["amount_total"], 2_500, "{engine}: in cents");
        assert_eq!(till.balance().await, 0, "{engine}: nothing before it is paid");
        till.tell("checkout.session.completed", &till.stripe.session(&url)).await;
        assert_eq!(till.balance().await, 0, "{engine}: an unpaid session says so itself");
        let intent = till.stripe.pay(&url);
        for _ in 0..2 {
            till.tell("payment_intent.succeeded", &intent).await;
            till.tell("checkout.session.completed", &till.stripe.session(&url)).await;
        }
        assert_eq!(till.balance().await, 25_000_000, "{engine}");
        let listed = till.t.get(&till.ada, &till.path("top-ups")).await.expect(200);
        assert_eq!(listed["items"][0]["state"], "paid", "{engine} {listed}");
        for bad in [0, -1, 999_999, 1_005_000_001, 1_000_001, i64::MAX] {
            let body = json!({"amount_micros": bad});
            till.t.post(&till.ada, &till.path("top-ups"), body).await.problem(422, "request.invalid");
        }
        let (bob, _) = till.t.tenant("bobs").await;
        till.t.post(&bob, &till.path("top-ups"), json!({"amount_micros": 1_000_000})).await.expect(404);
        let portal = till.t.post(&till.ada, &till.path("billing-portal"), Value::Null).await.expect(201);
        assert!(portal["url"].as_str().unwrap().contains("billing_portal"), "{engine} {portal}");
        till.books_are_right().await;
    }
}

#[tokio::test]
async fn what_stripe_did_not_sign_is_not_kept() {
    let till = Till::on(sqlite().await, "USD").await;
    let url = till.top_up(5_000_000, false).await;
    let intent = till.stripe.pay(&url);
    let now = till.now_s();
    let (body, header) = till.stripe.event("payment_intent.succeeded", &intent, now);
    let old = format!("t={},v1={}", now - 301, sign(SECRET, now - 301, &body));
    let other = format!("t={now},v1={}", sign("whsec_other", now, &body));
    let altered = body.replace("succeeded", "succeedec");
    for (body, header) in [(&altered, &header), (&body, &old), (&body, &other), (&body, &String::new())] {
        assert_eq!(till.send(body, header).await, 400);
    }
    till.t.portal.payments.tick_payments().await.unwrap();
    assert_eq!(till.balance().await, 0);
    // Two secrets hold while one is being replaced.
    let next = format!("t={now},v1={}", sign("whsec_next", now, &body));
    assert_eq!(till.send(&body, &next).await, 200);
    till.t.portal.payments.tick_payments().await.unwrap();
    assert_eq!(till.balance().await, 5_000_000);
    assert_eq!(till.send("not json", &format!("t={now},v1={}", sign(SECRET, now, "not json"))).await, 400);
    let odd = till.stripe.event("customer.updated", &json!({"id": "cus_1"}), now);
    assert_eq!(till.send(&odd.0, &odd.1).await, 200, "what is of no use here is taken all the same");
    till.t.portal.payments.tick_payments().await.unwrap();
    till.books_are_right().await;
}

async fn sqlite() -> Db {
    Db::sqlite(&tempfile::tempdir().unwrap().keep().join("berth.db")).await.unwrap()
}

/// All orders of so many things.
fn orders(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![Vec::new()];
    }
    let mut out = Vec::new();
    for rest in orders(n - 1) {
        for at in 0..=rest.len() {
            let mut order = rest.clone();
            order.insert(at, n - 1);
            out.push(order);
        }
    }
    out
}

#[tokio::test(flavor = "multi_thread")]
async fn all_orders_of_six_events_end_in_the_same_ledger() {
    let till = Till::on(sqlite().await, "USD").await;
    let mut outcomes = std::collections::BTreeMap::new();
    for order in orders(6) {
        let before = till.balance().await;
        let url = till.top_up(20_000_000, false).await;
        let intent = till.stripe.pay(&url);
        let (pi, id) = (&intent["id"], intent["metadata"].clone());
        let dispute = |status: &str| json!({"id": format!("dp_{pi}"), "payment_intent": pi, "amount": 800, "status": status});
        let events = [
            ("checkout.session.completed", till.stripe.session(&url)),
            ("payment_intent.succeeded", intent.clone()),
            (
                "charge.refunded",
                json!({"id": "ch_1", "payment_intent": pi, "amount_refunded": 300, "metadata": id}),
            ),
            (
                "charge.refunded",
                json!({"id": "ch_1", "payment_intent": pi, "amount_refunded": 700, "metadata": id}),
            ),
            ("charge.dispute.created", dispute("needs_response")),
            ("charge.dispute.closed", dispute("won")),
        ];
        for (n, index) in order.iter().enumerate() {
            let (kind, object) = &events[*index];
            let (body, header) = till.stripe.event(kind, object, till.now_s());
            assert_eq!(till.send(&body, &header).await, 200);
            if n % 2 == 0 {
                assert_eq!(till.send(&body, &header).await, 200, "the same once more");
            }
            till.t.portal.payments.tick_payments().await.unwrap();
        }
        // What came before its payment was known is looked at again.
        till.t.clock.advance_s(30);
        till.t.portal.payments.tick_payments().await.unwrap();
        *outcomes.entry(till.balance().await - before).or_insert(0) += 1;
    }
    assert_eq!(outcomes, [(13_000_000, 720)].into(), "20 paid, 7 refunded, the dispute won");
    till.books_are_right().await;
}

#[tokio::test]
async fn money_that_was_spent_and_is_taken_back_leaves_the_account_below_nothing() {
    for (engine, db, _place) in engines("disputes").await {
        let till = Till::on(db, "USD").await;
        let url = till.top_up(10_000_000, false).await;
        let intent = till.stripe.pay(&url);
        till.tell("payment_intent.succeeded", &intent).await;
        let debit = json!({"amount_micros": 9_000_000, "memo": "Spent elsewhere"});
        till.t.post(&till.operator, &format!("/operator/orgs/{}/debits", till.org), debit).await.expect(201);
        let dispute =
            json!({"id": "dp_1", "payment_intent": intent["id"], "amount": 1_000, "status": "lost"});
        till.tell("charge.dispute.created", &dispute).await;
        till.tell("charge.dispute.closed", &dispute).await;
        assert_eq!(till.balance().await, -9_000_000, "{engine}");
        till.t.stock(&till.operator, &till.org, 1_000_000).await;
        let jobs = till.path("jobs");
        till.t.post(&till.ada, &jobs, crate::common::job()).await.problem(402, "funds.insufficient");
        let credit = json!({"amount_micros": 9_000_000});
        till.t
            .post(&till.operator, &format!("/operator/orgs/{}/credits", till.org), credit)
            .await
            .expect(201);
        till.t.post(&till.ada, &jobs, crate::common::job()).await.expect(201);
        till.books_are_right().await;
    }
}

#[tokio::test]
async fn a_saved_card_is_charged_by_rule_and_never_twice() {
    for (engine, db, _place) in engines("recharge").await {
        let till = Till::on(db, "USD").await;
        let rule = |below: i64, amount: i64| json!({"below_micros": below, "amount_micros": amount, "most_a_day": 2});
        let recharge = till.path("auto-recharge");
        let put = |body: Value| till.t.call(&till.ada, "PUT", &recharge, body);
        put(rule(5_000_000, 10_000_000)).await.problem(409, "payments.no_card");
        let url = till.top_up(1_000_000, true).await;
        let intent = till.stripe.pay(&url);
        till.tell("payment_intent.succeeded", &intent).await;
        put(rule(-1, 10_000_000)).await.problem(422, "request.invalid");
        let set = put(rule(5_000_000, 10_000_000)).await.expect(200);
        assert_eq!(
            (&set["card_saved"], &set["auto_recharge"]["amount_micros"]),
            (&json!(true), &json!(10_000_000))
        );

        // Its answer is lost, then Stripe is down: nobody knows, so it is asked again under the same key.
        till.stripe.be(&[Mood::Forgetful, Mood::Down]);
        for _ in 0..4 {
            till.t.portal.payments.tick_payments().await.unwrap();
        }
        assert_eq!(
            (till.balance().await, till.stripe.charged()),
            (11_000_000, 2),
            "{engine}: once by hand, once by rule"
        );
        let saved =
            json!({"id": "pi_saved_2", "metadata": {"payment": "pay_x"}, "payment_method": "pm_card"});
        till.tell("payment_intent.succeeded", &saved).await;
        assert_eq!(till.balance().await, 11_000_000, "{engine}: its event says nothing new");

        // Twice a day at most, and a card that is declined is left alone after three tries.
        let debit = json!({"amount_micros": 10_000_000, "memo": "Spent"});
        let debits = format!("/operator/orgs/{}/debits", till.org);
        till.t.post(&till.operator, &debits, debit.clone()).await.expect(201);
        for _ in 0..5 {
            till.t.portal.payments.tick_payments().await.unwrap();
        }
        assert_eq!(till.balance().await, 11_000_000, "{engine}: the second of the day");
        till.t.post(&till.operator, &debits, debit.clone()).await.expect(201);
        till.t.portal.payments.tick_payments().await.unwrap();
        assert_eq!(till.balance().await, 1_000_000, "{engine}: enough for today");
        till.stripe.be(&[Mood::Declining; 12]);
        let asked = till.stripe.requests().len();
        for _ in 0..3 {
            till.t.clock.advance_s(86_400);
            for _ in 0..3 {
                till.t.portal.payments.tick_payments().await.unwrap();
            }
        }
        assert_eq!(till.stripe.requests().len() - asked, 3, "{engine}: three failures in a row");
        till.stripe.be(&[]);
        let ada = till.t.sign_in("lab@example.org").await;
        let listed = till.t.get(&ada, &till.path("top-ups")).await.expect(200);
        assert_eq!(listed["items"][0]["failure"], "Your card was declined.", "{engine} {listed}");
    }
}

#[tokio::test]
async fn stripe_down_or_silent_charges_nobody_and_says_so() {
    let till = Till::on(sqlite().await, "JPY").await;
    till.stripe.be(&[Mood::Down]);
    let body = json!({"amount_micros": 5_000_000_000i64});
    till.t.post(&till.ada, &till.path("top-ups"), body.clone()).await.expect(503);
    // Whole yen only, and as many as were asked for.
    till.t
        .post(&till.ada, &till.path("top-ups"), json!({"amount_micros": 5_500_000}))
        .await
        .problem(422, "request.invalid");
    let url = till.top_up(5_000_000_000, false).await;
    assert_eq!(
        (&till.stripe.session(&url)["amount_total"], &till.stripe.session(&url)["currency"]),
        (&json!(5_000), &json!("jpy"))
    );
    let listed = till.t.get(&till.ada, &till.path("top-ups")).await.expect(200);
    let states: Vec<&str> =
        listed["items"].as_array().unwrap().iter().map(|p| p["state"].as_str().unwrap()).collect();
    assert!(states == ["open"] || states == ["open", "failed"], "{states:?}");
    till.tell("checkout.session.expired", &till.stripe.session(&url)).await;
    let listed = till.t.get(&till.ada, &till.path("top-ups")).await.expect(200);
    assert_eq!(listed["items"][0]["state"], "failed", "{listed}");
    // Paid after all: money that came is credited, whatever was thought before.
    let intent = till.stripe.pay(&url);
    till.tell("payment_intent.succeeded", &intent).await;
    assert_eq!(till.balance().await, 5_000_000_000);
    let request =
        |header: &str| Request::post("/api/v1/stripe/events").header("stripe-signature", header.to_owned());
    let reply = till.t.send(request("").body(Body::empty()).unwrap()).await;
    assert_eq!(reply.status.as_u16(), 400);
}

#[tokio::test]
async fn without_a_key_there_is_nothing_to_press() {
    let t = TestPortal::sqlite().await;
    t.operator().await;
    let (ada, org) = t.tenant("lab").await;
    let settings = t.get(&ada, &format!("/orgs/{org}/payment-settings")).await.expect(200);
    assert_eq!(settings["enabled"], false);
    let top_up = t.post(&ada, &format!("/orgs/{org}/top-ups"), json!({"amount_micros": 1_000_000})).await;
    top_up.problem(409, "payments.off");
    let request = Request::post("/api/v1/stripe/events").header("stripe-signature", "t=1,v1=00");
    assert_eq!(t.send(request.body(Body::from("{}")).unwrap()).await.status.as_u16(), 404);
    t.portal.payments.tick_payments().await.unwrap();
}

#[tokio::test]
async fn an_open_invoice_is_paid_once() {
    let till = Till::on(sqlite().await, "USD").await;
    let limit = json!({"credit_limit_micros": 50_000_000});
    till.t
        .call(&till.operator, "PUT", &format!("/operator/orgs/{}/credit-limit", till.org), limit)
        .await
        .expect(200);
    let taxes = json!({"taxes": [{"name": "VAT", "basis_points": 2_000}]});
    till.t.call(&till.operator, "PUT", "/operator/billing-settings", taxes).await.expect(200);
    let (org, day) = (till.org.clone(), till.t.portal.context.now().micros() / 86_400_000_000);
    let work = till.t.portal.context.db.write(move |tx| {
        let org = org.clone();
        Box::pin(async move {
            let charged = store::usage::Charged {
                org: &org,
                day,
                offering: "none",
                mode: "on_demand",
                member: "Ada",
                labels: Vec::new(),
                device_milli_ms: 1,
                cost_micros: 10_000_000,
            };
            store::usage::count(tx, &charged).await
        })
    });
    work.await.unwrap();
    till.t.clock.advance_s(20 * 86_400);
    assert_eq!(till.t.portal.invoices.bill_last_month().await.unwrap(), 1);
    let ada = till.t.sign_in("lab@example.org").await;
    let invoice = till.t.get(&ada, &till.path("invoices")).await.expect(200)["items"][0].clone();
    let pay = till.path(&format!("invoices/{}/pay", invoice["id"].as_str().unwrap()));
    let here = till.t.post(&ada, &pay, Value::Null).await.expect(201);
    let url = here["url"].as_str().unwrap();
    assert_eq!(till.stripe.session(url)["amount_total"], 1_200, "with the tax");
    let intent = till.stripe.pay(url);
    till.tell("payment_intent.succeeded", &intent).await;
    till.tell("checkout.session.completed", &till.stripe.session(url)).await;
    let balance = till.t.get(&ada, &till.path("balance")).await.expect(200);
    assert_eq!(balance["posted_micros"], 10_000_000, "what was used, without the tax: {balance}");
    till.t.post(&ada, &pay, Value::Null).await.problem(409, "invoice.closed");
    // Refunded, the tax goes back from where it went, which was not the balance.
    let refund =
        json!({"payment_intent": intent["id"], "amount_refunded": 1_200, "metadata": intent["metadata"]});
    till.tell("charge.refunded", &refund).await;
    let balance = till.t.get(&ada, &till.path("balance")).await.expect(200);
    assert_eq!(balance["posted_micros"], 0, "{balance}");
}

#[tokio::test]
async fn an_inquiry_takes_nothing_until_it_becomes_a_dispute() {
    let till = Till::on(sqlite().await, "USD").await;
    let url = till.top_up(10_000_000, false).await;
    let intent = till.stripe.pay(&url);
    till.tell("payment_intent.succeeded", &intent).await;
    let dispute = |status: &str| json!({"id": "dp_1", "payment_intent": intent["id"], "amount": 1_000, "status": status});
    till.tell("charge.dispute.created", &dispute("warning_needs_response")).await;
    till.tell("charge.dispute.closed", &dispute("warning_closed")).await;
    assert_eq!(till.balance().await, 10_000_000);
    till.tell("charge.dispute.funds_withdrawn", &dispute("needs_response")).await;
    assert_eq!(till.balance().await, 0);
    // Members run jobs; they do not pay.
    let settings = till.t.get(&till.ada, &till.path("payment-settings")).await.expect(200);
    assert_eq!(settings["step_micros"], 10_000);
    till.books_are_right().await;
}

#[tokio::test]
async fn an_empty_secret_signs_nothing() {
    let (_stripe, url) = FakeStripe::open().await;
    let t = TestPortal::with(sqlite().await, |settings| Settings {
        stripe_key: Some(KEY.to_owned()),
        stripe_url: url.clone(),
        stripe_webhook_secrets: vec![String::new(), "  ".to_owned()],
        ..settings
    });
    t.operator().await;
    let now = t.portal.context.now().micros() / 1_000_000;
    let body = "{}";
    let header = format!("t={now},v1={}", sign("", now, body));
    let request = Request::post("/api/v1/stripe/events").header("stripe-signature", header);
    assert_eq!(t.send(request.body(Body::from(body)).unwrap()).await.status.as_u16(), 400);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_sent_is_an_answer(body in ".{0,200}", header in ".{0,80}") {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let stripe = berth_billing::Stripe::new("http://127.0.0.1:9", "k", &["s".to_owned()]).unwrap();
            // Never a panic, and never true.
            assert!(!stripe.verify(&header, body.as_bytes(), 1_000));
        });
    }
}

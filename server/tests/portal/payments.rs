//! Tests of payments by card with a fake Stripe that can fail.

use crate::common::{Caller, TestPortal, engines};
use crate::stripe::{FakeStripe, KEY, SECRET, StripeBehaviour};
use axum::body::Body;
use axum::http::Request;
use berth_foundation::Settings;
use berth_foundation::delivery::sign;
use berth_store::{self as store, Db};
use proptest::prelude::*;
use serde_json::{Value, json};

pub struct PaymentSetup {
    pub t: TestPortal,
    pub stripe: FakeStripe,
    pub ada: Caller,
    pub operator: Caller,
    pub org: String,
}

impl PaymentSetup {
    pub async fn on(db: Db, currency: &str) -> Self {
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

    pub fn path(&self, rest: &str) -> String {
        format!("/orgs/{}/{rest}", self.org)
    }

    pub async fn top_up(&self, micros: i64, save_card: bool) -> String {
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

    /// Sends an event like Stripe and lets the portal process it.
    pub async fn deliver_event(&self, kind: &str, object: &Value) {
        let (body, header) = self.stripe.event(kind, object, self.now_s());
        assert_eq!(self.send(&body, &header).await, 200);
        self.t.portal.payments.tick_payments().await.unwrap();
    }

    async fn assert_books_balance(&self) {
        let books = self.t.post(&self.operator, "/operator/reconciliation", Value::Null).await.expect(200);
        assert_eq!(books["mismatches"], json!([]), "{books}");
    }
}

#[tokio::test]
async fn a_payment_with_an_idempotency_key_starts_once() {
    for (engine, db, _location) in engines("payment_keys").await {
        let setup = PaymentSetup::on(db, "USD").await;
        let body = || json!({"amount_micros": 25_000_000, "save_card": false});
        let path = setup.path("top-ups");
        let ask = || setup.t.call_with(&setup.ada, "POST", &path, body(), &[("idempotency-key", "k")]);
        // The answer of Stripe was lost, so the portal repeats the payment under the same key.
        setup.stripe.set_behaviour(&[StripeBehaviour::Normal, StripeBehaviour::LostAnswer]);
        ask().await.expect(503);
        let here = ask().await.expect(201);
        assert_eq!(ask().await.expect(201), here, "{engine}");
        let id = here["payment"].as_str().unwrap();
        setup.t.lose_answer(&setup.org, "k", id).await;
        assert_eq!(ask().await.expect(201), here, "{engine}: Stripe gives the same page");
        let listed = setup.t.get(&setup.ada, &path).await.expect(200);
        assert_eq!(listed["items"].as_array().unwrap().len(), 1, "{engine} {listed}");
        assert_eq!(listed["items"][0]["state"], "open", "{engine}");
        let intent = setup.stripe.pay(here["url"].as_str().unwrap());
        setup.deliver_event("payment_intent.succeeded", &intent).await;
        setup.t.lose_answer(&setup.org, "k", id).await;
        ask().await.problem(409, "payments.over");
        assert_eq!(setup.balance().await, 25_000_000, "{engine}");
    }
}

#[tokio::test]
async fn a_payment_is_credited_once_for_repeated_events() {
    for (engine, db, _location) in engines("payments").await {
        let setup = PaymentSetup::on(db, "USD").await;
        let settings = setup.t.get(&setup.ada, &setup.path("payment-settings")).await.expect(200);
        assert_eq!(
            (&settings["enabled"], &settings["card_saved"]),
            (&json!(true), &json!(false)),
            "{engine}"
        );
        let url = setup.top_up(25_000_000, false).await;
        assert_eq!(setup.stripe.session(&url)["amount_total"], 2_500, "{engine}: in cents");
        assert_eq!(setup.balance().await, 0, "{engine}: nothing before it is paid");
        setup.deliver_event("checkout.session.completed", &setup.stripe.session(&url)).await;
        assert_eq!(setup.balance().await, 0, "{engine}: an unpaid session says so itself");
        let intent = setup.stripe.pay(&url);
        for _ in 0..2 {
            setup.deliver_event("payment_intent.succeeded", &intent).await;
            setup.deliver_event("checkout.session.completed", &setup.stripe.session(&url)).await;
        }
        assert_eq!(setup.balance().await, 25_000_000, "{engine}");
        let listed = setup.t.get(&setup.ada, &setup.path("top-ups")).await.expect(200);
        assert_eq!(listed["items"][0]["state"], "paid", "{engine} {listed}");
        for bad in [0, -1, 999_999, 1_005_000_001, 1_000_001, i64::MAX] {
            let body = json!({"amount_micros": bad});
            setup.t.post(&setup.ada, &setup.path("top-ups"), body).await.problem(422, "request.invalid");
        }
        let (bob, _) = setup.t.tenant("bobs").await;
        setup.t.post(&bob, &setup.path("top-ups"), json!({"amount_micros": 1_000_000})).await.expect(404);
        let portal = setup.t.post(&setup.ada, &setup.path("billing-portal"), Value::Null).await.expect(201);
        assert!(portal["url"].as_str().unwrap().contains("billing_portal"), "{engine} {portal}");
        setup.assert_books_balance().await;
    }
}

#[tokio::test]
async fn events_without_a_valid_stripe_signature_are_refused() {
    let setup = PaymentSetup::on(sqlite().await, "USD").await;
    let url = setup.top_up(5_000_000, false).await;
    let intent = setup.stripe.pay(&url);
    let now = setup.now_s();
    let (body, header) = setup.stripe.event("payment_intent.succeeded", &intent, now);
    let old = format!("t={},v1={}", now - 301, sign(SECRET, now - 301, &body));
    let other = format!("t={now},v1={}", sign("whsec_other", now, &body));
    let altered = body.replace("succeeded", "succeedec");
    for (body, header) in [(&altered, &header), (&body, &old), (&body, &other), (&body, &String::new())] {
        assert_eq!(setup.send(body, header).await, 400);
    }
    setup.t.portal.payments.tick_payments().await.unwrap();
    assert_eq!(setup.balance().await, 0);
    // During a rotation two secrets are valid.
    let next = format!("t={now},v1={}", sign("whsec_next", now, &body));
    assert_eq!(setup.send(&body, &next).await, 200);
    setup.t.portal.payments.tick_payments().await.unwrap();
    assert_eq!(setup.balance().await, 5_000_000);
    assert_eq!(setup.send("not json", &format!("t={now},v1={}", sign(SECRET, now, "not json"))).await, 400);
    let odd = setup.stripe.event("customer.updated", &json!({"id": "cus_1"}), now);
    assert_eq!(setup.send(&odd.0, &odd.1).await, 200, "what is of no use here is taken all the same");
    setup.t.portal.payments.tick_payments().await.unwrap();
    setup.assert_books_balance().await;
}

async fn sqlite() -> Db {
    crate::common::new_sqlite(&tempfile::tempdir().unwrap().keep().join("berth.db")).await
}

/// Returns all permutations of `n` items.
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
    let setup = PaymentSetup::on(sqlite().await, "USD").await;
    let mut outcomes = std::collections::BTreeMap::new();
    for order in orders(6) {
        let before = setup.balance().await;
        let url = setup.top_up(20_000_000, false).await;
        let intent = setup.stripe.pay(&url);
        let (pi, id) = (&intent["id"], intent["metadata"].clone());
        let dispute = |status: &str| json!({"id": format!("dp_{pi}"), "payment_intent": pi, "amount": 800, "status": status});
        let events = [
            ("checkout.session.completed", setup.stripe.session(&url)),
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
            let (body, header) = setup.stripe.event(kind, object, setup.now_s());
            assert_eq!(setup.send(&body, &header).await, 200);
            if n % 2 == 0 {
                assert_eq!(setup.send(&body, &header).await, 200, "the same once more");
            }
            setup.t.portal.payments.tick_payments().await.unwrap();
        }
        // Events before their payment are processed again.
        setup.t.clock.advance_s(30);
        setup.t.portal.payments.tick_payments().await.unwrap();
        *outcomes.entry(setup.balance().await - before).or_insert(0) += 1;
    }
    assert_eq!(outcomes, [(13_000_000, 720)].into(), "20 paid, 7 refunded, the dispute won");
    setup.assert_books_balance().await;
}

#[tokio::test]
async fn a_lost_dispute_over_spent_money_makes_the_balance_negative() {
    for (engine, db, _location) in engines("disputes").await {
        let setup = PaymentSetup::on(db, "USD").await;
        let url = setup.top_up(10_000_000, false).await;
        let intent = setup.stripe.pay(&url);
        setup.deliver_event("payment_intent.succeeded", &intent).await;
        let debit = json!({"amount_micros": 9_000_000, "memo": "Spent elsewhere"});
        setup
            .t
            .post(&setup.operator, &format!("/operator/orgs/{}/debits", setup.org), debit)
            .await
            .expect(201);
        let dispute =
            json!({"id": "dp_1", "payment_intent": intent["id"], "amount": 1_000, "status": "lost"});
        setup.deliver_event("charge.dispute.created", &dispute).await;
        setup.deliver_event("charge.dispute.closed", &dispute).await;
        assert_eq!(setup.balance().await, -9_000_000, "{engine}");
        setup.t.add_price_and_credit(&setup.operator, &setup.org, 1_000_000).await;
        let jobs = setup.path("jobs");
        setup.t.post(&setup.ada, &jobs, crate::common::job()).await.problem(402, "funds.insufficient");
        let credit = json!({"amount_micros": 9_000_000});
        setup
            .t
            .post(&setup.operator, &format!("/operator/orgs/{}/credits", setup.org), credit)
            .await
            .expect(201);
        setup.t.post(&setup.ada, &jobs, crate::common::job()).await.expect(201);
        setup.assert_books_balance().await;
    }
}

#[tokio::test]
async fn auto_recharge_charges_the_saved_card_by_its_rule_and_never_twice() {
    for (engine, db, _location) in engines("recharge").await {
        let setup = PaymentSetup::on(db, "USD").await;
        let rule = |below: i64, amount: i64| json!({"below_micros": below, "amount_micros": amount, "most_a_day": 2});
        let recharge = setup.path("auto-recharge");
        let put = |body: Value| setup.t.call(&setup.ada, "PUT", &recharge, body);
        put(rule(5_000_000, 10_000_000)).await.problem(409, "payments.no_card");
        let url = setup.top_up(1_000_000, true).await;
        let intent = setup.stripe.pay(&url);
        setup.deliver_event("payment_intent.succeeded", &intent).await;
        put(rule(-1, 10_000_000)).await.problem(422, "request.invalid");
        // All charges of a day would come at once, and $21.00 would still be below the threshold.
        let far = put(rule(21_000_001, 10_000_000)).await.problem(422, "request.invalid");
        assert_eq!(far["errors"][0]["pointer"], "/amount_micros", "{engine}: {far}");
        put(rule(21_000_000, 10_000_000)).await.expect(200);
        let set = put(rule(5_000_000, 10_000_000)).await.expect(200);
        assert_eq!(
            (&set["card_saved"], &set["auto_recharge"]["amount_micros"]),
            (&json!(true), &json!(10_000_000))
        );

        // The first answer is lost and then Stripe is down, so the portal repeats the charge under the same
        // key.
        setup.stripe.set_behaviour(&[StripeBehaviour::LostAnswer, StripeBehaviour::Down]);
        for _ in 0..4 {
            setup.t.portal.payments.tick_payments().await.unwrap();
        }
        assert_eq!(
            (setup.balance().await, setup.stripe.charged()),
            (11_000_000, 2),
            "{engine}: once by hand, once by rule"
        );
        let saved =
            json!({"id": "pi_saved_2", "metadata": {"payment": "pay_x"}, "payment_method": "pm_card"});
        setup.deliver_event("payment_intent.succeeded", &saved).await;
        assert_eq!(setup.balance().await, 11_000_000, "{engine}: its event says nothing new");

        // The rule allows two charges a day, and after three declined charges the card is not charged again.
        let debit = json!({"amount_micros": 10_000_000, "memo": "Spent"});
        let debits = format!("/operator/orgs/{}/debits", setup.org);
        setup.t.post(&setup.operator, &debits, debit.clone()).await.expect(201);
        for _ in 0..5 {
            setup.t.portal.payments.tick_payments().await.unwrap();
        }
        assert_eq!(setup.balance().await, 11_000_000, "{engine}: the second of the day");
        setup.t.post(&setup.operator, &debits, debit.clone()).await.expect(201);
        setup.t.portal.payments.tick_payments().await.unwrap();
        assert_eq!(setup.balance().await, 1_000_000, "{engine}: enough for today");
        setup.stripe.set_behaviour(&[StripeBehaviour::CardDeclined; 12]);
        let asked = setup.stripe.requests().len();
        for _ in 0..3 {
            setup.t.clock.advance_s(86_400);
            for _ in 0..3 {
                setup.t.portal.payments.tick_payments().await.unwrap();
            }
        }
        assert_eq!(setup.stripe.requests().len() - asked, 3, "{engine}: three failures in a row");
        setup.stripe.set_behaviour(&[]);
        let ada = setup.t.sign_in("lab@example.org").await;
        let listed = setup.t.get(&ada, &setup.path("top-ups")).await.expect(200);
        assert_eq!(listed["items"][0]["failure"], "Your card was declined.", "{engine} {listed}");
    }
}

#[tokio::test]
async fn a_rule_for_automatic_charges_beyond_its_limits_is_refused_before_stripe() {
    for (engine, db, _location) in engines("recharge_limits").await {
        let setup = PaymentSetup::on(db, "USD").await;
        let path = setup.path("auto-recharge");
        let put = |(below, amount, most): (i64, i64, i64)| {
            let rule = json!({"below_micros": below, "amount_micros": amount, "most_a_day": most});
            setup.t.call(&setup.ada, "PUT", &path, rule)
        };
        for (rule, pointer) in [
            ((-1, 10_000_000, 2), "/below_micros"),
            ((100_000_000_001, 10_000_000, 2), "/below_micros"),
            ((-1, 0, 0), "/below_micros"),
            ((0, 999_999, 2), "/amount_micros"),
            ((0, 100_000_010_000, 2), "/amount_micros"),
            ((0, -1, 2), "/amount_micros"),
            ((0, 10_000_000, 0), "/most_a_day"),
            ((0, 10_000_000, 25), "/most_a_day"),
            ((0, 0, 25), "/most_a_day"),
            ((0, 0, -1), "/most_a_day"),
        ] {
            let problem = put(rule).await.problem(422, "request.invalid");
            assert_eq!(problem["errors"][0]["pointer"], pointer, "{engine} {rule:?} {problem}");
        }
        put((0, 0, 0)).await.expect(200);
        assert_eq!(setup.stripe.requests(), Vec::<String>::new(), "{engine}");
    }
}

#[tokio::test]
async fn an_outage_of_stripe_charges_nobody_and_answers_503() {
    let setup = PaymentSetup::on(sqlite().await, "JPY").await;
    setup.stripe.set_behaviour(&[StripeBehaviour::Down]);
    let body = json!({"amount_micros": 5_000_000_000i64});
    setup.t.post(&setup.ada, &setup.path("top-ups"), body.clone()).await.expect(503);
    // Amounts in yen are whole.
    setup
        .t
        .post(&setup.ada, &setup.path("top-ups"), json!({"amount_micros": 5_500_000}))
        .await
        .problem(422, "request.invalid");
    let url = setup.top_up(5_000_000_000, false).await;
    assert_eq!(
        (&setup.stripe.session(&url)["amount_total"], &setup.stripe.session(&url)["currency"]),
        (&json!(5_000), &json!("jpy"))
    );
    let listed = setup.t.get(&setup.ada, &setup.path("top-ups")).await.expect(200);
    let states: Vec<&str> =
        listed["items"].as_array().unwrap().iter().map(|p| p["state"].as_str().unwrap()).collect();
    assert!(states == ["open"] || states == ["open", "failed"], "{states:?}");
    setup.deliver_event("checkout.session.expired", &setup.stripe.session(&url)).await;
    let listed = setup.t.get(&setup.ada, &setup.path("top-ups")).await.expect(200);
    assert_eq!(listed["items"][0]["state"], "failed", "{listed}");
    // A late payment is credited despite the state `failed`.
    let intent = setup.stripe.pay(&url);
    setup.deliver_event("payment_intent.succeeded", &intent).await;
    assert_eq!(setup.balance().await, 5_000_000_000);
    let request =
        |header: &str| Request::post("/api/v1/stripe/events").header("stripe-signature", header.to_owned());
    let reply = setup.t.send(request("").body(Body::empty()).unwrap()).await;
    assert_eq!(reply.status.as_u16(), 400);
}

#[tokio::test]
async fn without_a_stripe_key_payments_are_off() {
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
    let setup = PaymentSetup::on(sqlite().await, "USD").await;
    let limit = json!({"credit_limit_micros": 50_000_000});
    setup
        .t
        .call(&setup.operator, "PUT", &format!("/operator/orgs/{}/credit-limit", setup.org), limit)
        .await
        .expect(200);
    let taxes = json!({"taxes": [{"name": "VAT", "basis_points": 2_000}]});
    setup.t.call(&setup.operator, "PUT", "/operator/billing-settings", taxes).await.expect(200);
    let (org, day) = (setup.org.parse().unwrap(), setup.t.portal.context.now().micros() / 86_400_000_000);
    let work = setup.t.portal.context.db.write(move |tx| {
        Box::pin(async move {
            let charged = store::usage::Charge {
                org,
                day,
                offering: "none",
                mode: store::usage::UsageMode::OnDemand,
                member: "Ada",
                price_version: 0,
                surcharge_basis_points: 0,
                labels: Vec::new(),
                device_milli_ms: 1,
                cost_micros: 10_000_000,
            };
            store::usage::add_charge(tx, &charged).await
        })
    });
    work.await.unwrap();
    setup.t.clock.advance_s(20 * 86_400);
    assert_eq!(setup.t.portal.invoices.bill_last_month().await.unwrap(), 1);
    let ada = setup.t.sign_in("lab@example.org").await;
    let invoice = setup.t.get(&ada, &setup.path("invoices")).await.expect(200)["items"][0].clone();
    let pay = setup.path(&format!("invoices/{}/pay", invoice["id"].as_str().unwrap()));
    let here = setup.t.post(&ada, &pay, Value::Null).await.expect(201);
    let url = here["url"].as_str().unwrap();
    assert_eq!(setup.stripe.session(url)["amount_total"], 1_200, "with the tax");
    let intent = setup.stripe.pay(url);
    setup.deliver_event("payment_intent.succeeded", &intent).await;
    setup.deliver_event("checkout.session.completed", &setup.stripe.session(url)).await;
    let balance = setup.t.get(&ada, &setup.path("balance")).await.expect(200);
    assert_eq!(balance["posted_micros"], 10_000_000, "what was used, without the tax: {balance}");
    setup.t.post(&ada, &pay, Value::Null).await.problem(409, "invoice.closed");
    // A refund returns the tax from the tax account, not from the balance.
    let refund =
        json!({"payment_intent": intent["id"], "amount_refunded": 1_200, "metadata": intent["metadata"]});
    setup.deliver_event("charge.refunded", &refund).await;
    let balance = setup.t.get(&ada, &setup.path("balance")).await.expect(200);
    assert_eq!(balance["posted_micros"], 0, "{balance}");
}

#[tokio::test]
async fn an_inquiry_debits_nothing_until_it_becomes_a_dispute() {
    let setup = PaymentSetup::on(sqlite().await, "USD").await;
    let url = setup.top_up(10_000_000, false).await;
    let intent = setup.stripe.pay(&url);
    setup.deliver_event("payment_intent.succeeded", &intent).await;
    let dispute = |status: &str| json!({"id": "dp_1", "payment_intent": intent["id"], "amount": 1_000, "status": status});
    setup.deliver_event("charge.dispute.created", &dispute("warning_needs_response")).await;
    setup.deliver_event("charge.dispute.closed", &dispute("warning_closed")).await;
    assert_eq!(setup.balance().await, 10_000_000);
    setup.deliver_event("charge.dispute.funds_withdrawn", &dispute("needs_response")).await;
    assert_eq!(setup.balance().await, 0);
    // The smallest unit is a cent.
    let settings = setup.t.get(&setup.ada, &setup.path("payment-settings")).await.expect(200);
    assert_eq!(settings["step_micros"], 10_000);
    setup.assert_books_balance().await;
}

#[tokio::test]
async fn an_empty_webhook_secret_verifies_no_signature() {
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
    fn arbitrary_signatures_are_never_verified(body in ".{0,200}", header in ".{0,80}") {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = berth_foundation::delivery::client(false).unwrap();
            let stripe = berth_billing::Stripe::new(client, "http://127.0.0.1:9", "k", &["s".to_owned()]);
            // The check never panics and never succeeds.
            assert!(!stripe.verify(&header, &body, 1_000));
        });
    }
}

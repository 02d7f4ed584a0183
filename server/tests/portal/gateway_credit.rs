//! Tests of the credit of gateways on every engine: blocks with their holds and charges in the ledger.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::job;
use crate::gateways::{Site, add_gateway, add_key, number, run, send, sites};
use berth_autoscaling::GatewayId;
use berth_autoscaling::credit::{
    Borrower, BorrowerTerms, Content, HoldAnswer, KeyId, Payer, Report, ToGateway, ToPortal,
};
use serde_json::{Value, json};

/// The worst case and the charge of each request: 1,000 micro-units.
const WORST: u64 = 1_000_000;

const TERMS: BorrowerTerms = BorrowerTerms { requests_a_block: 4, low_requests: 0, most_requests_a_block: 4 };

/// A gateway of the test.
struct Edge {
    token: String,
    borrower: Borrower,
    payer: Payer,
}

impl Edge {
    async fn new(site: &Site, gateway: u64, key: u64) -> Self {
        let token = add_gateway(&site.t, gateway).await;
        let payer = Payer { org: site.org.parse().unwrap(), key: KeyId(key) };
        Self { token, borrower: Borrower::new(GatewayId(gateway), 1, TERMS), payer }
    }

    /// Sends the messages of the gateway and applies the answers. Returns the number of messages.
    async fn exchange(&mut self, site: &Site) -> usize {
        let messages = self.borrower.messages(site.t.portal.context.now());
        for answer in post(site, &self.token, &messages).await {
            self.borrower.receive(&answer, site.t.portal.context.now());
        }
        messages.len()
    }

    /// Tries a request. Returns true if it passes.
    async fn request(&mut self, site: &Site, request: u64) -> bool {
        let mut waits = false;
        loop {
            match self.borrower.hold(request, self.payer, WORST, site.t.portal.context.now()) {
                HoldAnswer::Held => {
                    self.borrower.settle(request, WORST).unwrap();
                    return true;
                }
                HoldAnswer::Waits => {
                    // The time for which an ask waits is that of the manual clock. A refusal holds for a second.
                    if std::mem::replace(&mut waits, true) {
                        site.t.clock.advance_s(1);
                    }
                    self.exchange(site).await;
                }
                HoldAnswer::Exhausted | HoldAnswer::Full => {
                    site.t.clock.advance_s(1);
                    return false;
                }
            }
        }
    }

    /// Tries requests; returns the number that passed, after the portal has all of them.
    async fn requests(&mut self, site: &Site, requests: Range<u64>) -> usize {
        let mut passed = 0;
        for request in requests {
            passed += usize::from(self.request(site, request).await);
        }
        while self.exchange(site).await > 0 {}
        passed
    }
}

async fn post(site: &Site, token: &str, messages: &[ToPortal]) -> Vec<ToGateway> {
    let (status, _, body) = send(&site.t.router, ("POST", "credit"), token, json!(messages)).await;
    assert_eq!(status, 200, "{}: {body}", site.engine);
    serde_json::from_value(body).unwrap()
}

/// The posted and the held micro-units of the organization, by a new session: the clock moves by days.
async fn balance(site: &Site) -> (i64, i64) {
    let owner = site.t.sign_in("lab@example.org").await;
    let body = site.t.get(&owner, &format!("/orgs/{}/balance", site.org)).await.expect(200);
    (body["posted_micros"].as_i64().unwrap(), body["held_micros"].as_i64().unwrap())
}

async fn prove_books(site: &Site) {
    let result = site.t.portal.reconciliations.reconcile().await.unwrap();
    assert_eq!(result.mismatches, Vec::<String>::new(), "{}", site.engine);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn three_gateways_pass_exactly_as_many_of_a_thousand_requests_as_the_balance_pays() {
    for site in sites("gateway_race").await {
        site.t.add_price_and_credit(&site.operator, &site.org, 10_000).await;
        add_key(&site.t, &site.org, 1, None).await;
        let (site, done) = (Arc::new(site), Arc::new(AtomicUsize::new(0)));
        let mut tasks = Vec::new();
        for gateway in 0..3_u64 {
            let mut edge = Edge::new(&site, gateway + 1, 1).await;
            let (site, done) = (site.clone(), done.clone());
            let share = gateway * 334..(gateway * 334 + 334).min(1_000);
            tasks.push(tokio::spawn(async move {
                let passed = edge.requests(&site, share).await;
                done.fetch_add(1, Ordering::SeqCst);
                // A gateway without requests still returns what others need.
                while done.load(Ordering::SeqCst) < 3 {
                    edge.exchange(&site).await;
                }
                while edge.exchange(&site).await > 0 {}
                passed
            }));
        }
        let mut passed = 0;
        for task in tasks {
            passed += task.await.unwrap();
        }
        assert_eq!(passed, 10, "{}", site.engine);
        assert_eq!(balance(&site).await, (0, 0), "{}", site.engine);
        prove_books(&site).await;
    }
}

#[tokio::test]
async fn a_block_holds_its_money_and_returns_it_when_its_key_is_revoked() {
    for site in sites("gateway_recall").await {
        let (t, engine) = (&site.t, site.engine);
        // The job costs at most 60,000.
        t.add_price_and_credit(&site.operator, &site.org, 61_000).await;
        let key = add_key(t, &site.org, 1, None).await;
        let mut edge = Edge::new(&site, 1, 1).await;
        assert!(edge.request(&site, 1).await, "{engine}");
        assert_eq!(balance(&site).await, (61_000, 4_000), "{engine}");
        let jobs = format!("/orgs/{}/jobs", site.org);
        t.post(&site.owner, &jobs, job()).await.problem(402, "funds.insufficient");
        prove_books(&site).await;
        run(t, format!("UPDATE inference_keys SET revoked_at = 1 WHERE id = '{key}'")).await;
        while edge.exchange(&site).await > 0 {}
        edge.exchange(&site).await;
        while edge.exchange(&site).await > 0 {}
        assert_eq!(balance(&site).await, (60_000, 0), "{engine}");
        assert!(!edge.request(&site, 2).await, "{engine}: the key is revoked");
        t.post(&site.owner, &jobs, job()).await.expect(201);
        prove_books(&site).await;
    }
}

#[tokio::test]
async fn blocks_of_a_former_life_of_the_gateway_are_not_recalled() {
    for site in sites("gateway_former").await {
        let (t, engine) = (&site.t, site.engine);
        t.add_price_and_credit(&site.operator, &site.org, 1_000_000).await;
        let keys = [add_key(t, &site.org, 1, None).await, add_key(t, &site.org, 2, None).await];
        let mut edge = Edge::new(&site, 1, 1).await;
        assert!(edge.request(&site, 1).await, "{engine}");
        // The gateway starts without its journal, and knows its former blocks no more.
        edge.borrower = Borrower::new(GatewayId(1), 2, TERMS);
        edge.payer.key = KeyId(2);
        assert!(edge.request(&site, 1).await, "{engine}");
        for (key, recalls) in keys.iter().zip([0, 1]) {
            run(t, format!("UPDATE inference_keys SET revoked_at = 1 WHERE id = '{key}'")).await;
            let answers = post(&site, &edge.token, &edge.borrower.messages(t.portal.context.now())).await;
            let recalled = answers.iter().filter(|answer| matches!(answer, ToGateway::Recall { .. })).count();
            assert_eq!(recalled, recalls, "{engine}: {answers:?}");
        }
    }
}

#[tokio::test]
async fn the_budgets_of_a_key_bound_its_requests_by_day_and_in_all() {
    for site in sites("gateway_budgets").await {
        let engine = site.engine;
        site.t.add_price_and_credit(&site.operator, &site.org, 1_000_000).await;
        add_key(&site.t, &site.org, 1, Some((5_000, 7_000))).await;
        let mut edge = Edge::new(&site, 1, 1).await;
        assert_eq!(edge.requests(&site, 0..9).await, 5, "{engine}");
        site.t.clock.advance_s(86_400);
        assert_eq!(edge.requests(&site, 10..19).await, 2, "{engine}");
        site.t.clock.advance_s(86_400);
        assert_eq!(edge.requests(&site, 20..29).await, 0, "{engine}");
        assert_eq!(balance(&site).await, (993_000, 0), "{engine}");
        let spent = number(&site.t, "SELECT CAST(SUM(nanos) AS BIGINT) FROM credit_days").await;
        assert_eq!(spent, 7_000_000, "{engine}");
        prove_books(&site).await;
    }
}

#[tokio::test]
async fn a_refusing_budget_of_the_organization_bounds_blocks_too() {
    for site in sites("gateway_refusals").await {
        let engine = site.engine;
        site.t.add_price_and_credit(&site.operator, &site.org, 1_000_000).await;
        let budget = json!({"name": "All", "limit_micros": 3_000, "at_limit": "refuse"});
        site.t.post(&site.owner, &format!("/orgs/{}/budgets", site.org), budget).await.expect(201);
        add_key(&site.t, &site.org, 1, None).await;
        let mut edge = Edge::new(&site, 1, 1).await;
        assert_eq!(edge.requests(&site, 0..9).await, 3, "{engine}");
        prove_books(&site).await;
    }
}

#[tokio::test]
async fn the_portal_ends_its_wait_for_lost_blocks_and_forgives_later_charges() {
    for site in sites("gateway_lost").await {
        let (t, engine) = (&site.t, site.engine);
        t.add_price_and_credit(&site.operator, &site.org, 100_000).await;
        add_key(t, &site.org, 1, None).await;
        let (mut lost, mut removed) = (Edge::new(&site, 1, 1).await, Edge::new(&site, 2, 1).await);
        for edge in [&mut lost, &mut removed] {
            assert!(edge.request(&site, 1).await, "{engine}");
            edge.exchange(&site).await;
        }
        t.portal.gateway_sync.end_lost_blocks().await.unwrap();
        assert_eq!(balance(&site).await, (100_000, 8_000), "{engine}: both are waited for");
        run(t, "UPDATE gateways SET removed_at = 1 WHERE number = 2".to_owned()).await;
        t.portal.gateway_sync.end_lost_blocks().await.unwrap();
        assert_eq!(balance(&site).await, (99_000, 4_000), "{engine}");
        t.clock.advance_s(600 + 86_400 + 60);
        t.portal.gateway_sync.end_lost_blocks().await.unwrap();
        assert_eq!(balance(&site).await, (98_000, 0), "{engine}");
        let block = berth_autoscaling::credit::BlockId { gateway: GatewayId(1), life: 1, number: 0 };
        let report = Report { block, size: 4 * WORST, spent: 3 * WORST, ending: true };
        let message = ToPortal { content: Content::Report(report), oldest: 0 };
        assert_eq!(post(&site, &lost.token, &[message]).await, [ToGateway::Noted(report)], "{engine}");
        assert_eq!(balance(&site).await, (98_000, 0), "{engine}: it is forgiven");
        prove_books(&site).await;
    }
}

#[tokio::test]
async fn a_hostile_gateway_gets_no_block_of_another_and_no_more_than_is_free() {
    for site in sites("gateway_hostile").await {
        let (t, engine) = (&site.t, site.engine);
        t.add_price_and_credit(&site.operator, &site.org, 10_000).await;
        add_key(t, &site.org, 1, None).await;
        let edge = Edge::new(&site, 1, 1).await;
        let (_, other) = t.tenant("stranger").await;
        let ask = |gateway: u64, number: u64, org: &str, least: u64| {
            json!({"content": {"Ask": {"block": {"gateway": gateway, "life": 1, "number": number},
                "payer": {"org": org, "key": 1}, "least": least, "wish": u64::MAX, "waits": true}}, "oldest": 0})
        };
        let send = async |body: Value| send(&t.router, ("POST", "credit"), &edge.token, body).await;
        for (body, expected) in [
            (json!([ask(2, 0, &site.org, 1)]), 422),
            (json!([ask(1, u64::MAX, &site.org, 1)]), 422),
            (json!(vec![ask(1, 0, &site.org, 1); 2_001]), 422),
            (json!({}), 400),
        ] {
            assert_eq!(send(body).await.0, expected, "{engine}");
        }
        // A key of another organization, and more than the balance.
        for body in [ask(1, 0, &other, 1), ask(1, 1, &site.org, u64::MAX), ask(1, 2, &site.org, 10_000_001)] {
            let (_, _, answer) = send(json!([body])).await;
            assert_eq!(answer[0]["Grant"]["size"], 0, "{engine}: {answer}");
        }
        assert_eq!(balance(&site).await, (10_000, 0), "{engine}");
        // A granted block is never more than half of what is free, and a report of more charges its size.
        let (_, _, answer) = send(json!([ask(1, 3, &site.org, 1)])).await;
        assert_eq!(answer[0]["Grant"]["size"], 5_000_000, "{engine}: {answer}");
        let block = json!({"gateway": 1, "life": 1, "number": 3});
        let report = json!({"block": block, "size": u64::MAX, "spent": u64::MAX, "ending": true});
        let (status, _, _) = send(json!([{"content": {"Report": report}, "oldest": 3}])).await;
        assert_eq!((status, balance(&site).await), (200, (5_000, 0)), "{engine}");
        prove_books(&site).await;
    }
}

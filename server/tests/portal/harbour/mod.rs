//! A portal with boards that nobody runs: for what is promised on them and what time does to it.

use berth_foundation::live::SessionGuard;
use berth_store::nodes::{GpuReport, NodeReport};
use berth_store::{self as store, Db};
use berth_types::ids::NodeId;
use berth_types::time::Timestamp;
use futures::FutureExt;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::common::{self, As, TestPortal};

pub const HOUR: i64 = 3_600;
pub const DAY: i64 = 24 * HOUR;

/// A portal with two nodes of two boards each, whose workers are connected and never do anything.
pub struct Harbour {
    pub t: TestPortal,
    pub operator: As,
    pub ada: As,
    pub org: String,
    pub bob: As,
    pub other: String,
    pub sessions: Vec<SessionGuard>,
}

pub fn node(n: u128) -> NodeId {
    NodeId::from_uuid(Uuid::from_u128(n))
}

impl Harbour {
    pub async fn on(db: Db) -> Self {
        Self::of(TestPortal::on(db)).await
    }

    /// Around a portal whose clock was set before.
    pub async fn of(t: TestPortal) -> Self {
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        let (bob, other) = t.tenant("bobs").await;
        t.stock(&operator, &org, 10_000_000_000).await;
        let credit = json!({"amount_micros": 10_000_000_000i64});
        t.post(&operator, &format!("/operator/orgs/{other}/credits"), credit).await.expect(201);
        let mut harbour = Self { t, operator, ada, org, bob, other, sessions: Vec::new() };
        harbour.price(3_600_000).await;
        for n in 1..=2 {
            let at = harbour.t.portal.context.now();
            let join = harbour.t.portal.context.db.write(move |tx| {
                async move {
                    let name = format!("node-{n}");
                    store::nodes::insert(tx, node(n), &name, at).await
                }
                .boxed()
            });
            join.await.unwrap();
            harbour.report(n).await;
            harbour.sessions.push(harbour.t.portal.context.live.open_session(node(n)));
        }
        harbour
    }

    pub async fn report(&self, n: u128) {
        self.report_with(n, false).await;
    }

    /// As a worker that runs images, or none.
    pub async fn report_with(&self, n: u128, images: bool) {
        let board = |i: u32| GpuReport {
            uuid: format!("GPU-{n}-{i}"),
            index: i64::from(i),
            model: "H100-80GB".to_owned(),
            memory_mib: 81_920,
            mig_enabled: false,
            nvlink_island: 0,
            foreign_instances: "[]".to_owned(),
        };
        let report = NodeReport {
            simulated: true,
            unisolated: false,
            driver_version: "550".to_owned(),
            worker_version: "0.1".to_owned(),
            cpu_milli: 64_000,
            memory_mib: 512_000,
            address: "10.0.0.1".to_owned(),
            labels: "{}".to_owned(),
            isolation: "{}".to_owned(),
            images,
            boards: (0..2).map(board).collect(),
        };
        self.t.portal.nodes.report_node(node(n), report).await.unwrap();
    }

    pub async fn price(&self, per_hour_micros: i64) {
        let price = json!({"offering": "h100-80gb", "per_hour_micros": per_hour_micros});
        self.t.post(&self.operator, "/operator/prices", price).await.expect(201);
    }

    /// `seconds` from now.
    pub fn at(&self, seconds: i64) -> Timestamp {
        self.t.portal.context.now().plus_seconds(seconds)
    }

    pub fn ask(&self, nodes: u32, gpus: u32, from: Timestamp, until: Timestamp) -> Value {
        json!({"offering": "h100-80gb", "nodes": nodes, "gpus_per_node": gpus, "starts_at": from, "ends_at": until})
    }

    pub async fn quote(&self, body: Value) -> Value {
        self.t.post(&self.ada, &format!("/orgs/{}/quotes", self.org), body).await.expect(201)
    }

    pub async fn confirm(&self, quote: &Value) -> common::Reply {
        let body = json!({"quote": quote["id"], "name": "training week"});
        self.t.post(&self.ada, &format!("/orgs/{}/reservations", self.org), body).await
    }

    pub async fn reserve(&self, nodes: u32, gpus: u32, from: Timestamp, until: Timestamp) -> Value {
        let quote = self.quote(self.ask(nodes, gpus, from, until)).await;
        self.confirm(&quote).await.expect(201)["items"][0].clone()
    }

    pub async fn reservation(&self, r: &Value) -> Value {
        let path = format!("/orgs/{}/reservations/{}", self.org, r["id"].as_str().unwrap());
        self.t.get(&self.ada, &path).await.expect(200)
    }

    pub async fn cancel(&self, r: &Value) -> common::Reply {
        let path = format!("/orgs/{}/reservations/{}/cancel", self.org, r["id"].as_str().unwrap());
        self.t.post(&self.ada, &path, Value::Null).await
    }

    pub async fn policy(&self, policy: Value) {
        let mut whole = json!({
            "cancel_free_before_s": 86_400, "late_cancel_percent": 50, "early_release_percent": 50,
            "quote_valid_s": 900,
        });
        whole.as_object_mut().unwrap().extend(policy.as_object().unwrap().clone());
        self.t.call(&self.operator, "PUT", "/operator/reservation-policy", whole).await.expect(200);
    }

    /// Moves the clock and does what is then due. Sessions of people end meanwhile, so they sign in again.
    pub async fn pass(&mut self, seconds: i64) {
        self.t.clock.advance_s(seconds);
        self.ada = self.t.sign_in("lab@example.org").await;
        self.bob = self.t.sign_in("bobs@example.org").await;
        self.operator = self.t.sign_in("harbour@example.org").await;
        self.t.portal.reservations.tick_reservations().await.unwrap();
    }

    pub async fn balance(&self) -> (i64, i64) {
        let balance = self.t.get(&self.ada, &format!("/orgs/{}/balance", self.org)).await.expect(200);
        (balance["posted_micros"].as_i64().unwrap(), balance["held_micros"].as_i64().unwrap())
    }

    pub async fn books_are_right(&self) {
        let mut conn = self.t.portal.context.db.read().await.unwrap();
        assert_eq!(store::ledger::mismatches(&mut conn.tx()).await.unwrap(), Vec::<String>::new());
    }
}

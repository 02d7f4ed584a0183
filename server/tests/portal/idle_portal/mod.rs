//! A portal with idle nodes, for tests of placement, reservations and time.

use berth_foundation::live::SessionGuard;
use berth_store::gangs::GangPorts;
use berth_store::nodes::{GpuReport, NodeReport};
use berth_store::types::JsonColumn;
use berth_store::{self as store, Db};
use berth_types::ids::NodeId;
use berth_types::nodes::HostMount;
use berth_types::rdma::RdmaPort;
use berth_types::time::Timestamp;
use futures::FutureExt;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::common::{self, Caller, TestPortal};
use crate::stores::insert_node;

pub const HOUR: i64 = 3_600;
pub const DAY: i64 = 24 * HOUR;

/// The equipment of a node besides its boards.
#[derive(Debug, Default)]
pub struct Equipment {
    pub images: bool,
    pub egress: bool,
    pub host_network: bool,
    pub gang_ports: Option<GangPorts>,
    pub rdma_ports: Vec<RdmaPort>,
    pub checks_rdma_links: bool,
    /// The names of its host mounts.
    pub mounts: Vec<&'static str>,
}

/// A portal with two connected nodes of two boards each, whose workers run nothing.
pub struct IdlePortal {
    pub t: TestPortal,
    pub operator: Caller,
    pub ada: Caller,
    /// The id of Ada's organization.
    pub org: String,
    pub bob: Caller,
    /// The id of Bob's organization.
    pub other: String,
    pub sessions: Vec<SessionGuard>,
}

pub fn node(n: u128) -> NodeId {
    NodeId::from_uuid(Uuid::from_u128(n))
}

impl IdlePortal {
    pub async fn on(db: Db) -> Self {
        Self::with_portal(TestPortal::on(db)).await
    }

    /// Uses a portal whose clock may be set before.
    pub async fn with_portal(t: TestPortal) -> Self {
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        let (bob, other) = t.tenant("bobs").await;
        t.add_price_and_credit(&operator, &org, 10_000_000_000).await;
        let credit = json!({"amount_micros": 10_000_000_000i64});
        t.post(&operator, &format!("/operator/orgs/{other}/credits"), credit).await.expect(201);
        let mut setup = Self { t, operator, ada, org, bob, other, sessions: Vec::new() };
        setup.set_price(3_600_000).await;
        for n in 1..=2 {
            let at = setup.t.portal.context.now();
            let join = setup.t.portal.context.db.write(move |tx| {
                async move {
                    let name = format!("node-{n}");
                    insert_node(tx, node(n), &name, at).await
                }
                .boxed()
            });
            join.await.unwrap();
            setup.report(n).await;
            setup.sessions.push(setup.t.portal.context.live.open_session(node(n)));
        }
        setup
    }

    pub async fn report(&self, n: u128) {
        self.report_with_images(n, false).await;
    }

    /// Reports the node with or without support for images.
    pub async fn report_with_images(&self, n: u128, images: bool) {
        self.report_equipped(n, Equipment { images, ..Equipment::default() }).await;
    }

    /// Reports the node with this equipment.
    pub async fn report_equipped(&self, n: u128, equipment: Equipment) {
        let Equipment { images, egress, host_network, gang_ports, rdma_ports, checks_rdma_links, mounts } =
            equipment;
        let mount = |name: &&str| HostMount {
            name: (*name).to_owned(),
            file_system: "lustre".to_owned(),
            total_bytes: 4 << 40,
            free_bytes: 1 << 40,
        };
        let board = |i: u32| GpuReport {
            uuid: format!("GPU-{n}-{i}"),
            index: i64::from(i),
            model: "H100-80GB".to_owned(),
            memory_mib: 81_920,
            mig_enabled: false,
            nvlink_island: 0,
            foreign_instances: JsonColumn::default(),
        };
        let report = NodeReport {
            simulated: true,
            unisolated: false,
            driver_version: "550".to_owned(),
            worker_version: "0.1".to_owned(),
            cpu_milli: 64_000,
            memory_mib: 512_000,
            address: "10.0.0.1".to_owned(),
            labels: JsonColumn::default(),
            isolation: JsonColumn::default(),
            images,
            gang_ports,
            rdma_ports: JsonColumn(rdma_ports),
            egress,
            host_network,
            host_mounts: JsonColumn(mounts.iter().map(mount).collect()),
            checks_rdma_links,
            inference_port: 0,
            boards: (0..2).map(board).collect(),
        };
        self.t.portal.nodes.report_node(node(n), report).await.unwrap();
    }

    pub async fn set_price(&self, per_hour_micros: i64) {
        let price = json!({"offering": "h100-80gb", "per_hour_micros": per_hour_micros});
        self.t.post(&self.operator, "/operator/prices", price).await.expect(201);
    }

    /// Returns the time `seconds` from now.
    pub fn at(&self, seconds: i64) -> Timestamp {
        self.t.portal.context.now().plus_seconds(seconds)
    }

    pub fn quote_request(&self, nodes: u32, gpus: u32, from: Timestamp, until: Timestamp) -> Value {
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
        let quote = self.quote(self.quote_request(nodes, gpus, from, until)).await;
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

    pub async fn set_policy(&self, policy: Value) {
        let mut whole = json!({
            "cancel_free_before_s": 86_400, "late_cancel_percent": 50, "early_release_percent": 50,
            "quote_valid_s": 900,
        });
        whole.as_object_mut().unwrap().extend(policy.as_object().unwrap().clone());
        self.t.call(&self.operator, "PUT", "/operator/reservation-policy", whole).await.expect(200);
    }

    /// Advances the clock and runs the due reservation work. Sign-in sessions may have expired, so the users
    /// sign in again.
    pub async fn let_time_pass(&mut self, seconds: i64) {
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

    pub async fn assert_books_balance(&self) {
        let mut conn = self.t.portal.context.db.read().await.unwrap();
        assert_eq!(store::ledger::mismatches(&mut conn.tx()).await.unwrap(), Vec::<String>::new());
    }
}

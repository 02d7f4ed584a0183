//! A gateway between a portal, replicas and callers, all in one test.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use berth_gateway::settings::{GatewayToken, Limits, PortalUrl, Settings};
use berth_serving::snapshot::{
    Access, Address, Allowed, Key, KeyHash, Model, Name, Protocol, RateLimits, Replica, ReplicaProtocol,
    Revision, Service, Snapshot, VERSION,
};
use berth_types::ids::{InferenceKeyId, RevisionId, ServiceId};
use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::portal::{Portal, TOKEN};
use crate::replica::{Authority, ORG};

pub const KEY: &str = "sk-berth-one";

pub fn name(text: &str) -> Name {
    Name::try_from(text.to_owned()).unwrap()
}

/// The service with a model, at `/s/kelda/chat`.
pub fn chat(replicas: Vec<Replica>) -> Service {
    Service {
        id: ServiceId::from_uuid(Uuid::from_u128(1)),
        org: ORG,
        name: name("chat"),
        access: Access::Organization,
        protocol: Protocol::OpenAi,
        addresses: vec![Address::Prefix(name("/s/kelda/chat"))],
        models: vec![Model { name: name("llama"), context_tokens: 4_096 }],
        max_body_bytes: 10_000,
        nano_per_prompt_token: 0,
        nano_per_completion_token: 0,
        revisions: vec![revision(1, replicas)],
    }
}

/// A plain service that is public, at `/s/kelda/digits`.
pub fn digits(replicas: Vec<Replica>) -> Service {
    Service {
        id: ServiceId::from_uuid(Uuid::from_u128(2)),
        name: name("digits"),
        access: Access::Public,
        protocol: Protocol::Http,
        addresses: vec![Address::Prefix(name("/s/kelda/digits"))],
        models: Vec::new(),
        revisions: vec![revision(2, replicas)],
        ..chat(Vec::new())
    }
}

fn revision(number: u128, replicas: Vec<Replica>) -> Revision {
    let id = RevisionId::from_uuid(Uuid::from_u128(number));
    Revision {
        id,
        weight_percent: 100,
        replica_protocol: ReplicaProtocol::Http1,
        pinned_keys: Vec::new(),
        replicas,
    }
}

pub fn key(secret: &str) -> Key {
    Key {
        id: InferenceKeyId::from_uuid(Uuid::from_u128(1)),
        number: 1,
        org: ORG,
        hash: KeyHash::new(secret),
        allowed: Allowed::All,
        limits: RateLimits::default(),
        expires_at: None,
    }
}

pub fn snapshot(authority: &Authority, services: Vec<Service>, keys: Vec<Key>) -> Snapshot {
    Snapshot {
        version: VERSION,
        number: 0,
        gateway_number: 7,
        authority: authority.pem.clone(),
        services,
        keys,
    }
}

/// A gateway with its portal.
pub struct Stage {
    pub authority: Authority,
    pub portal: Arc<Portal>,
    pub data: TempDir,
    pub at: SocketAddr,
    pub client: reqwest::Client,
    stop: Option<oneshot::Sender<()>>,
    gateway: JoinHandle<Result<(), String>>,
}

/// The limits of gateways in tests.
pub fn limits() -> Limits {
    Limits { head: Duration::from_millis(500), drain: Duration::from_secs(20), ..Limits::default() }
}

fn settings(portal: &Portal, data: &TempDir, limits: Limits) -> Settings {
    Settings {
        portal: PortalUrl::parse(&format!("http://{}", portal.at)).unwrap(),
        token: GatewayToken::parse(TOKEN).unwrap(),
        portal_ca: None,
        data: data.path().to_owned(),
        limits,
    }
}

async fn start(settings: Settings) -> (SocketAddr, oneshot::Sender<()>, JoinHandle<Result<(), String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let stopped = async move {
        let _ = stopped.await;
    };
    (at, stop, tokio::spawn(berth_gateway::run(settings, listener, None, stopped)))
}

impl Stage {
    pub async fn new() -> Self {
        Self::with(limits()).await
    }

    pub async fn with(limits: Limits) -> Self {
        let (portal, data) = (Portal::start().await, tempfile::tempdir().unwrap());
        // A gateway closes an idle connection after `head`. A request at that moment would meet the end.
        let idle = limits.head / 4;
        let (at, stop, gateway) = start(settings(&portal, &data, limits)).await;
        // The gateway has installed the cryptography of all clients.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder().no_proxy().pool_idle_timeout(idle).build().unwrap();
        Self { authority: Authority::new(), portal, data, at, client, stop: Some(stop), gateway }
    }

    /// Publishes a snapshot, and waits until the gateway uses it.
    pub async fn publish(&self, services: Vec<Service>, keys: Vec<Key>) {
        self.portal.publish(snapshot(&self.authority, services, keys));
        let number = self.portal.number();
        let uses = || async { self.metric("berth_gateway_snapshot_number").await == Some(number as f64) };
        eventually("the gateway to use the snapshot", uses).await;
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.at)
    }

    pub fn get(&self, path: &str) -> reqwest::RequestBuilder {
        self.client.get(self.url(path))
    }

    /// A request to the model.
    pub fn ask(&self, secret: &str, body: &serde_json::Value) -> reqwest::RequestBuilder {
        self.client.post(self.url("/v1/chat/completions")).bearer_auth(secret).json(body)
    }

    pub async fn metric(&self, name: &str) -> Option<f64> {
        let text = self.get("/metrics").send().await.unwrap().text().await.unwrap();
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    }

    /// Stops the gateway in order.
    pub async fn stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        (&mut self.gateway).await.unwrap().unwrap();
    }

    /// Starts the gateway again with its data.
    pub async fn restart(&mut self) {
        let (at, stop, gateway) = start(settings(&self.portal, &self.data, limits())).await;
        (self.at, self.stop, self.gateway) = (at, Some(stop), gateway);
    }
}

/// The head of an answer, in lower case.
pub async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let whole = async {
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
    };
    tokio::time::timeout(Duration::from_secs(20), whole).await.unwrap();
    String::from_utf8(head).unwrap().to_ascii_lowercase()
}

/// Waits until a condition holds.
pub async fn eventually<F: Future<Output = bool>>(what: &str, holds: impl Fn() -> F) {
    let all = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(20), all).await.is_ok(), "waited for {what}");
}

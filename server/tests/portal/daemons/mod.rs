//! Worker daemons that a test plays: certificates, sessions, and the portal's view of their nodes.

use std::time::Duration;

use berth_proto::portal_client::PortalClient;
use berth_proto::{
    Assignment, Certificate, Hello, JoinRequest, PortalMessage, WorkerMessage, portal_message, worker_message,
};
use berth_session::identity;
use berth_session::tls::{ClientCertificate, PortalConnector};
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Status, Streaming};

use crate::worker_portal::WorkerPortal;

pub fn certificate_request() -> (Vec<u8>, Vec<u8>) {
    let key = KeyPair::generate().unwrap();
    let csr = CertificateParams::default().serialize_request(&key).unwrap();
    (key.serialize_der(), csr.der().to_vec())
}

/// The certificate and key of a node.
#[derive(Clone)]
pub struct NodeCredentials {
    pub node: String,
    pub chain: Vec<Vec<u8>>,
    pub key: Vec<u8>,
}

impl NodeCredentials {
    pub fn from_certificate(certificate: Certificate, key: Vec<u8>) -> Self {
        Self { node: certificate.node, chain: certificate.chain, key }
    }

    fn own(&self) -> ClientCertificate {
        let key: PrivateKeyDer<'static> = PrivatePkcs8KeyDer::from(self.key.clone()).into();
        ClientCertificate { chain: self.chain.iter().cloned().map(CertificateDer::from).collect(), key }
    }
}

pub fn way(setup: &WorkerPortal, credentials: Option<&NodeCredentials>) -> PortalConnector {
    let fingerprint = setup.t.portal.enrolment.authority().unwrap().fingerprint();
    PortalConnector::new(
        identity::endpoint(&setup.address).unwrap(),
        &fingerprint,
        credentials.map(NodeCredentials::own),
    )
    .unwrap()
}

/// Joins with a token, as the node `former` unless it is empty.
pub async fn join(setup: &WorkerPortal, token: &str, former: &str) -> Result<NodeCredentials, Status> {
    let (key, csr) = certificate_request();
    let ask =
        JoinRequest { token: token.to_owned(), name: "played".to_owned(), csr, node: former.to_owned() };
    let mut client = PortalClient::new(way(setup, None).connect().await.unwrap());
    Ok(NodeCredentials::from_certificate(client.join(ask).await?.into_inner(), key))
}

pub async fn join_new_node(setup: &WorkerPortal) -> NodeCredentials {
    join(setup, &setup.join_token(json!({})).await, "").await.unwrap()
}

pub async fn rejoin_token(setup: &WorkerPortal, node: &str) -> String {
    let path = format!("/operator/nodes/{node}/join-token");
    let made = setup.t.post(&setup.operator, &path, json!({"approve": true})).await.expect(201);
    made["secret"].as_str().unwrap().to_owned()
}

/// A session with the test in the role of the daemon.
pub struct PlayedSession {
    pub up: mpsc::UnboundedSender<WorkerMessage>,
    down: Streaming<PortalMessage>,
}

impl PlayedSession {
    pub async fn open(
        setup: &WorkerPortal,
        credentials: Option<&NodeCredentials>,
        (instance, epoch, connection): (&str, i64, i64),
    ) -> Result<Self, Status> {
        let hello = Hello { instance: instance.to_owned(), epoch, connection, ..Hello::default() };
        Self::open_with_hello(setup, credentials, hello).await
    }

    pub async fn open_with_hello(
        setup: &WorkerPortal,
        credentials: Option<&NodeCredentials>,
        hello: Hello,
    ) -> Result<Self, Status> {
        let (up, queue) = mpsc::unbounded_channel();
        up.send(worker_message::Body::Hello(hello).into()).unwrap();
        let channel = way(setup, credentials).connect().await.map_err(Status::unavailable)?;
        let down = PortalClient::new(channel).session(UnboundedReceiverStream::new(queue)).await?;
        Ok(Self { up, down: down.into_inner() })
    }

    /// Returns the next message other than a probe; probes are answered if `alive` is true. `None` after the
    /// end of the session.
    pub async fn next(&mut self, alive: bool) -> Result<Option<PortalMessage>, Status> {
        loop {
            let message =
                tokio::time::timeout(Duration::from_secs(20), self.down.message()).await.unwrap()?;
            match message {
                Some(PortalMessage { body: Some(portal_message::Body::Probe(probe)) }) => {
                    if alive {
                        // The portal may have ended the session.
                        let _ = self.up.send(worker_message::Body::Probe(probe).into());
                    }
                }
                other => return Ok(other),
            }
        }
    }

    pub async fn expect_admitted(mut self) -> Self {
        let first = self.next(true).await.unwrap();
        assert!(
            matches!(first, Some(PortalMessage { body: Some(portal_message::Body::DesiredState(_)) })),
            "{first:?}"
        );
        self
    }

    /// Answers probes in a task until the session ends.
    pub fn keep_alive(mut self) -> tokio::task::JoinHandle<Result<(), Status>> {
        tokio::spawn(async move {
            while self.next(true).await?.is_some() {}
            Ok(())
        })
    }

    /// Returns the first result of `matching` for a message of the portal.
    pub async fn next_matching<T>(&mut self, matching: impl Fn(portal_message::Body) -> Option<T>) -> T {
        loop {
            let message = self.next(true).await.unwrap().unwrap().body.unwrap();
            if let Some(found) = matching(message) {
                return found;
            }
        }
    }

    /// Returns the desired attempts once their number is `count`.
    pub async fn desired(&mut self, count: usize) -> Vec<Assignment> {
        self.next_matching(|body| match body {
            portal_message::Body::DesiredState(desired) => {
                Some(desired.attempts).filter(|all| all.len() == count)
            }
            _ => None,
        })
        .await
    }

    pub async fn expect_refused(mut self, alive: bool) -> Status {
        self.next(alive).await.unwrap_err()
    }
}

pub async fn get_node(setup: &WorkerPortal, node: &str) -> Value {
    let nodes = setup.t.get(&setup.operator, "/operator/nodes").await.expect(200);
    nodes["items"].as_array().unwrap().iter().find(|n| n["id"] == node).unwrap().clone()
}

/// The number of nodes in the overview that may have been copied.
pub async fn copied_nodes(setup: &WorkerPortal) -> usize {
    let overview = setup.t.get(&setup.operator, "/operator/overview").await.expect(200);
    overview["cluster"]["notices"].as_array().unwrap().iter().filter(|n| n["may_be_copied"] == true).count()
}

pub async fn count_audit_events(setup: &WorkerPortal, action: &str, node: &str) -> usize {
    let events = setup.t.get(&setup.operator, "/operator/audit-events").await.expect(200);
    let matches = |e: &&Value| e["action"] == action && e["subject"] == node;
    events["items"].as_array().unwrap().iter().filter(matches).count()
}

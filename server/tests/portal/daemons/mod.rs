//! Daemons of workers that the test plays: their certificates, sessions in which they say what it wants, and
//! what the portal says of their nodes.

use std::time::Duration;

use berth_proto::portal_client::PortalClient;
use berth_proto::{Assignment, Certificate, Down, Hello, JoinRequest, Up, down, up};
use berth_worker::identity;
use berth_worker::tls::{Own, Way};
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Status, Streaming};

use crate::quay::Quay;

pub fn request() -> (Vec<u8>, Vec<u8>) {
    let key = KeyPair::generate().unwrap();
    let csr = CertificateParams::default().serialize_request(&key).unwrap();
    (key.serialize_der(), csr.der().to_vec())
}

/// A node without a daemon: its certificate and key.
#[derive(Clone)]
pub struct Holder {
    pub node: String,
    pub chain: Vec<Vec<u8>>,
    pub key: Vec<u8>,
}

impl Holder {
    pub fn of(certificate: Certificate, key: Vec<u8>) -> Self {
        Self { node: certificate.node, chain: certificate.chain, key }
    }

    fn own(&self) -> Own {
        let key: PrivateKeyDer<'static> = PrivatePkcs8KeyDer::from(self.key.clone()).into();
        Own { chain: self.chain.iter().cloned().map(CertificateDer::from).collect(), key }
    }
}

pub fn way(quay: &Quay, holder: Option<&Holder>) -> Way {
    let fingerprint = quay.t.portal.enrolment.authority().unwrap().fingerprint();
    Way::new(identity::endpoint(&quay.address).unwrap(), &fingerprint, holder.map(Holder::own)).unwrap()
}

/// Joins with a token, as the host of `former` if it is one's.
pub async fn join(quay: &Quay, token: &str, former: &str) -> Result<Holder, Status> {
    let (key, csr) = request();
    let ask =
        JoinRequest { token: token.to_owned(), name: "played".to_owned(), csr, node: former.to_owned() };
    let mut client = PortalClient::new(way(quay, None).connect().await.unwrap());
    Ok(Holder::of(client.join(ask).await?.into_inner(), key))
}

pub async fn joined(quay: &Quay) -> Holder {
    join(quay, &quay.join_token(json!({})).await, "").await.unwrap()
}

pub async fn node_token(quay: &Quay, node: &str) -> String {
    let path = format!("/operator/nodes/{node}/join-token");
    let made = quay.t.post(&quay.operator, &path, json!({})).await.expect(201);
    made["secret"].as_str().unwrap().to_owned()
}

/// A session whose daemon is played by the test.
pub struct Talk {
    pub up: mpsc::UnboundedSender<Up>,
    down: Streaming<Down>,
}

impl Talk {
    pub async fn open(
        quay: &Quay,
        holder: Option<&Holder>,
        (instance, epoch, connection): (&str, i64, i64),
    ) -> Result<Self, Status> {
        let hello = Hello { instance: instance.to_owned(), epoch, connection, ..Hello::default() };
        Self::begin(quay, holder, hello).await
    }

    pub async fn begin(quay: &Quay, holder: Option<&Holder>, hello: Hello) -> Result<Self, Status> {
        let (up, queue) = mpsc::unbounded_channel();
        up.send(up::What::Hello(hello).into()).unwrap();
        let channel = way(quay, holder).connect().await.map_err(Status::unavailable)?;
        let down = PortalClient::new(channel).session(UnboundedReceiverStream::new(queue)).await?;
        Ok(Self { up, down: down.into_inner() })
    }

    /// The next message but signs of life, which are answered when `alive`. `None`: the session ended.
    pub async fn next(&mut self, alive: bool) -> Result<Option<Down>, Status> {
        loop {
            let message =
                tokio::time::timeout(Duration::from_secs(20), self.down.message()).await.unwrap()?;
            match message {
                Some(Down { what: Some(down::What::Probe(probe)) }) => {
                    if alive {
                        // The portal may have ended the session.
                        let _ = self.up.send(up::What::Probe(probe).into());
                    }
                }
                other => return Ok(other),
            }
        }
    }

    pub async fn let_in(mut self) -> Self {
        let first = self.next(true).await.unwrap();
        assert!(matches!(first, Some(Down { what: Some(down::What::Desired(_)) })), "{first:?}");
        self
    }

    /// Answers until the session ends, from a task of its own.
    pub fn lives(mut self) -> tokio::task::JoinHandle<Result<(), Status>> {
        tokio::spawn(async move {
            while self.next(true).await?.is_some() {}
            Ok(())
        })
    }

    /// What the portal says, once it is about this.
    pub async fn heard<T>(&mut self, what: impl Fn(down::What) -> Option<T>) -> T {
        loop {
            let said = self.next(true).await.unwrap().unwrap().what.unwrap();
            if let Some(found) = what(said) {
                return found;
            }
        }
    }

    /// What is desired, once that is so many attempts.
    pub async fn desired(&mut self, count: usize) -> Vec<Assignment> {
        self.heard(|what| match what {
            down::What::Desired(desired) => Some(desired.attempts).filter(|all| all.len() == count),
            _ => None,
        })
        .await
    }

    pub async fn refused(mut self, alive: bool) -> Status {
        self.next(alive).await.unwrap_err()
    }
}

pub async fn the_node(quay: &Quay, node: &str) -> Value {
    let nodes = quay.t.get(&quay.operator, "/operator/nodes").await.expect(200);
    nodes["items"].as_array().unwrap().iter().find(|n| n["id"] == node).unwrap().clone()
}

pub async fn audited(quay: &Quay, action: &str, node: &str) -> usize {
    let events = quay.t.get(&quay.operator, "/operator/audit-events").await.expect(200);
    let of = |e: &&Value| e["action"] == action && e["subject"] == node;
    events["items"].as_array().unwrap().iter().filter(of).count()
}

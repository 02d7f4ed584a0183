//! A replica in a test: a plain HTTP server of one process, and the TLS listener of its node's worker before it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use berth_serving::snapshot::{Replica, ReplicaId, ReplicaToken};
use berth_types::ids::{JobId, NodeId, OrgId};
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, SanType,
};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio::task::{AbortHandle, JoinSet};
use tokio_rustls::TlsAcceptor;
use uuid::Uuid;

pub const ORG: OrgId = OrgId::from_uuid(Uuid::from_u128(1));

/// The authority of the workers.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub pem: String,
}

impl Authority {
    pub fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "Authority of a test");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// The TLS of the worker of a node, with a certificate as the portal issues it.
    fn acceptor(&self, node: NodeId) -> TlsAcceptor {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        let uri = Ia5String::try_from(format!("berth://node/{node}")).unwrap();
        params.subject_alt_names = vec![SanType::URI(uri)];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let certificate: CertificateDer<'static> = params.signed_by(&key, &self.issuer).unwrap().into();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], PrivateKeyDer::from(key))
            .unwrap();
        config.alpn_protocols = vec![b"berth-replica/1".to_vec()];
        TlsAcceptor::from(Arc::new(config))
    }
}

/// A request as a replica sees it, with its head in lower case.
#[derive(Debug, Clone)]
pub struct Seen {
    pub head: String,
    pub body: String,
}

/// The end of a stream of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Whole,
    /// The connection breaks.
    Broken,
    /// Nothing follows, until the reader leaves.
    Open,
    /// The rest follows as soon as the gate opens.
    Gated(&'static str),
}

/// The answer of a replica.
#[derive(Debug, Clone)]
pub enum Reply {
    /// In JSON.
    Whole(u16, String),
    /// Bytes of a body that states more of them.
    Short(String),
    Events(String, End),
    /// The connection ends without an answer.
    Nothing,
    /// Another protocol, which repeats its input.
    Echo,
}

type Handler = Arc<dyn Fn(&Seen) -> Reply + Send + Sync>;

/// The server of a replica.
#[derive(Clone)]
pub struct Server {
    pub seen: Arc<Mutex<Vec<Seen>>>,
    /// A permit for each answer, if the server is gated.
    pub gate: Option<Arc<Semaphore>>,
    /// A reader of an open stream has left.
    pub left: Arc<Notify>,
    handler: Handler,
}

impl Server {
    pub fn new(handler: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        Self { seen: Arc::default(), gate: None, left: Arc::default(), handler: Arc::new(handler) }
    }

    pub fn whole(text: &'static str) -> Self {
        Self::new(move |_| Reply::Whole(200, text.to_owned()))
    }

    pub fn gated(self) -> Self {
        Self { gate: Some(Arc::new(Semaphore::new(0))), ..self }
    }

    pub fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    async fn listen(self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(self.clone().serve(stream));
            }
        });
        at
    }

    /// Answers the requests of one connection.
    async fn serve(self, mut stream: TcpStream) {
        while let Some(seen) = read_request(&mut stream).await {
            let reply = (self.handler)(&seen);
            self.seen.lock().unwrap().push(seen);
            if let (Some(gate), false) = (&self.gate, matches!(reply, Reply::Events(_, End::Gated(_)))) {
                gate.acquire().await.unwrap().forget();
            }
            if !self.answer(&mut stream, reply).await {
                return;
            }
        }
    }

    /// Returns true if the connection takes another request.
    async fn answer(&self, stream: &mut TcpStream, reply: Reply) -> bool {
        let head = |status: u16, rest: &str| format!("HTTP/1.1 {status} Status\r\n{rest}\r\n");
        let (parts, end) = match reply {
            Reply::Whole(status, text) => {
                let rest = format!("content-type: application/json\r\ncontent-length: {}\r\n", text.len());
                return stream.write_all(format!("{}{text}", head(status, &rest)).as_bytes()).await.is_ok();
            }
            Reply::Short(text) => {
                let rest = "content-type: application/octet-stream\r\ncontent-length: 1000\r\n";
                let _ = stream.write_all(format!("{}{text}", head(200, rest)).as_bytes()).await;
                return false;
            }
            Reply::Nothing => return false,
            Reply::Echo => {
                let rest = "connection: upgrade\r\nupgrade: echo\r\n";
                stream.write_all(head(101, rest).as_bytes()).await.unwrap();
                let (mut from, mut to) = stream.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
                let _ = to.shutdown().await;
                return false;
            }
            Reply::Events(text, end) => (text, end),
        };
        let rest = "content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n";
        let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
        let begin = format!("{}{}", head(200, rest), chunk(&parts));
        stream.write_all(begin.as_bytes()).await.unwrap();
        match end {
            End::Whole => stream.write_all(b"0\r\n\r\n").await.is_ok(),
            End::Broken => false,
            End::Open => {
                let _ = stream.read_u8().await;
                self.left.notify_one();
                false
            }
            End::Gated(rest) => {
                let gate = self.gate.as_ref().unwrap();
                gate.acquire().await.unwrap().forget();
                stream.write_all(format!("{}0\r\n\r\n", chunk(rest)).as_bytes()).await.is_ok()
            }
        }
    }
}

/// Reads a request whose body has a stated length.
async fn read_request(stream: &mut TcpStream) -> Option<Seen> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).await.ok()?;
    Some(Seen { head, body: String::from_utf8(body).unwrap() })
}

/// The worker before a replica.
pub struct Worker {
    pub replica: Replica,
    /// The answer to the next tokens; 0 connects.
    pub status: Arc<AtomicU32>,
    /// Connections until now.
    pub connections: Arc<AtomicUsize>,
    /// Sessions of TLS until now.
    pub sessions: Arc<AtomicUsize>,
    /// Its abort ends the listener with all connections.
    pub listening: AbortHandle,
}

impl Worker {
    /// Starts the listener of a node with one replica.
    pub async fn start(authority: &Authority, number: u128, server: &Server) -> Self {
        let node = NodeId::from_uuid(Uuid::from_u128(number));
        Self::start_as(authority, (node, node), number, server).await
    }

    /// Starts the listener of a node that has the certificate of `named`.
    pub async fn start_as(
        authority: &Authority,
        (node, named): (NodeId, NodeId),
        number: u128,
        server: &Server,
    ) -> Self {
        Self::start_at(authority, (node, named), number, server.clone().listen().await).await
    }

    /// Starts the listener of a node with a replica at this port.
    pub async fn start_at(
        authority: &Authority,
        (node, named): (NodeId, NodeId),
        number: u128,
        port: SocketAddr,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let replica = Replica {
            id: ReplicaId { job: JobId::from_uuid(Uuid::from_u128(number)), attempt: 1, rank: 0 },
            org: ORG,
            node,
            address: listener.local_addr().unwrap(),
            port: port.port(),
            token: ReplicaToken::try_from(format!("token-{number}")).unwrap(),
            ready_for_ms: 3_600_000,
            concurrency: 4,
            draining: false,
        };
        let (status, connections) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicUsize::new(0)));
        let (acceptor, token) = (authority.acceptor(named), replica.token.clone());
        let (answers, counted) = (status.clone(), connections.clone());
        let sessions = Arc::new(AtomicUsize::new(0));
        let begun = sessions.clone();
        let listening = tokio::spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::Relaxed);
                let status = u8::try_from(answers.load(Ordering::Relaxed)).unwrap();
                let (acceptor, begun) = (acceptor.clone(), begun.clone());
                open.spawn(connect((acceptor, begun), stream, token.clone(), (port, status)));
            }
        });
        Self { replica, status, connections, sessions, listening: listening.abort_handle() }
    }
}

/// The handshake of a worker, then bytes both ways.
async fn connect(
    (acceptor, sessions): (TlsAcceptor, Arc<AtomicUsize>),
    stream: TcpStream,
    token: ReplicaToken,
    (port, status): (SocketAddr, u8),
) -> Option<()> {
    let mut stream = acceptor.accept(stream).await.ok()?;
    sessions.fetch_add(1, Ordering::Relaxed);
    let mut sent = vec![0; stream.read_u8().await.ok()?.into()];
    stream.read_exact(&mut sent).await.ok()?;
    let status = if sent == token.reveal().as_bytes() { status } else { 1 };
    stream.write_all(&[status]).await.ok()?;
    stream.flush().await.ok()?;
    if status != 0 {
        stream.shutdown().await.ok()?;
        return None;
    }
    let mut replica = TcpStream::connect(port).await.ok()?;
    tokio::io::copy_bidirectional(&mut stream, &mut replica).await.ok()?;
    None
}

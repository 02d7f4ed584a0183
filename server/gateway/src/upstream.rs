//! Connections to one replica, through the TLS listener of its node's worker.
//!
//! A connection begins with the token of the replica; after the answer of the worker it is one to the port of the
//! replica. Connections that stay open are kept for the next requests. Their number has the bound of the replica's
//! concurrency, because each belongs to a counted request. A replica that speaks HTTP/2 has many requests on one
//! connection (`upstream/http2.rs`).

mod http2;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use berth_serving::retries::Progress;
use berth_serving::snapshot::{Replica, ReplicaId, ReplicaProtocol, ReplicaToken};
use berth_types::ids::NodeId;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use nix::sys::socket::{setsockopt, sockopt};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::bodies::RequestBody;
use crate::clock::now_ms;
use http2::{Lines, Stream};

/// The longest way to a replica: connection, TLS and token.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Milliseconds for which an unused connection is kept. Some servers close theirs after 5 seconds, and a request that
/// meets the end of its connection cannot be sent again.
const KEEP_MS: u64 = 4_000;
/// Unused connections of one replica.
const MAX_IDLE: usize = 256;
/// The longest time in which a connection becomes ready for its next request.
const READY_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of the head of an answer.
const HEAD_BYTES: usize = 128 << 10;

/// The seconds and counts after which the kernel gives a silent node up.
const KEEPALIVE_AFTER_S: u32 = 60;
const KEEPALIVE_EVERY_S: u32 = 15;
const KEEPALIVE_TRIES: u32 = 4;
/// Milliseconds without an acknowledgement of sent bytes, after which the kernel gives a silent node up. Questions are
/// not sent while such bytes wait.
const UNACKNOWLEDGED_MS: u32 = 120_000;

/// The answers of a worker to a token.
const CONNECTED: u8 = 0;
const UNKNOWN_TOKEN: u8 = 1;
const NO_PORT: u8 = 2;
const TOO_MANY: u8 = 3;

/// The share of a request in the connections to its replica, until the end of its answer.
pub enum Connection {
    /// A whole connection.
    Http1(SendRequest<RequestBody>),
    /// A stream of a connection.
    Http2(Stream),
}

/// A request that got no answer.
pub struct Failure {
    pub progress: Progress,
    /// True if the time was over.
    pub is_late: bool,
    pub reason: String,
    /// The request, if no replica has begun it.
    pub request: Option<Box<Request<RequestBody>>>,
}

struct Idle {
    connection: SendRequest<RequestBody>,
    since_ms: u64,
}

/// The way to one replica.
pub struct Upstream {
    id: ReplicaId,
    node: NodeId,
    address: SocketAddr,
    token: ReplicaToken,
    tls: Arc<ClientConfig>,
    protocol: ReplicaProtocol,
    idle: Mutex<Vec<Idle>>,
    lines: Lines,
}

impl Upstream {
    pub fn new(replica: &Replica, protocol: ReplicaProtocol, tls: Arc<ClientConfig>) -> Self {
        Self {
            id: replica.id,
            node: replica.node,
            address: replica.address,
            token: replica.token.clone(),
            tls,
            protocol,
            idle: Mutex::default(),
            lines: Lines::default(),
        }
    }

    /// True if this is the way to the replica of another snapshot.
    pub fn leads_to(&self, replica: &Replica, tls: &Arc<ClientConfig>) -> bool {
        self.id == replica.id
            && self.node == replica.node
            && self.address == replica.address
            && self.token == replica.token
            && Arc::ptr_eq(&self.tls, tls)
    }

    /// Sends a request, on a kept connection or on a new one, and waits for the head of the answer.
    ///
    /// # Errors
    /// No answer came in time.
    pub async fn send(
        &self,
        request: Request<RequestBody>,
        longest: Duration,
    ) -> Result<(Response<Incoming>, Connection), Failure> {
        match self.protocol {
            ReplicaProtocol::Http1 => self.send_http1(request, longest).await,
            ReplicaProtocol::Http2 => self.send_http2(request, longest).await,
        }
    }

    async fn send_http1(
        &self,
        mut request: Request<RequestBody>,
        longest: Duration,
    ) -> Result<(Response<Incoming>, Connection), Failure> {
        while let Some(connection) = self.find_idle() {
            match exchange(connection, request, longest).await {
                // The replica has closed the connection meanwhile.
                Err(Failure { request: Some(unsent), .. }) => request = *unsent,
                answer => return answer,
            }
        }
        match self.connect().await {
            Ok(connection) => exchange(connection, request, longest).await,
            Err((progress, reason)) => {
                Err(Failure { progress, is_late: false, reason, request: Some(Box::new(request)) })
            }
        }
    }

    fn find_idle(&self) -> Option<SendRequest<RequestBody>> {
        let now = now_ms();
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(last) = idle.pop() {
            if now.saturating_sub(last.since_ms) >= KEEP_MS {
                // All others are older.
                idle.clear();
                return None;
            }
            if last.connection.is_ready() {
                return Some(last.connection);
            }
        }
        None
    }

    /// Keeps a connection after the end of an answer.
    pub fn keep(self: &Arc<Self>, connection: Connection) {
        let mut connection = match connection {
            Connection::Http1(connection) => connection,
            // A stream ends with its answer.
            Connection::Http2(stream) => return stream.finish(),
        };
        if connection.is_ready() {
            return self.put(connection);
        }
        if connection.is_closed() {
            return;
        }
        let this = self.clone();
        tokio::spawn(async move {
            if let Ok(Ok(())) = timeout(READY_TIMEOUT, connection.ready()).await {
                this.put(connection);
            }
        });
    }

    fn put(&self, connection: SendRequest<RequestBody>) {
        let since_ms = now_ms();
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE {
            idle.push(Idle { connection, since_ms });
        }
    }

    /// Closes the connections that nobody used for a while.
    pub fn close_old(&self) {
        let now = now_ms();
        self.lines.close_old(now);
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|idle| now.saturating_sub(idle.since_ms) < KEEP_MS);
    }

    async fn connect(&self) -> Result<SendRequest<RequestBody>, (Progress, String)> {
        let stream = match timeout(CONNECT_TIMEOUT, self.reach()).await {
            Ok(reached) => reached?,
            Err(_) => return Err((Progress::NotConnected, "the worker did not answer in time".to_owned())),
        };
        let not_begun = |e: hyper::Error| (Progress::NotDelivered, e.to_string());
        let built = http1::Builder::new().max_buf_size(HEAD_BYTES).handshake(TokioIo::new(stream)).await;
        let (sender, connection) = built.map_err(not_begun)?;
        tokio::spawn(async move {
            // Each request has the error of its connection.
            let _ = connection.with_upgrades().await;
        });
        Ok(sender)
    }

    /// Opens a connection to the port of the replica.
    async fn reach(&self) -> Result<TlsStream<TcpStream>, (Progress, String)> {
        let unreached = |e: io::Error| (Progress::NotConnected, e.to_string());
        let stream = TcpStream::connect(self.address).await.map_err(unreached)?;
        set_options(&stream).map_err(unreached)?;
        let name = ServerName::from(self.address.ip());
        let connector = TlsConnector::from(self.tls.clone());
        let mut stream = connector.connect(name, stream).await.map_err(unreached)?;
        let (_, session) = stream.get_ref();
        let node = session.peer_certificates().and_then(<[_]>::first).and_then(crate::trust::node_of);
        if node != Some(self.node) {
            return Err((Progress::NotConnected, "another node answers at the address".to_owned()));
        }
        let token = self.token.reveal().as_bytes();
        let length = u8::try_from(token.len())
            .map_err(|_| (Progress::NotConnected, "the token is too long".to_owned()))?;
        let mut hello = vec![length];
        hello.extend_from_slice(token);
        stream.write_all(&hello).await.map_err(unreached)?;
        stream.flush().await.map_err(unreached)?;
        let reason = match stream.read_u8().await.map_err(unreached)? {
            CONNECTED => return Ok(stream),
            UNKNOWN_TOKEN => "the worker does not know the token",
            NO_PORT => "the port of the replica does not answer",
            TOO_MANY => "the replica has too many connections",
            _ => "the worker gave an unknown answer",
        };
        Err((Progress::NotDelivered, reason.to_owned()))
    }
}

/// Sets the options of a connection to a worker: small parts of a body go at once, and a lost node is noticed without
/// pings of HTTP/2, for which some servers close a connection.
fn set_options(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &KEEPALIVE_AFTER_S)?;
    setsockopt(stream, sockopt::TcpKeepInterval, &KEEPALIVE_EVERY_S)?;
    setsockopt(stream, sockopt::TcpKeepCount, &KEEPALIVE_TRIES)?;
    Ok(setsockopt(stream, sockopt::TcpUserTimeout, &UNACKNOWLEDGED_MS)?)
}

/// Sends a request on a connection and waits for the head of the answer.
async fn exchange(
    mut connection: SendRequest<RequestBody>,
    request: Request<RequestBody>,
    longest: Duration,
) -> Result<(Response<Incoming>, Connection), Failure> {
    let answered = timeout(longest, connection.try_send_request(request)).await;
    match answered {
        Ok(Ok(answer)) => Ok((answer, Connection::Http1(connection))),
        Ok(Err(mut error)) => {
            let request = error.take_message().map(Box::new);
            let progress = if request.is_some() { Progress::NotBegun } else { Progress::Sent };
            Err(Failure { progress, is_late: false, reason: error.error().to_string(), request })
        }
        Err(_) => Err(too_late()),
    }
}

fn too_late() -> Failure {
    let reason = "no answer came in time".to_owned();
    Failure { progress: Progress::Sent, is_late: true, reason, request: None }
}

#[cfg(test)]
mod tests {
    use nix::sys::socket::getsockopt;

    use super::*;

    #[tokio::test]
    async fn small_parts_go_to_a_worker_at_once() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        set_options(&stream).unwrap();
        assert!(getsockopt(&stream, sockopt::TcpNoDelay).unwrap());
        assert!(getsockopt(&stream, sockopt::KeepAlive).unwrap());
        assert_eq!(getsockopt(&stream, sockopt::TcpUserTimeout).unwrap(), UNACKNOWLEDGED_MS);
    }
}

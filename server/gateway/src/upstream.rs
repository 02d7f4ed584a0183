//! Connections to one replica, through the TLS listener of its node's worker.
//!
//! A connection begins with the token of the replica; after the answer of the worker it is one to the port of the
//! replica. Connections that stay open are kept for the next requests. Their number has the bound of the replica's
//! concurrency, because each belongs to a counted request. A replica that speaks HTTP/2 has many requests on one
//! connection (`upstream/http2.rs`).

mod http1;
mod http2;
mod worker;

use std::io;
use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use berth_serving::retries::Progress;
use berth_serving::snapshot::{Replica, ReplicaId, ReplicaProtocol, ReplicaToken};
use http::{Request, Response};
use hyper::body::{Body, Bytes, Frame, Incoming};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::SemaphorePermit;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

use crate::bodies::RequestBody;
use crate::clock::now_ms;
use http1::Http1Connection;
use http2::{Lines, Stream};

pub use worker::WorkerLink;

/// The longest wait for the answer of a worker to a token. The worker gives the port of a replica two seconds.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(3);
/// Milliseconds for which an unused connection is kept. Some servers close theirs after 5 seconds, and a request that
/// meets the end of its connection cannot be sent again.
const KEEP_MS: u64 = 4_000;
/// Unused connections of one replica.
const MAX_IDLE: usize = 256;
/// The longest time in which a connection becomes ready for its next request.
const READY_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of the head of an answer.
const HEAD_BYTES: usize = 128 << 10;

/// The answers of a worker to a token.
const CONNECTED: u8 = 0;
const UNKNOWN_TOKEN: u8 = 1;
const NO_PORT: u8 = 2;
const TOO_MANY: u8 = 3;

/// The share of a request in the connections to its replica, until the end of its answer.
pub enum Connection {
    /// A whole connection.
    Http1(Http1Connection),
    /// A stream of a connection.
    Http2(Stream),
}

impl Connection {
    /// The next frame of the answer on it.
    pub fn poll_frame(
        &mut self,
        body: &mut Incoming,
        cx: &mut Context<'_>,
    ) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        match self {
            Self::Http1(connection) => connection.poll_frame(body, cx),
            Self::Http2(_) => Pin::new(body).poll_frame(cx),
        }
    }

    /// Lets a task of its own read and write a whole connection.
    pub fn detach(&mut self) {
        if let Self::Http1(connection) = self {
            connection.detach();
        }
    }
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
    connection: Http1Connection,
    since_ms: u64,
}

/// The way to one replica.
pub struct Upstream {
    id: ReplicaId,
    worker: Arc<WorkerLink>,
    token: ReplicaToken,
    protocol: ReplicaProtocol,
    idle: Mutex<Vec<Idle>>,
    lines: Lines,
}

impl Upstream {
    pub fn new(replica: &Replica, protocol: ReplicaProtocol, worker: Arc<WorkerLink>) -> Self {
        Self {
            id: replica.id,
            worker,
            token: replica.token.clone(),
            protocol,
            idle: Mutex::default(),
            lines: Lines::default(),
        }
    }

    /// True if this is the way to the replica of another snapshot.
    pub fn leads_to(&self, replica: &Replica, worker: &Arc<WorkerLink>) -> bool {
        self.id == replica.id && self.token == replica.token && Arc::ptr_eq(&self.worker, worker)
    }

    /// The worker of the replica.
    pub const fn worker(&self) -> &Arc<WorkerLink> {
        &self.worker
    }

    /// Sends a request, on a kept connection or on a new one, and waits for the head of the answer. `is_sent` is true while
    /// the request is on a connection.
    ///
    /// # Errors
    /// No answer came in time.
    pub async fn send(
        &self,
        request: Request<RequestBody>,
        longest: Duration,
        is_sent: &AtomicBool,
    ) -> Result<(Response<Incoming>, Connection), Failure> {
        match self.protocol {
            ReplicaProtocol::Http1 => self.send_http1(request, longest, is_sent).await,
            ReplicaProtocol::Http2 => self.send_http2(request, longest, is_sent).await,
        }
    }

    async fn send_http1(
        &self,
        mut request: Request<RequestBody>,
        longest: Duration,
        is_sent: &AtomicBool,
    ) -> Result<(Response<Incoming>, Connection), Failure> {
        let whole = |(answer, connection)| (answer, Connection::Http1(connection));
        while let Some(connection) = self.find_idle() {
            match connection.exchange(request, longest, is_sent).await {
                // The replica has closed the connection meanwhile.
                Err(Failure { request: Some(unsent), .. }) => request = *unsent,
                answered => return answered.map(whole),
            }
        }
        match self.connect().await {
            Ok(connection) => connection.exchange(request, longest, is_sent).await.map(whole),
            Err((progress, reason)) => {
                Err(Failure { progress, is_late: false, reason, request: Some(Box::new(request)) })
            }
        }
    }

    fn find_idle(&self) -> Option<Http1Connection> {
        while let Some(mut last) = self.remove_idle() {
            if last.connection.is_ready() {
                return Some(last.connection);
            }
        }
        None
    }

    /// Removes the connection that was used last, if it is not too old.
    fn remove_idle(&self) -> Option<Idle> {
        let mut idle = self.lock_idle();
        let last = idle.pop()?;
        if now_ms().saturating_sub(last.since_ms) < KEEP_MS {
            return Some(last);
        }
        // All others are older. They close without the lock.
        let old = std::mem::take(&mut *idle);
        drop(idle);
        drop(old);
        None
    }

    fn lock_idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
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
            if let Some(connection) = connection.ready().await {
                this.put(connection);
            }
        });
    }

    fn put(&self, connection: Http1Connection) {
        let since_ms = now_ms();
        let mut idle = self.lock_idle();
        if idle.len() < MAX_IDLE {
            idle.push(Idle { connection, since_ms });
        }
    }

    /// Closes the connections that nobody used for a while.
    pub fn close_old(&self) {
        let now = now_ms();
        self.lines.close_old(now);
        let is_kept = |idle: &Idle| now.saturating_sub(idle.since_ms) < KEEP_MS;
        let mut idle = self.lock_idle();
        let (kept, old): (Vec<Idle>, Vec<Idle>) = std::mem::take(&mut *idle).into_iter().partition(is_kept);
        *idle = kept;
        drop(idle);
        // They close without the lock.
        drop(old);
    }

    async fn connect(&self) -> Result<Http1Connection, (Progress, String)> {
        let stream = self.reach().await?;
        Http1Connection::new(stream).await.map_err(|e| (Progress::NotDelivered, e.to_string()))
    }

    /// Opens a connection to the port of the replica. Only a missing session with the worker is no connection: what
    /// follows waits for the program too.
    async fn reach(&self) -> Result<TlsStream<TcpStream>, (Progress, String)> {
        let (mut stream, place) = self.worker.open().await?;
        let reason = match timeout(TOKEN_TIMEOUT, self.send_token(&mut stream, place)).await {
            Ok(Ok(CONNECTED)) => return Ok(stream),
            Ok(Ok(UNKNOWN_TOKEN)) => "the worker does not know the token".to_owned(),
            Ok(Ok(NO_PORT)) => "the port of the replica does not answer".to_owned(),
            Ok(Ok(TOO_MANY)) => "the replica has too many connections".to_owned(),
            Ok(Ok(_)) => "the worker gave an unknown answer".to_owned(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the worker did not answer the token in time".to_owned(),
        };
        Err((Progress::NotDelivered, reason))
    }

    /// Sends the token of the replica, and returns the answer of the worker.
    async fn send_token(
        &self,
        stream: &mut TlsStream<TcpStream>,
        place: SemaphorePermit<'_>,
    ) -> io::Result<u8> {
        let token = self.token.reveal().as_bytes();
        let length = u8::try_from(token.len()).map_err(io::Error::other)?;
        let mut hello = vec![length];
        hello.extend_from_slice(token);
        stream.write_all(&hello).await?;
        stream.flush().await?;
        drop(place);
        stream.read_u8().await
    }
}

fn too_late() -> Failure {
    let reason = "no answer came in time".to_owned();
    Failure { progress: Progress::Sent, is_late: true, reason, request: None }
}

//! The connections of callers: HTTP/1.1 and HTTP/2 on one port, with limits of number and time.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Sleep, sleep};
use tokio_rustls::TlsAcceptor;

use crate::caller::{Caller, Phase};
use crate::places::{ConnectionPlace, Places};
use crate::proxy::handle;
use crate::shared::Shared;

/// Bytes of the head of a request.
const HEAD_BYTES: usize = 64 << 10;
/// Requests on one connection of HTTP/2 at the same time.
const MAX_STREAMS: u32 = 256;
/// Bytes for each stream of HTTP/2 that its caller has not read.
const UNREAD_BYTES: usize = 256 << 10;
/// Bytes for each stream of HTTP/2 that the gateway has not passed on.
const STREAM_BYTES: u32 = 64 << 10;
/// Bytes for all streams of a connection, so that a replica that does not read keeps back its own stream only.
const CONNECTION_BYTES: u32 = STREAM_BYTES * MAX_STREAMS;
/// Streams of HTTP/2 that their caller resets before the gateway sees them, and resets of the gateway for faults of the
/// caller. After more of them the connection ends.
const MAX_EARLY_RESETS: usize = 20;
const MAX_ERROR_RESETS: usize = 256;
/// The question on a silent connection of HTTP/2, and the wait for its answer.
const PING_EVERY: Duration = Duration::from_secs(20);
/// The pause after a failure to accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A connection with its place. It ends without a request in time, and when its caller takes no bytes for a while. An
/// upgraded connection keeps the place.
struct Counted {
    stream: TcpStream,
    has_request: Arc<AtomicBool>,
    first_request: Pin<Box<Sleep>>,
    /// The longest wait for a caller that does not read.
    idle: Duration,
    /// The end of the present wait for the caller.
    stalled: Option<Pin<Box<Sleep>>>,
    _place: ConnectionPlace,
}

impl Counted {
    fn limit_stall<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let idle = self.idle;
        let end = self.stalled.get_or_insert_with(|| Box::pin(sleep(idle)));
        end.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.has_request.load(Ordering::Relaxed) && self.first_request.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.limit_stall(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.limit_stall(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Accepts connections until the gateway drains.
pub async fn serve(
    shared: Arc<Shared>,
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    (mut phase, alive): (watch::Receiver<Phase>, mpsc::Sender<Infallible>),
) {
    let places = Places::new(shared.settings.limits.clone());
    loop {
        let accepted = tokio::select! {
            () = no_longer_open(&mut phase) => return,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection cannot be accepted");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some(place) = places.find(peer.ip()) else {
            tracing::debug!(%peer, "too many connections; one is dropped");
            continue;
        };
        shared.counters.connections.store(places.taken() as u64, Ordering::Relaxed);
        let caller = Caller::new(peer.ip(), phase.clone(), alive.clone());
        tokio::spawn(serve_connection(shared.clone(), (stream, place), tls.clone(), (caller, peer)));
    }
}

async fn no_longer_open(phase: &mut watch::Receiver<Phase>) {
    // Without a sender the gateway is gone.
    let _ = phase.wait_for(|now| *now != Phase::Open).await;
}

async fn serve_connection(
    shared: Arc<Shared>,
    (stream, place): (TcpStream, ConnectionPlace),
    tls: Option<TlsAcceptor>,
    (caller, peer): (Caller, SocketAddr),
) {
    // Without it small parts of an answer wait for an acknowledgement.
    let _ = stream.set_nodelay(true);
    let limits = &shared.settings.limits;
    let has_request = Arc::new(AtomicBool::new(false));
    let connection = Counted {
        stream,
        has_request: has_request.clone(),
        first_request: Box::pin(sleep(limits.head)),
        idle: limits.idle,
        stalled: None,
        _place: place,
    };
    let ended = match tls {
        None => serve_http(&shared, connection, caller, has_request).await,
        Some(tls) => match tls.accept(connection).await {
            Ok(connection) => serve_http(&shared, connection, caller, has_request).await,
            Err(error) => Err(error.into()),
        },
    };
    // Callers disconnect at any time.
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "a connection ended early");
    }
}

async fn serve_http(
    shared: &Arc<Shared>,
    connection: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    mut caller: Caller,
    has_request: Arc<AtomicBool>,
) -> Result<(), crate::bodies::BodyError> {
    let limits = &shared.settings.limits;
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(HEAD_BYTES)
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(HEAD_BYTES as u32)
        .max_send_buf_size(UNREAD_BYTES)
        .initial_stream_window_size(STREAM_BYTES)
        .initial_connection_window_size(CONNECTION_BYTES)
        .max_pending_accept_reset_streams(MAX_EARLY_RESETS)
        .max_local_error_reset_streams(MAX_ERROR_RESETS)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_EVERY);
    let (requester, owner) = (caller.clone(), shared.clone());
    let service = service_fn(move |request| {
        has_request.store(true, Ordering::Relaxed);
        let (shared, caller) = (owner.clone(), requester.clone());
        async move { Ok::<_, Infallible>(handle(&shared, &caller, request).await) }
    });
    let mut serving = pin!(builder.serve_connection_with_upgrades(TokioIo::new(connection), service));
    tokio::select! {
        ended = serving.as_mut() => return ended,
        () = caller.reached(Phase::Draining) => serving.as_mut().graceful_shutdown(),
    }
    tokio::select! {
        ended = serving => ended,
        () = caller.reached(Phase::Cut) => Ok(()),
    }
}

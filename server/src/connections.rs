//! The connections of browsers and scripts: HTTP/1.1 with limits of number and time.
//!
//! Connections have a limit in all and a limit for each network, so that descriptors remain for workers and for the
//! database. A connection that is idle, whose request head or body stops, or whose client does not read, ends after
//! [`Limits::idle`].

use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use berth_foundation::Settings;
use berth_foundation::proxies::TrustedProxies;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Sleep;
use tower::ServiceExt;
use tower_http::timeout::TimeoutBody;

use crate::places::{Place, Places};

/// Bytes of a request head.
const HEAD_BYTES: usize = 64 << 10;
/// The pause after a failure to accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The share of one network in all connections: one of this number.
const NETWORK_SHARE: usize = 4;

/// The limits of connections.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections in all.
    pub max: usize,
    /// The longest wait for a request head, for the next bytes of a request's body, and for a client that does not
    /// read its answer.
    pub idle: Duration,
    /// The proxies without a limit of their own.
    pub proxies: TrustedProxies,
}

impl Limits {
    /// The limits in these settings.
    pub fn from_settings(settings: &Settings) -> Self {
        let proxies = settings.trusted_proxies.clone();
        Self { max: settings.max_connections, idle: Duration::from_secs(30), proxies }
    }

    fn places(&self) -> Arc<Places> {
        Places::new(self.max, self.max.div_ceil(NETWORK_SHARE))
    }

    /// A place for a connection of this peer; `None` beyond a limit.
    fn find_place(&self, places: &Arc<Places>, peer: IpAddr) -> Option<Place> {
        // A trusted proxy has the connections of all people.
        places.find((!self.proxies.contains(peer)).then_some(peer))
    }
}

/// A connection with its place. An upgraded connection keeps the place.
struct Counted {
    stream: TcpStream,
    /// The longest wait for a client that does not read.
    idle: Duration,
    /// The end of the present wait for the client.
    stalled: Option<Pin<Box<Sleep>>>,
    _place: Place,
}

impl Counted {
    /// Ends the connection of a client that takes no bytes for [`Limits::idle`].
    fn limit_stall<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<std::io::Result<T>>,
    ) -> Poll<std::io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let idle = self.idle;
        let end = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(idle)));
        end.as_mut().poll(cx).map(|()| Err(std::io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.limit_stall(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.limit_stall(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Serves the router on the listener until `stopped` resolves.
pub async fn serve(listener: TcpListener, router: Router, limits: Limits, stopped: impl Future<Output = ()>) {
    let places = limits.places();
    let mut stopped = std::pin::pin!(stopped);
    loop {
        let accepted = tokio::select! {
            () = &mut stopped => return,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection cannot be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        match limits.find_place(&places, peer.ip()) {
            Some(place) => {
                let connection = Counted { stream, idle: limits.idle, stalled: None, _place: place };
                tokio::spawn(serve_connection(connection, peer, router.clone()));
            }
            None => tracing::debug!(%peer, "too many connections; one is dropped"),
        }
    }
}

async fn serve_connection(connection: Counted, peer: SocketAddr, router: Router) {
    let idle = connection.idle;
    // Without it small answers wait for an acknowledgement.
    let _ = connection.stream.set_nodelay(true);
    let service = service_fn(move |request: http::Request<Incoming>| {
        let mut request = request.map(|body| Body::new(TimeoutBody::new(idle, body)));
        request.extensions_mut().insert(ConnectInfo(peer));
        router.clone().oneshot(request)
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(idle)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(connection), service)
        .with_upgrades()
        .await;
    // Senders disconnect at any time.
    if let Err(error) = served {
        tracing::debug!(%peer, %error, "a connection ended early");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trusted_proxy_has_no_limit_of_its_own() {
        let proxies =
            TrustedProxies { networks: vec!["10.0.0.0/8".parse().unwrap()], ..TrustedProxies::default() };
        let limits = Limits { max: 8, idle: Duration::from_secs(1), proxies };
        let places = limits.places();
        let take = |peer: &str| -> Vec<Place> {
            let peer = peer.parse().unwrap();
            (0..20).filter_map(|_| limits.find_place(&places, peer)).collect()
        };
        assert_eq!(take("192.0.2.1").len(), 2);
        assert_eq!(take("10.0.0.1").len(), 8);
    }
}

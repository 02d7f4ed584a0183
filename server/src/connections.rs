//! The connections of browsers and scripts: HTTP/1.1 with limits of number and time.
//!
//! Connections have a limit in all and a limit for each network, so that descriptors remain for workers and for the
//! database. A connection that is idle, or whose request head or body stops, ends after [`Limits::idle`].

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use berth_foundation::Settings;
use berth_foundation::proxies::{TrustedProxies, network};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tower::ServiceExt;
use tower_http::timeout::TimeoutBody;

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
    /// The longest wait for a request head, and for the next bytes of a request's body.
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
}

/// The open connections.
struct Open {
    limits: Limits,
    /// Connections in all, and by network.
    counts: Mutex<(usize, HashMap<IpAddr, usize>)>,
}

impl Open {
    fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, counts: Mutex::default() })
    }

    /// A place for a connection of this peer; `None` beyond a limit.
    fn find_place(self: &Arc<Self>, peer: IpAddr) -> Option<Place> {
        // A trusted proxy has the connections of all people.
        let network = (!self.limits.proxies.contains(peer)).then(|| network(peer));
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, by_network) = &mut *counts;
        if *all >= self.limits.max {
            return None;
        }
        if let Some(network) = network {
            let count = by_network.entry(network).or_default();
            if *count >= self.limits.max.div_ceil(NETWORK_SHARE) {
                return None;
            }
            *count += 1;
        }
        *all += 1;
        Some(Place { open: self.clone(), network })
    }
}

/// The place of one connection. Its drop frees it.
struct Place {
    open: Arc<Open>,
    network: Option<IpAddr>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.open.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.0 = counts.0.saturating_sub(1);
        let Some(network) = self.network else { return };
        if let Some(count) = counts.1.get_mut(&network) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                counts.1.remove(&network);
            }
        }
    }
}

/// A connection with its place. An upgraded connection keeps the place.
struct Counted {
    stream: TcpStream,
    place: Place,
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
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
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
    let open = Open::new(limits);
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
        match open.find_place(peer.ip()) {
            Some(place) => {
                let connection = Counted { stream, place };
                tokio::spawn(serve_connection(connection, peer, router.clone()));
            }
            None => tracing::debug!(%peer, "too many connections; one is dropped"),
        }
    }
}

async fn serve_connection(connection: Counted, peer: SocketAddr, router: Router) {
    let idle = connection.place.open.limits.idle;
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

    fn limits(max: usize, proxies: TrustedProxies) -> Limits {
        Limits { max, idle: Duration::from_secs(1), proxies }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn connections_are_limited_in_all_and_by_network() {
        let open = Open::new(limits(8, TrustedProxies::default()));
        let first: Vec<Place> = (0..2).filter_map(|_| open.find_place(ip("192.0.2.1"))).collect();
        assert_eq!(first.len(), 2);
        assert!(open.find_place(ip("192.0.2.1")).is_none());
        assert!(open.find_place(ip("::ffff:192.0.2.1")).is_none(), "the same sender");
        let others: Vec<Place> =
            (0..20).filter_map(|n| open.find_place(ip(&format!("198.51.100.{n}")))).collect();
        assert_eq!(others.len(), 6);
        drop(first);
        assert!(open.find_place(ip("192.0.2.1")).is_some());
        drop(others);
        assert_eq!(*open.counts.lock().unwrap(), (0, HashMap::new()));
    }

    #[test]
    fn a_trusted_proxy_has_no_limit_of_its_own() {
        let proxies =
            TrustedProxies { networks: vec!["10.0.0.0/8".parse().unwrap()], ..TrustedProxies::default() };
        let open = Open::new(limits(8, proxies));
        let places: Vec<Place> = (0..20).filter_map(|_| open.find_place(ip("10.0.0.1"))).collect();
        assert_eq!(places.len(), 8);
    }
}

//! The listener of a worker, which all replicas of its node share.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use berth_serving::retries::Progress;
use berth_types::ids::NodeId;
use nix::sys::socket::{setsockopt, sockopt};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::{Mutex, Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Handshakes with one worker at the same time. A worker closes those beyond 128 of one address without a word.
const MAX_HANDSHAKES: usize = 64;
/// The longest wait for a place for a handshake.
pub const PLACE_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest connection to a worker, with TLS.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// The seconds and counts after which the kernel gives a silent node up.
const KEEPALIVE_AFTER_S: u32 = 60;
const KEEPALIVE_EVERY_S: u32 = 15;
const KEEPALIVE_TRIES: u32 = 4;
/// Milliseconds without an acknowledgement of sent bytes, after which the kernel gives a silent node up. Questions are
/// not sent while such bytes wait.
const UNACKNOWLEDGED_MS: u32 = 120_000;

/// The way to the listener of a worker. No program of a replica takes part in it, so its faults are those of the platform.
pub struct WorkerLink {
    node: NodeId,
    address: SocketAddr,
    tls: Arc<ClientConfig>,
    handshakes: Semaphore,
    /// The last handshake succeeded.
    is_reached: AtomicBool,
    /// The begin of the last check, and whether the worker answered.
    checked: Mutex<Option<(Instant, bool)>>,
}

impl WorkerLink {
    pub fn new((node, address): (NodeId, SocketAddr), tls: Arc<ClientConfig>) -> Self {
        let handshakes = Semaphore::new(MAX_HANDSHAKES);
        Self { node, address, tls, handshakes, is_reached: AtomicBool::new(true), checked: Mutex::default() }
    }

    /// Opens a session with the worker. Its place counts until the worker has the token of a replica.
    ///
    /// # Errors
    /// The worker does not answer, or too many handshakes wait.
    pub async fn open(&self) -> Result<(TlsStream<TcpStream>, SemaphorePermit<'_>), (Progress, String)> {
        let Ok(Ok(place)) = timeout(PLACE_TIMEOUT, self.handshakes.acquire()).await else {
            let reason = "too many connections to the worker are opened at the same time";
            // Those to a dead worker hold all places until their time is over.
            let progress = if self.is_reached() { Progress::NotDelivered } else { Progress::NotConnected };
            return Err((progress, reason.to_owned()));
        };
        let opened = match timeout(HANDSHAKE_TIMEOUT, self.handshake()).await {
            Ok(opened) => opened,
            Err(_) => Err("the worker did not answer in time".to_owned()),
        };
        self.is_reached.store(opened.is_ok(), Ordering::Relaxed);
        opened.map(|stream| (stream, place)).map_err(|reason| (Progress::NotConnected, reason))
    }

    async fn handshake(&self) -> Result<TlsStream<TcpStream>, String> {
        let unreached = |e: io::Error| e.to_string();
        let stream = TcpStream::connect(self.address).await.map_err(unreached)?;
        set_options(&stream).map_err(unreached)?;
        let name = ServerName::from(self.address.ip());
        let stream = TlsConnector::from(self.tls.clone()).connect(name, stream).await.map_err(unreached)?;
        let (_, session) = stream.get_ref();
        let node = session.peer_certificates().and_then(<[_]>::first).and_then(crate::trust::node_of);
        if node == Some(self.node) {
            Ok(stream)
        } else {
            Err("another node answers at the address".to_owned())
        }
    }

    /// True if the last handshake with the worker succeeded.
    pub fn is_reached(&self) -> bool {
        self.is_reached.load(Ordering::Relaxed)
    }

    /// Checks whether the worker answers, by a check that began after `since`. All requests of a moment share one.
    pub async fn answers(&self, since: Instant) -> bool {
        let mut checked = self.checked.lock().await;
        if let Some((began, answered)) = *checked
            && began >= since
        {
            return answered;
        }
        let began = Instant::now();
        // One check at a time needs no place.
        let answered = matches!(timeout(HANDSHAKE_TIMEOUT, self.handshake()).await, Ok(Ok(_)));
        self.is_reached.store(answered, Ordering::Relaxed);
        *checked = Some((began, answered));
        answered
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

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use nix::sys::socket::getsockopt;
    use rustls::RootCertStore;
    use uuid::Uuid;

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

    #[tokio::test]
    async fn a_silent_worker_is_not_reached_by_more_requests_than_places() {
        // Its kernel accepts connections, and nobody answers.
        let silent = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let node = NodeId::from_uuid(Uuid::from_u128(1));
        let link = Arc::new(WorkerLink::new((node, silent.local_addr().unwrap()), Arc::new(tls)));
        let begin = Instant::now();
        let opened: Vec<_> = (0..3 * MAX_HANDSHAKES)
            .map(|_| {
                let link = link.clone();
                tokio::spawn(async move { link.open().await.map(|_| ()).unwrap_err().0 })
            })
            .collect();
        let mut lost = 0;
        for one in opened {
            lost += usize::from(one.await.unwrap() == Progress::NotConnected);
        }
        assert_eq!(lost, MAX_HANDSHAKES, "the others had no place, and the worker was reached until then");
        let later: Vec<_> = (0..3 * MAX_HANDSHAKES)
            .map(|_| {
                let link = link.clone();
                tokio::spawn(async move { link.open().await.map(|_| ()).unwrap_err().0 })
            })
            .collect();
        assert!(!link.answers(begin).await, "the check has a way of its own");
        for one in later {
            assert_eq!(one.await.unwrap(), Progress::NotConnected);
        }
    }
}

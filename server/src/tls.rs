//! TLS 1.3 for connections of workers: the portal's certificate, and the worker's certificate if it has one.
//!
//! Proves only the possession of keys. `berth_fleet::enrolment` decides the rights of a certificate.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use berth_types::time::Timestamp;
use rand::Rng;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::time_provider::TimeProvider;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Sleep;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

use crate::places::{Place, Places};
use crate::portal::Portal;

/// The longest handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Concurrent handshakes.
const MAX_HANDSHAKES: usize = 256;
/// Concurrent handshakes of one network.
const NETWORK_HANDSHAKES: usize = 64;
/// Concurrent connections without a certificate. Connections with one have no limit here.
const MAX_ANONYMOUS: usize = 256;
/// Concurrent connections of one network without a certificate.
const NETWORK_ANONYMOUS: usize = 64;
/// The longest connection without a certificate. Its only purpose is to get one.
const ANONYMOUS_TIMEOUT: Duration = Duration::from_secs(60);
/// The pause after a failure to accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The longest use of one certificate of the portal, in seconds.
const DAY_S: i64 = 86_400;

/// The certificate of the other end of a connection, proved by its key.
#[derive(Clone)]
pub struct Peer(Option<CertificateDer<'static>>);

impl Peer {
    pub fn certificate(&self) -> Option<&CertificateDer<'static>> {
        self.0.as_ref()
    }
}

/// The host in an address such as `https://portal.example.org:8081`.
pub fn host_of(url: &str) -> Option<String> {
    let uri: http::Uri = url.parse().ok()?;
    Some(uri.host()?.trim_matches(['[', ']']).to_owned())
}

/// The TLS configuration of the listener for workers. `at` is the address of the listener.
///
/// # Errors
/// The portal has no authority, or a name cannot be certified.
pub fn config(portal: &Portal, at: IpAddr) -> Result<ServerConfig, String> {
    let authority = portal.enrolment.authority()?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(authority.certificate().clone()).map_err(|e| e.to_string())?;
    // A worker that joins has no certificate yet.
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .allow_unauthenticated()
        .build()
        .map_err(|e| e.to_string())?;
    let mut names: Vec<String> = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).into();
    names.extend((!at.is_unspecified()).then(|| at.to_string()));
    names.extend(host_of(&portal.context.settings.worker_url));
    names.sort_unstable();
    names.dedup();
    let certificate = PortalCertificate { portal: portal.clone(), names, current: Mutex::new(None) };
    // A name that cannot be certified is an error of the start, not of the first connection.
    certificate.current_key()?;
    let mut config = ServerConfig::builder_with_details(provider, Arc::new(PortalClock(portal.clone())))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|e| e.to_string())?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(certificate));
    config.alpn_protocols = vec![b"h2".to_vec()];
    // A resumed TLS session would skip the check of the client certificate.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(config)
}

/// The portal's clock, for the check of certificates.
struct PortalClock(Portal);

impl fmt::Debug for PortalClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PortalClock")
    }
}

impl TimeProvider for PortalClock {
    fn current_time(&self) -> Option<UnixTime> {
        let micros = u64::try_from(self.0.context.now().micros()).ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_micros(micros)))
    }
}

/// The portal's own certificate. It is issued at the start and again with the first connection after a day.
struct PortalCertificate {
    portal: Portal,
    names: Vec<String>,
    current: Mutex<Option<(Timestamp, Arc<CertifiedKey>)>>,
}

impl fmt::Debug for PortalCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PortalCertificate").field("names", &self.names).finish_non_exhaustive()
    }
}

impl PortalCertificate {
    fn current_key(&self) -> Result<Arc<CertifiedKey>, String> {
        let now = self.portal.context.now();
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((until, key)) = current.as_ref()
            && now < *until
        {
            return Ok(key.clone());
        }
        let lifetime_s = self.portal.context.settings.portal_certificate_s;
        let serial = self.portal.context.random(|rng| rng.random::<[u8; 16]>());
        let (key, chain) = self.portal.enrolment.authority()?.issue_server_certificate(
            &self.names,
            serial,
            now.plus_seconds(lifetime_s),
        )?;
        let provider = rustls::crypto::ring::default_provider();
        let issued = CertifiedKey::from_der(chain, key, &provider).map_err(|e| e.to_string())?;
        let issued = Arc::new(issued);
        *current = Some((now.plus_seconds(DAY_S.min(lifetime_s / 2)), issued.clone()));
        Ok(issued)
    }
}

impl ResolvesServerCert for PortalCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.current_key().inspect_err(|error| tracing::error!(error, "the portal has no certificate")).ok()
    }
}

/// Connections of workers after their handshakes.
pub type Connections = ReceiverStream<Result<Encrypted, io::Error>>;

/// Accepts connections and streams them after their handshakes. The task ends when the stream is dropped.
pub fn listen(listener: TcpListener, config: ServerConfig) -> (Connections, JoinHandle<()>) {
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let (ready, connections) = mpsc::channel(16);
    let accepting = tokio::spawn(async move {
        let handshakes = Places::new(MAX_HANDSHAKES, NETWORK_HANDSHAKES);
        let anonymous = Places::new(MAX_ANONYMOUS, NETWORK_ANONYMOUS);
        loop {
            let accepted = tokio::select! {
                () = ready.closed() => return,
                accepted = listener.accept() => accepted,
            };
            let (stream, peer) = match accepted {
                Ok((stream, peer)) => (stream, peer.ip()),
                Err(error) => {
                    tracing::warn!(%error, "a connection of a worker cannot be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Some(handshake) = handshakes.find(Some(peer)) else {
                tracing::debug!(%peer, "too many simultaneous handshakes of workers; one is dropped");
                continue;
            };
            let (acceptor, ready, anonymous) = (acceptor.clone(), ready.clone(), anonymous.clone());
            tokio::spawn(async move {
                let accepted = accept_tls(&acceptor, stream, (peer, &anonymous));
                let accepted = tokio::time::timeout(HANDSHAKE_TIMEOUT, accepted).await;
                drop(handshake);
                match accepted {
                    Ok(Ok(encrypted)) => {
                        // The receiver is gone when the portal stops.
                        let _ = ready.send(Ok(encrypted)).await;
                    }
                    Ok(Err(error)) => {
                        tracing::info!(%error, "a connection to the port for workers was refused")
                    }
                    Err(_) => tracing::info!("a connection to the port for workers timed out"),
                }
            });
        }
    });
    (ReceiverStream::new(connections), accepting)
}

async fn accept_tls(
    acceptor: &TlsAcceptor,
    stream: TcpStream,
    (address, places): (IpAddr, &Arc<Places>),
) -> io::Result<Encrypted> {
    stream.set_nodelay(true)?;
    let stream = acceptor.accept(stream).await?;
    let (_, connection) = stream.get_ref();
    let certificate = connection.peer_certificates().and_then(<[_]>::first);
    let peer = Peer(certificate.cloned());
    let anonymous = match peer.certificate() {
        Some(_) => None,
        None => {
            let full = || io::Error::other("too many connections without a certificate");
            let place = places.find(Some(address)).ok_or_else(full)?;
            Some((Box::pin(tokio::time::sleep(ANONYMOUS_TIMEOUT)), place))
        }
    };
    Ok(Encrypted { stream, peer, anonymous })
}

/// A connection after its handshake.
pub struct Encrypted {
    stream: TlsStream<TcpStream>,
    peer: Peer,
    /// The end of a connection without a certificate, and its place.
    anonymous: Option<(Pin<Box<Sleep>>, Place)>,
}

impl Connected for Encrypted {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Encrypted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some((end, _)) = &mut self.anonymous
            && end.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_an_address_is_found() {
        assert_eq!(host_of("https://portal.example.org:8081").as_deref(), Some("portal.example.org"));
        assert_eq!(host_of("https://[::1]:8081").as_deref(), Some("::1"));
        assert_eq!(host_of("nowhere at all"), None);
    }
}

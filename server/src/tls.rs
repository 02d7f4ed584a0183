//! The encrypted way from workers: TLS 1.3, the portal's certificate, and the worker's when it has one.
//!
//! Proves who holds which key and nothing more: the rights of a certificate are decided by `berth_fleet::enrolment`.

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
use tokio::sync::{Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

use crate::portal::Portal;

/// A handshake that takes longer is given up.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Handshakes under way at a time.
const HANDSHAKES: usize = 256;
/// After a failure to take a connection.
const SOON: Duration = Duration::from_millis(100);
/// The portal's own certificate is made anew when it is so old.
const DAY_S: i64 = 86_400;

/// Whose certificate the other end of a connection has proved to hold.
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

/// What the listener for workers speaks. `at` is the address that it listens on.
pub fn config(portal: &Portal, at: IpAddr) -> Result<ServerConfig, String> {
    let authority = portal.enrolment.authority()?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(authority.certificate().clone()).map_err(|e| e.to_string())?;
    // Who joins has no certificate yet.
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .allow_unauthenticated()
        .build()
        .map_err(|e| e.to_string())?;
    let mut names: Vec<String> = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).into();
    names.extend((!at.is_unspecified()).then(|| at.to_string()));
    names.extend(host_of(&portal.context.settings.worker_url));
    names.sort_unstable();
    names.dedup();
    let presented = Presented { portal: portal.clone(), names, current: Mutex::new(None) };
    // A name that cannot be certified is said at the start, not at the first connection.
    presented.fresh()?;
    let mut config = ServerConfig::builder_with_details(provider, Arc::new(PortalClock(portal.clone())))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|e| e.to_string())?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(presented));
    config.alpn_protocols = vec![b"h2".to_vec()];
    // A session that is taken up again would not have its certificate looked at again.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(config)
}

/// Certificates are judged by the portal's time.
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

/// The portal's own certificate: made at the start, and anew with the first connection of a day.
struct Presented {
    portal: Portal,
    names: Vec<String>,
    current: Mutex<Option<(Timestamp, Arc<CertifiedKey>)>>,
}

impl fmt::Debug for Presented {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Presented").field("names", &self.names).finish_non_exhaustive()
    }
}

impl Presented {
    fn fresh(&self) -> Result<Arc<CertifiedKey>, String> {
        let now = self.portal.context.now();
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((until, key)) = current.as_ref()
            && now < *until
        {
            return Ok(key.clone());
        }
        let lifetime_s = self.portal.context.settings.portal_certificate_s;
        let serial = self.portal.context.random(|rng| rng.random::<[u8; 16]>());
        let (key, chain) =
            self.portal.enrolment.authority()?.serve(&self.names, serial, now.plus_seconds(lifetime_s))?;
        let provider = rustls::crypto::ring::default_provider();
        let made = CertifiedKey::from_der(chain, key, &provider).map_err(|e| e.to_string())?;
        let made = Arc::new(made);
        *current = Some((now.plus_seconds(DAY_S.min(lifetime_s / 2)), made.clone()));
        Ok(made)
    }
}

impl ResolvesServerCert for Presented {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.fresh().inspect_err(|error| tracing::error!(error, "the portal has no certificate")).ok()
    }
}

/// Takes connections and hands on those whose handshake is done. Ends with whoever it hands them to.
pub fn listen(listener: TcpListener, config: ServerConfig) -> ReceiverStream<Result<Encrypted, io::Error>> {
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let (ready, connections) = mpsc::channel(16);
    tokio::spawn(async move {
        let handshakes = Arc::new(Semaphore::new(HANDSHAKES));
        loop {
            let accepted = tokio::select! {
                () = ready.closed() => return,
                accepted = listener.accept() => accepted,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "a worker's connection cannot be taken");
                    tokio::time::sleep(SOON).await;
                    continue;
                }
            };
            let Ok(permit) = handshakes.clone().try_acquire_owned() else {
                tracing::warn!("too many workers connect at once; one is put off");
                continue;
            };
            let (acceptor, ready) = (acceptor.clone(), ready.clone());
            tokio::spawn(async move {
                let done = tokio::time::timeout(HANDSHAKE, shake_hands(&acceptor, stream)).await;
                drop(permit);
                match done {
                    Ok(Ok(encrypted)) => {
                        // Nobody takes it when the portal stops.
                        let _ = ready.send(Ok(encrypted)).await;
                    }
                    Ok(Err(error)) => tracing::info!(%error, "a connection to the worker port was refused"),
                    Err(_) => tracing::info!("a connection to the worker port was silent"),
                }
            });
        }
    });
    ReceiverStream::new(connections)
}

async fn shake_hands(acceptor: &TlsAcceptor, stream: TcpStream) -> io::Result<Encrypted> {
    stream.set_nodelay(true)?;
    let stream = acceptor.accept(stream).await?;
    let (_, connection) = stream.get_ref();
    let certificate = connection.peer_certificates().and_then(<[_]>::first);
    let peer = Peer(certificate.cloned());
    Ok(Encrypted { stream, peer })
}

/// A connection whose handshake is done.
pub struct Encrypted {
    stream: TlsStream<TcpStream>,
    peer: Peer,
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

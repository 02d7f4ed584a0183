//! The listener for gateways.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rustix::net::sockopt;
use rustls::ServerConfig;
use rustls::server::{NoServerSessionStorage, ResolvesServerCert};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, sink};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::admission::{Admission, Replicas};
use super::args::InferenceListen;
use super::handshake::{ALPN, HandshakeAnswer, read_token};
use super::pending::{PendingHandshake, PendingHandshakes};
use super::port::{bind, bind_again};
use super::prompt::PromptStream;
use super::relay::relay;

/// The time limit for TLS and the token.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(5);
/// The time limit for a gateway to receive one byte.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// The time limit for a gateway to close a refused connection, and the bytes that are read from it until then.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);
const MOST_UNREAD: u64 = 64 << 10;
/// The pause after a failed accept, such as without a free file.
const ACCEPT_AGAIN: Duration = Duration::from_millis(500);
/// The soft limit of open files that the listener asks for.
const WANTED_FILES: u64 = 65_536;
/// The open files for all else of the daemon, with those of pending handshakes.
const OTHER_FILES: u64 = 768;
/// The fewest connections to replicas, on a host with a low limit of open files.
const FEWEST: usize = 16;
/// The times and counts after which the kernel gives a silent gateway up.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(15);
const KEEPALIVE_TRIES: u32 = 4;

/// The listener for gateways of this host.
pub struct ReplicaListener {
    /// With the port that gateways connect to.
    address: SocketAddr,
    listener: Option<TcpListener>,
    connections: Connections,
}

/// The common part of all connections.
#[derive(Clone)]
struct Connections {
    tls: TlsAcceptor,
    /// Permits for the connections to all replicas.
    permits: Arc<Semaphore>,
}

/// An open connection to a replica.
struct ReplicaConnection {
    stream: PromptStream,
    alive: watch::Receiver<()>,
    _permits: [OwnedSemaphorePermit; 2],
}

/// Raises the soft limit of open files. Returns the limit.
fn raise_open_files() -> u64 {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return 0 };
    let wanted = hard.min(WANTED_FILES);
    if soft < wanted && setrlimit(Resource::RLIMIT_NOFILE, wanted, hard).is_ok() { wanted } else { soft }
}

/// The most connections to replicas with this limit of open files: each has two.
fn most_connections(open_files: u64) -> usize {
    let most = open_files.min(WANTED_FILES).saturating_sub(OTHER_FILES) / 2;
    usize::try_from(most).unwrap_or(FEWEST).max(FEWEST)
}

fn tls(certificates: Arc<dyn ResolvesServerCert>) -> Result<TlsAcceptor, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|e| e.to_string())?
        .with_no_client_auth()
        .with_cert_resolver(certificates);
    config.alpn_protocols = vec![ALPN.to_vec()];
    // A resumed session would outlive the certificate.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

impl ReplicaListener {
    /// Listens for gateways. `None`: the operator wants no listener.
    pub async fn open(
        listen: InferenceListen,
        data: &Path,
        certificates: Arc<dyn ResolvesServerCert>,
    ) -> Result<Option<Self>, String> {
        let InferenceListen::At(address) = listen else { return Ok(None) };
        let (address, listener) = bind(address, data).await?;
        let permits = Arc::new(Semaphore::new(most_connections(raise_open_files())));
        Ok(Some(Self { address, listener, connections: Connections { tls: tls(certificates)?, permits } }))
    }

    /// The port that gateways connect to.
    pub const fn port(&self) -> u16 {
        self.address.port()
    }

    /// Serves gateways until the end of the daemon.
    pub async fn serve(self, replicas: Replicas) {
        let listener = match self.listener {
            Some(listener) => listener,
            None => bind_again(self.address).await,
        };
        let pending = PendingHandshakes::default();
        while let Some(permit) = pending.reserve().await {
            match listener.accept().await {
                Ok((stream, peer)) => {
                    // Too many of one address are closed without a word.
                    if let Some(handshake) = pending.begin(peer.ip(), permit) {
                        let (connections, replicas) = (self.connections.clone(), replicas.clone());
                        tokio::spawn(connections.serve(stream, replicas, handshake));
                    }
                }
                Err(error) if is_of_peer(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "a connection of a gateway cannot be accepted; trying again");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            }
        }
    }
}

/// True for an error of one connection, which says nothing about others.
fn is_of_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

/// Sets the options of a connection to a gateway. Without them it is slower to send and to notice a lost gateway.
fn set_options(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_AFTER)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_EVERY)?;
    // A user timeout would also end connections to live gateways whose callers read slowly.
    Ok(sockopt::set_tcp_keepcnt(stream, KEEPALIVE_TRIES)?)
}

impl Connections {
    async fn serve(self, stream: TcpStream, replicas: Replicas, handshake: PendingHandshake) {
        if let Err(error) = set_options(&stream) {
            tracing::debug!(%error, "the options of a connection cannot be set");
        }
        let greeted = timeout(HANDSHAKE_WITHIN, self.greet(stream)).await;
        let Ok(Ok((mut gateway, token))) = greeted else { return };
        let admission = match replicas.admit(&token) {
            Ok(admission) => admission,
            // Without a known token the connection stays pending until its end.
            Err(refusal) => return refuse(gateway, refusal).await,
        };
        drop(handshake);
        match self.connect(admission).await {
            Ok(connection) => {
                if send_answer(&mut gateway, HandshakeAnswer::Connected).await.is_ok() {
                    relay(gateway, connection.stream, connection.alive).await;
                }
            }
            Err(refusal) => refuse(gateway, refusal).await,
        }
    }

    /// Negotiates TLS and reads the token.
    async fn greet(&self, stream: TcpStream) -> io::Result<(TlsStream<TcpStream>, Vec<u8>)> {
        let mut stream = self.tls.accept(stream).await?;
        // A client that offers no protocol at all passes the negotiation.
        if stream.get_ref().1.alpn_protocol() != Some(ALPN) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let token = read_token(&mut stream).await?;
        Ok((stream, token))
    }

    /// Connects to the replica.
    async fn connect(&self, admission: Admission) -> Result<ReplicaConnection, HandshakeAnswer> {
        let Admission { dial, port, alive, permit } = admission;
        let shared = self.permits.clone().try_acquire_owned();
        let permits = [permit, shared.map_err(|_| HandshakeAnswer::TooManyConnections)?];
        let stream = PromptStream::new(dial(port).await.map_err(|_| HandshakeAnswer::NoAnswer)?);
        Ok(ReplicaConnection { stream, alive, _permits: permits })
    }
}

async fn send_answer(gateway: &mut TlsStream<TcpStream>, answer: HandshakeAnswer) -> io::Result<()> {
    let sent = async {
        gateway.write_all(&[answer.byte()]).await?;
        gateway.flush().await
    };
    timeout(ANSWER_WITHIN, sent).await?
}

/// Sends the reason for a missing connection and closes. Unread bytes would reset the connection before the gateway has
/// the reason, so some are read.
async fn refuse(mut gateway: TlsStream<TcpStream>, refusal: HandshakeAnswer) {
    let closed = async {
        send_answer(&mut gateway, refusal).await?;
        gateway.shutdown().await?;
        copy(&mut gateway.take(MOST_UNREAD), &mut sink()).await
    };
    // The gateway may be gone.
    let _ = timeout(CLOSE_WITHIN, closed).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn small_parts_go_to_a_gateway_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _gateway = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        set_options(&stream).unwrap();
        assert!(stream.nodelay().unwrap() && sockopt::socket_keepalive(&stream).unwrap());
        assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), 0, "a caller may read slowly");
    }

    #[test]
    fn the_files_of_connections_leave_room_for_the_daemon() {
        for (files, most) in [(0, 16), (800, 16), (1_024, 128), (4_096, 1_664), (u64::MAX, 32_384)] {
            assert_eq!(most_connections(files), most, "{files}");
        }
        for files in 800..5_000 {
            assert!(most_connections(files) as u64 * 2 + 256 + 512 <= files || most_connections(files) == 16);
        }
    }
}

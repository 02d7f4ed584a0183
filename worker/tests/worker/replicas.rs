//! Replicas as gateways reach them: the real listener, the real dialer and a real process in an attempt.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_exec::{AttemptDialer, entries};
use berth_replicas::{ALPN, Dialing, HandshakeAnswer, ReplicaListener, ReplicaSettings, Replicas};
use berth_shim::model::AttemptKey;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::crypto::ring::{default_provider, sign::any_supported_type};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::load;
use crate::stage::{Running, Script, Stage};

const LONG: Duration = Duration::from_secs(30);

/// A program that answers its readiness path, sends all else back, and after the end of a request the number of its
/// bytes. With `full` it has a port too whose queue of connections is full.
const PROGRAM: &str = r#"exec python3 -u - <<'END'
import socket, threading
full = socket.create_server(('127.0.0.1', 0), backlog=0)
held = [socket.socket() for _ in range(4)]
for one in held:
    one.setblocking(False)
    one.connect_ex(full.getsockname())
server = socket.create_server(('127.0.0.1', 0), backlog=128)
print('up', server.getsockname()[1], full.getsockname()[1], 'ports')
def talk(stream):
    data, total = stream.recv(65536), 0
    if data.startswith(b'GET /ready HTTP/1.1\r\n'):
        stream.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n')
    else:
        while data:
            total += len(data)
            stream.sendall(data)
            data = stream.recv(65536)
        stream.sendall(b'end %d' % total)
    stream.close()
while True:
    threading.Thread(target=talk, args=(server.accept()[0],)).start()
END"#;

type Gateway = TlsStream<TcpStream>;

/// Attempts by name that gateways reach.
struct Served {
    address: SocketAddr,
    certificate: CertificateDer<'static>,
    replicas: Replicas,
    changes: mpsc::UnboundedReceiver<(String, bool)>,
    _data: tempfile::TempDir,
}

fn key(name: &str) -> AttemptKey {
    AttemptKey { job: name.to_owned(), number: 1 }
}

fn dialer(dir: &Path) -> Arc<AttemptDialer> {
    Arc::new(AttemptDialer::with_program(env!("CARGO_BIN_EXE_berth-worker").into(), dir))
}

impl Served {
    async fn open() -> Self {
        let data = tempfile::tempdir().unwrap();
        let own = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        let certificate = CertificateParams::new(vec!["node".to_owned()]).unwrap().self_signed(&own).unwrap();
        let certificate = certificate.der().clone();
        let signing = any_supported_type(&PrivateKeyDer::from(own)).unwrap();
        let served = Arc::new(SingleCertAndKey::from(CertifiedKey::new(vec![certificate.clone()], signing)));
        let listen = "127.0.0.1:0".parse().unwrap();
        let listener = ReplicaListener::open(listen, data.path(), served).await.unwrap().unwrap();
        let (sender, changes) = mpsc::unbounded_channel();
        let replicas = Replicas::new(move |key: &AttemptKey, ready| {
            let _ = sender.send((key.job.clone(), ready));
        });
        let address = SocketAddr::from(([127, 0, 0, 1], listener.port()));
        tokio::spawn(listener.serve(replicas.clone()));
        Self { address, certificate, replicas, changes, _data: data }
    }

    /// Serves a port of an attempt. Its token is its name.
    fn serve(&self, name: &str, dir: &Path, port: u16, max_connections: u32) {
        let settings = ReplicaSettings {
            port,
            readiness_path: "/ready".to_owned(),
            http2: false,
            token_sha256: Sha256::digest(name).into(),
            max_connections,
        };
        self.replicas.serve(&key(name), &settings, || {
            let dialer = dialer(dir);
            Arc::new(move |port| -> Dialing {
                let dialer = dialer.clone();
                Box::pin(async move { dialer.dial(port).await })
            })
        });
    }

    /// A connection with a token, and the answer.
    async fn connect(&self, token: &str) -> (Gateway, u8) {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![ALPN.to_vec()];
        let stream = TcpStream::connect(self.address).await.unwrap();
        let connector = TlsConnector::from(Arc::new(config));
        let mut gateway = connector.connect("node".try_into().unwrap(), stream).await.unwrap();
        let mut message = vec![u8::try_from(token.len()).unwrap()];
        message.extend(token.as_bytes());
        gateway.write_all(&message).await.unwrap();
        let answer = timeout(LONG, gateway.read_u8()).await.unwrap().unwrap();
        (gateway, answer)
    }

    /// Waits for a change of the readiness of this replica.
    async fn changed(&mut self, name: &str) -> bool {
        let change = timeout(LONG, self.changes.recv()).await.unwrap().unwrap();
        assert_eq!(change.0, name);
        change.1
    }
}

/// Starts the program. Returns its ports: an open one and a full one.
fn start(stage: &Stage, name: &str, network: bool) -> (Running, u16, u16) {
    let running = stage.start(name, &Script { text: PROGRAM, network, ..Script::default() });
    running.until("ports");
    let log = running.log();
    let ports: Vec<u16> = log.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    (running, ports[0], ports[1])
}

async fn echoed(gateway: &mut Gateway, text: &[u8]) -> bool {
    let mut received = vec![0; text.len()];
    gateway.write_all(text).await.unwrap();
    timeout(LONG, gateway.read_exact(&mut received)).await.unwrap().unwrap();
    received == text
}

/// Waits for a condition that other processes bring about.
async fn until(what: &str, ready: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !ready() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Ends what a test began outside of this process.
async fn close(served: Served, running: Running) {
    served.replicas.retain(|_| false);
    entries::end_all(&running.dir).unwrap();
    running.stop();
}

async fn reach_the_program(served: &mut Served, name: &str, running: &Running, port: u16) {
    served.serve(name, &running.dir, port, 2);
    assert!(served.changed(name).await, "it answers its probe");
    let (_, answer) = served.connect("wrong").await;
    assert_eq!(answer, HandshakeAnswer::UnknownToken.byte());
    let (gateway, answer) = served.connect(name).await;
    assert_eq!(answer, HandshakeAnswer::Connected.byte());
    let (mut second, answer) = served.connect(name).await;
    assert_eq!(answer, HandshakeAnswer::Connected.byte());
    assert_eq!(served.connect(name).await.1, HandshakeAnswer::TooManyConnections.byte());
    assert!(echoed(&mut second, b"beside it").await);
    // The request ends, and the answer goes on.
    let sent: Vec<u8> = (0..1u32 << 20).map(|at| (at % 251) as u8).collect();
    let (mut reader, mut writer) = tokio::io::split(gateway);
    let (copy, mut received) = (sent.clone(), Vec::new());
    let writing = tokio::spawn(async move {
        writer.write_all(&copy).await.unwrap();
        writer.shutdown().await.unwrap();
        writer
    });
    timeout(LONG, reader.read_to_end(&mut received)).await.unwrap().unwrap();
    writing.await.unwrap();
    assert!(received == [sent.as_slice(), b"end 1048576"].concat(), "{} bytes", received.len());
    assert!(echoed(&mut second, b"after it").await);
}

/// A token of the attempt leads to no port that it does not listen on itself.
async fn reach_nothing_else(served: &Served, name: &str, running: &Running) {
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port();
    let strange = format!("{name}-strange");
    served.serve(&strange, &running.dir, port, 4);
    for _ in 0..2 {
        assert_eq!(served.connect(&strange).await.1, HandshakeAnswer::NoAnswer.byte(), "the host's port");
    }
    drop(other);
    assert_eq!(served.connect(&strange).await.1, HandshakeAnswer::NoAnswer.byte(), "a closed port");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_reaches_the_port_of_a_replica_and_nothing_else() {
    let Some(stage) = Stage::sandboxed() else { return };
    // In the host's network, and in one of its own.
    for (name, network) in [("shared", true), ("own", false)] {
        let mut served = Served::open().await;
        let (running, port, _) = start(&stage, name, network);
        reach_the_program(&mut served, name, &running, port).await;
        reach_nothing_else(&served, name, &running).await;
        close(served, running).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_without_a_sandbox_is_reached_too() {
    let stage = Stage::open();
    let mut served = Served::open().await;
    let (running, port, _) = start(&stage, "plain", true);
    reach_the_program(&mut served, "plain", &running, port).await;
    reach_nothing_else(&served, "plain", &running).await;
    close(served, running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_dialer_is_replaced_and_connections_go_on() {
    let stage = Stage::open();
    let mut served = Served::open().await;
    let (running, port, _) = start(&stage, "killed", true);
    served.serve("killed", &running.dir, port, 8);
    assert!(served.changed("killed").await);
    let (mut gateway, _) = served.connect("killed").await;
    for round in 0..3 {
        let before = entries::entry_processes(&running.dir);
        assert_eq!(before.len(), 1, "one process has opened all connections");
        kill(Pid::from_raw(before[0]), Signal::SIGKILL).unwrap();
        let (mut another, answer) = served.connect("killed").await;
        assert_eq!(answer, HandshakeAnswer::Connected.byte(), "in round {round}");
        assert!(echoed(&mut another, b"new").await && echoed(&mut gateway, b"old").await);
        assert_ne!(entries::entry_processes(&running.dir), before);
    }
    assert!(served.changes.try_recv().is_err(), "it was ready all the time");
    close(served, running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_and_dialer_end_with_the_attempt() {
    let stage = Stage::open();
    let mut served = Served::open().await;
    let (running, port, _) = start(&stage, "ending", true);
    let dir = running.dir.clone();
    served.serve("ending", &dir, port, 8);
    assert!(served.changed("ending").await);
    let (mut gateway, _) = served.connect("ending").await;
    assert!(echoed(&mut gateway, b"on").await);
    running.stop();
    let mut rest = Vec::new();
    // The kernel closes the connection of the killed program or resets it.
    let _ = timeout(LONG, gateway.read_to_end(&mut rest)).await.unwrap();
    assert!(rest.is_empty(), "{rest:?}");
    assert_eq!(served.connect("ending").await.1, HandshakeAnswer::NoAnswer.byte());
    // As the cleanup of the attempt does.
    entries::end_all(&dir).unwrap();
    assert!(entries::entry_processes(&dir).is_empty());
    let late = dialer(&dir).dial(port).await.unwrap_err();
    assert_eq!(late, "The job has ended.");
    served.replicas.retain(|_| false);
    assert_eq!(served.connect("ending").await.1, HandshakeAnswer::UnknownToken.byte());
}

#[test]
fn a_full_port_keeps_back_only_its_own_connections() {
    let _quiet = load::quiet();
    tokio::runtime::Runtime::new().unwrap().block_on(dial_beside_a_full_port());
}

async fn dial_beside_a_full_port() {
    let stage = Stage::open();
    let (running, port, full) = start(&stage, "full", true);
    let dialer = dialer(&running.dir);
    assert!(dialer.dial(port).await.is_ok(), "it has begun");
    let began = Instant::now();
    let stuck: Vec<_> = (0..8)
        .map(|_| {
            let dialer = dialer.clone();
            tokio::spawn(async move { dialer.dial(full).await })
        })
        .collect();
    for _ in 0..8 {
        assert!(dialer.dial(port).await.is_ok(), "beside the full one");
    }
    assert!(stuck.iter().all(|one| !one.is_finished()), "{:?}", began.elapsed());
    for one in stuck {
        assert_eq!(one.await.unwrap().unwrap_err(), format!("Port {full} of the job does not answer."));
    }
    // Together, and not one after the other.
    let took = began.elapsed();
    assert!((Duration::from_secs(2)..Duration::from_secs(8)).contains(&took), "{took:?}");
    assert_eq!(entries::entry_processes(&running.dir).len(), 1, "the same dialer");
    drop(dialer);
    until("the dialer ends with its owner", || entries::entry_processes(&running.dir).is_empty()).await;
    running.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_starts_late_becomes_ready_late() -> io::Result<()> {
    let stage = Stage::open();
    let mut served = Served::open().await;
    // It was free a moment ago, and is below those of outgoing connections.
    let port = (20_000..32_000)
        .map(|first| first + std::process::id() as u16 % 4_000)
        .find(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .unwrap_or_default();
    let text = format!(
        "echo up; while [ ! -e go ]; do sleep 0.05; done\n{}",
        PROGRAM.replace(
            "server = socket.create_server(('127.0.0.1', 0)",
            &format!("server = socket.create_server(('127.0.0.1', {port})")
        )
    );
    let running = stage.start("late", &Script { text: &text, ..Script::default() });
    running.until("up");
    served.serve("late", &running.dir, port, 1);
    assert_eq!(served.connect("late").await.1, HandshakeAnswer::NoAnswer.byte());
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert!(served.changes.try_recv().is_err(), "some probes have failed");
    std::fs::write(running.dir.join("work/go"), "")?;
    assert!(served.changed("late").await);
    close(served, running).await;
    Ok(())
}

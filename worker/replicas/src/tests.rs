//! The listener with gateways and replicas of this process: real TLS and real connections, without an attempt.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use berth_shim::model::AttemptKey;
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::crypto::ring::{default_provider, sign::any_supported_type};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;

const TOKEN: &str = "the-token-of-the-replica";
const LONG: Duration = Duration::from_secs(20);

type Gateway = TlsStream<TcpStream>;

/// A listener with one replica, whose program listens at `port`.
struct Stage {
    address: SocketAddr,
    replicas: Replicas,
    changes: mpsc::UnboundedReceiver<bool>,
    port: Arc<AtomicU16>,
    certificate: CertificateDer<'static>,
    _data: tempfile::TempDir,
}

fn key() -> AttemptKey {
    AttemptKey { job: "job_x".to_owned(), number: 1 }
}

impl Stage {
    async fn open(port: u16, max_connections: u32) -> Self {
        let data = tempfile::tempdir().unwrap();
        let own = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        let certificate = CertificateParams::new(vec!["node".to_owned()]).unwrap().self_signed(&own).unwrap();
        let certificate = certificate.der().clone();
        let signing = any_supported_type(&PrivateKeyDer::from(own)).unwrap();
        let served = CertifiedKey::new(vec![certificate.clone()], signing);
        let listen = "127.0.0.1:0".parse().unwrap();
        let served = Arc::new(SingleCertAndKey::from(served));
        let listener = ReplicaListener::open(listen, data.path(), served).await.unwrap().unwrap();
        let (sender, changes) = mpsc::unbounded_channel();
        let replicas = Replicas::new(move |_, ready| {
            let _ = sender.send(ready);
        });
        let address = SocketAddr::from(([127, 0, 0, 1], listener.port()));
        tokio::spawn(listener.serve(replicas.clone()));
        let settings = ReplicaSettings {
            port: 80,
            readiness_path: "/ready".to_owned(),
            http2: false,
            token_sha256: Sha256::digest(TOKEN).into(),
            max_connections,
        };
        let port = Arc::new(AtomicU16::new(port));
        let known = port.clone();
        replicas.serve(&key(), &settings, || {
            Arc::new(move |asked| -> Dialing {
                assert_eq!(asked, 80, "the port of the replica");
                let port = known.load(Ordering::SeqCst);
                Box::pin(
                    async move { TcpStream::connect(("127.0.0.1", port)).await.map_err(|e| e.to_string()) },
                )
            })
        });
        Self { address, replicas, changes, port, certificate, _data: data }
    }

    /// A connection of TLS with these protocols.
    async fn greet(&self, protocols: &[&[u8]]) -> io::Result<Gateway> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        let stream = TcpStream::connect(self.address).await.unwrap();
        TlsConnector::from(Arc::new(config)).connect("node".try_into().unwrap(), stream).await
    }

    /// A connection with a token, and the answer.
    async fn connect(&self, token: &str) -> (Gateway, u8) {
        let mut gateway = self.greet(&[ALPN]).await.unwrap();
        let mut message = vec![u8::try_from(token.len()).unwrap()];
        message.extend(token.as_bytes());
        gateway.write_all(&message).await.unwrap();
        let answer = timeout(LONG, gateway.read_u8()).await.unwrap().unwrap();
        (gateway, answer)
    }

    /// Connects until the answer is this.
    async fn until(&self, expected: HandshakeAnswer) -> Gateway {
        let deadline = Instant::now() + LONG;
        loop {
            let (gateway, answer) = self.connect(TOKEN).await;
            if answer == expected.byte() {
                return gateway;
            }
            assert!(Instant::now() < deadline, "the answer is {answer}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// A program of a replica that sends all back, and the end when it has the end. It answers probes.
async fn echo() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer_or_echo(stream));
        }
    });
    port
}

async fn answer_or_echo(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; 32 << 10];
    let mut first = true;
    loop {
        let length = stream.read(&mut buffer).await?;
        if length == 0 {
            return stream.shutdown().await;
        }
        if first && buffer.starts_with(b"GET /ready ") {
            return stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
        }
        first = false;
        stream.write_all(&buffer[..length]).await?;
    }
}

#[tokio::test]
async fn a_gateway_reaches_a_replica_with_its_token_only() {
    let mut stage = Stage::open(echo().await, 4).await;
    assert_eq!(timeout(LONG, stage.changes.recv()).await.unwrap(), Some(true), "it answers its probe");
    for token in ["", "wrong", &TOKEN[1..], &format!("{TOKEN}x"), &"x".repeat(255)] {
        let (mut gateway, answer) = stage.connect(token).await;
        assert_eq!(answer, HandshakeAnswer::UnknownToken.byte(), "{token}");
        let mut rest = Vec::new();
        gateway.read_to_end(&mut rest).await.unwrap();
        assert!(rest.is_empty(), "nothing follows");
    }
    let (gateway, answer) = stage.connect(TOKEN).await;
    assert_eq!(answer, HandshakeAnswer::Connected.byte());
    // Larger than all buffers, so both directions flow at the same time.
    let sent: Vec<u8> = (0..4u32 << 20).map(|at| (at % 251) as u8).collect();
    let (mut reader, mut writer) = tokio::io::split(gateway);
    let (copy, mut received) = (sent.clone(), Vec::new());
    let writing = tokio::spawn(async move {
        writer.write_all(&copy).await.unwrap();
        // Half of the connection ends, and the other half has the rest.
        writer.shutdown().await.unwrap();
        writer
    });
    timeout(LONG, reader.read_to_end(&mut received)).await.unwrap().unwrap();
    writing.await.unwrap();
    assert!(received == sent, "{} bytes", received.len());
}

#[tokio::test]
async fn only_gateways_get_an_answer() {
    let stage = Stage::open(echo().await, 4).await;
    assert!(stage.greet(&[b"h2", b"http/1.1"]).await.is_err(), "another protocol");
    // A client of no protocol gets an end in place of an answer.
    if let Ok(mut strange) = stage.greet(&[]).await {
        let _ = strange.write_all(b"\x01x").await;
        assert!(timeout(LONG, strange.read_u8()).await.unwrap().is_err());
    }
    let mut plain = TcpStream::connect(stage.address).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut rest = Vec::new();
    // An alert of TLS, then the end.
    let _ = timeout(LONG, plain.read_to_end(&mut rest)).await.unwrap();
    assert!(rest.len() < 16, "{rest:?}");
    let began = Instant::now();
    let mut silent = TcpStream::connect(stage.address).await.unwrap();
    let mut halfway = stage.greet(&[ALPN]).await.unwrap();
    halfway.write_all(b"\x09token").await.unwrap();
    let (mut rest, mut more) = (Vec::new(), Vec::new());
    let ends = async { tokio::join!(silent.read_to_end(&mut rest), halfway.read_to_end(&mut more)) };
    let _ = timeout(LONG, ends).await.unwrap();
    let took = began.elapsed();
    assert!(rest.is_empty() && more.is_empty() && took >= Duration::from_secs(4), "{took:?}");
    stage.until(HandshakeAnswer::Connected).await;
}

#[tokio::test]
async fn connections_beyond_the_limit_are_refused_until_one_ends() {
    let stage = Stage::open(echo().await, 2).await;
    let first = stage.until(HandshakeAnswer::Connected).await;
    let mut second = stage.until(HandshakeAnswer::Connected).await;
    assert_eq!(stage.connect(TOKEN).await.1, HandshakeAnswer::TooManyConnections.byte());
    assert_eq!(stage.connect("wrong").await.1, HandshakeAnswer::UnknownToken.byte());
    second.write_all(b"on").await.unwrap();
    let mut word = [0; 2];
    second.read_exact(&mut word).await.unwrap();
    assert_eq!(&word, b"on", "the refused one disturbs nobody");
    drop(first);
    let _third = stage.until(HandshakeAnswer::Connected).await;
    assert_eq!(stage.connect(TOKEN).await.1, HandshakeAnswer::TooManyConnections.byte());
}

#[tokio::test]
async fn a_closed_port_is_no_answer_and_not_ready() {
    // Port 1 has no listener.
    let closed = 1;
    let mut stage = Stage::open(closed, 1).await;
    for _ in 0..3 {
        let (_, answer) = stage.connect(TOKEN).await;
        assert_eq!(answer, HandshakeAnswer::NoAnswer.byte(), "it leaves room for the next one");
    }
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert!(stage.changes.try_recv().is_err(), "it was never ready");
    let port = echo().await;
    stage.port.store(port, Ordering::SeqCst);
    assert_eq!(timeout(LONG, stage.changes.recv()).await.unwrap(), Some(true));
    stage.until(HandshakeAnswer::Connected).await;
    stage.port.store(closed, Ordering::SeqCst);
    let began = Instant::now();
    assert_eq!(timeout(LONG, stage.changes.recv()).await.unwrap(), Some(false));
    assert!(began.elapsed() >= Duration::from_secs(4), "one failure is not enough");
}

#[tokio::test]
async fn connections_end_with_the_replica() {
    let stage = Stage::open(echo().await, 2).await;
    let mut gateway = stage.until(HandshakeAnswer::Connected).await;
    stage.replicas.retain(|_| false);
    let mut rest = Vec::new();
    // The replica itself did not close, so TLS has no end either.
    let ended = timeout(LONG, gateway.read_to_end(&mut rest)).await.unwrap();
    assert!(ended.is_err() && rest.is_empty(), "{ended:?}");
    assert_eq!(stage.connect(TOKEN).await.1, HandshakeAnswer::UnknownToken.byte());
}

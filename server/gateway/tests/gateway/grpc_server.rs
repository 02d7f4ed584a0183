//! Replicas that speak HTTP/2: a server of gRPC, and one that begins nothing.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use berth_serving::snapshot::ReplicaProtocol;
use berth_serving::snapshot::Service as ServedService;
use berth_types::ids::NodeId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::{Grpc, NamedService};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use uuid::Uuid;

use crate::replica::{Authority, Worker};

type Texts = ReceiverStream<Result<String, Status>>;

/// A server of gRPC with one method of each kind.
#[derive(Clone, Default)]
pub struct Echo {
    /// Calls that have begun.
    pub calls: Arc<AtomicUsize>,
    /// A caller has left an open call.
    pub left: Arc<Notify>,
    /// Parts of an endless answer until now.
    pub parts: Arc<AtomicUsize>,
}

impl Echo {
    /// Starts the server and the worker before it.
    pub async fn start(&self, authority: &Authority, number: u128) -> Worker {
        self.start_by(Server::builder(), authority, number).await
    }

    /// Starts the server with other settings, and the worker before it.
    pub async fn start_by(&self, mut builder: Server, authority: &Authority, number: u128) -> Worker {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let serving = builder.add_service(self.clone());
        tokio::spawn(serving.serve_with_incoming(TcpIncoming::from(listener)));
        worker(authority, number, at).await
    }

    async fn unary(self, request: Request<String>) -> Result<Response<String>, Status> {
        match request.get_ref().as_str() {
            "bad" => {
                let mut status = Status::failed_precondition("not \u{e9} now");
                status.metadata_mut().insert("x-reason", "full".parse().unwrap());
                Err(status)
            }
            "away" => Err(Status::unavailable("away")),
            "limit" => {
                let limit = request.metadata().get("grpc-timeout").map(|limit| limit.to_str().unwrap());
                Ok(Response::new(limit.unwrap_or_default().to_owned()))
            }
            text => Ok(Response::new(text.to_owned())),
        }
    }

    async fn both(self, request: Request<Streaming<String>>) -> Result<Response<Texts>, Status> {
        let (mut texts, (send, receive)) = (request.into_inner(), mpsc::channel(1));
        tokio::spawn(async move {
            while let Some(Ok(text)) = texts.next().await {
                let _ = send.send(Ok(text)).await;
            }
            self.left.notify_one();
        });
        Ok(Response::new(ReceiverStream::new(receive)))
    }

    async fn endless(self, _: Request<String>) -> Result<Response<Texts>, Status> {
        let (send, receive) = mpsc::channel(1);
        tokio::spawn(async move {
            while send.send(Ok("a".repeat(16 << 10))).await.is_ok() {
                self.parts.fetch_add(1, Ordering::Relaxed);
            }
            self.left.notify_one();
        });
        Ok(Response::new(ReceiverStream::new(receive)))
    }

    async fn join(self, request: Request<Streaming<String>>) -> Result<Response<String>, Status> {
        let (mut texts, mut all) = (request.into_inner(), String::new());
        while let Some(text) = texts.next().await {
            all.push_str(&text?);
        }
        Ok(Response::new(all))
    }
}

impl NamedService for Echo {
    const NAME: &'static str = "test.Echo";
}

impl Service<http::Request<Body>> for Echo {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let this = self.clone();
        Box::pin(async move {
            let mut grpc = Grpc::new(ProstCodec::<String, String>::default());
            let path = request.uri().path().to_owned();
            Ok(match path.as_str() {
                "/test.Echo/Unary" => {
                    grpc.unary(tower::service_fn(move |r| this.clone().unary(r)), request).await
                }
                "/test.Echo/Both" => {
                    grpc.streaming(tower::service_fn(move |r| this.clone().both(r)), request).await
                }
                "/test.Echo/Endless" => {
                    grpc.server_streaming(tower::service_fn(move |r| this.clone().endless(r)), request).await
                }
                "/test.Echo/Join" => {
                    grpc.client_streaming(tower::service_fn(move |r| this.clone().join(r)), request).await
                }
                "/test.Echo/Unstated" => {
                    let answer = http::Response::builder().header("content-type", "application/grpc");
                    answer.body(Body::empty()).unwrap()
                }
                _ => Status::unimplemented("no such method").into_http(),
            })
        })
    }
}

async fn worker(authority: &Authority, number: u128, at: SocketAddr) -> Worker {
    let node = NodeId::from_uuid(Uuid::from_u128(number));
    Worker::start_at(authority, (node, node), number, at).await
}

/// A service whose replicas speak HTTP/2.
pub fn over_http2(mut service: ServedService) -> ServedService {
    for revision in &mut service.revisions {
        revision.replica_protocol = ReplicaProtocol::Http2;
    }
    service
}

/// The way in which a replica begins nothing.
#[derive(Debug, Clone, Copy)]
pub enum Unbegun {
    Refused,
    GoesAway,
    /// It says nothing.
    Silent,
}

/// Starts a replica that begins no stream, and the worker before it. It answers the first part of a body, and notes each
/// cancelled stream.
pub async fn unbegun(authority: &Authority, number: u128, how: Unbegun) -> (Worker, Arc<Notify>) {
    let cancelled = Arc::new(Notify::new());
    let noted = cancelled.clone();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(begin_nothing(stream, how, noted.clone()));
        }
    });
    (worker(authority, number, at).await, cancelled)
}

async fn begin_nothing(mut stream: TcpStream, how: Unbegun, cancelled: Arc<Notify>) -> std::io::Result<()> {
    // The words that a client of HTTP/2 begins with.
    stream.read_exact(&mut [0; 24]).await?;
    // SETTINGS without a value.
    stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        tokio::io::copy(&mut (&mut stream).take(length.into()), &mut tokio::io::sink()).await?;
        match head[3] {
            // DATA.
            0 => {}
            // RST_STREAM.
            3 => {
                cancelled.notify_one();
                continue;
            }
            _ => continue,
        }
        let mut answer = match how {
            Unbegun::Refused => vec![0, 0, 4, 3, 0],
            Unbegun::Silent => continue,
            Unbegun::GoesAway => vec![0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        };
        if let Unbegun::Refused = how {
            answer.extend_from_slice(&head[5..]);
            answer.extend_from_slice(&[0, 0, 0, 7]);
        }
        stream.write_all(&answer).await?;
    }
}

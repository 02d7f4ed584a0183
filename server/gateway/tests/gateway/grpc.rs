//! Calls of gRPC by a real client through the gateway to a real server.

use std::sync::atomic::Ordering;
use std::time::Duration;

use berth_gateway::settings::Limits;
use http::uri::PathAndQuery;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::grpc_server::{Echo, Unbegun, over_http2, unbegun};
use crate::replica::{Reply, Server, Worker};
use crate::stage::{KEY, Stage, digits, eventually, key, limits};

type Codec = ProstCodec<String, String>;

/// A client of a service at `/s/kelda/digits`.
struct Client(Grpc<Channel>);

impl Client {
    async fn connect(stage: &Stage) -> Self {
        let endpoint = Endpoint::from_shared(stage.url("")).unwrap();
        Self(Grpc::new(endpoint.connect().await.unwrap()))
    }

    fn path(method: &str) -> PathAndQuery {
        format!("/s/kelda/digits/test.Echo/{method}").parse().unwrap()
    }

    async fn unary(&self, request: Request<String>) -> Result<String, Status> {
        self.unary_at(Self::path("Unary"), request).await
    }

    async fn unary_at(&self, path: PathAndQuery, request: Request<String>) -> Result<String, Status> {
        let mut grpc = self.0.clone();
        grpc.ready().await.unwrap();
        grpc.unary(request, path, Codec::default()).await.map(tonic::Response::into_inner)
    }

    async fn ask(&self, text: &str) -> Result<String, Status> {
        self.unary(Request::new(text.to_owned())).await
    }

    async fn both(&self, texts: ReceiverStream<String>) -> Result<Streaming<String>, Status> {
        let mut grpc = self.0.clone();
        grpc.ready().await.unwrap();
        let called = grpc.streaming(Request::new(texts), Self::path("Both"), Codec::default()).await;
        called.map(tonic::Response::into_inner)
    }

    async fn endless(&self) -> Streaming<String> {
        let mut grpc = self.0.clone();
        grpc.ready().await.unwrap();
        let called =
            grpc.server_streaming(Request::new("a".to_owned()), Self::path("Endless"), Codec::default());
        called.await.unwrap().into_inner()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_all_kinds_pass() {
    let (stage, server) = (Stage::new().await, Echo::default());
    let worker = server.start(&stage.authority, 1).await;
    stage.publish(vec![over_http2(digits(vec![worker.replica]))], vec![key(KEY)]).await;
    let client = Client::connect(&stage).await;
    assert_eq!(client.ask("one").await.unwrap(), "one");
    let status = client.ask("bad").await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::FailedPrecondition, "not \u{e9} now"));
    assert_eq!(status.metadata().get("x-reason").unwrap(), "full", "trailers pass");
    let (send, receive) = mpsc::channel(1);
    let mut answers = client.both(ReceiverStream::new(receive)).await.unwrap();
    for text in ["a", "b", "c"] {
        send.send(text.to_owned()).await.unwrap();
        assert_eq!(answers.next().await.unwrap().unwrap(), text, "while the call is open");
    }
    drop(send);
    assert!(answers.next().await.is_none());
    let mut grpc = client.0.clone();
    grpc.ready().await.unwrap();
    let texts = tokio_stream::iter(["x".to_owned(), "y".to_owned()]);
    let joined = grpc.client_streaming(Request::new(texts), Client::path("Join"), Codec::default()).await;
    let joined: String = joined.unwrap().into_inner();
    assert_eq!(joined, "xy");
    assert_eq!(worker.connections.load(Ordering::Relaxed), 1, "all on one connection");
    eventually("no open call", || async { stage.metric("berth_gateway_in_flight").await == Some(0.0) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_calls_share_a_connection_and_a_status_counts() {
    let (stage, server) = (Stage::new().await, Echo::default());
    let mut worker = server.start(&stage.authority, 1).await;
    worker.replica.concurrency = 50;
    stage.publish(vec![over_http2(digits(vec![worker.replica]))], Vec::new()).await;
    let client = Client::connect(&stage).await;
    let mut open = Vec::new();
    for _ in 0..50 {
        let (send, receive) = mpsc::channel(1);
        open.push((client.both(ReceiverStream::new(receive)).await.unwrap(), send));
    }
    assert_eq!(stage.metric("berth_gateway_in_flight").await, Some(50.0), "each is a request at the replica");
    for (index, (answers, send)) in open.iter_mut().enumerate() {
        send.send(index.to_string()).await.unwrap();
        assert_eq!(answers.next().await.unwrap().unwrap(), index.to_string());
    }
    assert_eq!(worker.connections.load(Ordering::Relaxed), 1);
    drop(open);
    assert_eq!(client.ask("away").await.unwrap_err().code(), Code::Unavailable);
    eventually("the error in a report", || async { stage.portal.uses().iter().any(|row| row.errors == 1) })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_call_ends_at_the_replica() {
    let (stage, server) = (Stage::new().await, Echo::default());
    let worker = server.start(&stage.authority, 1).await;
    stage.publish(vec![over_http2(digits(vec![worker.replica]))], Vec::new()).await;
    let client = Client::connect(&stage).await;
    let (send, receive) = mpsc::channel(1);
    let mut answers = client.both(ReceiverStream::new(receive)).await.unwrap();
    send.send("a".to_owned()).await.unwrap();
    assert_eq!(answers.next().await.unwrap().unwrap(), "a");
    drop((answers, send));
    tokio::time::timeout(Duration::from_secs(20), server.left.notified()).await.unwrap();
    eventually("no open call", || async { stage.metric("berth_gateway_in_flight").await == Some(0.0) }).await;
    assert_eq!(client.ask("next").await.unwrap(), "next", "the connection goes on");
    assert_eq!(worker.connections.load(Ordering::Relaxed), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_ends_a_call_everywhere() {
    let (stage, server) = (Stage::new().await, Echo::default());
    let worker = server.start(&stage.authority, 1).await;
    stage.publish(vec![over_http2(digits(vec![worker.replica]))], Vec::new()).await;
    let client = Client::connect(&stage).await;
    let mut request = Request::new("limit".to_owned());
    request.metadata_mut().insert("grpc-timeout", "1H".parse().unwrap());
    let left = client.unary(request).await.unwrap();
    assert!(left.ends_with('m') && left.trim_end_matches('m').parse::<u64>().unwrap() <= 3_600_000, "{left}");
    // The library of this client and server has a clock of its own, so both are without it here.
    let (silent, cancelled) = unbegun(&stage.authority, 2, Unbegun::Silent).await;
    stage.publish(vec![over_http2(digits(vec![silent.replica]))], Vec::new()).await;
    assert_eq!(status_in_time(&stage, "300m").await, "4");
    tokio::time::timeout(Duration::from_secs(20), cancelled.notified()).await.unwrap();
    // Without a replica the wait has the limit too.
    stage.publish(vec![over_http2(digits(Vec::new()))], Vec::new()).await;
    assert_eq!(status_in_time(&stage, "200m").await, "4");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_ends_a_call_whose_caller_still_sends() {
    let (stage, server) = (Stage::new().await, Echo::default());
    let worker = server.start(&stage.authority, 1).await;
    stage.publish(vec![over_http2(digits(vec![worker.replica]))], Vec::new()).await;
    let client = Client::connect(&stage).await;
    let mut grpc = client.0.clone();
    grpc.ready().await.unwrap();
    let (send, receive) = mpsc::channel(1);
    let mut request = Request::new(ReceiverStream::new(receive));
    request.metadata_mut().insert("grpc-timeout", "2S".parse().unwrap());
    let called = grpc.streaming(request, Client::path("Both"), Codec::default()).await;
    let mut answers: Streaming<String> = called.unwrap().into_inner();
    send.send("a".to_owned()).await.unwrap();
    assert_eq!(answers.next().await.unwrap().unwrap(), "a");
    let status = answers.next().await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
    // The body of the request is still open.
    tokio::time::timeout(Duration::from_secs(20), server.left.notified()).await.unwrap();
    eventually("no open call", || async { stage.metric("berth_gateway_in_flight").await == Some(0.0) }).await;
    assert_eq!(client.ask("next").await.unwrap(), "next", "the connection goes on");
    assert_eq!(worker.connections.load(Ordering::Relaxed), 1);
    drop(send);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_permits_few_calls_gets_more_connections() {
    let (stage, server) = (Stage::new().await, Echo::default());
    let builder = tonic::transport::Server::builder().max_concurrent_streams(2);
    let mut worker = server.start_by(builder, &stage.authority, 1).await;
    worker.replica.concurrency = 50;
    stage.publish(vec![over_http2(digits(vec![worker.replica]))], Vec::new()).await;
    let client = Client::connect(&stage).await;
    let mut open = Vec::new();
    for text in ["a", "b", "c", "d", "e"] {
        let (send, receive) = mpsc::channel(1);
        let mut answers = client.both(ReceiverStream::new(receive)).await.unwrap();
        send.send(text.to_owned()).await.unwrap();
        assert_eq!(answers.next().await.unwrap().unwrap(), text, "while all former ones are open");
        open.push((answers, send));
    }
    assert_eq!(worker.connections.load(Ordering::Relaxed), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_with_many_cancelled_calls_gets_no_further_ones() {
    let (stage, server) = (Stage::new().await, Echo::default());
    let worker = server.start(&stage.authority, 1).await;
    stage.publish(vec![over_http2(digits(vec![worker.replica]))], Vec::new()).await;
    let client = Client::connect(&stage).await;
    for _ in 0..50 {
        // An endless answer is never whole at the end of its caller.
        let mut answers = client.endless().await;
        assert!(answers.next().await.unwrap().is_ok());
        drop(answers);
        tokio::time::timeout(Duration::from_secs(20), server.left.notified()).await.unwrap();
    }
    eventually("another connection", || async {
        assert_eq!(client.ask("next").await.unwrap(), "next");
        worker.connections.load(Ordering::Relaxed) == 2
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_without_a_status_is_an_error() {
    let (stage, server) = (Stage::new().await, Echo::default());
    let worker = server.start(&stage.authority, 1).await;
    stage.publish(vec![over_http2(digits(vec![worker.replica]))], Vec::new()).await;
    let client = Client::connect(&stage).await;
    let unstated = client.unary_at(Client::path("Unstated"), Request::new("one".to_owned())).await;
    assert!(unstated.is_err(), "{unstated:?}");
    let unknown = client.unary_at(Client::path("None"), Request::new("one".to_owned())).await.unwrap_err();
    assert_eq!(unknown.code(), Code::Unimplemented, "{unknown:?}");
    eventually("both calls in a report", || async {
        stage.portal.uses().iter().map(|row| row.requests).sum::<u64>() == 2
    })
    .await;
    let errors: u64 = stage.portal.uses().iter().map(|row| row.errors).sum();
    assert_eq!(errors, 1, "an unknown method is a fault of the caller");
}

/// The status of a call with a time limit, by a client without a clock.
async fn status_in_time(stage: &Stage, limit: &str) -> String {
    let stream = tokio::net::TcpStream::connect(stage.at).await.unwrap();
    let built = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (mut sender, connection) = built.unwrap();
    tokio::spawn(connection);
    let request = http::Request::post(stage.url("/s/kelda/digits/test.Echo/Unary"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("grpc-timeout", limit)
        .body("\0\0\0\0\0".to_owned())
        .unwrap();
    let answer = tokio::time::timeout(Duration::from_secs(20), sender.send_request(request)).await;
    let answer = answer.unwrap().unwrap();
    assert_eq!(answer.status(), http::StatusCode::OK);
    answer.headers()["grpc-status"].to_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_call_has_its_status() {
    let (stage, server) =
        (Stage::with(Limits { wait: Duration::from_millis(50), ..limits() }).await, Echo::default());
    let worker = server.start(&stage.authority, 1).await;
    let small = berth_serving::snapshot::Service { max_body_bytes: 100, ..digits(vec![worker.replica]) };
    stage.publish(vec![over_http2(small)], vec![key(KEY)]).await;
    let client = Client::connect(&stage).await;
    let mut strange = Request::new("one".to_owned());
    strange.metadata_mut().insert("authorization", "Bearer sk-berth-unknown".parse().unwrap());
    let refused = client.unary(strange).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated, "{refused:?}");
    assert!(refused.metadata().contains_key("x-request-id"));
    let mut known = Request::new("one".to_owned());
    known.metadata_mut().insert("authorization", format!("Bearer {KEY}").parse().unwrap());
    let nowhere = client.unary_at("/s/kelda/none/test.Echo/Unary".parse().unwrap(), known).await.unwrap_err();
    assert_eq!(nowhere.code(), Code::Unimplemented, "{nowhere:?}");
    let large = client.ask(&"a".repeat(200)).await.unwrap_err();
    assert_eq!(large.code(), Code::ResourceExhausted, "{large:?}");
    stage.publish(vec![over_http2(digits(Vec::new()))], Vec::new()).await;
    let asleep = client.ask("one").await.unwrap_err();
    assert_eq!(asleep.code(), Code::Unavailable, "{asleep:?}");
    assert!(server.calls.load(Ordering::Relaxed) <= 1, "only the large body was on its way");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_a_replica_did_not_begin_gets_another_one() {
    for how in [Unbegun::Refused, Unbegun::GoesAway] {
        let (stage, server) = (Stage::new().await, Echo::default());
        let (first, _) = unbegun(&stage.authority, 1, how).await;
        let second = server.start(&stage.authority, 2).await;
        stage.publish(vec![over_http2(digits(vec![first.replica, second.replica]))], Vec::new()).await;
        let client = Client::connect(&stage).await;
        // The replica of a call is random, so calls follow until one has met the first.
        while first.connections.load(Ordering::Relaxed) == 0 {
            assert_eq!(client.ask("the whole body").await.unwrap(), "the whole body", "{how:?}");
        }
        assert_eq!(stage.metric("berth_gateway_retries_total").await, Some(1.0), "{how:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unread_stream_of_http2_ends_at_the_replica() {
    let idle = Duration::from_millis(500);
    let (stage, server) = (Stage::with(Limits { idle, ..limits() }).await, Echo::default());
    let worker = server.start(&stage.authority, 1).await;
    stage.publish(vec![over_http2(digits(vec![worker.replica]))], Vec::new()).await;
    let client = Client::connect(&stage).await;
    let mut unread = client.endless().await;
    assert!(unread.next().await.unwrap().is_ok());
    tokio::time::timeout(Duration::from_secs(20), server.left.notified()).await.unwrap();
    eventually("its place to be free", || async {
        stage.metric("berth_gateway_in_flight").await == Some(0.0)
    })
    .await;
    assert_eq!(client.ask("next").await.unwrap(), "next", "other streams of the connection go on");
    while let Some(Ok(_)) = unread.next().await {}
    assert!(server.parts.load(Ordering::Relaxed) < 1_000, "nothing is buffered without a limit");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_of_http1_answers_callers_of_http2() {
    let stage = Stage::new().await;
    let worker =
        Worker::start(&stage.authority, 1, &Server::new(|_| Reply::Whole(503, "{}".to_owned()))).await;
    stage.publish(vec![digits(vec![worker.replica])], Vec::new()).await;
    let client = Client::connect(&stage).await;
    let failed = client.ask("one").await.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable, "the status of HTTP stands for one of gRPC: {failed:?}");
    assert!(failed.message().contains("503"), "{failed:?}");
}

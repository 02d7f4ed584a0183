//! Answers on their way: streams of events, breaks, callers that leave, and other protocols.

use reqwest::StatusCode;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::replica::{End, Reply, Server, Worker};
use crate::stage::{KEY, Stage, chat, digits, eventually, key, read_head};

const TEXT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":1}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_metered_and_its_usage_reported() {
    let stage = Stage::new().await;
    let server = Server::new(|_| Reply::Events(format!("{TEXT}{USAGE}{DONE}"), End::Whole));
    let worker = Worker::start(&stage.authority, 1, &server).await;
    stage.publish(vec![chat(vec![worker.replica])], vec![key(KEY)]).await;
    let ask = json!({"model": "llama", "stream": true, "messages": []});
    let answer = stage.ask(KEY, &ask).send().await.unwrap();
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    assert_eq!(answer.text().await.unwrap(), format!("{TEXT}{DONE}"), "the caller did not ask for the usage");
    let ask = json!({"model": "llama", "stream": true, "stream_options": {"include_usage": true}});
    let answer = stage.ask(KEY, &ask).send().await.unwrap();
    assert_eq!(answer.text().await.unwrap(), format!("{TEXT}{USAGE}{DONE}"));
    assert!(server.seen.lock().unwrap()[0].body.contains("\"include_usage\":true"));
    eventually("both requests in reports", || async {
        stage.portal.uses().iter().map(|row| row.requests).sum::<u64>() == 2
    })
    .await;
    let uses = stage.portal.uses();
    assert_eq!(uses.iter().map(|row| row.prompt_tokens).sum::<u64>(), 10);
    assert_eq!(uses.iter().map(|row| row.completion_tokens).sum::<u64>(), 2);
    assert!(uses.iter().all(|row| row.errors == 0 && row.key == Some(key(KEY).id)));
    assert_eq!(uses.iter().flat_map(|row| &row.first_byte).sum::<u64>(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_stream_ends_with_a_named_event() {
    let stage = Stage::new().await;
    let server = Server::new(|_| Reply::Events(format!("{TEXT}data: {{\"cho"), End::Broken));
    let worker = Worker::start(&stage.authority, 1, &server).await;
    stage.publish(vec![chat(vec![worker.replica])], vec![key(KEY)]).await;
    let ask = json!({"model": "llama", "stream": true, "stream_options": {"include_usage": true}});
    let answer = stage.ask(KEY, &ask).send().await.unwrap().text().await.unwrap();
    let (sent, error) = answer.split_once("\nevent: error\n").unwrap();
    assert_eq!(sent, format!("{TEXT}data: {{\"cho"));
    assert!(error.contains("\"code\":\"replica.broken\"") && error.ends_with("\n\n"), "{error}");
    eventually("the error in a report", || async { stage.portal.uses().iter().any(|row| row.errors == 1) })
        .await;
    let row = stage.portal.uses().remove(0);
    assert_eq!((row.requests, row.completion_tokens), (1, 1), "what was sent counts");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_body_breaks_the_connection() {
    let stage = Stage::new().await;
    let server = Server::new(|_| Reply::Short("abc".to_owned()));
    let worker = Worker::start(&stage.authority, 1, &server).await;
    stage.publish(vec![digits(vec![worker.replica])], Vec::new()).await;
    let mut answer = stage.get("/s/kelda/digits").send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(answer.chunk().await.unwrap().unwrap(), "abc", "the bytes before the fault arrive");
    assert!(answer.chunk().await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_leaves_ends_the_request_of_the_replica() {
    let stage = Stage::new().await;
    let server = Server::new(|_| Reply::Events(TEXT.to_owned(), End::Open));
    let worker = Worker::start(&stage.authority, 1, &server).await;
    stage.publish(vec![chat(vec![worker.replica])], vec![key(KEY)]).await;
    let ask = json!({"model": "llama", "stream": true, "messages": []});
    let mut answer = stage.ask(KEY, &ask).send().await.unwrap();
    assert_eq!(answer.chunk().await.unwrap().unwrap(), TEXT);
    drop(answer);
    server.left.notified().await;
    eventually("the use so far in a report", || async { !stage.portal.uses().is_empty() }).await;
    let row = stage.portal.uses().remove(0);
    assert_eq!((row.requests, row.errors, row.completion_tokens), (1, 0, 1));
    assert_eq!(stage.metric("berth_gateway_in_flight").await, Some(0.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_protocol_passes_both_ways() {
    let stage = Stage::new().await;
    let server = Server::new(|_| Reply::Echo);
    let worker = Worker::start(&stage.authority, 1, &server).await;
    stage.publish(vec![digits(vec![worker.replica])], Vec::new()).await;
    let mut stream = TcpStream::connect(stage.at).await.unwrap();
    let head =
        "GET /s/kelda/digits/socket HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: echo\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(stream.read_u8().await.unwrap());
    }
    let answer = String::from_utf8(answer).unwrap().to_ascii_lowercase();
    assert!(answer.starts_with("http/1.1 101") && answer.contains("upgrade: echo"), "{answer}");
    for text in ["one", "two"] {
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut echo = [0; 3];
        stream.read_exact(&mut echo).await.unwrap();
        assert_eq!(echo, text.as_bytes());
    }
    assert_eq!(stage.metric("berth_gateway_in_flight").await, Some(1.0), "it has a place at its replica");
    stream.shutdown().await.unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.unwrap();
    eventually("its end", || async { stage.metric("berth_gateway_in_flight").await == Some(0.0) }).await;
    eventually("its use in a report", || async { !stage.portal.uses().is_empty() }).await;
    let row = stage.portal.uses().remove(0);
    assert_eq!((row.requests, row.first_byte.iter().sum::<u64>()), (1, 0), "it has no first byte");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_without_a_price_passes_other_protocols() {
    let stage = Stage::new().await;
    let worker = Worker::start(&stage.authority, 1, &Server::new(|_| Reply::Echo)).await;
    stage.publish(vec![chat(vec![worker.replica])], vec![key(KEY)]).await;
    let mut stream = TcpStream::connect(stage.at).await.unwrap();
    let head = format!(
        "GET /s/kelda/chat/v1/realtime HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {KEY}\r\nconnection: Upgrade\r\nupgrade: echo\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let answer = read_head(&mut stream).await;
    assert!(answer.starts_with("http/1.1 101"), "{answer}");
    stream.write_all(b"one").await.unwrap();
    let mut echo = [0; 3];
    stream.read_exact(&mut echo).await.unwrap();
    assert_eq!(&echo, b"one");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_has_a_time_to_its_first_byte_only_with_an_answer() {
    let stage = Stage::new().await;
    let server = Server::new(|seen| match seen.head.split(' ').nth(1) {
        // Its text has no byte, so the end of its first chunk is that of the answer.
        Some("/chunks") => Reply::Events(String::new(), End::Broken),
        _ => Reply::Whole(200, String::new()),
    })
    .gated();
    let worker = Worker::start(&stage.authority, 1, &server).await;
    stage.publish(vec![digits(vec![worker.replica])], Vec::new()).await;
    let counts = || {
        let uses = stage.portal.uses();
        let requests: u64 = uses.iter().map(|row| row.requests).sum();
        (requests, uses.iter().flat_map(|row| &row.first_byte).sum::<u64>())
    };
    let left = tokio::spawn(stage.get("/s/kelda/digits").send());
    eventually("the request at the replica", || async { server.count() == 1 }).await;
    left.abort();
    eventually("its use in a report", || async { counts().0 == 1 }).await;
    assert_eq!(counts(), (1, 0), "its caller left before");
    server.gate.as_ref().unwrap().add_permits(100);
    let empty = stage.get("/s/kelda/digits").send().await.unwrap();
    assert_eq!((empty.status(), empty.text().await.unwrap().as_str()), (StatusCode::OK, ""));
    eventually("both in reports", || async { counts().0 == 2 }).await;
    assert_eq!(counts(), (2, 1), "the head of an empty answer counts");
    let chunks = stage.get("/s/kelda/digits/chunks").send().await.unwrap();
    assert_eq!((chunks.status(), chunks.text().await.unwrap().as_str()), (StatusCode::OK, ""));
    eventually("all in reports", || async { counts().0 == 3 }).await;
    assert_eq!(counts(), (3, 2), "the end of an empty answer without a length counts");
}

//! Requests with their addresses, keys and limits.

use std::sync::atomic::Ordering;
use std::time::Duration;

use berth_gateway::settings::Limits;
use berth_serving::snapshot::{Access, Address, Key, KeyHash, RateLimits, Revision, Service};
use berth_types::ids::{InferenceKeyId, NodeId, OrgId, RevisionId};
use hyper_util::rt::{TokioExecutor, TokioIo};
use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use uuid::Uuid;

use crate::replica::{Authority, Reply, Server, Worker};
use crate::stage::{KEY, Stage, chat, digits, eventually, key, limits, name, read_head};

const ANSWER: &str = r#"{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7}}"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_request_reaches_its_replica_without_the_key() {
    let stage = Stage::new().await;
    let server = Server::whole("[4]");
    let worker = Worker::start(&stage.authority, 1, &server).await;
    let mut service = digits(vec![worker.replica]);
    service.addresses.push(Address::Host(name("digits.example.org")));
    stage.publish(vec![service], vec![key(KEY)]).await;
    let request = stage.client.post(stage.url("/s/kelda/digits/a/b?c=d")).bearer_auth(KEY);
    let answer = request.header("x-forwarded-for", "203.0.113.9").body("[1,2]").send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
    assert_eq!(uuid::Uuid::parse_str(&id).unwrap().get_version_num(), 4, "{id}");
    assert_eq!(answer.text().await.unwrap(), "[4]");
    let seen = server.seen.lock().unwrap()[0].clone();
    assert!(seen.head.starts_with("post /a/b?c=d http/1.1\r\n"), "{}", seen.head);
    assert!(seen.head.contains("x-forwarded-for: 127.0.0.1\r\n"), "{}", seen.head);
    assert!(seen.head.contains(&format!("x-request-id: {id}\r\n")), "{}", seen.head);
    assert!(!seen.head.contains("authorization"), "{}", seen.head);
    assert_eq!(seen.body, "[1,2]");
    for _ in 0..3 {
        let named = stage.get("/metrics").header("host", "digits.example.org");
        assert_eq!(named.send().await.unwrap().text().await.unwrap(), "[4]", "a service has its whole host");
    }
    assert!(worker.connections.load(Ordering::Relaxed) < 4, "connections are kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_answers_by_its_name_to_the_keys_of_its_organization() {
    let stage = Stage::new().await;
    let server = Server::whole(ANSWER);
    let worker = Worker::start(&stage.authority, 1, &server).await;
    stage.publish(vec![chat(vec![worker.replica])], vec![key(KEY)]).await;
    let ask = json!({"model": "llama", "max_tokens": 10, "messages": []});
    let answer = stage.ask(KEY, &ask).send().await.unwrap();
    assert_eq!((answer.status(), answer.text().await.unwrap().as_str()), (StatusCode::OK, ANSWER));
    let models = stage.get("/v1/models").bearer_auth(KEY).send().await.unwrap();
    let models: Value = models.json().await.unwrap();
    assert_eq!(models["data"][0]["id"], "llama");
    let other = json!({"model": "gemma", "messages": []});
    for (secret, body, status, code) in [
        ("sk-berth-other", &ask, 401, "key.refused"),
        ("sk-other", &ask, 401, "key.refused"),
        ("", &ask, 401, "key.refused"),
        (KEY, &other, 404, "model.not_found"),
        (KEY, &json!({"model": 5}), 400, "request.malformed"),
    ] {
        let refused = stage.ask(secret, body).send().await.unwrap();
        assert_eq!(refused.status().as_u16(), status);
        let refused: Value = refused.json().await.unwrap();
        assert_eq!(refused["error"]["code"], code);
    }
    let refused = stage.get("/v1/models").send().await.unwrap();
    assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(refused.headers()["www-authenticate"], "Bearer");
    let method = stage.get("/v1/chat/completions").bearer_auth(KEY).send().await.unwrap();
    assert_eq!(method.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(method.headers()["allow"], "POST");
    let method = stage.client.post(stage.url("/v1/models")).bearer_auth(KEY).send().await.unwrap();
    assert_eq!(method.headers()["allow"], "GET, HEAD");
    assert_eq!(server.count(), 1, "no refused request reached the replica");
    stage.publish(vec![chat(Vec::new())], Vec::new()).await;
    let revoked = stage.ask(KEY, &ask).send().await.unwrap();
    assert_eq!(revoked.status(), StatusCode::UNAUTHORIZED);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_public_service_lists_its_models_for_the_keys_of_others() {
    let stage = Stage::new().await;
    let service = Service { access: Access::Public, ..chat(Vec::new()) };
    let other = Key { org: OrgId::from_uuid(Uuid::from_u128(2)), ..key(KEY) };
    stage.publish(vec![service], vec![other]).await;
    for (path, count) in [("/s/kelda/chat/v1/models", 1), ("/v1/models", 0)] {
        let models = stage.get(path).bearer_auth(KEY).send().await.unwrap();
        let models: Value = models.json().await.unwrap();
        assert_eq!(models["data"].as_array().unwrap().len(), count, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_without_a_key_never_have_more_places_than_are_free() {
    let stage = Stage::with(Limits { requests: 4, ..limits() }).await;
    let server = Server::whole("1").gated();
    let worker = Worker::start(&stage.authority, 1, &server).await;
    stage.publish(vec![digits(vec![worker.replica])], Vec::new()).await;
    let asked: Vec<_> = (0..2).map(|_| tokio::spawn(stage.get("/s/kelda/digits").send())).collect();
    eventually("both at the replica", || async { server.count() == 2 }).await;
    let full = stage.get("/s/kelda/digits").send().await.unwrap();
    assert_eq!(full.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(full.headers().contains_key("retry-after"));
    let full: Value = full.json().await.unwrap();
    assert_eq!(full["code"], "gateway.full");
    server.gate.as_ref().unwrap().add_permits(100);
    for asked in asked {
        assert_eq!(asked.await.unwrap().unwrap().status(), StatusCode::OK);
    }
    assert_eq!(stage.get("/s/kelda/digits").send().await.unwrap().status(), StatusCode::OK, "places return");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_trickles_is_refused() {
    let stage = Stage::with(Limits { body: Duration::from_millis(300), ..limits() }).await;
    stage.publish(vec![chat(Vec::new())], vec![key(KEY)]).await;
    let (mut read, mut write) = TcpStream::connect(stage.at).await.unwrap().into_split();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {KEY}\r\ncontent-length: 1000\r\n\r\n"
    );
    write.write_all(head.as_bytes()).await.unwrap();
    let mut part = [0; 64];
    let trickled = async {
        // Each part comes in time.
        while write.write_all(b"{").await.is_ok() {
            let answer = tokio::time::timeout(Duration::from_millis(30), read.read(&mut part)).await;
            if let Ok(Ok(count)) = answer {
                return String::from_utf8_lossy(&part[..count]).into_owned();
            }
        }
        String::new()
    };
    let answer = tokio::time::timeout(Duration::from_secs(10), trickled).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_gets_the_length_of_an_empty_body_and_the_body_of_a_get() {
    let stage = Stage::new().await;
    let server = Server::whole("1");
    let worker = Worker::start(&stage.authority, 1, &server).await;
    stage.publish(vec![digits(vec![worker.replica])], Vec::new()).await;
    let empty = stage.client.post(stage.url("/s/kelda/digits")).header("content-length", "0").send().await;
    assert_eq!(empty.unwrap().status(), StatusCode::OK);
    assert!(server.seen.lock().unwrap()[0].head.contains("content-length: 0\r\n"));
    let mut stream = TcpStream::connect(stage.at).await.unwrap();
    let get =
        "GET /s/kelda/digits HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\n[1]\r\n0\r\n\r\n";
    stream.write_all(get.as_bytes()).await.unwrap();
    assert!(read_head(&mut stream).await.starts_with("http/1.1 200"));
    assert!(server.seen.lock().unwrap()[1].head.contains("transfer-encoding: chunked\r\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_the_canary_hits_it_at_0_percent_and_counts_there() {
    const OTHER: &str = "sk-berth-two";
    let stage = Stage::new().await;
    let (live, canary) = (Server::whole("live"), Server::whole("canary"));
    let (first, second) =
        (Worker::start(&stage.authority, 1, &live).await, Worker::start(&stage.authority, 2, &canary).await);
    let id = InferenceKeyId::from_uuid(Uuid::from_u128(2));
    let keys = vec![key(KEY), Key { id, number: 2, hash: KeyHash::new(OTHER), ..key(KEY) }];
    let mut service = digits(vec![first.replica]);
    let revision = RevisionId::from_uuid(Uuid::from_u128(3));
    service.revisions.push(Revision {
        id: revision,
        weight_percent: 0,
        pinned_keys: vec![keys[0].id],
        replicas: vec![second.replica],
        ..service.revisions[0].clone()
    });
    stage.publish(vec![service.clone()], keys.clone()).await;
    let ask = async |secret: Option<&str>| {
        let request = stage.get("/s/kelda/digits");
        let request = match secret {
            Some(secret) => request.bearer_auth(secret),
            None => request,
        };
        request.send().await.unwrap().text().await.unwrap()
    };
    for _ in 0..8 {
        for (secret, answer) in [(Some(KEY), "canary"), (Some(OTHER), "live"), (None, "live")] {
            assert_eq!(ask(secret).await, answer, "{secret:?}");
        }
    }
    let of_canary = || stage.portal.uses().into_iter().filter(move |used| used.revision == revision);
    let is_counted = || async { of_canary().map(|used| used.requests).sum::<u64>() == 8 };
    eventually("the use of the canary", is_counted).await;
    assert!(of_canary().all(|used| used.key == Some(keys[0].id)));
    // After the way of the canary the key uses the live revision.
    service.revisions.truncate(1);
    stage.publish(vec![service], keys).await;
    assert_eq!(ask(Some(KEY)).await, "live");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_without_a_meter_evades_no_price() {
    let stage = Stage::new().await;
    let server = Server::whole("{}");
    let worker = Worker::start(&stage.authority, 1, &server).await;
    let mut service = chat(vec![worker.replica]);
    stage.publish(vec![service.clone()], vec![key(KEY)]).await;
    let path = "/s/kelda/chat/tokenize";
    let free = stage.get(path).bearer_auth(KEY).send().await.unwrap();
    assert_eq!(free.status(), StatusCode::OK);
    service.nano_per_prompt_token = 1;
    stage.publish(vec![service], vec![key(KEY)]).await;
    let priced = stage.get(path).bearer_auth(KEY).send().await.unwrap();
    assert_eq!(priced.status(), StatusCode::NOT_FOUND);
    assert_eq!(server.count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_without_a_meter_evades_no_rate_of_tokens() {
    let stage = Stage::new().await;
    let server = Server::whole("{}");
    let worker = Worker::start(&stage.authority, 1, &server).await;
    let service = chat(vec![worker.replica]);
    // An escaped path is none of the known ones.
    let urls = ["/v1/responses", "/v1/messages", "/v1/chat/completion%73"]
        .map(|path| stage.url(&format!("/s/kelda/chat{path}")));
    for (tokens, requests, status) in [(Some(1), None, 404), (None, Some(9), 200), (None, None, 200)] {
        let limits = RateLimits { requests_per_minute: requests, tokens_per_minute: tokens };
        stage.publish(vec![service.clone()], vec![Key { limits, ..key(KEY) }]).await;
        for url in &urls {
            let answer = stage.client.post(url).bearer_auth(KEY).body("{}").send().await.unwrap();
            assert_eq!(answer.status().as_u16(), status, "{url}, {limits:?}");
            if status == 404 {
                let refused: Value = answer.json().await.unwrap();
                assert_eq!(refused["error"]["code"], "object.not_found", "{url}");
            }
        }
    }
    assert_eq!(server.count(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_over_the_limit_is_refused() {
    let stage = Stage::new().await;
    let server = Server::whole("{}");
    let worker = Worker::start(&stage.authority, 1, &server).await;
    let (model, plain) = (chat(vec![]), digits(vec![worker.replica]));
    stage.publish(vec![model, plain], vec![key(KEY)]).await;
    let long = "x".repeat(10_001);
    let plain = stage.client.post(stage.url("/s/kelda/digits")).body(long.clone()).send().await.unwrap();
    assert_eq!(plain.status(), StatusCode::PAYLOAD_TOO_LARGE);
    let ask = json!({"model": "llama", "prompt": long});
    let refused = stage.ask(KEY, &ask).send().await.unwrap();
    assert_eq!(refused.status(), StatusCode::PAYLOAD_TOO_LARGE);
    let refused: Value = refused.json().await.unwrap();
    assert_eq!(refused["error"]["code"], "request.too_large");
    assert_eq!(server.count(), 0);
    let fits = stage.client.post(stage.url("/s/kelda/digits")).body("x".repeat(10_000)).send().await.unwrap();
    assert_eq!(fits.status(), StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_never_ends_is_cut() {
    let stage = Stage::new().await;
    for begin in ["", "P", "GET / HTTP/1.1\r\nhost: a\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut stream = TcpStream::connect(stage.at).await.unwrap();
        stream.write_all(begin.as_bytes()).await.unwrap();
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut rest)).await;
        assert!(ended.is_ok(), "{begin:?}");
    }
    let mut stream = TcpStream::connect(stage.at).await.unwrap();
    let long = format!("GET / HTTP/1.1\r\nhost: a\r\nx: {}", "x".repeat(70_000));
    let _ = stream.write_all(long.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_pages_of_the_portal_are_let_in() {
    let stage = Stage::new().await;
    stage.publish(vec![chat(Vec::new())], vec![key(KEY)]).await;
    let own = format!("http://{}", stage.portal.at);
    let preflight = |origin: &str| {
        let request = stage.client.request(reqwest::Method::OPTIONS, stage.url("/v1/chat/completions"));
        request.header("origin", origin).header("access-control-request-method", "POST").send()
    };
    let allowed = preflight(&own).await.unwrap();
    assert_eq!(allowed.status(), StatusCode::NO_CONTENT);
    assert_eq!(allowed.headers()["access-control-allow-origin"], own.as_str());
    assert!(allowed.headers()["access-control-allow-headers"].to_str().unwrap().contains("authorization"));
    let refused = preflight("https://evil.example.org").await.unwrap();
    assert!(!refused.headers().contains_key("access-control-allow-origin"));
    let models = stage.get("/v1/models").header("origin", &own).bearer_auth(KEY).send().await.unwrap();
    assert_eq!(models.headers()["access-control-allow-origin"], own.as_str());
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_node_of_a_replica_gets_its_token() {
    let stage = Stage::new().await;
    let server = Server::whole("{}");
    let node = |number: u128| NodeId::from_uuid(Uuid::from_u128(number));
    let other = Worker::start_as(&stage.authority, (node(1), node(2)), 1, &server).await;
    let foreign = Worker::start(&Authority::new(), 3, &server).await;
    for worker in [other, foreign] {
        stage.publish(vec![digits(vec![worker.replica])], Vec::new()).await;
        let asked = stage.get("/s/kelda/digits").timeout(Duration::from_millis(500)).send().await;
        assert!(asked.is_err(), "the request waits for another replica: {asked:?}");
        assert_eq!(server.count(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn http_2_without_tls_has_many_requests_on_one_connection() {
    let stage = Stage::new().await;
    let server = Server::new(|seen| Reply::Whole(200, format!("{:?}", seen.body)));
    let worker = Worker::start(&stage.authority, 1, &server).await;
    stage.publish(vec![digits(vec![worker.replica])], Vec::new()).await;
    let stream = TokioIo::new(TcpStream::connect(stage.at).await.unwrap());
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::spawn(connection);
    let mut answers = Vec::new();
    for number in 0..4 {
        let uri = format!("http://{}/s/kelda/digits/{number}", stage.at);
        let request = http::Request::post(uri).body(number.to_string()).unwrap();
        answers.push(sender.send_request(request));
    }
    for answer in answers {
        assert_eq!(answer.await.unwrap().status(), StatusCode::OK);
    }
    assert_eq!(server.count(), 4);
}

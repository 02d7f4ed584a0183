//! The edge towards strangers: slow, idle and abandoned connections.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, BodyDataStream, Bytes};
use axum::http::{Request, header};
use axum::routing::get;
use berth_access::ports;
use berth_foundation::Settings;
use berth_foundation::credentials::fingerprint;
use berth_foundation::proxies::TrustedProxies;
use berth_proto::RenewRequest;
use berth_proto::portal_client::PortalClient;
use berth_rest::Sender;
use berth_server::connections::{self, Limits};
use berth_server::{rest, web};
use berth_types::ids::OrgId;
use futures::{FutureExt, StreamExt};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tonic::Code;
use tower::ServiceExt;

use crate::common::{Caller, PASSWORD, TestPortal};
use crate::daemons::{PlayedSession, certificate_request, join_new_node, way};
use crate::worker_portal::without_worker;

/// The longest wait for anything that must happen.
const DEADLINE: Duration = Duration::from_secs(20);

/// Serves a router with these limits on a free port, and returns its address.
async fn serve(router: Router, max: usize, idle: Duration, proxies: TrustedProxies) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let limits = Limits { max, idle, proxies };
    tokio::spawn(connections::serve(listener, router, limits, std::future::pending()));
    address
}

/// Sends a text and reads until the end of the connection.
async fn exchange(at: SocketAddr, text: &str) -> String {
    let mut stream = TcpStream::connect(at).await.unwrap();
    // A refused connection can end before the text.
    let _ = stream.write_all(text.as_bytes()).await;
    read_to_end(&mut stream).await
}

async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    // A reset is an end too.
    let _ = timeout(DEADLINE, stream.read_to_end(&mut answer)).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

/// The text of a sign-in of this account from behind a proxy.
fn sign_in(email: &str, password: &str, from: &str) -> String {
    let body = json!({"email": email, "password": password}).to_string();
    format!(
        "POST /api/v1/sessions HTTP/1.1\r\nHost: berth\r\nConnection: close\r\nX-Forwarded-For: {from}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn loopback() -> TrustedProxies {
    TrustedProxies { networks: vec!["127.0.0.0/8".parse().unwrap()], ..TrustedProxies::default() }
}

#[tokio::test]
async fn slow_and_idle_connections_end() {
    let t = TestPortal::sqlite().await;
    let at = serve(t.router.clone(), 100, Duration::from_millis(300), TrustedProxies::default()).await;
    assert_eq!(exchange(at, "").await, "", "an idle connection");
    assert_eq!(exchange(at, "GET /healthz HTTP/1.1\r\nHost: be").await, "", "a partial head");
    let kept = exchange(at, "GET /healthz HTTP/1.1\r\nHost: berth\r\n\r\n").await;
    assert!(kept.ends_with("ok\n"), "an idle connection after an answer: {kept}");
    let head = "POST /api/v1/sessions HTTP/1.1\r\nHost: berth\r\nContent-Type: application/json\r\n";
    let stalled = exchange(at, &format!("{head}Content-Length: 100\r\n\r\n{{")).await;
    assert!(stalled.starts_with("HTTP/1.1 408"), "a body that stops: {stalled}");
    let head = "POST /api/v1/stripe/events HTTP/1.1\r\nHost: berth\r\n";
    let stalled = exchange(at, &format!("{head}Content-Length: 100\r\n\r\n{{")).await;
    assert!(stalled.starts_with("HTTP/1.1 408"), "an event of Stripe that stops: {stalled}");
}

#[tokio::test]
async fn a_message_without_one_clear_end_is_refused() {
    let t = TestPortal::sqlite().await;
    let at = serve(t.router.clone(), 100, DEADLINE, TrustedProxies::default()).await;
    let head = "POST /api/v1/sessions HTTP/1.1\r\nHost: berth\r\nContent-Type: application/json\r\n";
    let hidden = "GET /healthz HTTP/1.1\r\nHost: berth\r\nConnection: close\r\n\r\n";
    for ends in [
        "Content-Length: 2\r\nContent-Length: 40\r\n",
        "Content-Length: 2, 40\r\n",
        "Content-Length: +2\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: xchunked\r\nContent-Length: 2\r\n",
    ] {
        let answer = exchange(at, &format!("{head}{ends}\r\n{{}}{hidden}")).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{ends}: {answer}");
        assert!(!answer.contains("200 OK"), "{ends}: {answer}");
    }
}

#[tokio::test]
async fn connections_beyond_the_limit_end_at_once() {
    let t = TestPortal::sqlite().await;
    let at = serve(t.router.clone(), 8, DEADLINE * 10, TrustedProxies::default()).await;
    // One network has a quarter of all.
    let mut open = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(at).await.unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: berth\r\n\r\n").await.unwrap();
        let mut first = [0; 15];
        timeout(DEADLINE, stream.read_exact(&mut first)).await.unwrap().unwrap();
        assert_eq!(&first, b"HTTP/1.1 200 OK");
        open.push(stream);
    }
    let request = "GET /healthz HTTP/1.1\r\nHost: berth\r\nConnection: close\r\n\r\n";
    assert_eq!(exchange(at, request).await, "");
    drop(open.pop());
    // The portal learns of the end of a connection a moment later.
    let served = timeout(DEADLINE, async {
        while !exchange(at, request).await.ends_with("ok\n") {
            tokio::task::yield_now().await;
        }
    });
    served.await.expect("a connection has its place again");
}

#[tokio::test]
async fn the_connection_of_a_client_that_does_not_read_ends() {
    let endless = || async {
        let part = Ok::<_, Infallible>(Bytes::from_static(&[0; 65_536]));
        Body::from_stream(futures::stream::repeat(part))
    };
    let router = Router::new().route("/endless", get(endless)).route("/healthz", get(|| async { "ok\n" }));
    // One network has one connection.
    let at = serve(router, 4, Duration::from_millis(300), TrustedProxies::default()).await;
    let mut stalled = TcpStream::connect(at).await.unwrap();
    stalled.write_all(b"GET /endless HTTP/1.1\r\nHost: berth\r\n\r\n").await.unwrap();
    let mut first = [0; 15];
    timeout(DEADLINE, stalled.read_exact(&mut first)).await.unwrap().unwrap();
    let request = "GET /healthz HTTP/1.1\r\nHost: berth\r\nConnection: close\r\n\r\n";
    let served = timeout(DEADLINE, async {
        while !exchange(at, request).await.ends_with("ok\n") {
            tokio::task::yield_now().await;
        }
    });
    served.await.expect("the place of the client is free");
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_without_a_certificate_take_no_place_of_a_worker() {
    let setup = without_worker().await;
    let credentials = join_new_node(&setup).await;
    let mut open = Vec::new();
    let refused = timeout(DEADLINE, async {
        loop {
            let Ok(channel) = way(&setup, None).connect().await else { return };
            let mut client = PortalClient::new(channel);
            let status = client.renew(RenewRequest { csr: certificate_request().1 }).await.unwrap_err();
            if status.code() != Code::Unauthenticated {
                return;
            }
            open.push(client);
        }
    });
    refused.await.expect("a network has no limit");
    // The connection of the join can be open yet.
    assert!((63..=64).contains(&open.len()), "{}", open.len());
    PlayedSession::open(&setup, Some(&credentials), ("a", 1, 1)).await.unwrap().expect_admitted().await;
}

#[tokio::test]
async fn large_bodies_are_refused_before_they_are_read() {
    let t = TestPortal::sqlite().await;
    let at = serve(t.router.clone(), 100, DEADLINE * 10, TrustedProxies::default()).await;
    let head = |path: &str, bytes: usize| {
        format!(
            "POST {path} HTTP/1.1\r\nHost: berth\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {bytes}\r\n\r\n"
        )
    };
    for path in ["/api/v1/sessions", "/api/v1/sign-up", "/api/v1/setup", "/api/v1/invitations/look"] {
        let answer = exchange(at, &head(path, (64 << 10) + 1)).await;
        assert!(answer.starts_with("HTTP/1.1 413"), "{path}: {answer}");
        assert!(answer.contains("at most 64 KiB"), "{path}: {answer}");
    }
    // A caller without an account is refused before the body.
    let answer = exchange(at, &head("/api/v1/orgs/org_00000000000000000000000001/jobs", 11 << 20)).await;
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
}

#[tokio::test]
async fn abandoned_sign_ins_do_not_delay_others() {
    let db = crate::common::engines("abandoned").await.remove(0);
    let t = TestPortal::with(db.1, |settings| berth_foundation::Settings {
        trusted_proxies: loopback(),
        ..settings
    });
    t.tenant("lab").await;
    let at = serve(rest::router(t.portal.clone()), 1_000, DEADLINE, loopback()).await;
    let before = t.portal.accounts.password_hashes();
    for n in 0..400 {
        let mut stream = TcpStream::connect(at).await.unwrap();
        let from = format!("10.0.{}.{}", n / 250, n % 250);
        stream
            .write_all(sign_in(&format!("{n}@example.org"), "wrong wrong wrong", &from).as_bytes())
            .await
            .unwrap();
    }
    // The queue is empty as soon as the portal has seen the ends of these connections. Until then a refusal uses up
    // no attempt.
    let signed_in = timeout(DEADLINE, async {
        loop {
            let answer = exchange(at, &sign_in("lab@example.org", PASSWORD, "203.0.113.9")).await;
            if answer.starts_with("HTTP/1.1 201") {
                return;
            }
            assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
            assert!(answer.contains("retry-after:"), "{answer}");
        }
    });
    signed_in.await.expect("the right sign-in succeeds");
    let computed = t.portal.accounts.password_hashes() - before;
    assert!(computed < 200, "{computed} hashes for 400 abandoned sign-ins");
}

#[tokio::test]
async fn the_address_behind_a_trusted_proxy_counts() {
    let db = crate::common::engines("proxied").await.remove(0);
    let t = TestPortal::with(db.1, |settings| berth_foundation::Settings {
        trusted_proxies: loopback(),
        ..settings
    });
    t.tenant("lab").await;
    let at = serve(rest::router(t.portal.clone()), 100, DEADLINE, loopback()).await;
    for _ in 0..10 {
        let answer = exchange(at, &sign_in("lab@example.org", "wrong wrong wrong", "203.0.113.9")).await;
        assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    }
    let answer = exchange(at, &sign_in("lab@example.org", PASSWORD, "203.0.113.9")).await;
    assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
    // The sender cannot choose its address: only the last entry is the proxy's.
    let answer = exchange(at, &sign_in("lab@example.org", PASSWORD, "192.0.2.7, 203.0.113.9")).await;
    assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
    let answer = exchange(at, &sign_in("lab@example.org", PASSWORD, "192.0.2.7")).await;
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    t.get(&Caller::Nobody, "/info").await.expect(200);
}

/// Opens the stream of an organization and reads its first event.
pub async fn open_stream(t: &TestPortal, caller: &Caller, org: &str) -> BodyDataStream {
    let (name, value) = match caller {
        Caller::Cookie(cookie) => (header::COOKIE, cookie.clone()),
        Caller::Token(token) => (header::AUTHORIZATION, format!("Bearer {token}")),
        Caller::Nobody => panic!("nobody has a stream"),
    };
    let request = Request::builder()
        .uri(format!("/api/v1/orgs/{org}/events"))
        .header(name, value)
        .header(header::ACCEPT, "text/event-stream");
    let response = t.router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.status(), 200);
    let mut stream = response.into_body().into_data_stream();
    stream.next().await.unwrap().unwrap();
    stream
}

pub async fn ends(mut stream: BodyDataStream) {
    let to_the_end = async { while stream.next().await.is_some() {} };
    timeout(DEADLINE, to_the_end).await.unwrap();
}

#[tokio::test]
async fn streams_end_at_the_sign_out_of_their_session() {
    let t = TestPortal::sqlite().await;
    let (here, org) = t.tenant("lab").await;
    let there = t.sign_in("lab@example.org").await;
    let (ended, mut open) = (open_stream(&t, &here, &org).await, open_stream(&t, &there, &org).await);
    t.call(&here, "DELETE", "/sessions/current", Value::Null).await.expect(204);
    ends(ended).await;
    timeout(DEADLINE, open.next()).await.unwrap().unwrap().unwrap();
}

/// Deletes the session of a caller without a message to its streams.
pub async fn delete_session(t: &TestPortal, caller: &Caller) {
    let Caller::Cookie(cookie) = caller else { panic!("a token has no session") };
    let hash = fingerprint(cookie.split_once('=').unwrap().1);
    let deleted = t.portal.context.db.write(move |tx| {
        let hash = hash.clone();
        async move { berth_store::accounts::delete_session(tx, &hash).await }.boxed()
    });
    deleted.await.unwrap();
}

#[tokio::test]
async fn access_ends_with_a_session_that_ended_before_the_subscription() {
    let t = TestPortal::sqlite().await;
    let (ada, org) = t.tenant("lab").await;
    let Caller::Cookie(cookie) = &ada else { panic!("Ada has a session") };
    let value = cookie.split_once('=').unwrap().1;
    let caller = t.portal.accounts.caller_by_session(value).await.unwrap().unwrap();
    delete_session(&t, &ada).await;
    let org: OrgId = org.parse().unwrap();
    let ended = t.portal.context.access_end(org, &caller);
    timeout(DEADLINE, ended).await.expect("the access goes on");
    // The sign-out of an absent session sends no message.
    let session = caller.session.clone();
    let mut told = Box::pin(t.portal.context.live.streams_end(org, caller.user.id, None, session));
    t.call(&ada, "DELETE", "/sessions/current", Value::Null).await.expect(204);
    assert!(futures::poll!(&mut told).is_pending());
}

#[tokio::test]
async fn streams_end_at_the_expiry_of_their_session_or_token() {
    let t = TestPortal::sqlite().await;
    let (ada, org) = t.tenant("lab").await;
    let day_s = 86_400;
    let expires_at = t.portal.context.now().plus_seconds(day_s);
    let new = json!({"name": "ci", "role": "viewer", "expires_at": expires_at});
    let made = t.post(&ada, &format!("/orgs/{org}/tokens"), new).await.expect(201);
    let token = Caller::Token(made["secret"].as_str().unwrap().to_owned());
    let (by_token, mut by_session) = (open_stream(&t, &token, &org).await, open_stream(&t, &ada, &org).await);
    t.clock.advance_s(day_s);
    ends(by_token).await;
    timeout(DEADLINE, by_session.next()).await.unwrap().unwrap().unwrap();
    t.clock.advance_s(13 * day_s);
    ends(by_session).await;
}

#[tokio::test]
async fn a_token_creates_no_longer_token_and_its_revocation_ends_what_it_created() {
    for (engine, db, _location) in crate::common::engines("edge_tokens").await {
        let t = TestPortal::on(db);
        let (ada, org) = t.tenant("lab").await;
        let path = format!("/orgs/{org}/tokens");
        let at = |days: i64| t.portal.context.now().plus_seconds(days * 86_400);
        let create = async |by: &Caller, name: &str, days: Option<i64>| {
            let expires_at = days.map(at);
            t.post(by, &path, json!({"name": name, "role": "owner", "expires_at": expires_at})).await
        };
        let first = create(&ada, "first", Some(10)).await.expect(201);
        let by_first = Caller::Token(first["secret"].as_str().unwrap().to_owned());
        for days in [None, Some(11)] {
            create(&by_first, "longer", days).await.problem(422, "request.invalid");
        }
        let second = create(&by_first, "second", Some(9)).await.expect(201);
        let by_second = Caller::Token(second["secret"].as_str().unwrap().to_owned());
        let third = create(&by_second, "third", Some(8)).await.expect(201);
        let by_third = Caller::Token(third["secret"].as_str().unwrap().to_owned());
        let other = create(&ada, "other", None).await.expect(201);
        let by_other = Caller::Token(other["secret"].as_str().unwrap().to_owned());
        let stream = open_stream(&t, &by_third, &org).await;
        let id = first["token"]["id"].as_str().unwrap();
        t.call(&by_other, "DELETE", &format!("{path}/{id}"), Value::Null).await.expect(204);
        for revoked in [&by_first, &by_second, &by_third] {
            t.get(revoked, "/me").await.problem(401, "auth.required");
        }
        ends(stream).await;
        t.get(&by_other, "/me").await.expect(200);
        let audit = t.get(&ada, &format!("/orgs/{org}/audit-events")).await.expect(200);
        assert_eq!(audit["items"][0]["action"], "token.revoked", "{engine}");
        for name in ["first", "second", "third"] {
            assert!(audit["items"][0]["detail"].as_str().unwrap().contains(name), "{engine}: {audit}");
        }
    }
}

#[tokio::test]
async fn password_guesses_are_throttled_and_lock_no_account() {
    let t = TestPortal::sqlite().await;
    t.tenant("lab").await;
    let guess = json!({"email": "lab@example.org", "password": "wrong wrong wrong wrong"});
    let sign_in = async |from: &str, password: &str| {
        let body = json!({"email": "lab@example.org", "password": password}).to_string();
        let request = Request::post("/api/v1/sessions")
            .header(header::CONTENT_TYPE, "application/json")
            .extension(Sender(Some(from.parse().unwrap())))
            .body(Body::from(body));
        t.send(request.unwrap()).await
    };
    for _ in 0..10 {
        t.post(&Caller::Nobody, "/sessions", guess.clone()).await.problem(401, "auth.wrong_password");
        sign_in("198.51.100.7", "wrong wrong wrong wrong").await.problem(401, "auth.wrong_password");
    }
    // The limit precedes the verification, so it holds for the right password too.
    let slowed = sign_in("198.51.100.7", PASSWORD).await;
    assert!(slowed.headers.contains_key(header::RETRY_AFTER));
    slowed.problem(429, "request.throttled");
    t.post(&Caller::Nobody, "/sessions", guess).await.problem(429, "request.throttled");
    sign_in("203.0.113.9", PASSWORD).await.expect(201);
    t.tenant("other").await;
}

#[tokio::test]
async fn a_new_sign_in_ends_the_former_session() {
    let t = TestPortal::sqlite().await;
    let (ada, _) = t.tenant("lab").await;
    let body = json!({"email": "lab@example.org", "password": PASSWORD});
    t.post(&ada, "/sessions", body).await.expect(201);
    t.get(&ada, "/me").await.problem(401, "auth.required");
}

#[tokio::test]
async fn a_set_up_with_a_wrong_token_hashes_no_password() {
    let t = TestPortal::sqlite().await;
    t.portal.accounts.open_setup().await.unwrap().unwrap();
    let body =
        json!({"email": "op@example.org", "name": "Op", "password": PASSWORD, "token": "a wrong token"});
    // More than can wait for hashes.
    let tries = (0..100).map(|_| t.post(&Caller::Nobody, "/setup", body.clone()));
    for reply in futures::future::join_all(tries).await {
        reply.problem(422, "request.invalid");
    }
}

#[tokio::test]
async fn answers_are_not_stored_by_caches() {
    let t = TestPortal::sqlite().await;
    let (ada, org) = t.tenant("lab").await;
    for path in ["/me".to_owned(), format!("/orgs/{org}/jobs"), format!("/orgs/{org}/tokens")] {
        let headers = t.get(&ada, &path).await.headers;
        assert_eq!(headers[header::CACHE_CONTROL], "no-store", "{path}");
    }
}

#[tokio::test]
async fn answers_of_the_api_load_nothing_and_are_in_no_frame() {
    let t = TestPortal::sqlite().await;
    let (ada, org) = t.tenant("lab").await;
    for path in ["/me".to_owned(), format!("/orgs/{org}/jobs"), "/operator/users".to_owned()] {
        let headers = t.get(&ada, &path).await.headers;
        let policy = &headers[header::CONTENT_SECURITY_POLICY];
        assert_eq!(policy, "default-src 'none'; frame-ancestors 'none'", "{path}");
    }
}

#[tokio::test]
async fn all_hosts_of_https_are_for_https_only() {
    let dir = tempfile::tempdir().unwrap();
    let db = crate::common::new_sqlite(&dir.path().join("berth.db")).await;
    let change = |settings| Settings {
        https: true,
        ports_origin: Some("https://ports.test".parse().unwrap()),
        public_url: "https://portal.test".to_owned(),
        ..settings
    };
    let t = TestPortal::with(db, change);
    let pages = web::router(t.router.clone(), None, true);
    let all = ports::with_port_hosts(pages, t.portal.ports.clone());
    for (host, path) in [("portal.test", "/api/v1/info"), ("portal.test", "/sign-in"), ("ports.test", "/")] {
        let request = Request::get(path).header(header::HOST, host).body(Body::empty()).unwrap();
        let answer = all.clone().oneshot(request).await.unwrap();
        let rule = answer.headers().get(header::STRICT_TRANSPORT_SECURITY).map(|rule| rule.to_str().unwrap());
        assert_eq!(rule, Some("max-age=31536000; includeSubDomains"), "{host}{path}");
    }
}

//! Tests of ports of running jobs: a portal with real sockets, a real worker and a real server in a job.

use std::net::SocketAddr;
use std::time::Duration;

use crate::common::{Caller, PASSWORD, TestPortal};
use crate::worker_portal::{WorkerPortal, eventually};
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use berth_access::ports;
use berth_foundation::Settings;
use berth_server::{rest, web};
use berth_store::Db;
use futures::{SinkExt, StreamExt};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error, Message};

const SERVER: &str = include_str!("test_server/server.py");
/// The timeout of a single step.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A portal with a worker, an address for browsers and a host name for ports.
struct PortSetup {
    portal: WorkerPortal,
    at: SocketAddr,
    /// The port of the server in the job.
    port: u16,
    /// A listener of this process.
    foreign: std::net::TcpListener,
    _store: tempfile::TempDir,
}

/// An answer with its complete body.
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl Answer {
    #[track_caller]
    fn json(&self) -> Value {
        assert_eq!(self.status, 200, "{}", String::from_utf8_lossy(&self.body));
        serde_json::from_slice(&self.body).unwrap()
    }

    #[track_caller]
    fn problem(&self, status: u16, code: &str) {
        let body: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        assert_eq!((self.status.as_u16(), &body["code"]), (status, &json!(code)), "{body}");
        assert!(body["request_id"].as_str().unwrap().starts_with("req_"), "{body}");
    }
}

/// The session of a person at a port: host, path prefix and cookie.
#[derive(Clone)]
struct PortSession {
    host: String,
    prefix: String,
    cookie: String,
}

impl PortSession {
    fn request(&self, method: &str, path: &str) -> axum::http::request::Builder {
        let uri = format!("{}{path}", self.prefix);
        Request::builder().method(method).uri(uri).header("host", &self.host).header("cookie", &self.cookie)
    }

    fn get(&self, path: &str) -> Request<Body> {
        self.request("GET", path).body(Body::empty()).unwrap()
    }
}

impl PortSetup {
    async fn open(origin: &str) -> Self {
        let store = tempfile::tempdir().unwrap();
        let db = Db::sqlite(&store.path().join("berth.db")).await.unwrap();
        let origin = origin.parse().unwrap();
        let change = |settings| Settings {
            ports_origin: Some(origin),
            public_url: "http://portal.test".to_owned(),
            ..settings
        };
        let mut portal = crate::worker_portal::without_worker_on(TestPortal::with(db, change)).await;
        let token = portal.join_token(json!({})).await;
        portal.start_worker(Some(&token)).unwrap();
        portal.t.add_price_and_credit(&portal.operator, &portal.org, 1_000_000_000).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let pages = web::router(rest::router(portal.t.portal.clone()), None, false);
        let router = ports::with_port_hosts(pages, portal.t.portal.ports.clone());
        let service = router.into_make_service_with_connect_info::<SocketAddr>();
        tokio::spawn(async move { axum::serve(listener, service).await });
        let foreign = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        Self { portal, at, port, foreign, _store: store }
    }

    fn foreign_port(&self) -> u16 {
        self.foreign.local_addr().unwrap().port()
    }

    async fn submit(&self, more: Value) -> String {
        let mut spec = json!({
            "script": format!("exec python3 server.py {}", self.port),
            "files": {"server.py": SERVER},
            "ports": [self.port, self.foreign_port()],
            "max_duration_s": 600,
        });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.portal.submit(spec).await
    }

    fn tickets(&self, job: &str, port: u16) -> String {
        format!("/orgs/{}/jobs/{job}/ports/{port}/tickets", self.portal.org)
    }

    async fn ticket(&self, caller: &Caller, job: &str, port: u16) -> Value {
        self.portal.t.post(caller, &self.tickets(job, port), json!({})).await.expect(201)
    }

    /// Sends a request over its own connection.
    async fn stream(&self, request: Request<Body>) -> Response<Incoming> {
        let stream = TcpStream::connect(self.at).await.unwrap();
        let made = hyper::client::conn::http1::handshake::<_, Body>(TokioIo::new(stream)).await;
        let (mut sender, connection) = made.unwrap();
        tokio::spawn(connection);
        tokio::time::timeout(TIMEOUT, sender.send_request(request)).await.unwrap().unwrap()
    }

    async fn send(&self, request: Request<Body>) -> Answer {
        let (head, body) = self.stream(request).await.into_parts();
        let body = tokio::time::timeout(TIMEOUT, to_bytes(Body::new(body), usize::MAX)).await.unwrap();
        Answer { status: head.status, headers: head.headers, body: body.unwrap().to_vec() }
    }

    /// Redeems a ticket.
    async fn redeem_ticket(&self, host: &str, ticket: &str) -> Answer {
        let request = Request::builder().method("POST").uri(ports::TICKET_PATH).header("host", host);
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        self.send(request.body(Body::from(format!("ticket={ticket}"))).unwrap()).await
    }

    async fn open_port_as(&self, caller: &Caller, job: &str, port: u16) -> PortSession {
        let given = self.ticket(caller, job, port).await;
        let address = given["address"].as_str().unwrap().strip_prefix("http://").unwrap();
        let (host, path) = address.split_once('/').unwrap();
        let answer = self.redeem_ticket(host, given["ticket"].as_str().unwrap()).await;
        assert_eq!(answer.status, 303, "{}", String::from_utf8_lossy(&answer.body));
        assert_eq!(answer.headers["location"].to_str().unwrap(), format!("/{path}"));
        let set = answer.headers["set-cookie"].to_str().unwrap();
        let (cookie, rules) = set.split_once("; ").unwrap();
        assert_eq!(rules, format!("Path=/{path}; Max-Age=28800; HttpOnly; SameSite=Lax"));
        let prefix = format!("/{}", path.trim_end_matches('/'));
        PortSession { host: host.to_owned(), prefix, cookie: cookie.to_owned() }
    }

    /// Waits for the job's server; returns a session at its port.
    async fn open_port(&self, job: &str) -> PortSession {
        self.portal.until(job, |j| j["state"] == "running").await;
        let session = self.open_port_as(&self.portal.ada, job, self.port).await;
        let up = async || (self.send(session.get("/")).await.status == 200).then_some(());
        eventually("the server inside the job", up).await;
        session
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_port_is_reachable_and_gets_no_credentials_of_the_portal() {
    let setup = PortSetup::open("http://ports.test").await;
    let job = setup.submit(json!({})).await;
    let session = setup.open_port(&job).await;
    let asked = session.request("GET", "/tree?x=1").header("authorization", "Bearer berth_secret");
    let asked = asked.header("cookie", "berth_session=secret; mine=1").header("x-forwarded-for", "6.6.6.6");
    let echoed = setup.send(asked.body(Body::empty()).unwrap()).await.json();
    let headers = &echoed["headers"];
    assert_eq!(echoed["path"], "/tree?x=1", "{echoed}");
    assert_eq!(headers["cookie"], "mine=1", "{echoed}");
    assert_eq!(headers["host"], format!("localhost:{}", setup.port), "{echoed}");
    assert_eq!(
        (&headers["x-forwarded-host"], &headers["x-forwarded-proto"]),
        (&json!("ports.test"), &json!("http"))
    );
    assert_eq!(
        (&headers["x-forwarded-for"], &headers["x-forwarded-prefix"]),
        (&json!("127.0.0.1"), &json!(session.prefix))
    );
    assert!(!echoed.to_string().contains("secret") && headers["authorization"].is_null(), "{echoed}");
    // Sequential requests share a connection when it is known to be free.
    let shared = async || {
        let (one, two) =
            (setup.send(session.get("/a")).await.json(), setup.send(session.get("/b")).await.json());
        (one["peer"] == two["peer"]).then_some(())
    };
    eventually("two requests over one connection", shared).await;
    let answer = setup.send(session.get("/redirect")).await;
    assert_eq!(
        (answer.status, answer.headers["location"].to_str().unwrap()),
        (StatusCode::FOUND, format!("{}/after?x=1", session.prefix).as_str())
    );
    let answer = setup.send(session.get("/cookies")).await;
    let cookies: Vec<&str> =
        answer.headers.get_all("set-cookie").iter().map(|v| v.to_str().unwrap()).collect();
    assert_eq!(cookies, [format!("a=1; Path={}/", session.prefix)]);
    assert!(!answer.headers.contains_key("service-worker-allowed"));
    // A path without the slash is redirected to the path of the cookie.
    let bare = setup.send(session.get("?y=2")).await;
    assert_eq!(
        (bare.status.as_u16(), bare.headers["location"].to_str().unwrap()),
        (308, format!("{}/?y=2", session.prefix).as_str())
    );
    let path = format!("/orgs/{}/audit-events", setup.portal.org);
    let audit = setup.portal.t.get(&setup.portal.ada, &path).await.expect(200).to_string();
    assert!(
        audit.contains("port.opened") && audit.contains(&format!("port {} of rank 0", setup.port)),
        "{audit}"
    );
    // The host of ports serves no portal routes, and the portal's host serves no ports.
    let at = |host: &str, path: &str| {
        Request::builder().uri(path).header("host", host).body(Body::empty()).unwrap()
    };
    for path in ["/", "/api/v1/info", "/sign-in", "/healthz", "/metrics"] {
        setup.send(at("ports.test", path)).await.problem(404, "object.not_found");
    }
    assert_eq!(setup.send(at("portal.test", "/api/v1/info")).await.json()["ports"], true);
    let elsewhere = PortSession { host: "portal.test".to_owned(), ..session.clone() };
    assert_eq!(setup.send(elsewhere.get("/")).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_passes_uploads_websockets_and_event_streams() {
    let setup = PortSetup::open("http://ports.test").await;
    let job = setup.submit(json!({})).await;
    let session = setup.open_port(&job).await;
    // The body is sent with a length, and in chunks without one.
    let file: Vec<u8> = (0..20u32 << 20).map(|n| (n % 251).to_le_bytes()[0]).collect();
    let sum = hex::encode(Sha256::digest(&file));
    let pieces: Vec<Result<Vec<u8>, std::io::Error>> = file.chunks(100_000).map(|c| Ok(c.to_vec())).collect();
    for body in [Body::from(file.clone()), Body::from_stream(futures::stream::iter(pieces))] {
        let taken = setup.send(session.request("POST", "/upload").body(body).unwrap()).await.json();
        assert_eq!((&taken["bytes"], &taken["sha256"]), (&json!(20 << 20), &json!(sum)), "{taken}");
    }
    // A page of the same host opens a WebSocket.
    let mut request = format!("ws://ports.test{}/socket", session.prefix).into_client_request().unwrap();
    request.headers_mut().insert("cookie", HeaderValue::from_str(&session.cookie).unwrap());
    request.headers_mut().insert("origin", HeaderValue::from_static("http://ports.test"));
    let mut foreign = request.clone();
    foreign.headers_mut().insert("origin", HeaderValue::from_static("http://evil.test"));
    let stream = TcpStream::connect(setup.at).await.unwrap();
    let (mut socket, _) = tokio_tungstenite::client_async(request, stream).await.unwrap();
    for text in ["hello".to_owned(), "x".repeat(10_000)] {
        socket.send(Message::text(text.clone())).await.unwrap();
        let back = tokio::time::timeout(TIMEOUT, socket.next()).await.unwrap().unwrap().unwrap();
        assert_eq!(back, Message::text(text));
    }
    let stream = TcpStream::connect(setup.at).await.unwrap();
    let refused = tokio_tungstenite::client_async(foreign, stream).await;
    let status = refused.err().and_then(|error| match error {
        Error::Http(answer) => Some(answer.status().as_u16()),
        _ => None,
    });
    assert_eq!(status, Some(403), "a page of another site is not let in");
    // Events pass at once; a sign-out closes the streams.
    let mut events = Body::new(setup.stream(session.get("/events")).await.into_body()).into_data_stream();
    let mut seen = String::new();
    while !seen.contains("second") {
        let piece = tokio::time::timeout(TIMEOUT, events.next()).await.unwrap().unwrap().unwrap();
        seen.push_str(std::str::from_utf8(&piece).unwrap());
    }
    setup.portal.t.call(&setup.portal.ada, "DELETE", "/sessions/current", Value::Null).await.expect(204);
    let last = tokio::time::timeout(TIMEOUT, events.next()).await.unwrap();
    assert!(last.is_none_or(|piece| piece.is_err()), "the stream ends");
    let last = tokio::time::timeout(TIMEOUT, socket.next()).await.unwrap();
    assert!(last.is_none_or(|message| message.is_err()), "and so does the socket");
    setup.send(session.get("/")).await.problem(403, "port.ticket");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_opens_only_with_a_valid_ticket_of_the_person() {
    let setup = PortSetup::open("http://ports.test").await;
    let t = &setup.portal.t;
    let bad = json!({"name": "x", "offering": "h100-80gb.1g.10gb", "command": ["true"], "ports": [80, 80]});
    let path = format!("/orgs/{}/jobs", setup.portal.org);
    let refused = t.post(&setup.portal.ada, &path, bad).await.problem(422, "request.invalid");
    assert_eq!(refused["errors"][0]["pointer"], "/ports/1", "{refused}");
    let job = setup.submit(json!({})).await;
    let session = setup.open_port(&job).await;
    let ada = &setup.portal.ada;
    // A ticket is for a listed port, and for users who may stop the job.
    let tickets = setup.tickets(&job, setup.port);
    t.post(ada, &setup.tickets(&job, 9), json!({})).await.problem(404, "port.not_listed");
    t.post(ada, &tickets, json!({"rank": 1})).await.problem(422, "request.invalid");
    t.post(ada, &tickets, json!({"path": "/"})).await.problem(422, "request.invalid");
    t.post(&Caller::Nobody, &tickets, json!({})).await.problem(401, "auth.required");
    let (eve, own) = t.tenant("eves").await;
    for org in [&setup.portal.org, &own] {
        let path = format!("/orgs/{org}/jobs/{job}/ports/{}/tickets", setup.port);
        t.post(&eve, &path, json!({})).await.problem(404, "object.not_found");
    }
    let refused = t.post(&setup.portal.operator, &tickets, json!({})).await.problem(422, "request.invalid");
    assert_eq!(refused["errors"][0]["pointer"], "/reason", "{refused}");
    t.post(&setup.portal.operator, &tickets, json!({"reason": "Ada asked for help"})).await.expect(201);
    // A ticket works once.
    let given = setup.ticket(ada, &job, setup.port).await;
    let ticket = given["ticket"].as_str().unwrap();
    assert_eq!(setup.redeem_ticket("ports.test", ticket).await.status, 303);
    setup.redeem_ticket("ports.test", ticket).await.problem(403, "port.ticket");
    setup.redeem_ticket("ports.test", "forged").await.problem(403, "port.ticket");
    let given = setup.ticket(ada, &job, setup.port).await;
    t.clock.advance_s(31);
    setup.redeem_ticket("ports.test", given["ticket"].as_str().unwrap()).await.problem(403, "port.ticket");
    // A cookie is valid for one port of one job.
    let other = setup.submit(json!({"script": "sleep 600"})).await;
    setup.portal.until(&other, |j| j["state"] == "running").await;
    let foreign = setup.foreign_port();
    for prefix in
        [format!("/{other}/{}", setup.port), format!("/{job}/{foreign}"), format!("/{job}/r1/{}", setup.port)]
    {
        let elsewhere = PortSession { prefix, ..session.clone() };
        setup.send(elsewhere.get("/")).await.problem(403, "port.ticket");
    }
    let without = PortSession { cookie: "berth_port=forged".to_owned(), ..session.clone() };
    setup.send(without.get("/")).await.problem(403, "port.ticket");
    // Pages of other sites may only link to the port.
    let post = session.request("POST", "/upload").header("origin", "http://portal.test");
    setup.send(post.body(Body::empty()).unwrap()).await.problem(403, "request.cross_site");
    let framed = session.request("GET", "/").header("sec-fetch-site", "same-site");
    setup.send(framed.body(Body::empty()).unwrap()).await.problem(403, "request.cross_site");
    // A listener of the host outside the job is not reachable, and a browser gets a page with the reason.
    let neighbour = setup.open_port_as(ada, &job, foreign).await;
    setup.send(neighbour.get("/")).await.problem(502, "port.not_listening");
    let page = neighbour.request("GET", "/").header("accept", "text/html").body(Body::empty()).unwrap();
    let page = setup.send(page).await;
    let text = String::from_utf8(page.body).unwrap();
    assert_eq!(page.headers["content-type"], "text/html; charset=utf-8");
    assert!(text.contains("No answer on this port") && text.contains("http-equiv=\"refresh\""), "{text}");
    assert!(text.contains(&format!("http://portal.test/jobs/{job}")), "{text}");
    // The revocation of a token ends its sessions.
    let body = json!({"name": "ci", "role": "member"});
    let tokens = format!("/orgs/{}/tokens", setup.portal.org);
    let made = t.post(ada, &tokens, body).await.expect(201);
    let script = Caller::Token(made["secret"].as_str().unwrap().to_owned());
    let by_token = setup.open_port_as(&script, &job, setup.port).await;
    assert_eq!(setup.send(by_token.get("/")).await.status, 200);
    let mut events = Body::new(setup.stream(by_token.get("/events")).await.into_body()).into_data_stream();
    tokio::time::timeout(TIMEOUT, events.next()).await.unwrap().unwrap().unwrap();
    let list = t.get(ada, &tokens).await.expect(200);
    let id = list["items"].as_array().unwrap().iter().find(|one| one["name"] == "ci").unwrap()["id"].clone();
    t.call(ada, "DELETE", &format!("{tokens}/{}", id.as_str().unwrap()), Value::Null).await.expect(204);
    let end = async { while let Some(Ok(_)) = events.next().await {} };
    tokio::time::timeout(TIMEOUT, end).await.unwrap();
    setup.send(by_token.get("/")).await.problem(403, "port.ticket");
    // A session ends after eight hours.
    assert_eq!(setup.send(session.get("/")).await.status, 200);
    t.clock.advance_s(8 * 3_600);
    setup.send(session.get("/")).await.problem(403, "port.ticket");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pass_never_outlives_the_session_of_its_person() {
    let setup = PortSetup::open("http://ports.test").await;
    let t = &setup.portal.t;
    let job = setup.submit(json!({})).await;
    let session = setup.open_port(&job).await;
    let elsewhere = t.sign_in("lab@example.org").await;
    let other = setup.open_port_as(&elsewhere, &job, setup.port).await;
    assert_eq!(setup.send(other.get("/")).await.status, 200);
    crate::edge::delete_session(t, &elsewhere).await;
    setup.send(other.get("/")).await.problem(403, "port.ticket");
    assert_eq!(setup.send(session.get("/")).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pass_ends_with_a_missing_factor_and_with_a_disabled_account() {
    let setup = PortSetup::open("http://ports.test").await;
    let (t, ada, org) = (&setup.portal.t, &setup.portal.ada, &setup.portal.org);
    let job = setup.submit(json!({})).await;
    let session = setup.open_port(&job).await;
    let invite = json!({"email": "eve@example.org", "role": "member"});
    let sent = t.post(ada, &format!("/orgs/{org}/invitations"), invite).await.expect(201);
    let secret = sent["link"].as_str().unwrap().split_once('#').unwrap().1;
    let accept = json!({"token": secret, "name": "Eve", "password": PASSWORD});
    t.post(&Caller::Nobody, "/invitations/accept", accept).await.expect(200);
    let eve = t.sign_in("eve@example.org").await;
    let by_eve = setup.open_port_as(&eve, &job, setup.port).await;
    let token = json!({"name": "ci", "role": "member"});
    let made = t.post(ada, &format!("/orgs/{org}/tokens"), token).await.expect(201);
    let script = Caller::Token(made["secret"].as_str().unwrap().to_owned());
    let by_token = setup.open_port_as(&script, &job, setup.port).await;
    let mut events = Body::new(setup.stream(by_eve.get("/events")).await.into_body()).into_data_stream();
    tokio::time::timeout(TIMEOUT, events.next()).await.unwrap().unwrap().unwrap();

    crate::factors::enrol(t, ada).await;
    let policy = format!("/orgs/{org}/sign-in-policy");
    t.call(ada, "PUT", &policy, json!({"require_second_factor": true})).await.expect(200);
    let end = async { while let Some(Ok(_)) = events.next().await {} };
    tokio::time::timeout(TIMEOUT, end).await.unwrap();
    setup.send(by_eve.get("/")).await.problem(403, "port.ticket");
    for open in [&session, &by_token] {
        assert_eq!(setup.send(open.get("/")).await.status, 200);
    }

    let user = t.get(ada, "/me").await.expect(200)["user"]["id"].as_str().unwrap().to_owned();
    let disabled = format!("/operator/users/{user}/disabled");
    t.call(&setup.portal.operator, "PUT", &disabled, json!({"reason": "Unpaid."})).await.expect(200);
    for ended in [&session, &by_token] {
        setup.send(ended.get("/")).await.problem(403, "port.ticket");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_can_have_its_own_host_name_and_its_ports_close_at_its_end() {
    let setup = PortSetup::open("http://*.ports.test").await;
    let job = setup.submit(json!({"ports_keep_path": true})).await;
    let session = setup.open_port(&job).await;
    assert_eq!(session.host, format!("{}.ports.test", job.replace('_', "-")));
    let echoed = setup.send(session.get("/lab")).await.json();
    assert_eq!(echoed["path"], format!("{}/lab", session.prefix), "the job is asked for the whole path");
    // The host name of another job has neither the port nor its ticket.
    let other = session.host.replacen("job-0", "job-1", 1);
    let elsewhere = PortSession { host: other.clone(), ..session.clone() };
    setup.send(elsewhere.get("/")).await.problem(404, "object.not_found");
    let given = setup.ticket(&setup.portal.ada, &job, setup.port).await;
    setup.redeem_ticket(&other, given["ticket"].as_str().unwrap()).await.problem(403, "port.ticket");
    let nobody = PortSession { host: "x.ports.test".to_owned(), ..session.clone() };
    setup.send(nobody.get("/")).await.problem(404, "object.not_found");
    // The end of the job closes open streams and all tickets.
    let mut events = Body::new(setup.stream(session.get("/events")).await.into_body()).into_data_stream();
    tokio::time::timeout(TIMEOUT, events.next()).await.unwrap().unwrap().unwrap();
    let path = format!("/orgs/{}/jobs/{job}/cancel", setup.portal.org);
    setup.portal.t.post(&setup.portal.ada, &path, json!(null)).await.expect(202);
    let end = async { while let Some(Ok(_)) = events.next().await {} };
    tokio::time::timeout(TIMEOUT, end).await.unwrap();
    setup.portal.until_ended(&job).await;
    setup.send(session.get("/")).await.problem(410, "job.not_running");
    setup.send(session.get("/")).await.problem(403, "port.ticket");
    let tickets = setup.tickets(&job, setup.port);
    setup.portal.t.post(&setup.portal.ada, &tickets, json!({})).await.problem(409, "job.not_running");
    // No session is left: the device is proved clean.
    setup.portal.until_all_free().await;
}

#[tokio::test]
async fn without_a_ports_origin_there_are_no_ports() {
    let t = TestPortal::sqlite().await;
    let (ada, org) = t.tenant("lab").await;
    let path = format!("/orgs/{org}/jobs/job_00000000000000000000000001/ports/80/tickets");
    let refused = t.post(&ada, &path, json!({})).await.problem(409, "port.off");
    assert!(refused["detail"].as_str().unwrap().contains("--ports-origin"), "{refused}");
    assert_eq!(t.get(&Caller::Nobody, "/info").await.expect(200)["ports"], false);
    let (eve, _) = t.tenant("eves").await;
    t.post(&eve, &path, json!({})).await.problem(404, "object.not_found");
    let odd = path.replace("/80/", "/70000/");
    t.post(&ada, &odd, json!({})).await.problem(404, "object.not_found");
}

//! Ports of running jobs in the browser: a portal with real sockets, a real worker, and a real server inside a
//! job.

use std::net::SocketAddr;
use std::time::Duration;

use crate::common::{As, TestPortal};
use crate::quay::{Quay, eventually};
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

const SERVER: &str = include_str!("dock/server.py");
/// Nothing here takes this long unless it is broken.
const PATIENCE: Duration = Duration::from_secs(30);

/// A quay whose portal also has an address for browsers, and a host name for ports.
struct Dock {
    quay: Quay,
    at: SocketAddr,
    /// The server in the job listens there.
    port: u16,
    /// This process does.
    foreign: std::net::TcpListener,
    _store: tempfile::TempDir,
}

/// An answer with all of its body.
struct Came {
    status: StatusCode,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl Came {
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

/// A person who has come in: the host that they are at, and their cookie.
#[derive(Clone)]
struct Inside {
    host: String,
    prefix: String,
    cookie: String,
}

impl Inside {
    fn request(&self, method: &str, path: &str) -> axum::http::request::Builder {
        let uri = format!("{}{path}", self.prefix);
        Request::builder().method(method).uri(uri).header("host", &self.host).header("cookie", &self.cookie)
    }

    fn get(&self, path: &str) -> Request<Body> {
        self.request("GET", path).body(Body::empty()).unwrap()
    }
}

impl Dock {
    async fn open(origin: &str) -> Self {
        let store = tempfile::tempdir().unwrap();
        let db = Db::sqlite(&store.path().join("berth.db")).await.unwrap();
        let origin = origin.parse().unwrap();
        let change = |settings| Settings {
            ports_origin: Some(origin),
            public_url: "http://portal.test".to_owned(),
            ..settings
        };
        let mut quay = crate::quay::portal_on(TestPortal::with(db, change)).await;
        let token = quay.join_token(json!({})).await;
        quay.start_worker(Some(&token)).unwrap();
        quay.t.stock(&quay.operator, &quay.org, 1_000_000_000).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let pages = web::router(rest::router(quay.t.portal.clone()), None, false);
        let router = ports::in_front(pages, quay.t.portal.ports.clone());
        let service = router.into_make_service_with_connect_info::<SocketAddr>();
        tokio::spawn(async move { axum::serve(listener, service).await });
        let foreign = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        Self { quay, at, port, foreign, _store: store }
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
        self.quay.submit(spec).await
    }

    fn tickets(&self, job: &str, port: u16) -> String {
        format!("/orgs/{}/jobs/{job}/ports/{port}/tickets", self.quay.org)
    }

    async fn ticket(&self, who: &As, job: &str, port: u16) -> Value {
        self.quay.t.post(who, &self.tickets(job, port), json!({})).await.expect(201)
    }

    /// Sends a request over a connection of its own.
    async fn stream(&self, request: Request<Body>) -> Response<Incoming> {
        let stream = TcpStream::connect(self.at).await.unwrap();
        let made = hyper::client::conn::http1::handshake::<_, Body>(TokioIo::new(stream)).await;
        let (mut sender, connection) = made.unwrap();
        tokio::spawn(connection);
        tokio::time::timeout(PATIENCE, sender.send_request(request)).await.unwrap().unwrap()
    }

    async fn ask(&self, request: Request<Body>) -> Came {
        let (head, body) = self.stream(request).await.into_parts();
        let body = tokio::time::timeout(PATIENCE, to_bytes(Body::new(body), usize::MAX)).await.unwrap();
        Came { status: head.status, headers: head.headers, body: body.unwrap().to_vec() }
    }

    /// Hands a ticket in.
    async fn hand_in(&self, host: &str, ticket: &str) -> Came {
        let request = Request::builder().method("POST").uri(ports::DOOR).header("host", host);
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        self.ask(request.body(Body::from(format!("ticket={ticket}"))).unwrap()).await
    }

    async fn enter_as(&self, who: &As, job: &str, port: u16) -> Inside {
        let given = self.ticket(who, job, port).await;
        let address = given["address"].as_str().unwrap().strip_prefix("http://").unwrap();
        let (host, path) = address.split_once('/').unwrap();
        let came = self.hand_in(host, given["ticket"].as_str().unwrap()).await;
        assert_eq!(came.status, 303, "{}", String::from_utf8_lossy(&came.body));
        assert_eq!(came.headers["location"].to_str().unwrap(), format!("/{path}"));
        let set = came.headers["set-cookie"].to_str().unwrap();
        let (cookie, rules) = set.split_once("; ").unwrap();
        assert_eq!(rules, format!("Path=/{path}; Max-Age=28800; HttpOnly; SameSite=Lax"));
        let prefix = format!("/{}", path.trim_end_matches('/'));
        Inside { host: host.to_owned(), prefix, cookie: cookie.to_owned() }
    }

    /// Inside the port of a job whose server is up.
    async fn enter(&self, job: &str) -> Inside {
        self.quay.until(job, |j| j["state"] == "running").await;
        let inside = self.enter_as(&self.quay.ada, job, self.port).await;
        let up = async || (self.ask(inside.get("/")).await.status == 200).then_some(());
        eventually("the server inside the job", up).await;
        inside
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_in_a_job_is_seen_and_hears_nothing_of_the_portals() {
    let dock = Dock::open("http://ports.test").await;
    let job = dock.submit(json!({})).await;
    let inside = dock.enter(&job).await;
    let asked = inside.request("GET", "/tree?x=1").header("authorization", "Bearer berth_secret");
    let asked = asked.header("cookie", "berth_session=secret; mine=1").header("x-forwarded-for", "6.6.6.6");
    let told = dock.ask(asked.body(Body::empty()).unwrap()).await.json();
    let headers = &told["headers"];
    assert_eq!(told["path"], "/tree?x=1", "{told}");
    assert_eq!(headers["cookie"], "mine=1", "{told}");
    assert_eq!(headers["host"], format!("localhost:{}", dock.port), "{told}");
    assert_eq!(
        (&headers["x-forwarded-host"], &headers["x-forwarded-proto"]),
        (&json!("ports.test"), &json!("http"))
    );
    assert_eq!(
        (&headers["x-forwarded-for"], &headers["x-forwarded-prefix"]),
        (&json!("127.0.0.1"), &json!(inside.prefix))
    );
    assert!(!told.to_string().contains("secret") && headers["authorization"].is_null(), "{told}");
    // One after the other, they share a connection, as soon as it is known that it is free.
    let shared = async || {
        let (one, two) = (dock.ask(inside.get("/a")).await.json(), dock.ask(inside.get("/b")).await.json());
        (one["peer"] == two["peer"]).then_some(())
    };
    eventually("two requests over one connection", shared).await;
    let came = dock.ask(inside.get("/redirect")).await;
    assert_eq!(
        (came.status, came.headers["location"].to_str().unwrap()),
        (StatusCode::FOUND, format!("{}/after?x=1", inside.prefix).as_str())
    );
    let came = dock.ask(inside.get("/cookies")).await;
    let cookies: Vec<&str> = came.headers.get_all("set-cookie").iter().map(|v| v.to_str().unwrap()).collect();
    assert_eq!(cookies, [format!("a=1; Path={}/", inside.prefix)]);
    assert!(!came.headers.contains_key("service-worker-allowed"));
    // Without the slash it leads to where the cookie comes.
    let bare = dock.ask(inside.get("?y=2")).await;
    assert_eq!(
        (bare.status.as_u16(), bare.headers["location"].to_str().unwrap()),
        (308, format!("{}/?y=2", inside.prefix).as_str())
    );
    let path = format!("/orgs/{}/audit-events", dock.quay.org);
    let audit = dock.quay.t.get(&dock.quay.ada, &path).await.expect(200).to_string();
    assert!(
        audit.contains("port.opened") && audit.contains(&format!("port {} of rank 0", dock.port)),
        "{audit}"
    );
    // The host of ports has nothing of the portal, and the portal's has no ports.
    let at = |host: &str, path: &str| {
        Request::builder().uri(path).header("host", host).body(Body::empty()).unwrap()
    };
    for path in ["/", "/api/v1/info", "/sign-in", "/healthz", "/metrics"] {
        dock.ask(at("ports.test", path)).await.problem(404, "object.not_found");
    }
    assert_eq!(dock.ask(at("portal.test", "/api/v1/info")).await.json()["ports"], true);
    let elsewhere = Inside { host: "portal.test".to_owned(), ..inside.clone() };
    assert_eq!(dock.ask(elsewhere.get("/")).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_stream_both_ways() {
    let dock = Dock::open("http://ports.test").await;
    let job = dock.submit(json!({})).await;
    let inside = dock.enter(&job).await;
    // With a length, and in pieces without one.
    let file: Vec<u8> = (0..20u32 << 20).map(|n| (n % 251).to_le_bytes()[0]).collect();
    let sum: String = Sha256::digest(&file).iter().map(|b| format!("{b:02x}")).collect();
    let pieces: Vec<Result<Vec<u8>, std::io::Error>> = file.chunks(100_000).map(|c| Ok(c.to_vec())).collect();
    for body in [Body::from(file.clone()), Body::from_stream(futures::stream::iter(pieces))] {
        let taken = dock.ask(inside.request("POST", "/upload").body(body).unwrap()).await.json();
        assert_eq!((&taken["bytes"], &taken["sha256"]), (&json!(20 << 20), &json!(sum)), "{taken}");
    }
    // A WebSocket, as a page of this host opens it.
    let mut request = format!("ws://ports.test{}/socket", inside.prefix).into_client_request().unwrap();
    request.headers_mut().insert("cookie", HeaderValue::from_str(&inside.cookie).unwrap());
    request.headers_mut().insert("origin", HeaderValue::from_static("http://ports.test"));
    let mut foreign = request.clone();
    foreign.headers_mut().insert("origin", HeaderValue::from_static("http://evil.test"));
    let stream = TcpStream::connect(dock.at).await.unwrap();
    let (mut socket, _) = tokio_tungstenite::client_async(request, stream).await.unwrap();
    for text in ["hello".to_owned(), "x".repeat(10_000)] {
        socket.send(Message::text(text.clone())).await.unwrap();
        let back = tokio::time::timeout(PATIENCE, socket.next()).await.unwrap().unwrap().unwrap();
        assert_eq!(back, Message::text(text));
    }
    let stream = TcpStream::connect(dock.at).await.unwrap();
    let refused = tokio_tungstenite::client_async(foreign, stream).await;
    let status = refused.err().and_then(|error| match error {
        Error::Http(answer) => Some(answer.status().as_u16()),
        _ => None,
    });
    assert_eq!(status, Some(403), "a page of another site is not let in");
    // What comes bit by bit is passed on bit by bit; whoever signs out is cut off.
    let mut events = Body::new(dock.stream(inside.get("/events")).await.into_body()).into_data_stream();
    let mut seen = String::new();
    while !seen.contains("second") {
        let piece = tokio::time::timeout(PATIENCE, events.next()).await.unwrap().unwrap().unwrap();
        seen.push_str(std::str::from_utf8(&piece).unwrap());
    }
    dock.quay.t.call(&dock.quay.ada, "DELETE", "/sessions/current", Value::Null).await.expect(204);
    let last = tokio::time::timeout(PATIENCE, events.next()).await.unwrap();
    assert!(last.is_none_or(|piece| piece.is_err()), "the stream ends");
    let last = tokio::time::timeout(PATIENCE, socket.next()).await.unwrap();
    assert!(last.is_none_or(|message| message.is_err()), "and so does the socket");
    dock.ask(inside.get("/")).await.problem(403, "port.ticket");
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_comes_in_but_by_a_ticket_of_their_own() {
    let dock = Dock::open("http://ports.test").await;
    let t = &dock.quay.t;
    let bad = json!({"name": "x", "offering": "h100-80gb.1g.10gb", "command": ["true"], "ports": [80, 80]});
    let path = format!("/orgs/{}/jobs", dock.quay.org);
    let refused = t.post(&dock.quay.ada, &path, bad).await.problem(422, "request.invalid");
    assert_eq!(refused["errors"][0]["pointer"], "/ports/1", "{refused}");
    let job = dock.submit(json!({})).await;
    let inside = dock.enter(&job).await;
    let ada = &dock.quay.ada;
    // A ticket is for a port that the job named, and for who may stop the job.
    let tickets = dock.tickets(&job, dock.port);
    t.post(ada, &dock.tickets(&job, 9), json!({})).await.problem(404, "port.not_listed");
    t.post(ada, &tickets, json!({"rank": 1})).await.problem(422, "request.invalid");
    t.post(ada, &tickets, json!({"path": "/"})).await.problem(422, "request.invalid");
    t.post(&As::Nobody, &tickets, json!({})).await.problem(401, "auth.required");
    let (eve, own) = t.tenant("eves").await;
    for org in [&dock.quay.org, &own] {
        let path = format!("/orgs/{org}/jobs/{job}/ports/{}/tickets", dock.port);
        t.post(&eve, &path, json!({})).await.problem(404, "object.not_found");
    }
    let refused = t.post(&dock.quay.operator, &tickets, json!({})).await.problem(422, "request.invalid");
    assert_eq!(refused["errors"][0]["pointer"], "/reason", "{refused}");
    t.post(&dock.quay.operator, &tickets, json!({"reason": "Ada asked for help"})).await.expect(201);
    // It is good once.
    let given = dock.ticket(ada, &job, dock.port).await;
    let ticket = given["ticket"].as_str().unwrap();
    assert_eq!(dock.hand_in("ports.test", ticket).await.status, 303);
    dock.hand_in("ports.test", ticket).await.problem(403, "port.ticket");
    dock.hand_in("ports.test", "forged").await.problem(403, "port.ticket");
    let given = dock.ticket(ada, &job, dock.port).await;
    t.clock.advance_s(31);
    dock.hand_in("ports.test", given["ticket"].as_str().unwrap()).await.problem(403, "port.ticket");
    // A cookie is for one port of one job.
    let other = dock.submit(json!({"script": "sleep 600"})).await;
    dock.quay.until(&other, |j| j["state"] == "running").await;
    let foreign = dock.foreign_port();
    for prefix in
        [format!("/{other}/{}", dock.port), format!("/{job}/{foreign}"), format!("/{job}/r1/{}", dock.port)]
    {
        let elsewhere = Inside { prefix, ..inside.clone() };
        dock.ask(elsewhere.get("/")).await.problem(403, "port.ticket");
    }
    let without = Inside { cookie: "berth_port=forged".to_owned(), ..inside.clone() };
    dock.ask(without.get("/")).await.problem(403, "port.ticket");
    // Pages of other sites may link to it and do no more.
    let post = inside.request("POST", "/upload").header("origin", "http://portal.test");
    dock.ask(post.body(Body::empty()).unwrap()).await.problem(403, "request.cross_site");
    let framed = inside.request("GET", "/").header("sec-fetch-site", "same-site");
    dock.ask(framed.body(Body::empty()).unwrap()).await.problem(403, "request.cross_site");
    // What listens on the host and is not the job's is not reached, and a browser is told so in words.
    let neighbour = dock.enter_as(ada, &job, foreign).await;
    dock.ask(neighbour.get("/")).await.problem(502, "port.not_listening");
    let page = neighbour.request("GET", "/").header("accept", "text/html").body(Body::empty()).unwrap();
    let page = dock.ask(page).await;
    let text = String::from_utf8(page.body).unwrap();
    assert_eq!(page.headers["content-type"], "text/html; charset=utf-8");
    assert!(
        text.contains("Nothing answers on this port") && text.contains("http-equiv=\"refresh\""),
        "{text}"
    );
    assert!(text.contains(&format!("http://portal.test/jobs/{job}")), "{text}");
    // A token that was revoked lets nobody stay.
    let body = json!({"name": "ci", "role": "member"});
    let tokens = format!("/orgs/{}/tokens", dock.quay.org);
    let made = t.post(ada, &tokens, body).await.expect(201);
    let script = As::Token(made["secret"].as_str().unwrap().to_owned());
    let by_token = dock.enter_as(&script, &job, dock.port).await;
    assert_eq!(dock.ask(by_token.get("/")).await.status, 200);
    let mut events = Body::new(dock.stream(by_token.get("/events")).await.into_body()).into_data_stream();
    tokio::time::timeout(PATIENCE, events.next()).await.unwrap().unwrap().unwrap();
    let list = t.get(ada, &tokens).await.expect(200);
    let id = list["items"].as_array().unwrap().iter().find(|one| one["name"] == "ci").unwrap()["id"].clone();
    t.call(ada, "DELETE", &format!("{tokens}/{}", id.as_str().unwrap()), Value::Null).await.expect(204);
    let end = async { while let Some(Ok(_)) = events.next().await {} };
    tokio::time::timeout(PATIENCE, end).await.unwrap();
    dock.ask(by_token.get("/")).await.problem(403, "port.ticket");
    // It ends by itself after a day's work.
    assert_eq!(dock.ask(inside.get("/")).await.status, 200);
    t.clock.advance_s(8 * 3_600);
    dock.ask(inside.get("/")).await.problem(403, "port.ticket");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_job_can_have_a_host_name_and_its_end_is_the_end() {
    let dock = Dock::open("http://*.ports.test").await;
    let job = dock.submit(json!({"ports_keep_path": true})).await;
    let inside = dock.enter(&job).await;
    assert_eq!(inside.host, format!("{}.ports.test", job.replace('_', "-")));
    let told = dock.ask(inside.get("/lab")).await.json();
    assert_eq!(told["path"], format!("{}/lab", inside.prefix), "the job is asked for the whole path");
    // Under another job's name it is not seen, and its ticket is not good there.
    let other = inside.host.replacen("job-0", "job-1", 1);
    let elsewhere = Inside { host: other.clone(), ..inside.clone() };
    dock.ask(elsewhere.get("/")).await.problem(404, "object.not_found");
    let given = dock.ticket(&dock.quay.ada, &job, dock.port).await;
    dock.hand_in(&other, given["ticket"].as_str().unwrap()).await.problem(403, "port.ticket");
    let nobody = Inside { host: "x.ports.test".to_owned(), ..inside.clone() };
    dock.ask(nobody.get("/")).await.problem(404, "object.not_found");
    // The end of the job is the end of what is open, and of the way in.
    let mut events = Body::new(dock.stream(inside.get("/events")).await.into_body()).into_data_stream();
    tokio::time::timeout(PATIENCE, events.next()).await.unwrap().unwrap().unwrap();
    let path = format!("/orgs/{}/jobs/{job}/cancel", dock.quay.org);
    dock.quay.t.post(&dock.quay.ada, &path, json!(null)).await.expect(202);
    let end = async { while let Some(Ok(_)) = events.next().await {} };
    tokio::time::timeout(PATIENCE, end).await.unwrap();
    dock.quay.ended(&job).await;
    dock.ask(inside.get("/")).await.problem(410, "job.not_running");
    dock.ask(inside.get("/")).await.problem(403, "port.ticket");
    let tickets = dock.tickets(&job, dock.port);
    dock.quay.t.post(&dock.quay.ada, &tickets, json!({})).await.problem(409, "job.not_running");
    // Whoever was inside is gone: the device is proved clean.
    dock.quay.all_free().await;
}

#[tokio::test]
async fn without_a_host_name_there_are_no_ports() {
    let t = TestPortal::sqlite().await;
    let (ada, org) = t.tenant("lab").await;
    let path = format!("/orgs/{org}/jobs/job_00000000000000000000000001/ports/80/tickets");
    let refused = t.post(&ada, &path, json!({})).await.problem(409, "port.off");
    assert!(refused["detail"].as_str().unwrap().contains("--ports-origin"), "{refused}");
    assert_eq!(t.get(&As::Nobody, "/info").await.expect(200)["ports"], false);
    let (eve, _) = t.tenant("eves").await;
    t.post(&eve, &path, json!({})).await.problem(404, "object.not_found");
    let odd = path.replace("/80/", "/70000/");
    t.post(&ada, &odd, json!({})).await.problem(404, "object.not_found");
}

//! Tests of terminals in running jobs: a portal with real sockets, a real worker, and a real shell in a real
//! sandbox (without a sandbox if this machine allows none).

use std::net::SocketAddr;
use std::time::Duration;

use crate::change_requests::second_operator;
use crate::common::Caller;
use crate::worker_portal::{WorkerPortal, eventually};
use axum::http::{HeaderValue, Request, StatusCode};
use berth_server::{rest, web};
use berth_types::terminals::{PROTOCOL, TICKET_PROTOCOL, WINDOW_BYTES};
use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error, Message};

/// The timeout of a single step.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A portal with a worker and an address for browsers.
struct TerminalSetup {
    portal: WorkerPortal,
    at: SocketAddr,
}

/// A message of a terminal's socket.
#[derive(Debug, PartialEq)]
enum SocketMessage {
    Bytes(Vec<u8>),
    Notice(Value),
    End,
}

struct TerminalClient {
    socket: WebSocketStream<TcpStream>,
    /// The offset of the next byte.
    place: u64,
    /// The number of received bytes of this socket.
    bytes: u64,
    text: String,
    /// True to acknowledge received bytes, like a page.
    acknowledges: bool,
}

impl TerminalSetup {
    async fn open() -> Self {
        let portal = WorkerPortal::open().await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let router = web::router(rest::router(portal.t.portal.clone()), None, false);
        let service = router.into_make_service_with_connect_info::<SocketAddr>();
        tokio::spawn(async move { axum::serve(listener, service).await });
        Self { portal, at }
    }

    /// Starts a job that runs until it is stopped.
    async fn running(&self) -> String {
        let job = self.portal.submit_script("echo up; exec sleep 600").await;
        self.portal.until(&job, |j| j["state"] == "running").await;
        // The first line of the log shows that the command has started.
        let up = async || self.portal.log(&job).await.starts_with(b"up").then_some(());
        eventually("the job's first line", up).await;
        job
    }

    fn path(&self, job: &str) -> String {
        format!("/orgs/{}/jobs/{job}/terminals", self.portal.org)
    }

    async fn open_terminal(&self, caller: &Caller, job: &str) -> Value {
        self.portal.t.post(caller, &self.path(job), json!({})).await.expect(201)
    }

    /// Opens a socket like a browser on a page of the portal.
    async fn socket(
        &self,
        job: &str,
        id: &str,
        query: &str,
        change: impl FnOnce(&mut Request<()>),
    ) -> Result<TerminalClient, StatusCode> {
        let Caller::Cookie(cookie) = &self.portal.ada else { panic!("a person") };
        let url = format!("ws://{}/api/v1{}/{id}/socket{query}", self.at, self.path(job));
        let mut request = url.into_client_request().unwrap();
        let headers = request.headers_mut();
        headers.insert("cookie", HeaderValue::from_str(cookie).unwrap());
        headers.insert("origin", HeaderValue::from_str(&format!("http://{}", self.at)).unwrap());
        change(&mut request);
        let stream = TcpStream::connect(self.at).await.unwrap();
        match tokio_tungstenite::client_async(request, stream).await {
            Ok((socket, answer)) => {
                assert_eq!(answer.headers()["sec-websocket-protocol"], PROTOCOL);
                Ok(TerminalClient { socket, place: 0, bytes: 0, text: String::new(), acknowledges: true })
            }
            Err(Error::Http(answer)) => Err(answer.status()),
            Err(other) => panic!("{other}"),
        }
    }

    async fn enter(&self, job: &str, opened: &Value, query: &str) -> TerminalClient {
        let ticket = opened["ticket"].as_str().unwrap();
        let id = opened["terminal"]["id"].as_str().unwrap();
        let mut client = self.socket(job, id, query, |request| offer(request, Some(ticket))).await.unwrap();
        let SocketMessage::Notice(notice) = client.next().await else { panic!("no first word") };
        assert_eq!(notice["type"], "open", "{notice}");
        client.place = notice["begins"].as_u64().unwrap();
        client
    }

    async fn terminal(&self, job: &str) -> (Value, TerminalClient) {
        let opened = self.open_terminal(&self.portal.ada, job).await;
        let client = self.enter(job, &opened, "").await;
        (opened["terminal"].clone(), client)
    }

    /// Waits for the end of a terminal; returns its record.
    async fn closed(&self, job: &str, id: &Value) -> Value {
        let record = async || {
            let all = self.portal.t.get(&self.portal.ada, &self.path(job)).await.expect(200);
            let one = all["items"].as_array().unwrap().iter().find(|t| t["id"] == *id).cloned();
            one.filter(|t| t["closed_at"].is_string())
        };
        eventually("the record of the end", record).await
    }
}

fn offer(request: &mut Request<()>, ticket: Option<&str>) {
    let ticket = ticket.map_or_else(String::new, |ticket| format!(", {TICKET_PROTOCOL}{ticket}"));
    let offers = HeaderValue::from_str(&format!("{PROTOCOL}{ticket}")).unwrap();
    request.headers_mut().insert("sec-websocket-protocol", offers);
}

impl TerminalClient {
    async fn next(&mut self) -> SocketMessage {
        loop {
            let message = tokio::time::timeout(TIMEOUT, self.socket.next()).await;
            let message = message.unwrap_or_else(|_| panic!("nothing comes; so far: {}", self.text));
            match message {
                Some(Ok(Message::Binary(bytes))) => {
                    self.place += bytes.len() as u64;
                    self.bytes += bytes.len() as u64;
                    self.text.push_str(&String::from_utf8_lossy(&bytes));
                    if self.acknowledges {
                        self.send(&json!({"type": "taken", "bytes": self.bytes})).await;
                    }
                    return SocketMessage::Bytes(bytes.to_vec());
                }
                Some(Ok(Message::Text(text))) => {
                    return SocketMessage::Notice(serde_json::from_str(text.as_str()).unwrap());
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                Some(Ok(Message::Close(_)) | Err(_)) | None => return SocketMessage::End,
            }
        }
    }

    async fn send(&mut self, message: &Value) {
        // A closed socket shows on the next read.
        let _ = self.socket.send(Message::text(message.to_string())).await;
    }

    async fn type_text(&mut self, text: &str) {
        self.socket.send(Message::binary(text.as_bytes().to_vec())).await.unwrap();
    }

    /// Reads until the output contains a text; then clears the output.
    async fn until(&mut self, wanted: &str) {
        while !self.text.contains(wanted) {
            if self.next().await == SocketMessage::End {
                panic!("{wanted:?} never came: {}", self.text);
            }
        }
        self.text.clear();
    }

    /// Reads until the message `closed`.
    async fn until_closed(&mut self) -> Value {
        loop {
            match self.next().await {
                SocketMessage::Notice(notice) if notice["type"] == "closed" => return notice,
                SocketMessage::End => panic!("it ended without a word: {}", self.text),
                SocketMessage::Notice(_) | SocketMessage::Bytes(_) => {}
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shell_runs_in_the_job_with_a_size_and_an_exit_code() {
    let setup = TerminalSetup::open().await;
    let job = setup.running().await;
    let (terminal, mut client) = setup.terminal(&job).await;
    // The expected output differs from the echoed input.
    client.type_text("echo a$((40 + 2))b\n").await;
    client.until("a42b").await;
    client.type_text("echo job=$BERTH_JOB_ID.\n").await;
    client.until(&format!("job={job}.")).await;
    client.type_text("stty size | tr ' ' x\n").await;
    client.until("24x80").await;
    client.send(&json!({"type": "size", "cols": 132, "rows": 50})).await;
    client.type_text("stty size | tr ' ' x\n").await;
    client.until("50x132").await;
    client.type_text("tty\n").await;
    client.until("/dev/pts/").await;
    let nodes = setup.portal.t.get(&setup.portal.operator, "/operator/nodes").await.expect(200);
    if nodes["items"][0]["isolation"]["sandbox"].as_str().is_some_and(|s| s.starts_with("bubblewrap")) {
        client
            .type_text("grep -E 'CapEff|NoNewPrivs|Seccomp:' /proc/self/status | tr -d '\\t\\n'; echo\n")
            .await;
        client.until("CapEff:0000000000000000NoNewPrivs:1Seccomp:2").await;
        client.type_text("unshare -r true 2>&1 | sed s/permitted/refused/; hostname\n").await;
        client.until("not refused").await;
        // The shell sees the job's processes only.
        client.type_text("echo sees$(cat /proc/[0-9]*/comm | grep -c '^sleep$')sleep\n").await;
        client.until("sees1sleep").await;
        client.type_text("pwd; touch /etc/x 2>&1 | tail -c 22\n").await;
        client.until("Read-only file system").await;
    }
    client.type_text("exit 7\n").await;
    let last = client.until_closed().await;
    assert_eq!((&last["cause"], &last["exit_code"]), (&json!("ended"), &json!(7)), "{last}");
    let record = setup.closed(&job, &terminal["id"]).await;
    assert_eq!((&record["exit_code"], &record["actor"]), (&json!(7), &json!("Ada")), "{record}");
    let path = format!("/orgs/{}/audit-events", setup.portal.org);
    let audit = setup.portal.t.get(&setup.portal.ada, &path).await.expect(200).to_string();
    assert!(audit.contains("terminal.opened") && audit.contains("terminal.closed"), "{audit}");
    assert!(!audit.contains("a42b") && !audit.contains("stty"), "what was done there is nobody's: {audit}");
    // The job still runs.
    assert_eq!(setup.portal.job(&job).await["state"], "running");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shell_survives_a_lost_connection() {
    let setup = TerminalSetup::open().await;
    let job = setup.running().await;
    let (terminal, mut client) = setup.terminal(&job).await;
    client.type_text("kept=yes; mkfifo gate; (cat gate > /dev/null; echo late-$kept) &\n").await;
    client.type_text("echo begun$((1))\n").await;
    client.until("begun1").await;
    let place = client.place;
    drop(client);
    let tickets = format!("{}/{}/tickets", setup.path(&job), terminal["id"].as_str().unwrap());
    // The shell writes without a connected client.
    let (_, mut other) = setup.terminal(&job).await;
    other.type_text("echo > gate; echo opened$((2))\n").await;
    other.until("opened2").await;
    let again = setup.portal.t.post(&setup.portal.ada, &tickets, json!({})).await.expect(201);
    let mut client = setup.enter(&job, &again, &format!("?from={place}")).await;
    assert_eq!(client.place, place, "nothing is lost");
    client.until("late-yes").await;
    // A second connection replaces the first one.
    let again = setup.portal.t.post(&setup.portal.ada, &tickets, json!({})).await.expect(201);
    let mut newer = setup.enter(&job, &again, &format!("?from={}", client.place)).await;
    assert_eq!(client.until_closed().await["cause"], "taken_over");
    newer.type_text("echo still-$kept\n").await;
    newer.until("still-yes").await;
    // The client ends the shell, and it cannot be opened again.
    newer.send(&json!({"type": "end"})).await;
    assert_eq!(newer.until_closed().await["cause"], "ended");
    setup.closed(&job, &terminal["id"]).await;
    setup.portal.t.post(&setup.portal.ada, &tickets, json!({})).await.problem(409, "terminal.closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_stops_reading_pauses_the_shell_without_loss() {
    let setup = TerminalSetup::open().await;
    let job = setup.running().await;
    let (_, mut client) = setup.terminal(&job).await;
    client.acknowledges = false;
    client.type_text("stty -echo; echo; seq 1 200000; echo done$((3))\n").await;
    while client.bytes < WINDOW_BYTES {
        assert_ne!(client.next().await, SocketMessage::End, "{}", client.text);
    }
    assert_eq!(client.bytes, WINDOW_BYTES, "no more than what may be under way");
    let more = tokio::time::timeout(Duration::from_millis(300), client.socket.next()).await;
    assert!(more.is_err(), "{more:?}");
    // Input still passes, and an acknowledgement resumes the output.
    client.acknowledges = true;
    client.send(&json!({"type": "taken", "bytes": client.bytes})).await;
    while !client.text.contains("done3") {
        assert_ne!(client.next().await, SocketMessage::End);
    }
    let numbers = client.text.lines().filter_map(|line| line.trim().parse::<u32>().ok());
    assert!(numbers.eq(1..=200_000), "each line came once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_ends_with_its_job() {
    let setup = TerminalSetup::open().await;
    let job = setup.running().await;
    let (terminal, mut client) = setup.terminal(&job).await;
    // Processes of the shell end too.
    client.type_text("trap '' HUP TERM; sleep 500 & echo pid$((4))\n").await;
    client.until("pid4").await;
    let path = format!("/orgs/{}/jobs/{job}/cancel", setup.portal.org);
    setup.portal.t.post(&setup.portal.ada, &path, json!(null)).await.expect(202);
    let last = client.until_closed().await;
    assert_eq!(last["cause"], "job_ended", "{last}");
    assert_eq!(setup.closed(&job, &terminal["id"]).await["cause"], "job_ended");
    setup.portal.until_ended(&job).await;
    // The device is proved clean, and the attempt's directory is removed.
    setup.portal.until_all_free().await;
    setup
        .portal
        .t
        .post(&setup.portal.ada, &setup.path(&job), json!({}))
        .await
        .problem(409, "job.not_running");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_users_who_may_stop_the_job_open_terminals() {
    let setup = TerminalSetup::open().await;
    let job = setup.running().await;
    let t = &setup.portal.t;
    let path = setup.path(&job);
    let token = async |role: &str| {
        let body = json!({"name": role, "role": role});
        let made =
            t.post(&setup.portal.ada, &format!("/orgs/{}/tokens", setup.portal.org), body).await.expect(201);
        Caller::Token(made["secret"].as_str().unwrap().to_owned())
    };
    t.post(&token("viewer").await, &path, json!({})).await.problem(403, "auth.forbidden");
    t.post(&Caller::Nobody, &path, json!({})).await.problem(401, "auth.required");
    t.post(&setup.portal.ada, &path, json!({"rank": 1})).await.problem(422, "request.invalid");
    t.post(&setup.portal.ada, &path, json!({"shell": "zsh"})).await.problem(422, "request.invalid");
    // For others the job and its terminals answer like missing ones.
    let (eve, own) = t.tenant("eves").await;
    let opened = setup.open_terminal(&setup.portal.ada, &job).await;
    let id = opened["terminal"]["id"].as_str().unwrap();
    for org in [&setup.portal.org, &own] {
        let path = format!("/orgs/{org}/jobs/{job}/terminals");
        t.post(&eve, &path, json!({})).await.problem(404, "object.not_found");
        t.get(&eve, &path).await.problem(404, "object.not_found");
        t.post(&eve, &format!("{path}/{id}/tickets"), json!({})).await.problem(404, "object.not_found");
    }
    // An operator gives a reason, which the organization can read.
    let operator = &setup.portal.operator;
    let refused = t.post(operator, &path, json!({})).await.problem(422, "request.invalid");
    assert_eq!(refused["errors"][0]["pointer"], "/reason", "{refused}");
    t.post(operator, &path, json!({"reason": "Ada asked for help"})).await.expect(201);
    let list = t.get(&setup.portal.ada, &path).await.expect(200);
    assert_eq!(list["items"][0]["reason"], "Ada asked for help", "{list}");
    // A ticket is for one person, one terminal and one use, and only from a page of the portal.
    let ticket = opened["ticket"].as_str().unwrap().to_owned();
    let forged = setup.socket(&job, id, "", |r| offer(r, Some("forged"))).await;
    assert_eq!(forged.err(), Some(StatusCode::FORBIDDEN));
    assert_eq!(setup.socket(&job, id, "", |r| offer(r, None)).await.err(), Some(StatusCode::FORBIDDEN));
    let elsewhere = setup.socket(&job, id, "", |r| {
        offer(r, Some(&ticket));
        r.headers_mut().insert("origin", HeaderValue::from_static("https://evil.example"));
    });
    assert_eq!(elsewhere.await.err(), Some(StatusCode::FORBIDDEN));
    let other = setup.open_terminal(&setup.portal.ada, &job).await;
    let wrong =
        setup.socket(&job, other["terminal"]["id"].as_str().unwrap(), "", |r| offer(r, Some(&ticket)));
    assert_eq!(wrong.await.err(), Some(StatusCode::FORBIDDEN), "of another terminal, and used up by that");
    let path = format!("{path}/{id}/tickets");
    let fresh = t.post(&setup.portal.ada, &path, json!({})).await.expect(201);
    let _screen = setup.enter(&job, &fresh, "").await;
    let twice = setup.socket(&job, id, "", |r| offer(r, fresh["ticket"].as_str())).await;
    assert_eq!(twice.err(), Some(StatusCode::FORBIDDEN));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_terminal_of_an_operator_ends_with_the_approved_hour() {
    let setup = TerminalSetup::open().await;
    let job = setup.running().await;
    let (t, operator, path) = (&setup.portal.t, &setup.portal.operator, setup.path(&job));
    let second = second_operator(t).await;
    let policy = json!({"second_operator": true});
    t.call(operator, "PUT", "/operator/change-policy", policy).await.expect(200);
    let reason = json!({"reason": "Ada asked for help"});
    let waiting = t.post(operator, &path, reason.clone()).await.expect(202);
    let approve = format!("/operator/change-requests/{}/approve", waiting["id"].as_str().unwrap());
    t.post(&second, &approve, Value::Null).await.expect(200);
    let opened = t.post(operator, &path, reason).await.expect(201);
    let (id, ticket) = (opened["terminal"]["id"].as_str().unwrap(), opened["ticket"].as_str());
    let Caller::Cookie(cookie) = operator else { panic!("a person") };
    let as_operator = |request: &mut Request<()>| {
        offer(request, ticket);
        request.headers_mut().insert("cookie", HeaderValue::from_str(cookie).unwrap());
    };
    let mut client = setup.socket(&job, id, "", as_operator).await.unwrap();
    let SocketMessage::Notice(first) = client.next().await else { panic!("no first word") };
    assert_eq!(first["type"], "open", "{first}");
    t.clock.advance_s(3_600);
    let cause = loop {
        match client.next().await {
            SocketMessage::Notice(notice) if notice["type"] == "closed" => break notice["cause"].clone(),
            SocketMessage::Notice(_) | SocketMessage::Bytes(_) => {}
            SocketMessage::End => panic!("an end without a cause"),
        }
    };
    assert_eq!(cause, "revoked");
    let tickets = format!("{path}/{id}/tickets");
    t.post(operator, &tickets, json!({})).await.problem(403, "change_request.needed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disabled_account_loses_its_terminals() {
    let setup = TerminalSetup::open().await;
    let job = setup.running().await;
    let (_, mut client) = setup.terminal(&job).await;
    let t = &setup.portal.t;
    let user = t.get(&setup.portal.ada, "/me").await.expect(200)["user"]["id"].as_str().unwrap().to_owned();
    let disabled = format!("/operator/users/{user}/disabled");
    t.call(&setup.portal.operator, "PUT", &disabled, json!({"reason": "Unpaid."})).await.expect(200);
    while client.next().await != SocketMessage::End {}
    t.post(&setup.portal.ada, &setup.path(&job), json!({})).await.problem(401, "auth.required");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_organization_has_a_limited_part_of_the_tunnels_of_a_node() {
    let setup = TerminalSetup::open().await;
    let jobs = [setup.running().await, setup.running().await, setup.running().await];
    for n in 0..15 {
        let (_, mut client) = setup.terminal(&jobs[n / 8]).await;
        tokio::spawn(async move { while client.next().await != SocketMessage::End {} });
    }
    let (terminal, mut client) = setup.terminal(&jobs[1]).await;
    let opened = setup.open_terminal(&setup.portal.ada, &jobs[2]).await;
    let id = opened["terminal"]["id"].as_str().unwrap();
    let further = setup.socket(&jobs[2], id, "", |request| offer(request, opened["ticket"].as_str())).await;
    let last = further.unwrap().until_closed().await;
    assert_eq!(last["cause"], "refused", "{last}");
    assert!(last["detail"].as_str().unwrap().contains("16 terminals and connections"), "{last}");
    assert_eq!(setup.closed(&jobs[2], &opened["terminal"]["id"]).await["cause"], "refused");
    // The limit neither ends an open shell nor disconnects its client.
    let id = terminal["id"].as_str().unwrap();
    let tickets = format!("{}/{id}/tickets", setup.path(&jobs[1]));
    let again = setup.portal.t.post(&setup.portal.ada, &tickets, json!({})).await.expect(201);
    let second =
        setup.socket(&jobs[1], id, "?from=0", |request| offer(request, again["ticket"].as_str())).await;
    assert_eq!(second.unwrap().until_closed().await["cause"], "away");
    client.type_text("echo here$((6))\n").await;
    client.until("here6").await;
    client.send(&json!({"type": "end"})).await;
    assert_eq!(client.until_closed().await["cause"], "ended");
    setup.terminal(&jobs[2]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_has_at_most_eight_terminals_and_scripts_open_them_by_token() {
    let setup = TerminalSetup::open().await;
    let job = setup.running().await;
    let t = &setup.portal.t;
    let path = setup.path(&job);
    let body = json!({"name": "ci", "role": "member"});
    let made =
        t.post(&setup.portal.ada, &format!("/orgs/{}/tokens", setup.portal.org), body).await.expect(201);
    let secret = made["secret"].as_str().unwrap().to_owned();
    let script = Caller::Token(secret.clone());
    let mut opened = Vec::new();
    for _ in 0..8 {
        opened.push(setup.open_terminal(&script, &job).await);
    }
    t.post(&script, &path, json!({})).await.problem(409, "terminal.limit");
    // A request with a token needs neither a ticket nor a page.
    let id = opened[0]["terminal"]["id"].as_str().unwrap();
    let mut client = setup
        .socket(&job, id, "", |request| {
            offer(request, None);
            let headers = request.headers_mut();
            headers.remove("cookie");
            headers.remove("origin");
            headers.insert("authorization", HeaderValue::from_str(&format!("Bearer {secret}")).unwrap());
        })
        .await
        .unwrap();
    client.type_text("echo by$((5))\n").await;
    client.until("by5").await;
    client.type_text("exit\n").await;
    client.until_closed().await;
    setup.closed(&job, &json!(id)).await;
    t.post(&script, &path, json!({})).await.expect(201);
}

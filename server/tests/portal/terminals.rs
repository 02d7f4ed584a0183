//! Terminals in running jobs: a portal with real sockets, a real worker, a real shell in a real sandbox
//! (or beside the job, where none works).

use std::net::SocketAddr;
use std::time::Duration;

use crate::common::As;
use crate::quay::{Quay, eventually};
use axum::http::{HeaderValue, Request, StatusCode};
use berth_server::{rest, web};
use berth_types::terminals::{PROTOCOL, TICKET_PROTOCOL, WINDOW_BYTES};
use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error, Message};

/// Nothing here takes this long unless it is broken.
const PATIENCE: Duration = Duration::from_secs(30);

/// A quay whose portal also has a port for browsers.
struct Pier {
    quay: Quay,
    at: SocketAddr,
}

/// What comes out of a terminal's socket.
#[derive(Debug, PartialEq)]
enum Came {
    Bytes(Vec<u8>),
    News(Value),
    End,
}

struct Screen {
    socket: WebSocketStream<TcpStream>,
    /// The place of the next byte.
    place: u64,
    /// Bytes of this socket.
    bytes: u64,
    text: String,
    /// Says what it took, as a page does.
    takes: bool,
}

impl Pier {
    async fn open() -> Self {
        let quay = Quay::open().await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let router = web::router(rest::router(quay.t.portal.clone()), None, false);
        let service = router.into_make_service_with_connect_info::<SocketAddr>();
        tokio::spawn(async move { axum::serve(listener, service).await });
        Self { quay, at }
    }

    /// A job that runs until it is stopped.
    async fn running(&self) -> String {
        let job = self.quay.script("echo up; exec sleep 600").await;
        self.quay.until(&job, |j| j["state"] == "running").await;
        // The log says that the command itself has begun.
        let up = async || self.quay.log(&job).await.starts_with(b"up").then_some(());
        eventually("the job's first line", up).await;
        job
    }

    fn path(&self, job: &str) -> String {
        format!("/orgs/{}/jobs/{job}/terminals", self.quay.org)
    }

    async fn ask(&self, who: &As, job: &str) -> Value {
        self.quay.t.post(who, &self.path(job), json!({})).await.expect(201)
    }

    /// Opens a socket as a browser of the portal's own page does.
    async fn socket(
        &self,
        job: &str,
        id: &str,
        query: &str,
        change: impl FnOnce(&mut Request<()>),
    ) -> Result<Screen, StatusCode> {
        let As::Cookie(cookie) = &self.quay.ada else { panic!("a person") };
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
                Ok(Screen { socket, place: 0, bytes: 0, text: String::new(), takes: true })
            }
            Err(Error::Http(answer)) => Err(answer.status()),
            Err(other) => panic!("{other}"),
        }
    }

    async fn enter(&self, job: &str, opened: &Value, query: &str) -> Screen {
        let ticket = opened["ticket"].as_str().unwrap();
        let id = opened["terminal"]["id"].as_str().unwrap();
        let mut screen = self.socket(job, id, query, |request| offer(request, Some(ticket))).await.unwrap();
        let Came::News(news) = screen.next().await else { panic!("no first word") };
        assert_eq!(news["type"], "open", "{news}");
        screen.place = news["begins"].as_u64().unwrap();
        screen
    }

    async fn terminal(&self, job: &str) -> (Value, Screen) {
        let opened = self.ask(&self.quay.ada, job).await;
        let screen = self.enter(job, &opened, "").await;
        (opened["terminal"].clone(), screen)
    }

    /// The record of a terminal once it is closed.
    async fn closed(&self, job: &str, id: &Value) -> Value {
        let look = async || {
            let all = self.quay.t.get(&self.quay.ada, &self.path(job)).await.expect(200);
            let one = all["items"].as_array().unwrap().iter().find(|t| t["id"] == *id).cloned();
            one.filter(|t| t["closed_at"].is_string())
        };
        eventually("the record of the end", look).await
    }
}

fn offer(request: &mut Request<()>, ticket: Option<&str>) {
    let ticket = ticket.map_or_else(String::new, |ticket| format!(", {TICKET_PROTOCOL}{ticket}"));
    let offers = HeaderValue::from_str(&format!("{PROTOCOL}{ticket}")).unwrap();
    request.headers_mut().insert("sec-websocket-protocol", offers);
}

impl Screen {
    async fn next(&mut self) -> Came {
        loop {
            let message = tokio::time::timeout(PATIENCE, self.socket.next()).await;
            let message = message.unwrap_or_else(|_| panic!("nothing comes; so far: {}", self.text));
            match message {
                Some(Ok(Message::Binary(bytes))) => {
                    self.place += bytes.len() as u64;
                    self.bytes += bytes.len() as u64;
                    self.text.push_str(&String::from_utf8_lossy(&bytes));
                    if self.takes {
                        self.say(&json!({"type": "taken", "bytes": self.bytes})).await;
                    }
                    return Came::Bytes(bytes.to_vec());
                }
                Some(Ok(Message::Text(text))) => {
                    return Came::News(serde_json::from_str(text.as_str()).unwrap());
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                Some(Ok(Message::Close(_)) | Err(_)) | None => return Came::End,
            }
        }
    }

    async fn say(&mut self, word: &Value) {
        // A socket that was closed meanwhile is noticed by what comes.
        let _ = self.socket.send(Message::text(word.to_string())).await;
    }

    async fn type_in(&mut self, text: &str) {
        self.socket.send(Message::binary(text.as_bytes().to_vec())).await.unwrap();
    }

    /// Reads until the screen holds this text; what was before is forgotten.
    async fn until(&mut self, wanted: &str) {
        while !self.text.contains(wanted) {
            if self.next().await == Came::End {
                panic!("{wanted:?} never came: {}", self.text);
            }
        }
        self.text.clear();
    }

    /// Reads to the last word.
    async fn last(&mut self) -> Value {
        loop {
            match self.next().await {
                Came::News(news) if news["type"] == "closed" => return news,
                Came::End => panic!("it ended without a word: {}", self.text),
                Came::News(_) | Came::Bytes(_) => {}
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shell_is_in_the_job_and_has_a_size_and_an_end() {
    let pier = Pier::open().await;
    let job = pier.running().await;
    let (terminal, mut screen) = pier.terminal(&job).await;
    // What is looked for is not what was typed: that is echoed.
    screen.type_in("echo a$((40 + 2))b\n").await;
    screen.until("a42b").await;
    screen.type_in("echo job=$BERTH_JOB_ID.\n").await;
    screen.until(&format!("job={job}.")).await;
    screen.type_in("stty size | tr ' ' x\n").await;
    screen.until("24x80").await;
    screen.say(&json!({"type": "size", "cols": 132, "rows": 50})).await;
    screen.type_in("stty size | tr ' ' x\n").await;
    screen.until("50x132").await;
    screen.type_in("tty\n").await;
    screen.until("/dev/pts/").await;
    let nodes = pier.quay.t.get(&pier.quay.operator, "/operator/nodes").await.expect(200);
    if nodes["items"][0]["isolation"]["sandbox"].as_str().is_some_and(|s| s.starts_with("bubblewrap")) {
        screen
            .type_in("grep -E 'CapEff|NoNewPrivs|Seccomp:' /proc/self/status | tr -d '\\t\\n'; echo\n")
            .await;
        screen.until("CapEff:0000000000000000NoNewPrivs:1Seccomp:2").await;
        screen.type_in("unshare -r true 2>&1 | sed s/permitted/refused/; hostname\n").await;
        screen.until("not refused").await;
        // The job's processes are there, and nobody else's.
        screen.type_in("echo sees$(cat /proc/[0-9]*/comm | grep -c '^sleep$')sleep\n").await;
        screen.until("sees1sleep").await;
        screen.type_in("pwd; touch /etc/x 2>&1 | tail -c 22\n").await;
        screen.until("Read-only file system").await;
    }
    screen.type_in("exit 7\n").await;
    let last = screen.last().await;
    assert_eq!((&last["cause"], &last["exit_code"]), (&json!("ended"), &json!(7)), "{last}");
    let record = pier.closed(&job, &terminal["id"]).await;
    assert_eq!((&record["exit_code"], &record["actor"]), (&json!(7), &json!("Ada")), "{record}");
    let path = format!("/orgs/{}/audit-events", pier.quay.org);
    let audit = pier.quay.t.get(&pier.quay.ada, &path).await.expect(200).to_string();
    assert!(audit.contains("terminal.opened") && audit.contains("terminal.closed"), "{audit}");
    assert!(!audit.contains("a42b") && !audit.contains("stty"), "what was done there is nobody's: {audit}");
    // The job itself noticed nothing.
    assert_eq!(pier.quay.job(&job).await["state"], "running");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shell_waits_for_whoever_lost_the_connection() {
    let pier = Pier::open().await;
    let job = pier.running().await;
    let (terminal, mut screen) = pier.terminal(&job).await;
    screen.type_in("kept=yes; mkfifo gate; (cat gate > /dev/null; echo late-$kept) &\n").await;
    screen.type_in("echo begun$((1))\n").await;
    screen.until("begun1").await;
    let place = screen.place;
    drop(screen);
    let tickets = format!("{}/{}/tickets", pier.path(&job), terminal["id"].as_str().unwrap());
    // Something is written while nobody looks.
    let (_, mut other) = pier.terminal(&job).await;
    other.type_in("echo > gate; echo opened$((2))\n").await;
    other.until("opened2").await;
    let again = pier.quay.t.post(&pier.quay.ada, &tickets, json!({})).await.expect(201);
    let mut screen = pier.enter(&job, &again, &format!("?from={place}")).await;
    assert_eq!(screen.place, place, "nothing is lost");
    screen.until("late-yes").await;
    // Opened a second time, it is taken over.
    let again = pier.quay.t.post(&pier.quay.ada, &tickets, json!({})).await.expect(201);
    let mut newer = pier.enter(&job, &again, &format!("?from={}", screen.place)).await;
    assert_eq!(screen.last().await["cause"], "taken_over");
    newer.type_in("echo still-$kept\n").await;
    newer.until("still-yes").await;
    // Not wanted any more: it ends at once, and does not come back.
    newer.say(&json!({"type": "end"})).await;
    assert_eq!(newer.last().await["cause"], "ended");
    pier.closed(&job, &terminal["id"]).await;
    pier.quay.t.post(&pier.quay.ada, &tickets, json!({})).await.problem(409, "terminal.closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_stands_still_stops_the_shell_and_loses_nothing() {
    let pier = Pier::open().await;
    let job = pier.running().await;
    let (_, mut screen) = pier.terminal(&job).await;
    screen.takes = false;
    screen.type_in("stty -echo; echo; seq 1 200000; echo done$((3))\n").await;
    while screen.bytes < WINDOW_BYTES {
        screen.next().await;
    }
    assert_eq!(screen.bytes, WINDOW_BYTES, "no more than what may be under way");
    let more = tokio::time::timeout(Duration::from_millis(300), screen.socket.next()).await;
    assert!(more.is_err(), "{more:?}");
    // Keys get through all the same, and what is told again goes on.
    screen.takes = true;
    screen.say(&json!({"type": "taken", "bytes": screen.bytes})).await;
    while !screen.text.contains("done3") {
        assert_ne!(screen.next().await, Came::End);
    }
    let numbers = screen.text.lines().filter_map(|line| line.trim().parse::<u32>().ok());
    assert!(numbers.eq(1..=200_000), "each line came once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_ends_with_its_job() {
    let pier = Pier::open().await;
    let job = pier.running().await;
    let (terminal, mut screen) = pier.terminal(&job).await;
    // What it started does not stay either.
    screen.type_in("trap '' HUP TERM; sleep 500 & echo pid$((4))\n").await;
    screen.until("pid4").await;
    let path = format!("/orgs/{}/jobs/{job}/cancel", pier.quay.org);
    pier.quay.t.post(&pier.quay.ada, &path, json!(null)).await.expect(202);
    let last = screen.last().await;
    assert_eq!(last["cause"], "job_ended", "{last}");
    assert_eq!(pier.closed(&job, &terminal["id"]).await["cause"], "job_ended");
    pier.quay.ended(&job).await;
    // Its device is proved clean, and its directory gone.
    pier.quay.all_free().await;
    pier.quay.t.post(&pier.quay.ada, &pier.path(&job), json!({})).await.problem(409, "job.not_running");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_those_who_may_stop_the_job_get_in() {
    let pier = Pier::open().await;
    let job = pier.running().await;
    let t = &pier.quay.t;
    let path = pier.path(&job);
    let token = async |role: &str| {
        let body = json!({"name": role, "role": role});
        let made = t.post(&pier.quay.ada, &format!("/orgs/{}/tokens", pier.quay.org), body).await.expect(201);
        As::Token(made["secret"].as_str().unwrap().to_owned())
    };
    t.post(&token("viewer").await, &path, json!({})).await.problem(403, "auth.forbidden");
    t.post(&As::Nobody, &path, json!({})).await.problem(401, "auth.required");
    t.post(&pier.quay.ada, &path, json!({"rank": 1})).await.problem(422, "request.invalid");
    t.post(&pier.quay.ada, &path, json!({"shell": "zsh"})).await.problem(422, "request.invalid");
    // To others the job does not exist, nor do its terminals.
    let (eve, own) = t.tenant("eves").await;
    let opened = pier.ask(&pier.quay.ada, &job).await;
    let id = opened["terminal"]["id"].as_str().unwrap();
    for org in [&pier.quay.org, &own] {
        let path = format!("/orgs/{org}/jobs/{job}/terminals");
        t.post(&eve, &path, json!({})).await.problem(404, "object.not_found");
        t.get(&eve, &path).await.problem(404, "object.not_found");
        t.post(&eve, &format!("{path}/{id}/tickets"), json!({})).await.problem(404, "object.not_found");
    }
    // An operator says why, and the organization reads it.
    let operator = &pier.quay.operator;
    let refused = t.post(operator, &path, json!({})).await.problem(422, "request.invalid");
    assert_eq!(refused["errors"][0]["pointer"], "/reason", "{refused}");
    t.post(operator, &path, json!({"reason": "Ada asked for help"})).await.expect(201);
    let list = t.get(&pier.quay.ada, &path).await.expect(200);
    assert_eq!(list["items"][0]["reason"], "Ada asked for help", "{list}");
    // A ticket is for one person, one terminal and one time, and only on the portal's own page.
    let ticket = opened["ticket"].as_str().unwrap().to_owned();
    let forged = pier.socket(&job, id, "", |r| offer(r, Some("forged"))).await;
    assert_eq!(forged.err(), Some(StatusCode::FORBIDDEN));
    assert_eq!(pier.socket(&job, id, "", |r| offer(r, None)).await.err(), Some(StatusCode::FORBIDDEN));
    let elsewhere = pier.socket(&job, id, "", |r| {
        offer(r, Some(&ticket));
        r.headers_mut().insert("origin", HeaderValue::from_static("https://evil.example"));
    });
    assert_eq!(elsewhere.await.err(), Some(StatusCode::FORBIDDEN));
    let other = pier.ask(&pier.quay.ada, &job).await;
    let wrong = pier.socket(&job, other["terminal"]["id"].as_str().unwrap(), "", |r| offer(r, Some(&ticket)));
    assert_eq!(wrong.await.err(), Some(StatusCode::FORBIDDEN), "of another terminal, and used up by that");
    let path = format!("{path}/{id}/tickets");
    let fresh = t.post(&pier.quay.ada, &path, json!({})).await.expect(201);
    let _screen = pier.enter(&job, &fresh, "").await;
    let twice = pier.socket(&job, id, "", |r| offer(r, fresh["ticket"].as_str())).await;
    assert_eq!(twice.err(), Some(StatusCode::FORBIDDEN));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_organization_has_a_part_of_a_nodes_tunnels() {
    let pier = Pier::open().await;
    let jobs = [pier.running().await, pier.running().await, pier.running().await];
    for n in 0..15 {
        let (_, mut screen) = pier.terminal(&jobs[n / 8]).await;
        tokio::spawn(async move { while screen.next().await != Came::End {} });
    }
    let (terminal, mut screen) = pier.terminal(&jobs[1]).await;
    let opened = pier.ask(&pier.quay.ada, &jobs[2]).await;
    let id = opened["terminal"]["id"].as_str().unwrap();
    let further = pier.socket(&jobs[2], id, "", |request| offer(request, opened["ticket"].as_str())).await;
    let last = further.unwrap().last().await;
    assert_eq!(last["cause"], "refused", "{last}");
    assert!(last["detail"].as_str().unwrap().contains("16 terminals and connections"), "{last}");
    assert_eq!(pier.closed(&jobs[2], &opened["terminal"]["id"]).await["cause"], "refused");
    // A shell that is there is not lost by it, nor is whoever is at it disturbed.
    let id = terminal["id"].as_str().unwrap();
    let tickets = format!("{}/{id}/tickets", pier.path(&jobs[1]));
    let again = pier.quay.t.post(&pier.quay.ada, &tickets, json!({})).await.expect(201);
    let second =
        pier.socket(&jobs[1], id, "?from=0", |request| offer(request, again["ticket"].as_str())).await;
    assert_eq!(second.unwrap().last().await["cause"], "away");
    screen.type_in("echo here$((6))\n").await;
    screen.until("here6").await;
    screen.say(&json!({"type": "end"})).await;
    assert_eq!(screen.last().await["cause"], "ended");
    pier.terminal(&jobs[2]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_has_a_few_terminals_and_scripts_open_them_by_token() {
    let pier = Pier::open().await;
    let job = pier.running().await;
    let t = &pier.quay.t;
    let path = pier.path(&job);
    let body = json!({"name": "ci", "role": "member"});
    let made = t.post(&pier.quay.ada, &format!("/orgs/{}/tokens", pier.quay.org), body).await.expect(201);
    let secret = made["secret"].as_str().unwrap().to_owned();
    let script = As::Token(secret.clone());
    let mut opened = Vec::new();
    for _ in 0..8 {
        opened.push(pier.ask(&script, &job).await);
    }
    t.post(&script, &path, json!({})).await.problem(409, "terminal.limit");
    // With a token neither ticket nor page is needed.
    let id = opened[0]["terminal"]["id"].as_str().unwrap();
    let mut screen = pier
        .socket(&job, id, "", |request| {
            offer(request, None);
            let headers = request.headers_mut();
            headers.remove("cookie");
            headers.remove("origin");
            headers.insert("authorization", HeaderValue::from_str(&format!("Bearer {secret}")).unwrap());
        })
        .await
        .unwrap();
    screen.type_in("echo by$((5))\n").await;
    screen.until("by5").await;
    screen.type_in("exit\n").await;
    screen.last().await;
    pier.closed(&job, &json!(id)).await;
    t.post(&script, &path, json!({})).await.expect(201);
}

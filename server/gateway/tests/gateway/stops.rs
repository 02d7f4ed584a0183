//! The program itself: its start without a portal, and its end by a signal.

use std::process::Stdio;
use std::sync::atomic::Ordering;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reqwest::StatusCode;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::portal::{Portal, TOKEN};
use crate::replica::{Authority, End, Reply, Server, Worker};
use crate::stage::{KEY, Stage, chat, digits, eventually, key, snapshot};

const TEXT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";

#[tokio::test(flavor = "multi_thread")]
async fn without_the_portal_the_last_snapshot_stays_in_use() {
    let mut stage = Stage::new().await;
    let worker = Worker::start(&stage.authority, 1, &Server::whole("[4]")).await;
    let starting = stage.get("/healthz").send().await.unwrap();
    assert_eq!(starting.status(), StatusCode::SERVICE_UNAVAILABLE);
    stage.publish(vec![digits(vec![worker.replica])], vec![key(KEY)]).await;
    stage.stop().await;
    stage.portal.is_away.store(true, Ordering::Relaxed);
    stage.restart().await;
    assert_eq!(stage.get("/healthz").send().await.unwrap().status(), StatusCode::OK);
    assert_eq!(stage.get("/s/kelda/digits").send().await.unwrap().text().await.unwrap(), "[4]");
    let file = stage.data.path().join("snapshot.json");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(file).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    stage.portal.is_away.store(false, Ordering::Relaxed);
    stage.publish(vec![digits(Vec::new())], Vec::new()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_open_streams_in_order_and_reports_them() {
    let (portal, authority) = (Portal::start().await, Authority::new());
    let server = Server::new(|_| Reply::Events(TEXT.to_owned(), End::Gated("data: [DONE]\n\n"))).gated();
    let worker = Worker::start(&authority, 1, &server).await;
    portal.publish(snapshot(&authority, vec![chat(vec![worker.replica])], vec![key(KEY)]));
    let data = tempfile::tempdir().unwrap();
    let portal_url = format!("http://{}", portal.at);
    let mut program = Command::new(env!("CARGO_BIN_EXE_berth-gateway"))
        .args(["--portal", portal_url.as_str(), "--listen", "127.0.0.1:0", "--data"])
        .arg(data.path().join("gateway"))
        .env("BERTH_GATEWAY_TOKEN", TOKEN)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
    let line = lines.next_line().await.unwrap().unwrap();
    let url = line.strip_prefix("The gateway listens on ").unwrap().to_owned();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let is_ready = || async {
        let asked = client.get(format!("{url}/healthz")).send().await;
        asked.is_ok_and(|answer| answer.status() == StatusCode::OK)
    };
    eventually("the snapshot", is_ready).await;
    let ask = json!({"model": "llama", "stream": true, "messages": []});
    let request = client.post(format!("{url}/v1/chat/completions")).bearer_auth(KEY).json(&ask);
    let mut answer = request.send().await.unwrap();
    assert_eq!(answer.chunk().await.unwrap().unwrap(), TEXT);
    let id = i32::try_from(program.id().unwrap()).unwrap();
    kill(Pid::from_raw(id), Signal::SIGTERM).unwrap();
    let address = url.strip_prefix("http://").unwrap();
    eventually("no more connections", || async { tokio::net::TcpStream::connect(address).await.is_err() })
        .await;
    server.gate.as_ref().unwrap().add_permits(1);
    assert_eq!(answer.chunk().await.unwrap().unwrap(), "data: [DONE]\n\n");
    assert_eq!(answer.chunk().await.unwrap(), None);
    assert!(program.wait().await.unwrap().success());
    assert_eq!(portal.uses().iter().map(|row| row.requests).sum::<u64>(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn open_requests_are_cut_off_after_the_longest_drain() {
    let limits =
        berth_gateway::settings::Limits { drain: std::time::Duration::ZERO, ..crate::stage::limits() };
    let mut stage = Stage::with(limits).await;
    let server = Server::new(|_| Reply::Events(TEXT.to_owned(), End::Open));
    let worker = Worker::start(&stage.authority, 1, &server).await;
    stage.publish(vec![chat(vec![worker.replica])], vec![key(KEY)]).await;
    let ask = json!({"model": "llama", "stream": true, "messages": []});
    let mut answer = stage.ask(KEY, &ask).send().await.unwrap();
    assert_eq!(answer.chunk().await.unwrap().unwrap(), TEXT);
    stage.stop().await;
    assert!(answer.chunk().await.is_err(), "the stream has no regular end");
    assert_eq!(stage.portal.uses().iter().map(|row| row.completion_tokens).sum::<u64>(), 1);
}

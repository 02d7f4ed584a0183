//! The portal as a process, killed without warning while it takes submissions.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail loudly, like tests")]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use berth_server::store::{self, Db};
use common::{TestPortal, job};
use serde_json::{Value, json};

struct Served {
    process: Child,
    address: String,
}

/// Starts the real binary on a free port and waits for the line that names it.
fn serve(data: &Path) -> Served {
    let mut process = Command::new(env!("CARGO_BIN_EXE_berth"))
        .args(["serve", "--listen", "127.0.0.1:0", "--worker-listen", "127.0.0.1:0", "--data"])
        .arg(data)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let line = lines.next().unwrap().unwrap();
    let address = line.rsplit_once("http://").unwrap().1.to_owned();
    Served { process, address }
}

/// One request on a connection of its own; `None` when the portal is gone before it answered.
fn call(address: &str, method: &str, path: &str, token: &str, body: &Value) -> Option<(u16, Value)> {
    let mut stream = TcpStream::connect(address).ok()?;
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let request = format!(
        "{method} /api/v1{path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, serde_json::from_str(body).ok()?))
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_9_loses_no_acknowledged_job_and_holds_each_once() {
    let dir = tempfile::tempdir().unwrap();
    let database = dir.path().join("berth.db");
    let (org, token) = {
        let t = TestPortal::on(Db::sqlite(&database).await.unwrap());
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        t.stock(&operator, &org, 1_000_000_000_000).await;
        let new = json!({"name": "script", "role": "member"});
        let created = t.post(&ada, &format!("/orgs/{org}/tokens"), new).await.expect(201);
        (org, created["secret"].as_str().unwrap().to_owned())
    };
    let mut acknowledged: Vec<String> = vec![];
    for _round in 0..8 {
        let mut served = serve(dir.path());
        let (told, heard) = mpsc::channel();
        let clients: Vec<_> = (0..8)
            .map(|_| {
                let (address, path, token) =
                    (served.address.clone(), format!("/orgs/{org}/jobs"), token.clone());
                let told = told.clone();
                std::thread::spawn(move || {
                    while let Some((status, answer)) = call(&address, "POST", &path, &token, &job()) {
                        assert_eq!(status, 201, "{answer}");
                        told.send(answer["id"].as_str().unwrap().to_owned()).unwrap();
                    }
                })
            })
            .collect();
        drop(told);
        // Killed in the middle: after a number of answers, with more under way.
        acknowledged.extend(heard.iter().take(40));
        served.process.kill().unwrap();
        served.process.wait().unwrap();
        acknowledged.extend(heard.iter());
        clients.into_iter().for_each(|c| c.join().unwrap());
    }
    assert!(acknowledged.len() >= 8 * 40);

    let served = serve(dir.path());
    let (mut jobs, mut cursor) = (vec![], String::new());
    loop {
        let path = format!("/orgs/{org}/jobs?limit=200{cursor}");
        let (status, page) = call(&served.address, "GET", &path, &token, &Value::Null).unwrap();
        assert_eq!(status, 200, "{page}");
        jobs.extend(page["items"].as_array().unwrap().iter().map(|j| j["id"].as_str().unwrap().to_owned()));
        let Some(next) = page["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    let lost = acknowledged.iter().filter(|id| !jobs.contains(id)).count();
    assert_eq!(lost, 0, "of {}", acknowledged.len());
    let path = format!("/orgs/{org}/balance");
    let (_, balance) = call(&served.address, "GET", &path, &token, &Value::Null).unwrap();
    assert_eq!(balance["held_micros"].as_i64().unwrap(), 60_000 * i64::try_from(jobs.len()).unwrap());
    let mut served = served;
    served.process.kill().unwrap();
    served.process.wait().unwrap();
    let mut conn = Db::sqlite(&database).await.unwrap().read().await.unwrap();
    assert_eq!(store::ledger::mismatches(&mut conn.tx()).await.unwrap(), Vec::<String>::new());
}

#[test]
fn bad_settings_are_said_and_not_endured() {
    let run = |args: &[&str]| Command::new(env!("CARGO_BIN_EXE_berth")).args(args).output().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().to_str().unwrap();
    for (args, said) in [
        (vec!["serve", "--listen", "nowhere"], "nowhere"),
        (vec!["serve", "--data", "/proc/nothing"], "cannot be made"),
        (vec!["serve", "--worker-listen", "0.0.0.0:0", "--data", data], "stay on this host"),
        (vec!["migrate", "--data", data, "--database", "mysql://u:hunter2@h/d"], "postgres://"),
    ] {
        let out = run(&args);
        let error = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && error.contains(said), "{args:?}: {error}");
        assert!(!error.contains("hunter2"), "a password is never shown");
    }
    assert!(run(&["migrate", "--data", data]).status.success());
}

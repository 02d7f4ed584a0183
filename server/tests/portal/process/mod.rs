//! The portal and the worker as processes, and requests to the portal from outside.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail loudly, like tests")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A portal that ends with the test, however the test ends.
pub struct Served {
    pub process: Child,
    pub address: String,
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Served {
    /// Ends it without a warning.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// Starts the real binary on a free port and waits for the line that names it.
pub fn serve(data: &Path) -> Served {
    serve_with(data, "127.0.0.1:0", &[], None)
}

/// With an address for workers, more arguments, and a point at which it kills itself.
pub fn serve_with(data: &Path, worker_listen: &str, args: &[String], fault: Option<&str>) -> Served {
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth-portal"));
    command
        .args(["serve", "--listen", "127.0.0.1:0", "--worker-listen", worker_listen, "--data"])
        .arg(data)
        .args(args)
        .env_remove("BERTH_FAULT")
        .stdout(Stdio::piped());
    if let Some(point) = fault {
        command.env("BERTH_FAULT", point);
    }
    let mut process = command.spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let line = lines.next().unwrap().unwrap();
    let address = line.rsplit_once("http://").unwrap().1.to_owned();
    Served { process, address }
}

/// One request on a connection of its own; `None` when the portal is gone before it answered. An answer
/// without a body reads as null.
pub fn request(
    address: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Option<(u16, Value)> {
    let mut stream = TcpStream::connect(address).ok()?;
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let request = format!(
        "{method} /api/v1{path} HTTP/1.1\r\nHost: {address}\r\n{headers}\
         Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    if body.is_empty() {
        return Some((status, Value::Null));
    }
    Some((status, serde_json::from_str(body).ok()?))
}

/// A request of whoever has this token, whose answer is JSON.
pub fn call(address: &str, method: &str, path: &str, token: &str, body: &Value) -> Option<(u16, Value)> {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let bearer = format!("Bearer {token}");
    request(address, method, path, &[("Authorization", &bearer)], &body).filter(|(_, body)| !body.is_null())
}

/// A child that ends with the test, however the test ends.
pub struct Ending(pub Child);

impl Drop for Ending {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A worker on a simulated board.
pub fn worker(data: &Path, portal: &str, join: &str) -> Ending {
    let program = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().join("berth-worker");
    let child = Command::new(program)
        .args(["run", "--simulate", "1xH100-80GB", "--allow-unisolated", "--join-token", join])
        .arg("--portal")
        .arg(format!("https://{portal}"))
        .arg("--data")
        .arg(data)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    Ending(child)
}

/// An address that was free a moment ago, to be used again by a portal that restarts.
pub fn free_address() -> String {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// Looks for something until a deadline. `Err` is what is there instead.
#[track_caller]
pub fn eventually<T>(mut look: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + Duration::from_secs(90);
    loop {
        match look() {
            Ok(found) => return found,
            Err(instead) => assert!(Instant::now() < deadline, "it never came to that: {instead}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

//! Portal and worker as processes, and HTTP requests from outside.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail loudly, like tests")]

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A portal process that ends with the test.
pub struct PortalProcess {
    pub process: Child,
    pub address: String,
}

impl Drop for PortalProcess {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl PortalProcess {
    /// Kills the process.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// Starts the portal's program on a free port and waits for its address.
pub fn serve(data: &Path) -> PortalProcess {
    serve_with(data, "127.0.0.1:0", &[], None)
}

/// Starts it with an address for workers, more arguments and a fault point.
pub fn serve_with(data: &Path, worker_listen: &str, args: &[String], fault: Option<&str>) -> PortalProcess {
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
    PortalProcess { process, address }
}

/// Sends one request on its own connection. `None` if the portal ends before its answer; `null` for an answer
/// without a body.
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

/// Sends a request with a token; returns a JSON answer.
pub fn call(address: &str, method: &str, path: &str, token: &str, body: &Value) -> Option<(u16, Value)> {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let bearer = format!("Bearer {token}");
    request(address, method, path, &[("Authorization", &bearer)], &body).filter(|(_, body)| !body.is_null())
}

/// A child process that ends with the test.
pub struct ChildGuard(pub Child);

impl Drop for ChildGuard {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The file with the messages of a worker.
fn log_of_worker(data: &Path) -> PathBuf {
    data.with_extension("log")
}

/// The last messages of all workers with this data directory.
pub fn last_messages(data: &Path) -> String {
    let log = std::fs::read_to_string(log_of_worker(data)).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// Starts a worker with one simulated board.
pub fn worker(data: &Path, portal: &str, join: &str) -> ChildGuard {
    let program = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().join("berth-worker");
    let log = OpenOptions::new().create(true).append(true).open(log_of_worker(data)).unwrap();
    let child = Command::new(program)
        .args(["run", "--simulate", "1xH100-80GB", "--allow-unisolated", "--join-token", join])
        .args(["--job-network", "host"])
        .arg("--portal")
        .arg(format!("https://{portal}"))
        .arg("--data")
        .arg(data)
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap();
    ChildGuard(child)
}

/// Returns an address for a program that starts on it later. No other program has its IP, and hardly one listens on all
/// addresses with this port.
pub fn free_address() -> String {
    static ADDRESSES: AtomicU32 = AtomicU32::new(0);
    let [.., high, low] = std::process::id().to_be_bytes();
    format!("127.{}.{high}.{low}:28081", 100 + ADDRESSES.fetch_add(1, Ordering::Relaxed) % 100)
}

/// The usual time for a state of the system to come about.
pub const USUAL_LIMIT: Duration = Duration::from_secs(90);

/// Repeats a check until a deadline. `Err` has the present state.
#[track_caller]
pub fn eventually<T>(check: impl FnMut() -> Result<T, String>) -> T {
    eventually_within(USUAL_LIMIT, check)
}

/// The same with a deadline after `limit`.
#[track_caller]
pub fn eventually_within<T>(limit: Duration, mut check: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        match check() {
            Ok(found) => return found,
            Err(state) => assert!(Instant::now() < deadline, "it never came to that: {state}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

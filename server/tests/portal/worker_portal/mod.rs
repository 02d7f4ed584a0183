//! A portal in process with a real worker on simulated boards, and a client of its event streams.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use berth_exec::attempt_processes;
use berth_jobs::jobs::LogEnd;
use berth_server::{loops, workers};
use berth_store as store;
use berth_types::ids::JobId;
use serde_json::{Value, json};

use crate::common::{Caller, TestPortal};

/// Returns the worker's program, which the build of the whole workspace creates.
pub fn worker_program() -> PathBuf {
    let program = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().join("berth-worker");
    assert!(program.exists(), "build it first: cargo build -p berth-worker ({})", program.display());
    program
}

/// Repeats a check until it returns a value or the deadline has passed.
pub async fn eventually<T>(condition: &str, mut check: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = check().await {
            return found;
        }
        assert!(Instant::now() < deadline, "it never came to that: {condition}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A worker process that ends with the test.
pub struct Worker {
    pub process: Child,
}

impl Worker {
    /// Starts a worker with these simulated boards. Programs in the directory `bin` of its data precede the
    /// host's. The directory `rdma` there has its RDMA devices.
    pub fn start(portal: &str, data: &Path, boards: &str, token: Option<&str>) -> Self {
        Self::start_with(portal, data, boards, token, &[])
    }

    /// The same with more options.
    pub fn start_with(
        portal: &str,
        data: &Path,
        boards: &str,
        token: Option<&str>,
        options: &[&str],
    ) -> Self {
        let mut command = Command::new(worker_program());
        command.args([
            "run",
            "--portal",
            portal,
            "--simulate",
            boards,
            "--name",
            "quay",
            "--stop-grace-s",
            "1",
            "--label",
            "rack=r1",
            // The network of this machine stays as it is.
            "--job-network",
            "host",
            // The cache works on a full disk too.
            "--cache-free-gib",
            "0",
        ]);
        command
            .arg("--data")
            .arg(data)
            .arg("--allow-unisolated")
            .args(options)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(token) = token {
            command.args(["--join-token", token]);
        }
        let rdma = data.join("rdma");
        if rdma.exists() {
            command.arg("--simulate-rdma").arg(rdma);
        }
        let path = std::env::var("PATH").unwrap();
        command.env("PATH", format!("{}:{path}", data.join("bin").display()));
        let process = command.spawn().unwrap();
        Self { process }
    }

    /// Waits until the worker has its identity; otherwise returns its error output.
    pub fn wait_until_joined(&mut self) -> Result<(), String> {
        let mut line = String::new();
        BufReader::new(self.process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        if line.contains("is node_") {
            // The log is not needed, but a full pipe would block the worker.
            let errors = self.process.stderr.take().unwrap();
            std::thread::spawn(move || std::io::copy(&mut BufReader::new(errors), &mut std::io::sink()));
            return Ok(());
        }
        let mut error = String::new();
        std::io::Read::read_to_string(&mut self.process.stderr.take().unwrap(), &mut error).unwrap();
        Err(error)
    }

    /// Kills the daemon; its jobs continue.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A portal in process with an operator, an organization of Ada, an address for workers and one worker at
/// most.
pub struct WorkerPortal {
    pub t: TestPortal,
    pub ada: Caller,
    pub org: String,
    pub operator: Caller,
    /// The URL for workers.
    pub address: String,
    pub worker: Option<Worker>,
    /// The data directory of the worker.
    pub data: PathBuf,
}

impl Drop for WorkerPortal {
    fn drop(&mut self) {
        // Jobs outlive their daemon, and no other process ends them.
        drop(self.worker.take());
        let inside = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path());
        for data in inside(self.t.data.path()) {
            inside(&data.join("attempts")).for_each(|attempt| kill_attempt(&attempt));
        }
    }
}

/// Kills the shim of an attempt and all processes of the attempt.
fn kill_attempt(attempt: &Path) {
    let processes = attempt_processes::all(attempt).into_iter().map(|pid| pid.to_string());
    let all: Vec<String> =
        processes.chain(berth_shim::shim_pid(attempt).map(|pid| pid.to_string())).collect();
    if !all.is_empty() {
        // Some may have ended already.
        let _ = Command::new("kill").arg("-KILL").args(all).output();
    }
}

/// Starts a portal without a worker.
pub async fn without_worker() -> WorkerPortal {
    without_worker_on(TestPortal::sqlite().await).await
}

/// Starts a portal without a worker, with given settings.
pub async fn without_worker_on(t: TestPortal) -> WorkerPortal {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("https://{}", listener.local_addr().unwrap());
    tokio::spawn(workers::serve(t.portal.clone(), listener, std::future::pending()));
    loops::start_scheduler(&t.portal);
    let operator = t.operator().await;
    let (ada, org) = t.tenant("lab").await;
    let data = t.data.path().join("worker");
    WorkerPortal { t, ada, org, operator, address, worker: None, data }
}

impl WorkerPortal {
    /// Starts a portal with one worker, a price and credit.
    pub async fn open() -> Self {
        Self::on(TestPortal::sqlite().await).await
    }

    /// The same with the system time, because the portal keeps only readings near its own time.
    pub async fn open_at_system_time() -> Self {
        let t = TestPortal::sqlite().await;
        t.clock.set_to_system_time();
        Self::on(t).await
    }

    pub async fn on(t: TestPortal) -> Self {
        let mut setup = without_worker_on(t).await;
        let token = setup.join_token(json!({})).await;
        setup.start_worker(Some(&token)).unwrap();
        setup.t.add_price_and_credit(&setup.operator, &setup.org, 1_000_000_000).await;
        setup
    }

    /// Creates a join token that approves any boards and adopts the labels of the worker, unless `terms` has
    /// other values.
    pub async fn join_token(&self, terms: Value) -> String {
        let mut body = json!({"approve": true, "adopt_labels": true});
        body.as_object_mut().unwrap().extend(terms.as_object().unwrap().clone());
        let answer = self.t.post(&self.operator, "/operator/join-tokens", body).await.expect(201);
        answer["secret"].as_str().unwrap().to_owned()
    }

    pub fn start_worker(&mut self, token: Option<&str>) -> Result<(), String> {
        self.start_worker_with("1xH100-80GB", token)
    }

    pub fn start_worker_with(&mut self, boards: &str, token: Option<&str>) -> Result<(), String> {
        let mut worker = Worker::start(&self.address, &self.data, boards, token);
        worker.wait_until_joined()?;
        self.worker = Some(worker);
        Ok(())
    }

    pub async fn submit(&self, spec: Value) -> String {
        let mut body = json!({"name": "train", "offering": "h100-80gb.1g.10gb", "max_duration_s": 60});
        body.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let job = self.t.post(&self.ada, &format!("/orgs/{}/jobs", self.org), body).await.expect(201);
        job["id"].as_str().unwrap().to_owned()
    }

    /// Submits a job with this script on a slice.
    pub async fn submit_script(&self, script: &str) -> String {
        self.submit(json!({"script": script})).await
    }

    pub async fn job(&self, job: &str) -> Value {
        self.t.get(&self.ada, &format!("/orgs/{}/jobs/{job}", self.org)).await.expect(200)
    }

    /// Waits until `ready` returns true for the job; returns the job.
    pub async fn until(&self, job: &str, ready: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let now = self.job(job).await;
            if ready(&now) {
                return now;
            }
            if Instant::now() >= deadline {
                // The log often has the cause.
                let log = String::from_utf8_lossy(&self.log(job).await).into_owned();
                panic!("it never came to that: {now}\nlog: {log}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits for the end of a job; returns the job.
    pub async fn until_ended(&self, job: &str) -> Value {
        self.until(job, |j| {
            ["succeeded", "failed", "cancelled", "timed_out"].iter().any(|s| j["state"] == *s)
        })
        .await
    }

    pub async fn log(&self, job: &str) -> Vec<u8> {
        let path = format!("/api/v1/orgs/{}/jobs/{job}/logs", self.org);
        let Caller::Cookie(cookie) = &self.ada else { panic!("a person") };
        let request = axum::http::Request::builder().uri(path).header("cookie", cookie);
        let request = request.body(axum::body::Body::empty()).unwrap();
        let response = tower::ServiceExt::oneshot(self.t.router.clone(), request).await.unwrap();
        axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap().to_vec()
    }

    /// Waits for the end of the log; returns the whole log.
    pub async fn whole_log(&self, job: &str) -> Vec<u8> {
        self.log_complete(job.parse().unwrap(), 1, 0).await;
        self.log(job).await
    }

    /// Waits until the log of a rank is complete.
    pub async fn log_complete(&self, job: JobId, attempt: u32, rank: u32) {
        let complete = async || {
            let end = self.t.portal.jobs.log_end(job, attempt, rank).await.unwrap();
            (end == Some(LogEnd::Complete)).then_some(())
        };
        eventually("the log's end", complete).await;
    }

    /// Waits until the board is empty for the portal and for the driver.
    pub async fn until_all_free(&self) {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let nodes = self.t.get(&self.operator, "/operator/nodes").await.expect(200);
            let boards: Value = serde_json::from_slice(
                &std::fs::read(self.data.join("simulated-boards/boards.json")).unwrap(),
            )
            .unwrap_or_default();
            let tiles = nodes["items"][0]["gpus"][0]["tiles"].as_array().unwrap().len();
            let instances = boards["boards"][0]["instances"].as_array().map_or(9, Vec::len);
            let kept = std::fs::read_dir(self.data.join("attempts")).unwrap().count();
            if (tiles, instances, kept) == (0, 0, 0) {
                return;
            }
            assert!(Instant::now() < deadline, "{tiles} tiles, {instances} instances, {kept} kept: {nodes}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Returns the posted charges of a job in micro-units.
    pub async fn charged(&self, job: &str) -> i64 {
        let path = format!("/orgs/{}/transfers?limit=200", self.org);
        let page = self.t.get(&self.ada, &path).await.expect(200);
        let rows = page["items"].as_array().unwrap().clone();
        rows.iter()
            .filter(|r| r["source_id"] == job && r["kind"] == "usage")
            .map(|r| -r["amount_micros"].as_i64().unwrap())
            .sum()
    }

    /// Asserts that the charge equals the meter, no hold is left and the ledger is correct.
    pub async fn assert_settled(&self, job: &Value) {
        let id = job["id"].as_str().unwrap();
        let rate = i128::from(job["nano_per_second"].as_i64().unwrap());
        let metered = i128::from(job["metered_ms"].as_i64().unwrap());
        assert_eq!(i128::from(self.charged(id).await), rate * metered / 1_000_000, "{job}");
        assert_eq!(job["held_micros"], 0);
        let mut conn = self.t.portal.context.db.read().await.unwrap();
        assert_eq!(store::ledger::mismatches(&mut conn.tx()).await.unwrap(), Vec::<String>::new());
    }
}

/// One event of a stream: name, id and data.
#[derive(Debug)]
pub struct StreamEvent {
    pub name: String,
    pub id: String,
    pub data: String,
}

/// An open event stream.
pub struct EventStream {
    pub body: axum::body::BodyDataStream,
    pub buffer: String,
}

impl EventStream {
    pub async fn open(setup: &WorkerPortal, path: &str, last_id: Option<&str>) -> Self {
        let Caller::Cookie(cookie) = &setup.ada else { panic!("a person") };
        let uri = format!("/api/v1/orgs/{}{path}", setup.org);
        let mut request = axum::http::Request::builder()
            .uri(uri)
            .header("cookie", cookie)
            .header("accept", "text/event-stream");
        if let Some(id) = last_id {
            request = request.header("last-event-id", id);
        }
        let request = request.body(axum::body::Body::empty()).unwrap();
        let response = tower::ServiceExt::oneshot(setup.t.router.clone(), request).await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["cache-control"], "no-cache, no-transform");
        assert_eq!(response.headers()["x-accel-buffering"], "no");
        Self { body: response.into_body().into_data_stream(), buffer: String::new() }
    }

    /// Returns the next event; `None` after the end of the stream.
    pub async fn next(&mut self) -> Option<StreamEvent> {
        loop {
            if let Some((block, rest)) = self.buffer.split_once("\n\n") {
                let field = |name: &str| {
                    let lines = block.lines().filter_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
                    lines.map(|l| l.strip_prefix(' ').unwrap_or(l)).collect::<Vec<_>>().join("\n")
                };
                let event = StreamEvent { name: field("event"), id: field("id"), data: field("data") };
                self.buffer = rest.to_owned();
                return Some(event);
            }
            let more = futures::StreamExt::next(&mut self.body);
            let more = tokio::time::timeout(Duration::from_secs(30), more).await.unwrap()?;
            self.buffer.push_str(std::str::from_utf8(&more.unwrap()).unwrap());
        }
    }

    /// Returns the next event with this name.
    pub async fn next_named(&mut self, name: &str) -> StreamEvent {
        loop {
            let event = self.next().await.unwrap();
            if event.name == name {
                return event;
            }
        }
    }
}

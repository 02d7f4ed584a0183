//! Tests of retention and of the mark of free space with the attempt of a played worker.

use berth_foundation::Settings;
use berth_proto::portal_client::PortalClient;
use berth_proto::{
    AttemptId, Board, Evidence, Hello, Log, OutputFile, Phase, SmallFile, Status, UploadBatchRequest,
    UploadChunk, UploadProgress, portal_message, worker_message::Body,
};
use berth_server::workers;
use berth_store::{self as store, Db};
use serde_json::{Value, json};
use tonic::Code;

use crate::common::{TestPortal, engines};
use crate::daemons::{NodeCredentials, PlayedSession, join_new_node, way};
use crate::worker_portal::{WorkerPortal, eventually, without_worker_on};

const DAY_S: i64 = 86_400;

/// A played worker with one attempt of a job.
struct Host {
    setup: WorkerPortal,
    credentials: NodeCredentials,
    /// Absent while the host is disconnected.
    played: Option<PlayedSession>,
    job: String,
    attempt: Option<AttemptId>,
    /// The number of the last status.
    seq: u64,
}

fn hello(connection: i64) -> Hello {
    let (uuid, name) = ("GPU-1".to_owned(), "H100-80GB".to_owned());
    let boards = vec![Board { uuid, name, memory_mib: 81_920, ..Board::default() }];
    let (instance, supports_leases) = ("a".to_owned(), true);
    Hello { instance, epoch: 1, connection, simulated: true, supports_leases, boards, ..Hello::default() }
}

/// A status with evidence for all of its time. With `log_bytes` the process has ended.
fn status(phase: Phase, metered_ms: i64, log_bytes: Option<u64>) -> Status {
    let evidence = Evidence { process_ms: metered_ms, device_ms: metered_ms, ..Evidence::default() };
    Status {
        phase: phase.into(),
        metered_ms,
        exit_code: log_bytes.map(|_| 0),
        log_bytes,
        evidence: Some(evidence),
        started: true,
        ..Status::default()
    }
}

/// A portal that keeps ended jobs for 30 days.
fn keeping_portal(db: Db) -> TestPortal {
    TestPortal::with(db, |settings| Settings {
        keep_ended_jobs_days: Some(30),
        node_certificate_s: 365 * DAY_S,
        ..settings
    })
}

impl Host {
    async fn on(t: TestPortal) -> Self {
        let setup = without_worker_on(t).await;
        setup.t.add_price_and_credit(&setup.operator, &setup.org, 1_000_000_000).await;
        let price = json!({"offering": "h100-80gb", "per_hour_micros": 3_600_000});
        setup.t.post(&setup.operator, "/operator/prices", price).await.expect(201);
        let credentials = join_new_node(&setup).await;
        let played = PlayedSession::open_with_hello(&setup, Some(&credentials), hello(1)).await.unwrap();
        let mut played = played.expect_admitted().await;
        let job = setup.submit(json!({"offering": "h100-80gb", "gpu_milli": 50, "command": ["true"]})).await;
        let attempt = played.desired(1).await[0].attempt.clone();
        Self { setup, credentials, played: Some(played), job, attempt, seq: 0 }
    }

    /// Connects again.
    async fn reconnect(&mut self, connection: i64) {
        let hello = hello(connection);
        let played =
            PlayedSession::open_with_hello(&self.setup, Some(&self.credentials), hello).await.unwrap();
        self.played = Some(played.expect_admitted().await);
    }

    /// Disconnects until the node is lost.
    async fn lose(&mut self) {
        self.played = None;
        self.setup.t.clock.advance_s(700);
        eventually("the loss of the node", async || {
            let ended = self.setup.t.portal.lost_nodes.tick_leases().await.unwrap();
            (ended == 1).then_some(())
        })
        .await;
    }

    /// Sends the log from its start on, then a status, and waits until the portal has handled both.
    async fn send(&mut self, log: &str, status: Status) {
        let (attempt, data) = (self.attempt.clone(), log.as_bytes().to_vec().into());
        let log = Log { attempt: attempt.clone(), rank: 0, offset: 0, data, age_ms: 0 };
        self.seq += 1;
        let seq = self.seq;
        let played = self.played.as_mut().unwrap();
        played.up.send(Body::Log(log).into()).unwrap();
        played.up.send(Body::Status(Status { seq, attempt, ..status }).into()).unwrap();
        let answer = |body| match body {
            portal_message::Body::StatusAck(ack) if ack.seq == seq => Some(()),
            _ => None,
        };
        played.next_matching(answer).await;
    }

    /// Offers an artifact of eight bytes and sends the first four.
    async fn upload(&self) -> Result<UploadProgress, tonic::Status> {
        let (attempt, path, sha256) = (self.attempt.clone(), "out/model".to_owned(), vec![0; 32]);
        let file = OutputFile { attempt, path, bytes: 8, sha256, files: 1, ..OutputFile::default() };
        let chunk = UploadChunk { file: Some(file), offset: 0, data: b"half".to_vec() };
        let channel = way(&self.setup, Some(&self.credentials)).connect().await.unwrap();
        Ok(PortalClient::new(channel).upload(chunk).await?.into_inner())
    }

    /// Sends an artifact of four bytes in a batch, or with `check_only` asks for its state. Returns true if the
    /// worker sends no more of it.
    async fn upload_batch(&self, check_only: bool) -> bool {
        let data = if check_only { Vec::new() } else { b"text".to_vec() };
        let file = SmallFile { path: "out/text".to_owned(), bytes: 4, sha256: vec![0; 32], data };
        let (attempt, files) = (self.attempt.clone(), vec![file]);
        let batch = UploadBatchRequest { attempt, files, check_only, ..UploadBatchRequest::default() };
        let channel = way(&self.setup, Some(&self.credentials)).connect().await.unwrap();
        PortalClient::new(channel).upload_batch(batch).await.unwrap().into_inner().done[0]
    }

    /// The counted bytes of the organization's logs.
    async fn log_bytes(&self) -> Value {
        let path = format!("/orgs/{}/storage", self.setup.org);
        self.setup.t.get(&self.setup.ada, &path).await.expect(200)["log_bytes"].clone()
    }

    /// Runs the retention 31 days later. Returns the job.
    async fn retained_job(&mut self) -> Value {
        self.setup.t.clock.advance_s(31 * DAY_S);
        for _ in 0..2 {
            self.setup.t.portal.job_retention.tick_retention().await.unwrap();
        }
        self.setup.ada = self.setup.t.sign_in("lab@example.org").await;
        self.setup.job(&self.job).await
    }

    /// True if the job has a directory of logs.
    fn has_logs(&self) -> bool {
        let log = self.setup.t.portal.recordings.log(self.job.parse().unwrap(), 1, 0);
        log.parent().unwrap().exists()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_attempt_keeps_its_job_from_retention() {
    for (engine, db, _location) in engines("open_retention").await {
        let mut host = Host::on(keeping_portal(db)).await;
        host.send("one\n", status(Phase::Running, 1_000, None)).await;
        // The rest of the log is still on the host.
        host.send("one\n", status(Phase::Clean, 2_000, Some(8))).await;
        let job = host.retained_job().await;
        assert_eq!(
            (&job["state"], &job["removed_at"]),
            (&json!("succeeded"), &Value::Null),
            "{engine} {job}"
        );
        let path = format!("/orgs/{}/storage", host.setup.org);
        let storage = host.setup.t.get(&host.setup.ada, &path).await.expect(200);
        assert_eq!(storage["log_bytes"], 0, "{engine}: the log still grows");
        assert!(host.has_logs(), "{engine}");

        host.send("one\ntwo\n", status(Phase::Clean, 2_000, Some(8))).await;
        let job = host.retained_job().await;
        assert!(job["removed_at"].is_string(), "{engine} {job}");
        assert!(!host.has_logs(), "{engine}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_job_of_a_host_that_never_returns_is_removed() {
    for (engine, db, _location) in engines("lost_retention").await {
        let mut host = Host::on(keeping_portal(db)).await;
        host.send("one\n", status(Phase::Running, 1_000, None)).await;
        host.lose().await;
        let removed = host.retained_job().await;
        assert_eq!(removed["state"], "failed", "{engine} {removed}");
        assert!(removed["removed_at"].is_string(), "{engine} {removed}");
        assert!(!host.has_logs(), "{engine}");
        // The host returns all the same.
        host.reconnect(2).await;
        host.send("one\ntwo\n", status(Phase::Clean, 2_000, Some(8))).await;
        assert!(!host.has_logs(), "{engine}: a removed job gets no log");
        let played = host.played.as_mut().unwrap();
        assert!(played.desired(0).await.is_empty(), "{engine}: the worker forgets the attempt");
        host.setup.t.portal.job_retention.tick_retention().await.unwrap();
        assert_eq!(host.log_bytes().await, 0, "{engine}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_job_gets_no_file_of_a_host_that_returns() {
    for (engine, db, _location) in engines("files_after_retention").await {
        let mut host = Host::on(keeping_portal(db.clone())).await;
        host.send("one\n", status(Phase::Running, 1_000, None)).await;
        host.lose().await;
        let removed = host.retained_job().await;
        assert!(removed["removed_at"].is_string(), "{engine} {removed}");
        host.reconnect(2).await;
        let saving = Status { uploading: true, ..status(Phase::Clean, 2_000, Some(4)) };
        host.send("one\n", saving).await;
        let progress = host.upload().await.unwrap();
        assert_eq!((progress.done, progress.received_bytes), (true, 0), "{engine}");
        assert!(host.upload_batch(true).await, "{engine}: the worker sends no file");
        assert!(host.upload_batch(false).await, "{engine}");
        let mut conn = db.read().await.unwrap();
        let files = store::files::count_for_job(&mut conn.tx(), host.job.parse().unwrap()).await.unwrap();
        assert_eq!(files, 0, "{engine}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_job_of_a_host_that_returns_in_time_waits_for_its_log() {
    for (engine, db, _location) in engines("returned_retention").await {
        let mut host = Host::on(keeping_portal(db)).await;
        host.send("one\n", status(Phase::Running, 1_000, None)).await;
        host.lose().await;
        host.setup.t.portal.job_retention.tick_retention().await.unwrap();
        host.reconnect(2).await;
        let job = host.retained_job().await;
        assert_eq!((&job["state"], &job["removed_at"]), (&json!("failed"), &Value::Null), "{engine} {job}");
        host.send("one\ntwo\n", status(Phase::Clean, 2_000, Some(8))).await;
        let job = host.retained_job().await;
        assert!(job["removed_at"].is_string(), "{engine} {job}");
        assert!(!host.has_logs(), "{engine}");
        assert_eq!(host.log_bytes().await, 0, "{engine}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_of_a_host_that_returns_is_counted_with_its_rest() {
    for (engine, db, _location) in engines("returned_log").await {
        let mut host = Host::on(keeping_portal(db)).await;
        host.send("one\n", status(Phase::Running, 1_000, None)).await;
        host.lose().await;
        host.setup.t.portal.job_retention.tick_retention().await.unwrap();
        assert_eq!(host.log_bytes().await, 0, "{engine}: the log may still grow");
        host.reconnect(2).await;
        host.send("one\ntwo\n", status(Phase::Clean, 2_000, Some(8))).await;
        host.setup.t.portal.job_retention.tick_retention().await.unwrap();
        let log = host.setup.t.portal.recordings.log(host.job.parse().unwrap(), 1, 0);
        assert_eq!(std::fs::read_to_string(&log).unwrap(), "one\ntwo\n", "{engine}");
        // The directory also has the times of the lines.
        let files = std::fs::read_dir(log.parent().unwrap()).unwrap();
        let total: u64 = files.map(|file| file.unwrap().metadata().unwrap().len()).sum();
        assert_eq!(host.log_bytes().await, total, "{engine}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_full_disk_a_worker_keeps_its_files_and_hands_over_status_charge_and_log() {
    for (engine, db, _location) in engines("full_disk").await {
        let host = Host::on(TestPortal::on(db.clone())).await;
        assert_eq!(host.upload().await.unwrap().received_bytes, 4, "{engine}");
        let Host { setup: former, credentials, played, job, attempt, .. } = host;
        drop(played);
        // The next portal on the same data has a mark beyond its disk.
        let data = former.t.data.path().to_owned();
        let t = TestPortal::with(db, |settings| Settings { data, min_free_bytes: u64::MAX, ..settings });
        t.clock.advance_s(100);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let setup = WorkerPortal {
            ada: former.ada.clone(),
            org: former.org.clone(),
            operator: former.operator.clone(),
            address: format!("https://{}", listener.local_addr().unwrap()),
            worker: None,
            data: former.data.clone(),
            t,
        };
        tokio::spawn(workers::serve(setup.t.portal.clone(), listener, std::future::pending()));
        let mut host = Host { setup, credentials, played: None, job, attempt, seq: 0 };
        host.reconnect(2).await;
        assert_eq!(host.upload().await.unwrap_err().code(), Code::Unavailable, "{engine}");
        host.send("one\n", status(Phase::Running, 1_000, None)).await;
        host.send("one\n", status(Phase::Clean, 30_000, Some(4))).await;
        let done = host.setup.job(&host.job).await;
        assert_eq!((&done["state"], &done["metered_ms"]), (&json!("succeeded"), &json!(30_000)), "{done}");
        let charged = host.setup.charged(&host.job).await;
        assert!(charged > 0 && done["cost_micros"] == charged, "{engine}: {charged} {done}");
        assert_eq!(host.setup.log(&host.job).await, b"one\n", "{engine}");
        assert_eq!(host.upload().await.unwrap_err().code(), Code::Unavailable, "{engine}");
    }
}

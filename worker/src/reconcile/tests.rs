//! Tests of the loop without a portal, a driver or a process.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use berth_clearing::MemoryClearing;
use berth_gpu::Gpus;
use berth_isolation::cgroups::Cgroups;
use berth_isolation::device_nodes::DeviceTree;
use berth_isolation::sandbox::Sandbox;
use berth_job_files::inputs::host_mounts::HostMounts;
use berth_network::JobNetwork;
use berth_proto::{
    Assignment, AttemptId, DesiredState, Failure, Hello, Phase, PortalMessage, ReplicaSpec, Spec,
    WorkerMessage, portal_message, worker_message,
};
use berth_session::link::{Outbox, SessionClaim, SessionEvent};
use berth_shim::forker::Forker;
use berth_shim::model::{AttemptKey, job_failure};
use berth_shim::{BoardLimits, CommandStart, LimitCeilings};
use berth_system::clock::boottime_ms;
use berth_system::rdma::RdmaTree;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::transport::Endpoint;

use super::attempt_table::BEGUN_AT_ONCE;
use super::daemon::Daemon;
use super::hello::NodeDescription;
use super::reports::wait_until;
use super::step_result::StepResult;
use crate::attempt::{Attempt, CleaningState, Host, directory};
use crate::devices::BoardSharers;
use crate::telemetry::Telemetry;

const LONG: Duration = Duration::from_secs(20);

/// A daemon on a host whose NVML does not start, with the results of its steps.
struct Stage {
    daemon: Daemon,
    results: mpsc::UnboundedReceiver<StepResult>,
    _dir: tempfile::TempDir,
}

type Sent = mpsc::UnboundedReceiver<WorkerMessage>;

impl Stage {
    fn open() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("attempts")).unwrap();
        let host = Host {
            root: dir.path().join("attempts"),
            forker: Forker::new("/nothing/is/started".into()),
            gpus: Arc::new(Gpus::absent()),
            sharers: BoardSharers::default(),
            clearing: MemoryClearing::off("nobody needs it".to_owned()),
            sandbox: Sandbox::Process,
            cgroups: Cgroups::default(),
            network: Arc::new(JobNetwork::host(dir.path())),
            images: Err("nobody needs them".to_owned()),
            mounts: HostMounts::default(),
            cache: None,
            device_tree: DeviceTree::default(),
            rdma_program: None,
            rdma: RdmaTree::absent(),
            limits: BoardLimits {
                pids: 64,
                open_files: 1_024,
                disk_mib: 64,
                ceilings: LimitCeilings { open_files: 1_024, locked_memory: false },
            },
            simulated: true,
            grace_ms: 100,
        };
        let node = NodeDescription { address: String::new(), labels: HashMap::new(), inference_port: 8_300 };
        let telemetry = Arc::new(Telemetry::new("quay", false));
        let (daemon, results) = Daemon::new(host, node, telemetry).unwrap();
        Self { daemon, results, _dir: dir }
    }

    /// Handles results until the condition is met.
    async fn until(&mut self, ready: impl Fn(&Daemon) -> bool) {
        while !ready(&self.daemon) {
            let result = tokio::time::timeout(LONG, self.results.recv()).await.unwrap().unwrap();
            self.daemon.on_result(result);
        }
    }

    /// Opens a session, and returns the messages that the daemon sends in it.
    fn connect(&mut self, connection: i64) -> Sent {
        let (control, sent) = mpsc::unbounded_channel();
        let (bulk, _) = mpsc::channel(1);
        let portal = Endpoint::from_static("http://127.0.0.1:9").connect_lazy();
        let claim = SessionClaim { instance: "this".to_owned(), epoch: 1, connection };
        let outbox = Outbox { control, bulk, portal };
        self.daemon.on_session_event(SessionEvent::Open(outbox, claim));
        sent
    }

    /// Sends the desired attempts to the daemon.
    fn set_desired(&mut self, desired: DesiredState) {
        set_desired(&mut self.daemon, desired);
    }

    fn dir(&self, key: &AttemptKey) -> PathBuf {
        directory(&self.daemon.host.root, key)
    }
}

fn set_desired(daemon: &mut Daemon, desired: DesiredState) {
    let body = Some(portal_message::Body::DesiredState(desired));
    daemon.on_session_event(SessionEvent::Message(PortalMessage { body }));
}

fn next(sent: &mut Sent) -> Option<worker_message::Body> {
    sent.try_recv().ok().and_then(|message| message.body)
}

fn hello(sent: &mut Sent) -> Hello {
    match next(sent) {
        Some(worker_message::Body::Hello(hello)) => hello,
        other => panic!("no hello: {other:?}"),
    }
}

/// The failure codes of the sent statuses.
fn failures(sent: &mut Sent) -> Vec<Option<String>> {
    let mut out = Vec::new();
    while let Some(body) = next(sent) {
        if let worker_message::Body::Status(status) = body {
            out.push(status.failure.map(|failure| failure.code));
        }
    }
    out
}

#[tokio::test]
async fn nothing_is_said_before_the_hello() {
    let mut stage = Stage::open();
    let mut sent = stage.connect(1);
    stage.daemon.tick();
    assert!(next(&mut sent).is_none(), "the loop goes on, and no heartbeat comes before the hello");
    stage.until(|daemon| daemon.outbox.is_some()).await;
    let hello = hello(&mut sent);
    assert_eq!((hello.connection, hello.boards.len(), hello.inference_port), (1, 0, 8_300));
    assert_eq!(hello.isolation["boards"], "NVML has not started yet");
    assert!(matches!(next(&mut sent), Some(worker_message::Body::Heartbeat(_))), "at once");
}

#[tokio::test]
async fn a_hello_is_of_the_session_that_waits_for_it() {
    let mut stage = Stage::open();
    let mut first = stage.connect(1);
    stage.daemon.on_session_event(SessionEvent::Closed);
    let mut second = stage.connect(2);
    stage.until(|daemon| daemon.outbox.is_some()).await;
    assert!(first.try_recv().is_err());
    assert_eq!(hello(&mut second).connection, 2);
    // A session that ends before its hello is dropped.
    let mut third = stage.connect(3);
    stage.daemon.on_session_event(SessionEvent::Closed);
    stage.until(|daemon| !daemon.handshake.is_listing()).await;
    assert!(third.try_recv().is_err() && stage.daemon.outbox.is_none());
}

#[tokio::test]
async fn what_cannot_be_recorded_fails_and_is_told_only_then() {
    let mut stage = Stage::open();
    let key = AttemptKey { job: "job_x".to_owned(), number: 1 };
    let mut sent = stage.connect(1);
    stage.until(|daemon| daemon.outbox.is_some()).await;
    // A rename to an existing directory fails.
    let obstacle = stage.dir(&key).join("attempt.json");
    std::fs::create_dir_all(obstacle.join("within")).unwrap();
    let failure = Failure { code: "secret.missing".to_owned(), detail: String::new() };
    let assignment = Assignment {
        attempt: Some(AttemptId::new("job_x", 1)),
        limit_ms: 1_000,
        spec: Some(Spec { unusable: Some(failure), ..Spec::default() }),
        ..Assignment::default()
    };
    stage.set_desired(DesiredState { attempts: vec![assignment], ..DesiredState::default() });
    stage.daemon.converge();
    stage.daemon.report(Instant::now());
    assert!(stage.daemon.table.unrecorded.contains(&key) && stage.daemon.table.attempts.contains_key(&key));
    assert!(failures(&mut sent).is_empty(), "nobody is told of what is on no disk yet");
    stage.until(|daemon| daemon.table.unrecorded.is_empty()).await;
    let daemon = &mut stage.daemon;
    assert!(daemon.table.busy.is_empty() && daemon.table.preparing.is_empty());
    daemon.report(Instant::now());
    assert!(failures(&mut sent).is_empty(), "it may be proved clean in a moment");
    wait_until(daemon.next_report()).await;
    daemon.report(Instant::now());
    assert_eq!(failures(&mut sent), [Some("worker.io".to_owned())]);
    assert!(!stage.dir(&key).join("work").exists(), "nothing of it was done");
}

#[tokio::test]
async fn what_happens_within_a_moment_is_told_together() {
    let mut stage = Stage::open();
    let mut sent = stage.connect(1);
    stage.until(|daemon| daemon.outbox.is_some()).await;
    while next(&mut sent).is_some() {}
    assert_eq!(stage.daemon.next_report(), None, "there is nothing to say");
    let attempt = |number| Some(AttemptId::new("job_x", number));
    let of = |number| Assignment { attempt: attempt(number), limit_ms: 1_000, ..Assignment::default() };
    stage.set_desired(DesiredState { attempts: vec![of(1)], ..DesiredState::default() });
    // It is refused, and then proved clean.
    stage.daemon.converge();
    stage.daemon.report(Instant::now());
    assert!(next(&mut sent).is_none() && stage.daemon.next_report().is_some());
    stage.daemon.converge();
    stage.until(|daemon| daemon.table.busy.is_empty()).await;
    stage.daemon.report(Instant::now());
    let Some(worker_message::Body::Status(status)) = next(&mut sent) else {
        panic!("after a quiet time at once")
    };
    assert_eq!((status.attempt.clone(), status.phase()), (attempt(1), Phase::Clean));
    assert!(next(&mut sent).is_none() && stage.daemon.next_report().is_none());
    // The next report has to wait.
    stage.set_desired(DesiredState { attempts: vec![of(1), of(2)], ..DesiredState::default() });
    stage.daemon.converge();
    stage.daemon.converge();
    stage.until(|daemon| daemon.table.busy.is_empty()).await;
    while stage.daemon.next_report().is_some() {
        wait_until(stage.daemon.next_report()).await;
        stage.daemon.report(Instant::now());
    }
    let Some(worker_message::Body::Status(status)) = next(&mut sent) else { panic!("nothing was sent") };
    assert_eq!((status.attempt.clone(), status.phase()), (attempt(2), Phase::Clean));
    assert!(next(&mut sent).is_none());
}

#[tokio::test]
async fn on_a_busy_node_the_word_that_it_is_prepared_waits_for_what_comes_of_it() {
    const MOMENT: Duration = Duration::from_millis(100);
    let mut stage = Stage::open();
    let mut sent = stage.connect(1);
    stage.until(|daemon| daemon.outbox.is_some()).await;
    while next(&mut sent).is_some() {}
    let host = stage.daemon.host.clone();
    let add = |daemon: &mut Daemon, number| {
        let key = AttemptKey { job: "job_x".to_owned(), number };
        let attempt = Attempt::begin(&host.root, &key, &Assignment::default()).unwrap();
        daemon.table.attempts.insert(key.clone(), attempt);
        daemon.table.reports.mark_unknown(&key);
        key
    };
    let mut phases = || {
        let status =
            |body| if let worker_message::Body::Status(status) = body { Some(status.phase()) } else { None };
        std::iter::from_fn(|| next(&mut sent)).filter_map(status).collect::<Vec<_>>()
    };
    let daemon = &mut stage.daemon;
    let mut now = Instant::now();
    for number in [1, 2] {
        add(daemon, number);
        daemon.report(now);
        assert_eq!(phases(), [Phase::Preparing], "the node was quiet");
    }

    let key = add(daemon, 3);
    daemon.report(now);
    assert!(phases().is_empty() && daemon.next_report() > Some(now + MOMENT));
    let begun = CommandStart { pid: 1, start_ticks: 0, boot_id: String::new(), boottime_ms: 0 };
    daemon.table.attempts.get_mut(&key).unwrap().start = Some(begun);
    assert_eq!(daemon.next_report(), Some(now), "what it waited for is there");
    daemon.report(now);
    assert_eq!(phases(), [Phase::Running]);

    add(daemon, 4);
    daemon.report(now);
    assert_eq!(daemon.next_report(), Some(now + MOMENT), "from now on one in a moment");
    now += MOMENT;
    daemon.report(now);
    assert!(phases().is_empty());
    now = daemon.next_report().unwrap();
    daemon.report(now);
    assert_eq!(phases(), [Phase::Preparing], "it takes its time");

    let key = add(daemon, 5);
    daemon.table.attempts.get_mut(&key).unwrap().progress = "The image is pulled.".to_owned();
    daemon.report(now);
    assert_eq!(phases(), [Phase::Preparing], "there is more to tell of it");
}

#[tokio::test]
async fn on_a_busy_node_a_report_is_of_those_that_were_just_cleaned() {
    let mut stage = Stage::open();
    let mut sent = stage.connect(1);
    stage.until(|daemon| daemon.outbox.is_some()).await;
    let host = stage.daemon.host.clone();
    let add = |daemon: &mut Daemon, number| {
        let key = AttemptKey { job: "job_x".to_owned(), number };
        let mut attempt = Attempt::begin(&host.root, &key, &Assignment::default()).unwrap();
        attempt.record.failure = Some(("attempt.not_started".to_owned(), String::new()));
        attempt.cleaning = if number < 3 { CleaningState::Done } else { CleaningState::UnderWay };
        daemon.table.attempts.insert(key.clone(), attempt);
        daemon.table.reports.mark_unknown(&key);
        key
    };
    let mut told = || {
        let status =
            |body| if let worker_message::Body::Status(status) = body { status.attempt } else { None };
        std::iter::from_fn(|| next(&mut sent)).filter_map(status).map(|id| id.number).collect::<Vec<_>>()
    };
    let (daemon, now) = (&mut stage.daemon, Instant::now());
    let after = |ms: u64| now + Duration::from_millis(ms);
    for number in [0, 1, 2] {
        add(daemon, number);
        daemon.report(now);
        assert_eq!(told(), [number], "the node was quiet");
    }
    // The next report is due a tenth of a second later. One attempt runs, and two are being cleaned.
    let begun = add(daemon, 3);
    let attempt = daemon.table.attempts.get_mut(&begun).unwrap();
    attempt.record.failure = None;
    attempt.start = Some(CommandStart { pid: 1, start_ticks: 0, boot_id: String::new(), boottime_ms: 0 });
    let (first, _second) = (add(daemon, 4), add(daemon, 5));
    for ms in [0, 60, 149] {
        daemon.report(after(ms));
        assert!(told().is_empty(), "it waits for those that are being cleaned: {ms} ms");
    }
    daemon.on_result(StepResult::Cleaned(first, Ok(())));
    daemon.report(after(49));
    assert!(told().is_empty(), "not so early");
    daemon.report(after(50));
    let mut both = told();
    both.sort_unstable();
    assert_eq!(both, [3, 4]);
    // An attempt that never gets clean delays no report.
    daemon.table.reports.mark(&begun);
    daemon.report(after(249));
    assert!(told().is_empty());
    daemon.report(after(250));
    assert!(told().contains(&3));
}

#[tokio::test]
async fn of_many_that_come_together_some_are_begun_in_each_turn() {
    let mut stage = Stage::open();
    let attempt = |number| Some(AttemptId::new("job_x", number));
    let of =
        |number| Assignment { attempt: attempt(number), spec: Some(Spec::default()), ..Default::default() };
    let attempts = (1..20).map(of).collect();
    let daemon = &mut stage.daemon;
    set_desired(daemon, DesiredState { attempts, ..DesiredState::default() });
    daemon.converge();
    assert_eq!(
        (daemon.table.preparing.len(), daemon.table.changed),
        (BEGUN_AT_ONCE, true),
        "the others have their turn soon"
    );
    daemon.converge();
    assert_eq!(daemon.table.preparing.len(), 19);
}

#[tokio::test]
async fn where_many_begin_that_they_run_waits_for_their_end() {
    let mut stage = Stage::open();
    let mut sent = stage.connect(1);
    stage.until(|daemon| daemon.outbox.is_some()).await;
    let host = stage.daemon.host.clone();
    let begun = |boottime_ms| CommandStart { pid: 1, start_ticks: 0, boot_id: String::new(), boottime_ms };
    let add = |daemon: &mut Daemon, number, boottime_ms| {
        let key = AttemptKey { job: "job_x".to_owned(), number };
        let mut attempt = Attempt::begin(&host.root, &key, &Assignment::default()).unwrap();
        attempt.start = Some(begun(boottime_ms));
        daemon.table.attempts.insert(key.clone(), attempt);
        daemon.table.reports.mark_unknown(&key);
        key
    };
    let mut told = || {
        let status = |body| match body {
            worker_message::Body::Status(status) => Some((status.attempt.as_ref()?.number, status.phase())),
            _ => None,
        };
        let mut told: Vec<_> = std::iter::from_fn(|| next(&mut sent)).filter_map(status).collect();
        told.sort_unstable();
        told
    };
    let (daemon, now) = (&mut stage.daemon, Instant::now());
    let after = |ms: u64| now + Duration::from_millis(ms);
    // A start in the future, so the attempts stay young in a slow test.
    let young = boottime_ms() + 600_000;
    for number in 0..3 {
        add(daemon, number, young);
        daemon.report(now);
        assert_eq!(told(), [(number, Phase::Running)], "there are not many");
    }
    let keys: Vec<AttemptKey> = (10..18).map(|number| add(daemon, number, young)).collect();
    add(daemon, 18, 0);
    daemon.report(after(100));
    assert_eq!(told(), [(18, Phase::Running)], "it is not short");
    let failure = Some(("attempt.not_started".to_owned(), String::new()));
    let ended = daemon.table.attempts.get_mut(&keys[0]).unwrap();
    (ended.record.failure, ended.cleaning) = (failure, CleaningState::Done);
    daemon.report(after(200));
    assert_eq!(told(), [(10, Phase::Clean)], "with its begin");
    // Seven attempts are no crowd.
    daemon.report(after(300));
    assert_eq!(told(), (11..18).map(|number| (number, Phase::Running)).collect::<Vec<_>>());

    (20..28).for_each(|number| {
        add(daemon, number, young);
    });
    daemon.report(after(400));
    assert!(told().is_empty());
    assert_eq!(daemon.next_report(), Some(after(600)), "they are told of however many there are");
    daemon.report(after(600));
    assert_eq!(told().len(), 8);
}

#[tokio::test]
async fn what_is_forgotten_is_removed_beside_the_loop() {
    let mut stage = Stage::open();
    let key = AttemptKey { job: "job_x".to_owned(), number: 1 };
    let _said = stage.connect(1);
    stage.until(|daemon| daemon.outbox.is_some()).await;
    let attempt = Some(AttemptId::new("job_x", 1));
    let assignment = Assignment { attempt, limit_ms: 1_000, ..Assignment::default() };
    stage.set_desired(DesiredState { attempts: vec![assignment], ..DesiredState::default() });
    // It is refused, and then proved clean.
    stage.daemon.converge();
    stage.daemon.converge();
    stage.until(|daemon| daemon.table.busy.is_empty()).await;
    let dir = stage.dir(&key);
    std::fs::create_dir_all(dir.join("work/left/behind")).unwrap();
    stage.set_desired(DesiredState::default());
    stage.daemon.table.outputs.removing.insert(key.clone());
    stage.daemon.converge();
    assert!(stage.daemon.table.busy.is_empty(), "its files are being removed still");
    stage.daemon.on_result(StepResult::FilesRemoved(key.clone()));
    stage.daemon.converge();
    let daemon = &stage.daemon;
    assert!(
        daemon.table.busy.contains(&key) && daemon.table.attempts.contains_key(&key),
        "until nothing is left of it"
    );
    stage.until(|daemon| daemon.table.attempts.is_empty()).await;
    assert!(stage.daemon.table.busy.is_empty() && stage.daemon.table.users_left.is_empty() && !dir.exists());
}

#[tokio::test]
async fn a_change_of_the_readiness_is_reported_while_the_replica_runs() {
    let mut stage = Stage::open();
    let mut sent = stage.connect(1);
    stage.until(|daemon| daemon.outbox.is_some()).await;
    let replica = ReplicaSpec {
        port: 8_000,
        readiness_path: "/".to_owned(),
        token_sha256: vec![7; 32],
        max_connections: 8,
        http2: false,
    };
    let assignment = Assignment {
        spec: Some(Spec { replica: Some(replica), ..Spec::default() }),
        limit_ms: 1_000,
        ..Assignment::default()
    };
    let key = AttemptKey { job: "job_x".to_owned(), number: 1 };
    let root = stage.daemon.host.root.clone();
    let mut attempt = Attempt::create(&root, &key, &assignment).unwrap();
    assert_eq!(attempt.record.replica.as_ref().map(|replica| replica.port), Some(8_000));
    let kept = Attempt::load_all(&root).unwrap().remove(0);
    assert_eq!(kept.record.replica, attempt.record.replica, "the next daemon knows it");
    attempt.start = Some(CommandStart { pid: 1, start_ticks: 0, boot_id: String::new(), boottime_ms: 0 });
    let (daemon, mut now) = (&mut stage.daemon, Instant::now());
    daemon.table.attempts.insert(key.clone(), attempt);
    let mut told = || {
        let mut out = Vec::new();
        while let Some(body) = next(&mut sent) {
            if let worker_message::Body::Status(status) = body {
                out.push(status.ready);
            }
        }
        out
    };
    daemon.table.reports.mark_unknown(&key);
    daemon.report(now);
    assert_eq!(told(), [false]);
    for ready in [true, false, true] {
        daemon.on_result(StepResult::Readiness(key.clone(), ready));
        now += Duration::from_secs(1);
        daemon.report(now);
        assert_eq!(told(), [ready]);
    }
    daemon.table.attempts.get_mut(&key).unwrap().fail(job_failure("job.failed", "It has ended."));
    daemon.table.reports.mark(&key);
    for _ in 0..2 {
        now += Duration::from_secs(1);
        daemon.report(now);
    }
    assert_eq!(told(), [false], "what has ended is not ready");
    // A late change of an attempt that is forgotten.
    daemon.table.attempts.remove(&key);
    daemon.on_result(StepResult::Readiness(key, true));
}

//! The loop's own promises, without a portal, a driver or a process.

use std::path::PathBuf;

use berth_proto::{AttemptId, Failure, Hello, Phase, Spec};
use tonic::transport::Endpoint;

use super::*;
use crate::attempts::directory;
use crate::cgroups::Cgroups;
use crate::forker::Forker;
use crate::gpu::Gpus;
use crate::link::Claim;
use crate::sandbox::Sandbox;
use crate::sharing::Sharers;
use crate::shim::Start;
use crate::telemetry::Telemetry;

const LONG: Duration = Duration::from_secs(20);

/// What a daemon on a host whose NVML does not start brings back from elsewhere.
struct Stage {
    daemon: Daemon,
    results: mpsc::UnboundedReceiver<Done>,
    _dir: tempfile::TempDir,
}

type Said = mpsc::UnboundedReceiver<Up>;

impl Stage {
    fn open() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("attempts");
        std::fs::create_dir(&root).unwrap();
        let host = Host {
            root,
            forker: Forker::new("/nothing/is/started".into()),
            gpus: Arc::new(Gpus::absent()),
            sharers: Sharers::default(),
            sandbox: Sandbox::Process,
            cgroups: Cgroups::default(),
            images: Err("nobody needs them".to_owned()),
            job_pids: 64,
            job_disk_mib: 64,
            simulated: true,
            grace_ms: 100,
            address: String::new(),
            labels: HashMap::new(),
            telemetry: Arc::new(Telemetry::new("quay", false)),
        };
        let (daemon, results) = Daemon::new(host).unwrap();
        Self { daemon, results, _dir: dir }
    }

    /// Takes in what comes back until it is so.
    async fn until(&mut self, ready: impl Fn(&Daemon) -> bool) {
        while !ready(&self.daemon) {
            let done = tokio::time::timeout(LONG, self.results.recv()).await.unwrap().unwrap();
            self.daemon.finish(done);
        }
    }

    /// A connection, with what is said in it.
    fn connect(&mut self, connection: i64) -> Said {
        let (words, said) = mpsc::unbounded_channel();
        let (bulk, _) = mpsc::channel(1);
        let portal = Endpoint::from_static("http://127.0.0.1:9").connect_lazy();
        let claim = Claim { instance: "this".to_owned(), epoch: 1, connection };
        self.daemon.hear(LinkEvent::Open(Outbox { words, bulk, portal }, claim));
        said
    }

    fn dir(&self, key: &Key) -> PathBuf {
        directory(&self.daemon.host.root, key)
    }
}

fn next(said: &mut Said) -> Option<up::What> {
    said.try_recv().ok().and_then(|up| up.what)
}

fn hello(said: &mut Said) -> Hello {
    match next(said) {
        Some(up::What::Hello(hello)) => hello,
        other => panic!("no hello: {other:?}"),
    }
}

/// How the statuses that were said end, by code.
fn failures(said: &mut Said) -> Vec<Option<String>> {
    let mut out = Vec::new();
    while let Some(what) = next(said) {
        if let up::What::Status(status) = what {
            out.push(status.failure.map(|failure| failure.code));
        }
    }
    out
}

#[tokio::test]
async fn nothing_is_said_before_the_hello() {
    let mut stage = Stage::open();
    let mut said = stage.connect(1);
    stage.daemon.tick();
    assert!(next(&mut said).is_none(), "the loop goes on, and no heartbeat comes before the hello");
    stage.until(|daemon| daemon.outbox.is_some()).await;
    let hello = hello(&mut said);
    assert_eq!((hello.connection, hello.boards.len()), (1, 0));
    assert_eq!(hello.isolation["boards"], "NVML has not started; it is waited for");
    assert!(matches!(next(&mut said), Some(up::What::Heartbeat(_))), "at once");
}

#[tokio::test]
async fn a_hello_is_of_the_session_that_waits_for_it() {
    let mut stage = Stage::open();
    let mut first = stage.connect(1);
    stage.daemon.hear(LinkEvent::Closed);
    let mut second = stage.connect(2);
    stage.until(|daemon| daemon.outbox.is_some()).await;
    assert!(first.try_recv().is_err());
    assert_eq!(hello(&mut second).connection, 2);
    // One that is gone before its hello is forgotten.
    let mut third = stage.connect(3);
    stage.daemon.hear(LinkEvent::Closed);
    stage.until(|daemon| !daemon.greeting.is_looking()).await;
    assert!(third.try_recv().is_err() && stage.daemon.outbox.is_none());
}

#[tokio::test]
async fn what_cannot_be_recorded_fails_and_is_told_only_then() {
    let mut stage = Stage::open();
    let key = Key { job: "job_x".to_owned(), number: 1 };
    let mut said = stage.connect(1);
    stage.until(|daemon| daemon.outbox.is_some()).await;
    // No file can take the place of a directory.
    let obstacle = stage.dir(&key).join("attempt.json");
    std::fs::create_dir_all(obstacle.join("within")).unwrap();
    let failure = Failure { code: "secret.missing".to_owned(), detail: String::new() };
    let assignment = Assignment {
        attempt: Some(AttemptId::new("job_x", 1)),
        limit_ms: 1_000,
        spec: Some(Spec { unusable: Some(failure), ..Spec::default() }),
        ..Assignment::default()
    };
    stage.daemon.want(Desired { attempts: vec![assignment], ..Desired::default() });
    stage.daemon.act();
    stage.daemon.report(Instant::now());
    assert!(stage.daemon.unrecorded.contains(&key) && stage.daemon.attempts.contains_key(&key));
    assert!(failures(&mut said).is_empty(), "nobody is told of what is on no disk yet");
    stage.until(|daemon| daemon.unrecorded.is_empty()).await;
    let daemon = &mut stage.daemon;
    assert!(daemon.busy.is_empty() && daemon.preparing.is_empty());
    daemon.report(Instant::now());
    assert!(failures(&mut said).is_empty(), "it may be proved clean in a moment");
    at(daemon.next_report()).await;
    daemon.report(Instant::now());
    assert_eq!(failures(&mut said), [Some("worker.io".to_owned())]);
    assert!(!stage.dir(&key).join("work").exists(), "nothing of it was done");
}

#[tokio::test]
async fn what_happens_within_a_moment_is_told_together() {
    let mut stage = Stage::open();
    let mut said = stage.connect(1);
    stage.until(|daemon| daemon.outbox.is_some()).await;
    while next(&mut said).is_some() {}
    assert_eq!(stage.daemon.next_report(), None, "there is nothing to say");
    let attempt = |number| Some(AttemptId::new("job_x", number));
    let of = |number| Assignment { attempt: attempt(number), limit_ms: 1_000, ..Assignment::default() };
    stage.daemon.want(Desired { attempts: vec![of(1)], ..Desired::default() });
    // It is refused, and then proved clean.
    stage.daemon.act();
    stage.daemon.report(Instant::now());
    assert!(next(&mut said).is_none() && stage.daemon.next_report().is_some());
    stage.daemon.act();
    stage.until(|daemon| daemon.busy.is_empty()).await;
    stage.daemon.report(Instant::now());
    let Some(up::What::Status(status)) = next(&mut said) else { panic!("after a quiet time at once") };
    assert_eq!((status.attempt.clone(), status.phase()), (attempt(1), Phase::Clean));
    assert!(next(&mut said).is_none() && stage.daemon.next_report().is_none());
    // What comes next has to wait a little.
    stage.daemon.want(Desired { attempts: vec![of(1), of(2)], ..Desired::default() });
    stage.daemon.act();
    stage.daemon.act();
    stage.until(|daemon| daemon.busy.is_empty()).await;
    while stage.daemon.next_report().is_some() {
        at(stage.daemon.next_report()).await;
        stage.daemon.report(Instant::now());
    }
    let Some(up::What::Status(status)) = next(&mut said) else { panic!("nothing was said") };
    assert_eq!((status.attempt.clone(), status.phase()), (attempt(2), Phase::Clean));
    assert!(next(&mut said).is_none());
}

#[tokio::test]
async fn on_a_busy_node_the_word_that_it_is_prepared_waits_for_what_comes_of_it() {
    const MOMENT: Duration = Duration::from_millis(100);
    let mut stage = Stage::open();
    let mut said = stage.connect(1);
    stage.until(|daemon| daemon.outbox.is_some()).await;
    while next(&mut said).is_some() {}
    let host = stage.daemon.host.clone();
    let add = |daemon: &mut Daemon, number| {
        let key = Key { job: "job_x".to_owned(), number };
        let attempt = Attempt::begin(&host.root, &key, &Assignment::default()).unwrap();
        daemon.attempts.insert(key.clone(), attempt);
        daemon.told.insert(key.clone(), Told::news());
        key
    };
    let mut phases = || {
        let status = |what| if let up::What::Status(status) = what { Some(status.phase()) } else { None };
        std::iter::from_fn(|| next(&mut said)).filter_map(status).collect::<Vec<_>>()
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
    let begun = Start { pid: 1, start_ticks: 0, boot_id: String::new(), boottime_ms: 0 };
    daemon.attempts.get_mut(&key).unwrap().start = Some(begun);
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
    daemon.attempts.get_mut(&key).unwrap().progress = "The image is pulled.".to_owned();
    daemon.report(now);
    assert_eq!(phases(), [Phase::Preparing], "there is more to tell of it");
}

#[tokio::test]
async fn on_a_busy_node_a_report_is_of_those_that_were_just_cleaned() {
    let mut stage = Stage::open();
    let mut said = stage.connect(1);
    stage.until(|daemon| daemon.outbox.is_some()).await;
    let host = stage.daemon.host.clone();
    let add = |daemon: &mut Daemon, number| {
        let key = Key { job: "job_x".to_owned(), number };
        let mut attempt = Attempt::begin(&host.root, &key, &Assignment::default()).unwrap();
        attempt.record.failure = Some(("attempt.not_started".to_owned(), String::new()));
        attempt.cleaning = if number < 3 { Cleaning::Done } else { Cleaning::UnderWay };
        daemon.attempts.insert(key.clone(), attempt);
        daemon.told.insert(key.clone(), Told::news());
        key
    };
    let mut told = || {
        let status = |what| if let up::What::Status(status) = what { status.attempt } else { None };
        std::iter::from_fn(|| next(&mut said)).filter_map(status).map(|id| id.number).collect::<Vec<_>>()
    };
    let (daemon, now) = (&mut stage.daemon, Instant::now());
    let after = |ms: u64| now + Duration::from_millis(ms);
    for number in [0, 1, 2] {
        add(daemon, number);
        daemon.report(now);
        assert_eq!(told(), [number], "the node was quiet");
    }
    // The next is due a tenth of a second later. One has begun, and two are being cleaned.
    let begun = add(daemon, 3);
    let attempt = daemon.attempts.get_mut(&begun).unwrap();
    attempt.record.failure = None;
    attempt.start = Some(Start { pid: 1, start_ticks: 0, boot_id: String::new(), boottime_ms: 0 });
    let (first, _second) = (add(daemon, 4), add(daemon, 5));
    for ms in [0, 60, 149] {
        daemon.report(after(ms));
        assert!(told().is_empty(), "it waits for those that are being cleaned: {ms} ms");
    }
    daemon.finish(Done::Cleaned(first, Ok(())));
    daemon.report(after(49));
    assert!(told().is_empty(), "not so early");
    daemon.report(after(50));
    let mut both = told();
    both.sort_unstable();
    assert_eq!(both, [3, 4]);
    // One that is never clean keeps nobody waiting.
    daemon.told.get_mut(&begun).unwrap().dirty = true;
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
    daemon.want(Desired { attempts, ..Desired::default() });
    daemon.act();
    assert_eq!(
        (daemon.preparing.len(), daemon.moved),
        (BEGUN_AT_ONCE, true),
        "the others have their turn soon"
    );
    daemon.act();
    assert_eq!(daemon.preparing.len(), 19);
}

#[tokio::test]
async fn where_many_begin_that_they_run_waits_for_their_end() {
    let mut stage = Stage::open();
    let mut said = stage.connect(1);
    stage.until(|daemon| daemon.outbox.is_some()).await;
    let host = stage.daemon.host.clone();
    let begun = |boottime_ms| Start { pid: 1, start_ticks: 0, boot_id: String::new(), boottime_ms };
    let add = |daemon: &mut Daemon, number, boottime_ms| {
        let key = Key { job: "job_x".to_owned(), number };
        let mut attempt = Attempt::begin(&host.root, &key, &Assignment::default()).unwrap();
        attempt.start = Some(begun(boottime_ms));
        daemon.attempts.insert(key.clone(), attempt);
        daemon.told.insert(key.clone(), Told::news());
        key
    };
    let mut told = || {
        let status = |what| match what {
            up::What::Status(status) => Some((status.attempt.as_ref()?.number, status.phase())),
            _ => None,
        };
        let mut told: Vec<_> = std::iter::from_fn(|| next(&mut said)).filter_map(status).collect();
        told.sort_unstable();
        told
    };
    let (daemon, now) = (&mut stage.daemon, Instant::now());
    let after = |ms: u64| now + Duration::from_millis(ms);
    // In the future, so that they stay young however slow this test is.
    let young = shim::boottime_ms() + 600_000;
    for number in 0..3 {
        add(daemon, number, young);
        daemon.report(now);
        assert_eq!(told(), [(number, Phase::Running)], "there are not many");
    }
    let keys: Vec<Key> = (10..18).map(|number| add(daemon, number, young)).collect();
    add(daemon, 18, 0);
    daemon.report(after(100));
    assert_eq!(told(), [(18, Phase::Running)], "it is not short");
    let failure = Some(("attempt.not_started".to_owned(), String::new()));
    let ended = daemon.attempts.get_mut(&keys[0]).unwrap();
    (ended.record.failure, ended.cleaning) = (failure, Cleaning::Done);
    daemon.report(after(200));
    assert_eq!(told(), [(10, Phase::Clean)], "with its begin");
    // Seven are not many.
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
    let key = Key { job: "job_x".to_owned(), number: 1 };
    let _said = stage.connect(1);
    stage.until(|daemon| daemon.outbox.is_some()).await;
    let attempt = Some(AttemptId::new("job_x", 1));
    let assignment = Assignment { attempt, limit_ms: 1_000, ..Assignment::default() };
    stage.daemon.want(Desired { attempts: vec![assignment], ..Desired::default() });
    // It is refused, and then proved clean.
    stage.daemon.act();
    stage.daemon.act();
    stage.until(|daemon| daemon.busy.is_empty()).await;
    let dir = stage.dir(&key);
    std::fs::create_dir_all(dir.join("work/left/behind")).unwrap();
    stage.daemon.want(Desired::default());
    stage.daemon.removing.insert(key.clone());
    stage.daemon.act();
    assert!(stage.daemon.busy.is_empty(), "its files are being removed still");
    stage.daemon.finish(Done::Removed(key.clone()));
    stage.daemon.act();
    let daemon = &stage.daemon;
    assert!(daemon.busy.contains(&key) && daemon.attempts.contains_key(&key), "until nothing is left of it");
    stage.until(|daemon| daemon.attempts.is_empty()).await;
    assert!(stage.daemon.busy.is_empty() && stage.daemon.users_left.is_empty() && !dir.exists());
}

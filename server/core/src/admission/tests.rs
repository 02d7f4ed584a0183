use super::*;
use berth_types::ids::JobId;
use berth_types::jobs::{Checkpoint, Condition, DependsOn, Retry, StopWhenIdle};
use berth_types::secrets::RegistryUse;

fn job() -> NewJob {
    NewJob {
        name: "train".into(),
        offering: "h100-80gb".into(),
        count: 1,
        nodes: 1,
        command: Some(vec!["true".into()]),
        max_duration_s: 60,
        ..NewJob::default()
    }
}

fn pointers(job: &NewJob) -> Vec<String> {
    check_job(job).into_iter().map(|e| e.pointer).collect()
}

#[test]
fn each_kind_of_retry_is_named_once() {
    let retried = |on: &[RetryOn]| NewJob { retry: Some(Retry { max: 1, on: on.to_vec() }), ..job() };
    let (exit, lost) = (RetryOn::Exit, RetryOn::NodeLost);
    assert!(pointers(&retried(&[lost, RetryOn::Preempted, exit])).is_empty());
    for twice in [[exit, exit, lost], [exit, lost, exit]] {
        assert_eq!(pointers(&retried(&twice)), ["/retry/on"], "{twice:?}");
    }
}

#[test]
fn a_name_is_visible_and_keeps_its_direction() {
    let fault = |name: &str| {
        let mut errors = Vec::new();
        check_name("/name", name, &mut errors);
        errors.first().map(|error| error.detail.clone())
    };
    // A joiner is a part of Persian words and of emoji.
    for good in ["Kari", "東京", "Grüße 2", "می\u{200c}خواهم", "👩\u{200d}🔬"] {
        assert_eq!(fault(good), None, "{good:?}");
    }
    for blank in ["", " ", "\u{200b}\u{200b}", "\u{2060}", "\u{200d} \u{feff}", "\u{3164}"] {
        assert_eq!(fault(blank).as_deref(), Some("This field is required."), "{blank:?}");
    }
    for hidden in ["\u{202e}Kari", "Ka\u{200b}ri", "Kari\u{2066}", "Kari\n"] {
        assert_eq!(fault(hidden).as_deref(), Some("Use printable characters only."), "{hidden:?}");
    }
}

#[test]
fn an_address_is_one_address_and_nothing_else() {
    for good in
        ["a@b.c", "ada.lovelace+gpu@example.org", "o'brien@example.org", "grüße@example.org", "ada@localhost"]
    {
        assert!(is_email(good), "{good}");
    }
    let long = format!("{}@example.org", "a".repeat(250));
    let bad = [
        "", "ada", "@b", "a@", "a@b@c", "a b@c", " a@b", "a@b\n", "Ada<a@b>", "a@b,c", "\"a\"@b", "a@[::1]",
        &long,
    ];
    for bad in bad {
        assert!(!is_email(bad), "{bad}");
    }
}

#[test]
fn the_key_of_a_label_has_no_equals_sign() {
    let labelled = |key: &str, value: &str| NewJob {
        labels: [(key.to_owned(), value.to_owned())].into_iter().collect(),
        ..job()
    };
    assert!(pointers(&labelled("a", "b=c")).is_empty());
    for key in ["a=b", "=", ""] {
        assert_eq!(pointers(&labelled(key, "c")), [format!("/labels/{key}")], "{key}");
    }
}

#[test]
fn a_plain_job_passes() {
    assert_eq!(pointers(&job()), Vec::<String>::new());
}

fn kept(dir: Option<&str>, every_s: Option<u32>, keep: Option<u32>) -> NewJob {
    let dir = dir.map(str::to_owned);
    NewJob { checkpoint: Some(Checkpoint { dir, every_s, keep, ..Default::default() }), ..job() }
}

fn with_files(paths: &[&str], job: NewJob) -> NewJob {
    let files = paths.iter().map(|path| ((*path).to_owned(), String::new())).collect();
    NewJob { files, ..job }
}

#[test]
fn each_fault_of_files_and_checkpoints_is_named() {
    assert_eq!(pointers(&kept(Some("state/ckpt"), Some(5), Some(10))), Vec::<String>::new());
    let inside = with_files(&["ckpt/start.json", "a/b", "ab"], kept(Some("ckpt"), None, None));
    assert_eq!(pointers(&inside), Vec::<String>::new());
    let cases: Vec<(NewJob, &str)> = vec![
        (kept(Some("../ckpt"), None, None), "/checkpoint/dir"),
        (with_files(&["ckpt"], kept(Some("ckpt"), None, None)), "/checkpoint/dir"),
        (with_files(&["a"], kept(Some("a/ckpt"), None, None)), "/checkpoint/dir"),
        (kept(Some(".volumes/x"), None, None), "/checkpoint/dir"),
        (with_files(&["a", "a/b"], job()), "/files/a"),
        (with_files(&["a", "a!", "a/b/c"], job()), "/files/a"),
        (with_files(&[".berth-script"], job()), "/files/.berth-script"),
        (with_files(&[".volumes/data"], job()), "/files/.volumes~1data"),
        (kept(None, Some(60), None), "/checkpoint/dir"),
        (kept(Some("ckpt"), Some(4), None), "/checkpoint/every_s"),
        (kept(Some("ckpt"), None, Some(1)), "/checkpoint/keep"),
    ];
    for (job, pointer) in cases {
        assert_eq!(pointers(&job), [pointer]);
    }
}

#[test]
fn each_fault_is_named() {
    let dependency = DependsOn { job: JobId::from_uuid(uuid::Uuid::nil()), condition: Condition::Finished };
    let idle = |below_percent, for_s| NewJob {
        stop_when_idle: Some(StopWhenIdle { below_percent, for_s }),
        ..job()
    };
    let in_image = |value: &str| NewJob {
        image: Some("alpine".into()),
        env: [("A".to_owned(), value.to_owned())].into(),
        ..job()
    };
    assert_eq!(pointers(&in_image("a b")), Vec::<String>::new());
    for (below_percent, for_s) in [(1, 600), (100, 86_400)] {
        assert_eq!(pointers(&idle(below_percent, for_s)), Vec::<String>::new());
    }
    let cases: Vec<(NewJob, &str)> = vec![
        (idle(0, 600), "/stop_when_idle/below_percent"),
        (idle(101, 600), "/stop_when_idle/below_percent"),
        (idle(40, 599), "/stop_when_idle/for_s"),
        (idle(40, u32::MAX), "/stop_when_idle/for_s"),
        (NewJob { gpu_milli: Some(500), ..idle(40, 3_600) }, "/stop_when_idle"),
        (NewJob { registry: Some(RegistryUse { secret: "pull".into() }), ..job() }, "/registry"),
        (
            NewJob { registry: Some(RegistryUse { secret: "../x".into() }), ..in_image("") },
            "/registry/secret",
        ),
        (NewJob { lease_s: Some(59), ..job() }, "/lease_s"),
        (NewJob { lease_s: Some(86_401), ..job() }, "/lease_s"),
        (NewJob { name: "  ".into(), ..job() }, "/name"),
        (NewJob { name: "x".repeat(1 << 20), ..job() }, "/name"),
        (NewJob { name: "a\0b".into(), ..job() }, "/name"),
        (NewJob { count: 0, ..job() }, "/count"),
        (NewJob { count: u32::MAX, ..job() }, "/count"),
        (NewJob { nodes: 0, ..job() }, "/nodes"),
        (NewJob { nodes: 1_000_000_000, ..job() }, "/nodes"),
        (NewJob { cpus: Some(0), ..job() }, "/cpus"),
        (NewJob { cpus: Some(u32::MAX), ..job() }, "/cpus"),
        (NewJob { memory_mib: Some(u64::MAX), ..job() }, "/memory_mib"),
        (NewJob { depends_on: vec![dependency; 33], ..job() }, "/depends_on"),
        (NewJob { gpu_milli: Some(0), ..job() }, "/gpu_milli"),
        (NewJob { gpu_milli: Some(1_000), ..job() }, "/gpu_milli"),
        (NewJob { gpu_milli: Some(500), count: 2, ..job() }, "/gpu_milli"),
        (NewJob { topology: Topology::SameNode, nodes: 2, ..job() }, "/topology"),
        (NewJob { network: Network::None, nodes: 2, ..job() }, "/network"),
        (NewJob { retry: Some(Retry { max: 1, on: vec![] }), ..job() }, "/retry/on"),
        (NewJob { retry: Some(Retry { max: 101, on: vec![RetryOn::Exit] }), ..job() }, "/retry/max"),
        (
            NewJob { checkpoint: Some(Checkpoint { grace_s: 0, ..Default::default() }), ..job() },
            "/checkpoint/grace_s",
        ),
        (NewJob { artifacts: vec!["out/**".into(), "/etc/*".into()], ..job() }, "/artifacts/1"),
        (NewJob { artifacts: vec!["x".into(); 33], ..job() }, "/artifacts"),
        (NewJob { ports: vec![8_888, 0], ..job() }, "/ports/1"),
        (NewJob { image: Some("dir:/etc".into()), ..job() }, "/image"),
        (NewJob { image: Some(String::new()), ..job() }, "/image"),
        (in_image("a\nb"), "/env/A"),
        (in_image(&"x".repeat(MAX_IMAGE_ENV_BYTES)), "/env/A"),
        (NewJob { max_duration_s: 0, ..job() }, "/max_duration_s"),
        (NewJob { max_duration_s: u64::MAX, ..job() }, "/max_duration_s"),
        (NewJob { command: None, ..job() }, "/command"),
        (NewJob { command: Some(vec![]), ..job() }, "/command/0"),
        (NewJob { command: Some(vec!["a".into(), "b\0".into()]), ..job() }, "/command/1"),
        (NewJob { script: Some("x".into()), ..job() }, "/script"),
        (NewJob { command: None, script: Some(String::new()), ..job() }, "/script"),
        (NewJob { env: [("1A".to_owned(), String::new())].into(), ..job() }, "/env/1A"),
        (NewJob { files: [("../x".to_owned(), String::new())].into(), ..job() }, "/files/..~1x"),
    ];
    for (job, pointer) in cases {
        assert_eq!(pointers(&job), [pointer]);
    }
}

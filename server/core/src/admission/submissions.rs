//! Submissions of any form: a job or a refusal, with a limit of faults.

use std::collections::BTreeMap;

use berth_types::jobs::NewJob;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::check_job;

/// More than the faults of all fields together that are not in lists, and of lists with their most items.
const MOST_FAULTS: usize = 1_000;

const FIELDS: [&str; 30] = [
    "name",
    "offering",
    "count",
    "nodes",
    "command",
    "script",
    "image",
    "registry",
    "env",
    "secrets",
    "files",
    "max_duration_s",
    "priority",
    "preemptible",
    "cpus",
    "memory_mib",
    "gpu_milli",
    "topology",
    "network",
    "ports",
    "retry",
    "checkpoint",
    "artifacts",
    "volumes",
    "stop_when_idle",
    "lease_s",
    "reservation",
    "depends_on",
    "labels",
    "rdma",
];
/// Names of fields inside of other fields.
const INNER: [&str; 16] = [
    "max",
    "on",
    "dir",
    "signal",
    "grace_s",
    "every_s",
    "keep",
    "name",
    "env",
    "file",
    "path",
    "mode",
    "secret",
    "job",
    "condition",
    "below_percent",
];
const TEXTS: [&str; 14] = [
    "",
    " ",
    "\0",
    "..",
    "../x",
    "/etc/passwd",
    "a/../b",
    ".berth-script",
    ".volumes/x",
    "\u{202e}",
    "~1",
    "node_lost",
    "docker.io/library/alpine:3.20",
    "job_00000000000000000000000001",
];

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => prop::sample::select(TEXTS.to_vec()).prop_map(|text| text.to_owned()),
        4 => "(?s).{0,12}",
        1 => Just("x".repeat(2_000)),
    ]
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![3 => prop::sample::select(INNER.to_vec()).prop_map(|name| name.to_owned()), 1 => text()]
}

/// A value of any form, which rarely is the form of the field.
fn value() -> impl Strategy<Value = Value> {
    let number = prop_oneof![any::<i64>(), -1i64..70, Just(i64::MAX)];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        number.prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        let list = prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array);
        let object = prop::collection::btree_map(name(), inner, 0..4);
        prop_oneof![list, object.prop_map(|fields| Value::Object(fields.into_iter().collect()))]
    })
}

/// A value of the right form with any content.
fn fitting(field: &'static str) -> BoxedStrategy<Value> {
    match field {
        "name" | "offering" | "script" | "image" => text().prop_map(Value::from).boxed(),
        "env" | "files" | "labels" => {
            prop::collection::btree_map(text(), text(), 0..40).prop_map(|fields| json!(fields)).boxed()
        }
        "command" | "artifacts" => {
            prop::collection::vec(text(), 0..40).prop_map(|texts| json!(texts)).boxed()
        }
        "ports" => prop::collection::vec(any::<u32>(), 0..12).prop_map(|ports| json!(ports)).boxed(),
        "secrets" => prop::collection::vec((text(), text()), 0..40)
            .prop_map(|uses| {
                uses.into_iter().map(|(name, env)| json!({"name": name, "env": env})).collect::<Value>()
            })
            .boxed(),
        "volumes" => prop::collection::vec((text(), text()), 0..20)
            .prop_map(|uses| {
                uses.into_iter().map(|(name, path)| json!({"name": name, "path": path})).collect::<Value>()
            })
            .boxed(),
        "checkpoint" => {
            (text(), any::<u32>()).prop_map(|(dir, every_s)| json!({"dir": dir, "every_s": every_s})).boxed()
        }
        _ => value().boxed(),
    }
}

fn field() -> impl Strategy<Value = (&'static str, Value)> {
    prop::sample::select(FIELDS.to_vec()).prop_flat_map(|field| {
        let value = prop_oneof![3 => fitting(field), 1 => value()];
        (Just(field), value)
    })
}

fn body(fields: Vec<(&'static str, Value)>) -> Value {
    let mut body = Map::new();
    for (name, value) in
        [("name", json!("a")), ("offering", json!("h100-80gb")), ("command", json!(["true"]))]
    {
        body.insert(name.to_owned(), value);
    }
    body.extend(fields.into_iter().map(|(name, value)| (name.to_owned(), value)));
    Value::Object(body)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_submission_has_few_faults_and_survives_its_own_text(
        fields in prop::collection::vec(field(), 0..4),
    ) {
        let Ok(job) = serde_json::from_value::<NewJob>(body(fields)) else { return Ok(()) };
        let faults = check_job(&job);
        prop_assert!(faults.len() < MOST_FAULTS, "{} faults", faults.len());
        prop_assert!(faults.iter().all(|fault| fault.pointer.starts_with('/') && !fault.detail.is_empty()));
        let text = serde_json::to_string(&job).unwrap();
        prop_assert_eq!(serde_json::from_str::<NewJob>(&text).ok(), Some(job));
    }

    #[test]
    fn a_damaged_submission_is_read_or_refused(
        fields in prop::collection::vec(field(), 0..4),
        at in any::<prop::sample::Index>(),
        damage in prop::sample::select(vec![&b"\xff"[..], b"\0", b"{\"", b"[[[[", b"1e999", b"\\ud800", b"\"", b"}"]),
    ) {
        let text = serde_json::to_vec(&body(fields)).unwrap();
        let (before, after) = text.split_at(at.index(text.len()));
        if let Ok(job) = serde_json::from_slice::<NewJob>(&[before, damage, after].concat()) {
            check_job(&job);
        }
        prop_assert!(serde_json::from_slice::<NewJob>(before).is_err());
    }
}

#[test]
fn rdma_needs_a_network_and_whole_boards() {
    let pointers = |more: Vec<(&'static str, Value)>| {
        let mut fields = vec![("rdma", json!(true))];
        fields.extend(more);
        let job = serde_json::from_value::<NewJob>(body(fields)).unwrap();
        check_job(&job).into_iter().map(|fault| fault.pointer).collect::<Vec<String>>()
    };
    assert!(pointers(vec![("nodes", json!(2))]).is_empty());
    assert_eq!(pointers(vec![("network", json!("none"))]), ["/rdma"]);
    assert_eq!(pointers(vec![("gpu_milli", json!(500))]), ["/rdma"]);
}

#[test]
fn a_long_list_is_one_fault() {
    let texts = |prefix: &str| -> BTreeMap<String, String> {
        (0..5_000).map(|n| (format!("{prefix}{n}"), "\n".to_owned())).collect()
    };
    let valid = NewJob {
        name: "a".into(),
        offering: "b".into(),
        command: Some(vec!["c".into()]),
        count: 1,
        nodes: 1,
        max_duration_s: 1,
        ..NewJob::default()
    };
    assert!(check_job(&valid).is_empty());
    for (job, pointer) in [
        (NewJob { env: texts("-"), ..valid.clone() }, "/env"),
        (NewJob { files: texts("/"), ..valid.clone() }, "/files"),
        (NewJob { labels: texts("\u{1}"), ..valid.clone() }, "/labels"),
        (NewJob { artifacts: vec!["../x".to_owned(); 5_000], ..valid.clone() }, "/artifacts"),
    ] {
        let pointers: Vec<String> = check_job(&job).into_iter().map(|fault| fault.pointer).collect();
        assert_eq!(pointers, [pointer]);
    }
    let in_image = NewJob { env: texts("-"), image: Some("alpine".to_owned()), ..valid };
    assert!(check_job(&in_image).len() < MOST_FAULTS);
}

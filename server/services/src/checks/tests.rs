use std::collections::BTreeMap;

use berth_types::ids::{JobId, ReservationId};
use berth_types::jobs::{Condition, DependsOn, NewJob};
use serde_json::{Value, json};

use super::*;

/// A service that has no fault, with these fields in place of its own.
fn service(change: Value) -> NewService {
    let mut body = json!({
        "name": "chat",
        "protocol": "openai",
        "models": [{ "name": "llama-3.1-8b", "context_tokens": 8_192 }],
        "hosts": ["chat.example.org"],
        "revision": {
            "job": { "name": "chat-r1", "offering": "h100-80gb", "command": ["serve"] },
            "port": 8_000,
        },
    });
    body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    serde_json::from_value(body).unwrap()
}

fn pointers(change: Value) -> Vec<String> {
    check_service(&service(change)).into_iter().map(|fault| fault.pointer).collect()
}

#[test]
fn each_fault_of_a_service_is_named() {
    assert_eq!(pointers(json!({})), Vec::<String>::new());
    let model = |name: &str, tokens: u64| json!({ "name": name, "context_tokens": tokens });
    let long = "a".repeat(41);
    for name in ["", "Chat", "1a", "-a", "a_b", "a b", &long] {
        assert_eq!(pointers(json!({ "name": name })), ["/name"], "{name}");
    }
    for host in ["", "localhost", "10.0.0.1", "Chat.example.org", "chat..org", "chat.example.org:80"] {
        assert_eq!(pointers(json!({ "hosts": [host] })), ["/hosts/0"], "{host}");
    }
    assert_eq!(pointers(json!({ "hosts": ["a.b", "a.b"] })), ["/hosts/1"]);
    assert_eq!(pointers(json!({ "hosts": vec!["a.b"; 9] })), ["/hosts"]);
    assert_eq!(pointers(json!({ "protocol": "http" })), ["/models"]);
    assert_eq!(pointers(json!({ "models": [] })), ["/models"]);
    assert_eq!(pointers(json!({ "models": vec![model("m", 1); 17] })), ["/models"]);
    assert_eq!(pointers(json!({ "models": [model("a b", 1)] })), ["/models/0/name"]);
    assert_eq!(pointers(json!({ "models": [model("a", 1), model("a", 1)] })), ["/models/1/name"]);
    for tokens in [0, 10_000_001] {
        assert_eq!(pointers(json!({ "models": [model("a", tokens)] })), ["/models/0/context_tokens"]);
    }
    for bytes in [0, (64 << 20) + 1] {
        assert_eq!(pointers(json!({ "max_body_bytes": bytes })), ["/max_body_bytes"]);
    }
}

#[test]
fn each_fault_of_the_scaling_is_named() {
    let fault = |change: Value| pointers(json!({ "scaling": change }));
    assert_eq!(fault(json!({ "min_replicas": 0, "max_replicas": 100 })), Vec::<String>::new());
    for (change, field) in [
        (json!({ "max_replicas": 0, "min_replicas": 0 }), "max_replicas"),
        (json!({ "max_replicas": 101 }), "max_replicas"),
        (json!({ "min_replicas": 2 }), "min_replicas"),
        (json!({ "target_requests": 0 }), "target_requests"),
        (json!({ "target_requests": 10_001 }), "target_requests"),
        (json!({ "up_delay_s": 3_601 }), "up_delay_s"),
        (json!({ "down_delay_s": 3_601, "idle_s": 3_601 }), "down_delay_s"),
        (json!({ "idle_s": 119 }), "idle_s"),
        (json!({ "idle_s": 604_801 }), "idle_s"),
        (json!({ "time_zone": "Oslo" }), "time_zone"),
    ] {
        assert_eq!(fault(change), [format!("/scaling/{field}")]);
    }
    let patch = PatchService {
        scaling: Some(Scaling { max_replicas: 0, ..Scaling::default() }),
        hosts: Some(vec!["a".to_owned()]),
        ..PatchService::default()
    };
    let found: Vec<String> = check_patch(&patch).into_iter().map(|fault| fault.pointer).collect();
    assert_eq!(found, ["/hosts/0", "/scaling/max_replicas", "/scaling/min_replicas"]);
    assert!(check_patch(&PatchService::default()).is_empty());
}

#[test]
fn each_fault_of_the_rule_of_canaries_is_named() {
    let fault = |change: Value| pointers(json!({ "rollout": change }));
    assert_eq!(fault(json!({ "min_requests": 1, "min_seconds": 86_400 })), Vec::<String>::new());
    for (change, field) in [
        (json!({ "min_requests": 0 }), "min_requests"),
        (json!({ "min_requests": 1_000_001 }), "min_requests"),
        (json!({ "min_seconds": 0 }), "min_seconds"),
        (json!({ "min_seconds": 86_401 }), "min_seconds"),
        (json!({ "error_percent": 101 }), "error_percent"),
    ] {
        assert_eq!(fault(change.clone()), [format!("/rollout/{field}")]);
        let patch: PatchService = serde_json::from_value(json!({ "rollout": change })).unwrap();
        let found: Vec<String> = check_patch(&patch).into_iter().map(|fault| fault.pointer).collect();
        assert_eq!(found, [format!("/rollout/{field}")]);
    }
}

#[test]
fn each_fault_of_a_revision_is_named() {
    let base = service(json!({})).revision;
    let fault = |change: &dyn Fn(&mut NewRevision)| {
        let mut revision = base.clone();
        change(&mut revision);
        check_revision("/revision", &revision).into_iter().map(|fault| fault.pointer).collect::<Vec<_>>()
    };
    let id = uuid_of("job");
    let labels = |count: usize| -> BTreeMap<String, String> {
        (0..count).map(|n| (format!("k{n}"), String::new())).collect()
    };
    assert_eq!(fault(&|_| ()), Vec::<String>::new());
    assert_eq!(fault(&|r| r.job.ports = vec![80, 8_000]), Vec::<String>::new());
    assert_eq!(fault(&|r| r.job.labels = labels(31)), Vec::<String>::new());
    for path in ["/", "grpc:", "grpc:digits.Digits"] {
        let http2 = |r: &mut NewRevision| {
            r.replica_protocol = ReplicaProtocol::Http2;
            r.readiness_path = path.to_owned();
        };
        assert_eq!(fault(&http2), Vec::<String>::new(), "{path}");
    }
    let cases: [(&dyn Fn(&mut NewRevision), &str); 22] = [
        (&|r| r.job.count = 0, "/job/count"),
        (&|r| r.job = NewJob { command: None, ..r.job.clone() }, "/job/command"),
        (
            &|r| {
                let job: JobId = id.parse().unwrap();
                r.job.depends_on = vec![DependsOn { job, condition: Condition::Finished }];
            },
            "/job/depends_on",
        ),
        (&|r| r.job.reservation = Some(uuid_of("res").parse::<ReservationId>().unwrap()), "/job/reservation"),
        (&|r| r.job.ports = vec![80], "/job/ports"),
        (&|r| r.job.labels = labels(32), "/job/labels"),
        (&|r| r.job.labels = [(LABEL.to_owned(), "x".to_owned())].into(), "/job/labels"),
        (&|r| r.port = 0, "/port"),
        (&|r| r.readiness_path = "health".to_owned(), "/readiness_path"),
        (&|r| r.readiness_path = "/a b".to_owned(), "/readiness_path"),
        (&|r| r.readiness_path = "grpc:".to_owned(), "/readiness_path"),
        (
            &|r| {
                r.replica_protocol = ReplicaProtocol::Http2;
                r.readiness_path = format!("grpc:{}", "a".repeat(101));
            },
            "/readiness_path",
        ),
        (&|r| r.readiness_path = format!("/{}", "a".repeat(200)), "/readiness_path"),
        (&|r| r.ready_within_s = 0, "/ready_within_s"),
        (&|r| r.ready_within_s = 86_401, "/ready_within_s"),
        (&|r| r.concurrency = 0, "/concurrency"),
        (&|r| r.concurrency = 10_001, "/concurrency"),
        (&|r| r.canary_percent = vec![10, 10], "/canary_percent"),
        (&|r| r.canary_percent = vec![100], "/canary_percent"),
        (&|r| r.note = "a\nb".to_owned(), "/note"),
        (&|r| r.note = "a".repeat(301), "/note"),
        (&|r| r.job.files = [("a".to_owned(), "x".repeat(256 << 10))].into(), ""),
    ];
    for (change, pointer) in cases {
        assert_eq!(fault(change), [format!("/revision{pointer}")]);
    }
}

/// An id that no object has.
fn uuid_of(prefix: &str) -> String {
    format!("{prefix}_00000000000000000000000001")
}

#[test]
fn a_token_costs_whole_nano_units() {
    let fault = |prompt, completion| {
        let price =
            TokenPrice { prompt_micros_per_million: prompt, completion_micros_per_million: completion };
        check_token_price(&price).into_iter().map(|fault| fault.pointer).collect::<Vec<_>>()
    };
    assert!(fault(0, MAX_TOKEN_PRICE).is_empty());
    assert_eq!(fault(-1_000, 1_000), ["/prompt_micros_per_million"]);
    assert_eq!(fault(1_500, MAX_TOKEN_PRICE + 1_000).len(), 2);
}

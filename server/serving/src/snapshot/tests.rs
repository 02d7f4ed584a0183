use proptest::prelude::*;

use super::samples::*;
use super::*;

#[test]
fn a_snapshot_survives_its_text() {
    let snapshot = small();
    let text = serde_json::to_vec(&snapshot).unwrap();
    assert_eq!(Snapshot::from_json(&text), Ok(snapshot));
}

#[test]
fn another_version_and_bad_text_are_refused() {
    assert_eq!(Snapshot::from_json(br#"{"version":1,"news":[]}"#), Err(SnapshotFault::Version(1)));
    let unknown =
        br#"{"version":2,"number":1,"gateway_number":1,"authority":"","services":[],"keys":[],"more":1}"#;
    assert!(matches!(Snapshot::from_json(unknown), Err(SnapshotFault::Json { line: 1, .. })));
    assert!(matches!(Snapshot::from_json(b"{"), Err(SnapshotFault::Json { .. })));
}

#[test]
fn a_list_over_its_limit_is_refused_while_it_is_read() {
    let json = |models: usize| {
        let mut snapshot = small();
        let name_of = |index: usize| Model { name: name(&format!("m{index}")), context_tokens: 1 };
        snapshot.services[0].models = (0..models).map(name_of).collect();
        Snapshot::from_json(&serde_json::to_vec(&snapshot).unwrap())
    };
    assert!(json(MAX_MODELS).is_ok());
    assert!(matches!(json(MAX_MODELS + 1), Err(SnapshotFault::Json { .. })));
}

#[test]
fn each_fault_is_found() {
    let fault = |change: &dyn Fn(&mut Snapshot)| {
        let mut snapshot = small();
        assert_eq!(snapshot.validate(), Ok(()));
        change(&mut snapshot);
        snapshot.validate().unwrap_err()
    };
    let id = small().services[0].id;
    let weights = |sum| SnapshotFault::Weights { service: id, sum };
    assert_eq!(fault(&|s| s.version = 0), SnapshotFault::Version(0));
    assert_eq!(fault(&|s| s.services[0].revisions[0].weight_percent = 91), weights(101));
    assert_eq!(fault(&|s| s.services[0].revisions[0].weight_percent = 0), weights(10));
    assert_eq!(
        fault(&|s| s.services[0].revisions[0].replicas[0].org = org(2)),
        SnapshotFault::ForeignReplica(revision_id(1))
    );
    let changes: [fn(&mut Replica); 4] = [
        |r| r.port = 0,
        |r| r.concurrency = 0,
        |r| r.concurrency = MAX_CONCURRENCY + 1,
        |r| r.address.set_port(0),
    ];
    for change in changes {
        let found = fault(&|s| change(&mut s.services[0].revisions[0].replicas[0]));
        assert_eq!(found, SnapshotFault::Replica(revision_id(1)));
    }
    assert_eq!(
        fault(&|s| s.services[0].revisions[1].replicas[0].id = replica_id(1)),
        SnapshotFault::RepeatedReplica(revision_id(2))
    );
    assert_eq!(
        fault(&|s| s.services[0].revisions[1].id = revision_id(1)),
        SnapshotFault::RepeatedRevision(revision_id(1))
    );
    assert_eq!(fault(&|s| s.services[0].revisions[0].pinned_keys = vec![key_id(2)]), SnapshotFault::Pin(id));
    assert_eq!(fault(&|s| s.services[0].revisions[0].pinned_keys = vec![key_id(1)]), SnapshotFault::Pin(id));
    assert_eq!(fault(&|s| s.services[0].max_body_bytes = 0), SnapshotFault::BodyLimit(id));
    assert_eq!(fault(&|s| s.services[0].protocol = Protocol::Http), SnapshotFault::Models(id));
    assert_eq!(fault(&|s| s.services[0].models[0].context_tokens = 0), SnapshotFault::Models(id));
    assert_eq!(fault(&|s| s.keys[1].hash = KeyHash::new("one")), SnapshotFault::RepeatedKey(key_id(2)));
    assert_eq!(fault(&|s| s.keys[1].id = key_id(1)), SnapshotFault::RepeatedKey(key_id(1)));
    assert_eq!(fault(&|s| s.keys[0].limits.tokens_per_minute = Some(0)), SnapshotFault::RateLimit(key_id(1)));
}

#[test]
fn names_and_addresses_have_one_service() {
    let with = |change: &dyn Fn(&mut Service)| {
        let mut snapshot = small();
        let mut other = service(3, 1, "other", &["gemma"]);
        change(&mut other);
        snapshot.services.push(other);
        snapshot.validate()
    };
    let id = service(3, 1, "other", &[]).id;
    assert_eq!(with(&|_| ()), Ok(()));
    assert_eq!(with(&|s| s.name = name("chat")), Err(SnapshotFault::RepeatedService(id)));
    assert_eq!(with(&|s| s.models[0].name = name("llama")), Err(SnapshotFault::Models(id)));
    for good in ["/a", "/a/b-c", "/v1x", "/a/v1"] {
        assert_eq!(with(&|s| s.addresses = vec![Address::Prefix(name(good))]), Ok(()), "{good}");
    }
    for bad in ["/chat", "/", "a", "/a/", "//a", "/v1", "/v1/a", "/a/..", "/a%20"] {
        let found = with(&|s| s.addresses = vec![Address::Prefix(name(bad))]);
        assert_eq!(found, Err(SnapshotFault::Address(id)), "{bad}");
    }
    for bad in ["chat.example.org", "Chat.example", "a..b", "-a.b", "a.b.", "a:1"] {
        let found = with(&|s| s.addresses = vec![Address::Host(name(bad))]);
        assert_eq!(found, Err(SnapshotFault::Address(id)), "{bad}");
    }
}

#[test]
fn a_secret_is_in_no_debug_text() {
    let text = format!("{:?}", small());
    assert!(!text.contains("token-1"));
    assert!(!text.contains(&String::from(KeyHash::new("one"))));
}

proptest! {
    #[test]
    fn hashes_are_equal_like_their_bytes(a: [u8; 32], at in 0..32_usize, bit in 0..8_u32) {
        let text = |bytes: [u8; 32]| KeyHash::try_from(hex::encode(bytes)).unwrap();
        let mut b = a;
        b[at] ^= 1_u8 << bit;
        prop_assert!(text(a) == text(a));
        prop_assert!(text(a) != text(b), "one bit is a difference");
    }

    #[test]
    fn any_bytes_are_a_snapshot_or_a_fault(bytes: Vec<u8>) {
        prop_assert!(Snapshot::from_json(&bytes).is_err());
    }
}

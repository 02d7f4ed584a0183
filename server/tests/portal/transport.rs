//! Tests of worker authentication and sessions over real sockets, with played and real daemons.

use std::collections::HashSet;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use crate::common::TestPortal;
use crate::daemons::{
    NodeCredentials, PlayedSession, certificate_request, copied_nodes, count_audit_events, get_node, join,
    join_new_node, rejoin_token, way,
};
use crate::worker_portal::{Worker, WorkerPortal, eventually, without_worker, without_worker_on};
use berth_fleet::authority::Authority;
use berth_foundation::Settings;
use berth_proto::portal_client::PortalClient;
use berth_proto::{
    AttemptId, Board, Heartbeat, Hello, JoinRequest, Log, Message as _, Phase, PortalMessage, Probe,
    RenewRequest, Samples, WorkerMessage, portal_message, worker_message::Body,
};
use berth_session::identity;
use berth_session::tls::PortalConnector;
use berth_store::Db;
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tonic::{Code, Status};

#[tokio::test(flavor = "multi_thread")]
async fn a_join_token_works_once_before_its_expiry_and_for_its_node() {
    let setup = without_worker().await;
    let refused = |answer: Result<NodeCredentials, Status>, why: &str| {
        let status = answer.err().unwrap();
        assert_eq!(status.code(), Code::PermissionDenied);
        assert!(status.message().contains(why), "{status:?}");
    };
    refused(join(&setup, "guess", "").await, "expired or unknown");
    let token = setup.join_token(json!({})).await;
    let first = join(&setup, &token, "").await.unwrap();
    refused(join(&setup, &token, "").await, "is used, expired");
    let late = setup.join_token(json!({"valid_s": 60})).await;
    setup.t.clock.advance_s(61);
    refused(join(&setup, &late, "").await, "expired or unknown");
    let fresh = setup.join_token(json!({})).await;
    refused(join(&setup, &fresh, &first.node).await, "already");
    let second = join(&setup, &fresh, "").await.unwrap();
    assert_ne!(first.node, second.node, "the refusal has not spent it");
    let own = rejoin_token(&setup, &first.node).await;
    refused(join(&setup, &own, &second.node).await, "The join token is for");
    let again = join(&setup, &own, &first.node).await.unwrap();
    assert_eq!(again.node, first.node);
    // The earlier certificate of the node is invalid.
    let status = PlayedSession::open(&setup, Some(&first), ("a", 1, 1)).await.err().unwrap();
    assert_eq!(status.code(), Code::PermissionDenied);
    PlayedSession::open(&setup, Some(&again), ("a", 1, 1)).await.unwrap().expect_admitted().await;
    let mut client = PortalClient::new(way(&setup, None).connect().await.unwrap());
    let token = setup.join_token(json!({})).await;
    let bad = JoinRequest { token, name: "x".to_owned(), csr: vec![1, 2, 3], node: String::new() };
    assert_eq!(client.join(bad).await.unwrap_err().code(), Code::PermissionDenied);
    let path = "/operator/nodes/node_00000000000000000000000009/join-token";
    setup.t.post(&setup.operator, path, json!({})).await.problem(404, "object.not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_certificate_of_this_portal_only_joining_is_possible() {
    let setup = without_worker().await;
    let status = PlayedSession::open(&setup, None, ("a", 1, 1)).await.err().unwrap();
    assert_eq!(status.code(), Code::Unauthenticated);
    let mut client = PortalClient::new(way(&setup, None).connect().await.unwrap());
    let status = client.renew(RenewRequest { csr: certificate_request().1 }).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
    let long = berth_proto::UploadChunk { data: vec![0; 1 << 20], ..berth_proto::UploadChunk::default() };
    let status = client.upload(long).await.unwrap_err();
    assert_ne!(status.code(), Code::Unauthenticated, "a stranger's long message is not read to its end");

    let credentials = join_new_node(&setup).await;
    let node = credentials.node.parse().unwrap();
    let until = setup.t.portal.context.now().plus_seconds(3_600);
    let elsewhere = tempfile::tempdir().unwrap();
    let stranger = Authority::open(elsewhere.path(), setup.t.portal.context.now()).unwrap();
    let (key, csr) = certificate_request();
    let chain = |authority: &Authority| {
        let issued = authority.certify(&csr, node, [7; 16], until).unwrap();
        issued.chain.iter().map(|c| c.to_vec()).collect::<Vec<_>>()
    };
    let forged =
        NodeCredentials { node: credentials.node.clone(), chain: chain(&stranger), key: key.clone() };
    let status = PlayedSession::open(&setup, Some(&forged), ("a", 1, 1)).await.err().unwrap();
    assert_ne!(status.code(), Code::PermissionDenied, "it does not come so far: {status:?}");
    // The certificate has the portal's signature but no record, as after a theft of the key.
    let unknown = NodeCredentials {
        node: credentials.node.clone(),
        chain: chain(&setup.t.portal.enrolment.authority().unwrap()),
        key,
    };
    let status = PlayedSession::open(&setup, Some(&unknown), ("a", 1, 1)).await.err().unwrap();
    assert_eq!(status.code(), Code::PermissionDenied);
    assert!(status.message().contains("has no record of this certificate"), "{status:?}");

    let endpoint = identity::endpoint(&setup.address).unwrap();
    let error =
        PortalConnector::new(endpoint, &stranger.fingerprint(), None).unwrap().connect().await.unwrap_err();
    assert!(error.contains("UnknownIssuer"), "a worker believes no other portal: {error}");
    PlayedSession::open(&setup, Some(&credentials), ("a", 1, 1)).await.unwrap().expect_admitted().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_tls_13_is_accepted() {
    let setup = without_worker().await;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(setup.t.portal.enrolment.authority().unwrap().certificate().clone()).unwrap();
    let address = setup.address.trim_start_matches("https://").to_owned();
    let speak = async |version: &'static rustls::SupportedProtocolVersion| {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots.clone())
            .with_no_client_auth();
        let stream = tokio::net::TcpStream::connect(&address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.map(|_| ())
    };
    speak(&rustls::version::TLS13).await.unwrap();
    let error = speak(&rustls::version::TLS12).await.unwrap_err().to_string();
    assert!(error.contains("ProtocolVersion"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_ends_with_its_certificate() {
    let setup = without_worker().await;
    let credentials = join_new_node(&setup).await;
    let played =
        PlayedSession::open(&setup, Some(&credentials), ("a", 1, 1)).await.unwrap().expect_admitted().await;
    let (key, csr) = certificate_request();
    let mut client = PortalClient::new(way(&setup, Some(&credentials)).connect().await.unwrap());
    setup.t.clock.advance_s(20 * 3_600);
    let renewed = NodeCredentials::from_certificate(
        client.renew(RenewRequest { csr }).await.unwrap().into_inner(),
        key,
    );
    assert_eq!(renewed.node, credentials.node);
    setup.t.clock.advance_s(5 * 3_600);
    let status = played.keep_alive().await.unwrap().unwrap_err();
    assert!(status.message().contains("has expired"), "{status:?}");
    PlayedSession::open(&setup, Some(&credentials), ("a", 1, 2)).await.err().unwrap();
    assert!(
        client.renew(RenewRequest { csr: certificate_request().1 }).await.is_err(),
        "on a connection from before"
    );
    PlayedSession::open(&setup, Some(&renewed), ("a", 1, 3)).await.unwrap().expect_admitted().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_node_is_disconnected_at_once() {
    let setup = without_worker().await;
    let credentials = join_new_node(&setup).await;
    let pending = rejoin_token(&setup, &credentials.node).await;
    let played =
        PlayedSession::open(&setup, Some(&credentials), ("a", 1, 1)).await.unwrap().expect_admitted().await;
    assert_eq!(get_node(&setup, &credentials.node).await["state"], "ready");
    let seen = setup.t.get(&setup.ada, &format!("/orgs/{}/nodes", setup.org)).await.expect(200);
    assert!(seen["items"][0].get("certified_until").is_none(), "tenants are not told: {seen}");
    let session = played.keep_alive();
    let path = format!("/operator/nodes/{}/revoke", credentials.node);
    setup.t.post(&setup.ada, &path, Value::Null).await.problem(404, "object.not_found");
    let node = setup.t.post(&setup.operator, &path, Value::Null).await.expect(200);
    assert!(node.get("certified_until").is_none(), "{node}");
    assert_eq!(node["state"], "unreachable");
    // The session ends with or without a status; the next connection gets the reason.
    let _ = tokio::time::timeout(Duration::from_secs(3), session).await.unwrap().unwrap();
    let status = PlayedSession::open(&setup, Some(&credentials), ("a", 1, 2)).await.err().unwrap();
    assert_eq!(status.code(), Code::PermissionDenied);
    assert!(status.message().contains("was revoked"), "{status:?}");
    let mut client = PortalClient::new(way(&setup, Some(&credentials)).connect().await.unwrap());
    let status = client.renew(RenewRequest { csr: certificate_request().1 }).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
    assert!(join(&setup, &pending, "").await.is_err(), "tokens for it are void too");
    assert_eq!(count_audit_events(&setup, "node.revoked", &credentials.node).await, 1);
    let back = join(&setup, &rejoin_token(&setup, &credentials.node).await, &credentials.node).await.unwrap();
    let _back = PlayedSession::open(&setup, Some(&back), ("b", 2, 1)).await.unwrap().expect_admitted().await;
    assert_eq!(get_node(&setup, &credentials.node).await["state"], "ready");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clone_is_detected_and_the_first_daemon_stays_connected() {
    let setup = without_worker().await;
    let credentials = join_new_node(&setup).await;
    let first =
        PlayedSession::open(&setup, Some(&credentials), ("a", 5, 1)).await.unwrap().expect_admitted().await;
    let session = first.keep_alive();
    // Both daemons start from the same directory.
    let copy = PlayedSession::open(&setup, Some(&credentials), ("b", 5, 1))
        .await
        .unwrap()
        .expect_refused(true)
        .await;
    assert_eq!(copy.code(), Code::PermissionDenied);
    assert!(copy.message().contains("Two daemons"), "{copy:?}");
    let suspect = get_node(&setup, &credentials.node).await;
    assert!(suspect["suspect"].as_str().unwrap().contains("second daemon"), "{suspect}");
    assert_eq!((&suspect["state"], copied_nodes(&setup).await), (&json!("ready"), 1), "the first goes on");
    assert!(!session.is_finished());
    // The first daemon can reconnect; the clone cannot, despite restarts.
    let again =
        PlayedSession::open(&setup, Some(&credentials), ("a", 5, 2)).await.unwrap().expect_admitted().await;
    let again = again.keep_alive();
    for epoch in 6..9 {
        let copy = PlayedSession::open(&setup, Some(&credentials), ("c", epoch, 1))
            .await
            .unwrap()
            .expect_refused(true)
            .await;
        assert_eq!(copy.code(), Code::PermissionDenied);
    }
    assert!(!again.is_finished());
    assert_eq!(count_audit_events(&setup, "node.cloned", &credentials.node).await, 1, "told once");
    let back = join(&setup, &rejoin_token(&setup, &credentials.node).await, &credentials.node).await.unwrap();
    PlayedSession::open(&setup, Some(&back), ("d", 1, 1)).await.unwrap().expect_admitted().await;
    assert!(get_node(&setup, &credentials.node).await.get("suspect").is_none());

    // A clone of a running daemon looks like its restart, but the daemon still answers.
    let credentials = join_new_node(&setup).await;
    let session = PlayedSession::open(&setup, Some(&credentials), ("a", 1, 1))
        .await
        .unwrap()
        .expect_admitted()
        .await
        .keep_alive();
    let copy = PlayedSession::open(&setup, Some(&credentials), ("b", 2, 1))
        .await
        .unwrap()
        .expect_refused(true)
        .await;
    assert!(copy.message().contains("Two daemons"), "{copy:?}");
    assert!(!session.is_finished());
    // A clone with the daemon's memory uses the same connection numbers.
    let credentials = join_new_node(&setup).await;
    let session = PlayedSession::open(&setup, Some(&credentials), ("a", 1, 1))
        .await
        .unwrap()
        .expect_admitted()
        .await
        .keep_alive();
    let copy = PlayedSession::open(&setup, Some(&credentials), ("a", 1, 1))
        .await
        .unwrap()
        .expect_refused(true)
        .await;
    assert!(copy.message().contains("Two daemons"), "{copy:?}");
    assert!(!session.is_finished());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_board_stays_with_a_connected_node_when_another_node_reports_it() {
    let setup = without_worker().await;
    let (first, second) = (join_new_node(&setup).await, join_new_node(&setup).await);
    let played = async |credentials: &NodeCredentials, uuids: &[&str], connection: i64| {
        let board = |(index, uuid): (u32, &&str)| {
            let (uuid, name) = ((*uuid).to_owned(), "H100-80GB".to_owned());
            Board { index, uuid, name, memory_mib: 81_920, ..Board::default() }
        };
        let (instance, boards) = ("a".to_owned(), (0..).zip(uuids).map(board).collect());
        let hello = Hello { instance, epoch: 1, connection, simulated: true, boards, ..Hello::default() };
        PlayedSession::open_with_hello(&setup, Some(credentials), hello)
            .await
            .unwrap()
            .expect_admitted()
            .await
    };
    let boards = async |credentials: &NodeCredentials| {
        let node = get_node(&setup, &credentials.node).await;
        let boards = node["gpus"].as_array().unwrap().iter();
        boards.map(|gpu| gpu["uuid"].as_str().unwrap().to_owned()).collect::<Vec<String>>()
    };
    let left_out =
        async |credentials: &NodeCredentials| get_node(&setup, &credentials.node).await["left_out"].clone();
    let session = played(&first, &["GPU-1"], 1).await.keep_alive();
    for connection in 1..=2 {
        drop(played(&second, &["GPU-1", "GPU-2"], connection).await);
        assert_eq!(boards(&first).await, ["GPU-1"]);
        assert_eq!(boards(&second).await, ["GPU-2"]);
        let why = left_out(&second).await;
        assert_eq!(why, "Board GPU-1 remains with node played, which is connected and has reported it.");
    }
    assert!(!session.is_finished(), "the first is not disturbed");
    assert_eq!(left_out(&first).await, Value::Null);
    assert_eq!(count_audit_events(&setup, "node.boards_left_out", &second.node).await, 1, "told once");
    let seen = setup.t.get(&setup.ada, &format!("/orgs/{}/nodes", setup.org)).await.expect(200);
    assert!(!seen.to_string().contains("left_out"), "tenants are not told: {seen}");

    // After the end of the first node's session the second node gets the board and keeps it.
    session.abort();
    let silent = async || get_node(&setup, &first.node).await["silence"].is_object().then_some(());
    eventually("the first to be gone", silent).await;
    let there = played(&second, &["GPU-1", "GPU-2"], 3).await.keep_alive();
    assert_eq!(boards(&second).await, ["GPU-1", "GPU-2"]);
    assert_eq!(left_out(&second).await, Value::Null);
    drop(played(&first, &["GPU-1"], 2).await);
    assert_eq!(boards(&first).await, Vec::<String>::new());
    assert!(left_out(&first).await.as_str().unwrap().contains("GPU-1"));
    assert!(!there.is_finished());
}

#[tokio::test(flavor = "multi_thread")]
async fn restarts_and_broken_connections_are_no_clones() {
    let setup = without_worker().await;
    let credentials = join_new_node(&setup).await;
    let first =
        PlayedSession::open(&setup, Some(&credentials), ("a", 1, 1)).await.unwrap().expect_admitted().await;
    // The connection is half open: the daemon reconnects while the portal still has the old session.
    let began = std::time::Instant::now();
    let second =
        PlayedSession::open(&setup, Some(&credentials), ("a", 1, 2)).await.unwrap().expect_admitted().await;
    assert!(began.elapsed() < Duration::from_secs(2), "it is not asked about");
    // The host lost its power: nothing answers on the old connection.
    let third =
        PlayedSession::open(&setup, Some(&credentials), ("b", 2, 1)).await.unwrap().expect_admitted().await;
    drop((first, second));
    // A restart with an epoch two higher than the last one.
    drop(third);
    let fourth =
        PlayedSession::open(&setup, Some(&credentials), ("c", 4, 1)).await.unwrap().expect_admitted().await;
    // A delayed connection of an old daemon arrives now.
    let session = fourth.keep_alive();
    let mut stale = PlayedSession::open(&setup, Some(&credentials), ("b", 2, 2)).await.unwrap();
    let ended = stale.next(false).await;
    assert!(matches!(ended, Ok(None)), "{ended:?}");
    assert!(!session.is_finished());
    let node = get_node(&setup, &credentials.node).await;
    assert!(node.get("suspect").is_none(), "{node}");
    assert_eq!(node["state"], "ready");
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_other_versions_and_unknown_attempts_are_ignored() {
    let setup = without_worker().await;
    let credentials = join_new_node(&setup).await;
    let mut played =
        PlayedSession::open(&setup, Some(&credentials), ("a", 1, 1)).await.unwrap().expect_admitted().await;
    // A message of an unknown kind, and a known message with an unknown field.
    let unknown = WorkerMessage::decode(&[0xba, 0x3e, 0x01, b'x'][..]).unwrap();
    assert_eq!(unknown, WorkerMessage { body: None });
    let longer = WorkerMessage::decode(&[0x2a, 0x05, 0x08, 0x07, 0xba, 0x3e, 0x00][..]).unwrap();
    assert_eq!(longer, WorkerMessage::from(Body::Heartbeat(Heartbeat { seq: 7, ..Heartbeat::default() })));
    let strange = AttemptId::new("../../etc", u32::MAX);
    let never = AttemptId::new("job_00000000000000000000000009", 1);
    let status =
        |attempt| berth_proto::Status { attempt, phase: 77, metered_ms: i64::MAX, ..Default::default() };
    let log = |attempt| Log { attempt, offset: u64::MAX, data: b"x".to_vec().into(), ..Log::default() };
    let mut messages = vec![unknown, Body::Hello(Hello::default()).into()];
    messages.extend([None, Some(strange), Some(never)].into_iter().flat_map(|attempt| {
        [Body::Status(status(attempt.clone())), Body::Log(log(attempt))].map(WorkerMessage::from)
    }));
    messages.push(Body::Samples(Samples { at_micros: i64::MIN, ..Samples::default() }).into());
    messages.push(Body::Probe(Probe { nonce: u64::MAX }).into());
    messages.push(longer);
    for message in messages {
        played.up.send(message).unwrap();
    }
    // The answer to the last message shows that all messages were handled.
    loop {
        match played.next(true).await.unwrap() {
            Some(PortalMessage { body: Some(portal_message::Body::HeartbeatAck(ack)) }) => {
                assert_eq!(ack.seq, 7);
                break;
            }
            Some(_) => {}
            None => panic!("the session ended"),
        }
    }
    assert_eq!(get_node(&setup, &credentials.node).await["state"], "ready");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_renewed_while_a_job_runs() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::sqlite(&dir.path().join("berth.db")).await.unwrap();
    let t = TestPortal::with(db, |settings| Settings { node_certificate_s: 6, ..settings });
    let mut setup = without_worker_on(t).await;
    let token = setup.join_token(json!({})).await;
    setup.start_worker(Some(&token)).unwrap();
    setup.t.add_price_and_credit(&setup.operator, &setup.org, 1_000_000_000).await;
    let job = setup
        .submit_script(
            "echo $$; i=0; while [ $i -lt 120 ]; do echo line $i; i=$((i+1)); sleep 0.1; done; echo $$",
        )
        .await;
    setup.until(&job, |j| j["state"] == "running").await;
    let kept = || std::fs::read_to_string(setup.data.join("identity.json")).unwrap();
    let before = kept();
    eventually("a renewed certificate", async || (kept() != before).then_some(())).await;
    let serials = setup.t.get(&setup.operator, "/operator/nodes").await.expect(200);
    assert_eq!(serials["items"].as_array().unwrap().len(), 1, "it is the same node: {serials}");
    let done = setup.until_ended(&job).await;
    assert_eq!((&done["state"], &done["attempt"]), (&json!("succeeded"), &json!(1)), "{done}");
    let log = String::from_utf8(setup.whole_log(&job).await).unwrap();
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines.len(), 122, "no line is lost or repeated");
    assert_eq!(lines[0], lines[121], "it is the same process");
    setup.assert_settled(&done).await;
    setup.until_all_free().await;
    let mode = std::fs::metadata(setup.data.join("identity.json")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cloned_host_is_detected_and_the_original_rejoins_with_its_job() {
    let mut setup = WorkerPortal::open().await;
    let job = setup.submit(json!({"script": "sleep 12", "max_duration_s": 600})).await;
    setup.until(&job, |j| j["state"] == "running").await;
    setup.worker.as_mut().unwrap().kill();
    let copied = setup.t.data.path().join("copied");
    std::fs::create_dir(&copied).unwrap();
    for file in ["identity.json", "starts.json"] {
        std::fs::copy(setup.data.join(file), copied.join(file)).unwrap();
    }
    setup.start_worker(None).unwrap();
    let state =
        async || setup.t.get(&setup.operator, "/operator/nodes").await.expect(200)["items"][0].clone();
    eventually("the node to be back", async || (state().await["state"] == "ready").then_some(())).await;
    let mut copy = Worker::start(&setup.address, &copied, "1xH100-80GB", None);
    copy.wait_until_joined().unwrap();
    eventually("the copy to be noticed", async || state().await["suspect"].as_str().map(|_| ())).await;
    copy.kill();
    let node = state().await["id"].as_str().unwrap().to_owned();
    let path = format!("/operator/nodes/{node}/revoke");
    setup.t.post(&setup.operator, &path, Value::Null).await.expect(200);
    let token = rejoin_token(&setup, &node).await;
    setup.worker.as_mut().unwrap().kill();
    setup.start_worker(Some(&token)).unwrap();
    let done = setup.until_ended(&job).await;
    assert_eq!((&done["state"], &done["attempt"]), (&json!("succeeded"), &json!(1)), "{done}");
    assert!(
        setup.t.get(&setup.operator, "/operator/nodes").await.expect(200)["items"][0]
            .get("suspect")
            .is_none()
    );
    setup.assert_settled(&done).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn statuses_sent_at_once_are_applied_together_and_in_order() {
    let setup = without_worker().await;
    setup.t.add_price_and_credit(&setup.operator, &setup.org, 1_000_000_000).await;
    let price = json!({"offering": "h100-80gb", "per_hour_micros": 3_600_000});
    setup.t.post(&setup.operator, "/operator/prices", price).await.expect(201);
    let credentials = join_new_node(&setup).await;
    let (uuid, name) = ("GPU-1".to_owned(), "H100-80GB".to_owned());
    let board = Board { uuid, name, memory_mib: 81_920, ..Board::default() };
    let (instance, boards) = ("a".to_owned(), vec![board]);
    let hello = Hello { instance, epoch: 1, connection: 1, simulated: true, boards, ..Hello::default() };
    let mut played = PlayedSession::open_with_hello(&setup, Some(&credentials), hello).await.unwrap();
    let mut jobs = Vec::new();
    for _ in 0..20 {
        jobs.push(setup.submit(json!({"offering": "h100-80gb", "gpu_milli": 50, "command": ["true"]})).await);
    }
    let wanted = played.desired(20).await;
    for one in &wanted {
        assert_eq!((one.slots.len(), one.slots[0].share_milli), (1, 50));
        assert_eq!(one.spec.as_ref().unwrap().command, ["true"]);
    }
    let mut seq = 0;
    for phase in [Phase::Preparing, Phase::Running, Phase::Ended, Phase::Clean] {
        let ended = matches!(phase, Phase::Ended | Phase::Clean);
        for one in &wanted {
            seq += 1;
            let status = berth_proto::Status {
                seq,
                attempt: one.attempt.clone(),
                phase: phase.into(),
                metered_ms: 2_000,
                exit_code: ended.then_some(0),
                log_bytes: ended.then_some(0),
                ..berth_proto::Status::default()
            };
            played.up.send(Body::Status(status).into()).unwrap();
        }
    }
    let mut left: HashSet<u64> = (1..=seq).collect();
    while !left.is_empty() {
        let ack = played
            .next_matching(
                |body| if let portal_message::Body::StatusAck(ack) = body { Some(ack) } else { None },
            )
            .await;
        assert!(left.remove(&ack.seq), "{ack:?} comes twice");
    }
    // Acknowledged statuses are durable, and ended attempts are not desired any more.
    for job in &jobs {
        let done = setup.job(job).await;
        assert_eq!((&done["state"], &done["metered_ms"]), (&json!("succeeded"), &json!(2_000)), "{done}");
        setup.assert_settled(&done).await;
        let events =
            setup.t.get(&setup.ada, &format!("/orgs/{}/jobs/{job}/events", setup.org)).await.expect(200);
        let states: Vec<&str> =
            events["items"].as_array().unwrap().iter().map(|e| e["state"].as_str().unwrap()).collect();
        assert_eq!(states, ["queued", "assigned", "starting", "running", "succeeded"]);
    }
    played.desired(0).await;
}

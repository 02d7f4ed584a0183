//! How workers prove who they are and what is made of what they say: over real sockets, with daemons played
//! by the test and with real ones.

use std::collections::HashSet;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use crate::common::TestPortal;
use crate::daemons::{Holder, Talk, audited, join, joined, node_token, request, the_node, way};
use crate::quay::{Quay, Worker, eventually, portal, portal_on};
use berth_fleet::authority::Authority;
use berth_foundation::Settings;
use berth_proto::portal_client::PortalClient;
use berth_proto::{
    AttemptId, Board, Down, Heartbeat, Hello, JoinRequest, Log, Message as _, Phase, Probe, RenewRequest,
    Samples, Up, down, up,
};
use berth_store::Db;
use berth_worker::identity;
use berth_worker::tls::Way;
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tonic::{Code, Status};

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_good_once_for_its_time_and_its_node() {
    let quay = portal().await;
    let refused = |answer: Result<Holder, Status>, why: &str| {
        let status = answer.err().unwrap();
        assert_eq!(status.code(), Code::PermissionDenied);
        assert!(status.message().contains(why), "{status:?}");
    };
    refused(join(&quay, "guess", "").await, "never existed");
    let token = quay.join_token(json!({})).await;
    let first = join(&quay, &token, "").await.unwrap();
    refused(join(&quay, &token, "").await, "used already");
    let late = quay.join_token(json!({"valid_s": 60})).await;
    quay.t.clock.advance_s(61);
    refused(join(&quay, &late, "").await, "has expired");
    let fresh = quay.join_token(json!({})).await;
    refused(join(&quay, &fresh, &first.node).await, "already");
    let second = join(&quay, &fresh, "").await.unwrap();
    assert_ne!(first.node, second.node, "the refusal has not spent it");
    let own = node_token(&quay, &first.node).await;
    refused(join(&quay, &own, &second.node).await, "It is for");
    let again = join(&quay, &own, &first.node).await.unwrap();
    assert_eq!(again.node, first.node);
    // Whoever held a certificate of the node before is out.
    let status = Talk::open(&quay, Some(&first), ("a", 1, 1)).await.err().unwrap();
    assert_eq!(status.code(), Code::PermissionDenied);
    Talk::open(&quay, Some(&again), ("a", 1, 1)).await.unwrap().let_in().await;
    let mut client = PortalClient::new(way(&quay, None).connect().await.unwrap());
    let token = quay.join_token(json!({})).await;
    let bad = JoinRequest { token, name: "x".to_owned(), csr: vec![1, 2, 3], node: String::new() };
    assert_eq!(client.join(bad).await.unwrap_err().code(), Code::PermissionDenied);
    let path = "/operator/nodes/node_00000000000000000000000009/join-token";
    quay.t.post(&quay.operator, path, json!({})).await.problem(404, "object.not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_this_portals_certificate_only_joining_is_open() {
    let quay = portal().await;
    let status = Talk::open(&quay, None, ("a", 1, 1)).await.err().unwrap();
    assert_eq!(status.code(), Code::Unauthenticated);
    let mut client = PortalClient::new(way(&quay, None).connect().await.unwrap());
    let status = client.renew(RenewRequest { csr: request().1 }).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
    let long = berth_proto::Piece { data: vec![0; 1 << 20], ..berth_proto::Piece::default() };
    let status = client.keep(long).await.unwrap_err();
    assert_ne!(status.code(), Code::Unauthenticated, "a stranger's long message is not read to its end");

    let holder = joined(&quay).await;
    let node = holder.node.parse().unwrap();
    let until = quay.t.portal.context.now().plus_seconds(3_600);
    let elsewhere = tempfile::tempdir().unwrap();
    let stranger = Authority::open(elsewhere.path(), quay.t.portal.context.now()).unwrap();
    let (key, csr) = request();
    let chain = |authority: &Authority| {
        let issued = authority.certify(&csr, node, [7; 16], until).unwrap();
        issued.chain.iter().map(|c| c.to_vec()).collect::<Vec<_>>()
    };
    let forged = Holder { node: holder.node.clone(), chain: chain(&stranger), key: key.clone() };
    let status = Talk::open(&quay, Some(&forged), ("a", 1, 1)).await.err().unwrap();
    assert_ne!(status.code(), Code::PermissionDenied, "it does not come so far: {status:?}");
    // Signed by this portal's key, but not known to it: as after a theft of the key.
    let unknown = Holder {
        node: holder.node.clone(),
        chain: chain(&quay.t.portal.enrolment.authority().unwrap()),
        key,
    };
    let status = Talk::open(&quay, Some(&unknown), ("a", 1, 1)).await.err().unwrap();
    assert_eq!(status.code(), Code::PermissionDenied);
    assert!(status.message().contains("issued no such"), "{status:?}");

    let endpoint = identity::endpoint(&quay.address).unwrap();
    let error = Way::new(endpoint, &stranger.fingerprint(), None).unwrap().connect().await.unwrap_err();
    assert!(error.contains("UnknownIssuer"), "a worker believes no other portal: {error}");
    Talk::open(&quay, Some(&holder), ("a", 1, 1)).await.unwrap().let_in().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_older_than_tls_13_is_spoken() {
    let quay = portal().await;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(quay.t.portal.enrolment.authority().unwrap().certificate().clone()).unwrap();
    let address = quay.address.trim_start_matches("https://").to_owned();
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
async fn a_certificate_ends_and_a_session_with_it() {
    let quay = portal().await;
    let holder = joined(&quay).await;
    let talk = Talk::open(&quay, Some(&holder), ("a", 1, 1)).await.unwrap().let_in().await;
    let (key, csr) = request();
    let mut client = PortalClient::new(way(&quay, Some(&holder)).connect().await.unwrap());
    quay.t.clock.advance_s(20 * 3_600);
    let renewed = Holder::of(client.renew(RenewRequest { csr }).await.unwrap().into_inner(), key);
    assert_eq!(renewed.node, holder.node);
    quay.t.clock.advance_s(5 * 3_600);
    let status = talk.lives().await.unwrap().unwrap_err();
    assert!(status.message().contains("has expired"), "{status:?}");
    Talk::open(&quay, Some(&holder), ("a", 1, 2)).await.err().unwrap();
    assert!(client.renew(RenewRequest { csr: request().1 }).await.is_err(), "on a connection from before");
    Talk::open(&quay, Some(&renewed), ("a", 1, 3)).await.unwrap().let_in().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_node_is_out_at_once() {
    let quay = portal().await;
    let holder = joined(&quay).await;
    let pending = node_token(&quay, &holder.node).await;
    let talk = Talk::open(&quay, Some(&holder), ("a", 1, 1)).await.unwrap().let_in().await;
    assert_eq!(the_node(&quay, &holder.node).await["state"], "ready");
    let seen = quay.t.get(&quay.ada, &format!("/orgs/{}/nodes", quay.org)).await.expect(200);
    assert!(seen["items"][0].get("certified_until").is_none(), "tenants are not told: {seen}");
    let session = talk.lives();
    let path = format!("/operator/nodes/{}/revoke", holder.node);
    quay.t.post(&quay.ada, &path, Value::Null).await.problem(404, "object.not_found");
    let node = quay.t.post(&quay.operator, &path, Value::Null).await.expect(200);
    assert!(node.get("certified_until").is_none(), "{node}");
    assert_eq!(node["state"], "unreachable");
    // Its end, or why: either way the next attempt hears the reason.
    let _ = tokio::time::timeout(Duration::from_secs(3), session).await.unwrap().unwrap();
    let status = Talk::open(&quay, Some(&holder), ("a", 1, 2)).await.err().unwrap();
    assert_eq!(status.code(), Code::PermissionDenied);
    assert!(status.message().contains("was revoked"), "{status:?}");
    let mut client = PortalClient::new(way(&quay, Some(&holder)).connect().await.unwrap());
    let status = client.renew(RenewRequest { csr: request().1 }).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
    assert!(join(&quay, &pending, "").await.is_err(), "tokens for it are void too");
    assert_eq!(audited(&quay, "node.revoked", &holder.node).await, 1);
    let back = join(&quay, &node_token(&quay, &holder.node).await, &holder.node).await.unwrap();
    let _back = Talk::open(&quay, Some(&back), ("b", 2, 1)).await.unwrap().let_in().await;
    assert_eq!(the_node(&quay, &holder.node).await["state"], "ready");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_is_noticed_and_the_first_stays() {
    let quay = portal().await;
    let holder = joined(&quay).await;
    let first = Talk::open(&quay, Some(&holder), ("a", 5, 1)).await.unwrap().let_in().await;
    let session = first.lives();
    // Both start from the same directory.
    let copy = Talk::open(&quay, Some(&holder), ("b", 5, 1)).await.unwrap().refused(true).await;
    assert_eq!(copy.code(), Code::PermissionDenied);
    assert!(copy.message().contains("Two daemons"), "{copy:?}");
    let suspect = the_node(&quay, &holder.node).await;
    assert!(suspect["suspect"].as_str().unwrap().contains("second daemon"), "{suspect}");
    assert_eq!(suspect["state"], "ready", "the first is not disturbed");
    assert!(!session.is_finished());
    // It may come again, the copy may not, however often it is restarted.
    let again = Talk::open(&quay, Some(&holder), ("a", 5, 2)).await.unwrap().let_in().await;
    let again = again.lives();
    for epoch in 6..9 {
        let copy = Talk::open(&quay, Some(&holder), ("c", epoch, 1)).await.unwrap().refused(true).await;
        assert_eq!(copy.code(), Code::PermissionDenied);
    }
    assert!(!again.is_finished());
    assert_eq!(audited(&quay, "node.cloned", &holder.node).await, 1, "told once");
    let back = join(&quay, &node_token(&quay, &holder.node).await, &holder.node).await.unwrap();
    Talk::open(&quay, Some(&back), ("d", 1, 1)).await.unwrap().let_in().await;
    assert!(the_node(&quay, &holder.node).await.get("suspect").is_none());

    // A copy of a running daemon's directory looks like its restart, but the daemon is there.
    let holder = joined(&quay).await;
    let session = Talk::open(&quay, Some(&holder), ("a", 1, 1)).await.unwrap().let_in().await.lives();
    let copy = Talk::open(&quay, Some(&holder), ("b", 2, 1)).await.unwrap().refused(true).await;
    assert!(copy.message().contains("Two daemons"), "{copy:?}");
    assert!(!session.is_finished());
    // One that is memory and all the same counts the same connections.
    let holder = joined(&quay).await;
    let session = Talk::open(&quay, Some(&holder), ("a", 1, 1)).await.unwrap().let_in().await.lives();
    let copy = Talk::open(&quay, Some(&holder), ("a", 1, 1)).await.unwrap().refused(true).await;
    assert!(copy.message().contains("Two daemons"), "{copy:?}");
    assert!(!session.is_finished());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_board_stays_with_a_connected_node_whoever_else_names_it() {
    let quay = portal().await;
    let (first, second) = (joined(&quay).await, joined(&quay).await);
    let talk = async |holder: &Holder, uuids: &[&str], connection: i64| {
        let board = |(index, uuid): (u32, &&str)| {
            let (uuid, name) = ((*uuid).to_owned(), "H100-80GB".to_owned());
            Board { index, uuid, name, memory_mib: 81_920, ..Board::default() }
        };
        let (instance, boards) = ("a".to_owned(), (0..).zip(uuids).map(board).collect());
        let hello = Hello { instance, epoch: 1, connection, simulated: true, boards, ..Hello::default() };
        Talk::begin(&quay, Some(holder), hello).await.unwrap().let_in().await
    };
    let boards = async |holder: &Holder| {
        let node = the_node(&quay, &holder.node).await;
        let boards = node["gpus"].as_array().unwrap().iter();
        boards.map(|gpu| gpu["uuid"].as_str().unwrap().to_owned()).collect::<Vec<String>>()
    };
    let left_out = async |holder: &Holder| the_node(&quay, &holder.node).await["left_out"].clone();
    let session = talk(&first, &["GPU-1"], 1).await.lives();
    for connection in 1..=2 {
        drop(talk(&second, &["GPU-1", "GPU-2"], connection).await);
        assert_eq!(boards(&first).await, ["GPU-1"]);
        assert_eq!(boards(&second).await, ["GPU-2"]);
        let why = left_out(&second).await;
        assert_eq!(why, "GPU-1 stays with played, which is connected and has reported it.");
    }
    assert!(!session.is_finished(), "the first is not disturbed");
    assert_eq!(left_out(&first).await, Value::Null);
    assert_eq!(audited(&quay, "node.boards_left_out", &second.node).await, 1, "told once");
    let seen = quay.t.get(&quay.ada, &format!("/orgs/{}/nodes", quay.org)).await.expect(200);
    assert!(!seen.to_string().contains("left_out"), "tenants are not told: {seen}");

    // With the first one gone the board is where it is said to be, and stays there.
    session.abort();
    let silent = async || the_node(&quay, &first.node).await["silence"].is_object().then_some(());
    eventually("the first to be gone", silent).await;
    let there = talk(&second, &["GPU-1", "GPU-2"], 3).await.lives();
    assert_eq!(boards(&second).await, ["GPU-1", "GPU-2"]);
    assert_eq!(left_out(&second).await, Value::Null);
    drop(talk(&first, &["GPU-1"], 2).await);
    assert_eq!(boards(&first).await, Vec::<String>::new());
    assert!(left_out(&first).await.as_str().unwrap().contains("GPU-1"));
    assert!(!there.is_finished());
}

#[tokio::test(flavor = "multi_thread")]
async fn restarts_and_broken_connections_are_no_copies() {
    let quay = portal().await;
    let holder = joined(&quay).await;
    let first = Talk::open(&quay, Some(&holder), ("a", 1, 1)).await.unwrap().let_in().await;
    // Its connection is half open: it comes again while the portal still holds the old one.
    let began = std::time::Instant::now();
    let second = Talk::open(&quay, Some(&holder), ("a", 1, 2)).await.unwrap().let_in().await;
    assert!(began.elapsed() < Duration::from_secs(2), "it is not asked about");
    // The host lost its power: nobody answers on the connection that was.
    let third = Talk::open(&quay, Some(&holder), ("b", 2, 1)).await.unwrap().let_in().await;
    drop((first, second));
    // A restart, two starts after the last that was seen.
    drop(third);
    let fourth = Talk::open(&quay, Some(&holder), ("c", 4, 1)).await.unwrap().let_in().await;
    // What was sent long ago and arrives now.
    let session = fourth.lives();
    let mut stale = Talk::open(&quay, Some(&holder), ("b", 2, 2)).await.unwrap();
    let ended = stale.next(false).await;
    assert!(matches!(ended, Ok(None)), "{ended:?}");
    assert!(!session.is_finished());
    let node = the_node(&quay, &holder.node).await;
    assert!(node.get("suspect").is_none(), "{node}");
    assert_eq!(node["state"], "ready");
}

#[tokio::test(flavor = "multi_thread")]
async fn words_of_another_version_or_of_nothing_known_are_passed_over() {
    let quay = portal().await;
    let holder = joined(&quay).await;
    let mut talk = Talk::open(&quay, Some(&holder), ("a", 1, 1)).await.unwrap().let_in().await;
    // A kind of message that this version does not know, and a known one with a field that it does not know.
    let unknown = Up::decode(&[0xba, 0x3e, 0x01, b'x'][..]).unwrap();
    assert_eq!(unknown, Up { what: None });
    let longer = Up::decode(&[0x2a, 0x06, 0xc0, 0x02, 0x07, 0xba, 0x3e, 0x00][..]).unwrap();
    assert_eq!(longer, Up::from(up::What::Heartbeat(Heartbeat { seq: 7, ..Heartbeat::default() })));
    let strange = AttemptId::new("../../etc", u32::MAX);
    let never = AttemptId::new("job_00000000000000000000000009", 1);
    let status =
        |attempt| berth_proto::Status { attempt, phase: 77, metered_ms: i64::MAX, ..Default::default() };
    let log = |attempt| Log { attempt, offset: u64::MAX, data: b"x".to_vec().into(), ..Log::default() };
    let mut words = vec![unknown, up::What::Hello(Hello::default()).into()];
    words.extend([None, Some(strange), Some(never)].into_iter().flat_map(|attempt| {
        [Up::from(up::What::Status(status(attempt.clone()))), Up::from(up::What::Log(log(attempt)))]
    }));
    words.push(up::What::Samples(Samples { at_micros: i64::MIN, ..Samples::default() }).into());
    words.push(up::What::Probe(Probe { nonce: u64::MAX }).into());
    words.push(longer);
    for word in words {
        talk.up.send(word).unwrap();
    }
    // The last is answered, so all of them were heard.
    loop {
        match talk.next(true).await.unwrap() {
            Some(Down { what: Some(down::What::Renewed(renewed)) }) => {
                assert_eq!(renewed.seq, 7);
                break;
            }
            Some(_) => {}
            None => panic!("the session ended"),
        }
    }
    assert_eq!(the_node(&quay, &holder.node).await["state"], "ready");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_renewed_under_a_running_job() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::sqlite(&dir.path().join("berth.db")).await.unwrap();
    let t = TestPortal::with(db, |settings| Settings { node_certificate_s: 6, ..settings });
    let mut quay = portal_on(t).await;
    let token = quay.join_token(json!({})).await;
    quay.start_worker(Some(&token)).unwrap();
    quay.t.stock(&quay.operator, &quay.org, 1_000_000_000).await;
    let job = quay
        .script("echo $$; i=0; while [ $i -lt 120 ]; do echo line $i; i=$((i+1)); sleep 0.1; done; echo $$")
        .await;
    quay.until(&job, |j| j["state"] == "running").await;
    let kept = || std::fs::read_to_string(quay.data.join("identity.json")).unwrap();
    let before = kept();
    eventually("a renewed certificate", async || (kept() != before).then_some(())).await;
    let serials = quay.t.get(&quay.operator, "/operator/nodes").await.expect(200);
    assert_eq!(serials["items"].as_array().unwrap().len(), 1, "it is the same node: {serials}");
    let done = quay.ended(&job).await;
    assert_eq!((&done["state"], &done["attempt"]), (&json!("succeeded"), &json!(1)), "{done}");
    let log = String::from_utf8(quay.whole_log(&job).await).unwrap();
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines.len(), 122, "no line is lost or repeated");
    assert_eq!(lines[0], lines[121], "it is the same process");
    quay.settled(&done).await;
    quay.all_free().await;
    let mode = std::fs::metadata(quay.data.join("identity.json")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copied_host_is_noticed_and_the_right_one_comes_back_with_its_work() {
    let mut quay = Quay::open().await;
    let job = quay.submit(json!({"script": "sleep 12", "max_duration_s": 600})).await;
    quay.until(&job, |j| j["state"] == "running").await;
    quay.worker.as_mut().unwrap().kill();
    let copied = quay.t.data.path().join("copied");
    std::fs::create_dir(&copied).unwrap();
    for file in ["identity.json", "starts.json"] {
        std::fs::copy(quay.data.join(file), copied.join(file)).unwrap();
    }
    quay.start_worker(None).unwrap();
    let state = async || quay.t.get(&quay.operator, "/operator/nodes").await.expect(200)["items"][0].clone();
    eventually("the node to be back", async || (state().await["state"] == "ready").then_some(())).await;
    let mut copy = Worker::start(&quay.address, &copied, "1xH100-80GB", None);
    copy.joined().unwrap();
    eventually("the copy to be noticed", async || state().await["suspect"].as_str().map(|_| ())).await;
    copy.kill();
    let node = state().await["id"].as_str().unwrap().to_owned();
    let path = format!("/operator/nodes/{node}/revoke");
    quay.t.post(&quay.operator, &path, Value::Null).await.expect(200);
    let token = node_token(&quay, &node).await;
    quay.worker.as_mut().unwrap().kill();
    quay.start_worker(Some(&token)).unwrap();
    let done = quay.ended(&job).await;
    assert_eq!((&done["state"], &done["attempt"]), (&json!("succeeded"), &json!(1)), "{done}");
    assert!(
        quay.t.get(&quay.operator, "/operator/nodes").await.expect(200)["items"][0].get("suspect").is_none()
    );
    quay.settled(&done).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_said_at_once_is_taken_in_together_and_in_its_order() {
    let quay = portal().await;
    quay.t.stock(&quay.operator, &quay.org, 1_000_000_000).await;
    let price = json!({"offering": "h100-80gb", "per_hour_micros": 3_600_000});
    quay.t.post(&quay.operator, "/operator/prices", price).await.expect(201);
    let holder = joined(&quay).await;
    let (uuid, name) = ("GPU-1".to_owned(), "H100-80GB".to_owned());
    let board = Board { uuid, name, memory_mib: 81_920, ..Board::default() };
    let (instance, boards) = ("a".to_owned(), vec![board]);
    let hello = Hello { instance, epoch: 1, connection: 1, simulated: true, boards, ..Hello::default() };
    let mut talk = Talk::begin(&quay, Some(&holder), hello).await.unwrap();
    let mut jobs = Vec::new();
    for _ in 0..20 {
        jobs.push(quay.submit(json!({"offering": "h100-80gb", "gpu_milli": 50, "command": ["true"]})).await);
    }
    let wanted = talk.desired(20).await;
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
            talk.up.send(up::What::Status(status).into()).unwrap();
        }
    }
    let mut left: HashSet<u64> = (1..=seq).collect();
    while !left.is_empty() {
        let ack = talk.heard(|said| if let down::What::Ack(ack) = said { Some(ack) } else { None }).await;
        assert!(left.remove(&ack.seq), "{ack:?} comes twice");
    }
    // What is acknowledged is durable, and what has ended here is wanted no more.
    for job in &jobs {
        let done = quay.job(job).await;
        assert_eq!((&done["state"], &done["metered_ms"]), (&json!("succeeded"), &json!(2_000)), "{done}");
        quay.settled(&done).await;
        let events =
            quay.t.get(&quay.ada, &format!("/orgs/{}/jobs/{job}/events", quay.org)).await.expect(200);
        let states: Vec<&str> =
            events["items"].as_array().unwrap().iter().map(|e| e["state"].as_str().unwrap()).collect();
        assert_eq!(states, ["queued", "assigned", "starting", "running", "succeeded"]);
    }
    talk.desired(0).await;
}

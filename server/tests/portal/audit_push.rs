//! Tests of the push of the audit log: each event at least once and in order, over failures and restarts.

use std::time::Duration;

use axum::body::Bytes;
use berth_foundation::Settings;
use berth_foundation::audit_targets::{AuditTargets, BucketTarget, SyslogTarget, WebhookTarget};
use berth_foundation::delivery::sign;
use berth_server::loops;
use berth_store::audit_marks::Mark;
use berth_store::{self as store, Db};
use berth_types::ids::AuditEventId;
use berth_types::operations::AuditDestinationKind::{self, Bucket, Syslog, Webhook};
use berth_types::quotas::{AuditContext, AuditEvent};
use futures::FutureExt;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use uuid::Uuid;

use crate::audit_chain::append;
use crate::bucket::FakeBucket;
use crate::common::{TestPortal, engines};
use crate::syslog_server::SyslogServer;
use crate::webhooks::Receiver;
use crate::worker_portal::eventually;

const SECRET: &str = "the-secret-of-the-operator";

fn portal(db: &Db, audit_targets: AuditTargets) -> TestPortal {
    TestPortal::with(db.clone(), |settings| Settings { audit_targets, ..settings })
}

fn to_webhook(url: &str) -> AuditTargets {
    let target = WebhookTarget { url: format!("{url}?key=hidden"), secret: SECRET.to_owned() };
    AuditTargets { webhook: Some(target), ..AuditTargets::default() }
}

fn to_syslog(port: u16, tls: bool, authority: Option<&std::path::Path>) -> AuditTargets {
    let authorities = authority.map(std::path::Path::to_owned);
    let target = SyslogTarget { host: "127.0.0.1".to_owned(), port, tls, authorities };
    AuditTargets { syslog: Some(target), ..AuditTargets::default() }
}

async fn mark(db: &Db, kind: AuditDestinationKind) -> Mark {
    read!(db, store::audit_marks::find, kind).unwrap_or_default()
}

fn numbers<'a>(events: impl IntoIterator<Item = &'a Value>) -> Vec<i64> {
    events.into_iter().map(|event| event["seq"].as_i64().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_gets_each_event_in_order_over_failures_and_a_restart() {
    for (engine, db, _location) in engines("push_hook").await {
        let (receiver, url) = Receiver::open(&[500, 302]).await;
        let first = portal(&db, to_webhook(&url));
        append(&db, 1..621).await;
        for _ in 0..2 {
            let error = first.portal.audit_push.deliver(Webhook).await.unwrap_err();
            assert!(error.starts_with("HTTP status "), "{engine}: {error}");
            assert_eq!(mark(&db, Webhook).await.seq, 0, "{engine}");
        }
        assert_eq!(first.portal.audit_push.deliver(Webhook).await, Ok(true), "{engine}: more events wait");
        assert_eq!(mark(&db, Webhook).await.seq, 500, "{engine}");
        drop(first);

        let next = portal(&db, to_webhook(&url));
        assert_eq!(next.portal.audit_push.deliver(Webhook).await, Ok(false), "{engine}");
        assert_eq!(next.portal.audit_push.deliver(Webhook).await, Ok(false), "{engine}: nothing is new");
        append(&db, 621..631).await;
        assert_eq!(next.portal.audit_push.deliver(Webhook).await, Ok(false), "{engine}");

        let received = receiver.received();
        assert_eq!(received.len(), 5, "{engine}");
        for (signature, body) in &received {
            let (t, v1) = signature.strip_prefix("t=").unwrap().split_once(",v1=").unwrap();
            assert_eq!(v1, sign(SECRET, t.parse().unwrap(), body), "{engine}");
        }
        let bodies = receiver.notices();
        assert_eq!((&bodies[0], &bodies[1]), (&bodies[2], &bodies[2]), "{engine}: a try repeats the batch");
        let accepted = &bodies[2..];
        let sent: Vec<&Value> = accepted.iter().flat_map(|body| body["events"].as_array().unwrap()).collect();
        assert_eq!(numbers(sent.iter().copied()), (1..=630).collect::<Vec<i64>>(), "{engine}");
        let ranges: Vec<[&Value; 2]> = accepted.iter().map(|body| [&body["first"], &body["last"]]).collect();
        assert_eq!(json!(ranges), json!([[1, 500], [501, 620], [621, 630]]), "{engine}");

        // The events are those of the API.
        let operator = next.operator().await;
        let page = next.get(&operator, "/operator/audit-events?limit=200&sort=asc").await.expect(200);
        for event in page["items"].as_array().unwrap() {
            let same = sent.iter().find(|sent| sent["id"] == event["id"]).unwrap();
            assert_eq!(*same, event, "{engine}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_without_an_answer_is_sent_again_and_writers_do_not_wait() {
    for (engine, db, _location) in engines("push_silent").await {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let first = portal(&db, to_webhook(&format!("http://{}/hook", silent.local_addr().unwrap())));
        append(&db, 1..11).await;
        let push = first.portal.audit_push.clone();
        let sending = tokio::spawn(async move { push.deliver(Webhook).await });
        let (mut stream, _) = silent.accept().await.unwrap();
        stream.read_u8().await.unwrap();
        // The request is on its way. Writers go on, and the portal ends before an answer.
        tokio::time::timeout(Duration::from_secs(30), append(&db, 11..21)).await.unwrap();
        sending.abort();
        assert!(sending.await.unwrap_err().is_cancelled(), "{engine}");
        assert_eq!(mark(&db, Webhook).await, Mark::default(), "{engine}");

        let (receiver, url) = Receiver::open(&[]).await;
        let next = portal(&db, to_webhook(&url));
        assert_eq!(next.portal.audit_push.deliver(Webhook).await, Ok(false), "{engine}");
        let bodies = receiver.notices();
        let sent = numbers(bodies[0]["events"].as_array().unwrap());
        assert_eq!(sent, (1..=20).collect::<Vec<i64>>(), "{engine}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_loop_of_a_destination_runs_after_new_events_and_shows_its_state() {
    for (engine, db, _location) in engines("push_loop").await {
        let (receiver, url) = Receiver::open(&[503]).await;
        let t = portal(&db, to_webhook(&url));
        let operator = t.operator().await;
        let (ada, _) = t.tenant("lab").await;
        let path = "/operator/audit-destinations";
        t.get(&ada, path).await.problem(404, "object.not_found");
        let before = t.get(&operator, path).await.expect(200)["items"][0].clone();
        let behind = before["events_behind"].as_i64().unwrap();
        assert!(behind > 0, "{engine}: {before}");
        assert_eq!((&before["name"], &before["seq"]), (&json!("webhook"), &json!(0)), "{engine}");
        let handles = loops::start_audit_push(&t.portal);
        // The second try follows a second after the failed one, far before the period of the loop.
        let caught_up = async || {
            let now = t.get(&operator, path).await.expect(200)["items"][0].clone();
            (now["events_behind"] == 0 && now["failing"] == false).then_some(now)
        };
        let after = eventually("the delivery of all events", async || caught_up().await).await;
        assert!(after["seq"].as_i64().unwrap() >= behind, "{engine}: {after}");
        assert_eq!(
            (&after["failing"], &after["last_error"]["detail"]),
            (&json!(false), &json!("HTTP status 503"))
        );
        assert!(after["delivered_at"].is_string(), "{engine}: {after}");
        assert!(
            !after.to_string().contains("hidden") && !after.to_string().contains(SECRET),
            "{engine}: {after}"
        );
        let so_far = receiver.received().len();
        append(&db, 1..3).await;
        eventually("the delivery of a new event", async || {
            (receiver.received().len() > so_far && caught_up().await.is_some()).then_some(())
        })
        .await;
        let loops = t.get(&operator, "/operator/loops").await.expect(200);
        let names: Vec<&str> =
            loops["items"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["audit webhook"], "{engine}");
        handles.into_iter().for_each(|handle| handle.abort());
    }
}

/// An event with characters that syslog escapes.
async fn append_odd(db: &Db) -> AuditEvent {
    let event = AuditEvent {
        id: AuditEventId::from_uuid(Uuid::from_u128(9_999)),
        at: berth_types::time::Timestamp::from_micros(1_795_000_000_000_001),
        actor: "A \"d\" \\ ] [x=\"y\"] é 😀\n<1>1".to_owned(),
        action: "quota.set".to_owned(),
        subject: "]".to_owned(),
        detail: "line\nline\u{7f}".to_owned(),
        context: AuditContext::default(),
    };
    let row = event.clone();
    let done = db.write(move |tx| {
        let row = row.clone();
        async move { store::quotas::insert_audit(tx, None, &row).await }.boxed()
    });
    done.await.unwrap();
    event
}

#[tokio::test(flavor = "multi_thread")]
async fn a_syslog_server_gets_each_event_by_the_standard_and_once_it_has_read_it() {
    for (engine, db, _location) in engines("push_syslog").await {
        let server = SyslogServer::open().await;
        let t = portal(&db, to_syslog(server.port, true, Some(&server.authority)));
        t.portal.audit_push.check().unwrap();
        append(&db, 1..521).await;
        let odd = append_odd(&db).await;
        server.refusals.store(2, std::sync::atomic::Ordering::SeqCst);
        for _ in 0..2 {
            let error = t.portal.audit_push.deliver(Syslog).await.unwrap_err();
            assert!(error.contains("did not read the whole batch"), "{engine}: {error}");
        }
        // Somebody on the way can end the connection after the last byte, but not with the end of TLS.
        server.cut_offs.store(1, std::sync::atomic::Ordering::SeqCst);
        let error = t.portal.audit_push.deliver(Syslog).await.unwrap_err();
        assert!(error.contains("without the end of TLS"), "{engine}: {error}");
        assert_eq!((server.messages().len(), mark(&db, Syslog).await.seq), (0, 0), "{engine}");
        assert_eq!(t.portal.audit_push.deliver(Syslog).await, Ok(true), "{engine}");
        assert_eq!(mark(&db, Syslog).await.seq, 500, "{engine}");
        let next = portal(&db, to_syslog(server.port, true, Some(&server.authority)));
        assert_eq!(next.portal.audit_push.deliver(Syslog).await, Ok(false), "{engine}");

        let messages = server.messages();
        let seqs: Vec<String> = messages.iter().map(|m| m.parameter("seq").unwrap().to_owned()).collect();
        assert_eq!(seqs, (1..=521).map(|seq| seq.to_string()).collect::<Vec<_>>(), "{engine}");
        for message in &messages {
            assert_eq!(
                (message.priority, message.app.as_str(), message.process.as_str()),
                (109, "berth", "-")
            );
            let json: Value = serde_json::from_str(&message.text).unwrap();
            assert_eq!(json["seq"].to_string(), message.parameter("seq").unwrap(), "{engine}");
            assert_eq!(json["at"], json!(message.at), "{engine}");
            assert_eq!(json["action"], message.message_id.as_str(), "{engine}");
        }
        let last = messages.last().unwrap();
        let json: Value = serde_json::from_str(&last.text).unwrap();
        let texts = |field: &str| json[field].as_str().unwrap().to_owned();
        assert_eq!(
            (texts("actor"), texts("detail"), texts("id")),
            (odd.actor, odd.detail, odd.id.to_string())
        );
        assert_eq!(last.parameter("actor"), Some("A \"d\" \\ ] [x=\"y\"] é 😀 <1>1"), "{engine}");
        assert_eq!(last.parameter("subject"), Some("]"), "{engine}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_syslog_server_without_trust_gets_nothing_and_one_that_does_not_read_moves_no_mark() {
    for (engine, db, _location) in engines("push_trust").await {
        append(&db, 1..4).await;
        let (server, other) = (SyslogServer::open().await, SyslogServer::open().await);
        let stranger = portal(&db, to_syslog(server.port, true, Some(&other.authority)));
        let error = stranger.portal.audit_push.deliver(Syslog).await.unwrap_err();
        assert!(error.starts_with("handshake: "), "{engine}: {error}");
        assert!(server.messages().is_empty(), "{engine}");
        let missing =
            portal(&db, to_syslog(server.port, true, Some(std::path::Path::new("/nowhere/ca.pem"))));
        assert!(missing.portal.audit_push.check().unwrap_err().contains("/nowhere/ca.pem"), "{engine}");

        let closing = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let plain = portal(&db, to_syslog(closing.local_addr().unwrap().port(), false, None));
        for _ in 0..20 {
            let push = plain.portal.audit_push.clone();
            let sending = tokio::spawn(async move { push.deliver(Syslog).await });
            drop(closing.accept().await.unwrap());
            assert!(sending.await.unwrap().is_err(), "{engine}");
        }
        assert_eq!(mark(&db, Syslog).await.seq, 0, "{engine}");
        let push = plain.portal.audit_push.clone();
        let sending = tokio::spawn(async move { push.deliver(Syslog).await });
        let (mut stream, _) = closing.accept().await.unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.unwrap();
        drop(stream);
        assert_eq!(sending.await.unwrap(), Ok(false), "{engine}");
        let frames = crate::syslog_server::split_frames(&bytes).unwrap();
        assert_eq!((frames.len(), mark(&db, Syslog).await.seq), (3, 3), "{engine}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_gets_files_of_events_and_the_checkpoints() {
    for (engine, db, _location) in engines("push_bucket").await {
        let (fake, settings) = FakeBucket::open().await;
        let targets = |settings: object_store::aws::AmazonS3Builder| {
            let target = BucketTarget { bucket: settings.into(), address: "s3://berth".to_owned() };
            AuditTargets { bucket: Some(target), ..AuditTargets::default() }
        };
        append(&db, 1..511).await;
        let stranger = portal(&db, targets(settings.clone().with_secret_access_key("another")));
        let error = stranger.portal.audit_push.deliver(Bucket).await.unwrap_err();
        assert!(!error.contains(crate::bucket::SECRET), "{engine}: {error}");
        assert_eq!(mark(&db, Bucket).await, Mark::default(), "{engine}");

        let t = portal(&db, targets(settings));
        // Each failure is known at once, and the next try is one of the push.
        fake.state().failures = 1;
        assert!(t.portal.audit_push.deliver(Bucket).await.is_err(), "{engine}");
        assert_eq!(fake.state().failures, 0, "{engine}");
        assert_eq!(mark(&db, Bucket).await, Mark::default(), "{engine}");
        t.portal.audit_log.sign().await.unwrap();
        assert_eq!(t.portal.audit_push.deliver(Bucket).await, Ok(true), "{engine}");
        let first = mark(&db, Bucket).await;
        assert_eq!((first.seq, first.checkpoint), (500, 0), "{engine}: its event is not delivered");
        assert_eq!(t.portal.audit_push.deliver(Bucket).await, Ok(false), "{engine}");
        assert_eq!(t.portal.audit_push.deliver(Bucket).await, Ok(false), "{engine}");
        let last = mark(&db, Bucket).await;
        assert_eq!((last.seq, last.checkpoint), (510, 1), "{engine}");

        let mut objects: Vec<(String, Bytes)> = fake.state().objects.clone().into_iter().collect();
        objects.sort_by(|one, other| one.0.cmp(&other.0));
        let keys: Vec<&str> = objects.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys.len(), 3, "{engine}: {keys:?}");
        assert_eq!(keys[0], "/berth/audit/checkpoints/000000000001.json", "{engine}");
        let events = "/berth/audit/events/2026-11-18";
        assert!(
            keys[1].starts_with(&format!("{events}/000000000001-000000000500_aud_")),
            "{engine}: {keys:?}"
        );
        assert!(
            keys[2].starts_with(&format!("{events}/000000000501-000000000510_aud_")),
            "{engine}: {keys:?}"
        );
        let checkpoint: Value = serde_json::from_slice(&objects[0].1).unwrap();
        let stored = read!(db, store::audit::find_last_checkpoint).unwrap();
        assert_eq!(checkpoint["signature"], json!(stored.signature), "{engine}");
        assert_eq!(checkpoint["seq"], 510, "{engine}");
        let lines = [&objects[1].1, &objects[2].1].map(|bytes| String::from_utf8(bytes.to_vec()).unwrap());
        let events: Vec<Value> = lines
            .iter()
            .flat_map(|file| file.lines())
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(numbers(&events), (1..=510).collect::<Vec<i64>>(), "{engine}");
        assert_eq!(events[509]["hash"], json!(stored.hash), "{engine}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_file_of_a_bucket_has_the_pauses_of_all_destinations() {
    for (engine, db, _location) in engines("push_bucket_loop").await {
        let (fake, settings) = FakeBucket::open().await;
        let target = BucketTarget { bucket: settings.into(), address: "s3://berth".to_owned() };
        let t = portal(&db, AuditTargets { bucket: Some(target), ..AuditTargets::default() });
        append(&db, 1..4).await;
        fake.state().failures = 2;
        let began = std::time::Instant::now();
        let handles = loops::start_audit_push(&t.portal);
        eventually("the delivery after two failures", async || {
            (mark(&db, Bucket).await.seq >= 3).then_some(())
        })
        .await;
        // Pauses of one and of two seconds, and not the minute between two files.
        assert!(began.elapsed() < Duration::from_secs(45), "{engine}: {:?}", began.elapsed());
        handles.into_iter().for_each(|handle| handle.abort());
    }
}

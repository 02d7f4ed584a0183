//! Tests of the times of a log: from the age of a worker's chunk to the stream and the text with times.

use std::io::Write;

use axum::body::{Body, to_bytes};
use axum::http::Request;
use berth_proto::{AttemptId, Board, Heartbeat, Hello, Log, portal_message, worker_message};
use berth_types::time::Timestamp;
use futures::StreamExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::common::{Caller, TestPortal, engines};
use crate::daemons::{PlayedSession, join_new_node};
use crate::idle_portal::IdlePortal;
use crate::worker_portal::{EventStream, WorkerPortal, without_worker_on};

/// A portal with a played worker that has one attempt.
struct LogSetup {
    setup: WorkerPortal,
    played: PlayedSession,
    job: String,
    attempt: Option<AttemptId>,
    /// The length of the sent log in bytes.
    length: u64,
    seq: u64,
}

impl LogSetup {
    async fn on(t: TestPortal) -> Self {
        let setup = without_worker_on(t).await;
        setup.t.add_price_and_credit(&setup.operator, &setup.org, 1_000_000_000).await;
        let price = json!({"offering": "h100-80gb", "per_hour_micros": 3_600_000});
        setup.t.post(&setup.operator, "/operator/prices", price).await.expect(201);
        let credentials = join_new_node(&setup).await;
        let (uuid, name) = ("GPU-1".to_owned(), "H100-80GB".to_owned());
        let board = Board { uuid, name, memory_mib: 81_920, ..Board::default() };
        let (instance, boards) = ("a".to_owned(), vec![board]);
        let hello = Hello { instance, epoch: 1, connection: 1, simulated: true, boards, ..Hello::default() };
        let mut played = PlayedSession::open_with_hello(&setup, Some(&credentials), hello).await.unwrap();
        let job = setup.submit(json!({"offering": "h100-80gb", "gpu_milli": 50, "command": ["true"]})).await;
        let attempt = played.desired(1).await[0].attempt.clone();
        Self { setup, played, job, attempt, length: 0, seq: 0 }
    }

    /// Sends the next bytes of the log with their age, and waits until the portal has them.
    async fn send(&mut self, text: &str, age_ms: u64) {
        let (attempt, data) = (self.attempt.clone(), text.as_bytes().to_vec().into());
        let log = Log { attempt, rank: 0, offset: self.length, data, age_ms };
        self.length += text.len() as u64;
        self.seq += 1;
        let beat = Heartbeat { seq: self.seq, ..Heartbeat::default() };
        self.played.up.send(worker_message::Body::Log(log).into()).unwrap();
        self.played.up.send(worker_message::Body::Heartbeat(beat).into()).unwrap();
        // The portal handles messages in their order.
        let seq = self.seq;
        let answer = |body| match body {
            portal_message::Body::HeartbeatAck(ack) if ack.seq == seq => Some(()),
            _ => None,
        };
        self.played.next_matching(answer).await;
    }

    /// Gets the log as a text.
    async fn text(&self, query: &str) -> String {
        let uri = format!("/api/v1/orgs/{}/jobs/{}/logs{query}", self.setup.org, self.job);
        let Caller::Cookie(cookie) = &self.setup.ada else { panic!("a person") };
        let request = Request::builder().uri(uri).header("cookie", cookie).body(Body::empty()).unwrap();
        let response = self.setup.t.router.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), 200);
        String::from_utf8(to_bytes(response.into_body(), usize::MAX).await.unwrap().to_vec()).unwrap()
    }

    /// Returns the first chunk of the stream from an offset on.
    async fn chunk(&self, from: u64) -> Value {
        let path = format!("/jobs/{}/logs?from={from}", self.job);
        let mut stream = EventStream::open(&self.setup, &path, None).await;
        serde_json::from_str(&stream.next_named("log").await.data).unwrap()
    }
}

fn numbers(column: &Value) -> Vec<i64> {
    column.as_array().unwrap().iter().map(|number| number.as_i64().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_has_the_times_of_its_output_whatever_a_worker_says() {
    for (engine, db, _location) in engines("log_times").await {
        let mut log = LogSetup::on(TestPortal::on(db)).await;
        log.send("one\n", 0).await;
        log.setup.t.clock.advance_s(100);
        // An interrupted worker sends its output late.
        log.send("two\n", 40_000).await;
        // Ages before the earlier output, before the attempt and before all time.
        log.send("th", 90_000).await;
        log.send("ree\n", 10_000_000).await;
        log.send("four\n", u64::MAX).await;
        log.send("five\n", 0).await;
        let whole = "one\ntwo\nthree\nfour\nfive\n";

        let chunk = log.chunk(0).await;
        assert_eq!((&chunk["from"], &chunk["text"]), (&json!(0), &json!(whole)), "{engine}");
        assert_eq!(numbers(&chunk["times"]["from"]), [0, 4, 19], "{engine}: {chunk}");
        let at_ms = numbers(&chunk["times"]["at_ms"]);
        // Each reading of the test's clock takes a millisecond.
        let now_ms = log.setup.t.portal.context.now().millis();
        assert!((60_000..62_000).contains(&(at_ms[1] - at_ms[0])), "{engine}: {chunk}");
        assert!((40_000..42_000).contains(&(at_ms[2] - at_ms[1])), "{engine}: {chunk}");
        assert!(at_ms[2] < now_ms, "{engine}: {chunk}");
        let rest = log.chunk(6).await;
        assert_eq!(rest["times"], json!({"from": [6, 19], "at_ms": [at_ms[1], at_ms[2]]}), "{engine}");

        let times: Vec<String> =
            at_ms.iter().map(|ms| Timestamp::from_micros(ms * 1_000).rfc3339_millis()).collect();
        let [one, two, five] = times.as_slice() else { panic!("{times:?}") };
        assert_eq!(log.text("").await, whole, "{engine}: the exact bytes");
        assert_eq!(log.text("?timestamps=false").await, whole, "{engine}");
        assert_eq!(
            log.text("?timestamps=true").await,
            format!("{one} one\n{two} two\n{two} three\n{two} four\n{five} five\n"),
            "{engine}"
        );
        assert_eq!(
            log.text("?timestamps=true&from=9").await,
            format!("hree\n{two} four\n{five} five\n"),
            "{engine}: the rest of a line has no time"
        );
        assert_eq!(log.text("?timestamps=true&from=19").await, format!("{five} five\n"), "{engine}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_is_not_before_the_assignment_of_the_attempt() {
    let t = TestPortal::sqlite().await;
    let before_ms = t.portal.context.now().millis();
    let mut log = LogSetup::on(t).await;
    log.send("early\n", u64::MAX).await;
    let chunk = log.chunk(0).await;
    let at_ms = numbers(&chunk["times"]["at_ms"]);
    assert_eq!(at_ms.len(), 1, "{chunk}");
    assert!(at_ms[0] > before_ms, "{chunk}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_without_recorded_times_comes_without_them() {
    let mut log = LogSetup::on(TestPortal::sqlite().await).await;
    log.send("one\ntwo\n", 0).await;
    let job = log.job.parse().unwrap();
    let path = log.setup.t.portal.recordings.log(job, 1, 0);
    std::fs::remove_file(path.with_extension("times")).unwrap();
    let chunk = log.chunk(0).await;
    assert!(chunk.get("times").is_none(), "{chunk}");
    assert_eq!(log.text("?timestamps=true").await, "one\ntwo\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stream_of_a_silent_log_says_so_at_once() {
    let log = LogSetup::on(TestPortal::sqlite().await).await;
    let path = format!("/jobs/{}/logs", log.job);
    let mut stream = EventStream::open(&log.setup, &path, None).await;
    assert_eq!(stream.next().await.map(|event| event.name), Some("beat".to_owned()));
}

#[tokio::test]
async fn the_text_of_a_growing_log_ends_and_breaks_off_at_the_sign_out() {
    const BYTES: usize = 4 << 20;
    let db = engines("growing_log").await.remove(0);
    let setup = IdlePortal::on(db.1).await;
    let spec = json!({"name": "train", "offering": "h100-80gb", "command": ["true"], "max_duration_s": 60});
    let made = setup.t.post(&setup.ada, &format!("/orgs/{}/jobs", setup.org), spec).await.expect(201);
    let job = made["id"].as_str().unwrap();
    // The job waits, so it has no attempt yet.
    let file = setup.t.portal.recordings.log(job.parse().unwrap(), 0, 0);
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, vec![b'a'; BYTES]).unwrap();
    let Caller::Cookie(cookie) = &setup.ada else { panic!("a person") };
    let open = async || {
        let uri = format!("/api/v1/orgs/{}/jobs/{job}/logs", setup.org);
        let request = Request::builder().uri(uri).header("cookie", cookie).body(Body::empty()).unwrap();
        let answer = setup.t.router.clone().oneshot(request).await.unwrap();
        assert_eq!(answer.status(), 200);
        let mut body = answer.into_body().into_data_stream();
        let first = body.next().await.unwrap().unwrap().len();
        (body, first)
    };
    // A part of the log is not read yet.
    let (mut body, mut received) = open().await;
    let mut longer = std::fs::File::options().append(true).open(&file).unwrap();
    longer.write_all(&vec![b'a'; BYTES]).unwrap();
    while let Some(part) = body.next().await {
        received += part.unwrap().len();
    }
    assert_eq!(received, BYTES);

    let (mut body, _) = open().await;
    setup.t.call(&setup.ada, "DELETE", "/sessions/current", Value::Null).await.expect(204);
    let broken = async {
        loop {
            match body.next().await {
                Some(Ok(_)) => {}
                Some(Err(_)) => return true,
                None => return false,
            }
        }
    };
    let broken = tokio::time::timeout(std::time::Duration::from_secs(20), broken).await;
    assert!(broken.expect("the answer goes on"), "a cut log is no whole log");
}

#[tokio::test]
async fn a_rank_or_an_attempt_that_a_job_does_not_have_is_refused() {
    for (engine, db, _location) in engines("log_ranks").await {
        let setup = IdlePortal::on(db).await;
        let spec =
            json!({"name": "train", "offering": "h100-80gb", "command": ["true"], "max_duration_s": 60});
        let jobs = format!("/orgs/{}/jobs", setup.org);
        let made = setup.t.post(&setup.ada, &jobs, spec).await.expect(201);
        let log = format!("{jobs}/{}/logs", made["id"].as_str().unwrap());
        let check = async |query: &str, refused: &str| {
            let reply = setup.t.get(&setup.ada, &format!("{log}?{query}")).await;
            if refused.is_empty() {
                reply.expect(200);
            } else {
                let problem = reply.problem(422, "request.invalid");
                assert_eq!(problem["errors"][0]["pointer"], refused, "{engine} {query}: {problem}");
            }
        };
        for (query, refused) in
            [("rank=0", ""), ("rank=1", "/rank"), ("attempt=0", ""), ("attempt=1", "/attempt")]
        {
            check(query, refused).await;
        }
        setup.t.portal.scheduler.pass().await.unwrap();
        for (query, refused) in
            [("attempt=0", "/attempt"), ("attempt=1", ""), ("attempt=2", "/attempt"), ("rank=63", "/rank")]
        {
            check(query, refused).await;
        }
    }
}

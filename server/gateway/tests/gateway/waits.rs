//! Requests that wait for a replica, and those that get another one.

use std::sync::atomic::Ordering;
use std::time::Duration;

use berth_gateway::settings::Limits;
use reqwest::StatusCode;
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::replica::{Reply, Server, Worker};
use crate::stage::{Stage, digits, eventually, limits, read_head};

const PATH: &str = "/s/kelda/digits";

#[tokio::test(flavor = "multi_thread")]
async fn a_request_wakes_a_sleeping_service() {
    let stage = Stage::new().await;
    stage.publish(vec![digits(Vec::new())], Vec::new()).await;
    let asked = tokio::spawn(stage.get(PATH).send());
    let is_reported = || async {
        let reports = stage.portal.reports.lock().unwrap();
        reports.iter().flat_map(|report| &report.loads).any(|load| load.waiting == 1)
    };
    eventually("a report of the waiting request", is_reported).await;
    let worker = Worker::start(&stage.authority, 1, &Server::whole("[4]")).await;
    stage.publish(vec![digits(vec![worker.replica])], Vec::new()).await;
    let answer = asked.await.unwrap().unwrap();
    assert_eq!((answer.status(), answer.text().await.unwrap().as_str()), (StatusCode::OK, "[4]"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_avoids_its_only_replica_goes_on_while_the_portal_is_silent() {
    let stage = Stage::new().await;
    let worker = Worker::start(&stage.authority, 1, &Server::whole("1")).await;
    stage.publish(vec![digits(vec![worker.replica])], Vec::new()).await;
    stage.portal.is_silent.store(true, Ordering::Relaxed);
    worker.status.store(2, Ordering::Relaxed);
    let asked = tokio::spawn(stage.get(PATH).send());
    eventually("the refusal", || async { worker.connections.load(Ordering::Relaxed) == 1 }).await;
    worker.status.store(0, Ordering::Relaxed);
    // A report to a silent portal lasts for ten seconds.
    let answer = tokio::time::timeout(Duration::from_secs(6), asked).await.unwrap().unwrap().unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_waits_for_a_slow_caller_has_no_failure() {
    let stage = Stage::with(Limits { first_byte: Duration::from_secs(2), ..limits() }).await;
    let server = Server::whole("1").gated();
    let worker = Worker::start(&stage.authority, 1, &server).await;
    stage.publish(vec![digits(vec![worker.replica])], Vec::new()).await;
    let mut stream = TcpStream::connect(stage.at).await.unwrap();
    let begin = format!("POST {PATH} HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nabc");
    stream.write_all(begin.as_bytes()).await.unwrap();
    assert!(read_head(&mut stream).await.starts_with("http/1.1 408"));
    let silent = stage.client.post(stage.url(PATH)).body("abc").send().await.unwrap();
    assert_eq!(silent.status(), StatusCode::GATEWAY_TIMEOUT, "the replica has the whole body");
    let counts = || {
        let uses = stage.portal.uses();
        let requests: u64 = uses.iter().map(|row| row.requests).sum();
        (requests, uses.iter().map(|row| row.errors).sum::<u64>())
    };
    eventually("both in reports", || async { counts().0 == 2 }).await;
    assert_eq!(counts(), (2, 1), "only the replica without an answer to a whole request has an error");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_a_replica_in_time_is_refused_with_a_time_to_come_back() {
    let stage = Stage::with(Limits { wait: Duration::from_millis(50), ..limits() }).await;
    stage.publish(vec![digits(Vec::new())], Vec::new()).await;
    let refused = stage.get(PATH).send().await.unwrap();
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(refused.headers().contains_key("retry-after"));
    let problem: Value = refused.json().await.unwrap();
    assert_eq!(problem["code"], "service.no_replica");
    eventually("the fault in a report", || async {
        stage.portal.faults().iter().any(|row| (row.asleep, row.unreached, row.lost) == (1, 0, 0))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_service_with_a_replica_has_no_fault_of_the_platform() {
    let stage = Stage::with(Limits { wait: Duration::from_millis(50), ..limits() }).await;
    let server = Server::whole("1").gated();
    let worker = Worker::start(&stage.authority, 1, &server).await;
    stage.publish(vec![digits(vec![worker.replica])], Vec::new()).await;
    let asked: Vec<_> = (0..4).map(|_| tokio::spawn(stage.get(PATH).send())).collect();
    eventually("the replica to be full", || async { server.count() == 4 }).await;
    let refused = stage.get(PATH).send().await.unwrap();
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    server.gate.as_ref().unwrap().add_permits(100);
    for asked in asked {
        assert_eq!(asked.await.unwrap().unwrap().status(), StatusCode::OK);
    }
    let requests = || stage.portal.uses().iter().map(|row| row.requests).sum::<u64>();
    eventually("the use in reports", || async { requests() == 4 }).await;
    assert!(stage.portal.faults().is_empty(), "a fault would be in the journal before the use");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_no_replica_has_begun_gets_another_one() {
    let stage = Stage::new().await;
    let (bad, good) = (Server::whole("bad"), Server::whole("good"));
    let first = Worker::start(&stage.authority, 1, &bad).await;
    let second = Worker::start(&stage.authority, 2, &good).await;
    stage.publish(vec![digits(vec![first.replica, second.replica])], Vec::new()).await;
    for status in [1, 2, 3] {
        first.status.store(status, Ordering::Relaxed);
        // The replica of a request is random, so requests follow until one has met the first.
        let before = first.connections.load(Ordering::Relaxed);
        while first.connections.load(Ordering::Relaxed) == before {
            let answer = stage.client.post(stage.url(PATH)).body("[1]").send().await.unwrap();
            assert_eq!(answer.text().await.unwrap(), "good", "status {status}");
        }
    }
    assert_eq!(bad.count(), 0);
    assert_eq!(stage.metric("berth_gateway_retries_total").await, Some(3.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_a_replica_has_begun_is_never_sent_again() {
    let stage = Stage::new().await;
    let server = Server::new(|_| Reply::Nothing);
    let first = Worker::start(&stage.authority, 1, &server).await;
    let second = Worker::start(&stage.authority, 2, &server).await;
    stage.publish(vec![digits(vec![first.replica, second.replica])], Vec::new()).await;
    let failed = stage.get(PATH).send().await.unwrap();
    assert_eq!(failed.status(), StatusCode::BAD_GATEWAY);
    let problem: Value = failed.json().await.unwrap();
    assert_eq!(problem["code"], "replica.broken");
    assert_eq!(server.count(), 1);
    eventually("the error in a report", || async { stage.portal.uses().iter().any(|row| row.errors == 1) })
        .await;
}

/// The faults in all reports: (asleep, unreached, lost).
fn faults(stage: &Stage) -> (u64, u64, u64) {
    let rows = stage.portal.faults();
    rows.iter().fold((0, 0, 0), |(asleep, unreached, lost), row| {
        (asleep + row.asleep, unreached + row.unreached, lost + row.lost)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_is_lost_with_its_worker_and_not_by_its_program() {
    let stage = Stage::new().await;
    let server = Server::new(|_| Reply::Nothing).gated();
    let worker = Worker::start(&stage.authority, 1, &server).await;
    stage.publish(vec![digits(vec![worker.replica])], Vec::new()).await;
    server.gate.as_ref().unwrap().add_permits(1);
    let broken = stage.get(PATH).send().await.unwrap();
    assert_eq!(broken.status(), StatusCode::BAD_GATEWAY);
    eventually("the check of the worker", || async { worker.sessions.load(Ordering::Relaxed) == 2 }).await;
    let asked = tokio::spawn(stage.get(PATH).send());
    eventually("the request at the replica", || async { server.count() == 2 }).await;
    worker.listening.abort();
    assert_eq!(asked.await.unwrap().unwrap().status(), StatusCode::BAD_GATEWAY);
    eventually("the fault in a report", || async { faults(&stage).2 > 0 }).await;
    assert_eq!(faults(&stage), (0, 0, 1), "the first fault would be in the journal before");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_port_of_a_program_is_no_fault_of_the_platform() {
    let stage = Stage::new().await;
    let worker = Worker::start(&stage.authority, 1, &Server::whole("1")).await;
    stage.publish(vec![digits(vec![worker.replica])], Vec::new()).await;
    for status in [1, 2, 3] {
        worker.status.store(status, Ordering::Relaxed);
        let refused = stage.get(PATH).send().await.unwrap();
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE, "{status}");
    }
    worker.listening.abort();
    let refused = stage.get(PATH).send().await.unwrap();
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    eventually("the fault in a report", || async { faults(&stage).1 > 0 }).await;
    assert_eq!(faults(&stage), (0, 1, 0), "those before would be in the journal before");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_left_has_its_free_replicas_in_reports_while_another_one_has_a_request() {
    let stage = Stage::new().await;
    let (one, two) = (Server::whole("1").gated(), Server::whole("2").gated());
    let first = Worker::start(&stage.authority, 1, &one).await;
    let second = Worker::start(&stage.authority, 2, &two).await;
    let (of_first, of_second) = (first.replica.id, second.replica.id);
    stage.publish(vec![digits(vec![first.replica, second.replica])], Vec::new()).await;
    let asked = tokio::spawn(stage.get(PATH).send());
    eventually("the request at a replica", || async { one.count() + two.count() == 1 }).await;
    let (server, busy, free) =
        if one.count() == 1 { (&one, of_first, of_second) } else { (&two, of_second, of_first) };
    // The service is stopped.
    stage.publish(Vec::new(), Vec::new()).await;
    let refused = stage.get(PATH).send().await.unwrap();
    assert_eq!(refused.status(), StatusCode::UNAUTHORIZED, "without a key nobody learns of services");
    let is_reported =
        |id| stage.portal.reports.lock().unwrap().iter().any(|report| report.drained.contains(&id));
    eventually("a report of the free replica", || async { is_reported(free) }).await;
    assert!(!is_reported(busy), "it has a request");
    server.gate.as_ref().unwrap().add_permits(1);
    assert_eq!(asked.await.unwrap().unwrap().status(), StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_left_without_a_request_has_its_replicas_in_reports() {
    let stage = Stage::new().await;
    let worker = Worker::start(&stage.authority, 1, &Server::whole("1")).await;
    let replica = worker.replica.id;
    stage.publish(vec![digits(vec![worker.replica])], Vec::new()).await;
    stage.publish(Vec::new(), Vec::new()).await;
    let is_reported =
        || stage.portal.reports.lock().unwrap().iter().any(|report| report.drained.contains(&replica));
    eventually("a report of its replica", || async { is_reported() }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_replicas_share_the_requests_and_a_third_part_waits() {
    let stage = Stage::new().await;
    let (one, two) = (Server::whole("1").gated(), Server::whole("2").gated());
    let first = Worker::start(&stage.authority, 1, &one).await;
    let second = Worker::start(&stage.authority, 2, &two).await;
    stage.publish(vec![digits(vec![first.replica, second.replica])], Vec::new()).await;
    let asked: Vec<_> = (0..12).map(|_| tokio::spawn(stage.get(PATH).send())).collect();
    eventually("both to be full", || async { one.count() == 4 && two.count() == 4 }).await;
    eventually("the rest to wait", || async { stage.metric("berth_gateway_waiting").await == Some(4.0) })
        .await;
    for server in [&one, &two] {
        server.gate.as_ref().unwrap().add_permits(100);
    }
    for asked in asked {
        assert_eq!(asked.await.unwrap().unwrap().status(), StatusCode::OK);
    }
    assert_eq!(one.count() + two.count(), 12);
}

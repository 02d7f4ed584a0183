//! Budgets: holds from lent blocks, and the charges that follow.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use berth_autoscaling::credit::{Account, KeyId, Period};
use berth_serving::snapshot::Replica;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::replica::{Server, Worker};
use crate::stage::{KEY, Stage, chat, eventually, key, snapshot};

const ANSWER: &str = r#"{"choices":[],"usage":{"prompt_tokens":0,"completion_tokens":10}}"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_for_ten_of_a_thousand_racing_requests_passes_exactly_ten() {
    let mut stage = Stage::new().await;
    let server = Server::whole(ANSWER);
    let worker = Worker::start(&stage.authority, 1, &server).await;
    let mut service = chat(vec![worker.replica]);
    service.nano_per_completion_token = 100;
    // Ten tokens at 100 nano-units.
    stage.portal.lender.lock().unwrap().set_budget(Account::Key(KeyId(1)), Period::InAll, Some(10_000));
    stage.publish(vec![service], vec![key(KEY)]).await;
    // A process has a limited number of open files.
    let places = Arc::new(Semaphore::new(200));
    let mut asked = JoinSet::new();
    for _ in 0..1_000 {
        let ask = json!({"model": "llama", "max_tokens": 10, "messages": []});
        let (request, places) = (stage.ask(KEY, &ask), places.clone());
        asked.spawn(async move {
            let _place = places.acquire().await.unwrap();
            let answer = request.send().await.unwrap();
            let status = answer.status().as_u16();
            if status != 200 {
                let refused: Value = answer.json().await.unwrap();
                assert_eq!(refused["error"]["code"], "budget.exceeded");
            }
            status
        });
    }
    let answered = asked.join_all().await;
    assert_eq!(answered.iter().filter(|status| **status == 200).count(), 10);
    assert_eq!(answered.iter().filter(|status| **status == 403).count(), 990);
    assert_eq!(server.count(), 10);
    let is_posted = || async { stage.portal.posted.load(Ordering::Relaxed) == 10_000 };
    eventually("the charges at the portal", is_posted).await;
    stage.stop().await;
    let uses = stage.portal.uses();
    assert_eq!(uses.iter().map(|row| row.token_nanos).sum::<u64>(), 10_000);
    assert_eq!(uses.iter().map(|row| row.requests).sum::<u64>(), 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn lent_amounts_outlast_the_portal_and_a_restart() {
    let mut stage = Stage::new().await;
    let server = Server::whole(ANSWER);
    let worker = Worker::start(&stage.authority, 1, &server).await;
    let mut service = chat(vec![worker.replica]);
    service.nano_per_completion_token = 100;
    stage.publish(vec![service], vec![key(KEY)]).await;
    let ask = json!({"model": "llama", "max_tokens": 10, "messages": []});
    assert_eq!(stage.ask(KEY, &ask).send().await.unwrap().status().as_u16(), 200);
    stage.stop().await;
    stage.portal.is_away.store(true, Ordering::Relaxed);
    stage.restart().await;
    // A block is for 16 worst cases.
    for _ in 0..8 {
        assert_eq!(stage.ask(KEY, &ask).send().await.unwrap().status().as_u16(), 200);
    }
    stage.portal.is_away.store(false, Ordering::Relaxed);
    let is_posted = || async { stage.portal.posted.load(Ordering::Relaxed) == 9_000 };
    eventually("the charges of both starts", is_posted).await;
    eventually("the use of both starts", || async {
        stage.portal.uses().iter().map(|row| row.requests).sum::<u64>() == 9
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_leaves_before_its_request_has_a_connection_pays_nothing() {
    let stage = Stage::new().await;
    let worker = Worker::start(&stage.authority, 1, &Server::whole(ANSWER)).await;
    // Its kernel accepts connections, and nobody answers.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let unreached = Replica { address: silent.local_addr().unwrap(), ..worker.replica.clone() };
    let mut service = chat(vec![unreached]);
    (service.nano_per_prompt_token, service.nano_per_completion_token) = (100, 100);
    stage.publish(vec![service.clone()], vec![key(KEY)]).await;
    let ask = json!({"model": "llama", "max_tokens": 10, "messages": []});
    let left = tokio::spawn(stage.ask(KEY, &ask).send());
    let in_flight = async || stage.metric("berth_gateway_in_flight").await;
    eventually("the choice of the replica", || async { in_flight().await == Some(1.0) }).await;
    left.abort();
    eventually("its end", || async { in_flight().await == Some(0.0) }).await;
    service.revisions[0].replicas = vec![worker.replica];
    stage.publish(vec![service], vec![key(KEY)]).await;
    assert_eq!(stage.ask(KEY, &ask).send().await.unwrap().status().as_u16(), 200);
    eventually("the use in a report", || async { !stage.portal.uses().is_empty() }).await;
    let uses = stage.portal.uses();
    let rows: Vec<(u64, u64)> = uses.iter().map(|row| (row.requests, row.token_nanos)).collect();
    assert_eq!(rows, [(1, 1_000)], "the first one would be in the journal before");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_portal_for_a_while_a_request_without_credit_is_refused_at_once() {
    let stage = Stage::new().await;
    let server = Server::whole(ANSWER);
    let worker = Worker::start(&stage.authority, 1, &server).await;
    let mut service = chat(vec![worker.replica]);
    service.nano_per_completion_token = 100;
    stage.publish(vec![service], vec![key(KEY)]).await;
    let ask = json!({"model": "llama", "max_tokens": 10, "messages": []});
    let status = async || stage.ask(KEY, &ask).send().await.unwrap().status().as_u16();
    assert_eq!(status().await, 200);
    stage.portal.is_away.store(true, Ordering::Relaxed);
    // A block is for 16 worst cases, and the next one may have come with it.
    let mut passed = 0;
    let refused = loop {
        match status().await {
            200 if passed < 32 => passed += 1,
            other => break other,
        }
    };
    assert_eq!(refused, 503, "after {passed} requests");
    // The wait for credit is over since the one before.
    let began = Instant::now();
    assert_eq!(status().await, 503);
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_number_after_a_restart_begins_the_credit_anew() {
    let mut stage = Stage::new().await;
    let server = Server::whole(ANSWER);
    let worker = Worker::start(&stage.authority, 1, &server).await;
    let mut service = chat(vec![worker.replica]);
    service.nano_per_completion_token = 100;
    stage.publish(vec![service.clone()], vec![key(KEY)]).await;
    let ask = json!({"model": "llama", "max_tokens": 10, "messages": []});
    assert_eq!(stage.ask(KEY, &ask).send().await.unwrap().status().as_u16(), 200);
    stage.stop().await;
    let mut renewed = snapshot(&stage.authority, vec![service], vec![key(KEY)]);
    renewed.gateway_number += 1;
    stage.portal.publish(renewed);
    stage.restart().await;
    let number = stage.portal.number() as f64;
    let uses = || async { stage.metric("berth_gateway_snapshot_number").await == Some(number) };
    eventually("the snapshot with the new number", uses).await;
    // More than a block of the former number has.
    for _ in 0..20 {
        assert_eq!(stage.ask(KEY, &ask).send().await.unwrap().status().as_u16(), 200);
    }
    let is_posted = || async { stage.portal.posted.load(Ordering::Relaxed) == 21_000 };
    eventually("the charges under both numbers", is_posted).await;
}

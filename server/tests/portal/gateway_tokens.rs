//! Tests of the replacement of a gateway's token, of the credit of one gateway in an hour, and of its removal.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::http::{Request, header};
use futures::stream;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tower::ServiceExt;

use crate::gateways::{Site, add_key, add_service, number, send, sites};
use crate::operations::items;

/// Adds a gateway by its route. Returns its address and its token.
async fn add(site: &Site, name: &str) -> (String, String) {
    let made = site.t.post(&site.operator, "/operator/gateways", json!({"name": name})).await.expect(201);
    let path = format!("/operator/gateways/{}", made["id"].as_str().unwrap());
    (path, made["token"].as_str().unwrap().to_owned())
}

async fn status(site: &Site, token: &str) -> u16 {
    send(&site.t.router, ("POST", "credit"), token, json!([])).await.0
}

/// An ask for a block, which is the oldest one of its gateway.
fn ask_for(site: &Site, (gateway, life, number): (u64, i64, i64), wish: u64) -> Value {
    let oldest = if number == i64::MAX { number } else { 0 };
    json!({"content": {"Ask": {"block": {"gateway": gateway, "life": life, "number": number},
        "payer": {"org": site.org, "key": 1}, "least": 1_000_000, "wish": wish, "waits": false}}, "oldest": oldest})
}

/// Asks for a block of the first gateway. Returns its size in nano-units.
async fn ask(site: &Site, token: &str, block: i64, wish: u64) -> u64 {
    let ask = ask_for(site, (1, 1, block), wish);
    let (status, _, body) = send(&site.t.router, ("POST", "credit"), token, json!([ask])).await;
    assert_eq!(status, 200, "{body}");
    body[0]["Grant"]["size"].as_u64().unwrap()
}

/// Reports a block with all of its size spent.
async fn spend(site: &Site, token: &str, block: i64, size: u64) {
    let block = json!({"gateway": 1, "life": 1, "number": block});
    let report = json!({"block": block, "size": size, "spent": size, "ending": true});
    let body = json!([{"content": {"Report": report}, "oldest": 0}]);
    assert_eq!(send(&site.t.router, ("POST", "credit"), token, body).await.0, 200);
}

#[tokio::test]
async fn a_new_token_ends_the_former_one_at_once() {
    for site in sites("gateway_rotation").await {
        let (engine, t) = (site.engine, &site.t);
        let (path, former) = add(&site, "edge-1").await;
        assert_eq!(status(&site, &former).await, 200, "{engine}");
        let token = format!("{path}/token");
        t.post(&site.owner, &token, Value::Null).await.problem(404, "object.not_found");
        let replaced = t.post(&site.operator, &token, Value::Null).await.expect(200);
        let new = replaced["token"].as_str().unwrap().to_owned();
        assert!(new.starts_with("bgw_") && new != former, "{engine}");
        assert_eq!((status(&site, &former).await, status(&site, &new).await), (401, 200), "{engine}");
        let events = items(t, &site.operator, "/operator/audit-events?action=gateway.token_replaced").await;
        let detail = "edge-1: 0 of its blocks of credit ended, 0 micro-units are free again, later charges are forgiven";
        assert_eq!((events.len(), &events[0]["detail"]), (1, &json!(detail)), "{engine}");
        assert!(!events[0].to_string().contains(&new), "{engine}");
        t.call(&site.operator, "DELETE", &path, Value::Null).await.expect(204);
        assert_eq!(status(&site, &new).await, 401, "{engine}");
        t.post(&site.operator, &token, Value::Null).await.problem(404, "object.not_found");
    }
}

#[tokio::test]
async fn a_gateway_spends_a_bounded_amount_of_an_organization_in_an_hour() {
    for site in sites("gateway_hour").await {
        let engine = site.engine;
        // A thousand units; a gateway gets at most a hundred in an hour.
        site.t.add_price_and_credit(&site.operator, &site.org, 1_000_000_000).await;
        add_key(&site.t, &site.org, 1, None).await;
        let (_, token) = add(&site, "edge-1").await;
        let limit = 100_000_000_000_u64;
        let first = ask(&site, &token, 1, 60_000_000_000).await;
        assert_eq!(first, limit / 2, "{engine}: other keys get the other half");
        spend(&site, &token, 1, first).await;
        assert_eq!(ask(&site, &token, 2, limit).await, limit / 4, "{engine}: what was spent counts");
        let (mut sizes, mut block) = (vec![limit / 4], 3);
        loop {
            let size = ask(&site, &token, block, limit).await;
            if size == 0 {
                break;
            }
            sizes.push(size);
            block += 1;
        }
        let left = limit - first - sizes.iter().sum::<u64>();
        assert!(left < 1_000_000, "{engine}: {left}");
        let listed = items(&site.t, &site.operator, "/operator/gateways").await;
        let open: u64 = sizes.iter().map(|size| size.div_ceil(1_000)).sum();
        assert_eq!(listed[0]["open_micros"], open, "{engine}");
        for (block, size) in (2..).zip(sizes) {
            spend(&site, &token, block, size).await;
        }
        assert_eq!(ask(&site, &token, block + 1, 1_000_000).await, 0, "{engine}");
        site.t.clock.advance_s(3_600);
        assert_eq!(ask(&site, &token, block + 2, 1_000_000).await, 1_000_000, "{engine}: a new hour");
    }
}

#[tokio::test]
async fn an_ask_beyond_the_amount_of_an_hour_recalls_unspent_blocks() {
    for site in sites("gateway_hour_recall").await {
        let engine = site.engine;
        site.t.add_price_and_credit(&site.operator, &site.org, 1_000_000_000).await;
        add_key(&site.t, &site.org, 1, None).await;
        let (_, token) = add(&site, "edge-1").await;
        let first = ask(&site, &token, 1, u64::MAX).await;
        assert_eq!(first, 50_000_000_000, "{engine}");
        let mut beyond = ask_for(&site, (1, 1, 2), u64::MAX);
        beyond["content"]["Ask"]["least"] = json!(60_000_000_000_u64);
        let refused = send(&site.t.router, ("POST", "credit"), &token, json!([beyond])).await.2;
        assert_eq!(refused[0]["Grant"]["size"], 0, "{engine}: nobody waits for it");
        beyond["content"]["Ask"]["waits"] = json!(true);
        let recalled = send(&site.t.router, ("POST", "credit"), &token, json!([beyond])).await.2;
        let recall = json!([{"Recall": {"block": {"gateway": 1, "life": 1, "number": 1}}}]);
        assert_eq!(recalled, recall, "{engine}");
        let mut another = beyond.clone();
        another["content"]["Ask"]["block"]["number"] = json!(3);
        let recalled = send(&site.t.router, ("POST", "credit"), &token, json!([beyond, another])).await.2;
        assert_eq!(recalled, recall, "{engine}: once for all asks");
        let report =
            json!({"block": {"gateway": 1, "life": 1, "number": 1}, "size": 0, "spent": 0, "ending": true});
        let messages = json!([{"content": {"Report": report}, "oldest": 0}, beyond]);
        let answers = send(&site.t.router, ("POST", "credit"), &token, messages).await.2;
        let granted = answers.as_array().unwrap().iter().any(|answer| {
            answer["Grant"]["block"]["number"] == 2 && answer["Grant"]["size"] == 60_000_000_000_u64
        });
        assert!(granted, "{engine}: {answers}");
    }
}

#[tokio::test]
async fn a_new_token_ends_what_a_stranger_did_with_the_former_one() {
    for site in sites("gateway_theft").await {
        let (engine, t) = (site.engine, &site.t);
        t.add_price_and_credit(&site.operator, &site.org, 100_000).await;
        add_key(t, &site.org, 1, None).await;
        let (path, stolen) = add(&site, "edge-1").await;
        let report = async |token: &str, life: i64, number: i64| {
            let body = json!({"life": life, "number": number, "version": "0.1.0", "snapshot": 1, "loads": [],
                "uses": [], "drained": []});
            send(&t.router, ("POST", "reports"), token, body).await.0
        };
        let ask = async |token: &str, block: (u64, i64, i64)| {
            let body = json!([ask_for(&site, block, 4_000_000)]);
            send(&t.router, ("POST", "credit"), token, body).await
        };
        let ahead = t.portal.context.now().plus_seconds(86_400).millis();
        for (life, expected) in [(i64::MAX, 422), (ahead + 60_000, 422), (ahead, 200)] {
            assert_eq!(report(&stolen, life, i64::MAX).await, expected, "{engine} {life}");
            assert_eq!(ask(&stolen, (1, life, i64::MAX)).await.0, expected, "{engine} {life}");
        }
        let refused = ask(&stolen, (1, i64::MAX, 1)).await.2;
        let remedy = refused["detail"].as_str().unwrap().ends_with("start it with an empty directory.");
        assert!(remedy, "{engine}: {refused}");
        let open = "SELECT CAST(COUNT(*) AS BIGINT) FROM credit_blocks WHERE NOT closed";
        assert_eq!(number(t, open).await, 1, "{engine}");
        let replaced = t.post(&site.operator, &format!("{path}/token"), Value::Null).await.expect(200);
        let new = replaced["token"].as_str().unwrap();
        assert_eq!((number(t, open).await, &replaced["open_micros"]), (0, &json!(0)), "{engine}");
        let balance = t.get(&site.owner, &format!("/orgs/{}/balance", site.org)).await.expect(200);
        assert_eq!(
            (&balance["posted_micros"], &balance["held_micros"]),
            (&json!(100_000), &json!(0)),
            "{engine}"
        );
        // The gateway has a new number, and counts from the begin.
        assert_eq!(report(new, 5, 1).await, 200, "{engine}");
        assert_eq!(number(t, "SELECT last_report FROM gateways").await, 1, "{engine}");
        assert_eq!(ask(new, (1, 5, 1)).await.0, 422, "{engine}");
        let (status, _, answer) = ask(new, (2, 5, 1)).await;
        assert_eq!((status, &answer[0]["Grant"]["size"]), (200, &json!(4_000_000)), "{engine}: {answer}");
        let result = t.portal.reconciliations.reconcile().await.unwrap();
        assert_eq!(result.mismatches, Vec::<String>::new(), "{engine}");
    }
}

#[tokio::test]
async fn a_removed_gateway_gives_its_credit_back_at_once() {
    for site in sites("gateway_removal").await {
        let (engine, t) = (site.engine, &site.t);
        t.add_price_and_credit(&site.operator, &site.org, 100_000).await;
        add_key(t, &site.org, 1, None).await;
        let (path, token) = add(&site, "edge-1").await;
        assert_eq!(ask(&site, &token, 1, 4_000_000).await, 4_000_000, "{engine}");
        let block = json!({"gateway": 1, "life": 1, "number": 1});
        let report = json!({"block": block, "size": 4_000_000, "spent": 1_000_000, "ending": false});
        let body = json!([{"content": {"Report": report}, "oldest": 0}]);
        assert_eq!(send(&t.router, ("POST", "credit"), &token, body).await.0, 200, "{engine}");
        let open = "SELECT CAST(COUNT(*) AS BIGINT) FROM credit_blocks WHERE NOT closed";
        assert_eq!(number(t, open).await, 1, "{engine}");
        t.call(&site.operator, "DELETE", &path, Value::Null).await.expect(204);
        assert_eq!(number(t, open).await, 0, "{engine}");
        let balance = t.get(&site.owner, &format!("/orgs/{}/balance", site.org)).await.expect(200);
        assert_eq!(
            (&balance["posted_micros"], &balance["held_micros"]),
            (&json!(99_000), &json!(0)),
            "{engine}: the reported part is charged"
        );
        let transfers = items(t, &site.owner, &format!("/orgs/{}/transfers", site.org)).await;
        let is_charge = |one: &Value| one["memo"] == "Tokens of services, key app-1 …abcd";
        assert!(transfers.iter().any(is_charge), "{engine}: {transfers:?}");
        let events = items(t, &site.operator, "/operator/audit-events?action=gateway.removed").await;
        let detail = "edge-1: 1 of its blocks of credit ended, 3000 micro-units are free again, later charges are forgiven";
        assert_eq!(events[0]["detail"], detail, "{engine}");
        let result = t.portal.reconciliations.reconcile().await.unwrap();
        assert_eq!(result.mismatches, Vec::<String>::new(), "{engine}");
    }
}

#[tokio::test]
async fn a_gateway_learns_its_number_after_a_new_token() {
    for site in sites("gateway_number").await {
        let (engine, t) = (site.engine, &site.t);
        let (path, former) = add(&site, "edge-1").await;
        let poll = async |token: &str, after: u64| {
            t.portal.gateway_sync.refresh_snapshot().await.unwrap();
            let path = format!("snapshot?after={after}&wait_s=0");
            let (status, _, body) = send(&t.router, ("GET", &path), token, Value::Null).await;
            (status, body["gateway_number"].clone(), body["number"].as_u64().unwrap_or(0))
        };
        let (status, gateway, first) = poll(&former, 0).await;
        assert_eq!((status, gateway), (200, json!(1)), "{engine}");
        let replaced = t.post(&site.operator, &format!("{path}/token"), Value::Null).await.expect(200);
        let new = replaced["token"].as_str().unwrap();
        let (status, gateway, second) = poll(new, first).await;
        assert_eq!((status, gateway), (200, json!(2)), "{engine}: it has the last snapshot already");
        assert_eq!(poll(new, second).await.0, 204, "{engine}: equal rows make no snapshot");
    }
}

/// Sends a report whose body comes after `during`. Returns the status, and the outcome of `during`.
async fn report_late<T>(site: &Site, token: &str, body: &Value, during: impl Future<Output = T>) -> (u16, T) {
    let (begun, begins) = oneshot::channel();
    let (release, released) = oneshot::channel::<()>();
    let text = body.to_string();
    let held = stream::once(async move {
        begun.send(()).unwrap();
        released.await.unwrap();
        Ok::<_, Infallible>(Bytes::from(text))
    });
    let request = Request::post("/api/v1/gateway/reports")
        .header(header::AUTHORIZATION, format!("Bearer {token}"))
        .body(Body::from_stream(held))
        .unwrap();
    let driven = async {
        begins.await.unwrap();
        let done = during.await;
        release.send(()).unwrap();
        done
    };
    let (answer, done) = tokio::join!(site.t.router.clone().oneshot(request), driven);
    (answer.unwrap().status().as_u16(), done)
}

#[tokio::test]
async fn a_report_of_a_former_token_counts_nothing_and_a_repeated_one_once() {
    for site in sites("gateway_held").await {
        let (engine, t) = (site.engine, &site.t);
        let (service, revision) = add_service(t, &site.org, "chat").await;
        let key = add_key(t, &site.org, 1, None).await;
        let (path, stolen) = add(&site, "edge-1").await;
        let report = |life: i64, number: i64| {
            let used = json!({"service": service, "revision": revision, "key": key, "requests": 1, "errors": 0,
                "prompt_tokens": 0, "completion_tokens": 0, "token_nanos": 0, "first_byte": []});
            json!({"life": life, "number": number, "version": "0.1.0", "snapshot": 1, "loads": [],
                "uses": [used], "drained": []})
        };
        let replace = async || {
            let replaced = t.post(&site.operator, &format!("{path}/token"), Value::Null).await.expect(200);
            replaced["token"].as_str().unwrap().to_owned()
        };
        let requests = "SELECT CAST(COALESCE(SUM(requests), 0) AS BIGINT) FROM service_use";
        let ahead = t.portal.context.now().plus_seconds(86_000).millis();
        let (status, token) = report_late(&site, &stolen, &report(ahead, 1), replace()).await;
        assert_eq!((status, number(t, requests).await), (401, 0), "{engine}");
        // An idle report brings loads, which decide the number of replicas.
        let mut idle = report(1, 1);
        idle["uses"] = json!([]);
        assert_eq!(send(&t.router, ("POST", "reports"), &token, idle.clone()).await.0, 200, "{engine}");
        idle["number"] = json!(2);
        let (status, token) = report_late(&site, &token, &idle, replace()).await;
        assert_eq!(status, 401, "{engine}");
        let life = t.portal.context.now().millis();
        // The answer is lost and the token replaced: the gateway sends the report again.
        let (first, again) = (report(life, 1), report(life, 1));
        assert_eq!(send(&t.router, ("POST", "reports"), &token, first).await.0, 200, "{engine}");
        let token = replace().await;
        for (body, expected) in [(again, 1), (report(life, 2), 2)] {
            assert_eq!(send(&t.router, ("POST", "reports"), &token, body).await.0, 200, "{engine}");
            assert_eq!(number(t, requests).await, expected, "{engine}");
        }
    }
}

#[tokio::test]
async fn the_faults_of_a_gateway_end_with_its_token() {
    for site in sites("gateway_faults").await {
        let (engine, t) = (site.engine, &site.t);
        let (service, _) = add_service(t, &site.org, "chat").await;
        let ((first, stolen), (second, other)) = (add(&site, "edge-1").await, add(&site, "edge-2").await);
        let report = async |token: &str, number: i64, (asleep, unreached, lost): (u64, u64, u64)| {
            let faults =
                json!([{"service": service, "asleep": asleep, "unreached": unreached, "lost": lost}]);
            let body = json!({"life": 1, "number": number, "version": "0.1.0", "snapshot": 1, "loads": [],
                "uses": [], "faults": faults, "drained": []});
            assert_eq!(send(&t.router, ("POST", "reports"), token, body).await.0, 200, "{engine}");
        };
        let sum = async |column: &str, table: &str| {
            number(t, &format!("SELECT CAST(COALESCE(SUM({column}), 0) AS BIGINT) FROM {table}")).await
        };
        let counted = async || (sum("refused", "service_faults").await, sum("lost", "service_faults").await);
        report(&stolen, 1, (3, 2, 1)).await;
        report(&stolen, 2, (4, 0, 0)).await;
        report(&other, 1, (0, 0, 5)).await;
        assert_eq!(counted().await, (9, 6), "{engine}");
        let replaced = t.post(&site.operator, &format!("{first}/token"), Value::Null).await.expect(200);
        assert_eq!(counted().await, (0, 5), "{engine}");
        let events = items(t, &site.operator, "/operator/audit-events?action=gateway.token_replaced").await;
        let detail = events[0]["detail"].as_str().unwrap();
        assert!(detail.ends_with(", 1 of its counts of faults by service and hour are void"), "{detail}");
        report(replaced["token"].as_str().unwrap(), 3, (7, 0, 0)).await;
        t.call(&site.operator, "DELETE", &second, Value::Null).await.expect(204);
        assert_eq!(counted().await, (7, 0), "{engine}");
        for (days, left) in [(40, 7), (2, 0)] {
            t.clock.advance_s(days * 86_400);
            t.portal.services.forget_old().await.unwrap();
            assert_eq!(sum("refused", "gateway_faults").await, left, "{engine}");
        }
    }
}

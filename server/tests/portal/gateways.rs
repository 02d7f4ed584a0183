//! Tests of the portal's side of gateways on every engine: tokens, snapshots and reports.

use std::sync::{Arc, Mutex};

use crate::common::{Caller, StoreLocation, TestPortal, engines, job};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, header};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use berth_foundation::Change;
use berth_server::portal::PortalParts;
use berth_server::{loops, rest};
use berth_services::GatewaySync;
use berth_services::gateways::{Loads, token_hash};
use berth_serving::reports::{ServiceLoad, Use};
use berth_serving::snapshot::ReplicaId;
use berth_store::{self as store, Tx};
use berth_types::ids::{GatewayId, InferenceKeyId, NodeId, RevisionId, ServiceId};
use berth_types::time::Timestamp;
use futures::FutureExt;
use hmac::{Hmac, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use tower::ServiceExt;

/// A portal with an operator and an organization.
pub struct Site {
    pub engine: &'static str,
    pub t: TestPortal,
    pub operator: Caller,
    pub owner: Caller,
    pub org: String,
    _location: StoreLocation,
}

pub async fn sites(name: &str) -> Vec<Site> {
    let mut all = Vec::new();
    for (engine, db, location) in engines(name).await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (owner, org) = t.tenant("lab").await;
        all.push(Site { engine, t, operator, owner, org, _location: location });
    }
    all
}

fn id<T: From<uuid::Uuid>>(t: &TestPortal) -> T {
    t.portal.context.new_id(t.portal.context.now())
}

/// Runs a statement.
pub async fn run(t: &TestPortal, sql: String) {
    let done = t.portal.context.db.write(move |tx| {
        let sql = sqlx::AssertSqlSafe(sql.clone());
        async move {
            match tx {
                Tx::Sqlite(c) => sqlx::query(sql).execute(&mut **c).await.map(|_| ())?,
                Tx::Postgres(c) => sqlx::query(sql).execute(&mut **c).await.map(|_| ())?,
            }
            Ok(())
        }
        .boxed()
    });
    done.await.unwrap();
}

/// The number that a query gives.
pub async fn number(t: &TestPortal, sql: &str) -> i64 {
    let mut conn = t.portal.context.db.read().await.unwrap();
    let (mut tx, sql) = (conn.tx(), sqlx::AssertSqlSafe(sql.to_owned()));
    match &mut tx {
        Tx::Sqlite(c) => sqlx::query_scalar::<_, i64>(sql).fetch_one(&mut **c).await.unwrap(),
        Tx::Postgres(c) => sqlx::query_scalar::<_, i64>(sql).fetch_one(&mut **c).await.unwrap(),
    }
}

/// Adds a gateway; returns its token.
pub async fn add_gateway(t: &TestPortal, number: u64) -> String {
    let token = format!("bgw_{number:043}");
    let (id, hash) = (id::<GatewayId>(t), token_hash(&token));
    let sql = format!(
        "INSERT INTO gateways (id, number, name, token_hash, created_at, created_by) \
         VALUES ('{id}', {number}, 'edge-{number}', '{hash}', 0, 'Ada')"
    );
    run(t, sql).await;
    token
}

/// Adds a service with a live revision.
pub async fn add_service(t: &TestPortal, org: &str, name: &str) -> (ServiceId, RevisionId) {
    let (service, revision) = (id::<ServiceId>(t), id::<RevisionId>(t));
    let models = json!([{"name": format!("llama-{name}"), "context_tokens": 4_096}]);
    let sql = format!(
        "INSERT INTO services (id, org_id, name, protocol, access, hosts, models, max_body_bytes, scaling, state, \
         created_at, created_by) VALUES ('{service}', '{org}', '{name}', 'openai', 'organization', '[]', '{models}', \
         1048576, '{{}}', 'ready', 0, 'Ada')"
    );
    run(t, sql).await;
    run(t, format!("INSERT INTO service_hosts VALUES ('{name}.example.org', '{service}')")).await;
    let sql = format!(
        "INSERT INTO host_proofs (org_id, host, proof, pending_since, confirmed_at) \
         VALUES ('{org}', '{name}.example.org', '0a', 0, 1)"
    );
    run(t, sql).await;
    let sql = format!(
        "INSERT INTO service_revisions (id, service_id, org_id, number, state, weight_percent, spec, port, \
         concurrency, created_at, created_by) VALUES ('{revision}', '{service}', '{org}', 1, 'live', 100, '{{}}', \
         8000, 4, 0, 'Ada')"
    );
    run(t, sql).await;
    (service, revision)
}

/// Adds an inference key with the budgets of a day and in all, in micro-units.
pub async fn add_key(t: &TestPortal, org: &str, number: u64, budgets: Option<(i64, i64)>) -> InferenceKeyId {
    let (id, hash) = (id::<InferenceKeyId>(t), token_hash(&format!("sk-berth-{number}")));
    let (day, all) =
        budgets.map_or(("NULL".to_owned(), "NULL".to_owned()), |(a, b)| (a.to_string(), b.to_string()));
    let sql = format!(
        "INSERT INTO inference_keys (id, number, org_id, name, secret_hash, hint, models, day_budget_micros, \
         total_budget_micros, created_at, created_by) \
         VALUES ('{id}', {number}, '{org}', 'app-{number}', '{hash}', 'abcd', '[]', {day}, {all}, 0, 'Ada')"
    );
    run(t, sql).await;
    id
}

/// Sends a request of a gateway. Its routes are in no description, so nothing compares the answer with one.
pub async fn send(
    router: &Router,
    (method, path): (&str, &str),
    token: &str,
    body: Value,
) -> (u16, HeaderMap, Value) {
    let request = Request::builder().method(method).uri(format!("/api/v1/gateway/{path}"));
    let request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
    let answer = router.clone().oneshot(request.body(body).unwrap()).await.unwrap();
    let (parts, body) = answer.into_parts();
    let bytes = to_bytes(body, usize::MAX).await.unwrap();
    (parts.status.as_u16(), parts.headers, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

async fn poll(t: &TestPortal, token: &str, after: u64, wait_s: u64) -> (u16, HeaderMap, Value) {
    let path = format!("snapshot?after={after}&wait_s={wait_s}");
    send(&t.router, ("GET", &path), token, Value::Null).await
}

/// The number of the snapshot after another one.
pub async fn poll_number(t: &TestPortal, token: &str, after: u64) -> (u64, Value) {
    let (status, _, body) = poll(t, token, after, 20).await;
    assert_eq!(status, 200, "{body}");
    (body["number"].as_u64().unwrap(), body)
}

fn key_ids(snapshot: &Value) -> Vec<&str> {
    snapshot["keys"].as_array().unwrap().iter().map(|key| key["id"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn only_a_gateway_with_its_token_is_answered() {
    for site in sites("gateway_tokens").await {
        let (engine, t) = (site.engine, &site.t);
        let token = add_gateway(t, 1).await;
        t.portal.gateway_sync.refresh_snapshot().await.unwrap();
        let long = "x".repeat(300);
        let other = format!("bgw_{:043}", 2);
        let routes = [("GET", "snapshot?wait_s=0"), ("POST", "reports"), ("POST", "credit")];
        for route in routes {
            for wrong in ["", "bgw_", "berth_x", long.as_str(), other.as_str()] {
                let (status, _, body) = send(&t.router, route, wrong, json!([])).await;
                assert_eq!((status, &body["code"]), (401, &json!("auth.required")), "{engine} {route:?}");
            }
        }
        assert_eq!(poll(t, &token, 0, 0).await.0, 200, "{engine}");
        for path in ["/me".to_owned(), format!("/orgs/{}/jobs", site.org), "/operator/nodes".to_owned()] {
            t.get(&Caller::Token(token.clone()), &path).await.problem(401, "auth.required");
        }
        // One network has some tries in a minute. The gateway in it goes on.
        let mut refused = 0;
        for _ in 0..60 {
            refused += usize::from(poll(t, &other, 0, 0).await.0 == 429);
        }
        assert_eq!(refused, 15, "{engine}");
        assert_eq!(poll(t, &token, 0, 0).await.0, 200, "{engine}");
        t.clock.advance_s(61);
        assert_eq!(poll(t, &other, 0, 0).await.0, 401, "{engine}");
        run(t, "UPDATE gateways SET removed_at = 1".to_owned()).await;
        assert_eq!(poll(t, &token, 0, 0).await.0, 401, "{engine}");
    }
}

#[tokio::test]
async fn a_poll_wakes_by_a_change_and_ends_without_one() {
    for site in sites("gateway_polls").await {
        let (engine, t, org) = (site.engine, &site.t, site.org.as_str());
        let token = add_gateway(t, 7).await;
        let (service, _) = add_service(t, org, "chat").await;
        t.portal.gateway_sync.refresh_snapshot().await.unwrap();
        let (status, headers, first) = poll(t, &token, 0, 20).await;
        assert_eq!((status, headers["berth-gateway-number"].to_str().unwrap()), (200, "7"), "{engine}");
        assert_eq!((&first["gateway_number"], &first["version"]), (&json!(7), &json!(2)), "{engine}");
        let number = first["number"].as_u64().unwrap();
        assert_eq!(poll(t, &token, number, 1).await.0, 204, "{engine}");
        t.portal.gateway_sync.refresh_snapshot().await.unwrap();
        assert_eq!(poll(t, &token, number, 0).await.0, 204, "{engine}: equal rows make no snapshot");
        loops::start_gateways(&t.portal);
        let change = async |sql: String| {
            run(t, sql).await;
            t.portal.context.publish(Change::InferenceKeys(org.parse().unwrap()));
        };
        let add = async {
            let key = add_key(t, org, 1, None).await;
            t.portal.context.publish(Change::InferenceKeys(org.parse().unwrap()));
            key
        };
        let ((number, body), key) = tokio::join!(poll_number(t, &token, number), add);
        assert_eq!(key_ids(&body), [key.to_string()], "{engine}");
        let at = t.portal.context.now().plus_seconds(-60).micros();
        change(format!("UPDATE inference_keys SET expires_at = {at}")).await;
        let (number, body) = poll_number(t, &token, number).await;
        assert_eq!(key_ids(&body).len(), 1, "{engine}: callers hear for a week that it has expired");
        t.clock.advance_s(7 * 86_400);
        t.portal.context.publish(Change::InferenceKeys(org.parse().unwrap()));
        let (number, body) = poll_number(t, &token, number).await;
        assert!(key_ids(&body).is_empty(), "{engine}: it expired long ago");
        change("UPDATE inference_keys SET expires_at = NULL".to_owned()).await;
        let (number, _) = poll_number(t, &token, number).await;
        change("UPDATE inference_keys SET revoked_at = 1".to_owned()).await;
        let (number, body) = poll_number(t, &token, number).await;
        assert!(key_ids(&body).is_empty(), "{engine}: it is revoked");
        change(format!("UPDATE services SET stopped = TRUE WHERE id = '{service}'")).await;
        let (number, body) = poll_number(t, &token, number).await;
        assert_eq!(body["services"], json!([]), "{engine}");
        let three =
            tokio::join!(poll(t, &token, number, 3), poll(t, &token, number, 3), poll(t, &token, number, 3));
        let mut statuses = [three.0.0, three.1.0, three.2.0];
        statuses.sort_unstable();
        assert_eq!(statuses, [204, 204, 429], "{engine}");
    }
}

/// Adds a node, and a job that is a ready replica there. Returns the ids of both.
async fn add_replica(site: &Site, service: ServiceId, revision: RevisionId) -> (String, NodeId) {
    let Site { t, owner, org, .. } = site;
    let submitted = t.post(owner, &format!("/orgs/{org}/jobs"), job()).await.expect(201);
    let (job, node, now) =
        (submitted["id"].as_str().unwrap().to_owned(), id::<NodeId>(t), t.portal.context.now());
    let insert = t
        .portal
        .context
        .db
        .write(move |tx| async move { store::nodes::insert(tx, node, "rack-1", now).await }.boxed());
    insert.await.unwrap();
    run(t, format!("UPDATE nodes SET address = '10.0.0.5', inference_port = 8443 WHERE id = '{node}'")).await;
    let sql = format!(
        "INSERT INTO attempts (job_id, number, rank, org_id, node_id, known, running, ended, clean, is_open, created_at) \
         VALUES ('{job}', 2, 0, '{org}', '{node}', TRUE, TRUE, FALSE, FALSE, TRUE, 0)"
    );
    run(t, sql).await;
    let since = now.micros();
    let sql = format!(
        "INSERT INTO service_replicas (job_id, service_id, revision_id, org_id, created_at, ready_attempt, ready_since) \
         VALUES ('{job}', '{service}', '{revision}', '{org}', 0, 2, {since})"
    );
    run(t, sql).await;
    (job, node)
}

/// The token of a replica, by another implementation.
fn replica_token(t: &TestPortal, text: &str) -> String {
    let file = std::fs::read_to_string(t.data.path().join("secrets.key")).unwrap();
    let mac = |key: &[u8], text: &str| {
        let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
        mac.update(text.as_bytes());
        mac.finalize().into_bytes().to_vec()
    };
    let derived = mac(&STANDARD.decode(file.trim()).unwrap(), "berth replica token 1");
    URL_SAFE_NO_PAD.encode(mac(&derived, text))
}

#[tokio::test]
async fn a_snapshot_has_the_ready_replicas_with_their_tokens() {
    for site in sites("gateway_replicas").await {
        let (t, engine) = (&site.t, site.engine);
        t.add_price_and_credit(&site.operator, &site.org, 1_000_000).await;
        let token = add_gateway(t, 1).await;
        let (service, revision) = add_service(t, &site.org, "chat").await;
        let (job, node) = add_replica(&site, service, revision).await;
        t.portal.gateway_sync.refresh_snapshot().await.unwrap();
        let (number, body) = poll_number(t, &token, 0).await;
        assert!(body["authority"].as_str().unwrap().starts_with("-----BEGIN CERTIFICATE-----\n"), "{engine}");
        let found = &body["services"][0];
        assert_eq!(found["addresses"], json!([{"prefix": "/s/lab/chat"}, {"host": "chat.example.org"}]));
        assert_eq!(found["revisions"][0]["weight_percent"], 100, "{engine}");
        assert_eq!(found["revisions"][0]["replica_protocol"], "http1", "{engine}");
        let mut replica = found["revisions"][0]["replicas"][0].clone();
        assert!(replica["ready_for_ms"].as_u64().unwrap() < 60_000, "{engine}: {replica}");
        replica["ready_for_ms"] = json!(0);
        let expected = json!({
            "id": {"job": job, "attempt": 2, "rank": 0}, "org": site.org, "node": node, "address": "10.0.0.5:8443",
            "port": 8_000, "token": replica_token(t, &format!("{job}|2|0")), "ready_for_ms": 0, "concurrency": 4,
            "draining": false,
        });
        assert_eq!(replica, expected, "{engine}");
        let mut after = number;
        for (sql, count, draining) in [
            ("UPDATE service_replicas SET draining_since = 1", 1, true),
            ("UPDATE attempts SET ended = TRUE", 0, false),
            ("UPDATE attempts SET ended = FALSE", 1, true),
            ("UPDATE service_replicas SET ready_since = NULL", 0, false),
        ] {
            run(t, sql.to_owned()).await;
            t.portal.gateway_sync.refresh_snapshot().await.unwrap();
            let (number, body) = poll_number(t, &token, after).await;
            let replicas = body["services"][0]["revisions"][0]["replicas"].as_array().unwrap();
            assert_eq!(replicas.len(), count, "{engine} {sql}");
            assert_eq!(replicas.iter().any(|one| one["draining"] == true), draining, "{engine} {sql}");
            after = number;
        }
        // A service with an unreadable revision is left out, and the others stay.
        let (other, _) = add_service(t, &site.org, "other").await;
        run(t, format!("UPDATE service_revisions SET weight_percent = 90 WHERE service_id = '{service}'"))
            .await;
        t.portal.gateway_sync.refresh_snapshot().await.unwrap();
        let (number, body) = poll_number(t, &token, after).await;
        let ids: Vec<&Value> = body["services"].as_array().unwrap().iter().map(|one| &one["id"]).collect();
        assert_eq!(ids, [&json!(other)], "{engine}");
        // Another fault of one service keeps the last snapshot in force.
        run(t, format!("UPDATE services SET max_body_bytes = 0 WHERE id = '{other}'")).await;
        let fault = t.portal.gateway_sync.refresh_snapshot().await.unwrap_err();
        assert!(fault.contains("limit of bodies"), "{engine}: {fault}");
        assert_eq!(poll_number(t, &token, 0).await.0, number, "{engine}");
    }
}

#[tokio::test]
async fn the_numbers_of_snapshots_rise_over_a_restart_and_a_clock_set_back() {
    for site in sites("gateway_numbers").await {
        let (engine, t) = (site.engine, &site.t);
        let token = add_gateway(t, 1).await;
        t.clock.advance_s(3_600);
        t.portal.gateway_sync.refresh_snapshot().await.unwrap();
        let (before, _) = poll_number(t, &token, 0).await;
        // The clock of the second portal begins an hour earlier.
        let again = TestPortal::on(t.portal.context.db.clone());
        again.portal.gateway_sync.refresh_snapshot().await.unwrap();
        let (after, _) = poll_number(&again, &token, 0).await;
        assert!(after > before, "{engine}: {after} {before}");
    }
}

/// The loads and uses that reach the loop of services.
#[derive(Default)]
struct Recorder(Mutex<Vec<String>>);

impl Loads for Recorder {
    fn seen(&self, gateway: u64, snapshot: u64, _: Timestamp) {
        self.0.lock().unwrap().push(format!("{gateway} has snapshot {snapshot}"));
    }
    fn report(&self, gateway: u64, load: ServiceLoad, _: Timestamp) {
        self.0.lock().unwrap().push(format!("{gateway} has {} and {}", load.in_flight, load.waiting));
    }
    fn drained(&self, _: u64, _: ReplicaId, _: Timestamp) {
        self.0.lock().unwrap().push("drained".to_owned());
    }
    fn evidence(&self, used: &Use) {
        self.0.lock().unwrap().push(format!("{} requests", used.requests));
    }
}

#[tokio::test]
async fn a_report_counts_once_and_its_figures_are_bounded() {
    for site in sites("gateway_reports").await {
        let (engine, t, org) = (site.engine, &site.t, site.org.as_str());
        let token = add_gateway(t, 3).await;
        let (service, revision) = add_service(t, org, "chat").await;
        let key = add_key(t, org, 1, None).await;
        let (_, stranger) = t.tenant("stranger").await;
        let foreign = add_key(t, &stranger, 2, None).await;
        let recorder = Arc::new(Recorder::default());
        let mut parts = PortalParts::clone(&t.portal);
        parts.gateway_sync =
            GatewaySync::new(parts.context.clone(), parts.enrolment.clone(), recorder.clone());
        parts.gateway_sync.refresh_snapshot().await.unwrap();
        let router = rest::router(parts.into());
        let used = |requests: u64, key: InferenceKeyId| {
            json!({"service": service, "revision": revision, "key": key, "requests": requests, "errors": 1,
                "prompt_tokens": 10, "completion_tokens": 20, "token_nanos": 30, "first_byte": [1, 2]})
        };
        let report = |life: u64, number: u64, uses: Value| {
            let unknown: ServiceId = id(t);
            json!({"life": life, "number": number, "version": "0.1.0", "snapshot": 9,
                "loads": [{"service": service, "in_flight": 4, "waiting": 2}, {"service": unknown, "in_flight": 8, "waiting": 8}],
                "uses": uses, "drained": [{"job": "job_00000000000000000000000001", "attempt": 1, "rank": 0}]})
        };
        let post = async |body: Value| send(&router, ("POST", "reports"), &token, body).await;
        let sum = async |column: &str| {
            number(t, &format!("SELECT CAST(COALESCE(SUM({column}), 0) AS BIGINT) FROM service_use")).await
        };
        for _ in 0..2 {
            let (status, _, body) = post(report(5, 1, json!([used(2, key), used(3, key)]))).await;
            assert_eq!((status, &body["counted_through"]), (200, &json!(1)), "{engine}: {body}");
        }
        assert_eq!((sum("requests").await, sum("token_nanos").await), (5, 60), "{engine}");
        let expected = ["3 has 4 and 2", "2 requests", "3 requests", "3 has snapshot 9"];
        assert_eq!(*recorder.0.lock().unwrap(), expected, "{engine}");
        assert!(number(t, "SELECT last_used_at FROM inference_keys WHERE number = 1").await > 0, "{engine}");
        // A former life, unknown and foreign objects, and figures that are not plausible.
        let unknown = json!({"service": service, "revision": id::<RevisionId>(t), "key": key, "requests": 1,
            "errors": 0, "prompt_tokens": 0, "completion_tokens": 0, "token_nanos": 0, "first_byte": []});
        for (life, number, uses) in [
            (4, 9, json!([used(1, key)])),
            (5, 2, json!([used(1, foreign), unknown, used(u64::MAX, key), used(1_000_000_000_001, key)])),
        ] {
            assert_eq!(post(report(life, number, uses)).await.0, 200, "{engine}");
            assert_eq!(sum("requests").await, 5, "{engine} {life}");
        }
        // A foreign request of the time in which the service was public.
        let public_until = t.portal.context.now().micros();
        run(t, format!("UPDATE services SET public_until = {public_until} WHERE id = '{service}'")).await;
        assert_eq!(post(report(5, 3, json!([used(1, foreign)]))).await.0, 200, "{engine}");
        assert_eq!(sum("requests").await, 6, "{engine}");
        run(t, "DELETE FROM service_use".to_owned()).await;
        for n in 1..=110 {
            assert_eq!(post(report(6, n, json!([used(1_000_000_000_000, key)]))).await.0, 200, "{engine}");
        }
        assert_eq!(sum("requests").await, 100_000_000_000_000, "{engine}");
        let with = |field: &str, value: Value| {
            let mut body = report(7, 1, json!([]));
            body[field] = value;
            body
        };
        for (body, expected) in [
            (with("version", json!("x".repeat(61))), 422),
            (with("number", json!(0)), 422),
            (with("life", json!(u64::MAX)), 422),
            (
                with("loads", json!(vec![json!({"service": service, "in_flight": 1, "waiting": 0}); 2_001])),
                400,
            ),
            (json!({"life": 1}), 400),
            (json!("x".repeat(5 << 20)), 413),
        ] {
            assert_eq!(post(body).await.0, expected, "{engine}");
        }
    }
}

//! Tests of the loop of services with the real portal and workers that the tests play: replicas are jobs, and the number,
//! the rollout and the drains follow reports.

use std::path::Path;
use std::time::Duration;

use crate::common::{TestPortal, engines};
use crate::idle_portal::IdlePortal;
use crate::operations::{items, job, schedule_all};
use crate::prepared_data::{PreparedData, serve_on_free_port, wait_for_kill};
use crate::process::eventually;
use berth_foundation::Settings;
use berth_foundation::replica_tokens::{TokenRoot, replica_token_hash};
use berth_jobs::assignments::RankStart;
use berth_jobs::reports::{AttemptPhase as Phase, AttemptReport};
use berth_serving::reports::ServiceLoad;
use berth_serving::snapshot::ReplicaId;
use berth_types::ids::{JobId, NodeId};
use berth_types::jobs::Failure;
use futures::FutureExt;
use serde_json::{Value, json};

/// The fault points of the loop.
pub const FAULTS: [&str; 1] = ["service.replica.recorded"];

pub const GATEWAY: u64 = 1;

pub fn revision(change: &Value) -> Value {
    let job = json!({"name": "x", "offering": "h100-80gb", "command": ["serve"], "max_duration_s": 7_200});
    let mut body = json!({"job": job, "port": 8_000, "ready_within_s": 30});
    body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    body
}

fn new_service(scaling: &Value, first: &Value) -> Value {
    json!({"name": "digits", "access": "public", "scaling": scaling, "revision": revision(first)})
}

impl IdlePortal {
    pub fn services_path(&self) -> String {
        format!("/orgs/{}/services", self.org)
    }

    pub async fn create_service(&self, scaling: Value, first: Value) -> String {
        let body = new_service(&scaling, &first);
        let made = self.t.post(&self.ada, &self.services_path(), body).await.expect(201);
        made["id"].as_str().unwrap().to_owned()
    }

    pub async fn service(&self, id: &str) -> Value {
        self.t.get(&self.ada, &format!("{}/{id}", self.services_path())).await.expect(200)
    }

    pub async fn patch_service(&self, id: &str, change: Value) {
        let path = format!("{}/{id}", self.services_path());
        self.t.call(&self.ada, "PATCH", &path, change).await.expect(200);
    }

    /// Lets time pass, and runs the loop and the scheduler until both have nothing to do.
    pub async fn turn(&self, seconds: i64) {
        self.t.clock.advance_s(seconds);
        for _ in 0..5 {
            self.t.portal.service_loop.run().await.unwrap();
            schedule_all(self).await;
        }
    }

    /// The jobs of replicas that have not ended, oldest first.
    pub async fn replica_jobs(&self) -> Vec<JobId> {
        let all = items(&self.t, &self.ada, &format!("/orgs/{}/jobs?limit=200", self.org)).await;
        let open =
            all.iter().filter(|job| job["created_by"] == "service digits" && job["ended_at"].is_null());
        let mut ids: Vec<JobId> = open.map(|job| job["id"].as_str().unwrap().parse().unwrap()).collect();
        ids.sort();
        ids
    }

    async fn node_of(&self, id: JobId) -> NodeId {
        let shown = job(self, &id.to_string()).await;
        let node = shown["devices"][0]["node"].as_str();
        node.unwrap_or_else(|| panic!("it has no place: {shown}")).parse().unwrap()
    }

    async fn report_replica(&self, id: JobId, report: AttemptReport) {
        let node = self.node_of(id).await;
        self.t.portal.attempts.apply_status(node, report).await.unwrap();
    }

    pub async fn runs(&self, id: JobId, ready: bool) {
        let report = AttemptReport { ready, ..AttemptReport::new(id, 1, Phase::Running) };
        self.report_replica(id, report).await;
    }

    pub async fn ends(&self, id: JobId, exit_code: i32) {
        let new = AttemptReport::new(id, 1, Phase::Clean);
        let (exit_code, log_bytes) = (Some(exit_code), Some(0));
        self.report_replica(id, AttemptReport { exit_code, log_bytes, began: true, ..new }).await;
    }

    pub async fn start(&self, id: JobId) -> RankStart {
        let ranks = self.t.portal.attempts.desired(self.node_of(id).await).await.unwrap();
        ranks.into_iter().find(|rank| rank.job == id).unwrap().start.unwrap()
    }

    /// The gateway reports this load, with the newest snapshot.
    pub fn gateway_reports(&self, service: &str, in_flight: u32, waiting: u32) {
        let (board, at) = (self.t.portal.service_loop.board(), self.t.portal.context.now());
        let load = ServiceLoad { service: service.parse().unwrap(), in_flight, waiting, begun: false };
        board.report(GATEWAY, load, at);
        board.seen(GATEWAY, u64::try_from(at.millis()).unwrap(), at);
    }

    /// A service with one ready replica.
    pub async fn live_service(&self, scaling: Value) -> (String, JobId) {
        let id = self.create_service(scaling, json!({})).await;
        self.turn(0).await;
        let replica = self.replica_jobs().await[0];
        self.runs(replica, true).await;
        self.turn(0).await;
        let shown = self.service(&id).await;
        assert_eq!(shown["state"], "ready", "{shown}");
        (id, replica)
    }

    pub async fn revision_items(&self, id: &str) -> Vec<Value> {
        items(&self.t, &self.ada, &format!("{}/{id}/revisions", self.services_path())).await
    }
}

#[tokio::test]
async fn a_replica_is_a_job_that_makes_its_service_ready() {
    for (engine, db, _location) in engines("service_ready").await {
        let setup = IdlePortal::on(db).await;
        let id = setup
            .create_service(
                json!({}),
                json!({"readiness_path": "/health", "concurrency": 4, "replica_protocol": "http2"}),
            )
            .await;
        setup.turn(0).await;
        let replicas = setup.replica_jobs().await;
        assert_eq!(replicas.len(), 1, "{engine}");
        let replica = replicas[0];
        let shown = job(&setup, &replica.to_string()).await;
        let labels = json!({"berth-service": "digits"});
        assert_eq!((&shown["name"], &shown["labels"]), (&json!("digits-r1"), &labels), "{engine}: {shown}");
        assert_eq!(setup.service(&id).await["state"], "waking", "{engine}");

        let start = setup.start(replica).await;
        assert_eq!(start.env["PORT"], "8000", "{engine}");
        let given = start.replica.unwrap();
        assert_eq!((given.port, given.readiness_path.as_str()), (8_000, "/health"), "{engine}");
        assert!(given.http2, "{engine}");
        let root = TokenRoot::derived(&setup.t.portal.context.keys().unwrap());
        assert_eq!(given.token_sha256, replica_token_hash(&root.token(replica, 1, 0)), "{engine}");
        assert!(given.max_connections >= 4, "{engine}");

        for (ready, state) in [(false, "waking"), (true, "ready"), (false, "waking"), (true, "ready")] {
            setup.runs(replica, ready).await;
            setup.turn(0).await;
            let shown = setup.service(&id).await;
            assert_eq!(shown["state"], state, "{engine}: {shown}");
            assert_eq!(shown["replicas"][0]["ready_since"].is_null(), !ready, "{engine}: {shown}");
            assert_eq!(setup.replica_jobs().await, [replica], "{engine}");
        }
        let shown = setup.service(&id).await;
        let live = &shown["revisions"][0];
        assert_eq!((&live["state"], &live["weight_percent"]), (&json!("live"), &json!(100)), "{engine}");
    }
}

#[tokio::test]
async fn an_idle_service_falls_asleep_and_the_first_request_wakes_it_at_once() {
    for (engine, db, _location) in engines("service_sleep").await {
        let setup = IdlePortal::on(db).await;
        let scaling = json!({
            "min_replicas": 0, "max_replicas": 2, "target_requests": 1,
            "up_delay_s": 0, "down_delay_s": 10, "idle_s": 60,
        });
        let (id, replica) = setup.live_service(scaling).await;
        for _ in 0..5 {
            setup.gateway_reports(&id, 0, 0);
            setup.turn(10).await;
        }
        assert_eq!(setup.service(&id).await["state"], "ready", "{engine}: its idle time has not passed");
        for _ in 0..4 {
            setup.gateway_reports(&id, 0, 0);
            setup.turn(10).await;
        }
        assert_eq!(job(&setup, &replica.to_string()).await["state"], "stopping", "{engine}");
        setup.ends(replica, 143).await;
        setup.turn(0).await;
        let shown = setup.service(&id).await;
        assert_eq!(
            (&shown["state"], &shown["replicas"]),
            (&json!("asleep"), &json!([])),
            "{engine}: {shown}"
        );
        assert_eq!(shown["decision"]["replicas"], 0, "{engine}: {shown}");

        let board = setup.t.portal.service_loop.board();
        let _ = board.changed().now_or_never();
        setup.gateway_reports(&id, 0, 1);
        assert!(board.changed().now_or_never().is_some(), "{engine}: the loop runs at once");
        setup.t.portal.service_loop.run().await.unwrap();
        let woken = setup.replica_jobs().await;
        assert_eq!(woken.len(), 1, "{engine}");
        assert_eq!(setup.service(&id).await["state"], "waking", "{engine}");

        schedule_all(&setup).await;
        setup.runs(woken[0], true).await;
        setup.gateway_reports(&id, 2, 0);
        setup.turn(0).await;
        assert_eq!(setup.replica_jobs().await.len(), 2, "{engine}: one for each request");
    }
}

#[tokio::test]
async fn a_rise_comes_at_the_end_of_its_delay() {
    for (engine, db, _location) in engines("service_rise").await {
        let setup = IdlePortal::on(db).await;
        let scaling = json!({
            "max_replicas": 2, "target_requests": 1, "up_delay_s": 3, "down_delay_s": 60, "idle_s": 60,
        });
        let (id, replica) = setup.live_service(scaling).await;
        setup.gateway_reports(&id, 4, 0);
        setup.turn(6).await;
        let pass = setup.t.portal.service_loop.run().await.unwrap();
        assert!(pass.next.is_some_and(|next| next <= Duration::from_secs(3)), "{engine}: {pass:?}");
        assert_eq!(setup.replica_jobs().await, [replica], "{engine}");
        setup.turn(3).await;
        assert_eq!(setup.replica_jobs().await.len(), 2, "{engine}: no other look is due");
    }
}

#[tokio::test]
async fn a_drained_replica_ends_after_its_last_request() {
    for (engine, db, _location) in engines("service_drain").await {
        let setup = IdlePortal::on(db).await;
        let scaling = json!({"min_replicas": 2, "max_replicas": 2});
        let (id, _) = setup.live_service_of_two(scaling).await;
        setup.turn(20).await;
        setup.gateway_reports(&id, 3, 0);
        setup.patch_service(&id, json!({"scaling": {"min_replicas": 1, "max_replicas": 1}})).await;
        setup.turn(0).await;
        let shown = setup.service(&id).await;
        let replicas = shown["replicas"].as_array().unwrap();
        let draining: Vec<&Value> = replicas.iter().filter(|r| !r["draining_since"].is_null()).collect();
        assert_eq!((replicas.len(), draining.len()), (2, 1), "{engine}: {shown}");
        let drained: JobId = draining[0]["job"].as_str().unwrap().parse().unwrap();
        for _ in 0..3 {
            setup.gateway_reports(&id, 3, 0);
            setup.turn(10).await;
            assert_eq!(job(&setup, &drained.to_string()).await["state"], "running", "{engine}");
        }
        setup.gateway_reports(&id, 3, 0);
        let replica = ReplicaId { job: drained, attempt: 1, rank: 0 };
        setup.t.portal.service_loop.board().drained(GATEWAY, replica, setup.at(0));
        setup.turn(0).await;
        assert_eq!(job(&setup, &drained.to_string()).await["state"], "stopping", "{engine}");
        assert_eq!(setup.replica_jobs().await.len(), 2, "{engine}: no other replica follows");
    }
}

impl IdlePortal {
    /// A service with two ready replicas.
    pub async fn live_service_of_two(&self, scaling: Value) -> (String, Vec<JobId>) {
        let id = self.create_service(scaling, json!({})).await;
        self.turn(0).await;
        let replicas = self.replica_jobs().await;
        assert_eq!(replicas.len(), 2);
        for replica in &replicas {
            self.runs(*replica, true).await;
        }
        self.turn(0).await;
        assert_eq!(self.service(&id).await["state"], "ready");
        (id, replicas)
    }
}

#[tokio::test]
async fn a_revision_that_does_not_start_is_rolled_back_and_the_live_one_goes_on() {
    for (engine, db, _location) in engines("service_rollback").await {
        let setup = IdlePortal::on(db).await;
        let (id, replica) = setup.live_service(json!({})).await;
        let path = format!("{}/{id}/revisions", setup.services_path());
        setup.t.post(&setup.ada, &path, revision(&json!({"note": "bad"}))).await.expect(201);
        for failure in 1..=3 {
            setup.turn(5).await;
            let all = setup.replica_jobs().await;
            assert_eq!(all.len(), 2, "{engine}, failure {failure}");
            let new = all.into_iter().find(|job| *job != replica).unwrap();
            assert_eq!(job(&setup, &new.to_string()).await["name"], "digits-r2", "{engine}");
            setup.ends(new, 1).await;
            setup.turn(0).await;
            assert_eq!(setup.replica_jobs().await, [replica], "{engine}: a pause follows failure {failure}");
        }
        setup.turn(60).await;
        assert_eq!(setup.replica_jobs().await, [replica], "{engine}: no replica follows");
        let revisions = setup.revision_items(&id).await;
        let states: Vec<&Value> = revisions.iter().map(|revision| &revision["state"]).collect();
        assert_eq!(states, ["rolled_back", "live"], "{engine}: {revisions:?}");
        let detail = revisions[0]["detail"].as_str().unwrap();
        assert!(detail.contains("exit code 1"), "{engine}: {detail}");
        assert_eq!(setup.service(&id).await["state"], "ready", "{engine}");
    }
}

#[tokio::test]
async fn a_good_revision_replaces_the_live_one_without_a_gap() {
    for (engine, db, _location) in engines("service_promotion").await {
        let setup = IdlePortal::on(db).await;
        let (id, first) = setup.live_service(json!({})).await;
        setup.turn(20).await;
        let path = format!("{}/{id}/revisions", setup.services_path());
        setup.t.post(&setup.ada, &path, revision(&json!({"note": "good"}))).await.expect(201);
        setup.turn(0).await;
        let all = setup.replica_jobs().await;
        let second = *all.iter().find(|job| **job != first).unwrap();
        assert_eq!(job(&setup, &first.to_string()).await["state"], "running", "{engine}");
        setup.runs(second, true).await;
        setup.turn(0).await;
        let shown = setup.service(&id).await;
        assert_eq!(shown["state"], "ready", "{engine}: {shown}");
        // No gateway reports, so nothing holds the drained replica.
        assert_eq!(job(&setup, &first.to_string()).await["state"], "stopping", "{engine}");
        setup.ends(first, 143).await;
        setup.turn(0).await;
        let revisions = setup.revision_items(&id).await;
        let states: Vec<&Value> = revisions.iter().map(|revision| &revision["state"]).collect();
        assert_eq!(states, ["live", "retired"], "{engine}: {revisions:?}");
    }
}

#[tokio::test]
async fn replicas_that_fail_or_are_never_ready_are_replaced_after_pauses() {
    for (engine, db, _location) in engines("service_failures").await {
        let setup = IdlePortal::on(db).await;
        let id = setup.create_service(json!({}), json!({})).await;
        setup.turn(0).await;
        let first = setup.replica_jobs().await[0];
        setup.runs(first, false).await;
        setup.turn(20).await;
        assert_eq!(job(&setup, &first.to_string()).await["state"], "running", "{engine}");
        setup.turn(15).await;
        assert_eq!(job(&setup, &first.to_string()).await["state"], "stopping", "{engine}");
        let detail = setup.service(&id).await["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains("not ready in time"), "{engine}: {detail}");
        setup.ends(first, 143).await;
        for failure in 2..=3 {
            setup.turn(5).await;
            let next = setup.replica_jobs().await;
            assert_eq!(next.len(), 1, "{engine}, failure {failure}");
            setup.ends(next[0], 1).await;
            setup.turn(0).await;
            assert!(setup.replica_jobs().await.is_empty(), "{engine}: a pause follows failure {failure}");
        }
        let shown = setup.service(&id).await;
        assert_eq!(shown["state"], "failed", "{engine}: {shown}");
        setup.turn(5).await;
        assert_eq!(setup.replica_jobs().await.len(), 1, "{engine}: it tries again");
    }
}

#[tokio::test]
async fn a_replica_that_a_person_cancels_or_a_node_loses_is_replaced_at_once() {
    for (engine, db, _location) in engines("service_cancelled").await {
        let setup = IdlePortal::on(db).await;
        let (_, first) = setup.live_service(json!({})).await;
        let path = format!("/orgs/{}/jobs/{first}/cancel", setup.org);
        setup.t.post(&setup.ada, &path, Value::Null).await.expect(202);
        setup.turn(0).await;
        let all = setup.replica_jobs().await;
        let second = *all.iter().find(|job| **job != first).unwrap();
        setup.ends(first, 143).await;
        setup.runs(second, true).await;
        setup.turn(0).await;
        assert_eq!(setup.replica_jobs().await, [second], "{engine}");

        let failure = Some(Failure { code: "node.lost".to_owned(), detail: "The node is lost.".to_owned() });
        let new = AttemptReport::new(second, 1, Phase::Ended);
        setup.report_replica(second, AttemptReport { failure, log_bytes: Some(0), began: true, ..new }).await;
        setup.turn(0).await;
        let all = setup.replica_jobs().await;
        assert!(all.len() == 1 && all[0] != second, "{engine}: {all:?}");
    }
}

#[tokio::test]
async fn a_stopped_service_has_no_replicas_until_it_goes_on_and_a_deleted_one_for_ever() {
    for (engine, db, _location) in engines("service_stopped").await {
        let setup = IdlePortal::on(db).await;
        let (id, first) = setup.live_service(json!({})).await;
        setup.patch_service(&id, json!({"stopped": true})).await;
        setup.turn(0).await;
        assert_eq!(
            job(&setup, &first.to_string()).await["state"],
            "running",
            "{engine}: a gateway may report yet"
        );
        setup.turn(20).await;
        assert_eq!(job(&setup, &first.to_string()).await["state"], "stopping", "{engine}");
        setup.ends(first, 143).await;
        setup.turn(60).await;
        assert!(setup.replica_jobs().await.is_empty(), "{engine}");
        assert_eq!(setup.service(&id).await["state"], "asleep", "{engine}");

        setup.patch_service(&id, json!({"stopped": false})).await;
        setup.turn(0).await;
        let second = setup.replica_jobs().await[0];
        setup.runs(second, true).await;
        setup.turn(0).await;
        let path = format!("{}/{id}", setup.services_path());
        setup.t.call(&setup.ada, "DELETE", &path, Value::Null).await;
        setup.turn(5).await;
        setup.turn(5).await;
        assert_eq!(job(&setup, &second.to_string()).await["state"], "stopping", "{engine}");
        setup.ends(second, 143).await;
        setup.turn(60).await;
        assert!(setup.replica_jobs().await.is_empty(), "{engine}");
        setup.assert_books_balance().await;
    }
}

#[tokio::test]
async fn a_refused_submission_is_shown_and_repeated_after_a_pause() {
    for (engine, db, _location) in engines("service_refused").await {
        let setup = IdlePortal::on(db).await;
        let long = json!({
            "name": "x", "offering": "h100-80gb", "command": ["serve"], "count": 2, "max_duration_s": 2_592_000,
        });
        let id = setup.create_service(json!({}), json!({"job": long})).await;
        // Now a month costs more than the credit.
        setup.set_price(18_000_000).await;
        setup.turn(0).await;
        assert!(setup.replica_jobs().await.is_empty(), "{engine}");
        let shown = setup.service(&id).await;
        assert_eq!(shown["state"], "failed", "{engine}: {shown}");
        assert!(
            shown["detail"].as_str().unwrap().contains("more than the available credit"),
            "{engine}: {shown}"
        );
        assert_eq!(shown["replicas"].as_array().unwrap().len(), 1, "{engine}: {shown}");
        let credit = json!({"amount_micros": 30_000_000_000_i64, "memo": "More"});
        let path = format!("/operator/orgs/{}/credits", setup.org);
        setup.t.post(&setup.operator, &path, credit).await.expect(201);
        setup.turn(300).await;
        assert_eq!(setup.replica_jobs().await.len(), 1, "{engine}");
        assert_eq!(setup.service(&id).await["state"], "waking", "{engine}");
    }
}

#[tokio::test]
async fn an_old_replica_is_replaced_before_its_end() {
    for (engine, db, _location) in engines("service_age").await {
        let setup = IdlePortal::on(db).await;
        let (_, first) = setup.live_service(json!({})).await;
        setup.turn(7_200 - 700).await;
        assert_eq!(setup.replica_jobs().await, [first], "{engine}");
        setup.turn(101).await;
        let all = setup.replica_jobs().await;
        assert_eq!(all.len(), 2, "{engine}");
        assert_eq!(job(&setup, &first.to_string()).await["state"], "running", "{engine}");
        let second = *all.iter().find(|job| **job != first).unwrap();
        setup.runs(second, true).await;
        setup.turn(0).await;
        assert_eq!(job(&setup, &first.to_string()).await["state"], "stopping", "{engine}");
    }
}

/// A portal dies after it recorded a replica: the next one submits this replica and no other.
fn replica_once(prepared: &PreparedData, data: &Path, point: &'static str) {
    wait_for_kill(&mut serve_on_free_port(data, Some(point)), point);
    let served = serve_on_free_port(data, None);
    let jobs = || prepared.items(&served, &prepared.path("jobs?limit=200"));
    let submitted = eventually(|| match jobs() {
        jobs if jobs.is_empty() => Err("no job".to_owned()),
        jobs => Ok(jobs),
    });
    assert_eq!(submitted.len(), 1, "{submitted:?}");
    assert_eq!(submitted[0]["created_by"], "service digits");
    let services = prepared.items(&served, &prepared.path("services"));
    let replicas = services[0]["replicas"].as_array().unwrap();
    let named: Vec<&Value> = replicas.iter().map(|replica| &replica["job"]).collect();
    assert_eq!(named, [&submitted[0]["id"]], "{point}");
    prepared.assert_books_balance(&served);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_exists_once_after_a_kill_before_its_submission() {
    let dir = tempfile::tempdir().unwrap();
    let secrets_key = Some(dir.path().join("secrets.key"));
    let db = crate::common::new_sqlite(&dir.path().join("berth.db")).await;
    let t = TestPortal::with(db, |settings| Settings { secrets_key, ..settings });
    PreparedData::set_clock(&t, 60).await;
    let setup = IdlePortal::with_portal(t).await;
    setup.create_service(json!({}), json!({})).await;
    let prepared = PreparedData::create(&setup.t, dir.path(), &setup.org, &setup.ada, &setup.operator).await;
    prepared.run_at_each(&FAULTS, replica_once).await;
}

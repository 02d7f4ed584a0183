//! Tests of the loop of services: the way back to a former revision, tries after a refusal, the drain of a stopped service,
//! replicas on several nodes, and nodes that cannot run a replica.

use crate::common::engines;
use crate::gateways::number;
use crate::idle_portal::{IdlePortal, node};
use crate::operations::job;
use crate::service_loop::{GATEWAY, revision};
use berth_jobs::reports::{AttemptPhase, AttemptReport};
use berth_serving::snapshot::ReplicaId;
use berth_types::ids::{JobId, NodeId};
use berth_types::jobs::Failure;
use serde_json::{Value, json};

/// A service whose second revision is live, on its way back to the first one. Returns the replica of the second one.
async fn going_back(setup: &IdlePortal) -> (String, JobId) {
    let (id, first) = setup.live_service(json!({})).await;
    setup.turn(20).await;
    let path = format!("{}/{id}", setup.services_path());
    setup.t.post(&setup.ada, &format!("{path}/revisions"), revision(&json!({}))).await.expect(201);
    setup.turn(0).await;
    let second = other_replica(setup, first).await;
    setup.runs(second, true).await;
    setup.turn(0).await;
    setup.ends(first, 143).await;
    setup.turn(0).await;
    setup.t.post(&setup.ada, &format!("{path}/rollback"), Value::Null).await.expect(200);
    (id, second)
}

/// The only other replica than this one that has not ended.
async fn other_replica(setup: &IdlePortal, known: JobId) -> JobId {
    let all = setup.replica_jobs().await;
    let others: Vec<JobId> = all.into_iter().filter(|job| *job != known).collect();
    assert_eq!(others.len(), 1, "{others:?}");
    others[0]
}

/// The state of a job.
async fn state(setup: &IdlePortal, id: JobId) -> String {
    job(setup, &id.to_string()).await["state"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_live_revision_that_a_person_left_has_the_reason() {
    for (engine, db, _location) in engines("service_left").await {
        let setup = IdlePortal::on(db).await;
        let (id, second) = going_back(&setup).await;
        setup.turn(0).await;
        let back = other_replica(&setup, second).await;
        setup.runs(back, true).await;
        setup.turn(0).await;
        let revisions = setup.revision_items(&id).await;
        let states: Vec<&Value> = revisions.iter().map(|revision| &revision["state"]).collect();
        assert_eq!(states, ["rolled_back", "live"], "{engine}: {revisions:?}");
        assert_eq!(revisions[0]["detail"], "Ada went back to revision 1.", "{engine}");
    }
}

#[tokio::test]
async fn a_way_back_that_fails_leaves_no_reason_at_the_live_revision() {
    for (engine, db, _location) in engines("service_not_left").await {
        let setup = IdlePortal::on(db).await;
        let (id, second) = going_back(&setup).await;
        let mut last = second;
        for _ in 0..3 {
            setup.turn(5).await;
            last = other_replica(&setup, second).await;
            setup.ends(last, 1).await;
            setup.turn(0).await;
        }
        let revisions = setup.revision_items(&id).await;
        let states: Vec<&Value> = revisions.iter().map(|revision| &revision["state"]).collect();
        assert_eq!(states, ["live", "retired"], "{engine}: {revisions:?}");
        assert!(revisions[0]["detail"].is_null(), "{engine}: {revisions:?}");
        let detail = revisions[1]["detail"].as_str().unwrap();
        assert!(detail.contains(&last.to_string()), "{engine}: {detail}");
    }
}

#[tokio::test]
async fn a_new_revision_ends_a_way_back_that_waits() {
    for (engine, db, _location) in engines("service_back_ends").await {
        let setup = IdlePortal::on(db).await;
        let (id, second) = going_back(&setup).await;
        setup.turn(0).await;
        let back = other_replica(&setup, second).await;
        let path = format!("{}/{id}/revisions", setup.services_path());
        setup.t.post(&setup.ada, &path, revision(&json!({}))).await.expect(201);
        setup.t.post(&setup.ada, &path, revision(&json!({}))).await.problem(409, "revision.underway");
        let revisions = setup.revision_items(&id).await;
        let states: Vec<&Value> = revisions.iter().map(|revision| &revision["state"]).collect();
        assert_eq!(states, ["staging", "live", "draining"], "{engine}: {revisions:?}");
        assert!(revisions[1]["detail"].is_null(), "{engine}: {revisions:?}");
        setup.turn(0).await;
        let ends = state(&setup, back).await;
        assert!(["stopping", "cancelled"].contains(&ends.as_str()), "{engine}: it was never ready: {ends}");
        let all = setup.replica_jobs().await;
        let third = all.into_iter().find(|job| ![second, back].contains(job)).unwrap();
        setup.runs(third, true).await;
        setup.turn(0).await;
        let revisions = setup.revision_items(&id).await;
        assert_eq!(revisions[0]["state"], "live", "{engine}: {revisions:?}");
        assert!(revisions[1]["detail"].is_null(), "{engine}: {revisions:?}");
    }
}

#[tokio::test]
async fn a_repeated_way_back_takes_all_requests_again() {
    for (engine, db, _location) in engines("service_back_again").await {
        let setup = IdlePortal::on(db).await;
        let (id, second) = going_back(&setup).await;
        let path = format!("{}/{id}", setup.services_path());
        let part = json!({"revision": 1, "percent": 30});
        setup.t.call(&setup.ada, "PUT", &format!("{path}/traffic"), part).await.expect(200);
        setup.t.post(&setup.ada, &format!("{path}/rollback"), Value::Null).await.expect(200);
        setup.turn(0).await;
        let back = other_replica(&setup, second).await;
        setup.runs(back, true).await;
        setup.turn(0).await;
        let revisions = setup.revision_items(&id).await;
        let states: Vec<&Value> = revisions.iter().map(|revision| &revision["state"]).collect();
        assert_eq!(states, ["rolled_back", "live"], "{engine}: {revisions:?}");
        assert_eq!(revisions[0]["detail"], "Ada went back to revision 1.", "{engine}");
    }
}

#[tokio::test]
async fn a_waiting_request_shortens_the_pause_after_refusals() {
    for (engine, db, _location) in engines("service_refused_wait").await {
        let setup = IdlePortal::on(db).await;
        let long = json!({
            "name": "x", "offering": "h100-80gb", "command": ["serve"], "count": 2, "max_duration_s": 2_592_000,
        });
        let id = setup.create_service(json!({}), json!({"job": long})).await;
        // Now a month costs more than the credit.
        setup.set_price(18_000_000).await;
        for pause_s in [0, 2, 4, 8, 16] {
            setup.turn(pause_s).await;
        }
        let shown = setup.service(&id).await;
        assert!(shown["detail"].as_str().unwrap().contains("within 15 seconds"), "{engine}: {shown}");
        let credit = json!({"amount_micros": 30_000_000_000_i64, "memo": "More"});
        let path = format!("/operator/orgs/{}/credits", setup.org);
        setup.t.post(&setup.operator, &path, credit).await.expect(201);
        setup.turn(15).await;
        assert!(setup.replica_jobs().await.is_empty(), "{engine}: the fifth pause has 32 seconds");
        setup.gateway_reports(&id, 0, 1);
        setup.turn(0).await;
        assert_eq!(setup.replica_jobs().await.len(), 1, "{engine}");
    }
}

#[tokio::test]
async fn a_free_replica_of_a_stopped_service_ends_before_the_request_of_another_one() {
    for (engine, db, _location) in engines("service_stopped_free").await {
        let setup = IdlePortal::on(db).await;
        let (id, replicas) = setup.live_service_of_two(json!({"min_replicas": 2, "max_replicas": 2})).await;
        setup.turn(20).await;
        let is_free = |job: JobId| {
            let replica = ReplicaId { job, attempt: 1, rank: 0 };
            setup.t.portal.service_loop.board().drained(GATEWAY, replica, setup.at(0));
        };
        setup.gateway_reports(&id, 1, 0);
        // A replica that does not drain can get requests after this report.
        is_free(replicas[0]);
        setup.turn(0).await;
        setup.patch_service(&id, json!({"stopped": true})).await;
        setup.turn(0).await;
        is_free(replicas[1]);
        setup.turn(0).await;
        assert_eq!(state(&setup, replicas[0]).await, "running", "{engine}: it has the request");
        assert_eq!(state(&setup, replicas[1]).await, "stopping", "{engine}");
        setup.gateway_reports(&id, 1, 0);
        is_free(replicas[0]);
        setup.turn(0).await;
        assert_eq!(state(&setup, replicas[0]).await, "stopping", "{engine}");
    }
}

#[tokio::test]
async fn the_first_rank_of_a_replica_alone_has_a_port() {
    for (engine, db, _location) in engines("service_ranks").await {
        let setup = IdlePortal::on(db).await;
        let mut spec = revision(&json!({}));
        spec["job"]["nodes"] = json!(2);
        setup.create_service(json!({}), json!({"job": spec["job"]})).await;
        setup.turn(0).await;
        let replica = setup.replica_jobs().await[0];
        let mut ports = Vec::new();
        for n in 1..=2 {
            let ranks = setup.t.portal.attempts.desired(node(n)).await.unwrap();
            let starts = ranks.into_iter().filter(|rank| rank.job == replica).filter_map(|rank| rank.start);
            ports.extend(starts.map(|start| (start.replica.is_some(), start.env.get("PORT").cloned())));
        }
        ports.sort();
        assert_eq!(ports, [(false, None), (true, Some("8000".to_owned()))], "{engine}");
    }
}

#[tokio::test]
async fn a_service_keeps_the_end_of_its_public_access() {
    for (engine, db, _location) in engines("service_public").await {
        let setup = IdlePortal::on(db).await;
        let id = setup.create_service(json!({}), json!({})).await;
        let mut ends = Vec::new();
        for change in [json!({"stopped": true}), json!({"access": "organization"}), json!({"stopped": false})]
        {
            setup.patch_service(&id, change).await;
            ends.push(number(&setup.t, "SELECT COALESCE(MAX(public_until), 0) FROM services").await);
        }
        assert!(ends[0] == 0 && ends[1] > 0 && ends[2] == ends[1], "{engine}: {ends:?}");
    }
}

impl IdlePortal {
    /// The node of a replica fails with this code before the program begins.
    pub async fn cannot_run(&self, id: JobId, code: &str) {
        let placed = job(self, &id.to_string()).await;
        let at: NodeId = placed["devices"][0]["node"].as_str().unwrap().parse().unwrap();
        let failure = Failure { code: code.to_owned(), detail: "The job was not started.".to_owned() };
        let report = AttemptReport {
            failure: Some(failure),
            log_bytes: Some(0),
            ..AttemptReport::new(id, 1, AttemptPhase::Clean)
        };
        self.t.portal.attempts.apply_status(at, report).await.unwrap();
    }
}

#[tokio::test]
async fn nodes_that_cannot_run_a_good_revision_do_not_roll_it_back() {
    for (engine, db, _location) in engines("service_node").await {
        let setup = IdlePortal::on(db).await;
        let (id, first) = setup.live_service(json!({})).await;
        let path = format!("{}/{id}/revisions", setup.services_path());
        setup.t.post(&setup.ada, &path, revision(&json!({}))).await.expect(201);
        for (code, pause_s) in
            [("worker.isolation", 1), ("worker.io", 2), ("device.unavailable", 4), ("worker.io", 8)]
        {
            setup.turn(0).await;
            let second = other_replica(&setup, first).await;
            setup.cannot_run(second, code).await;
            setup.turn(0).await;
            setup.turn(pause_s - 1).await;
            assert_eq!(setup.replica_jobs().await, [first], "{engine}: a pause follows {code}");
            let shown = setup.service(&id).await;
            assert_eq!(shown["state"], "degraded", "{engine}: {shown}");
            assert!(shown["detail"].as_str().unwrap().contains(&second.to_string()), "{engine}: {shown}");
            setup.t.clock.advance_s(1);
        }
        setup.turn(0).await;
        let second = other_replica(&setup, first).await;
        setup.runs(second, true).await;
        setup.turn(0).await;
        let revisions = setup.revision_items(&id).await;
        assert_eq!(revisions[0]["state"], "live", "{engine}: {revisions:?}");
    }
}

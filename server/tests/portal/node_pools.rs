//! Tests of pools of nodes on both databases: the setting, the places of jobs and the preemption for a replica.

use crate::common::engines;
use crate::idle_portal::{IdlePortal, node};
use crate::operations::{items, job, schedule_all, submit};
use crate::services::{create, service};
use berth_jobs::reports::{AttemptPhase, AttemptReport};
use berth_store as store;
use berth_types::ids::JobId;
use serde_json::{Value, json};

impl IdlePortal {
    async fn set_pool(&self, n: u128, pool: &str) -> Value {
        let path = format!("/operator/nodes/{}", node(n));
        self.t.call(&self.operator, "PATCH", &path, json!({"pool": pool})).await.expect(200)
    }

    async fn states_of(&self, ids: &[String]) -> Vec<String> {
        let mut states = Vec::new();
        for id in ids {
            states.push(job(self, id).await["state"].as_str().unwrap().to_owned());
        }
        states
    }
}

#[tokio::test]
async fn the_pool_of_a_node_is_set_by_operators_with_an_audit_event() {
    for (engine, db, _location) in engines("pool_setting").await {
        let setup = IdlePortal::on(db).await;
        let path = format!("/operator/nodes/{}", node(1));
        let before = setup.t.get(&setup.operator, &path).await.expect(200);
        assert_eq!(before.get("pool"), None, "{engine}");
        let body = json!({"pool": "inference"});
        setup.t.call(&setup.ada, "PATCH", &path, body.clone()).await.problem(404, "object.not_found");
        assert_eq!(setup.set_pool(1, "inference").await["pool"], "inference", "{engine}");
        setup.set_pool(1, "inference").await;
        let bad = json!({"pool": "serving"});
        setup.t.call(&setup.operator, "PATCH", &path, bad).await.problem(422, "request.invalid");
        let unknown = format!("/operator/nodes/{}", node(9));
        setup.t.call(&setup.operator, "PATCH", &unknown, body).await.problem(404, "object.not_found");
        let audit = items(&setup.t, &setup.operator, "/operator/audit-events?action=node.pool_set").await;
        assert_eq!(audit.len(), 1, "{engine}: an equal pool is no change: {audit:?}");
        assert_eq!(audit[0]["detail"], "node-1: inference instead of both", "{engine}");
        assert_eq!(audit[0]["before"], r#"{"pool":"both"}"#, "{engine}");
        assert_eq!(audit[0]["after"], r#"{"pool":"inference"}"#, "{engine}");
        assert_eq!(setup.set_pool(1, "both").await.get("pool"), None, "{engine}");
    }
}

#[tokio::test]
async fn the_reserve_for_bursts_is_set_by_operators_with_an_audit_event() {
    for (engine, db, _location) in engines("pool_reserve_setting").await {
        let setup = IdlePortal::on(db).await;
        let path = "/operator/inference-pool";
        let none = json!({"reserve_boards": 0});
        assert_eq!(setup.t.get(&setup.operator, path).await.expect(200), none, "{engine}");
        let body = json!({"reserve_boards": 3});
        setup.t.call(&setup.ada, "PUT", path, body.clone()).await.problem(404, "object.not_found");
        for bad in [json!({"reserve_boards": -1}), json!({"reserve_boards": 10_001}), json!({})] {
            setup.t.call(&setup.operator, "PUT", path, bad).await.problem(422, "request.invalid");
        }
        for _ in 0..2 {
            let saved = setup.t.call(&setup.operator, "PUT", path, body.clone()).await.expect(200);
            assert_eq!(saved, body, "{engine}");
        }
        assert_eq!(setup.t.get(&setup.operator, path).await.expect(200), body, "{engine}");
        let events = "/operator/audit-events?action=inference_pool.set";
        let audit = items(&setup.t, &setup.operator, events).await;
        assert_eq!(audit.len(), 1, "{engine}: an equal reserve is no change: {audit:?}");
        assert_eq!(audit[0]["detail"], "reserve in boards: 3 instead of 0", "{engine}");
        assert_eq!(audit[0]["before"], r#"{"reserve_boards":0}"#, "{engine}");
        assert_eq!(audit[0]["after"], r#"{"reserve_boards":3}"#, "{engine}");
        for good in [10_000, 1, 0] {
            let body = json!({"reserve_boards": good});
            let saved = setup.t.call(&setup.operator, "PUT", path, body.clone()).await.expect(200);
            assert_eq!(saved, body, "{engine}");
        }
        assert_eq!(items(&setup.t, &setup.operator, events).await.len(), 4, "{engine}");
    }
}

#[tokio::test]
async fn jobs_leave_the_reserve_for_bursts_and_stop_for_it() {
    for (engine, db, _location) in engines("pool_reserve").await {
        let setup = IdlePortal::on(db).await;
        setup.set_pool(1, "inference").await;
        setup.set_pool(2, "inference").await;
        let reserve = async |boards: i64| {
            let body = json!({"reserve_boards": boards});
            setup.t.call(&setup.operator, "PUT", "/operator/inference-pool", body).await.expect(200);
            schedule_all(&setup).await;
        };
        reserve(1).await;
        let mut jobs = Vec::new();
        for _ in 0..4 {
            jobs.push(submit(&setup, json!({"preemptible": true})).await);
        }
        schedule_all(&setup).await;
        let count = |states: &[String], state: &str| states.iter().filter(|one| *one == state).count();
        let states = setup.states_of(&jobs).await;
        assert_eq!((count(&states, "assigned"), count(&states, "queued")), (3, 1), "{engine}: {states:?}");
        let waits = &jobs[states.iter().position(|state| state == "queued").unwrap()];
        let path = format!("/orgs/{}/jobs/{waits}/explanation", setup.org);
        let why = setup.t.get(&setup.ada, &path).await.expect(200);
        assert_eq!(why["blockers"][0]["code"], "capacity.reserve", "{engine}: {why}");
        // A larger reserve stops as many jobs as are missing.
        reserve(2).await;
        let states = setup.states_of(&jobs).await;
        assert_eq!((count(&states, "assigned"), count(&states, "stopping")), (2, 1), "{engine}: {states:?}");
        schedule_all(&setup).await;
        assert_eq!(setup.states_of(&jobs).await, states, "{engine}: the stopped job is on its way back");
    }
}

#[tokio::test]
async fn only_a_preemptible_job_borrows_a_node_for_inference() {
    for (engine, db, _location) in engines("pool_places").await {
        let setup = IdlePortal::on(db).await;
        setup.set_pool(1, "inference").await;
        setup.set_pool(2, "inference").await;
        let plain = submit(&setup, json!({})).await;
        let preemptible = submit(&setup, json!({"preemptible": true})).await;
        schedule_all(&setup).await;
        let ids = [plain.clone(), preemptible];
        assert_eq!(setup.states_of(&ids).await, ["queued", "assigned"], "{engine}");
        let path = format!("/orgs/{}/jobs/{plain}/explanation", setup.org);
        let why = setup.t.get(&setup.ada, &path).await.expect(200);
        assert_eq!(why["blockers"][0]["code"], "capacity.pool", "{engine}: {why}");
        let changes = why["suggested_changes"].as_array().unwrap();
        let borrows = |change: &Value| change["change"] == json!({"preemptible": true});
        assert!(changes.iter().any(borrows), "{engine}: {why}");
        // With a node for training its wait has a place.
        setup.set_pool(2, "training").await;
        schedule_all(&setup).await;
        assert_eq!(setup.states_of(&[plain]).await, ["assigned"], "{engine}");
    }
}

#[tokio::test]
async fn a_waiting_replica_preempts_a_borrowing_job() {
    for (engine, db, _location) in engines("pool_preemption").await {
        let setup = IdlePortal::on(db).await;
        let t = &setup.t;
        setup.set_pool(1, "inference").await;
        setup.set_pool(2, "inference").await;
        let mut borrowers = Vec::new();
        for _ in 0..2 {
            borrowers
                .push(submit(&setup, json!({"preemptible": true, "priority": "high", "count": 2})).await);
        }
        schedule_all(&setup).await;
        assert_eq!(setup.states_of(&borrowers).await, ["assigned", "assigned"], "{engine}");
        create(&setup, service("digits")).await;
        for _ in 0..3 {
            t.portal.service_loop.run().await.unwrap();
            schedule_all(&setup).await;
        }
        let jobs = items(t, &setup.ada, &format!("/orgs/{}/jobs?limit=200", setup.org)).await;
        let replica = jobs.iter().find(|job| job["created_by"] == "service digits").unwrap();
        let replica = replica["id"].as_str().unwrap().to_owned();
        assert_eq!(setup.states_of(std::slice::from_ref(&replica)).await, ["queued"], "{engine}");
        let states = setup.states_of(&borrowers).await;
        assert_eq!(states.iter().filter(|state| *state == "stopping").count(), 1, "{engine}: {states:?}");
        let stopped = &borrowers[states.iter().position(|state| state == "stopping").unwrap()];

        let at = job(&setup, stopped).await["devices"][0]["node"].as_str().unwrap().parse().unwrap();
        let id: JobId = stopped.parse().unwrap();
        t.clock.advance_s(4);
        let ended = AttemptReport::new(id, 1, AttemptPhase::Clean);
        let ended = AttemptReport { exit_code: Some(143), log_bytes: Some(0), began: true, ..ended };
        t.portal.attempts.apply_status(at, ended).await.unwrap();
        let mut conn = t.portal.context.db.read().await.unwrap();
        let row = store::jobs::find_any(&mut conn.tx(), id).await.unwrap().unwrap();
        drop(conn);
        let learned = row.gives_back_ms.is_some_and(|ms| (4_000..60_000).contains(&ms));
        assert!(learned && !row.replica, "{engine}: {:?}", row.gives_back_ms);
        schedule_all(&setup).await;
        // The preempted job waits behind it, though its class is higher, and borrows nothing that the replica needs.
        assert_eq!(setup.states_of(&[replica]).await, ["assigned"], "{engine}");
        assert_eq!(setup.states_of(std::slice::from_ref(stopped)).await, ["queued"], "{engine}");
    }
}

//! Tests of the reset of boards, and of boards without their NVLink fabric.

use crate::common::engines;
use crate::health::{
    GPU, board, count_audit_events, done, faulty, healthy, post_to_gpu, quarantine_reason, send_health,
    until_board, write_faults,
};
use crate::idle_portal::{IdlePortal, node};
use crate::worker_portal::{WorkerPortal, eventually};
use berth_fleet::reports::BoardReport;
use berth_jobs::reports::{AttemptPhase, AttemptReport};
use berth_types::health::{FabricState, GpuFabric, GpuFacts, GpuTaskKind};
use berth_types::ids::{JobId, NodeId};
use berth_types::jobs::Failure;
use serde_json::{Value, json};

/// The board beside [`GPU`].
const OTHER: &str = "GPU-1-1";

/// The report of a board that the driver resets only together with its neighbour.
fn linked(gpu: &str) -> BoardReport {
    let reset_group = [GPU, OTHER].map(str::to_owned).to_vec();
    let facts = healthy(gpu).facts.map(|facts| GpuFacts { reset_group, ..facts });
    BoardReport { facts, ..healthy(gpu) }
}

/// Returns both boards of the first node as operators see them.
async fn both_boards(setup: &IdlePortal) -> [Value; 2] {
    let page = setup.t.get(&setup.operator, &format!("/operator/nodes/{}/gpus", node(1))).await.expect(200);
    [0, 1].map(|index: usize| page["items"][index].clone())
}

async fn post_to_other(setup: &IdlePortal, action: &str) -> crate::common::Reply {
    setup.t.post(&setup.operator, &format!("/operator/gpus/{OTHER}/{action}"), Value::Null).await
}

/// Ends a placed job before its start.
async fn end_job(setup: &IdlePortal, job: &Value) {
    let id: JobId = job["id"].as_str().unwrap().parse().unwrap();
    let at: NodeId = job["devices"][0]["node"].as_str().unwrap().parse().unwrap();
    let failure = Failure { code: "worker.isolation".to_owned(), detail: "A node is missing.".to_owned() };
    let report = AttemptReport {
        failure: Some(failure),
        log_bytes: Some(0),
        ..AttemptReport::new(id, 1, AttemptPhase::Clean)
    };
    setup.t.portal.attempts.apply_status(at, report).await.unwrap();
}

#[tokio::test]
async fn a_reset_ends_the_quarantine_of_its_board() {
    for (engine, db, _location) in engines("board_reset").await {
        let setup = IdlePortal::on(db).await;
        send_health(&setup, 1, faulty(10, "XID 48")).await;
        let asked = post_to_gpu(&setup, "reset", Value::Null).await.expect(200);
        assert_eq!(asked["task"], json!({"kind": "reset"}), "{engine}");
        assert_eq!(asked["quarantine"]["code"], "gpu.xid", "{engine}: the reason of the fault stays");
        post_to_gpu(&setup, "reset", Value::Null).await.problem(409, "gpu.resetting");
        let task = setup.t.portal.health.board_tasks(node(1)).await.unwrap().remove(0);
        assert_eq!((task.gpu_uuid.as_str(), task.kind), (GPU, GpuTaskKind::Reset), "{engine}");
        let refused = "nvidia-smi refused the reset: it is in use.";
        send_health(
            &setup,
            1,
            BoardReport { done: done(task.number, false, refused), ..faulty(10, "XID 48") },
        )
        .await;
        assert_eq!(quarantine_reason(&setup).await, "XID 48", "{engine}");
        assert_eq!(board(&setup).await["task"], json!({"kind": "reset", "good": false, "words": refused}));
        post_to_gpu(&setup, "reset", Value::Null).await.expect(200);
        let task = setup.t.portal.health.board_tasks(node(1)).await.unwrap().remove(0);
        send_health(&setup, 1, BoardReport { done: done(task.number, true, "It is reset."), ..healthy(GPU) })
            .await;
        assert_eq!(quarantine_reason(&setup).await, Value::Null, "{engine}");
        assert_eq!(count_audit_events(&setup, "gpu.reset_asked").await, 2, "{engine}");
        assert_eq!(count_audit_events(&setup, "gpu.cleared").await, 1, "{engine}");

        // Only operators reset boards.
        let path = format!("/operator/gpus/{GPU}/reset");
        setup.t.post(&setup.ada, &path, Value::Null).await.problem(404, "object.not_found");
    }
}

#[tokio::test]
async fn a_reset_waits_for_an_empty_board_and_a_failed_one_keeps_it_out_of_service() {
    for (engine, db, _location) in engines("board_reset_waits").await {
        let setup = IdlePortal::on(db).await;
        for n in 1..=2 {
            for i in 0..2 {
                send_health(&setup, n, healthy(&format!("GPU-{n}-{i}"))).await;
            }
        }
        let body =
            json!({"name": "train", "offering": "h100-80gb", "command": ["true"], "max_duration_s": 60});
        for _ in 0..4 {
            setup.t.post(&setup.ada, &format!("/orgs/{}/jobs", setup.org), body.clone()).await.expect(201);
        }
        let held = async || {
            setup.t.portal.scheduler.pass().await.unwrap();
            (board(&setup).await["held"] == 1).then_some(())
        };
        eventually("the board is taken", held).await;
        let asked = post_to_gpu(&setup, "reset", Value::Null).await.expect(200);
        assert_eq!(asked["quarantine"]["code"], "gpu.reset", "{engine}");
        assert!(
            setup.t.portal.health.board_tasks(node(1)).await.unwrap().is_empty(),
            "{engine}: it is in use"
        );
        // A release cancels the task.
        post_to_gpu(&setup, "release", Value::Null).await.expect(200);
        assert_eq!(board(&setup).await["task"], Value::Null, "{engine}");
    }
    for (engine, db, _location) in engines("board_reset_fails").await {
        let setup = IdlePortal::on(db).await;
        send_health(&setup, 1, healthy(GPU)).await;
        post_to_gpu(&setup, "reset", Value::Null).await.expect(200);
        let task = setup.t.portal.health.board_tasks(node(1)).await.unwrap().remove(0);
        send_health(
            &setup,
            1,
            BoardReport { done: done(task.number, false, "It is in use."), ..healthy(GPU) },
        )
        .await;
        assert_eq!(quarantine_reason(&setup).await, "It is in use.", "{engine}");
    }
}

#[tokio::test]
async fn a_check_replaces_no_reset_and_no_change_of_the_mode() {
    for (engine, db, _location) in engines("board_check_waits").await {
        let setup = IdlePortal::on(db).await;
        send_health(&setup, 1, healthy(GPU)).await;
        for (action, body, kind) in
            [("reset", Value::Null, "reset"), ("mode", json!({"mig": true}), "mig_on")]
        {
            post_to_gpu(&setup, action, body.clone()).await.expect(200);
            let refused = post_to_gpu(&setup, "check", Value::Null).await.problem(409, "gpu.resetting");
            let detail = refused["detail"].as_str().unwrap();
            assert!(detail.ends_with("Release the board to cancel it."), "{engine} {detail}");
            let again = post_to_gpu(&setup, "mode", json!({"mig": true})).await;
            assert_eq!(again.problem(409, "gpu.quarantined")["detail"], detail, "{engine}");
            assert_eq!(board(&setup).await["task"], json!({"kind": kind}), "{engine}: it still waits");
            let task = setup.t.portal.health.board_tasks(node(1)).await.unwrap().remove(0);
            let failed = BoardReport { done: done(task.number, false, "It is in use."), ..healthy(GPU) };
            send_health(&setup, 1, failed).await;
            // After its failure nothing waits.
            post_to_gpu(&setup, "check", Value::Null).await.expect(200);
            post_to_gpu(&setup, "release", Value::Null).await.expect(200);
        }
        assert_eq!(count_audit_events(&setup, "gpu.check_asked").await, 2, "{engine}");

        // A result from before a fault is not shown beside it.
        post_to_gpu(&setup, "check", Value::Null).await.expect(200);
        let task = setup.t.portal.health.board_tasks(node(1)).await.unwrap().remove(0);
        let failed = BoardReport { done: done(task.number, false, "It is in use."), ..healthy(GPU) };
        send_health(&setup, 1, failed).await;
        assert_eq!(board(&setup).await["task"]["words"], "It is in use.", "{engine}");
        send_health(&setup, 1, faulty(10, "XID 79")).await;
        assert_eq!(board(&setup).await["task"], Value::Null, "{engine}");
    }
}

#[tokio::test]
async fn linked_boards_are_reset_together_after_the_end_of_all_their_jobs() {
    for (engine, db, _location) in engines("board_reset_group").await {
        let setup = IdlePortal::on(db).await;
        for gpu in [GPU, OTHER] {
            send_health(&setup, 1, linked(gpu)).await;
        }
        let body =
            json!({"name": "train", "offering": "h100-80gb", "command": ["true"], "max_duration_s": 60});
        let path = format!("/orgs/{}/jobs", setup.org);
        let mut jobs = Vec::new();
        for _ in 0..4 {
            let made = setup.t.post(&setup.ada, &path, body.clone()).await.expect(201);
            jobs.push(format!("{path}/{}", made["id"].as_str().unwrap()));
        }
        let held = async || {
            setup.t.portal.scheduler.pass().await.unwrap();
            both_boards(&setup).await.iter().all(|gpu| gpu["held"] == 1).then_some(())
        };
        eventually("both boards are taken", held).await;

        let asked = post_to_gpu(&setup, "reset", Value::Null).await.expect(200);
        assert_eq!(asked["reset_group"], json!([GPU, OTHER]), "{engine}");
        for gpu in both_boards(&setup).await {
            let shown = (&gpu["quarantine"]["code"], &gpu["task"], &gpu["reset_group"]);
            assert_eq!(
                shown,
                (&json!("gpu.reset"), &json!({"kind": "reset"}), &json!([GPU, OTHER])),
                "{engine}"
            );
        }
        for action in ["reset", "check"] {
            post_to_other(&setup, action).await.problem(409, "gpu.resetting");
        }
        // The reset waits for the last job on any of the boards.
        for gpu in [GPU, OTHER] {
            assert!(setup.t.portal.health.board_tasks(node(1)).await.unwrap().is_empty(), "{engine}: {gpu}");
            for job in &jobs {
                let job = setup.t.get(&setup.ada, job).await.expect(200);
                if job["devices"][0]["gpu_uuid"] == gpu {
                    end_job(&setup, &job).await;
                }
            }
        }
        let tasks = setup.t.portal.health.board_tasks(node(1)).await.unwrap();
        for (task, gpu) in tasks.iter().zip([GPU, OTHER]) {
            assert_eq!((task.gpu_uuid.as_str(), task.kind), (gpu, GpuTaskKind::Reset), "{engine}");
            assert_eq!(task.group, [GPU, OTHER], "{engine}");
        }
        assert_eq!(tasks.len(), 2, "{engine}");

        // Each board returns to service by its own check.
        let unfit = "The board was reset, and is not fit for work.";
        let results = [done(tasks[0].number, true, "It is reset."), done(tasks[1].number, false, unfit)];
        for (done, gpu) in results.into_iter().zip([GPU, OTHER]) {
            send_health(&setup, 1, BoardReport { done, ..linked(gpu) }).await;
        }
        let [first, second] = both_boards(&setup).await;
        assert_eq!(first["quarantine"], Value::Null, "{engine}");
        let shown = (&second["quarantine"]["code"], &second["quarantine"]["reason"]);
        assert_eq!(shown, (&json!("gpu.reset"), &json!(unfit)), "{engine}");
        assert_eq!(count_audit_events(&setup, "gpu.reset_asked").await, 2, "{engine}");
        assert_eq!(count_audit_events(&setup, "gpu.cleared").await, 1, "{engine}");
    }
}

#[tokio::test]
async fn a_release_cancels_the_reset_of_all_linked_boards() {
    for (engine, db, _location) in engines("board_reset_release").await {
        let setup = IdlePortal::on(db).await;
        send_health(&setup, 1, BoardReport { fault: faulty(10, "XID 48").fault, ..linked(GPU) }).await;
        send_health(&setup, 1, linked(OTHER)).await;
        let codes = async || both_boards(&setup).await.map(|gpu| gpu["quarantine"]["code"].clone());
        let tasks = async || setup.t.portal.health.board_tasks(node(1)).await.unwrap();

        post_to_other(&setup, "reset").await.expect(200);
        assert_eq!(codes().await, [json!("gpu.xid"), json!("gpu.reset")], "{engine}");
        post_to_other(&setup, "release").await.expect(200);
        assert_eq!(codes().await, [json!("gpu.xid"), Value::Null], "{engine}: the fault stays");
        assert!(tasks().await.is_empty(), "{engine}");
        assert!(both_boards(&setup).await.iter().all(|gpu| gpu["task"].is_null()), "{engine}");

        post_to_gpu(&setup, "reset", Value::Null).await.expect(200);
        post_to_gpu(&setup, "release", Value::Null).await.expect(200);
        assert_eq!(codes().await, [Value::Null, Value::Null], "{engine}");
        assert_eq!(count_audit_events(&setup, "gpu.released").await, 3, "{engine}");

        // The failure of an earlier reset outlasts a release of the neighbour.
        post_to_gpu(&setup, "reset", Value::Null).await.expect(200);
        let open = tasks().await;
        let results =
            [done(open[0].number, true, "It is reset."), done(open[1].number, false, "It is unfit.")];
        for (done, gpu) in results.into_iter().zip([GPU, OTHER]) {
            send_health(&setup, 1, BoardReport { done, ..linked(gpu) }).await;
        }
        post_to_gpu(&setup, "reset", Value::Null).await.expect(200);
        assert_eq!(tasks().await.len(), 2, "{engine}");
        post_to_gpu(&setup, "release", Value::Null).await.expect(200);
        assert_eq!(codes().await, [Value::Null, json!("gpu.reset")], "{engine}");
        assert!(tasks().await.is_empty(), "{engine}");
    }
}

#[tokio::test]
async fn a_board_without_its_fabric_has_work_for_slices_only() {
    for (engine, db, _location) in engines("board_fabric").await {
        let setup = IdlePortal::on(db).await;
        let report = |mig: bool, state: FabricState, status: u32| {
            let fabric = GpuFabric { state, status, clique: 1, cluster_uuid: None, health_mask: Some(0) };
            let (mig, fabric) = (Some(mig), Some(fabric));
            let facts = GpuFacts { mig, mig_pending: mig, nvlinks: 18, fabric, ..GpuFacts::default() };
            BoardReport { facts: Some(facts), ..healthy(GPU) }
        };
        send_health(&setup, 1, report(true, FabricState::NotStarted, 0)).await;
        assert_eq!(quarantine_reason(&setup).await, Value::Null, "{engine}: slices need no fabric");
        for (state, status, text) in [
            (FabricState::NotStarted, 0, "has not started"),
            (FabricState::InProgress, 0, "in progress"),
            (FabricState::Completed, 999, "error 999"),
        ] {
            send_health(&setup, 1, report(false, state, status)).await;
            let reason = quarantine_reason(&setup).await;
            assert!(reason.as_str().unwrap().contains(text), "{engine} {reason}");
        }
        assert_eq!(board(&setup).await["facts"]["fabric"]["state"], "completed", "{engine}");
        send_health(&setup, 1, report(false, FabricState::Completed, 0)).await;
        assert_eq!(quarantine_reason(&setup).await, Value::Null, "{engine}");
        // An operator can use the board in slices meanwhile.
        send_health(&setup, 1, report(false, FabricState::NotStarted, 0)).await;
        post_to_gpu(&setup, "mode", json!({"mig": true})).await.expect(200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_board_is_back_in_service_after_its_reset_by_the_worker() {
    let setup = WorkerPortal::open().await;
    let before = until_board(&setup, "its facts", |b| b["facts"]["pci_bus_id"].is_string()).await;
    let gpu = before["uuid"].as_str().unwrap();
    let job = setup.submit_script("exec sleep 300").await;
    setup.until(&job, |j| j["evidence"][0]["device_ms"].as_i64() > Some(0)).await;
    write_faults(&setup, &json!({"xid": [{"gpu": gpu, "xid": 79, "at": 1}]}));
    setup.until_ended(&job).await;
    until_board(&setup, "its quarantine", |b| b["quarantine"]["code"] == "gpu.xid").await;
    setup.t.post(&setup.operator, &format!("/operator/gpus/{gpu}/reset"), Value::Null).await.expect(200);
    let after = until_board(&setup, "the end of the reset", |b| b["task"]["good"].is_boolean()).await;
    assert_eq!(after["task"]["good"], true, "{after}");
    until_board(&setup, "its service", |b| b["quarantine"].is_null() && b["silent"].is_null()).await;
    let next = setup.submit_script("echo after").await;
    assert_eq!(setup.until_ended(&next).await["state"], "succeeded");
    setup.until_all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn linked_boards_return_to_service_after_their_common_reset_by_the_worker() {
    let mut setup = crate::worker_portal::without_worker().await;
    let token = setup.join_token(json!({})).await;
    setup.start_worker_with("2xV100", Some(&token)).unwrap();
    setup.t.add_price_and_credit(&setup.operator, &setup.org, 1_000_000_000).await;
    let nodes = setup.t.get(&setup.operator, "/operator/nodes").await.expect(200);
    let path = format!("/operator/nodes/{}/gpus", nodes["items"][0]["id"].as_str().unwrap());
    let boards_if = async |ready: fn(&Value) -> bool| {
        let page = setup.t.get(&setup.operator, &path).await.expect(200);
        let boards = page["items"].as_array().unwrap().clone();
        (boards.len() == 2 && boards.iter().all(ready)).then_some(boards)
    };
    let in_group = |gpu: &Value| gpu["reset_group"].as_array().is_some_and(|group| group.len() == 2);
    eventually("the group of both", async || boards_if(in_group).await).await;
    let price = json!({"offering": "v100-sxm2-16gb", "per_hour_micros": 3_600_000});
    setup.t.post(&setup.operator, "/operator/prices", price).await.expect(201);

    let job = setup
        .submit(json!({"offering": "v100-sxm2-16gb", "script": "exec sleep 300", "max_duration_s": 600}))
        .await;
    let running = setup.until(&job, |j| j["evidence"][0]["device_ms"].as_i64() > Some(0)).await;
    let busy = running["devices"][0]["gpu_uuid"].clone();
    let boards = boards_if(|_| true).await.unwrap();
    let failed = boards.iter().find(|gpu| gpu["uuid"] != busy).unwrap()["uuid"].as_str().unwrap();
    write_faults(&setup, &json!({"xid": [{"gpu": failed, "xid": 79, "at": 1}]}));
    let is_lost = async || {
        let boards = boards_if(|_| true).await?;
        boards
            .iter()
            .any(|gpu| gpu["uuid"] == *failed && gpu["quarantine"]["code"] == "gpu.xid")
            .then_some(())
    };
    eventually("the fault of one board", is_lost).await;
    setup.t.post(&setup.operator, &format!("/operator/gpus/{failed}/reset"), Value::Null).await.expect(200);
    let waits =
        boards_if(|gpu| gpu["task"] == json!({"kind": "reset"}) && gpu["quarantine"].is_object()).await;
    assert!(waits.is_some(), "a job uses one of the boards");
    assert_eq!(setup.job(&job).await["state"], "running");

    setup
        .t
        .post(&setup.ada, &format!("/orgs/{}/jobs/{job}/cancel", setup.org), Value::Null)
        .await
        .expect(202);
    let ended = |gpu: &Value| gpu["task"]["good"].is_boolean();
    let after = eventually("the end of the reset", async || boards_if(ended).await).await;
    assert!(after.iter().all(|gpu| gpu["task"]["good"] == true), "{after:?}");
    let is_free = |gpu: &Value| gpu["quarantine"].is_null() && gpu["silent"].is_null();
    eventually("their service", async || boards_if(is_free).await).await;
}

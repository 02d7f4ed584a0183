//! Tests of the reset of boards, and of boards without their NVLink fabric.

use crate::common::engines;
use crate::health::{
    GPU, board, count_audit_events, done, faulty, healthy, post_to_gpu, quarantine_reason, send_health,
    until_board, write_faults,
};
use crate::idle_portal::{IdlePortal, node};
use crate::worker_portal::{WorkerPortal, eventually};
use berth_fleet::reports::BoardReport;
use berth_types::health::{FabricState, GpuFabric, GpuFacts, GpuTaskKind};
use serde_json::{Value, json};

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

//! Tests of drains by operators and by host shutdowns, on every engine and with a real worker.

use serde_json::{Value, json};

use crate::common::engines;
use crate::idle_portal::IdlePortal;
use crate::operations::{items, job, put, schedule_all, submit};
use crate::worker_portal::{WorkerPortal, eventually};

/// Starts a job that saves its state on SIGUSR1; its second attempt succeeds.
async fn submit_saving_job(setup: &WorkerPortal) -> String {
    let script = "
        trap 'echo saved; exit 0' USR1
        echo attempt $BERTH_ATTEMPT
        [ \"$BERTH_ATTEMPT\" = 1 ] || exit 0
        while :; do sleep 0.1; done";
    let spec = json!({
        "script": script, "checkpoint": {"signal": "SIGUSR1", "grace_s": 30}, "max_duration_s": 600,
        "retry": {"max": 1, "on": ["node_lost"]},
    });
    let id = setup.submit(spec).await;
    setup.until(&id, |j| j["state"] == "running").await;
    // The trap is set before the first line of the log.
    eventually("its first line", async || (setup.log(&id).await == b"attempt 1\n").then_some(())).await;
    id
}

#[tokio::test]
async fn a_drain_stops_jobs_at_its_deadline_and_can_be_cancelled() {
    for (engine, db, _location) in engines("drains").await {
        let setup = IdlePortal::on(db).await;
        let id = submit(&setup, json!({"retry": {"max": 1, "on": ["node_lost"]}})).await;
        schedule_all(&setup).await;
        let placed = job(&setup, &id).await;
        assert_eq!(placed["state"], "assigned", "{engine} {placed}");
        let at = placed["devices"][0]["node"].as_str().unwrap();
        let path = format!("/operator/nodes/{at}/drain");
        let body = json!({"deadline_at": setup.at(60), "grace_s": 30, "reason": "new power supply"});
        put(&setup.t, &setup.ada, &path, body.clone()).await.problem(404, "object.not_found");
        let mute = json!({"reason": " ", "grace_s": 0});
        let refused = put(&setup.t, &setup.operator, &path, mute).await.problem(422, "request.invalid");
        assert_eq!(refused["errors"].as_array().unwrap().len(), 2, "{engine} {refused}");
        let none = "/operator/nodes/node_00000000000000000000000009/drain";
        put(&setup.t, &setup.operator, none, body.clone()).await.problem(404, "object.not_found");
        let drain = put(&setup.t, &setup.operator, &path, body).await.expect(200);
        assert_eq!((&drain["attempts"], &drain["stopping"]), (&json!(1), &json!(0)), "{engine} {drain}");
        // The organization sees the drain, and the job runs until the deadline.
        setup.t.portal.drains.tick_drains().await.unwrap();
        let notified = job(&setup, &id).await;
        let why = "is being drained by the operator (Harbour master): new power supply.";
        assert!(notified["reasons"][0].as_str().unwrap().contains(why), "{engine} {notified}");
        assert_eq!(
            (&notified["state"], &notified["generation"]),
            (&json!("assigned"), &placed["generation"])
        );
        setup.t.clock.advance_s(61);
        setup.t.portal.drains.tick_drains().await.unwrap();
        let stopping = job(&setup, &id).await;
        assert_eq!(stopping["state"], "stopping", "{engine} {stopping}");
        setup.t.portal.drains.tick_drains().await.unwrap();
        assert_eq!(job(&setup, &id).await["generation"], stopping["generation"], "{engine}: told once");
        let drains = items(&setup.t, &setup.operator, "/operator/drains").await;
        assert_eq!(drains[0]["stopping"], 1, "{engine} {drains:?}");
        setup.t.call(&setup.operator, "DELETE", &path, Value::Null).await.expect(204);
        setup.t.call(&setup.operator, "DELETE", &path, Value::Null).await.problem(404, "object.not_found");
        let nodes = items(&setup.t, &setup.operator, "/operator/nodes").await;
        assert!(nodes.iter().all(|n| n["state"] == "ready"), "{engine}: as before {nodes:?}");
        assert_eq!(job(&setup, &id).await["state"], "stopping", "{engine}: what was told stays told");
        // The other node is empty at once, with one audit event.
        let other = nodes.iter().find(|n| n["id"] != at).unwrap()["id"].as_str().unwrap();
        let path = format!("/operator/nodes/{other}/drain");
        put(&setup.t, &setup.operator, &path, json!({"reason": "moving"})).await.expect(200);
        for _ in 0..2 {
            setup.t.portal.drains.tick_drains().await.unwrap();
        }
        let drains = items(&setup.t, &setup.operator, "/operator/drains").await;
        assert!(drains[0]["emptied_at"].is_string(), "{engine} {drains:?}");
        let audit = items(&setup.t, &setup.operator, "/operator/audit-events").await;
        let count = |action: &str| audit.iter().filter(|e| e["action"] == action).count();
        assert_eq!(
            (count("node.drained"), count("node.drain_set"), count("node.drain_called_off")),
            (1, 2, 1)
        );
        // The end of the cordon ends the drain.
        let patch = json!({"cordoned": false});
        setup.t.call(&setup.operator, "PATCH", &format!("/operator/nodes/{other}"), patch).await.expect(200);
        assert!(items(&setup.t, &setup.operator, "/operator/drains").await.is_empty(), "{engine}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_job_saves_its_state_and_continues_in_a_new_attempt() {
    let setup = WorkerPortal::open().await;
    let id = submit_saving_job(&setup).await;
    let t = &setup.t;
    let at = setup.job(&id).await["devices"][0]["node"].as_str().unwrap().to_owned();
    let path = format!("/operator/nodes/{at}/drain");
    let body = json!({"deadline_at": t.portal.context.now(), "reason": "firmware"});
    put(t, &setup.operator, &path, body).await.expect(200);
    eventually("an empty node", async || {
        t.portal.drains.tick_drains().await.unwrap();
        let drains = items(t, &setup.operator, "/operator/drains").await;
        drains[0]["emptied_at"].is_string().then_some(())
    })
    .await;
    let waits = setup.job(&id).await;
    assert_eq!((&waits["state"], &waits["retries"]), (&json!("queued"), &json!(0)), "{waits}");
    let first = t.portal.recordings.log(id.parse().unwrap(), 1, 0);
    assert_eq!(std::fs::read_to_string(first).unwrap(), "attempt 1\nsaved\n");
    t.call(&setup.operator, "DELETE", &path, Value::Null).await.expect(204);
    let done = setup.until_ended(&id).await;
    assert_eq!((&done["state"], &done["attempt"]), (&json!("succeeded"), &json!(2)), "{done}");
    setup.assert_settled(&done).await;
    setup.until_all_free().await;
}

#[tokio::test]
async fn a_drain_can_be_repeated_after_its_deadline_and_a_new_one_cannot_begin_late() {
    for (engine, db, _location) in engines("late_drains").await {
        let setup = IdlePortal::on(db).await;
        let nodes = items(&setup.t, &setup.operator, "/operator/nodes").await;
        let path = format!("/operator/nodes/{}/drain", nodes[0]["id"].as_str().unwrap());
        let body = json!({"deadline_at": setup.at(60), "reason": "firmware"});
        put(&setup.t, &setup.operator, &path, body.clone()).await.expect(200);
        setup.t.clock.advance_s(600);
        let changed = json!({"deadline_at": body["deadline_at"], "reason": "new power supply"});
        let drain = put(&setup.t, &setup.operator, &path, changed).await.expect(200);
        assert_eq!(
            (&drain["deadline_at"], &drain["reason"]),
            (&body["deadline_at"], &json!("new power supply")),
            "{engine}"
        );
        let other = json!({"deadline_at": setup.at(-120), "reason": "firmware"});
        put(&setup.t, &setup.operator, &path, other).await.problem(422, "request.invalid");
        setup.t.call(&setup.operator, "DELETE", &path, Value::Null).await.expect(204);
        put(&setup.t, &setup.operator, &path, body).await.problem(422, "request.invalid");
    }
}

#[tokio::test]
async fn a_host_shutdown_keeps_the_cordon_and_drain_of_an_operator() {
    for (engine, db, _location) in engines("host_drains").await {
        let setup = IdlePortal::on(db).await;
        let nodes = items(&setup.t, &setup.operator, "/operator/nodes").await;
        let name = nodes[0]["id"].as_str().unwrap();
        let at = name.parse().unwrap();
        let drains = async || items(&setup.t, &setup.operator, "/operator/drains").await;
        let state = async || {
            let nodes = items(&setup.t, &setup.operator, "/operator/nodes").await;
            nodes.iter().find(|n| n["id"] == name).unwrap()["state"].clone()
        };
        let leaves = async || setup.t.portal.drains.drain_for_shutdown(at).await.unwrap();
        let returns =
            async |leaving| setup.t.portal.lost_nodes.node_returned(at, true, leaving).await.unwrap();
        leaves().await;
        leaves().await;
        let begun = drains().await;
        assert_eq!((begun.len(), &begun[0]["by_host"]), (1, &json!(true)), "{engine} {begun:?}");
        assert_eq!(state().await, "draining", "{engine}");
        returns(true).await;
        assert_eq!(drains().await.len(), 1, "{engine}: only its connection was broken");
        returns(false).await;
        assert!(drains().await.is_empty(), "{engine}");
        assert_eq!(state().await, "ready", "{engine}");

        // A cordon from before the shutdown stays.
        let path = format!("/operator/nodes/{name}");
        setup.t.call(&setup.operator, "PATCH", &path, json!({"cordoned": true})).await.expect(200);
        leaves().await;
        returns(false).await;
        assert_eq!((drains().await.len(), state().await), (0, json!("cordoned")), "{engine}");

        // A drain from before the shutdown stays.
        let later = json!({"deadline_at": setup.at(1_000), "reason": "firmware"});
        put(&setup.t, &setup.operator, &format!("{path}/drain"), later).await.expect(200);
        leaves().await;
        returns(false).await;
        let kept = drains().await;
        let (deadline, soon) = (&kept[0]["deadline_at"], json!(setup.at(500)));
        assert!(deadline.as_str() < soon.as_str(), "{engine}: it came sooner {kept:?}");
        assert_eq!(
            (&kept[0]["reason"], &kept[0]["by_host"]),
            (&json!("firmware"), &json!(false)),
            "{engine}"
        );
        assert_eq!(state().await, "draining", "{engine}");
        let audit = items(&setup.t, &setup.operator, "/operator/audit-events").await;
        assert_eq!(audit.iter().filter(|e| e["action"] == "node.shutdown").count(), 3, "{engine}: once each");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_shutdown_gives_its_jobs_their_grace() {
    let mut setup = WorkerPortal::open().await;
    let (saves, ends) = (submit_saving_job(&setup).await, setup.submit_script("exec sleep 300").await);
    setup.until(&ends, |j| j["state"] == "running").await;
    // This stub answers like systemctl during a shutdown. Another process writes it, because a fork of this
    // process would keep the file open.
    let systemctl = setup.data.join("bin/systemctl");
    std::fs::create_dir(systemctl.parent().unwrap()).unwrap();
    let stub = r#"printf '#!/bin/sh\n[ "$*" = is-system-running ] && echo stopping\nexit 1\n' > "$0" && chmod 755 "$0""#;
    let made = std::process::Command::new("sh").args(["-c", stub]).arg(&systemctl).status().unwrap();
    assert!(made.success());
    let worker = &mut setup.worker.as_mut().unwrap().process;
    let pid = nix::unistd::Pid::from_raw(i32::try_from(worker.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    let portal = setup.t.portal.clone();
    let status = eventually("the worker's end", async || {
        portal.drains.tick_drains().await.unwrap();
        worker.try_wait().unwrap()
    })
    .await;
    assert!(status.success(), "{status}");
    let drain = eventually("an empty node", async || {
        portal.drains.tick_drains().await.unwrap();
        let drains = items(&setup.t, &setup.operator, "/operator/drains").await;
        drains[0]["emptied_at"].is_string().then(|| drains[0].clone())
    })
    .await;
    assert_eq!((&drain["started_by"], &drain["by_host"]), (&json!("The host"), &json!(true)), "{drain}");
    let waits = setup.job(&saves).await;
    assert_eq!((&waits["state"], &waits["retries"]), (&json!("queued"), &json!(0)), "{waits}");
    let first = portal.recordings.log(saves.parse().unwrap(), 1, 0);
    assert_eq!(std::fs::read_to_string(first).unwrap(), "attempt 1\nsaved\n");
    let ended = setup.job(&ends).await;
    assert_eq!((&ended["state"], &ended["failure"]["code"]), (&json!("failed"), &json!("node.drained")));
    assert!(ended["failure"]["detail"].as_str().unwrap().contains("quay is being shut down"), "{ended}");

    // The host starts again.
    std::fs::remove_file(&systemctl).unwrap();
    setup.start_worker(None).unwrap();
    let done = setup.until_ended(&saves).await;
    assert_eq!((&done["state"], &done["attempt"]), (&json!("succeeded"), &json!(2)), "{done}");
    assert!(items(&setup.t, &setup.operator, "/operator/drains").await.is_empty());
    setup.assert_settled(&done).await;
    setup.until_all_free().await;
}

//! Nodes that are emptied, by an operator or because their host goes down: on every engine, and with a real worker.

use serde_json::{Value, json};

use crate::common::engines;
use crate::harbour::Harbour;
use crate::operations::{items, job, place, put, submit};
use crate::quay::{Quay, eventually};

/// A job that runs, and saves its state when it has to leave; its second attempt ends well.
async fn saving(quay: &Quay) -> String {
    let script = "
        trap 'echo saved; exit 0' USR1
        echo attempt $BERTH_ATTEMPT
        [ \"$BERTH_ATTEMPT\" = 1 ] || exit 0
        while :; do sleep 0.1; done";
    let spec = json!({
        "script": script, "checkpoint": {"signal": "SIGUSR1", "grace_s": 30}, "max_duration_s": 600,
        "retry": {"max": 1, "on": ["node_lost"]},
    });
    let id = quay.submit(spec).await;
    quay.until(&id, |j| j["state"] == "running").await;
    // The trap is set once the script has spoken.
    eventually("its first line", async || (quay.log(&id).await == b"attempt 1\n").then_some(())).await;
    id
}

#[tokio::test]
async fn a_node_is_emptied_by_its_deadline_and_that_can_be_called_off() {
    for (engine, db, _place) in engines("drains").await {
        let h = Harbour::on(db).await;
        let id = submit(&h, json!({"retry": {"max": 1, "on": ["node_lost"]}})).await;
        place(&h).await;
        let placed = job(&h, &id).await;
        assert_eq!(placed["state"], "assigned", "{engine} {placed}");
        let at = placed["devices"][0]["node"].as_str().unwrap();
        let path = format!("/operator/nodes/{at}/drain");
        let body = json!({"deadline_at": h.at(60), "grace_s": 30, "reason": "new power supply"});
        put(&h.t, &h.ada, &path, body.clone()).await.problem(404, "object.not_found");
        let mute = json!({"reason": " ", "grace_s": 0});
        let refused = put(&h.t, &h.operator, &path, mute).await.problem(422, "request.invalid");
        assert_eq!(refused["errors"].as_array().unwrap().len(), 2, "{engine} {refused}");
        let none = "/operator/nodes/node_00000000000000000000000009/drain";
        put(&h.t, &h.operator, none, body.clone()).await.problem(404, "object.not_found");
        let drain = put(&h.t, &h.operator, &path, body).await.expect(200);
        assert_eq!((&drain["attempts"], &drain["stopping"]), (&json!(1), &json!(0)), "{engine} {drain}");
        // Those whose jobs are there are told, and keep their time.
        h.t.portal.drains.tick_drains().await.unwrap();
        let told = job(&h, &id).await;
        let why = "is emptied by the operator (Harbour master): new power supply.";
        assert!(told["reasons"][0].as_str().unwrap().contains(why), "{engine} {told}");
        assert_eq!((&told["state"], &told["generation"]), (&json!("assigned"), &placed["generation"]));
        h.t.clock.advance_s(61);
        h.t.portal.drains.tick_drains().await.unwrap();
        let stopping = job(&h, &id).await;
        assert_eq!(stopping["state"], "stopping", "{engine} {stopping}");
        h.t.portal.drains.tick_drains().await.unwrap();
        assert_eq!(job(&h, &id).await["generation"], stopping["generation"], "{engine}: told once");
        let drains = items(&h.t, &h.operator, "/operator/drains").await;
        assert_eq!(drains[0]["stopping"], 1, "{engine} {drains:?}");
        h.t.call(&h.operator, "DELETE", &path, Value::Null).await.expect(204);
        h.t.call(&h.operator, "DELETE", &path, Value::Null).await.problem(404, "object.not_found");
        let nodes = items(&h.t, &h.operator, "/operator/nodes").await;
        assert!(nodes.iter().all(|n| n["state"] == "ready"), "{engine}: as before {nodes:?}");
        assert_eq!(job(&h, &id).await["state"], "stopping", "{engine}: what was told stays told");
        // The other node is empty at once, which is noted once.
        let other = nodes.iter().find(|n| n["id"] != at).unwrap()["id"].as_str().unwrap();
        let path = format!("/operator/nodes/{other}/drain");
        put(&h.t, &h.operator, &path, json!({"reason": "moving"})).await.expect(200);
        for _ in 0..2 {
            h.t.portal.drains.tick_drains().await.unwrap();
        }
        let drains = items(&h.t, &h.operator, "/operator/drains").await;
        assert!(drains[0]["emptied_at"].is_string(), "{engine} {drains:?}");
        let audit = items(&h.t, &h.operator, "/operator/audit-events").await;
        let of = |action: &str| audit.iter().filter(|e| e["action"] == action).count();
        assert_eq!((of("node.drained"), of("node.drain_set"), of("node.drain_called_off")), (1, 2, 1));
        // Who takes it back into service empties it no longer.
        let patch = json!({"cordoned": false});
        h.t.call(&h.operator, "PATCH", &format!("/operator/nodes/{other}"), patch).await.expect(200);
        assert!(items(&h.t, &h.operator, "/operator/drains").await.is_empty(), "{engine}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_job_saves_its_state_and_goes_on_elsewhere() {
    let quay = Quay::open().await;
    let id = saving(&quay).await;
    let t = &quay.t;
    let at = quay.job(&id).await["devices"][0]["node"].as_str().unwrap().to_owned();
    let path = format!("/operator/nodes/{at}/drain");
    let body = json!({"deadline_at": t.portal.context.now(), "reason": "firmware"});
    put(t, &quay.operator, &path, body).await.expect(200);
    eventually("an empty node", async || {
        t.portal.drains.tick_drains().await.unwrap();
        let drains = items(t, &quay.operator, "/operator/drains").await;
        drains[0]["emptied_at"].is_string().then_some(())
    })
    .await;
    let waits = quay.job(&id).await;
    assert_eq!((&waits["state"], &waits["retries"]), (&json!("queued"), &json!(0)), "{waits}");
    let first = t.portal.recordings.log(id.parse().unwrap(), 1, 0);
    assert_eq!(std::fs::read_to_string(first).unwrap(), "attempt 1\nsaved\n");
    t.call(&quay.operator, "DELETE", &path, Value::Null).await.expect(204);
    let done = quay.ended(&id).await;
    assert_eq!((&done["state"], &done["attempt"]), (&json!("succeeded"), &json!(2)), "{done}");
    quay.settled(&done).await;
    quay.all_free().await;
}

#[tokio::test]
async fn a_host_that_goes_changes_nothing_that_an_operator_decided() {
    for (engine, db, _place) in engines("host_drains").await {
        let h = Harbour::on(db).await;
        let nodes = items(&h.t, &h.operator, "/operator/nodes").await;
        let name = nodes[0]["id"].as_str().unwrap();
        let at = name.parse().unwrap();
        let drains = async || items(&h.t, &h.operator, "/operator/drains").await;
        let state = async || {
            let nodes = items(&h.t, &h.operator, "/operator/nodes").await;
            nodes.iter().find(|n| n["id"] == name).unwrap()["state"].clone()
        };
        let leaves = async || h.t.portal.drains.node_leaves(at).await.unwrap();
        let returns = async |leaving| h.t.portal.lost_nodes.node_returned(at, true, leaving).await.unwrap();
        leaves().await;
        leaves().await;
        let begun = drains().await;
        assert_eq!((begun.len(), &begun[0]["by_host"]), (1, &json!(true)), "{engine} {begun:?}");
        assert_eq!(state().await, "cordoned", "{engine}");
        returns(true).await;
        assert_eq!(drains().await.len(), 1, "{engine}: only its connection was broken");
        returns(false).await;
        assert!(drains().await.is_empty(), "{engine}");
        assert_eq!(state().await, "ready", "{engine}");

        // Cordoned before, cordoned after.
        let path = format!("/operator/nodes/{name}");
        h.t.call(&h.operator, "PATCH", &path, json!({"cordoned": true})).await.expect(200);
        leaves().await;
        returns(false).await;
        assert_eq!((drains().await.len(), state().await), (0, json!("cordoned")), "{engine}");

        // Emptied by an operator, and still so after.
        let later = json!({"deadline_at": h.at(1_000), "reason": "firmware"});
        put(&h.t, &h.operator, &format!("{path}/drain"), later).await.expect(200);
        leaves().await;
        returns(false).await;
        let kept = drains().await;
        let (deadline, soon) = (&kept[0]["deadline_at"], json!(h.at(500)));
        assert!(deadline.as_str() < soon.as_str(), "{engine}: it came sooner {kept:?}");
        assert_eq!(
            (&kept[0]["reason"], &kept[0]["by_host"]),
            (&json!("firmware"), &json!(false)),
            "{engine}"
        );
        assert_eq!(state().await, "cordoned", "{engine}");
        let audit = items(&h.t, &h.operator, "/operator/audit-events").await;
        assert_eq!(audit.iter().filter(|e| e["action"] == "node.shutdown").count(), 3, "{engine}: once each");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_jobs_of_a_host_that_is_shut_down_have_their_time() {
    let mut quay = Quay::open().await;
    let (saves, ends) = (saving(&quay).await, quay.script("exec sleep 300").await);
    quay.until(&ends, |j| j["state"] == "running").await;
    // What systemd says of itself then. Another process writes it: a fork of this one would hold it open.
    let systemctl = quay.data.join("bin/systemctl");
    std::fs::create_dir(systemctl.parent().unwrap()).unwrap();
    let stub = r#"printf '#!/bin/sh\n[ "$*" = is-system-running ] && echo stopping\nexit 1\n' > "$0" && chmod 755 "$0""#;
    let made = std::process::Command::new("sh").args(["-c", stub]).arg(&systemctl).status().unwrap();
    assert!(made.success());
    let worker = &mut quay.worker.as_mut().unwrap().process;
    let pid = nix::unistd::Pid::from_raw(i32::try_from(worker.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    let portal = quay.t.portal.clone();
    let status = eventually("the worker's end", async || {
        portal.drains.tick_drains().await.unwrap();
        worker.try_wait().unwrap()
    })
    .await;
    assert!(status.success(), "{status}");
    let drain = eventually("an empty node", async || {
        portal.drains.tick_drains().await.unwrap();
        let drains = items(&quay.t, &quay.operator, "/operator/drains").await;
        drains[0]["emptied_at"].is_string().then(|| drains[0].clone())
    })
    .await;
    assert_eq!((&drain["started_by"], &drain["by_host"]), (&json!("Its host"), &json!(true)), "{drain}");
    let waits = quay.job(&saves).await;
    assert_eq!((&waits["state"], &waits["retries"]), (&json!("queued"), &json!(0)), "{waits}");
    let first = portal.recordings.log(saves.parse().unwrap(), 1, 0);
    assert_eq!(std::fs::read_to_string(first).unwrap(), "attempt 1\nsaved\n");
    let ended = quay.job(&ends).await;
    assert_eq!((&ended["state"], &ended["failure"]["code"]), (&json!("failed"), &json!("node.drained")));
    assert!(ended["failure"]["detail"].as_str().unwrap().contains("quay is being shut down"), "{ended}");

    // The host is back.
    std::fs::remove_file(&systemctl).unwrap();
    quay.start_worker(None).unwrap();
    let done = quay.ended(&saves).await;
    assert_eq!((&done["state"], &done["attempt"]), (&json!("succeeded"), &json!(2)), "{done}");
    assert!(items(&quay.t, &quay.operator, "/operator/drains").await.is_empty());
    quay.settled(&done).await;
    quay.all_free().await;
}

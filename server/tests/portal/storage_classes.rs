//! Tests of storage classes: their grants, the placement of jobs with their volumes, and shared files on a host mount.

use crate::common::{Caller, TestPortal, engines};
use crate::idle_portal::{Equipment, IdlePortal, node};
use crate::operations::{items, job, put, schedule_all, submit};
use crate::worker_portal::{Worker, without_worker};
use serde_json::{Value, json};

const CLASS: &str = "/operator/storage-classes/scratch";

/// Declares the class and grants it to an organization.
async fn grant_class(t: &TestPortal, operator: &Caller, org: &str) {
    put(t, operator, CLASS, Value::Null).await.expect(200);
    put(t, operator, &format!("{CLASS}/orgs/{org}"), Value::Null).await.expect(200);
}

/// Submits a job that writes to the volume `shared`.
async fn submit_writer(setup: &IdlePortal) -> String {
    submit(setup, json!({"volumes": [{"name": "shared", "path": "/shared", "mode": "rw"}]})).await
}

#[tokio::test]
async fn a_class_is_declared_granted_and_kept_while_it_has_volumes() {
    for (engine, db, _location) in engines("storage_classes").await {
        let setup = IdlePortal::on(db).await;
        let (t, operator) = (&setup.t, &setup.operator);
        let grant = format!("{CLASS}/orgs/{}", setup.org);
        put(t, &setup.ada, CLASS, Value::Null).await.problem(404, "object.not_found");
        put(t, operator, &grant, Value::Null).await.problem(404, "object.not_found");
        let bad = put(t, operator, "/operator/storage-classes/Scratch", Value::Null).await;
        assert_eq!(bad.problem(422, "request.invalid")["errors"][0]["pointer"], "/class", "{engine}");
        for _ in 0..2 {
            let made = put(t, operator, CLASS, Value::Null).await.expect(200);
            assert_eq!(
                (&made["name"], &made["nodes"], &made["orgs"]),
                (&json!("scratch"), &json!(0), &json!([]))
            );
        }

        let volumes = format!("/orgs/{}/volumes", setup.org);
        let new = json!({"name": "shared", "class": "scratch"});
        let refused = t.post(&setup.ada, &volumes, new.clone()).await.problem(422, "request.invalid");
        assert_eq!(refused["errors"][0]["pointer"], "/class", "{engine}: without a grant");
        let granted = put(t, operator, &grant, Value::Null).await.expect(200);
        assert_eq!(granted["orgs"][0]["org"], json!(setup.org), "{engine}");
        let own = format!("/orgs/{}/storage-classes", setup.org);
        assert_eq!(items(t, &setup.ada, &own).await, [json!({"name": "scratch"})], "{engine}");
        t.get(&setup.bob, &own).await.problem(404, "object.not_found");
        let theirs = format!("/orgs/{}/storage-classes", setup.other);
        assert!(items(t, &setup.bob, &theirs).await.is_empty(), "{engine}");
        let limited = json!({"name": "shared", "class": "scratch", "max_bytes": 1});
        t.post(&setup.ada, &volumes, limited).await.problem(422, "request.invalid");
        let made = t.post(&setup.ada, &volumes, new).await.expect(201);
        assert_eq!((&made["class"], made.get("max_bytes")), (&json!("scratch"), None), "{engine}: {made}");
        let upload = put(t, &setup.ada, &format!("{volumes}/shared/uploads/x"), json!({"bytes": 1})).await;
        upload.problem(409, "volume.on_nodes");
        assert!(items(t, &setup.ada, &format!("{volumes}/shared/files")).await.is_empty(), "{engine}");

        for path in [CLASS, grant.as_str()] {
            let kept = t.call(operator, "DELETE", path, Value::Null).await;
            kept.problem(409, "storage_class.in_use");
        }
        t.call(&setup.ada, "DELETE", &format!("{volumes}/shared"), Value::Null).await.expect(204);
        let revoked = t.call(operator, "DELETE", &grant, Value::Null).await.expect(200);
        assert_eq!(revoked["orgs"], json!([]), "{engine}");
        t.call(operator, "DELETE", &grant, Value::Null).await.problem(404, "object.not_found");
        t.call(operator, "DELETE", CLASS, Value::Null).await.expect(204);
        assert!(items(t, operator, "/operator/storage-classes").await.is_empty(), "{engine}");
        let audit =
            t.get(&setup.ada, &format!("/orgs/{}/audit-events", setup.org)).await.expect(200).to_string();
        for action in ["storage_class.granted", "storage_class.revoked", "the files stay on it as vol_"] {
            assert!(audit.contains(action), "{engine}: {action}: {audit}");
        }
    }
}

#[tokio::test]
async fn a_job_with_a_class_waits_for_a_node_that_announces_it() {
    for (engine, db, _location) in engines("storage_placement").await {
        let setup = IdlePortal::on(db).await;
        grant_class(&setup.t, &setup.operator, &setup.org).await;
        let volumes = format!("/orgs/{}/volumes", setup.org);
        for new in [json!({"name": "shared", "class": "scratch"}), json!({"name": "plain", "max_bytes": 10})]
        {
            setup.t.post(&setup.ada, &volumes, new).await.expect(201);
        }
        let jobs = format!("/orgs/{}/jobs", setup.org);
        let gang = |volume: &str| {
            json!({
                "name": "gang", "offering": "h100-80gb", "command": ["true"], "max_duration_s": 600, "nodes": 2,
                "volumes": [{"name": volume, "path": "/v", "mode": "rw"}],
            })
        };
        let refused = setup.t.post(&setup.ada, &jobs, gang("plain")).await.problem(422, "request.invalid");
        assert_eq!(refused["errors"][0]["pointer"], "/volumes/0/mode", "{engine}");

        let (first, second) = (submit_writer(&setup).await, submit_writer(&setup).await);
        schedule_all(&setup).await;
        assert_eq!(job(&setup, &first).await["state"], "queued", "{engine}");
        let why = setup.t.get(&setup.ada, &format!("{jobs}/{first}/explanation")).await.expect(200);
        assert_eq!(why["blockers"][0]["code"], "capacity.storage", "{engine}: {why}");
        let detail = why["blockers"][0]["detail"].as_str().unwrap();
        assert!(detail.contains("has the storage class scratch"), "{engine}: {detail}");

        setup.report_equipped(2, Equipment { mounts: vec!["scratch"], ..Equipment::default() }).await;
        setup.t.portal.planner.read_all();
        schedule_all(&setup).await;
        for id in [&first, &second] {
            let placed = job(&setup, id).await;
            assert_eq!(placed["state"], "assigned", "{engine}: both write at once: {placed}");
        }
        let path = format!("/operator/jobs?state=assigned&node={}", node(2));
        assert_eq!(
            items(&setup.t, &setup.operator, &path).await.len(),
            2,
            "{engine}: on the node with the class"
        );
        let shown = setup.t.get(&setup.operator, &format!("/operator/nodes/{}", node(2))).await.expect(200);
        assert_eq!(shown["host_mounts"][0]["name"], "scratch", "{engine}");
        let seen =
            setup.t.get(&setup.ada, &format!("/orgs/{}/nodes", setup.org)).await.expect(200).to_string();
        assert!(!seen.contains("host_mounts"), "{engine}: {seen}");
        let classes = items(&setup.t, &setup.operator, "/operator/storage-classes").await;
        assert_eq!(classes[0]["nodes"], 1, "{engine}");
        let remove = setup.t.call(&setup.ada, "DELETE", &format!("{volumes}/shared"), Value::Null).await;
        remove.problem(409, "volume.in_use");
        setup.t.post(&setup.ada, &jobs, gang("shared")).await.expect(201);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_share_the_files_of_a_volume_on_a_host_mount() {
    let mut setup = without_worker().await;
    let disk = setup.t.data.path().join("scratch");
    std::fs::create_dir(&disk).unwrap();
    let token = setup.join_token(json!({})).await;
    let mount = format!("scratch={}", disk.display());
    let args = ["--host-mount", mount.as_str()];
    let mut worker = Worker::start_with(&setup.address, &setup.data, "1xH100-80GB", Some(&token), &args);
    worker.wait_until_joined().unwrap();
    setup.worker = Some(worker);
    setup.t.add_price_and_credit(&setup.operator, &setup.org, 1_000_000_000).await;
    grant_class(&setup.t, &setup.operator, &setup.org).await;
    let volumes = format!("/orgs/{}/volumes", setup.org);
    let made =
        setup.t.post(&setup.ada, &volumes, json!({"name": "shared", "class": "scratch"})).await.expect(201);

    let with = |mode: &str, script: &str| json!({"script": script, "volumes": [{"name": "shared", "path": "runs", "mode": mode}]});
    let writer =
        setup.submit(with("rw", "cd $BERTH_VOLUME_SHARED && echo one > a && mkdir d && echo wrote")).await;
    let done = setup.until_ended(&writer).await;
    assert_eq!(done["state"], "succeeded", "{done}");
    let second = "cd $BERTH_VOLUME_SHARED && echo two >> a && touch d/b && cat a";
    let second = setup.submit(with("rw", second)).await;
    assert_eq!(setup.until_ended(&second).await["state"], "succeeded");
    assert_eq!(setup.whole_log(&second).await, b"one\ntwo\n");
    let place = disk.join(&setup.org).join(made["id"].as_str().unwrap());
    assert_eq!(std::fs::read_to_string(place.join("a")).unwrap(), "one\ntwo\n");
    setup.until_all_free().await;
    let volume = setup.t.get(&setup.ada, &format!("{volumes}/shared")).await.expect(200);
    assert_eq!((&volume["version"], &volume["files"]), (&json!(0), &json!(0)), "nothing was handed over");
    let shown = setup.job(&second).await["volumes"][0].clone();
    assert_eq!((shown.get("version"), shown.get("note")), (None, None), "{shown}");
    setup.t.call(&setup.ada, "DELETE", &format!("{volumes}/shared"), Value::Null).await.expect(204);
    assert!(place.join("a").exists(), "the files stay");
}

//! Tests of kept files with real workers: jobs continue from checkpoints after a node loss or a preemption,
//! and artifacts can be fetched.

use std::process::Command;

use crate::common::{Caller, TestPortal};
use crate::worker_portal::{WorkerPortal, eventually, without_worker_on};
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request};
use berth_shim::ShimRecords;
use berth_store::{self as store, files::StoredFile};
use berth_types::files::{FileKind, FileState};
use berth_types::ids::{FileId, JobId, OrgId};
use berth_types::paths::JOB_ARTIFACTS;
use berth_types::time::Timestamp;
use serde_json::{Value, json};
use tower::ServiceExt;

const TRAIN: &str = include_str!("../../../examples/epochs/train.py");

fn training(arguments: &[&str], more: Value) -> Value {
    let mut command = vec!["python3", "train.py"];
    command.extend(arguments);
    let mut spec = json!({
        "command": command, "files": {"train.py": TRAIN}, "max_duration_s": 300,
        "checkpoint": {"signal": "SIGUSR1", "grace_s": 30, "dir": "ckpt", "every_s": 5},
        "artifacts": ["out/**"],
    });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    spec
}

async fn files(setup: &WorkerPortal, job: &str) -> Vec<Value> {
    let path = format!("/orgs/{}/jobs/{job}/files", setup.org);
    setup.t.get(&setup.ada, &path).await.expect(200)["items"].as_array().unwrap().clone()
}

/// Fetches a file; returns status, headers and bytes.
async fn fetch(setup: &WorkerPortal, path: &str, headers: &[(&str, &str)]) -> (u16, HeaderMap, Vec<u8>) {
    let Caller::Cookie(cookie) = &setup.ada else { panic!("a person") };
    let mut request = Request::builder().uri(format!("/api/v1{path}")).header("cookie", cookie);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = setup.t.router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    let (parts, body) = response.into_parts();
    (parts.status.as_u16(), parts.headers, to_bytes(body, usize::MAX).await.unwrap().to_vec())
}

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

/// Returns the newest complete checkpoint of a job.
async fn newest(setup: &WorkerPortal, job: &str) -> Option<(Value, Vec<u8>)> {
    let whole = |f: &Value| f["kind"] == "checkpoint" && f["state"] == "complete";
    let file = files(setup, job).await.into_iter().find(whole)?;
    let path = format!("/orgs/{}/jobs/{job}/files/{}", setup.org, file["id"].as_str().unwrap());
    let (status, _, bytes) = fetch(setup, &path, &[]).await;
    (status == 200).then_some((file, bytes))
}

async fn log_of(setup: &WorkerPortal, job: &str, attempt: u32) -> String {
    let id = job.parse().unwrap();
    setup.log_complete(id, attempt, 0).await;
    std::fs::read_to_string(setup.t.portal.recordings.log(id, attempt, 0)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_a_lost_node_continues_from_its_checkpoint() {
    let mut setup = WorkerPortal::open().await;
    let more = json!({"retry": {"max": 2, "on": ["node_lost"]}});
    let job =
        setup.submit(training(&["--epochs", "4", "--seconds", "0.1", "--stall-after", "2"], more)).await;
    // The second epoch is in a checkpoint; the third epoch never ends.
    eventually("a checkpoint of the second epoch", async || {
        newest(&setup, &job).await.filter(|(_, bytes)| holds(bytes, "\"epoch\": 2"))
    })
    .await;
    // The host fails without warning and loses its disk.
    let attempt = setup.data.join("attempts").join(format!("{job}-1"));
    let known = ShimRecords::read(&attempt);
    setup.worker.as_mut().unwrap().kill();
    for pid in [known.shim.unwrap(), known.start.unwrap().pid] {
        // The second process may have ended with the first.
        let _ = Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
    }
    std::fs::remove_dir_all(attempt.join("work")).unwrap();
    setup.start_worker(None).unwrap();
    let done = setup.until_ended(&job).await;
    assert_eq!((&done["state"], &done["attempt"]), (&json!("succeeded"), &json!(2)), "{done}");
    let log = log_of(&setup, &job, 2).await;
    assert!(log.starts_with("begins after epoch 2\nepoch 3 "), "only the epoch under way was lost: {log}");
    setup.assert_settled(&done).await;
    setup.until_all_free().await;
    let left = files(&setup, &job).await;
    let model = left.iter().find(|f| f["kind"] == "artifact").unwrap();
    assert_eq!((&model["path"], &model["attempt"]), (&json!("out/model.json"), &json!(2)));
    let checkpoints = left.iter().filter(|f| f["kind"] == "checkpoint").count();
    assert!((1..=2).contains(&checkpoints), "older ones are given up: {left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preempted_job_continues_from_its_last_checkpoint() {
    let setup = WorkerPortal::open().await;
    let price = json!({"offering": "h100-80gb", "per_hour_micros": 3_600_000});
    setup.t.post(&setup.operator, "/operator/prices", price).await.expect(201);
    // The job has no periodic checkpoint, so only the end of the attempt can store one.
    let more = json!({
        "offering": "h100-80gb", "preemptible": true, "priority": "low",
        "checkpoint": {"signal": "SIGUSR1", "grace_s": 30, "dir": "ckpt"},
    });
    let low =
        setup.submit(training(&["--epochs", "3", "--seconds", "0.1", "--stall-after", "1"], more)).await;
    eventually("the first epoch", async || holds(&setup.log(&low).await, "epoch 1 ").then_some(())).await;
    let high = setup.submit(json!({"offering": "h100-80gb", "priority": "high", "script": "true"})).await;
    assert_eq!(setup.until_ended(&high).await["state"], "succeeded");
    let done = setup.until_ended(&low).await;
    assert_eq!((&done["state"], &done["attempt"]), (&json!("succeeded"), &json!(2)), "{done}");
    assert!(log_of(&setup, &low, 1).await.ends_with("makes room after epoch 1\n"));
    assert!(log_of(&setup, &low, 2).await.starts_with("begins after epoch 1\nepoch 2 "));
    setup.assert_settled(&done).await;
    setup.until_all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn artifacts_are_fetched_by_range_and_only_by_their_organization() {
    let setup = WorkerPortal::open().await;
    let script = "mkdir -p out/deep; seq 1 1000000 > out/numbers; : > out/deep/empty; echo x > other
        ln -s numbers out/link; ln -s /etc/passwd out/away; mkfifo out/pipe";
    let job = setup.submit(json!({"script": script, "artifacts": ["out/**", "none/*"]})).await;
    assert_eq!(setup.until_ended(&job).await["state"], "succeeded");
    setup.until_all_free().await;
    let mut left = files(&setup, &job).await;
    left.sort_by_key(|f| f["path"].as_str().unwrap().to_owned());
    let paths: Vec<&str> = left.iter().map(|f| f["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["out/deep/empty", "out/numbers"], "links and pipes are not files: {left:?}");
    let whole: String = (1..=1_000_000).map(|n| format!("{n}\n")).collect();
    assert_eq!(left[1]["bytes"], whole.len());
    let list = format!("/orgs/{}/jobs/{job}/files", setup.org);
    let path = format!("{list}/{}", left[1]["id"].as_str().unwrap());
    let (status, headers, bytes) = fetch(&setup, &path, &[]).await;
    assert_eq!((status, bytes == whole.as_bytes()), (200, true));
    assert_eq!(headers["content-length"], whole.len().to_string());
    assert_eq!(headers["content-disposition"], "attachment; filename*=UTF-8''numbers");
    assert_eq!(headers["x-content-type-options"], "nosniff");
    let tag = headers["etag"].to_str().unwrap();
    assert_eq!(tag.trim_matches('"'), left[1]["sha256"]);
    // The client resumes an interrupted download.
    let rest = [("range", "bytes=1000-"), ("if-range", tag)];
    let (status, headers, bytes) = fetch(&setup, &path, &rest).await;
    assert_eq!((status, bytes == whole.as_bytes()[1_000..]), (206, true));
    assert_eq!(headers["content-range"], format!("bytes 1000-{}/{}", whole.len() - 1, whole.len()));
    let other = [("range", "bytes=1000-"), ("if-range", "\"of another file\"")];
    assert_eq!(fetch(&setup, &path, &other).await.0, 200);
    let (status, headers, _) = fetch(&setup, &path, &[("range", "bytes=99999999-")]).await;
    assert_eq!(
        (status, headers["content-range"].to_str().unwrap()),
        (416, &*format!("bytes */{}", whole.len()))
    );
    let empty = format!("{list}/{}", left[0]["id"].as_str().unwrap());
    assert_eq!(fetch(&setup, &empty, &[]).await.2, b"");

    let (eve, eves) = setup.t.tenant("eve").await;
    setup.t.get(&eve, &list).await.problem(404, "object.not_found");
    setup.t.get(&eve, &path).await.problem(404, "object.not_found");
    setup.t.call(&eve, "DELETE", &path, Value::Null).await.problem(404, "object.not_found");
    let hers = format!("/orgs/{eves}/jobs/{job}/files");
    setup.t.get(&eve, &hers).await.problem(404, "object.not_found");
    let aimed = path.replace(&setup.org, &eves);
    setup.t.get(&eve, &aimed).await.problem(404, "object.not_found");
    setup.t.call(&eve, "DELETE", &aimed, Value::Null).await.problem(404, "object.not_found");
    setup.t.get(&Caller::Nobody, &path).await.problem(401, "auth.required");

    let stored = setup.t.data.path().join("objects/files").join(left[1]["id"].as_str().unwrap());
    assert!(stored.exists());
    assert_eq!(setup.t.call(&setup.ada, "DELETE", &path, Value::Null).await.status, 204);
    setup.t.call(&setup.ada, "DELETE", &path, Value::Null).await.problem(404, "object.not_found");
    setup.t.get(&setup.ada, &path).await.problem(404, "object.not_found");
    assert!(!stored.exists(), "its bytes are removed too");
    assert_eq!(files(&setup, &job).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn rejected_paths_are_noted_and_other_artifacts_are_kept() {
    let setup = WorkerPortal::open().await;
    // The directory outside the patterns has more entries than a checkpoint may have.
    let script = r#"mkdir -p out venv/lib; echo a > out/a; echo x > "$(printf 'out/line\nbreak')"
        python3 -c 'import os
for n in range(100_050): os.mknod(f"venv/lib/{n}", 0o100600)
open(b"out/\xff", "w")
d = "out/" + "d/" * 128
os.makedirs(d); open(d + "below", "w")'"#;
    let job = setup.submit(json!({"script": script, "artifacts": ["out/**", "*"]})).await;
    let done = setup.until_ended(&job).await;
    assert_eq!(done["state"], "succeeded", "{}", String::from_utf8_lossy(&setup.log(&job).await));
    setup.until_all_free().await;
    let left = files(&setup, &job).await;
    let kept: Vec<&Value> = left.iter().filter(|f| f["state"] == "complete").map(|f| &f["path"]).collect();
    assert_eq!(kept, ["out/a"], "nothing of the worker's own: {left:?}");
    let refused = left.iter().find(|f| f["state"] == "refused").unwrap();
    let note = refused["note"].as_str().unwrap();
    for part in ["3 not kept", "512 bytes and 128 parts", r#""out/line\nbreak""#, r#""out/\xff""#] {
        assert!(note.contains(part), "{part}: {note}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_checkpoint_is_restored_only_with_a_note() {
    let setup = WorkerPortal::open().await;
    // Each attempt lists the restored directory and leaves it in a different state.
    let script = r#"echo has; cd ckpt && ls && cd ..; case $BERTH_ATTEMPT in
        1) echo 1 > ckpt/one; chmod 751 ckpt; exit 1 ;;
        2) stat -c %a ckpt; rm ckpt/one; exit 1 ;;
        3) echo 3 > ckpt/three; exit 1 ;;
        4) rm -r ckpt; exit 1 ;;
        5) echo 5 > ckpt/five; exit 1 ;;
        6) rm -r ckpt; ln -s /tmp ckpt; exit 1 ;;
        esac"#;
    let more = json!({
        "script": script, "checkpoint": {"dir": "ckpt", "keep": 10}, "retry": {"max": 9, "on": ["exit"]},
        // Submitted files exist at the first start only.
        "files": {"ckpt/given": "x"},
    });
    let job = setup.submit(more).await;
    let done = setup.until_ended(&job).await;
    assert_eq!((&done["state"], &done["attempt"]), (&json!("succeeded"), &json!(7)), "{done}");
    setup.until_all_free().await;
    let mut logs = Vec::new();
    for attempt in 1..=7 {
        logs.push(log_of(&setup, &job, attempt).await);
    }
    let logs: Vec<&str> = logs.iter().map(|log| log.strip_prefix("has\n").unwrap()).collect();
    let seen = ["given\n", "given\none\n751\n", "given\n", "given\nthree\n", "", "five\n", "five\n"];
    assert_eq!(logs, seen);
    let left = files(&setup, &job).await;
    let checkpoint =
        |attempt: u32| left.iter().find(|f| f["attempt"] == attempt && f["kind"] == "checkpoint").unwrap();
    assert!(checkpoint(4)["note"].as_str().unwrap().starts_with("The directory was removed"), "{left:?}");
    let replaced = checkpoint(6);
    assert_eq!(replaced["state"], "refused", "{replaced}");
    assert!(replaced["note"].as_str().unwrap().contains("starts from the previous checkpoint"), "{replaced}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_at_its_file_limit_gets_a_note_and_keeps_its_checkpoint() {
    let setup = WorkerPortal::open().await;
    // The script waits for the file `go` of the test.
    let script = "until test -e go; do sleep 0.05; done; mkdir -p out; echo a > out/a; echo b > out/b; echo c > ckpt/c";
    let job =
        setup.submit(json!({"script": script, "artifacts": ["out/*"], "checkpoint": {"dir": "ckpt"}})).await;
    setup.until(&job, |j| j["state"] == "running").await;
    let (org_id, job_id): (OrgId, JobId) = (setup.org.parse().unwrap(), job.parse().unwrap());
    let row = move |n: usize| StoredFile {
        id: FileId::from_uuid(uuid::Uuid::from_u128(n as u128)),
        org_id,
        job_id,
        attempt: 0,
        rank: 0,
        kind: FileKind::Artifact,
        seq: 0,
        path: format!("old/{n}"),
        bytes: 1,
        sha256: String::new(),
        files: 1,
        state: FileState::Refused,
        note: None,
        created_at: Timestamp::default(),
    };
    let all: Vec<usize> = (0..JOB_ARTIFACTS - 1).collect();
    // One write has a time limit, which all rows together exceed on a slow machine.
    for some in all.chunks(500).map(<[usize]>::to_vec) {
        let fill = setup.t.portal.context.db.write(move |tx| {
            let some = some.clone();
            Box::pin(async move {
                for n in some {
                    store::files::insert(tx, &row(n)).await?;
                }
                Ok(())
            })
        });
        fill.await.unwrap();
    }
    let work = setup.data.join("attempts").join(format!("{job}-1")).join("work");
    std::fs::write(work.join("go"), "").unwrap();
    assert_eq!(setup.until_ended(&job).await["state"], "succeeded");
    setup.until_all_free().await;
    let left = files(&setup, &job).await;
    let new: Vec<&Value> = left.iter().filter(|f| f["attempt"] == 1).collect();
    let count =
        |kind: &str, state: &str| new.iter().filter(|f| f["kind"] == kind && f["state"] == state).count();
    let counted =
        [count("artifact", "complete"), count("checkpoint", "complete"), count("artifact", "refused")];
    assert_eq!(counted, [0, 1, 1], "the checkpoint took the last place: {new:?}");
    let refused = new.iter().find(|f| f["state"] == "refused").unwrap();
    assert!(refused["note"].as_str().unwrap().contains("10000 files"), "{refused}");
}

#[tokio::test]
async fn a_job_with_conflicting_paths_is_refused() {
    let t = TestPortal::sqlite().await;
    let (ada, org) = t.tenant("lab").await;
    for (more, pointer, detail) in [
        (json!({"files": {"a": "", "a/b": ""}}), "/files/a", "no other file can be below it"),
        (json!({"files": {".berth-script": ""}}), "/files/.berth-script", "reserved for Berth"),
        (json!({"files": {"a": ""}, "checkpoint": {"dir": "a/ckpt"}}), "/checkpoint/dir", "a is a file"),
        (json!({"checkpoint": {"dir": ".volumes"}}), "/checkpoint/dir", "reserved for Berth"),
    ] {
        let mut job = json!({"name": "x", "offering": "h100-80gb.1g.10gb", "script": "true"});
        job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let problem = t.post(&ada, &format!("/orgs/{org}/jobs"), job).await.problem(422, "request.invalid");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
        assert!(problem["errors"][0]["detail"].as_str().unwrap().contains(detail), "{problem}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_beyond_the_storage_limit_are_refused_and_old_files_expire() {
    let dir = tempfile::tempdir().unwrap();
    let db = crate::common::new_sqlite(&dir.path().join("berth.db")).await;
    let t =
        TestPortal::with(db, |settings| berth_foundation::Settings { org_storage_bytes: 10_000, ..settings });
    let mut setup = without_worker_on(t).await;
    let token = setup.join_token(json!({})).await;
    setup.start_worker(Some(&token)).unwrap();
    setup.t.add_price_and_credit(&setup.operator, &setup.org, 1_000_000_000).await;
    let script = "mkdir out; head -c 6000 /dev/zero > out/a; head -c 6000 /dev/zero > out/b";
    let job = setup.submit(json!({"script": script, "artifacts": ["out/*"]})).await;
    assert_eq!(setup.until_ended(&job).await["state"], "succeeded");
    setup.until_all_free().await;
    let mut left = files(&setup, &job).await;
    left.sort_by_key(|f| f["path"].as_str().unwrap().to_owned());
    assert_eq!((&left[0]["state"], &left[1]["state"]), (&json!("complete"), &json!("refused")));
    assert!(left[1]["note"].as_str().unwrap().contains("is full"), "{left:?}");
    let path = format!("/orgs/{}/jobs/{job}/files/{}", setup.org, left[1]["id"].as_str().unwrap());
    setup.t.get(&setup.ada, &path).await.problem(409, "file.incomplete");
    setup.t.portal.files.tidy_files().await.unwrap();
    assert_eq!(files(&setup, &job).await.len(), 2, "it is not old yet");
    setup.t.clock.advance_s(31 * 86_400);
    setup.t.portal.files.tidy_files().await.unwrap();
    let ada = setup.t.sign_in("lab@example.org").await;
    let list = setup.t.get(&ada, &format!("/orgs/{}/jobs/{job}/files", setup.org)).await.expect(200);
    assert_eq!(list["items"], json!([]));
    let kept = std::fs::read_dir(setup.t.data.path().join("objects/files")).unwrap().count();
    assert_eq!(kept, 0);
}

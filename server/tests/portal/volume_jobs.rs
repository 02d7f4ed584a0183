//! Tests of volumes under jobs: hand-overs of new versions, and files in a bucket.

use crate::bucket::{BucketState, FakeBucket};
use crate::common::left_out::left_out;
use crate::common::{TestPortal, engines};
use crate::relay::Relay;
use crate::volumes::{put, raw, until_stored};
use crate::worker_portal::{WorkerPortal, eventually, without_worker};
use berth_foundation::Settings;
use berth_foundation::objects::Objects;
use futures::TryStreamExt;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Submits a job with the volume.
async fn with_volume(setup: &WorkerPortal, mode: &str, script: &str) -> String {
    let volumes = json!([{"name": "data", "path": "/data", "mode": mode}]);
    setup.submit(json!({"script": script, "volumes": volumes})).await
}

#[tokio::test(flavor = "multi_thread")]
async fn one_job_writes_a_volume_and_the_next_reads_it() {
    let setup = WorkerPortal::open().await;
    let volumes = format!("/orgs/{}/volumes", setup.org);
    let volume = format!("{volumes}/data");
    setup.t.post(&setup.ada, &volumes, json!({"name": "data", "max_bytes": 5_000_000})).await.expect(201);
    put(&setup.t, &setup.ada, &volume, "in/numbers", b"1\n2\n3\n").await;
    put(&setup.t, &setup.ada, &volume, "old", b"old").await;

    let write = "cd $BERTH_VOLUME_DATA && cat in/numbers && rm old && mkdir out && echo four > out/new
        head -c 1000000 /dev/zero > out/zeros; printf '#!/bin/sh\\necho ran\\n' > run; chmod 755 run
        ln -s run link; echo ready; while ! test -e go; do sleep 0.05; done; rm go";
    let writer = with_volume(&setup, "rw", write).await;
    eventually("the writer", async || {
        let log = setup.log(&writer).await;
        String::from_utf8_lossy(&log).contains("ready").then_some(())
    })
    .await;
    // No other writer is allowed meanwhile, and a reader gets the version before.
    let at = format!("{volume}/uploads/more");
    let busy = setup.t.call(&setup.ada, "PUT", &at, json!({"bytes": 1})).await.problem(409, "volume.busy");
    assert!(busy.to_string().contains(&writer), "{busy}");
    let removed = setup.t.call(&setup.ada, "DELETE", &format!("{volume}/files/old"), Value::Null).await;
    removed.problem(409, "volume.busy");
    setup.t.call(&setup.ada, "DELETE", &volume, Value::Null).await.problem(409, "volume.in_use");
    let early = with_volume(&setup, "ro", "cat $BERTH_VOLUME_DATA/old; ls $BERTH_VOLUME_DATA").await;
    assert_eq!(setup.until_ended(&early).await["state"], "succeeded");
    assert_eq!(setup.whole_log(&early).await, b"oldin\nold\n");
    let next = with_volume(&setup, "rw", "cd $BERTH_VOLUME_DATA && ./run && cat out/new && rm -r out").await;
    let explain = format!("/orgs/{}/jobs/{next}/explanation", setup.org);
    let why = setup.t.get(&setup.ada, &explain).await.expect(200);
    assert_eq!(why["blockers"][0]["code"], "volume.busy", "{why}");
    assert_eq!(setup.t.get(&setup.ada, &volume).await.expect(200)["version"], 2, "nothing is half there");

    // The test creates the file in the volume's directory on the host.
    let go = setup.data.join("attempts").join(format!("{writer}-1")).join("volumes/0/go");
    std::fs::write(go, "").unwrap();
    let done = setup.until_ended(&writer).await;
    assert_eq!(done["state"], "succeeded", "{done}");
    // The second job waits for the hand-over of the first and reads its files.
    let done = setup.until_ended(&next).await;
    assert_eq!(done["state"], "succeeded", "{done}");
    assert_eq!(setup.whole_log(&next).await, b"ran\nfour\n");
    setup.until_all_free().await;
    let first = setup.job(&writer).await;
    let given = &first["volumes"][0];
    assert_eq!((&given["version"], &given["kept_version"]), (&json!(2), &json!(3)), "{first}");
    assert!(given["note"].as_str().unwrap().starts_with("1 not kept"), "the link: {first}");
    let next = setup.job(&next).await;
    assert_eq!(next["volumes"][0]["kept_version"], 4, "{next}");
    let now = setup.t.get(&setup.ada, &volume).await.expect(200);
    assert_eq!(
        (&now["version"], &now["files"], &now["used_bytes"]),
        (&json!(4), &json!(2), &json!(25)),
        "{now}"
    );

    let reader = with_volume(&setup, "ro", "cd $BERTH_VOLUME_DATA && find . -type f | sort; ./run").await;
    assert_eq!(setup.until_ended(&reader).await["state"], "succeeded");
    assert_eq!(setup.whole_log(&reader).await, b"./in/numbers\n./run\nran\n");
    setup.until_all_free().await;
    // Files of no version are removed.
    until_stored(&setup.t, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dependent_job_reads_the_files_of_the_job_before() {
    // The hand-over takes longer than a placement.
    let (setup, relay) = with_latency().await;
    let volumes = format!("/orgs/{}/volumes", setup.org);
    setup.t.post(&setup.ada, &volumes, json!({"name": "data", "max_bytes": 5_000_000})).await.expect(201);
    let data = json!([{"name": "data", "path": "/data", "mode": "ro"}]);
    let started = "echo started; while ! test -e $BERTH_VOLUME_DATA/go; do sleep 0.05; done";
    let write = format!(
        "{started}; rm $BERTH_VOLUME_DATA/go; for n in 1 2 3; do echo $n > $BERTH_VOLUME_DATA/$n; done"
    );
    let writer = with_volume(&setup, "rw", &write).await;
    let after = json!([{"job": writer, "condition": "finished"}]);
    let read = "cat $BERTH_VOLUME_DATA/1 $BERTH_VOLUME_DATA/2 $BERTH_VOLUME_DATA/3";
    let reader = setup.submit(json!({"script": read, "volumes": data, "depends_on": after})).await;
    // An equal job without the dependency does not wait.
    eventually("the writer", async || setup.log(&writer).await.starts_with(b"started").then_some(())).await;
    let early = setup.submit(json!({"script": "ls $BERTH_VOLUME_DATA", "volumes": data})).await;
    assert_eq!(setup.until_ended(&early).await["state"], "succeeded");
    assert_eq!(setup.whole_log(&early).await, b"");
    let go = setup.data.join("attempts").join(format!("{writer}-1")).join("volumes/0/go");
    std::fs::write(go, "").unwrap();
    let done = setup.until_ended(&reader).await;
    assert_eq!(done["state"], "succeeded", "{done}");
    assert_eq!(setup.whole_log(&reader).await, b"1\n2\n3\n");
    drop(relay);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_start_on_a_node_needs_no_file_from_the_portal() {
    let mut setup = WorkerPortal::open().await;
    if !setup.data.join("cache").exists() {
        left_out("no sandbox works on this machine, so its worker has no cache");
        return;
    }
    let volumes = format!("/orgs/{}/volumes", setup.org);
    setup.t.post(&setup.ada, &volumes, json!({"name": "data", "max_bytes": 5_000_000})).await.expect(201);
    put(&setup.t, &setup.ada, &format!("{volumes}/data"), "in/numbers", b"1\n2\n3\n").await;
    let read = "cat $BERTH_VOLUME_DATA/in/numbers";
    let change = "cd $BERTH_VOLUME_DATA/in && cat numbers && echo 4 >> numbers && cat numbers";
    for (mode, script, log) in [
        ("ro", read, &b"1\n2\n3\n"[..]),
        ("ro", read, &b"1\n2\n3\n"[..]),
        ("rw", change, &b"1\n2\n3\n1\n2\n3\n4\n"[..]),
        ("ro", read, &b"1\n2\n3\n4\n"[..]),
    ] {
        let job = with_volume(&setup, mode, script).await;
        let done = setup.until_ended(&job).await;
        assert_eq!(done["state"], "succeeded", "{mode}: {done}");
        assert_eq!(setup.whole_log(&job).await, log, "{mode}");
        setup.until_all_free().await;
        if mode == "ro" {
            // The portal has the volume without the bytes of its files; the next job finds them on the node.
            for file in std::fs::read_dir(setup.t.data.path().join("objects/files")).unwrap() {
                std::fs::remove_file(file.unwrap().path()).unwrap();
            }
            setup.worker.as_mut().unwrap().kill();
            setup.start_worker(None).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_beyond_the_volume_limit_changes_nothing_and_leaves_a_note() {
    for (engine, db, _location) in engines("volume_limit").await {
        let setup = WorkerPortal::on(TestPortal::on(db)).await;
        let volumes = format!("/orgs/{}/volumes", setup.org);
        let volume = format!("{volumes}/data");
        setup.t.post(&setup.ada, &volumes, json!({"name": "data", "max_bytes": 1_000})).await.expect(201);
        put(&setup.t, &setup.ada, &volume, "a", b"a").await;
        let script =
            "cd $BERTH_VOLUME_DATA && rm a && for n in 1 2 3; do head -c 400 /dev/urandom > $n; done";
        let job = with_volume(&setup, "rw", script).await;
        assert_eq!(setup.until_ended(&job).await["state"], "succeeded");
        setup.until_all_free().await;
        let ended = setup.job(&job).await;
        let given = &ended["volumes"][0];
        let note = given["note"].as_str().unwrap();
        assert!(note.contains("limit of the volume is 1000 bytes"), "{engine}: {given}");
        assert_eq!(given["kept_version"], Value::Null, "{engine}: {given}");
        let events =
            setup.t.get(&setup.ada, &format!("/orgs/{}/jobs/{job}/events", setup.org)).await.expect(200);
        let events = events["items"].as_array().unwrap();
        let detail = json!(format!("The files for the volume data were not kept. {note}"));
        assert_eq!(
            events.iter().filter(|event| event["detail"] == detail).count(),
            1,
            "{engine}: {events:?}"
        );
        assert_eq!(events.last().unwrap()["seq"], ended["generation"], "{engine}: {events:?}");
        let now = setup.t.get(&setup.ada, &volume).await.expect(200);
        assert_eq!((&now["version"], &now["files"]), (&json!(1), &json!(1)), "{now}");
        // The files of the failed hand-over are removed.
        until_stored(&setup.t, 1).await;
    }
}

/// Starts a portal with one worker behind a relay with a round trip of 50 ms.
async fn with_latency() -> (WorkerPortal, Relay) {
    let mut setup = without_worker().await;
    let near = setup.address.strip_prefix("https://").unwrap().to_owned();
    let relay = Relay::delaying(&near, Duration::from_millis(25));
    setup.address = format!("https://{}", relay.address);
    let token = setup.join_token(json!({})).await;
    setup.start_worker(Some(&token)).unwrap();
    setup.t.add_price_and_credit(&setup.operator, &setup.org, 1_000_000_000).await;
    (setup, relay)
}

/// Returns the number of files in the portal's store.
fn stored_file_count(setup: &WorkerPortal) -> usize {
    std::fs::read_dir(setup.t.data.path().join("objects/files")).map_or(0, Iterator::count)
}

/// Returns a script that writes `count` different small files.
fn script_for_files(count: usize, dir: &str) -> String {
    let each = "open(f'{d}/{n % 100}/{n}', 'w').write(f'file {n}')";
    format!(
        "python3 -c \"import os; d = '{dir}'\nfor n in range(100): os.makedirs(f'{{d}}/{{n}}')\nfor n in range({count}): {each}\""
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn many_small_files_cost_few_round_trips() {
    let count = 10_000;
    let (setup, _relay) = with_latency().await;
    let volumes = format!("/orgs/{}/volumes", setup.org);
    setup.t.post(&setup.ada, &volumes, json!({"name": "data", "max_bytes": 50_000_000})).await.expect(201);
    let job = with_volume(&setup, "rw", &script_for_files(count, "$BERTH_VOLUME_DATA/many")).await;
    assert_eq!(setup.until_ended(&job).await["state"], "succeeded");
    let began = Instant::now();
    let now =
        setup.until(&job, |j| j["volumes"][0]["kept_version"] == 1 || j["volumes"][0]["note"] != Value::Null);
    let now = now.await;
    let took = began.elapsed();
    println!("{count} files were handed over in {took:?}");
    assert_eq!((&now["volumes"][0]["kept_version"], &now["volumes"][0]["note"]), (&json!(1), &Value::Null));
    // One by one, with two round trips each, the hand-over would take a thousand seconds.
    assert!(took < Duration::from_secs(60), "{took:?}");
    let data = setup.t.get(&setup.ada, &format!("{volumes}/data")).await.expect(200);
    assert_eq!(data["files"], count, "{data}");
    let (status, _, body) =
        raw(&setup.t, &setup.ada, ("GET", &format!("{volumes}/data/files/many/77/1977")), &[], b"").await;
    assert_eq!((status, body.as_slice()), (200, b"file 1977".as_slice()));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_hand_over_resumes_without_repetition() {
    let (setup, relay) = with_latency().await;
    let volumes = format!("/orgs/{}/volumes", setup.org);
    setup.t.post(&setup.ada, &volumes, json!({"name": "data", "max_bytes": 50_000_000})).await.expect(201);
    // One path is too deep for a volume; the other files are kept.
    let deep = "d/".repeat(64);
    let script = format!(
        "{}; cd $BERTH_VOLUME_DATA && mkdir -p {deep} && echo x > {deep}file && head -c 3000000 /dev/zero > large",
        script_for_files(4_000, "$BERTH_VOLUME_DATA/many")
    );
    let job = with_volume(&setup, "rw", &script).await;
    let some = async || (stored_file_count(&setup) > 0).then(|| stored_file_count(&setup));
    let some = eventually("the first files", some).await;
    relay.cut();
    assert!(some < 4_001, "it was cut off on the way");
    let data = setup.t.get(&setup.ada, &format!("{volumes}/data")).await.expect(200);
    assert_eq!(data["version"], 0, "nothing counts before all of it is there");
    relay.mend();
    let now = setup.until(&job, |j| j["volumes"][0]["kept_version"] == 1).await;
    let note = now["volumes"][0]["note"].as_str().unwrap();
    assert!(note.starts_with("1 not kept") && note.contains("64 parts") && note.contains("d/d/d"), "{note}");
    let data = setup.t.get(&setup.ada, &format!("{volumes}/data")).await.expect(200);
    assert_eq!(data["files"], 4_001, "{data}");
    setup.until_ended(&job).await;
    setup.until_all_free().await;
    until_stored(&setup.t, 4_001).await;
}

#[tokio::test]
async fn a_bucket_gets_whole_files_and_keeps_no_parts() {
    let dir = tempfile::tempdir().unwrap();
    let (bucket, settings) = FakeBucket::open().await;
    let stranger = Objects::new(dir.path(), Some(settings.clone().with_secret_access_key("another").into()));
    let store = Objects::new(dir.path(), Some(settings.into()));
    let data: Vec<u8> = (0..17_u32 << 20).map(|n| (n % 251) as u8).collect();
    let total = data.len() as u64;
    assert_eq!(store.stage("big", 0, &data, total).unwrap(), total);
    store.stage("none", 0, b"", 0).unwrap();
    assert!(stranger.finish("big").await.is_err());
    assert_eq!(bucket.state().refused.drain(..).collect::<Vec<_>>(), ["SignatureDoesNotMatch"]);
    // The third part has no room: no part stays in the bucket, and the file stays staged.
    bucket.state().full_at = 3;
    let error = store.finish("big").await.unwrap_err().to_string();
    assert!(error.contains("QuotaExceeded") && !error.contains(crate::bucket::SECRET), "{error}");
    assert_eq!(bucket.state().refused.drain(..).collect::<Vec<_>>(), ["QuotaExceeded"]);
    let nothing =
        |state: &BucketState| state.parts.is_empty() && state.objects.is_empty() && state.refused.is_empty();
    assert!(nothing(&bucket.state()));
    assert!(store.read("big", 0..1).await.is_err());
    bucket.state().full_at = 0;
    // The caller stops waiting after the start of the first part, and the transfer continues.
    tokio::select! {
        _ = store.finish("big") => panic!("it was too quick"),
        () = bucket.part_begun() => {}
    }
    let there = async || bucket.state().objects.contains_key("/berth/files/big").then_some(());
    eventually("the rest of the file", there).await;
    for id in ["big", "none"] {
        store.finish(id).await.unwrap();
    }
    let there = |state: &BucketState| {
        state.parts.is_empty()
            && state.objects["/berth/files/big"] == data
            && state.objects["/berth/files/none"].is_empty()
    };
    assert!(there(&bucket.state()));
    assert_eq!(store.stage("big", 0, b"", total).unwrap(), 0, "nothing is left where it was put together");
    let pieces: Vec<_> = store.read("big", 3..total).await.unwrap().try_collect().await.unwrap();
    assert!(pieces.len() == 5 && pieces.concat() == data[3..], "{} pieces", pieces.len());
    let piece = store.read_piece("big", 8_388_600..8_388_616).await.unwrap();
    assert!(piece == data[8_388_600..8_388_616] && store.read_piece("none", 0..0).await.unwrap().is_empty());
    for id in ["big", "big", "none"] {
        store.remove(id).await.unwrap();
    }
    assert!(nothing(&bucket.state()));
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_read_and_write_files_that_are_in_a_bucket() {
    let (bucket, settings) = FakeBucket::open().await;
    let dir = tempfile::tempdir().unwrap();
    let db = crate::common::new_sqlite(&dir.path().join("berth.db")).await;
    let with = |other| Settings { object_store: Some(settings.into()), ..other };
    let setup = WorkerPortal::on(TestPortal::with(db, with)).await;
    let volumes = format!("/orgs/{}/volumes", setup.org);
    let volume = format!("{volumes}/data");
    setup.t.post(&setup.ada, &volumes, json!({"name": "data", "max_bytes": 1_000_000})).await.expect(201);
    put(&setup.t, &setup.ada, &volume, "a", b"one").await;
    let job = setup
        .submit(json!({
            "script": "cat data/a; printf two > data/b; mkdir out; printf three > out/c",
            "volumes": [{"name": "data", "path": "data", "mode": "rw"}], "artifacts": ["out/*"],
        }))
        .await;
    assert_eq!(setup.until_ended(&job).await["state"], "succeeded");
    setup.until_all_free().await;
    assert_eq!(setup.whole_log(&job).await, b"one");
    let read = async |path: &str| raw(&setup.t, &setup.ada, ("GET", path), &[], b"").await;
    let (status, _, body) = read(&format!("{volume}/files/b")).await;
    assert_eq!((status, body.as_slice()), (200, b"two".as_slice()));
    let files = format!("/orgs/{}/jobs/{job}/files", setup.org);
    let left = setup.t.get(&setup.ada, &files).await.expect(200);
    let artifact = left["items"][0]["id"].as_str().unwrap();
    let range = [("range", "bytes=1-3")];
    let (status, _, body) =
        raw(&setup.t, &setup.ada, ("GET", &format!("{files}/{artifact}")), &range, b"").await;
    assert_eq!((status, body.as_slice()), (206, b"hre".as_slice()));
    assert_eq!(bucket.state().objects.len(), 3);
    assert!(!setup.t.data.path().join("objects").exists(), "nothing is kept beside it");
    setup.t.call(&setup.ada, "DELETE", &volume, Value::Null).await.expect(204);
    eventually("the volume's files to be gone from the bucket", async || {
        setup.t.portal.volumes.tidy_volumes().await.unwrap();
        (bucket.state().objects.len() == 1).then_some(())
    })
    .await;
    assert_eq!(bucket.state().refused, Vec::<&str>::new());
}

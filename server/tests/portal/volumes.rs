//! Tests of volumes: rights, interrupted uploads, limits and paths; and with a real worker, jobs that write
//! and read them.

use std::time::{Duration, Instant};

use crate::bucket::{BucketState, FakeBucket};
use crate::common::{Caller, TestPortal, engines};
use crate::relay::Relay;
use crate::worker_portal::{WorkerPortal, eventually, without_worker};
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request};
use berth_foundation::Settings;
use berth_foundation::objects::Objects;
use berth_store::Db;
use futures::TryStreamExt;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tower::ServiceExt;

/// Sends a request with bytes; returns status, headers and body.
async fn raw(
    t: &TestPortal,
    caller: &Caller,
    (method, path): (&str, &str),
    headers: &[(&str, &str)],
    body: &[u8],
) -> (u16, HeaderMap, Vec<u8>) {
    let mut request = Request::builder().method(method).uri(format!("/api/v1{path}"));
    match caller {
        Caller::Cookie(cookie) => request = request.header("cookie", cookie),
        Caller::Token(token) => request = request.header("authorization", format!("Bearer {token}")),
        Caller::Nobody => {}
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = t.router.clone().oneshot(request.body(Body::from(body.to_vec())).unwrap()).await.unwrap();
    let (parts, body) = response.into_parts();
    (parts.status.as_u16(), parts.headers, to_bytes(body, usize::MAX).await.unwrap().to_vec())
}

async fn part(t: &TestPortal, user: &Caller, path: &str, at: u64, data: &[u8]) -> (u16, HeaderMap, Value) {
    let at = at.to_string();
    let headers = [("upload-offset", at.as_str()), ("content-type", "application/octet-stream")];
    let (status, headers, body) = raw(t, user, ("PATCH", path), &headers, data).await;
    (status, headers, serde_json::from_slice(&body).unwrap_or_default())
}

/// Uploads a small file into a volume.
async fn put(t: &TestPortal, caller: &Caller, volume: &str, path: &str, data: &[u8]) {
    let at = format!("{volume}/uploads/{path}");
    let begun = t.call(caller, "PUT", &at, json!({"bytes": data.len()})).await.expect(200);
    if begun["done"] == false {
        let (status, _, done) = part(t, caller, &at, 0, data).await;
        assert_eq!((status, &done["done"]), (200, &json!(true)), "{done}");
    }
}

fn hash(data: &[u8]) -> String {
    hex::encode(Sha256::digest(data))
}

/// Waits until the store has `count` files, because the removal follows the answer.
async fn until_stored(t: &TestPortal, count: usize) {
    let dir = t.data.path().join("objects/files");
    eventually("the store's files", async || {
        t.portal.volumes.tidy_volumes().await.unwrap();
        (std::fs::read_dir(&dir).unwrap().count() == count).then_some(())
    })
    .await;
}

#[tokio::test]
async fn owners_create_volumes_members_fill_them_and_others_see_nothing() {
    for (engine, db, _location) in engines("volumes_rights").await {
        let t = TestPortal::on(db);
        let (ada, org) = t.tenant("lab").await;
        let (eve, eves) = t.tenant("eve").await;
        let volumes = format!("/orgs/{org}/volumes");
        let new = json!({"name": "data", "max_bytes": 1_000});
        let made = t.post(&ada, &volumes, new.clone()).await.expect(201);
        assert_eq!(
            (&made["version"], &made["used_bytes"], &made["files"]),
            (&json!(0), &json!(0), &json!(0))
        );
        t.post(&ada, &volumes, new).await.problem(409, "volume.exists");
        for (bad, pointer) in [
            (json!({"name": "Data", "max_bytes": 1}), "/name"),
            (json!({"name": "../x", "max_bytes": 1}), "/name"),
            (json!({"name": "d", "max_bytes": 0}), "/max_bytes"),
            (json!({"name": "d", "max_bytes": u64::MAX}), "/max_bytes"),
        ] {
            let problem = t.post(&ada, &volumes, bad).await.problem(422, "request.invalid");
            assert_eq!(problem["errors"][0]["pointer"], pointer, "{engine}: {problem}");
        }
        let data = format!("{volumes}/data");
        for role in ["viewer", "billing", "member", "owner"] {
            let new = json!({"name": role, "role": role});
            let token = t.post(&ada, &format!("/orgs/{org}/tokens"), new).await.expect(201);
            let caller = Caller::Token(token["secret"].as_str().unwrap().to_owned());
            let made = t.post(&caller, &volumes, json!({"name": role, "max_bytes": 10})).await;
            let upload = t.call(&caller, "PUT", &format!("{data}/uploads/{role}"), json!({"bytes": 0})).await;
            match role {
                "owner" => {
                    made.expect(201);
                    assert_eq!(upload.expect(200)["done"], true, "{engine}");
                }
                "member" => {
                    made.problem(403, "auth.forbidden");
                    assert_eq!(upload.expect(200)["done"], true, "{engine}");
                    t.call(&caller, "DELETE", &data, Value::Null).await.problem(403, "auth.forbidden");
                }
                _ => {
                    made.problem(403, "auth.forbidden");
                    upload.problem(403, "auth.forbidden");
                    let gone = t.call(&caller, "DELETE", &format!("{data}/files/owner"), Value::Null).await;
                    gone.problem(403, "auth.forbidden");
                }
            }
            t.get(&caller, &format!("{data}/files")).await.expect(200);
        }
        let listed = t.get(&ada, &format!("{volumes}?limit=1")).await.expect(200);
        assert_eq!(listed["items"][0]["name"], "data", "{engine}");
        let rest = t.get(&ada, &format!("{volumes}?limit=1&sort=desc")).await.expect(200);
        assert_eq!(rest["items"][0]["name"], "owner", "{engine}");

        let hers = format!("/orgs/{eves}/volumes/data");
        for path in [data.clone(), format!("{data}/files"), format!("{data}/files/member"), hers] {
            t.get(&eve, &path).await.problem(404, "object.not_found");
            t.call(&eve, "DELETE", &path, Value::Null).await;
        }
        let upload = format!("{data}/uploads/x");
        t.call(&eve, "PUT", &upload, json!({"bytes": 1})).await.problem(404, "object.not_found");
        assert_eq!(part(&t, &eve, &upload, 0, b"x").await.0, 404, "{engine}");
        t.get(&Caller::Nobody, &data).await.problem(401, "auth.required");
        assert_eq!(t.get(&ada, &data).await.expect(200)["files"], 2, "{engine}: nothing of hers was done");

        t.call(&ada, "DELETE", &data, Value::Null).await.expect(204);
        t.get(&ada, &data).await.problem(404, "object.not_found");
        t.portal.volumes.tidy_volumes().await.unwrap();
        let audit = t.get(&ada, &format!("/orgs/{org}/audit-events")).await.expect(200).to_string();
        for action in ["volume.created", "volume.file_put", "volume.deleted"] {
            assert!(audit.contains(action), "{engine}: {action}");
        }
    }
}

#[tokio::test]
async fn an_interrupted_upload_resumes() {
    for (engine, db, _location) in engines("volumes_uploads").await {
        let t = TestPortal::on(db);
        let (ada, org) = t.tenant("lab").await;
        let volume = format!("/orgs/{org}/volumes/data");
        let new = json!({"name": "data", "max_bytes": 1_000_000});
        t.post(&ada, &format!("/orgs/{org}/volumes"), new).await.expect(201);
        let text: Vec<u8> = (0..100_000u32).flat_map(|n| n.to_le_bytes()).collect();
        let whole = json!({"bytes": text.len(), "sha256": hash(&text), "tag": "t1"});
        let at = format!("{volume}/uploads/sets/a%20b.bin");
        let begun = t.call(&ada, "PUT", &at, whole.clone()).await.expect(200);
        assert_eq!((&begun["received"], &begun["done"]), (&json!(0), &json!(false)), "{engine}");
        assert_eq!(begun["path"], "sets/a b.bin", "{engine}");
        let (status, headers, now) = part(&t, &ada, &at, 0, &text[..150_000]).await;
        assert_eq!((status, &now["received"]), (200, &json!(150_000)), "{engine}");
        assert_eq!(headers["upload-offset"], "150000");
        // A part with a wrong offset is refused, and the answer has the right offset.
        for offset in [0, 100_000, 150_001] {
            let (status, headers, problem) = part(&t, &ada, &at, offset, b"xyz").await;
            assert_eq!((status, &problem["code"]), (409, &json!("upload.offset")), "{engine}");
            assert_eq!(headers["upload-offset"], "150000");
        }
        let (status, ..) = part(&t, &ada, &at, 150_000, &vec![0; 250_001]).await;
        assert_eq!(status, 422, "{engine}: beyond the end");
        let (status, ..) = raw(&t, &ada, ("PATCH", &at), &[], b"x").await;
        assert_eq!(status, 400, "{engine}: without a place");
        // After a restart of the portal the client asks for the progress.
        assert_eq!(t.get(&ada, &at).await.expect(200)["received"], 150_000, "{engine}");
        assert_eq!(t.call(&ada, "PUT", &at, whole.clone()).await.expect(200)["received"], 150_000);
        t.get(&ada, &format!("{volume}/files/sets/a%20b.bin")).await.problem(404, "object.not_found");
        let (status, _, done) = part(&t, &ada, &at, 150_000, &text[150_000..]).await;
        assert_eq!((status, &done["done"]), (200, &json!(true)), "{engine}");
        t.get(&ada, &at).await.problem(404, "object.not_found");
        assert_eq!(t.call(&ada, "PUT", &at, whole).await.expect(200)["done"], true, "{engine}: it is there");

        let file = format!("{volume}/files/sets/a%20b.bin");
        let (status, headers, bytes) = raw(&t, &ada, ("GET", &file), &[], b"").await;
        assert_eq!((status, bytes == text), (200, true), "{engine}");
        assert_eq!(headers["etag"], format!("\"{}\"", hash(&text)));
        assert_eq!(headers["content-disposition"], "attachment; filename*=UTF-8''a%20b.bin");
        let tag = headers["etag"].to_str().unwrap().to_owned();
        let (status, _, bytes) = raw(&t, &ada, ("GET", &file), &[("range", "bytes=7-9")], b"").await;
        assert_eq!((status, bytes), (206, text[7..10].to_vec()), "{engine}");
        assert_eq!(raw(&t, &ada, ("GET", &file), &[("if-none-match", &tag)], b"").await.0, 304, "{engine}");

        // Another content restarts the upload, and content with a wrong hash is refused.
        let at = format!("{volume}/uploads/b");
        let announced = json!({"bytes": 3, "sha256": hash(b"abc")});
        t.call(&ada, "PUT", &at, announced).await.expect(200);
        let (status, _, problem) = part(&t, &ada, &at, 0, b"abd").await;
        assert_eq!((status, &problem["code"]), (409, &json!("upload.hash")), "{engine}");
        assert_eq!(part(&t, &ada, &at, 0, b"abc").await.2["done"], true, "{engine}");
        t.call(&ada, "PUT", &at, json!({"bytes": 4, "tag": "x"})).await.expect(200);
        assert_eq!(part(&t, &ada, &at, 0, b"ab").await.2["received"], 2, "{engine}");
        let anew = t.call(&ada, "PUT", &at, json!({"bytes": 4, "tag": "y"})).await.expect(200);
        assert_eq!(anew["received"], 0, "{engine}");
        t.call(&ada, "DELETE", &at, Value::Null).await.expect(204);
        t.get(&ada, &at).await.problem(404, "object.not_found");
        // Known content needs no upload to another path.
        let copy = format!("{volume}/uploads/c");
        let there = t.call(&ada, "PUT", &copy, json!({"bytes": 3, "sha256": hash(b"abc")})).await.expect(200);
        assert_eq!(there["done"], true, "{engine}");
        assert_eq!(raw(&t, &ada, ("GET", &format!("{volume}/files/c")), &[], b"").await.2, b"abc");

        let root = t.get(&ada, &format!("{volume}/files")).await.expect(200);
        let names: Vec<&Value> = root["items"].as_array().unwrap().iter().map(|e| &e["name"]).collect();
        assert_eq!(names, ["b", "c", "sets"], "{engine}");
        assert_eq!((&root["items"][2]["kind"], &root["items"][2]["bytes"]), (&json!("dir"), &json!(400_000)));
        let page = t.get(&ada, &format!("{volume}/files?limit=1&sort=desc")).await.expect(200);
        assert_eq!((&page["items"][0]["name"], page["next_cursor"].is_string()), (&json!("sets"), true));
        let deeper = t.get(&ada, &format!("{volume}/files?dir=sets")).await.expect(200);
        assert_eq!(deeper["items"][0]["path"], "sets/a b.bin", "{engine}");
        t.get(&ada, &format!("{volume}/files?dir=none")).await.problem(404, "object.not_found");

        // An abandoned upload and old content are deleted.
        t.call(&ada, "PUT", &format!("{volume}/uploads/d"), json!({"bytes": 9})).await.expect(200);
        t.call(&ada, "DELETE", &file, Value::Null).await.expect(204);
        t.call(&ada, "DELETE", &file, Value::Null).await.problem(404, "object.not_found");
        t.clock.advance_s(8 * 86_400);
        // Only the content `abc` is left, stored once for two names.
        until_stored(&t, 1).await;
        let ada = t.sign_in("lab@example.org").await;
        t.get(&ada, &format!("{volume}/uploads/d")).await.problem(404, "object.not_found");
    }
}

#[tokio::test]
async fn volume_limits_and_path_rules_are_enforced() {
    for (engine, db, _location) in engines("volumes_limits").await {
        let t = TestPortal::with(db, |settings| Settings { org_storage_bytes: 1_700, ..settings });
        let (ada, org) = t.tenant("lab").await;
        let volumes = format!("/orgs/{org}/volumes");
        for name in ["a", "b"] {
            t.post(&ada, &volumes, json!({"name": name, "max_bytes": 1_000})).await.expect(201);
        }
        let begin = async |volume: &str, path: &str, bytes: u64| {
            t.call(&ada, "PUT", &format!("{volumes}/{volume}/uploads/{path}"), json!({"bytes": bytes})).await
        };
        put(&t, &ada, &format!("{volumes}/a"), "x/y", &[1; 600]).await;
        begin("a", "z", 401).await.problem(409, "volume.full");
        begin("a", "z", 400).await.expect(200);
        // Uploads in progress count; replaced files do not.
        begin("a", "w", 1).await.problem(409, "volume.full");
        begin("a", "x/y", 600).await.expect(200);
        t.call(&ada, "DELETE", &format!("{volumes}/a/uploads/z"), Value::Null).await.expect(204);
        t.call(&ada, "DELETE", &format!("{volumes}/a/uploads/x/y"), Value::Null).await.expect(204);
        begin("b", "z", 1_000).await.expect(200);
        begin("a", "v", 200).await.problem(409, "storage.full");
        for (path, why) in [("x", "directory"), ("x/y/z", "is a file")] {
            let problem = begin("a", path, 1).await.problem(422, "request.invalid");
            assert!(problem.to_string().contains(why), "{engine}: {problem}");
        }
        let deep = "d/".repeat(64) + "d";
        // A NUL in an address gets 404, as everywhere.
        begin("a", "a%00b", 1).await.problem(404, "object.not_found");
        for path in ["%2Fetc", "a/..%2Fb", "a%0Ab", "a%5Cb", &deep, &"e".repeat(256)] {
            let problem = begin("a", path, 1).await.problem(422, "request.invalid");
            assert_eq!(problem["errors"][0]["pointer"], "/path", "{engine}: {path}");
        }
        for (body, pointer) in [
            (json!({"bytes": 1, "sha256": "12"}), "/sha256"),
            (json!({"bytes": u64::MAX}), "/bytes"),
            (json!({"bytes": 1, "tag": "t".repeat(201)}), "/tag"),
        ] {
            let at = format!("{volumes}/a/uploads/q");
            let problem = t.call(&ada, "PUT", &at, body).await.problem(422, "request.invalid");
            assert_eq!(problem["errors"][0]["pointer"], pointer, "{engine}");
        }
        let at = format!("{volumes}/a/uploads/q");
        t.call(&ada, "PUT", &at, json!({"bytes": 1, "mode": 7})).await.problem(422, "request.invalid");

        // A job can use existing volumes only.
        let operator = t.operator().await;
        t.add_price_and_credit(&operator, &org, 1_000_000_000).await;
        let mut job = crate::common::job();
        for (asked, pointer) in [
            (json!([{"name": "none", "path": "/data"}]), "/volumes/0/name"),
            (json!([{"name": "a", "path": "/usr"}]), "/volumes/0/path"),
            (json!([{"name": "a", "path": "d"}, {"name": "b", "path": "d/e"}]), "/volumes/1/path"),
        ] {
            job["volumes"] = asked;
            let problem =
                t.post(&ada, &format!("/orgs/{org}/jobs"), job.clone()).await.problem(422, "request.invalid");
            assert_eq!(problem["errors"][0]["pointer"], pointer, "{engine}: {problem}");
        }
        job["volumes"] = json!([{"name": "a", "path": "/data", "mode": "rw"}]);
        let queued = t.post(&ada, &format!("/orgs/{org}/jobs"), job).await.expect(201);
        assert_eq!(queued["volumes"][0]["mode"], "rw", "{engine}");
        let delete = t.call(&ada, "DELETE", &format!("{volumes}/a"), Value::Null).await;
        assert!(delete.problem(409, "volume.in_use").to_string().contains(queued["id"].as_str().unwrap()));
        let cancel = format!("/orgs/{org}/jobs/{}/cancel", queued["id"].as_str().unwrap());
        t.post(&ada, &cancel, Value::Null).await.expect(202);
        t.call(&ada, "DELETE", &format!("{volumes}/a"), Value::Null).await.expect(204);
    }
}

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
    assert!(given["note"].as_str().unwrap().starts_with("1 left out"), "the link: {first}");
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
async fn a_hand_over_beyond_the_volume_limit_changes_nothing_and_leaves_a_note() {
    let setup = WorkerPortal::open().await;
    let volumes = format!("/orgs/{}/volumes", setup.org);
    let volume = format!("{volumes}/data");
    setup.t.post(&setup.ada, &volumes, json!({"name": "data", "max_bytes": 1_000})).await.expect(201);
    put(&setup.t, &setup.ada, &volume, "a", b"a").await;
    let script = "cd $BERTH_VOLUME_DATA && rm a && for n in 1 2 3; do head -c 400 /dev/urandom > $n; done";
    let job = with_volume(&setup, "rw", script).await;
    assert_eq!(setup.until_ended(&job).await["state"], "succeeded");
    setup.until_all_free().await;
    let given = setup.job(&job).await["volumes"][0].clone();
    assert!(given["note"].as_str().unwrap().contains("may hold 1000"), "{given}");
    assert_eq!(given["kept_version"], Value::Null, "{given}");
    let now = setup.t.get(&setup.ada, &volume).await.expect(200);
    assert_eq!((&now["version"], &now["files"]), (&json!(1), &json!(1)), "{now}");
    // The files of the failed hand-over are removed.
    until_stored(&setup.t, 1).await;
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
    assert!(note.starts_with("1 left out") && note.contains("64 parts") && note.contains("d/d/d"), "{note}");
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
    let left = async {
        while bucket.state().under_way == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        _ = store.finish("big") => panic!("it was too quick"),
        () = left => {}
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
    let db = Db::sqlite(&dir.path().join("berth.db")).await.unwrap();
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

//! Volumes: who may do what, uploads that are broken off, limits and paths; and with a real worker one job that
//! writes and another that reads.

use std::time::{Duration, Instant};

use crate::bucket::{FakeBucket, Shelf};
use crate::common::{As, TestPortal, engines};
use crate::quay::{Quay, eventually, portal};
use crate::relay::Relay;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request};
use berth_foundation::Settings;
use berth_foundation::objects::Objects;
use berth_store::Db;
use futures::TryStreamExt;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tower::ServiceExt;

/// A request with bytes; status, headers and what came back.
async fn raw(
    t: &TestPortal,
    who: &As,
    (method, path): (&str, &str),
    headers: &[(&str, &str)],
    body: &[u8],
) -> (u16, HeaderMap, Vec<u8>) {
    let mut request = Request::builder().method(method).uri(format!("/api/v1{path}"));
    match who {
        As::Cookie(cookie) => request = request.header("cookie", cookie),
        As::Token(token) => request = request.header("authorization", format!("Bearer {token}")),
        As::Nobody => {}
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = t.router.clone().oneshot(request.body(Body::from(body.to_vec())).unwrap()).await.unwrap();
    let (parts, body) = response.into_parts();
    (parts.status.as_u16(), parts.headers, to_bytes(body, usize::MAX).await.unwrap().to_vec())
}

async fn part(t: &TestPortal, who: &As, path: &str, offset: u64, data: &[u8]) -> (u16, HeaderMap, Value) {
    let at = offset.to_string();
    let headers = [("upload-offset", at.as_str()), ("content-type", "application/octet-stream")];
    let (status, headers, body) = raw(t, who, ("PATCH", path), &headers, data).await;
    (status, headers, serde_json::from_slice(&body).unwrap_or_default())
}

/// Puts a small file into a volume.
async fn put(t: &TestPortal, who: &As, volume: &str, path: &str, data: &[u8]) {
    let at = format!("{volume}/uploads/{path}");
    let begun = t.call(who, "PUT", &at, json!({"bytes": data.len()})).await.expect(200);
    if begun["done"] == false {
        let (status, _, done) = part(t, who, &at, 0, data).await;
        assert_eq!((status, &done["done"]), (200, &json!(true)), "{done}");
    }
}

/// Waits until so many files are in the store: what is removed is removed beside the answer.
async fn stored(t: &TestPortal, count: usize) {
    let dir = t.data.path().join("objects/files");
    eventually("the store's files", async || {
        t.portal.volumes.tidy_volumes().await.unwrap();
        (std::fs::read_dir(&dir).unwrap().count() == count).then_some(())
    })
    .await;
}

fn hex(data: &[u8]) -> String {
    format!("{:x}", Sha256::digest(data))
}

#[tokio::test]
async fn owners_make_volumes_members_fill_them_and_others_see_nothing() {
    for (engine, db, _place) in engines("volumes_rights").await {
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
            let who = As::Token(token["secret"].as_str().unwrap().to_owned());
            let made = t.post(&who, &volumes, json!({"name": role, "max_bytes": 10})).await;
            let upload = t.call(&who, "PUT", &format!("{data}/uploads/{role}"), json!({"bytes": 0})).await;
            match role {
                "owner" => {
                    made.expect(201);
                    assert_eq!(upload.expect(200)["done"], true, "{engine}");
                }
                "member" => {
                    made.problem(403, "auth.forbidden");
                    assert_eq!(upload.expect(200)["done"], true, "{engine}");
                    t.call(&who, "DELETE", &data, Value::Null).await.problem(403, "auth.forbidden");
                }
                _ => {
                    made.problem(403, "auth.forbidden");
                    upload.problem(403, "auth.forbidden");
                    let gone = t.call(&who, "DELETE", &format!("{data}/files/owner"), Value::Null).await;
                    gone.problem(403, "auth.forbidden");
                }
            }
            t.get(&who, &format!("{data}/files")).await.expect(200);
        }
        let listed = t.get(&ada, &format!("{volumes}?limit=1")).await.expect(200);
        assert_eq!(listed["items"][0]["name"], "data", "{engine}");
        let rest = t.get(&ada, &format!("{volumes}?cursor=data")).await.expect(200);
        assert_eq!(rest["items"][0]["name"], "owner", "{engine}");

        let hers = format!("/orgs/{eves}/volumes/data");
        for path in [data.clone(), format!("{data}/files"), format!("{data}/files/member"), hers] {
            t.get(&eve, &path).await.problem(404, "object.not_found");
            t.call(&eve, "DELETE", &path, Value::Null).await;
        }
        let upload = format!("{data}/uploads/x");
        t.call(&eve, "PUT", &upload, json!({"bytes": 1})).await.problem(404, "object.not_found");
        assert_eq!(part(&t, &eve, &upload, 0, b"x").await.0, 404, "{engine}");
        t.get(&As::Nobody, &data).await.problem(401, "auth.required");
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
async fn an_upload_goes_on_where_it_broke_off() {
    for (engine, db, _place) in engines("volumes_uploads").await {
        let t = TestPortal::on(db);
        let (ada, org) = t.tenant("lab").await;
        let volume = format!("/orgs/{org}/volumes/data");
        let new = json!({"name": "data", "max_bytes": 1_000_000});
        t.post(&ada, &format!("/orgs/{org}/volumes"), new).await.expect(201);
        let text: Vec<u8> = (0..100_000u32).flat_map(|n| n.to_le_bytes()).collect();
        let whole = json!({"bytes": text.len(), "sha256": hex(&text), "tag": "t1"});
        let at = format!("{volume}/uploads/sets/a%20b.bin");
        let begun = t.call(&ada, "PUT", &at, whole.clone()).await.expect(200);
        assert_eq!((&begun["received"], &begun["done"]), (&json!(0), &json!(false)), "{engine}");
        assert_eq!(begun["path"], "sets/a b.bin", "{engine}");
        let (status, headers, now) = part(&t, &ada, &at, 0, &text[..150_000]).await;
        assert_eq!((status, &now["received"]), (200, &json!(150_000)), "{engine}");
        assert_eq!(headers["upload-offset"], "150000");
        // What does not follow is not taken, and the answer says where it goes on.
        for offset in [0, 100_000, 150_001] {
            let (status, headers, problem) = part(&t, &ada, &at, offset, b"xyz").await;
            assert_eq!((status, &problem["code"]), (409, &json!("upload.offset")), "{engine}");
            assert_eq!(headers["upload-offset"], "150000");
        }
        let (status, ..) = part(&t, &ada, &at, 150_000, &vec![0; 250_001]).await;
        assert_eq!(status, 422, "{engine}: beyond the end");
        let (status, ..) = raw(&t, &ada, ("PATCH", &at), &[], b"x").await;
        assert_eq!(status, 400, "{engine}: without a place");
        // The portal was started anew, the page loaded again.
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
        assert_eq!(headers["etag"], format!("\"{}\"", hex(&text)));
        assert_eq!(headers["content-disposition"], "attachment; filename*=UTF-8''a%20b.bin");
        let tag = headers["etag"].to_str().unwrap().to_owned();
        let (status, _, bytes) = raw(&t, &ada, ("GET", &file), &[("range", "bytes=7-9")], b"").await;
        assert_eq!((status, bytes), (206, text[7..10].to_vec()), "{engine}");
        assert_eq!(raw(&t, &ada, ("GET", &file), &[("if-none-match", &tag)], b"").await.0, 304, "{engine}");

        // Another content at the same place begins anew, and one that is not what was said is not taken.
        let at = format!("{volume}/uploads/b");
        let said = json!({"bytes": 3, "sha256": hex(b"abc")});
        t.call(&ada, "PUT", &at, said).await.expect(200);
        let (status, _, problem) = part(&t, &ada, &at, 0, b"abd").await;
        assert_eq!((status, &problem["code"]), (409, &json!("upload.hash")), "{engine}");
        assert_eq!(part(&t, &ada, &at, 0, b"abc").await.2["done"], true, "{engine}");
        t.call(&ada, "PUT", &at, json!({"bytes": 4, "tag": "x"})).await.expect(200);
        assert_eq!(part(&t, &ada, &at, 0, b"ab").await.2["received"], 2, "{engine}");
        let anew = t.call(&ada, "PUT", &at, json!({"bytes": 4, "tag": "y"})).await.expect(200);
        assert_eq!(anew["received"], 0, "{engine}");
        t.call(&ada, "DELETE", &at, Value::Null).await.expect(204);
        t.get(&ada, &at).await.problem(404, "object.not_found");
        // The same content at another place is not sent at all.
        let copy = format!("{volume}/uploads/c");
        let there = t.call(&ada, "PUT", &copy, json!({"bytes": 3, "sha256": hex(b"abc")})).await.expect(200);
        assert_eq!(there["done"], true, "{engine}");
        assert_eq!(raw(&t, &ada, ("GET", &format!("{volume}/files/c")), &[], b"").await.2, b"abc");

        let root = t.get(&ada, &format!("{volume}/files")).await.expect(200);
        let names: Vec<&Value> = root["items"].as_array().unwrap().iter().map(|e| &e["name"]).collect();
        assert_eq!(names, ["b", "c", "sets"], "{engine}");
        assert_eq!((&root["items"][2]["kind"], &root["items"][2]["bytes"]), (&json!("dir"), &json!(400_000)));
        let page = t.get(&ada, &format!("{volume}/files?limit=1&cursor=b")).await.expect(200);
        assert_eq!((&page["items"][0]["name"], &page["next_cursor"]), (&json!("c"), &json!("c")), "{engine}");
        let deeper = t.get(&ada, &format!("{volume}/files?dir=sets")).await.expect(200);
        assert_eq!(deeper["items"][0]["path"], "sets/a b.bin", "{engine}");
        t.get(&ada, &format!("{volume}/files?dir=none")).await.problem(404, "object.not_found");

        // An upload that nobody goes on with is forgotten, and old content with it.
        t.call(&ada, "PUT", &format!("{volume}/uploads/d"), json!({"bytes": 9})).await.expect(200);
        t.call(&ada, "DELETE", &file, Value::Null).await.expect(204);
        t.call(&ada, "DELETE", &file, Value::Null).await.problem(404, "object.not_found");
        t.clock.advance_s(8 * 86_400);
        // Only abc is left, once for two names.
        stored(&t, 1).await;
        let ada = t.sign_in("lab@example.org").await;
        t.get(&ada, &format!("{volume}/uploads/d")).await.problem(404, "object.not_found");
    }
}

#[tokio::test]
async fn limits_and_paths_are_kept() {
    for (engine, db, _place) in engines("volumes_limits").await {
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
        // What is on its way counts; what is replaced does not.
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
        // No name has a NUL in it, here as in every other address.
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

        // A job names what is there.
        let operator = t.operator().await;
        t.stock(&operator, &org, 1_000_000_000).await;
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

/// A job with a volume, and its log at the end.
async fn with_volume(quay: &Quay, mode: &str, script: &str) -> String {
    let volumes = json!([{"name": "data", "path": "/data", "mode": mode}]);
    quay.submit(json!({"script": script, "volumes": volumes})).await
}

#[tokio::test(flavor = "multi_thread")]
async fn one_job_writes_and_the_next_reads() {
    let quay = Quay::open().await;
    let volumes = format!("/orgs/{}/volumes", quay.org);
    let volume = format!("{volumes}/data");
    quay.t.post(&quay.ada, &volumes, json!({"name": "data", "max_bytes": 5_000_000})).await.expect(201);
    put(&quay.t, &quay.ada, &volume, "in/numbers", b"1\n2\n3\n").await;
    put(&quay.t, &quay.ada, &volume, "old", b"old").await;

    let write = "cd $BERTH_VOLUME_DATA && cat in/numbers && rm old && mkdir out && echo four > out/new
        head -c 1000000 /dev/zero > out/zeros; printf '#!/bin/sh\\necho ran\\n' > run; chmod 755 run
        ln -s run link; echo ready; while ! test -e go; do sleep 0.05; done; rm go";
    let writer = with_volume(&quay, "rw", write).await;
    eventually("the writer", async || {
        let log = quay.log(&writer).await;
        String::from_utf8_lossy(&log).contains("ready").then_some(())
    })
    .await;
    // Nobody else writes meanwhile, and a reader has what was there before.
    let at = format!("{volume}/uploads/more");
    let busy = quay.t.call(&quay.ada, "PUT", &at, json!({"bytes": 1})).await.problem(409, "volume.busy");
    assert!(busy.to_string().contains(&writer), "{busy}");
    let removed = quay.t.call(&quay.ada, "DELETE", &format!("{volume}/files/old"), Value::Null).await;
    removed.problem(409, "volume.busy");
    quay.t.call(&quay.ada, "DELETE", &volume, Value::Null).await.problem(409, "volume.in_use");
    let early = with_volume(&quay, "ro", "cat $BERTH_VOLUME_DATA/old; ls $BERTH_VOLUME_DATA").await;
    assert_eq!(quay.ended(&early).await["state"], "succeeded");
    assert_eq!(quay.whole_log(&early).await, b"oldin\nold\n");
    let second = with_volume(&quay, "rw", "cd $BERTH_VOLUME_DATA && ./run && cat out/new && rm -r out").await;
    let explain = format!("/orgs/{}/jobs/{second}/explanation", quay.org);
    let why = quay.t.get(&quay.ada, &explain).await.expect(200);
    assert_eq!(why["blockers"][0]["code"], "volume.busy", "{why}");
    assert_eq!(quay.t.get(&quay.ada, &volume).await.expect(200)["version"], 2, "nothing is half there");

    // Its own shell would do; from here the file is made where its volume lies.
    let go = quay.data.join("attempts").join(format!("{writer}-1")).join("volumes/0/go");
    std::fs::write(go, "").unwrap();
    let done = quay.ended(&writer).await;
    assert_eq!(done["state"], "succeeded", "{done}");
    // The second one waits for what the first hands back, and sees it.
    let done = quay.ended(&second).await;
    assert_eq!(done["state"], "succeeded", "{done}");
    assert_eq!(quay.whole_log(&second).await, b"ran\nfour\n");
    quay.all_free().await;
    let first = quay.job(&writer).await;
    let told = &first["volumes"][0];
    assert_eq!((&told["version"], &told["kept_version"]), (&json!(2), &json!(3)), "{first}");
    assert!(told["note"].as_str().unwrap().starts_with("1 left out"), "the link: {first}");
    let second = quay.job(&second).await;
    assert_eq!(second["volumes"][0]["kept_version"], 4, "{second}");
    let now = quay.t.get(&quay.ada, &volume).await.expect(200);
    assert_eq!(
        (&now["version"], &now["files"], &now["used_bytes"]),
        (&json!(4), &json!(2), &json!(25)),
        "{now}"
    );

    let reader = with_volume(&quay, "ro", "cd $BERTH_VOLUME_DATA && find . -type f | sort; ./run").await;
    assert_eq!(quay.ended(&reader).await["state"], "succeeded");
    assert_eq!(quay.whole_log(&reader).await, b"./in/numbers\n./run\nran\n");
    quay.all_free().await;
    // What no version has is removed.
    stored(&quay.t, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_changes_nothing_and_says_so() {
    let quay = Quay::open().await;
    let volumes = format!("/orgs/{}/volumes", quay.org);
    let volume = format!("{volumes}/data");
    quay.t.post(&quay.ada, &volumes, json!({"name": "data", "max_bytes": 1_000})).await.expect(201);
    put(&quay.t, &quay.ada, &volume, "a", b"a").await;
    let script = "cd $BERTH_VOLUME_DATA && rm a && for n in 1 2 3; do head -c 400 /dev/urandom > $n; done";
    let job = with_volume(&quay, "rw", script).await;
    assert_eq!(quay.ended(&job).await["state"], "succeeded");
    quay.all_free().await;
    let told = quay.job(&job).await["volumes"][0].clone();
    assert!(told["note"].as_str().unwrap().contains("may hold 1000"), "{told}");
    assert_eq!(told["kept_version"], Value::Null, "{told}");
    let now = quay.t.get(&quay.ada, &volume).await.expect(200);
    assert_eq!((&now["version"], &now["files"]), (&json!(1), &json!(1)), "{now}");
    // What came of it is removed.
    stored(&quay.t, 1).await;
}

/// A portal with one worker behind a way on which a round trip takes 50 ms.
async fn far_away() -> (Quay, Relay) {
    let mut quay = portal().await;
    let near = quay.address.strip_prefix("https://").unwrap().to_owned();
    let relay = Relay::delaying(&near, Duration::from_millis(25));
    quay.address = format!("https://{}", relay.address);
    let token = quay.join_token(json!({})).await;
    quay.start_worker(Some(&token)).unwrap();
    quay.t.stock(&quay.operator, &quay.org, 1_000_000_000).await;
    (quay, relay)
}

/// How many files the portal has in its store.
fn arrived(quay: &Quay) -> usize {
    std::fs::read_dir(quay.t.data.path().join("objects/files")).map_or(0, Iterator::count)
}

/// A script that leaves so many files of a few bytes, each another.
fn leaving(count: usize, dir: &str) -> String {
    let each = "open(f'{d}/{n % 100}/{n}', 'w').write(f'file {n}')";
    format!(
        "python3 -c \"import os; d = '{dir}'\nfor n in range(100): os.makedirs(f'{{d}}/{{n}}')\nfor n in range({count}): {each}\""
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn many_small_files_cost_few_round_trips() {
    let count = 10_000;
    let (quay, _relay) = far_away().await;
    let volumes = format!("/orgs/{}/volumes", quay.org);
    quay.t.post(&quay.ada, &volumes, json!({"name": "data", "max_bytes": 50_000_000})).await.expect(201);
    let job = with_volume(&quay, "rw", &leaving(count, "$BERTH_VOLUME_DATA/many")).await;
    assert_eq!(quay.ended(&job).await["state"], "succeeded");
    let began = Instant::now();
    let now =
        quay.until(&job, |j| j["volumes"][0]["kept_version"] == 1 || j["volumes"][0]["note"] != Value::Null);
    let now = now.await;
    let took = began.elapsed();
    println!("{count} files were handed over in {took:?}");
    assert_eq!((&now["volumes"][0]["kept_version"], &now["volumes"][0]["note"]), (&json!(1), &Value::Null));
    // One at a time, with two round trips each, the way alone would take a thousand seconds.
    assert!(took < Duration::from_secs(60), "{took:?}");
    let data = quay.t.get(&quay.ada, &format!("{volumes}/data")).await.expect(200);
    assert_eq!(data["files"], count, "{data}");
    let (status, _, body) =
        raw(&quay.t, &quay.ada, ("GET", &format!("{volumes}/data/files/many/77/1977")), &[], b"").await;
    assert_eq!((status, body.as_slice()), (200, b"file 1977".as_slice()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_that_broke_off_goes_on_and_repeats_nothing() {
    let (quay, relay) = far_away().await;
    let volumes = format!("/orgs/{}/volumes", quay.org);
    quay.t.post(&quay.ada, &volumes, json!({"name": "data", "max_bytes": 50_000_000})).await.expect(201);
    // With a path that no volume has: the others are kept.
    let deep = "d/".repeat(64);
    let script = format!(
        "{}; cd $BERTH_VOLUME_DATA && mkdir -p {deep} && echo x > {deep}file && head -c 3000000 /dev/zero > large",
        leaving(4_000, "$BERTH_VOLUME_DATA/many")
    );
    let job = with_volume(&quay, "rw", &script).await;
    let some = async || (arrived(&quay) > 0).then(|| arrived(&quay));
    let some = eventually("the first files", some).await;
    relay.cut();
    assert!(some < 4_001, "it was cut off on the way");
    let data = quay.t.get(&quay.ada, &format!("{volumes}/data")).await.expect(200);
    assert_eq!(data["version"], 0, "nothing counts before all of it is there");
    relay.mend();
    let now = quay.until(&job, |j| j["volumes"][0]["kept_version"] == 1).await;
    let note = now["volumes"][0]["note"].as_str().unwrap();
    assert!(note.starts_with("1 left out") && note.contains("64 parts") && note.contains("d/d/d"), "{note}");
    let data = quay.t.get(&quay.ada, &format!("{volumes}/data")).await.expect(200);
    assert_eq!(data["files"], 4_001, "{data}");
    quay.ended(&job).await;
    quay.all_free().await;
    stored(&quay.t, 4_001).await;
}

#[tokio::test]
async fn a_bucket_gets_whole_files_and_keeps_no_parts() {
    let dir = tempfile::tempdir().unwrap();
    let (bucket, settings) = FakeBucket::open().await;
    let stranger = Objects::new(dir.path(), Some(settings.clone().with_secret_access_key("another").into()));
    let depot = Objects::new(dir.path(), Some(settings.into()));
    let data: Vec<u8> = (0..17_u32 << 20).map(|n| (n % 251) as u8).collect();
    let total = data.len() as u64;
    assert_eq!(depot.stage("big", 0, &data, total).unwrap(), total);
    depot.stage("none", 0, b"", 0).unwrap();
    assert!(stranger.finish("big").await.is_err());
    assert_eq!(bucket.shelf().refused.drain(..).collect::<Vec<_>>(), ["SignatureDoesNotMatch"]);
    // There is no room for the third part: none is left behind, and the file waits here.
    bucket.shelf().full_at = 3;
    let error = depot.finish("big").await.unwrap_err().to_string();
    assert!(error.contains("QuotaExceeded") && !error.contains(crate::bucket::SECRET), "{error}");
    assert_eq!(bucket.shelf().refused.drain(..).collect::<Vec<_>>(), ["QuotaExceeded"]);
    let nothing =
        |shelf: &Shelf| shelf.parts.is_empty() && shelf.objects.is_empty() && shelf.refused.is_empty();
    assert!(nothing(&bucket.shelf()));
    assert!(depot.read("big", 0..1).await.is_err());
    bucket.shelf().full_at = 0;
    // Nobody waits for it any more once its first part is on its way, and it goes on.
    let left = async {
        while bucket.shelf().under_way == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        _ = depot.finish("big") => panic!("it was too quick"),
        () = left => {}
    }
    let there = async || bucket.shelf().objects.contains_key("/berth/files/big").then_some(());
    eventually("the rest of the file", there).await;
    for id in ["big", "none"] {
        depot.finish(id).await.unwrap();
    }
    let there = |shelf: &Shelf| {
        shelf.parts.is_empty()
            && shelf.objects["/berth/files/big"] == data
            && shelf.objects["/berth/files/none"].is_empty()
    };
    assert!(there(&bucket.shelf()));
    assert_eq!(depot.stage("big", 0, b"", total).unwrap(), 0, "nothing is left where it was put together");
    let pieces: Vec<_> = depot.read("big", 3..total).await.unwrap().try_collect().await.unwrap();
    assert!(pieces.len() == 5 && pieces.concat() == data[3..], "{} pieces", pieces.len());
    let piece = depot.read_piece("big", 8_388_600..8_388_616).await.unwrap();
    assert!(piece == data[8_388_600..8_388_616] && depot.read_piece("none", 0..0).await.unwrap().is_empty());
    for id in ["big", "big", "none"] {
        depot.remove(id).await.unwrap();
    }
    assert!(nothing(&bucket.shelf()));
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_read_and_write_files_that_are_in_a_bucket() {
    let (bucket, settings) = FakeBucket::open().await;
    let dir = tempfile::tempdir().unwrap();
    let db = Db::sqlite(&dir.path().join("berth.db")).await.unwrap();
    let with = |other| Settings { object_store: Some(settings.into()), ..other };
    let quay = Quay::on(TestPortal::with(db, with)).await;
    let volumes = format!("/orgs/{}/volumes", quay.org);
    let volume = format!("{volumes}/data");
    quay.t.post(&quay.ada, &volumes, json!({"name": "data", "max_bytes": 1_000_000})).await.expect(201);
    put(&quay.t, &quay.ada, &volume, "a", b"one").await;
    let job = quay
        .submit(json!({
            "script": "cat data/a; printf two > data/b; mkdir out; printf three > out/c",
            "volumes": [{"name": "data", "path": "data", "mode": "rw"}], "artifacts": ["out/*"],
        }))
        .await;
    assert_eq!(quay.ended(&job).await["state"], "succeeded");
    quay.all_free().await;
    assert_eq!(quay.whole_log(&job).await, b"one");
    let read = async |path: &str| raw(&quay.t, &quay.ada, ("GET", path), &[], b"").await;
    let (status, _, body) = read(&format!("{volume}/files/b")).await;
    assert_eq!((status, body.as_slice()), (200, b"two".as_slice()));
    let files = format!("/orgs/{}/jobs/{job}/files", quay.org);
    let left = quay.t.get(&quay.ada, &files).await.expect(200);
    let artifact = left["items"][0]["id"].as_str().unwrap();
    let range = [("range", "bytes=1-3")];
    let (status, _, body) =
        raw(&quay.t, &quay.ada, ("GET", &format!("{files}/{artifact}")), &range, b"").await;
    assert_eq!((status, body.as_slice()), (206, b"hre".as_slice()));
    assert_eq!(bucket.shelf().objects.len(), 3);
    assert!(!quay.t.data.path().join("objects").exists(), "nothing is kept beside it");
    quay.t.call(&quay.ada, "DELETE", &volume, Value::Null).await.expect(204);
    eventually("the volume's files to be gone from the bucket", async || {
        quay.t.portal.volumes.tidy_volumes().await.unwrap();
        (bucket.shelf().objects.len() == 1).then_some(())
    })
    .await;
    assert_eq!(bucket.shelf().refused, Vec::<&str>::new());
}

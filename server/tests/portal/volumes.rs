//! Tests of volumes: rights, interrupted uploads, limits and paths.

use crate::common::{Caller, TestPortal, engines};
use crate::worker_portal::eventually;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request};
use berth_foundation::Settings;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tower::ServiceExt;

/// Sends a request with bytes; returns status, headers and body.
pub async fn raw(
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
pub async fn put(t: &TestPortal, caller: &Caller, volume: &str, path: &str, data: &[u8]) {
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
pub async fn until_stored(t: &TestPortal, count: usize) {
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

/// Asserts the lists of a volume with the files `b`, `c` and `sets/a b.bin`.
async fn assert_listed(t: &TestPortal, caller: &Caller, volume: &str) {
    let root = t.get(caller, &format!("{volume}/files")).await.expect(200);
    let names: Vec<&Value> = root["items"].as_array().unwrap().iter().map(|e| &e["name"]).collect();
    assert_eq!(names, ["b", "c", "sets"]);
    assert_eq!((&root["items"][2]["kind"], &root["items"][2]["bytes"]), (&json!("dir"), &json!(400_000)));
    let page = t.get(caller, &format!("{volume}/files?limit=1&sort=desc")).await.expect(200);
    assert_eq!((&page["items"][0]["name"], page["next_cursor"].is_string()), (&json!("sets"), true));
    let deeper = t.get(caller, &format!("{volume}/files?dir=sets")).await.expect(200);
    assert_eq!(deeper["items"][0]["path"], "sets/a b.bin");
    t.get(caller, &format!("{volume}/files?dir=none")).await.problem(404, "object.not_found");
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

        assert_listed(&t, &ada, &volume).await;

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
async fn a_refused_upload_leaves_the_earlier_upload_of_its_path() {
    for (engine, db, _location) in engines("volumes_refused").await {
        let t = TestPortal::with(db, |settings| settings);
        let (ada, org) = t.tenant("lab").await;
        let volume = format!("/orgs/{org}/volumes/a");
        t.post(&ada, &format!("/orgs/{org}/volumes"), json!({"name": "a", "max_bytes": 1_000}))
            .await
            .expect(201);
        let at = format!("{volume}/uploads/x");
        t.call(&ada, "PUT", &at, json!({"bytes": 600})).await.expect(200);
        assert_eq!(part(&t, &ada, &at, 0, &[1; 500]).await.0, 200, "{engine}");
        // Another content of this path has no room.
        let larger = json!({"bytes": 1_001});
        t.call(&ada, "PUT", &at, larger).await.problem(409, "volume.full");
        let kept = t.call(&ada, "PUT", &at, json!({"bytes": 600})).await.expect(200);
        assert_eq!((&kept["received"], &kept["done"]), (&json!(500), &json!(false)), "{engine}: {kept}");
        let (status, _, done) = part(&t, &ada, &at, 500, &[1; 100]).await;
        assert_eq!((status, &done["done"]), (200, &json!(true)), "{engine}: {done}");
    }
}

#[tokio::test]
async fn unfinished_uploads_are_listed_and_named_until_their_removal() {
    for (engine, db, _location) in engines("volumes_unfinished").await {
        let t = TestPortal::on(db);
        let (ada, org) = t.tenant("lab").await;
        let volumes = format!("/orgs/{org}/volumes");
        let volume = format!("{volumes}/a");
        t.post(&ada, &volumes, json!({"name": "a", "max_bytes": 1_000})).await.expect(201);
        let begin = async |path: &str, bytes: u64| {
            t.call(&ada, "PUT", &format!("{volume}/uploads/{path}"), json!({"bytes": bytes})).await
        };
        begin("old", 600).await.expect(200);
        t.clock.advance_s(1);
        begin("sets/new", 300).await.expect(200);
        assert_eq!(part(&t, &ada, &format!("{volume}/uploads/old"), 0, &[1; 50]).await.0, 200, "{engine}");
        let open = t.get(&ada, &volume).await.expect(200);
        let expected = json!([
            {"path": "old", "bytes": 600, "received_bytes": 50},
            {"path": "sets/new", "bytes": 300, "received_bytes": 0},
        ]);
        assert_eq!(open["unfinished_uploads"], expected, "{engine}: {open}");
        // The refusal names what takes the room. An upload that would be replaced takes none.
        for (path, bytes, named) in [
            ("third", 200, "0 bytes are used, and 900 bytes belong to 2 unfinished uploads (old, sets/new)."),
            ("old", 800, "0 bytes are used, and 300 bytes belong to 1 unfinished upload (sets/new)."),
        ] {
            let refused = begin(path, bytes).await.problem(409, "volume.full");
            let detail = refused["detail"].as_str().unwrap();
            assert!(detail.contains(named) && !detail.contains("Delete some files"), "{engine}: {detail}");
        }
        for path in ["old", "sets/new"] {
            let at = format!("{volume}/uploads/{path}");
            t.call(&ada, "DELETE", &at, Value::Null).await.expect(204);
        }
        let left = t.get(&ada, &volume).await.expect(200);
        assert_eq!(left.get("unfinished_uploads"), None, "{engine}: {left}");
        begin("third", 1_000).await.expect(200);
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

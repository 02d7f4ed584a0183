//! Tests of secrets: rights, stored and shown data, and the secrets of a job.

use std::path::Path;

use crate::common::{Caller, Reply, TestPortal, engines, job};
use crate::worker_portal::WorkerPortal;
use berth_foundation::Settings;
use berth_foundation::envelope::{Keys, SealingContext};
use berth_storage::secrets::Resealed;
use berth_store::types::JsonColumn;
use berth_store::webhooks::StoredWebhook;
use berth_store::{self as store, Db};
use berth_types::time::Timestamp;
use futures::FutureExt;
use serde_json::{Value, json};

const VALUE: &str = "tok_Zq7w9x2m4k";
/// The mask of `VALUE` in a log.
const STARS: &str = "**************";

async fn put(t: &TestPortal, caller: &Caller, org: &str, name: &str, value: &str) -> Reply {
    t.call(caller, "PUT", &format!("/orgs/{org}/secrets/{name}"), json!({"value": value})).await
}

/// Creates a token of each role.
async fn with_roles(t: &TestPortal, owner: &Caller, org: &str) -> Vec<(&'static str, Caller)> {
    let mut out = Vec::new();
    for role in ["owner", "billing", "member", "viewer"] {
        let new = json!({"name": role, "role": role});
        let made = t.post(owner, &format!("/orgs/{org}/tokens"), new).await.expect(201);
        out.push((role, Caller::Token(made["secret"].as_str().unwrap().to_owned())));
    }
    out
}

#[tokio::test]
async fn owners_write_secrets_members_use_them_and_nobody_reads_values() {
    for (engine, db, _location) in engines("secrets").await {
        let t = TestPortal::on(db);
        let (ada, org) = t.tenant("lab").await;
        let (eve, _) = t.tenant("eve").await;
        let secrets = format!("/orgs/{org}/secrets");
        let made = put(&t, &ada, &org, "hf-token", VALUE).await.expect(201);
        assert_eq!((&made["name"], &made["version"]), (&json!("hf-token"), &json!(1)), "{engine}");
        assert_eq!((&made["value"], &made["last_used_at"]), (&Value::Null, &Value::Null), "{engine}");
        t.clock.advance_s(60);
        let again = put(&t, &ada, &org, "hf-token", "another-value").await.expect(200);
        assert_eq!((&again["version"], &again["created_at"]), (&json!(2), &made["created_at"]), "{engine}");
        assert_ne!(again["updated_at"], made["updated_at"], "{engine}");
        put(&t, &ada, &org, "deploy-key", VALUE).await.expect(201);
        let first = t.get(&ada, &format!("{secrets}?limit=1")).await.expect(200);
        assert_eq!(first["items"][0]["name"], "deploy-key", "{engine}");
        let rest = format!("{secrets}?limit=1&cursor={}", first["next_cursor"].as_str().unwrap());
        assert_eq!(t.get(&ada, &rest).await.expect(200)["items"][0]["name"], "hf-token", "{engine}");

        for (role, caller) in with_roles(&t, &ada, &org).await {
            let listed = t.get(&caller, &secrets).await;
            let written = put(&t, &caller, &org, role, VALUE).await;
            match role {
                "owner" => {
                    assert_eq!(listed.expect(200)["items"].as_array().unwrap().len(), 2, "{engine}");
                    written.expect(201);
                }
                "member" => {
                    assert!(!listed.expect(200).to_string().contains(VALUE), "{engine}");
                    written.problem(403, "auth.forbidden");
                }
                _ => {
                    listed.problem(403, "auth.forbidden");
                    written.problem(403, "auth.forbidden");
                }
            }
            if role != "owner" {
                let path = format!("{secrets}/hf-token");
                t.call(&caller, "DELETE", &path, Value::Null).await.problem(403, "auth.forbidden");
            }
        }
        // For others the organization answers like a missing one.
        let missing = "org_00000000000000000000000000";
        for (method, path, body) in [
            ("GET", "", Value::Null),
            ("PUT", "/hf-token", json!({"value": VALUE})),
            ("DELETE", "/hf-token", Value::Null),
        ] {
            let mut answers = Vec::new();
            for org in [org.as_str(), missing] {
                let path = format!("/orgs/{org}/secrets{path}");
                let mut problem =
                    t.call(&eve, method, &path, body.clone()).await.problem(404, "object.not_found");
                problem["request_id"] = Value::Null;
                answers.push(problem);
            }
            assert_eq!(answers[0], answers[1], "{engine} {method}");
        }
        t.call(&ada, "DELETE", &format!("{secrets}/hf-token"), Value::Null).await.expect(204);
        t.call(&ada, "DELETE", &format!("{secrets}/hf-token"), Value::Null)
            .await
            .problem(404, "object.not_found");
        let audit = t.get(&ada, &format!("/orgs/{org}/audit-events")).await.expect(200);
        let actions: Vec<(&str, &str)> = audit["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|e| (e["action"].as_str().unwrap(), e["subject"].as_str().unwrap()))
            .filter(|(_, subject)| *subject == "hf-token")
            .collect();
        let expected = ["secret.deleted", "secret.replaced", "secret.created"].map(|a| (a, "hf-token"));
        assert_eq!(actions, expected, "{engine}: {audit}");
        assert!(!audit.to_string().contains(VALUE), "{engine}");
    }
}

#[tokio::test]
async fn a_refusal_of_a_secret_does_not_repeat_its_value() {
    let t = TestPortal::sqlite().await;
    let (ada, org) = t.tenant("lab").await;
    let long = "x".repeat(33 << 10);
    for (name, value, pointer) in [
        (".hidden", VALUE, "/name"),
        ("a%2Fb", VALUE, "/name"),
        ("short", "1234567", "/value"),
        ("long", long.as_str(), "/value"),
        ("nul", "12345678\0", "/value"),
    ] {
        let problem = put(&t, &ada, &org, name, value).await.problem(422, "request.invalid");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{name}: {problem}");
    }
    for body in [json!(VALUE), json!({"value": 12_345_678}), json!({"value": VALUE, "tok_Zq7w9x2m4k": 1})] {
        let path = format!("/orgs/{org}/secrets/token");
        let problem = t.call(&ada, "PUT", &path, body).await.problem(422, "request.invalid");
        assert!(
            !problem.to_string().contains(VALUE) && !problem.to_string().contains("12345678"),
            "{problem}"
        );
    }
    assert_eq!(t.get(&ada, &format!("/orgs/{org}/secrets")).await.expect(200)["items"], json!([]));
}

#[tokio::test]
async fn a_job_can_use_only_secrets_of_its_organization() {
    for (engine, db, _location) in engines("secret_jobs").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        let (eve, other) = t.tenant("eve").await;
        t.add_price_and_credit(&operator, &org, 10_000_000).await;
        put(&t, &eve, &other, "theirs", VALUE).await.expect(201);
        put(&t, &ada, &org, "ours", VALUE).await.expect(201);
        let asking = |name: &str| {
            let mut body = job();
            body["secrets"] = json!([{"name": "ours", "env": "OURS"}, {"name": name, "file": "key"}]);
            body
        };
        let jobs = format!("/orgs/{org}/jobs");
        for path in [jobs.clone(), format!("{jobs}?dry_run=true")] {
            let problem = t.post(&ada, &path, asking("theirs")).await.problem(422, "request.invalid");
            let errors = problem["errors"].as_array().unwrap();
            assert_eq!((errors.len(), &errors[0]["pointer"]), (1, &json!("/secrets/1/name")), "{engine}");
        }
        let balance = t.get(&ada, &format!("/orgs/{org}/balance")).await.expect(200);
        assert_eq!(balance["held_micros"], 0, "{engine}: nothing is held for what was refused");
        let made = t.post(&ada, &jobs, asking("ours")).await.expect(201);
        assert!(!made.to_string().contains(VALUE), "{engine}");
        // Roles without the right to run jobs cannot submit.
        for (role, caller) in with_roles(&t, &ada, &org).await {
            let status = t.post(&caller, &jobs, asking("ours")).await.status.as_u16();
            assert_eq!(status, if matches!(role, "owner" | "member") { 201 } else { 403 }, "{engine} {role}");
        }
    }
}

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[tokio::test]
async fn keys_are_rotated_and_older_webhook_secrets_are_sealed() {
    for (engine, db, _location) in engines("secret_keys").await {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (dir.path().join("old.key"), dir.path().join("new.key"));
        let with = |db: &Db, key: &Path, former: &[&Path]| {
            let (secrets_key, former) =
                (Some(key.to_owned()), former.iter().map(|f| (*f).to_owned()).collect());
            TestPortal::with(db.clone(), |s| Settings { secrets_key, secrets_old_keys: former, ..s })
        };
        let t = with(&db, &old, &[]);
        assert_eq!(t.portal.secrets.reseal_secrets().await, Ok(Resealed::default()), "{engine}");
        let (ada, org) = t.tenant("lab").await;
        put(&t, &ada, &org, "hf-token", VALUE).await.expect(201);
        // An older portal stored the secret without sealing.
        let hook_id = "hook_00000000000000000000000001";
        let row = StoredWebhook {
            id: hook_id.parse().unwrap(),
            org_id: org.parse().unwrap(),
            url: "http://127.0.0.1:9/hook".to_owned(),
            secret: "whsec_of_before".to_owned(),
            kinds: JsonColumn(vec!["*".to_owned()]),
            created_by: "Ada".to_owned(),
            created_by_id: None,
            created_at: Timestamp::from_micros(1),
        };
        let kept = db.write(move |tx| {
            let row = row.clone();
            async move { store::webhooks::insert(tx, &row).await }.boxed()
        });
        kept.await.unwrap();
        let done = |done: usize, unreadable: usize| Ok(Resealed { done, unreadable });
        assert_eq!(t.portal.secrets.reseal_secrets().await, done(1, 0), "{engine}");
        assert_eq!(t.portal.secrets.reseal_secrets().await, done(0, 0), "{engine}: once");

        // A missing key is not replaced, and another key opens no value.
        let error = with(&db, &new, &[]).portal.secrets.reseal_secrets().await.unwrap_err();
        assert!(error.contains("new.key is missing") && !new.exists(), "{engine}: {error}");
        let stranger = dir.path().join("stranger.key");
        Keys::open(&stranger, &[]).unwrap();
        let lost = with(&db, &stranger, &[]).portal.secrets.reseal_secrets().await;
        assert_eq!(lost, done(0, 2), "{engine}");

        assert_eq!(with(&db, &new, &[&old]).portal.secrets.reseal_secrets().await, done(2, 0), "{engine}");
        assert_eq!(with(&db, &new, &[]).portal.secrets.reseal_secrets().await, done(0, 0), "{engine}");
        let keys = Keys::open(&new, &[]).unwrap();
        let mut conn = db.read().await.unwrap();
        let mut tx = conn.tx();
        let (secret, hook) = (
            store::secrets::list_all(&mut tx).await.unwrap().remove(0),
            store::webhooks::list(&mut tx, None).await.unwrap().remove(0),
        );
        let context = SealingContext { kind: "secret", org: &org, name: "hf-token", version: 1 };
        assert_eq!(keys.open_sealed(&context, &secret.sealed).as_deref(), Ok(VALUE), "{engine}");
        let context = SealingContext { kind: "webhook", org: &org, name: hook_id, version: 1 };
        assert_eq!(keys.open_sealed(&context, &hook.secret).as_deref(), Ok("whsec_of_before"), "{engine}");
    }
}

/// Returns the contents of the files of kept attempts.
fn kept_files(attempts: &Path) -> Vec<Vec<u8>> {
    let attempts = std::fs::read_dir(attempts).unwrap().map(|attempt| attempt.unwrap().path());
    let files = attempts.flat_map(|dir| std::fs::read_dir(dir).unwrap().map(|file| file.unwrap().path()));
    // A temporary file may disappear before it is read.
    files.filter(|path| path.is_file()).filter_map(|path| std::fs::read(path).ok()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_gets_its_secrets_and_its_log_hides_them() {
    let mut setup = WorkerPortal::open().await;
    put(&setup.t, &setup.ada, &setup.org, "hf-token", VALUE).await.expect(201);
    put(&setup.t, &setup.ada, &setup.org, "key", "line-one-Zq7\nline-two-Zq8\n").await.expect(201);
    let script = "stat -c 'mode %a' \"$BERTH_SECRETS/key.pem\"\n\
        test \"$(stat -c %u \"$BERTH_SECRETS/key.pem\")\" = \"$(id -u)\" && echo mine\n\
        tr a-z A-Z < \"$BERTH_SECRETS/key.pem\"; cat \"$BERTH_SECRETS/key.pem\"; echo\n\
        echo \"$HF_TOKEN\" | tr a-z A-Z; echo \"say $HF_TOKEN.\"\n\
        echo \"$LD_LIBRARY_PATH $SEED\"; printf %s \"$HF_TOKEN\" | head -c 7; echo up >&2; while ! test -e go; do sleep 0.1; done\n\
        printf %s \"$HF_TOKEN\" | tail -c 7; printf %s \"$HF_TOKEN\" | head -c 7; sleep 0.3; printf %s \"$HF_TOKEN\" | tail -c 7\n";
    let job = setup
        .submit(json!({
            "script": script,
            "secrets": [{"name": "hf-token", "env": "HF_TOKEN"}, {"name": "key", "file": "key.pem"}],
            // Variables of the dynamic loader reach the job too.
            "env": {"LD_LIBRARY_PATH": "/opt/none", "SEED": "7"},
        }))
        .await;
    crate::worker_portal::eventually("it says that it is up", async || {
        holds(&setup.log(&job).await, "up\n").then_some(())
    })
    .await;
    // The job continues without the daemon, and the new daemon adopts it without secrets.
    setup.worker.as_mut().unwrap().kill();
    setup.start_worker(None).unwrap();
    let files = kept_files(&setup.data.join("attempts"));
    assert!(files.len() >= 3);
    for file in files {
        assert!(!holds(&file, VALUE) && !holds(&file, "line-one-Zq7"), "a record holds a value");
    }
    std::fs::write(setup.data.join(format!("attempts/{job}-1/work/go")), "").unwrap();
    let done = setup.until_ended(&job).await;
    assert_eq!(done["state"], "succeeded", "{done}");
    let log = String::from_utf8(setup.whole_log(&job).await).unwrap();
    let twenty_six = "*".repeat(26);
    let expected = format!(
        "mode 400\nmine\nLINE-ONE-ZQ7\nLINE-TWO-ZQ8\n{twenty_six}\nTOK_ZQ7W9X2M4K\nsay {STARS}.\n/opt/none 7\ntok_Zq7up\nw9x2m4k{STARS}"
    );
    assert_eq!(log, expected);
    setup.until_all_free().await;
    assert!(!Path::new("/dev/shm").join(format!("berth-{job}-1")).exists(), "gone with the job");
    let listed = setup.t.get(&setup.ada, &format!("/orgs/{}/secrets", setup.org)).await.expect(200);
    assert!(listed["items"].as_array().unwrap().iter().all(|s| s["last_used_at"].is_string()), "{listed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_secret_fails_its_waiting_job_before_the_start() {
    let mut setup = crate::worker_portal::without_worker().await;
    setup.t.add_price_and_credit(&setup.operator, &setup.org, 1_000_000_000).await;
    put(&setup.t, &setup.ada, &setup.org, "hf-token", VALUE).await.expect(201);
    let secrets = json!([{"name": "hf-token", "env": "HF_TOKEN"}]);
    let job = setup.submit(json!({"command": ["true"], "secrets": secrets})).await;
    let path = format!("/orgs/{}/secrets/hf-token", setup.org);
    setup.t.call(&setup.ada, "DELETE", &path, Value::Null).await.expect(204);
    let token = setup.join_token(json!({})).await;
    setup.start_worker(Some(&token)).unwrap();
    let done = setup.until_ended(&job).await;
    assert_eq!(
        (&done["state"], &done["failure"]["code"]),
        (&json!("failed"), &json!("secret.missing")),
        "{done}"
    );
    let detail = "The secret hf-token was deleted before the start of the attempt.";
    assert_eq!(done["failure"]["detail"], detail, "{done}");
    assert_eq!((&done["cost_micros"], &done["held_micros"]), (&json!(0), &json!(0)), "{done}");
    setup.assert_settled(&done).await;
    setup.until_all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_deleted_before_a_retry_leaves_the_start_and_the_cost_of_the_job() {
    let setup = WorkerPortal::open().await;
    put(&setup.t, &setup.ada, &setup.org, "hf-token", VALUE).await.expect(201);
    let body = json!({
        "script": "while ! test -e go; do sleep 0.1; done; exit 1",
        "secrets": [{"name": "hf-token", "env": "HF_TOKEN"}],
        "retry": {"max": 1, "on": ["exit"]},
    });
    let job = setup.submit(body).await;
    let began = setup.until(&job, |j| j["state"] == "running").await["started_at"].clone();
    let path = format!("/orgs/{}/secrets/hf-token", setup.org);
    setup.t.call(&setup.ada, "DELETE", &path, Value::Null).await.expect(204);
    std::fs::write(setup.data.join(format!("attempts/{job}-1/work/go")), "").unwrap();
    let done = setup.until_ended(&job).await;
    let detail = "The secret hf-token was deleted before the start of the attempt.";
    assert_eq!(done["failure"], json!({"code": "secret.missing", "detail": detail}), "{done}");
    assert!(done["metered_ms"].as_i64().unwrap() > 0 && done["attempt"] == 2, "{done}");
    assert_eq!(done["started_at"], began, "{done}");
    setup.assert_settled(&done).await;
    setup.until_all_free().await;
}

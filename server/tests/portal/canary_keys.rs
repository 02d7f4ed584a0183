//! Tests of the inference keys whose requests all go to a canary, from the request to the snapshot of gateways.

use std::collections::BTreeSet;

use berth_autoscaling::rollout::Event;
use serde_json::{Value, json};

use crate::common::{Caller, Reply, engines};
use crate::gateways::{add_gateway, number, run, send};
use crate::idle_portal::IdlePortal;
use crate::operations::items;
use crate::services::{apply, chat, create, ready, revision, service, states, token};

/// Creates a key; returns its id.
async fn key(setup: &IdlePortal, (caller, org): (&Caller, &str), new: Value) -> String {
    let made = setup.t.post(caller, &format!("/orgs/{org}/inference-keys"), new).await.expect(201);
    made["id"].as_str().unwrap().to_owned()
}

async fn revoke(setup: &IdlePortal, key: &str) {
    let path = format!("/orgs/{}/inference-keys/{key}", setup.org);
    setup.t.call(&setup.ada, "DELETE", &path, Value::Null).await.expect(204);
}

async fn put(setup: &IdlePortal, path: &str, (revision, percent): (i64, i64), keys: &[&str]) -> Reply {
    let body = json!({"revision": revision, "percent": percent, "canary_keys": keys});
    setup.t.call(&setup.ada, "PUT", &format!("{path}/traffic"), body).await
}

/// Adds a replica that has not ended, so that gateways get the revision without a weight too.
async fn add_replica(setup: &IdlePortal, path: &str, number: i64) {
    let id = path.rsplit('/').next().unwrap();
    let sql = format!(
        "INSERT INTO service_replicas (job_id, service_id, revision_id, org_id, created_at) \
         SELECT 'job_0000000000000000000000000{number}', service_id, id, org_id, 0 FROM service_revisions \
         WHERE service_id = '{id}' AND number = {number}"
    );
    run(&setup.t, sql).await;
}

/// The keys of each revision in the next snapshot for gateways, by the id of the revision.
async fn pinned(setup: &IdlePortal, token: &str, path: &str) -> Vec<(u64, BTreeSet<String>)> {
    setup.t.portal.gateway_sync.refresh_snapshot().await.unwrap();
    let route = ("GET", "snapshot?after=0&wait_s=0");
    let (status, _, body) = send(&setup.t.router, route, token, Value::Null).await;
    assert_eq!(status, 200, "{body}");
    let known = items(&setup.t, &setup.ada, &format!("{path}/revisions")).await;
    let number = |id: &Value| {
        known.iter().find(|one| one["id"] == *id).and_then(|one| one["number"].as_u64()).unwrap()
    };
    let mut all = Vec::new();
    for revision in body["services"][0]["revisions"].as_array().unwrap() {
        let keys = revision["pinned_keys"].as_array().unwrap();
        let keys = keys.iter().map(|key| key.as_str().unwrap().to_owned()).collect();
        all.push((number(&revision["id"]), keys));
    }
    all.sort();
    all
}

fn set(keys: &[&str]) -> BTreeSet<String> {
    keys.iter().map(|key| (*key).to_owned()).collect()
}

/// The names of the keys of a revision on its service.
async fn names(setup: &IdlePortal, path: &str, number: i64) -> BTreeSet<String> {
    let shown = setup.t.get(&setup.ada, path).await.expect(200);
    let revisions = shown["revisions"].as_array().unwrap();
    let keys = revisions.iter().find(|one| one["number"] == number).map(|one| one["canary_keys"].clone());
    let keys = keys.unwrap().as_array().cloned().unwrap_or_default();
    keys.iter().map(|key| key["name"].as_str().unwrap().to_owned()).collect()
}

/// The revisions with stored keys.
async fn stored(setup: &IdlePortal) -> i64 {
    let sql = "SELECT CAST(COUNT(*) AS BIGINT) FROM service_revisions WHERE canary_keys <> '[]'";
    number(&setup.t, sql).await
}

#[tokio::test]
async fn the_keys_of_a_canary_reach_gateways_while_it_is_one() {
    for (engine, db, _location) in engines("canary_keys").await {
        let setup = IdlePortal::on(db).await;
        let (t, ada) = (&setup.t, &setup.ada);
        let token = add_gateway(t, 1).await;
        let path = create(&setup, service("digits")).await;
        ready(t, &path, 1).await;
        let own = (ada, setup.org.as_str());
        let alpha = key(&setup, own, json!({"name": "alpha"})).await;
        let beta = key(&setup, own, json!({"name": "beta", "models": ["digits"]})).await;
        let mut canary = revision();
        canary["canary_percent"] = json!([10]);
        t.post(ada, &format!("{path}/revisions"), canary.clone()).await.expect(201);
        add_replica(&setup, &path, 2).await;
        // A revision in staging gets no requests yet.
        put(&setup, &path, (2, 0), &[&beta, &alpha, &beta]).await.expect(200);
        assert_eq!(names(&setup, &path, 2).await, set(&["alpha", "beta"]), "{engine}");
        let none = (1, BTreeSet::new());
        assert_eq!(pinned(&setup, &token, &path).await, [none.clone(), (2, BTreeSet::new())], "{engine}");
        ready(t, &path, 2).await;
        assert_eq!(states(t, ada, &path).await, ["live 100", "canary 0"], "{engine}");
        let both = (2, set(&[&alpha, &beta]));
        assert_eq!(pinned(&setup, &token, &path).await, [none.clone(), both], "{engine}");
        // The same traffic changes nothing, and other keys alone are a change.
        let audit = format!("/orgs/{}/audit-events?action=service.traffic_set", setup.org);
        put(&setup, &path, (2, 0), &[&alpha, &beta]).await.expect(200);
        assert_eq!(items(t, ada, &audit).await.len(), 1, "{engine}");
        revoke(&setup, &beta).await;
        let one = (2, set(&[&alpha]));
        assert_eq!(pinned(&setup, &token, &path).await, [none.clone(), one.clone()], "{engine}: revoked");
        assert_eq!(names(&setup, &path, 2).await, set(&["alpha"]), "{engine}: revoked");
        // A traffic without keys ends them.
        let bare = json!({"revision": 2, "percent": 0});
        t.call(ada, "PUT", &format!("{path}/traffic"), bare).await.expect(200);
        assert_eq!((stored(&setup).await, items(t, ada, &audit).await.len()), (0, 2), "{engine}");
        put(&setup, &path, (2, 0), &[&alpha]).await.expect(200);
        assert_eq!(pinned(&setup, &token, &path).await, [none.clone(), one], "{engine}");
        // Other keys alone keep a part that is not reached yet.
        put(&setup, &path, (2, 30), &[&alpha]).await.expect(200);
        put(&setup, &path, (2, 0), &[]).await.expect(200);
        ready(t, &path, 2).await;
        assert_eq!(states(t, ada, &path).await, ["live 70", "canary 30"], "{engine}");
        put(&setup, &path, (2, 30), &[&alpha]).await.expect(200);
        // A rollback ends them.
        t.post(ada, &format!("{path}/rollback"), Value::Null).await.expect(200);
        assert_eq!(stored(&setup).await, 0, "{engine}: rolled back");
        assert_eq!(pinned(&setup, &token, &path).await, [none, (2, BTreeSet::new())], "{engine}");
        // They keep the steps, and the promotion ends them.
        t.post(ada, &format!("{path}/revisions"), canary).await.expect(201);
        ready(t, &path, 3).await;
        put(&setup, &path, (3, 10), &[&alpha]).await.expect(200);
        let problem = put(&setup, &path, (3, 100), &[&alpha]).await.problem(422, "request.invalid");
        assert_eq!(problem["errors"][0]["pointer"], "/canary_keys", "{engine}");
        assert_eq!((stored(&setup).await, names(&setup, &path, 3).await), (1, set(&["alpha"])), "{engine}");
        apply(t, &path, Event::Good(3)).await;
        ready(t, &path, 3).await;
        assert_eq!(states(t, ada, &path).await[2], "live 100", "{engine}");
        assert_eq!((stored(&setup).await, names(&setup, &path, 3).await), (0, set(&[])), "{engine}: live");
    }
}

#[tokio::test]
async fn a_canary_has_twenty_present_keys_of_its_organization_that_may_use_it() {
    for (engine, db, _location) in engines("canary_keys_bad").await {
        let setup = IdlePortal::on(db).await;
        let (t, ada) = (&setup.t, &setup.ada);
        let (plain, model) =
            (create(&setup, service("digits")).await, create(&setup, chat("chat", "llama", "public")).await);
        let own = (ada, setup.org.as_str());
        let all = key(&setup, own, json!({"name": "all"})).await;
        let digits = key(&setup, own, json!({"name": "digits", "models": ["digits"]})).await;
        let llama = key(&setup, own, json!({"name": "llama", "models": ["llama"]})).await;
        let revoked = key(&setup, own, json!({"name": "revoked"})).await;
        revoke(&setup, &revoked).await;
        let short = json!({"name": "short", "expires_at": t.portal.context.now().plus_seconds(60)});
        let short = key(&setup, own, short).await;
        let foreign = key(&setup, (&setup.bob, &setup.other), json!({"name": "foreign"})).await;
        for path in [&plain, &model] {
            ready(t, path, 1).await;
            t.post(ada, &format!("{path}/revisions"), revision()).await.expect(201);
            put(&setup, path, (2, 0), &[&all, &short]).await.expect(200);
        }
        assert_eq!(names(&setup, &plain, 2).await, set(&["all", "short"]), "{engine}");
        t.clock.advance_s(61);
        assert_eq!(names(&setup, &plain, 2).await, set(&["all"]), "{engine}: expired");
        let unknown = "ikey_00000000000000000000000001";
        let gone = vec![revoked.as_str(), all.as_str(), short.as_str()];
        for (path, keys, pointers) in [
            (&plain, vec![all.as_str(); 21], vec!["/canary_keys"]),
            (&plain, vec![all.as_str(), unknown], vec!["/canary_keys/1"]),
            (&plain, gone, vec!["/canary_keys/0", "/canary_keys/2"]),
            (&plain, vec![foreign.as_str()], vec!["/canary_keys/0"]),
            (&plain, vec![llama.as_str()], vec!["/canary_keys/0"]),
            (&model, vec![digits.as_str()], vec!["/canary_keys/0"]),
        ] {
            let problem = put(&setup, path, (2, 50), &keys).await.problem(422, "request.invalid");
            let errors = problem["errors"].as_array().unwrap();
            let found: Vec<&str> = errors.iter().map(|error| error["pointer"].as_str().unwrap()).collect();
            assert_eq!(found, pointers, "{engine}");
        }
        // A refused traffic leaves all as it was.
        put(&setup, &plain, (1, 50), &[&all]).await.problem(409, "revision.not_candidate");
        assert_eq!(names(&setup, &plain, 2).await, set(&["all"]), "{engine}");
        put(&setup, &plain, (2, 0), &[&digits]).await.expect(200);
        put(&setup, &model, (2, 0), &[llama.as_str(); 20]).await.expect(200);
        assert_eq!(names(&setup, &plain, 2).await, set(&["digits"]), "{engine}");
        assert_eq!(names(&setup, &model, 2).await, set(&["llama"]), "{engine}");
    }
}

/// The number of the keys of all revisions of a service in an answer.
fn shown_keys(service: &Value) -> usize {
    let revisions = service["revisions"].as_array().unwrap();
    revisions.iter().map(|revision| revision["canary_keys"].as_array().map_or(0, Vec::len)).sum()
}

#[tokio::test]
async fn the_keys_of_a_canary_are_shown_to_those_who_may_run_jobs() {
    for (engine, db, _location) in engines("canary_keys_shown").await {
        let setup = IdlePortal::on(db).await;
        let (t, ada) = (&setup.t, &setup.ada);
        let path = create(&setup, service("digits")).await;
        let alpha = key(&setup, (ada, &setup.org), json!({"name": "alpha"})).await;
        ready(t, &path, 1).await;
        t.post(ada, &format!("{path}/revisions"), revision()).await.expect(201);
        let changed = put(&setup, &path, (2, 0), &[&alpha]).await.expect(200);
        assert_eq!(shown_keys(&changed), 1, "{engine}");
        let all = format!("/orgs/{}/services", setup.org);
        for (role, expected) in [("viewer", 0), ("billing", 0), ("member", 1), ("owner", 1)] {
            let reader = token(&setup, json!({"name": role, "role": role})).await;
            let one = t.get(&reader, &path).await.expect(200);
            let listed = items(t, &reader, &all).await;
            assert_eq!((shown_keys(&one), shown_keys(&listed[0])), (expected, expected), "{engine}: {role}");
        }
        let listed = items(t, &setup.operator, "/operator/services").await;
        let price = format!("/operator/services/{}/token-price", path.rsplit('/').next().unwrap());
        let body = json!({"prompt_micros_per_million": 1_000, "completion_micros_per_million": 1_000});
        let priced = t.call(&setup.operator, "PUT", &price, body).await.expect(200);
        assert_eq!((shown_keys(&listed[0]), shown_keys(&priced)), (0, 0), "{engine}: operators");
    }
}

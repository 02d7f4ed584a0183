//! Tests of services, their revisions and their rollout by requests. The loop of services does not run here.

use berth_autoscaling::rollout::Event;
use berth_service_types::scaling::Scaling;
use berth_service_types::services::{ServiceAccess, ServiceProtocol, ServiceState};
use berth_services::rollouts;
use berth_store as store;
use berth_store::services::services::{StoredDecision, StoredService};
use berth_store::types::JsonColumn;
use berth_types::ids::{OrgId, ServiceId};
use futures::FutureExt;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection};

use crate::common::{Caller, StoreLocation, TestPortal, engines};
use crate::idle_portal::IdlePortal;
use crate::operations::items;

/// Runs a statement on the store of a test. Returns the number of changed rows.
pub async fn run(location: &StoreLocation, sql: String) -> u64 {
    let sql = AssertSqlSafe(sql);
    match location {
        StoreLocation::Sqlite(dir) => {
            let url = format!("sqlite://{}", dir.path().join("berth.db").display());
            let mut raw = sqlx::SqliteConnection::connect(&url).await.unwrap();
            sqlx::query(sql).execute(&mut raw).await.unwrap().rows_affected()
        }
        StoreLocation::Postgres(url) => {
            let mut raw = sqlx::PgConnection::connect(url).await.unwrap();
            sqlx::query(sql).execute(&mut raw).await.unwrap().rows_affected()
        }
    }
}

/// The body of a revision.
pub fn revision() -> Value {
    let job = json!({
        "name": "ignored", "offering": "h100-80gb", "script": "s3cret", "env": {"TOKEN": "s3cret"},
    });
    json!({"job": job, "port": 8_000})
}

/// The body of a plain HTTP service.
pub fn service(name: &str) -> Value {
    json!({"name": name, "revision": revision()})
}

/// The body of an OpenAI service with a model.
pub fn chat(name: &str, model: &str, access: &str) -> Value {
    let models = json!([{"name": model, "context_tokens": 8_192}]);
    json!({"name": name, "protocol": "openai", "access": access, "models": models, "revision": revision()})
}

/// Creates a service and returns its address.
pub async fn create(setup: &IdlePortal, body: Value) -> String {
    let made = setup.t.post(&setup.ada, &services(setup), body).await.expect(201);
    format!("{}/{}", services(setup), made["id"].as_str().unwrap())
}

fn services(setup: &IdlePortal) -> String {
    format!("/orgs/{}/services", setup.org)
}

/// A token of Ada's organization with a role.
pub async fn token(setup: &IdlePortal, new: Value) -> Caller {
    let made = setup.t.post(&setup.ada, &format!("/orgs/{}/tokens", setup.org), new).await.expect(201);
    Caller::Token(made["secret"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn a_service_is_made_shown_changed_and_deleted() {
    for (engine, db, _location) in engines("services").await {
        let setup = IdlePortal::on(db).await;
        let (t, ada) = (&setup.t, &setup.ada);
        let key = [("idempotency-key", "one")];
        let mut new = service("digits");
        new["hosts"] = json!(["digits.example.org"]);
        let made = t.call_with(ada, "POST", &services(&setup), new.clone(), &key).await.expect(201);
        let again = t.call_with(ada, "POST", &services(&setup), new.clone(), &key).await.expect(201);
        assert_eq!(made, again, "{engine}");
        assert_eq!((&made["state"], &made["stopped"]), (&json!("waking"), &json!(false)), "{engine}");
        assert!(made["path"].as_str().unwrap().ends_with("/digits"), "{engine}: {made}");
        assert_eq!(made["revisions"][0]["state"], "staging", "{engine}");
        assert_eq!(made["replicas"], json!([]), "{engine}");
        let path = format!("{}/{}", services(&setup), made["id"].as_str().unwrap());
        assert_eq!(t.get(ada, &path).await.expect(200), made, "{engine}");
        assert_eq!(items(t, ada, &services(&setup)).await, std::slice::from_ref(&made), "{engine}");
        assert_eq!(
            items(t, &setup.operator, "/operator/services").await,
            std::slice::from_ref(&made),
            "{engine}"
        );

        let change = json!({
            "access": "public", "hosts": ["a.example.org"], "stopped": true, "scaling": {"max_replicas": 3},
        });
        for _ in 0..2 {
            let changed = t.call(ada, "PATCH", &path, change.clone()).await.expect(200);
            assert_eq!(
                (&changed["access"], &changed["stopped"], &changed["scaling"]["max_replicas"]),
                (&json!("public"), &json!(true), &json!(3)),
                "{engine}"
            );
        }
        let events = items(t, ada, &format!("/orgs/{}/audit-events?action=service.changed", setup.org)).await;
        assert_eq!(events.len(), 1, "{engine}: a repetition changes nothing");
        assert!(events[0]["before"].as_str().unwrap().contains("digits.example.org"), "{engine}");

        t.call(ada, "DELETE", &path, Value::Null).await.expect(204);
        t.call(ada, "DELETE", &path, Value::Null).await.problem(404, "object.not_found");
        t.get(ada, &path).await.problem(404, "object.not_found");
        assert_eq!(items(t, ada, &services(&setup)).await, Vec::<Value>::new(), "{engine}");
        let id: ServiceId = made["id"].as_str().unwrap().parse().unwrap();
        let mut conn = t.portal.context.db.read().await.unwrap();
        let kept = store::services::revisions::find(&mut conn.tx(), id, 1).await.unwrap().unwrap();
        drop(conn);
        assert_eq!(kept.spec.job.script, None, "{engine}: a deleted service has no texts");
        // Its name and its hosts are free.
        new["hosts"] = json!(["a.example.org"]);
        create(&setup, new).await;
    }
}

#[tokio::test]
async fn services_are_those_of_their_organization() {
    for (engine, db, _location) in engines("services_foreign").await {
        let setup = IdlePortal::on(db).await;
        let (t, bob) = (&setup.t, &setup.bob);
        let path = create(&setup, service("digits")).await;
        let foreign = path.replace(&setup.org, &setup.other);
        let first = items(t, &setup.ada, &format!("{path}/revisions")).await[0]["id"].clone();
        let first = first.as_str().unwrap();
        let traffic = json!({"revision": 1, "percent": 10});
        for (method, path, body) in [
            ("GET", path.clone(), Value::Null),
            ("GET", foreign.clone(), Value::Null),
            ("PATCH", foreign.clone(), json!({"stopped": true})),
            ("DELETE", foreign.clone(), Value::Null),
            ("GET", format!("{foreign}/revisions"), Value::Null),
            ("POST", format!("{foreign}/revisions"), revision()),
            ("PUT", format!("{foreign}/traffic"), traffic.clone()),
            ("POST", format!("{foreign}/rollback"), Value::Null),
            ("GET", format!("{foreign}/use"), Value::Null),
            ("GET", format!("{foreign}/revisions/{first}/specification"), Value::Null),
        ] {
            t.call(bob, method, &path, body).await.problem(404, "object.not_found");
        }
        t.get(bob, "/operator/services").await.problem(404, "object.not_found");
        let viewer = token(&setup, json!({"name": "viewer", "role": "viewer"})).await;
        t.get(&viewer, &path).await.expect(200);
        t.get(&viewer, &format!("{path}/revisions")).await.expect(200);
        for (method, path, body) in [
            ("POST", services(&setup), service("other")),
            ("PATCH", path.clone(), json!({"stopped": true})),
            ("DELETE", path.clone(), Value::Null),
            ("POST", format!("{path}/revisions"), revision()),
            ("PUT", format!("{path}/traffic"), traffic),
            ("POST", format!("{path}/rollback"), Value::Null),
            ("GET", format!("{path}/revisions/{first}/specification"), Value::Null),
        ] {
            t.call(&viewer, method, &path, body).await.problem(403, "auth.forbidden");
        }
        let jobs = token(&setup, json!({"name": "ci", "role": "member", "scopes": ["jobs:write"]})).await;
        t.get(&jobs, &path).await.problem(403, "token.scope");
        let reader = json!({"name": "read", "role": "member", "scopes": ["services:read"]});
        let reader = token(&setup, reader).await;
        t.get(&reader, &path).await.expect(200);
        t.post(&reader, &services(&setup), service("other")).await.problem(403, "token.scope");
        assert_eq!(items(t, &setup.ada, &services(&setup)).await.len(), 1, "{engine}");
    }
}

#[tokio::test]
async fn a_schedule_and_the_rule_of_canaries_are_stored_and_shown() {
    for (engine, db, _location) in engines("services_schedule").await {
        let setup = IdlePortal::on(db).await;
        let (t, ada) = (&setup.t, &setup.ada);
        let path = create(&setup, service("digits")).await;
        let first = t.get(ada, &path).await.expect(200);
        let rule = json!({"min_requests": 50, "min_seconds": 60, "error_percent": 5, "automatic": true});
        assert_eq!(first["rollout"], rule, "{engine}");
        assert_eq!(
            (&first["scaling"]["schedule"], &first["scaling"]["time_zone"]),
            (&json!([]), &json!("UTC")),
            "{engine}"
        );
        let time = |day: &str, minute: i64| json!({"day": day, "minute": minute});
        let window = json!({"begin": time("monday", 480), "end": time("friday", 1_080), "floor": 3});
        let scaling = json!({"max_replicas": 4, "schedule": [window], "time_zone": "Europe/Oslo"});
        let slow = json!({"min_requests": 7, "min_seconds": 900, "error_percent": 0, "automatic": false});
        let change = json!({"scaling": scaling, "rollout": slow});
        for _ in 0..2 {
            let changed = t.call(ada, "PATCH", &path, change.clone()).await.expect(200);
            assert_eq!(
                (&changed["scaling"]["schedule"], &changed["scaling"]["time_zone"], &changed["rollout"]),
                (&json!([window]), &json!("Europe/Oslo"), &slow),
                "{engine}"
            );
        }
        let events = items(t, ada, &format!("/orgs/{}/audit-events?action=service.changed", setup.org)).await;
        assert_eq!(events.len(), 1, "{engine}");
        assert!(events[0]["after"].as_str().unwrap().contains("Europe/Oslo"), "{engine}");
        let mut high = window.clone();
        high["floor"] = json!(5);
        for (bad, pointer) in [
            (json!({"max_replicas": 4, "schedule": [window, high]}), "/scaling/schedule/1/floor"),
            (json!({"time_zone": "Europe/Nowhere"}), "/scaling/time_zone"),
            (json!({"max_replicas": 4, "schedule": vec![&window; 101]}), "/scaling/schedule"),
        ] {
            let problem = t.call(ada, "PATCH", &path, json!({"scaling": bad})).await;
            let problem = problem.problem(422, "request.invalid");
            assert_eq!(problem["errors"][0]["pointer"], pointer, "{engine}: {problem}");
        }
        assert_eq!(t.get(ada, &path).await.expect(200)["scaling"]["schedule"], json!([window]), "{engine}");
    }
}

#[tokio::test]
async fn the_models_of_a_service_are_changed_by_the_rules_of_a_new_one() {
    for (engine, db, _location) in engines("services_models").await {
        let setup = IdlePortal::on(db).await;
        let (t, ada) = (&setup.t, &setup.ada);
        create(&setup, chat("other", "gemma", "organization")).await;
        let path = create(&setup, chat("chat", "llama", "organization")).await;
        let model = |name: &str| json!({"name": name, "context_tokens": 10});
        for (models, pointer) in [
            (json!([]), "/models"),
            (json!([model("a"), model("a")]), "/models/1/name"),
            (json!([model("a"), model("gemma")]), "/models/1/name"),
        ] {
            let problem = t.call(ada, "PATCH", &path, json!({"models": models})).await;
            let problem = problem.problem(422, "request.invalid");
            assert_eq!(problem["errors"][0]["pointer"], pointer, "{engine}: {problem}");
        }
        let models = json!([model("llama"), model("qwen")]);
        let changed = t.call(ada, "PATCH", &path, json!({"models": models})).await.expect(200);
        assert_eq!(changed["models"], models, "{engine}");
        let http = create(&setup, service("digits")).await;
        let problem = t.call(ada, "PATCH", &http, json!({"models": [model("b")]})).await;
        assert_eq!(problem.problem(422, "request.invalid")["errors"][0]["pointer"], "/models", "{engine}");
    }
}

#[tokio::test]
async fn a_specification_has_its_texts_until_its_service_is_deleted() {
    for (engine, db, _location) in engines("services_specification").await {
        let setup = IdlePortal::on(db).await;
        let (t, ada) = (&setup.t, &setup.ada);
        let path = create(&setup, service("digits")).await;
        let other = create(&setup, service("other")).await;
        let shown = items(t, ada, &format!("{path}/revisions")).await;
        let id = shown[0]["id"].as_str().unwrap();
        let address = |service: &str| format!("{service}/revisions/{id}/specification");
        let whole = t.get(ada, &address(&path)).await.expect(200);
        assert_eq!(
            (&whole["job"]["script"], &whole["job"]["env"]["TOKEN"], &whole["job"]["name"]),
            (&json!("s3cret"), &json!("s3cret"), &json!("digits-r1")),
            "{engine}"
        );
        // It is the body of a further revision.
        t.post(ada, &format!("{path}/rollback"), Value::Null).await.expect(200);
        t.post(ada, &format!("{path}/revisions"), whole).await.expect(201);
        t.get(ada, &address(&other)).await.problem(404, "object.not_found");
        t.call(ada, "DELETE", &path, Value::Null).await.expect(204);
        t.get(ada, &address(&path)).await.problem(404, "object.not_found");
    }
}

#[tokio::test]
async fn a_bad_service_leaves_nothing() {
    for (engine, db, _location) in engines("services_bad").await {
        let setup = IdlePortal::on(db).await;
        let t = &setup.t;
        let gateway = json!({"name": "gateway-1", "url": "https://Models.example.org/"});
        let made = t.post(&setup.operator, "/operator/gateways", gateway).await.expect(201);
        assert_eq!(made["url"], "https://models.example.org", "{engine}");
        let mut first = chat("chat", "llama", "organization");
        first["hosts"] = json!(["chat.example.org"]);
        create(&setup, first).await;
        let open = chat("open", "gemma", "public");
        t.post(&setup.bob, &format!("/orgs/{}/services", setup.other), open).await.expect(201);
        let with_job = |field: &str, value: Value| {
            let mut body = service("other");
            body["revision"]["job"][field] = value;
            body
        };
        let with = |field: &str, value: Value| {
            let mut body = service("other");
            body[field] = value;
            body
        };
        for (body, pointer) in [
            (service("Other"), "/name"),
            (with("hosts", json!(["chat.example.org"])), "/hosts/0"),
            (with("hosts", json!(["other.example.org", "models.example.org"])), "/hosts/1"),
            (with("scaling", json!({"max_replicas": 0, "min_replicas": 0})), "/scaling/max_replicas"),
            (chat("other", "llama", "organization"), "/models/0/name"),
            (chat("other", "gemma", "public"), "/models/0/name"),
            (with_job("offering", json!("none")), "/revision/job/offering"),
            (with_job("offering", json!("h100-80gb.2g.20gb")), "/revision/job/offering"),
            (with_job("secrets", json!([{"name": "none", "env": "A"}])), "/revision/job/secrets/0/name"),
            (with_job("ports", json!([80])), "/revision/job/ports"),
        ] {
            let problem = t.post(&setup.ada, &services(&setup), body).await.problem(422, "request.invalid");
            assert_eq!(problem["errors"][0]["pointer"], pointer, "{engine}: {problem}");
        }
        let repeated = t.post(&setup.ada, &services(&setup), service("chat")).await;
        repeated.problem(409, "service.exists");
        assert_eq!(items(t, &setup.ada, &services(&setup)).await.len(), 1, "{engine}");
        // Only public services share their models with those of other organizations.
        let own = create(&setup, chat("other", "gemma", "organization")).await;
        let public = t.call(&setup.ada, "PATCH", &own, json!({"access": "public"})).await;
        assert_eq!(public.problem(422, "request.invalid")["errors"][0]["pointer"], "/models/0/name");
        let hosts = t.call(&setup.ada, "PATCH", &own, json!({"hosts": ["chat.example.org"]})).await;
        assert_eq!(hosts.problem(422, "request.invalid")["errors"][0]["pointer"], "/hosts/0");
        assert_eq!(t.get(&setup.ada, &own).await.expect(200)["access"], "organization", "{engine}");
    }
}

/// A stored service of an organization.
fn stored(setup: &IdlePortal, org: OrgId, number: usize) -> StoredService {
    let now = setup.t.portal.context.now();
    StoredService {
        id: setup.t.portal.context.new_id(now),
        org_id: org,
        org_slug: String::new(),
        name: format!("service-{number}"),
        protocol: ServiceProtocol::Http,
        access: ServiceAccess::Organization,
        hosts: JsonColumn::default(),
        models: JsonColumn::default(),
        max_body_bytes: 1,
        scaling: JsonColumn(Scaling::default()),
        rollout: JsonColumn::default(),
        stopped: true,
        state: ServiceState::Asleep,
        detail: String::new(),
        decision: StoredDecision::default(),
        nano_per_prompt_token: 0,
        nano_per_completion_token: 0,
        version: 1,
        created_at: now,
        created_by: "Ada".to_owned(),
    }
}

#[tokio::test]
async fn an_organization_has_a_hundred_services() {
    for (engine, db, _location) in engines("services_limit").await {
        let setup = IdlePortal::on(db).await;
        let path = create(&setup, service("digits")).await;
        let org = setup.org.parse().unwrap();
        let rows: Vec<StoredService> = (1..100).map(|number| stored(&setup, org, number)).collect();
        let inserted = setup.t.portal.context.db.write(move |tx| {
            let rows = rows.clone();
            async move {
                for row in &rows {
                    store::services::services::insert(tx, row).await?;
                }
                Ok(())
            }
            .boxed()
        });
        inserted.await.unwrap();
        let more = setup.t.post(&setup.ada, &services(&setup), service("more")).await;
        more.problem(409, "service.limit");
        assert_eq!(items(&setup.t, &setup.ada, &format!("{}?limit=200", services(&setup))).await.len(), 100);
        setup.t.call(&setup.ada, "DELETE", &path, Value::Null).await.expect(204);
        let more = setup.t.post(&setup.ada, &services(&setup), service("more")).await;
        assert_eq!(more.expect(201)["name"], "more", "{engine}");
    }
}

/// Reports the replicas of a revision as ready, as the loop of services does.
pub async fn ready(t: &TestPortal, path: &str, number: u32) {
    apply(t, path, Event::Ready(number)).await;
}

/// Applies an event to the rollout of a service.
pub async fn apply(t: &TestPortal, path: &str, event: Event) {
    let service: ServiceId = path.rsplit('/').next().unwrap().parse().unwrap();
    let done = t.portal.context.db.write(move |tx| {
        async move {
            let before = rollouts::load(tx, service).await?;
            let mut after = before.clone();
            after.apply(event).unwrap();
            rollouts::store(tx, service, &before, &after).await
        }
        .boxed()
    });
    done.await.unwrap();
}

/// The states and weights of the revisions of a service, by number.
pub async fn states(t: &TestPortal, caller: &Caller, path: &str) -> Vec<String> {
    let all = items(t, caller, &format!("{path}/revisions?sort=asc")).await;
    all.iter().map(|r| format!("{} {}", r["state"].as_str().unwrap(), r["weight_percent"])).collect()
}

#[tokio::test]
async fn a_person_sets_the_traffic_and_rolls_back() {
    for (engine, db, _location) in engines("services_traffic").await {
        let setup = IdlePortal::on(db).await;
        let (t, ada) = (&setup.t, &setup.ada);
        let path = create(&setup, service("digits")).await;
        let (revisions, traffic) = (format!("{path}/revisions"), format!("{path}/traffic"));
        let put = async |revision: i64, percent: i64| {
            t.call(ada, "PUT", &traffic, json!({"revision": revision, "percent": percent})).await
        };
        let back = async || t.post(ada, &format!("{path}/rollback"), Value::Null).await;
        put(1, 10).await.expect(200);
        assert_eq!(states(t, ada, &path).await, ["staging 0"], "{engine}: the first one is alone");
        t.post(ada, &revisions, revision()).await.problem(409, "revision.underway");
        for number in [0, 2, -1, 1 << 40] {
            let problem = put(number, 10).await.problem(422, "request.invalid");
            assert_eq!(problem["errors"][0]["pointer"], "/revision", "{engine} {number}");
        }
        assert_eq!(put(1, 101).await.problem(422, "request.invalid")["errors"][0]["pointer"], "/percent");
        ready(t, &path, 1).await;
        put(1, 10).await.problem(409, "revision.not_candidate");
        back().await.problem(409, "revision.nothing_before");

        let mut canary = revision();
        (canary["canary_percent"], canary["note"]) = (json!([10, 50]), json!("Faster"));
        let key = [("idempotency-key", "two")];
        let made = t.call_with(ada, "POST", &revisions, canary.clone(), &key).await.expect(201);
        let again = t.call_with(ada, "POST", &revisions, canary, &key).await.expect(201);
        assert_eq!((&made, &made["number"]), (&again, &json!(2)), "{engine}");
        assert!(!made.to_string().contains("s3cret"), "{engine}: {made}");
        assert_eq!(made["spec"]["job"]["name"], "digits-r2", "{engine}");
        ready(t, &path, 2).await;
        assert_eq!(states(t, ada, &path).await, ["live 90", "canary 10"], "{engine}");
        put(2, 40).await.expect(200);
        assert_eq!(states(t, ada, &path).await, ["live 90", "canary 10"], "{engine}: replicas first");
        ready(t, &path, 2).await;
        assert_eq!(states(t, ada, &path).await, ["live 60", "canary 40"], "{engine}");
        put(2, 5).await.expect(200);
        assert_eq!(states(t, ada, &path).await, ["live 95", "canary 5"], "{engine}: less is at once");
        let shown = back().await.expect(200);
        assert_eq!(shown["revisions"][0]["weight_percent"], 100, "{engine}");
        assert_eq!(states(t, ada, &path).await, ["live 100", "rolled_back 0"], "{engine}");
        assert_eq!(items(t, ada, &revisions).await[0]["detail"], "Ada withdrew the revision.", "{engine}");

        t.post(ada, &revisions, revision()).await.expect(201);
        ready(t, &path, 3).await;
        assert_eq!(states(t, ada, &path).await, ["draining 0", "rolled_back 0", "live 100"], "{engine}");
        back().await.expect(200);
        assert_eq!(states(t, ada, &path).await, ["staging 0", "rolled_back 0", "live 100"], "{engine}");
        let audit = format!("/orgs/{}/audit-events?action=service.", setup.org);
        assert_eq!(items(t, ada, &format!("{audit}rolled_back")).await.len(), 2, "{engine}");
        assert_eq!(items(t, ada, &format!("{audit}traffic_set")).await.len(), 2, "{engine}");
    }
}

#[tokio::test]
async fn the_oldest_revisions_without_replicas_are_deleted() {
    for (engine, db, location) in engines("services_revisions").await {
        let setup = IdlePortal::on(db).await;
        let (t, ada) = (&setup.t, &setup.ada);
        let path = create(&setup, service("digits")).await;
        let (id, now) = (path.rsplit('/').next().unwrap(), t.portal.context.now().micros());
        // The second revision has a replica that has not ended, and the third one an ended replica.
        for number in 1..=102 {
            if number > 1 {
                let made = t.post(ada, &format!("{path}/revisions"), revision()).await.expect(201);
                assert_eq!(made["number"], number, "{engine}");
            }
            if number == 2 || number == 3 {
                let ended = if number == 3 { now.to_string() } else { "NULL".to_owned() };
                let sql = format!(
                    "INSERT INTO service_replicas (job_id, service_id, revision_id, org_id, created_at, ended_at) \
                     SELECT 'job_0000000000000000000000000{number}', '{id}', id, org_id, {now}, {ended} \
                     FROM service_revisions WHERE service_id = '{id}' AND number = {number}"
                );
                assert_eq!(run(&location, sql).await, 1, "{engine}");
            }
            t.post(ada, &format!("{path}/rollback"), Value::Null).await.expect(200);
        }
        let all = items(t, ada, &format!("{path}/revisions?sort=asc&limit=200")).await;
        let numbers: Vec<i64> = all.iter().map(|one| one["number"].as_i64().unwrap()).collect();
        // The first one went with the 101st. The second one would have gone with the 102nd.
        let expected: Vec<i64> = (2..=102).collect();
        assert_eq!(numbers, expected, "{engine}");
        let shown = t.get(ada, &path).await.expect(200);
        assert_eq!(shown["replicas"].as_array().unwrap().len(), 1, "{engine}: {shown}");
        let replica = &shown["replicas"][0];
        assert_eq!(
            (&replica["state"], &replica["submitted"], &replica["revision_number"], &replica["nodes"]),
            (&json!("queued"), &json!(false), &json!(2), &json!([])),
            "{engine}"
        );
        let summaries: Vec<&Value> =
            shown["revisions"].as_array().unwrap().iter().map(|r| &r["number"]).collect();
        assert_eq!(summaries, [&json!(2), &json!(102)], "{engine}: with replicas, and the newest");
        // A further revision finds the second and the third one beyond the limit.
        t.post(ada, &format!("{path}/revisions"), revision()).await.expect(201);
        let all = items(t, ada, &format!("{path}/revisions?sort=asc&limit=2")).await;
        assert_eq!((&all[0]["number"], &all[1]["number"]), (&json!(2), &json!(4)), "{engine}");
    }
}

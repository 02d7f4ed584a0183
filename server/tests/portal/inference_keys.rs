//! Tests of inference keys, of gateways for operators, and of the use and price of services.

use berth_store as store;
use berth_store::services::keys::StoredKey;
use berth_store::types::JsonColumn;
use berth_types::ids::OrgId;
use futures::FutureExt;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::common::{Caller, engines};
use crate::idle_portal::IdlePortal;
use crate::operations::items;
use crate::services::{create, run, service};

const HOUR_US: i64 = 3_600_000_000;

fn hash(secret: &str) -> String {
    hex::encode(Sha256::digest(secret.as_bytes()))
}

#[tokio::test]
async fn a_secret_of_a_key_is_shown_once_and_only_its_hash_is_stored() {
    for (engine, db, location) in engines("keys").await {
        let setup = IdlePortal::on(db).await;
        let (t, ada) = (&setup.t, &setup.ada);
        let keys = format!("/orgs/{}/inference-keys", setup.org);
        let new = json!({"name": " batch ", "models": ["llama"], "month_budget_micros": 5_000_000});
        let once = [("idempotency-key", "one")];
        let made = t.call_with(ada, "POST", &keys, new.clone(), &once).await.expect(201);
        let secret = made["secret"].as_str().unwrap();
        assert!(secret.starts_with("sk-berth-") && secret.len() == 52, "{engine}");
        assert_eq!((&made["name"], &made["hint"]), (&json!("batch"), &json!(&secret[48..])), "{engine}");
        let again = t.call_with(ada, "POST", &keys, new.clone(), &once).await;
        again.problem(409, "idempotency.shown_once");
        let listed = items(t, ada, &keys).await;
        assert_eq!(listed.len(), 1, "{engine}");
        assert!(listed[0]["secret"].is_null() && listed[0]["models"] == json!(["llama"]), "{engine}");
        let found = format!(
            "UPDATE inference_keys SET last_used_at = created_at WHERE number = 1 AND secret_hash = '{}'",
            hash(secret)
        );
        assert_eq!(run(&location, found).await, 1, "{engine}");
        assert_eq!(items(t, ada, &keys).await[0]["last_used_at"], made["created_at"], "{engine}");

        let second = t.post(ada, &keys, json!({"name": "other"})).await.expect(201);
        let path = format!("{keys}/{}", made["id"].as_str().unwrap());
        let foreign = path.replace(&setup.org, &setup.other);
        t.get(&setup.bob, &keys).await.problem(404, "object.not_found");
        t.call(&setup.bob, "DELETE", &foreign, Value::Null).await.problem(404, "object.not_found");
        let token = json!({"name": "ci", "role": "member", "scopes": ["services:write"]});
        let token = t.post(ada, &format!("/orgs/{}/tokens", setup.org), token).await.expect(201);
        let member = Caller::Token(token["secret"].as_str().unwrap().to_owned());
        assert_eq!(items(t, &member, &keys).await.len(), 2, "{engine}");
        t.post(&member, &keys, json!({"name": "more"})).await.problem(403, "auth.forbidden");
        t.call(&member, "DELETE", &path, Value::Null).await.problem(403, "auth.forbidden");
        let token = json!({"name": "watch", "role": "viewer", "scopes": ["services:read"]});
        let token = t.post(ada, &format!("/orgs/{}/tokens", setup.org), token).await.expect(201);
        let viewer = Caller::Token(token["secret"].as_str().unwrap().to_owned());
        t.get(&viewer, &keys).await.problem(403, "auth.forbidden");
        t.call(ada, "DELETE", &path, Value::Null).await.expect(204);
        t.call(ada, "DELETE", &path, Value::Null).await.problem(404, "object.not_found");
        let left = items(t, ada, &keys).await;
        assert_eq!((left.len(), &left[0]["id"]), (1, &second["id"]), "{engine}");
        // The number of a key is never used again.
        let third = t.post(ada, &keys, json!({"name": "third"})).await.expect(201);
        let sql = format!("UPDATE inference_keys SET name = 'x' WHERE number = 3 AND id = '{}'", id(&third));
        assert_eq!(run(&location, sql).await, 1, "{engine}");
        let bad = t.post(ada, &keys, json!({"name": "", "models": ["a b"]})).await;
        let problem = bad.problem(422, "request.invalid");
        let pointers: Vec<&Value> =
            problem["errors"].as_array().unwrap().iter().map(|fault| &fault["pointer"]).collect();
        assert_eq!(pointers, [&json!("/name"), &json!("/models/0")], "{engine}");
    }
}

fn id(object: &Value) -> &str {
    object["id"].as_str().unwrap()
}

#[tokio::test]
async fn an_organization_has_five_hundred_keys() {
    for (engine, db, _location) in engines("keys_limit").await {
        let setup = IdlePortal::on(db).await;
        let (context, org): (_, OrgId) = (setup.t.portal.context.clone(), setup.org.parse().unwrap());
        let row = move |number: i64| StoredKey {
            id: context.new_id(context.now()),
            number,
            org_id: org,
            name: format!("key {number}"),
            hint: "abcd".to_owned(),
            models: JsonColumn::default(),
            requests_per_minute: None,
            tokens_per_minute: None,
            day_budget_micros: None,
            month_budget_micros: None,
            total_budget_micros: None,
            expires_at: None,
            last_used_at: None,
            created_at: context.now(),
            created_by: "Ada".to_owned(),
        };
        let rows: Vec<StoredKey> = (1..=500).map(row).collect();
        let inserted = setup.t.portal.context.db.write(move |tx| {
            let rows = rows.clone();
            async move {
                for row in &rows {
                    store::services::keys::insert(tx, row, &format!("hash {}", row.number)).await?;
                }
                Ok(())
            }
            .boxed()
        });
        inserted.await.unwrap();
        let keys = format!("/orgs/{}/inference-keys", setup.org);
        let more = setup.t.post(&setup.ada, &keys, json!({"name": "more"})).await;
        more.problem(409, "inference_key.limit");
        let other = format!("/orgs/{}/inference-keys", setup.other);
        setup.t.post(&setup.bob, &other, json!({"name": "own"})).await.expect(201);
        let first = items(&setup.t, &setup.ada, &format!("{keys}?limit=1")).await;
        setup
            .t
            .call(&setup.ada, "DELETE", &format!("{keys}/{}", id(&first[0])), Value::Null)
            .await
            .expect(204);
        let more = setup.t.post(&setup.ada, &keys, json!({"name": "more"})).await;
        assert_eq!(more.expect(201)["name"], "more", "{engine}");
    }
}

#[tokio::test]
async fn a_gateway_has_a_token_of_its_own_and_is_shown_while_it_reports() {
    for (engine, db, location) in engines("gateways").await {
        let setup = IdlePortal::on(db).await;
        let (t, operator) = (&setup.t, &setup.operator);
        let new = json!({"name": "gateway-1", "url": "http://10.0.0.7:8000/"});
        let once = [("idempotency-key", "one")];
        let gateways = "/operator/gateways";
        let made = t.call_with(operator, "POST", gateways, new.clone(), &once).await.expect(201);
        let token = made["token"].as_str().unwrap();
        assert!(token.starts_with("bgw_") && token.len() == 47, "{engine}");
        assert_eq!(made["url"], "http://10.0.0.7:8000", "{engine}");
        // The answer has a secret, so the portal has not stored it.
        let again = t.call_with(operator, "POST", gateways, new.clone(), &once).await;
        again.problem(409, "idempotency.shown_once");
        t.post(operator, gateways, new).await.problem(409, "gateway.exists");
        for (bad, pointer) in [
            (json!({"name": "Gateway"}), "/name"),
            (json!({"name": "other", "url": "10.0.0.7"}), "/url"),
            (json!({"name": "other", "url": "https://example.org/v1"}), "/url"),
        ] {
            let problem = t.post(operator, gateways, bad).await.problem(422, "request.invalid");
            assert_eq!(problem["errors"][0]["pointer"], pointer, "{engine}");
        }
        let mut digits = service("digits");
        digits["hosts"] = json!(["digits.example.org"]);
        create(&setup, digits).await;
        let confirm = json!({"host": "digits.example.org", "confirmed": true});
        let hosts = format!("/operator/orgs/{}/service-hosts", setup.org);
        t.call(operator, "PUT", &hosts, confirm).await.expect(200);
        let taken = json!({"name": "other", "url": "https://digits.example.org"});
        let problem = t.post(operator, gateways, taken).await.problem(422, "request.invalid");
        assert_eq!(problem["errors"][0]["pointer"], "/url", "{engine}");
        let listed = items(t, operator, gateways).await;
        assert_eq!((listed.len(), &listed[0]["token"]), (1, &Value::Null), "{engine}");
        t.get(&setup.ada, gateways).await.problem(404, "object.not_found");

        let present = format!("/orgs/{}/service-gateways", setup.org);
        assert_eq!(items(t, &setup.ada, &present).await, Vec::<Value>::new(), "{engine}");
        let seen = format!(
            "UPDATE gateways SET last_seen_at = {} WHERE number = 1 AND token_hash = '{}'",
            t.portal.context.now().micros(),
            hash(token)
        );
        assert_eq!(run(&location, seen).await, 1, "{engine}");
        let shown = json!({"name": "gateway-1", "url": "http://10.0.0.7:8000"});
        assert_eq!(items(t, &setup.ada, &present).await, [shown], "{engine}");
        t.get(&setup.bob, &present).await.problem(404, "object.not_found");
        t.clock.advance_s(31);
        assert_eq!(items(t, &setup.ada, &present).await, Vec::<Value>::new(), "{engine}");

        let path = format!("{gateways}/{}", id(&made));
        t.call(operator, "DELETE", &path, Value::Null).await.expect(204);
        t.call(operator, "DELETE", &path, Value::Null).await.problem(404, "object.not_found");
        // The name is free, and the number is not.
        let made = t.post(operator, gateways, json!({"name": "gateway-1"})).await.expect(201);
        let sql = format!("UPDATE gateways SET version = '1' WHERE number = 2 AND id = '{}'", id(&made));
        assert_eq!(run(&location, sql).await, 1, "{engine}");
    }
}

#[tokio::test]
async fn an_operator_sets_the_price_of_tokens() {
    for (engine, db, _location) in engines("token_price").await {
        let setup = IdlePortal::on(db).await;
        let t = &setup.t;
        let path = create(&setup, service("digits")).await;
        let price = format!("/operator/services/{}/token-price", path.rsplit('/').next().unwrap());
        let new = json!({"prompt_micros_per_million": 150_000, "completion_micros_per_million": 600_000});
        t.call(&setup.ada, "PUT", &price, new.clone()).await.problem(404, "object.not_found");
        let none = json!({"prompt_micros_per_million": 0, "completion_micros_per_million": 0});
        assert_eq!(t.get(&setup.ada, &path).await.expect(200)["token_price"], none, "{engine}");
        let changed = t.call(&setup.operator, "PUT", &price, new.clone()).await.expect(200);
        assert_eq!(changed["token_price"], new, "{engine}");
        for bad in [-1_000, 1_500, 1_000_000_001_000_i64] {
            let bad = json!({"prompt_micros_per_million": bad, "completion_micros_per_million": 0});
            t.call(&setup.operator, "PUT", &price, bad).await.problem(422, "request.invalid");
        }
        let events = format!("/orgs/{}/audit-events?action=token_price.set", setup.org);
        let events = items(t, &setup.ada, &events).await;
        assert_eq!(events.len(), 1, "{engine}");
        assert!(events[0]["after"].as_str().unwrap().contains("150000"), "{engine}");
    }
}

#[tokio::test]
async fn use_is_summed_by_hour_by_day_and_by_month() {
    for (engine, db, location) in engines("service_use").await {
        let setup = IdlePortal::on(db).await;
        let (t, ada) = (&setup.t, &setup.ada);
        let path = create(&setup, service("digits")).await;
        let key = t.post(ada, &format!("/orgs/{}/inference-keys", setup.org), json!({"name": "batch"})).await;
        let (key, service) = (key.expect(201), path.rsplit('/').next().unwrap().to_owned());
        let now = t.portal.context.now().micros() / HOUR_US * HOUR_US;
        let buckets = |bucket: usize| {
            let counts: Vec<i32> = (0..25).map(|n| i32::from(n == bucket) * 10).collect();
            json!(counts).to_string()
        };
        let first_byte = [buckets(4), buckets(6), buckets(24)];
        for (hours, key, first_byte) in
            [(0, id(&key), &first_byte[0]), (0, "", &first_byte[1]), (30, id(&key), &first_byte[2])]
        {
            let sql = format!(
                "INSERT INTO service_use (service_id, revision_id, key_id, hour_at, org_id, requests, errors, \
                 prompt_tokens, completion_tokens, token_nanos, first_byte) VALUES ('{service}', \
                 'rev_00000000000000000000000001', '{key}', {}, '{}', 10, 1, 100, 200, 1500, '{first_byte}')",
                now - hours * HOUR_US,
                setup.org
            );
            assert_eq!(run(&location, sql).await, 1, "{engine}");
        }
        let used = |n: i64| {
            json!({
                "requests": 10 * n, "errors": n, "prompt_tokens": 100 * n, "completion_tokens": 200 * n,
                "token_micros": 1_500 * n / 1_000,
            })
        };
        assert_eq!(t.get(ada, &path).await.expect(200)["last_day"], used(2), "{engine}");
        let keys = items(t, ada, &format!("/orgs/{}/inference-keys", setup.org)).await;
        assert_eq!(keys[0]["this_month"], used(2), "{engine}");
        let hours = items(t, ada, &format!("{path}/use")).await;
        assert_eq!(hours.len(), 1, "{engine}: {hours:?}");
        assert_eq!(
            (&hours[0]["requests"], &hours[0]["first_byte_p50_ms"], &hours[0]["first_byte_p99_ms"]),
            (&json!(20), &json!(7), &json!(15)),
            "{engine}"
        );
        let pages = format!("{path}/use?hours=48&limit=1&sort=asc");
        let page = t.get(ada, &pages).await.expect(200);
        assert_eq!(page["items"][0]["requests"], 10, "{engine}");
        assert!(page["items"][0]["first_byte_p50_ms"].is_null(), "{engine}: above all bounds");
        let cursor = page["next_cursor"].as_str().unwrap();
        let last = t.get(ada, &format!("{pages}&cursor={cursor}")).await.expect(200);
        assert_eq!((&last["items"][0], &last["next_cursor"]), (&hours[0], &Value::Null), "{engine}");
        for bad in ["0", "169"] {
            t.get(ada, &format!("{path}/use?hours={bad}")).await.problem(400, "request.malformed");
        }
    }
}

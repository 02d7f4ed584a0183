//! Tests of the classes of promises, which operators offer.

use crate::change_requests::second_operator;
use crate::common::engines;
use crate::idle_portal::IdlePortal;
use crate::operations::items;
use crate::promises::{Promised, gold, text};
use crate::services::{create, service};
use serde_json::{Value, json};

#[tokio::test]
async fn classes_wait_for_the_second_operator() {
    for (engine, db, location) in engines("promise_second").await {
        let one = Promised::new(db, location, gold()).await;
        let (t, operator) = (&one.setup.t, &one.setup.operator);
        let second = second_operator(t).await;
        let on = json!({"second_operator": true});
        t.call(operator, "PUT", "/operator/change-policy", on).await.expect(200);
        let class = format!("/operator/promises/{}", one.class);
        let silver = json!({"name": "silver", "terms": gold()["terms"]});
        for (method, path, body, name) in [
            ("POST", "/operator/promises", silver, "silver"),
            ("PATCH", class.as_str(), json!({"name": "platinum"}), "platinum"),
        ] {
            let names = async || {
                let all = items(t, operator, "/operator/promises").await;
                all.iter().map(|class| text(&class["name"])).collect::<Vec<String>>()
            };
            let waiting = t.call(operator, method, path, body).await.expect(202);
            assert_eq!(waiting["state"], "pending", "{engine}: {waiting}");
            assert!(!names().await.contains(&name.to_owned()), "{engine} {name}: nothing changed");
            let approve = format!("/operator/change-requests/{}/approve", text(&waiting["id"]));
            t.post(operator, &approve, Value::Null).await.problem(403, "change_request.own");
            t.post(&second, &approve, Value::Null).await.expect(200);
            assert!(names().await.contains(&name.to_owned()), "{engine} {name}: at the approval");
        }
    }
}

#[tokio::test]
async fn operators_see_how_many_services_have_a_class() {
    for (engine, db, location) in engines("promise_services").await {
        let one = Promised::new(db, location, gold()).await;
        let (t, setup) = (&one.setup.t, &one.setup);
        let list = "/operator/promises";
        let services = async || items(t, &setup.operator, list).await[0]["services"].clone();
        assert_eq!(services().await, 1, "{engine}");
        let other = create(setup, service("letters")).await;
        let chosen = json!({"promise": one.class});
        t.call(&setup.ada, "PUT", &format!("{other}/promise"), chosen).await.expect(200);
        let class = format!("{list}/{}", one.class);
        let body = json!({"name": "platinum"});
        let changed = t.call(&setup.operator, "PATCH", &class, body).await.expect(200);
        assert_eq!((&changed["services"], services().await), (&json!(2), json!(2)), "{engine}");
        let offered = items(t, &setup.ada, &format!("/orgs/{}/promises", setup.org)).await;
        assert_eq!(offered[0]["services"], Value::Null, "{engine}: {offered:?}");
        // A former choice and a deleted service do not count.
        t.call(&setup.ada, "PUT", &format!("{}/promise", one.path), json!({})).await.expect(200);
        assert_eq!(services().await, 1, "{engine}");
        t.call(&setup.ada, "DELETE", &other, Value::Null).await.expect(204);
        assert_eq!(services().await, 0, "{engine}");
    }
}

#[tokio::test]
async fn bad_classes_are_refused() {
    for (engine, db, _location) in engines("promise_bad").await {
        let setup = IdlePortal::on(db).await;
        let (t, operator, path) = (&setup.t, &setup.operator, "/operator/promises");
        let key = [("idempotency-key", "one")];
        let made = t.call_with(operator, "POST", path, gold(), &key).await.expect(201);
        let again = t.call_with(operator, "POST", path, gold(), &key).await.expect(201);
        assert_eq!(made, again, "{engine}");
        t.post(operator, path, gold()).await.problem(409, "promise.exists");
        let late = json!({"within_ms": 800, "good_ppm": 1, "credit_basis_points": 1});
        for (terms, pointer) in [
            (json!({"window": "day"}), "/terms"),
            (json!({"window": "day", "first_token": late}), "/terms/first_token/within_ms"),
        ] {
            let refused = t.post(operator, path, json!({"name": "silver", "terms": terms})).await;
            let body = refused.problem(422, "request.invalid");
            assert_eq!(body["errors"][0]["pointer"], pointer, "{engine}: {body}");
        }
        t.post(&setup.ada, path, gold()).await.problem(404, "object.not_found");
        let change = format!("{path}/{}", made["id"].as_str().unwrap());
        t.call(operator, "PATCH", &change, json!({"name": "Gold"})).await.problem(422, "request.invalid");
        assert_eq!(items(t, operator, path).await, [made], "{engine}");
    }
}

//! Tests of the ends of choices of promises: what they carry, and what organizations see of a stopped offer.

use std::collections::BTreeSet;

use berth_services::loads::Due;
use berth_types::ids::ServiceId;
use serde_json::{Value, json};

use crate::common::{Caller, engines};
use crate::gateways::number;
use crate::idle_portal::HOUR;
use crate::operations::items;
use crate::promises::{LATE_S, Promised, gold, text};
use crate::services::{create, run, service};

impl Promised {
    /// Chooses the class of the service, or ends the choice.
    async fn choose(&self, class: Option<&str>) -> Value {
        let (t, path) = (&self.setup.t, format!("{}/promise", self.path));
        t.call(&self.setup.ada, "PUT", &path, json!({"promise": class})).await.expect(200)
    }
}

#[tokio::test]
async fn a_later_choice_gets_what_an_ended_one_carried() {
    for (engine, db, location) in engines("promise_left").await {
        let one = Promised::new(db, location, gold()).await;
        let t = &one.setup.t;
        let carry = async |table: &str, column: &str| {
            let sql = format!("SELECT CAST(COALESCE(SUM({column}), 0) AS BIGINT) FROM {table}");
            number(t, &sql).await
        };
        let carries = async || {
            [carry("service_promises", "carry_micros").await, carry("services", "promise_carry_micros").await]
        };
        // The credit for lost time is 500 above the charges of the first window.
        one.charge_at(60, 1_000, 1_500).await;
        one.add_use(0, 20, 0, 0).await;
        one.go_to(HOUR + LATE_S);
        one.judge().await;
        assert_eq!(carries().await, [500, 0], "{engine}");
        // The choice ends within its second window, and is deleted with the judgement of that one.
        assert!(one.choose(None).await["chosen"].is_null(), "{engine}");
        one.go_to(2 * HOUR + LATE_S);
        one.judge().await;
        assert_eq!(carries().await, [0, 500], "{engine}: the service keeps it");
        one.choose(Some(&one.class)).await;
        assert_eq!(carries().await, [500, 0], "{engine}: the new choice has it once");

        one.charge_at(3 * HOUR + 60, 1_200, 500).await;
        one.add_use(3, 20, 20, 0).await;
        one.go_to(4 * HOUR + LATE_S);
        one.judge().await;
        let shown = one.shown().await;
        let newest = &shown["windows"][0];
        assert_eq!(newest["evidence"]["charged_micros"], 200, "{engine}: {newest}");
        assert_eq!(newest["credit_micros"], 20, "{engine}: {newest}");
        // A choice that ends before its first window goes at once.
        one.choose(None).await;
        one.choose(Some(&one.class)).await;
        let set = "UPDATE service_promises SET carry_micros = 7 WHERE until_at IS NULL";
        assert_eq!(run(&one.location, set.to_owned()).await, 1, "{engine}");
        one.choose(None).await;
        assert_eq!(carry("services", "promise_carry_micros").await, 7, "{engine}");
    }
}

#[tokio::test]
async fn each_organization_sees_the_end_of_an_offer_that_its_services_had() {
    for (engine, db, location) in engines("promise_ended").await {
        let one = Promised::new(db, location, gold()).await;
        let (setup, t) = (&one.setup, &one.setup.t);
        let other = create(setup, service("letters")).await;
        let chosen = json!({"promise": one.class});
        t.call(&setup.ada, "PUT", &format!("{other}/promise"), chosen.clone()).await.expect(200);
        create(setup, service("without")).await;
        let services = format!("/orgs/{}/services", setup.other);
        let made = t.post(&setup.bob, &services, service("numbers")).await.expect(201);
        let foreign = format!("{services}/{}/promise", made["id"].as_str().unwrap());
        t.call(&setup.bob, "PUT", &foreign, chosen).await.expect(200);
        let board = setup.t.portal.service_loop.board();
        board.take_changed();

        let class = format!("/operator/promises/{}", one.class);
        t.call(&setup.operator, "DELETE", &class, Value::Null).await.expect(204);
        let mut ids = vec![one.id.clone(), other.rsplit('/').next().unwrap().to_owned()];
        ids.push(made["id"].as_str().unwrap().to_owned());
        let expected: BTreeSet<ServiceId> = ids.iter().map(|id| id.parse().unwrap()).collect();
        assert_eq!(board.take_changed(), Due::Some(expected), "{engine}: pages read them again");
        for (caller, org, names) in
            [(&setup.ada, &setup.org, "digits, letters"), (&setup.bob, &setup.other, "numbers")]
        {
            let events = items(t, caller, &format!("/orgs/{org}/audit-events?action=promise.retired")).await;
            let details: Vec<&Value> = events.iter().map(|event| &event["detail"]).collect();
            assert_eq!(details, [&json!(format!("gold: no longer the promise of {names}"))], "{engine}");
        }
        let path = "/operator/audit-events?action=promise.retired";
        let events = items(t, &setup.operator, path).await;
        let own = events.iter().filter(|event| event["detail"] == "gold").count();
        assert_eq!(own, 1, "{engine}: {events:?}");
    }
}

#[tokio::test]
async fn a_viewer_sees_the_windows_of_a_promise_without_money() {
    for (engine, db, location) in engines("promise_viewer").await {
        let one = Promised::new(db, location, gold()).await;
        let t = &one.setup.t;
        let token = json!({"name": "watch", "role": "viewer"});
        let token =
            t.post(&one.setup.ada, &format!("/orgs/{}/tokens", one.setup.org), token).await.expect(201);
        let viewer = Caller::Token(text(&token["secret"]));
        one.charge(10_000, 1_000).await;
        one.add_use(0, 100, 2, 0).await;
        one.go_to(HOUR + LATE_S);
        one.judge().await;
        let promise = format!("{}/promise", one.path);
        let list = format!("{promise}/windows");
        let member = one.shown().await;
        let own = &member["windows"][0];
        assert_eq!(
            (&own["credit_micros"], &own["transfer"].is_string()),
            (&json!(900), &true),
            "{engine}: {own}"
        );
        assert_eq!(member["present"]["evidence"]["charged_micros"], 0, "{engine}: {member}");
        let mut expected = own.clone();
        expected["evidence"].as_object_mut().unwrap().remove("charged_micros");
        for field in ["credit_micros", "transfer"] {
            expected.as_object_mut().unwrap().remove(field);
        }
        let shown = t.get(&viewer, &promise).await.expect(200);
        assert_eq!(shown["windows"], json!([expected]), "{engine}");
        assert!(shown["present"]["evidence"].get("charged_micros").is_none(), "{engine}: {shown}");
        assert_eq!(items(t, &viewer, &list).await, [expected], "{engine}");
        assert_eq!(json!(items(t, &one.setup.ada, &list).await), json!([own]), "{engine}");
    }
}

//! Tests of planned prices, which begin later: their withdrawal before the begin, and its second operator.

use crate::change_requests::second_operator;
use crate::common::{Caller, StoreLocation, TestPortal, engines, job};
use crate::idle_portal::IdlePortal;
use crate::operations::items;
use serde_json::{Value, json};
use sqlx::Connection;

const SLICE: &str = "h100-80gb.1g.10gb";

/// Plans a price of the slice that begins `seconds` from now.
async fn plan(t: &TestPortal, operator: &Caller, per_hour_micros: i64, seconds: i64) {
    let from = t.portal.context.now().plus_seconds(seconds);
    let price = json!({"offering": SLICE, "per_hour_micros": per_hour_micros, "effective_from": from});
    t.post(operator, "/operator/prices", price).await.expect(201);
}

fn address(version: i64) -> String {
    format!("/operator/prices/{SLICE}/{version}")
}

/// The withdrawn versions of the slice's price, newest first.
async fn withdrawn(t: &TestPortal, operator: &Caller) -> Vec<i64> {
    let all = items(t, operator, &format!("/operator/prices?offering={SLICE}")).await;
    let withdrawn = all.iter().filter(|one| one["withdrawn_at"].is_string());
    withdrawn.map(|one| one["version"].as_i64().unwrap()).collect()
}

#[tokio::test]
async fn a_planned_price_is_withdrawn_before_its_begin_alone() {
    for (engine, db, _location) in engines("planned_prices").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        t.add_price_and_credit(&operator, &org, 1_000_000_000).await;
        plan(&t, &operator, 7_200_000, 3_600).await;
        plan(&t, &operator, 10_800_000, 7_200).await;
        let withdraw = async |path: &str| t.call(&operator, "DELETE", path, Value::Null).await;
        t.call(&ada, "DELETE", &address(2), Value::Null).await.problem(404, "object.not_found");
        for unknown in [address(9), address(0), "/operator/prices/rtx/1".to_owned()] {
            withdraw(&unknown).await.problem(404, "object.not_found");
        }
        let answer = withdraw(&address(2)).await.expect(200);
        assert_eq!((&answer["slug"], &answer["price"]["version"]), (&json!(SLICE), &json!(1)), "{engine}");
        // A repetition changes nothing.
        assert_eq!(withdraw(&address(2)).await.expect(200)["price"], answer["price"], "{engine}");
        let log = items(&t, &operator, "/operator/audit-events?action=price.withdrawn").await;
        assert_eq!(log.len(), 1, "{engine}: {log:?}");
        let detail = log[0]["detail"].as_str().unwrap();
        assert!(detail.starts_with("version 2: $7.20 an hour"), "{engine}: {detail}");
        let before: Value = serde_json::from_str(log[0]["before"].as_str().unwrap()).unwrap();
        assert_eq!((&log[0]["subject"], &before["version"]), (&json!(SLICE), &json!(2)), "{engine}");
        let all = items(&t, &operator, &format!("/operator/prices?offering={SLICE}")).await;
        let by: Vec<Option<&str>> = all.iter().map(|one| one["withdrawn_by"].as_str()).collect();
        assert_eq!(by, [None, all[1]["set_by"].as_str(), None], "{engine}: the version stays");

        let order = async || {
            let made = t.post(&ada, &format!("/orgs/{org}/jobs"), job()).await.expect(201);
            let plan = t.post(&ada, &format!("/orgs/{org}/jobs?dry_run=true"), job()).await.expect(200);
            assert_eq!(plan["price_version"], made["price_version"], "{engine}");
            let offers = items(&t, &ada, "/offerings").await;
            let offer = offers.into_iter().find(|one| one["slug"] == SLICE).unwrap();
            assert_eq!(offer["price"]["version"], made["price_version"], "{engine}");
            (made["price_version"].as_i64().unwrap(), made["nano_per_second"].as_i64().unwrap())
        };
        t.clock.advance_s(3_601);
        assert_eq!(order().await, (1, 1_000_000), "{engine}: the withdrawn price never begins");
        withdraw(&address(2)).await.expect(200);
        t.clock.advance_s(3_600);
        assert_eq!(order().await, (3, 3_000_000), "{engine}: the other planned price begins");
        // A price that began is final, also in the moment of its begin.
        plan(&t, &operator, 3_600_000, 10).await;
        t.clock.advance_s(10);
        for begun in [1, 3, 4] {
            let problem = withdraw(&address(begun)).await.problem(422, "request.invalid");
            assert_eq!(problem["errors"][0]["pointer"], "/version", "{engine}: {problem}");
        }
        assert_eq!((order().await.0, withdrawn(&t, &operator).await), (4, vec![2]), "{engine}");
        // The number of a withdrawn price is not given again.
        plan(&t, &operator, 3_600_000, 60).await;
        withdraw(&address(5)).await.expect(200);
        plan(&t, &operator, 3_600_000, 60).await;
        assert_eq!(withdrawn(&t, &operator).await, [5, 2], "{engine}: version 6 is another one");
        let books = t.post(&operator, "/operator/reconciliation", Value::Null).await.expect(200);
        assert_eq!(books["mismatches"], json!([]), "{engine}");
    }
}

#[tokio::test]
async fn planned_prices_are_listed_until_they_begin() {
    for (engine, db, _location) in engines("planned_prices_list").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        t.add_price_and_credit(&operator, &org, 0).await;
        let path = "/operator/prices/planned";
        t.get(&ada, path).await.problem(404, "object.not_found");
        assert!(items(&t, &operator, path).await.is_empty(), "{engine}: the price in effect is not planned");
        let now = t.portal.context.now();
        for from in [7_200, 3_600, 3_600].map(|seconds| now.plus_seconds(seconds)) {
            let price = json!({"offering": SLICE, "per_hour_micros": 7_200_000, "effective_from": from});
            t.post(&operator, "/operator/prices", price).await.expect(201);
        }
        let from = t.portal.context.now().plus_seconds(9_000);
        let whole = json!({"offering": "h100-80gb", "per_hour_micros": 28_800_000, "effective_from": from});
        t.post(&operator, "/operator/prices", whole).await.expect(201);
        let listed = async || {
            let all = items(&t, &operator, path).await;
            let one = |price: &Value| (price["offering"].clone(), price["version"].as_i64().unwrap());
            all.iter().map(one).collect::<Vec<_>>()
        };
        let (whole, slice) = (json!("h100-80gb"), |version: i64| (json!(SLICE), version));
        // Version 3 never begins before the withdrawal of version 4, which has the same begin.
        assert_eq!(listed().await, [(whole.clone(), 1), slice(4), slice(2)], "{engine}");
        let first = items(&t, &operator, path).await.remove(0);
        assert_eq!(
            (&first["per_hour_micros"], &first["effective_from"]),
            (&json!(28_800_000), &json!(from)),
            "{engine}"
        );
        t.call(&operator, "DELETE", &address(4), Value::Null).await.expect(200);
        assert_eq!(listed().await, [(whole.clone(), 1), slice(3), slice(2)], "{engine}");
        t.clock.advance_s(3_600);
        assert_eq!(listed().await, [(whole, 1), slice(2)], "{engine}: version 3 began");
    }
}

#[tokio::test]
async fn concurrent_withdrawals_are_one() {
    for (engine, db, location) in engines("planned_prices_race").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (_, org) = t.tenant("lab").await;
        t.add_price_and_credit(&operator, &org, 0).await;
        plan(&t, &operator, 7_200_000, 3_600).await;
        let path = address(2);
        let all = (0..4).map(|_| t.call(&operator, "DELETE", &path, Value::Null));
        for reply in futures::future::join_all(all).await {
            assert!([200, 503].contains(&reply.status.as_u16()), "{engine}: {}", reply.body);
        }
        let log = items(&t, &operator, "/operator/audit-events?action=price.withdrawn").await;
        assert_eq!((log.len(), withdrawn(&t, &operator).await), (1, vec![2]), "{engine}");
        // Direct SQL cannot undo it.
        for sql in ["UPDATE price_withdrawals SET version = 1", "DELETE FROM price_withdrawals"] {
            let refused = match &location {
                StoreLocation::Sqlite(dir) => {
                    let url = format!("sqlite://{}", dir.path().join("berth.db").display());
                    let mut raw = sqlx::SqliteConnection::connect(&url).await.unwrap();
                    sqlx::query(sql).execute(&mut raw).await.is_err()
                }
                StoreLocation::Postgres(url) => {
                    let mut raw = sqlx::PgConnection::connect(url).await.unwrap();
                    sqlx::query(sql).execute(&mut raw).await.is_err()
                }
            };
            assert!(refused, "{engine}: {sql}");
        }
    }
}

#[tokio::test]
async fn a_quote_never_has_a_withdrawn_price() {
    for (engine, db, _location) in engines("planned_prices_quote").await {
        let setup = IdlePortal::on(db).await;
        let price =
            json!({"offering": "h100-80gb", "per_hour_micros": 1_000_000, "effective_from": setup.at(60)});
        let before = setup.quote(setup.quote_request(1, 1, setup.at(7_200), setup.at(10_800))).await;
        let set = setup.t.post(&setup.operator, "/operator/prices", price).await.expect(201);
        let version = set["price"]["version"].as_i64().unwrap() + 1;
        let path = format!("/operator/prices/h100-80gb/{version}");
        setup.t.call(&setup.operator, "DELETE", &path, Value::Null).await.expect(200);
        setup.t.clock.advance_s(61);
        let after = setup.quote(setup.quote_request(1, 1, setup.at(7_200), setup.at(10_800))).await;
        for field in ["price_version", "nano_per_second", "total_micros"] {
            assert_eq!(after[field], before[field], "{engine} {field}: {after}");
        }
    }
}

#[tokio::test]
async fn the_withdrawal_of_a_price_waits_for_the_second_operator() {
    for (engine, db, _location) in engines("planned_prices_change").await {
        let t = TestPortal::on(db);
        let first = t.operator().await;
        let (_, org) = t.tenant("lab").await;
        t.add_price_and_credit(&first, &org, 0).await;
        let second = second_operator(&t).await;
        for seconds in [3_600, 3_600, 300] {
            plan(&t, &first, 7_200_000, seconds).await;
        }
        let on = json!({"second_operator": true});
        t.call(&first, "PUT", "/operator/change-policy", on).await.expect(200);
        let ask = async |caller: &Caller, version: i64| {
            t.call(caller, "DELETE", &address(version), Value::Null).await.expect(202)
        };
        let approve = async |caller: &Caller, request: &Value| {
            let path = format!("/operator/change-requests/{}/approve", request["id"].as_str().unwrap());
            t.post(caller, &path, Value::Null).await
        };
        let request = ask(&first, 2).await;
        assert_eq!(
            (&request["action"], &request["target"], &request["state"]),
            (&json!("withdraw_price"), &json!(SLICE), &json!("pending")),
            "{engine}"
        );
        assert_eq!(ask(&first, 2).await["id"], request["id"], "{engine}: a repetition");
        let (other, of_second, late) = (ask(&first, 3).await, ask(&second, 2).await, ask(&first, 4).await);
        assert_ne!(other["id"], request["id"], "{engine}: another version");
        approve(&first, &request).await.problem(403, "change_request.own");
        assert_eq!(withdrawn(&t, &first).await, Vec::<i64>::new(), "{engine}: nothing yet");
        let done = approve(&second, &request).await.expect(200);
        assert_eq!(done["state"], "approved", "{engine}");
        assert_eq!(withdrawn(&t, &first).await, [2], "{engine}");
        approve(&first, &of_second).await.problem(409, "change_request.changed");
        t.clock.advance_s(300);
        approve(&second, &late).await.problem(422, "request.invalid");
        assert_eq!(withdrawn(&t, &first).await, [2], "{engine}: a begun price is final");
        approve(&second, &other).await.expect(200);
        assert_eq!(withdrawn(&t, &first).await, [3, 2], "{engine}");
        // A withdrawn price needs no further approval.
        t.call(&first, "DELETE", &address(3), Value::Null).await.expect(200);
    }
}

//! Tests of quotes and reservations: feasibility, visibility and price.

use crate::common::engines;
use crate::idle_portal::{DAY, HOUR, IdlePortal, node};
use berth_store as store;
use berth_types::ids::OrgId;
use berth_types::reservations::Quote;
use berth_types::time::Timestamp;
use futures::FutureExt;
use serde_json::{Value, json};

#[tokio::test]
async fn a_quote_keeps_its_price_and_a_conflict_offers_alternatives() {
    for (engine, db, _location) in engines("quotes").await {
        let setup = IdlePortal::on(db).await;
        let (from, until) = (setup.at(DAY), setup.at(2 * DAY));
        let quote = setup.quote(setup.quote_request(2, 2, from, until)).await;
        // The price is that of four boards for a day at 3.6 units an hour each.
        assert_eq!(
            (&quote["feasible"], &quote["affordable"]),
            (&json!(true), &json!(true)),
            "{engine} {quote}"
        );
        let ms = until.millis_since(from) / 1_000;
        assert_eq!(quote["total_micros"], ms * 4_000, "{engine} {quote}");
        setup.set_price(7_200_000).await;
        let path = format!("/orgs/{}/quotes/{}", setup.org, quote["id"].as_str().unwrap());
        let again = setup.t.get(&setup.ada, &path).await.expect(200);
        assert_eq!(again, quote, "repricing changes nothing");
        let made = setup.confirm(&quote).await.expect(201)["items"][0].clone();
        assert_eq!(
            (&made["state"], &made["total_micros"]),
            (&json!("scheduled"), &quote["total_micros"]),
            "{engine}"
        );
        assert_eq!(made["devices"].as_array().unwrap().len(), 4);
        assert_eq!(setup.balance().await.1, made["held_micros"].as_i64().unwrap());
        setup.confirm(&quote).await.problem(409, "quote.used");

        // Another organization sees a conflict without its owner.
        let ask = setup.quote_request(1, 2, setup.at(DAY + HOUR), setup.at(DAY + 7 * HOUR));
        let refused =
            setup.t.post(&setup.bob, &format!("/orgs/{}/quotes", setup.other), ask).await.expect(201);
        assert_eq!(refused["feasible"], false, "{engine} {refused}");
        assert_eq!(refused["conflicts"][0]["kind"], "reservation");
        assert_eq!(
            (&refused["conflicts"][0]["name"], &refused["conflicts"][0]["reservation"]),
            (&Value::Null, &Value::Null)
        );
        let alternatives = refused["alternatives"].as_array().unwrap();
        let begins = |w: &Value| w["starts_at"].as_str().unwrap().parse::<Timestamp>().unwrap();
        assert!(alternatives.iter().any(|w| begins(w) >= until), "{engine} later: {refused}");
        assert!(alternatives.iter().any(|w| begins(w) < from), "{engine} earlier: {refused}");
        for window in alternatives {
            let ask = setup.quote_request(
                1,
                2,
                begins(window),
                window["ends_at"].as_str().unwrap().parse().unwrap(),
            );
            let free =
                setup.t.post(&setup.bob, &format!("/orgs/{}/quotes", setup.other), ask).await.expect(201);
            assert_eq!(free["feasible"], true, "{engine}: what is offered can be had");
        }
        let body = json!({"quote": refused["id"], "name": "mine"});
        let path = format!("/orgs/{}/reservations", setup.other);
        setup.t.post(&setup.bob, &path, body).await.problem(409, "reservation.taken");
        // The own reservation is named.
        let own =
            setup.quote(setup.quote_request(1, 1, setup.at(DAY + HOUR), setup.at(DAY + 2 * HOUR))).await;
        assert_eq!(own["conflicts"][0]["name"], "training week", "{engine} {own}");

        // Foreign and unknown quotes answer like missing ones; an expired quote is refused.
        let body = json!({"quote": quote["id"], "name": "mine"});
        setup.t.post(&setup.bob, &path, body).await.problem(422, "request.invalid");
        let id = made["id"].as_str().unwrap();
        setup.t.get(&setup.bob, &format!("/orgs/{}/reservations/{id}", setup.other)).await.expect(404);
        setup
            .t
            .post(&setup.bob, &format!("/orgs/{}/reservations/{id}/cancel", setup.other), Value::Null)
            .await
            .expect(404);
        let late = setup.quote(setup.quote_request(1, 1, setup.at(3 * DAY), setup.at(4 * DAY))).await;
        setup.t.clock.advance_s(901);
        setup.confirm(&late).await.problem(409, "quote.expired");
        setup.assert_books_balance().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_confirmations_never_share_a_board() {
    for (engine, db, _location) in engines("crowd").await {
        let setup = IdlePortal::on(db).await;
        let mut quotes = Vec::new();
        for n in 0..20 {
            quotes
                .push(setup.quote(setup.quote_request(1, 1, setup.at(DAY + n), setup.at(DAY + HOUR))).await);
        }
        let all = futures::future::join_all(quotes.iter().map(|q| setup.confirm(q))).await;
        let count = |status: u16| all.iter().filter(|r| r.status.as_u16() == status).count();
        assert_eq!((count(201), count(409)), (4, 16), "{engine}: four boards");
        let page = setup.t.get(&setup.ada, &format!("/orgs/{}/reservations", setup.org)).await.expect(200);
        let mut boards: Vec<String> = page["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|r| r["devices"][0]["gpu_uuid"].to_string())
            .collect();
        boards.sort();
        boards.dedup();
        assert_eq!(boards.len(), 4, "{engine} {page}");
        setup.assert_books_balance().await;
    }
}

/// A refused confirmation must not book in the engine: its booking would refuse those of others meanwhile.
#[tokio::test]
async fn credit_limits_and_quotes_are_checked_before_the_devices() {
    for (engine, db, _location) in engines("checked_first").await {
        let setup = IdlePortal::on(db).await;
        let (t, operator) = (&setup.t, &setup.operator);
        let (eve, poor) = t.tenant("poor").await;
        let ask = setup.quote_request(2, 2, setup.at(HOUR), setup.at(2 * HOUR));
        let quote = t.post(&eve, &format!("/orgs/{poor}/quotes"), ask).await.expect(201);
        assert_eq!(quote["feasible"], true, "{engine}");
        let own = setup.quote(setup.quote_request(2, 2, setup.at(HOUR), setup.at(2 * HOUR))).await;
        let own_path = format!("/orgs/{}/reservations", setup.org);
        let first = json!({"quote": own["id"], "name": "train"});
        let taken = t.post(&setup.ada, &own_path, first.clone()).await.expect(201);
        // The devices are not free any more, and the first reason is the credit.
        let path = format!("/orgs/{poor}/reservations");
        let body = json!({"quote": quote["id"], "name": "mine"});
        t.post(&eve, &path, body.clone()).await.problem(402, "funds.insufficient");
        let quota = format!("/operator/orgs/{poor}/quota");
        t.call(operator, "PUT", &quota, json!({"reserved_boards_milli": 1_000})).await.expect(200);
        t.post(&eve, &path, body).await.problem(403, "quota.exceeded");
        // A second use of a quote is no conflict with the first one.
        t.post(&setup.ada, &own_path, first).await.problem(409, "quote.used");
        // The same holds for an extension.
        setup.reserve(2, 2, setup.at(2 * HOUR), setup.at(3 * HOUR)).await;
        let quota = format!("/operator/orgs/{}/quota", setup.org);
        t.call(operator, "PUT", &quota, json!({"reserved_boards_milli": 4_000})).await.expect(200);
        let extend = format!("{own_path}/{}/extend", taken["items"][0]["id"].as_str().unwrap());
        t.post(&setup.ada, &extend, json!({"ends_at": setup.at(150 * 60)}))
            .await
            .problem(403, "quota.exceeded");
    }
}

#[tokio::test]
async fn cancellation_and_return_cost_the_shown_fee() {
    for (engine, db, _location) in engines("cancel").await {
        let mut setup = IdlePortal::on(db).await;
        setup.set_policy(
            json!({"cancel_free_before_s": 2 * HOUR, "late_cancel_percent": 30, "early_release_percent": 10}),
        )
        .await;
        let before = setup.balance().await.0;
        let early = setup.reserve(1, 1, setup.at(5 * HOUR), setup.at(6 * HOUR)).await;
        assert_eq!(early["cancel_fee_micros"], 0, "{engine}");
        assert_eq!(setup.cancel(&early).await.expect(200)["state"], "cancelled");
        assert_eq!(setup.balance().await, (before, 0), "{engine}");
        setup.cancel(&early).await.expect(200);
        let late = setup.reserve(1, 1, setup.at(HOUR), setup.at(2 * HOUR)).await;
        let fee = late["total_micros"].as_i64().unwrap() * 30 / 100;
        assert_eq!(late["cancel_fee_micros"], fee, "{engine}: shown before it is asked for");
        // New terms do not apply to a confirmed reservation.
        setup.set_policy(json!({"late_cancel_percent": 100})).await;
        setup.cancel(&late).await.expect(200);
        assert_eq!(setup.balance().await, (before - fee, 0), "{engine}");
        setup.set_policy(json!({"early_release_percent": 10})).await;
        let r = setup.reserve(1, 1, setup.at(0), setup.at(10 * HOUR)).await;
        for seconds in [1, 5 * HOUR] {
            setup.let_time_pass(seconds).await;
        }
        let running = setup.reservation(&r).await;
        assert_eq!(running["state"], "active", "{engine}");
        let done = setup.cancel(&r).await.expect(200);
        assert_eq!((&done["state"], &done["cause"]), (&json!("ended"), &json!("released")), "{engine}");
        let (total, posted) = (r["total_micros"].as_i64().unwrap(), done["posted_micros"].as_i64().unwrap());
        // Half of the window was used, and the fee is a tenth of the other half.
        assert!((total * 55 / 100..total * 56 / 100).contains(&posted), "{engine} {total} {posted}");
        assert_eq!(setup.balance().await.1, 0);
        // The boards are free at once.
        setup.reserve(2, 2, setup.at(0), setup.at(HOUR)).await;
        setup.assert_books_balance().await;
    }
}

#[tokio::test]
async fn extensions_and_repeats_respect_conflicts_quota_and_credit() {
    for (engine, db, _location) in engines("extend").await {
        let setup = IdlePortal::on(db).await;
        let (t, ada, operator) = (&setup.t, &setup.ada, &setup.operator);
        let first = setup.reserve(2, 2, setup.at(HOUR), setup.at(2 * HOUR)).await;
        let next = setup.reserve(2, 2, setup.at(3 * HOUR), setup.at(4 * HOUR)).await;
        let path = format!("/orgs/{}/reservations/{}/extend", setup.org, first["id"].as_str().unwrap());
        let until = |t: Timestamp| json!({"ends_at": t});
        t.post(ada, &path, until(setup.at(3 * HOUR + 60))).await.problem(409, "reservation.taken");
        t.post(ada, &path, until(setup.at(HOUR))).await.problem(422, "request.invalid");
        t.post(ada, &path, until(setup.at(3_652 * DAY))).await.problem(422, "request.invalid");
        let begin = next["starts_at"].as_str().unwrap().parse().unwrap();
        let longer = t.post(ada, &path, until(begin)).await.expect(200);
        assert_eq!(longer["ends_at"], next["starts_at"], "{engine}");
        // The quota applies to extensions too.
        let quota = format!("/operator/orgs/{}/quota", setup.org);
        t.call(operator, "PUT", &quota, json!({"reserved_boards_milli": 5_000})).await.expect(200);
        let after = format!("/orgs/{}/reservations/{}/extend", setup.org, next["id"].as_str().unwrap());
        let other = setup.reserve(1, 1, setup.at(5 * HOUR), setup.at(6 * HOUR)).await;
        t.post(ada, &after, until(setup.at(5 * HOUR + 60))).await.problem(409, "reservation.taken");
        t.call(operator, "PUT", &quota, json!({"reserved_boards_milli": 3_999})).await.expect(200);
        t.post(ada, &after, until(setup.at(4 * HOUR + 60))).await.problem(403, "quota.exceeded");
        t.call(operator, "DELETE", &quota, Value::Null).await.expect(200);
        setup.cancel(&other).await.expect(200);
        let total = longer["total_micros"].as_i64().unwrap();
        assert!(
            total > first["total_micros"].as_i64().unwrap() && longer["held_micros"] == total,
            "{engine}"
        );

        // A weekly repetition is confirmed completely or not at all.
        let mut weekly = setup.quote_request(1, 1, setup.at(DAY), setup.at(DAY + HOUR));
        weekly["repeat"] = json!({"every": "week", "count": 3});
        let quote = setup.quote(weekly.clone()).await;
        assert_eq!(
            (quote["windows"].as_array().unwrap().len(), &quote["feasible"]),
            (3, &json!(true)),
            "{engine}"
        );
        let series = setup.confirm(&quote).await.expect(201);
        let items = series["items"].as_array().unwrap();
        assert_eq!(items.len(), 3, "{engine}");
        assert!(items.iter().all(|r| r["series"] == items[0]["id"]), "{engine}");
        let sum: i64 = items.iter().map(|r| r["total_micros"].as_i64().unwrap()).sum();
        assert_eq!(quote["total_micros"], sum, "{engine}");

        // The quota limits simultaneous reserved boards.
        let quota = format!("/operator/orgs/{}/quota", setup.org);
        t.call(operator, "PUT", &quota, json!({"reserved_boards_milli": 4_000})).await.expect(200);
        let at = |n: i64| setup.quote_request(2, 1, setup.at(10 * DAY + n), setup.at(10 * DAY + HOUR));
        setup.confirm(&setup.quote(at(0)).await).await.expect(201);
        let small = json!({"reserved_boards_milli": 3_000});
        t.call(operator, "PUT", &quota, small).await.expect(200);
        let beyond = setup.quote(at(1)).await;
        assert_eq!(beyond["feasible"], false, "{engine}");
        assert!(
            beyond["refusals"][0].as_str().unwrap().contains("Limit of reserved boards: 3."),
            "{engine} {beyond}"
        );
        setup.confirm(&beyond).await.problem(403, "quota.exceeded");

        // A price beyond the balance is refused.
        setup.set_price(1_000_000_000_000).await;
        let dear = setup.quote(setup.quote_request(1, 1, setup.at(20 * DAY), setup.at(21 * DAY))).await;
        assert_eq!((&dear["feasible"], &dear["affordable"]), (&json!(true), &json!(false)), "{engine}");
        setup.confirm(&dear).await.problem(402, "funds.insufficient");
        setup.assert_books_balance().await;
    }
}

#[tokio::test]
async fn invalid_windows_and_sizes_are_refused_at_their_fields() {
    let setup = IdlePortal::on(
        crate::common::new_sqlite(&tempfile::tempdir().unwrap().keep().join("berth.db")).await,
    )
    .await;
    let path = format!("/orgs/{}/quotes", setup.org);
    let with = |pointer: &str, value: Value| {
        let mut body = setup.quote_request(1, 1, setup.at(HOUR), setup.at(2 * HOUR));
        body[pointer] = value;
        body
    };
    for (body, pointer) in [
        (with("nodes", json!(0)), "/nodes"),
        (with("nodes", json!(1_000_000_000)), "/nodes"),
        (with("gpus_per_node", json!(0)), "/gpus_per_node"),
        (with("starts_at", json!(setup.at(-DAY))), "/starts_at"),
        (with("ends_at", json!(setup.at(1_000 * 366 * DAY))), "/ends_at"),
        (with("ends_at", json!(setup.at(HOUR))), "/ends_at"),
        (with("offering", json!("rtx-9090")), "/offering"),
        (with("repeat", json!({"every": "day", "count": 1_000})), "/repeat/count"),
    ] {
        let problem = setup.t.post(&setup.ada, &path, body).await.problem(422, "request.invalid");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
    }
    setup
        .t
        .post(&setup.ada, &path, with("starts_at", json!("tomorrow")))
        .await
        .problem(422, "request.invalid");
    // Empty windows, windows below a minute and windows of ten years are refused for every caller.
    let begin = setup.at(HOUR);
    for until in [begin, begin.plus_seconds(59), begin.plus_seconds(3_652 * DAY)] {
        let plan = json!({"node": node(1), "starts_at": begin, "ends_at": until, "reason": "New driver"});
        let ask = setup.quote_request(1, 1, begin, until);
        for (caller, at, body) in
            [(&setup.ada, path.as_str(), ask), (&setup.operator, "/operator/reservations", plan)]
        {
            let problem = setup.t.post(caller, at, body).await.problem(422, "request.invalid");
            assert_eq!(problem["errors"][0]["pointer"], "/ends_at", "{until} {problem}");
        }
    }
    let never = setup
        .t
        .post(&setup.ada, &path, setup.quote_request(3, 2, setup.at(HOUR), setup.at(2 * HOUR)))
        .await
        .expect(201);
    assert!(never["refusals"][0].as_str().unwrap().contains("even without other use"), "{never}");
    for bad in [
        json!({"late_cancel_percent": 101}),
        json!({"quote_valid_s": 0}),
        json!({"cancel_free_before_s": -1}),
    ] {
        let mut whole = json!({
            "cancel_free_before_s": 0, "late_cancel_percent": 0, "early_release_percent": 0, "quote_valid_s": 60,
        });
        whole.as_object_mut().unwrap().extend(bad.as_object().unwrap().clone());
        setup
            .t
            .call(&setup.operator, "PUT", "/operator/reservation-policy", whole.clone())
            .await
            .problem(422, "request.invalid");
        setup.t.call(&setup.ada, "PUT", "/operator/reservation-policy", whole).await.expect(404);
    }
    let calendar = format!("/orgs/{}/calendar", setup.org);
    setup
        .t
        .get(&setup.ada, &format!("{calendar}?from={}&until={}", setup.at(DAY), setup.at(0)))
        .await
        .problem(400, "request.malformed");
    setup.t.get(&setup.ada, &calendar).await.problem(400, "request.malformed");
}

#[tokio::test]
async fn an_idempotency_key_reserves_extends_and_cancels_once() {
    for (engine, db, _location) in engines("reservation_keys").await {
        let setup = IdlePortal::on(db).await;
        let quote = setup.quote(setup.quote_request(1, 1, setup.at(2 * DAY), setup.at(2 * DAY + HOUR))).await;
        let path = format!("/orgs/{}/reservations", setup.org);
        let ask = async |path: &str, body: Value| {
            setup.t.call_with(&setup.ada, "POST", path, body, &[("idempotency-key", path)]).await
        };
        let body = || json!({"quote": quote["id"], "name": "training week"});
        let made = ask(&path, body()).await.expect(201);
        let id = made["items"][0]["id"].as_str().unwrap();
        assert_eq!(ask(&path, body()).await.expect(201), made, "{engine}");
        setup.t.lose_answer(&setup.org, &path, &json!([id]).to_string()).await;
        assert_eq!(ask(&path, body()).await.expect(201)["items"][0]["id"], id, "{engine}");
        // Another request with the same quote is refused.
        setup.confirm(&quote).await.problem(409, "quote.used");
        let held = setup.balance().await.1;

        let ends_at = setup.at(2 * DAY + 3 * HOUR);
        let extend = format!("{path}/{id}/extend");
        let longer = ask(&extend, json!({"ends_at": ends_at})).await.expect(200);
        setup.t.lose_answer(&setup.org, &extend, "").await;
        assert_eq!(ask(&extend, json!({"ends_at": ends_at})).await.expect(200), longer, "{engine}");
        assert!(setup.balance().await.1 > held, "{engine}");
        assert_eq!(longer["held_micros"], setup.balance().await.1, "{engine}");

        let cancel = format!("{path}/{id}/cancel");
        ask(&cancel, Value::Null).await.expect(200);
        setup.t.lose_answer(&setup.org, &cancel, "").await;
        assert_eq!(ask(&cancel, Value::Null).await.expect(200)["state"], "cancelled", "{engine}");
        assert_eq!(setup.balance().await.1, 0, "{engine}");
        setup.assert_books_balance().await;
    }
}

#[tokio::test]
async fn a_disconnected_node_takes_only_later_reservations() {
    for (engine, db, _location) in engines("reservations_away").await {
        let setup = IdlePortal::on(db).await;
        let soon = setup.quote(setup.quote_request(2, 2, setup.at(0), setup.at(HOUR))).await;
        assert_eq!(soon["feasible"], true, "{engine} {soon}");
        // Simulates a restarted portal before the reconnection of node 2.
        setup.t.portal.context.live.close_session(node(2));
        let path = format!("/operator/nodes/{}", node(2));
        setup.t.call(&setup.operator, "PATCH", &path, json!({"cordoned": false})).await.expect(200);
        let away = "1 suitable node is not connected. Try again in a moment, or choose a start more than a minute ahead.";
        let refused = setup.quote(setup.quote_request(2, 2, setup.at(0), setup.at(HOUR))).await;
        assert_eq!((&refused["feasible"], &refused["refusals"]), (&json!(false), &json!([away])), "{engine}");
        let problem = setup.confirm(&soon).await.problem(409, "reservation.taken");
        assert_eq!(problem["detail"], format!("{away} Nothing was reserved."), "{engine}");
        setup.reserve(2, 2, setup.at(HOUR), setup.at(2 * HOUR)).await;
        // A later conflict is a real one.
        let late = setup.quote(setup.quote_request(2, 2, setup.at(HOUR), setup.at(2 * HOUR))).await;
        assert_eq!((&late["feasible"], &late["refusals"]), (&json!(false), &Value::Null), "{engine} {late}");
        setup.assert_books_balance().await;
    }
}

#[tokio::test]
async fn the_open_quotes_of_an_organization_have_a_number() {
    for (engine, db, _location) in engines("quote_number").await {
        let setup = IdlePortal::on(db).await;
        let ask = || setup.quote_request(1, 1, setup.at(DAY), setup.at(2 * DAY));
        let first: Quote = serde_json::from_value(setup.quote(ask()).await).unwrap();
        let expires_at = first.expires_at;
        let org: OrgId = setup.org.parse().unwrap();
        let context = setup.t.portal.context.clone();
        let fill = setup.t.portal.context.db.write(move |tx| {
            let (first, context) = (first.clone(), context.clone());
            async move {
                let now = context.now();
                for _ in 1..1_000 {
                    let quote = Quote { id: context.new_id(now), ..first.clone() };
                    store::reservations::insert_quote(tx, org, &quote, "Ada", now).await?;
                }
                Ok(())
            }
            .boxed()
        });
        fill.await.unwrap();
        let path = format!("/orgs/{}/quotes", setup.org);
        setup.t.post(&setup.ada, &path, ask()).await.problem(429, "request.throttled");
        let other = format!("/orgs/{}/quotes", setup.other);
        setup.t.post(&setup.bob, &other, ask()).await.expect(201);
        let left_s = expires_at.millis_since(setup.t.portal.context.now()) / 1_000;
        setup.t.clock.advance_s(left_s + 2);
        let again = setup.t.post(&setup.ada, &path, ask()).await;
        assert_eq!(again.status.as_u16(), 201, "{engine}: {}", again.body);
    }
}

//! Quotes and reservations: what is promised, to whom, and for how much.

use crate::common::engines;
use crate::harbour::{DAY, HOUR, Harbour, node};
use berth_store::Db;
use berth_types::time::Timestamp;
use serde_json::{Value, json};

#[tokio::test]
async fn a_quote_keeps_its_price_and_a_refusal_names_the_way_out() {
    for (engine, db, _place) in engines("quotes").await {
        let h = Harbour::on(db).await;
        let (from, until) = (h.at(DAY), h.at(2 * DAY));
        let quote = h.quote(h.ask(2, 2, from, until)).await;
        // Four boards for a day, at one unit an hour each.
        assert_eq!(
            (&quote["feasible"], &quote["affordable"]),
            (&json!(true), &json!(true)),
            "{engine} {quote}"
        );
        let ms = until.millis_since(from) / 1_000;
        assert_eq!(quote["total_micros"], ms * 4_000, "{engine} {quote}");
        h.price(7_200_000).await;
        let path = format!("/orgs/{}/quotes/{}", h.org, quote["id"].as_str().unwrap());
        let again = h.t.get(&h.ada, &path).await.expect(200);
        assert_eq!(again, quote, "repricing changes nothing");
        let made = h.confirm(&quote).await.expect(201)["items"][0].clone();
        assert_eq!(
            (&made["state"], &made["total_micros"]),
            (&json!("scheduled"), &quote["total_micros"]),
            "{engine}"
        );
        assert_eq!(made["devices"].as_array().unwrap().len(), 4);
        assert_eq!(h.balance().await.1, made["held_micros"].as_i64().unwrap());
        h.confirm(&quote).await.problem(409, "quote.used");

        // Another tenant wants the same time: it learns that something is there, not whose.
        let ask = h.ask(1, 2, h.at(DAY + HOUR), h.at(DAY + 7 * HOUR));
        let refused = h.t.post(&h.bob, &format!("/orgs/{}/quotes", h.other), ask).await.expect(201);
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
            let ask = h.ask(1, 2, begins(window), window["ends_at"].as_str().unwrap().parse().unwrap());
            let free = h.t.post(&h.bob, &format!("/orgs/{}/quotes", h.other), ask).await.expect(201);
            assert_eq!(free["feasible"], true, "{engine}: what is offered can be had");
        }
        let body = json!({"quote": refused["id"], "name": "mine"});
        let path = format!("/orgs/{}/reservations", h.other);
        h.t.post(&h.bob, &path, body).await.problem(409, "reservation.taken");
        // Our own are named.
        let own = h.quote(h.ask(1, 1, h.at(DAY + HOUR), h.at(DAY + 2 * HOUR))).await;
        assert_eq!(own["conflicts"][0]["name"], "training week", "{engine} {own}");

        // Foreign and unknown ones do not exist; an expired one is refused.
        let body = json!({"quote": quote["id"], "name": "mine"});
        h.t.post(&h.bob, &path, body).await.problem(422, "request.invalid");
        let id = made["id"].as_str().unwrap();
        h.t.get(&h.bob, &format!("/orgs/{}/reservations/{id}", h.other)).await.expect(404);
        h.t.post(&h.bob, &format!("/orgs/{}/reservations/{id}/cancel", h.other), Value::Null)
            .await
            .expect(404);
        let late = h.quote(h.ask(1, 1, h.at(3 * DAY), h.at(4 * DAY))).await;
        h.t.clock.advance_s(901);
        h.confirm(&late).await.problem(409, "quote.expired");
        h.books_are_right().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_at_once_never_share_a_board() {
    for (engine, db, _place) in engines("crowd").await {
        let h = Harbour::on(db).await;
        let mut quotes = Vec::new();
        for n in 0..20 {
            quotes.push(h.quote(h.ask(1, 1, h.at(DAY + n), h.at(DAY + HOUR))).await);
        }
        let all = futures::future::join_all(quotes.iter().map(|q| h.confirm(q))).await;
        let of = |status: u16| all.iter().filter(|r| r.status.as_u16() == status).count();
        assert_eq!((of(201), of(409)), (4, 16), "{engine}: four boards");
        let page = h.t.get(&h.ada, &format!("/orgs/{}/reservations", h.org)).await.expect(200);
        let mut boards: Vec<String> = page["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|r| r["devices"][0]["gpu_uuid"].to_string())
            .collect();
        boards.sort();
        boards.dedup();
        assert_eq!(boards.len(), 4, "{engine} {page}");
        h.books_are_right().await;
    }
}

#[tokio::test]
async fn taking_back_costs_what_was_shown() {
    for (engine, db, _place) in engines("cancel").await {
        let mut h = Harbour::on(db).await;
        h.policy(
            json!({"cancel_free_before_s": 2 * HOUR, "late_cancel_percent": 30, "early_release_percent": 10}),
        )
        .await;
        let before = h.balance().await.0;
        let early = h.reserve(1, 1, h.at(5 * HOUR), h.at(6 * HOUR)).await;
        assert_eq!(early["cancel_fee_micros"], 0, "{engine}");
        assert_eq!(h.cancel(&early).await.expect(200)["state"], "cancelled");
        assert_eq!(h.balance().await, (before, 0), "{engine}");
        h.cancel(&early).await.expect(200);
        let late = h.reserve(1, 1, h.at(HOUR), h.at(2 * HOUR)).await;
        let fee = late["total_micros"].as_i64().unwrap() * 30 / 100;
        assert_eq!(late["cancel_fee_micros"], fee, "{engine}: shown before it is asked for");
        // New terms are not for what was confirmed under the old ones.
        h.policy(json!({"late_cancel_percent": 100})).await;
        h.cancel(&late).await.expect(200);
        assert_eq!(h.balance().await, (before - fee, 0), "{engine}");
        h.policy(json!({"early_release_percent": 10})).await;
        let r = h.reserve(1, 1, h.at(0), h.at(10 * HOUR)).await;
        h.pass(5 * HOUR).await;
        let running = h.reservation(&r).await;
        assert_eq!(running["state"], "active", "{engine}");
        let done = h.cancel(&r).await.expect(200);
        assert_eq!((&done["state"], &done["cause"]), (&json!("ended"), &json!("released")), "{engine}");
        let (total, posted) = (r["total_micros"].as_i64().unwrap(), done["posted_micros"].as_i64().unwrap());
        // Half of it was used, and a tenth of the other half is kept.
        assert!((total * 55 / 100..total * 56 / 100).contains(&posted), "{engine} {total} {posted}");
        assert_eq!(h.balance().await.1, 0);
        // The board is free again at once.
        h.reserve(2, 2, h.at(0), h.at(HOUR)).await;
        h.books_are_right().await;
    }
}

#[tokio::test]
async fn longer_again_and_again_and_within_limits() {
    for (engine, db, _place) in engines("extend").await {
        let h = Harbour::on(db).await;
        let first = h.reserve(2, 2, h.at(HOUR), h.at(2 * HOUR)).await;
        let next = h.reserve(2, 2, h.at(3 * HOUR), h.at(4 * HOUR)).await;
        let path = format!("/orgs/{}/reservations/{}/extend", h.org, first["id"].as_str().unwrap());
        let until = |t: Timestamp| json!({"ends_at": t});
        h.t.post(&h.ada, &path, until(h.at(3 * HOUR + 60))).await.problem(409, "reservation.taken");
        h.t.post(&h.ada, &path, until(h.at(HOUR))).await.problem(422, "request.invalid");
        h.t.post(&h.ada, &path, until(h.at(3_652 * DAY))).await.problem(422, "request.invalid");
        let longer =
            h.t.post(&h.ada, &path, until(next["starts_at"].as_str().unwrap().parse().unwrap()))
                .await
                .expect(200);
        assert_eq!(longer["ends_at"], next["starts_at"], "{engine}");
        // Longer is within limits too.
        let quota = format!("/operator/orgs/{}/quota", h.org);
        h.t.call(&h.operator, "PUT", &quota, json!({"reserved_boards_milli": 4_000})).await.expect(200);
        let after = format!("/orgs/{}/reservations/{}/extend", h.org, next["id"].as_str().unwrap());
        let other = h.reserve(1, 1, h.at(5 * HOUR), h.at(6 * HOUR)).await;
        h.t.post(&h.ada, &after, until(h.at(5 * HOUR + 60))).await.problem(409, "reservation.taken");
        h.t.call(&h.operator, "PUT", &quota, json!({"reserved_boards_milli": 3_999})).await.expect(200);
        h.t.post(&h.ada, &after, until(h.at(4 * HOUR + 60))).await.problem(403, "quota.exceeded");
        h.t.call(&h.operator, "DELETE", &quota, Value::Null).await.expect(200);
        h.cancel(&other).await.expect(200);
        let total = longer["total_micros"].as_i64().unwrap();
        assert!(
            total > first["total_micros"].as_i64().unwrap() && longer["held_micros"] == total,
            "{engine}"
        );

        // Every week, all or none.
        let mut weekly = h.ask(1, 1, h.at(DAY), h.at(DAY + HOUR));
        weekly["repeat"] = json!({"every": "week", "count": 3});
        let quote = h.quote(weekly.clone()).await;
        assert_eq!(
            (quote["windows"].as_array().unwrap().len(), &quote["feasible"]),
            (3, &json!(true)),
            "{engine}"
        );
        let series = h.confirm(&quote).await.expect(201);
        let items = series["items"].as_array().unwrap();
        assert_eq!(items.len(), 3, "{engine}");
        assert!(items.iter().all(|r| r["series"] == items[0]["id"]), "{engine}");
        let sum: i64 = items.iter().map(|r| r["total_micros"].as_i64().unwrap()).sum();
        assert_eq!(quote["total_micros"], sum, "{engine}");

        // The limit of what may be reserved at one time.
        let quota = format!("/operator/orgs/{}/quota", h.org);
        h.t.call(&h.operator, "PUT", &quota, json!({"reserved_boards_milli": 4_000})).await.expect(200);
        let at = |n: i64| h.ask(2, 1, h.at(10 * DAY + n), h.at(10 * DAY + HOUR));
        h.confirm(&h.quote(at(0)).await).await.expect(201);
        let small = json!({"reserved_boards_milli": 3_000});
        h.t.call(&h.operator, "PUT", &quota, small).await.expect(200);
        let beyond = h.quote(at(1)).await;
        assert_eq!(beyond["feasible"], false, "{engine}");
        assert!(
            beyond["refusals"][0].as_str().unwrap().contains("may have 3 whole boards"),
            "{engine} {beyond}"
        );
        h.confirm(&beyond).await.problem(403, "quota.exceeded");

        // Not a micro more than there is.
        h.price(1_000_000_000_000).await;
        let dear = h.quote(h.ask(1, 1, h.at(20 * DAY), h.at(21 * DAY))).await;
        assert_eq!((&dear["feasible"], &dear["affordable"]), (&json!(true), &json!(false)), "{engine}");
        h.confirm(&dear).await.problem(402, "funds.insufficient");
        h.books_are_right().await;
    }
}

#[tokio::test]
async fn absurd_windows_and_shapes_are_refused_at_their_fields() {
    let h =
        Harbour::on(Db::sqlite(&tempfile::tempdir().unwrap().keep().join("berth.db")).await.unwrap()).await;
    let path = format!("/orgs/{}/quotes", h.org);
    let with = |pointer: &str, value: Value| {
        let mut body = h.ask(1, 1, h.at(HOUR), h.at(2 * HOUR));
        body[pointer] = value;
        body
    };
    for (body, pointer) in [
        (with("nodes", json!(0)), "/nodes"),
        (with("nodes", json!(1_000_000_000)), "/nodes"),
        (with("gpus_per_node", json!(0)), "/gpus_per_node"),
        (with("starts_at", json!(h.at(-DAY))), "/starts_at"),
        (with("ends_at", json!(h.at(1_000 * 366 * DAY))), "/ends_at"),
        (with("ends_at", json!(h.at(HOUR))), "/ends_at"),
        (with("offering", json!("rtx-9090")), "/offering"),
        (with("repeat", json!({"every": "day", "count": 1_000})), "/repeat/count"),
    ] {
        let problem = h.t.post(&h.ada, &path, body).await.problem(422, "request.invalid");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
    }
    h.t.post(&h.ada, &path, with("starts_at", json!("tomorrow"))).await.problem(422, "request.invalid");
    // No time at all, less than a minute, and ten years: whoever asks for it.
    let begin = h.at(HOUR);
    for until in [begin, begin.plus_seconds(59), begin.plus_seconds(3_652 * DAY)] {
        let plan = json!({"node": node(1), "starts_at": begin, "ends_at": until, "reason": "New driver"});
        let ask = h.ask(1, 1, begin, until);
        for (who, at, body) in [(&h.ada, path.as_str(), ask), (&h.operator, "/operator/reservations", plan)] {
            let problem = h.t.post(who, at, body).await.problem(422, "request.invalid");
            assert_eq!(problem["errors"][0]["pointer"], "/ends_at", "{until} {problem}");
        }
    }
    let never = h.t.post(&h.ada, &path, h.ask(3, 2, h.at(HOUR), h.at(2 * HOUR))).await.expect(201);
    assert!(never["refusals"][0].as_str().unwrap().contains("even when it is empty"), "{never}");
    for bad in [
        json!({"late_cancel_percent": 101}),
        json!({"quote_valid_s": 0}),
        json!({"cancel_free_before_s": -1}),
    ] {
        let mut whole = json!({
            "cancel_free_before_s": 0, "late_cancel_percent": 0, "early_release_percent": 0, "quote_valid_s": 60,
        });
        whole.as_object_mut().unwrap().extend(bad.as_object().unwrap().clone());
        h.t.call(&h.operator, "PUT", "/operator/reservation-policy", whole.clone())
            .await
            .problem(422, "request.invalid");
        h.t.call(&h.ada, "PUT", "/operator/reservation-policy", whole).await.expect(404);
    }
    let calendar = format!("/orgs/{}/calendar", h.org);
    h.t.get(&h.ada, &format!("{calendar}?from={}&until={}", h.at(DAY), h.at(0)))
        .await
        .problem(400, "request.malformed");
    h.t.get(&h.ada, &calendar).await.problem(400, "request.malformed");
}

#[tokio::test]
async fn a_key_reserves_extends_and_cancels_once() {
    for (engine, db, _place) in engines("reservation_keys").await {
        let h = Harbour::on(db).await;
        let quote = h.quote(h.ask(1, 1, h.at(2 * DAY), h.at(2 * DAY + HOUR))).await;
        let path = format!("/orgs/{}/reservations", h.org);
        let ask = async |path: &str, body: Value| {
            h.t.call_with(&h.ada, "POST", path, body, &[("idempotency-key", path)]).await
        };
        let body = || json!({"quote": quote["id"], "name": "training week"});
        let made = ask(&path, body()).await.expect(201);
        let id = made["items"][0]["id"].as_str().unwrap();
        assert_eq!(ask(&path, body()).await.expect(201), made, "{engine}");
        h.t.lose_answer(&h.org, &path, id).await;
        assert_eq!(ask(&path, body()).await.expect(201)["items"][0]["id"], id, "{engine}");
        // Another key with the same quote is another request.
        h.confirm(&quote).await.problem(409, "quote.used");
        let held = h.balance().await.1;

        let ends_at = h.at(2 * DAY + 3 * HOUR);
        let extend = format!("{path}/{id}/extend");
        let longer = ask(&extend, json!({"ends_at": ends_at})).await.expect(200);
        h.t.lose_answer(&h.org, &extend, "").await;
        assert_eq!(ask(&extend, json!({"ends_at": ends_at})).await.expect(200), longer, "{engine}");
        assert!(h.balance().await.1 > held, "{engine}");
        assert_eq!(longer["held_micros"], h.balance().await.1, "{engine}");

        let cancel = format!("{path}/{id}/cancel");
        ask(&cancel, Value::Null).await.expect(200);
        h.t.lose_answer(&h.org, &cancel, "").await;
        assert_eq!(ask(&cancel, Value::Null).await.expect(200)["state"], "cancelled", "{engine}");
        assert_eq!(h.balance().await.1, 0, "{engine}");
        h.books_are_right().await;
    }
}

#[tokio::test]
async fn a_node_that_is_not_connected_takes_reservations_for_later() {
    for (engine, db, _place) in engines("reservations_away").await {
        let h = Harbour::on(db).await;
        let soon = h.quote(h.ask(2, 2, h.at(0), h.at(HOUR))).await;
        assert_eq!(soon["feasible"], true, "{engine} {soon}");
        // The portal was started anew, and node 2 has not come back yet.
        h.t.portal.context.live.close_session(node(2));
        let path = format!("/operator/nodes/{}", node(2));
        h.t.call(&h.operator, "PATCH", &path, json!({"cordoned": false})).await.expect(200);
        let away = "1 node that could hold this is not connected. Try again in a moment, or choose a begin that is more than a minute ahead.";
        let refused = h.quote(h.ask(2, 2, h.at(0), h.at(HOUR))).await;
        assert_eq!((&refused["feasible"], &refused["refusals"]), (&json!(false), &json!([away])), "{engine}");
        let problem = h.confirm(&soon).await.problem(409, "reservation.taken");
        assert_eq!(problem["detail"], format!("{away} Nothing was reserved."), "{engine}");
        h.reserve(2, 2, h.at(HOUR), h.at(2 * HOUR)).await;
        // Then somebody was faster indeed.
        let late = h.quote(h.ask(2, 2, h.at(HOUR), h.at(2 * HOUR))).await;
        assert_eq!((&late["feasible"], &late["refusals"]), (&json!(false), &Value::Null), "{engine} {late}");
        h.books_are_right().await;
    }
}

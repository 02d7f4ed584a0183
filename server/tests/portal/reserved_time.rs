//! What time does to reservations: what is charged as it passes, what is given back, and clocks set back.

use crate::common::{engines, job};
use crate::harbour::{DAY, HOUR, Harbour, node};
use berth_types::ids::NodeId;
use serde_json::{Value, json};

#[tokio::test]
async fn what_was_promised_is_charged_exactly_and_in_time() {
    for (engine, db, _place) in engines("lifecycle").await {
        let mut h = Harbour::on(db).await;
        let before = h.balance().await.0;
        let r = h.reserve(2, 1, h.at(HOUR), h.at(4 * HOUR)).await;
        let total = r["total_micros"].as_i64().unwrap();
        h.pass(HOUR).await;
        assert_eq!(h.reservation(&r).await["state"], "active", "{engine}");
        h.pass(HOUR).await;
        let now = h.reservation(&r).await;
        let posted = now["posted_micros"].as_i64().unwrap();
        assert!((total / 4..total / 2).contains(&posted), "{engine}: an hour of three is charged: {now}");
        assert_eq!(posted + now["held_micros"].as_i64().unwrap(), total, "{engine}");
        h.books_are_right().await;
        h.pass(3 * HOUR).await;
        let done = h.reservation(&r).await;
        assert_eq!(
            (&done["state"], &done["posted_micros"], &done["held_micros"]),
            (&json!("ended"), &json!(total), &json!(0))
        );
        assert_eq!(h.balance().await, (before - total, 0), "{engine}: what was quoted, and not a micro more");
        assert_eq!(
            (&done["used_device_ms"], done["elapsed_device_ms"].as_i64().unwrap() > 0),
            (&json!(0), true)
        );
        h.cancel(&r).await.problem(409, "reservation.ended");
        h.books_are_right().await;
    }
}

#[tokio::test]
async fn a_clock_that_is_set_back_charges_nothing_twice_and_undoes_nothing() {
    for (engine, db, _place) in engines("set_back").await {
        let mut h = Harbour::on(db).await;
        let before = h.balance().await.0;
        let r = h.reserve(1, 1, h.at(HOUR), h.at(4 * HOUR)).await;
        let total = r["total_micros"].as_i64().unwrap();
        h.pass(2 * HOUR + 60).await;
        let charged = h.reservation(&r).await;
        let posted = charged["posted_micros"].as_i64().unwrap();
        assert!((total / 3..total / 2).contains(&posted), "{engine}: an hour of three: {charged}");
        // To before its begin, and through the same hour once more.
        for seconds in [-HOUR - 120, HOUR / 2, HOUR / 2 + 120] {
            h.pass(seconds).await;
            let now = h.reservation(&r).await;
            assert_eq!(
                (&now["state"], &now["posted_micros"], &now["held_micros"]),
                (&json!("active"), &charged["posted_micros"], &charged["held_micros"]),
                "{engine} {seconds}"
            );
        }
        // To its end, and over it once more.
        for seconds in [2 * HOUR, -2 * HOUR, 3 * HOUR] {
            h.pass(seconds).await;
            let done = h.reservation(&r).await;
            assert_eq!(done["state"], "ended", "{engine} {done}");
            assert_eq!(done["posted_micros"], total, "{engine} {done}");
            assert_eq!(h.balance().await, (before - total, 0), "{engine}");
        }
        let usage = h.t.get(&h.ada, &format!("/orgs/{}/usage", h.org)).await.expect(200);
        assert_eq!(usage["cost_micros"], total, "{engine} {usage}");
        let more_ms = usage["device_ms"].as_i64().unwrap() - 3 * HOUR * 1_000;
        assert!(more_ms.abs() < 1_000, "{engine}: three hours of a board: {usage}");

        // A host that went before the clock was set back is out of order all the same.
        let r = h.reserve(2, 2, h.at(0), h.at(10 * HOUR)).await;
        h.pass(2 * HOUR).await;
        h.report(1).await;
        h.report(2).await;
        h.sessions.clear();
        h.pass(-HOUR).await;
        assert_eq!(h.reservation(&r).await["degraded_milli"], 1_000, "{engine}");
        let books = h.t.post(&h.operator, "/operator/reconciliation", Value::Null).await.expect(200);
        assert_eq!(books["mismatches"], json!([]), "{engine} {books}");
    }
}

#[tokio::test]
async fn approval_no_show_and_failed_boards() {
    for (engine, db, _place) in engines("rules").await {
        let mut h = Harbour::on(db).await;
        h.policy(json!({"approval_above_boards_milli": 1_000, "no_show_after_s": HOUR, "early_release_percent": 0})).await;
        let quote = h.quote(h.ask(1, 2, h.at(HOUR), h.at(3 * HOUR))).await;
        assert_eq!(quote["needs_approval"], true, "{engine}");
        let pending = h.confirm(&quote).await.expect(201)["items"][0].clone();
        assert_eq!(pending["state"], "pending", "{engine}");
        let path =
            |r: &Value, what: &str| format!("/operator/reservations/{}/{what}", r["id"].as_str().unwrap());
        h.t.post(&h.ada, &path(&pending, "approve"), Value::Null).await.expect(404);
        let unapproved = h.reserve(1, 2, h.at(HOUR), h.at(3 * HOUR)).await;
        h.t.post(&h.operator, &path(&pending, "approve"), Value::Null).await.expect(200);
        h.t.post(&h.operator, &path(&pending, "approve"), Value::Null)
            .await
            .problem(409, "reservation.decided");
        let declined = h.reserve(2, 1, h.at(DAY), h.at(DAY + HOUR)).await;
        h.t.post(&h.operator, &path(&declined, "decline"), Value::Null).await.expect(200);
        assert_eq!(h.reservation(&declined).await["state"], "cancelled", "{engine}");
        h.pass(HOUR + 1).await;
        assert_eq!(h.reservation(&unapproved).await["state"], "expired", "{engine}");
        assert_eq!(h.reservation(&pending).await["state"], "active", "{engine}");

        // Half of its hosts goes away for a while: that time is given back by itself.
        let lost = pending["devices"][0]["node"].as_str().unwrap().parse::<NodeId>().unwrap();
        let at = if lost == node(1) { 0 } else { 1 };
        let session = h.sessions.remove(at);
        drop(session);
        h.pass(61).await;
        assert_eq!(h.reservation(&pending).await["degraded_milli"], 1_000, "{engine}");
        h.pass(600).await;
        h.sessions.push(h.t.portal.context.live.open_session(lost));
        h.pass(1).await;
        h.t.portal.reservations.tick_reservations().await.unwrap();
        let back = h.reservation(&pending).await;
        let credited = back["credited_micros"].as_i64().unwrap();
        assert_eq!(back["degraded_milli"], 0, "{engine}");
        assert!(
            (600 * 2_000..604 * 2_000).contains(&credited),
            "{engine}: ten minutes of two boards: {back}"
        );

        // Nobody ever ran anything in it: it is given back by itself after an hour.
        h.pass(HOUR).await;
        let ended = h.reservation(&pending).await;
        assert_eq!(
            (&ended["state"], &ended["cause"]),
            (&json!("ended"), &json!("nobody used it")),
            "{engine}"
        );
        assert!(
            ended["posted_micros"].as_i64().unwrap() < ended["total_micros"].as_i64().unwrap(),
            "{engine}"
        );
        assert_eq!(h.balance().await.1, 0, "{engine}");
        h.books_are_right().await;
    }
}

#[tokio::test]
async fn what_could_not_be_used_is_not_paid() {
    for (engine, db, _place) in engines("outage").await {
        let mut h = Harbour::on(db).await;
        let before = h.balance().await.0;
        // The portal was down from before its begin until after its end.
        let missed = h.reserve(1, 1, h.at(HOUR), h.at(2 * HOUR)).await;
        h.pass(3 * HOUR).await;
        let missed = h.reservation(&missed).await;
        assert_eq!(
            (&missed["state"], &missed["posted_micros"]),
            (&json!("ended"), &json!(0)),
            "{engine} {missed}"
        );
        assert_eq!(h.balance().await, (before, 0), "{engine}");
        // Everything is out of order, and then it is given back: the outage is not paid.
        h.policy(json!({"early_release_percent": 0, "no_show_after_s": HOUR})).await;
        let r = h.reserve(2, 2, h.at(0), h.at(10 * HOUR)).await;
        h.pass(1).await;
        h.sessions.clear();
        h.pass(61).await;
        h.pass(4 * HOUR).await;
        let now = h.reservation(&r).await;
        assert_eq!(
            (&now["state"], &now["degraded_milli"]),
            (&json!("active"), &json!(1_000)),
            "{engine}: no no-show"
        );
        let done = h.cancel(&r).await.expect(200);
        let (posted, credited) =
            (done["posted_micros"].as_i64().unwrap(), done["credited_micros"].as_i64().unwrap());
        assert!(
            posted > 4 * 4_000_000 && posted - credited < 4_000 * 70,
            "{engine}: a minute is paid: {done}"
        );
        h.books_are_right().await;
    }
}

#[tokio::test]
async fn a_budget_counts_a_reservation_in_the_month_that_it_begins_in() {
    for (engine, db, _place) in engines("budget_months").await {
        let mut h = Harbour::on(db).await;
        // The tests' clock begins on the 18th of November: December is thirteen days away, January 45.
        assert!(h.at(0).to_string().starts_with("2026-11-18"), "{engine} {}", h.at(0));
        let budgets = format!("/orgs/{}/budgets", h.org);
        // Five hours of a board, as jobs of an hour are.
        let hour_micros = 3_600_000;
        let body = json!({"name": "month", "limit_micros": 5 * hour_micros, "at_limit": "refuse"});
        h.t.post(&h.ada, &budgets, body).await.expect(201);
        let standing = async |h: &Harbour| {
            let listed = h.t.get(&h.ada, &budgets).await.expect(200);
            let of = |name: &str| listed["items"][0][name].as_i64().unwrap();
            (of("spent_micros"), of("committed_micros"))
        };
        let ask = async |h: &Harbour, from_s: i64, hours: i64| {
            let quote = h.quote(h.ask(1, 1, h.at(from_s), h.at(from_s + hours * HOUR))).await;
            h.confirm(&quote).await
        };
        // Each later month has a budget of its own, and this one is as it was.
        for days in [13, 45] {
            ask(&h, days * DAY, 4).await.expect(201);
            ask(&h, days * DAY + 6 * HOUR, 4).await.problem(403, "budget.exceeded");
            assert_eq!(standing(&h).await, (0, 0), "{engine} {days}");
        }
        let mut body = job();
        body["max_duration_s"] = json!(HOUR);
        let jobs = format!("/orgs/{}/jobs", h.org);
        let waits = h.t.post(&h.ada, &jobs, body.clone()).await.expect(201);
        assert_eq!(standing(&h).await, (0, hour_micros), "{engine}");

        // One that begins in this month counts now, on its last day too.
        let soon = ask(&h, 12 * DAY, 3).await.expect(201)["items"][0].clone();
        let total = soon["total_micros"].as_i64().unwrap();
        assert!((total - 3 * hour_micros).abs() < hour_micros / 100, "{engine} {soon}");
        assert_eq!(standing(&h).await, (0, hour_micros + total), "{engine}");
        ask(&h, DAY, 2).await.problem(403, "budget.exceeded");
        body["max_duration_s"] = json!(2 * HOUR);
        h.t.post(&h.ada, &jobs, body).await.problem(403, "budget.exceeded");

        // And the later one counts when its month has come.
        h.cancel(&soon).await.expect(200);
        let cancel = format!("{jobs}/{}/cancel", waits["id"].as_str().unwrap());
        h.t.post(&h.ada, &cancel, Value::Null).await.expect(202);
        assert_eq!(standing(&h).await, (0, 0), "{engine}");
        h.pass(12 * DAY + 20 * HOUR).await;
        let (spent, committed) = standing(&h).await;
        assert_eq!(spent, 0, "{engine}");
        assert!((committed - 4 * hour_micros).abs() < hour_micros / 100, "{engine} {committed}");
        h.books_are_right().await;
    }
}

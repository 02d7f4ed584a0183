//! Tests of reservations over time: charges, credits, outages, limits of their jobs and clocks set back.

use crate::common::{engines, job};
use crate::idle_portal::{DAY, HOUR, IdlePortal, node};
use crate::operations::schedule_all;
use berth_store as store;
use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::time::Timestamp;
use futures::FutureExt;
use serde_json::{Value, json};

#[tokio::test]
async fn a_reservation_is_charged_exactly_its_price_as_time_passes() {
    for (engine, db, _location) in engines("lifecycle").await {
        let mut setup = IdlePortal::on(db).await;
        let before = setup.balance().await.0;
        let r = setup.reserve(2, 1, setup.at(HOUR), setup.at(4 * HOUR)).await;
        let total = r["total_micros"].as_i64().unwrap();
        setup.let_time_pass(HOUR).await;
        assert_eq!(setup.reservation(&r).await["state"], "active", "{engine}");
        setup.let_time_pass(HOUR).await;
        let now = setup.reservation(&r).await;
        let posted = now["posted_micros"].as_i64().unwrap();
        assert!((total / 4..total / 2).contains(&posted), "{engine}: an hour of three is charged: {now}");
        assert_eq!(posted + now["held_micros"].as_i64().unwrap(), total, "{engine}");
        setup.assert_books_balance().await;
        setup.let_time_pass(3 * HOUR).await;
        let done = setup.reservation(&r).await;
        assert_eq!(
            (&done["state"], &done["posted_micros"], &done["held_micros"]),
            (&json!("ended"), &json!(total), &json!(0))
        );
        assert_eq!(
            setup.balance().await,
            (before - total, 0),
            "{engine}: what was quoted, and not a micro more"
        );
        assert_eq!(
            (&done["used_device_ms"], done["elapsed_device_ms"].as_i64().unwrap() > 0),
            (&json!(0), true)
        );
        setup.cancel(&r).await.problem(409, "reservation.ended");
        setup.assert_books_balance().await;
    }
}

/// Sets the metered time of a job.
async fn set_metered(setup: &IdlePortal, job: &Value, ms: i64) {
    let id: JobId = job["id"].as_str().unwrap().parse().unwrap();
    let work = setup.t.portal.context.db.write(move |tx| {
        async move {
            let mut row = store::jobs::find_any(tx, id).await?.unwrap();
            row.metered_ms = ms;
            store::jobs::update_meter(tx, &row).await
        }
        .boxed()
    });
    work.await.unwrap();
}

#[tokio::test]
async fn each_reservation_of_a_page_shows_the_use_by_its_own_jobs() {
    for (engine, db, _location) in engines("reservation_use").await {
        let mut setup = IdlePortal::on(db).await;
        let one = setup.reserve(1, 1, setup.at(0), setup.at(10 * HOUR)).await;
        let two = setup.reserve(1, 2, setup.at(0), setup.at(10 * HOUR)).await;
        let unused = setup.reserve(1, 1, setup.at(DAY), setup.at(DAY + HOUR)).await;
        setup.let_time_pass(1).await;
        for (reservation, count, metered_ms) in [(&one, 1, 1_500), (&two, 2, 1_000), (&two, 1, 500)] {
            let mut body = job();
            body["offering"] = json!("h100-80gb");
            body["count"] = json!(count);
            body["reservation"] = reservation["id"].clone();
            let made = setup.t.post(&setup.ada, &format!("/orgs/{}/jobs", setup.org), body).await.expect(201);
            set_metered(&setup, &made, metered_ms).await;
        }
        let page = setup.t.get(&setup.ada, &format!("/orgs/{}/reservations", setup.org)).await.expect(200);
        let used: Vec<(&Value, &Value)> =
            page["items"].as_array().unwrap().iter().map(|r| (&r["id"], &r["used_device_ms"])).collect();
        let expected = [(&unused, json!(0)), (&two, json!(2_500)), (&one, json!(1_500))];
        let expected = expected.each_ref().map(|(r, used)| (&r["id"], used));
        assert_eq!(used, expected, "{engine}: newest first");

        setup.let_time_pass(600).await;
        let now = setup.at(0);
        let elapsed_ms =
            |r: &Value| now.millis_since(r["starts_at"].as_str().unwrap().parse::<Timestamp>().unwrap());
        let org: OrgId = setup.org.parse().unwrap();
        let mut conn = setup.t.portal.context.db.read().await.unwrap();
        let since = now.plus_seconds(-DAY);
        let mut idle_ms = async |since, until| {
            store::reservations::idle_device_ms(&mut conn.tx(), org, (since, until), now).await.unwrap()
        };
        assert_eq!(idle_ms(since, now).await, elapsed_ms(&one) + 2 * elapsed_ms(&two) - 4_000, "{engine}");
        // The jobs wait, so their metered time is spread over the time since their submission.
        let early = idle_ms(since, now.plus_seconds(-300)).await;
        let late = idle_ms(now.plus_seconds(-300), now).await;
        assert!(early + late - idle_ms(since, now).await <= 6, "{engine}: the parts are the whole");
        assert!((2 * 300_000 + 300_000 - 4_000..900_000).contains(&late), "{engine}: {late}");
        assert_eq!(
            idle_ms(since, since.plus_seconds(HOUR)).await,
            0,
            "{engine}: before the first reservation"
        );
    }
}

#[tokio::test]
async fn a_clock_that_is_set_back_charges_nothing_twice_and_undoes_nothing() {
    for (engine, db, _location) in engines("set_back").await {
        let mut setup = IdlePortal::on(db).await;
        let before = setup.balance().await.0;
        let r = setup.reserve(1, 1, setup.at(HOUR), setup.at(4 * HOUR)).await;
        let total = r["total_micros"].as_i64().unwrap();
        for seconds in [HOUR, HOUR + 60] {
            setup.let_time_pass(seconds).await;
        }
        let charged = setup.reservation(&r).await;
        let posted = charged["posted_micros"].as_i64().unwrap();
        assert!((total / 3..total / 2).contains(&posted), "{engine}: an hour of three: {charged}");
        // The clock goes back before the start, and then through the same hour again.
        for seconds in [-HOUR - 120, HOUR / 2, HOUR / 2 + 120] {
            setup.let_time_pass(seconds).await;
            let now = setup.reservation(&r).await;
            assert_eq!(
                (&now["state"], &now["posted_micros"], &now["held_micros"]),
                (&json!("active"), &charged["posted_micros"], &charged["held_micros"]),
                "{engine} {seconds}"
            );
        }
        // The clock goes to the end, back, and over the end again.
        for seconds in [2 * HOUR, -2 * HOUR, 3 * HOUR] {
            setup.let_time_pass(seconds).await;
            let done = setup.reservation(&r).await;
            assert_eq!(done["state"], "ended", "{engine} {done}");
            assert_eq!(done["posted_micros"], total, "{engine} {done}");
            assert_eq!(setup.balance().await, (before - total, 0), "{engine}");
        }
        let usage = setup.t.get(&setup.ada, &format!("/orgs/{}/usage", setup.org)).await.expect(200);
        assert_eq!(usage["cost_micros"], total, "{engine} {usage}");
        let more_ms = usage["device_ms"].as_i64().unwrap() - 3 * HOUR * 1_000;
        assert!(more_ms.abs() < 1_000, "{engine}: three hours of a board: {usage}");

        // A node that was lost before the clock change is still unusable.
        let r = setup.reserve(2, 2, setup.at(0), setup.at(10 * HOUR)).await;
        for seconds in [1, 2 * HOUR] {
            setup.let_time_pass(seconds).await;
        }
        setup.report(1).await;
        setup.report(2).await;
        setup.sessions.clear();
        setup.let_time_pass(-HOUR).await;
        assert_eq!(setup.reservation(&r).await["degraded_milli"], 1_000, "{engine}");
        let books = setup.t.post(&setup.operator, "/operator/reconciliation", Value::Null).await.expect(200);
        assert_eq!(books["mismatches"], json!([]), "{engine} {books}");
    }
}

#[tokio::test]
async fn approval_disuse_and_failed_boards_follow_the_terms() {
    for (engine, db, _location) in engines("rules").await {
        let mut setup = IdlePortal::on(db).await;
        setup.set_policy(json!({"approval_above_boards_milli": 1_000, "no_show_after_s": HOUR, "early_release_percent": 0})).await;
        let quote = setup.quote(setup.quote_request(1, 2, setup.at(HOUR), setup.at(3 * HOUR))).await;
        assert_eq!(quote["needs_approval"], true, "{engine}");
        let pending = setup.confirm(&quote).await.expect(201)["items"][0].clone();
        assert_eq!(pending["state"], "pending", "{engine}");
        let path =
            |r: &Value, what: &str| format!("/operator/reservations/{}/{what}", r["id"].as_str().unwrap());
        setup.t.post(&setup.ada, &path(&pending, "approve"), Value::Null).await.expect(404);
        let unapproved = setup.reserve(1, 2, setup.at(HOUR), setup.at(3 * HOUR)).await;
        setup.t.post(&setup.operator, &path(&pending, "approve"), Value::Null).await.expect(200);
        setup
            .t
            .post(&setup.operator, &path(&pending, "approve"), Value::Null)
            .await
            .problem(409, "reservation.decided");
        let declined = setup.reserve(2, 1, setup.at(DAY), setup.at(DAY + HOUR)).await;
        setup.t.post(&setup.operator, &path(&declined, "decline"), Value::Null).await.expect(200);
        assert_eq!(setup.reservation(&declined).await["state"], "cancelled", "{engine}");
        setup.let_time_pass(HOUR + 1).await;
        assert_eq!(setup.reservation(&unapproved).await["state"], "expired", "{engine}");
        assert_eq!(setup.reservation(&pending).await["state"], "active", "{engine}");

        // One of two boards' hosts is silent for a while; the portal credits that time.
        let lost = pending["devices"][0]["node"].as_str().unwrap().parse::<NodeId>().unwrap();
        let at = if lost == node(1) { 0 } else { 1 };
        let session = setup.sessions.remove(at);
        drop(session);
        setup.let_time_pass(61).await;
        assert_eq!(setup.reservation(&pending).await["degraded_milli"], 1_000, "{engine}");
        setup.let_time_pass(600).await;
        setup.sessions.push(setup.t.portal.context.live.open_session(lost));
        setup.let_time_pass(1).await;
        setup.t.portal.reservations.tick_reservations().await.unwrap();
        let back = setup.reservation(&pending).await;
        let credited = back["credited_micros"].as_i64().unwrap();
        assert_eq!(back["degraded_milli"], 0, "{engine}");
        assert!(
            (600 * 2_000..604 * 2_000).contains(&credited),
            "{engine}: ten minutes of two boards: {back}"
        );

        // Without a job the portal returns the reservation after an hour.
        setup.let_time_pass(HOUR).await;
        let ended = setup.reservation(&pending).await;
        assert_eq!(
            (&ended["state"], &ended["cause"]),
            (&json!("ended"), &json!("no job ran in it")),
            "{engine}"
        );
        assert!(
            ended["posted_micros"].as_i64().unwrap() < ended["total_micros"].as_i64().unwrap(),
            "{engine}"
        );
        assert_eq!(setup.balance().await.1, 0, "{engine}");
        setup.assert_books_balance().await;
    }
}

#[tokio::test]
async fn reserved_time_during_an_outage_is_not_charged() {
    for (engine, db, _location) in engines("outage").await {
        let mut setup = IdlePortal::on(db).await;
        let before = setup.balance().await.0;
        // The portal was down during the whole window.
        let missed = setup.reserve(1, 1, setup.at(HOUR), setup.at(2 * HOUR)).await;
        setup.let_time_pass(3 * HOUR).await;
        let missed = setup.reservation(&missed).await;
        assert_eq!(
            (&missed["state"], &missed["posted_micros"]),
            (&json!("ended"), &json!(0)),
            "{engine} {missed}"
        );
        assert_eq!(setup.balance().await, (before, 0), "{engine}");
        // All boards are unusable before a return: the outage is not charged.
        setup.set_policy(json!({"early_release_percent": 0, "no_show_after_s": HOUR})).await;
        let r = setup.reserve(2, 2, setup.at(0), setup.at(10 * HOUR)).await;
        setup.let_time_pass(1).await;
        setup.sessions.clear();
        setup.let_time_pass(61).await;
        setup.let_time_pass(4 * HOUR).await;
        let now = setup.reservation(&r).await;
        assert_eq!(
            (&now["state"], &now["degraded_milli"]),
            (&json!("active"), &json!(1_000)),
            "{engine}: no no-show"
        );
        let done = setup.cancel(&r).await.expect(200);
        let (posted, credited) =
            (done["posted_micros"].as_i64().unwrap(), done["credited_micros"].as_i64().unwrap());
        assert!(
            posted > 4 * 4_000_000 && posted - credited < 4_000 * 70,
            "{engine}: a minute is paid: {done}"
        );
        setup.assert_books_balance().await;
    }
}

/// Returns micro-units and times of a reservation: its price, charges, hold, begin and end.
fn terms(r: &Value) -> (i64, i64, i64, Timestamp, Timestamp) {
    let micros = |name: &str| r[name].as_i64().unwrap();
    let at = |name: &str| r[name].as_str().unwrap().parse::<Timestamp>().unwrap();
    (micros("total_micros"), micros("posted_micros"), micros("held_micros"), at("starts_at"), at("ends_at"))
}

/// Asserts that the books agree, and that only these charges have left the balance.
async fn assert_spent(setup: &IdlePortal, before: i64, posted: &[i64], engine: &str) {
    assert_eq!(setup.balance().await, (before - posted.iter().sum::<i64>(), 0), "{engine}");
    let books = setup.t.post(&setup.operator, "/operator/reconciliation", Value::Null).await.expect(200);
    assert_eq!(books["mismatches"], json!([]), "{engine} {books}");
}

/// True for micro-units, or milliseconds, that differ by less than five seconds of a board. The clock of a test goes on with
/// its readings.
fn is_near(one: i64, other: i64) -> bool {
    (one - other).abs() < 5_000
}

#[tokio::test]
async fn a_reservation_begins_after_an_outage_over_its_begin() {
    for (engine, db, _location) in engines("late_begin").await {
        let mut setup = IdlePortal::on(db).await;
        let before = setup.balance().await.0;
        let hour = 3_600_000;
        let (from, until) = (setup.at(HOUR), setup.at(9 * HOUR));
        setup.set_policy(json!({"early_release_percent": 0, "no_show_after_s": HOUR})).await;
        let unused = setup.reserve(1, 1, from, until).await;
        setup.set_policy(json!({})).await;
        let kept = setup.reserve(1, 1, from, until).await;
        let next = setup.reserve(2, 2, until.plus_seconds(HOUR), until.plus_seconds(2 * HOUR)).await;

        // The portal is down from before the begin until two hours after it.
        setup.let_time_pass(3 * HOUR).await;
        for r in [&unused, &kept] {
            let begun = setup.reservation(r).await;
            let (total, posted, held, starts_at, ends_at) = terms(&begun);
            assert_eq!((&begun["state"], ends_at), (&json!("active"), terms(r).4), "{engine} {begun}");
            assert!(is_near(starts_at.millis_since(from), 2 * HOUR * 1_000), "{engine} {begun}");
            assert!(is_near(total, 6 * hour), "{engine} {begun}");
            assert_eq!((posted, held), (0, total), "{engine}: the hold for the outage is released: {begun}");
        }
        setup.assert_books_balance().await;

        // An hour without a job counts from the new begin.
        setup.let_time_pass(HOUR / 2).await;
        assert_eq!(setup.reservation(&unused).await["state"], "active", "{engine}");
        setup.let_time_pass(HOUR / 2 + 10).await;
        let returned = setup.reservation(&unused).await;
        assert_eq!(returned["cause"], "no job ran in it", "{engine} {returned}");
        let (_, returned, ..) = terms(&returned);
        assert!(is_near(returned, hour + 10_000), "{engine} {returned}");

        // The longer reservation costs the additional time, and stays before the next one.
        let path = format!("/orgs/{}/reservations/{}/extend", setup.org, kept["id"].as_str().unwrap());
        let longer = |end: Timestamp| json!({"ends_at": end});
        let too_long = longer(until.plus_seconds(HOUR + 60));
        setup.t.post(&setup.ada, &path, too_long).await.problem(409, "reservation.taken");
        let extended = setup.t.post(&setup.ada, &path, longer(until.plus_seconds(HOUR))).await.expect(200);
        let (total, posted, held, ..) = terms(&extended);
        assert!(is_near(total, 7 * hour) && posted + held == total, "{engine} {extended}");
        setup.let_time_pass(6 * HOUR).await;
        let ended = setup.reservation(&kept).await;
        let (_, posted, held, ..) = terms(&ended);
        assert_eq!((&ended["state"], posted, held), (&json!("ended"), total, 0), "{engine} {ended}");
        setup.cancel(&next).await.expect(200);
        let (_, fee, ..) = terms(&setup.reservation(&next).await);
        assert_spent(&setup, before, &[returned, total, fee], engine).await;
    }
}

#[tokio::test]
async fn the_usable_time_of_a_reservation_is_charged_around_an_outage() {
    for (engine, db, _location) in engines("outage_edges").await {
        let mut setup = IdlePortal::on(db).await;
        setup.set_policy(json!({})).await;
        let before = setup.balance().await.0;
        let hour = 3_600_000;
        // The first look comes less than a minute after the begin.
        let brief = setup.reserve(1, 1, setup.at(HOUR), setup.at(3 * HOUR)).await;
        setup.let_time_pass(HOUR + 50).await;
        assert_eq!(terms(&setup.reservation(&brief).await), terms(&brief), "{engine}");
        setup.let_time_pass(2 * HOUR).await;
        assert_eq!(setup.reservation(&brief).await["posted_micros"], 2 * hour, "{engine}");

        // The fee of a cancellation before the first look leaves the outage out.
        let late = setup.reserve(1, 1, setup.at(HOUR), setup.at(3 * HOUR)).await;
        setup.t.clock.advance_s(2 * HOUR);
        setup.ada = setup.t.sign_in("lab@example.org").await;
        let (shown, cancelled) = (setup.reservation(&late).await, setup.cancel(&late).await.expect(200));
        let (_, fee, ..) = terms(&cancelled);
        assert_eq!(cancelled["state"], "cancelled", "{engine} {cancelled}");
        assert!(is_near(fee, hour / 2), "{engine} {cancelled}");
        assert!(is_near(shown["cancel_fee_micros"].as_i64().unwrap(), fee), "{engine} {shown}");

        // A job can start before the first look; the time is used from then on.
        let from = setup.at(HOUR);
        let used = setup.reserve(1, 1, from, from.plus_seconds(4 * HOUR)).await;
        let mut body = job();
        (body["offering"], body["reservation"]) = (json!("h100-80gb"), used["id"].clone());
        let path = format!("/orgs/{}/jobs", setup.org);
        let waits = setup.t.post(&setup.ada, &path, body).await.expect(201);
        setup.t.clock.advance_s(2 * HOUR);
        schedule_all(&setup).await;
        setup.let_time_pass(HOUR).await;
        let path = format!("{path}/{}", waits["id"].as_str().unwrap());
        let placed = setup.t.get(&setup.ada, &path).await.expect(200);
        assert_eq!(placed["state"], "assigned", "{engine} {placed}");
        let (total, posted, held, starts_at, _) = terms(&setup.reservation(&used).await);
        assert!(is_near(starts_at.millis_since(from), HOUR * 1_000), "{engine} {starts_at}");
        assert!(
            is_near(total, 3 * hour) && is_near(posted, hour) && posted + held == total,
            "{engine} {total}"
        );
        setup.let_time_pass(2 * HOUR).await;
        assert_eq!(terms(&setup.reservation(&used).await).1, total, "{engine}");
        assert_spent(&setup, before, &[2 * hour, fee, total], engine).await;
    }
}

#[tokio::test]
async fn a_waiting_job_is_not_extended_beyond_its_reservation() {
    for (engine, db, _location) in engines("long_inside").await {
        let setup = IdlePortal::on(db).await;
        let from = setup.at(2 * HOUR);
        let reservation = setup.reserve(1, 1, from, from.plus_seconds(2 * HOUR)).await;
        let mut body = job();
        (body["offering"], body["max_duration_s"]) = (json!("h100-80gb"), json!(HOUR));
        body["reservation"] = reservation["id"].clone();
        let path = format!("/orgs/{}/jobs", setup.org);
        let waits = setup.t.post(&setup.ada, &path, body.clone()).await.expect(201);
        let path = format!("{path}/{}/extend", waits["id"].as_str().unwrap());
        let longer =
            async |seconds: i64| setup.t.post(&setup.ada, &path, json!({"max_duration_s": seconds})).await;
        // It would end before the end of the reservation if it started now.
        longer(3 * HOUR).await.problem(409, "job.promised");
        longer(2 * HOUR).await.problem(409, "job.promised");
        let longest = longer(2 * HOUR - 60).await.expect(202);
        assert_eq!(longest["max_duration_s"], 2 * HOUR - 60, "{engine}");
        // The submission has the same limit.
        body["max_duration_s"] = json!(2 * HOUR);
        let path = format!("/orgs/{}/jobs", setup.org);
        setup.t.post(&setup.ada, &path, body).await.problem(422, "request.invalid");
    }
}

#[tokio::test]
async fn a_budget_counts_a_reservation_in_the_month_that_it_begins_in() {
    for (engine, db, _location) in engines("budget_months").await {
        let mut setup = IdlePortal::on(db).await;
        // The manual clock starts on 18 November: December is 13 days away, January 45.
        assert!(setup.at(0).to_string().starts_with("2026-11-18"), "{engine} {}", setup.at(0));
        let budgets = format!("/orgs/{}/budgets", setup.org);
        // The limit is five hours of a board.
        let hour_micros = 3_600_000;
        let body = json!({"name": "month", "limit_micros": 5 * hour_micros, "at_limit": "refuse"});
        setup.t.post(&setup.ada, &budgets, body).await.expect(201);
        let status = async |setup: &IdlePortal| {
            let listed = setup.t.get(&setup.ada, &budgets).await.expect(200);
            let field = |name: &str| listed["items"][0][name].as_i64().unwrap();
            (field("spent_micros"), field("committed_micros"))
        };
        let ask = async |setup: &IdlePortal, from_s: i64, hours: i64| {
            let quote = setup
                .quote(setup.quote_request(1, 1, setup.at(from_s), setup.at(from_s + hours * HOUR)))
                .await;
            setup.confirm(&quote).await
        };
        // Each later month has its own budget, and the present month does not change.
        for days in [13, 45] {
            ask(&setup, days * DAY, 4).await.expect(201);
            ask(&setup, days * DAY + 6 * HOUR, 4).await.problem(403, "budget.exceeded");
            assert_eq!(status(&setup).await, (0, 0), "{engine} {days}");
        }
        let mut body = job();
        body["max_duration_s"] = json!(HOUR);
        let jobs = format!("/orgs/{}/jobs", setup.org);
        let waits = setup.t.post(&setup.ada, &jobs, body.clone()).await.expect(201);
        assert_eq!(status(&setup).await, (0, hour_micros), "{engine}");

        // A reservation with a start in this month counts now, also on the last day.
        let soon = ask(&setup, 12 * DAY, 3).await.expect(201)["items"][0].clone();
        let total = soon["total_micros"].as_i64().unwrap();
        assert!((total - 3 * hour_micros).abs() < hour_micros / 100, "{engine} {soon}");
        assert_eq!(status(&setup).await, (0, hour_micros + total), "{engine}");
        ask(&setup, DAY, 2).await.problem(403, "budget.exceeded");
        body["max_duration_s"] = json!(2 * HOUR);
        setup.t.post(&setup.ada, &jobs, body).await.problem(403, "budget.exceeded");

        // The later reservation counts in its month.
        setup.cancel(&soon).await.expect(200);
        let cancel = format!("{jobs}/{}/cancel", waits["id"].as_str().unwrap());
        setup.t.post(&setup.ada, &cancel, Value::Null).await.expect(202);
        assert_eq!(status(&setup).await, (0, 0), "{engine}");
        setup.let_time_pass(12 * DAY + 20 * HOUR).await;
        let (spent, committed) = status(&setup).await;
        assert_eq!(spent, 0, "{engine}");
        assert!((committed - 4 * hour_micros).abs() < hour_micros / 100, "{engine} {committed}");
        setup.assert_books_balance().await;
    }
}

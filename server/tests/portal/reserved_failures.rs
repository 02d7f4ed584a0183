//! Tests of devices that a reservation cannot use: those of runs from outside, unclean ones, those of closed nodes, and
//! failures that change.

use crate::common::engines;
use crate::idle_portal::{HOUR, IdlePortal, node};
use crate::operations::{job, put, schedule_all, submit};
use crate::webhooks::Receiver;
use berth_jobs::reports::{AttemptPhase, AttemptReport};
use berth_types::ids::{JobId, NodeId};
use serde_json::{Value, json};

/// The price of a board for a second, in micro-units.
const BOARD_S: i64 = 1_000;

/// A placed job with one device.
struct Placed {
    id: JobId,
    node: NodeId,
}

impl IdlePortal {
    /// Submits a job, which is placed at once.
    async fn place_one(&self, spec: Value) -> Placed {
        let id = submit(self, spec).await;
        schedule_all(self).await;
        let placed = job(self, &id).await;
        assert_eq!(placed["state"], "assigned", "{placed}");
        let node = placed["devices"][0]["node"].as_str().unwrap().parse().unwrap();
        Placed { id: id.parse().unwrap(), node }
    }

    /// Reports that a job runs.
    async fn run_one(&self, placed: &Placed) {
        let runs = AttemptReport::new(placed.id, 1, AttemptPhase::Running);
        self.t.portal.attempts.apply_status(placed.node, runs).await.unwrap();
    }

    /// Reports the check of the devices after the end of a job; `unclean` is the reason of a bad result.
    async fn clean_one(&self, placed: &Placed, unclean: Option<&str>) {
        let report = AttemptReport {
            exit_code: Some(0),
            log_bytes: Some(0),
            unclean: unclean.map(str::to_owned),
            ..AttemptReport::new(placed.id, 1, AttemptPhase::Clean)
        };
        self.t.portal.attempts.apply_status(placed.node, report).await.unwrap();
    }

    async fn cordon(&self, n: u128, cordoned: bool) {
        let path = format!("/operator/nodes/{}", node(n));
        let body = json!({"cordoned": cordoned});
        self.t.call(&self.operator, "PATCH", &path, body).await.expect(200);
    }

    /// Asserts the failed part of a reservation in thousandths, and its credit in seconds of one board. The clock of a
    /// test goes on with its readings.
    async fn assert_lost(&self, r: &Value, lost_milli: i64, board_s: i64, what: &str) {
        let now = self.reservation(r).await;
        let credited = now["credited_micros"].as_i64().unwrap();
        assert_eq!(now["degraded_milli"], lost_milli, "{what}: {now}");
        let more = credited - board_s * BOARD_S;
        assert!((0..10 * BOARD_S).contains(&more), "{what}: {credited} for {board_s} s: {now}");
    }
}

#[tokio::test]
async fn a_board_of_another_run_is_credited_until_it_is_clean() {
    for (engine, db, _location) in engines("held_boards").await {
        let mut setup = IdlePortal::on(db).await;
        let late = setup.place_one(json!({"max_duration_s": 1_800})).await;
        let r = setup.reserve(2, 2, setup.at(HOUR), setup.at(3 * HOUR)).await;
        // Its preparation lasts beyond the begin.
        setup.let_time_pass(HOUR).await;
        assert_eq!(setup.reservation(&r).await["state"], "active", "{engine}");
        setup.assert_lost(&r, 0, 0, &format!("{engine}: in the first minute")).await;
        setup.let_time_pass(61).await;
        setup.assert_lost(&r, 250, 0, &format!("{engine}: after it")).await;
        setup.run_one(&late).await;
        setup.let_time_pass(600).await;
        setup.assert_lost(&r, 250, 0, &format!("{engine}: it runs")).await;
        setup.clean_one(&late, Some("a process is left")).await;
        setup.let_time_pass(100).await;
        setup.assert_lost(&r, 250, 0, &format!("{engine}: it left the board unclean")).await;
        setup.clean_one(&late, None).await;
        setup.let_time_pass(1).await;
        setup.assert_lost(&r, 0, 701, &format!("{engine}: the board is free")).await;

        // A job of the reservation uses its own board, and has to leave it clean.
        let own = setup.place_one(json!({"reservation": r["id"]})).await;
        setup.run_one(&own).await;
        setup.let_time_pass(120).await;
        setup.assert_lost(&r, 0, 701, &format!("{engine}: an own job")).await;
        setup.clean_one(&own, Some("a process is left")).await;
        setup.let_time_pass(1).await;
        setup.assert_lost(&r, 250, 701, &format!("{engine}: an own job left the board unclean")).await;
        setup.let_time_pass(99).await;
        setup.clean_one(&own, None).await;
        setup.let_time_pass(1).await;
        setup.assert_lost(&r, 0, 801, &format!("{engine}: clean again")).await;
        setup.assert_books_balance().await;
    }
}

#[tokio::test]
async fn boards_of_a_closed_node_are_credited_while_no_job_of_the_reservation_has_them() {
    for (engine, db, _location) in engines("closed_boards").await {
        let mut setup = IdlePortal::on(db).await;
        let r = setup.reserve(2, 1, setup.at(0), setup.at(10 * HOUR)).await;
        setup.let_time_pass(1).await;
        let inside = setup.place_one(json!({"reservation": r["id"], "max_duration_s": 2 * HOUR})).await;
        for n in 1..=2 {
            setup.cordon(n, true).await;
        }
        setup.run_one(&inside).await;
        setup.let_time_pass(1).await;
        setup.assert_lost(&r, 500, 0, &format!("{engine}: the other board")).await;
        setup.let_time_pass(600).await;
        setup.assert_lost(&r, 500, 0, &format!("{engine}: the job runs")).await;
        setup.clean_one(&inside, None).await;
        setup.let_time_pass(1).await;
        setup.assert_lost(&r, 1_000, 601, &format!("{engine}: the job has ended")).await;
        for n in 1..=2 {
            setup.cordon(n, false).await;
        }
        setup.let_time_pass(100).await;
        setup.assert_lost(&r, 0, 601 + 200, &format!("{engine}: open again")).await;

        // A drain closes its node too.
        let path = format!("/operator/nodes/{}/drain", node(1));
        put(&setup.t, &setup.operator, &path, json!({"reason": "new firmware"})).await.expect(200);
        setup.let_time_pass(1).await;
        setup.assert_lost(&r, 500, 801, &format!("{engine}: a drain")).await;
        setup.t.call(&setup.operator, "DELETE", &path, Value::Null).await.expect(204);
        setup.let_time_pass(60).await;
        setup.assert_lost(&r, 0, 861, &format!("{engine}: no drain any more")).await;
        setup.assert_books_balance().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_that_changes_is_credited_in_all_its_parts_and_named_once_each() {
    for (engine, db, _location) in engines("changing_failures").await {
        let mut setup = IdlePortal::on(db).await;
        let (receiver, url) = Receiver::open(&[]).await;
        let hook = json!({"url": url, "kinds": ["reservation.*"]});
        setup.t.post(&setup.ada, &format!("/orgs/{}/webhooks", setup.org), hook).await.expect(201);
        let r = setup.reserve(2, 2, setup.at(0), setup.at(10 * HOUR)).await;
        setup.let_time_pass(1).await;
        setup.cordon(1, true).await;
        setup.let_time_pass(1).await;
        setup.assert_lost(&r, 500, 0, &format!("{engine}: one node")).await;
        setup.cordon(2, true).await;
        setup.let_time_pass(50).await;
        setup.assert_lost(&r, 500, 0, &format!("{engine}: a part lasts a minute")).await;
        setup.let_time_pass(10).await;
        setup.assert_lost(&r, 1_000, 120, &format!("{engine}: both nodes")).await;
        for n in 1..=2 {
            setup.cordon(n, false).await;
        }
        // The last part is shorter than a minute, and the failure is not.
        setup.let_time_pass(30).await;
        setup.assert_lost(&r, 0, 240, &format!("{engine}: no node")).await;

        setup.cordon(1, true).await;
        setup.let_time_pass(1).await;
        setup.cordon(1, false).await;
        setup.let_time_pass(50).await;
        setup.assert_lost(&r, 0, 240, &format!("{engine}: a failure of less than a minute")).await;

        // A failure lasts to the end.
        setup.cordon(2, true).await;
        setup.let_time_pass(1).await;
        setup.assert_lost(&r, 500, 240, &format!("{engine}: once more")).await;
        setup.let_time_pass(10 * HOUR).await;
        let ended = setup.reservation(&r).await;
        let (posted, credited) =
            (ended["posted_micros"].as_i64().unwrap(), ended["credited_micros"].as_i64().unwrap());
        assert_eq!(ended["state"], "ended", "{engine}: {ended}");
        let rest = credited - 240 * BOARD_S;
        let most = posted / 2;
        assert!((most - 200 * 2 * BOARD_S..most).contains(&rest), "{engine}: {rest} of {most}: {ended}");
        for _ in 0..5 {
            setup.t.portal.webhooks.deliver().await.unwrap();
        }
        let notices = receiver.notices();
        let count = |kind: &str| notices.iter().filter(|n| n["type"] == kind).count();
        let counts = ["started", "degraded", "restored", "ended"].map(|k| count(&format!("reservation.{k}")));
        assert_eq!(counts, [1, 4, 2, 1], "{engine}: {notices:?}");
        setup.assert_books_balance().await;
    }
}

#[tokio::test]
async fn a_reservation_with_a_waiting_job_is_not_returned() {
    for (engine, db, _location) in engines("waiting_inside").await {
        let mut setup = IdlePortal::on(db).await;
        setup.set_policy(json!({"no_show_after_s": HOUR, "early_release_percent": 0})).await;
        let r = setup.reserve(1, 1, setup.at(0), setup.at(10 * HOUR)).await;
        let waits = submit(&setup, json!({"reservation": r["id"]})).await;
        for seconds in [1, HOUR + 1, HOUR] {
            setup.let_time_pass(seconds).await;
            let kept = setup.reservation(&r).await;
            assert_eq!(kept["state"], "active", "{engine}: {kept}");
        }
        assert_eq!(job(&setup, &waits).await["state"], "queued", "{engine}");
        let cancel = format!("/orgs/{}/jobs/{waits}/cancel", setup.org);
        setup.t.post(&setup.ada, &cancel, Value::Null).await.expect(202);
        setup.let_time_pass(1).await;
        let returned = setup.reservation(&r).await;
        let expected = (&json!("ended"), &json!("no job ran in it"));
        assert_eq!((&returned["state"], &returned["cause"]), expected, "{engine}: {returned}");
        setup.assert_books_balance().await;
    }
}

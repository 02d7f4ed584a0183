//! Tests of attempt statuses: preparation progress, evidence of processes and devices, and credits for
//! charges without evidence.

use crate::common::engines;
use crate::idle_portal::{DAY, IdlePortal};
use crate::worker_portal::WorkerPortal;
use berth_jobs::reports::{AttemptPhase as Phase, AttemptReport, DeviceLoss, ReportedEvidence};
use berth_store::ledger::{EVIDENCE, Posting, post};
use berth_types::ids::NodeId;
use berth_types::jobs::Failure;
use berth_types::ledger::TransferKind;
use berth_types::time::Timestamp;
use futures::FutureExt;
use serde_json::{Value, json};

/// Creates a report about an attempt. `seen` has the milliseconds of the process and the lost milliseconds of
/// its devices.
fn status(job: &str, number: u32, phase: Phase, metered_ms: i64, seen: Option<(i64, i64)>) -> AttemptReport {
    let ended = phase.has_ended();
    AttemptReport {
        metered_ms,
        exit_code: ended.then_some(0),
        log_bytes: ended.then_some(0),
        evidence: seen.map(|(process_ms, lost_ms)| ReportedEvidence {
            process_ms,
            // A worker's report without a negative time: the parse of messages has this bound.
            device_ms: (process_ms - lost_ms).max(0),
            lost_ms,
            busy_ms: None,
            losses: Vec::new(),
            memory_clearing: None,
        }),
        ..AttemptReport::new(job.parse().unwrap(), number, phase)
    }
}

async fn get_job(setup: &IdlePortal, job: &str) -> Value {
    setup.t.get(&setup.ada, &format!("/orgs/{}/jobs/{job}", setup.org)).await.expect(200)
}

/// Runs the scheduler until the job is assigned; returns the nodes of its ranks.
async fn placed(setup: &IdlePortal, job: &str) -> Vec<NodeId> {
    for _ in 0..100 {
        setup.t.portal.scheduler.pass().await.unwrap();
        let now = get_job(setup, job).await;
        if now["state"] == "assigned" {
            let devices = now["devices"].as_array().unwrap().clone();
            return devices.iter().map(|d| d["node"].as_str().unwrap().parse().unwrap()).collect();
        }
    }
    panic!("it never got its place: {}", get_job(setup, job).await);
}

async fn submit(setup: &IdlePortal, spec: Value) -> String {
    let mut body =
        json!({"name": "train", "offering": "h100-80gb", "command": ["true"], "max_duration_s": 60});
    body.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let job = setup.t.post(&setup.ada, &format!("/orgs/{}/jobs", setup.org), body).await.expect(201);
    job["id"].as_str().unwrap().to_owned()
}

async fn send_status(setup: &IdlePortal, node: NodeId, report: AttemptReport) {
    setup.t.portal.attempts.apply_status(node, report).await.unwrap();
}

/// Returns the evidence credits of a job: amounts and memos, oldest first.
async fn credits(setup: &IdlePortal, job: &str) -> Vec<(i64, String)> {
    let page = setup.t.get(&setup.ada, &format!("/orgs/{}/transfers?limit=200", setup.org)).await.expect(200);
    let rows = page["items"].as_array().unwrap().iter().rev();
    rows.filter(|r| r["source"] == "evidence" && r["source_id"] == job)
        .inspect(|r| assert_eq!(r["kind"], "credit", "{r}"))
        .map(|r| (r["amount_micros"].as_i64().unwrap(), r["memo"].as_str().unwrap().to_owned()))
        .collect()
}

/// Returns the states of a job with their times.
async fn history(setup: &IdlePortal, job: &str) -> (Vec<String>, Vec<Timestamp>) {
    let events = setup.t.get(&setup.ada, &format!("/orgs/{}/jobs/{job}/events", setup.org)).await.expect(200);
    let event = |e: &Value| {
        (e["state"].as_str().unwrap().to_owned(), e["at"].as_str().unwrap().parse::<Timestamp>().unwrap())
    };
    events["items"].as_array().unwrap().iter().map(event).unzip()
}

/// Runs a job of one rank with these values; returns its credit.
async fn run_job(setup: &IdlePortal, metered_ms: i64, seen: Option<(i64, i64)>) -> i64 {
    let job = submit(setup, json!({})).await;
    let node = placed(setup, &job).await[0];
    for phase in [Phase::Running, Phase::Ended, Phase::Clean] {
        send_status(setup, node, status(&job, 1, phase, metered_ms, seen)).await;
    }
    let (back, done) = (credits(setup, &job).await, get_job(setup, &job).await);
    let sum: i64 = back.iter().map(|(micros, _)| *micros).sum();
    assert_eq!((&done["cost_micros"], &done["credited_micros"]), (&json!(metered_ms), &json!(sum)), "{done}");
    sum
}

#[tokio::test]
async fn a_meter_ahead_of_the_portals_clock_is_bounded_and_recorded_once() {
    for (engine, db, _location) in engines("meter_ahead").await {
        let setup = IdlePortal::on(db).await;
        let job = submit(&setup, json!({"max_duration_s": 7_200})).await;
        let node = placed(&setup, &job).await[0];
        setup.t.clock.advance_s(60);
        // An hour of use a minute after the placement.
        for phase in [Phase::Running, Phase::Ended, Phase::Ended, Phase::Clean] {
            send_status(&setup, node, status(&job, 1, phase, 3_600_000, None)).await;
        }
        let done = get_job(&setup, &job).await;
        // A minute and ten seconds of slack, and some readings of the clock.
        let cost = done["cost_micros"].as_i64().unwrap();
        assert!((70_000..70_100).contains(&cost), "{engine}: {done}");
        let path = format!("/orgs/{}/audit-events?limit=200", setup.org);
        let audit = setup.t.get(&setup.ada, &path).await.expect(200);
        let events = audit["items"].as_array().unwrap().iter();
        let refused = events.filter(|event| event["action"] == "attempt.meter_refused").count();
        assert_eq!(refused, 1, "{engine}: {audit}");
        setup.assert_books_balance().await;
    }
}

#[tokio::test]
async fn an_attempt_that_ended_before_its_first_report_counts_as_run() {
    for (engine, db, _location) in engines("over_at_once").await {
        let setup = IdlePortal::on(db).await;
        let job = submit(&setup, json!({})).await;
        let node = placed(&setup, &job).await[0];
        send_status(&setup, node, status(&job, 1, Phase::Preparing, 0, None)).await;
        let end = AttemptReport { began: true, ..status(&job, 1, Phase::Clean, 7, None) };
        for _ in 0..2 {
            send_status(&setup, node, end.clone()).await;
        }
        let done = get_job(&setup, &job).await;
        let at = |name: &str| done[name].as_str().unwrap().parse::<Timestamp>().unwrap().micros();
        assert_eq!(
            (&done["state"], &done["cost_micros"]),
            (&json!("succeeded"), &json!(7)),
            "{engine}: {done}"
        );
        let ran = at("ended_at") - at("started_at");
        assert!(
            (0..=7_000).contains(&ran),
            "{engine}: by what it metered, not before it was submitted: {ran}"
        );
        let (states, times) = history(&setup, &job).await;
        assert_eq!(states, ["queued", "assigned", "starting", "running", "succeeded"], "{engine}");
        assert!(times.is_sorted(), "{engine}: {times:?}");

        // A job without a start has no start time.
        let job = submit(&setup, json!({})).await;
        let node = placed(&setup, &job).await[0];
        send_status(&setup, node, status(&job, 1, Phase::Clean, 0, None)).await;
        assert_eq!(get_job(&setup, &job).await["started_at"], Value::Null, "{engine}");
    }
}

#[tokio::test]
async fn preparation_progress_is_a_reason_until_the_job_runs() {
    for (engine, db, _location) in engines("preparation").await {
        let setup = IdlePortal::on(db).await;
        let preparing = |job: &str, progress: &str| AttemptReport {
            progress: Some(progress.to_owned()),
            ..status(job, 1, Phase::Preparing, 0, None)
        };
        let job = submit(&setup, json!({})).await;
        let node = placed(&setup, &job).await[0];
        let shows_progress = async |progress: &str| {
            send_status(&setup, node, preparing(&job, progress)).await;
            get_job(&setup, &job).await["reasons"]
                .as_array()
                .unwrap()
                .iter()
                .any(|reason| *reason == *progress)
        };
        assert!(shows_progress("Fetching the volume data: 1 of 3 MB.").await, "{engine}");
        assert!(shows_progress("Fetching the volume data: 2 of 3 MB.").await, "{engine}");
        send_status(&setup, node, status(&job, 1, Phase::Running, 1, None)).await;
        assert!(!shows_progress("Fetching the volume data: 3 of 3 MB.").await, "{engine}: an old word");

        let gang = submit(&setup, json!({"nodes": 2})).await;
        let nodes = placed(&setup, &gang).await;
        send_status(&setup, nodes[1], preparing(&gang, "Restoring the checkpoint: 4 of 5 MB.")).await;
        let reasons = get_job(&setup, &gang).await["reasons"].to_string();
        assert!(reasons.contains("Rank 1: Restoring the checkpoint: 4 of 5 MB."), "{engine} {reasons}");
    }
}

#[tokio::test]
async fn a_gang_counts_as_run_when_its_last_rank_ended_before_its_first_report() {
    for (engine, db, _location) in engines("gang_over_at_once").await {
        let setup = IdlePortal::on(db).await;
        let over = |job: &str, metered_ms| AttemptReport {
            began: true,
            ..status(job, 1, Phase::Clean, metered_ms, None)
        };
        // The first rank still runs.
        let gang = submit(&setup, json!({"nodes": 2})).await;
        let nodes = placed(&setup, &gang).await;
        send_status(&setup, nodes[0], status(&gang, 1, Phase::Running, 20, None)).await;
        assert_eq!(get_job(&setup, &gang).await["state"], "assigned", "{engine}: one has not begun");
        send_status(&setup, nodes[1], over(&gang, 7)).await;
        assert_eq!(get_job(&setup, &gang).await["state"], "running", "{engine}: one goes on");
        send_status(&setup, nodes[0], status(&gang, 1, Phase::Clean, 30, None)).await;
        // Both ranks end before their first report.
        let brief = submit(&setup, json!({"nodes": 2})).await;
        let nodes = placed(&setup, &brief).await;
        send_status(&setup, nodes[0], over(&brief, 5)).await;
        assert_eq!(get_job(&setup, &brief).await["state"], "assigned", "{engine}: nobody knows of the other");
        send_status(&setup, nodes[1], over(&brief, 7)).await;
        for job in [&gang, &brief] {
            let (states, times) = history(&setup, job).await;
            assert_eq!(states, ["queued", "assigned", "running", "succeeded"], "{engine}");
            assert!(times.is_sorted(), "{engine}: {times:?}");
            let done = get_job(&setup, job).await;
            assert!(done["started_at"].is_string() && done["held_micros"] == 0, "{engine} {done}");
        }
    }
}

#[tokio::test]
async fn metered_time_without_evidence_is_credited_once() {
    for (engine, db, _location) in engines("evidence").await {
        let mut setup = IdlePortal::on(db).await;
        let before = setup.balance().await.0;
        let job = submit(&setup, json!({})).await;
        let node = placed(&setup, &job).await[0];
        send_status(&setup, node, status(&job, 1, Phase::Running, 5_000, Some((5_000, 1_000)))).await;
        // A late status reduces nothing.
        send_status(&setup, node, status(&job, 1, Phase::Running, 6_000, Some((4_000, 500)))).await;
        let shown = get_job(&setup, &job).await;
        let seen = json!([{"rank": 0, "process_ms": 5_000, "device_ms": 4_000, "lost_ms": 1_000}]);
        assert_eq!(shown["evidence"], seen, "{engine}");
        assert!(credits(&setup, &job).await.is_empty(), "{engine}: not before the end");
        for _ in 0..3 {
            send_status(&setup, node, status(&job, 1, Phase::Ended, 10_000, Some((10_000, 2_500)))).await;
        }
        send_status(&setup, node, status(&job, 1, Phase::Clean, 10_000, Some((10_000, 9_000)))).await;
        let done = get_job(&setup, &job).await;
        assert_eq!(done["evidence"][0]["lost_ms"], 2_500, "{engine}: what came with the end stands");
        assert_eq!((&done["cost_micros"], &done["credited_micros"]), (&json!(10_000), &json!(2_500)));
        let board = done["devices"][0]["gpu_uuid"].as_str().unwrap();
        let memo = format!("Credit for 2.5 s without an answer of {board} (attempt 1)");
        assert_eq!(credits(&setup, &job).await, [(2_500, memo)], "{engine}");
        assert_eq!(setup.balance().await, (before - 7_500, 0), "{engine}");

        assert_eq!(run_job(&setup, 10_000, None).await, 0, "{engine}: an older worker");
        assert_eq!(run_job(&setup, 10_000, Some((9_000, 0))).await, 0, "{engine}: within the tolerance");
        assert_eq!(run_job(&setup, 10_000, Some((6_000, 0))).await, 3_000, "{engine}: beyond the process");
        assert_eq!(
            run_job(&setup, 10_000, Some((10_000, 60_000))).await,
            10_000,
            "{engine}: never more than it cost"
        );

        // After a power failure the end is unknown, and the earlier evidence still counts.
        let cut = submit(&setup, json!({})).await;
        let node = placed(&setup, &cut).await[0];
        send_status(&setup, node, status(&cut, 1, Phase::Running, 10_000, Some((10_000, 1_000)))).await;
        let unknown = Failure { code: "attempt.unknown_outcome".to_owned(), detail: String::new() };
        for phase in [Phase::Ended, Phase::Clean] {
            send_status(
                &setup,
                node,
                AttemptReport {
                    exit_code: None,
                    failure: Some(unknown.clone()),
                    ..status(&cut, 1, phase, 0, None)
                },
            )
            .await;
        }
        let done = get_job(&setup, &cut).await;
        assert_eq!(
            (&done["state"], &done["metered_ms"]),
            (&json!("failed"), &json!(10_000)),
            "{engine} {done}"
        );
        assert_eq!(done["evidence"][0]["process_ms"], 10_000, "{engine} {done}");
        assert_eq!(done["credited_micros"], 1_000, "{engine} {done}");

        // The ledger and the invoice contain the credits.
        let back = 2_500 + 3_000 + 10_000 + 1_000;
        assert_eq!(setup.balance().await, (before - 60_000 + back, 0), "{engine}");
        let books = setup.t.post(&setup.operator, "/operator/reconciliation", Value::Null).await.expect(200);
        assert_eq!(books["mismatches"], json!([]), "{engine} {books}");
        setup.let_time_pass(20 * DAY).await;
        setup.t.portal.invoices.bill_last_month().await.unwrap();
        let invoices = setup.t.get(&setup.ada, &format!("/orgs/{}/invoices", setup.org)).await.expect(200);
        let document = &invoices["items"][0]["document"];
        let lines = document["lines"].as_array().unwrap();
        let line = lines.iter().find(|l| l["item"].as_str().unwrap().contains("evidence")).unwrap();
        assert_eq!(line["amount_micros"], -back, "{engine} {document}");
        assert_eq!(document["subtotal_micros"], 60_000 - back, "{engine} {document}");
    }
}

/// Posts an evidence credit without an attempt.
async fn post_evidence_credit(setup: &IdlePortal, amount_micros: i64) {
    let at = setup.t.portal.context.now();
    let posting = Posting {
        id: setup.t.portal.context.new_id(at),
        org: setup.org.parse().unwrap(),
        kind: TransferKind::Credit,
        amount_micros,
        pending: None,
        source: EVIDENCE,
        source_id: format!("a run of {amount_micros}"),
        seq: 1,
        memo: String::new(),
        at,
    };
    let work = setup.t.portal.context.db.write(move |tx| {
        let posting = posting.clone();
        async move { post(tx, &posting).await }.boxed()
    });
    work.await.unwrap();
}

#[tokio::test]
async fn credits_for_an_earlier_month_become_a_credit_note() {
    for (engine, db, _location) in engines("evidence_notes").await {
        let mut setup = IdlePortal::on(db).await;
        let taxes = json!({"taxes": [{"name": "VAT", "basis_points": 2_000}], "due_days": 14});
        setup.t.call(&setup.operator, "PUT", "/operator/billing-settings", taxes).await.expect(200);
        let limit = json!({"credit_limit_micros": 50_000_000});
        let path = format!("/operator/orgs/{}/credit-limit", setup.org);
        setup.t.call(&setup.operator, "PUT", &path, limit).await.expect(200);
        // The credits equal the charges of the month, so the invoice has a total of 0 and is paid.
        run_job(&setup, 10_000, None).await;
        post_evidence_credit(&setup, 10_000).await;
        setup.let_time_pass(20 * DAY).await;
        assert_eq!(
            setup.t.portal.invoices.bill_last_month().await.unwrap(),
            1,
            "{engine}: a grant alone is not billed"
        );
        let before = setup.balance().await;
        post_evidence_credit(&setup, 1_000_000).await;
        setup.let_time_pass(31 * DAY).await;
        let made = futures::future::join_all((0..3).map(|_| setup.t.portal.invoices.bill_last_month())).await;
        assert_eq!(made.into_iter().map(Result::unwrap).sum::<usize>(), 1, "{engine}: once");
        let page = setup.t.get(&setup.ada, &format!("/orgs/{}/invoices", setup.org)).await.expect(200);
        let [note, nothing] = &page["items"].as_array().unwrap()[..] else { panic!("{page}") };
        assert_eq!(
            (&nothing["kind"], &nothing["state"], &nothing["document"]["total_micros"]),
            (&json!("invoice"), &json!("paid"), &json!(0)),
            "{engine} {page}"
        );
        assert_eq!(nothing["due_at"], Value::Null, "{engine} {page}");
        assert_eq!(
            (&note["kind"], &note["state"], &note["number"]),
            (&json!("credit_note"), &json!("paid"), &json!(2)),
            "{engine} {page}"
        );
        assert_eq!((&note["corrects"], &note["due_at"]), (&Value::Null, &Value::Null), "{engine} {page}");
        let document = &note["document"];
        assert_eq!(document["lines"].as_array().unwrap().len(), 1, "{engine} {page}");
        assert_eq!(
            (&document["subtotal_micros"], &document["total_micros"]),
            (&json!(-1_000_000), &json!(-1_200_000)),
            "{engine} {page}"
        );
        assert_eq!(
            setup.balance().await,
            (before.0 + 1_200_000, 0),
            "{engine}: the note returns the taxes only"
        );
        let close = format!("/operator/invoices/{}/void", note["id"].as_str().unwrap());
        setup.t.post(&setup.operator, &close, Value::Null).await.problem(409, "invoice.closed");
    }
}

#[tokio::test]
async fn evidence_is_combined_over_ranks_and_separate_for_attempts() {
    for (engine, db, _location) in engines("evidence_ranks").await {
        let setup = IdlePortal::on(db).await;
        let gang = submit(&setup, json!({"nodes": 2})).await;
        let nodes = placed(&setup, &gang).await;
        for node in &nodes {
            send_status(&setup, *node, status(&gang, 1, Phase::Running, 2_000, Some((2_000, 0)))).await;
        }
        send_status(&setup, nodes[0], status(&gang, 1, Phase::Ended, 6_000, Some((6_000, 1_000)))).await;
        assert!(credits(&setup, &gang).await.is_empty(), "{engine}: not before all have ended");
        send_status(&setup, nodes[1], status(&gang, 1, Phase::Ended, 10_000, Some((10_000, 800)))).await;
        let done = get_job(&setup, &gang).await;
        assert_eq!(done["evidence"].as_array().unwrap().len(), 2, "{engine} {done}");
        let amounts: Vec<i64> = credits(&setup, &gang).await.into_iter().map(|(micros, _)| micros).collect();
        assert_eq!(amounts, [2_000], "{engine}: a second of two boards");
        for node in &nodes {
            send_status(&setup, *node, status(&gang, 1, Phase::Clean, 10_000, None)).await;
        }

        // Each attempt is credited by its own evidence, up to its own charge.
        let flaky = submit(&setup, json!({"retry": {"max": 1, "on": ["exit"]}})).await;
        let mut amounts = Vec::new();
        for (number, metered_ms, lost_ms, code) in [(1, 4_000, 9_000, 1), (2, 5_000, 1_000, 0)] {
            let node = placed(&setup, &flaky).await[0];
            for phase in [Phase::Running, Phase::Ended, Phase::Ended, Phase::Clean] {
                let report = status(&flaky, number, phase, metered_ms, Some((metered_ms, lost_ms)));
                let report = AttemptReport { exit_code: report.exit_code.map(|_| code), ..report };
                send_status(&setup, node, report).await;
            }
            amounts = credits(&setup, &flaky).await.into_iter().map(|(micros, _)| micros).collect();
        }
        assert_eq!(amounts, [4_000, 1_000], "{engine}");
        let done = get_job(&setup, &flaky).await;
        assert_eq!((&done["cost_micros"], &done["credited_micros"]), (&json!(9_000), &json!(5_000)));
        let books = setup.t.post(&setup.operator, "/operator/reconciliation", Value::Null).await.expect(200);
        assert_eq!(books["mismatches"], json!([]), "{engine} {books}");
    }
}

/// Runs a gang of two ranks for ten seconds; returns the credit for board losses at these process ages.
async fn run_gang_with_losses(setup: &IdlePortal, lost: [&[(i64, i64)]; 2]) -> (i64, String) {
    let gang = submit(setup, json!({"nodes": 2})).await;
    let nodes = placed(setup, &gang).await;
    let report = |phase: Phase, metered_ms: i64, lost: &[(i64, i64)]| {
        let sum = lost.iter().map(|(from, until)| until - from).sum();
        let mut report = status(&gang, 1, phase, metered_ms, Some((metered_ms, sum)));
        let losses = lost.iter().map(|(from, until)| DeviceLoss { from_ms: *from, until_ms: *until });
        report.evidence.as_mut().unwrap().losses = losses.collect();
        report
    };
    for (phase, metered_ms) in [(Phase::Running, 1_000), (Phase::Ended, 10_000), (Phase::Clean, 10_000)] {
        // The first status has no losses.
        let known = if phase == Phase::Running { [&[][..]; 2] } else { lost };
        for (node, lost) in nodes.iter().zip(known) {
            send_status(setup, *node, report(phase, metered_ms, lost)).await;
        }
    }
    let mut back = credits(setup, &gang).await;
    assert_eq!(back.len(), 1, "{back:?}");
    back.pop().unwrap()
}

#[tokio::test]
async fn lost_times_of_ranks_are_added_without_their_overlap() {
    for (engine, db, _location) in engines("evidence_gang").await {
        let setup = IdlePortal::on(db).await;
        // The clock differs by a few milliseconds between the two reports.
        let near = |micros: i64, ms: i64| (micros - ms * 2).abs() <= 200;
        let (apart, memo) = run_gang_with_losses(&setup, [&[(1_000, 4_000)], &[(6_000, 8_000)]]).await;
        assert_eq!(apart, 10_000, "{engine}: five seconds of two boards");
        assert_eq!(memo, "Credit for 5 s without an answer of one of 2 devices (attempt 1)");
        let (same, _) = run_gang_with_losses(&setup, [&[(1_000, 4_000)], &[(1_000, 4_000)]]).await;
        assert!(near(same, 3_000), "{engine}: {same}");
        let (part, _) = run_gang_with_losses(&setup, [&[(1_000, 4_000)], &[(3_000, 5_000)]]).await;
        assert!(near(part, 4_000), "{engine}: {part}");
        let (one, memo) = run_gang_with_losses(&setup, [&[(1_000, 2_000), (5_000, 6_000)], &[]]).await;
        assert_eq!(one, 4_000, "{engine}");
        assert!(memo.contains("GPU-"), "{engine}: {memo}");
        let books = setup.t.post(&setup.operator, "/operator/reconciliation", Value::Null).await.expect(200);
        assert_eq!(books["mismatches"], json!([]), "{engine} {books}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_of_a_lost_board_is_credited() {
    let setup = WorkerPortal::open().await;
    let evidence_ms = |j: &Value, field: &str| j["evidence"][0][field].as_i64().unwrap_or(0);
    let job = setup.submit_script("exec sleep 300").await;
    let running = setup.until(&job, |j| evidence_ms(j, "device_ms") > 0).await;
    assert_eq!(evidence_ms(&running, "lost_ms"), 0, "{running}");
    // The portal bounds the meter by its own clock, which is far behind the worker's on a busy machine.
    setup.t.clock.advance_s(60);
    let boards = setup.data.join("simulated-boards");
    // The rename is atomic, so that no call reads a partial file.
    std::fs::write(boards.join("next"), json!({"lost": [running["devices"][0]["gpu_uuid"]]}).to_string())
        .unwrap();
    std::fs::rename(boards.join("next"), boards.join("faults.json")).unwrap();
    setup.until(&job, |j| evidence_ms(j, "lost_ms") >= 2_000).await;
    std::fs::remove_file(boards.join("faults.json")).unwrap();
    let answered = evidence_ms(&setup.job(&job).await, "device_ms");
    setup.until(&job, |j| evidence_ms(j, "device_ms") >= answered + 1_000).await;
    let path = format!("/orgs/{}/jobs/{job}/cancel", setup.org);
    setup.t.post(&setup.ada, &path, Value::Null).await.expect(202);
    let done = setup.until_ended(&job).await;
    assert_eq!(done["state"], "cancelled", "{done}");
    let (process, lost) = (evidence_ms(&done, "process_ms"), evidence_ms(&done, "lost_ms"));
    assert!(lost >= 2_000 && evidence_ms(&done, "device_ms") + lost <= process, "{done}");
    assert!(evidence_ms(&done, "busy_ms") > 0, "its process was on the device: {done}");
    let metered = done["metered_ms"].as_i64().unwrap();
    assert!((process - 1_000..=process).contains(&metered), "{done}");

    let rate = i128::from(done["nano_per_second"].as_i64().unwrap());
    let worth = i64::try_from(rate * i128::from(lost) / 1_000_000).unwrap();
    assert_eq!(done["credited_micros"], worth, "{done}");
    let page = setup.t.get(&setup.ada, &format!("/orgs/{}/transfers?limit=200", setup.org)).await.expect(200);
    let rows: Vec<&Value> =
        page["items"].as_array().unwrap().iter().filter(|r| r["source"] == "evidence").collect();
    assert_eq!(rows.len(), 1, "{page}");
    assert_eq!((&rows[0]["amount_micros"], &rows[0]["source_id"]), (&json!(worth), &json!(job)), "{page}");
    // The charge still equals the meter.
    setup.assert_settled(&done).await;
    let books = setup.t.post(&setup.operator, "/operator/reconciliation", Value::Null).await.expect(200);
    assert_eq!(books["mismatches"], json!([]), "{books}");
    setup.until_all_free().await;
}

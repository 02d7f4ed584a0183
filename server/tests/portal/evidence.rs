//! What workers tell of attempts: how far a preparation is, and what was seen of processes and devices beside what
//! was charged, with what comes back where it does not bear a charge out.

use crate::common::engines;
use crate::harbour::{DAY, Harbour};
use crate::quay::Quay;
use berth_proto::{AttemptId, Evidence, Failure, Lost, Phase, Status};
use berth_store::ledger::{EVIDENCE, Posting, post};
use berth_types::ids::NodeId;
use berth_types::ledger::TransferKind;
use berth_types::time::Timestamp;
use futures::FutureExt;
use serde_json::{Value, json};

/// What a worker says of an attempt; `seen`: how long its process existed, and what it lost of that.
fn status(job: &str, number: u32, phase: Phase, metered_ms: i64, seen: Option<(i64, i64)>) -> Status {
    let ended = matches!(phase, Phase::Ended | Phase::Clean);
    Status {
        attempt: Some(AttemptId::new(job, number)),
        phase: phase.into(),
        metered_ms,
        exit_code: ended.then_some(0),
        log_bytes: ended.then_some(0),
        evidence: seen.map(|(process_ms, lost_ms)| Evidence {
            process_ms,
            device_ms: process_ms - lost_ms,
            lost_ms,
            ..Evidence::default()
        }),
        ..Status::default()
    }
}

async fn show(h: &Harbour, job: &str) -> Value {
    h.t.get(&h.ada, &format!("/orgs/{}/jobs/{job}", h.org)).await.expect(200)
}

/// The nodes of the job's ranks, once it has its place.
async fn placed(h: &Harbour, job: &str) -> Vec<NodeId> {
    for _ in 0..100 {
        h.t.portal.scheduler.pass().await.unwrap();
        let now = show(h, job).await;
        if now["state"] == "assigned" {
            let devices = now["devices"].as_array().unwrap().clone();
            return devices.iter().map(|d| d["node"].as_str().unwrap().parse().unwrap()).collect();
        }
    }
    panic!("it never got its place: {}", show(h, job).await);
}

async fn submit(h: &Harbour, spec: Value) -> String {
    let mut body =
        json!({"name": "train", "offering": "h100-80gb", "command": ["true"], "max_duration_s": 60});
    body.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let job = h.t.post(&h.ada, &format!("/orgs/{}/jobs", h.org), body).await.expect(201);
    job["id"].as_str().unwrap().to_owned()
}

async fn say(h: &Harbour, node: NodeId, status: Status) {
    h.t.portal.attempts.apply_status(node, status).await.unwrap();
}

/// What evidence gave back for a job: amounts and memos, oldest first.
async fn credits(h: &Harbour, job: &str) -> Vec<(i64, String)> {
    let page = h.t.get(&h.ada, &format!("/orgs/{}/transfers?limit=200", h.org)).await.expect(200);
    let rows = page["items"].as_array().unwrap().iter().rev();
    rows.filter(|r| r["source"] == "evidence" && r["source_id"] == job)
        .inspect(|r| assert_eq!(r["kind"], "credit", "{r}"))
        .map(|r| (r["amount_micros"].as_i64().unwrap(), r["memo"].as_str().unwrap().to_owned()))
        .collect()
}

/// The states that a job was in, and when it came into each.
async fn history(h: &Harbour, job: &str) -> (Vec<String>, Vec<Timestamp>) {
    let events = h.t.get(&h.ada, &format!("/orgs/{}/jobs/{job}/events", h.org)).await.expect(200);
    let event = |e: &Value| {
        (e["state"].as_str().unwrap().to_owned(), e["at"].as_str().unwrap().parse::<Timestamp>().unwrap())
    };
    events["items"].as_array().unwrap().iter().map(event).unzip()
}

/// A job of one rank that ran so; what came back of it.
async fn ran(h: &Harbour, metered_ms: i64, seen: Option<(i64, i64)>) -> i64 {
    let job = submit(h, json!({})).await;
    let node = placed(h, &job).await[0];
    for phase in [Phase::Running, Phase::Ended, Phase::Clean] {
        say(h, node, status(&job, 1, phase, metered_ms, seen)).await;
    }
    let (back, done) = (credits(h, &job).await, show(h, &job).await);
    let sum: i64 = back.iter().map(|(micros, _)| *micros).sum();
    assert_eq!((&done["cost_micros"], &done["credited_micros"]), (&json!(metered_ms), &json!(sum)), "{done}");
    sum
}

#[tokio::test]
async fn what_was_over_before_it_was_told_of_has_run_all_the_same() {
    for (engine, db, _place) in engines("over_at_once").await {
        let h = Harbour::on(db).await;
        let job = submit(&h, json!({})).await;
        let node = placed(&h, &job).await[0];
        say(&h, node, status(&job, 1, Phase::Preparing, 0, None)).await;
        let end = Status { began: true, ..status(&job, 1, Phase::Clean, 7, None) };
        for _ in 0..2 {
            say(&h, node, end.clone()).await;
        }
        let done = show(&h, &job).await;
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
        let (states, times) = history(&h, &job).await;
        assert_eq!(states, ["queued", "assigned", "starting", "running", "succeeded"], "{engine}");
        assert!(times.is_sorted(), "{engine}: {times:?}");

        // One that was never started has not.
        let job = submit(&h, json!({})).await;
        let node = placed(&h, &job).await[0];
        say(&h, node, status(&job, 1, Phase::Clean, 0, None)).await;
        assert_eq!(show(&h, &job).await["started_at"], Value::Null, "{engine}");
    }
}

#[tokio::test]
async fn how_far_a_preparation_is_is_a_reason_until_the_job_runs() {
    for (engine, db, _place) in engines("preparation").await {
        let h = Harbour::on(db).await;
        let preparing = |job: &str, progress: &str| Status {
            progress: progress.to_owned(),
            ..status(job, 1, Phase::Preparing, 0, None)
        };
        let job = submit(&h, json!({})).await;
        let node = placed(&h, &job).await[0];
        let told = async |words: &str| {
            say(&h, node, preparing(&job, words)).await;
            show(&h, &job).await["reasons"].as_array().unwrap().iter().any(|reason| *reason == *words)
        };
        assert!(told("Fetching the volume data: 1 of 3 MB.").await, "{engine}");
        assert!(told("Fetching the volume data: 2 of 3 MB.").await, "{engine}");
        say(&h, node, status(&job, 1, Phase::Running, 1, None)).await;
        assert!(!told("Fetching the volume data: 3 of 3 MB.").await, "{engine}: an old word");

        let gang = submit(&h, json!({"nodes": 2})).await;
        let nodes = placed(&h, &gang).await;
        say(&h, nodes[1], preparing(&gang, "Restoring its checkpoint: 4 of 5 MB.")).await;
        let reasons = show(&h, &gang).await["reasons"].to_string();
        assert!(reasons.contains("Rank 1: Restoring its checkpoint: 4 of 5 MB."), "{engine} {reasons}");
    }
}

#[tokio::test]
async fn a_gang_has_run_when_its_last_rank_is_over_before_it_was_told_of() {
    for (engine, db, _place) in engines("gang_over_at_once").await {
        let h = Harbour::on(db).await;
        let over =
            |job: &str, metered_ms| Status { began: true, ..status(job, 1, Phase::Clean, metered_ms, None) };
        // The first rank goes on.
        let gang = submit(&h, json!({"nodes": 2})).await;
        let nodes = placed(&h, &gang).await;
        say(&h, nodes[0], status(&gang, 1, Phase::Running, 20, None)).await;
        assert_eq!(show(&h, &gang).await["state"], "assigned", "{engine}: one has not begun");
        say(&h, nodes[1], over(&gang, 7)).await;
        assert_eq!(show(&h, &gang).await["state"], "running", "{engine}: one goes on");
        say(&h, nodes[0], status(&gang, 1, Phase::Clean, 30, None)).await;
        // Both are over.
        let brief = submit(&h, json!({"nodes": 2})).await;
        let nodes = placed(&h, &brief).await;
        say(&h, nodes[0], over(&brief, 5)).await;
        assert_eq!(show(&h, &brief).await["state"], "assigned", "{engine}: nobody knows of the other");
        say(&h, nodes[1], over(&brief, 7)).await;
        for job in [&gang, &brief] {
            let (states, times) = history(&h, job).await;
            assert_eq!(states, ["queued", "assigned", "running", "succeeded"], "{engine}");
            assert!(times.is_sorted(), "{engine}: {times:?}");
            let done = show(&h, job).await;
            assert!(done["started_at"].is_string() && done["held_micros"] == 0, "{engine} {done}");
        }
    }
}

#[tokio::test]
async fn what_evidence_does_not_bear_out_is_given_back_once() {
    for (engine, db, _place) in engines("evidence").await {
        let mut h = Harbour::on(db).await;
        let before = h.balance().await.0;
        let job = submit(&h, json!({})).await;
        let node = placed(&h, &job).await[0];
        say(&h, node, status(&job, 1, Phase::Running, 5_000, Some((5_000, 1_000)))).await;
        // One that comes late takes nothing back.
        say(&h, node, status(&job, 1, Phase::Running, 6_000, Some((4_000, 500)))).await;
        let shown = show(&h, &job).await;
        let seen = json!([{"rank": 0, "process_ms": 5_000, "device_ms": 4_000, "lost_ms": 1_000}]);
        assert_eq!(shown["evidence"], seen, "{engine}");
        assert!(credits(&h, &job).await.is_empty(), "{engine}: not before the end");
        for _ in 0..3 {
            say(&h, node, status(&job, 1, Phase::Ended, 10_000, Some((10_000, 2_500)))).await;
        }
        say(&h, node, status(&job, 1, Phase::Clean, 10_000, Some((10_000, 9_000)))).await;
        let done = show(&h, &job).await;
        assert_eq!(done["evidence"][0]["lost_ms"], 2_500, "{engine}: what came with the end stands");
        assert_eq!((&done["cost_micros"], &done["credited_micros"]), (&json!(10_000), &json!(2_500)));
        let board = done["devices"][0]["gpu_uuid"].as_str().unwrap();
        let memo = format!("Credit for 2.5 s in which {board} did not answer (attempt 1)");
        assert_eq!(credits(&h, &job).await, [(2_500, memo)], "{engine}");
        assert_eq!(h.balance().await, (before - 7_500, 0), "{engine}");

        assert_eq!(ran(&h, 10_000, None).await, 0, "{engine}: an older worker");
        assert_eq!(ran(&h, 10_000, Some((9_000, 0))).await, 0, "{engine}: within the tolerance");
        assert_eq!(ran(&h, 10_000, Some((6_000, 0))).await, 3_000, "{engine}: beyond the process");
        assert_eq!(
            ran(&h, 10_000, Some((10_000, 60_000))).await,
            10_000,
            "{engine}: never more than it cost"
        );

        // The power failed: of its end nothing is known, and what was seen before still counts.
        let cut = submit(&h, json!({})).await;
        let node = placed(&h, &cut).await[0];
        say(&h, node, status(&cut, 1, Phase::Running, 10_000, Some((10_000, 1_000)))).await;
        let unknown = Failure { code: "attempt.unknown_outcome".to_owned(), detail: String::new() };
        for phase in [Phase::Ended, Phase::Clean] {
            say(
                &h,
                node,
                Status { exit_code: None, failure: Some(unknown.clone()), ..status(&cut, 1, phase, 0, None) },
            )
            .await;
        }
        let done = show(&h, &cut).await;
        assert_eq!(
            (&done["state"], &done["metered_ms"]),
            (&json!("failed"), &json!(10_000)),
            "{engine} {done}"
        );
        assert_eq!(done["evidence"][0]["process_ms"], 10_000, "{engine} {done}");
        assert_eq!(done["credited_micros"], 1_000, "{engine} {done}");

        // The books know of it, and so does the invoice.
        let back = 2_500 + 3_000 + 10_000 + 1_000;
        assert_eq!(h.balance().await, (before - 60_000 + back, 0), "{engine}");
        let books = h.t.post(&h.operator, "/operator/reconciliation", Value::Null).await.expect(200);
        assert_eq!(books["mismatches"], json!([]), "{engine} {books}");
        h.pass(20 * DAY).await;
        h.t.portal.invoices.bill_last_month().await.unwrap();
        let invoices = h.t.get(&h.ada, &format!("/orgs/{}/invoices", h.org)).await.expect(200);
        let document = &invoices["items"][0]["document"];
        let lines = document["lines"].as_array().unwrap();
        let line = lines.iter().find(|l| l["item"].as_str().unwrap().contains("evidence")).unwrap();
        assert_eq!(line["amount_micros"], -back, "{engine} {document}");
        assert_eq!(document["subtotal_micros"], 60_000 - back, "{engine} {document}");
    }
}

/// Credits what evidence gave back, without the run that it is of.
async fn given_back(h: &Harbour, amount_micros: i64) {
    let at = h.t.portal.context.now();
    let posting = Posting {
        id: h.t.portal.context.new_id(at),
        org: h.org.parse().unwrap(),
        kind: TransferKind::Credit,
        amount_micros,
        pending: None,
        source: EVIDENCE,
        source_id: format!("a run of {amount_micros}"),
        seq: 1,
        memo: String::new(),
        at,
    };
    let work = h.t.portal.context.db.write(move |tx| {
        let posting = posting.clone();
        async move { post(tx, &posting).await }.boxed()
    });
    work.await.unwrap();
}

#[tokio::test]
async fn what_comes_back_of_an_earlier_month_is_a_credit_note() {
    for (engine, db, _place) in engines("evidence_notes").await {
        let mut h = Harbour::on(db).await;
        let taxes = json!({"taxes": [{"name": "VAT", "basis_points": 2_000}], "due_days": 14});
        h.t.call(&h.operator, "PUT", "/operator/billing-settings", taxes).await.expect(200);
        let limit = json!({"credit_limit_micros": 50_000_000});
        let path = format!("/operator/orgs/{}/credit-limit", h.org);
        h.t.call(&h.operator, "PUT", &path, limit).await.expect(200);
        // All of a month comes back within it: that is an invoice of nothing, and nobody owes it.
        ran(&h, 10_000, None).await;
        given_back(&h, 10_000).await;
        h.pass(20 * DAY).await;
        assert_eq!(
            h.t.portal.invoices.bill_last_month().await.unwrap(),
            1,
            "{engine}: a grant alone is not billed"
        );
        let before = h.balance().await;
        given_back(&h, 1_000_000).await;
        h.pass(31 * DAY).await;
        let made = futures::future::join_all((0..3).map(|_| h.t.portal.invoices.bill_last_month())).await;
        assert_eq!(made.into_iter().map(Result::unwrap).sum::<usize>(), 1, "{engine}: once");
        let page = h.t.get(&h.ada, &format!("/orgs/{}/invoices", h.org)).await.expect(200);
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
        assert_eq!(h.balance().await, (before.0 + 1_000_000, 0), "{engine}: a document moves no money");
        let close = format!("/operator/invoices/{}/void", note["id"].as_str().unwrap());
        h.t.post(&h.operator, &close, Value::Null).await.problem(409, "invoice.closed");
    }
}

#[tokio::test]
async fn ranks_are_looked_at_together_and_attempts_apart() {
    for (engine, db, _place) in engines("evidence_ranks").await {
        let h = Harbour::on(db).await;
        let gang = submit(&h, json!({"nodes": 2})).await;
        let nodes = placed(&h, &gang).await;
        for node in &nodes {
            say(&h, *node, status(&gang, 1, Phase::Running, 2_000, Some((2_000, 0)))).await;
        }
        say(&h, nodes[0], status(&gang, 1, Phase::Ended, 6_000, Some((6_000, 1_000)))).await;
        assert!(credits(&h, &gang).await.is_empty(), "{engine}: not before all have ended");
        say(&h, nodes[1], status(&gang, 1, Phase::Ended, 10_000, Some((10_000, 800)))).await;
        let done = show(&h, &gang).await;
        assert_eq!(done["evidence"].as_array().unwrap().len(), 2, "{engine} {done}");
        let amounts: Vec<i64> = credits(&h, &gang).await.into_iter().map(|(micros, _)| micros).collect();
        assert_eq!(amounts, [2_000], "{engine}: a second of two boards");
        for node in &nodes {
            say(&h, *node, status(&gang, 1, Phase::Clean, 10_000, None)).await;
        }

        // Each attempt is borne out by itself, up to what it alone was charged.
        let flaky = submit(&h, json!({"retry": {"max": 1, "on": ["exit"]}})).await;
        let mut amounts = Vec::new();
        for (number, metered_ms, lost_ms, code) in [(1, 4_000, 9_000, 1), (2, 5_000, 1_000, 0)] {
            let node = placed(&h, &flaky).await[0];
            for phase in [Phase::Running, Phase::Ended, Phase::Ended, Phase::Clean] {
                let said = status(&flaky, number, phase, metered_ms, Some((metered_ms, lost_ms)));
                say(&h, node, Status { exit_code: said.exit_code.map(|_| code), ..said }).await;
            }
            amounts = credits(&h, &flaky).await.into_iter().map(|(micros, _)| micros).collect();
        }
        assert_eq!(amounts, [4_000, 1_000], "{engine}");
        let done = show(&h, &flaky).await;
        assert_eq!((&done["cost_micros"], &done["credited_micros"]), (&json!(9_000), &json!(5_000)));
        let books = h.t.post(&h.operator, "/operator/reconciliation", Value::Null).await.expect(200);
        assert_eq!(books["mismatches"], json!([]), "{engine} {books}");
    }
}

/// Both ranks of a gang ran for ten seconds; what comes back when each lost its board at these ages.
async fn gang_lost(h: &Harbour, lost: [&[(i64, i64)]; 2]) -> (i64, String) {
    let gang = submit(h, json!({"nodes": 2})).await;
    let nodes = placed(h, &gang).await;
    let said = |phase: Phase, metered_ms: i64, lost: &[(i64, i64)]| {
        let sum = lost.iter().map(|(from, until)| until - from).sum();
        let mut said = status(&gang, 1, phase, metered_ms, Some((metered_ms, sum)));
        let lost = lost.iter().map(|(from, until)| Lost { from_ms: *from, until_ms: *until });
        said.evidence.as_mut().unwrap().lost = lost.collect();
        said
    };
    for (phase, metered_ms) in [(Phase::Running, 1_000), (Phase::Ended, 10_000), (Phase::Clean, 10_000)] {
        // Nothing is lost yet while it is young.
        let known = if phase == Phase::Running { [&[][..]; 2] } else { lost };
        for (node, lost) in nodes.iter().zip(known) {
            say(h, *node, said(phase, metered_ms, lost)).await;
        }
    }
    let mut back = credits(h, &gang).await;
    assert_eq!(back.len(), 1, "{back:?}");
    back.pop().unwrap()
}

#[tokio::test]
async fn what_ranks_lost_one_after_the_other_is_added_up() {
    for (engine, db, _place) in engines("evidence_gang").await {
        let h = Harbour::on(db).await;
        // The clock moves by a few milliseconds between the reports of the two, as they do.
        let near = |micros: i64, ms: i64| (micros - ms * 2).abs() <= 200;
        let (apart, memo) = gang_lost(&h, [&[(1_000, 4_000)], &[(6_000, 8_000)]]).await;
        assert_eq!(apart, 10_000, "{engine}: five seconds of two boards");
        assert_eq!(memo, "Credit for 5 s in which one of its 2 devices did not answer (attempt 1)");
        let (same, _) = gang_lost(&h, [&[(1_000, 4_000)], &[(1_000, 4_000)]]).await;
        assert!(near(same, 3_000), "{engine}: {same}");
        let (part, _) = gang_lost(&h, [&[(1_000, 4_000)], &[(3_000, 5_000)]]).await;
        assert!(near(part, 4_000), "{engine}: {part}");
        let (one, memo) = gang_lost(&h, [&[(1_000, 2_000), (5_000, 6_000)], &[]]).await;
        assert_eq!(one, 4_000, "{engine}");
        assert!(memo.contains("GPU-"), "{engine}: {memo}");
        let books = h.t.post(&h.operator, "/operator/reconciliation", Value::Null).await.expect(200);
        assert_eq!(books["mismatches"], json!([]), "{engine} {books}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_board_that_is_lost_for_a_while_is_not_paid_for() {
    let quay = Quay::open().await;
    let told = |j: &Value, what: &str| j["evidence"][0][what].as_i64().unwrap_or(0);
    let job = quay.script("exec sleep 300").await;
    let running = quay.until(&job, |j| told(j, "device_ms") > 0).await;
    assert_eq!(told(&running, "lost_ms"), 0, "{running}");
    let boards = quay.data.join("simulated-boards");
    // Renamed to its place, so that no call finds half of it.
    std::fs::write(boards.join("next"), json!({"lost": [running["devices"][0]["gpu_uuid"]]}).to_string())
        .unwrap();
    std::fs::rename(boards.join("next"), boards.join("faults.json")).unwrap();
    quay.until(&job, |j| told(j, "lost_ms") >= 2_000).await;
    std::fs::remove_file(boards.join("faults.json")).unwrap();
    let answered = told(&quay.job(&job).await, "device_ms");
    quay.until(&job, |j| told(j, "device_ms") >= answered + 1_000).await;
    let path = format!("/orgs/{}/jobs/{job}/cancel", quay.org);
    quay.t.post(&quay.ada, &path, Value::Null).await.expect(202);
    let done = quay.ended(&job).await;
    assert_eq!(done["state"], "cancelled", "{done}");
    let (process, lost) = (told(&done, "process_ms"), told(&done, "lost_ms"));
    assert!(lost >= 2_000 && told(&done, "device_ms") + lost <= process, "{done}");
    assert!(told(&done, "busy_ms") > 0, "its process was on the device: {done}");
    let metered = done["metered_ms"].as_i64().unwrap();
    assert!((process - 1_000..=process).contains(&metered), "{done}");

    let rate = i128::from(done["nano_per_second"].as_i64().unwrap());
    let worth = i64::try_from(rate * i128::from(lost) / 1_000_000).unwrap();
    assert_eq!(done["credited_micros"], worth, "{done}");
    let page = quay.t.get(&quay.ada, &format!("/orgs/{}/transfers?limit=200", quay.org)).await.expect(200);
    let rows: Vec<&Value> =
        page["items"].as_array().unwrap().iter().filter(|r| r["source"] == "evidence").collect();
    assert_eq!(rows.len(), 1, "{page}");
    assert_eq!((&rows[0]["amount_micros"], &rows[0]["source_id"]), (&json!(worth), &json!(job)), "{page}");
    // The charge stays as it was metered.
    quay.settled(&done).await;
    let books = quay.t.post(&quay.operator, "/operator/reconciliation", Value::Null).await.expect(200);
    assert_eq!(books["mismatches"], json!([]), "{books}");
    quay.all_free().await;
}

//! Tests of leases: a disconnected node ends its work before the portal starts it elsewhere, and no work runs
//! or is charged twice. The portal's side uses a manual clock; `cut_off` tests both sides with real
//! processes.

use crate::common::engines;
use crate::idle_portal::{DAY, IdlePortal, node};
use berth_core::lease::{LeaseLimits, NodeLease};
use berth_fleet::leases::LeaseGuard;
use berth_foundation::live::SessionGuard;
use berth_jobs::jobs::LogEnd;
use berth_jobs::reports::{AttemptPhase as Phase, AttemptReport, ReportedEvidence};
use berth_shim::lease::LeaseTerm;
use berth_store as store;
use berth_types::ids::NodeId;
use futures::FutureExt;
use proptest::prelude::*;
use serde_json::{Value, json};

/// The nodes of an idle portal with a session and a lease guard each; `None` for a disconnected node.
struct LeaseSetup {
    idle: IdlePortal,
    held: Vec<Option<(SessionGuard, LeaseGuard)>>,
}

impl LeaseSetup {
    async fn on(db: store::Db, leased: bool) -> Self {
        let mut idle = IdlePortal::on(db).await;
        let mut held = Vec::new();
        for (n, session) in (1..).zip(std::mem::take(&mut idle.sessions)) {
            let hold = idle.t.portal.leases.begin_session(node(n)).unwrap();
            idle.t.portal.lost_nodes.node_returned(node(n), leased, false).await.unwrap();
            idle.t.portal.leases.renew(node(n), idle.t.portal.context.monotonic_ms());
            held.push(Some((session, hold)));
        }
        Self { idle, held }
    }

    fn session_of(&mut self, at: NodeId) -> &mut Option<(SessionGuard, LeaseGuard)> {
        let n = usize::from(at != node(1));
        &mut self.held[n]
    }

    /// Renews the lease a last time, then disconnects the node.
    fn cut(&mut self, at: NodeId) {
        self.idle.t.portal.leases.renew(at, self.idle.t.portal.context.monotonic_ms());
        *self.session_of(at) = None;
    }

    async fn reconnect(&mut self, at: NodeId) {
        let hold = self.idle.t.portal.leases.begin_session(at).unwrap();
        self.idle.t.portal.lost_nodes.node_returned(at, true, false).await.unwrap();
        let session = self.idle.t.portal.context.live.open_session(at);
        *self.session_of(at) = Some((session, hold));
    }

    async fn submit(&self, spec: Value) -> String {
        let mut body =
            json!({"name": "train", "offering": "h100-80gb", "command": ["true"], "max_duration_s": 3600});
        body.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let job = self
            .idle
            .t
            .post(&self.idle.ada, &format!("/orgs/{}/jobs", self.idle.org), body)
            .await
            .expect(201);
        job["id"].as_str().unwrap().to_owned()
    }

    async fn job(&self, job: &str) -> Value {
        self.idle.t.get(&self.idle.ada, &format!("/orgs/{}/jobs/{job}", self.idle.org)).await.expect(200)
    }

    /// Runs the scheduler until the job is assigned; returns the nodes of its ranks.
    async fn placed(&self, job: &str) -> Vec<NodeId> {
        for _ in 0..100 {
            self.idle.t.portal.scheduler.pass().await.unwrap();
            let now = self.job(job).await;
            if now["state"] == "assigned" {
                let devices = now["devices"].as_array().unwrap().clone();
                return devices.iter().map(|d| d["node"].as_str().unwrap().parse().unwrap()).collect();
            }
        }
        panic!("it never got its place: {}", self.job(job).await);
    }

    async fn send_status(&self, at: NodeId, job: &str, number: u32, phase: Phase, metered_ms: i64) {
        let ended = phase.has_ended();
        let report = AttemptReport {
            metered_ms,
            exit_code: ended.then_some(0),
            log_bytes: ended.then_some(0),
            evidence: Some(ReportedEvidence {
                process_ms: metered_ms,
                device_ms: metered_ms,
                lost_ms: 0,
                busy_ms: None,
                losses: Vec::new(),
                memory_clearing: None,
            }),
            ..AttemptReport::new(job.parse().unwrap(), number, phase)
        };
        self.idle.t.portal.attempts.apply_status(at, report).await.unwrap();
    }

    async fn get_node(&self, at: NodeId) -> Value {
        let nodes = self.idle.t.get(&self.idle.operator, "/operator/nodes").await.expect(200);
        let matches = |n: &&Value| n["id"] == at.to_string();
        nodes["items"].as_array().unwrap().iter().find(matches).unwrap().clone()
    }

    async fn count_audit_events(&self, action: &str, at: NodeId) -> usize {
        let page = self.idle.t.get(&self.idle.operator, "/operator/audit-events?limit=200").await.expect(200);
        let ours = |e: &&Value| e["action"] == action && e["subject"] == at.to_string();
        page["items"].as_array().unwrap().iter().filter(ours).count()
    }

    /// Returns the details of the audit events about reports of a job's attempts after their loss.
    async fn late_reports(&self, job: &str) -> Vec<String> {
        let path = format!("/orgs/{}/audit-events?limit=200", self.idle.org);
        let page = self.idle.t.get(&self.idle.ada, &path).await.expect(200);
        let late = |e: &&Value| e["action"] == "attempt.late" && e["subject"] == job;
        let late = page["items"].as_array().unwrap().iter().filter(late);
        late.map(|e| e["detail"].as_str().unwrap().to_owned()).collect()
    }

    async fn tick(&self, seconds: i64) -> usize {
        self.idle.t.clock.advance_s(seconds);
        self.idle.t.portal.lost_nodes.tick_leases().await.unwrap()
    }

    /// Returns the posted charges of a job.
    async fn charged(&self, job: &str) -> i64 {
        let path = format!("/orgs/{}/transfers?limit=200", self.idle.org);
        let page = self.idle.t.get(&self.idle.ada, &path).await.expect(200);
        let usage = |r: &&Value| r["kind"] == "usage" && r["source_id"] == job;
        let rows = page["items"].as_array().unwrap().iter().filter(usage);
        rows.map(|r| -r["amount_micros"].as_i64().unwrap()).sum()
    }
}

#[tokio::test]
async fn the_job_of_a_lost_node_is_retried_and_only_proved_use_is_charged() {
    for (engine, db, _location) in engines("lease").await {
        let mut setup = LeaseSetup::on(db, true).await;
        let job = setup.submit(json!({"retry": {"max": 1, "on": ["node_lost"]}})).await;
        let first = setup.placed(&job).await[0];
        let wanted = setup.idle.t.portal.attempts.desired(first).await.unwrap().remove(0);
        let limits = LeaseLimits { lease_ms: 600_000, answer_ms: 15_000, grace_ms: 15_000 };
        assert_eq!(wanted.lease, Some(limits));
        setup.send_status(first, &job, 1, Phase::Running, 5_000).await;
        setup.cut(first);
        let silence = setup.get_node(first).await["silence"].clone();
        assert_eq!(
            (&silence["state"], &silence["attempts"]),
            (&json!("suspect"), &json!(1)),
            "{engine} {silence}"
        );
        assert!(silence["lost_at"].is_string(), "{silence}");
        let tenants =
            setup.idle.t.get(&setup.idle.ada, &format!("/orgs/{}/nodes", setup.idle.org)).await.expect(200);
        assert!(tenants["items"].as_array().unwrap().iter().all(|n| n.get("silence").is_none()), "{tenants}");

        // The lease on the node has ended, but the portal's margin has not.
        assert_eq!(setup.tick(631).await, 0, "{engine}");
        assert_eq!(setup.job(&job).await["state"], "running", "{engine}");
        assert_eq!(setup.tick(2).await, 1, "{engine}");
        let waiting = setup.job(&job).await;
        assert_eq!(
            (&waiting["state"], &waiting["cost_micros"]),
            (&json!("queued"), &json!(5_000)),
            "{engine} {waiting}"
        );
        assert_eq!(setup.charged(&job).await, 5_000, "{engine}: what was proved is charged, and no more");
        assert_eq!(setup.tick(1).await, 0, "{engine}: once");
        let silence = setup.get_node(first).await["silence"].clone();
        assert_eq!([&silence["state"], &silence["attempts"]], [&json!("lost"), &json!(0)], "{engine}");
        assert_eq!(setup.count_audit_events("node.lost", first).await, 1, "{engine}");

        let end = setup.idle.t.portal.jobs.log_end(job.parse().unwrap(), 1, 0).await.unwrap();
        assert_eq!(end, Some(LogEnd::Lost), "{engine}: nobody waits for the rest of its log");
        let second = setup.placed(&job).await[0];
        assert_ne!(second, first, "{engine}");
        setup.send_status(second, &job, 2, Phase::Running, 1_000).await;
        // The first node reconnects. Its reports only prove that its device is clean.
        setup.reconnect(first).await;
        assert_eq!(setup.count_audit_events("node.returned", first).await, 1, "{engine}");
        assert!(setup.get_node(first).await.get("silence").is_none(), "{engine}");
        let wanted = setup.idle.t.portal.attempts.desired(first).await.unwrap().remove(0);
        assert!(wanted.stop && wanted.attempt == 1, "{engine}: it is fenced");
        for (phase, metered_ms) in [(Phase::Running, 90_000), (Phase::Ended, 95_000), (Phase::Clean, 95_000)]
        {
            setup.send_status(first, &job, 1, phase, metered_ms).await;
            let now = setup.job(&job).await;
            assert_eq!((&now["state"], &now["attempt"]), (&json!("running"), &json!(2)), "{engine} {now}");
            assert_eq!(now["metered_ms"], 6_000, "{engine} {now}");
        }
        let late = setup.late_reports(&job).await;
        assert_eq!(late.len(), 1, "{engine}: once: {late:?}");
        assert!(late[0].contains("attempt 1 still runs"), "{engine} {late:?}");
        let end = setup.idle.t.portal.jobs.log_end(job.parse().unwrap(), 1, 0).await.unwrap();
        assert_eq!(end, Some(LogEnd::Complete), "{engine}: it is back, and says how long it is");
        assert!(setup.idle.t.portal.attempts.desired(first).await.unwrap().is_empty(), "{engine}");
        assert_eq!(setup.get_node(first).await["gpus"][0]["tiles"], json!([]), "{engine}");
        for phase in [Phase::Ended, Phase::Clean] {
            setup.send_status(second, &job, 2, phase, 7_000).await;
        }
        let done = setup.job(&job).await;
        assert_eq!(
            (&done["state"], &done["cost_micros"]),
            (&json!("succeeded"), &json!(12_000)),
            "{engine} {done}"
        );
        assert_eq!((setup.charged(&job).await, &done["credited_micros"]), (12_000, &json!(0)), "{engine}");
        setup.idle.assert_books_balance().await;
    }
}

#[tokio::test]
async fn repeated_late_and_foreign_statuses_change_nothing() {
    for (engine, db, _location) in engines("lease_order").await {
        let setup = LeaseSetup::on(db, true).await;
        let job = setup.submit(json!({})).await;
        let at = setup.placed(&job).await[0];
        let other = if at == node(1) { node(2) } else { node(1) };
        let is = async |state: &str, metered_ms: i64, case: &str| {
            let now = setup.job(&job).await;
            let found = (&now["state"], &now["metered_ms"]);
            assert_eq!(found, (&json!(state), &json!(metered_ms)), "{engine}: {case} {now}");
        };
        setup.send_status(at, &job, 1, Phase::Running, 5_000).await;
        is("running", 5_000, "the first word").await;
        for (phase, metered_ms) in
            [(Phase::Running, 5_000), (Phase::Running, 3_000), (Phase::Preparing, 0), (Phase::Unknown, 9_000)]
        {
            setup.send_status(at, &job, 1, phase, metered_ms).await;
            is("running", 5_000, "again, late, or nothing").await;
        }
        // A phase of a newer worker version, without any value.
        let newer = AttemptReport::new(job.parse().unwrap(), 1, Phase::Unknown);
        setup.idle.t.portal.attempts.apply_status(at, newer).await.unwrap();
        for (sender, number) in [(other, 1), (at, 2), (at, 0)] {
            setup.send_status(sender, &job, number, Phase::Clean, 90_000).await;
            is("running", 5_000, "of an attempt that is not theirs").await;
        }
        // Earlier statuses arrive after the last one.
        for phase in [Phase::Clean, Phase::Ended, Phase::Clean, Phase::Running, Phase::Preparing] {
            setup.send_status(at, &job, 1, phase, 7_000).await;
            is("succeeded", 7_000, "after the end").await;
        }
        setup.send_status(at, &job, 1, Phase::Ended, 90_000).await;
        is("succeeded", 7_000, "more than was used").await;
        assert_eq!(setup.charged(&job).await, 7_000, "{engine}");
        assert!(setup.idle.t.portal.attempts.desired(at).await.unwrap().is_empty(), "{engine}");
        assert_eq!(setup.get_node(at).await["gpus"][0]["tiles"], json!([]), "{engine}");
        setup.idle.assert_books_balance().await;
    }
}

#[tokio::test]
async fn an_operator_can_declare_only_a_silent_node_lost() {
    for (engine, db, _location) in engines("lease_declared").await {
        let mut setup = LeaseSetup::on(db, true).await;
        let gang = setup.submit(json!({"nodes": 2})).await;
        let nodes = setup.placed(&gang).await;
        for at in &nodes {
            setup.send_status(*at, &gang, 1, Phase::Running, 2_000).await;
        }
        let path = format!("/operator/nodes/{}/lost", nodes[0]);
        setup.idle.t.post(&setup.idle.ada, &path, Value::Null).await.problem(404, "object.not_found");
        setup.idle.t.post(&setup.idle.operator, &path, Value::Null).await.problem(409, "node.connected");
        let nobody = format!("/operator/nodes/{}/lost", node(77));
        setup.idle.t.post(&setup.idle.operator, &nobody, Value::Null).await.problem(404, "object.not_found");
        setup.cut(nodes[0]);
        let lost = setup.idle.t.post(&setup.idle.operator, &path, Value::Null).await.expect(200);
        assert_eq!((&lost["silence"]["state"], &lost["silence"]["attempts"]), (&json!("lost"), &json!(0)));
        assert!(
            lost["silence"]["why"].as_str().unwrap().contains("declared the node lost"),
            "{engine} {lost}"
        );
        // The portal stops the other rank, and then the job ends.
        assert_eq!(setup.job(&gang).await["state"], "stopping", "{engine}");
        setup.idle.t.post(&setup.idle.operator, &path, Value::Null).await.expect(200);
        assert_eq!(setup.count_audit_events("node.declared_lost", nodes[0]).await, 1, "{engine}: told once");
        setup.send_status(nodes[1], &gang, 1, Phase::Ended, 3_000).await;
        let done = setup.job(&gang).await;
        assert_eq!(
            (&done["state"], &done["failure"]["code"]),
            (&json!("failed"), &json!("node.lost")),
            "{done}"
        );
        setup.send_status(nodes[1], &gang, 1, Phase::Clean, 3_000).await;

        // Simulates a crash of the portal between the declaration and its effects.
        let job = setup.submit(json!({})).await;
        let at = setup.placed(&job).await[0];
        assert_eq!(at, nodes[1], "{engine}: nothing is placed on what is lost");
        setup.cut(at);
        let now = setup.idle.t.portal.context.now();
        let marked = setup.idle.t.portal.context.db.write(move |tx| {
            async move { store::leases::mark_lost(tx, at, now, "Somebody said so.").await }.boxed()
        });
        assert!(marked.await.unwrap());
        assert_eq!(setup.tick(0).await, 1, "{engine}");
        let done = setup.job(&job).await;
        assert_eq!(
            (&done["failure"]["code"], &done["cost_micros"]),
            (&json!("node.lost"), &json!(0)),
            "{done}"
        );
        setup.idle.assert_books_balance().await;
    }
}

#[tokio::test]
async fn a_node_without_leases_is_lost_only_by_declaration() {
    for (engine, db, _location) in engines("lease_none").await {
        let mut setup = LeaseSetup::on(db, false).await;
        let job = setup.submit(json!({})).await;
        let at = setup.placed(&job).await[0];
        assert_eq!(setup.idle.t.portal.attempts.desired(at).await.unwrap()[0].lease, None, "{engine}");
        setup.send_status(at, &job, 1, Phase::Running, 1_000).await;
        // The next daemon keeps leases, but the shim of this attempt belongs to the old one.
        setup.idle.t.portal.lost_nodes.node_returned(at, true, false).await.unwrap();
        setup.cut(at);
        assert_eq!(setup.tick(DAY).await, 0, "{engine}");
        setup.idle.operator = setup.idle.t.sign_in("harbour@example.org").await;
        setup.idle.ada = setup.idle.t.sign_in("lab@example.org").await;
        assert_eq!(setup.job(&job).await["state"], "running", "{engine}");
        let silence = setup.get_node(at).await["silence"].clone();
        assert_eq!(
            (&silence["state"], silence.get("lost_at")),
            (&json!("suspect"), None),
            "{engine} {silence}"
        );
        let path = format!("/operator/nodes/{at}/lost");
        setup.idle.t.post(&setup.idle.operator, &path, Value::Null).await.expect(200);
        assert_eq!(setup.job(&job).await["failure"]["code"], "node.lost", "{engine}");
    }
}

#[tokio::test]
async fn a_job_sets_the_length_of_its_lease() {
    let (_, db, _location) = engines("lease_chosen").await.remove(0);
    let mut setup = LeaseSetup::on(db, true).await;
    let short = setup.submit(json!({"nodes": 2, "lease_s": 60})).await;
    let long = setup.submit(json!({"nodes": 2, "lease_s": 3600})).await;
    let (at, _) = (setup.placed(&short).await[0], setup.placed(&long).await);
    let assignments = setup.idle.t.portal.attempts.desired(at).await.unwrap();
    let lease_ms = |job: &str| {
        let assignment = assignments.iter().find(|a| a.job.to_string() == job).unwrap();
        assignment.lease.unwrap().lease_ms
    };
    assert_eq!((lease_ms(&short), lease_ms(&long)), (60_000, 3_600_000));
    setup.cut(at);
    assert_eq!(setup.tick(68).await, 1);
    assert_eq!(
        (&setup.job(&short).await["state"], &setup.job(&long).await["state"]),
        (&json!("stopping"), &json!("assigned"))
    );
    assert_eq!(setup.get_node(at).await["silence"]["state"], "suspect", "something may still run there");
    assert_eq!(setup.tick(3_600).await, 1, "its lease and margin are over an hour");
    assert_eq!(setup.get_node(at).await["silence"]["state"], "lost");
    let path = format!("/orgs/{}/jobs", setup.idle.org);
    let bad = json!({"name": "x", "offering": "h100-80gb", "command": ["true"], "max_duration_s": 60, "lease_s": 5});
    let refused = setup.idle.t.post(&setup.idle.ada, &path, bad).await.expect(422);
    assert_eq!(refused["errors"][0]["pointer"], "/lease_s", "{refused}");
}

/// A connection period: its length, the length of the following interruption, and the delay until the portal
/// notices the interruption. Milliseconds.
type ConnectionPeriod = (u16, u16, u16);

/// Simulates both sides for one attempt. Returns the times of the portal's takeover and of the last process's
/// end.
fn simulate(
    periods: &[ConnectionPeriod],
    delays: &[(u16, u16, u16)],
    check_every_ms: i64,
    ppm: (i64, i64),
) -> Option<(i64, i64)> {
    const STEP: i64 = 10;
    let limits = LeaseLimits::new(5_000);
    let there = |t: i64| t + t * ppm.0 / 1_000_000;
    let here = |t: i64| 77_000 + t + t * ppm.1 / 1_000_000;
    let mut attempt_lease = LeaseTerm {
        lease_ms: limits.lease_ms,
        answer_ms: limits.answer_ms,
        grace_ms: limits.grace_ms,
        renewed_ms: 0,
    };
    let mut node_lease = NodeLease::new(here(0));
    let mut changes: Vec<(i64, bool)> = Vec::new();
    let mut leaves: Vec<i64> = Vec::new();
    let mut at = 0;
    for (on, off, noticed) in periods {
        changes.push((at, true));
        at += i64::from(*on);
        changes.push((at, false));
        leaves.push(at + i64::from(*noticed));
        at += i64::from(*off);
    }
    let is_up = |t: i64| changes.iter().rev().find(|(since, _)| *since <= t).is_some_and(|(_, up)| *up);
    // Heartbeats and answers in transfer, with arrival and sending times.
    let (mut beats, mut answers): (Vec<(i64, i64, i64)>, Vec<(i64, i64)>) = (Vec::new(), Vec::new());
    let mut renewed: Option<(i64, i64)> = None;
    let mut ended: Option<i64> = None;
    let mut sent = 0;
    let mut t = 0;
    while t < at + 20_000 {
        for _ in changes.iter().filter(|(since, up)| *up && (t - STEP + 1..=t).contains(since)) {
            assert!(node_lease.begin_session());
        }
        leaves.iter().filter(|end| (t - STEP + 1..=t).contains(*end)).for_each(|_| node_lease.end_session());
        if t % 1_000 == 0 && is_up(t) {
            let (way, back, slow) = delays[sent % delays.len()];
            sent += 1;
            let arrives = t + i64::from(way);
            beats.push((arrives, t, i64::from(back) + i64::from(slow)));
        }
        beats.retain(|(arrives, was_sent, back)| {
            // A heartbeat without a connection or a session is lost.
            if *arrives <= t && is_up(t) && !node_lease.is_silent() {
                node_lease.renew(here(t));
                answers.push((t + back, *was_sent));
            }
            *arrives > t
        });
        answers.retain(|(arrives, was_sent)| {
            if *arrives <= t {
                renewed = Some((there(*was_sent), there(t)));
            }
            *arrives > t
        });
        if t % check_every_ms < STEP && ended.is_none() {
            if let Some((sent_ms, heard_ms)) = renewed {
                attempt_lease.renew(sent_ms, heard_ms);
            }
            let left = attempt_lease.remainder(there(t));
            if left.ends_in_ms <= 0 {
                // It ignores SIGTERM.
                ended = Some(t + left.killed_in_ms.max(0) + STEP);
            }
        }
        if t % 1_000 == 500 && node_lease.begin_takeover(Some(limits.lost_after_ms()), here(t)) {
            return Some((t, ended.unwrap_or(i64::MAX)));
        }
        t += STEP;
    }
    None
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn an_attempt_has_ended_before_its_node_is_lost(
        periods in prop::collection::vec((0u16..12_000, 0u16..12_000, 0u16..10_000), 1..6),
        delays in prop::collection::vec((0u16..3_000, 0u16..3_000, 0u16..2_000), 1..8),
        check_every_ms in 1i64..1_000,
        ppm in (-500i64..500, -500i64..500),
    ) {
        if let Some((taken_over, ended)) = simulate(&periods, &delays, check_every_ms.max(10), ppm) {
            prop_assert!(ended <= taken_over, "taken at {taken_over} ms, dead at {ended} ms");
        }
    }

    #[test]
    fn a_node_with_short_interruptions_is_not_lost(
        check_every_ms in 10i64..1_000,
        ppm in (-500i64..500, -500i64..500),
    ) {
        // Each interruption is shorter than the lease.
        let periods: Vec<ConnectionPeriod> = vec![(6_000, 2_500, 9_000); 8];
        let outcome = simulate(&periods, &[(40, 60, 0)], check_every_ms, ppm);
        // Only the final, permanent interruption can cause a takeover.
        prop_assert!(outcome.is_none_or(|(taken_over, _)| taken_over > 8 * 8_500 - 2_500), "{outcome:?}");
    }
}

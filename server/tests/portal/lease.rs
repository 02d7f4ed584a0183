//! Leases: a node that is cut off ends its work before the portal gives it to another, and nothing runs or
//! is charged twice. The portal's side by a clock that the test moves; both sides with real processes.

use crate::common::engines;
use crate::harbour::{DAY, Harbour, node};
use berth_core::lease::{Holder, Terms};
use berth_fleet::leases::Held;
use berth_foundation::live::SessionGuard;
use berth_jobs::jobs::LogEnd;
use berth_proto::{AttemptId, Evidence, Phase, Status};
use berth_store as store;
use berth_types::ids::NodeId;
use berth_worker::lease::Term;
use futures::FutureExt;
use proptest::prelude::*;
use serde_json::{Value, json};

/// The harbour's workers, each with a session and its hold; `None` where it was cut off.
struct Cut {
    h: Harbour,
    held: Vec<Option<(SessionGuard, Held)>>,
}

impl Cut {
    async fn on(db: store::Db, leased: bool) -> Self {
        let mut h = Harbour::on(db).await;
        let mut held = Vec::new();
        for (n, session) in (1..).zip(std::mem::take(&mut h.sessions)) {
            let hold = h.t.portal.leases.hold(node(n)).unwrap();
            h.t.portal.lost_nodes.node_returned(node(n), leased, false).await.unwrap();
            h.t.portal.leases.renew(node(n), h.t.portal.context.monotonic_ms());
            held.push(Some((session, hold)));
        }
        Self { h, held }
    }

    fn of(&mut self, at: NodeId) -> &mut Option<(SessionGuard, Held)> {
        let n = usize::from(at != node(1));
        &mut self.held[n]
    }

    /// After a last renewal it is heard of no more.
    fn cut(&mut self, at: NodeId) {
        self.h.t.portal.leases.renew(at, self.h.t.portal.context.monotonic_ms());
        *self.of(at) = None;
    }

    async fn back(&mut self, at: NodeId) {
        let hold = self.h.t.portal.leases.hold(at).unwrap();
        self.h.t.portal.lost_nodes.node_returned(at, true, false).await.unwrap();
        let session = self.h.t.portal.context.live.open_session(at);
        *self.of(at) = Some((session, hold));
    }

    async fn submit(&self, spec: Value) -> String {
        let mut body =
            json!({"name": "train", "offering": "h100-80gb", "command": ["true"], "max_duration_s": 3600});
        body.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let job = self.h.t.post(&self.h.ada, &format!("/orgs/{}/jobs", self.h.org), body).await.expect(201);
        job["id"].as_str().unwrap().to_owned()
    }

    async fn job(&self, job: &str) -> Value {
        self.h.t.get(&self.h.ada, &format!("/orgs/{}/jobs/{job}", self.h.org)).await.expect(200)
    }

    /// The nodes of its ranks, once it has its place.
    async fn placed(&self, job: &str) -> Vec<NodeId> {
        for _ in 0..100 {
            self.h.t.portal.scheduler.pass().await.unwrap();
            let now = self.job(job).await;
            if now["state"] == "assigned" {
                let devices = now["devices"].as_array().unwrap().clone();
                return devices.iter().map(|d| d["node"].as_str().unwrap().parse().unwrap()).collect();
            }
        }
        panic!("it never got its place: {}", self.job(job).await);
    }

    async fn say(&self, at: NodeId, job: &str, number: u32, phase: Phase, metered_ms: i64) {
        let ended = matches!(phase, Phase::Ended | Phase::Clean);
        let status = Status {
            attempt: Some(AttemptId::new(job, number)),
            phase: phase.into(),
            metered_ms,
            exit_code: ended.then_some(0),
            log_bytes: ended.then_some(0),
            evidence: Some(Evidence {
                process_ms: metered_ms,
                device_ms: metered_ms,
                lost_ms: 0,
                ..Evidence::default()
            }),
            ..Status::default()
        };
        self.h.t.portal.attempts.apply_status(at, status).await.unwrap();
    }

    async fn shown(&self, at: NodeId) -> Value {
        let nodes = self.h.t.get(&self.h.operator, "/operator/nodes").await.expect(200);
        let of = |n: &&Value| n["id"] == at.to_string();
        nodes["items"].as_array().unwrap().iter().find(of).unwrap().clone()
    }

    async fn audited(&self, action: &str, at: NodeId) -> usize {
        let page = self.h.t.get(&self.h.operator, "/operator/audit-events?limit=200").await.expect(200);
        let ours = |e: &&Value| e["action"] == action && e["subject"] == at.to_string();
        page["items"].as_array().unwrap().iter().filter(ours).count()
    }

    async fn tick(&self, seconds: i64) -> usize {
        self.h.t.clock.advance_s(seconds);
        self.h.t.portal.lost_nodes.tick_leases().await.unwrap()
    }

    /// What was posted for use.
    async fn charged(&self, job: &str) -> i64 {
        let path = format!("/orgs/{}/transfers?limit=200", self.h.org);
        let page = self.h.t.get(&self.h.ada, &path).await.expect(200);
        let usage = |r: &&Value| r["kind"] == "usage" && r["source_id"] == job;
        let rows = page["items"].as_array().unwrap().iter().filter(usage);
        rows.map(|r| -r["amount_micros"].as_i64().unwrap()).sum()
    }
}

#[tokio::test]
async fn a_lost_nodes_job_runs_elsewhere_and_only_proved_use_is_charged() {
    for (engine, db, _place) in engines("lease").await {
        let mut c = Cut::on(db, true).await;
        let job = c.submit(json!({"retry": {"max": 1, "on": ["node_lost"]}})).await;
        let first = c.placed(&job).await[0];
        let wanted = c.h.t.portal.attempts.desired(first).await.unwrap().attempts.remove(0);
        assert_eq!(
            (wanted.lease_ms, wanted.lease_answer_ms, wanted.lease_grace_ms),
            (600_000, 15_000, 15_000)
        );
        c.say(first, &job, 1, Phase::Running, 5_000).await;
        c.cut(first);
        let silence = c.shown(first).await["silence"].clone();
        assert_eq!(
            (&silence["state"], &silence["attempts"]),
            (&json!("suspect"), &json!(1)),
            "{engine} {silence}"
        );
        assert!(silence["lost_at"].is_string(), "{silence}");
        let tenants = c.h.t.get(&c.h.ada, &format!("/orgs/{}/nodes", c.h.org)).await.expect(200);
        assert!(tenants["items"].as_array().unwrap().iter().all(|n| n.get("silence").is_none()), "{tenants}");

        // The lease has ended there, the margin has not here.
        assert_eq!(c.tick(631).await, 0, "{engine}");
        assert_eq!(c.job(&job).await["state"], "running", "{engine}");
        assert_eq!(c.tick(2).await, 1, "{engine}");
        let waiting = c.job(&job).await;
        assert_eq!(
            (&waiting["state"], &waiting["cost_micros"]),
            (&json!("queued"), &json!(5_000)),
            "{engine} {waiting}"
        );
        assert_eq!(c.charged(&job).await, 5_000, "{engine}: what was proved is charged, and no more");
        assert_eq!(c.tick(1).await, 0, "{engine}: once");
        let silence = c.shown(first).await["silence"].clone();
        assert_eq!(
            (&silence["state"], &silence["attempts"]),
            (&json!("lost"), &json!(0)),
            "{engine} {silence}"
        );
        assert_eq!(c.audited("node.lost", first).await, 1, "{engine}");

        let end = c.h.t.portal.jobs.log_end(job.parse().unwrap(), 1, 0).await.unwrap();
        assert_eq!(end, Some(LogEnd::Lost), "{engine}: nobody waits for the rest of its log");

        let second = c.placed(&job).await[0];
        assert_ne!(second, first, "{engine}");
        c.say(second, &job, 2, Phase::Running, 1_000).await;
        // The first comes back, and what it says of its attempt changes nothing but that its device is clean.
        c.back(first).await;
        assert_eq!(c.audited("node.returned", first).await, 1, "{engine}");
        assert!(c.shown(first).await.get("silence").is_none(), "{engine}");
        let wanted = c.h.t.portal.attempts.desired(first).await.unwrap().attempts.remove(0);
        assert!(wanted.stop && wanted.attempt.unwrap().number == 1, "{engine}: it is fenced");
        for (phase, metered_ms) in [(Phase::Running, 90_000), (Phase::Ended, 95_000), (Phase::Clean, 95_000)]
        {
            c.say(first, &job, 1, phase, metered_ms).await;
            let now = c.job(&job).await;
            assert_eq!((&now["state"], &now["attempt"]), (&json!("running"), &json!(2)), "{engine} {now}");
            assert_eq!(now["metered_ms"], 6_000, "{engine} {now}");
        }
        let page =
            c.h.t.get(&c.h.ada, &format!("/orgs/{}/audit-events?limit=200", c.h.org)).await.expect(200);
        let late = |e: &&Value| e["action"] == "attempt.late" && e["subject"] == job.as_str();
        let late: Vec<&Value> = page["items"].as_array().unwrap().iter().filter(late).collect();
        assert_eq!(late.len(), 1, "{engine}: once: {page}");
        assert!(late[0]["detail"].as_str().unwrap().contains("attempt 1 still runs"), "{engine} {late:?}");
        let end = c.h.t.portal.jobs.log_end(job.parse().unwrap(), 1, 0).await.unwrap();
        assert_eq!(end, Some(LogEnd::Complete), "{engine}: it is back, and says how long it is");
        assert!(c.h.t.portal.attempts.desired(first).await.unwrap().attempts.is_empty(), "{engine}");
        assert_eq!(c.shown(first).await["gpus"][0]["tiles"], json!([]), "{engine}");
        for phase in [Phase::Ended, Phase::Clean] {
            c.say(second, &job, 2, phase, 7_000).await;
        }
        let done = c.job(&job).await;
        assert_eq!(
            (&done["state"], &done["cost_micros"]),
            (&json!("succeeded"), &json!(12_000)),
            "{engine} {done}"
        );
        assert_eq!((c.charged(&job).await, &done["credited_micros"]), (12_000, &json!(0)), "{engine}");
        c.h.books_are_right().await;
    }
}

#[tokio::test]
async fn what_is_said_twice_late_or_by_strangers_changes_nothing() {
    for (engine, db, _place) in engines("lease_order").await {
        let c = Cut::on(db, true).await;
        let job = c.submit(json!({})).await;
        let at = c.placed(&job).await[0];
        let other = if at == node(1) { node(2) } else { node(1) };
        let is = async |state: &str, metered_ms: i64, what: &str| {
            let now = c.job(&job).await;
            let found = (&now["state"], &now["metered_ms"]);
            assert_eq!(found, (&json!(state), &json!(metered_ms)), "{engine}: {what} {now}");
        };
        c.say(at, &job, 1, Phase::Running, 5_000).await;
        is("running", 5_000, "the first word").await;
        for (phase, metered_ms) in [
            (Phase::Running, 5_000),
            (Phase::Running, 3_000),
            (Phase::Preparing, 0),
            (Phase::Unspecified, 9_000),
        ] {
            c.say(at, &job, 1, phase, metered_ms).await;
            is("running", 5_000, "again, late, or nothing").await;
        }
        // A phase that only a newer worker knows.
        let newer = Status { attempt: Some(AttemptId::new(&job, 1)), phase: 77, ..Status::default() };
        c.h.t.portal.attempts.apply_status(at, newer).await.unwrap();
        for (who, number) in [(other, 1), (at, 2), (at, 0)] {
            c.say(who, &job, number, Phase::Clean, 90_000).await;
            is("running", 5_000, "of an attempt that is not theirs").await;
        }
        // What came before the last word comes after it.
        for phase in [Phase::Clean, Phase::Ended, Phase::Clean, Phase::Running, Phase::Preparing] {
            c.say(at, &job, 1, phase, 7_000).await;
            is("succeeded", 7_000, "after the end").await;
        }
        c.say(at, &job, 1, Phase::Ended, 90_000).await;
        is("succeeded", 7_000, "more than was used").await;
        assert_eq!(c.charged(&job).await, 7_000, "{engine}");
        assert!(c.h.t.portal.attempts.desired(at).await.unwrap().attempts.is_empty(), "{engine}");
        assert_eq!(c.shown(at).await["gpus"][0]["tiles"], json!([]), "{engine}");
        c.h.books_are_right().await;
    }
}

#[tokio::test]
async fn an_operator_declares_a_silent_node_lost_and_never_one_that_speaks() {
    for (engine, db, _place) in engines("lease_declared").await {
        let mut c = Cut::on(db, true).await;
        let gang = c.submit(json!({"nodes": 2})).await;
        let nodes = c.placed(&gang).await;
        for at in &nodes {
            c.say(*at, &gang, 1, Phase::Running, 2_000).await;
        }
        let path = format!("/operator/nodes/{}/lost", nodes[0]);
        c.h.t.post(&c.h.ada, &path, Value::Null).await.problem(404, "object.not_found");
        c.h.t.post(&c.h.operator, &path, Value::Null).await.problem(409, "node.connected");
        let nobody = format!("/operator/nodes/{}/lost", node(77));
        c.h.t.post(&c.h.operator, &nobody, Value::Null).await.problem(404, "object.not_found");
        c.cut(nodes[0]);
        let lost = c.h.t.post(&c.h.operator, &path, Value::Null).await.expect(200);
        assert_eq!((&lost["silence"]["state"], &lost["silence"]["attempts"]), (&json!("lost"), &json!(0)));
        assert!(lost["silence"]["why"].as_str().unwrap().contains("declared it lost"), "{engine} {lost}");
        // Its other rank is told to stop, and then it is over.
        assert_eq!(c.job(&gang).await["state"], "stopping", "{engine}");
        c.h.t.post(&c.h.operator, &path, Value::Null).await.expect(200);
        assert_eq!(c.audited("node.declared_lost", nodes[0]).await, 1, "{engine}: told once");
        c.say(nodes[1], &gang, 1, Phase::Ended, 3_000).await;
        let done = c.job(&gang).await;
        assert_eq!(
            (&done["state"], &done["failure"]["code"]),
            (&json!("failed"), &json!("node.lost")),
            "{done}"
        );
        c.say(nodes[1], &gang, 1, Phase::Clean, 3_000).await;

        // As if the portal had died between the operator's word and what follows from it.
        let job = c.submit(json!({})).await;
        let at = c.placed(&job).await[0];
        assert_eq!(at, nodes[1], "{engine}: nothing is placed on what is lost");
        c.cut(at);
        let now = c.h.t.portal.context.now();
        let marked = c.h.t.portal.context.db.write(move |tx| {
            async move { store::leases::mark_lost(tx, at, now, "Somebody said so.").await }.boxed()
        });
        assert!(marked.await.unwrap());
        assert_eq!(c.tick(0).await, 1, "{engine}");
        let done = c.job(&job).await;
        assert_eq!(
            (&done["failure"]["code"], &done["cost_micros"]),
            (&json!("node.lost"), &json!(0)),
            "{done}"
        );
        c.h.books_are_right().await;
    }
}

#[tokio::test]
async fn whoever_keeps_no_lease_is_only_lost_by_somebodys_word() {
    for (engine, db, _place) in engines("lease_none").await {
        let mut c = Cut::on(db, false).await;
        let job = c.submit(json!({})).await;
        let at = c.placed(&job).await[0];
        assert_eq!(c.h.t.portal.attempts.desired(at).await.unwrap().attempts[0].lease_ms, 0, "{engine}");
        c.say(at, &job, 1, Phase::Running, 1_000).await;
        // Its next daemon keeps leases; the shim of this attempt is the old one's.
        c.h.t.portal.lost_nodes.node_returned(at, true, false).await.unwrap();
        c.cut(at);
        assert_eq!(c.tick(DAY).await, 0, "{engine}");
        c.h.operator = c.h.t.sign_in("harbour@example.org").await;
        c.h.ada = c.h.t.sign_in("lab@example.org").await;
        assert_eq!(c.job(&job).await["state"], "running", "{engine}");
        let silence = c.shown(at).await["silence"].clone();
        assert_eq!(
            (&silence["state"], silence.get("lost_at")),
            (&json!("suspect"), None),
            "{engine} {silence}"
        );
        let path = format!("/operator/nodes/{at}/lost");
        c.h.t.post(&c.h.operator, &path, Value::Null).await.expect(200);
        assert_eq!(c.job(&job).await["failure"]["code"], "node.lost", "{engine}");
    }
}

#[tokio::test]
async fn a_job_chooses_how_long_it_goes_on() {
    let (_, db, _place) = engines("lease_chosen").await.remove(0);
    let mut c = Cut::on(db, true).await;
    let short = c.submit(json!({"nodes": 2, "lease_s": 60})).await;
    let long = c.submit(json!({"nodes": 2, "lease_s": 3600})).await;
    let (at, _) = (c.placed(&short).await[0], c.placed(&long).await);
    let told = c.h.t.portal.attempts.desired(at).await.unwrap().attempts;
    let lease_ms =
        |job: &str| told.iter().find(|a| a.attempt.as_ref().unwrap().job == job).map(|a| a.lease_ms).unwrap();
    assert_eq!((lease_ms(&short), lease_ms(&long)), (60_000, 3_600_000));
    c.cut(at);
    assert_eq!(c.tick(68).await, 1);
    assert_eq!(
        (&c.job(&short).await["state"], &c.job(&long).await["state"]),
        (&json!("stopping"), &json!("assigned"))
    );
    assert_eq!(c.shown(at).await["silence"]["state"], "suspect", "something may still run there");
    assert_eq!(c.tick(3_600).await, 1, "its lease and margin are over an hour");
    assert_eq!(c.shown(at).await["silence"]["state"], "lost");
    let path = format!("/orgs/{}/jobs", c.h.org);
    let bad = json!({"name": "x", "offering": "h100-80gb", "command": ["true"], "max_duration_s": 60, "lease_s": 5});
    let refused = c.h.t.post(&c.h.ada, &path, bad).await.expect(422);
    assert_eq!(refused["errors"][0]["pointer"], "/lease_s", "{refused}");
}

/// One way to be cut off: how long there is a connection and then none, each with how long its end takes
/// to be noticed.
type Spell = (u16, u16, u16);

/// What both sides did with one attempt: when the portal took it, and when its last process was dead there.
fn play(spells: &[Spell], delays: &[(u16, u16, u16)], look: i64, ppm: (i64, i64)) -> Option<(i64, i64)> {
    const STEP: i64 = 10;
    let terms = Terms::new(5_000);
    let there = |t: i64| t + t * ppm.0 / 1_000_000;
    let here = |t: i64| 77_000 + t + t * ppm.1 / 1_000_000;
    let mut term = Term {
        lease_ms: terms.lease_ms,
        answer_ms: terms.answer_ms,
        grace_ms: terms.grace_ms,
        renewed_ms: 0,
    };
    let mut holder = Holder::new(here(0));
    let mut changes: Vec<(i64, bool)> = Vec::new();
    let mut leaves: Vec<i64> = Vec::new();
    let mut at = 0;
    for (on, off, noticed) in spells {
        changes.push((at, true));
        at += i64::from(*on);
        changes.push((at, false));
        leaves.push(at + i64::from(*noticed));
        at += i64::from(*off);
    }
    let is_up = |t: i64| changes.iter().rev().find(|(since, _)| *since <= t).is_some_and(|(_, up)| *up);
    // Heartbeats on their way, and answers: when they arrive, and when they were sent.
    let (mut beats, mut answers): (Vec<(i64, i64, i64)>, Vec<(i64, i64)>) = (Vec::new(), Vec::new());
    let mut written: Option<(i64, i64)> = None;
    let mut dead: Option<i64> = None;
    let mut sent = 0;
    let mut t = 0;
    while t < at + 20_000 {
        for _ in changes.iter().filter(|(since, up)| *up && (t - STEP + 1..=t).contains(since)) {
            assert!(holder.enter());
        }
        leaves.iter().filter(|end| (t - STEP + 1..=t).contains(*end)).for_each(|_| holder.leave());
        if t % 1_000 == 0 && is_up(t) {
            let (way, back, slow) = delays[sent % delays.len()];
            sent += 1;
            let arrives = t + i64::from(way);
            beats.push((arrives, t, i64::from(back) + i64::from(slow)));
        }
        beats.retain(|(arrives, was_sent, back)| {
            // What arrives when there is no connection is lost; so is what comes without a session.
            if *arrives <= t && is_up(t) && !holder.is_silent() {
                holder.renew(here(t));
                answers.push((t + back, *was_sent));
            }
            *arrives > t
        });
        answers.retain(|(arrives, was_sent)| {
            if *arrives <= t {
                written = Some((there(*was_sent), there(t)));
            }
            *arrives > t
        });
        if t % look < STEP && dead.is_none() {
            if let Some((sent_ms, heard_ms)) = written {
                term.renew(sent_ms, heard_ms);
            }
            let left = term.remains(there(t));
            if left.ends_in_ms <= 0 {
                // It does not heed SIGTERM.
                dead = Some(t + left.killed_in_ms.max(0) + STEP);
            }
        }
        if t % 1_000 == 500 && holder.take(Some(terms.lost_after_ms()), here(t)) {
            return Some((t, dead.unwrap_or(i64::MAX)));
        }
        t += STEP;
    }
    None
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn what_the_portal_takes_is_dead(
        spells in prop::collection::vec((0u16..12_000, 0u16..12_000, 0u16..10_000), 1..6),
        delays in prop::collection::vec((0u16..3_000, 0u16..3_000, 0u16..2_000), 1..8),
        look in 1i64..1_000,
        ppm in (-500i64..500, -500i64..500),
    ) {
        if let Some((taken, dead)) = play(&spells, &delays, look.max(10), ppm) {
            prop_assert!(dead <= taken, "taken at {taken} ms, dead at {dead} ms");
        }
    }

    #[test]
    fn who_stays_connected_keeps_its_work(look in 10i64..1_000, ppm in (-500i64..500, -500i64..500)) {
        // The connection breaks for less than the lease, over and over.
        let spells: Vec<Spell> = vec![(6_000, 2_500, 9_000); 8];
        let outcome = play(&spells, &[(40, 60, 0)], look, ppm);
        // Only the end of the story, which is an end of the connection for ever, takes it.
        prop_assert!(outcome.is_none_or(|(taken, _)| taken > 8 * 8_500 - 2_500), "{outcome:?}");
    }
}

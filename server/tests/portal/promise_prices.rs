//! Tests of the prices of promises: the rates of replicas, their charges, and the acceptance of a surcharge.

use berth_jobs::reports::{AttemptPhase as Phase, AttemptReport};
use berth_types::ids::{JobId, NodeId};
use serde_json::{Value, json};
use sqlx::Connection;

use crate::common::engines;
use crate::idle_portal::{HOUR, IdlePortal};
use crate::operations::{items, job, submit};
use crate::promises::{LATE_S, Promised, gold};
use crate::services::{create, run};

/// The class of other tests with a surcharge.
fn priced(basis_points: u32) -> Value {
    let mut class = gold();
    class["terms"]["surcharge_basis_points"] = json!(basis_points);
    class
}

/// The rule for exactly so many replicas, whatever gateways report.
fn replicas(number: usize) -> Value {
    json!({"min_replicas": number, "max_replicas": 5, "shadow": true})
}

/// A service whose replicas are started one after the other.
struct Priced {
    setup: IdlePortal,
    path: String,
    jobs: Vec<JobId>,
}

impl Priced {
    async fn new(setup: IdlePortal) -> Self {
        let job =
            json!({"name": "x", "offering": "h100-80gb", "command": ["serve"], "max_duration_s": 7_200});
        let revision = json!({"job": job, "port": 8_000});
        let body = json!({"name": "digits", "scaling": replicas(1), "revision": revision});
        let path = create(&setup, body).await;
        Self { setup, path, jobs: Vec::new() }
    }

    async fn choose(&self, body: Value) {
        let path = format!("{}/promise", self.path);
        self.setup.t.call(&self.setup.ada, "PUT", &path, body).await.expect(200);
    }

    /// Starts one more replica. Returns its job, which runs if a board is free.
    async fn start(&mut self) -> Value {
        let scaling = json!({"scaling": replicas(self.jobs.len() + 1)});
        self.setup.t.call(&self.setup.ada, "PATCH", &self.path, scaling).await.expect(200);
        self.setup.turn(0).await;
        let all = self.setup.replica_jobs().await;
        let new: Vec<JobId> = all.into_iter().filter(|job| !self.jobs.contains(job)).collect();
        let [new] = new[..] else { panic!("one more: {new:?}") };
        self.jobs.push(new);
        let shown = job(&self.setup, &new.to_string()).await;
        if shown["devices"][0].is_object() {
            self.setup.runs(new, true).await;
            self.setup.turn(0).await;
        }
        shown
    }
}

/// The rate, the surcharge and the hold of a job.
fn price(job: &Value) -> [i64; 3] {
    ["nano_per_second", "surcharge_basis_points", "held_micros"].map(|name| job[name].as_i64().unwrap_or(0))
}

#[tokio::test]
async fn a_replica_keeps_the_surcharge_that_its_service_had_at_its_submission() {
    for (engine, db, _location) in engines("promise_price").await {
        let mut one = Priced::new(IdlePortal::on(db).await).await;
        let plain = [1_000_000, 0, 7_200_000];
        assert_eq!(price(&one.start().await), plain, "{engine}: without a promise");

        let classes = "/operator/promises";
        let made = one.setup.t.post(&one.setup.operator, classes, priced(1_250)).await.expect(201);
        assert_eq!(made["terms"]["surcharge_basis_points"], 1_250, "{engine}: {made}");
        let (id, class) = (made["id"].clone(), format!("{classes}/{}", made["id"].as_str().unwrap()));
        one.choose(json!({"promise": id})).await;
        let gold = [1_125_000, 1_250, 8_100_000];
        assert_eq!(price(&one.start().await), gold, "{engine}: after the choice");

        let terms = json!({"terms": priced(5_000)["terms"]});
        one.setup.t.call(&one.setup.operator, "PATCH", &class, terms).await.expect(200);
        assert_eq!(price(&one.start().await), gold, "{engine}: a choice keeps its terms");
        one.choose(json!({"promise": id, "surcharge_basis_points": 5_000})).await;
        let dear = [1_500_000, 5_000, 10_800_000];
        assert_eq!(price(&one.start().await), dear, "{engine}: after the new choice");

        one.setup.t.call(&one.setup.operator, "DELETE", &class, Value::Null).await.expect(204);
        assert_eq!(price(&one.start().await), plain, "{engine}: after the end of the offer");
        for (id, expected) in one.jobs.iter().zip([plain, gold, gold, dear, plain]) {
            let shown = job(&one.setup, &id.to_string()).await;
            assert_eq!(price(&shown), expected, "{engine}: the others are as they were, {shown}");
        }
        one.setup.assert_books_balance().await;
    }
}

#[tokio::test]
async fn an_ended_replica_is_charged_with_its_surcharge_on_a_line_of_its_own() {
    for (engine, db, _location) in engines("promise_charge").await {
        let mut one = Priced::new(IdlePortal::on(db).await).await;
        one.start().await;
        let made =
            one.setup.t.post(&one.setup.operator, "/operator/promises", priced(1_250)).await.expect(201);
        one.choose(json!({"promise": made["id"]})).await;
        one.start().await;
        for id in &one.jobs {
            let shown = job(&one.setup, &id.to_string()).await;
            let node: NodeId = shown["devices"][0]["node"].as_str().unwrap().parse().unwrap();
            let end = AttemptReport {
                metered_ms: 5_001,
                exit_code: Some(0),
                log_bytes: Some(0),
                began: true,
                ..AttemptReport::new(*id, 1, Phase::Clean)
            };
            one.setup.t.portal.attempts.apply_status(node, end).await.unwrap();
        }
        let mut costs = Vec::new();
        for id in &one.jobs {
            let shown = job(&one.setup, &id.to_string()).await;
            assert_eq!(shown["held_micros"], 0, "{engine}: {shown}");
            costs.push(shown["cost_micros"].as_i64().unwrap());
        }
        // 5.001 s at 1,000 and at 1,125 micro-units a second, rounded down.
        assert_eq!(costs, [5_001, 5_626], "{engine}");

        let statement = one.setup.t.get(&one.setup.ada, &format!("/orgs/{}/statement", one.setup.org)).await;
        let line = |rate: i64, micros: i64| {
            json!({
                "item": "h100-80gb", "mode": "on_demand", "device_ms": 5_001, "unit_nano_per_second": rate,
                "amount_micros": micros,
            })
        };
        let mut promised = line(1_125_000, 5_626);
        promised["surcharge_basis_points"] = json!(1_250);
        let lines = statement.expect(200)["lines"].clone();
        assert_eq!(lines, json!([line(1_000_000, 5_001), promised]), "{engine}");
        one.setup.assert_books_balance().await;
    }
}

#[tokio::test]
async fn replicas_with_a_lower_surcharge_than_the_choice_give_no_credit() {
    for (engine, db, location) in engines("promise_lower").await {
        let one = Promised::new(db, location, priced(1_000)).await;
        for (surcharge, charged_micros) in [(0, 1_000), (999, 2_000), (1_000, 4_000), (1_250, 8_000)] {
            let job = submit(&one.setup, json!({"max_duration_s": 60})).await;
            let sql = format!("UPDATE jobs SET surcharge_basis_points = {surcharge} WHERE id = '{job}'");
            assert_eq!(run(&one.location, sql).await, 1, "{engine}");
            let at = one.begin.plus_seconds(60);
            one.charge_job(job.parse().unwrap(), at, (charged_micros, charged_micros / 10)).await;
        }
        one.add_use(0, 100, 50, 0).await;
        one.go_to(HOUR + LATE_S);
        one.judge().await;
        let credits = one.credits().await;
        // A tenth of the 10,800 micro-units of the two replicas with the surcharge.
        assert_eq!(credits.len(), 1, "{engine}: {credits:?}");
        assert_eq!(credits[0]["amount_micros"], 1_080, "{engine}");
    }
}

#[tokio::test]
async fn a_choice_refuses_another_surcharge_than_the_accepted_one() {
    for (engine, db, _location) in engines("promise_accept").await {
        let one = Priced::new(IdlePortal::on(db).await).await;
        let (t, setup, classes) = (&one.setup.t, &one.setup, "/operator/promises");
        let dear = t.post(&setup.operator, classes, priced(10_001)).await.problem(422, "request.invalid");
        assert_eq!(dear["errors"][0]["pointer"], "/terms/surcharge_basis_points", "{engine}: {dear}");

        let made = t.post(&setup.operator, classes, priced(1_000)).await.expect(201);
        let events = items(t, &setup.operator, "/operator/audit-events?action=promise.created").await;
        let after = events[0]["after"].as_str().unwrap();
        assert!(after.contains("\"surcharge_basis_points\":1000"), "{engine}: {after}");
        let offered = items(t, &setup.ada, &format!("/orgs/{}/promises", setup.org)).await;
        assert_eq!(offered[0]["terms"]["surcharge_basis_points"], 1_000, "{engine}: before a choice");

        let put = format!("{}/promise", one.path);
        for accepted in [0, 999, 1_001] {
            let body = json!({"promise": made["id"], "surcharge_basis_points": accepted});
            let refused = t.call(&setup.ada, "PUT", &put, body).await.problem(422, "request.invalid");
            assert_eq!(refused["errors"][0]["pointer"], "/surcharge_basis_points", "{engine}: {refused}");
        }
        assert!(t.get(&setup.ada, &put).await.expect(200)["chosen"].is_null(), "{engine}");
        one.choose(json!({"promise": made["id"], "surcharge_basis_points": 1_000})).await;
        let shown = t.get(&setup.ada, &put).await.expect(200);
        assert_eq!(shown["chosen"]["terms"]["surcharge_basis_points"], 1_000, "{engine}: {shown}");
    }
}

#[tokio::test]
async fn jobs_and_charges_from_before_surcharges_have_none() {
    let mut conn = sqlx::SqliteConnection::connect("sqlite::memory:").await.unwrap();
    for sql in [
        include_str!("../../../migrations/0001_accounts.sql"),
        include_str!("../../../migrations/0002_billing.sql"),
        include_str!("../../../migrations/0022_invoice_details.sql"),
        "CREATE TABLE jobs (id TEXT PRIMARY KEY); INSERT INTO jobs VALUES ('job')",
        "INSERT INTO usage_days (org_id, day, offering_id, mode, member, price_version, device_milli_ms, cost_micros) \
         VALUES ('org', 7, 'slice', 'on_demand', 'Ada', 2, 5, 3)",
        include_str!("../../../migrations/0044_promise_prices.sql"),
    ] {
        sqlx::raw_sql(sql).execute(&mut conn).await.unwrap();
    }
    let sql = "SELECT day, price_version, u.surcharge_basis_points, device_milli_ms, cost_micros, \
               j.surcharge_basis_points FROM usage_days u CROSS JOIN jobs j";
    let rows: Vec<(i64, i64, i64, i64, i64, i64)> = sqlx::query_as(sql).fetch_all(&mut conn).await.unwrap();
    assert_eq!(rows, [(7, 2, 0, 5, 3, 0)]);
}

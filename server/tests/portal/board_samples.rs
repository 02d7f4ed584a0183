//! Tests of the kept readings of boards and of the boards out of service on the overview, on every engine.

use crate::common::{Caller, engines};
use crate::idle_portal::{DAY, HOUR, IdlePortal, node};
use crate::operations::{schedule_all, submit};
use berth_fleet::board_history::BoardValues;
use berth_fleet::reports::{BoardReport, ReportedFault};
use berth_types::health::GpuFacts;
use berth_types::ids::NodeId;
use serde_json::{Value, json};

const GPU: &str = "GPU-1-0";

fn path(of: NodeId, gpu: &str) -> String {
    format!("/operator/nodes/{of}/gpus/{gpu}/samples")
}

async fn samples(setup: &IdlePortal, gpu: &str, query: &str) -> Value {
    setup.t.get(&setup.operator, &format!("{}{query}", path(node(1), gpu))).await.expect(200)
}

fn read(setup: &IdlePortal, gpu: &str, percent: f64) {
    let values = BoardValues { utilization_percent: Some(percent), ..BoardValues::default() };
    setup.t.portal.health.add_reading(gpu, values);
}

#[tokio::test]
async fn a_board_without_a_job_has_readings() {
    for (engine, db, _location) in engines("board_samples").await {
        let setup = IdlePortal::on(db).await;
        let none = samples(&setup, GPU, "").await;
        assert_eq!((&none["at_s"], &none["jobs"]), (&json!([]), &json!([])), "{engine}");
        for percent in [10.0, 20.0, f64::NAN, 1e300] {
            read(&setup, GPU, percent);
            setup.t.clock.advance_s(10);
        }
        let found = samples(&setup, GPU, "").await;
        let values = json!([10.0, 20.0, null, null]);
        assert_eq!(found["utilization_percent"], values, "{engine}: no board has the others");
        assert_eq!(found["power_watts"], json!([null, null, null, null]), "{engine}");
        assert_eq!(
            samples(&setup, "GPU-1-1", "").await["at_s"],
            json!([]),
            "{engine}: of its own board only"
        );
        let from = setup.at(-25);
        let some = samples(&setup, GPU, &format!("?from={from}")).await;
        assert_eq!(some["utilization_percent"], json!([null, null]), "{engine}");
        let early = samples(&setup, GPU, &format!("?to={}", setup.at(-HOUR))).await;
        assert_eq!(early["at_s"], json!([]), "{engine}");
        setup.t.clock.advance_s(DAY + HOUR);
        let operator = setup.t.sign_in("harbour@example.org").await;
        let old = setup.t.get(&operator, &path(node(1), GPU)).await.expect(200);
        assert_eq!(old["at_s"], json!([]), "{engine}: a day later");
    }
}

#[tokio::test]
async fn the_jobs_on_a_board_are_beside_its_readings() {
    for (engine, db, _location) in engines("board_jobs").await {
        let setup = IdlePortal::on(db).await;
        let before = setup.at(0);
        setup.t.clock.advance_s(60);
        let mut jobs = Vec::new();
        for _ in 0..4 {
            jobs.push(submit(&setup, json!({})).await);
        }
        // Each of the four boards takes one.
        schedule_all(&setup).await;
        let found = samples(&setup, GPU, "").await["jobs"].clone();
        assert_eq!(found.as_array().unwrap().len(), 1, "{engine} {found}");
        let one = &found[0];
        assert!(jobs.contains(&one["job"].as_str().unwrap().to_owned()), "{engine} {one}");
        assert_eq!((&one["job_name"], &one["attempt"]), (&json!("train"), &json!(1)), "{engine}");
        assert_eq!((&one["org"], one.get("to")), (&json!(setup.org), None), "{engine}");
        let earlier = samples(&setup, GPU, &format!("?to={before}")).await;
        assert_eq!(earlier["jobs"], json!([]), "{engine}: not before its begin");
    }
}

#[tokio::test]
async fn only_operators_read_the_samples_of_a_board_of_its_node() {
    for (_, db, _location) in engines("board_samples_rights").await {
        let setup = IdlePortal::on(db).await;
        let t = &setup.t;
        t.get(&setup.ada, &path(node(1), GPU)).await.problem(404, "object.not_found");
        t.get(&Caller::Nobody, &path(node(1), GPU)).await.problem(401, "auth.required");
        t.get(&setup.operator, &path(node(2), GPU)).await.problem(404, "object.not_found");
        t.get(&setup.operator, &path(node(1), "GPU-9")).await.problem(404, "object.not_found");
        let turned = format!("{}?from={}&to={}", path(node(1), GPU), setup.at(1), setup.at(0));
        t.get(&setup.operator, &turned).await.problem(400, "request.malformed");
        let strange = format!("{}?step_s=1", path(node(1), GPU));
        t.get(&setup.operator, &strange).await.problem(400, "request.malformed");
    }
}

#[tokio::test]
async fn the_overview_lists_faults_before_changes_of_the_mode() {
    for (engine, db, _location) in engines("board_notices").await {
        let setup = IdlePortal::on(db).await;
        let facts = GpuFacts { mig: Some(false), mig_pending: Some(false), ..GpuFacts::default() };
        let report = |gpu: &str, silent: Option<&str>, fault: Option<ReportedFault>| BoardReport {
            gpu_uuid: gpu.to_owned(),
            silent: silent.map(str::to_owned),
            fault,
            done: None,
            facts: Some(facts.clone()),
            mig_profiles: vec![],
        };
        let fault = ReportedFault { serial: 1, code: "gpu.ecc".to_owned(), detail: "ECC".to_owned() };
        let health = &setup.t.portal.health;
        health.apply_health(node(1), vec![report("GPU-1-0", None, None)]).await.unwrap();
        health.apply_health(node(1), vec![report("GPU-1-1", None, Some(fault))]).await.unwrap();
        health.apply_health(node(2), vec![report("GPU-2-0", Some("no answer"), None)]).await.unwrap();
        setup.t.clock.advance_s(60);
        setup.t.post(&setup.operator, "/operator/gpus/GPU-1-0/mode", json!({"mig": true})).await.expect(200);
        let found = setup.t.get(&setup.operator, "/operator/overview").await.expect(200);
        let cluster = &found["cluster"];
        assert_eq!(cluster["boards_out_of_service"], 3, "{engine}");
        let notices = cluster["board_notices"].as_array().unwrap();
        let named: Vec<(&str, Option<&str>)> = notices
            .iter()
            .map(|one| (one["gpu_uuid"].as_str().unwrap(), one.get("code").and_then(Value::as_str)))
            .collect();
        let expected = [("GPU-1-1", Some("gpu.ecc")), ("GPU-2-0", None), ("GPU-1-0", Some("gpu.mode"))];
        assert_eq!(named, expected, "{engine}");
        assert_eq!((&notices[1]["reason"], notices[1].get("since")), (&json!("no answer"), None), "{engine}");
    }
}

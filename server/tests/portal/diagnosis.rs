//! Tests of the checks of hosts: the way of findings from a worker to the operator, and their limits.

use berth_proto::worker_message::Body;
use berth_proto::{Diagnosis, Finding, FindingState};
use serde_json::{Value, json};

use crate::common::{TestPortal, engines};
use crate::daemons::{PlayedSession, get_node, join_new_node};
use crate::worker_portal::{WorkerPortal, eventually, without_worker_on};

/// The findings of a node once they are as wanted.
async fn findings(setup: &WorkerPortal, node: &str, is_wanted: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let path = format!("/operator/nodes/{node}/diagnosis");
    eventually("the findings of a node", async || {
        let diagnosis = setup.t.get(&setup.operator, &path).await.expect(200);
        let found = diagnosis["findings"].as_array().unwrap().clone();
        (diagnosis["reported_at"].is_string() && is_wanted(&found)).then_some(found)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn findings_of_a_worker_reach_operators_within_limits() {
    for (engine, db, _location) in engines("diagnosis").await {
        let setup = without_worker_on(TestPortal::on(db)).await;
        let credentials = join_new_node(&setup).await;
        let path = format!("/operator/nodes/{}/diagnosis", credentials.node);
        let none = setup.t.get(&setup.operator, &path).await.expect(200);
        assert_eq!(none, json!({"findings": []}), "{engine}: nothing is reported yet");
        setup.t.get(&setup.ada, &path).await.problem(404, "object.not_found");
        let other = "/operator/nodes/node_00000000000000000000000001/diagnosis";
        setup.t.get(&setup.operator, other).await.problem(404, "object.not_found");

        let played = PlayedSession::open(&setup, Some(&credentials), ("a", 1, 1)).await.unwrap();
        let played = played.expect_admitted().await;
        let finding = |code: &str, state: FindingState, next: &str| Finding {
            code: code.to_owned(),
            state: state.into(),
            found: "<b>It\u{1b} is\n missing.</b>".to_owned(),
            next: next.to_owned(),
        };
        let reported = vec![
            finding("driver.nodes", FindingState::Problem, "nvidia-modprobe -u -c 0"),
            finding("kernel.clock", FindingState::Ok, ""),
            finding("not a code", FindingState::Ok, ""),
        ];
        played.up.send(Body::Diagnosis(Diagnosis { findings: reported }).into()).unwrap();
        let found = findings(&setup, &credentials.node, |found| !found.is_empty()).await;
        let text = "<b>It is missing.</b>";
        let expected = json!([
            {"code": "driver.nodes", "state": "problem", "found": text, "next": "nvidia-modprobe -u -c 0"},
            {"code": "kernel.clock", "state": "ok", "found": text},
        ]);
        assert_eq!(Value::from(found), expected, "{engine}");

        // The next report replaces the earlier one, and has at most 64 findings.
        let long =
            Finding { found: "x".repeat(10_000), ..finding("limits.files", FindingState::Warning, "") };
        played.up.send(Body::Diagnosis(Diagnosis { findings: vec![long; 1_000] }).into()).unwrap();
        let found = findings(&setup, &credentials.node, |found| found.len() > 2).await;
        assert_eq!(found.len(), 64, "{engine}");
        assert!(found.iter().all(|one| one["found"].as_str().unwrap().len() == 300), "{engine}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_reports_the_checks_of_its_host() {
    let setup = WorkerPortal::open().await;
    let nodes = setup.t.get(&setup.operator, "/operator/nodes").await.expect(200);
    let id = nodes["items"][0]["id"].as_str().unwrap().to_owned();
    let found = findings(&setup, &id, |found| !found.is_empty()).await;
    let codes: Vec<&str> = found.iter().map(|one| one["code"].as_str().unwrap()).collect();
    for code in ["programs.bubblewrap", "kernel.cgroups", "limits.files", "disk.space"] {
        assert!(codes.contains(&code), "{code}: {codes:?}");
    }
    assert!(
        !codes.iter().any(|code| code.starts_with("driver.")),
        "simulated boards need no driver: {codes:?}"
    );
    assert!(!codes.contains(&"network.portal"), "the session proves the address: {codes:?}");
    assert_eq!(get_node(&setup, &id).await["simulated"], true);
}

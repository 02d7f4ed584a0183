//! Tests of the OpenAPI document and its viewer.

use std::collections::BTreeSet;

use crate::common::{Caller, TestPortal};
use axum::body::{Body, to_bytes};
use axum::http::Request;
use berth_server::openapi::document;
use serde_json::{Value, json};
use tower::ServiceExt;

/// Returns all operations with method and path.
fn operations() -> Vec<(String, &'static Value)> {
    let paths = document()["paths"].as_object().unwrap();
    let operations_of_path = |(path, item): (&'static String, &'static Value)| {
        let all = item.as_object().unwrap().iter();
        all.map(move |(method, operation)| (format!("{} {path}", method.to_uppercase()), operation))
    };
    paths.iter().flat_map(operations_of_path).collect()
}

#[test]
fn the_openapi_document_equals_the_committed_file() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/openapi.json");
    let now = format!("{:#}\n", document());
    if std::env::var_os("BERTH_WRITE_OPENAPI").is_some() {
        std::fs::write(file, &now).unwrap();
    }
    let committed = std::fs::read_to_string(file).unwrap();
    assert!(
        committed == now,
        "the API changed: BERTH_WRITE_OPENAPI=1 cargo test --test portal openapi:: writes {file}"
    );
}

#[test]
fn each_operation_has_a_summary_and_responses() {
    let mut ids = BTreeSet::new();
    for (name, operation) in operations() {
        let summary = operation["summary"].as_str().unwrap_or_default();
        assert!(summary.ends_with('.'), "{name} has no summary");
        let responses = operation["responses"].as_object().unwrap();
        assert!(responses.keys().any(|status| status.starts_with(['1', '2'])), "{name} has no answer");
        assert!(responses.contains_key("default"), "{name} has no problem");
        assert!(ids.insert(operation["operationId"].as_str().unwrap()), "{name} has an id of another");
    }
    assert!(ids.len() > 120, "{} operations", ids.len());
}

#[test]
fn each_path_parameter_is_described() {
    for (name, operation) in operations() {
        let parameters = operation["parameters"].as_array().into_iter().flatten();
        let in_path = parameters.filter(|p| p["in"] == "path").count();
        assert_eq!(in_path, name.matches('{').count(), "{name}");
    }
}

#[tokio::test]
async fn the_api_viewer_runs_only_its_own_scripts() {
    let t = TestPortal::sqlite().await;
    let request = Request::get("/api/docs").body(Body::empty()).unwrap();
    let answer = t.router.clone().oneshot(request).await.unwrap();
    let policy = answer.headers()["content-security-policy"].to_str().unwrap().to_owned();
    assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
    assert!(!policy.contains("http") && !policy.contains("script-src 'unsafe"), "{policy}");
    let page = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
    let page = std::str::from_utf8(&page).unwrap();
    assert_eq!(page.matches("<script>").count(), policy.matches("sha256-").count());
    assert!(page.len() > 1_000_000, "the viewer's program is {} bytes", page.len());
}

/// The schema at a reference of the document, or the schema itself.
fn resolve(schema: &'static Value) -> &'static Value {
    match schema["$ref"].as_str() {
        Some(reference) => document().pointer(reference.trim_start_matches('#')).unwrap(),
        None => schema,
    }
}

/// The codes of problems that an example may meet: its ids and secrets are invented, and the portal of the test
/// has no Stripe, no reservations and no worker.
const EXPECTED_CODES: [&str; 7] = [
    "auth.wrong_password",
    "funds.insufficient",
    "invitation.not_valid",
    "object.not_found",
    "payments.off",
    "port.off",
    "setup.done",
];

/// The fields of examples that name objects which the test has not.
const UNKNOWN_OBJECTS: [&str; 3] = ["/grants/0/organization", "/gpus", "/quote"];

#[tokio::test]
async fn each_body_has_an_example_that_the_portal_reads() {
    let t = TestPortal::sqlite().await;
    let operator = t.operator().await;
    let (owner, org) = t.tenant("lab").await;
    t.add_price_and_credit(&operator, &org, 1_000_000_000_000).await;
    let price = json!({"offering": "h100-80gb", "per_hour_micros": 3_600_000});
    t.post(&operator, "/operator/prices", price).await.expect(201);
    let mut sent = 0;
    let mut faults = Vec::new();
    for (name, operation) in operations() {
        let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
        if schema.is_null() {
            continue;
        }
        let Some(examples) = resolve(schema)["examples"].as_array() else {
            faults.push(format!("{name} has no example"));
            continue;
        };
        let (method, path) = name.split_once(" /api/v1").unwrap();
        let path = path.replace("{org}", &org);
        let path: Vec<&str> = path
            .split('/')
            .map(|part| match part {
                "{job}" => "job_00000000000000000000000001",
                "{node}" => "node_00000000000000000000000001",
                "{user}" => "user_00000000000000000000000001",
                "{id}" if path.contains("quota-requests") => "qreq_00000000000000000000000001",
                "{port}" => "8888",
                _ if part.starts_with('{') => "example",
                _ => part,
            })
            .collect();
        let caller = if path.contains(&"operator") { &operator } else { &owner };
        let caller = if operation["security"].is_null() { &Caller::Nobody } else { caller };
        for example in examples {
            let reply = t.call(caller, method, &path.join("/"), example.clone()).await;
            let code = reply.body["code"].as_str().unwrap_or_default().to_owned();
            let pointer = reply.body["errors"][0]["pointer"].as_str().unwrap_or_default();
            let is_known = EXPECTED_CODES.contains(&code.as_str()) || UNKNOWN_OBJECTS.contains(&pointer);
            if !reply.status.is_success() && !is_known {
                faults.push(format!("{name}: {} {} of {example}", reply.status, reply.body));
            }
            sent += 1;
        }
    }
    assert!(sent > 40, "{sent}");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

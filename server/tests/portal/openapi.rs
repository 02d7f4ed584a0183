//! Tests of the OpenAPI document and its viewer.

use std::collections::BTreeSet;

use crate::common::TestPortal;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use berth_server::openapi::document;
use serde_json::Value;
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

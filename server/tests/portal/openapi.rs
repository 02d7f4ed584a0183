//! Tests of the OpenAPI document and its viewer.

use std::collections::BTreeSet;

use crate::common::described::resolve;
use crate::common::{Caller, TestPortal};
use crate::invoice_files::{document as invoice_document, issue};
use axum::body::{Body, to_bytes};
use axum::http::Request;
use berth_server::openapi::document;
use berth_types::scopes::ApiScope;
use berth_types::webhooks::NOTICE_KINDS;
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
        assert!(responses.keys().any(|status| status.starts_with(['1', '2', '3'])), "{name} has no answer");
        assert!(!responses.contains_key("default"), "{name} has an answer without a status");
        for status in ["500", "503"] {
            let is_scim = name.contains("/api/v1/scim/");
            let media = if is_scim { "application/scim+json" } else { "application/problem+json" };
            let form = &resolve(&operation["responses"][status])["content"][media];
            assert!(!form["schema"].is_null(), "{name} has no problem with the status {status}");
        }
        assert!(ids.insert(operation["operationId"].as_str().unwrap()), "{name} has an id of another");
    }
    assert!(ids.len() > 120, "{} operations", ids.len());
}

/// The routes of people and tokens that need no scope.
const OF_EVERY_TOKEN: [&str; 3] =
    ["GET /api/v1/me", "POST /api/v1/operator/tokens", "POST /api/v1/orgs/{org}/tokens"];

#[test]
fn each_route_has_a_scope() {
    for (name, operation) in operations() {
        let scope = operation["x-scope"].as_str().unwrap_or_default();
        assert!(scope == "any" || ApiScope::parse(scope).is_some(), "{name} has no scope: {scope}");
        let security = operation["security"].as_array().into_iter().flatten();
        let named: Vec<&Value> = security.filter_map(|scheme| scheme.get("token")).collect();
        match named.as_slice() {
            [] => {}
            [named] if scope == "any" => {
                assert_eq!(**named, json!([]), "{name}");
                assert!(OF_EVERY_TOKEN.contains(&name.as_str()), "{name} needs a scope");
            }
            [named] => assert_eq!(**named, json!([scope]), "{name}"),
            _ => panic!("{name} names tokens twice"),
        }
    }
}

#[test]
fn each_path_parameter_is_described() {
    for (name, operation) in operations() {
        let parameters = operation["parameters"].as_array().into_iter().flatten();
        let in_path: Vec<&'static Value> = parameters.filter(|p| p["in"] == "path").collect();
        assert_eq!(in_path.len(), name.matches('{').count(), "{name}");
        for parameter in in_path {
            let schema = resolve(&parameter["schema"]);
            let is_limited = match schema["type"].as_str() {
                Some("integer") => schema["minimum"].is_u64() && schema["maximum"].is_u64(),
                Some("string") => has_limits(schema),
                _ => false,
            };
            assert!(is_limited, "{name}: {}", parameter["name"]);
        }
    }
}

/// Returns true if a value, or the schema that it refers to, has a description.
fn is_described(value: &'static Value) -> bool {
    let parts = ["allOf", "anyOf"].into_iter().filter_map(|key| value[key].as_array());
    let has_text = !value["description"].as_str().unwrap_or_default().is_empty();
    let refers = || !value["$ref"].is_null() && is_described(resolve(value));
    has_text || refers() || parts.flatten().any(is_described)
}

/// Adds the properties of a schema without a description.
fn find_undescribed(name: &str, schema: &'static Value, faults: &mut Vec<String>) {
    for (field, property) in schema["properties"].as_object().into_iter().flatten() {
        // The name of a variant has one value.
        if property["const"].is_null() && !is_described(property) {
            faults.push(format!("{name}.{field}"));
        }
    }
    for key in ["allOf", "anyOf", "oneOf"] {
        schema[key].as_array().into_iter().flatten().for_each(|part| find_undescribed(name, part, faults));
    }
}

#[test]
fn each_schema_parameter_answer_and_tag_has_a_description() {
    let mut faults = Vec::new();
    for (name, schema) in document()["components"]["schemas"].as_object().unwrap() {
        if !is_described(schema) {
            faults.push(name.clone());
        }
        find_undescribed(name, schema, &mut faults);
    }
    for (name, operation) in operations() {
        let parameters = operation["parameters"].as_array().into_iter().flatten();
        let parameters = parameters.map(|parameter| (parameter["name"].to_string(), parameter));
        let answers = operation["responses"].as_object().unwrap().iter();
        let answers = answers.map(|(status, answer)| (status.clone(), answer));
        let undescribed = parameters.chain(answers).filter(|(_, value)| !is_described(value));
        faults.extend(undescribed.map(|(part, _)| format!("{name}: {part}")));
    }
    for tag in document()["tags"].as_array().unwrap() {
        if !is_described(tag) {
            faults.push(tag["name"].to_string());
        }
    }
    assert!(faults.is_empty(), "without a description:\n{}", faults.join("\n"));
}

#[test]
fn each_new_object_takes_an_idempotency_key_or_says_why_not() {
    for (name, operation) in operations().into_iter().filter(|(name, _)| name.starts_with("POST ")) {
        let mut parameters = operation["parameters"].as_array().into_iter().flatten();
        let takes_key = parameters.any(|parameter| parameter["name"] == "Idempotency-Key");
        let description = operation["description"].as_str().unwrap_or_default();
        assert!(takes_key || description.starts_with("No `Idempotency-Key`: "), "{name}");
    }
}

#[test]
fn each_kind_of_event_is_described() {
    let mut streams = 0;
    for (name, operation) in operations() {
        let schema = &operation["responses"]["200"]["content"]["text/event-stream"]["schema"];
        if schema.is_null() {
            continue;
        }
        streams += 1;
        for kind in schema["contentSchema"]["items"]["oneOf"].as_array().unwrap() {
            let fields = &kind["properties"];
            assert!(is_described(kind) && is_described(&fields["data"]), "{name}: {kind}");
            assert!(fields["event"]["const"].is_string(), "{name}: {kind}");
        }
    }
    assert_eq!(streams, 4);
    // The code of the streams and the document have the names from `berth_rest::streams`.
    let code = include_str!("../../jobs/src/jobs/streams.rs");
    assert!(code.contains(".event(") && !code.contains(".event(\""), "an event has a name of its own");
}

#[tokio::test]
async fn each_table_begins_with_the_described_columns() {
    let t = TestPortal::sqlite().await;
    let operator = t.operator().await;
    let (owner, org) = t.tenant("lab").await;
    let invoice = issue(&t, &org, "2026-09", &invoice_document(2)).await.to_string();
    let mut tables = 0;
    for (name, operation) in operations() {
        let columns = &operation["responses"]["200"]["content"]["text/csv"]["schema"]["x-columns"];
        let Some(columns) = columns.as_array() else { continue };
        let columns: Vec<&str> = columns.iter().map(|column| column.as_str().unwrap()).collect();
        let path = name.strip_prefix("GET ").unwrap().replace("{org}", &org).replace("{id}", &invoice);
        let caller = if path.contains("/operator/") { &operator } else { &owner };
        let Caller::Cookie(cookie) = caller else { panic!("a person") };
        let request = Request::get(path.as_str()).header("accept", "text/csv").header("cookie", cookie);
        let answer = t.router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        let bytes = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        let text = std::str::from_utf8(&bytes).unwrap();
        assert_eq!(text.lines().next(), Some(columns.join(",").as_str()), "{name}");
        tables += 1;
    }
    assert_eq!(tables, 10);
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

/// Returns true if no text of a schema has an unlimited length.
fn has_limits(schema: &'static Value) -> bool {
    let schema = resolve(schema);
    if let Some(kinds) = schema["anyOf"].as_array() {
        return kinds.iter().all(has_limits);
    }
    let is_text = schema["type"] == "string" || schema["type"] == json!(["string", "null"]);
    !is_text || ["enum", "const", "format", "pattern", "maxLength"].iter().any(|key| !schema[*key].is_null())
}

#[test]
fn each_text_in_a_query_has_a_limit() {
    for (name, operation) in operations() {
        let parameters = operation["parameters"].as_array().into_iter().flatten();
        for parameter in parameters.filter(|parameter| parameter["in"] == "query") {
            assert!(has_limits(&parameter["schema"]), "{name}: {}", parameter["name"]);
        }
    }
}

/// The codes of problems that an example may meet: its ids and secrets are invented, and the portal of the test
/// has no Stripe, no reservations and no worker.
const EXPECTED_CODES: [&str; 12] = [
    "auth.challenge",
    "auth.wrong_password",
    "factor.missing",
    "funds.insufficient",
    "invitation.not_valid",
    "link.not_valid",
    "object.not_found",
    "operators.account",
    "passkey.unavailable",
    "payments.off",
    "port.off",
    "setup.done",
];

/// The fields of examples that name objects or services which the test has not.
const UNKNOWN_OBJECTS: [&str; 4] = ["/grants/0/organization", "/node", "/issuer", "/quote"];

#[tokio::test]
async fn each_body_has_an_example_that_the_portal_reads() {
    let t = TestPortal::sqlite().await;
    let operator = t.operator().await;
    let (owner, org) = t.tenant("lab").await;
    // The person of the example for a new operator.
    t.tenant("grace").await;
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

#[test]
fn every_notice_has_its_request_to_webhooks() {
    let webhooks = document()["webhooks"].as_object().unwrap();
    let named: BTreeSet<&str> = webhooks.keys().map(String::as_str).collect();
    assert_eq!(named, NOTICE_KINDS.iter().map(|(kind, _)| *kind).collect());
    for (kind, request) in webhooks {
        let body = &request["post"]["requestBody"]["content"]["application/json"]["schema"];
        let fields = resolve(body)["properties"].as_object().unwrap();
        let names: Vec<&str> = fields.keys().map(String::as_str).collect();
        assert_eq!(names, ["at", "data", "detail", "id", "org", "subject", "type"], "{kind}");
    }
}

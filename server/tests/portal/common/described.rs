//! A check of every answer in the tests against the OpenAPI document: route, status and schema.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests fail loudly, like tests"
)]

use std::collections::HashMap;
use std::io::Write;
use std::sync::{LazyLock, Mutex, PoisonError};

use axum::http::{HeaderMap, header};
use berth_server::openapi::document;
use jsonschema::Validator;
use serde_json::{Value, json};

type Validators = HashMap<(String, String, u16), &'static Validator>;

/// The validators by route, method and status.
static VALIDATORS: LazyLock<Mutex<Validators>> = LazyLock::new(Mutex::default);

/// Returns true if a path matches a template. The last parameter may contain slashes.
fn is_at(template: &str, path: &str) -> bool {
    let mut parts = path.split('/');
    for wanted in template.split('/') {
        match parts.next() {
            Some(_) if wanted == "{path}" => return true,
            Some(part) if wanted.starts_with('{') && !part.is_empty() || part == wanted => {}
            _ => return false,
        }
    }
    parts.next().is_none()
}

/// Returns the template of a path; literal parts take precedence over parameters.
fn template(path: &str) -> Option<&'static String> {
    let all = document()["paths"].as_object().unwrap().keys();
    all.filter(|template| is_at(template, path)).min_by_key(|template| template.matches('{').count())
}

/// The value at a reference of the document, or the value itself.
pub fn resolve(value: &'static Value) -> &'static Value {
    match value["$ref"].as_str() {
        Some(reference) => document().pointer(reference.trim_start_matches('#')).unwrap(),
        None => value,
    }
}

fn validator(template: &str, method: &str, status: u16, schema: &Value) -> &'static Validator {
    let mut known = VALIDATORS.lock().unwrap_or_else(PoisonError::into_inner);
    known.entry((template.to_owned(), method.to_owned(), status)).or_insert_with(|| {
        let whole = json!({ "allOf": [schema], "components": document()["components"] });
        Box::leak(Box::new(jsonschema::validator_for(&whole).unwrap()))
    })
}

/// Panics if an answer does not match the OpenAPI document. `BERTH_RECORD_PROBLEMS` names a file that gets the
/// operation and the code of each problem instead, for `problem_codes.json`.
#[track_caller]
pub fn check(method: &str, path: &str, status: u16, headers: &HeaderMap, body: &Value) {
    if !path.starts_with("/api/v1/") {
        return;
    }
    let Some(template) = template(path) else {
        assert_eq!(status, 404, "{method} {path} is in no description");
        return;
    };
    let operation = &document()["paths"][template][method.to_lowercase()];
    if operation.is_null() {
        assert!(matches!(status, 403 | 405), "{method} {template} is in no description and answers {status}");
        return;
    }
    if let (Some(file), Some(code)) = (std::env::var_os("BERTH_RECORD_PROBLEMS"), body["code"].as_str()) {
        let line = format!("{} {code}\n", operation["operationId"].as_str().unwrap());
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(file).unwrap();
        file.write_all(line.as_bytes()).unwrap();
        return;
    }
    let Some(answer) = operation["responses"].get(status.to_string()) else {
        panic!("{method} {template}: {status} is not described: {body}");
    };
    let answer = resolve(answer);
    for name in answer["headers"].as_object().into_iter().flat_map(serde_json::Map::keys) {
        assert!(headers.contains_key(name.as_str()), "{method} {template}: {status} has no header {name}");
    }
    let media = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let media = media.split(';').next().unwrap_or_default().trim();
    let Some(content) = answer["content"].as_object() else {
        assert!(body.is_null(), "{method} {template}: {status} has a body that is not described: {body}");
        return;
    };
    let Some(form) = content.get(media) else {
        panic!("{method} {template}: {status} is described as {:?}, not as {media:?}", content.keys());
    };
    if media.ends_with("json") && media != "application/x-ndjson" {
        let validator = validator(template, method, status, &form["schema"]);
        let faults: Vec<String> =
            validator.iter_errors(body).map(|fault| format!("{}: {fault}", fault.instance_path())).collect();
        assert!(faults.is_empty(), "{method} {template}: {status}: {faults:?}: {body}");
    }
}

/// Returns the first fault of a body by the schema of its request.
pub fn find_fault(method: &str, path: &str, body: &Value) -> Option<String> {
    let path = path.split('?').next().unwrap_or_default();
    let template = template(path).unwrap();
    let schema = &document()["paths"][template][method.to_lowercase()]["requestBody"]["content"]["application/json"]
        ["schema"];
    if schema.is_null() {
        return None;
    }
    // Status 0 stands for the request.
    let validator = validator(template, method, 0, schema);
    validator.validate(body).err().map(|fault| fault.to_string())
}

/// Panics if the schema of a request refuses a body that the portal has accepted.
#[track_caller]
pub fn check_accepted(method: &str, path: &str, body: &Value) {
    if let Some(fault) = find_fault(method, path, body) {
        panic!("{method} {path}: the portal accepts a body that its schema refuses: {fault}: {body}");
    }
}

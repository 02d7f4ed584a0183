//! The problem codes of each operation: codes that follow from its kind, and its own codes in a table.
//!
//! `problem_codes.json` has the own codes by operation id. The tests check each answer against it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use serde_json::{Value, json};

static OWN_CODES: LazyLock<BTreeMap<String, Vec<String>>> =
    LazyLock::new(|| serde_json::from_str(include_str!("problem_codes.json")).unwrap_or_default());

/// The codes that follow from the method, the body, the parameters and the authentication of an operation.
fn common_codes(method: &str, id: &str, operation: &Value) -> Vec<&'static str> {
    let parameters = || operation["parameters"].as_array().into_iter().flatten();
    let has = |place: &str| parameters().any(|parameter| parameter["in"] == place);
    let mut codes = vec!["request.malformed", "server.internal", "server.unavailable"];
    if operation["security"].as_array().is_some_and(|schemes| !schemes.is_empty()) {
        codes.extend(["auth.forbidden", "auth.required"]);
    }
    if method != "get" {
        codes.push("request.cross_site");
    }
    // An operator's route does not exist for others.
    if has("path") || id.contains("_operator_") {
        codes.push("object.not_found");
    }
    if has("query") {
        codes.push("request.invalid");
    }
    if !operation["requestBody"].is_null() {
        codes.extend(["request.invalid", "request.media_type", "request.too_large"]);
    }
    if parameters().any(|parameter| parameter["name"] == "Idempotency-Key") {
        codes.extend(["idempotency.in_flight", "idempotency.other_request", "idempotency.shown_once"]);
    }
    codes
}

/// Adds the problem codes to the default answer of an operation.
pub(super) fn add_codes(method: &str, id: &str, operation: &mut Value) {
    let own = OWN_CODES.get(id).into_iter().flatten().map(String::as_str);
    let codes: BTreeSet<&str> = common_codes(method, id, operation).into_iter().chain(own).collect();
    let Some(form) = operation.pointer_mut("/responses/default/content/application~1problem+json") else {
        return;
    };
    let Some(schema) = form.get_mut("schema") else { return };
    *schema = json!({ "allOf": [schema.take(), { "properties": { "code": { "enum": codes } } }] });
}

#[cfg(test)]
mod tests {
    use berth_types::problems::CODES;

    use super::*;

    #[test]
    fn the_table_has_known_operations_and_codes() {
        let document = super::super::document();
        let paths = document["paths"].as_object().unwrap().values();
        let operations = paths.flat_map(|item| item.as_object().unwrap().values());
        let ids: BTreeSet<&str> = operations.map(|o| o["operationId"].as_str().unwrap()).collect();
        assert!(!OWN_CODES.is_empty());
        for (id, codes) in &*OWN_CODES {
            assert!(ids.contains(id.as_str()), "{id}");
            assert!(codes.iter().all(|code| CODES.contains(&code.as_str())), "{id}: {codes:?}");
        }
        let used: BTreeSet<&str> = OWN_CODES.values().flatten().map(String::as_str).collect();
        // Codes of every kind of operation, of the ports of jobs, and of workers.
        let elsewhere = ["idempotency.", "request.", "server.", "auth.", "object.", "port.", "join_token."];
        let unused: Vec<&&str> = CODES
            .iter()
            .filter(|code| !used.contains(**code) && !elsewhere.iter().any(|prefix| code.starts_with(prefix)))
            .collect();
        assert_eq!(unused, Vec::<&&str>::new(), "codes of no operation");
    }
}

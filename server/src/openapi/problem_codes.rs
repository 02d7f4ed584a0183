//! The problems of each operation, by status: codes that follow from its kind, and its own codes in a table.
//!
//! `problem_codes.json` has the own codes by operation id. The tests check each answer against them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use berth_rest::scopes::{ANY_NAME, EXTENSION};
use berth_types::scim::SCIM_MEDIA_TYPE;
use serde_json::{Map, Value, json};

/// The tag of the routes with errors in the form of SCIM.
const SCIM_TAG: &str = "scim";

/// The codes by the status of their answers. The ports of jobs and the workers have further codes.
const STATUSES: &[(u16, &[&str])] = &[
    (
        400,
        &[
            "request.malformed",
            "scim.domain",
            "scim.filter",
            "scim.mutability",
            "scim.path",
            "scim.value",
            "sso.logout_token",
            "stripe.signature",
        ],
    ),
    (401, &["auth.challenge", "auth.passkey", "auth.required", "auth.wrong_code", "auth.wrong_password"]),
    (402, &["funds.insufficient", "payments.refused"]),
    (
        403,
        &[
            "account.disabled",
            "account.unverified",
            "auth.factor_required",
            "auth.forbidden",
            "auth.proof_required",
            "auth.sso_required",
            "budget.exceeded",
            "change_request.needed",
            "change_request.own",
            "invitation.for_another",
            "network.not_allowed",
            "quota.exceeded",
            "request.cross_site",
            "terminal.ticket",
            "token.address",
            "token.scope",
        ],
    ),
    (404, &["invitation.not_valid", "link.not_valid", "object.not_found", "port.not_listed"]),
    (408, &["request.timeout"]),
    (
        409,
        &[
            "account.exists",
            "account.in_use",
            "account.operator",
            "change_policy.operators",
            "change_request.changed",
            "change_request.closed",
            "change_request.limit",
            "credit_limit.drawn",
            "factor.exists",
            "factor.missing",
            "file.incomplete",
            "gateway.exists",
            "gateway.limit",
            "gpu.approved",
            "gpu.no_mig",
            "gpu.not_quarantined",
            "gpu.quarantined",
            "gpu.resetting",
            "gpu.silent",
            "idempotency.in_flight",
            "idempotency.shown_once",
            "inference_key.limit",
            "invitation.open",
            "invoice.closed",
            "invoice.too_small",
            "job.ended",
            "job.not_running",
            "job.promised",
            "job.removed",
            "jobs.more",
            "maintenance.in_use",
            "members.already",
            "members.last_owner",
            "network.in_use",
            "network.limit",
            "node.approved",
            "node.boards_changed",
            "node.connected",
            "node.in_use",
            "node.labels_changed",
            "operators.account",
            "operators.last_owner",
            "org.work_elsewhere",
            "passkey.exists",
            "passkey.limit",
            "passkey.unavailable",
            "payments.no_card",
            "payments.off",
            "payments.over",
            "port.off",
            "promise.exists",
            "promise.limit",
            "quota_request.decided",
            "quote.expired",
            "quote.used",
            "reservation.decided",
            "reservation.ended",
            "reservation.taken",
            "revision.not_candidate",
            "revision.nothing_before",
            "revision.underway",
            "scim.account",
            "scim.exists",
            "scim.limit",
            "secret.limit",
            "service.exists",
            "service.host_of_gateway",
            "service.host_taken",
            "service.limit",
            "setup.done",
            "sso.domain_taken",
            "sso.missing",
            "sso.no_refresh",
            "storage.full",
            "storage_class.in_use",
            "storage_class.limit",
            "terminal.closed",
            "terminal.limit",
            "upload.hash",
            "upload.limit",
            "upload.offset",
            "volume.busy",
            "volume.exists",
            "volume.full",
            "volume.in_use",
            "volume.limit",
            "volume.on_nodes",
        ],
    ),
    (413, &["request.too_large"]),
    (415, &["request.media_type"]),
    (416, &["file.range"]),
    (422, &["document.too_long", "idempotency.other_request", "job.never_starts", "request.invalid"]),
    (426, &["request.websocket"]),
    (429, &["request.throttled"]),
    (500, &["server.internal"]),
    (503, &["server.unavailable"]),
];

static OWN_CODES: LazyLock<BTreeMap<String, Vec<String>>> =
    LazyLock::new(|| serde_json::from_str(include_str!("problem_codes.json")).unwrap_or_default());

/// The codes that follow from the method, the body, the parameters and the authentication of an operation.
fn common_codes(method: &str, id: &str, operation: &Value) -> Vec<&'static str> {
    let parameters = || operation["parameters"].as_array().into_iter().flatten();
    let has = |place: &str| parameters().any(|parameter| parameter["in"] == place);
    let has_body = !operation["requestBody"].is_null();
    let has_key = parameters().any(|parameter| parameter["name"] == "Idempotency-Key");
    let mut codes = vec!["server.internal", "server.unavailable"];
    // The portal checks the header with the key of every POST.
    if has_body || has("query") || method == "post" {
        codes.push("request.malformed");
    }
    if operation["security"].as_array().is_some_and(|schemes| !schemes.is_empty()) {
        codes.extend(["auth.factor_required", "auth.forbidden", "auth.required", "token.address"]);
        codes.push("request.throttled");
        if operation[EXTENSION] != ANY_NAME {
            codes.push("token.scope");
        }
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
    if has_body {
        codes.extend(["request.invalid", "request.media_type"]);
    }
    // The portal reads the body of a request with a key, even if the operation has none.
    if has_body || has_key {
        codes.extend(["request.timeout", "request.too_large"]);
    }
    if has_key {
        codes.extend(["idempotency.in_flight", "idempotency.other_request", "idempotency.shown_once"]);
    }
    codes
}

/// The problem answers that operations share, by their name in the components of the document.
#[derive(Default)]
pub(super) struct Problems(Map<String, Value>);

impl Problems {
    /// Replaces the default answer of an operation by one answer for each status of its codes.
    pub(super) fn describe(&mut self, method: &str, id: &str, operation: &mut Value) {
        let own = OWN_CODES.get(id).into_iter().flatten().map(String::as_str);
        let codes: BTreeSet<&str> = common_codes(method, id, operation).into_iter().chain(own).collect();
        let is_scim = operation.pointer("/tags/0").is_some_and(|tag| tag == SCIM_TAG);
        let Some(responses) = operation.get_mut("responses").and_then(Value::as_object_mut) else { return };
        responses.remove("default");
        for (status, known) in STATUSES {
            let used: Vec<&str> = known.iter().filter(|code| codes.contains(*code)).copied().collect();
            if used.is_empty() {
                continue;
            }
            let form = if is_scim { "scim_" } else { "" };
            let name = format!("{status}_{form}{}", used.join("_"));
            responses.insert(status.to_string(), json!({ "$ref": format!("#/components/responses/{name}") }));
            self.0.entry(name).or_insert_with(|| problem(*status, &used, is_scim));
        }
    }

    /// The answers by their names.
    pub(super) fn into_components(self) -> Value {
        Value::Object(self.0)
    }
}

/// The answer with a problem of one status, in the form of SCIM (RFC 7644) if `is_scim`.
fn problem(status: u16, codes: &[&str], is_scim: bool) -> Value {
    let names: Vec<String> = codes.iter().map(|code| format!("`{code}`")).collect();
    let (kind, form, media_type, shown) = if is_scim {
        ("An error (RFC 7644)", "ScimError", SCIM_MEDIA_TYPE, json!(status.to_string()))
    } else {
        ("A problem (RFC 9457)", "Problem", "application/problem+json", json!(status))
    };
    let schema = json!({
        "allOf": [
            { "$ref": format!("#/components/schemas/{form}") },
            { "properties": { "status": { "const": shown }, "code": { "enum": codes } } },
        ],
    });
    let mut answer = json!({
        "description": format!("{kind} with the code {}.", names.join(" or ")),
        "content": { media_type: { "schema": schema } },
    });
    let wait = json!({
        "description": "Seconds before the next attempt.",
        "required": true,
        "schema": { "type": "integer", "minimum": 0 },
    });
    if let (429 | 503, Some(fields)) = (status, answer.as_object_mut()) {
        fields.insert("headers".to_owned(), json!({ "Retry-After": wait }));
    }
    answer
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
        let elsewhere =
            ["idempotency.", "request.", "server.", "auth.", "object.", "port.", "join_token.", "token."];
        let unused: Vec<&&str> = CODES
            .iter()
            .filter(|code| !used.contains(**code) && !elsewhere.iter().any(|prefix| code.starts_with(prefix)))
            .collect();
        assert_eq!(unused, Vec::<&&str>::new(), "codes of no operation");
    }

    #[test]
    fn each_code_of_an_operation_has_one_status() {
        let all: Vec<&str> = STATUSES.iter().flat_map(|(_, codes)| codes.iter().copied()).collect();
        let known: BTreeSet<&str> = all.iter().copied().collect();
        assert_eq!(known.len(), all.len(), "a code has two statuses");
        assert!(all.iter().all(|code| CODES.contains(code)));
        let own = OWN_CODES.values().flatten().map(String::as_str);
        let key = json!({ "in": "header", "name": "Idempotency-Key" });
        let query = json!({ "in": "query", "name": "limit" });
        let operation = json!({ "requestBody": {}, "security": [{}], "parameters": [key, query] });
        let common = common_codes("post", "post_operator_jobs", &operation);
        for code in own.chain(common) {
            assert!(known.contains(code), "{code} has no status");
        }
    }
}

//! The OpenAPI document with its viewer, and the parts of the document that all routes share.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use aide::axum::ApiRouter;
use aide::openapi::OpenApi;
use aide::scalar::Scalar;
use axum::Router;
use axum::http::header;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use base64::Engine;
use berth_types::problems::CODES;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::problem_codes::add_codes;
use crate::parts::{Part, Visitor, visit_parts};
use berth_rest::operations::{BEARER, SESSION};

const PREFIX: &str = "/api/v1";
const SCHEMAS: &str = "#/components/schemas/";

static DOCUMENT: LazyLock<Value> = LazyLock::new(generate);

/// The description of all routes under `/api/v1` as JSON.
pub fn document() -> &'static Value {
    &DOCUMENT
}

/// The routes of the document and its viewer.
pub fn routes() -> Router {
    Router::new().route("/api/openapi.json", get(show)).route("/api/docs", get(view))
}

async fn show() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], document().to_string()).into_response()
}

/// The configuration of the viewer: fonts of the visitor's system, and no request to other hosts.
const VIEWER: &str = r#"document.getElementById("api-reference").dataset.configuration = JSON.stringify({
  spec: { url: "/api/openapi.json" },
  withDefaultFonts: false,
  hideClientButton: true,
  customCss: ":root { --scalar-font: system-ui, sans-serif; --scalar-font-code: ui-monospace, monospace; }",
});"#;

/// Answers with the page of the viewer and a policy that allows only its own scripts.
async fn view() -> Response {
    static PAGE: LazyLock<(String, String)> = LazyLock::new(|| {
        let page = page();
        let policy = policy(&page);
        (page, policy)
    });
    let (page, policy) = &*PAGE;
    ([(header::CONTENT_SECURITY_POLICY, policy.as_str())], Html(page.as_str())).into_response()
}

/// The page of the viewer, with the script from the library.
fn page() -> String {
    let library = Scalar::new("").html();
    let program = library.rsplit("<script>").next().and_then(|rest| rest.split("</script>").next());
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>Berth API</title>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <link rel=\"icon\" href=\"data:,\"><style>body {{ margin: 0; }}</style></head><body>\
         <script id=\"api-reference\" type=\"application/json\"></script>\
         <script>{VIEWER}</script><script>{}</script></body></html>",
        program.unwrap_or_default()
    )
}

/// Allows the scripts of a page by their hashes.
fn policy(page: &str) -> String {
    let scripts = page.split("<script>").skip(1).filter_map(|rest| rest.split("</script>").next());
    let hash = |script: &str| {
        format!("'sha256-{}'", base64::engine::general_purpose::STANDARD.encode(Sha256::digest(script)))
    };
    let hashes: Vec<String> = scripts.map(hash).collect();
    format!(
        "default-src 'none'; script-src {}; style-src 'unsafe-inline'; img-src 'self' data:; font-src 'self' data:; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hashes.join(" ")
    )
}

/// Collects the descriptions of all parts.
#[derive(Default)]
struct Description {
    paths: Map<String, Value>,
    schemas: Map<String, Value>,
}

impl Visitor for Description {
    fn visit<S: Part>(&mut self, routes: fn() -> ApiRouter<S>) {
        aide::generate::extract_schemas(true);
        let mut api = OpenApi::default();
        let _: Router<S> = routes().finish_api(&mut api);
        let mut described = serde_json::to_value(&api).unwrap_or_default();
        let mut take =
            |pointer: &str| described.pointer_mut(pointer).and_then(Value::as_object_mut).map(std::mem::take);
        let (paths, schemas) = (take("/paths"), take("/components/schemas"));
        // Two parts may share a path.
        for (path, item) in paths.into_iter().flatten() {
            let operations = self.paths.entry(path).or_insert_with(|| json!({}));
            if let (Some(known), Value::Object(more)) = (operations.as_object_mut(), item) {
                known.extend(more);
            }
        }
        self.schemas.extend(schemas.into_iter().flatten());
    }
}

fn generate() -> Value {
    let mut description = Description::default();
    visit_parts(&mut description);
    let paths: Map<String, Value> =
        description.paths.into_iter().map(|(path, item)| complete_path(&path, item)).collect();
    let mut document = serde_json::to_value(OpenApi::default()).unwrap_or_default();
    put(&mut document, "", "components", json!({ "schemas": description.schemas }));
    let Some(root) = document.as_object_mut() else { return document };
    root.insert("paths".to_owned(), Value::Object(paths));
    root.insert("info".to_owned(), info());
    root.insert("servers".to_owned(), json!([{ "url": "/" }]));
    let schemes = json!({
        BEARER: { "type": "http", "scheme": "bearer", "description": "An API token of an organization or an operator." },
        SESSION: { "type": "apiKey", "in": "cookie", "name": "berth_session", "description": "A session of the browser; with HTTPS its name is `__Host-berth_session`." },
    });
    put(&mut document, "/components", "securitySchemes", schemes);
    prune(&mut document);
    for (name, examples) in berth_types::examples::by_schema() {
        put(&mut document, &format!("/components/schemas/{name}"), "examples", Value::Array(examples));
    }
    put(&mut document, "/components/schemas/Problem/properties/code", "enum", json!(CODES));
    document
}

/// Sets a field of the object at a pointer.
fn put(document: &mut Value, pointer: &str, name: &str, value: Value) {
    if let Some(object) = document.pointer_mut(pointer).and_then(Value::as_object_mut) {
        object.insert(name.to_owned(), value);
    }
}

fn info() -> Value {
    json!({
        "title": "Berth",
        "version": "v1",
        "description": "Times are RFC 3339 in UTC. Money is in micro-units of the currency, rates in nano-units a second. \
                        Names of integers carry their unit. A body has at most 12 MiB. Every list takes `limit` (1 to 200, \
                        50 when absent), the `next_cursor` of the page before as `cursor`, and `sort` (`asc` or `desc`). \
                        Objects with ids are listed by their creation, newest first when `sort` is absent. All other \
                        objects are listed by name, or as the list says, ascending when `sort` is absent. The last page \
                        has no `next_cursor`. A cursor is valid for its own list only, with the same `sort` and filters. \
                        CSV has all rows. The list of a job's events continues after an event number (`after`). Errors are \
                        problems (RFC 9457) with a stable `code`.",
    })
}

/// A path of the document: adds the prefix, and ids, tags and parameters of its operations.
fn complete_path(path: &str, mut item: Value) -> (String, Value) {
    let path = path.replace("{*", "{");
    let names: Vec<&str> = path.split('{').skip(1).filter_map(|rest| rest.split('}').next()).collect();
    let parameters: Vec<Value> = names.iter().map(|name| path_parameter(name, &path)).collect();
    for (method, described) in item.as_object_mut().into_iter().flatten() {
        let Some(operation) = described.as_object_mut() else { continue };
        let id = operation_id(method, &path);
        operation.insert("operationId".to_owned(), json!(id));
        operation.insert("tags".to_owned(), json!([tag(&path)]));
        let mut all = parameters.clone();
        if method == "post" && (path.starts_with("/orgs/") || path.starts_with("/operator/")) {
            all.push(idempotency_key());
        }
        if let Some(Value::Array(own)) = operation.remove("parameters") {
            all.extend(own);
        }
        if !all.is_empty() {
            operation.insert("parameters".to_owned(), Value::Array(all));
        }
        add_codes(method, &id, described);
    }
    (format!("{PREFIX}{path}"), item)
}

/// `get_orgs_org_jobs` for `GET /orgs/{org}/jobs`.
fn operation_id(method: &str, path: &str) -> String {
    let words = path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    std::iter::once(method).chain(words).collect::<Vec<_>>().join("_")
}

/// The tag of a path: its first noun.
fn tag(path: &str) -> &str {
    let mut parts = path.split('/').filter(|part| !part.is_empty() && !part.starts_with('{'));
    match parts.next() {
        Some("orgs" | "operator") => parts.next().unwrap_or("orgs").trim_end_matches(".csv"),
        Some(first) => first,
        None => "portal",
    }
}

/// The description of a path parameter. An id has the prefix of its kind.
fn path_parameter(name: &str, path: &str) -> Value {
    let prefix = match name {
        "org" => "org",
        "job" => "job",
        "node" => "node",
        "user" => "user",
        "token" => "tok",
        "terminal" => "term",
        _ => "",
    };
    let schema = match name {
        "port" => json!({ "type": "integer", "minimum": 1, "maximum": 65_535 }),
        _ if prefix.is_empty() => json!({ "type": "string" }),
        _ => json!({ "type": "string", "description": format!("An id that starts with `{prefix}_`.") }),
    };
    let has_slashes = path.ends_with("{path}") && name == "path";
    let mut parameter = json!({ "name": name, "in": "path", "required": true, "schema": schema });
    if has_slashes {
        put(&mut parameter, "", "description", json!("A path with slashes."));
    }
    parameter
}

fn idempotency_key() -> Value {
    json!({
        "name": "Idempotency-Key", "in": "header", "required": false,
        "description": "The same request with the same key is done once and answered again for 48 hours.",
        "schema": { "type": "string", "minLength": 1, "maxLength": 255 },
    })
}

/// The names of the schemas that a value refers to.
fn references(value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            if let Some(name) =
                fields.get("$ref").and_then(Value::as_str).and_then(|text| text.strip_prefix(SCHEMAS))
            {
                into.insert(name.to_owned());
            }
            fields.values().for_each(|field| references(field, into));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, into)),
        _ => {}
    }
}

/// Removes schemas that nothing refers to, such as those of queries.
fn prune(document: &mut Value) {
    let schemas = "/components/schemas";
    let mut used = BTreeSet::new();
    document.get("paths").into_iter().for_each(|paths| references(paths, &mut used));
    loop {
        let mut more = used.clone();
        let known = |name: &String| document.pointer(&format!("{schemas}/{name}"));
        used.iter().filter_map(known).for_each(|schema| references(schema, &mut more));
        if more == used {
            break;
        }
        used = more;
    }
    if let Some(schemas) = document.pointer_mut(schemas).and_then(Value::as_object_mut) {
        schemas.retain(|name, _| used.contains(name));
    }
}

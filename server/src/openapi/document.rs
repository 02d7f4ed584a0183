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
use berth_types::webhooks::{NOTICE_KINDS, Notice};
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::parameters::{idempotency_key, path_parameters};
use super::problem_codes::Problems;
use super::texts::{find_description, info, tags};
use crate::parts::{Part, Visitor, visit_parts};
use berth_rest::operations::{BEARER, PATH_TYPES, SESSION};
use berth_rest::scopes::{ANY_NAME, EXTENSION};

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
    let Description { paths, mut schemas } = description;
    let webhooks = webhooks(&mut schemas);
    let mut problems = Problems::default();
    let paths: Map<String, Value> =
        paths.into_iter().map(|(path, item)| complete_path(&path, item, &schemas, &mut problems)).collect();
    let mut document = serde_json::to_value(OpenApi::default()).unwrap_or_default();
    let components = json!({ "schemas": schemas, "responses": problems.into_components() });
    put(&mut document, "", "components", components);
    let Some(root) = document.as_object_mut() else { return document };
    root.insert("paths".to_owned(), Value::Object(paths));
    root.insert("webhooks".to_owned(), webhooks);
    root.insert("info".to_owned(), info());
    root.insert("tags".to_owned(), tags());
    root.insert("servers".to_owned(), json!([{ "url": "/" }]));
    let schemes = json!({
        BEARER: { "type": "http", "scheme": "bearer", "description": "An API token of an organization or an operator, with the scope of the route (`x-scope`). `any`: with any scope." },
        SESSION: { "type": "apiKey", "in": "cookie", "name": "berth_session", "description": "A session of the browser; with HTTPS its name is `__Host-berth_session`." },
    });
    put(&mut document, "/components", "securitySchemes", schemes);
    prune(&mut document);
    for (name, examples) in berth_examples::by_schema() {
        put(&mut document, &format!("/components/schemas/{name}"), "examples", Value::Array(examples));
    }
    put(&mut document, "/components/schemas/Problem/properties/code", "enum", json!(CODES));
    document
}

/// The requests to webhooks, one for each kind of notice. Adds the schema of their body to `schemas`.
fn webhooks(schemas: &mut Map<String, Value>) -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
    });
    let mut generator = settings.into_generator();
    let body = generator.subschema_for::<Notice>();
    for (name, schema) in generator.take_definitions(true) {
        schemas.entry(name).or_insert(schema);
    }
    let signature = json!({
        "name": "Berth-Signature", "in": "header", "required": true,
        "description": "`t=SECONDS,v1=HEX`: the time of the request, and the HMAC-SHA256 of `SECONDS.BODY` with the secret of the webhook.",
        "schema": { "type": "string" },
    });
    let request = |(kind, summary): &(&str, &str)| {
        let operation = json!({
            "operationId": format!("webhook_{}", kind.replace('.', "_")),
            "summary": summary,
            "description": "The portal sends the request again after any other answer or none, with growing pauses, at most 12 times in all.",
            "parameters": [signature],
            "requestBody": { "required": true, "content": { "application/json": { "schema": body } } },
            "responses": { "2XX": { "description": "The receiver has the notice." } },
        });
        ((*kind).to_owned(), json!({ "post": operation }))
    };
    Value::Object(NOTICE_KINDS.iter().map(request).collect())
}

/// Sets a field of the object at a pointer.
fn put(document: &mut Value, pointer: &str, name: &str, value: Value) {
    if let Some(object) = document.pointer_mut(pointer).and_then(Value::as_object_mut) {
        object.insert(name.to_owned(), value);
    }
}

/// A path of the document: adds the prefix, and ids, tags, parameters and problems of its operations.
fn complete_path(
    path: &str,
    mut item: Value,
    schemas: &Map<String, Value>,
    problems: &mut Problems,
) -> (String, Value) {
    let path = path.replace("{*", "{");
    for (method, described) in item.as_object_mut().into_iter().flatten() {
        let Some(operation) = described.as_object_mut() else { continue };
        let id = operation_id(method, &path);
        operation.insert("operationId".to_owned(), json!(id));
        operation.insert("tags".to_owned(), json!([tag(&path)]));
        if let Some(description) = find_description(&id) {
            operation.insert("description".to_owned(), json!(description));
        }
        let types = operation.remove(PATH_TYPES).unwrap_or_default();
        let mut all = path_parameters(&path, &types, schemas);
        if method == "post" && (path.starts_with("/orgs/") || path.starts_with("/operator/")) {
            all.push(idempotency_key());
        }
        if let Some(Value::Array(own)) = operation.remove("parameters") {
            all.extend(own);
        }
        if !all.is_empty() {
            operation.insert("parameters".to_owned(), Value::Array(all));
        }
        require_scope(operation);
        problems.describe(method, &id, described);
    }
    (format!("{PREFIX}{path}"), item)
}

/// Adds the scope of a route to its security requirement for tokens.
fn require_scope(operation: &mut Map<String, Value>) {
    let Some(scope) = operation.get(EXTENSION).filter(|scope| **scope != ANY_NAME).cloned() else { return };
    for scheme in operation.get_mut("security").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(names) = scheme.get_mut(BEARER) {
            *names = json!([scope]);
        }
    }
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
    for part in ["/paths", "/webhooks", "/components/responses"] {
        document.pointer(part).into_iter().for_each(|part| references(part, &mut used));
    }
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

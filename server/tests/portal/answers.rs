//! Tests of rules for all answers: headers, cookies, the forms of input, and what an error contains.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode, header};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use berth_foundation::{Change, Listener, Settings};
use berth_server::openapi::document;
use berth_server::web;
use berth_store as store;
use berth_types::problems::Problem;
use futures::FutureExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::common::described::resolve;
use crate::common::{Caller, PASSWORD, TestPortal};
use crate::operations::items;

/// The status, the headers and the text of an answer to a request without a body.
async fn answer(
    router: &Router,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> (StatusCode, HeaderMap, String) {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    let (head, body) = response.into_parts();
    let bytes = to_bytes(body, 1 << 24).await.unwrap();
    (head.status, head.headers, String::from_utf8_lossy(&bytes).into_owned())
}

#[tokio::test]
async fn session_cookies_are_lax_random_and_hidden_from_scripts() {
    for https in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let db = crate::common::new_sqlite(&dir.path().join("berth.db")).await;
        let t = TestPortal::with(db, |settings| Settings { https, ..settings });
        t.tenant("lab").await;
        let mut values = BTreeSet::new();
        for _ in 0..3 {
            let body = json!({"email": "lab@example.org", "password": PASSWORD});
            let reply = t.post(&Caller::Nobody, "/sessions", body).await;
            let line = reply.headers[header::SET_COOKIE].to_str().unwrap().to_owned();
            let parts: Vec<&str> = line.split("; ").collect();
            assert!(parts.contains(&"HttpOnly") && parts.contains(&"SameSite=Lax"), "{line}");
            assert_eq!(parts.contains(&"Secure"), https, "{line}");
            let (name, value) = parts[0].split_once('=').unwrap();
            assert_eq!(name, if https { "__Host-berth_session" } else { "berth_session" });
            assert_eq!(URL_SAFE_NO_PAD.decode(value).unwrap().len(), 32, "{line}: 256 bits");
            assert!(!reply.body.to_string().contains(value), "{}", reply.body);
            values.insert(value.to_owned());
            reply.expect(201);
        }
        assert_eq!(values.len(), 3, "{values:?}");
    }
}

#[tokio::test]
async fn no_answer_is_for_another_origin() {
    let t = TestPortal::sqlite().await;
    t.operator().await;
    let pages = web::router(t.router.clone(), None, false);
    let foreign = [
        ("origin", "https://evil.example"),
        ("access-control-request-method", "GET"),
        ("access-control-request-headers", "authorization"),
    ];
    let paths = [
        "/",
        "/sign-in",
        "/nowhere",
        "/api/v1/info",
        "/api/v1/me",
        "/api/v1/nowhere",
        "/pkg/old/berth_app.js",
        "/healthz",
        "/metrics",
    ];
    for (method, path) in ["GET", "OPTIONS"].into_iter().flat_map(|method| paths.map(|path| (method, path))) {
        let (status, headers, _) = answer(&pages, method, path, &foreign).await;
        let shared = headers.keys().find(|name| name.as_str().starts_with("access-control-"));
        assert_eq!(shared, None, "{method} {path}: {status}");
        assert_eq!(headers["x-content-type-options"], "nosniff", "{method} {path}: {status}");
        assert_eq!(headers["referrer-policy"], "same-origin", "{method} {path}: {status}");
    }
}

#[tokio::test]
async fn a_request_without_https_is_redirected_by_no_route_of_the_api() {
    let dir = tempfile::tempdir().unwrap();
    let db = crate::common::new_sqlite(&dir.path().join("berth.db")).await;
    let t = TestPortal::with(db, |settings| Settings {
        https: true,
        public_url: "https://berth.example".to_owned(),
        ..settings
    });
    let pages = web::router(t.router.clone(), None, true);
    for (path, expected) in [("/api/v1/info", 200), ("/api/v1/me", 401), ("/healthz", 200)] {
        let (status, headers, _) = answer(&pages, "GET", path, &[("host", "berth.example")]).await;
        assert_eq!(status.as_u16(), expected, "{path}");
        assert!(!headers.contains_key(header::LOCATION), "{path}: {headers:?}");
    }
}

#[tokio::test]
async fn folders_are_not_listed_and_trace_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for folder in ["pkg/parts", "fonts"] {
        std::fs::create_dir_all(dir.path().join(folder)).unwrap();
    }
    let refused = web::Assets::open(dir.path()).unwrap_err();
    assert!(refused.contains("has no built pages"), "{refused}");
    std::fs::write(dir.path().join("build-id"), "abc").unwrap();
    std::fs::write(dir.path().join("pkg/parts/one-part.js"), "1").unwrap();
    let assets = web::Assets::open(dir.path()).unwrap();
    let t = TestPortal::sqlite().await;
    let pages = web::router(t.router.clone(), Some(&assets), false);
    let file = "/pkg/abc/parts/one-part.js";
    assert_eq!(answer(&pages, "GET", file, &[]).await.0, StatusCode::OK);
    for folder in ["/pkg/abc/", "/pkg/abc/parts/", "/pkg/abc/parts", "/fonts/", "/pkg/abc/../"] {
        let (status, _, text) = answer(&pages, "GET", folder, &[]).await;
        assert!(!status.is_success() && !text.contains("one-part"), "{folder}: {status} {text}");
    }
    for path in [file, "/sign-in", "/api/v1/info", "/healthz"] {
        let (status, headers, text) = answer(&pages, "TRACE", path, &[("x-probe", "echo-of-a-header")]).await;
        assert!(status.is_client_error(), "{path}: {status}");
        assert!(!text.contains("echo-of-a-header") && !headers.contains_key("x-probe"), "{path}: {text}");
    }
    assert_eq!(answer(&pages, "TRACE", "/api/v1/info", &[]).await.0, StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn encoded_input_is_decoded_once() {
    let t = TestPortal::sqlite().await;
    let operator = t.operator().await;
    let (ada, org) = t.tenant("lab").await;
    for (text, found) in [("lab", 1), ("%6c%61%62", 1), ("%256c%2561%2562", 0)] {
        let users = items(&t, &operator, &format!("/operator/users?text={text}")).await;
        assert_eq!(users.len(), found, "{text}: {users:?}");
    }
    let rest = org.strip_prefix('o').unwrap();
    t.get(&ada, &format!("/orgs/%6f{rest}/members")).await.expect(200);
    t.get(&ada, &format!("/orgs/%256f{rest}/members")).await.problem(404, "object.not_found");
}

#[tokio::test]
async fn a_parameter_or_a_field_given_twice_is_refused() {
    let t = TestPortal::sqlite().await;
    let (ada, org) = t.tenant("lab").await;
    let volumes = format!("/orgs/{org}/volumes");
    t.get(&ada, &format!("{volumes}?limit=1")).await.expect(200);
    t.get(&ada, &format!("{volumes}?limit=1&limit=2")).await.problem(400, "request.malformed");
    let twice = r#"{"email": "a@example.org", "email": "b@example.org", "password": "lantern quay seven"}"#;
    let request = Request::post("/api/v1/sessions").header(header::CONTENT_TYPE, "application/json");
    let refused = t.send(request.body(Body::from(twice)).unwrap()).await.problem(422, "request.invalid");
    assert!(refused.to_string().contains("The field `email` is there twice."), "{refused}");
}

#[tokio::test]
async fn each_body_of_a_request_refuses_unknown_fields() {
    let mut bodies = 0;
    for (path, item) in document()["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
            if !schema.is_null() {
                bodies += 1;
                assert_eq!(resolve(schema)["additionalProperties"], false, "{method} {path}");
            }
        }
    }
    assert!(bodies > 50, "{bodies}");
    let t = TestPortal::sqlite().await;
    let operator = t.operator().await;
    let body = json!({
        "email": "eve@example.org", "password": PASSWORD, "name": "Eve", "organization": "eve", "operator": true,
    });
    let refused = t.post(&Caller::Nobody, "/sign-up", body).await.problem(422, "request.invalid");
    assert!(refused.to_string().contains("operator"), "{refused}");
    assert!(items(&t, &operator, "/operator/users?text=eve").await.is_empty());
}

/// The changes that a portal published, as texts.
#[derive(Default)]
struct Published(Mutex<Vec<String>>);

impl Listener for Published {
    fn on_change(&self, change: &Change) {
        self.0.lock().unwrap().push(format!("{change:?}"));
    }
}

#[tokio::test]
async fn get_requests_change_nothing() {
    let t = TestPortal::sqlite().await;
    let operator = t.operator().await;
    let (ada, org) = t.tenant("lab").await;
    let published = Arc::new(Published::default());
    t.portal.context.changes.subscribe(published.clone());
    let events = "/operator/audit-events?limit=200";
    let before = items(&t, &operator, events).await;
    let mut requests = 0;
    for (path, item) in document()["paths"].as_object().unwrap() {
        let (path, operation) = (path.strip_prefix("/api/v1").unwrap(), &item["get"]);
        let is_stream = !operation["responses"]["200"]["content"]["text/event-stream"].is_null();
        // The protocol of single sign-on has its steps in GET.
        if operation.is_null() || is_stream || path.starts_with("/sso/") {
            continue;
        }
        let parts = path.split('/').map(|part| match part {
            "{org}" => org.as_str(),
            _ if part.starts_with('{') => "example",
            _ => part,
        });
        let path = parts.collect::<Vec<_>>().join("/");
        let caller = if path.starts_with("/operator/") { &operator } else { &ada };
        t.get(caller, &path).await;
        requests += 1;
    }
    assert!(requests > 60, "{requests}");
    assert_eq!(items(&t, &operator, events).await, before);
    assert_eq!(*published.0.lock().unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn a_password_counts_as_entered_and_does_not_expire() {
    let t = TestPortal::sqlite().await;
    let password = "  Lantern Quay seven DRIZZLE and sixty-four characters are too few for me ";
    let body = json!({
        "email": "ada@example.org", "password": password, "name": "Ada", "organization": "lab",
    });
    t.post(&Caller::Nobody, "/sign-up", body).await.expect(201);
    let sign_in = async |password: &str| {
        let body = json!({"email": "ada@example.org", "password": password});
        t.post(&Caller::Nobody, "/sessions", body).await
    };
    let (first_64, _) = password.split_at(64);
    for other in [password.trim(), password.to_lowercase().as_str(), first_64] {
        sign_in(other).await.problem(401, "auth.wrong_password");
    }
    sign_in(password).await.expect(201);
    t.clock.advance_s(3 * 365 * 86_400);
    sign_in(password).await.expect(201);
}

#[tokio::test]
async fn fields_of_passwords_hide_the_text_and_name_their_kind() {
    let t = TestPortal::sqlite().await;
    t.operator().await;
    let pages = web::router(t.router.clone(), None, false);
    for (path, kind) in [("/sign-in", "current-password"), ("/sign-up", "new-password")] {
        let (_, _, html) = answer(&pages, "GET", path, &[("accept", "text/html")]).await;
        let mut fields = html.split("<input").filter_map(|part| part.split('>').next());
        let field = fields.find(|field| field.contains("id=\"password\"")).unwrap();
        assert!(field.contains("type=\"password\""), "{path}: {field}");
        assert!(field.contains(&format!("autocomplete=\"{kind}\"")), "{path}: {field}");
    }
}

/// The lines of a log.
#[derive(Clone, Default)]
struct Logged(Arc<Mutex<Vec<u8>>>);

impl Write for Logged {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn an_internal_error_is_logged_and_tells_nothing_internal() {
    let t = TestPortal::sqlite().await;
    let damage =
        t.portal.context.db.write(|tx| {
            async move { store::accounts::put_setting(tx, "portal_logo", "no image").await }.boxed()
        });
    damage.await.unwrap();
    let logged = Logged::default();
    let log = tracing_subscriber::fmt().with_ansi(false).with_writer(Mutex::new(logged.clone())).finish();
    // The runtime of this test has one thread.
    let _guard = tracing::subscriber::set_default(log);
    let (status, headers, text) = answer(&t.router, "GET", "/api/v1/portal", &[]).await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR, "{text}");
    let request = headers["x-request-id"].to_str().unwrap();
    let problem: Value = serde_json::from_str(&text).unwrap();
    let mut expected = serde_json::to_value(Problem::internal()).unwrap();
    expected["request_id"] = json!(request);
    assert_eq!(problem, expected);
    let log = String::from_utf8(logged.0.lock().unwrap().clone()).unwrap();
    let line = log.lines().find(|line| line.contains("request failed") && line.contains(request));
    assert!(line.is_some_and(|line| line.contains("ERROR") && line.contains("/api/v1/portal")), "{log}");
}

//! Tests of the scopes, the networks and the lifetime of API tokens.

use crate::common::{Caller, Reply, TestPortal, engines};
use axum::body::Body;
use axum::http::{Request, header};
use berth_foundation::Settings;
use berth_rest::Sender;
use berth_server::openapi::document;
use berth_store as store;
use berth_types::accounts::{MAX_TOKENS, Token};
use berth_types::ids::{OrgId, UserId};
use berth_types::scopes::ApiScope;
use berth_types::time::Timestamp;
use futures::FutureExt;
use serde_json::{Value, json};
use tower::ServiceExt;

/// A described route.
struct Route {
    method: String,
    /// The path below `/api/v1`, with its parameters.
    path: &'static str,
    /// `None` for a route of every token.
    scope: Option<ApiScope>,
    is_stream: bool,
}

impl Route {
    /// The path with an organization, and with ids of no object.
    fn path_in(&self, org: &str) -> String {
        let parts = self.path.split('/').map(|part| match part {
            "{org}" => org,
            _ if part.starts_with('{') => "example",
            _ => part,
        });
        parts.collect::<Vec<_>>().join("/")
    }
}

fn routes() -> Vec<Route> {
    let paths = document()["paths"].as_object().unwrap();
    let of_path = |(path, item): (&'static String, &'static Value)| {
        let path = path.strip_prefix("/api/v1").unwrap();
        let route = move |(method, operation): (&'static String, &'static Value)| Route {
            method: method.to_uppercase(),
            path,
            scope: ApiScope::parse(operation["x-scope"].as_str().unwrap()),
            is_stream: !operation["responses"]["200"]["content"]["text/event-stream"].is_null(),
        };
        item.as_object().unwrap().iter().map(route)
    };
    paths.iter().flat_map(of_path).collect()
}

/// Tokens of an organization and of an operator with the same scopes.
struct Pair {
    org: Caller,
    operator: Caller,
}

impl Pair {
    fn of_path(&self, path: &str) -> &Caller {
        if path.starts_with("/operator/") { &self.operator } else { &self.org }
    }
}

async fn mint(t: &TestPortal, by: &Caller, path: &str, new: Value) -> Caller {
    let made = t.post(by, path, new).await.expect(201);
    Caller::Token(made["secret"].as_str().unwrap().to_owned())
}

async fn mint_pair(
    t: &TestPortal,
    (ada, org): (&Caller, &str),
    operator: &Caller,
    scopes: impl Iterator<Item = ApiScope>,
) -> Pair {
    let scopes: Vec<ApiScope> = scopes.collect();
    // Only a service account has the scope of SCIM, and it is no owner.
    let new = if scopes == [ApiScope::Scim] {
        let new = json!({"name": "directory", "role": "viewer"});
        let account = t.post(ada, &format!("/orgs/{org}/service-accounts"), new).await.expect(201);
        json!({"name": "ci", "role": "viewer", "service_account": account["id"], "scopes": scopes})
    } else {
        let own: Vec<ApiScope> = scopes.iter().copied().filter(|scope| *scope != ApiScope::Scim).collect();
        json!({"name": "ci", "role": "owner", "scopes": own})
    };
    let of_org = mint(t, ada, &format!("/orgs/{org}/tokens"), new).await;
    let new = json!({"name": "ci", "scopes": scopes});
    Pair { org: of_org, operator: mint(t, operator, "/operator/tokens", new).await }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_route_refuses_a_token_without_its_scope() {
    for (engine, db, _location) in engines("token_routes").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        let mut refused = 0;
        for needed in ApiScope::ALL {
            let others = ApiScope::ALL.into_iter().filter(|scope| !scope.includes(needed));
            let pair = mint_pair(&t, (&ada, &org), &operator, others).await;
            for route in routes().iter().filter(|route| route.scope == Some(needed)) {
                let path = route.path_in(&org);
                let reply = t.call(pair.of_path(&path), &route.method, &path, Value::Null).await;
                let method = &route.method;
                assert_eq!(reply.body["code"], "token.scope", "{engine} {method} {path}: {}", reply.body);
                let problem = reply.problem(403, "token.scope");
                let detail = problem["detail"].as_str().unwrap();
                assert!(detail.contains(&format!("scope {}.", needed.name())), "{engine} {path}: {detail}");
                refused += 1;
            }
        }
        assert!(refused > 150, "{engine}: {refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scope_permits_its_own_requests_alone() {
    for (engine, db, _location) in engines("token_scopes").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        for own in ApiScope::ALL {
            let pair = mint_pair(&t, (&ada, &org), &operator, [own].into_iter()).await;
            let mut permitted = 0;
            for route in routes().iter().filter(|route| route.method == "GET" && !route.is_stream) {
                let path = route.path_in(&org);
                let reply = t.call(pair.of_path(&path), "GET", &path, Value::Null).await;
                let is_refused = reply.body["code"] == "token.scope";
                let expected = route.scope.is_some_and(|scope| !own.includes(scope));
                assert_eq!(is_refused, expected, "{engine} {} {path}: {}", own.name(), reply.body);
                permitted += usize::from(reply.status.is_success() && route.scope.is_some());
            }
            assert!(permitted > 0, "{engine} {}", own.name());
        }
    }
}

#[tokio::test]
async fn a_repeatable_request_and_head_need_the_scope_too() {
    let t = TestPortal::sqlite().await;
    let (ada, org) = t.tenant("lab").await;
    let new = json!({"name": "ci", "role": "owner", "scopes": ["jobs:read"]});
    let reader = mint(&t, &ada, &format!("/orgs/{org}/tokens"), new).await;
    let key = [("idempotency-key", "one")];
    let budgets = format!("/orgs/{org}/budgets");
    t.call_with(&reader, "POST", &budgets, json!({}), &key).await.problem(403, "token.scope");
    let Caller::Token(secret) = &reader else { panic!("a token") };
    for (path, status) in [(format!("/orgs/{org}/jobs"), 200), (budgets, 403)] {
        let request = Request::head(format!("/api/v1{path}"))
            .header(header::AUTHORIZATION, format!("Bearer {secret}"))
            .body(Body::empty());
        let answer = t.router.clone().oneshot(request.unwrap()).await.unwrap();
        assert_eq!(answer.status().as_u16(), status, "{path}");
    }
}

#[tokio::test]
async fn a_token_does_not_see_the_account_of_its_person() {
    for (engine, db, _location) in engines("token_person").await {
        let t = TestPortal::on(db);
        let (ada, org) = t.tenant("lab").await;
        let new = json!({"name": "ci", "role": "owner"});
        let token = mint(&t, &ada, &format!("/orgs/{org}/tokens"), new).await;
        for path in ["/me/identities", "/me/factors", "/me/sessions"] {
            t.get(&ada, path).await.expect(200);
            let problem = t.get(&token, path).await.problem(403, "auth.forbidden");
            assert!(problem["detail"].as_str().unwrap().contains("Sign in"), "{engine} {path}: {problem}");
        }
    }
}

#[tokio::test]
async fn a_token_without_a_choice_has_every_scope() {
    let t = TestPortal::sqlite().await;
    let (ada, org) = t.tenant("lab").await;
    let path = format!("/orgs/{org}/tokens");
    let made = t.post(&ada, &path, json!({"name": "ci", "role": "viewer"})).await.expect(201);
    assert_eq!(made["token"]["scopes"], json!(["admin"]));
    let new = json!({"name": "x", "role": "viewer", "scopes": ["fleet:read", "jobs:read", "fleet:read"]});
    let made = t.post(&ada, &path, new).await.expect(201);
    assert_eq!(made["token"]["scopes"], json!(["jobs:read", "fleet:read"]));
    let listed = t.get(&ada, &path).await.expect(200);
    assert_eq!(listed["items"][0]["scopes"], made["token"]["scopes"]);
    for (scopes, pointer) in [(json!([]), "/scopes"), (json!(["jobs:read", "all"]), "/scopes/1")] {
        let new = json!({"name": "x", "role": "viewer", "scopes": scopes});
        let problem = t.post(&ada, &path, new).await.problem(422, "request.invalid");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
    }
}

/// Sends a request with a token from an address.
async fn send_from(
    t: &TestPortal,
    token: &Caller,
    address: Option<&str>,
    (method, path): (&str, &str),
    body: Value,
) -> Reply {
    let Caller::Token(secret) = token else { panic!("a token") };
    let request = Request::builder()
        .method(method)
        .uri(format!("/api/v1{path}"))
        .header(header::AUTHORIZATION, format!("Bearer {secret}"))
        .header(header::CONTENT_TYPE, "application/json")
        .extension(Sender(address.map(|address| address.parse().unwrap())));
    t.send(request.body(Body::from(body.to_string())).unwrap()).await
}

#[tokio::test]
async fn a_token_is_refused_from_elsewhere_and_audited_once_an_hour() {
    for (engine, db, _location) in engines("token_networks").await {
        let t = TestPortal::on(db);
        let (ada, org) = t.tenant("lab").await;
        let networks = json!(["192.0.2.77/24", "2001:db8::/32"]);
        let new = json!({"name": "ci", "role": "viewer", "networks": networks});
        let made = t.post(&ada, &format!("/orgs/{org}/tokens"), new).await.expect(201);
        assert_eq!(made["token"]["networks"], json!(["192.0.2.0/24", "2001:db8::/32"]), "{engine}");
        let token = Caller::Token(made["secret"].as_str().unwrap().to_owned());
        let me = ("GET", "/me");
        for outside in [Some("203.0.113.9"), Some("2001:db9::1"), None] {
            send_from(&t, &token, outside, me, Value::Null).await.problem(403, "token.address");
        }
        let listed = t.get(&ada, &format!("/orgs/{org}/tokens")).await.expect(200);
        assert!(listed["items"][0]["last_used_at"].is_null(), "{engine}: a refused request is no use");
        for inside in ["192.0.2.9", "::ffff:192.0.2.9", "2001:db8:5::9"] {
            send_from(&t, &token, Some(inside), me, Value::Null).await.expect(200);
        }
        let events = async || {
            let path = format!("/orgs/{org}/audit-events?action=token.refused");
            t.get(&ada, &path).await.expect(200)["items"].as_array().unwrap().clone()
        };
        assert_eq!(events().await.len(), 3, "{engine}: one for each address");
        for _ in 0..2 {
            t.clock.advance_s(1_200);
            let reply = send_from(&t, &token, Some("203.0.113.9"), me, Value::Null).await;
            let problem = reply.problem(403, "token.address");
            assert!(problem["detail"].as_str().unwrap().contains("203.0.113.9"), "{engine}: {problem}");
        }
        assert_eq!(events().await.len(), 3, "{engine}: once an hour");
        t.clock.advance_s(1_200);
        send_from(&t, &token, Some("203.0.113.9"), me, Value::Null).await.problem(403, "token.address");
        let events = events().await;
        assert_eq!(events.len(), 4, "{engine}: {events:?}");
        let last = &events[0];
        assert!(last["detail"].as_str().unwrap().ends_with("3 times."), "{engine}: {last}");
        assert_eq!(last["address"], "203.0.113.9", "{engine}");
        assert_eq!(last["token_id"], made["token"]["id"], "{engine}");
    }
}

#[tokio::test]
async fn networks_of_a_token_have_limits() {
    let t = TestPortal::sqlite().await;
    let (ada, org) = t.tenant("lab").await;
    let many: Vec<String> = (0..17).map(|n| format!("192.0.2.{n}")).collect();
    for (networks, pointer) in [
        (json!(many), "/networks"),
        (json!(["192.0.2.0/24", "192.0.2.0/33"]), "/networks/1"),
        (json!(["example.org"]), "/networks/0"),
    ] {
        let new = json!({"name": "ci", "role": "viewer", "networks": networks});
        let problem = t.post(&ada, &format!("/orgs/{org}/tokens"), new).await.problem(422, "request.invalid");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
    }
}

#[tokio::test]
async fn a_token_creates_tokens_within_its_own_limits() {
    for (engine, db, _location) in engines("token_family").await {
        let t = TestPortal::on(db);
        let (ada, org) = t.tenant("lab").await;
        let path = format!("/orgs/{org}/tokens");
        let new = json!({
            "name": "parent", "role": "owner", "scopes": ["jobs:write"], "networks": ["10.0.0.0/8"],
        });
        let parent = mint(&t, &ada, &path, new).await;
        let create = async |scopes: Value, networks: Value| {
            let new = json!({"name": "child", "role": "owner", "scopes": scopes, "networks": networks});
            send_from(&t, &parent, Some("10.0.0.1"), ("POST", path.as_str()), new).await
        };
        for (scopes, networks, pointer) in [
            (json!(["admin"]), json!(["10.0.0.0/8"]), "/scopes"),
            (json!(["jobs:read", "billing:read"]), json!(["10.0.0.0/8"]), "/scopes"),
            (json!(["jobs:read"]), json!([]), "/networks"),
            (json!(["jobs:read"]), json!(["10.1.0.0/16", "11.0.0.0/8"]), "/networks"),
            (json!(["jobs:read"]), json!(["0.0.0.0/0"]), "/networks"),
        ] {
            let problem = create(scopes, networks).await.problem(422, "request.invalid");
            assert_eq!(problem["errors"][0]["pointer"], pointer, "{engine}: {problem}");
        }
        let made = create(json!(["jobs:read"]), json!(["10.1.0.0/16"])).await.expect(201);
        let child = Caller::Token(made["secret"].as_str().unwrap().to_owned());
        let jobs = format!("/orgs/{org}/jobs");
        send_from(&t, &child, Some("10.1.0.1"), ("GET", jobs.as_str()), Value::Null).await.expect(200);
        let reply = send_from(&t, &child, Some("10.2.0.1"), ("GET", jobs.as_str()), Value::Null).await;
        reply.problem(403, "token.address");
        let reply = send_from(&t, &child, Some("10.1.0.1"), ("POST", jobs.as_str()), json!({})).await;
        reply.problem(403, "token.scope");
    }
}

#[tokio::test]
async fn the_operator_limits_the_lifetime_of_new_tokens() {
    for (engine, db, _location) in engines("token_lifetime").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        let path = format!("/orgs/{org}/tokens");
        let create = async |days: Option<i64>| {
            let at: Option<Timestamp> = days.map(|days| t.portal.context.now().plus_seconds(days * 86_400));
            t.post(&ada, &path, json!({"name": "ci", "role": "viewer", "expires_at": at})).await
        };
        let old = create(Some(366)).await.expect(201);
        create(None).await.expect(201);
        create(Some(367)).await.problem(422, "request.invalid");
        let settings = json!({"max_token_days": 30, "token_expiry_required": true});
        t.call(&operator, "PUT", "/operator/portal-settings", settings).await.expect(200);
        create(Some(30)).await.expect(201);
        for days in [None, Some(31)] {
            let problem = create(days).await.problem(422, "request.invalid");
            assert_eq!(problem["errors"][0]["pointer"], "/expires_at", "{engine}: {problem}");
            let detail = problem["detail"].as_str().unwrap();
            assert!(detail.contains("30 days"), "{engine}: {detail}");
        }
        t.post(&operator, "/operator/tokens", json!({"name": "ci"})).await.problem(422, "request.invalid");
        // A present token stays as it is.
        t.clock.advance_s(31 * 86_400);
        t.get(&Caller::Token(old["secret"].as_str().unwrap().to_owned()), "/me").await.expect(200);
    }
}

#[tokio::test]
async fn metrics_need_the_scope_of_the_fleet() {
    let t = TestPortal::sqlite().await;
    let operator = t.operator().await;
    for (scope, status) in [("fleet:read", 200), ("fleet:write", 200), ("jobs:read", 403)] {
        let new = json!({"name": "scraper", "scopes": [scope]});
        let Caller::Token(secret) = mint(&t, &operator, "/operator/tokens", new).await else {
            panic!("a token")
        };
        let request = Request::get("/metrics").header(header::AUTHORIZATION, format!("Bearer {secret}"));
        let reply = t.send(request.body(Body::empty()).unwrap()).await;
        assert_eq!(reply.status.as_u16(), status, "{scope}: {}", reply.body);
    }
}

#[tokio::test]
async fn tokens_and_requests_of_a_caller_have_a_number() {
    for (engine, db, _location) in engines("token_number").await {
        let t = TestPortal::with(db, |settings| Settings { caller_requests_per_s: 1, ..settings });
        let (ada, org) = t.tenant("lab").await;
        let path = format!("/orgs/{org}/tokens");
        let me = t.get(&ada, "/me").await.expect(200);
        let user: UserId = me["user"]["id"].as_str().unwrap().parse().unwrap();
        let made = t.post(&ada, &path, json!({"name": "ci", "role": "viewer"})).await.expect(201);
        let first: Token = serde_json::from_value(made["token"].clone()).unwrap();
        let owner: OrgId = org.parse().unwrap();
        let context = t.portal.context.clone();
        let fill = t.portal.context.db.write(move |tx| {
            let (first, context) = (first.clone(), context.clone());
            async move {
                for n in 1..MAX_TOKENS {
                    let token = Token { id: context.new_id(first.created_at), ..first.clone() };
                    let hash = n.to_string();
                    store::accounts::insert_token(tx, Some(owner), user, &token, &hash, None).await?;
                }
                Ok(())
            }
            .boxed()
        });
        fill.await.unwrap();
        let new = json!({"name": "one more", "role": "viewer"});
        let refused = t.post(&ada, &path, new.clone()).await.problem(422, "request.invalid");
        assert_eq!(refused["errors"][0]["pointer"], "/name", "{engine}: {refused}");
        let id = made["token"]["id"].as_str().unwrap();
        t.call(&ada, "DELETE", &format!("{path}/{id}"), Value::Null).await.expect(204);
        let other = mint(&t, &ada, &path, new).await;

        // Twenty at once, and one more a second.
        let mut refused = None;
        for _ in 0..40 {
            let reply = t.get(&ada, "/me").await;
            if reply.status == 429 {
                refused = Some(reply);
                break;
            }
            reply.expect(200);
        }
        let refused = refused.unwrap();
        assert!(refused.headers.contains_key(header::RETRY_AFTER), "{engine}");
        refused.problem(429, "request.throttled");
        t.get(&other, "/me").await.expect(200);
    }
}

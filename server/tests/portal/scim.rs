//! Tests of SCIM: the people that an identity provider keeps in an organization, with bodies as Entra ID and Okta send them.
//!
//! The bodies follow the public documentation: "Develop and plan provisioning for a SCIM endpoint in Microsoft Entra ID"
//! (learn.microsoft.com/entra/identity/app-provisioning/use-scim-to-provision-users-and-groups) and "SCIM 2.0 Protocol
//! Reference" (developer.okta.com/docs/api/openapi/okta-scim/guides/scim-20).

use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, header};
use futures::StreamExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::common::{Caller, PASSWORD, Reply, TestPortal, engines};
use crate::sso::{Setup, refused, session};

/// A portal with single sign-on, and the token of a provider.
pub struct ScimSetup {
    pub s: Setup,
    pub token: Caller,
}

/// The text as a part of a query.
fn encoded(text: &str) -> String {
    text.replace('%', "%25").replace(' ', "%20").replace('"', "%22").replace('+', "%2B")
}

/// Checks an error of SCIM; returns its detail.
#[track_caller]
pub fn scim_error(reply: Reply, status: u16, kind: Option<&str>, code: &str) -> String {
    let body = reply.expect(status);
    assert_eq!(body["schemas"], json!(["urn:ietf:params:scim:api:messages:2.0:Error"]));
    assert_eq!((&body["status"], &body["code"]), (&json!(status.to_string()), &json!(code)), "{body}");
    assert_eq!(body["scimType"].as_str(), kind, "{body}");
    assert!(body["request_id"].as_str().unwrap().starts_with("req_"), "{body}");
    body["detail"].as_str().unwrap().to_owned()
}

/// The body of a new person as Entra ID sends it.
pub fn entra_user(name: &str) -> Value {
    json!({
        "schemas": [
            "urn:ietf:params:scim:schemas:core:2.0:User",
            "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User",
        ],
        "externalId": format!("0a21f0f2-8d2a-4f8e-bf98-{name}"),
        "userName": format!("{name}@corp.example"),
        "active": true,
        "displayName": "Grace Holm",
        "emails": [{"primary": true, "type": "work", "value": format!("{name}@corp.example")}],
        "meta": {"resourceType": "User"},
        "name": {"formatted": "Grace Holm", "familyName": "Holm", "givenName": "Grace"},
        "title": "Engineer",
        "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User": {"department": "ML"},
    })
}

/// The body of a new person as Okta sends it.
fn okta_user(name: &str) -> Value {
    json!({
        "schemas": ["urn:ietf:params:scim:schemas:core:2.0:User"],
        "userName": format!("{name}@corp.example"),
        "name": {"givenName": "Bob", "familyName": "Berg"},
        "emails": [{"primary": true, "value": format!("{name}@corp.example"), "type": "work"}],
        "displayName": "Bob Berg",
        "locale": "en-US",
        "externalId": format!("00ujl29u0le5T6Aj10h7-{name}"),
        "groups": [],
        "password": "1mz050nq",
        "active": true,
    })
}

/// The body of a PATCH.
pub fn patch(operations: Value) -> Value {
    json!({"schemas": ["urn:ietf:params:scim:api:messages:2.0:PatchOp"], "Operations": operations})
}

impl ScimSetup {
    pub async fn on(t: TestPortal) -> Self {
        let s = Setup::on(t).await;
        let token = Self::mint(&s, json!(["scim"])).await;
        Self { s, token }
    }

    /// A token of a new service account.
    async fn mint(s: &Setup, scopes: Value) -> Caller {
        let new = json!({"name": "provisioning", "role": "viewer"});
        let path = format!("/orgs/{}/service-accounts", s.org);
        let account = s.t.post(&s.owner, &path, new).await.expect(201)["id"].clone();
        let new = json!({"name": "scim", "role": "viewer", "service_account": account, "scopes": scopes});
        let made = s.t.post(&s.owner, &format!("/orgs/{}/tokens", s.org), new).await.expect(201);
        Caller::Token(made["secret"].as_str().unwrap().to_owned())
    }

    /// Sends a request of the provider.
    pub async fn call(&self, method: &str, path: &str, body: Value) -> Reply {
        let Caller::Token(secret) = &self.token else { panic!("a token") };
        let request = Request::builder()
            .method(method)
            .uri(format!("/api/v1/scim/{}/v2{path}", self.s.org))
            .header(header::AUTHORIZATION, format!("Bearer {secret}"))
            .header(header::CONTENT_TYPE, "application/scim+json; charset=utf-8");
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
        let reply = self.s.t.send(request.body(body).unwrap()).await;
        if reply.status.as_u16() != 204 {
            assert_eq!(reply.headers[header::CONTENT_TYPE], "application/scim+json", "{method} {path}");
        }
        reply
    }

    pub async fn get(&self, path: &str) -> Value {
        self.call("GET", path, Value::Null).await.expect(200)
    }

    /// Creates a person; returns the id.
    pub async fn create(&self, body: Value) -> String {
        let made = self.call("POST", "/Users", body).await.expect(201);
        made["id"].as_str().unwrap().to_owned()
    }

    /// The people or groups that match a filter.
    async fn filtered(&self, kind: &str, filter: &str) -> Value {
        let found = self.get(&format!("/{kind}?filter={}", encoded(filter))).await;
        assert_eq!(found["totalResults"], found["Resources"].as_array().unwrap().len());
        found["Resources"].clone()
    }

    pub async fn change(&self, id: &str, operations: Value) -> Reply {
        self.call("PATCH", &format!("/Users/{id}"), patch(operations)).await
    }

    pub async fn role(&self, name: &str) -> Option<String> {
        self.s.role(&format!("{name}@corp.example")).await
    }

    /// The latest audit event with an action.
    pub async fn event(&self, action: &str) -> Value {
        let path = format!("/orgs/{}/audit-events?action={action}", self.s.org);
        self.s.t.get(&self.s.owner, &path).await.expect(200)["items"][0].clone()
    }
}

#[tokio::test]
async fn entra_id_creates_renames_and_deactivates_a_person() {
    for (engine, db, _location) in engines("scim_entra").await {
        let m = ScimSetup::on(TestPortal::on(db)).await;
        // The test of the connection.
        assert_eq!(m.filtered("Users", "userName eq \"5f4dcc3b@corp.example\"").await, json!([]), "{engine}");
        let reply = m.call("POST", "/Users", entra_user("grace")).await;
        let location = reply.headers[header::LOCATION].to_str().unwrap().to_owned();
        let made = reply.expect(201);
        let id = made["id"].as_str().unwrap().to_owned();
        assert_eq!(made["meta"]["location"], location, "{engine}");
        assert!(
            location.ends_with(&format!("/api/v1/scim/{}/v2/Users/{id}", m.s.org)),
            "{engine}: {location}"
        );
        assert_eq!(made["externalId"], "0a21f0f2-8d2a-4f8e-bf98-grace", "{engine}");
        assert_eq!(made["name"]["familyName"], "Holm", "{engine}");
        assert_eq!(m.role("grace").await.as_deref(), Some("viewer"), "{engine}: the role without a group");
        let by_name = m.filtered("Users", "userName eq \"GRACE@corp.example\"").await;
        let by_id = m.filtered("Users", "externalId eq \"0a21f0f2-8d2a-4f8e-bf98-grace\"").await;
        assert_eq!((&by_name[0]["id"], &by_id[0]["id"]), (&json!(id), &json!(id)), "{engine}");

        let renamed = m
            .change(
                &id,
                json!([
                    {"op": "Replace", "path": "displayName", "value": "Grace Lund"},
                    {"op": "Replace", "path": "name.familyName", "value": "Lund"},
                    {"op": "Add", "path": "emails[type eq \"work\"].value", "value": "grace@corp.example"},
                    {"op": "Add", "path": "title", "value": "Lead"},
                ]),
            )
            .await
            .expect(200);
        assert_eq!((&renamed["displayName"], &renamed["active"]), (&json!("Grace Lund"), &json!(true)));
        let event = m.event("scim.user_changed").await;
        assert!(event["before"].as_str().unwrap().contains("Grace Holm"), "{engine}: {event}");
        assert!(event["after"].as_str().unwrap().contains("Grace Lund"), "{engine}: {event}");
        assert_eq!(event["actor"], "provisioning", "{engine}");

        let off = m.change(&id, json!([{"op": "Replace", "path": "active", "value": "False"}])).await;
        assert_eq!(off.expect(200)["active"], json!(false), "{engine}");
        assert_eq!(m.role("grace").await, None, "{engine}");
        assert_eq!(
            m.event("member.removed").await["before"],
            json!({"role": "viewer"}).to_string(),
            "{engine}"
        );
        let on = m.change(&id, json!([{"op": "Replace", "value": {"active": "True"}}])).await;
        assert_eq!(on.expect(200)["id"], json!(id), "{engine}");
        assert_eq!(m.role("grace").await.as_deref(), Some("viewer"), "{engine}");

        let other =
            json!([{"op": "Replace", "path": "emails[type eq \"work\"].value", "value": "eve@corp.example"}]);
        scim_error(m.change(&id, other).await, 400, Some("mutability"), "scim.mutability");
        let wrong = json!([{"op": "Replace", "path": "active", "value": "perhaps"}]);
        scim_error(m.change(&id, wrong).await, 400, Some("invalidValue"), "scim.value");
    }
}

#[tokio::test]
async fn okta_creates_replaces_and_deletes_a_person() {
    for (engine, db, _location) in engines("scim_okta").await {
        let m = ScimSetup::on(TestPortal::on(db)).await;
        let id = m.create(okta_user("bob")).await;
        let path = format!("/Users/{id}");
        let mut body = okta_user("bob");
        body["displayName"] = json!("Robert Berg");
        body["id"] = json!(id);
        body["active"] = json!(false);
        let put = m.call("PUT", &path, body).await.expect(200);
        assert_eq!((&put["displayName"], &put["active"]), (&json!("Robert Berg"), &json!(false)), "{engine}");
        assert_eq!(m.role("bob").await, None, "{engine}");
        m.change(&id, json!([{"op": "replace", "value": {"active": true}}])).await.expect(200);
        assert_eq!(m.role("bob").await.as_deref(), Some("viewer"), "{engine}");
        // A person with another name is another one.
        let mut taken = okta_user("cyd");
        taken["externalId"] = json!("00ujl29u0le5T6Aj10h7-bob");
        scim_error(m.call("POST", "/Users", taken).await, 409, Some("uniqueness"), "scim.exists");
        assert_eq!(m.role("cyd").await, None, "{engine}");

        m.call("DELETE", &path, Value::Null).await.expect(204);
        assert_eq!(m.role("bob").await, None, "{engine}");
        scim_error(m.call("GET", &path, Value::Null).await, 404, None, "object.not_found");
        scim_error(m.call("DELETE", &path, Value::Null).await, 404, None, "object.not_found");
        // The account stays, and has its id again.
        assert_eq!(m.create(okta_user("bob")).await, id, "{engine}");
        let actions = m.s.actions().await;
        for action in
            ["scim.user_created", "scim.user_changed", "scim.user_deleted", "member.joined", "user.signed_up"]
        {
            assert!(actions.iter().any(|known| known == action), "{engine}: {action}");
        }
    }
}

#[tokio::test]
async fn a_deactivation_ends_sessions_tokens_and_streams_at_once() {
    for (engine, db, _location) in engines("scim_end").await {
        let m = ScimSetup::on(TestPortal::on(db)).await;
        let s = &m.s;
        let id = m.create(entra_user("grace")).await;
        let admin = |claims: &mut Value| claims["groups"] = json!(["admins"]);
        let grace = session(&s.sign_in("grace", admin).await);
        let new = json!({"name": "ci", "role": "member"});
        let made = s.t.post(&grace, &format!("/orgs/{}/tokens", s.org), new).await.expect(201);
        let ci = Caller::Token(made["secret"].as_str().unwrap().to_owned());
        let Caller::Cookie(cookie) = &grace else { panic!("a person") };
        let request = Request::get(format!("/api/v1/orgs/{}/events", s.org))
            .header(header::COOKIE, cookie)
            .header(header::ACCEPT, "text/event-stream");
        let response = s.t.router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.status(), 200, "{engine}");
        let mut stream = response.into_body().into_data_stream();
        stream.next().await.unwrap().unwrap();

        m.change(&id, json!([{"op": "replace", "value": {"active": false}}])).await.expect(200);
        let to_the_end = async { while stream.next().await.is_some() {} };
        tokio::time::timeout(Duration::from_secs(1), to_the_end).await.unwrap();
        s.t.get(&grace, "/me").await.problem(401, "auth.required");
        s.t.get(&ci, "/me").await.problem(401, "auth.required");
        refused(&s.sign_in("grace", |_| {}).await, "not-member");
        assert_eq!(m.role("grace").await, None, "{engine}");

        m.change(&id, json!([{"op": "replace", "value": {"active": true}}])).await.expect(200);
        let again = session(&s.sign_in("grace", |_| {}).await);
        assert_eq!(s.t.get(&again, "/me").await.expect(200)["user"]["id"], json!(id), "{engine}");
    }
}

#[tokio::test]
async fn only_addresses_of_confirmed_domains_are_provisioned() {
    for (engine, db, _location) in engines("scim_domain").await {
        let m = ScimSetup::on(TestPortal::on(db)).await;
        let mut foreign = entra_user("eve");
        foreign["emails"] = json!([{"type": "work", "value": "eve@other.example"}]);
        scim_error(m.call("POST", "/Users", foreign).await, 400, Some("invalidValue"), "scim.domain");
        let without = json!({"userName": "eve", "externalId": "1"});
        scim_error(m.call("POST", "/Users", without).await, 400, Some("invalidValue"), "scim.value");
        let id = m.create(entra_user("grace")).await;
        m.s.confirm(false).await;
        scim_error(
            m.call("POST", "/Users", entra_user("bob")).await,
            400,
            Some("invalidValue"),
            "scim.domain",
        );
        // The end of access needs no confirmation.
        m.change(&id, json!([{"op": "replace", "path": "active", "value": false}])).await.expect(200);
        let on = json!([{"op": "replace", "path": "active", "value": true}]);
        scim_error(m.change(&id, on).await, 400, Some("invalidValue"), "scim.domain");
        assert_eq!(m.get(&format!("/Users/{id}")).await["active"], json!(false), "{engine}");
        assert_eq!(m.role("grace").await, None, "{engine}");
        let path = format!("/orgs/{}/sso-provider", m.s.org);
        m.s.t.call(&m.s.owner, "DELETE", &path, Value::Null).await.expect(204);
        scim_error(
            m.call("POST", "/Users", entra_user("bob")).await,
            400,
            Some("invalidValue"),
            "scim.domain",
        );
    }
}

#[tokio::test]
async fn members_are_adopted_once_and_strangers_are_not_taken_over() {
    for (engine, db, _location) in engines("scim_adopt").await {
        let m = ScimSetup::on(TestPortal::on(db)).await;
        let s = &m.s;
        let sign_up = json!({"email": "grace@corp.example", "password": PASSWORD, "name": "Grace", "organization": "own"});
        s.t.post(&Caller::Nobody, "/sign-up", sign_up).await.expect(201);
        let taken = m.call("POST", "/Users", entra_user("grace")).await;
        scim_error(taken, 409, Some("uniqueness"), "scim.account");
        let invite = json!({"email": "grace@corp.example", "role": "billing"});
        let path = format!("/orgs/{}/invitations", s.org);
        let link = s.t.post(&s.owner, &path, invite).await.expect(201)["link"].clone();
        let secret = link.as_str().unwrap().rsplit_once('#').unwrap().1.to_owned();
        let own = s.t.sign_in("grace@corp.example").await;
        s.t.post(&own, "/invitations/accept", json!({"token": secret})).await.expect(200);

        let id = m.create(entra_user("grace")).await;
        let me = s.t.get(&own, "/me").await.expect(200);
        assert_eq!(me["user"]["id"], json!(id), "{engine}");
        assert_eq!(m.role("grace").await.as_deref(), Some("billing"), "{engine}: the role stays");
        assert_eq!(me["user"]["name"], "Grace", "{engine}: an account with a password keeps its name");
        let again = m.call("POST", "/Users", entra_user("grace")).await;
        scim_error(again, 409, Some("uniqueness"), "scim.exists");
        let mut renamed = entra_user("grace");
        renamed["userName"] = json!("another");
        renamed["externalId"] = json!("another");
        scim_error(m.call("POST", "/Users", renamed).await, 409, Some("uniqueness"), "scim.exists");
        // The membership ends, and the person keeps the account with its own organization.
        m.call("DELETE", &format!("/Users/{id}"), Value::Null).await.expect(204);
        let me = s.t.get(&own, "/me").await.expect(200);
        assert_eq!(me["memberships"].as_array().unwrap().len(), 1, "{engine}");
        // No provider decides about operators.
        s.put(|body| body["domains"] = json!(["corp.example", "example.org"])).await;
        let confirm = json!({"domain": "example.org", "confirmed": true});
        let path = format!("/operator/orgs/{}/sso-domains", s.org);
        s.t.call(&s.operator, "PUT", &path, confirm).await.expect(200);
        let operator = json!({"userName": "harbour@example.org"});
        scim_error(m.call("POST", "/Users", operator).await, 409, Some("uniqueness"), "scim.account");
    }
}

#[tokio::test]
async fn scim_is_for_service_accounts_with_its_scope_alone() {
    for (engine, db, _location) in engines("scim_callers").await {
        let mut m = ScimSetup::on(TestPortal::on(db)).await;
        let users = format!("/scim/{}/v2/Users", m.s.org);
        let (other, foreign) = m.s.t.tenant("other").await;
        let path = format!("/scim/{foreign}/v2/Users");
        for kind in ["Users", "Groups", "ServiceProviderConfig"] {
            let path = format!("/scim/{foreign}/v2/{kind}");
            scim_error(m.s.t.get(&m.token, &path).await, 404, None, "object.not_found");
        }
        scim_error(m.s.t.get(&other, &users).await, 404, None, "object.not_found");
        scim_error(m.s.t.post(&m.token, &path, entra_user("eve")).await, 404, None, "object.not_found");
        scim_error(m.s.t.get(&Caller::Nobody, &users).await, 401, None, "auth.required");
        scim_error(m.s.t.get(&m.s.owner, &users).await, 403, None, "auth.forbidden");
        let tokens = format!("/orgs/{}/tokens", m.s.org);
        let new = |scope: &str| json!({"name": "own", "role": "owner", "scopes": [scope]});
        let refused = m.s.t.post(&m.s.owner, &tokens, new("scim")).await.problem(422, "request.invalid");
        assert_eq!(refused["errors"][0]["pointer"], "/scopes", "{engine}: {refused}");
        let made = m.s.t.post(&m.s.owner, &tokens, new("admin")).await.expect(201);
        let own = Caller::Token(made["secret"].as_str().unwrap().to_owned());
        scim_error(m.s.t.get(&own, &users).await, 403, None, "auth.forbidden");
        // The scope of everything includes no scope beyond the role of the account.
        for scopes in [json!(["admin"]), json!(["members:read"])] {
            let wrong = ScimSetup::mint(&m.s, scopes.clone()).await;
            scim_error(m.s.t.get(&wrong, &users).await, 403, None, "token.scope");
            let refused = m.s.t.post(&wrong, &users, entra_user("eve")).await;
            scim_error(refused, 403, None, "token.scope");
        }
        assert_eq!(m.role("eve").await, None, "{engine}");
        m.s.t.clock.advance_s(61);
        m.s.t.portal.context.record_omitted().await.unwrap();
        let path = format!("/orgs/{}/audit-events?action=access.denied", m.s.org);
        let denied = m.s.t.get(&m.s.owner, &path).await.expect(200)["items"].clone();
        let by_scope = |event: &&Value| event["detail"] == "The token lacks the scope scim. 2 times.";
        assert_eq!(denied.as_array().unwrap().iter().filter(by_scope).count(), 2, "{engine}: {denied}");
        let members = format!("/orgs/{}/members", m.s.org);
        m.s.t.get(&m.token, &members).await.problem(403, "token.scope");

        let config = m.get("/ServiceProviderConfig").await;
        assert_eq!(
            (&config["patch"]["supported"], &config["bulk"]["supported"]),
            (&json!(true), &json!(false))
        );
        let kinds = m.get("/ResourceTypes").await;
        assert_eq!(kinds["Resources"][0]["endpoint"], "/Users", "{engine}");
        let schemas = m.get("/Schemas").await;
        assert_eq!(schemas["Resources"][1]["id"], "urn:ietf:params:scim:schemas:core:2.0:Group", "{engine}");
        let settings = m.s.t.get(&m.s.owner, &format!("/orgs/{}/sso-provider", m.s.org)).await.expect(200);
        assert!(settings["provisioning"]["last_request_at"].is_string(), "{engine}: {settings}");
        assert_eq!(settings["provisioning"]["members"], 0, "{engine}");
        // Tokens end with their service account.
        let accounts = format!("/orgs/{}/service-accounts", m.s.org);
        let listed = m.s.t.get(&m.s.owner, &format!("{accounts}?sort=asc")).await.expect(200);
        let first = format!("{accounts}/{}", listed["items"][0]["id"].as_str().unwrap());
        m.s.t.call(&m.s.owner, "DELETE", &first, Value::Null).await.expect(204);
        scim_error(m.call("GET", "/Users", Value::Null).await, 401, None, "auth.required");
        m.token = ScimSetup::mint(&m.s, json!(["scim"])).await;
        m.get("/Users").await;
    }
}

#[tokio::test]
async fn lists_have_pages_and_few_filters() {
    for (engine, db, _location) in engines("scim_lists").await {
        let m = ScimSetup::on(TestPortal::on(db)).await;
        let mut ids = Vec::new();
        for name in ["ada", "bob", "cyd", "dan", "eve"] {
            ids.push(m.create(entra_user(name)).await);
        }
        let mut seen = Vec::new();
        for start in [1, 3, 5] {
            let page = m.get(&format!("/Users?startIndex={start}&count=2")).await;
            assert_eq!((&page["totalResults"], &page["startIndex"]), (&json!(5), &json!(start)), "{engine}");
            let rows = page["Resources"].as_array().unwrap();
            assert_eq!(page["itemsPerPage"], rows.len(), "{engine}");
            seen.extend(rows.iter().map(|row| row["id"].as_str().unwrap().to_owned()));
        }
        assert_eq!(seen, ids, "{engine}");
        let none = m.get("/Users?count=0").await;
        assert_eq!((&none["totalResults"], &none["Resources"]), (&json!(5), &json!([])), "{engine}");
        assert_eq!(m.get("/Users?startIndex=-1&count=1000").await["itemsPerPage"], 5, "{engine}");
        for filter in
            ["displayName eq \"Ada\"", "userName sw \"a\"", "active eq true", "userName eq \"a\" or 1", ""]
        {
            let path = format!("/Users?filter={}", encoded(filter));
            let reply = m.call("GET", &path, Value::Null).await;
            scim_error(reply, 400, Some("invalidFilter"), "scim.filter");
        }
        let wrong = m.call("GET", "/Users?count=many", Value::Null).await;
        scim_error(wrong, 400, Some("invalidSyntax"), "request.malformed");
    }
}

#[tokio::test]
async fn damaged_bodies_are_refused_in_the_form_of_scim() {
    let m = ScimSetup::on(TestPortal::sqlite().await).await;
    for body in [json!([]), json!({}), json!({"userName": 1}), json!({"userName": "a", "emails": {}})] {
        let reply = m.call("POST", "/Users", body).await;
        scim_error(reply, 400, Some("invalidSyntax"), "request.malformed");
    }
    for (field, value) in [
        ("userName", json!("")),
        ("userName", json!("x".repeat(255))),
        ("displayName", json!("x".repeat(101))),
        ("externalId", json!("a\u{0}")),
        ("active", json!("perhaps")),
    ] {
        let mut body = entra_user("grace");
        body[field] = value;
        scim_error(m.call("POST", "/Users", body).await, 400, Some("invalidValue"), "scim.value");
    }
    let mut large = entra_user("grace");
    large["title"] = json!("x".repeat(65 << 10));
    scim_error(m.call("POST", "/Users", large).await, 413, None, "request.too_large");
    let Caller::Token(secret) = &m.token else { panic!("a token") };
    let request = Request::post(format!("/api/v1/scim/{}/v2/Users", m.s.org))
        .header(header::AUTHORIZATION, format!("Bearer {secret}"))
        .header(header::CONTENT_TYPE, "text/plain");
    let reply = m.s.t.send(request.body(Body::from(entra_user("grace").to_string())).unwrap()).await;
    scim_error(reply, 415, None, "request.media_type");
    assert_eq!(m.get("/Users").await["totalResults"], 0);
}

//! Tests of single sign-on: sign-ins with right and wrong tokens, accounts and roles, removals at the provider, sign-outs
//! by it, and the confirmation of domains.

use axum::body::Body;
use axum::http::{HeaderMap, Request, header};
use berth_foundation::Settings;
use berth_foundation::settings::{OperatorProvider, RequireFactor};
use berth_store as store;
use berth_types::accounts::User;
use berth_types::ids::OrgId;
use berth_types::operators::OperatorRole;
use futures::FutureExt;
use serde_json::{Value, json};

use crate::common::{Caller, PASSWORD, Reply, TestPortal, engines};
use crate::oidc::{CLIENT, FakeProvider, SECRET, signed};

/// A portal with an organization whose provider and domain are set.
pub struct Setup {
    pub t: TestPortal,
    pub provider: FakeProvider,
    pub operator: Caller,
    /// The owner, with an address of another domain.
    pub owner: Caller,
    pub org: String,
}

pub fn settings_of(provider: &FakeProvider) -> Value {
    json!({
        "issuer": provider.issuer(), "client_id": CLIENT, "client_secret": SECRET, "group_claim": "groups",
        "roles": [{"group": "admins", "role": "owner"}, {"group": "ml", "role": "member"}],
        "default_role": "viewer", "create_members": true, "required": false, "domains": ["corp.example"],
    })
}

impl Setup {
    pub async fn on(t: TestPortal) -> Self {
        let provider = FakeProvider::open().await;
        let operator = t.operator().await;
        let (owner, org) = t.tenant("lab").await;
        let setup = Self { t, provider, operator, owner, org };
        setup.put(|_| {}).await;
        setup.confirm(true).await;
        setup
    }

    pub async fn new() -> Self {
        Self::on(TestPortal::sqlite().await).await
    }

    pub async fn put(&self, change: impl FnOnce(&mut Value)) -> Value {
        let mut body = settings_of(&self.provider);
        change(&mut body);
        self.t.call(&self.owner, "PUT", &format!("/orgs/{}/sso-provider", self.org), body).await.expect(200)
    }

    pub async fn confirm(&self, confirmed: bool) {
        let body = json!({"domain": "corp.example", "confirmed": confirmed});
        let path = format!("/operator/orgs/{}/sso-domains", self.org);
        self.t.call(&self.operator, "PUT", &path, body).await.expect(200);
    }

    /// The usual claims of a person for a nonce.
    pub fn claims(&self, subject: &str, nonce: &str) -> Value {
        let now_s = self.t.portal.context.now().millis() / 1_000;
        json!({
            "iss": self.provider.issuer(), "aud": CLIENT, "sub": subject, "nonce": nonce, "iat": now_s,
            "exp": now_s + 60, "email": format!("{subject}@corp.example"), "email_verified": true,
            "name": "Grace", "sid": format!("sid-{subject}"), "groups": ["ml"],
        })
    }

    /// Begins a sign-in. Returns the cookie and the address at the provider.
    pub async fn start(&self, query: &str) -> (String, String) {
        let reply = self.t.get(&Caller::Nobody, &format!("/sso/start?{query}")).await;
        let cookie = cookie(&reply.headers, "berth_sso").unwrap_or_default();
        let location = location(&reply);
        reply.expect(303);
        (cookie, location)
    }

    pub async fn finish(&self, cookie: &str, query: &str) -> Reply {
        self.finish_at(&self.org, cookie, query).await
    }

    /// Returns to the address of an organization, or of `operators`.
    pub async fn finish_at(&self, at: &str, cookie: &str, query: &str) -> Reply {
        let path = format!("/sso/{at}/callback?{query}");
        let reply = self.t.get(&Caller::Cookie(cookie.to_owned()), &path).await;
        assert_eq!(reply.status.as_u16(), 303);
        reply
    }

    /// Signs in with the token that `make` gives for the nonce. Returns the last answer.
    pub async fn sign_in_with(&self, make: impl FnOnce(String) -> String) -> Reply {
        let (cookie, at) = self.start("org=lab").await;
        let query = self.provider.authorize(&at, make);
        self.finish(&cookie, &query).await
    }

    /// Signs a person in, with changed claims.
    pub async fn sign_in(&self, subject: &str, change: impl FnOnce(&mut Value)) -> Reply {
        self.sign_in_with(|nonce| {
            let mut claims = self.claims(subject, &nonce);
            change(&mut claims);
            self.provider.sign(&claims)
        })
        .await
    }

    /// The role of a member, by the address.
    pub async fn role(&self, email: &str) -> Option<String> {
        let members =
            self.t.get(&self.owner, &format!("/orgs/{}/members", self.org)).await.expect(200)["items"]
                .clone();
        let found = members.as_array().unwrap().iter().find(|member| member["email"] == email).cloned();
        found.map(|member| member["role"].as_str().unwrap().to_owned())
    }

    pub async fn log_out(&self, token: &str) -> Reply {
        let form = format!("logout_token={token}");
        let request = Request::builder()
            .method("POST")
            .uri(format!("/api/v1/sso/{}/logout", self.org))
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(Body::from(form))
            .unwrap();
        self.t.send(request).await
    }

    pub async fn actions(&self) -> Vec<String> {
        let path = format!("/orgs/{}/audit-events?limit=200", self.org);
        let events = self.t.get(&self.owner, &path).await.expect(200)["items"].clone();
        let events = events.as_array().unwrap().iter();
        events.map(|event| event["action"].as_str().unwrap().to_owned()).collect()
    }
}

/// The cookie of an answer as `name=value`.
pub fn cookie(headers: &HeaderMap, name: &str) -> Option<String> {
    let mut all = headers.get_all(header::SET_COOKIE).iter().map(|value| value.to_str().unwrap());
    let found = all.find(|line| line.starts_with(&format!("{name}=")))?;
    Some(found.split(';').next().unwrap().to_owned())
}

pub fn location(reply: &Reply) -> String {
    reply.headers[header::LOCATION].to_str().unwrap().to_owned()
}

/// The session of a completed sign-in.
#[track_caller]
pub fn session(reply: &Reply) -> Caller {
    assert_eq!(location(reply), "/");
    Caller::Cookie(cookie(&reply.headers, "berth_session").unwrap())
}

/// Checks that a sign-in was refused.
#[track_caller]
pub fn refused(reply: &Reply, failure: &str) {
    assert_eq!(location(reply), format!("/sign-in?sso={failure}"));
    assert_eq!(cookie(&reply.headers, "berth_session"), None);
}

#[tokio::test]
async fn a_first_sign_in_makes_a_member_and_groups_raise_and_lower_the_role() {
    for (engine, db, _location) in engines("sso").await {
        let s = Setup::on(TestPortal::on(db)).await;
        let grace = session(&s.sign_in("grace", |_| {}).await);
        let me = s.t.get(&grace, "/me").await.expect(200);
        assert_eq!(
            (me["user"]["email"].as_str(), me["user"]["name"].as_str()),
            (Some("grace@corp.example"), Some("Grace")),
            "{engine}"
        );
        assert_eq!(me["memberships"][0]["role"], "member", "{engine}");
        let known = s.t.get(&grace, "/me/identities").await.expect(200);
        assert_eq!(known["identities"][0]["issuer"], s.provider.issuer(), "{engine}");
        // No password fits.
        let none = json!({"email": "grace@corp.example", "password": PASSWORD});
        s.t.post(&Caller::Nobody, "/sessions", none).await.problem(401, "auth.wrong_password");

        session(&s.sign_in("grace", |claims| claims["groups"] = json!(["other", "admins"])).await);
        assert_eq!(s.role("grace@corp.example").await.as_deref(), Some("owner"), "{engine}");
        session(&s.sign_in("grace", |claims| claims["groups"] = json!([])).await);
        assert_eq!(s.role("grace@corp.example").await.as_deref(), Some("viewer"), "{engine}");
        // The subject is the person, also with another address of the domain.
        session(&s.sign_in("grace", |claims| claims["email"] = json!("hopper@corp.example")).await);
        assert_eq!(s.role("hopper@corp.example").await, None, "{engine}");
        let actions = s.actions().await;
        for action in [
            "user.signed_up",
            "member.joined",
            "member.role_changed",
            "sso.provider_set",
            "sso.domain_confirmed",
        ] {
            assert!(actions.iter().any(|known| known == action), "{engine}: {action} in {actions:?}");
        }
    }
}

#[tokio::test]
async fn a_token_with_a_fault_signs_nobody_in() {
    let s = Setup::new().await;
    for (name, value) in [
        ("nonce", json!("another")),
        ("nonce", Value::Null),
        ("aud", json!("another client")),
        ("aud", json!([CLIENT, "another client"])),
        ("iss", json!("http://127.0.0.1:1")),
        ("exp", json!(1)),
        ("nbf", json!(i64::MAX)),
    ] {
        refused(&s.sign_in("grace", |claims| claims[name] = value).await, "token");
    }
    // Another key under the known id, no signature, and a signature by the shared secret.
    let header = s.provider.header();
    refused(&s.sign_in_with(|nonce| signed(&header, &s.claims("grace", &nonce), 99)).await, "token");
    for alg in ["none", "HS256"] {
        let weak = json!({"alg": alg, "typ": "JWT"});
        refused(&s.sign_in_with(|nonce| signed(&weak, &s.claims("grace", &nonce), 0)).await, "token");
    }
    let unsigned = |nonce: String| {
        let token = signed(&json!({"alg": "none"}), &s.claims("grace", &nonce), 0);
        format!("{}.", token.rsplit_once('.').unwrap().0)
    };
    let reply = s.sign_in_with(unsigned).await;
    assert!(location(&reply).starts_with("/sign-in?sso="), "{}", location(&reply));
    assert_eq!(s.role("grace@corp.example").await, None);
    assert!(s.actions().await.iter().any(|action| action == "sso.refused"));
}

#[tokio::test]
async fn an_unknown_key_is_fetched_at_most_once_a_minute() {
    let s = Setup::new().await;
    session(&s.sign_in("grace", |_| {}).await);
    let before = s.provider.key_requests();
    s.provider.rotate_key();
    for _ in 0..3 {
        refused(&s.sign_in("grace", |_| {}).await, "token");
    }
    assert_eq!(s.provider.key_requests(), before);
    s.t.clock.advance_s(61);
    session(&s.sign_in("grace", |_| {}).await);
    assert_eq!(s.provider.key_requests(), before + 1);
}

#[tokio::test]
async fn a_state_works_once_in_its_own_browser_for_ten_minutes() {
    let s = Setup::new().await;
    let good = |nonce: String| s.provider.sign(&s.claims("grace", &nonce));
    let (cookie, at) = s.start("org=lab").await;
    let query = s.provider.authorize(&at, good);
    let (other, _) = s.start("org=lab").await;
    refused(&s.finish(&other, &query).await, "expired");
    refused(&s.finish("other=1", &query).await, "expired");
    refused(&s.finish("berth_sso=forged", &query).await, "expired");
    refused(&s.finish(&cookie, &query.replace("state=", "state=x")).await, "expired");
    session(&s.finish(&cookie, &query).await);
    refused(&s.finish(&cookie, &query).await, "expired");

    let (cookie, at) = s.start("email=grace%40corp.example").await;
    assert_eq!(crate::oidc::parameter(&at, "login_hint"), "grace@corp.example");
    let query = s.provider.authorize(&at, good);
    s.t.clock.advance_s(601);
    refused(&s.finish(&cookie, &query).await, "expired");

    let (cookie, at) = s.start("org=lab").await;
    let state = crate::oidc::parameter(&at, "state");
    refused(&s.finish(&cookie, &format!("state={state}&error=access_denied")).await, "denied");
    let (cookie, at) = s.start("org=lab").await;
    let query = s.provider.authorize(&at, good);
    refused(&s.finish(&cookie, &format!("{query}&iss=https%3A%2F%2Fother.example")).await, "token");
    for unknown in ["org=nowhere", "email=ada%40other.example", ""] {
        assert_eq!(s.start(unknown).await.1, "/sign-in?sso=no-provider");
    }
    s.provider.set_down(true);
    let (_, at) = s.start("org=lab").await;
    assert!(at.starts_with(&s.provider.issuer()), "the metadata is in memory: {at}");
}

#[tokio::test]
async fn only_verified_addresses_of_confirmed_domains_sign_in() {
    let s = Setup::new().await;
    for verified in [json!(false), Value::Null] {
        refused(&s.sign_in("grace", |claims| claims["email_verified"] = verified).await, "email");
    }
    refused(&s.sign_in("grace", |claims| claims["email"] = json!("grace@other.example")).await, "domain");
    session(&s.sign_in("grace", |_| {}).await);
    s.confirm(false).await;
    refused(&s.sign_in("grace", |_| {}).await, "domain");
    assert_eq!(s.start("email=grace%40corp.example").await.1, "/sign-in?sso=no-provider");
}

#[tokio::test]
async fn a_domain_belongs_to_one_organization() {
    for (engine, db, _location) in engines("sso_domains").await {
        let s = Setup::on(TestPortal::on(db)).await;
        let (other, org) = s.t.tenant("other").await;
        s.t.call(&other, "PUT", &format!("/orgs/{org}/sso-provider"), settings_of(&s.provider))
            .await
            .expect(200);
        let path = format!("/operator/orgs/{org}/sso-domains");
        let body = json!({"domain": "corp.example", "confirmed": true});
        s.t.call(&s.operator, "PUT", &path, body.clone()).await.problem(409, "sso.domain_taken");
        s.t.call(&s.owner, "PUT", &path, body.clone()).await.problem(404, "object.not_found");
        let unknown = json!({"domain": "else.example", "confirmed": true});
        s.t.call(&s.operator, "PUT", &path, unknown).await.problem(404, "object.not_found");
        let listed = s.t.get(&s.operator, "/operator/sso-domains").await.expect(200);
        assert_eq!(listed["domains"][0]["organization"], org, "{engine}: open ones are first");
        s.confirm(false).await;
        s.t.call(&s.operator, "PUT", &path, body).await.expect(200);
        refused(&s.sign_in("grace", |_| {}).await, "domain");
    }
}

#[tokio::test]
async fn an_account_with_a_password_is_linked_only_as_a_member() {
    for (engine, db, _location) in engines("sso_links").await {
        let s = Setup::on(TestPortal::on(db)).await;
        let sign_up = json!({"email": "grace@corp.example", "password": PASSWORD, "name": "Grace", "organization": "own"});
        s.t.post(&Caller::Nobody, "/sign-up", sign_up).await.expect(201);
        refused(&s.sign_in("grace", |_| {}).await, "account-exists");
        let invite = json!({"email": "grace@corp.example", "role": "viewer"});
        let link =
            s.t.post(&s.owner, &format!("/orgs/{}/invitations", s.org), invite).await.expect(201)["link"]
                .clone();
        let token = link.as_str().unwrap().rsplit_once('#').unwrap().1.to_owned();
        let own = s.t.sign_in("grace@corp.example").await;
        s.t.post(&own, "/invitations/accept", json!({"token": token})).await.expect(200);
        session(&s.sign_in("grace", |_| {}).await);
        assert_eq!(s.role("grace@corp.example").await.as_deref(), Some("member"), "{engine}");
        assert!(s.actions().await.iter().any(|action| action == "sso.linked"), "{engine}");
    }
}

#[tokio::test]
async fn the_only_owner_stays_whatever_the_groups_say() {
    let s = Setup::new().await;
    let grace = session(&s.sign_in("grace", |claims| claims["groups"] = json!(["admins"])).await);
    // Grace is the only owner after the founder has left.
    let founder = s.t.get(&s.owner, "/me").await.expect(200)["user"]["id"].as_str().unwrap().to_owned();
    s.t.call(&s.owner, "DELETE", &format!("/orgs/{}/members/{founder}", s.org), Value::Null)
        .await
        .expect(204);
    session(&s.sign_in("grace", |claims| claims["groups"] = json!(["ml"])).await);
    let me = s.t.get(&grace, "/me").await.expect(200);
    assert_eq!(me["memberships"][0]["role"], "owner");
}

#[tokio::test]
async fn people_without_a_role_or_membership_are_refused() {
    let s = Setup::new().await;
    s.put(|body| body["create_members"] = json!(false)).await;
    refused(&s.sign_in("grace", |_| {}).await, "not-member");
    s.put(|body| body["default_role"] = Value::Null).await;
    refused(&s.sign_in("grace", |claims| claims["groups"] = json!(["other"])).await, "no-role");
    session(&s.sign_in("grace", |_| {}).await);
    refused(&s.sign_in("grace", |claims| claims["groups"] = json!([])).await, "no-role");
}

#[tokio::test]
async fn only_single_sign_on_leaves_owners_their_password() {
    for (engine, db, _location) in engines("sso_only").await {
        let s = Setup::on(TestPortal::on(db)).await;
        let sign_up =
            json!({"email": "ada@corp.example", "password": PASSWORD, "name": "Ada", "organization": "own"});
        s.t.post(&Caller::Nobody, "/sign-up", sign_up).await.expect(201);
        let invite = json!({"email": "ada@corp.example", "role": "member"});
        let link =
            s.t.post(&s.owner, &format!("/orgs/{}/invitations", s.org), invite).await.expect(201)["link"]
                .clone();
        let token = link.as_str().unwrap().rsplit_once('#').unwrap().1.to_owned();
        let by_password = s.t.sign_in("ada@corp.example").await;
        s.t.post(&by_password, "/invitations/accept", json!({"token": token})).await.expect(200);
        s.put(|body| body["required"] = json!(true)).await;
        s.t.get(&by_password, "/me").await.problem(401, "auth.required");
        let body = json!({"email": "ada@corp.example", "password": PASSWORD});
        s.t.post(&Caller::Nobody, "/sessions", body).await.problem(403, "auth.sso_required");
        session(&s.sign_in("ada", |_| {}).await);
        s.t.get(&s.owner, "/me").await.expect(200);
        s.t.sign_in("lab@example.org").await;
        s.put(|body| body["required"] = json!(false)).await;
        s.t.sign_in("ada@corp.example").await;
        assert_eq!(s.role("ada@corp.example").await.as_deref(), Some("member"), "{engine}");
    }
}

#[tokio::test]
async fn the_provider_counts_as_the_second_factor_of_its_organization_only() {
    let s = Setup::new().await;
    let grace = session(&s.sign_in("grace", |claims| claims["groups"] = json!(["admins"])).await);
    // The rule needs a factor of the owner who sets it, so it is set in the store.
    let org: OrgId = s.org.parse().unwrap();
    let now = s.t.portal.context.now();
    let set =
        s.t.portal.context.db.write(move |tx| {
            async move { store::factors::put_requirement(tx, org, Some(now)).await }.boxed()
        });
    set.await.unwrap();
    s.t.get(&grace, &format!("/orgs/{}/members", s.org)).await.expect(200);
    s.t.get(&s.owner, &format!("/orgs/{}/members", s.org)).await.problem(403, "auth.factor_required");
}

#[tokio::test]
async fn the_settings_need_an_owner_with_a_fresh_proof_and_valid_fields() {
    let s = Setup::new().await;
    let path = format!("/orgs/{}/sso-provider", s.org);
    let shown = s.t.get(&s.owner, &path).await.expect(200);
    assert!(!shown.to_string().contains(SECRET));
    let callback = format!("http://127.0.0.1:8080/api/v1/sso/{}/callback", s.org);
    assert_eq!(shown["callback_url"], callback);
    assert!(shown["provider"]["domains"][0]["confirmed_at"].is_string(), "{shown}");
    for (name, value) in [
        ("issuer", json!("ftp://id.example")),
        ("issuer", json!("https://user:x@id.example")),
        ("issuer", json!("https://id.example?x=1")),
        ("client_id", json!(" ")),
        ("domains", json!([])),
        ("domains", json!(["nodots"])),
        ("roles", json!(vec![json!({"group": "g", "role": "owner"}); 101])),
    ] {
        let mut body = settings_of(&s.provider);
        body[name] = value;
        s.t.call(&s.owner, "PUT", &path, body).await.problem(422, "request.invalid");
    }
    // The stored secret belongs to its client.
    let mut kept = settings_of(&s.provider);
    kept.as_object_mut().unwrap().remove("client_secret");
    s.t.call(&s.owner, "PUT", &path, kept.clone()).await.expect(200);
    kept["client_id"] = json!("another");
    s.t.call(&s.owner, "PUT", &path, kept).await.problem(422, "request.invalid");
    let grace = session(&s.sign_in("grace", |_| {}).await);
    s.t.get(&grace, &path).await.problem(403, "auth.forbidden");
    s.t.clock.advance_s(16 * 60);
    s.t.call(&s.owner, "PUT", &path, settings_of(&s.provider)).await.problem(403, "auth.proof_required");
    let owner = crate::factors::prove(&s.t, &s.owner, json!({"password": PASSWORD})).await;
    s.t.call(&owner, "DELETE", &path, Value::Null).await.expect(204);
    s.t.get(&grace, "/me").await.problem(401, "auth.required");
    s.t.call(&owner, "DELETE", &path, Value::Null).await.problem(409, "sso.missing");
}

#[tokio::test]
async fn operators_sign_in_by_their_own_provider_and_group() {
    for (engine, db, _location) in engines("sso_operators").await {
        let provider = FakeProvider::open().await;
        let operators = OperatorProvider {
            issuer: provider.issuer(),
            client_id: CLIENT.to_owned(),
            client_secret: SECRET.to_owned(),
            group: "berth-operators".to_owned(),
            role: OperatorRole::Fleet,
        };
        let t = TestPortal::with(db, |settings| Settings {
            operator_provider: Some(operators),
            require_factor: RequireFactor::Operators,
            ..settings
        });
        let (owner, org) = t.tenant("lab").await;
        let s = Setup { t, provider, operator: Caller::Nobody, owner, org };
        let sign_in = async |groups: Value, amr: Value| {
            let (cookie, at) = s.start("").await;
            let query = s.provider.authorize(&at, |nonce| {
                let mut claims = s.claims("root", &nonce);
                (claims["groups"], claims["amr"]) = (groups, amr);
                s.provider.sign(&claims)
            });
            s.finish_at("operators", &cookie, &query).await
        };
        refused(&sign_in(json!(["ml"]), json!(["mfa"])).await, "no-role");
        let root = session(&sign_in(json!(["berth-operators"]), json!(["pwd", "mfa"])).await);
        s.t.get(&root, "/operator/nodes").await.expect(200);
        // A new operator has the role of the settings.
        assert_eq!(s.t.get(&root, "/me").await.expect(200)["operator_role"], "fleet", "{engine}");
        s.t.get(&root, "/operator/users").await.problem(403, "auth.forbidden");
        // Without a second factor at the provider the portal requires its own.
        let weak = session(&sign_in(json!(["berth-operators"]), json!(["pwd"])).await);
        s.t.get(&weak, "/operator/users").await.problem(403, "auth.factor_required");
        assert_eq!(s.t.get(&weak, "/me").await.expect(200)["second_factor_required"], true, "{engine}");
    }
}

#[tokio::test]
async fn the_provider_of_an_organization_signs_no_operator_in() {
    let s = Setup::new().await;
    // An operator with an address of the organization's domain.
    let operator = User {
        id: s.t.portal.context.new_id(s.t.portal.context.now()),
        email: "grace@corp.example".to_owned(),
        name: "Grace".to_owned(),
        operator: true,
    };
    let now = s.t.portal.context.now();
    let insert = s.t.portal.context.db.write(move |tx| {
        let operator = operator.clone();
        async move { store::accounts::insert_user(tx, &operator, "", now).await }.boxed()
    });
    insert.await.unwrap();
    refused(&s.sign_in("grace", |_| {}).await, "operator");
}

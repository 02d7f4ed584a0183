//! Tests of the people of single sign-on: their second factors, disabled ones, and service accounts, which are none.

use berth_foundation::{Caller as SignedIn, SessionKey};
use berth_store::{self as store, StoreError};
use berth_types::accounts::{NewToken, Role};
use berth_types::ids::{OrgId, UserId};
use berth_types::scopes::ApiScope;
use futures::FutureExt;
use serde_json::{Value, json};

use crate::common::{Caller, PASSWORD, TestPortal, engines};
use crate::factors::enrol;
use crate::sso::{Setup, cookie, location, session};

/// The token of a new answer.
fn token(made: &Value) -> Caller {
    Caller::Token(made["secret"].as_str().unwrap().to_owned())
}

impl Setup {
    /// Refreshes the due grants, 31 seconds later.
    async fn refresh(&self) {
        self.t.clock.advance_s(31);
        assert!(!self.t.portal.sso.tick_grants().await.unwrap());
    }

    /// Invites an address. The person of a session accepts.
    async fn join(&self, person: &Caller, email: &str, role: &str) {
        let path = format!("/orgs/{}/invitations", self.org);
        let invited =
            self.t.post(&self.owner, &path, json!({"email": email, "role": role})).await.expect(201);
        let token = invited["link"].as_str().unwrap().rsplit_once('#').unwrap().1.to_owned();
        self.t.post(person, "/invitations/accept", json!({"token": token})).await.expect(200);
    }

    /// Signs a person up, with an organization of the same name. Returns a session by password.
    async fn sign_up(&self, name: &str) -> Caller {
        let email = format!("{name}@corp.example");
        let body = json!({"email": email, "password": PASSWORD, "name": name, "organization": name});
        self.t.post(&Caller::Nobody, "/sign-up", body).await.expect(201);
        self.t.sign_in(&email).await
    }
}

#[tokio::test]
async fn a_second_factor_is_asked_unless_the_provider_verified_one() {
    for (engine, db, _location) in engines("sso_factors").await {
        let s = Setup::on(TestPortal::on(db)).await;
        let grace = session(&s.sign_in("grace", |_| {}).await);
        let (_, codes) = enrol(&s.t, &grace).await;
        session(&s.sign_in("grace", |claims| claims["amr"] = json!(["pwd", "mfa"])).await);

        let reply = s.sign_in("grace", |claims| claims["amr"] = json!(["pwd"])).await;
        assert_eq!(cookie(&reply.headers, "berth_session"), None, "{engine}");
        let at = location(&reply);
        let challenge = at.strip_prefix("/sign-in#").unwrap();
        let body = json!({"challenge": challenge, "code": codes[0]});
        let reply = s.t.post(&Caller::Nobody, "/sessions/second-factor", body).await;
        let grace = Caller::Cookie(cookie(&reply.headers, "berth_session").unwrap());
        reply.expect(201);
        s.t.get(&grace, "/me").await.expect(200);
        // The session has the grant of the first step.
        s.provider.remove_people();
        s.refresh().await;
        s.t.get(&grace, "/me").await.problem(401, "auth.required");
    }
}

#[tokio::test]
async fn the_end_of_a_disabled_person_shows_after_the_enabling() {
    for (engine, db, _location) in engines("sso_disabled").await {
        let s = Setup::on(TestPortal::on(db)).await;
        let grace = session(&s.sign_in("grace", |claims| claims["groups"] = json!(["admins"])).await);
        let body = json!({"name": "ci", "role": "member"});
        let ci = token(&s.t.post(&grace, &format!("/orgs/{}/tokens", s.org), body).await.expect(201));
        let me = s.t.get(&grace, "/me").await.expect(200);
        let disabled = format!("/operator/users/{}/disabled", me["user"]["id"].as_str().unwrap());
        let reason = json!({"reason": "Unpaid invoices."});
        s.t.call(&s.operator, "PUT", &disabled, reason).await.expect(200);
        s.t.get(&grace, "/me").await.problem(401, "auth.required");
        s.provider.remove_people();
        // Nobody asks about a disabled person.
        s.refresh().await;
        s.t.call(&s.operator, "DELETE", &disabled, Value::Null).await.expect(200);
        s.t.get(&grace, "/me").await.problem(401, "auth.required");
        s.t.get(&ci, "/me").await.expect(200);
        s.refresh().await;
        s.t.get(&ci, "/me").await.problem(401, "auth.required");
        assert!(s.actions().await.iter().any(|action| action == "sso.ended"), "{engine}");
    }
}

#[tokio::test]
async fn a_service_account_has_no_identity_and_outlives_its_creator() {
    for (engine, db, _location) in engines("sso_service").await {
        let s = Setup::on(TestPortal::on(db)).await;
        let grace = session(&s.sign_in("grace", |claims| claims["groups"] = json!(["admins"])).await);
        let new = json!({"name": "nightly", "role": "member"});
        let path = format!("/orgs/{}/service-accounts", s.org);
        let account = s.t.post(&grace, &path, new).await.expect(201)["id"].as_str().unwrap().to_owned();
        let new = json!({"name": "ci", "role": "member", "service_account": account});
        let machine = token(&s.t.post(&grace, &format!("/orgs/{}/tokens", s.org), new).await.expect(201));
        s.provider.remove_people();
        s.refresh().await;
        s.t.get(&grace, "/me").await.problem(401, "auth.required");
        s.t.get(&machine, "/me").await.expect(200);

        let (id, issuer): (UserId, String) = (account.parse().unwrap(), s.provider.issuer());
        let now = s.t.portal.context.now();
        let link = s.t.portal.context.db.write(move |tx| {
            let issuer = issuer.clone();
            async move { store::sso::put_identity(tx, &issuer, "robot", id, now).await }.boxed()
        });
        assert!(matches!(link.await, Err(StoreError::Refused)), "{engine}");
    }
}

#[tokio::test]
async fn no_organization_ends_the_password_of_an_operator() {
    for (engine, db, _location) in engines("sso_operator_member").await {
        let s = Setup::on(TestPortal::on(db)).await;
        s.put(|body| body["domains"] = json!(["corp.example", "example.org"])).await;
        let path = format!("/operator/orgs/{}/sso-domains", s.org);
        let body = json!({"domain": "example.org", "confirmed": true});
        s.t.call(&s.operator, "PUT", &path, body).await.expect(200);
        s.join(&s.operator, "harbour@example.org", "member").await;
        s.put(|body| {
            body["domains"] = json!(["corp.example", "example.org"]);
            body["required"] = json!(true);
        })
        .await;
        assert_eq!(s.t.get(&s.operator, "/me").await.status.as_u16(), 200, "{engine}");
        let again = s.t.sign_in("harbour@example.org").await;
        s.t.get(&again, "/operator/users").await.expect(200);
    }
}

#[tokio::test]
async fn only_single_sign_on_holds_for_later_members_and_former_owners() {
    for (engine, db, _location) in engines("sso_only_later").await {
        let s = Setup::on(TestPortal::on(db)).await;
        s.put(|body| body["required"] = json!(true)).await;
        let ada = s.sign_up("ada").await;
        s.join(&ada, "ada@corp.example", "member").await;
        s.t.get(&ada, "/me").await.problem(401, "auth.required");

        let eve = s.sign_up("eve").await;
        s.join(&eve, "eve@corp.example", "owner").await;
        let me = s.t.get(&eve, "/me").await.expect(200);
        let path = format!("/orgs/{}/members/{}", s.org, me["user"]["id"].as_str().unwrap());
        s.t.call(&s.owner, "PATCH", &path, json!({"role": "member"})).await.expect(200);
        s.t.get(&eve, "/me").await.problem(401, "auth.required");

        // The groups of the provider make a member of the owner.
        let bob = s.sign_up("bob").await;
        s.join(&bob, "bob@corp.example", "owner").await;
        s.t.get(&bob, "/me").await.expect(200);
        let by_provider = session(&s.sign_in("bob", |_| {}).await);
        s.t.get(&bob, "/me").await.problem(401, "auth.required");
        assert_eq!(s.t.get(&by_provider, "/me").await.status.as_u16(), 200, "{engine}");
    }
}

#[tokio::test]
async fn an_ended_session_creates_no_token() {
    for (engine, db, _location) in engines("sso_token_end").await {
        let s = Setup::on(TestPortal::on(db)).await;
        let me = s.t.get(&s.owner, "/me").await.expect(200);
        let id: UserId = me["user"]["id"].as_str().unwrap().parse().unwrap();
        let mut conn = s.t.portal.context.db.read().await.unwrap();
        let user = store::accounts::find_user(&mut conn.tx(), id).await.unwrap().unwrap();
        drop(conn);
        let caller = SignedIn {
            user,
            token: None,
            // The session ended between the authentication and the write.
            session: Some(SessionKey::from_cookie("ended")),
            expires_at: None,
            proof: None,
            idempotency_key: None,
        };
        let new = NewToken {
            name: "ci".to_owned(),
            role: Role::Member,
            scopes: vec![ApiScope::Admin],
            networks: Vec::new(),
            expires_at: None,
            service_account: None,
        };
        let made = s.t.portal.accounts.create_token(&caller, s.org.parse().unwrap(), new).await;
        assert_eq!(made.map(|made| made.token.name).map_err(|refused| refused.status), Err(401), "{engine}");
    }
}

#[tokio::test]
async fn a_session_without_a_refresh_token_creates_tokens_of_service_accounts_only() {
    for (engine, db, _location) in engines("sso_no_refresh").await {
        let s = Setup::on(TestPortal::on(db)).await;
        s.provider.stop_refresh_tokens();
        let grace = session(&s.sign_in("grace", |claims| claims["groups"] = json!(["admins"])).await);
        let path = format!("/orgs/{}/tokens", s.org);
        let own = json!({"name": "ci", "role": "member"});
        s.t.post(&grace, &path, own.clone()).await.problem(409, "sso.no_refresh");
        let new = json!({"name": "nightly", "role": "member"});
        let accounts = format!("/orgs/{}/service-accounts", s.org);
        let account = s.t.post(&grace, &accounts, new).await.expect(201)["id"].clone();
        let new = json!({"name": "ci", "role": "member", "service_account": account});
        let machine = token(&s.t.post(&grace, &path, new).await.expect(201));
        assert_eq!(s.t.get(&machine, "/me").await.status.as_u16(), 200, "{engine}");
        s.t.post(&s.owner, &path, own).await.expect(201);
    }
}

#[tokio::test]
async fn the_audit_log_has_the_settings_before_and_after_a_change() {
    let s = Setup::new().await;
    s.put(|body| body["required"] = json!(true)).await;
    let path = format!("/orgs/{}/audit-events?limit=200", s.org);
    let events = s.t.get(&s.owner, &path).await.expect(200)["items"].clone();
    let state = |event: &Value, field: &str| -> Value {
        event[field].as_str().map_or(Value::Null, |text| serde_json::from_str(text).unwrap())
    };
    let is_change = |event: &&Value| state(event, "after")["required"] == true;
    let found = events.as_array().unwrap().iter().find(is_change).unwrap();
    assert_eq!(found["action"], "sso.provider_set");
    assert_eq!(state(found, "before")["required"], false);
    assert_eq!(state(found, "before")["domains"], json!(["corp.example"]));
    assert_eq!(state(found, "after")["roles"][0]["role"], "owner");
    assert!(!found.to_string().contains("secret of the portal"), "{found}");
}

#[tokio::test]
async fn many_domains_without_a_confirmation_hide_no_confirmed_one() {
    for (engine, db, _location) in engines("sso_many_domains").await {
        let s = Setup::on(TestPortal::on(db)).await;
        let (_, other) = s.t.tenant("other").await;
        let other: OrgId = other.parse().unwrap();
        let now = s.t.portal.context.now();
        let add = s.t.portal.context.db.write(move |tx| {
            async move {
                for n in 0..201 {
                    store::sso::add_domain(tx, other, &format!("d{n}.example"), now).await?;
                }
                Ok(())
            }
            .boxed()
        });
        add.await.unwrap();
        let all = s.t.get(&s.operator, "/operator/sso-domains").await.expect(200)["domains"].clone();
        let all = all.as_array().unwrap();
        assert_eq!(all.len(), 201, "{engine}: 200 without a confirmation and 1 with one");
        assert_eq!(all[200]["domain"], "corp.example", "{engine}");
        for (text, found) in [("d200.EXAMPLE", "d200.example"), ("lab", "corp.example")] {
            let path = format!("/operator/sso-domains?text={text}");
            let listed = s.t.get(&s.operator, &path).await.expect(200)["domains"].clone();
            assert_eq!(listed.as_array().unwrap().len(), 1, "{engine}: {listed}");
            assert_eq!(listed[0]["domain"], found, "{engine}");
        }
        let long = format!("/operator/sso-domains?text={}", "x".repeat(101));
        s.t.get(&s.operator, &long).await.problem(422, "request.invalid");
    }
}

//! Tests of the people of single sign-on: their second factors, disabled ones, and service accounts, which are none.

use berth_foundation::settings::OperatorProvider;
use berth_foundation::{Caller as SignedIn, SessionKey, Settings};
use berth_store::{self as store, StoreError};
use berth_types::accounts::{NewToken, Role};
use berth_types::ids::{OrgId, UserId};
use berth_types::operators::OperatorRole;
use berth_types::scopes::ApiScope;
use futures::FutureExt;
use serde_json::{Value, json};

use crate::common::{Caller, PASSWORD, TestPortal, engines};
use crate::factors::enrol;
use crate::oidc::{CLIENT, FakeProvider, SECRET};
use crate::sso::{Setup, cookie, location, refused, session};

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
async fn an_account_with_a_second_factor_is_linked_as_a_member_only() {
    for (_engine, db, _location) in engines("sso_factor_links").await {
        let s = Setup::on(TestPortal::on(db)).await;
        for subject in ["grace", "hopper"] {
            let person = session(&s.sign_in(subject, |_| {}).await);
            if subject == "grace" {
                enrol(&s.t, &person).await;
            }
            let me = s.t.get(&person, "/me").await.expect(200);
            let path = format!("/orgs/{}/members/{}", s.org, me["user"]["id"].as_str().unwrap());
            s.t.call(&s.owner, "DELETE", &path, Value::Null).await.expect(204);
        }
        // The removal of the settings forgets the identities.
        let path = format!("/orgs/{}/sso-provider", s.org);
        s.t.call(&s.owner, "DELETE", &path, Value::Null).await.expect(204);
        s.put(|_| {}).await;
        s.confirm(true).await;
        let by_mfa = |claims: &mut Value| claims["amr"] = json!(["mfa"]);
        refused(&s.sign_in("grace", by_mfa).await, "account-exists");
        session(&s.sign_in("hopper", by_mfa).await);
    }
}

#[tokio::test]
async fn a_new_operator_completes_no_sign_in_by_an_organization() {
    for (_engine, db, _location) in engines("sso_new_operator").await {
        let s = Setup::on(TestPortal::on(db)).await;
        let ada = s.sign_up("ada").await;
        s.join(&ada, "ada@corp.example", "member").await;
        let by_provider = session(&s.sign_in("ada", |_| {}).await);
        let (_, codes) = enrol(&s.t, &by_provider).await;
        let at = location(&s.sign_in("ada", |_| {}).await);
        let challenge = at.strip_prefix("/sign-in#").unwrap();
        let new = json!({"email": "ada@corp.example", "role": "auditor", "reason": "The night shift."});
        s.t.post(&s.operator, "/operator/operators", new).await.expect(201);
        let body = json!({"challenge": challenge, "code": codes[0]});
        let reply = s.t.post(&Caller::Nobody, "/sessions/second-factor", body).await;
        reply.problem(401, "auth.challenge");
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
async fn only_single_sign_on_holds_for_former_operators() {
    for (engine, db, _location) in engines("sso_former_operator").await {
        let s = Setup::on(TestPortal::on(db)).await;
        s.put(|body| body["required"] = json!(true)).await;
        s.sign_up("ada").await;
        let new = json!({"email": "ada@corp.example", "role": "auditor", "reason": "The night shift."});
        let user = s.t.post(&s.operator, "/operator/operators", new).await.expect(201)["user"].clone();
        let ada = s.t.sign_in("ada@corp.example").await;
        s.join(&ada, "ada@corp.example", "member").await;
        assert_eq!(s.t.get(&ada, "/me").await.status.as_u16(), 200, "{engine}");
        let path = format!("/operator/operators/{}/remove", user.as_str().unwrap());
        let reason = json!({"reason": "The end of the night shift."});
        s.t.post(&s.operator, &path, reason).await.expect(204);
        s.t.get(&ada, "/me").await.problem(401, "auth.required");
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
            operator_role: None,
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
                    store::sso_domains::add(tx, other, (&format!("d{n}.example"), "0a"), (now, now)).await?;
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

#[tokio::test]
async fn an_owner_by_single_sign_on_gets_the_webhooks_that_stopped() {
    for (engine, db, _location) in engines("sso_heirs").await {
        let s = Setup::on(TestPortal::on(db)).await;
        let hooks = format!("/orgs/{}/webhooks", s.org);
        let new = json!({"url": "http://127.0.0.1:9/hook", "kinds": ["budget.passed"]});
        let made = s.t.post(&s.owner, &hooks, new).await.expect(201);
        let me = s.t.get(&s.owner, "/me").await.expect(200);
        let disabled = format!("/operator/users/{}/disabled", me["user"]["id"].as_str().unwrap());
        let reason = json!({"reason": "Unpaid invoices."});
        s.t.call(&s.operator, "PUT", &disabled, reason).await.expect(200);
        let passed = async |caller: &Caller| {
            let path = format!("/orgs/{}/audit-events?action=webhook.passed_on", s.org);
            s.t.get(caller, &path).await.expect(200)["items"].as_array().unwrap().clone()
        };
        session(&s.sign_in("grace", |_| {}).await);
        let grace = session(&s.sign_in("grace", |claims| claims["groups"] = json!(["admins"])).await);
        let events = passed(&grace).await;
        assert_eq!(events.len(), 1, "{engine}: a member inherits nothing");
        assert_eq!(events[0]["detail"], "To the owner Grace.", "{engine}");
        let listed = s.t.get(&grace, &hooks).await.expect(200)["items"][0].clone();
        assert_eq!((&listed["id"], &listed["created_by"]), (&made["id"], &json!("Grace")), "{engine}");
    }
}

#[tokio::test]
async fn a_removed_operator_is_none_again_by_single_sign_on() {
    for (engine, db, _location) in engines("sso_former_operator").await {
        let provider = FakeProvider::open().await;
        let operators = OperatorProvider {
            issuer: provider.issuer(),
            client_id: CLIENT.to_owned(),
            client_secret: SECRET.to_owned(),
            group: "berth-operators".to_owned(),
            role: OperatorRole::Owner,
        };
        let t = TestPortal::with(db, |settings| Settings { operator_provider: Some(operators), ..settings });
        let operator = t.operator().await;
        let (owner, org) = t.tenant("lab").await;
        let s = Setup { t, provider, operator, owner, org };
        let sign_in = async || {
            let (cookie, at) = s.start("").await;
            let query = s.provider.authorize(&at, |nonce| {
                let mut claims = s.claims("grace", &nonce);
                claims["groups"] = json!(["berth-operators"]);
                s.provider.sign(&claims)
            });
            s.finish_at("operators", &cookie, &query).await
        };
        let grace = session(&sign_in().await);
        let me = s.t.get(&grace, "/me").await.expect(200);
        assert_eq!(me["operator_role"], "owner", "{engine}");
        let id = me["user"]["id"].as_str().unwrap().to_owned();
        let remove = format!("/operator/operators/{id}/remove");
        s.t.post(&s.operator, &remove, json!({"reason": "Left."})).await.expect(204);
        refused(&sign_in().await, "account-exists");

        let (user, now): (UserId, _) = (id.parse().unwrap(), s.t.portal.context.now());
        let deleted =
            s.t.portal
                .context
                .db
                .write(move |tx| async move { store::people::delete_person(tx, user, now).await }.boxed());
        deleted.await.unwrap();
        refused(&sign_in().await, "no-role");
        // An owner adds the person again.
        let body = json!({"email": "grace@corp.example", "password": PASSWORD, "name": "Grace", "organization": "desk"});
        s.t.post(&Caller::Nobody, "/sign-up", body).await.expect(201);
        let new = json!({"email": "grace@corp.example", "role": "auditor", "reason": "Back."});
        s.t.post(&s.operator, "/operator/operators", new).await.expect(201);
        let grace = session(&sign_in().await);
        assert_eq!(s.t.get(&grace, "/me").await.expect(200)["operator_role"], "auditor", "{engine}");
    }
}

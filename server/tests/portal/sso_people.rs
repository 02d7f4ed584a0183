//! Tests of the people of single sign-on: their second factors, disabled ones, and service accounts, which are none.

use berth_store::{self as store, StoreError};
use berth_types::ids::UserId;
use futures::FutureExt;
use serde_json::{Value, json};

use crate::common::{Caller, TestPortal, engines};
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

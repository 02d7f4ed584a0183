//! Tests of the end of access by single sign-on: removals at the provider, providers without an answer, and logout tokens.

use serde_json::{Value, json};

use crate::common::{Caller, TestPortal, engines};
use crate::oidc::CLIENT;
use crate::sso::{Setup, session};

#[tokio::test]
async fn a_removal_at_the_provider_ends_sessions_and_tokens() {
    for (engine, db, _location) in engines("sso_removal").await {
        let s = Setup::on(TestPortal::on(db)).await;
        let grace = session(&s.sign_in("grace", |claims| claims["groups"] = json!(["admins"])).await);
        let body = json!({"name": "ci", "role": "member"});
        let made = s.t.post(&grace, &format!("/orgs/{}/tokens", s.org), body).await.expect(201);
        let ci = Caller::Token(made["secret"].as_str().unwrap().to_owned());
        let first = s.t.get(&s.owner, "/me").await.expect(200);
        for _ in 0..3 {
            s.t.clock.advance_s(31);
            assert!(!s.t.portal.sso.tick_grants().await.unwrap(), "{engine}");
            s.t.get(&grace, "/me").await.expect(200);
        }
        s.provider.remove_people();
        s.t.get(&grace, "/me").await.expect(200);
        s.t.clock.advance_s(31);
        s.t.portal.sso.tick_grants().await.unwrap();
        s.t.get(&grace, "/me").await.problem(401, "auth.required");
        s.t.get(&ci, "/me").await.problem(401, "auth.required");
        assert_eq!(s.t.get(&s.owner, "/me").await.expect(200), first, "{engine}: sessions by password stay");
        assert!(s.actions().await.iter().any(|action| action == "sso.ended"), "{engine}");
    }
}

#[tokio::test]
async fn tokens_end_with_their_person_also_after_the_sign_out() {
    let s = Setup::new().await;
    let grace = session(&s.sign_in("grace", |claims| claims["groups"] = json!(["admins"])).await);
    let body = json!({"name": "ci", "role": "member"});
    let made = s.t.post(&grace, &format!("/orgs/{}/tokens", s.org), body).await.expect(201);
    let ci = Caller::Token(made["secret"].as_str().unwrap().to_owned());
    s.t.call(&grace, "DELETE", "/sessions/current", Value::Null).await.expect(204);
    s.t.portal.forget_old().await.unwrap();
    s.t.clock.advance_s(31);
    s.t.portal.sso.tick_grants().await.unwrap();
    s.t.get(&ci, "/me").await.expect(200);
    s.provider.remove_people();
    s.t.clock.advance_s(31);
    s.t.portal.sso.tick_grants().await.unwrap();
    s.t.get(&ci, "/me").await.problem(401, "auth.required");
}

#[tokio::test]
async fn sessions_last_fifteen_minutes_without_an_answer_of_the_provider() {
    let s = Setup::new().await;
    let grace = session(&s.sign_in("grace", |_| {}).await);
    s.provider.set_down(true);
    for _ in 0..14 {
        s.t.clock.advance_s(60);
        s.t.portal.sso.tick_grants().await.unwrap();
        s.t.get(&grace, "/me").await.expect(200);
    }
    s.t.clock.advance_s(121);
    s.t.portal.sso.tick_grants().await.unwrap();
    s.t.get(&grace, "/me").await.problem(401, "auth.required");
    s.provider.set_down(false);
    session(&s.sign_in("grace", |_| {}).await);
}

#[tokio::test]
async fn a_logout_token_ends_its_session_once() {
    let s = Setup::new().await;
    let grace = session(&s.sign_in("grace", |_| {}).await);
    let ada = session(&s.sign_in("ada", |_| {}).await);
    let token = |id: &str, change: &dyn Fn(&mut Value)| {
        let now_s = s.t.portal.context.now().millis() / 1_000;
        let mut claims = json!({
            "iss": s.provider.issuer(), "aud": CLIENT, "iat": now_s, "jti": id, "sid": "sid-grace",
            "events": {"http://schemas.openid.net/event/backchannel-logout": {}},
        });
        change(&mut claims);
        s.provider.sign(&claims)
    };
    let foreign: [&dyn Fn(&mut Value); 4] = [
        &|claims| claims["nonce"] = json!("n"),
        &|claims| claims["aud"] = json!("another"),
        &|claims| claims["events"] = json!({}),
        &|claims| claims["iat"] = json!(1),
    ];
    for change in foreign {
        s.log_out(&token("bad", change)).await.problem(400, "sso.logout_token");
    }
    s.log_out("no.token.here").await.problem(400, "sso.logout_token");
    s.t.get(&grace, "/me").await.expect(200);
    let good = token("one", &|_| {});
    assert_eq!(s.log_out(&good).await.status.as_u16(), 200);
    s.t.get(&grace, "/me").await.problem(401, "auth.required");
    s.t.get(&ada, "/me").await.expect(200);
    let again = session(&s.sign_in("grace", |_| {}).await);
    s.log_out(&good).await.problem(400, "sso.logout_token");
    s.t.get(&again, "/me").await.expect(200);
    let by_subject = token("two", &|claims| {
        claims.as_object_mut().unwrap().remove("sid");
        claims["sub"] = json!("ada");
    });
    assert_eq!(s.log_out(&by_subject).await.status.as_u16(), 200);
    s.t.get(&ada, "/me").await.problem(401, "auth.required");
}

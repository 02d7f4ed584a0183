//! Tests of the end of access by single sign-on: removals at the provider, providers without an answer, and logout tokens.

use berth_foundation::Settings;
use berth_store as store;
use berth_store::accounts::NewSession;
use berth_store::sso::{StoredGrant, StoredProvider};
use berth_types::ids::{OrgId, UserId};
use futures::FutureExt;
use serde_json::{Value, json};

use crate::common::{Caller, TestPortal, engines};
use crate::oidc::{CLIENT, signed};
use crate::sso::{Setup, session};

/// An API token that a person makes.
async fn make_token(s: &Setup, by: &Caller) -> Caller {
    let body = json!({"name": "ci", "role": "member"});
    let made = s.t.post(by, &format!("/orgs/{}/tokens", s.org), body).await.expect(201);
    Caller::Token(made["secret"].as_str().unwrap().to_owned())
}

/// Adds sessions of different people with due grants of an organization. Returns their hashes.
async fn add_grants(s: &Setup, org: OrgId, count: usize) -> Vec<String> {
    let me = s.t.get(&s.owner, "/me").await.expect(200);
    let user: UserId = me["user"]["id"].as_str().unwrap().parse().unwrap();
    let context = &s.t.portal.context;
    let now = context.now();
    let row = |n: usize| {
        let hash = format!("{org} {n}");
        let session = NewSession {
            id: context.new_id(now),
            hash: hash.clone(),
            user,
            network: String::new(),
            browser: String::new(),
        };
        let grant = StoredGrant {
            hash,
            org_id: Some(org),
            issuer: s.provider.issuer(),
            subject: format!("person {n} of {org}"),
            sid: String::new(),
            second_factor: false,
            sealed_refresh: Some("unreadable".to_owned()),
            answered_at: now,
        };
        (session, grant)
    };
    let rows: Vec<(NewSession, StoredGrant)> = (0..count).map(row).collect();
    let hashes = rows.iter().map(|(session, _)| session.hash.clone()).collect();
    let insert = context.db.write(move |tx| {
        let rows = rows.clone();
        async move {
            for (session, grant) in &rows {
                store::accounts::insert_session(tx, session, now, now.plus_seconds(86_400)).await?;
                store::sso::insert_grant(tx, grant, now).await?;
            }
            Ok(())
        }
        .boxed()
    });
    insert.await.unwrap();
    hashes
}

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
    let claims = |id: &str| {
        let now_s = s.t.portal.context.now().millis() / 1_000;
        json!({
            "iss": s.provider.issuer(), "aud": CLIENT, "iat": now_s, "jti": id, "sid": "sid-grace",
            "events": {"http://schemas.openid.net/event/backchannel-logout": {}},
        })
    };
    let token = |id: &str, change: &dyn Fn(&mut Value)| {
        let mut claims = claims(id);
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
    let with_type = |id: &str, name: Value| {
        let mut header = s.provider.header();
        header["typ"] = name;
        signed(&header, &claims(id), 0)
    };
    for other in [json!("at+jwt"), json!("id_token+jwt"), json!(1)] {
        s.log_out(&with_type("typed", other)).await.problem(400, "sso.logout_token");
    }
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
    let typed = with_type("three", json!("logout+jwt"));
    assert_eq!(s.log_out(&typed).await.status.as_u16(), 200);
    s.t.get(&again, "/me").await.problem(401, "auth.required");
}

#[tokio::test]
async fn one_refused_refresh_ends_its_own_session_only() {
    for (engine, db, _location) in engines("sso_one_refused").await {
        let s = Setup::on(TestPortal::on(db)).await;
        let first = session(&s.sign_in("grace", |claims| claims["groups"] = json!(["admins"])).await);
        let ci = make_token(&s, &first).await;
        let second = session(&s.sign_in("grace", |claims| claims["groups"] = json!(["admins"])).await);
        s.provider.end_oldest_refresh_token();
        s.t.clock.advance_s(31);
        s.t.portal.sso.tick_grants().await.unwrap();
        s.t.get(&first, "/me").await.problem(401, "auth.required");
        s.t.get(&second, "/me").await.expect(200);
        s.t.get(&ci, "/me").await.expect(200);
        assert!(s.actions().await.iter().any(|action| action == "sso.ended"), "{engine}");
        s.provider.remove_people();
        s.t.clock.advance_s(31);
        s.t.portal.sso.tick_grants().await.unwrap();
        s.t.get(&second, "/me").await.problem(401, "auth.required");
        s.t.get(&ci, "/me").await.problem(401, "auth.required");
    }
}

#[tokio::test]
async fn many_due_grants_of_one_organization_delay_no_other() {
    for (engine, db, _location) in engines("sso_fair").await {
        let s = Setup::on(TestPortal::on(db)).await;
        let (_, other) = s.t.tenant("other").await;
        let grace = session(&s.sign_in("grace", |_| {}).await);
        add_grants(&s, other.parse().unwrap(), 300).await;
        s.provider.remove_people();
        s.t.clock.advance_s(31);
        assert!(s.t.portal.sso.tick_grants().await.unwrap(), "{engine}: more are due");
        s.t.get(&grace, "/me").await.problem(401, "auth.required");
    }
}

#[tokio::test]
async fn an_unreadable_client_secret_stops_no_other_provider() {
    for (engine, db, _location) in engines("sso_unreadable").await {
        let s = Setup::on(TestPortal::on(db)).await;
        let (_, other) = s.t.tenant("other").await;
        let (lab, other): (OrgId, OrgId) = (s.org.parse().unwrap(), other.parse().unwrap());
        let grace = session(&s.sign_in("grace", |_| {}).await);
        let db = &s.t.portal.context.db;
        let copy = db.write(move |tx| {
            async move {
                let row = store::sso::find_provider(tx, lab).await?.unwrap();
                let row = StoredProvider { org_id: other, sealed_secret: "unreadable".to_owned(), ..row };
                store::sso::put_provider(tx, &row).await
            }
            .boxed()
        });
        copy.await.unwrap();
        let hashes = add_grants(&s, other, 1).await;
        s.provider.remove_people();
        s.t.clock.advance_s(31);
        assert!(!s.t.portal.sso.tick_grants().await.unwrap(), "{engine}");
        s.t.get(&grace, "/me").await.problem(401, "auth.required");
        let mut conn = db.read().await.unwrap();
        let stays = store::accounts::session_exists(&mut conn.tx(), &hashes[0]).await.unwrap();
        assert!(stays, "{engine}: the session without a readable secret stays");
    }
}

#[tokio::test]
async fn the_silence_of_a_provider_ends_no_idle_session_again() {
    for (engine, db, _location) in engines("sso_idle").await {
        let t = TestPortal::with(db, |settings| Settings { session_idle_s: 600, ..settings });
        let mut s = Setup::on(t).await;
        let grace = session(&s.sign_in("grace", |claims| claims["groups"] = json!(["admins"])).await);
        let ci = make_token(&s, &grace).await;
        s.provider.set_down(true);
        s.t.clock.advance_s(901);
        s.t.portal.sso.tick_grants().await.unwrap();
        s.t.get(&grace, "/me").await.problem(401, "auth.required");
        s.t.get(&ci, "/me").await.expect(200);
        s.owner = s.t.sign_in("lab@example.org").await;
        assert!(!s.actions().await.iter().any(|action| action == "sso.ended"), "{engine}");
    }
}

#[tokio::test]
async fn another_client_ends_the_tokens_of_the_former_one() {
    for (engine, db, _location) in engines("sso_client").await {
        let s = Setup::on(TestPortal::on(db)).await;
        let grace = session(&s.sign_in("grace", |claims| claims["groups"] = json!(["admins"])).await);
        let ci = make_token(&s, &grace).await;
        let own = make_token(&s, &s.owner).await;
        s.put(|body| body["required"] = json!(true)).await;
        s.t.get(&ci, "/me").await.expect(200);
        s.put(|body| body["client_id"] = json!("another")).await;
        s.t.get(&grace, "/me").await.problem(401, "auth.required");
        s.t.get(&ci, "/me").await.problem(401, "auth.required");
        assert_eq!(s.t.get(&own, "/me").await.status.as_u16(), 200, "{engine}");
    }
}

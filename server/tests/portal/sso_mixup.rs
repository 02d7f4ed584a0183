//! Tests of attacks on single sign-on: mixed-up providers, links of other sites, addresses with another person, and
//! sign-ins by a removed provider or of a former operator.

use axum::http::header;
use berth_foundation::Settings;
use berth_foundation::envelope::is_sealed;
use berth_foundation::settings::OperatorProvider;
use berth_store as store;
use berth_types::operators::OperatorRole;
use serde_json::{Value, json};

use crate::common::{Caller, Reply, TestPortal, engines};
use crate::factors::enrol;
use crate::oidc::{CLIENT, FakeProvider, SECRET, parameter};
use crate::people::{mails, secrets};
use crate::sso::{Setup, cookie, location, refused, session, settings_of};

#[tokio::test]
async fn the_code_of_a_provider_reaches_no_other_provider() {
    let s = Setup::new().await;
    let evil = FakeProvider::open().await;
    let (mallory, org) = s.t.tenant("evil").await;
    let path = format!("/orgs/{org}/sso-provider");
    s.t.call(&mallory, "PUT", &path, settings_of(&evil)).await.expect(200);
    let (lab, other) = (s.start("org=lab").await.1, s.start("org=evil").await.1);
    let callback = |org: &str| format!("http://127.0.0.1:8080/api/v1/sso/{org}/callback");
    assert_eq!(parameter(&lab, "redirect_uri"), callback(&s.org));
    assert_eq!(parameter(&other, "redirect_uri"), callback(&org));

    // The page of the evil provider leads the browser on to the honest one, which returns to its own address only.
    let (flow, at) = s.start("org=evil").await;
    let honest = at.replace(&evil.issuer(), &s.provider.issuer());
    let query = s.provider.authorize(&honest, |nonce| s.provider.sign(&s.claims("grace", &nonce)));
    refused(&s.finish(&flow, &query).await, "token");
    assert_eq!(evil.received_codes(), Vec::<String>::new());

    let (flow, at) = s.start("org=lab").await;
    let query = s.provider.authorize(&at, |nonce| s.provider.sign(&s.claims("grace", &nonce)));
    refused(&s.finish_at("operators", &flow, &query).await, "token");
    assert_eq!(s.provider.received_codes(), Vec::<String>::new());
    session(&s.sign_in("grace", |_| {}).await);
    assert_eq!(s.provider.received_codes().len(), 1);
}

#[tokio::test]
async fn metadata_of_another_issuer_begin_no_sign_in() {
    let s = Setup::new().await;
    assert!(s.start("org=lab").await.1.starts_with(&s.provider.issuer()));
    s.provider.announce_issuer("https://evil.example");
    // The metadata in memory are an hour old.
    s.t.clock.advance_s(3_601);
    let reply = s.t.get(&Caller::Nobody, "/sso/start?org=lab").await;
    refused(&reply, "provider");
    assert_eq!(cookie(&reply.headers, "berth_sso"), None);
}

#[tokio::test]
async fn tokens_of_a_provider_stay_in_the_portal() {
    for (engine, db, _location) in engines("sso_tokens").await {
        let s = Setup::on(TestPortal::on(db)).await;
        let begun = s.t.get(&Caller::Nobody, "/sso/start?org=lab").await;
        let line = begun.headers[header::SET_COOKIE].to_str().unwrap();
        assert!(line.contains("; HttpOnly; SameSite=Lax"), "{engine}: {line}");
        let reply = s.sign_in("grace", |_| {}).await;
        let grace = session(&reply);
        let issuer = s.provider.issuer();
        let mut conn = s.t.portal.context.db.read().await.unwrap();
        let grants = store::sso::list_identity_grants(&mut conn.tx(), &issuer, "grace").await.unwrap();
        drop(conn);
        let sealed = grants[0].sealed_refresh.as_deref().unwrap();
        assert!(is_sealed(sealed) && !sealed.contains("refresh-"), "{engine}: {sealed}");
        let mut answers = format!("{:?} {}", reply.headers, reply.body);
        for path in ["/me", "/me/identities", "/me/sessions"] {
            answers.push_str(&s.t.get(&grace, path).await.expect(200).to_string());
        }
        assert!(!answers.contains("refresh-") && !answers.contains(sealed), "{engine}: {answers}");
    }
}

#[tokio::test]
async fn a_link_of_another_site_leads_to_the_sign_in_page() {
    let s = Setup::new().await;
    let from = async |site: &str, query: &str| {
        let path = format!("/sso/start?{query}");
        s.t.call_with(&Caller::Nobody, "GET", &path, Value::Null, &[("sec-fetch-site", site)]).await
    };
    for (site, query, page) in [
        ("cross-site", "org=lab", "/sign-in?org=lab"),
        ("same-site", "org=lab", "/sign-in?org=lab"),
        ("cross-site", "org=lab%0D%0A%26x", "/sign-in"),
        ("cross-site", "email=grace%40corp.example", "/sign-in"),
    ] {
        let reply = from(site, query).await;
        assert_eq!((reply.status.as_u16(), location(&reply)), (303, page.to_owned()), "{site} {query}");
        assert_eq!(cookie(&reply.headers, "berth_sso"), None, "{site} {query}");
    }
    for site in ["same-origin", "none"] {
        let reply = from(site, "org=lab").await;
        assert!(location(&reply).starts_with(&s.provider.issuer()), "{site}");
        assert!(cookie(&reply.headers, "berth_sso").is_some(), "{site}");
    }
}

#[tokio::test]
async fn another_person_with_the_same_address_gets_no_account() {
    for (engine, db, _location) in engines("sso_recycled").await {
        let s = Setup::on(TestPortal::on(db)).await;
        let heir = |claims: &mut Value| claims["email"] = json!("grace@corp.example");
        let grace = session(&s.sign_in("grace", |_| {}).await);
        refused(&s.sign_in("grace2", heir).await, "account-exists");
        // The same client keeps the identities.
        s.put(|body| body["default_role"] = json!("member")).await;
        refused(&s.sign_in("grace2", heir).await, "account-exists");
        let known = s.t.get(&grace, "/me/identities").await.expect(200);
        assert_eq!(known["identities"].as_array().unwrap().len(), 1, "{engine}");
        // Another client can have other subjects for the same people.
        s.put(|body| body["client_id"] = json!("another")).await;
        s.put(|_| {}).await;
        session(&s.sign_in("grace2", heir).await);
        refused(&s.sign_in("grace", |_| {}).await, "account-exists");
    }
}

#[tokio::test]
async fn a_former_operator_has_no_access_and_gets_no_link() {
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
        let (owner, org) = t.tenant("lab").await;
        let s = Setup { t, provider, operator: Caller::Nobody, owner, org };
        let sign_in = async |groups: Value| -> Reply {
            let (flow, at) = s.start("").await;
            let query = s.provider.authorize(&at, |nonce| {
                let mut claims = s.claims("root", &nonce);
                claims["groups"] = groups;
                s.provider.sign(&claims)
            });
            s.finish_at("operators", &flow, &query).await
        };
        let root = session(&sign_in(json!(["berth-operators"])).await);
        let new = json!({"name": "ci", "scopes": ["fleet:read"]});
        let made = s.t.post(&root, "/operator/tokens", new).await.expect(201);
        let ci = Caller::Token(made["secret"].as_str().unwrap().to_owned());
        s.t.get(&ci, "/me").await.expect(200);

        for email in ["root@corp.example", "lab@example.org"] {
            s.t.post(&Caller::Nobody, "/password-resets", json!({"email": email})).await.expect(202);
        }
        assert!(secrets(&mails(&s.t, "root@corp.example").await, "reset").is_empty(), "{engine}");
        assert_eq!(secrets(&mails(&s.t, "lab@example.org").await, "reset").len(), 1, "{engine}");

        refused(&sign_in(json!(["ml"])).await, "no-role");
        s.t.get(&root, "/me").await.problem(401, "auth.required");
        s.t.get(&ci, "/me").await.problem(401, "auth.required");
    }
}

#[tokio::test]
async fn a_sign_in_does_not_outlast_its_provider() {
    for (engine, db, _location) in engines("sso_pending").await {
        let s = Setup::on(TestPortal::on(db)).await;
        let grace = session(&s.sign_in("grace", |_| {}).await);
        let (_, codes) = enrol(&s.t, &grace).await;
        let challenge = async || {
            let reply = s.sign_in("grace", |claims| claims["amr"] = json!(["pwd"])).await;
            location(&reply).strip_prefix("/sign-in#").unwrap().to_owned()
        };
        let enter = async |challenge: String, code: String| {
            let body = json!({"challenge": challenge, "code": code});
            s.t.post(&Caller::Nobody, "/sessions/second-factor", body).await
        };
        let pending = challenge().await;
        s.put(|body| body["client_id"] = json!("another")).await;
        enter(pending, codes[0].clone()).await.problem(401, "auth.challenge");
        s.put(|_| {}).await;
        enter(challenge().await, codes[1].clone()).await.expect(201);
        let pending = challenge().await;
        let path = format!("/orgs/{}/sso-provider", s.org);
        s.t.call(&s.owner, "DELETE", &path, Value::Null).await.expect(204);
        let reply = enter(pending, codes[2].clone()).await;
        assert_eq!(cookie(&reply.headers, "berth_session"), None, "{engine}");
        reply.problem(401, "auth.challenge");
    }
}

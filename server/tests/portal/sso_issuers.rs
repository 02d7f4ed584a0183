//! Tests of wrong issuers: a start of a sign-in, and a save of the settings, that the service does not answer.

use berth_foundation::Settings;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::common::{Caller, TestPortal, engines};
use crate::oidc::FakeProvider;
use crate::sso::{Setup, refused, session, settings_of};

/// The refusals in the audit log of an organization, the newest first.
async fn refusals(s: &Setup, caller: &Caller, org: &str) -> Vec<String> {
    let path = format!("/orgs/{org}/audit-events?action=sso.refused");
    let events = s.t.get(caller, &path).await.expect(200)["items"].clone();
    let events = events.as_array().unwrap().iter();
    events.map(|event| event["detail"].as_str().unwrap().to_owned()).collect()
}

/// Saves the settings with this issuer. Returns the text of the refusal.
async fn refused_issuer(s: &Setup, issuer: &str) -> String {
    let mut body = settings_of(&s.provider);
    body["issuer"] = json!(issuer);
    let reply = s.t.call(&s.owner, "PUT", &format!("/orgs/{}/sso-provider", s.org), body).await;
    let problem = reply.problem(422, "request.invalid");
    assert_eq!(problem["errors"].as_array().unwrap().len(), 1, "{problem}");
    assert_eq!(problem["errors"][0]["pointer"], "/issuer", "{problem}");
    problem["errors"][0]["detail"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_failed_start_is_in_the_audit_log_of_its_organization_with_the_cause() {
    for (engine, db, _location) in engines("sso_start").await {
        let s = Setup::on(TestPortal::on(db)).await;
        let (other, org) = s.t.tenant("other").await;
        s.provider.announce_issuer("https://evil.example");
        for _ in 0..3 {
            refused(&s.t.get(&Caller::Nobody, "/sso/start?org=lab").await, "provider");
        }
        let first = refusals(&s, &s.owner, &s.org).await;
        assert_eq!(first.len(), 1, "{engine}: one a minute: {first:?}");
        assert!(first[0].starts_with("provider: "), "{engine}: {first:?}");
        assert!(first[0].contains("`https://evil.example`"), "{engine}: {first:?}");
        assert!(first[0].contains(&format!("`{}`", s.provider.issuer())), "{engine}: {first:?}");
        s.t.clock.advance_s(61);
        s.t.portal.context.record_omitted().await.unwrap();
        let both = refusals(&s, &s.owner, &s.org).await;
        assert_eq!(both.len(), 2, "{engine}: {both:?}");
        assert!(both[0].ends_with(" 2 times."), "{engine}: {both:?}");
        // The slug of an organization without a provider fills no log.
        refused(&s.t.get(&Caller::Nobody, "/sso/start?org=other").await, "no-provider");
        assert_eq!(refusals(&s, &other, &org).await, Vec::<String>::new(), "{engine}");
    }
}

#[tokio::test]
async fn a_wrong_issuer_is_refused_at_the_save_and_changes_nothing() {
    for (engine, db, _location) in engines("sso_issuers").await {
        let s = Setup::on(TestPortal::on(db)).await;
        let path = format!("/orgs/{}/sso-provider", s.org);
        let grace = session(&s.sign_in("grace", |_| {}).await);
        let before = s.t.get(&s.owner, &path).await.expect(200)["provider"].clone();
        let issuer = s.provider.issuer();
        let closed = {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            format!("http://{}", listener.local_addr().unwrap())
        };
        for (wrong, cause) in [
            (format!("{issuer}/"), format!("`{issuer}`")),
            (format!("{issuer}/realms/lab"), "404".to_owned()),
            (closed, "Connection refused".to_owned()),
            ("https://login.microsoftonline.com/common/v2.0".to_owned(), "/TENANT/".to_owned()),
            ("https://login.microsoftonline.com/organizations/v2.0".to_owned(), "/TENANT/".to_owned()),
            ("https://login.microsoftonline.com/consumers/v2.0".to_owned(), "/TENANT/".to_owned()),
        ] {
            let detail = refused_issuer(&s, &wrong).await;
            assert!(detail.contains(&cause), "{engine} {wrong}: {detail}");
        }
        let after = s.t.get(&s.owner, &path).await.expect(200)["provider"].clone();
        assert_eq!(after, before, "{engine}");
        s.t.get(&grace, "/me").await.expect(200);

        // The other settings of the stored issuer do not wait for its service.
        s.provider.set_down(true);
        s.put(|body| body["default_role"] = json!("member")).await;
        s.provider.set_down(false);
        session(&s.sign_in("grace", |_| {}).await);

        let next = FakeProvider::open().await;
        s.put(|body| body["issuer"] = json!(next.issuer())).await;
        s.t.get(&grace, "/me").await.problem(401, "auth.required");
    }
}

#[tokio::test]
async fn a_silent_issuer_is_refused_within_seconds() {
    let s = Setup::new().await;
    // The system accepts the connection, and nobody answers.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let detail = refused_issuer(&s, &format!("http://{}", listener.local_addr().unwrap())).await;
    assert!(detail.contains("No answer within 5 s"), "{detail}");
}

#[tokio::test]
async fn a_save_asks_no_private_address() {
    for (engine, db, _location) in engines("sso_private").await {
        let t = TestPortal::with(db, |settings| Settings { private_webhooks: false, ..settings });
        let provider = FakeProvider::open().await;
        let (owner, org) = t.tenant("lab").await;
        let s = Setup { t, provider, operator: Caller::Nobody, owner, org };
        for (issuer, cause) in [
            ("https://localhost:1", "no public address"),
            ("https://127.0.0.1:1", "private network"),
            ("https://[::1]:1", "private network"),
        ] {
            let detail = refused_issuer(&s, issuer).await;
            assert!(detail.contains(cause), "{engine} {issuer}: {detail}");
        }
        let path = format!("/orgs/{}/sso-provider", s.org);
        assert_eq!(s.t.get(&s.owner, &path).await.expect(200)["provider"], Value::Null, "{engine}");
    }
}

#[tokio::test]
async fn an_address_and_a_group_with_two_roles_are_refused() {
    let s = Setup::new().await;
    let (owner, viewer) =
        (json!({"group": "admins", "role": "owner"}), json!({"group": "admins", "role": "viewer"}));
    for (field, value, pointer) in [
        ("domains", json!(["corp.example", "127.0.0.1"]), "/domains/1"),
        ("roles", json!([owner, viewer]), "/roles/1/group"),
    ] {
        let mut body = settings_of(&s.provider);
        body[field] = value;
        let reply = s.t.call(&s.owner, "PUT", &format!("/orgs/{}/sso-provider", s.org), body).await;
        let problem = reply.problem(422, "request.invalid");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
    }
    s.put(|body| body["roles"] = json!([owner, owner])).await;
}

//! Tests of the names of accounts.

use crate::common::{Caller, Reply, TestPortal, engines};
use crate::scim::{ScimSetup, entra_user};
use crate::sso::session;
use serde_json::{Value, json};

async fn rename(t: &TestPortal, caller: &Caller, name: &str) -> Reply {
    t.call(caller, "PATCH", "/me", json!({ "name": name })).await
}

/// The present name of a caller.
async fn name_of(t: &TestPortal, caller: &Caller) -> Value {
    t.get(caller, "/me").await.expect(200)["user"]["name"].clone()
}

#[tokio::test]
async fn a_person_changes_the_own_name() {
    for (engine, db, _location) in engines("names").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        let new = json!({"name": "ci", "role": "owner"});
        let made = t.post(&ada, &format!("/orgs/{org}/tokens"), new).await.expect(201);
        let ci = Caller::Token(made["secret"].as_str().unwrap().to_owned());
        let long = "x".repeat(101);
        for bad in ["", " \u{200b}", "Ada\nKing", long.as_str()] {
            let problem = rename(&t, &ada, bad).await.problem(422, "request.invalid");
            assert_eq!(problem["errors"][0]["pointer"], "/name", "{engine}: {bad:?}");
        }
        let address = json!({"name": "Ada King", "email": "king@example.org"});
        t.call(&ada, "PATCH", "/me", address).await.problem(422, "request.invalid");
        rename(&t, &ci, "Ada King").await.problem(403, "auth.forbidden");
        rename(&t, &Caller::Nobody, "Ada King").await.problem(401, "auth.required");
        assert_eq!(name_of(&t, &ada).await, "Ada", "{engine}");

        let renamed = rename(&t, &ada, " Ada King ").await.expect(200);
        assert_eq!((&renamed["name"], &renamed["email"]), (&json!("Ada King"), &json!("lab@example.org")));
        assert_eq!(t.get(&ada, "/me").await.expect(200)["user"], renamed, "{engine}");
        let members = t.get(&ada, &format!("/orgs/{org}/members")).await.expect(200);
        assert_eq!(members["items"][0]["name"], "Ada King", "{engine}");
        // The same name again is no event.
        rename(&t, &ada, "Ada King").await.expect(200);
        let log = t.get(&operator, "/operator/audit-events?action=account.renamed").await.expect(200);
        let [event] = &log["items"].as_array().unwrap()[..] else { panic!("{engine}: {log}") };
        assert_eq!((&event["actor"], &event["detail"]), (&json!("Ada"), &json!("Ada King")), "{engine}");
        assert_eq!(event["before"], r#"{"name":"Ada"}"#, "{engine}");
        assert_eq!(event["after"], r#"{"name":"Ada King"}"#, "{engine}");
    }
}

#[tokio::test]
async fn a_provider_keeps_the_name_of_an_account_without_a_password() {
    for (engine, db, _location) in engines("names_scim").await {
        let m = ScimSetup::on(TestPortal::on(db)).await;
        let s = &m.s;
        // Single sign-on gives the name to a new account only.
        let bob = session(&s.sign_in("bob", |_| {}).await);
        rename(&s.t, &bob, "Bob Lund").await.expect(200);
        let bob = session(&s.sign_in("bob", |_| {}).await);
        assert_eq!(name_of(&s.t, &bob).await, "Bob Lund", "{engine}");

        let id = m.create(entra_user("grace")).await;
        let grace = session(&s.sign_in("grace", |_| {}).await);
        let refused = rename(&s.t, &grace, "Grace Lund").await.problem(403, "auth.forbidden");
        assert!(refused["detail"].as_str().unwrap().contains("identity provider"), "{engine}: {refused}");
        assert_eq!(name_of(&s.t, &grace).await, "Grace Holm", "{engine}");
        let replaced = json!([{"op": "replace", "path": "displayName", "value": "Grace Lund"}]);
        m.change(&id, replaced).await.expect(200);
        assert_eq!(name_of(&s.t, &grace).await, "Grace Lund", "{engine}");

        // An account with a password keeps its own name.
        let own = s.t.sign_in("lab@example.org").await;
        rename(&s.t, &own, "Ada King").await.expect(200);
    }
}

//! Tests of service accounts: their rights, their tokens, and the places without them.

use crate::common::{Caller, PASSWORD, TestPortal, engines, job};
use serde_json::{Value, json};

fn text(value: &Value, pointer: &str) -> String {
    value.pointer(pointer).and_then(Value::as_str).unwrap().to_owned()
}

/// Creates a service account; returns its id.
async fn create(t: &TestPortal, owner: &Caller, org: &str, role: &str) -> String {
    let new = json!({"name": "nightly", "role": role});
    text(&t.post(owner, &format!("/orgs/{org}/service-accounts"), new).await.expect(201), "/id")
}

/// Creates a token of a service account.
async fn token(t: &TestPortal, owner: &Caller, org: &str, account: &str, role: &str) -> Caller {
    let new = json!({"name": "ci", "role": role, "service_account": account});
    let made = t.post(owner, &format!("/orgs/{org}/tokens"), new).await.expect(201);
    assert_eq!(made["token"]["service_account"], "nightly");
    Caller::Token(text(&made, "/secret"))
}

#[tokio::test]
async fn a_service_account_acts_with_its_role_and_its_name() {
    for (engine, db, _location) in engines("service_rights").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        t.add_price_and_credit(&operator, &org, 1_000_000).await;
        let account = create(&t, &ada, &org, "member").await;
        let machine = token(&t, &ada, &org, &account, "member").await;

        let me = t.get(&machine, "/me").await.expect(200);
        assert_eq!((&me["user"]["name"], &me["user"]["email"]), (&json!("nightly"), &json!("")), "{engine}");
        assert_eq!(me["memberships"].as_array().unwrap().len(), 1, "{engine}");
        assert_eq!(me["memberships"][0]["role"], "member", "{engine}");
        let made = t.post(&machine, &format!("/orgs/{org}/jobs"), job()).await.expect(201);
        assert_eq!(made["created_by"], "nightly", "{engine}");
        t.get(&machine, &format!("/orgs/{org}/tokens")).await.problem(403, "auth.forbidden");
        t.get(&machine, "/operator/nodes").await.problem(404, "object.not_found");
        let (_, others) = t.tenant("others").await;
        t.get(&machine, &format!("/orgs/{others}/jobs")).await.problem(404, "object.not_found");

        let listed = t.get(&ada, &format!("/orgs/{org}/service-accounts")).await.expect(200);
        assert_eq!(listed["items"][0]["id"], account, "{engine}");
        assert_eq!(
            (&listed["items"][0]["tokens"], &listed["items"][0]["created_by"]),
            (&json!(1), &json!("Ada"))
        );
        let tokens = t.get(&ada, &format!("/orgs/{org}/tokens")).await.expect(200);
        assert_eq!(tokens["items"][0]["service_account"], "nightly", "{engine}");
        let events = t.get(&ada, &format!("/orgs/{org}/audit-events?action=service_account.created")).await;
        assert_eq!(events.expect(200)["items"][0]["subject"], account, "{engine}");
    }
}

#[tokio::test]
async fn a_service_account_is_no_person() {
    for (engine, db, _location) in engines("service_people").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        let account = create(&t, &ada, &org, "billing").await;
        let machine = token(&t, &ada, &org, &account, "billing").await;
        let members = t.get(&ada, &format!("/orgs/{org}/members")).await.expect(200);
        assert_eq!(members["items"].as_array().unwrap().len(), 1, "{engine}: {members}");
        for path in ["/operator/users", "/operator/users?text=nightly"] {
            let people = t.get(&operator, path).await.expect(200);
            assert!(!people.to_string().contains(&account), "{engine}: {people}");
        }
        let orgs = t.get(&operator, "/operator/orgs").await.expect(200);
        assert_eq!(orgs["items"][0]["members"], 1, "{engine}: {orgs}");
        let disabled = format!("/operator/users/{account}/disabled");
        let reason = json!({"reason": "Unpaid invoices."});
        t.call(&operator, "PUT", &disabled, reason).await.problem(404, "object.not_found");
        t.call(&operator, "DELETE", &disabled, Value::Null).await.problem(404, "object.not_found");

        let address = format!("service:{account}");
        for password in [PASSWORD, "x"] {
            let sign_in = json!({"email": address, "password": password});
            t.post(&Caller::Nobody, "/sessions", sign_in).await.problem(401, "auth.wrong_password");
        }
        let member = format!("/orgs/{org}/members/{account}");
        t.call(&ada, "PATCH", &member, json!({"role": "owner"})).await.problem(404, "object.not_found");
        t.call(&ada, "DELETE", &member, Value::Null).await.problem(404, "object.not_found");
        t.get(&machine, "/me/sessions").await.problem(403, "auth.forbidden");
        t.post(&machine, "/me/email-verification", Value::Null).await.problem(403, "auth.forbidden");
    }
}

#[tokio::test]
async fn the_token_of_a_service_account_stays_within_its_role() {
    let t = TestPortal::sqlite().await;
    let (ada, org) = t.tenant("lab").await;
    let (eve, others) = t.tenant("eve").await;
    let account = create(&t, &ada, &org, "viewer").await;
    let foreign = create(&t, &eve, &others, "member").await;
    let path = format!("/orgs/{org}/tokens");
    let unknown = "user_00000000000000000000000001".to_owned();
    for (role, of, pointer) in [
        ("member", &account, "/role"),
        ("owner", &account, "/role"),
        ("member", &foreign, "/service_account"),
        ("viewer", &unknown, "/service_account"),
    ] {
        let new = json!({"name": "ci", "role": role, "service_account": of});
        let problem = t.post(&ada, &path, new).await.problem(422, "request.invalid");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
    }
    // A token has no parent for the token of a service account.
    let made = t.post(&ada, &path, json!({"name": "mine", "role": "owner"})).await.expect(201);
    let mine = Caller::Token(text(&made, "/secret"));
    let new = json!({"name": "ci", "role": "viewer", "service_account": account});
    t.post(&mine, &path, new).await.problem(403, "auth.forbidden");
}

#[tokio::test]
async fn a_service_account_outlives_its_creator() {
    for (engine, db, _location) in engines("service_creator").await {
        let t = TestPortal::on(db);
        let (ada, org) = t.tenant("lab").await;
        let invitation = json!({"email": "bob@example.org", "role": "owner"});
        let sent = t.post(&ada, &format!("/orgs/{org}/invitations"), invitation).await.expect(201);
        let secret = text(&sent, "/link").split_once('#').unwrap().1.to_owned();
        let accept = json!({"token": secret, "name": "Bob", "password": PASSWORD});
        t.post(&Caller::Nobody, "/invitations/accept", accept).await.expect(200);
        let bob = t.sign_in("bob@example.org").await;
        let id = text(&t.get(&bob, "/me").await.expect(200), "/user/id");
        let account = create(&t, &bob, &org, "viewer").await;
        let machine = token(&t, &bob, &org, &account, "viewer").await;
        t.call(&ada, "DELETE", &format!("/orgs/{org}/members/{id}"), Value::Null).await.expect(204);
        t.get(&machine, &format!("/orgs/{org}/jobs")).await.expect(200);
        let listed = t.get(&ada, &format!("/orgs/{org}/service-accounts")).await.expect(200);
        assert_eq!(listed["items"][0]["created_by"], "Bob", "{engine}");
    }
}

#[tokio::test]
async fn owners_disable_enable_and_delete_service_accounts() {
    for (engine, db, _location) in engines("service_owners").await {
        let t = TestPortal::on(db);
        let (ada, org) = t.tenant("lab").await;
        let (eve, _) = t.tenant("eve").await;
        let account = create(&t, &ada, &org, "viewer").await;
        let machine = token(&t, &ada, &org, &account, "viewer").await;
        let (accounts, jobs) = (format!("/orgs/{org}/service-accounts"), format!("/orgs/{org}/jobs"));
        let path = format!("{accounts}/{account}");
        t.get(&machine, &accounts).await.expect(200);
        for (method, body) in [("PATCH", json!({"disabled": true})), ("DELETE", Value::Null)] {
            t.call(&machine, method, &path, body.clone()).await.problem(403, "auth.forbidden");
            t.call(&eve, method, &path, body).await.problem(404, "object.not_found");
        }
        for disabled in [true, true, false] {
            let changed = t.call(&ada, "PATCH", &path, json!({"disabled": disabled})).await.expect(200);
            assert_eq!(changed["disabled_at"].is_null(), !disabled, "{engine}: {changed}");
            let status = t.get(&machine, &jobs).await.status;
            assert_eq!(status.as_u16(), if disabled { 401 } else { 200 }, "{engine}");
        }
        let acts = t.get(&ada, &format!("/orgs/{org}/audit-events?action=service_account.disabled")).await;
        assert_eq!(acts.expect(200)["items"].as_array().unwrap().len(), 1, "{engine}: one change");
        t.call(&ada, "DELETE", &path, Value::Null).await.expect(204);
        t.get(&machine, &jobs).await.problem(401, "auth.required");
        t.call(&ada, "DELETE", &path, Value::Null).await.problem(404, "object.not_found");
        assert_eq!(t.get(&ada, &accounts).await.expect(200)["items"], json!([]), "{engine}");
        assert_eq!(
            t.get(&ada, &format!("/orgs/{org}/tokens")).await.expect(200)["items"],
            json!([]),
            "{engine}"
        );
    }
}

#[tokio::test]
async fn an_organization_has_a_hundred_service_accounts() {
    let t = TestPortal::sqlite().await;
    let (ada, org) = t.tenant("lab").await;
    let path = format!("/orgs/{org}/service-accounts");
    for (body, pointer) in [
        (json!({"name": " ", "role": "viewer"}), "/name"),
        (json!({"name": "n".repeat(101), "role": "viewer"}), "/name"),
        (json!({"name": "boss", "role": "owner"}), "/role"),
    ] {
        let problem = t.post(&ada, &path, body).await.problem(422, "request.invalid");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
    }
    for _ in 0..100 {
        create(&t, &ada, &org, "viewer").await;
    }
    let one_more = json!({"name": "one more", "role": "viewer"});
    t.post(&ada, &path, one_more.clone()).await.problem(422, "request.invalid");
    let listed = t.get(&ada, &path).await.expect(200);
    let id = text(&listed, "/items/0/id");
    t.call(&ada, "DELETE", &format!("{path}/{id}"), Value::Null).await.expect(204);
    let key = [("idempotency-key", "one")];
    let first = t.call_with(&ada, "POST", &path, one_more.clone(), &key).await.expect(201);
    // A repeated request after a lost answer finds the account.
    t.lose_answer(&org, "one", &text(&first, "/id")).await;
    assert_eq!(t.call_with(&ada, "POST", &path, one_more, &key).await.expect(201), first);
}

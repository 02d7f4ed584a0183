//! Tests of people's own accounts: passwords, links in mail, sessions, disabled and deleted accounts.

use crate::common::{Caller, PASSWORD, TestPortal, engines};
use crate::edge::{ends, open_stream};
use crate::factors::{enrol, prove};
use crate::operations::items;
use axum::http::header;
use berth_foundation::Settings;
use berth_store as store;
use berth_store::people::LinkPurpose;
use futures::FutureExt;
use serde_json::{Value, json};

const OTHER_PASSWORD: &str = "violet anchor nine barometer";

/// Signs in with a password and a name of the browser.
async fn sign_in(t: &TestPortal, email: &str, password: &str, browser: &str) -> Caller {
    let body = json!({"email": email, "password": password});
    let reply = t.call_with(&Caller::Nobody, "POST", "/sessions", body, &[("user-agent", browser)]).await;
    let cookie = reply.headers[header::SET_COOKIE].to_str().unwrap().split(';').next().unwrap().to_owned();
    reply.expect(201);
    Caller::Cookie(cookie)
}

async fn put(t: &TestPortal, caller: &Caller, path: &str, body: Value) -> crate::common::Reply {
    t.call(caller, "PUT", path, body).await
}

async fn delete(t: &TestPortal, caller: &Caller, path: &str) -> crate::common::Reply {
    t.call(caller, "DELETE", path, Value::Null).await
}

/// Creates an API token of the organization.
async fn token(t: &TestPortal, owner: &Caller, org: &str) -> Caller {
    let made = t.post(owner, &format!("/orgs/{org}/tokens"), json!({"name": "ci", "role": "owner"})).await;
    Caller::Token(made.expect(201)["secret"].as_str().unwrap().to_owned())
}

/// Returns the mails of the outbox to an address, after all mails were sent.
pub async fn mails(t: &TestPortal, to: &str) -> Vec<String> {
    t.portal.accounts.mails_sent().await;
    let Ok(files) = std::fs::read_dir(t.data.path().join("outbox")) else { return Vec::new() };
    let texts =
        files.map(|file| file.unwrap().path()).filter(|path| path.extension().is_some_and(|e| e == "eml"));
    texts
        .map(|path| std::fs::read_to_string(path).unwrap())
        .filter(|text| text.contains(&format!("To: {to}")))
        .collect()
}

/// Returns the secrets of the links to a page.
pub fn secrets(mails: &[String], page: &str) -> Vec<String> {
    let start = format!("/{page}#");
    let secret = |mail: &String| {
        let (_, rest) = mail.split_once(&start)?;
        rest.split_whitespace().next().map(str::to_owned)
    };
    mails.iter().filter_map(secret).collect()
}

/// A portal on which a sign-up needs the verification of its address.
fn verifying(db: store::Db) -> TestPortal {
    TestPortal::with(db, |settings| Settings { verify_email: true, ..settings })
}

#[tokio::test]
async fn a_changed_password_ends_the_other_sessions() {
    for (engine, db, _location) in engines("people_password").await {
        let t = TestPortal::on(db);
        let (ada, org) = t.tenant("lab").await;
        let there = t.sign_in("lab@example.org").await;
        let ci = token(&t, &ada, &org).await;
        let stream = open_stream(&t, &there, &org).await;
        let change = |current: &str, new: &str| json!({"current": current, "new": new});
        let wrong = put(&t, &ada, "/me/password", change(OTHER_PASSWORD, OTHER_PASSWORD)).await;
        assert_eq!(wrong.problem(401, "auth.wrong_password")["errors"][0]["pointer"], "/current", "{engine}");
        let weak = put(&t, &ada, "/me/password", change(PASSWORD, "passwordpassword")).await;
        assert_eq!(weak.problem(422, "request.invalid")["errors"][0]["pointer"], "/new", "{engine}");
        put(&t, &ci, "/me/password", change(PASSWORD, OTHER_PASSWORD)).await.problem(403, "auth.forbidden");
        t.get(&there, "/me").await.expect(200);

        let changed = put(&t, &ada, "/me/password", change(PASSWORD, OTHER_PASSWORD)).await.expect(200);
        assert_eq!(changed, json!({"ended_sessions": 1}), "{engine}");
        t.get(&ada, "/me").await.expect(200);
        t.get(&ci, "/me").await.expect(200);
        t.get(&there, "/me").await.problem(401, "auth.required");
        ends(stream).await;
        let old = json!({"email": "lab@example.org", "password": PASSWORD});
        t.post(&Caller::Nobody, "/sessions", old).await.problem(401, "auth.wrong_password");
        sign_in(&t, "lab@example.org", OTHER_PASSWORD, "").await;
        let mails = mails(&t, "lab@example.org").await;
        assert_eq!(mails.iter().filter(|mail| mail.contains("password on Berth was changed")).count(), 1);
    }
}

#[tokio::test]
async fn guesses_of_the_present_password_count_like_sign_ins() {
    let t = TestPortal::sqlite().await;
    let (ada, _) = t.tenant("lab").await;
    let guess = json!({"current": OTHER_PASSWORD, "new": OTHER_PASSWORD});
    for _ in 0..10 {
        put(&t, &ada, "/me/password", guess.clone()).await.problem(401, "auth.wrong_password");
    }
    put(&t, &ada, "/me/password", guess).await.problem(429, "request.throttled");
    let delete = json!({"password": PASSWORD});
    t.post(&ada, "/me/deletion", delete).await.problem(429, "request.throttled");
}

#[tokio::test]
async fn a_link_sets_a_password_once_and_for_ten_minutes() {
    for (engine, db, _location) in engines("people_reset").await {
        let (t, nobody) = (TestPortal::on(db), Caller::Nobody);
        let (ada, org) = t.tenant("lab").await;
        let ci = token(&t, &ada, &org).await;
        let ask = |email: &str| json!({"email": email});
        for email in ["lab@example.org", " LAB@example.org ", "nobody@example.org"] {
            let answer = t.post(&nobody, "/password-resets", ask(email)).await;
            assert_eq!(answer.expect(202), Value::Null, "{engine}");
        }
        t.post(&nobody, "/password-resets", ask("no address")).await.problem(422, "request.invalid");
        assert!(mails(&t, "nobody@example.org").await.is_empty(), "{engine}");
        let sent = secrets(&mails(&t, "lab@example.org").await, "reset");
        assert_eq!(sent.len(), 2, "{engine}");
        assert!(sent.iter().all(|secret| secret.len() == 43), "{engine}: 256 bits");
        {
            // The store has the hash of the secret only.
            let mut conn = t.portal.context.db.read().await.unwrap();
            let now = t.portal.context.now();
            let found =
                store::people::find_link(&mut conn.tx(), LinkPurpose::PasswordReset, &sent[0], now).await;
            assert_eq!(found.unwrap(), None, "{engine}");
        }

        let stream = open_stream(&t, &ada, &org).await;
        let complete = |secret: &str, password: &str| json!({"token": secret, "password": password});
        let path = "/password-resets/complete";
        t.post(&nobody, path, complete(&sent[0], "short")).await.problem(422, "request.invalid");
        t.post(&nobody, path, complete("unknown", OTHER_PASSWORD)).await.problem(404, "link.not_valid");
        let verification = "/email-verifications/complete";
        t.post(&nobody, verification, json!({"token": sent[0]})).await.problem(404, "link.not_valid");
        let done = t.post(&nobody, path, complete(&sent[0], OTHER_PASSWORD)).await;
        assert!(!done.headers.contains_key(header::SET_COOKIE), "{engine}: a link opens no session");
        let done = done.expect(200);
        assert_eq!(done["ended_sessions"], 1, "{engine}");
        ends(stream).await;
        t.get(&ada, "/me").await.problem(401, "auth.required");
        t.get(&ci, "/me").await.expect(200);
        // The other link is invalid too.
        for secret in &sent {
            t.post(&nobody, path, complete(secret, PASSWORD)).await.problem(404, "link.not_valid");
        }
        sign_in(&t, "lab@example.org", OTHER_PASSWORD, "").await;

        t.post(&nobody, "/password-resets", ask("lab@example.org")).await.expect(202);
        let all = secrets(&mails(&t, "lab@example.org").await, "reset");
        let late = all.iter().find(|secret| !sent.contains(secret)).unwrap();
        t.clock.advance_s(10 * 60 - 1);
        t.post(&nobody, path, complete(late, "short")).await.problem(422, "request.invalid");
        t.clock.advance_s(1);
        t.post(&nobody, path, complete(late, PASSWORD)).await.problem(404, "link.not_valid");
        t.post(&nobody, "/password-resets", ask("lab@example.org")).await.problem(429, "request.throttled");
    }
}

#[tokio::test]
async fn the_first_proof_of_an_address_removes_what_a_stranger_made() {
    for (engine, db, _location) in engines("people_first_proof").await {
        let (t, nobody) = (verifying(db), Caller::Nobody);
        let operator = t.operator().await;
        let (stranger, org) = t.tenant("lab").await;
        let ci = token(&t, &stranger, &org).await;
        let stream = open_stream(&t, &ci, &org).await;
        enrol(&t, &stranger).await;
        t.post(&nobody, "/password-resets", json!({"email": "lab@example.org"})).await.expect(202);
        let link = secrets(&mails(&t, "lab@example.org").await, "reset").remove(0);
        let complete = json!({"token": link, "password": OTHER_PASSWORD});
        let done = t.post(&nobody, "/password-resets/complete", complete).await.expect(200);
        assert_eq!(done["ended_sessions"], 1, "{engine}");
        ends(stream).await;
        for caller in [&stranger, &ci] {
            t.get(caller, "/me").await.problem(401, "auth.required");
        }
        let owner = sign_in(&t, "lab@example.org", OTHER_PASSWORD, "").await;
        let listed = t.get(&owner, "/me/factors").await.expect(200);
        assert_eq!(listed, json!({"passkeys": 0, "recovery_codes": 0}), "{engine}");
        let verified = items(&t, &operator, "/operator/audit-events?action=email.verified").await;
        assert_eq!(verified.len(), 1, "{engine}: {verified:?}");

        // A later reset keeps the second factor.
        enrol(&t, &owner).await;
        t.post(&nobody, "/password-resets", json!({"email": "lab@example.org"})).await.expect(202);
        let links = secrets(&mails(&t, "lab@example.org").await, "reset");
        let later = links.iter().find(|one| **one != link).unwrap();
        let complete = json!({"token": later, "password": PASSWORD});
        t.post(&nobody, "/password-resets/complete", complete).await.expect(200);
        let body = json!({"email": "lab@example.org", "password": PASSWORD});
        t.post(&nobody, "/sessions", body).await.expect(202);
    }
}

#[tokio::test]
async fn a_lost_second_factor_is_removed_by_the_operator_or_by_the_program() {
    for (engine, db, _location) in engines("people_lost_factor").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, _) = t.tenant("lab").await;
        let id = t.get(&ada, "/me").await.expect(200)["user"]["id"].as_str().unwrap().to_owned();
        let path = format!("/operator/users/{id}/factors");
        delete(&t, &operator, &path).await.problem(409, "factor.missing");
        enrol(&t, &ada).await;
        delete(&t, &ada, &path).await.problem(404, "object.not_found");
        let unknown = "/operator/users/user_00000000000000000000000001/factors";
        delete(&t, &operator, unknown).await.problem(404, "object.not_found");
        let listed = items(&t, &operator, "/operator/users?text=lab").await;
        assert_eq!(listed[0]["second_factor"], true, "{engine}");
        let person = delete(&t, &operator, &path).await.expect(200);
        assert_eq!(person["second_factor"], false, "{engine}");
        t.get(&ada, "/me").await.problem(401, "auth.required");
        let sent = mails(&t, "lab@example.org").await;
        let told = |text: &str| sent.iter().filter(|mail| mail.contains(text)).count();
        assert_eq!(told("An authenticator app was added"), 1, "{engine}");
        assert_eq!(told("An operator removed the authenticator app"), 1, "{engine}");

        let ada = t.sign_in("lab@example.org").await;
        enrol(&t, &ada).await;
        t.portal.users.remove_factors_by_command(" LAB@example.org ").await.unwrap();
        t.get(&ada, "/me").await.problem(401, "auth.required");
        t.sign_in("lab@example.org").await;
        for (email, part) in [("lab@example.org", "no second factor"), ("nobody@example.org", "no account")] {
            let error = t.portal.users.remove_factors_by_command(email).await.unwrap_err();
            assert!(error.contains(part), "{engine}: {error}");
        }
        let removed = items(&t, &operator, "/operator/audit-events?action=factor.removed").await;
        let actors: Vec<&Value> = removed.iter().map(|event| &event["actor"]).collect();
        assert_eq!(actors, [&json!("The portal"), &json!("Harbour master")], "{engine}");
        assert!(removed.iter().all(|event| event["subject"] == id.as_str()), "{engine}: {removed:?}");
    }
}

#[tokio::test]
async fn requests_for_links_are_limited_for_unknown_addresses_too() {
    let t = TestPortal::sqlite().await;
    let ask = json!({"email": "nobody@example.org"});
    for _ in 0..3 {
        t.post(&Caller::Nobody, "/password-resets", ask.clone()).await.expect(202);
    }
    let slowed = t.post(&Caller::Nobody, "/password-resets", ask).await;
    assert!(slowed.headers.contains_key(header::RETRY_AFTER));
    slowed.problem(429, "request.throttled");
}

#[tokio::test]
async fn an_organization_needs_an_owner_with_a_verified_address() {
    for (engine, db, _location) in engines("people_verify").await {
        let (t, nobody) = (verifying(db), Caller::Nobody);
        let (ada, org) = t.tenant("lab").await;
        assert!(t.get(&ada, "/me").await.expect(200)["email_verified_at"].is_null(), "{engine}");
        let invite = json!({"email": "grace@example.org", "role": "owner"});
        let invitations = format!("/orgs/{org}/invitations");
        t.post(&ada, &invitations, invite.clone()).await.problem(403, "account.unverified");
        let credit = json!({"limits": {}, "credit_micros": 1_000_000, "reason": "A trial."});
        let requests = format!("/orgs/{org}/quota-requests");
        t.post(&ada, &requests, credit.clone()).await.problem(403, "account.unverified");
        let first = mails(&t, "lab@example.org").await;
        assert_eq!(first.len(), 1, "{engine}");
        assert!(!first[0].contains("Ada"), "{engine}: anyone chooses the name: {}", first[0]);
        t.post(&ada, "/me/email-verification", Value::Null).await.expect(202);
        let links = secrets(&mails(&t, "lab@example.org").await, "verify");
        assert_eq!(links.len(), 2, "{engine}");

        let path = "/email-verifications/complete";
        let done = t.post(&nobody, path, json!({"token": links[1]})).await.expect(200);
        assert_eq!(done, json!({"email": "lab@example.org"}), "{engine}");
        for link in &links {
            t.post(&nobody, path, json!({"token": link})).await.problem(404, "link.not_valid");
        }
        assert!(t.get(&ada, "/me").await.expect(200)["email_verified_at"].is_string(), "{engine}");
        t.post(&ada, "/me/email-verification", Value::Null).await.expect(202);
        assert_eq!(mails(&t, "lab@example.org").await.len(), 2, "{engine}: a verified address gets no link");
        t.post(&ada, &requests, credit).await.expect(201);
        let sent = t.post(&ada, &invitations, invite).await.expect(201);
        assert!(mails(&t, "grace@example.org").await[0].contains("Ada invites you"), "{engine}");

        // The link of the invitation verifies the address of an account.
        let (grace, _) = t.tenant("grace").await;
        assert!(t.get(&grace, "/me").await.expect(200)["email_verified_at"].is_null(), "{engine}");
        let secret = sent["link"].as_str().unwrap().split_once('#').unwrap().1;
        t.post(&grace, "/invitations/accept", json!({"token": secret})).await.expect(200);
        assert!(t.get(&grace, "/me").await.expect(200)["email_verified_at"].is_string(), "{engine}");
    }
}

#[tokio::test]
async fn mail_quotes_no_name_of_an_unverified_sender() {
    for (engine, db, _location) in engines("people_sender").await {
        let t = verifying(db);
        let (ada, org) = t.tenant("lab").await;
        let link = secrets(&mails(&t, "lab@example.org").await, "verify").remove(0);
        t.post(&Caller::Nobody, "/email-verifications/complete", json!({"token": link})).await.expect(200);
        let invite = |email: &str| json!({"email": email, "role": "owner"});
        let path = format!("/orgs/{org}/invitations");
        let (eve, _) = t.tenant("eve").await;
        let sent = t.post(&ada, &path, invite("eve@example.org")).await.expect(201);
        let secret = sent["link"].as_str().unwrap().split_once('#').unwrap().1;
        t.post(&eve, "/invitations/accept", json!({"token": secret})).await.expect(200);
        let id = t.get(&eve, "/me").await.expect(200)["user"]["id"].as_str().unwrap().parse().unwrap();
        let unverify = t
            .portal
            .context
            .db
            .write(move |tx| async move { store::people::unverify_email(tx, id).await }.boxed());
        unverify.await.unwrap();
        t.post(&eve, &path, invite("new@example.org")).await.expect(201);
        let mail = mails(&t, "new@example.org").await.remove(0);
        assert!(mail.contains("An owner invites you") && !mail.contains("Ada"), "{engine}: {mail}");
    }
}

#[tokio::test]
async fn sessions_are_listed_and_end_one_by_one_or_all() {
    for (engine, db, _location) in engines("people_sessions").await {
        let t = TestPortal::on(db);
        let (ada, org) = t.tenant("lab").await;
        let laptop = sign_in(&t, "lab@example.org", PASSWORD, &format!("Laptop {}", "x".repeat(300))).await;
        let (eve, _) = t.tenant("eve").await;
        let listed = t.get(&ada, "/me/sessions").await.expect(200);
        let items = listed["items"].as_array().unwrap();
        assert_eq!(items.len(), 2, "{engine}");
        assert_eq!((&items[0]["current"], &items[1]["current"]), (&json!(false), &json!(true)), "{engine}");
        assert_eq!(items[0]["browser"].as_str().unwrap().len(), 200, "{engine}");
        let page = t.get(&ada, "/me/sessions?limit=1&sort=asc").await.expect(200);
        let next = format!("/me/sessions?limit=1&sort=asc&cursor={}", page["next_cursor"].as_str().unwrap());
        assert_eq!(t.get(&ada, &next).await.expect(200)["items"], json!([items[0]]), "{engine}");

        let one = format!("/me/sessions/{}", items[0]["id"].as_str().unwrap());
        delete(&t, &eve, &one).await.problem(404, "object.not_found");
        let ci = token(&t, &ada, &org).await;
        delete(&t, &ci, &one).await.problem(403, "auth.forbidden");
        t.get(&ci, "/me/sessions").await.problem(403, "auth.forbidden");
        let stream = open_stream(&t, &laptop, &org).await;
        delete(&t, &ada, &one).await.expect(204);
        ends(stream).await;
        t.get(&laptop, "/me").await.problem(401, "auth.required");
        delete(&t, &ada, &one).await.problem(404, "object.not_found");

        let (again, stream) = (t.sign_in("lab@example.org").await, open_stream(&t, &ada, &org).await);
        let gone = delete(&t, &ada, "/me/sessions").await;
        assert!(gone.headers[header::SET_COOKIE].to_str().unwrap().contains("Max-Age=0"), "{engine}");
        gone.expect(204);
        ends(stream).await;
        for caller in [&ada, &again] {
            t.get(caller, "/me").await.problem(401, "auth.required");
        }
        t.get(&ci, "/me").await.expect(200);
        t.get(&eve, "/me").await.expect(200);
    }
}

#[tokio::test]
async fn the_end_of_sessions_needs_a_fresh_proof() {
    for (engine, db, _location) in engines("people_session_proof").await {
        let t = TestPortal::on(db);
        let (ada, _) = t.tenant("lab").await;
        let other = t.sign_in("lab@example.org").await;
        let listed = items(&t, &ada, "/me/sessions").await;
        let found = listed.iter().find(|session| session["current"] == false).unwrap();
        let one = format!("/me/sessions/{}", found["id"].as_str().unwrap());
        t.clock.advance_s(16 * 60);
        delete(&t, &ada, &one).await.problem(403, "auth.proof_required");
        delete(&t, &ada, "/me/sessions").await.problem(403, "auth.proof_required");
        t.get(&other, "/me").await.expect(200);
        let ada = prove(&t, &ada, json!({"password": PASSWORD})).await;
        delete(&t, &ada, &one).await.expect(204);
        t.get(&other, "/me").await.problem(401, "auth.required");
        let gone = delete(&t, &ada, "/me/sessions").await;
        assert_eq!(gone.status.as_u16(), 204, "{engine}");
    }
}

#[tokio::test]
async fn a_disabled_account_has_no_access_until_it_is_enabled() {
    for (engine, db, _location) in engines("people_disabled").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        let ci = token(&t, &ada, &org).await;
        let by_text = async |text: &str| {
            let path = format!("/operator/users?text={text}");
            t.get(&operator, &path).await.expect(200)["items"].as_array().unwrap().clone()
        };
        assert_eq!(by_text("").await.len(), 2, "{engine}");
        assert_eq!(by_text("%25").await.len(), 0, "{engine}: no wildcard");
        let found = by_text("LAB@example").await;
        assert_eq!((found.len(), &found[0]["organizations"]), (1, &json!(1)), "{engine}");
        t.get(&ada, "/operator/users").await.problem(404, "object.not_found");
        let id = found[0]["user"]["id"].as_str().unwrap();
        let path = format!("/operator/users/{id}/disabled");
        let reason = json!({"reason": "Unpaid invoices."});
        put(&t, &ada, &path, reason.clone()).await.problem(404, "object.not_found");
        put(&t, &operator, &path, json!({"reason": " "})).await.problem(422, "request.invalid");
        let own = t.get(&operator, "/me").await.expect(200)["user"]["id"].as_str().unwrap().to_owned();
        let myself = format!("/operator/users/{own}/disabled");
        put(&t, &operator, &myself, reason.clone()).await.problem(409, "account.operator");

        let streams = (open_stream(&t, &ada, &org).await, open_stream(&t, &ci, &org).await);
        let person = put(&t, &operator, &path, reason.clone()).await.expect(200);
        assert_eq!(person["disabled_reason"], "Unpaid invoices.", "{engine}");
        ends(streams.0).await;
        ends(streams.1).await;
        for caller in [&ada, &ci] {
            t.get(caller, "/me").await.problem(401, "auth.required");
        }
        let sign_in = json!({"email": "lab@example.org", "password": PASSWORD});
        let refused = t.post(&Caller::Nobody, "/sessions", sign_in).await.problem(403, "account.disabled");
        assert!(refused["detail"].as_str().unwrap().contains("Unpaid invoices."), "{engine}");
        t.post(&Caller::Nobody, "/password-resets", json!({"email": "lab@example.org"})).await.expect(202);
        assert!(mails(&t, "lab@example.org").await.is_empty(), "{engine}");

        let again = delete(&t, &operator, &path).await.expect(200);
        assert!(again["disabled_at"].is_null(), "{engine}");
        t.get(&ada, "/me").await.problem(401, "auth.required");
        t.get(&ci, "/me").await.expect(200);
        t.sign_in("lab@example.org").await;
        let audit = t.get(&operator, "/operator/audit-events").await.expect(200);
        let actions =
            audit["items"].as_array().unwrap().iter().map(|event| event["action"].as_str().unwrap());
        let actions: Vec<&str> = actions.filter(|action| action.starts_with("account.")).collect();
        assert_eq!(actions, ["account.enabled", "account.disabled"], "{engine}");
    }
}

#[tokio::test]
async fn a_deleted_account_leaves_no_name_and_no_address() {
    for (engine, db, _location) in engines("people_deleted").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        t.add_price_and_credit(&operator, &org, 1_000_000).await;
        let body = |password: &str| json!({"password": password});
        t.post(&operator, "/me/deletion", body(PASSWORD)).await.problem(409, "account.operator");
        t.post(&ada, "/me/deletion", body(OTHER_PASSWORD)).await.problem(401, "auth.wrong_password");
        let kept = t.post(&ada, "/me/deletion", body(PASSWORD)).await.problem(409, "account.in_use");
        assert!(kept["detail"].as_str().unwrap().contains("only owner of lab"), "{engine}");

        // With another owner the account can go.
        let (grace, _) = t.tenant("grace").await;
        let invite = json!({"email": "grace@example.org", "role": "owner"});
        let sent = t.post(&ada, &format!("/orgs/{org}/invitations"), invite).await.expect(201);
        let secret = sent["link"].as_str().unwrap().split_once('#').unwrap().1;
        t.post(&grace, "/invitations/accept", json!({"token": secret})).await.expect(200);
        let ci = token(&t, &ada, &org).await;
        t.post(&ci, "/me/deletion", body(PASSWORD)).await.problem(403, "auth.forbidden");
        let stream = open_stream(&t, &ada, &org).await;
        t.post(&ada, "/me/deletion", body(PASSWORD)).await.expect(204);
        ends(stream).await;
        for caller in [&ada, &ci] {
            t.get(caller, "/me").await.problem(401, "auth.required");
        }
        t.post(&Caller::Nobody, "/sessions", json!({"email": "lab@example.org", "password": PASSWORD}))
            .await
            .problem(401, "auth.wrong_password");
        let members = t.get(&grace, &format!("/orgs/{org}/members")).await.expect(200);
        assert_eq!(members["items"].as_array().unwrap().len(), 1, "{engine}");
        let people = t.get(&operator, "/operator/users").await.expect(200);
        let deleted =
            people["items"].as_array().unwrap().iter().find(|person| person["deleted_at"].is_string());
        let deleted = deleted.unwrap();
        assert_eq!(
            (&deleted["user"]["name"], &deleted["user"]["email"]),
            (&json!("Deleted person"), &json!(""))
        );
        let path = format!("/operator/users/{}/disabled", deleted["user"]["id"].as_str().unwrap());
        put(&t, &operator, &path, json!({"reason": "x"})).await.problem(404, "object.not_found");
        assert!(!people.to_string().contains("lab@example.org"), "{engine}");
        // The ledger stays, and the address is free.
        t.get(&grace, &format!("/orgs/{org}/balance")).await.expect(200);
        let (again, _) = t.tenant("lab").await;
        // An empty organization keeps nobody.
        t.post(&again, "/me/deletion", body(PASSWORD)).await.expect(204);
    }
}

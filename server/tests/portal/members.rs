//! Tests of members and invitations: rights, the effects of role changes, and single-use secrets.

use std::time::Duration;

use crate::common::{Caller, PASSWORD, TestPortal, engines};
use axum::body::Body;
use axum::http::{Request, header};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use berth_store as store;
use berth_types::accounts::{Org, Role};
use berth_types::ids::{InvitationId, OrgId, UserId};
use futures::{FutureExt, StreamExt};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tower::ServiceExt;

const ROLES: [&str; 4] = ["owner", "billing", "member", "viewer"];

fn text(value: &Value, pointer: &str) -> String {
    value.pointer(pointer).and_then(Value::as_str).unwrap().to_owned()
}

/// Returns the stored hash of a secret.
fn fingerprint(secret: &str) -> String {
    URL_SAFE_NO_PAD.encode(Sha256::digest(secret.as_bytes()))
}

/// Returns the secret of the link in an answer.
fn secret(sent: &Value) -> String {
    text(sent, "/link").split_once('#').unwrap().1.to_owned()
}

async fn invite(t: &TestPortal, owner: &Caller, org: &str, email: &str, role: &str) -> Value {
    let new = json!({"email": email, "role": role});
    t.post(owner, &format!("/orgs/{org}/invitations"), new).await.expect(201)
}

async fn my_id(t: &TestPortal, caller: &Caller) -> String {
    text(&t.get(caller, "/me").await.expect(200), "/user/id")
}

/// Creates a member by invitation; returns the signed-in user and the user's id.
async fn new_member(t: &TestPortal, owner: &Caller, org: &str, name: &str, role: &str) -> (Caller, String) {
    let email = format!("{name}@example.org");
    let sent = invite(t, owner, org, &email, role).await;
    let accept = json!({"token": secret(&sent), "name": name, "password": PASSWORD});
    t.post(&Caller::Nobody, "/invitations/accept", accept).await.expect(200);
    let caller = t.sign_in(&email).await;
    let id = my_id(t, &caller).await;
    (caller, id)
}

/// Returns all mails of the outbox.
fn mails(t: &TestPortal) -> Vec<String> {
    let Ok(files) = std::fs::read_dir(t.data.path().join("outbox")) else { return Vec::new() };
    let files = files.map(|file| file.unwrap().path());
    files
        .filter(|path| path.extension().is_some_and(|e| e == "eml"))
        .map(|path| std::fs::read_to_string(path).unwrap())
        .collect()
}

/// Asserts that the secret of an open invitation is neither in the list nor in the audit events, and only as a hash in
/// the database.
async fn assert_stored_as_hash(t: &TestPortal, owner: &Caller, org: &str, sent: &Value) {
    let token = secret(sent);
    let listed = t.get(owner, &format!("/orgs/{org}/invitations")).await.expect(200);
    assert_eq!(listed["items"], json!([sent["invitation"]]));
    let audit = t.get(owner, &format!("/orgs/{org}/audit-events")).await.expect(200);
    assert_eq!(audit["items"][0]["action"], "invitation.created");
    assert!(!audit.to_string().contains(&token) && !listed.to_string().contains(&token));
    let mut conn = t.portal.context.db.read().await.unwrap();
    let mut tx = conn.tx();
    assert!(store::members::find_by_secret(&mut tx, &token).await.unwrap().is_none());
    let hash = fingerprint(&token);
    assert!(store::members::find_by_secret(&mut tx, &hash).await.unwrap().is_some());
}

#[tokio::test]
async fn a_new_user_becomes_a_member_once_by_invitation() {
    for (engine, db, _location) in engines("members_new").await {
        let (t, nobody) = (TestPortal::on(db), Caller::Nobody);
        let (ada, org) = t.tenant("lab").await;
        let sent = invite(&t, &ada, &org, " Grace@Example.org ", "billing").await;
        let token = secret(&sent);
        assert_eq!(token.len(), 43, "256 bits");
        assert_eq!(sent["invitation"]["email"], "grace@example.org", "{engine}");
        assert!(sent["invitation"]["mailed_at"].is_null(), "{engine}: without a mail server: {sent}");
        let mails = mails(&t);
        assert_eq!(mails.len(), 1, "{engine}");
        assert!(
            mails[0].contains("To: grace@example.org") && mails[0].contains(sent["link"].as_str().unwrap()),
            "{}",
            mails[0]
        );

        assert_stored_as_hash(&t, &ada, &org, &sent).await;
        let body = json!({"token": token});
        let about = t.post(&nobody, "/invitations/look", body.clone()).await.expect(200);
        let expected = json!({
            "organization": "lab", "email": "grace@example.org", "role": "billing",
            "expires_at": sent["invitation"]["expires_at"],
        });
        assert_eq!(about, expected, "{engine}: and nothing else");

        t.post(&nobody, "/invitations/accept", body.clone()).await.problem(401, "auth.required");
        let weak = json!({"token": token, "name": "", "password": "short"});
        let problem = t.post(&nobody, "/invitations/accept", weak).await.problem(422, "request.invalid");
        let pointers: Vec<&Value> =
            problem["errors"].as_array().unwrap().iter().map(|e| &e["pointer"]).collect();
        assert_eq!(pointers, ["/name", "/password"], "{engine}");
        let accept = json!({"token": token, "name": "Grace", "password": PASSWORD});
        let joined = t.post(&nobody, "/invitations/accept", accept.clone()).await.expect(200);
        assert_eq!((&joined["organization"]["id"], &joined["role"]), (&json!(org), &json!("billing")));
        let grace = t.sign_in("grace@example.org").await;
        t.get(&grace, &format!("/orgs/{org}/balance")).await.expect(200);
        t.post(&grace, &format!("/orgs/{org}/jobs"), crate::common::job())
            .await
            .problem(403, "auth.forbidden");

        // The link works once. Only the same user gets the same answer again.
        t.post(&nobody, "/invitations/look", body.clone()).await.problem(404, "invitation.not_valid");
        t.post(&nobody, "/invitations/accept", accept).await.problem(404, "invitation.not_valid");
        assert_eq!(t.post(&grace, "/invitations/accept", body.clone()).await.expect(200), joined);
        t.post(&ada, "/invitations/accept", body.clone()).await.problem(404, "invitation.not_valid");
        let open = t.get(&ada, &format!("/orgs/{org}/invitations")).await.expect(200);
        assert_eq!(open["items"], json!([]), "{engine}");

        let members = t.get(&ada, &format!("/orgs/{org}/members?sort=asc")).await.expect(200);
        let roles: Vec<(String, String)> = members["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|member| (text(member, "/email"), text(member, "/role")))
            .collect();
        let wanted = [("lab@example.org", "owner"), ("grace@example.org", "billing")];
        assert_eq!(roles, wanted.map(|(email, role)| (email.to_owned(), role.to_owned())), "{engine}");
        let first = t.get(&grace, &format!("/orgs/{org}/members?sort=asc&limit=1")).await.expect(200);
        let next = format!("/orgs/{org}/members?sort=asc&limit=1&cursor={}", text(&first, "/next_cursor"));
        assert_eq!(t.get(&grace, &next).await.expect(200)["items"], json!([members["items"][1]]), "{engine}");

        // After removal the used link does not work.
        let id = my_id(&t, &grace).await;
        t.call(&ada, "DELETE", &format!("/orgs/{org}/members/{id}"), Value::Null).await.expect(204);
        t.post(&grace, "/invitations/accept", body).await.problem(404, "invitation.not_valid");
    }
}

#[tokio::test]
async fn an_invitation_link_is_for_one_address_and_seven_days() {
    for (engine, db, _location) in engines("members_links").await {
        let t = TestPortal::on(db);
        let (ada, org) = t.tenant("lab").await;
        let (bob, _) = t.tenant("bobs").await;
        let path = format!("/orgs/{org}/invitations");
        let sent = invite(&t, &ada, &org, "bobs@example.org", "member").await;
        let id = text(&sent, "/invitation/id");
        let accept = |sent: &Value| json!({"token": secret(sent)});

        let again = json!({"email": "BOBS@example.org", "role": "viewer"});
        t.post(&ada, &path, again).await.problem(409, "invitation.open");
        let myself = json!({"email": "lab@example.org", "role": "viewer"});
        t.post(&ada, &path, myself).await.problem(409, "members.already");
        for bad in [
            json!({"email": "nobody", "role": "member"}),
            json!({"email": "Bob <bob@example.org>", "role": "member"}),
            json!({"email": "b@example.org", "role": "operator"}),
            json!({"email": "b@example.org", "role": "member", "more": 1}),
        ] {
            t.post(&ada, &path, bad).await.problem(422, "request.invalid");
        }

        // Another user with the link learns its address, and the link stays valid.
        let other =
            t.post(&ada, "/invitations/accept", accept(&sent)).await.problem(403, "invitation.for_another");
        let detail = other["detail"].as_str().unwrap();
        assert!(detail.contains("bobs@example.org") && detail.contains("lab@example.org"), "{detail}");
        // A person with an account must sign in.
        let second = json!({"token": secret(&sent), "name": "Bob", "password": PASSWORD});
        t.post(&Caller::Nobody, "/invitations/accept", second).await.problem(409, "account.exists");
        // A token is valid for its own organization only.
        let bobs = text(&t.get(&bob, "/me").await.expect(200), "/memberships/0/org/id");
        let made =
            t.post(&bob, &format!("/orgs/{bobs}/tokens"), json!({"name": "ci", "role": "owner"})).await;
        let machine = Caller::Token(text(&made.expect(201), "/secret"));
        t.post(&machine, "/invitations/accept", accept(&sent)).await.problem(403, "auth.forbidden");

        // A new mail invalidates the old link.
        let resent = t.post(&ada, &format!("{path}/{id}/resend"), Value::Null).await.expect(200);
        assert_ne!(secret(&sent), secret(&resent));
        assert_eq!(mails(&t).len(), 2, "{engine}");
        t.post(&bob, "/invitations/look", accept(&sent)).await.problem(404, "invitation.not_valid");
        t.clock.advance_s(7 * 86_400 - 60);
        let bob = t.sign_in("bobs@example.org").await;
        t.post(&bob, "/invitations/look", accept(&resent)).await.expect(200);
        t.clock.advance_s(120);
        t.post(&bob, "/invitations/look", accept(&resent)).await.problem(404, "invitation.not_valid");
        t.post(&bob, "/invitations/accept", accept(&resent)).await.problem(404, "invitation.not_valid");
        // An expired invitation stays in the list and can be mailed again.
        let ada = t.sign_in("lab@example.org").await;
        assert_eq!(t.get(&ada, &path).await.expect(200)["items"][0]["id"], json!(id), "{engine}");
        let anew = t.post(&ada, &format!("{path}/{id}/resend"), Value::Null).await.expect(200);
        t.post(&bob, "/invitations/accept", accept(&anew)).await.expect(200);
        let me = t.get(&bob, "/me").await.expect(200);
        assert_eq!(me["memberships"].as_array().unwrap().len(), 2, "{engine}: {me}");
        t.post(&ada, &format!("{path}/{id}/resend"), Value::Null).await.problem(404, "object.not_found");
        t.call(&ada, "DELETE", &format!("{path}/{id}"), Value::Null).await.problem(404, "object.not_found");

        // A withdrawn invitation does not work.
        let sent = invite(&t, &ada, &org, "eve@example.org", "owner").await;
        let withdraw = format!("{path}/{}", text(&sent, "/invitation/id"));
        t.call(&ada, "DELETE", &withdraw, Value::Null).await.expect(204);
        t.post(&Caller::Nobody, "/invitations/look", accept(&sent))
            .await
            .problem(404, "invitation.not_valid");
        let guess = json!({"token": "guess"});
        t.post(&Caller::Nobody, "/invitations/look", guess).await.problem(404, "invitation.not_valid");
    }
}

#[tokio::test]
async fn every_member_lists_members_and_only_owners_change_them() {
    let t = TestPortal::sqlite().await;
    let (ada, org) = t.tenant("lab").await;
    let (eve, _) = t.tenant("eve").await;
    let ada_id = my_id(&t, &ada).await;
    let sent = invite(&t, &ada, &org, "late@example.org", "viewer").await;
    let invitation = text(&sent, "/invitation/id");
    let routes = [
        ("GET", "/invitations".to_owned(), Value::Null),
        ("POST", "/invitations".to_owned(), json!({"email": "x@example.org", "role": "owner"})),
        ("POST", format!("/invitations/{invitation}/resend"), Value::Null),
        ("DELETE", format!("/invitations/{invitation}"), Value::Null),
        ("PATCH", format!("/members/{ada_id}"), json!({"role": "viewer"})),
        ("DELETE", format!("/members/{ada_id}"), Value::Null),
        ("GET", "/members".to_owned(), Value::Null),
    ];
    for role in ["billing", "member", "viewer"] {
        let (caller, _) = new_member(&t, &ada, &org, role, role).await;
        for (method, route, body) in &routes {
            let reply = t.call(&caller, method, &format!("/orgs/{org}{route}"), body.clone()).await;
            if route == "/members" {
                reply.expect(200);
            } else {
                reply.problem(403, "auth.forbidden");
            }
        }
    }
    // For others the organization answers like a missing one.
    let missing = "org_00000000000000000000000000";
    for (method, route, body) in &routes {
        let mut bodies = vec![];
        for org in [org.as_str(), missing] {
            let path = format!("/orgs/{org}{route}");
            let mut problem =
                t.call(&eve, method, &path, body.clone()).await.problem(404, "object.not_found");
            problem["request_id"] = Value::Null;
            bodies.push(problem);
        }
        assert_eq!(bodies[0], bodies[1], "{method} {route}");
        let path = format!("/orgs/{org}{route}");
        t.call(&Caller::Nobody, method, &path, body.clone()).await.problem(401, "auth.required");
    }
    // A member of another organization answers like a missing member.
    let eve_id = my_id(&t, &eve).await;
    let path = format!("/orgs/{org}/members/{eve_id}");
    t.call(&ada, "PATCH", &path, json!({"role": "viewer"})).await.problem(404, "object.not_found");
    t.call(&ada, "DELETE", &path, Value::Null).await.problem(404, "object.not_found");
    let members = t.get(&ada, &format!("/orgs/{org}/members")).await.expect(200);
    let mut seen: Vec<String> =
        members["items"].as_array().unwrap().iter().map(|member| text(member, "/role")).collect();
    seen.sort_unstable();
    assert_eq!(seen, ["billing", "member", "owner", "viewer"]);
}

#[tokio::test]
async fn a_new_role_applies_at_once_and_tokens_of_a_former_owner_end() {
    for (engine, db, _location) in engines("members_roles").await {
        let t = TestPortal::on(db);
        let (ada, org) = t.tenant("lab").await;
        let (bob, bob_id) = new_member(&t, &ada, &org, "bob", "member").await;
        let path = format!("/orgs/{org}/members/{bob_id}");
        let tokens = format!("/orgs/{org}/tokens");
        t.get(&bob, &tokens).await.problem(403, "auth.forbidden");
        for role in ROLES {
            let member = t.call(&ada, "PATCH", &path, json!({"role": role})).await.expect(200);
            assert_eq!(member["role"], role, "{engine}");
            let status = |may: bool| if may { 200 } else { 403 };
            let list = t.get(&bob, &tokens).await;
            assert_eq!(list.status.as_u16(), status(role == "owner"), "{engine}: {role}");
            let balance = t.get(&bob, &format!("/orgs/{org}/balance")).await;
            assert_eq!(balance.status.as_u16(), status(role != "viewer"), "{engine}: {role}");
        }
        t.call(&ada, "PATCH", &path, json!({"role": "owner"})).await.expect(200);
        let audits = format!("/orgs/{org}/audit-events");
        let before = t.get(&ada, &audits).await.expect(200);
        t.call(&ada, "PATCH", &path, json!({"role": "owner"})).await.expect(200);
        assert_eq!(t.get(&ada, &audits).await.expect(200), before, "{engine}: nothing was changed");

        // Each owner has a token, and the owner who loses the role has an invitation.
        let made = t.post(&bob, &tokens, json!({"name": "ci", "role": "viewer"})).await.expect(201);
        let machine = Caller::Token(text(&made, "/secret"));
        let kept = t.post(&ada, &tokens, json!({"name": "ours", "role": "viewer"})).await.expect(201);
        let ours = Caller::Token(text(&kept, "/secret"));
        let sent = invite(&t, &bob, &org, "friend@example.org", "owner").await;
        t.get(&machine, &format!("/orgs/{org}/members")).await.expect(200);
        t.call(&ada, "PATCH", &path, json!({"role": "member"})).await.expect(200);
        t.get(&machine, &format!("/orgs/{org}/members")).await.problem(401, "auth.required");
        t.get(&ours, &format!("/orgs/{org}/members")).await.expect(200);
        let token_body = json!({"token": secret(&sent)});
        t.post(&Caller::Nobody, "/invitations/look", token_body).await.problem(404, "invitation.not_valid");
        let audit = t.get(&ada, &audits).await.expect(200);
        assert_eq!(audit["items"][0]["action"], "member.role_changed", "{engine}");
        let detail = audit["items"][0]["detail"].as_str().unwrap();
        assert_eq!(
            detail, "bob@example.org: member, before owner; also revoked: tokens 1, invitations 1",
            "{engine}"
        );
    }
}

#[tokio::test]
async fn a_removed_member_loses_access_and_open_streams() {
    let t = TestPortal::sqlite().await;
    let (ada, org) = t.tenant("lab").await;
    let (bob, bob_id) = new_member(&t, &ada, &org, "bob", "member").await;
    let Caller::Cookie(cookie) = &bob else { panic!("a person") };
    let request = Request::builder()
        .uri(format!("/api/v1/orgs/{org}/events"))
        .header(header::COOKIE, cookie)
        .header(header::ACCEPT, "text/event-stream");
    let response = t.router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.status(), 200);
    let mut stream = response.into_body().into_data_stream();
    stream.next().await.unwrap().unwrap();
    let path = format!("/orgs/{org}/members/{bob_id}");
    t.call(&ada, "DELETE", &path, Value::Null).await.expect(204);
    let to_the_end = async { while stream.next().await.is_some() {} };
    tokio::time::timeout(Duration::from_secs(30), to_the_end).await.unwrap();
    for route in ["/members", "/jobs", "/balance"] {
        t.get(&bob, &format!("/orgs/{org}{route}")).await.problem(404, "object.not_found");
    }
    assert_eq!(t.get(&bob, "/me").await.expect(200)["memberships"], json!([]));
    t.call(&ada, "DELETE", &path, Value::Null).await.problem(404, "object.not_found");

    // Every member can leave, but a token without the right cannot remove its creator.
    let (cyd, cyd_id) = new_member(&t, &ada, &org, "cyd", "viewer").await;
    t.call(&cyd, "DELETE", &format!("/orgs/{org}/members/{cyd_id}"), Value::Null).await.expect(204);
    let ada_id = my_id(&t, &ada).await;
    let new = json!({"name": "ci", "role": "viewer"});
    let made = t.post(&ada, &format!("/orgs/{org}/tokens"), new).await.expect(201);
    let machine = Caller::Token(text(&made, "/secret"));
    let leave = format!("/orgs/{org}/members/{ada_id}");
    t.call(&machine, "DELETE", &leave, Value::Null).await.problem(403, "auth.forbidden");
    let audit = t.get(&ada, &format!("/orgs/{org}/audit-events")).await.expect(200);
    let actions: Vec<&str> =
        audit["items"].as_array().unwrap().iter().map(|e| e["action"].as_str().unwrap()).collect();
    assert_eq!(
        actions,
        [
            "access.denied",
            "token.created",
            "member.left",
            "member.joined",
            "invitation.created",
            "member.removed",
            "member.joined",
            "invitation.created"
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_owner_stays_when_two_owners_leave_at_once() {
    for (engine, db, _location) in engines("members_owners").await {
        let t = TestPortal::on(db);
        let (ada, org) = t.tenant("lab").await;
        let ada_id = my_id(&t, &ada).await;
        let path = |id: &str| format!("/orgs/{org}/members/{id}");
        t.call(&ada, "DELETE", &path(&ada_id), Value::Null).await.problem(409, "members.last_owner");
        let viewer = json!({"role": "viewer"});
        t.call(&ada, "PATCH", &path(&ada_id), viewer.clone()).await.problem(409, "members.last_owner");
        let (bob, bob_id) = new_member(&t, &ada, &org, "bob", "owner").await;

        let (to_bob, to_ada) = (path(&bob_id), path(&ada_id));
        let (one, two) = tokio::join!(
            t.call(&ada, "PATCH", &to_bob, viewer.clone()),
            t.call(&bob, "PATCH", &to_ada, viewer.clone()),
        );
        let mut seen = [one.status.as_u16(), two.status.as_u16()];
        seen.sort_unstable();
        assert_eq!(seen, [200, 403], "{engine}: who came second is no owner any more");

        let (winner, loser) = if one.status == 200 { (&ada, &to_bob) } else { (&bob, &to_ada) };
        t.call(winner, "PATCH", loser, json!({"role": "owner"})).await.expect(200);
        let (one, two) = tokio::join!(
            t.call(&ada, "DELETE", &to_ada, Value::Null),
            t.call(&bob, "DELETE", &to_bob, Value::Null),
        );
        let mut seen = [one.status.as_u16(), two.status.as_u16()];
        seen.sort_unstable();
        assert_eq!(seen, [204, 409], "{engine}: one of both stays");
        let stays = if one.status == 409 { &ada } else { &bob };
        let members = t.get(stays, &format!("/orgs/{org}/members")).await.expect(200);
        assert_eq!(members["items"].as_array().unwrap().len(), 1, "{engine}: {members}");
        assert_eq!(members["items"][0]["role"], "owner", "{engine}");
    }
}

#[tokio::test]
async fn concurrent_invitations_of_one_address_make_one_invitation() {
    for (engine, db, _location) in engines("members_twice").await {
        let t = TestPortal::on(db);
        let (ada, org) = t.tenant("lab").await;
        let path = format!("/orgs/{org}/invitations");
        let new = || json!({"email": "grace@example.org", "role": "member"});
        let all = futures::future::join_all((0..4).map(|_| t.post(&ada, &path, new()))).await;
        let mut seen: Vec<u16> = all.iter().map(|reply| reply.status.as_u16()).collect();
        seen.sort_unstable();
        assert_eq!(seen, [201, 409, 409, 409], "{engine}");
        let sent = all.into_iter().find(|reply| reply.status == 201).unwrap().body;

        // One of two concurrent acceptances succeeds; the other gets 404 or 409.
        let accept = || json!({"token": secret(&sent), "name": "Grace", "password": PASSWORD});
        let (one, two) = tokio::join!(
            t.post(&Caller::Nobody, "/invitations/accept", accept()),
            t.post(&Caller::Nobody, "/invitations/accept", accept()),
        );
        let mut seen = [one.status.as_u16(), two.status.as_u16()];
        seen.sort_unstable();
        assert!(matches!(seen, [200, 404 | 409]), "{engine}: {seen:?}");
        let members = t.get(&ada, &format!("/orgs/{org}/members")).await.expect(200);
        assert_eq!(members["items"].as_array().unwrap().len(), 2, "{engine}: {members}");
    }
}

#[tokio::test]
async fn invitation_mails_to_one_address_are_throttled() {
    let t = TestPortal::sqlite().await;
    let (ada, org) = t.tenant("lab").await;
    let sent = invite(&t, &ada, &org, "grace@example.org", "member").await;
    let resend = format!("/orgs/{org}/invitations/{}/resend", text(&sent, "/invitation/id"));
    for _ in 1..5 {
        t.post(&ada, &resend, Value::Null).await.expect(200);
    }
    let refused = t.post(&ada, &resend, Value::Null).await;
    assert!(refused.headers.contains_key(header::RETRY_AFTER));
    refused.problem(429, "request.throttled");
    assert_eq!(mails(&t).len(), 5);
    invite(&t, &ada, &org, "someone.else@example.org", "member").await;
}

#[tokio::test]
async fn an_invitation_works_with_closed_sign_up() {
    let dir = tempfile::tempdir().unwrap();
    let db = crate::common::new_sqlite(&dir.path().join("berth.db")).await;
    // The mail server does not answer. With a mail server the link is only in the mail.
    let t = TestPortal::with(db, |mut settings| {
        settings.sign_up_open = false;
        settings.smtp = Some("smtp://127.0.0.1:9".to_owned());
        settings
    });
    let operator = t.operator().await;
    let owner: UserId = my_id(&t, &operator).await.parse().unwrap();
    let org = OrgId::from_uuid(uuid::Uuid::from_u128(7));
    let now = t.portal.context.now();
    let insert = t.portal.context.db.write(move |tx| {
        async move {
            let (name, slug) = ("Harbour".to_owned(), "harbour".to_owned());
            let new = Org { id: org, name, slug, created_at: now };
            store::accounts::insert_org(tx, &new).await?;
            store::accounts::insert_member(tx, org, owner, Role::Owner).await?;
            store::ledger::open_accounts(tx, org).await
        }
        .boxed()
    });
    insert.await.unwrap();
    let sent = invite(&t, &operator, &org.to_string(), "grace@example.org", "member").await;
    assert_eq!((&sent["link"], &sent["invitation"]["mailed_at"]), (&Value::Null, &Value::Null), "{sent}");
    // The secret of the failed mail is unknown, so the test stores the hash of a known secret.
    let id: InvitationId = text(&sent, "/invitation/id").parse().unwrap();
    let until = t.portal.context.now().plus_seconds(60);
    let renew = t.portal.context.db.write(move |tx| {
        async move { store::members::renew_invitation(tx, id, &fingerprint("known"), until).await }.boxed()
    });
    assert!(renew.await.unwrap());
    let sign_up = json!({"email": "a@b.c", "password": PASSWORD, "name": "A", "organization": "O"});
    t.post(&Caller::Nobody, "/sign-up", sign_up).await.problem(403, "auth.forbidden");
    let accept = json!({"token": "known", "name": "Grace", "password": PASSWORD});
    t.post(&Caller::Nobody, "/invitations/accept", accept).await.expect(200);
    let grace = t.sign_in("grace@example.org").await;
    t.get(&grace, &format!("/orgs/{org}/members")).await.expect(200);
}

//! Tests of audit events: their circumstances, repeated refusals, filters and files.

use std::net::SocketAddr;

use axum::body::{Body, to_bytes};
use axum::extract::ConnectInfo;
use axum::http::{Request, header};
use berth_foundation::Settings;
use berth_foundation::settings::RequireFactor;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::audit_chain::append;
use crate::common::{Caller, PASSWORD, TestPortal, engines, job};
use crate::factors::enrol;
use crate::idle_portal::{IdlePortal, node};
use crate::operations::{items, submit};

/// The events of an action, newest first.
async fn with_action(t: &TestPortal, operator: &Caller, action: &str) -> Vec<Value> {
    items(t, operator, &format!("/operator/audit-events?limit=200&action={action}")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn events_name_the_user_the_credential_the_request_and_the_sender() {
    for (engine, db, _location) in engines("audit_context").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        let me = t.get(&ada, "/me").await.expect(200);
        for action in ["portal.set_up", "user.signed_up"] {
            assert_eq!(with_action(&t, &operator, action).await.len(), 1, "{engine} {action}");
        }
        let signed_in = &with_action(&t, &operator, "session.started").await[0];
        assert_eq!(
            (&signed_in["actor"], &signed_in["actor_id"]),
            (&json!("Ada"), &me["user"]["id"]),
            "{engine}"
        );

        let path = format!("/orgs/{org}/tokens");
        let made = t.post(&ada, &path, json!({"name": "ci", "role": "owner"})).await;
        let request = made.headers["x-request-id"].to_str().unwrap().to_owned();
        let made = made.expect(201);
        let created = &with_action(&t, &operator, "token.created").await[0];
        assert_eq!((&created["request_id"], &created["org"]), (&json!(request), &json!(org)), "{engine}");
        assert_eq!(created["session"], signed_in["session"], "{engine}: one session");
        assert!(created["token_id"].is_null() && created["address"].is_null(), "{engine}: {created}");
        assert!(created["seq"].as_i64() > signed_in["seq"].as_i64(), "{engine}");

        let secret = made["secret"].as_str().unwrap();
        let sender: SocketAddr = "192.0.2.7:50000".parse().unwrap();
        let revoke = Request::builder()
            .method("DELETE")
            .uri(format!("/api/v1{path}/{}", made["token"]["id"].as_str().unwrap()))
            .header(header::AUTHORIZATION, format!("Bearer {secret}"))
            .extension(ConnectInfo(sender));
        t.send(revoke.body(Body::empty()).unwrap()).await.expect(204);
        let revoked = &with_action(&t, &operator, "token.revoked").await[0];
        assert_eq!(revoked["token_id"], made["token"]["id"], "{engine}");
        assert_eq!(revoked["address"], "192.0.2.7", "{engine}");
        assert!(revoked["session"].is_null(), "{engine}");

        t.call(&ada, "DELETE", "/sessions/current", Value::Null).await.expect(204);
        let ended = &with_action(&t, &operator, "session.ended").await[0];
        assert_eq!((&ended["session"], &ended["actor"]), (&signed_in["session"], &json!("Ada")), "{engine}");
        let limits = format!("/operator/orgs/{org}/quota");
        for queued in [3, 5] {
            t.call(&operator, "PUT", &limits, json!({"queued_jobs": queued})).await.expect(200);
        }
        let set = &with_action(&t, &operator, "quota.set").await[0];
        assert_eq!(set["before"], r#"{"queued_jobs":3}"#, "{engine}");
        assert_eq!(set["after"], r#"{"queued_jobs":5}"#, "{engine}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_roles_prices_and_invoice_settings_have_both_states() {
    for (engine, db, _location) in engines("audit_states").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        let (grace, _) = t.tenant("grace").await;
        let states = async |action: &str| {
            let event = with_action(&t, &operator, action).await.swap_remove(0);
            ["before", "after"].map(|field| {
                event[field].as_str().map_or(Value::Null, |text| serde_json::from_str(text).unwrap())
            })
        };
        let invite = json!({"email": "grace@example.org", "role": "viewer"});
        let sent = t.post(&ada, &format!("/orgs/{org}/invitations"), invite).await.expect(201);
        let secret = sent["link"].as_str().unwrap().split_once('#').unwrap().1;
        t.post(&grace, "/invitations/accept", json!({"token": secret})).await.expect(200);
        let me = t.get(&grace, "/me").await.expect(200);
        let member = format!("/orgs/{org}/members/{}", me["user"]["id"].as_str().unwrap());
        t.call(&ada, "PATCH", &member, json!({"role": "billing"})).await.expect(200);
        let roles = [json!({"role": "viewer"}), json!({"role": "billing"})];
        assert_eq!(states("member.role_changed").await, roles, "{engine}");

        t.add_price_and_credit(&operator, &org, 0).await;
        let [before, first] = states("price.set").await;
        assert_eq!((&before, &first["nano_per_second"]), (&Value::Null, &json!(1_000_000)), "{engine}");
        let price = json!({"offering": "h100-80gb.1g.10gb", "per_hour_micros": 7_200_000});
        t.post(&operator, "/operator/prices", price).await.expect(201);
        let [before, after] = states("price.set").await;
        assert_eq!(before["nano_per_second"], first["nano_per_second"], "{engine}");
        assert_eq!(
            (&after["nano_per_second"], &after["version"]),
            (&json!(2_000_000), &json!(2)),
            "{engine}"
        );
        assert!(after["effective_from"].is_string(), "{engine}: {after}");

        let settings = |days: i64| json!({"seller": "Harbour", "taxes": [], "due_days": days});
        for days in [14, 30] {
            let path = "/operator/billing-settings";
            t.call(&operator, "PUT", path, settings(days)).await.expect(200);
        }
        let [before, after] = states("billing_settings.set").await;
        assert_eq!((&before["due_days"], &after["due_days"]), (&json!(14), &json!(30)), "{engine}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_have_one_event_a_minute_with_their_number() {
    for (engine, db, _location) in engines("audit_refusals").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        let wrong = json!({"email": "lab@example.org", "password": "wrong wrong wrong wrong"});
        let unknown = json!({"email": "nobody@example.org", "password": PASSWORD});
        for body in [&wrong, &wrong, &wrong, &unknown] {
            t.post(&Caller::Nobody, "/sessions", body.clone()).await.problem(401, "auth.wrong_password");
            t.portal.accounts.refusals_written().await;
        }
        let refused = with_action(&t, &operator, "session.refused").await;
        let details: Vec<&str> = refused.iter().map(|event| event["detail"].as_str().unwrap()).collect();
        assert_eq!(details, ["No account has the address.", "Wrong password."], "{engine}");
        assert!(!json!(refused).to_string().contains("nobody@"), "{engine}: an address can be a password");
        t.clock.advance_s(61);
        t.portal.context.record_omitted().await.unwrap();
        let refused = with_action(&t, &operator, "session.refused").await;
        assert_eq!(refused.len(), 3, "{engine}: {refused:?}");
        let counted = refused.iter().any(|event| event["detail"] == "Wrong password. 2 times.");
        assert!(counted, "{engine}: {refused:?}");

        let tokens = format!("/orgs/{org}/tokens");
        let made = t.post(&ada, &tokens, json!({"name": "ci", "role": "viewer"})).await.expect(201);
        let viewer = Caller::Token(made["secret"].as_str().unwrap().to_owned());
        for _ in 0..3 {
            t.get(&viewer, &tokens).await.problem(403, "auth.forbidden");
        }
        let denied = items(&t, &ada, &format!("/orgs/{org}/audit-events?action=access.denied")).await;
        assert_eq!(denied.len(), 1, "{engine}: {denied:?}");
        assert_eq!(denied[0]["token_id"], made["token"]["id"], "{engine}");
    }
}

#[tokio::test]
async fn refusals_by_scope_and_by_proof_have_one_event_a_minute_with_their_number() {
    for (engine, db, _location) in engines("audit_proofs").await {
        let t = TestPortal::with(db, |s| Settings { require_factor: RequireFactor::Operators, ..s });
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        for _ in 0..2 {
            t.get(&operator, "/operator/nodes").await.problem(403, "auth.factor_required");
        }
        enrol(&t, &operator).await;
        let me = async |caller: &Caller| t.get(caller, "/me").await.expect(200)["user"]["id"].clone();
        let (operator_id, ada_id) = (me(&operator).await, me(&ada).await);
        let tokens = format!("/orgs/{org}/tokens");
        let new = json!({"name": "ci", "role": "owner", "scopes": ["jobs:read"]});
        let reader = t.post(&ada, &tokens, new).await.expect(201);
        let new = json!({"name": "all", "role": "owner"});
        let all = t.post(&ada, &tokens, new).await.expect(201);
        let [by_reader, by_all] =
            [&reader, &all].map(|made| Caller::Token(made["secret"].as_str().unwrap().to_owned()));
        for _ in 0..3 {
            t.get(&by_reader, &tokens).await.problem(403, "token.scope");
        }
        t.get(&by_all, "/me/factors").await.problem(403, "auth.forbidden");
        t.clock.advance_s(16 * 60);
        for _ in 0..2 {
            t.post(&ada, "/me/totp", Value::Null).await.problem(403, "auth.proof_required");
        }
        // The minute of the last refusals is not over.
        t.portal.context.record_omitted().await.unwrap();
        assert_eq!(with_action(&t, &operator, "access.denied").await.len(), 3, "{engine}");
        t.clock.advance_s(61);
        t.portal.context.record_omitted().await.unwrap();

        let denied = with_action(&t, &operator, "access.denied").await;
        let denied: Vec<(&Value, &str, &Value)> = denied
            .iter()
            .map(|event| (&event["subject"], event["detail"].as_str().unwrap(), &event["token_id"]))
            .collect();
        let (reader, all) = (&reader["token"]["id"], &all["token"]["id"]);
        let none = &Value::Null;
        assert_eq!(denied.len(), 4, "{engine}: {denied:?}");
        for expected in [
            (&operator_id, "The account needs a second factor and has none. 2 times.", none),
            (reader, "The token lacks the scope members:read. 3 times.", reader),
            (all, "Only the session of a person has this right.", all),
            (&ada_id, "The session has no fresh proof of identity. 2 times.", none),
        ] {
            assert!(denied.contains(&expected), "{engine}: {expected:?} in {denied:?}");
        }
        // The organization sees the refusals of its tokens.
        let own = items(&t, &ada, &format!("/orgs/{org}/audit-events?action=access.denied")).await;
        assert_eq!(own.len(), 2, "{engine}: {own:?}");
        assert!(own.iter().all(|event| event["token_id"].is_string()), "{engine}: {own:?}");
    }
}

#[tokio::test]
async fn a_viewer_of_a_waiting_job_is_not_denied_access() {
    for (engine, db, _location) in engines("audit_viewer").await {
        let setup = IdlePortal::on(db).await;
        let job = submit(&setup, json!({})).await;
        let tokens = format!("/orgs/{}/tokens", setup.org);
        let made =
            setup.t.post(&setup.ada, &tokens, json!({"name": "ro", "role": "viewer"})).await.expect(201);
        let viewer = Caller::Token(made["secret"].as_str().unwrap().to_owned());
        let path = format!("/orgs/{}/jobs/{job}/explanation", setup.org);
        let why = setup.t.get(&viewer, &path).await.expect(200);
        assert_eq!(why.get("suggested_changes"), None, "{engine}: {why}");
        let denied = format!("/orgs/{}/audit-events?action=access.denied", setup.org);
        assert_eq!(items(&setup.t, &setup.ada, &denied).await, [] as [Value; 0], "{engine}");
    }
}

#[tokio::test]
async fn tries_at_foreign_objects_and_refused_requests_are_events() {
    for (engine, db, _location) in engines("audit_tries").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        let (eve, _) = t.tenant("eve").await;
        for _ in 0..3 {
            t.get(&eve, &format!("/orgs/{org}/tokens")).await.problem(404, "object.not_found");
            t.get(&eve, "/operator/users").await.problem(404, "object.not_found");
        }
        let token = json!({"name": "x", "role": "owner"});
        let elsewhere = [("sec-fetch-site", "cross-site")];
        let path = format!("/orgs/{org}/tokens");
        t.call_with(&ada, "POST", &path, token, &elsewhere).await.problem(403, "request.cross_site");
        let wrong = json!({"email": "lab@example.org", "password": "wrong wrong wrong wrong"});
        for _ in 0..10 {
            t.post(&Caller::Nobody, "/sessions", wrong.clone()).await.problem(401, "auth.wrong_password");
        }
        t.post(&Caller::Nobody, "/sessions", wrong).await.problem(429, "request.throttled");
        t.portal.accounts.refusals_written().await;
        assert!(with_action(&t, &operator, "access.denied").await.is_empty(), "{engine}: after a minute");
        t.clock.advance_s(61);
        t.portal.context.record_omitted().await.unwrap();

        let denied = with_action(&t, &operator, "access.denied").await;
        let mut denied: Vec<(&str, &str)> = denied
            .iter()
            .map(|event| (event["subject"].as_str().unwrap(), event["detail"].as_str().unwrap()))
            .collect();
        denied.sort_unstable();
        let foreign = (org.as_str(), "The organization is not one of the caller. 3 times.");
        let route = ("operator", "Only operators have this right. 3 times.");
        assert_eq!(denied.len(), 2, "{engine}: {denied:?}");
        assert!(denied.contains(&foreign) && denied.contains(&route), "{engine}: {denied:?}");
        let own = items(&t, &ada, &format!("/orgs/{org}/audit-events?action=access.denied")).await;
        assert!(own.is_empty(), "{engine}: strangers do not fill the log of an organization");
        assert_eq!(with_action(&t, &operator, "request.refused").await.len(), 1, "{engine}");
        let slowed = with_action(&t, &operator, "request.throttled").await;
        assert_eq!(slowed.len(), 1, "{engine}: {slowed:?}");
        assert_eq!(slowed[0]["detail"], "Too many requests: POST /sessions.", "{engine}");
        assert!(slowed[0]["request_id"].as_str().unwrap().starts_with("req_"), "{engine}: {slowed:?}");
    }
}

#[tokio::test]
async fn acts_with_second_factors_are_events() {
    for (engine, db, _location) in engines("audit_factors").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, _) = t.tenant("lab").await;
        let (_, codes) = enrol(&t, &ada).await;
        let started = &with_action(&t, &operator, "session.started").await[0];
        assert_eq!(started["detail"], "password", "{engine}");
        let body = json!({"email": "lab@example.org", "password": PASSWORD});
        let first = t.post(&Caller::Nobody, "/sessions", body).await.expect(202)["challenge"].clone();
        let answer = |code: &str| json!({"challenge": first, "code": code});
        let path = "/sessions/second-factor";
        t.post(&Caller::Nobody, path, answer("no code")).await.problem(401, "auth.wrong_code");
        for _ in 0..2 {
            t.post(&ada, "/me/proof", json!({"code": "no code"})).await.problem(401, "auth.wrong_code");
        }
        let refused = with_action(&t, &operator, "session.refused").await;
        assert_eq!(refused.len(), 1, "{engine}: {refused:?}");
        assert_eq!(refused[0]["detail"], "Wrong code.", "{engine}");
        t.clock.advance_s(61);
        t.portal.context.record_omitted().await.unwrap();
        let refused = with_action(&t, &operator, "session.refused").await;
        assert_eq!(refused[0]["detail"], "Wrong code. 2 times.", "{engine}: {refused:?}");
        t.post(&Caller::Nobody, path, answer(&codes[0])).await.expect(201);
        let started = &with_action(&t, &operator, "session.started").await[0];
        assert_eq!(started["detail"], "password and recovery code", "{engine}");

        let wrong = json!({"password": "wrong wrong wrong wrong"});
        t.post(&ada, "/me/deletion", wrong).await.problem(401, "auth.wrong_password");
        let refused = &with_action(&t, &operator, "session.refused").await[0];
        assert_eq!(
            (&refused["detail"], &refused["actor"]),
            (&json!("Wrong password."), &json!("Ada")),
            "{engine}"
        );
    }
}

#[tokio::test]
async fn the_events_of_a_requested_link_name_a_visitor_with_its_address() {
    for (engine, db, _location) in engines("audit_links").await {
        let t = TestPortal::with(db, |settings| Settings { verify_email: true, ..settings });
        let operator = t.operator().await;
        let (ada, _) = t.tenant("lab").await;
        let me = t.get(&ada, "/me").await.expect(200)["user"]["id"].clone();
        let send = async |path: &str, body: Value| {
            let sender: SocketAddr = "192.0.2.7:50000".parse().unwrap();
            let request = Request::post(format!("/api/v1{path}"))
                .header(header::CONTENT_TYPE, "application/json")
                .extension(ConnectInfo(sender));
            t.send(request.body(Body::from(body.to_string())).unwrap()).await
        };
        let ask = json!({"email": "lab@example.org"});
        send("/password-resets", ask).await.expect(202);
        let sent = crate::people::mails(&t, "lab@example.org").await;
        let link = crate::people::secrets(&sent, "verify").remove(0);
        send("/email-verifications/complete", json!({"token": link})).await.expect(200);
        let asked = &with_action(&t, &operator, "password.reset_asked").await[0];
        assert_eq!(
            (&asked["actor"], &asked["subject"], &asked["address"]),
            (&json!("A visitor"), &me, &json!("192.0.2.7")),
            "{engine}"
        );
        assert!(asked["actor_id"].is_null() && asked["request_id"].is_string(), "{engine}: {asked}");
        let verified = &with_action(&t, &operator, "email.verified").await[0];
        assert_eq!(
            (&verified["actor"], &verified["actor_id"], &verified["address"]),
            (&json!("Ada"), &me, &json!("192.0.2.7")),
            "{engine}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cordons_and_cancellations_are_events() {
    for (engine, db, _location) in engines("audit_acts").await {
        let setup = IdlePortal::on(db).await;
        let at = format!("/operator/nodes/{}", node(1));
        for cordoned in [true, false] {
            setup.t.call(&setup.operator, "PATCH", &at, json!({"cordoned": cordoned})).await.expect(200);
        }
        let jobs = format!("/orgs/{}/jobs", setup.org);
        let submitted = setup.t.post(&setup.ada, &jobs, job()).await.expect(201);
        let id = submitted["id"].as_str().unwrap();
        for _ in 0..2 {
            setup.t.post(&setup.ada, &format!("{jobs}/{id}/cancel"), Value::Null).await.expect(202);
        }
        let subject = node(1).to_string();
        for (action, subject) in
            [("node.cordoned", &*subject), ("node.uncordoned", &*subject), ("job.cancelled", id)]
        {
            let events = with_action(&setup.t, &setup.operator, action).await;
            assert_eq!(events.len(), 1, "{engine} {action}");
            assert_eq!(events[0]["subject"], subject, "{engine} {action}");
        }
    }
}

/// A file of audit events, with its media type.
async fn file(t: &TestPortal, caller: &Caller, path: &str, accept: &str) -> (String, String) {
    let Caller::Cookie(cookie) = caller else { panic!("a person") };
    let request = Request::builder()
        .uri(format!("/api/v1{path}"))
        .header(header::COOKIE, cookie)
        .header(header::ACCEPT, accept)
        .body(Body::empty());
    let response = t.router.clone().oneshot(request.unwrap()).await.unwrap();
    assert_eq!(response.status(), 200, "{path}");
    let media = response.headers()[header::CONTENT_TYPE].to_str().unwrap().to_owned();
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (media, String::from_utf8(bytes.to_vec()).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_is_filtered_and_exported_as_a_whole() {
    for (engine, db, _location) in engines("audit_export").await {
        let t = TestPortal::on(db.clone());
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        let (_, other) = t.tenant("bobs").await;
        let path = format!("/orgs/{org}");
        let made =
            t.post(&ada, &format!("{path}/tokens"), json!({"name": "ci", "role": "owner"})).await.expect(201);
        let token = made["token"]["id"].as_str().unwrap();
        append(&db, 1..251).await;

        let about = |org: &str| format!("/operator/audit-events?subject={token}&org={org}");
        assert_eq!(items(&t, &operator, &about(&org)).await.len(), 1, "{engine}");
        assert!(items(&t, &operator, &about(&other)).await.is_empty(), "{engine}: both filters hold");
        let created = &items(&t, &ada, &format!("{path}/audit-events?action=token.created")).await[0];
        let at = created["at"].as_str().unwrap();
        for (filter, count) in [
            (format!("actor={}", created["actor_id"].as_str().unwrap()), 1),
            ("actor=Ada".to_owned(), 1),
            ("actor=Bob".to_owned(), 0),
            (format!("since={at}&actor=Ada"), 1),
            (format!("until={at}"), 0),
        ] {
            let found = items(&t, &ada, &format!("{path}/audit-events?{filter}")).await;
            assert_eq!(found.len(), count, "{engine} {filter}");
        }
        let long = format!("{path}/audit-events?action={}", "a".repeat(201));
        t.get(&ada, &long).await.problem(400, "request.malformed");

        let all = "/operator/audit-events";
        let (media, lines) = file(&t, &operator, all, "application/x-ndjson").await;
        assert_eq!(media, "application/x-ndjson", "{engine}");
        let events: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(events.len() > 250, "{engine}: more than one page");
        let mut numbers: Vec<i64> = events.iter().map(|event| event["seq"].as_i64().unwrap()).collect();
        numbers.sort_unstable();
        let count = i64::try_from(events.len()).unwrap();
        assert_eq!(numbers, (1..=count).collect::<Vec<_>>(), "{engine}: each event once");
        assert_eq!(file(&t, &operator, &format!("{all}?format=ndjson"), "*/*").await.1, lines, "{engine}");
        let (media, table) = file(&t, &operator, all, "text/csv").await;
        assert!(media.starts_with("text/csv"), "{engine}: {media}");
        assert!(table.starts_with("seq,id,at,org,actor,"), "{engine}");
        assert_eq!(table.lines().count(), events.len() + 1, "{engine}");
        let (_, own) = file(&t, &ada, &format!("{path}/audit-events?format=ndjson"), "*/*").await;
        assert_eq!(own.lines().count(), 1, "{engine}: no event of another organization");
    }
}

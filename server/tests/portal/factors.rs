//! Tests of second factors: enrolment, the second step of a sign-in, proofs of identity, and requirements.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, header};
use berth_foundation::Settings;
use berth_foundation::envelope::{Keys, is_sealed};
use berth_foundation::settings::RequireFactor;
use berth_foundation::{Change, Listener, SessionKey};
use berth_store as store;
use serde_json::{Value, json};
use totp_rs::{Builder, Secret};
use tower::ServiceExt;

use crate::common::{Caller, PASSWORD, Reply, TestPortal, engines};
use crate::edge::{ends, open_stream};
use crate::operations::items;

/// The code of a secret in the present step of the portal's clock, or `steps` after it.
pub fn code(t: &TestPortal, secret: &str, steps: i64) -> String {
    let totp = Builder::new().with_secret(Secret::try_from_base32(secret).unwrap()).build().unwrap();
    let at_s = t.portal.context.now().millis() / 1_000 + steps * 30;
    totp.generate(u64::try_from(at_s).unwrap()).to_string()
}

/// Adds an authenticator app; returns its secret and the recovery codes.
pub async fn enrol(t: &TestPortal, caller: &Caller) -> (String, Vec<String>) {
    let made = t.post(caller, "/me/totp", Value::Null).await.expect(201);
    let secret = made["secret"].as_str().unwrap().to_owned();
    let confirm = json!({"code": code(t, &secret, 0)});
    let codes = t.post(caller, "/me/totp/confirm", confirm).await.expect(200)["codes"].clone();
    // The code of the confirmation is used up.
    t.clock.advance_s(30);
    (secret, codes.as_array().unwrap().iter().map(|code| code.as_str().unwrap().to_owned()).collect())
}

/// Sends the password of an account with a second factor; returns the challenge.
async fn challenge(t: &TestPortal, email: &str) -> String {
    let reply = t.post(&Caller::Nobody, "/sessions", json!({"email": email, "password": PASSWORD})).await;
    assert!(!reply.headers.contains_key(header::SET_COOKIE));
    let body = reply.expect(202);
    assert_eq!(body["second_factor"], json!(["totp", "recovery"]));
    body["challenge"].as_str().unwrap().to_owned()
}

async fn answer(t: &TestPortal, challenge: &str, code: &str) -> Reply {
    t.post(&Caller::Nobody, "/sessions/second-factor", json!({"challenge": challenge, "code": code})).await
}

/// Proves the identity of a session; returns it with its new cookie.
pub async fn prove(t: &TestPortal, caller: &Caller, proof: Value) -> Caller {
    let reply = t.post(caller, "/me/proof", proof).await;
    let cookie = reply.headers[header::SET_COOKIE].to_str().unwrap().split(';').next().unwrap().to_owned();
    reply.expect(204);
    Caller::Cookie(cookie)
}

/// The session of a completed sign-in.
fn session(reply: Reply) -> Caller {
    let cookie = reply.headers[header::SET_COOKIE].to_str().unwrap().split(';').next().unwrap().to_owned();
    reply.expect(201);
    Caller::Cookie(cookie)
}

#[tokio::test]
async fn a_second_factor_completes_the_sign_in_and_each_code_works_once() {
    for (engine, db, _location) in engines("factors").await {
        let t = TestPortal::on(db);
        let (ada, _) = t.tenant("lab").await;
        let email = "lab@example.org";
        let made = t.post(&ada, "/me/totp", Value::Null).await.expect(201);
        let url = made["url"].as_str().unwrap();
        assert!(url.starts_with("otpauth://totp/Berth%20127.0.0.1:lab%40example.org?"), "{engine}: {url}");
        assert!(made["svg"].as_str().unwrap().starts_with("<svg"), "{engine}");
        let wrong = t.post(&ada, "/me/totp/confirm", json!({"code": "no code"})).await;
        wrong.problem(422, "request.invalid");
        // An app without its confirmation has no effect, and a second enrolment replaces it.
        assert_eq!(
            t.get(&ada, "/me/factors").await.expect(200),
            json!({"passkeys": 0, "recovery_codes": 0}),
            "{engine}"
        );
        let ada = t.sign_in(email).await;
        let (secret, codes) = enrol(&t, &ada).await;
        assert_eq!(codes.len(), 10, "{engine}");
        t.post(&ada, "/me/totp", Value::Null).await.problem(409, "factor.exists");
        let listed = t.get(&ada, "/me/factors").await.expect(200);
        assert!(listed["totp"]["confirmed_at"].is_string() && listed["recovery_codes"] == 10, "{listed}");

        let first = challenge(&t, email).await;
        answer(&t, &first, &code(&t, &secret, -1)).await.problem(401, "auth.wrong_code");
        let right = code(&t, &secret, 0);
        let me = t.get(&session(answer(&t, &first, &right).await), "/me").await.expect(200);
        assert_eq!(me["second_factor"], true, "{engine}");
        answer(&t, &first, &code(&t, &secret, 1)).await.problem(401, "auth.challenge");
        let second = challenge(&t, email).await;
        answer(&t, &second, &right).await.problem(401, "auth.wrong_code");

        let recovery = codes[3].to_uppercase().replace('-', " ");
        session(answer(&t, &second, &recovery).await);
        let third = challenge(&t, email).await;
        answer(&t, &third, &recovery).await.problem(401, "auth.wrong_code");
        let listed = t.get(&ada, "/me/factors").await.expect(200);
        assert_eq!(listed["recovery_codes"], 9, "{engine}");
        let renewed = t.post(&ada, "/me/recovery-codes", Value::Null).await.expect(201);
        answer(&t, &third, &codes[4]).await.problem(401, "auth.wrong_code");
        session(answer(&t, &third, renewed["codes"][0].as_str().unwrap()).await);
    }
}

#[tokio::test]
async fn an_app_ends_the_other_sessions_and_the_password_does_not_remove_it() {
    for (engine, db, _location) in engines("factor_sessions").await {
        let t = TestPortal::on(db);
        let (ada, org) = t.tenant("lab").await;
        let other = t.sign_in("lab@example.org").await;
        let stream = open_stream(&t, &other, &org).await;
        let (secret, _) = enrol(&t, &ada).await;
        ends(stream).await;
        t.get(&other, "/me").await.problem(401, "auth.required");
        t.get(&ada, "/me").await.expect(200);
        let refused = t.post(&ada, "/me/proof", json!({"password": PASSWORD})).await;
        let refused = refused.problem(422, "request.invalid");
        assert_eq!(refused["errors"][0]["pointer"], "/password", "{engine}: {refused}");
        t.clock.advance_s(16 * 60);
        t.post(&ada, "/me/proof", json!({"password": PASSWORD})).await.problem(422, "request.invalid");
        t.call(&ada, "DELETE", "/me/totp", Value::Null).await.problem(403, "auth.proof_required");
        let ada = prove(&t, &ada, json!({"code": code(&t, &secret, 0)})).await;
        t.call(&ada, "DELETE", "/me/totp", Value::Null).await.expect(204);
    }
}

#[tokio::test]
async fn new_recovery_codes_and_a_removed_app_end_the_other_sessions() {
    for (engine, db, _location) in engines("factor_changes").await {
        let t = TestPortal::on(db);
        let (ada, org) = t.tenant("lab").await;
        let (_, codes) = enrol(&t, &ada).await;
        let other = session(answer(&t, &challenge(&t, "lab@example.org").await, &codes[0]).await);
        let stream = open_stream(&t, &other, &org).await;
        let renewed = t.post(&ada, "/me/recovery-codes", Value::Null).await.expect(201);
        ends(stream).await;
        t.get(&other, "/me").await.problem(401, "auth.required");
        t.get(&ada, "/me").await.expect(200);

        let code = renewed["codes"][0].as_str().unwrap();
        let other = session(answer(&t, &challenge(&t, "lab@example.org").await, code).await);
        let stream = open_stream(&t, &other, &org).await;
        t.call(&ada, "DELETE", "/me/totp", Value::Null).await.expect(204);
        ends(stream).await;
        t.get(&other, "/me").await.problem(401, "auth.required");
        let me = t.get(&ada, "/me").await.expect(200);
        assert_eq!(me["second_factor"], false, "{engine}");
    }
}

/// Stops the sign-in that ends this session until a message.
struct StopAtSignOut {
    session: SessionKey,
    reached: Mutex<Option<tokio::sync::oneshot::Sender<()>>>,
    proceed: Mutex<std::sync::mpsc::Receiver<()>>,
}

impl Listener for StopAtSignOut {
    fn on_change(&self, change: &Change) {
        if let Change::SignedOut(session) = change
            && *session == self.session
            && let Some(reached) = self.reached.lock().unwrap().take()
        {
            reached.send(()).unwrap();
            self.proceed.lock().unwrap().recv().unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_factor_confirmed_during_a_sign_in_leaves_it_without_a_session() {
    for (engine, db, _location) in engines("factor_meanwhile").await {
        let t = TestPortal::on(db);
        let (ada, _) = t.tenant("lab").await;
        let former = t.sign_in("lab@example.org").await;
        let made = t.post(&ada, "/me/totp", Value::Null).await.expect(201);
        let Caller::Cookie(cookie) = &former else { panic!("a person") };
        let (reached, has_reached) = tokio::sync::oneshot::channel();
        let (go, proceed) = std::sync::mpsc::channel();
        t.portal.context.changes.subscribe(Arc::new(StopAtSignOut {
            session: SessionKey::from_cookie(cookie.split_once('=').unwrap().1),
            reached: Mutex::new(Some(reached)),
            proceed: Mutex::new(proceed),
        }));
        // The sign-in found no factor, and ends the former session before it opens its own.
        let body = json!({"email": "lab@example.org", "password": PASSWORD}).to_string();
        let request = Request::post("/api/v1/sessions")
            .header(header::COOKIE, cookie)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(body))
            .unwrap();
        let signing_in = tokio::spawn(t.router.clone().oneshot(request));
        tokio::time::timeout(Duration::from_secs(60), has_reached).await.unwrap().unwrap();
        let confirm = json!({"code": code(&t, made["secret"].as_str().unwrap(), 0)});
        t.post(&ada, "/me/totp/confirm", confirm).await.expect(200);
        go.send(()).unwrap();
        let response = signing_in.await.unwrap().unwrap();
        assert_eq!(response.status(), 401, "{engine}");
        assert!(!response.headers().contains_key(header::SET_COOKIE), "{engine}");
        let listed = items(&t, &ada, "/me/sessions").await;
        assert_eq!(listed.len(), 1, "{engine}: {listed:?}");
        challenge(&t, "lab@example.org").await;
    }
}

#[tokio::test]
async fn a_code_counts_for_one_of_two_sign_ins_at_once() {
    for (engine, db, _location) in engines("factors_at_once").await {
        let t = TestPortal::on(db);
        let (ada, _) = t.tenant("lab").await;
        let (secret, _) = enrol(&t, &ada).await;
        let email = "lab@example.org";
        let (one, other) = (challenge(&t, email).await, challenge(&t, email).await);
        let code = code(&t, &secret, 0);
        let (a, b) = tokio::join!(answer(&t, &one, &code), answer(&t, &other, &code));
        let mut statuses = [a.status.as_u16(), b.status.as_u16()];
        statuses.sort_unstable();
        assert_eq!(statuses, [201, 401], "{engine}");
    }
}

#[tokio::test]
async fn a_challenge_has_five_tries_and_five_minutes() {
    let t = TestPortal::sqlite().await;
    let (ada, _) = t.tenant("lab").await;
    let (secret, _) = enrol(&t, &ada).await;
    let first = challenge(&t, "lab@example.org").await;
    for _ in 0..5 {
        answer(&t, &first, "no code").await.problem(401, "auth.wrong_code");
    }
    answer(&t, &first, &code(&t, &secret, 0)).await.problem(401, "auth.challenge");
    let second = challenge(&t, "lab@example.org").await;
    t.clock.advance_s(301);
    answer(&t, &second, &code(&t, &secret, 0)).await.problem(401, "auth.challenge");
    answer(&t, "no challenge", "123456").await.problem(401, "auth.challenge");
    let long = answer(&t, &"x".repeat(101), &"1".repeat(41)).await.problem(422, "request.invalid");
    assert_eq!(long["errors"].as_array().unwrap().len(), 2, "{long}");
}

#[tokio::test]
async fn the_secret_of_an_app_is_sealed_and_survives_another_key() {
    for (engine, db, _location) in engines("factor_keys").await {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (dir.path().join("old.key"), dir.path().join("new.key"));
        let with = |key: &std::path::Path, former: Vec<std::path::PathBuf>| {
            let secrets_key = Some(key.to_owned());
            TestPortal::with(db.clone(), |s| Settings { secrets_key, secrets_old_keys: former, ..s })
        };
        let t = with(&old, Vec::new());
        t.portal.factors.check_key_file().await.unwrap();
        let (ada, _) = t.tenant("lab").await;
        let (secret, codes) = enrol(&t, &ada).await;
        let mut conn = db.read().await.unwrap();
        let rows = store::factors::list_totp(&mut conn.tx()).await.unwrap();
        drop(conn);
        assert!(is_sealed(&rows[0].sealed) && !rows[0].sealed.contains(&secret), "{engine}");

        let error = with(&new, Vec::new()).portal.factors.check_key_file().await.unwrap_err();
        assert!(error.contains("new.key is missing") && !new.exists(), "{engine}: {error}");
        let rotated = with(&new, vec![old.clone()]);
        rotated.portal.factors.check_key_file().await.unwrap();
        assert_eq!(rotated.portal.factors.reseal().await, Ok((1, 0)), "{engine}");
        let t = with(&new, Vec::new());
        assert_eq!(t.portal.factors.reseal().await, Ok((0, 0)), "{engine}");
        t.clock.advance_s(60);
        let email = "lab@example.org";
        session(answer(&t, &challenge(&t, email).await, &code(&t, &secret, 0)).await);

        // Without the key only recovery codes are left.
        let stranger = dir.path().join("stranger.key");
        Keys::open(&stranger, &[]).unwrap();
        let lost = with(&stranger, Vec::new());
        assert_eq!(lost.portal.factors.reseal().await, Ok((0, 1)), "{engine}");
        let open = challenge(&lost, email).await;
        answer(&lost, &open, &code(&lost, &secret, 0)).await.problem(500, "server.internal");
        session(answer(&lost, &open, &codes[0]).await);
    }
}

#[tokio::test]
async fn changes_of_factors_need_a_fresh_proof() {
    for (engine, db, _location) in engines("factor_proofs").await {
        let t = TestPortal::on(db);
        let (ada, org) = t.tenant("lab").await;
        t.clock.advance_s(16 * 60);
        t.post(&ada, "/me/totp", Value::Null).await.problem(403, "auth.proof_required");
        t.post(&ada, "/me/proof", json!({"password": "wrong wrong wrong"}))
            .await
            .problem(401, "auth.wrong_password");
        t.post(&ada, "/me/totp", Value::Null).await.problem(403, "auth.proof_required");
        for neither in [json!({}), json!({"password": PASSWORD, "code": "123456"})] {
            t.post(&ada, "/me/proof", neither).await.problem(422, "request.invalid");
        }
        t.post(&ada, "/me/proof", json!({"code": "123456"})).await.problem(401, "auth.wrong_code");
        let ada = prove(&t, &ada, json!({"password": PASSWORD})).await;
        let (secret, _) = enrol(&t, &ada).await;

        t.clock.advance_s(16 * 60);
        for (method, path) in [("DELETE", "/me/totp"), ("POST", "/me/recovery-codes")] {
            t.call(&ada, method, path, Value::Null).await.problem(403, "auth.proof_required");
        }
        let code = code(&t, &secret, 0);
        let ada = prove(&t, &ada, json!({"code": code})).await;
        t.post(&ada, "/me/proof", json!({"code": code})).await.problem(401, "auth.wrong_code");
        let token = json!({"name": "ci", "role": "owner"});
        let made = t.post(&ada, &format!("/orgs/{org}/tokens"), token).await.expect(201);
        let ci = Caller::Token(made["secret"].as_str().unwrap().to_owned());
        t.call(&ci, "DELETE", "/me/totp", Value::Null).await.problem(403, "auth.forbidden");
        t.post(&ci, "/me/proof", json!({"password": PASSWORD})).await.problem(403, "auth.forbidden");
        t.call(&ada, "DELETE", "/me/totp", Value::Null).await.expect(204);
        t.call(&ada, "DELETE", "/me/totp", Value::Null).await.problem(409, "factor.missing");
        assert_eq!(
            t.get(&ada, "/me/factors").await.expect(200),
            json!({"passkeys": 0, "recovery_codes": 0}),
            "{engine}"
        );
        t.sign_in("lab@example.org").await;
    }
}

#[tokio::test]
async fn a_proof_gives_the_session_another_cookie() {
    for (engine, db, _location) in engines("factor_cookies").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        let stream = open_stream(&t, &ada, &org).await;
        let proved = prove(&t, &ada, json!({"password": PASSWORD})).await;
        // Requests on their way may have the former cookie.
        for caller in [&ada, &proved] {
            t.get(caller, "/me").await.expect(200);
        }
        // A thief can have a copy of it, so it has no proof.
        t.post(&ada, "/me/totp", Value::Null).await.problem(403, "auth.proof_required");
        t.post(&proved, "/me/totp", Value::Null).await.expect(201);
        t.clock.advance_s(31);
        t.get(&ada, "/me").await.problem(401, "auth.required");
        let listed = items(&t, &proved, "/me/sessions").await;
        assert_eq!((listed.len(), &listed[0]["current"]), (1, &json!(true)), "{engine}: {listed:?}");
        let events = items(&t, &operator, "/operator/audit-events?action=session.proved").await;
        assert_eq!((events.len(), &events[0]["detail"]), (1, &json!("password")), "{engine}: {events:?}");
        // A sign-out by the former cookie ends nothing, and one by the present cookie ends what the session began.
        t.call(&ada, "DELETE", "/sessions/current", Value::Null).await.expect(204);
        t.get(&proved, "/me").await.expect(200);
        t.call(&proved, "DELETE", "/sessions/current", Value::Null).await.expect(204);
        ends(stream).await;
        t.get(&proved, "/me").await.problem(401, "auth.required");
    }
}

#[tokio::test]
async fn deliberate_acts_need_a_fresh_proof_of_people_with_a_factor() {
    let t = TestPortal::sqlite().await;
    let operator = t.operator().await;
    let (ada, org) = t.tenant("lab").await;
    let tokens = format!("/orgs/{org}/tokens");
    let token = json!({"name": "ci", "role": "owner"});
    t.clock.advance_s(16 * 60);
    // Without a second factor nothing changes.
    let made = t.post(&ada, &tokens, token.clone()).await.expect(201);
    t.post(&operator, "/operator/join-tokens", json!({})).await.expect(201);
    let invitation = json!({"email": "eve@example.org", "role": "member"});
    let invitations = format!("/orgs/{org}/invitations");
    let invited = t.post(&ada, &invitations, invitation.clone()).await.expect(201);
    let mut recovery = Vec::new();
    let mut proved = Vec::new();
    for caller in [&ada, &operator] {
        let caller = prove(&t, caller, json!({"password": PASSWORD})).await;
        recovery.push(enrol(&t, &caller).await.1);
        proved.push(caller);
    }
    let (operator, ada) = (proved.pop().unwrap(), proved.pop().unwrap());
    t.post(&ada, &tokens, token.clone()).await.expect(201);
    let user = t.get(&ada, "/me").await.expect(200)["user"]["id"].as_str().unwrap().to_owned();
    t.clock.advance_s(16 * 60);
    let resend = format!("{invitations}/{}/resend", invited["invitation"]["id"].as_str().unwrap());
    let member = format!("/orgs/{org}/members/{user}");
    let recharge = json!({"below_micros": 0, "amount_micros": 0, "most_a_day": 0});
    for (method, path, body) in [
        ("POST", tokens.clone(), token.clone()),
        ("POST", format!("/orgs/{org}/inference-keys"), json!({"name": "batch"})),
        ("POST", invitations, invitation),
        ("POST", resend, Value::Null),
        ("PATCH", member.clone(), json!({"role": "member"})),
        ("DELETE", member, Value::Null),
        ("PUT", format!("/orgs/{org}/sign-in-policy"), json!({"require_second_factor": true})),
        ("PUT", format!("/orgs/{org}/auto-recharge"), recharge),
    ] {
        t.call(&ada, method, &path, body).await.problem(403, "auth.proof_required");
    }
    let job = format!("/orgs/{org}/jobs/job_00000000000000000000000001");
    let reason = json!({"reason": "Ada asked for help"});
    let share = json!({"good_ppm": 1, "credit_basis_points": 1});
    let promise = json!({"name": "gold", "terms": {"window": "day", "availability": share}});
    for (method, path, body) in [
        ("POST", "/operator/tokens".to_owned(), json!({"name": "cron"})),
        ("POST", "/operator/metrics-tokens".to_owned(), json!({"name": "cron"})),
        ("POST", "/operator/join-tokens".to_owned(), json!({})),
        ("POST", "/operator/nodes/node_00000000000000000000000001/approve".to_owned(), json!({})),
        ("PUT", "/operator/nodes/node_00000000000000000000000001/dedication".to_owned(), json!({})),
        ("PUT", format!("/operator/orgs/{org}/nodes"), json!({"own_nodes_only": false})),
        ("PUT", format!("/operator/orgs/{org}/rdma"), json!({"granted": true})),
        ("PUT", format!("/operator/orgs/{org}/egress-policy"), json!({"internet": true})),
        ("POST", "/operator/gateways".to_owned(), json!({"name": "gateway-1"})),
        ("POST", "/operator/gateways/gw_00000000000000000000000001/token".to_owned(), Value::Null),
        ("DELETE", "/operator/gateways/gw_00000000000000000000000001".to_owned(), Value::Null),
        (
            "PUT",
            format!("/operator/orgs/{org}/service-hosts"),
            json!({"host": "a.example.org", "confirmed": true}),
        ),
        ("POST", "/operator/promises".to_owned(), promise.clone()),
        ("PATCH", "/operator/promises/prom_00000000000000000000000001".to_owned(), json!({})),
        ("DELETE", "/operator/promises/prom_00000000000000000000000001".to_owned(), Value::Null),
        ("DELETE", "/operator/prices/h100-80gb/1".to_owned(), Value::Null),
        ("PUT", "/operator/networks/storage".to_owned(), json!({"ranges": ["10.8.0.0/16"]})),
        ("DELETE", "/operator/networks/storage".to_owned(), Value::Null),
        ("PUT", format!("/operator/users/{user}/disabled"), json!({"reason": "Unpaid."})),
        ("DELETE", format!("/operator/users/{user}/disabled"), Value::Null),
        ("DELETE", format!("/operator/users/{user}/factors"), Value::Null),
        ("POST", format!("{job}/terminals"), reason.clone()),
        ("POST", format!("{job}/ports/80/tickets"), reason),
    ] {
        t.call(&operator, method, &path, body).await.problem(403, "auth.proof_required");
    }
    t.get(&ada, &tokens).await.expect(200);
    let ci = Caller::Token(made["secret"].as_str().unwrap().to_owned());
    t.post(&ci, &tokens, token.clone()).await.expect(201);
    let ada = prove(&t, &ada, json!({"code": recovery[0][0]})).await;
    t.post(&ada, &tokens, token).await.expect(201);
}

#[tokio::test]
async fn a_required_factor_comes_before_anything_else() {
    for (engine, db, _location) in engines("factor_required").await {
        let t = TestPortal::with(db, |s| Settings { require_factor: RequireFactor::Operators, ..s });
        let operator = t.operator().await;
        let me = t.get(&operator, "/me").await.expect(200);
        assert_eq!(me["second_factor_required"], true, "{engine}");
        t.get(&operator, "/operator/nodes").await.problem(403, "auth.factor_required");
        enrol(&t, &operator).await;
        t.get(&operator, "/operator/nodes").await.expect(200);

        let (ada, org) = t.tenant("lab").await;
        let jobs = format!("/orgs/{org}/jobs");
        t.get(&ada, &jobs).await.expect(200);
        let policy = format!("/orgs/{org}/sign-in-policy");
        let (on, off) = (json!({"require_second_factor": true}), json!({"require_second_factor": false}));
        assert_eq!(t.get(&ada, &policy).await.expect(200), off, "{engine}");
        t.call(&ada, "PUT", &policy, on.clone()).await.problem(409, "factor.missing");
        let token = json!({"name": "ci", "role": "owner"});
        let made = t.post(&ada, &format!("/orgs/{org}/tokens"), token).await.expect(201);
        let ci = Caller::Token(made["secret"].as_str().unwrap().to_owned());
        enrol(&t, &ada).await;
        t.call(&ada, "PUT", &policy, on.clone()).await.expect(200);
        assert_eq!(t.get(&ada, &policy).await.expect(200), on, "{engine}");

        let invite = json!({"email": "eve@example.org", "role": "member"});
        let sent = t.post(&ada, &format!("/orgs/{org}/invitations"), invite).await.expect(201);
        let secret = sent["link"].as_str().unwrap().split_once('#').unwrap().1;
        let accept = json!({"token": secret, "name": "Eve", "password": PASSWORD});
        t.post(&Caller::Nobody, "/invitations/accept", accept).await.expect(200);
        let eve = t.sign_in("eve@example.org").await;
        t.get(&eve, &jobs).await.problem(403, "auth.factor_required");
        t.get(&ci, &jobs).await.expect(200);
        // A rule that begins ends what is open; a repeated one changes nothing.
        t.call(&ada, "PUT", &policy, off.clone()).await.expect(200);
        let stream = open_stream(&t, &eve, &org).await;
        for _ in 0..2 {
            t.call(&ada, "PUT", &policy, on.clone()).await.expect(200);
        }
        ends(stream).await;
        let set = items(&t, &ada, &format!("/orgs/{org}/audit-events?action=sign_in_policy.set")).await;
        assert_eq!(set.len(), 3, "{engine}: {set:?}");
        let foreign = t.call(&t.tenant("other").await.0, "PUT", &policy, off.clone()).await;
        foreign.problem(404, "object.not_found");
        t.call(&ada, "PUT", &policy, off).await.expect(200);
        t.get(&eve, &jobs).await.expect(200);
    }
}

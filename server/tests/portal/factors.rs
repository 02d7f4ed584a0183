//! Tests of second factors: enrolment, the second step of a sign-in, proofs of identity, and requirements.

use axum::http::header;
use berth_foundation::Settings;
use berth_foundation::envelope::{Keys, is_sealed};
use berth_foundation::settings::RequireFactor;
use berth_store as store;
use serde_json::{Value, json};
use totp_rs::{Builder, Secret};

use crate::common::{Caller, PASSWORD, Reply, TestPortal, engines};

/// The code of a secret in the present step of the portal's clock, or `steps` after it.
fn code(t: &TestPortal, secret: &str, steps: i64) -> String {
    let totp = Builder::new().with_secret(Secret::try_from_base32(secret).unwrap()).build().unwrap();
    let at_s = t.portal.context.now().millis() / 1_000 + steps * 30;
    totp.generate(u64::try_from(at_s).unwrap()).to_string()
}

/// Adds an authenticator app; returns its secret and the recovery codes.
async fn enrol(t: &TestPortal, caller: &Caller) -> (String, Vec<String>) {
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
        assert_eq!(t.get(&ada, "/me/factors").await.expect(200), json!({"recovery_codes": 0}), "{engine}");
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
        t.post(&ada, "/me/proof", json!({"password": PASSWORD})).await.expect(204);
        let (secret, _) = enrol(&t, &ada).await;

        t.clock.advance_s(16 * 60);
        for (method, path) in [("DELETE", "/me/totp"), ("POST", "/me/recovery-codes")] {
            t.call(&ada, method, path, Value::Null).await.problem(403, "auth.proof_required");
        }
        let code = code(&t, &secret, 0);
        t.post(&ada, "/me/proof", json!({"code": code})).await.expect(204);
        t.post(&ada, "/me/proof", json!({"code": code})).await.problem(401, "auth.wrong_code");
        let token = json!({"name": "ci", "role": "owner"});
        let made = t.post(&ada, &format!("/orgs/{org}/tokens"), token).await.expect(201);
        let ci = Caller::Token(made["secret"].as_str().unwrap().to_owned());
        t.call(&ci, "DELETE", "/me/totp", Value::Null).await.problem(403, "auth.forbidden");
        t.post(&ci, "/me/proof", json!({"password": PASSWORD})).await.problem(403, "auth.forbidden");
        t.call(&ada, "DELETE", "/me/totp", Value::Null).await.expect(204);
        t.call(&ada, "DELETE", "/me/totp", Value::Null).await.problem(409, "factor.missing");
        assert_eq!(t.get(&ada, "/me/factors").await.expect(200), json!({"recovery_codes": 0}), "{engine}");
        t.sign_in("lab@example.org").await;
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
    for caller in [&ada, &operator] {
        t.post(caller, "/me/proof", json!({"password": PASSWORD})).await.expect(204);
        enrol(&t, caller).await;
    }
    t.post(&ada, &tokens, token.clone()).await.expect(201);
    t.clock.advance_s(16 * 60);
    let invitation = json!({"email": "eve@example.org", "role": "member"});
    t.post(&ada, &tokens, token.clone()).await.problem(403, "auth.proof_required");
    t.post(&ada, &format!("/orgs/{org}/invitations"), invitation).await.problem(403, "auth.proof_required");
    for (path, body) in [
        ("/operator/tokens", json!({"name": "cron"})),
        ("/operator/metrics-tokens", json!({"name": "cron"})),
        ("/operator/join-tokens", json!({})),
    ] {
        t.post(&operator, path, body).await.problem(403, "auth.proof_required");
    }
    t.get(&ada, &tokens).await.expect(200);
    let ci = Caller::Token(made["secret"].as_str().unwrap().to_owned());
    t.post(&ci, &tokens, token.clone()).await.expect(201);
    t.post(&ada, "/me/proof", json!({"password": PASSWORD})).await.expect(204);
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
        let foreign = t.call(&t.tenant("other").await.0, "PUT", &policy, off.clone()).await;
        foreign.problem(404, "object.not_found");
        t.call(&ada, "PUT", &policy, off).await.expect(200);
        t.get(&eve, &jobs).await.expect(200);
    }
}

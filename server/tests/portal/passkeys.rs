//! Tests of passkeys, with an authenticator in software.

use axum::http::header;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use berth_foundation::Settings;
use berth_foundation::settings::OperatorProvider;
use berth_store::Db;
use berth_types::operators::OperatorRole;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::common::{Caller, PASSWORD, Reply, TestPortal, engines};
use crate::factors::{code, enrol};
use crate::oidc::{CLIENT, FakeProvider, SECRET};
use crate::operations::items;
use crate::people::mails;
use crate::sso::{self, Setup};

const ORIGIN: &str = "http://localhost:8080";
const USER_PRESENT: u8 = 1;
const USER_VERIFIED: u8 = 4;
const NEW_CREDENTIAL: u8 = 0x40;

fn portal(db: Db) -> TestPortal {
    TestPortal::with(db, |s| Settings { public_url: ORIGIN.to_owned(), ..s })
}

fn base64(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// A device with one passkey on P-256.
struct Device {
    key: EcdsaKeyPair,
    rng: SystemRandom,
    id: Vec<u8>,
    /// The user handle of the registration in base64url.
    user: String,
    counter: u32,
    flags: u8,
    origin: &'static str,
}

impl Device {
    fn new(id: u8) -> Self {
        let rng = SystemRandom::new();
        let made = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &rng).unwrap();
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, made.as_ref(), &rng).unwrap();
        let flags = USER_PRESENT | USER_VERIFIED;
        Self { key, rng, id: vec![id; 20], user: String::new(), counter: 0, flags, origin: ORIGIN }
    }

    fn client_data(&self, kind: &str, options: &Value) -> Vec<u8> {
        let challenge = options["challenge"].as_str().unwrap();
        let origin = self.origin;
        format!(r#"{{"type":"{kind}","challenge":"{challenge}","origin":"{origin}","crossOrigin":false}}"#)
            .into_bytes()
    }

    fn authenticator_data(&mut self, more_flags: u8) -> Vec<u8> {
        self.counter += 1;
        let mut data = Sha256::digest(b"localhost").to_vec();
        data.push(self.flags | more_flags);
        data.extend(self.counter.to_be_bytes());
        data
    }

    /// The answer to the options of a registration: an attestation without a statement.
    fn register(&mut self, options: &Value) -> String {
        self.user = options["user"]["id"].as_str().unwrap().to_owned();
        let mut data = self.authenticator_data(NEW_CREDENTIAL);
        data.extend([0; 16]);
        data.extend(u16::try_from(self.id.len()).unwrap().to_be_bytes());
        data.extend(&self.id);
        // The COSE key: EC2, ES256, P-256, and the coordinates.
        let point = self.key.public_key().as_ref();
        data.extend([0xa5, 1, 2, 3, 0x26, 0x20, 1, 0x21, 0x58, 0x20]);
        data.extend(&point[1..33]);
        data.extend([0x22, 0x58, 0x20]);
        data.extend(&point[33..65]);
        let mut object = vec![0xa3, 0x63];
        object.extend(b"fmt\x64none\x67attStmt\xa0\x68authData\x58");
        object.push(u8::try_from(data.len()).unwrap());
        object.extend(data);
        let id = base64(&self.id);
        let client_data = self.client_data("webauthn.create", options);
        json!({
            "id": id, "rawId": id, "type": "public-key", "clientExtensionResults": {},
            "response": {
                "clientDataJSON": base64(client_data), "attestationObject": base64(object), "transports": ["internal"],
            },
        })
        .to_string()
    }

    /// The answer to the options of a sign-in.
    fn sign(&mut self, options: &Value) -> String {
        let (client_data, data) = (self.client_data("webauthn.get", options), self.authenticator_data(0));
        let signed = [data.as_slice(), Sha256::digest(&client_data).as_slice()].concat();
        let signature = self.key.sign(&self.rng, &signed).unwrap();
        let id = base64(&self.id);
        json!({
            "id": id, "rawId": id, "type": "public-key", "clientExtensionResults": {},
            "response": {
                "clientDataJSON": base64(client_data), "authenticatorData": base64(data),
                "signature": base64(signature.as_ref()), "userHandle": self.user,
            },
        })
        .to_string()
    }
}

async fn options(t: &TestPortal, caller: &Caller, path: &str) -> Value {
    let begun = t.post(caller, path, Value::Null).await.expect(200);
    serde_json::from_str(begun["options"].as_str().unwrap()).unwrap()
}

/// Adds a passkey; returns the answer.
async fn add(t: &TestPortal, caller: &Caller, device: &mut Device) -> Value {
    let options = options(t, caller, "/me/passkeys/options").await;
    let body = json!({"name": " Laptop ", "credential": device.register(&options)});
    t.post(caller, "/me/passkeys", body).await.expect(201)
}

async fn signature(t: &TestPortal, device: &mut Device) -> String {
    device.sign(&options(t, &Caller::Nobody, "/sessions/passkey/options").await)
}

async fn sign_in(t: &TestPortal, device: &mut Device) -> Reply {
    let credential = signature(t, device).await;
    t.post(&Caller::Nobody, "/sessions/passkey", json!({"credential": credential})).await
}

/// The session in an answer with this status.
fn session_at(reply: Reply, status: u16) -> Caller {
    let cookie = reply.headers[header::SET_COOKIE].to_str().unwrap().split(';').next().unwrap().to_owned();
    reply.expect(status);
    Caller::Cookie(cookie)
}

fn session(reply: Reply) -> Caller {
    session_at(reply, 201)
}

async fn challenge(t: &TestPortal) -> Value {
    let body = json!({"email": "lab@example.org", "password": PASSWORD});
    t.post(&Caller::Nobody, "/sessions", body).await.expect(202)
}

#[tokio::test]
async fn a_passkey_signs_in_alone_and_is_a_second_factor() {
    for (engine, db, _location) in engines("passkeys").await {
        let t = portal(db);
        let (ada, org) = t.tenant("lab").await;
        let other = t.sign_in("lab@example.org").await;
        let mut device = Device::new(1);
        let added = add(&t, &ada, &mut device).await;
        assert_eq!(added["passkey"]["name"], "Laptop", "{engine}");
        let codes = added["recovery_codes"].as_array().unwrap().clone();
        assert_eq!(codes.len(), 10, "{engine}");
        let sent = mails(&t, "lab@example.org").await;
        let advice = "A new password does not remove the passkey";
        assert!(sent.iter().any(|mail| mail.contains(advice)), "{engine}: {sent:?}");
        // A password opened the other session.
        t.get(&other, "/me").await.problem(401, "auth.required");
        let listed = t.get(&ada, "/me/passkeys").await.expect(200);
        assert_eq!(listed["available"], true, "{engine}");
        assert!(listed["passkeys"][0]["last_used_at"].is_null(), "{engine}: {listed}");

        let me = session(sign_in(&t, &mut device).await);
        assert_eq!(t.get(&me, "/me").await.expect(200)["second_factor"], true, "{engine}");
        let listed = t.get(&ada, "/me/passkeys").await.expect(200);
        assert!(listed["passkeys"][0]["last_used_at"].is_string(), "{engine}: {listed}");
        let policy = format!("/orgs/{org}/sign-in-policy");
        t.call(&me, "PUT", &policy, json!({"require_second_factor": true})).await.expect(200);

        // The password alone does not sign in any more.
        let first = challenge(&t).await;
        assert_eq!(first["second_factor"], json!(["passkey", "recovery"]), "{engine}");
        let credential = signature(&t, &mut device).await;
        let body = json!({"credential": credential, "challenge": first["challenge"]});
        let ada = session(t.post(&Caller::Nobody, "/sessions/passkey", body.clone()).await);
        t.post(&Caller::Nobody, "/sessions/passkey", body).await.problem(401, "auth.challenge");
        let second = challenge(&t).await;
        let body = json!({"challenge": second["challenge"], "code": codes[0]});
        session(t.post(&Caller::Nobody, "/sessions/second-factor", body).await);

        let operator = t.operator().await;
        let started = items(&t, &operator, "/operator/audit-events?action=session.started").await;
        let details: Vec<&str> = started.iter().filter_map(|event| event["detail"].as_str()).collect();
        for detail in ["passkey", "password and passkey", "password and recovery code"] {
            assert!(details.contains(&detail), "{engine}: {details:?}");
        }
        // A passkey beside an app leaves the codes of the account as they are.
        enrol(&t, &ada).await;
        let added = add(&t, &ada, &mut Device::new(2)).await;
        assert_eq!(added["recovery_codes"], json!([]), "{engine}");
    }
}

#[tokio::test]
async fn the_list_of_operators_has_a_passkey_as_second_factor() {
    for (engine, db, _location) in engines("passkey_operators").await {
        let t = portal(db);
        let operator = t.operator().await;
        let listed = items(&t, &operator, "/operator/operators").await;
        assert_eq!(listed[0]["second_factor"], false, "{engine}: {listed:?}");
        add(&t, &operator, &mut Device::new(1)).await;
        let listed = items(&t, &operator, "/operator/operators").await;
        assert_eq!(listed[0]["second_factor"], true, "{engine}: {listed:?}");
    }
}

#[tokio::test]
async fn a_proof_by_a_passkey_replaces_the_password() {
    for (engine, db, _location) in engines("passkey_proofs").await {
        let t = portal(db);
        let (ada, org) = t.tenant("lab").await;
        let mut device = Device::new(1);
        let id = add(&t, &ada, &mut device).await["passkey"]["id"].as_str().unwrap().to_owned();
        let path = format!("/me/passkeys/{id}");
        let token = json!({"name": "ci", "role": "owner"});
        let made = t.post(&ada, &format!("/orgs/{org}/tokens"), token).await.expect(201);
        let ci = Caller::Token(made["secret"].as_str().unwrap().to_owned());
        for (method, path) in [("GET", "/me/passkeys"), ("DELETE", path.as_str())] {
            t.call(&ci, method, path, Value::Null).await.problem(403, "auth.forbidden");
        }
        t.call(&ci, "PATCH", &path, json!({"name": "Mine"})).await.problem(403, "auth.forbidden");
        t.clock.advance_s(16 * 60);
        t.call(&ada, "DELETE", &path, Value::Null).await.problem(403, "auth.proof_required");
        t.post(&ada, "/me/passkeys/options", Value::Null).await.problem(403, "auth.proof_required");
        t.post(&ada, "/me/proof", json!({"password": PASSWORD})).await.problem(422, "request.invalid");
        let renamed = t.call(&ada, "PATCH", &path, json!({"name": "Phone"})).await.expect(200);
        assert_eq!(renamed["name"], "Phone", "{engine}");
        t.call(&ada, "PATCH", &path, json!({"name": " "})).await.problem(422, "request.invalid");

        // The passkey of another person proves nothing.
        let (eve, _) = t.tenant("eve").await;
        let mut foreign = Device::new(9);
        add(&t, &eve, &mut foreign).await;
        let credential = signature(&t, &mut foreign).await;
        t.post(&ada, "/me/proof/passkey", json!({"credential": credential}))
            .await
            .problem(401, "auth.passkey");
        for (method, body) in [("PATCH", json!({"name": "Mine"})), ("DELETE", Value::Null)] {
            t.call(&eve, method, &path, body).await.problem(404, "object.not_found");
        }
        let credential = signature(&t, &mut device).await;
        let proof = t.post(&ada, "/me/proof/passkey", json!({"credential": credential})).await;
        let ada = session_at(proof, 204);
        t.call(&ada, "DELETE", &path, Value::Null).await.expect(204);
        t.call(&ada, "DELETE", &path, Value::Null).await.problem(404, "object.not_found");
        let none = json!({"passkeys": 0, "recovery_codes": 0});
        assert_eq!(t.get(&ada, "/me/factors").await.expect(200), none, "{engine}");
        sign_in(&t, &mut device).await.problem(401, "auth.passkey");
        t.sign_in("lab@example.org").await;
        let operator = t.operator().await;
        let refused = items(&t, &operator, "/operator/audit-events?action=session.refused").await;
        let by_ada = |event: &Value| event["actor"] == "Ada" && event["detail"] == "Refused passkey.";
        assert!(refused.iter().any(by_ada), "{engine}: {refused:?}");
        for action in ["passkey.added", "passkey.renamed", "passkey.removed"] {
            let found = items(&t, &operator, &format!("/operator/audit-events?action={action}")).await;
            assert!(found.iter().any(|event| event["subject"] == id.as_str()), "{engine}: {action}");
        }
    }
}

#[tokio::test]
async fn answers_that_do_not_fit_are_refused() {
    let t = TestPortal::sqlite().await;
    let t = portal(t.portal.context.db.clone());
    let (ada, _) = t.tenant("lab").await;
    let nobody = Caller::Nobody;
    let mut device = Device::new(1);
    let begun = options(&t, &ada, "/me/passkeys/options").await;
    let send = |credential: String| json!({"name": "Laptop", "credential": credential});
    device.origin = "https://evil.example";
    t.post(&ada, "/me/passkeys", send(device.register(&begun))).await.problem(422, "request.invalid");
    // A refused answer uses its ceremony up.
    device.origin = ORIGIN;
    t.post(&ada, "/me/passkeys", send(device.register(&begun))).await.problem(422, "request.invalid");
    device.flags = USER_PRESENT;
    let begun = options(&t, &ada, "/me/passkeys/options").await;
    t.post(&ada, "/me/passkeys", send(device.register(&begun))).await.problem(422, "request.invalid");
    device.flags |= USER_VERIFIED;
    let begun = options(&t, &ada, "/me/passkeys/options").await;
    t.clock.advance_s(301);
    t.post(&ada, "/me/passkeys", send(device.register(&begun))).await.problem(422, "request.invalid");
    // The ceremony of another person.
    let (eve, _) = t.tenant("eve").await;
    let begun = options(&t, &eve, "/me/passkeys/options").await;
    t.post(&ada, "/me/passkeys", send(device.register(&begun))).await.problem(422, "request.invalid");
    // A person has one open registration.
    let begun = options(&t, &ada, "/me/passkeys/options").await;
    options(&t, &ada, "/me/passkeys/options").await;
    t.post(&ada, "/me/passkeys", send(device.register(&begun))).await.problem(422, "request.invalid");
    for bad in [String::new(), "{}".to_owned(), "x".repeat(16_385)] {
        t.post(&ada, "/me/passkeys", send(bad.clone())).await.problem(422, "request.invalid");
        let refused = t.post(&nobody, "/sessions/passkey", json!({"credential": bad})).await;
        refused.problem(422, "request.invalid");
    }

    add(&t, &ada, &mut device).await;
    let begun = options(&t, &ada, "/me/passkeys/options").await;
    assert_eq!(begun["excludeCredentials"][0]["id"], base64(&device.id));
    t.post(&ada, "/me/passkeys", send(device.register(&begun))).await.problem(409, "passkey.exists");
    let (user, right_flags) = (device.user.clone(), device.flags);
    device.origin = "http://localhost:8081";
    sign_in(&t, &mut device).await.problem(401, "auth.passkey");
    device.origin = ORIGIN;
    device.flags = USER_PRESENT;
    sign_in(&t, &mut device).await.problem(401, "auth.passkey");
    device.flags = right_flags;
    device.user = base64([7; 16]);
    sign_in(&t, &mut device).await.problem(401, "auth.passkey");
    device.user = user;
    session(sign_in(&t, &mut device).await);
    // A copy of the device has an older counter.
    device.counter -= 1;
    sign_in(&t, &mut device).await.problem(401, "auth.passkey");
    // Another key with the same id.
    let mut copy = Device::new(1);
    copy.user.clone_from(&device.user);
    copy.counter = 1_000;
    sign_in(&t, &mut copy).await.problem(401, "auth.passkey");
    let credential = signature(&t, &mut device).await;
    t.clock.advance_s(301);
    let body = json!({"credential": credential});
    t.post(&nobody, "/sessions/passkey", body).await.problem(401, "auth.passkey");
    session(sign_in(&t, &mut device).await);
}

#[tokio::test]
async fn a_passkey_of_another_account_completes_no_sign_in() {
    let t = TestPortal::sqlite().await;
    let t = portal(t.portal.context.db.clone());
    let (ada, _) = t.tenant("lab").await;
    let (eve, _) = t.tenant("eve").await;
    let (mut own, mut foreign) = (Device::new(1), Device::new(2));
    add(&t, &ada, &mut own).await;
    add(&t, &eve, &mut foreign).await;
    let first = challenge(&t).await["challenge"].clone();
    let body = json!({"credential": signature(&t, &mut foreign).await, "challenge": first});
    t.post(&Caller::Nobody, "/sessions/passkey", body).await.problem(401, "auth.passkey");
    let body = json!({"credential": signature(&t, &mut own).await, "challenge": first});
    session(t.post(&Caller::Nobody, "/sessions/passkey", body).await);
    let long = json!({"credential": "{}", "challenge": "x".repeat(101)});
    t.post(&Caller::Nobody, "/sessions/passkey", long).await.problem(422, "request.invalid");
}

#[tokio::test]
async fn a_disabled_account_has_no_sign_in_by_passkey_and_an_operator_removes_lost_ones() {
    for (engine, db, _location) in engines("passkey_people").await {
        let t = portal(db);
        let operator = t.operator().await;
        let (ada, _) = t.tenant("lab").await;
        let user = t.get(&ada, "/me").await.expect(200)["user"]["id"].as_str().unwrap().to_owned();
        let mut device = Device::new(1);
        add(&t, &ada, &mut device).await;
        let listed = items(&t, &operator, "/operator/users?text=lab").await;
        assert_eq!(listed[0]["second_factor"], true, "{engine}");
        let disabled = format!("/operator/users/{user}/disabled");
        t.call(&operator, "PUT", &disabled, json!({"reason": "Unpaid."})).await.expect(200);
        sign_in(&t, &mut device).await.problem(403, "account.disabled");
        t.call(&operator, "DELETE", &disabled, Value::Null).await.expect(200);
        session(sign_in(&t, &mut device).await);
        let factors = format!("/operator/users/{user}/factors");
        t.call(&operator, "DELETE", &factors, Value::Null).await.expect(200);
        sign_in(&t, &mut device).await.problem(401, "auth.passkey");
        t.sign_in("lab@example.org").await;
        add(&t, &operator, &mut Device::new(2)).await;
        let operators = items(&t, &operator, "/operator/operators").await;
        assert_eq!(operators[0]["second_factor"], true, "{engine}: {operators:?}");
    }
}

#[tokio::test]
async fn a_passkey_does_not_replace_the_provider_of_the_operators() {
    for (_engine, db, _location) in engines("passkey_operators").await {
        let provider = FakeProvider::open().await;
        let operators = OperatorProvider {
            issuer: provider.issuer(),
            client_id: CLIENT.to_owned(),
            client_secret: SECRET.to_owned(),
            group: "berth-operators".to_owned(),
            role: OperatorRole::Fleet,
        };
        let t = TestPortal::with(db, |s| Settings {
            public_url: ORIGIN.to_owned(),
            operator_provider: Some(operators),
            ..s
        });
        let (owner, org) = t.tenant("lab").await;
        let s = Setup { t, provider, operator: Caller::Nobody, owner, org };
        let by_provider = async || {
            let (cookie, at) = s.start("").await;
            let query = s.provider.authorize(&at, |nonce| {
                let mut claims = s.claims("root", &nonce);
                claims["groups"] = json!(["berth-operators"]);
                s.provider.sign(&claims)
            });
            s.finish_at("operators", &cookie, &query).await
        };
        let root = sso::session(&by_provider().await);
        let mut device = Device::new(1);
        add(&s.t, &root, &mut device).await;
        // It would outlast the removal of the person at the provider.
        sign_in(&s.t, &mut device).await.problem(403, "auth.sso_required");
        let at = sso::location(&by_provider().await);
        let credential = signature(&s.t, &mut device).await;
        let body = json!({"credential": credential, "challenge": at.strip_prefix("/sign-in#").unwrap()});
        let root = session(s.t.post(&Caller::Nobody, "/sessions/passkey", body).await);
        s.t.get(&root, "/operator/nodes").await.expect(200);
    }
}

#[tokio::test]
async fn the_app_leaves_and_the_codes_stay_with_a_passkey() {
    let t = TestPortal::sqlite().await;
    let t = portal(t.portal.context.db.clone());
    let (ada, _) = t.tenant("lab").await;
    let (secret, codes) = enrol(&t, &ada).await;
    add(&t, &ada, &mut Device::new(1)).await;
    t.call(&ada, "DELETE", "/me/totp", Value::Null).await.expect(204);
    let first = challenge(&t).await["challenge"].clone();
    let wrong = json!({"challenge": first, "code": code(&t, &secret, 0)});
    t.post(&Caller::Nobody, "/sessions/second-factor", wrong).await.problem(401, "auth.wrong_code");
    let right = json!({"challenge": first, "code": codes[0]});
    session(t.post(&Caller::Nobody, "/sessions/second-factor", right).await);
}

#[tokio::test]
async fn an_address_without_a_domain_has_no_passkeys_and_the_number_is_limited() {
    let bare = TestPortal::sqlite().await;
    let (ada, _) = bare.tenant("lab").await;
    assert_eq!(bare.get(&Caller::Nobody, "/info").await.expect(200)["passkeys"], false);
    assert_eq!(bare.get(&ada, "/me/passkeys").await.expect(200), json!({"available": false, "passkeys": []}));
    bare.post(&ada, "/me/passkeys/options", Value::Null).await.problem(409, "passkey.unavailable");
    let begun = bare.post(&Caller::Nobody, "/sessions/passkey/options", Value::Null).await;
    begun.problem(409, "passkey.unavailable");

    let t = portal(bare.portal.context.db.clone());
    // Both portals draw the same random numbers, and ids have their time.
    t.clock.advance_s(60);
    assert_eq!(t.get(&Caller::Nobody, "/info").await.expect(200)["passkeys"], true);
    for id in 0..20 {
        add(&t, &ada, &mut Device::new(id)).await;
    }
    t.post(&ada, "/me/passkeys/options", Value::Null).await.problem(409, "passkey.limit");
}

//! A stand-in for a provider of OpenID Connect: discovery, keys with rotation, codes with PKCE, and refresh tokens. It
//! can be down, and signs any claims.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use axum::Json;
use axum::extract::{Form, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

pub const CLIENT: &str = "berth";
pub const SECRET: &str = "client secret of the portal";

/// A sign-in between its code and its tokens.
struct Grant {
    challenge: String,
    token: String,
}

#[derive(Default)]
struct ProviderState {
    issuer: String,
    /// Another issuer in the metadata.
    announced: Option<String>,
    /// The number of the present key. Only this key is published.
    key: u8,
    down: bool,
    /// True if the answers have no refresh token.
    no_refresh: bool,
    codes: HashMap<String, Grant>,
    /// The valid refresh tokens.
    refresh_tokens: Vec<String>,
    made: u64,
    key_requests: u64,
    /// The codes in requests for tokens.
    received: Vec<String>,
}

#[derive(Clone, Default)]
pub struct FakeProvider(Arc<Mutex<ProviderState>>);

fn key(number: u8) -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(&[number; 32]).unwrap()
}

fn encode(value: &Value) -> String {
    URL_SAFE_NO_PAD.encode(value.to_string())
}

/// A token with this header and these claims, signed by a key.
pub fn signed(header: &Value, claims: &Value, number: u8) -> String {
    let message = format!("{}.{}", encode(header), encode(claims));
    let signature = URL_SAFE_NO_PAD.encode(key(number).sign(message.as_bytes()).as_ref());
    format!("{message}.{signature}")
}

/// The value of a parameter in an address.
pub fn parameter(url: &str, name: &str) -> String {
    let query = url.split_once('?').unwrap().1;
    let found = query.split('&').find_map(|pair| pair.strip_prefix(&format!("{name}="))).unwrap();
    found.replace("%3A", ":").replace("%2F", "/").replace("%40", "@").replace('+', " ")
}

impl FakeProvider {
    /// Opens a provider on this host. Its issuer is its address.
    pub async fn open() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let provider = Self::default();
        provider.lock().issuer = format!("http://{}", listener.local_addr().unwrap());
        let app = axum::Router::new()
            .route("/.well-known/openid-configuration", get(metadata))
            .route("/keys", get(keys))
            .route("/token", post(token))
            .with_state(provider.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        provider
    }

    fn lock(&self) -> MutexGuard<'_, ProviderState> {
        self.0.lock().unwrap()
    }

    pub fn issuer(&self) -> String {
        self.lock().issuer.clone()
    }

    pub fn set_down(&self, down: bool) {
        self.lock().down = down;
    }

    /// Names another issuer in the metadata from now on.
    pub fn announce_issuer(&self, issuer: &str) {
        self.lock().announced = Some(issuer.to_owned());
    }

    /// Gives no refresh tokens from now on.
    pub fn stop_refresh_tokens(&self) {
        self.lock().no_refresh = true;
    }

    /// Ends the oldest refresh token.
    pub fn end_oldest_refresh_token(&self) {
        self.lock().refresh_tokens.remove(0);
    }

    /// Signs and publishes with another key from now on.
    pub fn rotate_key(&self) {
        self.lock().key += 1;
    }

    /// The requests for the keys so far.
    pub fn key_requests(&self) -> u64 {
        self.lock().key_requests
    }

    /// The codes of which the portal asked for tokens here.
    pub fn received_codes(&self) -> Vec<String> {
        self.lock().received.clone()
    }

    /// Ends all refresh tokens, as after the removal of their people.
    pub fn remove_people(&self) {
        self.lock().refresh_tokens.clear();
    }

    /// The usual header of a token.
    pub fn header(&self) -> Value {
        let number = self.lock().key;
        json!({"alg": "EdDSA", "typ": "JWT", "kid": format!("key-{number}")})
    }

    /// Signs claims with the present key.
    pub fn sign(&self, claims: &Value) -> String {
        let (header, number) = (self.header(), self.lock().key);
        signed(&header, claims, number)
    }

    /// Signs a person in at the address of the portal's redirect, with the token that `make` gives for the nonce.
    /// Returns the query of the return to the portal.
    pub fn authorize(&self, location: &str, make: impl FnOnce(String) -> String) -> String {
        assert!(location.starts_with(&format!("{}/authorize?", self.issuer())), "{location}");
        assert_eq!(parameter(location, "client_id"), CLIENT);
        assert_eq!(parameter(location, "code_challenge_method"), "S256");
        assert!(parameter(location, "scope").contains("openid"), "{location}");
        let (challenge, state) = (parameter(location, "code_challenge"), parameter(location, "state"));
        let token = make(parameter(location, "nonce"));
        let mut provider = self.lock();
        provider.made += 1;
        let code = format!("code-{}", provider.made);
        provider.codes.insert(code.clone(), Grant { challenge, token });
        format!("code={code}&state={state}")
    }
}

async fn metadata(State(provider): State<FakeProvider>) -> Response {
    let state = provider.lock();
    if state.down {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    let issuer = &state.issuer;
    Json(json!({
        "issuer": state.announced.as_ref().unwrap_or(issuer),
        "authorization_endpoint": format!("{issuer}/authorize"),
        "token_endpoint": format!("{issuer}/token"),
        "jwks_uri": format!("{issuer}/keys"),
        "response_types_supported": ["code"],
        "subject_types_supported": ["public"],
        // A provider that also announces weak algorithms does not weaken the portal.
        "id_token_signing_alg_values_supported": ["EdDSA", "HS256", "none"],
        "scopes_supported": ["openid", "email", "offline_access"],
    }))
    .into_response()
}

async fn keys(State(provider): State<FakeProvider>) -> Response {
    let mut state = provider.lock();
    state.key_requests += 1;
    let x = URL_SAFE_NO_PAD.encode(key(state.key).public_key().as_ref());
    let kid = format!("key-{}", state.key);
    let one = json!({"kty": "OKP", "crv": "Ed25519", "use": "sig", "alg": "EdDSA", "kid": kid, "x": x});
    Json(json!({"keys": [one]})).into_response()
}

async fn token(State(provider): State<FakeProvider>, Form(form): Form<HashMap<String, String>>) -> Response {
    let mut state = provider.lock();
    if state.down {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    let refused = || (StatusCode::BAD_REQUEST, Json(json!({"error": "invalid_grant"}))).into_response();
    let id_token = match form["grant_type"].as_str() {
        "authorization_code" => {
            state.received.push(form["code"].clone());
            let Some(grant) = state.codes.remove(&form["code"]) else { return refused() };
            let verifier = Sha256::digest(form["code_verifier"].as_bytes());
            if URL_SAFE_NO_PAD.encode(verifier) != grant.challenge {
                return refused();
            }
            Some(grant.token)
        }
        _ => {
            let before = state.refresh_tokens.len();
            state.refresh_tokens.retain(|known| *known != form["refresh_token"]);
            if state.refresh_tokens.len() == before {
                return refused();
            }
            None
        }
    };
    // Each refresh token works once.
    state.made += 1;
    let refresh_token = format!("refresh-{}", state.made);
    state.refresh_tokens.push(refresh_token.clone());
    let mut answer = json!({
        "access_token": "access", "token_type": "Bearer", "expires_in": 300, "refresh_token": refresh_token,
    });
    if state.no_refresh {
        answer.as_object_mut().unwrap().remove("refresh_token");
    }
    if let Some(id_token) = id_token {
        answer["id_token"] = json!(id_token);
    }
    Json(answer).into_response()
}

//! The middleware for `Idempotency-Key` on POST routes: it looks up the key before the handler and stores the
//! answer after it. `berth_foundation::idempotency` has the keys.

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{FromRequestParts, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use berth_types::problems::Problem;
use sha2::{Digest, Sha256};

use crate::portal::Portal;
use berth_foundation::Caller;
use berth_foundation::idempotency::{KeyLookup, KeyScope};
use berth_rest::answers::NotKept;
use berth_rest::authentication::Signed;
use berth_rest::extract::read_body;
use berth_rest::failed::Failed;

const HEADER: &str = "idempotency-key";

/// Executes a request with a key once, and answers its repetitions with the stored answer.
pub async fn apply_key(State(portal): State<Portal>, request: Request, next: Next) -> Response {
    if *request.method() != Method::POST || !request.headers().contains_key(HEADER) {
        return next.run(request).await;
    }
    match answer(&portal, request, next).await {
        Ok(response) => response,
        Err(failed) => failed.into_response(),
    }
}

/// The key of a request.
fn key(headers: &HeaderMap) -> Result<String, Failed> {
    let key = headers.get(HEADER).and_then(|v| v.to_str().ok()).filter(|k| (1..=255).contains(&k.len()));
    key.map(str::to_owned).ok_or_else(|| {
        Failed(Problem::malformed("An Idempotency-Key has 1 to 255 printable ASCII characters."))
    })
}

/// The scope of keys for a path; `None` for paths that ignore keys, such as the sign-in.
fn key_scope(path: &str) -> Result<Option<KeyScope>, Problem> {
    let Some(path) = path.strip_prefix("/api/v1/") else { return Ok(None) };
    if path.starts_with("operator/") {
        return Ok(Some(KeyScope::Operator));
    }
    let Some(path) = path.strip_prefix("orgs/") else { return Ok(None) };
    let org = path.split('/').next().and_then(|org| org.parse().ok());
    org.map(|org| Some(KeyScope::Org(org))).ok_or_else(Problem::not_found)
}

/// A hash of the whole request, with its caller.
fn request_hash(caller: &Caller, address: &str, body: &Bytes) -> String {
    let token = caller.token.map(|t| t.id.to_string()).unwrap_or_default();
    let head = format!("POST {address}\n{}\n{token}\n", caller.user.id);
    let mut sha = Sha256::new();
    sha.update(head.as_bytes());
    sha.update(body);
    base64::engine::general_purpose::STANDARD.encode(sha.finalize())
}

async fn answer(portal: &Portal, request: Request, next: Next) -> Result<Response, Failed> {
    let key = key(request.headers())?;
    let Some(scope) = key_scope(request.uri().path())? else { return Ok(next.run(request).await) };
    let address = request.uri().path_and_query().map_or_else(String::new, ToString::to_string);
    let (mut parts, body) = request.into_parts();
    let Signed(mut caller) = Signed::from_request_parts(&mut parts, &()).await?;
    let bytes = read_body(Request::from_parts(parts.clone(), body)).await?;
    let hash = request_hash(&caller, &address, &bytes);
    // The guard marks the request as in flight until its answer is stored.
    let (key, _in_flight) = match portal.idempotency.begin(&caller, scope, key, hash).await? {
        KeyLookup::New(key, in_flight) => (key, in_flight),
        KeyLookup::Answered { status, body } => return Ok(stored_answer(status, body)),
    };
    caller.idempotency_key = Some(key.clone());
    parts.extensions.insert(Signed(caller));
    let response = next.run(Request::from_parts(parts, Body::from(bytes))).await;
    if !response.status().is_success() || response.extensions().get::<NotKept>().is_some() {
        return Ok(response);
    }
    let (parts, body) = response.into_parts();
    let bytes = to_bytes(body, usize::MAX).await.map_err(|_| Failed(Problem::internal()))?;
    if let Ok(text) = std::str::from_utf8(&bytes) {
        portal.idempotency.keep_answer(key, parts.status.as_u16(), text).await;
    }
    Ok(Response::from_parts(parts, Body::from(bytes)))
}

/// An answer that was stored for an earlier request.
fn stored_answer(status: u16, body: String) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    if body.is_empty() {
        return status.into_response();
    }
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_a_scope() {
        let org = "org_00000000000000000000000001";
        let scope = |path: &str| key_scope(path).ok().flatten();
        assert_eq!(scope("/api/v1/operator/prices"), Some(KeyScope::Operator));
        assert!(key_scope("/api/v1/orgs/nobody/jobs").is_err());
        for none in ["/api/v1/sessions", "/api/v1/sign-up", "/api/v1/stripe/events", "/healthz"] {
            assert!(key_scope(none).is_ok_and(|s| s.is_none()), "{none}");
        }
        assert_eq!(scope(&format!("/api/v1/orgs/{org}/jobs")), org.parse().ok().map(KeyScope::Org));
    }
}

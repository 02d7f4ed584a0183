//! The caller of a request: the extractor, and the interface to the accounts that know tokens and sessions.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use berth_foundation::Caller;
use berth_types::problems::Problem;
use futures::future::BoxFuture;

use crate::failed::Failed;

/// The name of the session cookie.
pub const fn cookie_name(https: bool) -> &'static str {
    if https { "__Host-berth_session" } else { "berth_session" }
}

/// The session cookie's value.
pub fn session_cookie(headers: &HeaderMap, https: bool) -> Option<String> {
    headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|line| line.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(name, _)| *name == cookie_name(https))
        .map(|(_, value)| value.to_owned())
}

/// The source of callers.
pub trait Accounts: Send + Sync {
    /// The caller of these headers; `None` if they name nobody. A request with a bearer token ignores cookies.
    ///
    /// # Errors
    /// The database cannot be read.
    fn find_caller<'a>(&'a self, headers: &'a HeaderMap) -> BoxFuture<'a, Result<Option<Caller>, Problem>>;
}

/// The source of callers as an extension of each request.
#[derive(Clone)]
pub struct Authenticator(pub Arc<dyn Accounts>);

/// The caller, by a bearer token or a session.
#[derive(Clone)]
pub struct Signed(pub Caller);

impl<S: Send + Sync> FromRequestParts<S> for Signed {
    type Rejection = Failed;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failed> {
        // The middleware for idempotency keys may have extracted the caller.
        if let Some(signed) = parts.extensions.get::<Self>() {
            return Ok(signed.clone());
        }
        let caller = match parts.extensions.get::<Authenticator>() {
            Some(Authenticator(accounts)) => accounts.find_caller(&parts.headers).await?,
            None => None,
        };
        caller.map(Signed).ok_or_else(|| Failed(Problem::unauthenticated()))
    }
}

/// The bearer token of a request: `None` without the header, and `Some(None)` if the header has no token.
pub fn bearer_token(headers: &HeaderMap) -> Option<Option<&str>> {
    let value = headers.get(header::AUTHORIZATION)?;
    Some(value.to_str().ok().and_then(|v| v.strip_prefix("Bearer ")).map(str::trim))
}

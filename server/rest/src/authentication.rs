//! The caller of a request: the extractor, and the interface to the accounts that know tokens and sessions.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use berth_foundation::Caller;
use berth_types::problems::Problem;
use futures::future::BoxFuture;

use crate::failed::Failed;
use crate::scopes::{check_scope, needed_scope};
use crate::sender::Sender;

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
    /// `sender` is the address of the sender; absent for requests inside the portal.
    ///
    /// # Errors
    /// The database cannot be read. 403 for a sender outside the networks of the token.
    fn find_caller<'a>(
        &'a self,
        headers: &'a HeaderMap,
        sender: Option<IpAddr>,
    ) -> BoxFuture<'a, Result<Option<Caller>, Problem>>;
}

/// The source of callers as an extension of each request.
#[derive(Clone)]
pub struct Authenticator(pub Arc<dyn Accounts>);

/// The caller, by a bearer token or a session. A person without a required second factor is refused.
#[derive(Clone)]
pub struct Signed(pub Caller);

impl<S: Send + Sync> FromRequestParts<S> for Signed {
    type Rejection = Failed;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failed> {
        // The middleware for idempotency keys may have extracted the caller.
        if let Some(signed) = parts.extensions.get::<Self>() {
            return Ok(signed.clone());
        }
        let caller = find_caller(parts).await?;
        let caller = caller.ok_or_else(|| Failed(Problem::unauthenticated()))?;
        if caller.proof.is_some_and(|proof| proof.must_enrol) {
            return Err(Failed(factor_required()));
        }
        Ok(Self(caller))
    }
}

fn factor_required() -> Problem {
    Problem::new(
        403,
        "auth.factor_required",
        "Second factor required",
        "Your account needs a second factor. Nothing was changed. Add an authenticator app on the page /account/second-factors, then repeat the request.",
    )
}

/// The caller, also before the enrolment of a required second factor.
#[derive(Clone)]
pub struct SignedUnenrolled(pub Caller);

impl<S: Send + Sync> FromRequestParts<S> for SignedUnenrolled {
    type Rejection = Failed;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failed> {
        let caller = find_caller(parts).await?;
        caller.map(Self).ok_or_else(|| Failed(Problem::unauthenticated()))
    }
}

async fn find_caller(parts: &Parts) -> Result<Option<Caller>, Failed> {
    let Some(Authenticator(accounts)) = parts.extensions.get::<Authenticator>() else { return Ok(None) };
    let Sender(sender) = parts.extensions.get::<Sender>().copied().unwrap_or_default();
    let caller = accounts.find_caller(&parts.headers, sender).await?;
    if let Some(caller) = &caller {
        check_scope(caller, needed_scope(parts))?;
    }
    Ok(caller)
}

/// The bearer token of a request: `None` without the header, and `Some(None)` if the header has no token.
pub fn bearer_token(headers: &HeaderMap) -> Option<Option<&str>> {
    let value = headers.get(header::AUTHORIZATION)?;
    Some(value.to_str().ok().and_then(|v| v.strip_prefix("Bearer ")).map(str::trim))
}

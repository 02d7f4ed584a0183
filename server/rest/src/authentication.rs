//! The caller of a request: the extractor, and the interface to the accounts that know tokens and sessions.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use berth_foundation::{Caller, Refusal};
use berth_types::problems::Problem;
use futures::future::BoxFuture;

use crate::failed::Failed;
use crate::scopes::{find_missing_scope, missing_scope, needed_scope};
use crate::sender::Sender;

/// The name of the session cookie.
pub const fn cookie_name(https: bool) -> &'static str {
    if https { "__Host-berth_session" } else { "berth_session" }
}

/// The header `Set-Cookie` with the session cookie.
pub fn set_cookie(https: bool, value: &str, max_age_s: i64) -> String {
    let name = cookie_name(https);
    let secure = if https { "; Secure" } else { "" };
    format!("{name}={value}; Path=/; Max-Age={max_age_s}; HttpOnly; SameSite=Lax{secure}")
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
    /// The database cannot be read. 403 for a sender outside the networks of the token. 429 after too many requests.
    fn find_caller<'a>(
        &'a self,
        headers: &'a HeaderMap,
        sender: Option<IpAddr>,
    ) -> BoxFuture<'a, Result<Option<Caller>, Problem>>;

    /// Records the refusal of a caller for the audit log.
    fn record_refusal(&self, caller: &Caller, refusal: Refusal);
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
            if let Some(Authenticator(accounts)) = parts.extensions.get::<Authenticator>() {
                accounts.record_refusal(&caller, Refusal::Factor);
            }
            return Err(Failed(factor_required()));
        }
        Ok(Self(caller))
    }
}

/// The caller of a route that visitors may use too.
#[derive(Clone)]
pub struct OptionallySigned(pub Option<Caller>);

impl<S: Send + Sync> FromRequestParts<S> for OptionallySigned {
    type Rejection = Failed;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failed> {
        match Signed::from_request_parts(parts, state).await {
            Ok(Signed(caller)) => Ok(Self(Some(caller))),
            Err(Failed(problem)) if problem.status == 401 => Ok(Self(None)),
            Err(failed) => Err(failed),
        }
    }
}

fn factor_required() -> Problem {
    Problem::new(
        403,
        "auth.factor_required",
        "Second factor required",
        "Your account needs a second factor. Nothing was changed. Add a passkey or an authenticator app on the page /account/second-factors, then repeat the request.",
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
    if let Some(caller) = &caller
        && let Some(scope) = find_missing_scope(caller, needed_scope(parts))
    {
        accounts.record_refusal(caller, Refusal::Scope(scope));
        return Err(Failed(missing_scope(scope)));
    }
    Ok(caller)
}

/// The bearer token of a request: `None` without the header, and `Some(None)` if the header has no token.
pub fn bearer_token(headers: &HeaderMap) -> Option<Option<&str>> {
    let value = headers.get(header::AUTHORIZATION)?;
    Some(value.to_str().ok().and_then(|v| v.strip_prefix("Bearer ")).map(str::trim))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    const PARTS: [&str; 12] = [
        "berth_session=a",
        "__Host-berth_session=b",
        "berth_session",
        "xberth_session=c",
        "berth_session =d",
        "=",
        ";",
        "; ",
        " ",
        "\t",
        "\"",
        "\u{e9}",
    ];

    /// A line of a header, also with bytes that no browser sends.
    fn line() -> impl Strategy<Value = Vec<u8>> {
        let parts = prop::collection::vec(prop::sample::select(PARTS.to_vec()), 0..8);
        prop_oneof![
            3 => parts.prop_map(|parts| parts.concat().into_bytes()),
            1 => prop::collection::vec(any::<u8>(), 0..60),
        ]
    }

    fn headers(name: header::HeaderName, lines: &[Vec<u8>]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in lines.iter().filter_map(|line| HeaderValue::from_bytes(line).ok()) {
            headers.append(name.clone(), value);
        }
        headers
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn a_session_is_a_whole_pair_of_a_line(lines in prop::collection::vec(line(), 0..4), https: bool) {
            if let Some(value) = session_cookie(&headers(header::COOKIE, &lines), https) {
                let pair = format!("{}={value}", cookie_name(https));
                let is_pair = |line: &[u8]| line.split(|b| *b == b';').any(|one| one.trim_ascii() == pair.as_bytes());
                prop_assert!(lines.iter().any(|line| is_pair(line.as_slice())), "{pair}");
            }
        }

        #[test]
        fn a_session_is_found_beside_other_cookies(
            other in "[a-z]{1,8}=[ -:<-~]{0,20}",
            value in "[A-Za-z0-9_-]{1,60}",
            https: bool,
        ) {
            let line = format!("{other}; {}={value}", cookie_name(https)).into_bytes();
            prop_assert_eq!(session_cookie(&headers(header::COOKIE, &[line]), https), Some(value));
        }

        #[test]
        fn a_token_is_the_rest_of_its_header(line in line(), token in "[!-~]{1,60}") {
            let one = |line: Vec<u8>| headers(header::AUTHORIZATION, &[line]);
            bearer_token(&one(line));
            let signed = one(format!("Bearer {token}").into_bytes());
            prop_assert_eq!(bearer_token(&signed), Some(Some(token.as_str())));
        }
    }
}

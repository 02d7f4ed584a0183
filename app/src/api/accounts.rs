//! Set-up, sign-up, sessions, tokens and organizations.

use std::future::Future;

use berth_types::accounts::{
    CreatedToken, Me, NewToken, OrgFilter, OrgOrder, OrgSummary, PortalInfo, Setup, SignIn, SignUp, SignedUp,
    Token, User,
};
use berth_types::factors::{SecondFactorSignIn, SignInChallenge};
use berth_types::ids::{OrgId, TokenId};
use berth_types::problems::Problem;
use berth_types::{Page, Sort};
use serde::Deserialize;

use super::escape::escaped;
use super::{Answer, get, send};

/// Gets the public information about the portal.
pub fn info() -> impl Future<Output = Answer<PortalInfo>> + Send + 'static {
    get("/info")
}

/// Creates the first operator.
pub fn set_up(input: &Setup) -> impl Future<Output = Answer<User>> + Send + 'static {
    send("POST", "/setup", input, None)
}

/// Creates a user with an organization.
pub fn sign_up(input: &SignUp) -> impl Future<Output = Answer<SignedUp>> + Send + 'static {
    send("POST", "/sign-up", input, None)
}

/// The answer to the first step of a sign-in.
#[derive(Deserialize)]
#[serde(untagged)]
pub enum SignInStep {
    /// The session has started; the browser has its cookie.
    SignedIn(User),
    /// The account has a second factor.
    Challenge(SignInChallenge),
}

/// Begins a sign-in. Without a second factor it starts a session; the browser stores its cookie.
pub fn begin_sign_in(input: &SignIn) -> impl Future<Output = Answer<SignInStep>> + Send + 'static {
    send("POST", "/sessions", input, None)
}

/// Starts a session of an account without a second factor, such as a new one.
pub fn sign_in(input: &SignIn) -> impl Future<Output = Answer<User>> + Send + 'static {
    let step = begin_sign_in(input);
    async move {
        match step.await? {
            SignInStep::SignedIn(user) => Ok(user),
            SignInStep::Challenge(_) => Err(Problem::new(
                401,
                "auth.challenge",
                "Second factor required",
                "This account has a second factor. Sign in on the sign-in page, then repeat this step.",
            )),
        }
    }
}

/// Completes a sign-in by a code; the browser stores the cookie of the session.
pub fn complete_sign_in(input: &SecondFactorSignIn) -> impl Future<Output = Answer<User>> + Send + 'static {
    send("POST", "/sessions/second-factor", input, None)
}

/// Ends the session.
pub fn sign_out() -> impl Future<Output = Answer<()>> + Send + 'static {
    send("DELETE", "/sessions/current", &(), None)
}

/// Gets the signed-in user.
pub fn me() -> impl Future<Output = Answer<Me>> + Send + 'static {
    get("/me")
}

/// Lists a page of the tokens of an organization, newest first.
pub fn list_tokens(
    org: OrgId,
    cursor: Option<String>,
) -> impl Future<Output = Answer<Page<Token>>> + Send + 'static {
    let cursor = cursor.map_or_else(String::new, |cursor| format!("&cursor={cursor}"));
    get(format!("/orgs/{org}/tokens?limit=50{cursor}"))
}

/// Creates a token; only the answer has its secret. Repeated requests with the same key create one token.
pub fn create_token(
    org: OrgId,
    input: &NewToken,
    key: Option<String>,
) -> impl Future<Output = Answer<CreatedToken>> + Send + 'static {
    send("POST", format!("/orgs/{org}/tokens"), input, key)
}

/// Revokes a token.
pub fn revoke_token(org: OrgId, token: TokenId) -> impl Future<Output = Answer<()>> + Send + 'static {
    send("DELETE", format!("/orgs/{org}/tokens/{token}"), &(), None)
}

/// Returns a filter and an order of organizations as a query without `?`.
pub fn orgs_query(filter: &OrgFilter, order: OrgOrder, sort: Sort) -> String {
    let sort = if sort == Sort::Asc { "asc" } else { "desc" };
    let parts = [
        Some(format!("order_by={}&sort={sort}", order.name())),
        filter.org.map(|org| format!("org={org}")),
        filter.slug.as_ref().map(|slug| format!("slug={}", escaped(slug))),
        filter.name.as_ref().map(|name| format!("name={}", escaped(name))),
        filter.without_credit.then(|| "without_credit=true".to_owned()),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join("&")
}

/// Lists a page of the organizations of a query, for operators.
pub fn orgs(
    query: &str,
    cursor: Option<String>,
) -> impl Future<Output = Answer<Page<OrgSummary>>> + Send + 'static + use<> {
    let cursor = cursor.map_or_else(String::new, |cursor| format!("&cursor={cursor}"));
    get(format!("/operator/orgs?limit=50&{query}{cursor}"))
}

/// Gets an organization as a list of at most one, for operators.
pub fn org(org: OrgId) -> impl Future<Output = Answer<Page<OrgSummary>>> + Send + 'static {
    get(format!("/operator/orgs?org={org}"))
}

/// Lists the first 20 organizations by name with a text in their name or slug, for operators.
pub fn suggest_orgs(text: &str) -> impl Future<Output = Answer<Page<OrgSummary>>> + Send + 'static + use<> {
    get(format!("/operator/orgs?order_by=name&limit=20&name={}", escaped(text)))
}

//! Set-up, sign-up, sessions, tokens and organizations.

use std::future::Future;

use berth_types::Page;
use berth_types::accounts::{
    CreatedToken, Me, NewToken, OrgSummary, PortalInfo, Setup, SignIn, SignUp, SignedUp, Token, User,
};
use berth_types::ids::{OrgId, TokenId};

use super::{Answer, get, list_all, send};

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

/// Starts a session; the browser stores its cookie.
pub fn sign_in(input: &SignIn) -> impl Future<Output = Answer<User>> + Send + 'static {
    send("POST", "/sessions", input, None)
}

/// Ends the session.
pub fn sign_out() -> impl Future<Output = Answer<()>> + Send + 'static {
    send("DELETE", "/sessions/current", &(), None)
}

/// Gets the signed-in user.
pub fn me() -> impl Future<Output = Answer<Me>> + Send + 'static {
    get("/me")
}

/// Lists the tokens of an organization.
pub fn list_tokens(org: OrgId) -> impl Future<Output = Answer<Page<Token>>> + Send + 'static {
    list_all(format!("/orgs/{org}/tokens"))
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

/// Lists all organizations, oldest first, for operators.
pub fn list_orgs() -> impl Future<Output = Answer<Page<OrgSummary>>> + Send + 'static {
    list_all("/operator/orgs?sort=asc".to_owned())
}

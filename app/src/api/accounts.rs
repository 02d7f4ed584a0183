//! First run, sign-up, sessions, tokens and organizations.

use std::future::Future;

use berth_types::Page;
use berth_types::accounts::{
    CreatedToken, Me, NewToken, OrgSummary, PortalInfo, Setup, SignIn, SignUp, SignedUp, Token, User,
};
use berth_types::ids::{OrgId, TokenId};

use super::{Answer, get, list_all, send};

/// What anyone may know of the portal.
pub fn info() -> impl Future<Output = Answer<PortalInfo>> + Send + 'static {
    get("/info")
}

/// Makes the first operator.
pub fn set_up(input: &Setup) -> impl Future<Output = Answer<User>> + Send + 'static {
    send("POST", "/setup", input, None)
}

/// Makes a person with an organization.
pub fn sign_up(input: &SignUp) -> impl Future<Output = Answer<SignedUp>> + Send + 'static {
    send("POST", "/sign-up", input, None)
}

/// Opens a session; the browser keeps its cookie.
pub fn sign_in(input: &SignIn) -> impl Future<Output = Answer<User>> + Send + 'static {
    send("POST", "/sessions", input, None)
}

/// Ends the session.
pub fn sign_out() -> impl Future<Output = Answer<()>> + Send + 'static {
    send("DELETE", "/sessions/current", &(), None)
}

/// Who is signed in.
pub fn me() -> impl Future<Output = Answer<Me>> + Send + 'static {
    get("/me")
}

/// The tokens of an organization.
pub fn list_tokens(org: OrgId) -> impl Future<Output = Answer<Page<Token>>> + Send + 'static {
    list_all(format!("/orgs/{org}/tokens"))
}

/// Makes a token; its secret is in the answer and nowhere else. The same key makes one.
pub fn create_token(
    org: OrgId,
    input: &NewToken,
    key: Option<String>,
) -> impl Future<Output = Answer<CreatedToken>> + Send + 'static {
    send("POST", format!("/orgs/{org}/tokens"), input, key)
}

/// Ends a token.
pub fn revoke_token(org: OrgId, token: TokenId) -> impl Future<Output = Answer<()>> + Send + 'static {
    send("DELETE", format!("/orgs/{org}/tokens/{token}"), &(), None)
}

/// Every organization, oldest first, for operators.
pub fn list_orgs() -> impl Future<Output = Answer<Page<OrgSummary>>> + Send + 'static {
    list_all("/operator/orgs?sort=asc".to_owned())
}

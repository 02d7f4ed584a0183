//! Set-up, sign-up, sessions, the caller, tokens and organizations.

use super::{Accounts, SignInOrigin, SignInStep, name};
use aide::axum::ApiRouter;
use aide::axum::routing::{delete_with, get_with, post_with};
use axum::Json as Answer;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, NoContent, Response};
use berth_rest::answers::Created;
use berth_rest::authentication::{SignedUnenrolled, session_cookie, set_cookie};
use berth_rest::lists::ListQuery;
use berth_rest::operations::{answers, answers_either, doc, empty};
use berth_rest::scopes::ANY;
use berth_rest::{Disconnect, Failed, Json, Path, Query, Sender, Signed};
use berth_types::Page;
use berth_types::accounts::{
    CreatedToken, Me, NewOperatorToken, NewToken, PortalInfo, Setup, SignIn, SignUp, SignedUp, Token, User,
};
use berth_types::factors::{SecondFactorSignIn, SignInChallenge};
use berth_types::ids::{OrgId, TokenId};
use berth_types::people::PatchMe;
use berth_types::scopes::ApiScope;

pub fn routes() -> ApiRouter<Accounts> {
    ApiRouter::new()
        .api_route("/info", get_with(info, doc(ANY, "Gives the public facts about the portal.")))
        .api_route("/setup", post_with(set_up, doc(ANY, "Creates the first operator, by the setup token.")))
        .api_route("/sign-up", post_with(sign_up, doc(ANY, "Creates a user and an organization.")))
        .api_route(
            "/sessions",
            post_with(
                sign_in,
                answers_either::<201, User, 202, SignInChallenge>(
                    ANY,
                    "Signs in and sets the session cookie, or asks for the second factor of the account.",
                ),
            ),
        )
        .api_route(
            "/sessions/second-factor",
            post_with(
                sign_in_with_code,
                answers::<201, User>(ANY, "Completes a sign-in by a code, and sets the session cookie."),
            ),
        )
        .api_route("/sessions/current", delete_with(sign_out, empty::<204>(ANY, "Ends the session.")))
        .api_route(
            "/me",
            get_with(me, doc(ANY, "Gives the caller with the organizations and roles.")).patch_with(
                rename,
                doc(
                    ApiScope::Admin,
                    "Changes the name of the caller. A name that a provider keeps by SCIM does not change here.",
                ),
            ),
        )
        .api_route(
            "/orgs/{org}/tokens",
            get_with(list_tokens, doc(ApiScope::MembersRead, "Lists the API tokens of an organization."))
                .post_with(
                    create_token,
                    doc(ANY, "Creates an API token, at most 1000 in all; its secret is shown once."),
                ),
        )
        .api_route(
            "/orgs/{org}/tokens/{token}",
            delete_with(revoke_token, doc(ApiScope::Admin, "Revokes an API token.")),
        )
        .api_route(
            "/operator/tokens",
            get_with(list_operator_tokens, doc(ApiScope::MembersRead, "Lists the operators' API tokens."))
                .post_with(
                    create_operator_token,
                    doc(
                        ANY,
                        "Creates an operator's API token, at most 1000 in all; its secret is shown once.",
                    ),
                ),
        )
        .api_route(
            "/operator/tokens/{token}",
            delete_with(revoke_operator_token, doc(ApiScope::Admin, "Revokes an operator's API token.")),
        )
}

async fn info(State(accounts): State<Accounts>) -> Result<Answer<PortalInfo>, Failed> {
    Ok(Answer(accounts.info().await?))
}

async fn set_up(
    State(accounts): State<Accounts>,
    disconnect: Disconnect,
    body: Json<Setup>,
) -> Result<Created<User>, Failed> {
    Ok(Created(accounts.set_up(body.value, &disconnect).await?))
}

async fn sign_up(
    State(accounts): State<Accounts>,
    Sender(address): Sender,
    disconnect: Disconnect,
    body: Json<SignUp>,
) -> Result<Created<SignedUp>, Failed> {
    Ok(Created(accounts.sign_up(body.value, address, &disconnect).await?))
}

async fn sign_in(
    State(accounts): State<Accounts>,
    Sender(address): Sender,
    disconnect: Disconnect,
    headers: HeaderMap,
    body: Json<SignIn>,
) -> Result<Response, Failed> {
    let former = session_cookie(&headers, accounts.context.settings.https);
    let from = SignInOrigin { address, disconnect, browser: browser(&headers), former };
    Ok(match accounts.sign_in(body.value, from).await? {
        SignInStep::Session(cookie, user) => signed_in(&accounts, &cookie, user),
        SignInStep::Challenge(challenge) => (StatusCode::ACCEPTED, Answer(challenge)).into_response(),
    })
}

/// The header with the program of the sender.
pub fn browser(headers: &HeaderMap) -> String {
    headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
}

/// The answer with the cookie of a new session.
pub(crate) fn signed_in(accounts: &Accounts, cookie: &str, user: User) -> Response {
    let settings = &accounts.context.settings;
    let cookie = set_cookie(settings.https, cookie, settings.session_absolute_s);
    (StatusCode::CREATED, [(header::SET_COOKIE, cookie)], Answer(user)).into_response()
}

async fn sign_in_with_code(
    State(accounts): State<Accounts>,
    Sender(address): Sender,
    disconnect: Disconnect,
    headers: HeaderMap,
    body: Json<SecondFactorSignIn>,
) -> Result<Response, Failed> {
    let former = session_cookie(&headers, accounts.context.settings.https);
    let from = SignInOrigin { address, disconnect, browser: browser(&headers), former };
    let (cookie, user) = accounts.sign_in_with_code(body.value, from).await?;
    Ok(signed_in(&accounts, &cookie, user))
}

async fn sign_out(State(accounts): State<Accounts>, headers: HeaderMap) -> Result<Response, Failed> {
    if let Some(cookie) = session_cookie(&headers, accounts.context.settings.https) {
        accounts.sign_out(&cookie).await?;
    }
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, set_cookie(accounts.context.settings.https, "", 0))])
        .into_response())
}

async fn me(
    State(accounts): State<Accounts>,
    SignedUnenrolled(caller): SignedUnenrolled,
) -> Result<Answer<Me>, Failed> {
    Ok(Answer(accounts.me(&caller).await?))
}

async fn rename(
    State(accounts): State<Accounts>,
    Signed(caller): Signed,
    body: Json<PatchMe>,
) -> Result<Answer<User>, Failed> {
    Ok(Answer(name::rename(&accounts.context, &caller, &body.value.name).await?))
}

async fn list_tokens(
    State(accounts): State<Accounts>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<ListQuery>,
) -> Result<Answer<Page<Token>>, Failed> {
    Ok(Answer(accounts.list_tokens(&caller, Some(org), &query.by_creation()?).await?))
}

async fn create_token(
    State(accounts): State<Accounts>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<NewToken>,
) -> Result<Created<CreatedToken>, Failed> {
    Ok(Created(accounts.create_token(&caller, org, body.value).await?))
}

async fn create_operator_token(
    State(accounts): State<Accounts>,
    Signed(caller): Signed,
    body: Json<NewOperatorToken>,
) -> Result<Created<CreatedToken>, Failed> {
    Ok(Created(accounts.create_operator_token(&caller, body.value).await?))
}

async fn revoke_token(
    State(accounts): State<Accounts>,
    Signed(caller): Signed,
    Path((org, token)): Path<(OrgId, TokenId)>,
) -> Result<NoContent, Failed> {
    accounts.revoke_token(&caller, Some(org), token).await?;
    Ok(NoContent)
}

async fn list_operator_tokens(
    State(accounts): State<Accounts>,
    Signed(caller): Signed,
    Query(query): Query<ListQuery>,
) -> Result<Answer<Page<Token>>, Failed> {
    Ok(Answer(accounts.list_tokens(&caller, None, &query.by_creation()?).await?))
}

async fn revoke_operator_token(
    State(accounts): State<Accounts>,
    Signed(caller): Signed,
    Path(token): Path<TokenId>,
) -> Result<NoContent, Failed> {
    accounts.revoke_token(&caller, None, token).await?;
    Ok(NoContent)
}

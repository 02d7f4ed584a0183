//! Set-up, sign-up, sessions, who am I, tokens, organizations.

use std::net::SocketAddr;

use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{delete, get, post};
use axum::{Extension, Json as Answer, Router};
use berth_types::Page;
use berth_types::accounts::{
    CreatedToken, Me, NewOperatorToken, NewToken, OrgSummary, PortalInfo, Setup, SignIn, SignUp, SignedUp,
    Token, User,
};
use berth_types::ids::{OrgId, TokenId};

use super::extract::{Failed, Json, Path, Signed, cookie_name, session_cookie};
use crate::portal::Portal;

pub fn routes() -> Router<Portal> {
    Router::new()
        .route("/info", get(info))
        .route("/setup", post(set_up))
        .route("/sign-up", post(sign_up))
        .route("/sessions", post(sign_in))
        .route("/sessions/current", delete(sign_out))
        .route("/me", get(me))
        .route("/orgs/{org}/tokens", get(list_tokens).post(create_token))
        .route("/orgs/{org}/tokens/{token}", delete(revoke_token))
        .route("/operator/orgs", get(list_orgs))
        .route("/operator/tokens", get(list_operator_tokens).post(create_operator_token))
        .route("/operator/tokens/{token}", delete(revoke_operator_token))
}

async fn info(State(portal): State<Portal>) -> Result<Answer<PortalInfo>, Failed> {
    Ok(Answer(portal.accounts.info().await?))
}

async fn set_up(
    State(portal): State<Portal>,
    body: Json<Setup>,
) -> Result<(StatusCode, Answer<User>), Failed> {
    Ok((StatusCode::CREATED, Answer(portal.accounts.set_up(body.value).await?)))
}

async fn sign_up(
    State(portal): State<Portal>,
    body: Json<SignUp>,
) -> Result<(StatusCode, Answer<SignedUp>), Failed> {
    Ok((StatusCode::CREATED, Answer(portal.accounts.sign_up(body.value).await?)))
}

fn set_cookie(portal: &Portal, value: &str, max_age_s: i64) -> String {
    let name = cookie_name(portal.context.settings.https);
    let secure = if portal.context.settings.https { "; Secure" } else { "" };
    format!("{name}={value}; Path=/; Max-Age={max_age_s}; HttpOnly; SameSite=Lax{secure}")
}

async fn sign_in(
    State(portal): State<Portal>,
    peer: Option<Extension<ConnectInfo<SocketAddr>>>,
    body: Json<SignIn>,
) -> Result<impl IntoResponse, Failed> {
    let from = peer.map(|Extension(ConnectInfo(address))| address.ip());
    let (cookie, user) = portal.accounts.sign_in(body.value, from).await?;
    let cookie = set_cookie(&portal, &cookie, portal.context.settings.session_absolute_s);
    Ok((StatusCode::CREATED, [(header::SET_COOKIE, cookie)], Answer(user)))
}

async fn sign_out(State(portal): State<Portal>, headers: HeaderMap) -> Result<impl IntoResponse, Failed> {
    if let Some(cookie) = session_cookie(&headers, portal.context.settings.https) {
        portal.accounts.sign_out(&cookie).await?;
    }
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, set_cookie(&portal, "", 0))]))
}

async fn me(State(portal): State<Portal>, Signed(caller): Signed) -> Result<Answer<Me>, Failed> {
    Ok(Answer(portal.accounts.me(&caller).await?))
}

async fn list_tokens(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
) -> Result<Answer<Page<Token>>, Failed> {
    Ok(Answer(Page::whole(portal.accounts.list_tokens(&caller, Some(org)).await?)))
}

async fn create_token(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<NewToken>,
) -> Result<(StatusCode, Answer<CreatedToken>), Failed> {
    Ok((StatusCode::CREATED, Answer(portal.accounts.create_token(&caller, org, body.value).await?)))
}

async fn create_operator_token(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    body: Json<NewOperatorToken>,
) -> Result<(StatusCode, Answer<CreatedToken>), Failed> {
    Ok((StatusCode::CREATED, Answer(portal.accounts.create_operator_token(&caller, body.value).await?)))
}

async fn revoke_token(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path((org, token)): Path<(OrgId, TokenId)>,
) -> Result<StatusCode, Failed> {
    portal.accounts.revoke_token(&caller, Some(org), token).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn list_operator_tokens(
    State(portal): State<Portal>,
    Signed(caller): Signed,
) -> Result<Answer<Page<Token>>, Failed> {
    Ok(Answer(Page::whole(portal.accounts.list_tokens(&caller, None).await?)))
}

async fn revoke_operator_token(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(token): Path<TokenId>,
) -> Result<StatusCode, Failed> {
    portal.accounts.revoke_token(&caller, None, token).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn list_orgs(
    State(portal): State<Portal>,
    Signed(caller): Signed,
) -> Result<Answer<Page<OrgSummary>>, Failed> {
    Ok(Answer(Page::whole(portal.ledger.list_org_summaries(&caller).await?)))
}

//! The metrics of the whole portal for Prometheus, and the tokens that read them.

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{delete, get};
use axum::{Json as Answer, Router};
use berth_proto::exposition::CONTENT_TYPE;
use berth_types::Page;
use berth_types::accounts::{CreatedToken, NewOperatorToken, Token};
use berth_types::ids::TokenId;

use super::extract::{Failed, Json, Path, Signed};
use crate::portal::Portal;

pub fn routes() -> Router<Portal> {
    Router::new()
        .route("/operator/metrics-tokens", get(list_tokens).post(create_token))
        .route("/operator/metrics-tokens/{token}", delete(revoke_token))
}

/// Cookies mean nothing here: what reads metrics has a token.
pub async fn show(State(portal): State<Portal>, headers: HeaderMap) -> Result<impl IntoResponse, Failed> {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let secret = given.and_then(|value| value.strip_prefix("Bearer ")).map(str::trim);
    let text = portal.metrics.metrics(secret).await?;
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE), (header::CACHE_CONTROL, "no-store")], text))
}

async fn list_tokens(
    State(portal): State<Portal>,
    Signed(caller): Signed,
) -> Result<Answer<Page<Token>>, Failed> {
    Ok(Answer(Page::whole(portal.metrics.list_metrics_tokens(&caller).await?)))
}

async fn create_token(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    body: Json<NewOperatorToken>,
) -> Result<(StatusCode, Answer<CreatedToken>), Failed> {
    Ok((StatusCode::CREATED, Answer(portal.metrics.create_metrics_token(&caller, body.value).await?)))
}

async fn revoke_token(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(token): Path<TokenId>,
) -> Result<StatusCode, Failed> {
    portal.metrics.revoke_metrics_token(&caller, token).await?;
    Ok(StatusCode::NO_CONTENT)
}

//! The metrics of the portal for Prometheus, and the tokens for them.

use aide::axum::ApiRouter;
use aide::axum::routing::{delete_with, get_with};
use axum::Json as Answer;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, NoContent};
use berth_proto::exposition::CONTENT_TYPE;
use berth_types::Page;
use berth_types::accounts::{CreatedToken, NewOperatorToken, Token};
use berth_types::ids::TokenId;

use super::answers::Created;
use super::extract::{Failed, Json, Path, Signed};
use super::openapi::doc;
use crate::portal::Portal;

pub fn routes() -> ApiRouter<Portal> {
    ApiRouter::new()
        .api_route(
            "/operator/metrics-tokens",
            get_with(list_tokens, doc("Lists the tokens for `/metrics`."))
                .post_with(create_token, doc("Creates a token for `/metrics`; its secret is shown once.")),
        )
        .api_route(
            "/operator/metrics-tokens/{token}",
            delete_with(revoke_token, doc("Revokes a token for `/metrics`.")),
        )
}

/// Accepts tokens only, no session cookies.
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
) -> Result<Created<CreatedToken>, Failed> {
    Ok(Created(portal.metrics.create_metrics_token(&caller, body.value).await?))
}

async fn revoke_token(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(token): Path<TokenId>,
) -> Result<NoContent, Failed> {
    portal.metrics.revoke_metrics_token(&caller, token).await?;
    Ok(NoContent)
}

//! The metrics of the portal for Prometheus, and the tokens for them.

use aide::axum::ApiRouter;
use aide::axum::routing::{delete_with, get_with};
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, NoContent};
use axum::routing::get;
use axum::{Json as Answer, Router};
use berth_contract::exposition::CONTENT_TYPE;
use berth_rest::answers::Created;
use berth_rest::lists::ListQuery;
use berth_rest::operations::doc;
use berth_rest::{Failed, Json, Path, Query, Sender, Signed};
use berth_types::Page;
use berth_types::accounts::{CreatedToken, NewMetricsToken, Token};
use berth_types::ids::TokenId;
use berth_types::scopes::ApiScope;

use super::Metrics;

pub fn routes() -> ApiRouter<Metrics> {
    ApiRouter::new()
        .api_route(
            "/operator/metrics-tokens",
            get_with(list_tokens, doc(ApiScope::MembersRead, "Lists the tokens for `/metrics`.")).post_with(
                create_token,
                doc(ApiScope::Admin, "Creates a token for `/metrics`; its secret is shown once."),
            ),
        )
        .api_route(
            "/operator/metrics-tokens/{token}",
            delete_with(revoke_token, doc(ApiScope::Admin, "Revokes a token for `/metrics`.")),
        )
}

/// The route `/metrics`.
pub fn exposition(metrics: Metrics) -> Router {
    Router::new().route("/metrics", get(show)).with_state(metrics)
}

/// Accepts tokens only, no session cookies.
pub async fn show(
    State(metrics): State<Metrics>,
    Sender(sender): Sender,
    headers: HeaderMap,
) -> Result<impl IntoResponse, Failed> {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let secret = given.and_then(|value| value.strip_prefix("Bearer ")).map(str::trim);
    let text = metrics.metrics(secret, sender).await?;
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE), (header::CACHE_CONTROL, "no-store")], text))
}

async fn list_tokens(
    State(metrics): State<Metrics>,
    Signed(caller): Signed,
    Query(query): Query<ListQuery>,
) -> Result<Answer<Page<Token>>, Failed> {
    Ok(Answer(metrics.list_metrics_tokens(&caller, &query.by_creation()?).await?))
}

async fn create_token(
    State(metrics): State<Metrics>,
    Signed(caller): Signed,
    body: Json<NewMetricsToken>,
) -> Result<Created<CreatedToken>, Failed> {
    Ok(Created(metrics.create_metrics_token(&caller, body.value).await?))
}

async fn revoke_token(
    State(metrics): State<Metrics>,
    Signed(caller): Signed,
    Path(token): Path<TokenId>,
) -> Result<NoContent, Failed> {
    metrics.revoke_metrics_token(&caller, token).await?;
    Ok(NoContent)
}

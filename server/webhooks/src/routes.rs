//! Webhooks and their deliveries.

use super::Webhooks;
use aide::axum::ApiRouter;
use aide::axum::routing::{delete_with, get_with, post_with};
use axum::Json as Answer;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::NoContent;
use berth_rest::answers::Created;
use berth_rest::lists::ListQuery;
use berth_rest::operations::{doc, empty};
use berth_rest::{Failed, Json, Path, Query, Signed};
use berth_types::ids::{DeliveryId, OrgId, WebhookId};
use berth_types::scopes::ApiScope;
use berth_types::webhooks::{Delivery, DeliveryState, NewWebhook, Webhook};
use berth_types::{Page, Sort};
use serde::Deserialize;

pub fn routes() -> ApiRouter<Webhooks> {
    ApiRouter::new()
        .api_route(
            "/orgs/{org}/webhooks",
            get_with(list, doc(ApiScope::MembersRead, "Lists the webhooks of an organization."))
                .post_with(create, doc(ApiScope::Admin, "Creates a webhook; its secret is shown once.")),
        )
        .api_route(
            "/orgs/{org}/webhooks/{id}",
            delete_with(remove, doc(ApiScope::Admin, "Removes a webhook.")),
        )
        .api_route(
            "/orgs/{org}/webhooks/{id}/deliveries",
            get_with(deliveries, doc(ApiScope::MembersRead, "Lists the deliveries of a webhook.")),
        )
        .api_route(
            "/orgs/{org}/deliveries/{id}/redeliver",
            post_with(redeliver, empty::<202>(ApiScope::Admin, "Delivers an event again.")),
        )
}

async fn create(
    State(webhooks): State<Webhooks>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<NewWebhook>,
) -> Result<Created<Webhook>, Failed> {
    Ok(Created(webhooks.create_webhook(&caller, org, body.value).await?))
}

async fn list(
    State(webhooks): State<Webhooks>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<ListQuery>,
) -> Result<Answer<Page<Webhook>>, Failed> {
    Ok(Answer(webhooks.list_webhooks(&caller, org, &query.by_creation()?).await?))
}

async fn remove(
    State(webhooks): State<Webhooks>,
    Signed(caller): Signed,
    Path((org, id)): Path<(OrgId, WebhookId)>,
) -> Result<NoContent, Failed> {
    webhooks.delete_webhook(&caller, org, id).await?;
    Ok(NoContent)
}

/// The query of the deliveries of a webhook.
#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct DeliveryQuery {
    /// Only deliveries in this state.
    state: Option<DeliveryState>,
    /// The most items of a page, 1 to 200; 50 when absent.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    #[schemars(length(min = 1, max = 4_096))]
    cursor: Option<String>,
    /// The order of the list. When absent, `desc` for lists by creation and `asc` for all other lists.
    sort: Option<Sort>,
}

async fn deliveries(
    State(webhooks): State<Webhooks>,
    Signed(caller): Signed,
    Path(hook): Path<(OrgId, WebhookId)>,
    Query(query): Query<DeliveryQuery>,
) -> Result<Answer<Page<Delivery>>, Failed> {
    let options = ListQuery { limit: query.limit, cursor: query.cursor, sort: query.sort }
        .by_creation_with(&query.state)?;
    Ok(Answer(webhooks.list_deliveries(&caller, hook, query.state, &options).await?))
}

async fn redeliver(
    State(webhooks): State<Webhooks>,
    Signed(caller): Signed,
    Path((org, id)): Path<(OrgId, DeliveryId)>,
) -> Result<StatusCode, Failed> {
    webhooks.redeliver(&caller, org, id).await?;
    Ok(StatusCode::ACCEPTED)
}

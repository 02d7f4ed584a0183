//! Webhooks and their deliveries.

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{delete, get, post};
use axum::{Json as Answer, Router};
use berth_types::Page;
use berth_types::ids::{DeliveryId, OrgId, WebhookId};
use berth_types::webhooks::{Delivery, NewWebhook, Webhook};
use serde::Deserialize;

use super::extract::{Failed, Json, Path, Query, Signed, limit};
use crate::portal::Portal;

pub fn routes() -> Router<Portal> {
    Router::new()
        .route("/orgs/{org}/webhooks", get(list).post(create))
        .route("/orgs/{org}/webhooks/{id}", delete(remove))
        .route("/orgs/{org}/webhooks/{id}/deliveries", get(deliveries))
        .route("/orgs/{org}/deliveries/{id}/redeliver", post(redeliver))
}

async fn create(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<NewWebhook>,
) -> Result<(StatusCode, Answer<Webhook>), Failed> {
    Ok((StatusCode::CREATED, Answer(portal.webhooks.create_webhook(&caller, org, body.value).await?)))
}

async fn list(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
) -> Result<Answer<Page<Webhook>>, Failed> {
    Ok(Answer(portal.webhooks.list_webhooks(&caller, org).await?))
}

async fn remove(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path((org, id)): Path<(OrgId, WebhookId)>,
) -> Result<StatusCode, Failed> {
    portal.webhooks.delete_webhook(&caller, org, id).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    limit: Option<u32>,
}

async fn deliveries(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path((org, id)): Path<(OrgId, WebhookId)>,
    Query(query): Query<List>,
) -> Result<Answer<Page<Delivery>>, Failed> {
    Ok(Answer(portal.webhooks.list_deliveries(&caller, org, id, limit(query.limit)?).await?))
}

async fn redeliver(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path((org, id)): Path<(OrgId, DeliveryId)>,
) -> Result<StatusCode, Failed> {
    portal.webhooks.redeliver(&caller, org, id).await?;
    Ok(StatusCode::ACCEPTED)
}

//! Secrets of an organization. No answer has a secret's value.

use aide::axum::ApiRouter;
use aide::axum::routing::{get_with, put_with};
use axum::Json as Answer;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::NoContent;
use berth_types::Page;
use berth_types::ids::OrgId;
use berth_types::problems::Problem;
use berth_types::secrets::{PutSecret, Secret};
use serde::Deserialize;
use serde_json::Value;

use super::extract::{Failed, Json, Path, Query, Signed, limit};
use super::openapi::{doc, put_secret};
use crate::portal::Portal;

pub fn routes() -> ApiRouter<Portal> {
    ApiRouter::new()
        .api_route(
            "/orgs/{org}/secrets",
            get_with(list, doc("Lists the names of an organization's secrets.")),
        )
        .api_route(
            "/orgs/{org}/secrets/{name}",
            put_with(set, put_secret("Creates or replaces a secret; its value is never shown."))
                .delete_with(remove, doc("Removes a secret.")),
        )
}

#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct List {
    limit: Option<u32>,
    cursor: Option<String>,
}

async fn list(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<List>,
) -> Result<Answer<Page<Secret>>, Failed> {
    Ok(Answer(portal.secrets.list_secrets(&caller, org, query.cursor, limit(query.limit)?).await?))
}

async fn set(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path((org, name)): Path<(OrgId, String)>,
    body: Json<Value>,
) -> Result<(StatusCode, Answer<Secret>), Failed> {
    // An error text of serde may contain the value.
    let input: PutSecret = serde_json::from_value(body.value)
        .map_err(|_| Problem::invalid_field("", "Send {\"value\": \"…\"} and nothing else."))?;
    let secret = portal.secrets.put_secret(&caller, org, name, input).await?;
    let status = if secret.version == 1 { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Answer(secret)))
}

async fn remove(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path((org, name)): Path<(OrgId, String)>,
) -> Result<NoContent, Failed> {
    portal.secrets.delete_secret(&caller, org, name).await?;
    Ok(NoContent)
}

//! Secrets of an organization. No answer has a secret's value.

use super::Secrets;
use aide::axum::ApiRouter;
use aide::axum::routing::{get_with, put_with};
use axum::Json as Answer;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::NoContent;
use berth_rest::lists::ListQuery;
use berth_rest::operations::{doc, put_secret};
use berth_rest::{Failed, Json, Path, Query, Signed};
use berth_types::Page;
use berth_types::ids::OrgId;
use berth_types::problems::Problem;
use berth_types::scopes::ApiScope;
use berth_types::secrets::{PutSecret, Secret};
use serde_json::Value;

pub fn routes() -> ApiRouter<Secrets> {
    ApiRouter::new()
        .api_route(
            "/orgs/{org}/secrets",
            get_with(list, doc(ApiScope::StorageRead, "Lists the names of an organization's secrets.")),
        )
        .api_route(
            "/orgs/{org}/secrets/{name}",
            put_with(
                set,
                put_secret(ApiScope::StorageWrite, "Creates or replaces a secret; its value is never shown."),
            )
            .delete_with(remove, doc(ApiScope::StorageWrite, "Removes a secret.")),
        )
}

async fn list(
    State(secrets): State<Secrets>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<ListQuery>,
) -> Result<Answer<Page<Secret>>, Failed> {
    Ok(Answer(secrets.list_secrets(&caller, org, &query.by_name()?).await?))
}

async fn set(
    State(secrets): State<Secrets>,
    Signed(caller): Signed,
    Path((org, name)): Path<(OrgId, String)>,
    body: Json<Value>,
) -> Result<(StatusCode, Answer<Secret>), Failed> {
    // An error text of serde may contain the value.
    let input: PutSecret = serde_json::from_value(body.value)
        .map_err(|_| Problem::invalid_field("", "Send {\"value\": \"…\"} without other fields."))?;
    let secret = secrets.put_secret(&caller, org, name, input).await?;
    let status = if secret.version == 1 { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Answer(secret)))
}

async fn remove(
    State(secrets): State<Secrets>,
    Signed(caller): Signed,
    Path((org, name)): Path<(OrgId, String)>,
) -> Result<NoContent, Failed> {
    secrets.delete_secret(&caller, org, name).await?;
    Ok(NoContent)
}

//! Secrets of an organization. No answer has a value.

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, put};
use axum::{Json as Answer, Router};
use berth_types::Page;
use berth_types::ids::OrgId;
use berth_types::problems::Problem;
use berth_types::secrets::{PutSecret, Secret};
use serde::Deserialize;
use serde_json::Value;

use super::extract::{Failed, Json, Path, Query, Signed, limit};
use crate::portal::Portal;

pub fn routes() -> Router<Portal> {
    Router::new()
        .route("/orgs/{org}/secrets", get(list))
        .route("/orgs/{org}/secrets/{name}", put(set).delete(remove))
}

#[derive(Deserialize)]
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
    // What serde says of a body that does not fit may repeat it.
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
) -> Result<StatusCode, Failed> {
    portal.secrets.delete_secret(&caller, org, name).await?;
    Ok(StatusCode::NO_CONTENT)
}

//! Offerings, prices, credit, balance and statement.

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json as Answer, Router};
use berth_types::Page;
use berth_types::ids::OrgId;
use berth_types::ledger::{Balance, NewCredit, Transfer};
use berth_types::offerings::{NewPrice, Offering};
use serde::Deserialize;

use super::extract::{Failed, Json, Path, Query, Signed, cursor, limit};
use crate::portal::Portal;

pub fn routes() -> Router<Portal> {
    Router::new()
        .route("/offerings", get(list_offerings))
        .route("/operator/prices", post(set_price))
        .route("/operator/orgs/{org}/credits", post(grant_credit))
        .route("/orgs/{org}/balance", get(balance))
        .route("/orgs/{org}/transfers", get(list_transfers))
}

async fn list_offerings(State(portal): State<Portal>) -> Result<Answer<Page<Offering>>, Failed> {
    Ok(Answer(Page::whole(portal.list_offerings().await?)))
}

async fn set_price(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    body: Json<NewPrice>,
) -> Result<(StatusCode, Answer<Offering>), Failed> {
    Ok((StatusCode::CREATED, Answer(portal.set_price(&caller, body.value).await?)))
}

async fn grant_credit(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<NewCredit>,
) -> Result<(StatusCode, Answer<Balance>), Failed> {
    Ok((StatusCode::CREATED, Answer(portal.grant_credit(&caller, org, body.value).await?)))
}

async fn balance(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
) -> Result<Answer<Balance>, Failed> {
    Ok(Answer(portal.balance(&caller, org).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListTransfers {
    limit: Option<u32>,
    cursor: Option<String>,
}

async fn list_transfers(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<ListTransfers>,
) -> Result<Answer<Page<Transfer>>, Failed> {
    let page = portal.list_transfers(&caller, org, cursor(query.cursor)?, limit(query.limit)?);
    Ok(Answer(page.await?))
}

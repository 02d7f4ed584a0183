//! Offerings, prices, credit, balance and statement.

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json as Answer, Router};
use berth_types::Page;
use berth_types::ids::OrgId;
use berth_types::ledger::{Balance, NewCredit};
use berth_types::offerings::{NewPrice, Offering};
use berth_types::problems::Problem;
use serde::Deserialize;

use super::extract::{Failed, Format, Json, Path, Query, Signed, cursor, limit, plain_cell, wants_csv};
use crate::portal::Portal;
use crate::service::Caller;

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
    format: Option<Format>,
}

async fn list_transfers(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<ListTransfers>,
    headers: HeaderMap,
) -> Result<Response, Failed> {
    if wants_csv(query.format, &headers) {
        return transfers_csv(&portal, &caller, org).await;
    }
    let page = portal.list_transfers(&caller, org, cursor(query.cursor)?, limit(query.limit)?);
    Ok(Answer(page.await?).into_response())
}

/// The whole statement, newest first.
async fn transfers_csv(portal: &Portal, caller: &Caller, org: OrgId) -> Result<Response, Failed> {
    let mut file = csv::Writer::from_writer(Vec::new());
    let broken = |_| Failed(Problem::internal());
    file.write_record(["at", "id", "kind", "amount_micros", "currency", "source", "source_id", "memo"])
        .map_err(broken)?;
    let mut from = None;
    loop {
        let page = portal.list_transfers(caller, org, from, 200).await?;
        for t in page.items {
            let cells = [
                t.at.to_string(),
                t.id.to_string(),
                t.kind.name().to_owned(),
                t.amount_micros.to_string(),
                t.currency,
                t.source,
                t.source_id,
                plain_cell(t.memo),
            ];
            file.write_record(cells).map_err(broken)?;
        }
        from = match page.next_cursor {
            None => break,
            Some(next) => cursor(Some(next))?,
        };
    }
    let bytes = file.into_inner().map_err(|_| Failed(Problem::internal()))?;
    let head = [
        (header::CONTENT_TYPE, "text/csv; charset=utf-8"),
        (header::CONTENT_DISPOSITION, "attachment; filename=\"statement.csv\""),
    ];
    Ok((head, bytes).into_response())
}

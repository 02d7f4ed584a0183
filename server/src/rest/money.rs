//! Offerings, prices, credit, balance and statement.

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Extension, Json as Answer, Router};
use berth_types::Page;
use berth_types::ids::OrgId;
use berth_types::ledger::{Balance, CreditLimit, Granted, NewCredit, NewCredits, NewDebit, Reconciliation};
use berth_types::offerings::{NewPrice, Offering, PriceVersion};
use berth_types::problems::Problem;
use berth_types::usage::GroupBy;
use serde::Deserialize;

use super::extract::{Failed, Format, Json, Path, Query, Signed, cursor, limit, plain_cell, wants_csv};
use super::once::NotKept;
use crate::portal::Portal;
use berth_foundation::Caller;

pub fn routes() -> Router<Portal> {
    Router::new()
        .route("/offerings", get(list_offerings))
        .route("/operator/prices", get(list_prices).post(set_price))
        .route("/operator/credits", post(grant_credits))
        .route("/operator/orgs/{org}/credits", post(grant_credit))
        .route("/operator/orgs/{org}/debits", post(debit))
        .route("/operator/orgs/{org}/credit-limit", put(set_credit_limit))
        .route("/operator/reconciliation", get(reconciliation).post(reconcile))
        .route("/orgs/{org}/usage", get(usage))
        .route("/orgs/{org}/balance", get(balance))
        .route("/orgs/{org}/transfers", get(list_transfers))
}

async fn list_offerings(State(portal): State<Portal>) -> Result<Answer<Page<Offering>>, Failed> {
    Ok(Answer(Page::whole(portal.offerings.list_offerings().await?)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Preview {
    #[serde(default)]
    preview: bool,
}

async fn set_price(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Query(query): Query<Preview>,
    body: Json<NewPrice>,
) -> Result<Response, Failed> {
    if query.preview {
        let preview = portal.offerings.preview_price(&caller, body.value).await?;
        return Ok((Extension(NotKept), Answer(preview)).into_response());
    }
    Ok((StatusCode::CREATED, Answer(portal.offerings.set_price(&caller, body.value).await?)).into_response())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfOffering {
    offering: String,
}

async fn list_prices(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Query(query): Query<OfOffering>,
) -> Result<Answer<Page<PriceVersion>>, Failed> {
    Ok(Answer(portal.offerings.list_prices(&caller, &query.offering).await?))
}

async fn grant_credit(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<NewCredit>,
) -> Result<(StatusCode, Answer<Balance>), Failed> {
    Ok((StatusCode::CREATED, Answer(portal.ledger.grant_credit(&caller, org, body.value).await?)))
}

async fn grant_credits(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    body: Json<NewCredits>,
) -> Result<(StatusCode, Answer<Granted>), Failed> {
    Ok((StatusCode::CREATED, Answer(portal.ledger.grant_credits(&caller, body.value).await?)))
}

async fn debit(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<NewDebit>,
) -> Result<(StatusCode, Answer<Balance>), Failed> {
    Ok((StatusCode::CREATED, Answer(portal.ledger.debit(&caller, org, body.value).await?)))
}

async fn set_credit_limit(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<CreditLimit>,
) -> Result<Answer<Balance>, Failed> {
    Ok(Answer(portal.ledger.set_credit_limit(&caller, org, body.value).await?))
}

async fn reconciliation(
    State(portal): State<Portal>,
    Signed(caller): Signed,
) -> Result<Answer<Reconciliation>, Failed> {
    Ok(Answer(portal.reconciliations.reconciliation(&caller, false).await?))
}

async fn reconcile(
    State(portal): State<Portal>,
    Signed(caller): Signed,
) -> Result<Answer<Reconciliation>, Failed> {
    Ok(Answer(portal.reconciliations.reconciliation(&caller, true).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfUsage {
    from: Option<String>,
    until: Option<String>,
    #[serde(default)]
    group: GroupBy,
    label: Option<String>,
    format: Option<Format>,
}

async fn usage(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<OfUsage>,
    headers: HeaderMap,
) -> Result<Response, Failed> {
    let days = (query.from.as_deref(), query.until.as_deref());
    let usage = portal.usage.usage(&caller, org, days, query.group, query.label.as_deref()).await?;
    if !wants_csv(query.format, &headers) {
        return Ok(Answer(usage).into_response());
    }
    let mut file = csv::Writer::from_writer(Vec::new());
    let broken = |_| Failed(Problem::internal());
    file.write_record(["day", "key", "device_ms", "cost_micros", "currency"]).map_err(broken)?;
    for row in usage.rows {
        let cells = [
            row.day,
            plain_cell(row.key),
            row.device_ms.to_string(),
            row.cost_micros.to_string(),
            usage.currency.clone(),
        ];
        file.write_record(cells).map_err(broken)?;
    }
    csv_answer(file, "usage.csv")
}

async fn balance(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
) -> Result<Answer<Balance>, Failed> {
    Ok(Answer(portal.ledger.balance(&caller, org).await?))
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
    let page = portal.ledger.list_transfers(&caller, org, cursor(query.cursor)?, limit(query.limit)?);
    Ok(Answer(page.await?).into_response())
}

/// The whole statement, newest first.
async fn transfers_csv(portal: &Portal, caller: &Caller, org: OrgId) -> Result<Response, Failed> {
    let mut file = csv::Writer::from_writer(Vec::new());
    let broken = |_| Failed(Problem::internal());
    let head = ["at", "id", "kind", "amount_micros", "currency", "source", "source_id", "memo", "expires_at"];
    file.write_record(head).map_err(broken)?;
    let mut from = None;
    loop {
        let page = portal.ledger.list_transfers(caller, org, from, 200).await?;
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
                t.expires_at.map_or_else(String::new, |at| at.to_string()),
            ];
            file.write_record(cells).map_err(broken)?;
        }
        from = match page.next_cursor {
            None => break,
            Some(next) => cursor(Some(next))?,
        };
    }
    csv_answer(file, "statement.csv")
}

fn csv_answer(file: csv::Writer<Vec<u8>>, name: &str) -> Result<Response, Failed> {
    let bytes = file.into_inner().map_err(|_| Failed(Problem::internal()))?;
    let head = [
        (header::CONTENT_TYPE, "text/csv; charset=utf-8".to_owned()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename=\"{name}\"")),
    ];
    Ok((head, bytes).into_response())
}

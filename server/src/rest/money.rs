//! Offerings, prices, credits, debits, usage, balances and transfers.

use aide::axum::ApiRouter;
use aide::axum::routing::{get_with, post_with, put_with};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json as Answer};
use berth_types::Page;
use berth_types::ids::OrgId;
use berth_types::ledger::Transfer;
use berth_types::ledger::{Balance, CreditLimit, Granted, NewCredit, NewCredits, NewDebit, Reconciliation};
use berth_types::offerings::PricePreview;
use berth_types::offerings::{NewPrice, Offering, PriceVersion};
use berth_types::problems::Problem;
use berth_types::usage::GroupBy;
use berth_types::usage::Usage;
use serde::Deserialize;

use super::answers::Created;
use super::extract::{Failed, Format, Json, Path, Query, Signed, cursor, limit, plain_cell, wants_csv};
use super::idempotency::NotKept;
use super::openapi::{answers_either, doc, or_csv};
use crate::portal::Portal;
use berth_foundation::Caller;

pub fn routes() -> ApiRouter<Portal> {
    ApiRouter::new()
        .api_route("/offerings", get_with(list_offerings, doc("Lists the offerings with their prices.")))
        .api_route(
            "/operator/prices",
            get_with(list_prices, doc("Lists the versions of all prices.")).post_with(
                set_price,
                answers_either::<201, Offering, 200, PricePreview>(
                    "Sets a price; with `preview` gives its effect only.",
                ),
            ),
        )
        .api_route(
            "/operator/credits",
            post_with(grant_credits, doc("Grants credit to several organizations.")),
        )
        .api_route(
            "/operator/orgs/{org}/credits",
            post_with(grant_credit, doc("Grants credit to an organization.")),
        )
        .api_route("/operator/orgs/{org}/debits", post_with(debit, doc("Debits an organization.")))
        .api_route(
            "/operator/orgs/{org}/credit-limit",
            put_with(set_credit_limit, doc("Sets the credit limit of an organization.")),
        )
        .api_route(
            "/operator/reconciliation",
            get_with(reconciliation, doc("Gives the last reconciliation of the ledger."))
                .post_with(reconcile, doc("Reconciles the ledger now.")),
        )
        .api_route(
            "/orgs/{org}/usage",
            get_with(usage, or_csv::<Usage>("Gives the charged use of an organization by day or group.")),
        )
        .api_route("/orgs/{org}/balance", get_with(balance, doc("Gives the balance of an organization.")))
        .api_route(
            "/orgs/{org}/transfers",
            get_with(list_transfers, or_csv::<Page<Transfer>>("Lists the transfers of an organization.")),
        )
}

async fn list_offerings(State(portal): State<Portal>) -> Result<Answer<Page<Offering>>, Failed> {
    Ok(Answer(Page::whole(portal.offerings.list_offerings().await?)))
}

#[derive(Deserialize, schemars::JsonSchema)]
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

#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct OfferingQuery {
    offering: String,
}

async fn list_prices(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Query(query): Query<OfferingQuery>,
) -> Result<Answer<Page<PriceVersion>>, Failed> {
    Ok(Answer(portal.offerings.list_prices(&caller, &query.offering).await?))
}

async fn grant_credit(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<NewCredit>,
) -> Result<Created<Balance>, Failed> {
    Ok(Created(portal.ledger.grant_credit(&caller, org, body.value).await?))
}

async fn grant_credits(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    body: Json<NewCredits>,
) -> Result<Created<Granted>, Failed> {
    Ok(Created(portal.ledger.grant_credits(&caller, body.value).await?))
}

async fn debit(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<NewDebit>,
) -> Result<Created<Balance>, Failed> {
    Ok(Created(portal.ledger.debit(&caller, org, body.value).await?))
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

#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct UsageQuery {
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
    Query(query): Query<UsageQuery>,
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

#[derive(Deserialize, schemars::JsonSchema)]
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

/// All transfers of an organization as CSV, newest first.
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

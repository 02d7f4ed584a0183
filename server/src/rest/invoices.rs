//! Budgets, invoices and what they say.

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{delete, get, post};
use axum::{Json as Answer, Router};
use berth_types::Page;
use berth_types::budgets::{Budget, NewBudget};
use berth_types::ids::{BudgetId, InvoiceId, OrgId};
use berth_types::invoices::{BillingSettings, Invoice};
use serde::{Deserialize, Serialize};

use super::extract::{Failed, Json, Path, Query, Signed, cursor, limit};
use crate::portal::Portal;

pub fn routes() -> Router<Portal> {
    Router::new()
        .route("/orgs/{org}/budgets", get(list_budgets).post(create_budget))
        .route("/orgs/{org}/budgets/{id}", delete(delete_budget))
        .route("/orgs/{org}/invoices", get(list))
        .route("/orgs/{org}/invoices/{id}", get(show))
        .route("/operator/invoices", get(list_all).post(bill))
        .route("/operator/invoices/{id}/paid", post(pay))
        .route("/operator/invoices/{id}/void", post(void))
        .route("/operator/billing-settings", get(settings).put(set_settings))
}

async fn create_budget(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<NewBudget>,
) -> Result<(StatusCode, Answer<Budget>), Failed> {
    Ok((StatusCode::CREATED, Answer(portal.budgets.create_budget(&caller, org, body.value).await?)))
}

async fn list_budgets(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
) -> Result<Answer<Page<Budget>>, Failed> {
    Ok(Answer(portal.budgets.list_budgets(&caller, org).await?))
}

async fn delete_budget(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path((org, id)): Path<(OrgId, BudgetId)>,
) -> Result<StatusCode, Failed> {
    portal.budgets.delete_budget(&caller, org, id).await?;
    Ok(StatusCode::NO_CONTENT)
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
) -> Result<Answer<Page<Invoice>>, Failed> {
    let page = portal.invoices.list_invoices(&caller, Some(org), cursor(query.cursor)?, limit(query.limit)?);
    Ok(Answer(page.await?))
}

async fn show(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path((org, id)): Path<(OrgId, InvoiceId)>,
) -> Result<Answer<Invoice>, Failed> {
    Ok(Answer(portal.invoices.get_invoice(&caller, org, id).await?))
}

async fn list_all(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Query(query): Query<List>,
) -> Result<Answer<Page<Invoice>>, Failed> {
    let page = portal.invoices.list_invoices(&caller, None, cursor(query.cursor)?, limit(query.limit)?);
    Ok(Answer(page.await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Month {
    month: String,
}

#[derive(Serialize)]
struct Made {
    made: usize,
}

async fn bill(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    body: Json<Month>,
) -> Result<(StatusCode, Answer<Made>), Failed> {
    let made = portal.invoices.bill_month(&caller, &body.value.month).await?;
    Ok((StatusCode::CREATED, Answer(Made { made })))
}

async fn pay(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(id): Path<InvoiceId>,
) -> Result<Answer<Invoice>, Failed> {
    Ok(Answer(portal.invoices.pay_invoice(&caller, id).await?))
}

async fn void(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(id): Path<InvoiceId>,
) -> Result<Answer<Invoice>, Failed> {
    Ok(Answer(portal.invoices.void_invoice(&caller, id).await?))
}

async fn settings(
    State(portal): State<Portal>,
    Signed(caller): Signed,
) -> Result<Answer<BillingSettings>, Failed> {
    Ok(Answer(portal.invoices.billing_settings(&caller).await?))
}

async fn set_settings(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    body: Json<BillingSettings>,
) -> Result<Answer<BillingSettings>, Failed> {
    Ok(Answer(portal.invoices.set_billing_settings(&caller, body.value).await?))
}

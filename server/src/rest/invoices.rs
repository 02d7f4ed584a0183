//! Budgets, invoices and their settings.

use aide::axum::ApiRouter;
use aide::axum::routing::{delete_with, get_with, post_with};
use axum::Json as Answer;
use axum::extract::State;
use axum::response::NoContent;
use berth_types::Page;
use berth_types::budgets::{Budget, NewBudget};
use berth_types::ids::{BudgetId, InvoiceId, OrgId};
use berth_types::invoices::{BillingSettings, Invoice};
use serde::{Deserialize, Serialize};

use super::answers::Created;
use super::extract::{Failed, Json, Path, Query, Signed, cursor, limit};
use super::openapi::doc;
use crate::portal::Portal;

pub fn routes() -> ApiRouter<Portal> {
    ApiRouter::new()
        .api_route(
            "/orgs/{org}/budgets",
            get_with(list_budgets, doc("Lists the budgets of an organization with their use."))
                .post_with(create_budget, doc("Creates a budget.")),
        )
        .api_route("/orgs/{org}/budgets/{id}", delete_with(delete_budget, doc("Deletes a budget.")))
        .api_route("/orgs/{org}/invoices", get_with(list, doc("Lists the invoices of an organization.")))
        .api_route("/orgs/{org}/invoices/{id}", get_with(show, doc("Gives an invoice.")))
        .api_route(
            "/operator/invoices",
            get_with(list_all, doc("Lists all invoices."))
                .post_with(bill, doc("Bills the months that have ended.")),
        )
        .api_route("/operator/invoices/{id}/paid", post_with(pay, doc("Marks an invoice as paid.")))
        .api_route("/operator/invoices/{id}/void", post_with(void, doc("Voids an invoice by a credit note.")))
        .api_route(
            "/operator/billing-settings",
            get_with(settings, doc("Gives the settings of invoices."))
                .put_with(set_settings, doc("Replaces the settings of invoices.")),
        )
}

async fn create_budget(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<NewBudget>,
) -> Result<Created<Budget>, Failed> {
    Ok(Created(portal.budgets.create_budget(&caller, org, body.value).await?))
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
) -> Result<NoContent, Failed> {
    portal.budgets.delete_budget(&caller, org, id).await?;
    Ok(NoContent)
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

#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Month {
    month: String,
}

#[derive(Serialize, schemars::JsonSchema)]
struct Made {
    made: usize,
}

async fn bill(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    body: Json<Month>,
) -> Result<Created<Made>, Failed> {
    let made = portal.invoices.bill_month(&caller, &body.value.month).await?;
    Ok(Created(Made { made }))
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

//! The routes of budgets.

use super::Budgets;
use aide::axum::ApiRouter;
use aide::axum::routing::{delete_with, get_with};
use axum::Json as Answer;
use axum::extract::State;
use axum::response::NoContent;
use berth_rest::answers::Created;
use berth_rest::lists::ListQuery;
use berth_rest::operations::doc;
use berth_rest::{Failed, Json, Path, Query, Signed};
use berth_types::Page;
use berth_types::budgets::{Budget, NewBudget};
use berth_types::ids::{BudgetId, OrgId};
use berth_types::scopes::ApiScope;

pub fn routes() -> ApiRouter<Budgets> {
    ApiRouter::new()
        .api_route(
            "/orgs/{org}/budgets",
            get_with(
                list_budgets,
                doc(ApiScope::BillingRead, "Lists the budgets of an organization with their use."),
            )
            .post_with(create_budget, doc(ApiScope::BillingWrite, "Creates a budget.")),
        )
        .api_route(
            "/orgs/{org}/budgets/{id}",
            delete_with(delete_budget, doc(ApiScope::BillingWrite, "Deletes a budget.")),
        )
}

async fn create_budget(
    State(budgets): State<Budgets>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<NewBudget>,
) -> Result<Created<Budget>, Failed> {
    Ok(Created(budgets.create_budget(&caller, org, body.value).await?))
}

async fn list_budgets(
    State(budgets): State<Budgets>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<ListQuery>,
) -> Result<Answer<Page<Budget>>, Failed> {
    Ok(Answer(budgets.list_budgets(&caller, org, &query.by_creation()?).await?))
}

async fn delete_budget(
    State(budgets): State<Budgets>,
    Signed(caller): Signed,
    Path((org, id)): Path<(OrgId, BudgetId)>,
) -> Result<NoContent, Failed> {
    budgets.delete_budget(&caller, org, id).await?;
    Ok(NoContent)
}

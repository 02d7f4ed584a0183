//! Budgets.

use std::future::Future;

use berth_types::Page;
use berth_types::budgets::{Budget, NewBudget};
use berth_types::ids::{BudgetId, OrgId};

use super::{Answer, list_all, send};

/// Lists the budgets of an organization, oldest first, with the charges of the current month.
pub fn list(org: OrgId) -> impl Future<Output = Answer<Page<Budget>>> + Send + 'static {
    list_all(format!("/orgs/{org}/budgets?sort=asc"))
}

/// Creates a budget for the current and later months. Repeated requests with the same key create one budget.
pub fn create(
    org: OrgId,
    input: &NewBudget,
    key: Option<String>,
) -> impl Future<Output = Answer<Budget>> + Send + 'static {
    send("POST", format!("/orgs/{org}/budgets"), input, key)
}

/// Deletes a budget. Earlier refusals and stops remain.
pub fn delete(org: OrgId, id: BudgetId) -> impl Future<Output = Answer<()>> + Send + 'static {
    send("DELETE", format!("/orgs/{org}/budgets/{id}"), &(), None)
}

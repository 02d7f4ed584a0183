//! What may be spent in a month.

use std::future::Future;

use berth_types::Page;
use berth_types::budgets::{Budget, NewBudget};
use berth_types::ids::{BudgetId, OrgId};

use super::{Answer, list_all, send};

/// The budgets of an organization, oldest first, with what this month has come to.
pub fn list(org: OrgId) -> impl Future<Output = Answer<Page<Budget>>> + Send + 'static {
    list_all(format!("/orgs/{org}/budgets?sort=asc"))
}

/// Makes a budget; it counts from the start of this month. The same key makes one.
pub fn create(
    org: OrgId,
    input: &NewBudget,
    key: Option<String>,
) -> impl Future<Output = Answer<Budget>> + Send + 'static {
    send("POST", format!("/orgs/{org}/budgets"), input, key)
}

/// Takes a budget away; what it refused or stopped stays so.
pub fn delete(org: OrgId, id: BudgetId) -> impl Future<Output = Answer<()>> + Send + 'static {
    send("DELETE", format!("/orgs/{org}/budgets/{id}"), &(), None)
}

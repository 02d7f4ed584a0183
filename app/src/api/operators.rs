//! Operators and their roles, for owners of the portal.

use std::future::Future;

use berth_types::Page;
use berth_types::change_requests::Outcome;
use berth_types::ids::UserId;
use berth_types::operators::{ChangeOperator, NewOperator, Operator, RemoveOperator};

use super::{Answer, get, send};

/// Lists a page of the operators, the newest account first.
pub fn list(cursor: Option<String>) -> impl Future<Output = Answer<Page<Operator>>> + Send + 'static + use<> {
    let cursor = cursor.map_or_else(String::new, |c| format!("&cursor={c}"));
    get(format!("/operator/operators?limit=50{cursor}"))
}

/// Makes the person with an address an operator, or requests it from a second operator.
pub fn add(
    input: &NewOperator,
    key: Option<String>,
) -> impl Future<Output = Answer<Outcome<Operator>>> + Send + 'static {
    send("POST", "/operator/operators", input, key)
}

/// Changes the role of an operator, or requests further rights from a second operator.
pub fn change(
    user: UserId,
    input: &ChangeOperator,
) -> impl Future<Output = Answer<Outcome<Operator>>> + Send + 'static {
    send("PATCH", format!("/operator/operators/{user}"), input, None)
}

/// Removes an operator.
pub fn remove(
    user: UserId,
    input: &RemoveOperator,
    key: Option<String>,
) -> impl Future<Output = Answer<()>> + Send + 'static {
    send("POST", format!("/operator/operators/{user}/remove"), input, key)
}

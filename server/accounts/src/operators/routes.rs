//! The routes of operators.

use super::Operators;
use aide::axum::ApiRouter;
use aide::axum::routing::{get_with, patch_with, post_with};
use axum::Json as Answer;
use axum::extract::State;
use axum::response::NoContent;
use berth_rest::answers::MayWait;
use berth_rest::lists::ListQuery;
use berth_rest::operations::doc;
use berth_rest::{Failed, Json, Path, Query, Signed};
use berth_types::Page;
use berth_types::ids::UserId;
use berth_types::operators::{ChangeOperator, NewOperator, Operator, RemoveOperator};
use berth_types::scopes::ApiScope;

pub fn routes() -> ApiRouter<Operators> {
    ApiRouter::new()
        .api_route(
            "/operator/operators",
            get_with(list, doc(ApiScope::MembersRead, "Lists the operators with their roles."))
                .post_with(add, doc(ApiScope::Admin, "Makes the person with an address an operator.")),
        )
        .api_route(
            "/operator/operators/{user}",
            patch_with(change, doc(ApiScope::Admin, "Changes the role of an operator.")),
        )
        .api_route(
            "/operator/operators/{user}/remove",
            post_with(remove, doc(ApiScope::Admin, "Removes an operator; the account stays.")),
        )
}

async fn list(
    State(operators): State<Operators>,
    Signed(caller): Signed,
    Query(query): Query<ListQuery>,
) -> Result<Answer<Page<Operator>>, Failed> {
    Ok(Answer(operators.list_operators(&caller, &query.by_creation()?).await?))
}

async fn add(
    State(operators): State<Operators>,
    Signed(caller): Signed,
    body: Json<NewOperator>,
) -> Result<MayWait<201, Operator>, Failed> {
    Ok(MayWait(operators.add(&caller, body.value, None).await?))
}

async fn change(
    State(operators): State<Operators>,
    Signed(caller): Signed,
    Path(user): Path<UserId>,
    body: Json<ChangeOperator>,
) -> Result<MayWait<200, Operator>, Failed> {
    Ok(MayWait(operators.change(&caller, user, body.value, None).await?))
}

async fn remove(
    State(operators): State<Operators>,
    Signed(caller): Signed,
    Path(user): Path<UserId>,
    body: Json<RemoveOperator>,
) -> Result<NoContent, Failed> {
    operators.remove(&caller, user, body.value).await?;
    Ok(NoContent)
}

//! The routes of change requests and of the rule for a second operator.

use aide::axum::ApiRouter;
use aide::axum::routing::{get_with, post_with};
use axum::Json as Answer;
use axum::extract::State;
use berth_rest::answers::MayWait;
use berth_rest::lists::ListQuery;
use berth_rest::operations::doc;
use berth_rest::{Failed, Json, Path, Query, Signed};
use berth_types::change_requests::{ChangePolicy, ChangeRequest, RejectChange};
use berth_types::ids::ChangeRequestId;
use berth_types::scopes::ApiScope;
use berth_types::{Page, Sort};
use serde::Deserialize;

use crate::portal::Portal;

pub fn routes() -> ApiRouter<Portal> {
    ApiRouter::new()
        .api_route(
            "/operator/change-policy",
            get_with(policy, doc(ApiScope::Admin, "Gives the rule for a second operator."))
                .put_with(set_policy, doc(ApiScope::Admin, "Sets the rule for a second operator.")),
        )
        .api_route(
            "/operator/change-requests",
            get_with(list, doc(ApiScope::Admin, "Lists the change requests of operators.")),
        )
        .api_route(
            "/operator/change-requests/{change}",
            get_with(show, doc(ApiScope::Admin, "Gives a change request.")),
        )
        .api_route(
            "/operator/change-requests/{change}/approve",
            post_with(approve, doc(ApiScope::Admin, "Approves a change request of another operator.")),
        )
        .api_route(
            "/operator/change-requests/{change}/reject",
            post_with(reject, doc(ApiScope::Admin, "Rejects a change request of another operator.")),
        )
        .api_route(
            "/operator/change-requests/{change}/withdraw",
            post_with(withdraw, doc(ApiScope::Admin, "Withdraws an own change request.")),
        )
}

async fn policy(
    State(portal): State<Portal>,
    Signed(caller): Signed,
) -> Result<Answer<ChangePolicy>, Failed> {
    Ok(Answer(super::policy(&portal.context, &caller).await?))
}

async fn set_policy(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    body: Json<ChangePolicy>,
) -> Result<MayWait<200, ChangePolicy>, Failed> {
    Ok(MayWait(super::set_policy(&portal.context, &caller, body.value, None).await?))
}

/// The query of the list of change requests.
#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct ChangeQuery {
    /// True for the requests that wait for a second operator only.
    #[serde(default)]
    pending: bool,
    /// The most items of a page, 1 to 200; 50 when absent.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    #[schemars(length(min = 1, max = 4_096))]
    cursor: Option<String>,
    /// The order of the list. When absent, `desc` for lists by creation and `asc` for all other lists.
    sort: Option<Sort>,
}

async fn list(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Query(query): Query<ChangeQuery>,
) -> Result<Answer<Page<ChangeRequest>>, Failed> {
    let options = ListQuery { limit: query.limit, cursor: query.cursor, sort: query.sort }
        .by_creation_with(&query.pending)?;
    Ok(Answer(super::list(&portal.context, &caller, query.pending, &options).await?))
}

async fn show(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(change): Path<ChangeRequestId>,
) -> Result<Answer<ChangeRequest>, Failed> {
    Ok(Answer(super::get(&portal.context, &caller, change).await?))
}

async fn approve(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(change): Path<ChangeRequestId>,
) -> Result<Answer<ChangeRequest>, Failed> {
    Ok(Answer(super::approve(&portal, &caller, change).await?))
}

async fn reject(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(change): Path<ChangeRequestId>,
    body: Json<RejectChange>,
) -> Result<Answer<ChangeRequest>, Failed> {
    Ok(Answer(super::reject(&portal.context, &caller, change, body.value).await?))
}

async fn withdraw(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(change): Path<ChangeRequestId>,
) -> Result<Answer<ChangeRequest>, Failed> {
    Ok(Answer(super::withdraw(&portal.context, &caller, change).await?))
}

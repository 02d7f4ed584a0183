//! Quotas and requests for higher quotas.

use super::Quotas;
use aide::axum::ApiRouter;
use aide::axum::routing::{get_with, post_with};
use axum::Json as Answer;
use axum::extract::State;
use berth_foundation::Scope;
use berth_rest::answers::{Created, MayWait};
use berth_rest::lists::ListQuery;
use berth_rest::operations::doc;
use berth_rest::{Failed, Json, Path, Query, Signed};
use berth_types::ids::{OrgId, QuotaRequestId};
use berth_types::quotas::{
    DecideQuotaRequest, Limits, NewQuotaRequest, Quota, QuotaRequest, QuotaRequestState,
};
use berth_types::scopes::ApiScope;
use berth_types::{Page, Sort};
use serde::Deserialize;

pub fn routes() -> ApiRouter<Quotas> {
    ApiRouter::new()
        .api_route(
            "/orgs/{org}/quota",
            get_with(show, doc(ApiScope::JobsRead, "Gives the quota of an organization with its use.")),
        )
        .api_route(
            "/orgs/{org}/quota-requests",
            get_with(
                list_requests,
                doc(
                    ApiScope::JobsRead,
                    "Lists the requests of an organization for a higher quota or for credit.",
                ),
            )
            .post_with(request, doc(ApiScope::JobsWrite, "Requests a higher quota or credit.")),
        )
        .api_route(
            "/operator/quota",
            get_with(show_default, doc(ApiScope::JobsRead, "Gives the default quota."))
                .put_with(set_default, doc(ApiScope::Admin, "Replaces the default quota.")),
        )
        .api_route(
            "/operator/orgs/{org}/quota",
            get_with(show_any, doc(ApiScope::JobsRead, "Gives the quota of any organization."))
                .put_with(set, doc(ApiScope::Admin, "Replaces the quota of an organization."))
                .delete_with(clear, doc(ApiScope::Admin, "Returns an organization to the default quota.")),
        )
        .api_route(
            "/operator/quota-requests",
            get_with(
                list_all_requests,
                doc(ApiScope::JobsRead, "Lists the quota requests of all organizations."),
            ),
        )
        .api_route(
            "/operator/quota-requests/{id}",
            post_with(decide, doc(ApiScope::Admin, "Decides a request for a higher quota or for credit.")),
        )
}

async fn show(
    State(quotas): State<Quotas>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
) -> Result<Answer<Quota>, Failed> {
    Ok(Answer(quotas.quota(&caller, org).await?))
}

async fn show_any(
    State(quotas): State<Quotas>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
) -> Result<Answer<Quota>, Failed> {
    Ok(Answer(quotas.any_quota(&caller, org).await?))
}

async fn set(
    State(quotas): State<Quotas>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<Limits>,
) -> Result<Answer<Quota>, Failed> {
    quotas.set_limits(&caller, Some(org), body.value).await?;
    Ok(Answer(quotas.any_quota(&caller, org).await?))
}

async fn clear(
    State(quotas): State<Quotas>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
) -> Result<Answer<Quota>, Failed> {
    quotas.clear_limits(&caller, org).await?;
    Ok(Answer(quotas.any_quota(&caller, org).await?))
}

async fn show_default(
    State(quotas): State<Quotas>,
    Signed(caller): Signed,
) -> Result<Answer<Limits>, Failed> {
    Ok(Answer(quotas.default_limits(&caller).await?))
}

async fn set_default(
    State(quotas): State<Quotas>,
    Signed(caller): Signed,
    body: Json<Limits>,
) -> Result<Answer<Limits>, Failed> {
    quotas.set_limits(&caller, None, body.value).await?;
    Ok(Answer(quotas.default_limits(&caller).await?))
}

async fn request(
    State(quotas): State<Quotas>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<NewQuotaRequest>,
) -> Result<Created<QuotaRequest>, Failed> {
    Ok(Created(quotas.request_quota(&caller, org, body.value).await?))
}

/// The query of an organization's quota requests.
#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct RequestQuery {
    /// Only requests in this state.
    state: Option<QuotaRequestState>,
    /// The most items of a page, 1 to 200; 50 when absent.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    #[schemars(length(min = 1, max = 4_096))]
    cursor: Option<String>,
    /// The order of the list. When absent, `desc` for lists by creation and `asc` for all other lists.
    sort: Option<Sort>,
}

async fn list_requests(
    State(quotas): State<Quotas>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<RequestQuery>,
) -> Result<Answer<Page<QuotaRequest>>, Failed> {
    let options = ListQuery { limit: query.limit, cursor: query.cursor, sort: query.sort }
        .by_creation_with(&query.state)?;
    Ok(Answer(quotas.list_quota_requests(&caller, Scope::Org(org), query.state, &options).await?))
}

/// The query of the quota requests of all organizations.
#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct AllRequestsQuery {
    /// Only requests of this organization.
    org: Option<OrgId>,
    /// Only requests in this state.
    state: Option<QuotaRequestState>,
    /// The most items of a page, 1 to 200; 50 when absent.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    #[schemars(length(min = 1, max = 4_096))]
    cursor: Option<String>,
    /// The order of the list. When absent, `desc` for lists by creation and `asc` for all other lists.
    sort: Option<Sort>,
}

async fn list_all_requests(
    State(quotas): State<Quotas>,
    Signed(caller): Signed,
    Query(query): Query<AllRequestsQuery>,
) -> Result<Answer<Page<QuotaRequest>>, Failed> {
    let options = ListQuery { limit: query.limit, cursor: query.cursor, sort: query.sort }
        .by_creation_with(&(query.org, query.state))?;
    let scope = Scope::Operator(query.org);
    Ok(Answer(quotas.list_quota_requests(&caller, scope, query.state, &options).await?))
}

async fn decide(
    State(quotas): State<Quotas>,
    Signed(caller): Signed,
    Path(id): Path<QuotaRequestId>,
    body: Json<DecideQuotaRequest>,
) -> Result<MayWait<200, QuotaRequest>, Failed> {
    Ok(MayWait(quotas.decide_quota_request(&caller, id, body.value, None).await?))
}

//! The routes of service accounts.

use super::ServiceAccounts;
use aide::axum::ApiRouter;
use aide::axum::routing::{get_with, patch_with};
use axum::Json as Answer;
use axum::extract::State;
use axum::response::NoContent;
use berth_rest::answers::Created;
use berth_rest::lists::ListQuery;
use berth_rest::operations::doc;
use berth_rest::{Failed, Json, Path, Query, Signed};
use berth_types::Page;
use berth_types::ids::{OrgId, UserId};
use berth_types::scopes::ApiScope;
use berth_types::service_accounts::{NewServiceAccount, PatchServiceAccount, ServiceAccount};

pub fn routes() -> ApiRouter<ServiceAccounts> {
    ApiRouter::new()
        .api_route(
            "/orgs/{org}/service-accounts",
            get_with(list, doc(ApiScope::MembersRead, "Lists the service accounts of an organization."))
                .post_with(create, doc(ApiScope::Admin, "Creates a service account, at most 100 in all.")),
        )
        .api_route(
            "/orgs/{org}/service-accounts/{account}",
            patch_with(change, doc(ApiScope::Admin, "Disables or enables a service account."))
                .delete_with(delete, doc(ApiScope::Admin, "Deletes a service account with its tokens.")),
        )
}

async fn list(
    State(accounts): State<ServiceAccounts>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<ListQuery>,
) -> Result<Answer<Page<ServiceAccount>>, Failed> {
    Ok(Answer(accounts.list_accounts(&caller, org, &query.by_creation()?).await?))
}

async fn create(
    State(accounts): State<ServiceAccounts>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<NewServiceAccount>,
) -> Result<Created<ServiceAccount>, Failed> {
    Ok(Created(accounts.create_account(&caller, org, body.value).await?))
}

async fn change(
    State(accounts): State<ServiceAccounts>,
    Signed(caller): Signed,
    Path((org, account)): Path<(OrgId, UserId)>,
    body: Json<PatchServiceAccount>,
) -> Result<Answer<ServiceAccount>, Failed> {
    Ok(Answer(accounts.change_account(&caller, org, account, body.value).await?))
}

async fn delete(
    State(accounts): State<ServiceAccounts>,
    Signed(caller): Signed,
    Path((org, account)): Path<(OrgId, UserId)>,
) -> Result<NoContent, Failed> {
    accounts.delete_account(&caller, org, account).await?;
    Ok(NoContent)
}

//! The stored bytes of an organization, and the retention of its ended jobs.

use super::JobRetention;
use aide::axum::ApiRouter;
use aide::axum::routing::get_with;
use axum::Json as Answer;
use axum::extract::State;
use berth_rest::operations::doc;
use berth_rest::{Failed, Json, Path, Signed};
use berth_types::ids::OrgId;
use berth_types::scopes::ApiScope;
use berth_types::storage::{OrgStorage, Retention, SetRetention};

pub fn routes() -> ApiRouter<JobRetention> {
    ApiRouter::new()
        .api_route(
            "/orgs/{org}/storage",
            get_with(
                storage,
                doc(ApiScope::StorageRead, "Gives the stored bytes of an organization and their limit."),
            ),
        )
        .api_route(
            "/orgs/{org}/retention",
            get_with(
                show,
                doc(ApiScope::StorageRead, "Gives the retention of an organization's ended jobs."),
            )
            .put_with(
                set,
                doc(ApiScope::StorageWrite, "Sets the retention of an organization's ended jobs."),
            ),
        )
}

async fn storage(
    State(retention): State<JobRetention>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
) -> Result<Answer<OrgStorage>, Failed> {
    Ok(Answer(retention.storage(&caller, org).await?))
}

async fn show(
    State(retention): State<JobRetention>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
) -> Result<Answer<Retention>, Failed> {
    Ok(Answer(retention.retention(&caller, org).await?))
}

async fn set(
    State(retention): State<JobRetention>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<SetRetention>,
) -> Result<Answer<Retention>, Failed> {
    Ok(Answer(retention.set_retention(&caller, org, body.value).await?))
}

//! The routes of storage classes, for operators and for organizations.

use super::StorageClasses;
use aide::axum::ApiRouter;
use aide::axum::routing::{get_with, put_with};
use axum::Json as Answer;
use axum::extract::State;
use axum::response::NoContent;
use berth_rest::lists::{ListQuery, page_in_memory};
use berth_rest::operations::doc;
use berth_rest::{Failed, Path, Query, Signed};
use berth_types::Page;
use berth_types::ids::OrgId;
use berth_types::scopes::ApiScope;
use berth_types::storage_classes::{OrgStorageClass, StorageClass};

pub fn routes() -> ApiRouter<StorageClasses> {
    ApiRouter::new()
        .api_route(
            "/operator/storage-classes",
            get_with(list, doc(ApiScope::FleetRead, "Lists storage classes with their organizations.")),
        )
        .api_route(
            "/operator/storage-classes/{class}",
            put_with(declare, doc(ApiScope::FleetWrite, "Declares a storage class."))
                .delete_with(delete, doc(ApiScope::FleetWrite, "Removes a storage class without volumes.")),
        )
        .api_route(
            "/operator/storage-classes/{class}/orgs/{org}",
            put_with(grant, doc(ApiScope::FleetWrite, "Grants a storage class to an organization."))
                .delete_with(
                    revoke,
                    doc(ApiScope::FleetWrite, "Takes a storage class from an organization."),
                ),
        )
        .api_route(
            "/orgs/{org}/storage-classes",
            get_with(
                list_of_org,
                doc(ApiScope::StorageRead, "Lists the storage classes of an organization."),
            ),
        )
}

async fn list(
    State(classes): State<StorageClasses>,
    Signed(caller): Signed,
    Query(query): Query<ListQuery>,
) -> Result<Answer<Page<StorageClass>>, Failed> {
    let options = query.by_name()?;
    Ok(Answer(page_in_memory(classes.list_classes(&caller).await?, &options, |class| class.name.clone())))
}

async fn declare(
    State(classes): State<StorageClasses>,
    Signed(caller): Signed,
    Path(class): Path<String>,
) -> Result<Answer<StorageClass>, Failed> {
    Ok(Answer(classes.declare_class(&caller, &class).await?))
}

async fn delete(
    State(classes): State<StorageClasses>,
    Signed(caller): Signed,
    Path(class): Path<String>,
) -> Result<NoContent, Failed> {
    classes.delete_class(&caller, &class).await?;
    Ok(NoContent)
}

async fn grant(
    State(classes): State<StorageClasses>,
    Signed(caller): Signed,
    Path((class, org)): Path<(String, OrgId)>,
) -> Result<Answer<StorageClass>, Failed> {
    Ok(Answer(classes.grant_class(&caller, &class, org).await?))
}

async fn revoke(
    State(classes): State<StorageClasses>,
    Signed(caller): Signed,
    Path((class, org)): Path<(String, OrgId)>,
) -> Result<Answer<StorageClass>, Failed> {
    Ok(Answer(classes.revoke_class(&caller, &class, org).await?))
}

async fn list_of_org(
    State(classes): State<StorageClasses>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<ListQuery>,
) -> Result<Answer<Page<OrgStorageClass>>, Failed> {
    let options = query.by_name()?;
    let found = classes.list_org_classes(&caller, org).await?;
    Ok(Answer(page_in_memory(found, &options, |class| class.name.clone())))
}

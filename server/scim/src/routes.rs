//! The routes of SCIM. Their errors have the form of RFC 7644.

use aide::axum::ApiRouter;
use aide::axum::routing::get_with;
use axum::extract::State;
use axum::response::NoContent;
use berth_rest::operations::doc;
use berth_rest::{Failed, Path, Query, Signed};
use berth_types::ids::{OrgId, ScimGroupId, UserId};
use berth_types::scim::{PutScimGroup, PutScimUser, ScimDocument, ScimGroup, ScimList, ScimPatch, ScimUser};
use berth_types::scopes::ApiScope;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::Scim;
use crate::forms::{Body, Created, Found};

pub fn routes() -> ApiRouter<Scim> {
    let scope = ApiScope::Scim;
    ApiRouter::new()
        .api_route(
            "/scim/{org}/v2/ServiceProviderConfig",
            get_with(service_provider_config, doc(scope, "Gives the abilities of SCIM.")),
        )
        .api_route(
            "/scim/{org}/v2/ResourceTypes",
            get_with(resource_types, doc(scope, "Lists the kinds of resources of SCIM.")),
        )
        .api_route(
            "/scim/{org}/v2/Schemas",
            get_with(schemas, doc(scope, "Lists the attributes of the resources of SCIM.")),
        )
        .api_route(
            "/scim/{org}/v2/Users",
            get_with(list_users, doc(scope, "Lists the people of the provider."))
                .post_with(create_user, doc(scope, "Creates a person of the provider, and a member.")),
        )
        .api_route(
            "/scim/{org}/v2/Users/{user}",
            get_with(get_user, doc(scope, "Gives a person of the provider."))
                .put_with(replace_user, doc(scope, "Replaces a person of the provider."))
                .patch_with(patch_user, doc(scope, "Changes a person of the provider."))
                .delete_with(
                    delete_user,
                    doc(scope, "Deletes a person of the provider, and the membership."),
                ),
        )
        .api_route(
            "/scim/{org}/v2/Groups",
            get_with(list_groups, doc(scope, "Lists the groups of the provider."))
                .post_with(create_group, doc(scope, "Creates a group of the provider.")),
        )
        .api_route(
            "/scim/{org}/v2/Groups/{group}",
            get_with(get_group, doc(scope, "Gives a group of the provider."))
                .put_with(replace_group, doc(scope, "Replaces a group of the provider."))
                .patch_with(patch_group, doc(scope, "Changes a group of the provider."))
                .delete_with(delete_group, doc(scope, "Deletes a group of the provider.")),
        )
}

/// The query of a list. Further parameters have no effect.
#[derive(Deserialize, JsonSchema)]
struct ListQuery {
    /// One comparison: `userName`, `displayName` (of a group) or `externalId`, then `eq` and a text in quotation marks.
    #[schemars(length(max = 2000))]
    filter: Option<String>,
    /// The place of the first resource, from 1 on; 1 when absent.
    #[serde(rename = "startIndex")]
    start_index: Option<i64>,
    /// The number of resources, at most 100; 100 when absent.
    count: Option<i64>,
}

impl ListQuery {
    fn parameters(&self) -> (Option<&str>, Option<i64>, Option<i64>) {
        (self.filter.as_deref(), self.start_index, self.count)
    }
}

/// The query of a group. Further parameters have no effect.
#[derive(Deserialize, JsonSchema)]
struct GroupQuery {
    /// With `members` the answer has no members.
    #[serde(rename = "excludedAttributes")]
    #[schemars(length(max = 200))]
    excluded_attributes: Option<String>,
}

impl GroupQuery {
    fn excludes_members(&self) -> bool {
        let names = self.excluded_attributes.as_deref().unwrap_or_default();
        names.split(',').any(|name| name.trim().eq_ignore_ascii_case("members"))
    }
}

async fn service_provider_config(
    State(scim): State<Scim>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
) -> Result<Found<ScimDocument>, Failed> {
    Ok(Found(scim.service_provider_config(&caller, org).await?))
}

async fn resource_types(
    State(scim): State<Scim>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
) -> Result<Found<ScimList<ScimDocument>>, Failed> {
    Ok(Found(scim.resource_types(&caller, org).await?))
}

async fn schemas(
    State(scim): State<Scim>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
) -> Result<Found<ScimList<ScimDocument>>, Failed> {
    Ok(Found(scim.schemas(&caller, org).await?))
}

async fn list_users(
    State(scim): State<Scim>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<ListQuery>,
) -> Result<Found<ScimList<ScimUser>>, Failed> {
    Ok(Found(scim.list_users(&caller, org, query.parameters()).await?))
}

async fn get_user(
    State(scim): State<Scim>,
    Signed(caller): Signed,
    Path((org, user)): Path<(OrgId, UserId)>,
) -> Result<Found<ScimUser>, Failed> {
    Ok(Found(scim.get_user(&caller, org, user).await?))
}

async fn create_user(
    State(scim): State<Scim>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Body(input): Body<PutScimUser>,
) -> Result<Created<ScimUser>, Failed> {
    let resource = scim.create_user(&caller, org, &input).await?;
    Ok(Created { location: resource.meta.location.clone(), resource })
}

async fn replace_user(
    State(scim): State<Scim>,
    Signed(caller): Signed,
    Path((org, user)): Path<(OrgId, UserId)>,
    Body(input): Body<PutScimUser>,
) -> Result<Found<ScimUser>, Failed> {
    Ok(Found(scim.replace_user(&caller, (org, user), &input).await?))
}

async fn patch_user(
    State(scim): State<Scim>,
    Signed(caller): Signed,
    Path((org, user)): Path<(OrgId, UserId)>,
    Body(patch): Body<ScimPatch>,
) -> Result<Found<ScimUser>, Failed> {
    Ok(Found(scim.patch_user(&caller, (org, user), &patch).await?))
}

async fn delete_user(
    State(scim): State<Scim>,
    Signed(caller): Signed,
    Path((org, user)): Path<(OrgId, UserId)>,
) -> Result<NoContent, Failed> {
    scim.delete_user(&caller, org, user).await?;
    Ok(NoContent)
}

async fn list_groups(
    State(scim): State<Scim>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<ListQuery>,
) -> Result<Found<ScimList<ScimGroup>>, Failed> {
    Ok(Found(scim.list_groups(&caller, org, query.parameters()).await?))
}

async fn get_group(
    State(scim): State<Scim>,
    Signed(caller): Signed,
    Path((org, group)): Path<(OrgId, ScimGroupId)>,
    Query(query): Query<GroupQuery>,
) -> Result<Found<ScimGroup>, Failed> {
    Ok(Found(scim.get_group(&caller, (org, group), query.excludes_members()).await?))
}

async fn create_group(
    State(scim): State<Scim>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Body(input): Body<PutScimGroup>,
) -> Result<Created<ScimGroup>, Failed> {
    let resource = scim.create_group(&caller, org, &input).await?;
    Ok(Created { location: resource.meta.location.clone(), resource })
}

async fn replace_group(
    State(scim): State<Scim>,
    Signed(caller): Signed,
    Path((org, group)): Path<(OrgId, ScimGroupId)>,
    Body(input): Body<PutScimGroup>,
) -> Result<Found<ScimGroup>, Failed> {
    Ok(Found(scim.replace_group(&caller, (org, group), &input).await?))
}

async fn patch_group(
    State(scim): State<Scim>,
    Signed(caller): Signed,
    Path((org, group)): Path<(OrgId, ScimGroupId)>,
    Body(patch): Body<ScimPatch>,
) -> Result<Found<ScimGroup>, Failed> {
    Ok(Found(scim.patch_group(&caller, (org, group), &patch).await?))
}

async fn delete_group(
    State(scim): State<Scim>,
    Signed(caller): Signed,
    Path((org, group)): Path<(OrgId, ScimGroupId)>,
) -> Result<NoContent, Failed> {
    scim.delete_group(&caller, org, group).await?;
    Ok(NoContent)
}
